//! Runs of ordinals as lists of ranges, and what two lists have in common or apart: what is asked of all tasks of two
//! arrays costs by their runs of equal outcome, not by their tasks. [`Ordinals`](super::ordinals::Ordinals) is the set
//! that is kept; this is what is reckoned with.

use super::ordinals::Ordinals;

/// Ranges in order that do not overlap, each `(first, one past the last)`, none empty.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Runs(Vec<(u32, u32)>);

impl Runs {
    /// What a set has of `window`.
    pub(crate) fn of(set: &Ordinals, window: (u32, u32)) -> Self {
        let mut runs = Self::default();
        set.within(window).for_each(|run| runs.push(run));
        runs
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.0.iter().copied()
    }

    /// One by one.
    #[cfg(test)]
    pub(crate) fn ordinals(&self) -> impl Iterator<Item = u32> + '_ {
        self.iter().flat_map(|(start, end)| start..end)
    }

    /// In both.
    pub(crate) fn and(&self, other: &Self) -> Self {
        self.merged(other, |a, b| a && b)
    }

    /// In either.
    pub(crate) fn or(&self, other: &Self) -> Self {
        self.merged(other, |a, b| a || b)
    }

    /// In this one and not in the other.
    pub(crate) fn minus(&self, other: &Self) -> Self {
        self.merged(other, |a, b| a && !b)
    }

    /// Where `wanted` of "in this one" and "in the other" holds; it must not for neither. One pass over both.
    fn merged(&self, other: &Self, wanted: impl Fn(bool, bool) -> bool) -> Self {
        let mut out = Self::default();
        let (mut a, mut b) = (Edges::of(&self.0), Edges::of(&other.0));
        let mut from = 0;
        while let Some(at) = a.next.into_iter().chain(b.next).min() {
            if wanted(a.inside, b.inside) {
                out.push((from, at));
            }
            a.pass(at);
            b.pass(at);
            from = at;
        }
        out
    }

    fn push(&mut self, (start, end): (u32, u32)) {
        #[cfg(test)]
        seen::note();
        match self.0.last_mut() {
            Some((_, last)) if *last == start => *last = end,
            _ if start < end => self.0.push((start, end)),
            _ => {}
        }
    }
}

/// Walks the borders of runs.
struct Edges<'r> {
    runs: &'r [(u32, u32)],
    inside: bool,
    /// The next border.
    next: Option<u32>,
}

impl<'r> Edges<'r> {
    fn of(runs: &'r [(u32, u32)]) -> Self {
        Self { runs, inside: false, next: runs.first().map(|(start, _)| *start) }
    }

    /// Goes over the border at `at`, if the next one lies there.
    fn pass(&mut self, at: u32) {
        if self.next != Some(at) {
            return;
        }
        if self.inside {
            self.runs = self.runs.get(1..).unwrap_or_default();
        }
        self.inside = !self.inside;
        self.next = self.runs.first().map(|(start, end)| if self.inside { *end } else { *start });
    }
}

/// How many runs were looked at: what tests of the cost go by.
#[cfg(test)]
pub(crate) mod seen {
    use std::cell::Cell;

    thread_local! {
        static RUNS: Cell<u64> = const { Cell::new(0) };
    }

    pub(super) fn note() {
        RUNS.set(RUNS.get() + 1);
    }

    /// Since the last question.
    pub(crate) fn take() -> u64 {
        RUNS.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Against plain sets, over many pairs of sets.
    #[test]
    fn reckons_as_plain_sets_do() {
        let mut x = 7_u64;
        let mut draw = || {
            let mut set = Ordinals::default();
            for _ in 0..12 {
                x = crate::hash::mix(x);
                let from = (x >> 8) as u32 % 40;
                set.insert_range(from, from + (x >> 40) as u32 % 4);
            }
            set
        };
        let plain = |runs: &Runs| runs.ordinals().collect::<BTreeSet<u32>>();
        for _ in 0..500 {
            let (a, b) = (draw(), draw());
            let window = (5, 30);
            let (a, b) = (Runs::of(&a, window), Runs::of(&b, window));
            let (pa, pb) = (plain(&a), plain(&b));
            assert!(pa.iter().all(|n| (5..30).contains(n)));
            for (runs, should) in [
                (a.and(&b), pa.intersection(&pb).copied().collect::<BTreeSet<u32>>()),
                (a.or(&b), pa.union(&pb).copied().collect()),
                (a.minus(&b), pa.difference(&pb).copied().collect()),
            ] {
                assert_eq!(plain(&runs), should);
                assert!(runs.0.iter().all(|(start, end)| start < end));
                assert!(runs.0.windows(2).all(|pair| pair[0].1 < pair[1].0), "{runs:?}");
            }
        }
    }
}
