//! One fixed value of each type that crosses a wire or a disk, beside its bytes (`tests/golden/*.hex`, one
//! `label: hex` a line).
//!
//! What lies on a disk must decode for ever: log entries (`entry_N.hex`, one file a format), the answers that snapshots
//! remember (`outcome.hex`) and what is in the spool (`launch_order`, `shim_record`, `exit_record`). A changed line
//! there is a broken format: append a variant, or make a new format beside the old one. Files of older formats are read
//! and never written.
//!
//! All other files are what two running programs say to each other, client to peer and peer to peer, in frames that
//! carry a version. There a line may change when a struct in it grew, and only then; look at the diff of
//! `UPDATE_EXPECT=1`, which writes what this build says: each changed line wants its reason, a new line is fine.

// A test that cannot read its own files should stop where it stands.
#![allow(clippy::unwrap_used)]

#[path = "golden/clients.rs"]
mod clients;
#[path = "golden/data.rs"]
mod data;
#[path = "golden/first.rs"]
mod first;
#[path = "golden/further.rs"]
mod further;
#[path = "golden/members.rs"]
mod members;
#[path = "golden/output.rs"]
mod output;
#[path = "golden/peers.rs"]
mod peers;
#[path = "golden/trust.rs"]
mod trust;
#[path = "golden/values.rs"]
mod values;

use rota_protocol::codec::{self, DecodeError};
use rota_protocol::command::{Entry, LOG_FORMAT};
use rota_protocol::frame::{self, FrameKind, HEADER_BYTES, Header};
use rota_protocol::version::NEWEST;
use rota_protocol::{gossip, peer};
use serde::{Serialize, de::DeserializeOwned};
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::fs;
use std::path::PathBuf;

/// Room for any of the values.
const LIMIT: usize = 64 << 10;

#[test]
fn log_entries() {
    check("entry_2", values::entries());
    check("entry_3", trust::entries());
    let outcomes = values::outcomes().into_iter().chain(values::later_outcomes());
    check("outcome", outcomes.collect());
}

/// Every old line is today's value, and is written again in today's format.
#[test]
fn log_entries_of_the_first_format() {
    let kept = read("entry_1");
    let values = first::entries();
    let labels: Vec<_> = values.iter().map(|(label, _)| (*label).to_owned()).collect();
    let lines: Vec<_> = lines("entry_1").into_iter().map(|(label, _)| label).collect();
    assert_eq!(labels, lines);
    for (label, value) in values {
        let bytes = unhex(&kept[label]);
        assert_eq!(bytes.first(), Some(&1), "{label}");
        let entry = Entry::from_bytes(&bytes).unwrap_or_else(|e| panic!("entry_1.hex, {label}: {e}"));
        assert_eq!(entry, value, "entry_1.hex, {label}: decodes to another value");
        let again = codec::encode(&entry).unwrap();
        assert_eq!(again.first().copied().map(u16::from), Some(LOG_FORMAT), "{label}");
        assert_eq!(Entry::from_bytes(&again).unwrap(), value, "{label}");
    }
}

/// Torn entries of either format are refused, whatever the cut; so are those with something after them.
#[test]
fn a_piece_of_an_entry_is_no_entry() {
    for file in ["entry_1", "entry_2", "entry_3"] {
        for (label, hex) in read(file) {
            let bytes = unhex(&hex);
            for end in 0..bytes.len() {
                assert!(Entry::from_bytes(&bytes[..end]).is_err(), "{file}.hex, {label}, {end} bytes");
            }
            let longer = Entry::from_bytes(&[&bytes[..], &[0]].concat());
            assert!(matches!(longer, Err(DecodeError::LeftOver { left: 1 })), "{file}.hex, {label}");
        }
    }
}

/// No format is taken for another: an unknown one is named, and each one's bytes say nothing in the other.
#[test]
fn an_entry_of_another_format_is_refused_by_its_number() {
    let bytes = codec::encode(&values::entry(values::commands().remove(7).1)).unwrap();
    for format in [0, NEWEST + 1, 250, 251, 65_535_u16] {
        let mut other = codec::encode(&format).unwrap();
        other.extend(&bytes[1..]);
        match Entry::from_bytes(&other) {
            Err(DecodeError::Version { found, newest }) => assert_eq!((found, newest), (format, NEWEST)),
            other => panic!("format {format}: {other:?}"),
        }
        assert!(codec::decode::<Entry>(&other, LIMIT).is_err(), "format {format}");
    }
    let as_first = [&[1], &bytes[1..]].concat();
    assert!(Entry::from_bytes(&as_first).is_err());
}

