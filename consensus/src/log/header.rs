//! Bytes of a segment's header.
//!
//! All numbers are little-endian. 64 bytes:
//! ```text
//!  0  magic    8  "RTALOG1\0"
//!  8  format   2  1
//! 10  zero     6
//! 16  sequence 8  number of the segment; it is also in the file's name
//! 24  cluster 16
//! 40  host     8
//! 48  size     8  bytes of the whole file
//! 56  zero     4
//! 60  crc32    4  of bytes 0..60
//! ```

use rota_protocol::ids::{ClusterId, HostId};

/// First bytes of a segment.
const MAGIC: [u8; 8] = *b"RTALOG1\0";
/// The format that this build reads and writes.
pub(crate) const FORMAT: u16 = 1;
/// Bytes of a segment's header; the first record stands behind it.
pub(crate) const SEGMENT_HEADER: usize = 64;
/// Who a segment belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Owner {
    pub cluster: ClusterId,
    pub host: HostId,
}

/// A segment's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    pub sequence: u64,
    pub owner: Owner,
    pub size: u64,
}

/// Why a header is not one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HeaderFault {
    Damaged,
    Format(u16),
}

impl SegmentHeader {
    pub(crate) fn to_bytes(self) -> [u8; SEGMENT_HEADER] {
        let mut bytes = [0; SEGMENT_HEADER];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..10].copy_from_slice(&FORMAT.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[24..40].copy_from_slice(&self.owner.cluster.0.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.owner.host.0.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.size.to_le_bytes());
        let crc = crc32fast::hash(&bytes[..60]);
        bytes[60..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Self, HeaderFault> {
        let Some(bytes) = bytes.get(..SEGMENT_HEADER) else {
            return Err(HeaderFault::Damaged);
        };
        if bytes[..8] != MAGIC || crc32fast::hash(&bytes[..60]) != u32_at(bytes, 60) {
            return Err(HeaderFault::Damaged);
        }
        let format = u16::from_le_bytes([bytes[8], bytes[9]]);
        if format != FORMAT {
            return Err(HeaderFault::Format(format));
        }
        let mut cluster = [0; 16];
        cluster.copy_from_slice(&bytes[24..40]);
        Ok(Self {
            sequence: u64_at(bytes, 16),
            owner: Owner {
                cluster: ClusterId(u128::from_le_bytes(cluster)),
                host: HostId(u64_at(bytes, 40)),
            },
            size: u64_at(bytes, 48),
        })
    }
}

/// The number at an offset that the caller has checked.
pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}

/// The number at an offset that the caller has checked.
pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_come_back_and_every_flipped_byte_is_seen() {
        let header = SegmentHeader {
            sequence: 9,
            owner: Owner { cluster: ClusterId(0xfeed), host: HostId(3) },
            size: 4_096,
        };
        let bytes = header.to_bytes();
        assert_eq!(SegmentHeader::from_bytes(&bytes), Ok(header));
        for at in 0..SEGMENT_HEADER {
            let mut bytes = bytes;
            bytes[at] ^= 0x10;
            assert_eq!(SegmentHeader::from_bytes(&bytes), Err(HeaderFault::Damaged), "byte {at}");
        }
        assert_eq!(SegmentHeader::from_bytes(&bytes[..40]), Err(HeaderFault::Damaged));
    }
}
