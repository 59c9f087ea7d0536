//! Byte strings for serde as one piece: the same bytes on the wire as a list of `u8`, without a call for each.
//! Used as `#[serde(with = "crate::bytes")]`.

use serde::de::{Error, Visitor};
use serde::{Deserializer, Serializer};
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
    impl Visitor<'_> for Bytes {
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
    }
    deserializer.deserialize_byte_buf(Bytes)
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

    #[test]
    fn a_length_without_bytes_is_refused_before_it_allocates() {
        let hostile = [7, 253, 255, 255, 255, 255, 255, 255, 255, 127];
        assert!(crate::codec::decode::<Piece>(&hostile, 1 << 20).is_err());
    }
}
