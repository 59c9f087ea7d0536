//! A set of task ordinals, kept as disjoint ranges that do not touch. A million-task array is one range, and one range
//! needs no memory of its own.

use serde::{Deserialize, Serialize, Serializer};
use std::collections::BTreeMap;

/// Ordinals of one job's tasks (positions in its array, from 0).
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Stored")]
pub struct Ordinals(Shape);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Shape {
    /// The first ordinal and one past the last; `(0, 0)` for none at all.
    One(u32, u32),
    /// Two or more ranges.
    Many(Box<Ranges>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Ranges {
    /// First ordinal of a range -> one past its last.
    ends: BTreeMap<u32, u32>,
    len: u32,
}

const EMPTY: Shape = Shape::One(0, 0);

impl Default for Ordinals {
    fn default() -> Self {
        Self(EMPTY)
    }
}

impl Ordinals {
    /// `0..count`.
    #[must_use]
    pub fn full(count: u32) -> Self {
        Self(Shape::One(0, count))
    }

    /// How many ordinals.
    #[must_use]
    pub fn len(&self) -> u32 {
        match &self.0 {
            Shape::One(start, end) => end - start,
            Shape::Many(ranges) => ranges.len,
        }
    }

    /// None at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Is it in the set?
    #[must_use]
    pub fn contains(&self, ordinal: u32) -> bool {
        match &self.0 {
            Shape::One(start, end) => (*start..*end).contains(&ordinal),
            Shape::Many(ranges) => ranges.range_of(ordinal).is_some(),
        }
    }

    /// Ranges in order, each `(first, one past the last)`.
    pub fn ranges(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        let (one, many) = match &self.0 {
            Shape::One(start, end) => ((start < end).then_some((*start, *end)), None),
            Shape::Many(ranges) => (None, Some(ranges.ends.iter())),
        };
        one.into_iter().chain(many.into_iter().flatten().map(|(start, end)| (*start, *end)))
    }

    /// One past the last; 0 if there is none.
    pub(crate) fn end(&self) -> u32 {
        match &self.0 {
            Shape::One(_, end) => *end,
            Shape::Many(ranges) => ranges.ends.last_key_value().map_or(0, |(_, end)| *end),
        }
    }

    /// What of the ranges lies in `window`, in order.
    pub(crate) fn within(&self, window: (u32, u32)) -> impl Iterator<Item = (u32, u32)> + '_ {
        let (from, to) = window;
        let (one, many) = match &self.0 {
            Shape::One(start, end) => (Some((*start, *end)), None),
            Shape::Many(ranges) => {
                // The range that begins before the window may reach into it.
                let before = ranges.ends.range(..from).next_back().map(|(start, end)| (*start, *end));
                (before, (from < to).then(|| ranges.ends.range(from..to)))
            }
        };
        let all = one.into_iter().chain(many.into_iter().flatten().map(|(start, end)| (*start, *end)));
        all.map(move |(start, end)| (start.max(from), end.min(to))).filter(|(start, end)| start < end)
    }

    /// Adds one; false if it was there.
    pub fn insert(&mut self, ordinal: u32) -> bool {
        if ordinal == u32::MAX || self.contains(ordinal) {
            return false;
        }
        self.insert_range(ordinal, ordinal + 1);
        true
    }

    /// Takes one out; false if it was not there.
    pub fn remove(&mut self, ordinal: u32) -> bool {
        if !self.contains(ordinal) {
            return false;
        }
        self.remove_range(ordinal, ordinal + 1);
        true
    }

    /// Takes `start..end` out, all of which must be in it.
    pub(crate) fn remove_range(&mut self, start: u32, end: u32) {
        if start >= end {
            return;
        }
        match &mut self.0 {
            Shape::One(first, last) if (*first, *last) == (start, end) => self.0 = EMPTY,
            Shape::One(first, _) if *first == start => *first = end,
            Shape::One(_, last) if *last == end => *last = start,
            Shape::One(first, last) => {
                let mut ranges = Ranges::of(*first, *last);
                ranges.remove(start, end);
                self.0 = Shape::Many(Box::new(ranges));
            }
            Shape::Many(ranges) => {
                ranges.remove(start, end);
                self.simplify();
            }
        }
    }

    /// Moves everything into `other`.
    pub fn drain_into(&mut self, other: &mut Self) {
        for (start, end) in std::mem::take(self).ranges() {
            other.insert_range(start, end);
        }
    }

    /// The first ranges that hold together at most `limit` ordinals.
    #[must_use]
    pub fn first(&self, limit: u32) -> Vec<(u32, u32)> {
        let mut left = limit;
        let mut out = Vec::new();
        for (start, end) in self.ranges() {
            if left == 0 {
                break;
            }
            let take = (end - start).min(left);
            out.push((start, start + take));
            left -= take;
        }
        out
    }

    /// Ranges are non-empty, apart from each other, below `count`, and `len` is their sum.
    #[must_use]
    pub fn is_sound(&self, count: u32) -> bool {
        let mut floor = None;
        let mut sum = 0_u64;
        for (start, end) in self.ranges() {
            if start >= end || end > count || floor.is_some_and(|f| start <= f) {
                return false;
            }
            floor = Some(end);
            sum += u64::from(end - start);
        }
        sum == u64::from(self.len())
    }

    /// Shares no ordinal with `other`.
    #[must_use]
    pub fn is_disjoint(&self, other: &Self) -> bool {
        let mut theirs = other.ranges().peekable();
        for (start, end) in self.ranges() {
            while theirs.peek().is_some_and(|(_, e)| *e <= start) {
                theirs.next();
            }
            if theirs.peek().is_some_and(|(s, _)| *s < end) {
                return false;
            }
        }
        true
    }

    /// Union with `start..end`.
    pub(crate) fn insert_range(&mut self, start: u32, end: u32) {
        if start >= end {
            return;
        }
        match &mut self.0 {
            Shape::One(first, last) if first == last => self.0 = Shape::One(start, end),
            Shape::One(first, last) if start <= *last && *first <= end => {
                *first = start.min(*first);
                *last = end.max(*last);
            }
            Shape::One(first, last) => {
                let mut ranges = Ranges::of(*first, *last);
                ranges.insert(start, end);
                self.0 = Shape::Many(Box::new(ranges));
            }
            Shape::Many(ranges) => {
                ranges.insert(start, end);
                self.simplify();
            }
        }
    }

    /// A single range is kept as such: equal sets are equal values.
    fn simplify(&mut self) {
        if let Shape::Many(ranges) = &self.0
            && ranges.ends.len() < 2
        {
            let (start, end) = ranges.ends.first_key_value().map_or((0, 0), |(start, end)| (*start, *end));
            self.0 = Shape::One(start, end);
        }
    }
}

impl Ranges {
    fn of(start: u32, end: u32) -> Self {
        Self { ends: BTreeMap::from([(start, end)]), len: end - start }
    }

