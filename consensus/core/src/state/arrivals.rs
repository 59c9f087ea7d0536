//! Request ids in the order of their arrival, in blocks that copies share: a copy costs a pointer for a thousand of
//! them. It is encoded exactly as an ordinary list is.

use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

/// Ids in one block.
const BLOCK: usize = 1_024;

/// Log time and request id, oldest first.
#[derive(Debug, Clone, Default)]
pub(crate) struct Arrivals {
    blocks: VecDeque<Arc<Vec<(u64, u128)>>>,
    /// How many of the first block have gone.
    gone: usize,
    len: usize,
}

impl Arrivals {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn push(&mut self, at_ms: u64, request: u128) {
        match self.blocks.back_mut() {
            Some(block) if block.len() < BLOCK => Arc::make_mut(block).push((at_ms, request)),
            _ => self.blocks.push_back(Arc::new(vec![(at_ms, request)])),
        }
        self.len += 1;
    }

    pub(crate) fn first(&self) -> Option<(u64, u128)> {
        self.blocks.front()?.get(self.gone).copied()
    }

    pub(crate) fn pop(&mut self) {
        let Some(block) = self.blocks.front() else { return };
        self.gone += 1;
        self.len -= 1;
        if self.gone == block.len() {
            self.blocks.pop_front();
            self.gone = 0;
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &(u64, u128)> {
        self.blocks.iter().flat_map(|block| block.iter()).skip(self.gone)
    }
}

impl PartialEq for Arrivals {
    fn eq(&self, other: &Self) -> bool {
        self.len == other.len && self.iter().eq(other.iter())
    }
}

impl Eq for Arrivals {}

impl Serialize for Arrivals {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde::ser::SerializeSeq;
        let mut list = serializer.serialize_seq(Some(self.len))?;
        for arrival in self.iter() {
            list.serialize_element(arrival)?;
        }
        list.end()
    }
}

impl<'de> Deserialize<'de> for Arrivals {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct List;
        impl<'de> Visitor<'de> for List {
            type Value = Arrivals;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of times and request ids")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Arrivals, A::Error> {
                let mut arrivals = Arrivals::default();
                while let Some((at_ms, request)) = list.next_element()? {
                    arrivals.push(at_ms, request);
                }
                Ok(arrivals)
            }
        }
        deserializer.deserialize_seq(List)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rota_protocol::codec;

    #[test]
    fn it_is_a_queue_and_has_its_bytes() {
        let (mut arrivals, mut plain) = (Arrivals::default(), VecDeque::new());
        for n in 0..5_000_u64 {
            arrivals.push(n, u128::from(n) << 70);
            plain.push_back((n, u128::from(n) << 70));
            if n % 3 == 0 {
                assert_eq!(arrivals.first(), plain.pop_front());
                arrivals.pop();
            }
        }
        assert_eq!(arrivals.len(), plain.len());
        assert!(arrivals.iter().eq(plain.iter()));
        let bytes = codec::encode(&plain).expect("encodes");
        assert_eq!(codec::encode(&arrivals).expect("encodes"), bytes);
        let back: Arrivals = codec::decode(&bytes, 1 << 20).expect("decodes");
        assert_eq!(back, arrivals);
        while arrivals.first().is_some() {
            arrivals.pop();
        }
        arrivals.pop();
        assert_eq!((arrivals.len(), arrivals.iter().count()), (0, 0));
    }
}
