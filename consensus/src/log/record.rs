//! Bytes of the log's records. No files, no threads.
//!
//! All numbers are little-endian.
//!
//! After a segment's header (`header.rs`) records follow, each at a multiple of 8:
//! ```text
//!  0  length   4  of the payload
//!  4  crc32    4  of: segment sequence (8), offset of this record (8), bytes 0..4, bytes 8..16, payload
//!  8  synced   4  everything in this segment below this offset was durable before this record was written
//! 12  kind     1  see [`Kind`]
//! 13  zero     3
//! 16  payload     then zeros up to a multiple of 8
//! ```
//! Payloads:
//! ```text
//! Entry          term 8, index 8, form 1 (0 blank, 1 commands, 2 membership), then the bytes of that form
//! Vote           term 8, node 8, committed 1
//! Committed      term 8, index 8
//! TruncateAfter  present 1, term 8, index 8     (present 0: everything)
//! Purge          term 8, index 8
//! Seal           nothing; the segment's last record
//! ```
//! Because the sequence is part of each checksum, what a recycled file holds from its earlier life is never valid.
//! Because of `synced`, a reader can tell a torn write (nothing durable was lost: cut) from damage to something that
//! had been durable (refuse to start).

use super::header::{u32_at, u64_at};
use crate::config::{EntryPayload, LogEntry, LogId, Payload, Vote, log_id};
use crate::membership_bytes::MembershipBytes;
use rota_protocol::limits::ENTRY_BYTES_MAX;
use std::sync::Arc;

/// Bytes of a record before its payload.
pub(crate) const RECORD_HEADER: usize = 16;
/// Records begin at multiples of this.
pub(crate) const ALIGN: usize = 8;
/// Largest payload: one entry and its 17 bytes of term, index and form; memberships are far smaller.
pub(crate) const PAYLOAD_BYTES_MAX: usize = ENTRY_BYTES_MAX + 64;

/// What a record is. The numbers are on disks: never change them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// A log entry.
    Entry = 1,
    /// The vote.
    Vote = 2,
    /// The last entry known to be committed.
    Committed = 3,
    /// All later entries are void.
    TruncateAfter = 4,
    /// All entries up to this one are in a snapshot.
    Purge = 5,
    /// The next segment goes on.
    Seal = 6,
}

impl Kind {
    fn from_u8(kind: u8) -> Option<Self> {
        Some(match kind {
            1 => Self::Entry,
            2 => Self::Vote,
            3 => Self::Committed,
            4 => Self::TruncateAfter,
            5 => Self::Purge,
            6 => Self::Seal,
            _ => return None,
        })
    }
}

/// A record's content.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Record {
    Entry(LogEntry),
    Vote(Vote),
    Committed(LogId),
    TruncateAfter(Option<LogId>),
    Purge(LogId),
    Seal,
}

/// Bytes that a record with such a payload takes.
pub(crate) const fn record_bytes(payload: usize) -> usize {
    (RECORD_HEADER + payload).next_multiple_of(ALIGN)
}

/// Bytes of an entry's payload.
pub(crate) fn entry_payload_bytes(entry: &LogEntry) -> usize {
    17 + match &entry.payload {
        EntryPayload::Blank => 0,
        EntryPayload::Normal(data) => data.0.len(),
        // Counted high: three words for each host are more than its ids take.
        EntryPayload::Membership(membership) => 64 + 24 * membership.nodes().count(),
    }
}

/// Checksum of all that an entry is.
pub(crate) fn checksum_of(entry: &LogEntry) -> u32 {
    let mut bytes = Vec::with_capacity(entry_payload_bytes(entry));
    write_entry(&mut bytes, entry);
    crc32fast::hash(&bytes)
}

/// Where a record is written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    /// Number of the segment.
    pub sequence: u64,
    /// Offset of the record in it.
    pub offset: usize,
    /// Offset below which the segment is durable.
    pub synced: usize,
}