    fn range_of(&self, ordinal: u32) -> Option<(u32, u32)> {
        let (start, end) = self.ends.range(..=ordinal).next_back()?;
        (ordinal < *end).then_some((*start, *end))
    }

    /// Takes out a part of one range.
    fn remove(&mut self, from: u32, to: u32) {
        let Some((start, end)) = self.range_of(from).filter(|(_, end)| to <= *end) else {
            return;
        };
        if start == from {
            self.ends.remove(&start);
        } else {
            self.ends.insert(start, from);
        }
        if to < end {
            self.ends.insert(to, end);
        }
        self.len -= to - from;
    }

    fn insert(&mut self, start: u32, end: u32) {
        let (mut first, mut last) = (start, end);
        // Ranges that overlap or touch the new one are swallowed.
        if let Some((s, e)) = self.ends.range(..=start).next_back().map(|(s, e)| (*s, *e))
            && e >= start
        {
            first = s;
            last = last.max(e);
            self.ends.remove(&s);
            self.len -= e - s;
        }
        while let Some((s, e)) = self.ends.range(first..=last).next().map(|(s, e)| (*s, *e)) {
            last = last.max(e);
            self.ends.remove(&s);
            self.len -= e - s;
        }
        self.ends.insert(first, last);
        self.len += last - first;
    }
}

/// As snapshots have it, in every format so far.
#[derive(Serialize, Deserialize)]
struct Stored {
    ranges: BTreeMap<u32, u32>,
    len: u32,
}

/// What was stored is no set of ranges.
#[derive(Debug, thiserror::Error)]
#[error("ordinals that are no ranges apart from each other, or not {len} in all")]
struct Unsound {
    len: u32,
}

impl Serialize for Ordinals {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Stored { ranges: self.ranges().collect(), len: self.len() }.serialize(serializer)
    }
}