/// Fault R7: an older build reads everything of its own time and stops at what is newer, by its number; a command that
/// nobody knows, and a newer one that says it is older, are no entries. Nothing is ever skipped.
#[test]
fn an_older_build_stops_at_the_first_newer_entry() {
    for (label, entry) in values::entries() {
        let bytes = codec::encode(&entry).unwrap();
        assert_eq!(Entry::read(&bytes, 2).unwrap(), entry, "{label}");
        assert_eq!(Entry::read(&bytes, NEWEST).unwrap(), entry, "{label}");
    }
    for (label, entry) in trust::entries() {
        let bytes = codec::encode(&entry).unwrap();
        let refused = Entry::read(&bytes, 2).unwrap_err();
        assert!(matches!(refused, DecodeError::Version { found: 3, newest: 2 }), "{label}: {refused}");
        let text = refused.to_string();
        assert!(text.contains("1 to 2") && text.contains("install the version"), "{text}");
        let older = codec::encode(&Entry { format: 2, ..entry }).unwrap();
        let refused = Entry::read(&older, NEWEST).unwrap_err().to_string();
        assert!(refused.contains("a command of format 3"), "{label}: {refused}");
    }
    let unknown = codec::encode(&(NEWEST, 1_u64, 1_u64, 0_u128, ("t", "u", 3_u32), 9_999_u32)).unwrap();
    assert!(matches!(Entry::from_bytes(&unknown), Err(DecodeError::Malformed(_))));
}

/// Fault O2: frames as a peer of version 2 sends them, byte for byte; this build reads them, and writes the same to it. Written
/// again by `UPDATE_EXPECT=1` only for as long as no build of version 2 was released.
#[test]
fn recorded_frames_of_version_2_are_read_and_written() {
    fn framed<T: Serialize>(kind: FrameKind, values: Vec<(&str, T)>) -> Vec<(String, FrameKind, Vec<u8>)> {
        let whole = |value| frame::frame(2, kind, &codec::encode(&value).unwrap()).unwrap();
        values.into_iter().map(|(label, value)| (format!("{kind:?} {label}"), kind, whole(value))).collect()
    }
    fn again<T: Serialize + DeserializeOwned>(body: &[u8]) -> Vec<u8> {
        codec::encode(&codec::decode::<T>(body, LIMIT).unwrap()).unwrap()
    }
    let newer = |label: &str| ["Authority", "Hail"].contains(&label) || peers::ADMISSIONS.contains(&label);
    let requests = peers::peer_requests().into_iter().filter(|(label, _)| !newer(label));
    let replies = peers::peer_replies().into_iter().filter(|(label, _)| !newer(label));
    let mut frames = framed(FrameKind::PeerRequest, requests.collect());
    frames.extend(framed(FrameKind::PeerReply, replies.collect()));
    frames.extend(framed(FrameKind::JoinRequest, peers::join_requests()));
    frames.extend(framed(FrameKind::JoinReply, peers::join_replies()));
    frames.extend(framed(FrameKind::Gossip, peers::gossip_packets()));
    let lines: Vec<_> = frames.iter().map(|(label, _, bytes)| (label.clone(), hex(bytes))).collect();
    let kept = compare("frames_2", &lines);
    for (label, kind, _) in frames {
        let bytes = unhex(&kept[&label]);
        let (head, body) = bytes.split_first_chunk::<HEADER_BYTES>().unwrap();
        let header = Header::from_bytes(*head).unwrap();
        assert_eq!((header.kind, header.version, header.len as usize), (kind, 2, body.len()), "{label}");
        let same = match kind {
            FrameKind::PeerRequest => again::<peer::PeerRequest>(body),
            FrameKind::PeerReply => again::<peer::PeerReply>(body),
            FrameKind::JoinRequest => again::<peer::JoinRequest>(body),
            FrameKind::JoinReply => again::<peer::JoinReply>(body),
            _ => again::<gossip::GossipPacket>(body),
        };
        assert_eq!(same, body, "{label}");
    }
}

