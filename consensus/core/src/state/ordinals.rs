//! A set of task ordinals, kept as disjoint ranges that do not touch. A million-task array is one range.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Ordinals of one job's tasks (positions in its array, from 0).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Ordinals {
    /// First ordinal of a range -> one past its last.
    ranges: BTreeMap<u32, u32>,
    len: u32,
}

impl Ordinals {
    /// `0..count`.
    #[must_use]
    pub fn full(count: u32) -> Self {
        let mut set = Self::default();
        set.insert_range(0, count);
        set
    }

    /// How many ordinals.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.len
    }

    /// None at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Is it in the set?
    #[must_use]
    pub fn contains(&self, ordinal: u32) -> bool {
        self.range_of(ordinal).is_some()
    }

    /// Ranges in order, each `(first, one past the last)`.
    pub fn ranges(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.ranges.iter().map(|(start, end)| (*start, *end))
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
        let Some((start, end)) = self.range_of(ordinal) else {
            return false;
        };
        if start == ordinal {
            self.ranges.remove(&start);
        } else {
            self.ranges.insert(start, ordinal);
        }
        if ordinal + 1 < end {
            self.ranges.insert(ordinal + 1, end);
        }
        self.len -= 1;
        true
    }

    /// Moves everything into `other`.
    pub fn drain_into(&mut self, other: &mut Self) {
        for (start, end) in std::mem::take(&mut self.ranges) {
            other.insert_range(start, end);
        }
        self.len = 0;
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
        sum == u64::from(self.len)
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

    fn range_of(&self, ordinal: u32) -> Option<(u32, u32)> {
        let (start, end) = self.ranges.range(..=ordinal).next_back()?;
        (ordinal < *end).then_some((*start, *end))
    }

    /// Union with `start..end`.
    fn insert_range(&mut self, start: u32, end: u32) {
        if start >= end {
            return;
        }
        let (mut first, mut last) = (start, end);
        // Ranges that overlap or touch the new one are swallowed.
        if let Some((s, e)) = self.ranges.range(..=start).next_back().map(|(s, e)| (*s, *e))
            && e >= start
        {
            first = s;
            last = last.max(e);
            self.ranges.remove(&s);
            self.len -= e - s;
        }
        while let Some((s, e)) = self.ranges.range(first..=last).next().map(|(s, e)| (*s, *e)) {
            last = last.max(e);
            self.ranges.remove(&s);
            self.len -= e - s;
        }
        self.ranges.insert(first, last);
        self.len += last - first;
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
            match x % 5 {
                0 | 1 => assert_eq!(set.insert(n), model.insert(n)),
                2 | 3 => assert_eq!(set.remove(n), model.remove(&n)),
                _ => {
                    set.insert_range(n, n + 3);
                    model.extend(n..n + 3);
                }
            }
            assert!(set.is_sound(64), "{set:?}");
            assert_eq!(set.len() as usize, model.len());
            let flat: Vec<u32> = set.ranges().flat_map(|(s, e)| s..e).collect();
            assert!(flat.iter().eq(model.iter()));
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
}
