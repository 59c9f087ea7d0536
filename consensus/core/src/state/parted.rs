//! An ordered map in parts that copies share: a copy costs as much as there are parts, and the first change of a part
//! after it copies that part alone. So a snapshot is made of a copy without holding up apply, however large the state.
//!
//! It is encoded exactly as an ordinary ordered map is.

use serde::de::{MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Bound;
use std::sync::Arc;

/// A key that knows its part. Parts lie in the order of keys: `a <= b` implies `a.part() <= b.part()`.
pub(crate) trait Part: Ord + Copy {
    fn part(&self) -> u64;
}

/// Handed out in order: 512 neighbours share a part.
impl Part for rota_protocol::JobId {
    fn part(&self) -> u64 {
        self.0 >> 9
    }
}

/// Priority before eviction before number; neighbours by number share a part.
impl Part for crate::state::job::Place {
    fn part(&self) -> u64 {
        let (priority, evicted, job) = *self;
        u64::from(!priority.0) << 48 | u64::from(!evicted.0) << 47 | (job.0 >> 9).min((1 << 47) - 1)
    }
}

/// The map.
#[derive(Debug, Clone)]
pub(crate) struct Parted<K, V> {
    parts: BTreeMap<u64, Arc<BTreeMap<K, V>>>,
    len: usize,
}

impl<K, V> Default for Parted<K, V> {
    fn default() -> Self {
        Self { parts: BTreeMap::new(), len: 0 }
    }
}

impl<K: Part, V: Clone> Parted<K, V> {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        self.parts.get(&key.part())?.get(key)
    }

    pub(crate) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        let part = self.parts.get_mut(&key.part())?;
        // A key that is not there is no reason to copy a part.
        part.contains_key(key).then_some(())?;
        Arc::make_mut(part).get_mut(key)
    }

    pub(crate) fn insert(&mut self, key: K, value: V) -> Option<V> {
        let old = Arc::make_mut(self.parts.entry(key.part()).or_default()).insert(key, value);
        self.len += usize::from(old.is_none());
        old
    }

    pub(crate) fn remove(&mut self, key: &K) -> Option<V> {
        let part = self.parts.get_mut(&key.part())?;
        part.contains_key(key).then_some(())?;
        let part = Arc::make_mut(part);
        let old = part.remove(key);
        if part.is_empty() {
            self.parts.remove(&key.part());
        }
        self.len -= usize::from(old.is_some());
        old
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.parts.values().flat_map(|part| part.iter())
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &V> {
        self.parts.values().flat_map(|part| part.values())
    }

    /// For a change of all of them: parts that copies share are copied.
    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.parts.values_mut().flat_map(|part| Arc::make_mut(part).values_mut())
    }

    /// Those behind `key`, in order.
    pub(crate) fn after(&self, key: K) -> impl Iterator<Item = (&K, &V)> {
        let behind = (Bound::Excluded(key), Bound::Unbounded);
        self.parts.range(key.part()..).flat_map(move |(_, part)| part.range(behind))
    }
}

impl<K: Part, V: Clone + PartialEq> PartialEq for Parted<K, V> {
    fn eq(&self, other: &Self) -> bool {
        self.len == other.len && self.iter().eq(other.iter())
    }
}

impl<K: Part, V: Clone + Eq> Eq for Parted<K, V> {}

impl<K: Part, V: Clone> FromIterator<(K, V)> for Parted<K, V> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(rows: I) -> Self {
        let mut map = Self::default();
        for (key, value) in rows {
            map.insert(key, value);
        }
        map
    }
}

impl<K: Part + Serialize, V: Clone + Serialize> Serialize for Parted<K, V> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.len))?;
        for (key, value) in self.iter() {
            map.serialize_entry(key, value)?;
        }
        map.end()
    }
}

impl<'de, K, V> Deserialize<'de> for Parted<K, V>
where
    K: Part + Deserialize<'de>,
    V: Clone + Deserialize<'de>,
{
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Rows<K, V>(PhantomData<(K, V)>);
        impl<'de, K: Part + Deserialize<'de>, V: Clone + Deserialize<'de>> Visitor<'de> for Rows<K, V> {
            type Value = Parted<K, V>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut rows: A) -> Result<Self::Value, A::Error> {
                let mut map = Parted::default();
                while let Some((key, value)) = rows.next_entry()? {
                    map.insert(key, value);
                }
                Ok(map)
            }
        }
        deserializer.deserialize_map(Rows(PhantomData))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rota_protocol::{JobId, codec};
    use std::cmp::Reverse;

    fn both(keys: impl Iterator<Item = u64>) -> (Parted<JobId, u64>, BTreeMap<JobId, u64>) {
        let rows: Vec<_> = keys.map(|key| (JobId(key), key * 3)).collect();
        (rows.iter().copied().collect(), rows.into_iter().collect())
    }

    /// Every answer and every byte is that of an ordinary map, over borders between parts.
    #[test]
    fn it_is_an_ordered_map() {
        let (mut parted, mut plain) = both((0..5_000).map(|n| n * 7_919 % 4_001));
        for key in (0..4_001).step_by(3) {
            assert_eq!(parted.remove(&JobId(key)), plain.remove(&JobId(key)));
            assert_eq!(parted.remove(&JobId(key)), None);
        }
        *parted.get_mut(&JobId(700)).expect("it is there") += 1;
        *plain.get_mut(&JobId(700)).expect("it is there") += 1;
        assert_eq!(parted.len(), plain.len());
        assert!(parted.iter().eq(plain.iter()));
        for key in [0, 511, 512, 1_023, 2_000, 9_999] {
            let behind = plain.range((Bound::Excluded(JobId(key)), Bound::Unbounded));
            assert!(parted.after(JobId(key)).eq(behind), "{key}");
            assert_eq!(parted.get(&JobId(key)), plain.get(&JobId(key)));
        }
        let bytes = codec::encode(&plain).expect("encodes");
        assert_eq!(codec::encode(&parted).expect("encodes"), bytes);
        let back: Parted<JobId, u64> = codec::decode(&bytes, 1 << 20).expect("decodes");
        assert_eq!(back, parted);
    }

    #[test]
    fn a_copy_keeps_its_moment_and_shares_what_did_not_change() {
        let (mut parted, plain) = both(0..2_000);
        let copy = parted.clone();
        parted.insert(JobId(3), 0);
        parted.remove(&JobId(4));
        assert_eq!(parted.get_mut(&JobId(9_999)), None);
        assert!(copy.iter().eq(plain.iter()));
        let shared = copy.parts.iter().filter(|(at, part)| Arc::ptr_eq(part, &parted.parts[at])).count();
        assert_eq!((copy.parts.len(), shared), (4, 3));
    }

    /// Parts lie in the order of places in line too.
    #[test]
    fn parts_follow_the_order_of_keys() {
        let place = |priority, evicted, id| (Reverse(priority), Reverse(evicted), JobId(id));
        let places = [place(9, true, 0), place(9, false, 0), place(9, false, 512), place(8, true, 0)];
        let mut sorted = places;
        sorted.sort_unstable();
        assert_eq!(sorted, places);
        assert!(places.windows(2).all(|pair| pair[0].part() < pair[1].part()));
    }
}
