//! Byte strings for serde as one piece: the same bytes on the wire as a list of `u8`, without a call for each.
//! Used as `#[serde(with = "crate::bytes")]`; for lists of them, and of pairs of them, as `crate::bytes::list` and
//! `crate::bytes::pairs`.

use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

/// Writes the length and the bytes.
///
/// # Errors
/// The serializer's own.
pub fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_bytes(bytes)
}

/// Reads what [`serialize`] wrote.
///
/// # Errors
/// The deserializer's own.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    struct Bytes;
    impl<'de> Visitor<'de> for Bytes {
        type Value = Vec<u8>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("bytes")
        }
        fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Vec<u8>, E> {
            Ok(bytes.to_vec())
        }
        fn visit_byte_buf<E: Error>(self, bytes: Vec<u8>) -> Result<Vec<u8>, E> {
            Ok(bytes)
        }
        /// Formats for people have no bytes, but lists of numbers.
        fn visit_seq<A: SeqAccess<'de>>(self, mut numbers: A) -> Result<Vec<u8>, A::Error> {
            let mut bytes = Vec::new();
            while let Some(byte) = numbers.next_element()? {
                bytes.push(byte);
            }
            Ok(bytes)
        }
    }
    deserializer.deserialize_byte_buf(Bytes)
}

/// Bytes that are written whole, such as one of a list.
#[derive(Debug, Clone, Copy)]
pub struct Lent<'a>(pub &'a [u8]);

impl Serialize for Lent<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(self.0)
    }
}

/// One of a list that was read.
#[derive(Deserialize)]
struct Owned(#[serde(with = "self")] Vec<u8>);

/// Byte strings one behind the other.
pub mod list {
    use super::{Deserialize, Deserializer, Lent, Owned, Serializer};

    /// Writes their number and each of them.
    ///
    /// # Errors
    /// The serializer's own.
    pub fn serialize<S: Serializer>(list: &[Vec<u8>], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(list.iter().map(|one| Lent(one)))
    }

    /// Reads what [`serialize`] wrote.
    ///
    /// # Errors
    /// The deserializer's own.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Vec<u8>>, D::Error> {
        let list = Vec::<Owned>::deserialize(deserializer)?;
        Ok(list.into_iter().map(|one| one.0).collect())
    }
}

/// Pairs of byte strings one behind the other.
pub mod pairs {
    use super::{Deserialize, Deserializer, Lent, Owned, Serializer};

    type Pair = (Vec<u8>, Vec<u8>);

    /// Writes their number and each of them.
    ///
    /// # Errors
    /// The serializer's own.
    pub fn serialize<S: Serializer>(pairs: &[Pair], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(pairs.iter().map(|(key, value)| (Lent(key), Lent(value))))
    }

    /// Reads what [`serialize`] wrote.
    ///
    /// # Errors
    /// The deserializer's own.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Pair>, D::Error> {
        let pairs = Vec::<(Owned, Owned)>::deserialize(deserializer)?;
        Ok(pairs.into_iter().map(|(key, value)| (key.0, value.0)).collect())
    }
}

#[cfg(test)]
mod tests {
    use serde::{Deserialize, Serialize};

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Piece {
        before: u8,
        #[serde(with = "super")]
        body: Vec<u8>,
        after: u8,
    }

    #[test]
    fn bytes_look_as_a_list_of_numbers_does() {
        for len in [0, 1, 250, 251, 70_000] {
            let body: Vec<u8> = (0..len).map(|n| n as u8).collect();
            let list = crate::codec::encode(&(7_u8, body.clone(), 9_u8)).expect("encodes");
            let piece = Piece { before: 7, body, after: 9 };
            assert_eq!(crate::codec::encode(&piece).expect("encodes"), list);
            let back: Piece = crate::codec::decode(&list, 1 << 20).expect("decodes");
            assert_eq!(back, piece);
        }
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Lists {
        #[serde(with = "super::list")]
        words: Vec<Vec<u8>>,
        #[serde(with = "super::pairs")]
        settings: Vec<(Vec<u8>, Vec<u8>)>,
    }

    /// On the wire and to people.
    #[test]
    fn lists_look_as_lists_of_lists_of_numbers_do() {
        let word = |len: usize| (0..len).map(|n| n as u8).collect::<Vec<u8>>();
        for count in [0, 1, 3] {
            let words: Vec<_> = (0..count).map(|n| word(n * 250)).collect();
            let settings: Vec<_> = words.iter().map(|one| (one.clone(), word(7))).collect();
            let plain = (words.clone(), settings.clone());
            let lists = Lists { words, settings };
            let bytes = crate::codec::encode(&plain).expect("encodes");
            assert_eq!(crate::codec::encode(&lists).expect("encodes"), bytes);
            assert_eq!(crate::codec::decode::<Lists>(&bytes, 1 << 20).expect("decodes"), lists);
        }
    }

    #[test]
    fn a_length_without_bytes_is_refused_before_it_allocates() {
        let hostile = [7, 253, 255, 255, 255, 255, 255, 255, 255, 127];
        assert!(crate::codec::decode::<Piece>(&hostile, 1 << 20).is_err());
    }
}
