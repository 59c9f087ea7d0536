//! Bytes that must decode for ever: records of the log, raft messages, the snapshot's envelope. If one of these
//! changes, peers of two builds can no longer work together, nor a new build read an old disk.

use crate::config::{
    EntryPayload, LogEntry, Membership, Payload, Rota, SnapshotMeta, StoredMembership, Vote, log_id,
};
use crate::log::header::{Owner, SEGMENT_HEADER, SegmentHeader};
use crate::log::record::{self, Place, Record};
use crate::wire::{self, Chunk, ChunkReply};
use crate::{State, snapshot_file};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, TransferLeaderRequest, VoteRequest, VoteResponse,
};
use rota_protocol::ids::{ClusterId, HostId};

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len() / 2).map(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).expect("hex")).collect()
}

fn entry(index: u64, payload: EntryPayload) -> LogEntry {
    LogEntry { log_id: log_id(300, index), payload }
}

fn membership() -> Membership {
    Membership::new_with_defaults(vec![[1, 2].into(), [1, 2, 3].into()], [400])
}

fn records() -> Vec<(Record, &'static str)> {
    vec![
        (Record::Entry(entry(7, EntryPayload::Blank)), GOLDEN[0]),
        (Record::Entry(entry(8, EntryPayload::Normal(Payload(vec![1, 2, 255].into())))), GOLDEN[1]),
        (Record::Entry(entry(9, EntryPayload::Membership(membership()))), GOLDEN[2]),
        (Record::Vote(Vote::new_committed(300, 2)), GOLDEN[3]),
        (Record::Committed(log_id(300, 8)), GOLDEN[4]),
        (Record::TruncateAfter(Some(log_id(299, 6))), GOLDEN[5]),
        (Record::Purge(log_id(299, 5)), GOLDEN[6]),
        (Record::Seal, GOLDEN[7]),
    ]
}

#[test]
fn records_of_the_log() {
    let place = Place { sequence: 5, offset: SEGMENT_HEADER, synced: 64 };
    for (at, (record, golden)) in records().into_iter().enumerate() {
        let mut made = vec![0; SEGMENT_HEADER];
        record::write(&mut made, place, &record);
        assert_eq!(hex(&made[SEGMENT_HEADER..]), golden, "record {at}");
        let mut segment = vec![0; SEGMENT_HEADER];
        segment.extend(bytes(golden));
        let read = record::read(&segment, 5, SEGMENT_HEADER).expect("reads");
        assert_eq!(read.record, record);
    }
}

#[test]
fn the_header_of_a_segment() {
    let header = SegmentHeader {
        sequence: 5,
        owner: Owner { cluster: ClusterId(0xc1), host: HostId(3) },
        size: 16 << 20,
    };
    assert_eq!(hex(&header.to_bytes()), HEADER);
    assert_eq!(SegmentHeader::from_bytes(&bytes(HEADER)), Ok(header));
}

#[test]
fn messages_of_raft() {
    let vote = Vote::new_committed(300, 2);
    let append = AppendEntriesRequest::<Rota> {
        vote,
        prev_log_id: Some(log_id(300, 7)),
        entries: vec![
            entry(8, EntryPayload::Normal(Payload(vec![1, 2, 255].into()))),
            entry(9, EntryPayload::Membership(membership())),
            entry(10, EntryPayload::Blank),
        ],
        leader_commit: Some(log_id(300, 6)),
    };
    let transfer = TransferLeaderRequest::new(vote, 3, Some(log_id(300, 9)));
    let request = VoteRequest::new(Vote::new(301, 3), Some(log_id(300, 9)));
    let reply = VoteResponse::new(Vote::new(301, 3), Some(log_id(300, 9)), true);
    let made = [
        wire::append_to_bytes(append),
        wire::append_reply_to_bytes(AppendEntriesResponse::Success),
        wire::append_reply_to_bytes(AppendEntriesResponse::PartialSuccess(Some(log_id(300, 8)))),
        wire::append_reply_to_bytes(AppendEntriesResponse::Conflict),
        wire::append_reply_to_bytes(AppendEntriesResponse::HigherVote(vote)),
        wire::vote_to_bytes(&request, true),
        wire::vote_reply_to_bytes(&reply),
        wire::transfer_to_bytes(&transfer),
        wire::encode(&Chunk::new(&vote, 1_000_000, 262_144, vec![9, 8, 7])),
        wire::encode(&ChunkReply::new(&vote, 262_147, false)),
    ];
    let made: Vec<_> = made.iter().map(|bytes| hex(bytes)).collect();
    assert_eq!(made, MESSAGES);
    let append = wire::append_from_bytes(&bytes(MESSAGES[0])).expect("decodes");
    assert_eq!(append.entries.len(), 3);
    assert_eq!(wire::vote_from_bytes(&bytes(MESSAGES[5])).expect("decodes"), (request, true));
    assert_eq!(wire::vote_reply_from_bytes(&bytes(MESSAGES[6])).expect("decodes"), reply);
    assert!(wire::transfer_from_bytes(&bytes(MESSAGES[7])).is_ok());
    let chunk: Chunk = wire::decode(&bytes(MESSAGES[8])).expect("decodes");
    assert_eq!((chunk.total, chunk.offset, &chunk.bytes.0[..]), (1_000_000, 262_144, &[9, 8, 7][..]));
}