#[test]
fn what_peers_say() {
    check("peer_request", peers::peer_requests());
    check("peer_reply", peers::peer_replies());
    check("join_request", peers::join_requests());
    check("join_listening", peers::join_listenings());
    check("join_reply", peers::join_replies());
    check("hello", peers::hellos());
    check("status_digest", peers::status_digests());
    check("gossip_packet", peers::gossip_packets());
    check("gossip_member", peers::gossip_members());
}

#[test]
fn what_clients_say() {
    check("api_call", clients::api_calls());
    check("api_answer", clients::api_answers());
    check("error", clients::errors());
}

#[test]
fn what_lies_in_the_spool() {
    check("launch_order", peers::launch_orders());
    check("shim_record", peers::shim_records());
    check("exit_record", peers::exit_records());
    check("shim_call", peers::shim_calls());
    check("shim_event", peers::shim_events());
}

#[test]
fn exit_records_of_format_1_are_read() {
    let kept = read("exit_record_1");
    assert_eq!(kept.len(), 12);
    let mut values: BTreeMap<_, _> = peers::exit_records().into_iter().collect();
    for (label, hex) in kept {
        let old: rota_protocol::v1::ExitRecord = codec::decode(&unhex(&hex), LIMIT).unwrap();
        let plain = values.remove(label.as_str()).unwrap();
        let plain = rota_protocol::spool::ExitRecord { used: Default::default(), ..plain };
        assert_eq!(rota_protocol::spool::ExitRecord::from(old), plain, "{label}");
    }
}

#[test]
fn frame_headers() {
    let lines = peers::frames();
    let lines: Vec<_> = lines.into_iter().map(|(label, frame)| (label.to_owned(), hex(&frame))).collect();
    compare("frame", &lines);
}

/// Each value encodes to its line of the file, and each line of the file decodes to its value.
fn check<T>(file: &str, values: Vec<(&str, T)>)
where
    T: Serialize + DeserializeOwned + PartialEq + Debug,
{
    let lines: Vec<_> = values
        .iter()
        .map(|(label, value)| (label.to_string(), hex(&codec::encode(value).unwrap())))
        .collect();
    let kept = compare(file, &lines);
    for (label, value) in &values {
        let bytes = unhex(&kept[*label]);
        let decoded: T = codec::decode(&bytes, LIMIT)
            .unwrap_or_else(|e| panic!("{file}.hex, {label}: does not decode any more: {e}"));
        assert_eq!(&decoded, value, "{file}.hex, {label}: decodes to another value");
        // No byte of it is superfluous, and none may follow.
        assert!(codec::decode::<T>(&bytes[..bytes.len() - 1], LIMIT).is_err(), "{label}");
        assert!(codec::decode::<T>(&[&bytes[..], &[0]].concat(), LIMIT).is_err(), "{label}");
    }
}

/// The lines of the file, after comparing them or writing them.
fn compare(file: &str, lines: &[(String, String)]) -> BTreeMap<String, String> {
    let labels: BTreeMap<String, String> = lines.iter().cloned().collect();
    assert_eq!(labels.len(), lines.len(), "{file}: a label is used twice");
    let text: String = lines.iter().map(|(label, hex)| format!("{label}: {hex}\n")).collect();
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        fs::write(path(file), &text).unwrap();
        return labels;
    }
    let kept = read(file);
    for (label, hex) in lines {
        match kept.get(label) {
            Some(old) => assert_eq!(old, hex, "{file}.hex, {label}: the bytes changed"),
            None => panic!("{file}.hex, {label}: new; UPDATE_EXPECT=1 writes it"),
        }
    }
    for label in kept.keys() {
        assert!(labels.contains_key(label), "{file}.hex, {label}: no value any more");
    }
    kept
}

fn path(file: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(format!("{file}.hex"))
}

/// The lines of the file in their order.
fn lines(file: &str) -> Vec<(String, String)> {
    let text = fs::read_to_string(path(file)).unwrap_or_default();
    let pairs = text.lines().filter_map(|line| line.split_once(": "));
    pairs.map(|(label, hex)| (label.to_owned(), hex.to_owned())).collect()
}

fn read(file: &str) -> BTreeMap<String, String> {
    lines(file).into_iter().collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}
