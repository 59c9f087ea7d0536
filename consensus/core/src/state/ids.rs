//! Values by request id, found with about two reads of memory: what is asked of the table with every submit is mostly
//! whether an id is new. Tables of open addressing in 1,024 parts that copies share, as those of [`super::parted`] are.
//!
//! Ids are drawn by clients, and one who chooses them may let them all meet at one place. What finds none near its own
//! goes into an ordered map, so that the worst costs what such a map costs. Where things lie shows in no answer: the
//! table is compared, iterated and encoded in the order of ids, exactly as an ordinary ordered map is.

use serde::de::{MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

/// The first bits of an id choose its part.
const PARTS: usize = 1_024;
/// Places looked at before an id counts as crowded out.
const PROBES_MAX: usize = 64;
/// Places of the smallest table.
const PLACES_MIN: usize = 8;
/// A place that is free.
const FREE: u8 = 0;

/// In halves: the alignment of the whole would cost eight bytes a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Id(u64, u64);

impl From<u128> for Id {
    fn from(id: u128) -> Self {
        Self((id >> 64) as u64, id as u64)
    }
}

impl Id {
    fn whole(self) -> u128 {
        u128::from(self.0) << 64 | u128::from(self.1)
    }

    /// Ids that are counted instead of drawn are spread as well.
    fn mixed(self) -> u64 {
        (self.0.rotate_left(32) ^ self.1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    /// Tells most ids at neighbouring places apart without a look at them.
    fn tag(self) -> u8 {
        ((self.mixed() >> 8) as u8).max(FREE + 1)
    }
}

/// One part.
#[derive(Debug, Clone)]
struct Places<V> {
    /// One for each place, [`FREE`] or of the id that lies there. Their number is a power of two, or zero.
    tags: Vec<u8>,
    places: Vec<Option<(Id, V)>>,
    /// Places taken, at most three quarters of them.
    taken: usize,
    crowded: BTreeMap<u128, V>,
}

impl<V> Default for Places<V> {
    fn default() -> Self {
        Self { tags: Vec::new(), places: Vec::new(), taken: 0, crowded: BTreeMap::new() }
    }
}

impl<V: Clone> Places<V> {
    fn with(places: usize) -> Self {
        let mut empty = Self { tags: vec![FREE; places], ..Self::default() };
        empty.places.resize_with(places, || None);
        empty
    }

    /// Where a search for this id begins; the table is not empty.
    fn home(&self, id: Id) -> usize {
        (id.mixed() >> (64 - self.tags.len().trailing_zeros())) as usize
    }

    fn behind(&self, at: usize) -> usize {
        (at + 1) & (self.tags.len() - 1)
    }

    /// The place of this id, or else the free one that it would get.
    fn find(&self, id: Id) -> Result<usize, Option<usize>> {
        if self.tags.is_empty() {
            return Err(None);
        }
        let (tag, mut at) = (id.tag(), self.home(id));
        for _ in 0..PROBES_MAX {
            if self.tags[at] == tag && self.places[at].as_ref().is_some_and(|(there, _)| *there == id) {
                return Ok(at);
            }
            if self.tags[at] == FREE {
                return Err(Some(at));
            }
            at = self.behind(at);
        }
        Err(None)
    }

    fn get(&self, id: Id) -> Option<&V> {
        match self.find(id) {
            Ok(at) => self.places[at].as_ref().map(|(_, value)| value),
            Err(_) if self.crowded.is_empty() => None,
            Err(_) => self.crowded.get(&id.whole()),
        }
    }

    fn insert(&mut self, id: Id, value: V) -> Option<V> {
        if let Ok(at) = self.find(id) {
            return self.places[at].replace((id, value)).map(|(_, old)| old);
        }
        if let Some(known) = self.crowded.get_mut(&id.whole()) {
            return Some(std::mem::replace(known, value));
        }
        if (self.taken + 1) * 4 > self.tags.len() * 3 {
            self.resize((self.tags.len() * 2).max(PLACES_MIN));
        }
        self.put(id, value);
        None
    }

    /// Of an id that is not there.
    fn put(&mut self, id: Id, value: V) {
        match self.find(id) {
            Ok(at) | Err(Some(at)) => {
                self.tags[at] = id.tag();
                self.places[at] = Some((id, value));
                self.taken += 1;
            }
            Err(None) => {
                self.crowded.insert(id.whole(), value);
            }
        }
    }

    fn resize(&mut self, places: usize) {
        let old = std::mem::replace(self, Self::with(places));
        for (id, value) in old.places.into_iter().flatten() {
            self.put(id, value);
        }
        for (id, value) in old.crowded {
            self.put(id.into(), value);
        }
    }

    fn remove(&mut self, id: Id) -> Option<V> {
        let Ok(at) = self.find(id) else { return self.crowded.remove(&id.whole()) };
        let (_, value) = self.places[at].take()?;
        self.close(at);
        self.taken -= 1;
        if self.tags.len() > PLACES_MIN && self.taken * 8 < self.tags.len() {
            self.resize(self.tags.len() / 2);
        }
        Some(value)
    }

    /// Moves up what was put behind this place because it was taken: a search ends at a free one.
    fn close(&mut self, mut free: usize) {
        self.tags[free] = FREE;
        let mut at = self.behind(free);
        while let Some((id, _)) = &self.places[at] {
            let from = |place: usize| at.wrapping_sub(place) & (self.tags.len() - 1);
            if from(self.home(*id)) >= from(free) {
                self.tags[free] = std::mem::replace(&mut self.tags[at], FREE);
                self.places[free] = self.places[at].take();
                free = at;
            }
            at = self.behind(at);
        }
    }

    /// In the order of ids.
    fn sorted(&self) -> impl Iterator<Item = (u128, &V)> {
        let placed = self.places.iter().flatten().map(|(id, value)| (id.whole(), value));
        let crowded = self.crowded.iter().map(|(id, value)| (*id, value));
        let mut rows: Vec<_> = placed.chain(crowded).collect();
        rows.sort_unstable_by_key(|(id, _)| *id);
        rows.into_iter()
    }
}

/// The table.
#[derive(Debug, Clone)]
pub(crate) struct Ids<V> {
    /// [`PARTS`] of them, or none as yet.
    parts: Vec<Arc<Places<V>>>,
    len: usize,
}

impl<V> Default for Ids<V> {
    fn default() -> Self {
        Self { parts: Vec::new(), len: 0 }
    }
}

fn part(id: u128) -> usize {
    (id >> (u128::BITS - PARTS.trailing_zeros())) as usize
}

impl<V: Clone> Ids<V> {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn get(&self, id: u128) -> Option<&V> {
        self.parts.get(part(id))?.get(id.into())
    }

    pub(crate) fn insert(&mut self, id: u128, value: V) -> Option<V> {
        if self.parts.is_empty() {
            self.parts.resize_with(PARTS, Arc::default);
        }
        let old = Arc::make_mut(&mut self.parts[part(id)]).insert(id.into(), value);
        self.len += usize::from(old.is_none());
        old
    }

    pub(crate) fn remove(&mut self, id: u128) -> Option<V> {
        // An id that is not there is no reason to copy a part.
        self.get(id)?;
        let part = Arc::make_mut(self.parts.get_mut(part(id))?);
        let old = part.remove(id.into());
        self.len -= usize::from(old.is_some());
        old
    }

    /// In the order of ids.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u128, &V)> {
        self.parts.iter().flat_map(|part| part.sorted())
    }
}

impl<V: Clone + PartialEq> PartialEq for Ids<V> {
    fn eq(&self, other: &Self) -> bool {
        self.len == other.len && self.iter().eq(other.iter())
    }
}

impl<V: Clone + Eq> Eq for Ids<V> {}

impl<V: Clone + Serialize> Serialize for Ids<V> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.len))?;
        for (id, value) in self.iter() {
            map.serialize_entry(&id, value)?;
        }
        map.end()
    }
}

