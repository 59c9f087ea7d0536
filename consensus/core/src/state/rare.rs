//! Collections that nearly all rows leave empty: one word in the row, and memory only once something is in them.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::ops::{Deref, DerefMut};

/// A collection, used as if it were a plain `T`. Writing to it allocates.
#[derive(Clone)]
pub struct Rare<T>(Option<Box<T>>);

/// What a [`Rare`] may hold.
pub trait Collection: Default + 'static {
    /// The empty one.
    const EMPTY: &'static Self;
}

impl<K: 'static, V: 'static> Collection for BTreeMap<K, V> {
    const EMPTY: &'static Self = &Self::new();
}

impl<V: 'static> Collection for VecDeque<V> {
    const EMPTY: &'static Self = &Self::new();
}

impl<T> Default for Rare<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T: Collection> Deref for Rare<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_deref().unwrap_or(T::EMPTY)
    }
}

impl<T: Collection> DerefMut for Rare<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.get_or_insert_default()
    }
}

impl<T: Collection + PartialEq> From<T> for Rare<T> {
    fn from(full: T) -> Self {
        Self((full != *T::EMPTY).then(|| Box::new(full)))
    }
}

impl<'a, T: Collection> IntoIterator for &'a Rare<T>
where
    &'a T: IntoIterator,
{
    type Item = <&'a T as IntoIterator>::Item;
    type IntoIter = <&'a T as IntoIterator>::IntoIter;

    fn into_iter(self) -> Self::IntoIter {
        (**self).into_iter()
    }
}

// Whether memory was taken once is nobody's business: equality and bytes are those of the collection.

impl<T: Collection + PartialEq> PartialEq for Rare<T> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl<T: Collection + Eq> Eq for Rare<T> {}

impl<T: Collection + fmt::Debug> fmt::Debug for Rare<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: Collection + Serialize> Serialize for Rare<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (**self).serialize(serializer)
    }
}

impl<'de, T: Collection + PartialEq + Deserialize<'de>> Deserialize<'de> for Rare<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        T::deserialize(deserializer).map(Self::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_is_empty_whether_memory_was_taken_or_not() {
        let mut used: Rare<BTreeMap<u32, u16>> = Rare::default();
        assert!(used.is_empty() && used.0.is_none());
        *used.entry(3).or_default() += 1;
        assert_eq!((used.get(&3), (&used).into_iter().count()), (Some(&1), 1));
        assert_ne!(used, Rare::default());
        used.remove(&3);
        assert!(used.0.is_some());
        assert_eq!(used, Rare::default());
        let bytes = rota_protocol::codec::encode(&used).expect("bytes");
        assert_eq!(bytes, rota_protocol::codec::encode(&BTreeMap::<u32, u16>::new()).expect("bytes"));
        let again: Rare<BTreeMap<u32, u16>> = rota_protocol::codec::decode(&bytes, 64).expect("a map");
        assert!(again.0.is_none());
    }
}
