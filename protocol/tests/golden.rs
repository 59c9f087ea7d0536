//! Bytes that must decode for ever: one fixed value of each type that crosses a wire or a disk, beside the bytes that
//! it had when it was first released (`tests/golden/*.hex`, one `label: hex` a line).
//!
//! A failure here means that peers of two versions, or a peer and its own disk, would not understand each other.
//! Append a variant or make a new format instead of changing one. `UPDATE_EXPECT=1` writes what is new; look at the
//! diff: a changed line is a broken format, a new line is fine.

// A test that cannot read its own files should stop where it stands.
#![allow(clippy::unwrap_used)]

#[path = "golden/clients.rs"]
mod clients;
#[path = "golden/peers.rs"]
mod peers;
#[path = "golden/values.rs"]
mod values;

use rota_protocol::codec;
use serde::{Serialize, de::DeserializeOwned};
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::fs;
use std::path::PathBuf;

/// Room for any of the values.
const LIMIT: usize = 64 << 10;

#[test]
fn log_entries() {
    check("entry", values::entries());
    check("outcome", values::outcomes());
}

#[test]
fn what_peers_say() {
    check("peer_request", peers::peer_requests());
    check("peer_reply", peers::peer_replies());
    check("join_request", peers::join_requests());
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
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(format!("{file}.hex"));
    let labels: BTreeMap<String, String> = lines.iter().cloned().collect();
    assert_eq!(labels.len(), lines.len(), "{file}: a label is used twice");
    let text: String = lines.iter().map(|(label, hex)| format!("{label}: {hex}\n")).collect();
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        fs::write(&path, &text).unwrap();
        return labels;
    }
    let kept = fs::read_to_string(&path).unwrap_or_default();
    let kept: BTreeMap<String, String> = kept
        .lines()
        .filter_map(|line| line.split_once(": "))
        .map(|(label, hex)| (label.to_owned(), hex.to_owned()))
        .collect();
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

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}