impl<'de, V: Clone + Deserialize<'de>> Deserialize<'de> for Ids<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Rows<V>(PhantomData<V>);
        impl<'de, V: Clone + Deserialize<'de>> Visitor<'de> for Rows<V> {
            type Value = Ids<V>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map by request ids")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut rows: A) -> Result<Self::Value, A::Error> {
                let mut ids = Ids::default();
                while let Some((id, value)) = rows.next_entry()? {
                    ids.insert(id, value);
                }
                Ok(ids)
            }
        }
        deserializer.deserialize_map(Rows(PhantomData))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rota_protocol::codec;

    /// Ids as clients draw them, as they count them, and as one would choose them who wants them all at one place.
    fn families() -> [Vec<u128>; 4] {
        let mut seed = 7_u128;
        let drawn = std::iter::repeat_with(|| {
            seed = seed.wrapping_mul(0x2360_ed05_1fc6_5da4_4385_df64_9fcc_f645).wrapping_add(1);
            seed
        });
        // The second half undoes what the first brings into the mix.
        let meeting = (1..600_u64).map(|n| u128::from(n) << 64 | u128::from(n.rotate_left(32) ^ 5));
        let few = (0..40_u128).map(|n| n << 118 | 1);
        [drawn.take(5_000).collect(), (0..5_000).collect(), meeting.collect(), few.collect()]
    }

    /// Every answer and every byte is that of an ordered map, through inserts, replacements and removals in any order.
    #[test]
    fn it_is_an_ordered_map() {
        for ids in families() {
            let (mut table, mut plain) = (Ids::default(), BTreeMap::new());
            let mut step = |table: &mut Ids<u64>, id: u128, value: Option<u64>| match value {
                Some(value) => assert_eq!(table.insert(id, value), plain.insert(id, value)),
                None => assert_eq!(table.remove(id), plain.remove(&id)),
            };
            for (n, id) in (0..).zip(&ids) {
                step(&mut table, *id, Some(n));
                if n % 3 == 0 {
                    step(&mut table, ids[n as usize / 2], None);
                    step(&mut table, ids[n as usize / 3], Some(n * 2));
                }
            }
            for id in ids.iter().step_by(5).chain([&(1 << 127), &u128::MAX]) {
                step(&mut table, *id, None);
            }
            assert_eq!(table.len(), plain.len());
            assert!(table.iter().eq(plain.iter().map(|(id, value)| (*id, value))));
            assert!(ids.iter().all(|id| table.get(*id) == plain.get(id)));
            let bytes = codec::encode(&plain).expect("encodes");
            assert_eq!(codec::encode(&table).expect("encodes"), bytes);
            let back: Ids<u64> = codec::decode(&bytes, 1 << 20).expect("decodes");
            assert_eq!(back, table);
            for id in &ids {
                assert_eq!(table.remove(*id), plain.remove(id));
            }
            assert_eq!((table.len(), table.iter().count()), (0, 0));
            let held = table.parts.iter().map(|part| part.tags.len()).max();
            assert!(held <= Some(PLACES_MIN), "room is given back: {held:?}");
        }
    }

    /// Chosen ids cost what an ordered map costs, and no search looks at more than a few places.
    #[test]
    fn ids_that_all_meet_are_crowded_out() {
        let mut table = Ids::default();
        let [_, _, meeting, _] = families();
        for id in &meeting {
            table.insert(*id, ());
        }
        let crowded: usize = table.parts.iter().map(|part| part.crowded.len()).sum();
        assert!(crowded > meeting.len() / 2, "{crowded}");
        assert!(meeting.iter().all(|id| table.get(*id).is_some()));
    }

    #[test]
    fn a_copy_keeps_its_moment_and_shares_what_did_not_change() {
        let mut table: Ids<u128> = (0..1_024).map(|n| n << 118).fold(Ids::default(), |mut ids, id| {
            ids.insert(id, id);
            ids
        });
        let copy = table.clone();
        table.insert(3, 3);
        table.remove(4 << 118);
        table.remove(5);
        let shared = copy.parts.iter().zip(&table.parts).filter(|(a, b)| Arc::ptr_eq(a, b)).count();
        assert_eq!(shared, PARTS - 2);
        assert!(
            copy.iter().eq((0..1_024).map(|n: u128| n << 118).collect::<Vec<_>>().iter().map(|id| (*id, id)))
        );
    }
}