#[test]
fn the_envelope_of_a_snapshot() {
    let mut state = State::new();
    state.skip(9);
    let meta = SnapshotMeta {
        last_log_id: Some(log_id(300, 9)),
        last_membership: StoredMembership::new(Some(log_id(300, 9)), membership()),
    };
    let made = snapshot_file::to_bytes(ClusterId(0xc1), &meta, &state).expect("encodes").concat();
    // The body is the brain's, which has golden bytes of its own; lengths and checksums of it stand in the header.
    assert_eq!(hex(&made[..12]), ENVELOPE_BEGIN);
    let length = usize::from(made[12]);
    assert_eq!(hex(&made[64..64 + length]), ENVELOPE_META);
    assert_eq!(snapshot_file::parse(&made, ClusterId(0xc1)).expect("parses").0, meta);
}

/// No bytes whatever make a decoder panic or allocate beyond its limits (invariant I21): cuts, flips and noise.
#[test]
fn decoders_take_any_bytes() {
    let mut noise = 0x9e37_79b9_7f4a_7c15_u64;
    let mut draw = move || {
        noise ^= noise << 13;
        noise ^= noise >> 7;
        noise ^= noise << 17;
        noise
    };
    let seeds: Vec<Vec<u8>> =
        MESSAGES.iter().chain(GOLDEN).chain(&[HEADER]).map(|golden| bytes(golden)).collect();
    for _ in 0..20_000 {
        let mut input = seeds[draw() as usize % seeds.len()].clone();
        for _ in 0..draw() % 4 {
            let at = draw() as usize % input.len();
            input[at] = draw() as u8;
        }
        input.truncate(1 + draw() as usize % input.len().max(1));
        let _ = wire::append_from_bytes(&input);
        let _ = wire::append_reply_from_bytes(&input);
        let _ = wire::vote_from_bytes(&input);
        let _ = wire::vote_reply_from_bytes(&input);
        let _ = wire::transfer_from_bytes(&input);
        let _ = wire::decode::<Chunk>(&input);
        let _ = wire::decode::<ChunkReply>(&input);
        let _ = SegmentHeader::from_bytes(&input);
        let _ = snapshot_file::parse(&input, ClusterId(0xc1));
        for offset in (0..input.len()).step_by(record::ALIGN) {
            let _ = record::read(&input, 5, offset);
        }
    }
}

const GOLDEN: &[&str] = &[
    "110000001b8ad76540000000010000002c0100000000000007000000000000000000000000000000",
    "14000000fca2676240000000010000002c010000000000000800000000000000010102ff00000000",
    "200000007bdd367b40000000010000002c01000000000000090000000000000002020201020301020304010203fb9001",
    "11000000217d592340000000020000002c0100000000000002000000000000000100000000000000",
    "100000004334627a40000000030000002c010000000000000800000000000000",
    "1100000021e2902c4000000004000000012b01000000000000060000000000000000000000000000",
    "100000003244bd9840000000050000002b010000000000000500000000000000",
    "00000000a7431cbe4000000006000000",
];
const HEADER: &str = "5254414c4f47310001000000000000000500000000000000c10000000000000000000000000000000300000000000000000000010000000000000000646e0495";
const MESSAGES: &[&str] = &[
    "fb2c01020101fb2c010701fb2c010603fb2c010801030102fffb2c010902020201020301020304010203fb9001fb2c010a00",
    "00",
    "0101fb2c0108",
    "02",
    "03fb2c010201",
    "01fb2d01030001fb2c010900",
    "fb2d0103000101fb2c0109",
    "fb2c0102010301fb2c0109",
    "fb2c010201fc40420f00fc00000400fc36fd2da603090807",
    "fb2c010201fc0300040000",
];
const ENVELOPE_BEGIN: &str = "525441534e41503101000000";
const ENVELOPE_META: &str = "01fb2c010901fb2c0109020201020301020304010203fb9001";