/// Appends one record to `out`.
pub(crate) fn write(out: &mut Vec<u8>, place: Place, record: &Record) {
    let start = out.len();
    out.resize(start + RECORD_HEADER, 0);
    let kind = match record {
        Record::Entry(entry) => {
            write_entry(out, entry);
            Kind::Entry
        }
        Record::Vote(vote) => {
            out.extend_from_slice(&vote.leader_id.term.to_le_bytes());
            out.extend_from_slice(&vote.leader_id.voted_for.to_le_bytes());
            out.push(u8::from(vote.committed));
            Kind::Vote
        }
        Record::Committed(id) => {
            write_log_id(out, id);
            Kind::Committed
        }
        Record::TruncateAfter(after) => {
            out.push(u8::from(after.is_some()));
            write_log_id(out, &(*after).unwrap_or_else(|| log_id(0, 0)));
            Kind::TruncateAfter
        }
        Record::Purge(id) => {
            write_log_id(out, id);
            Kind::Purge
        }
        Record::Seal => Kind::Seal,
    };
    let length = out.len() - start - RECORD_HEADER;
    debug_assert!(length <= PAYLOAD_BYTES_MAX, "the proposer bounds entries");
    out[start..start + 4].copy_from_slice(&(length as u32).to_le_bytes());
    out[start + 8..start + 12].copy_from_slice(&(place.synced as u32).to_le_bytes());
    out[start + 12] = kind as u8;
    let crc = checksum(place.sequence, place.offset, &out[start..]);
    out[start + 4..start + 8].copy_from_slice(&crc.to_le_bytes());
    out.resize(start + record_bytes(length), 0);
}

/// A record that was read.
pub(crate) struct Read {
    pub record: Record,
    /// Offset of the next record.
    pub next: usize,
}

/// Reads the record at `offset` of a whole segment; `None` if there is no valid one.
pub(crate) fn read(segment: &[u8], sequence: u64, offset: usize) -> Option<Read> {
    let (kind, payload) = check(segment, sequence, offset)?;
    let record = match kind {
        Kind::Entry => Record::Entry(read_entry(payload)?),
        Kind::Vote if payload.len() == 17 => Record::Vote(Vote {
            leader_id: openraft::vote::leader_id_std::LeaderId {
                term: u64_at(payload, 0),
                voted_for: u64_at(payload, 8),
            },
            committed: payload[16] != 0,
        }),
        Kind::Committed if payload.len() == 16 => Record::Committed(read_log_id(payload)),
        Kind::TruncateAfter if payload.len() == 17 => {
            Record::TruncateAfter((payload[0] != 0).then(|| read_log_id(&payload[1..])))
        }
        Kind::Purge if payload.len() == 16 => Record::Purge(read_log_id(payload)),
        Kind::Seal if payload.is_empty() => Record::Seal,
        _ => return None,
    };
    Some(Read { record, next: offset + record_bytes(payload.len()) })
}

/// The `synced` offset of a valid record at `offset`; `None` if there is no valid one.
pub(crate) fn synced_of(segment: &[u8], sequence: u64, offset: usize) -> Option<usize> {
    check(segment, sequence, offset).map(|_| u32_at(segment, offset + 8) as usize)
}

fn check(segment: &[u8], sequence: u64, offset: usize) -> Option<(Kind, &[u8])> {
    let header = segment.get(offset..offset + RECORD_HEADER)?;
    let length = u32_at(header, 0) as usize;
    let kind = Kind::from_u8(header[12])?;
    if length > PAYLOAD_BYTES_MAX {
        return None;
    }
    let record = segment.get(offset..offset + RECORD_HEADER + length)?;
    if checksum(sequence, offset, record) != u32_at(header, 4) {
        return None;
    }
    Some((kind, &record[RECORD_HEADER..]))
}

fn checksum(sequence: u64, offset: usize, record: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&sequence.to_le_bytes());
    hasher.update(&(offset as u64).to_le_bytes());
    hasher.update(&record[..4]);
    hasher.update(&record[8..]);
    hasher.finalize()
}

fn write_log_id(out: &mut Vec<u8>, id: &LogId) {
    out.extend_from_slice(&id.leader_id.term.to_le_bytes());
    out.extend_from_slice(&id.index.to_le_bytes());
}