impl TryFrom<Stored> for Ordinals {
    type Error = Unsound;

    fn try_from(stored: Stored) -> Result<Self, Unsound> {
        let mut set = Self(Shape::Many(Box::new(Ranges { ends: stored.ranges, len: stored.len })));
        if !set.is_sound(u32::MAX) {
            return Err(Unsound { len: stored.len });
        }
        set.simplify();
        Ok(set)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Against a plain set, over a long pseudo-random walk.
    #[test]
    fn equals_a_plain_set() {
        let (mut set, mut model) = (Ordinals::default(), BTreeSet::new());
        let mut x = 1_u64;
        for _ in 0..4_000 {
            x = crate::hash::mix(x);
            let n = (x >> 8) as u32 % 40;
            match x % 6 {
                0 | 1 => assert_eq!(set.insert(n), model.insert(n)),
                2 | 3 => assert_eq!(set.remove(n), model.remove(&n)),
                4 => {
                    let run = set.within((n, n + 4)).next();
                    if let Some((start, end)) = run {
                        set.remove_range(start, end);
                        model.retain(|n| !(start..end).contains(n));
                    }
                }
                _ => {
                    set.insert_range(n, n + 3);
                    model.extend(n..n + 3);
                }
            }
            assert!(set.is_sound(64), "{set:?}");
            assert_eq!(set.len() as usize, model.len());
            let flat: Vec<u32> = set.ranges().flat_map(|(s, e)| s..e).collect();
            assert!(flat.iter().eq(model.iter()));
            let part: Vec<u32> = set.within((n, n + 9)).flat_map(|(s, e)| s..e).collect();
            assert!(part.iter().eq(model.range(n..n + 9)));
            // However it came about, it is the value that its ordinals alone would make.
            let mut again = Ordinals::default();
            assert!(flat.iter().all(|n| again.insert(*n)));
            assert_eq!(again, set);
            assert_eq!(matches!(set.0, Shape::Many(_)), set.ranges().count() > 1);
            let bytes = rota_protocol::codec::encode(&set).expect("bytes");
            assert_eq!(rota_protocol::codec::decode::<Ordinals>(&bytes, 1 << 10).expect("a set"), set);
        }
    }

    #[test]
    fn first_and_drain() {
        let mut set = Ordinals::full(10);
        assert!(set.remove(3));
        assert_eq!(set.first(5), vec![(0, 3), (4, 6)]);
        let mut other = Ordinals::default();
        other.insert(3);
        assert!(set.is_disjoint(&other));
        set.drain_into(&mut other);
        assert!(set.is_empty());
        assert_eq!(other, Ordinals::full(10));
    }

    #[test]
    fn what_is_no_set_is_refused() {
        let decode = |ranges: &[(u32, u32)], len| {
            let stored = Stored { ranges: ranges.iter().copied().collect(), len };
            let bytes = rota_protocol::codec::encode(&stored).expect("bytes");
            rota_protocol::codec::decode::<Ordinals>(&bytes, 1 << 10).map(|set| set.len())
        };
        assert_eq!(decode(&[], 0).expect("none"), 0);
        assert_eq!(decode(&[(2, 4), (5, 6)], 3).expect("two ranges"), 3);
        for (ranges, len) in
            [(&[(2, 4)][..], 1), (&[(2, 4), (4, 6)], 4), (&[(2, 4), (3, 6)], 5), (&[(4, 2)], 0)]
        {
            assert!(decode(ranges, len).is_err(), "{ranges:?} {len}");
        }
    }
}