fn read_log_id(bytes: &[u8]) -> LogId {
    log_id(u64_at(bytes, 0), u64_at(bytes, 8))
}

fn write_entry(out: &mut Vec<u8>, entry: &LogEntry) {
    write_log_id(out, &entry.log_id);
    match &entry.payload {
        EntryPayload::Blank => out.push(0),
        EntryPayload::Normal(data) => {
            out.push(1);
            out.extend_from_slice(&data.0);
        }
        EntryPayload::Membership(membership) => {
            out.push(2);
            // Numbers and lists always encode.
            let bytes = rota_protocol::codec::encode(&MembershipBytes::from(membership)).unwrap_or_default();
            out.extend_from_slice(&bytes);
        }
    }
}

fn read_entry(payload: &[u8]) -> Option<LogEntry> {
    let (head, body) = payload.split_at_checked(17)?;
    Some(LogEntry {
        log_id: read_log_id(head),
        payload: match head[16] {
            0 if body.is_empty() => EntryPayload::Blank,
            1 => EntryPayload::Normal(Payload(Arc::from(body))),
            2 => {
                let stored: MembershipBytes = rota_protocol::codec::decode(body, PAYLOAD_BYTES_MAX).ok()?;
                EntryPayload::Membership(stored.membership()?)
            }
            _ => return None,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::super::header::SEGMENT_HEADER;
    use super::*;
    use crate::config::Membership;

    pub(crate) fn samples() -> Vec<Record> {
        let entry = |index, payload| LogEntry { log_id: log_id(7, index), payload };
        let membership = Membership::new_with_defaults(vec![[1, 2].into(), [1, 2, 3].into()], [4]);
        vec![
            Record::Entry(entry(0, EntryPayload::Membership(membership))),
            Record::Entry(entry(1, EntryPayload::Blank)),
            Record::Entry(entry(2, EntryPayload::Normal(Payload(Arc::from(&b"abc"[..]))))),
            Record::Vote(Vote::new_committed(7, 3)),
            Record::Committed(log_id(7, 2)),
            Record::TruncateAfter(None),
            Record::TruncateAfter(Some(log_id(6, 1))),
            Record::Purge(log_id(6, 1)),
            Record::Seal,
        ]
    }

    fn segment() -> Vec<u8> {
        let mut bytes = vec![0; SEGMENT_HEADER];
        for record in samples() {
            let place = Place { sequence: 5, offset: bytes.len(), synced: 64 };
            write(&mut bytes, place, &record);
        }
        bytes
    }

    #[test]
    fn records_come_back() {
        let bytes = segment();
        let mut offset = SEGMENT_HEADER;
        for want in samples() {
            let got = read(&bytes, 5, offset).expect("valid");
            assert_eq!(got.record, want);
            offset = got.next;
        }
        assert_eq!(offset, bytes.len());
        assert!(read(&bytes, 5, offset).is_none());
    }

    /// Fault D10: a block that belongs elsewhere does not verify.
    #[test]
    fn a_record_of_another_segment_or_offset_is_not_valid() {
        let mut bytes = segment();
        assert!(read(&bytes, 6, SEGMENT_HEADER).is_none());
        let first = bytes[SEGMENT_HEADER..].to_vec();
        bytes.extend_from_slice(&first);
        assert!(read(&bytes, 5, bytes.len() - first.len()).is_none());
    }

    #[test]
    fn every_flipped_bit_of_a_record_is_seen() {
        let clean = segment();
        let end = read(&clean, 5, SEGMENT_HEADER).expect("valid").next;
        let length = u32_at(&clean, SEGMENT_HEADER) as usize;
        for at in SEGMENT_HEADER..end {
            // The zeros behind the payload carry nothing.
            if at >= SEGMENT_HEADER + RECORD_HEADER + length {
                continue;
            }
            for bit in 0..8 {
                let mut bytes = clean.clone();
                bytes[at] ^= 1 << bit;
                assert!(read(&bytes, 5, SEGMENT_HEADER).is_none(), "byte {at} bit {bit}");
            }
        }
    }
}
