//! The codec and the frame header against hostile bytes: limits before memory, nothing left over, no panic.

use proptest::prelude::*;
use rota_protocol::ErrorCode;
use rota_protocol::codec::{self, DecodeError};
use rota_protocol::command::Entry;
use rota_protocol::frame::{
    self, FrameKind, HEADER_BYTES, HELLO_VERSION, Header, HeaderError, SHIM_VERSION, VERSION_MAX,
    VERSION_MIN, negotiate,
};
use rota_protocol::limits::FRAME_BYTES_MAX;
use rota_protocol::peer::{PeerReply, PeerRequest, RaftCall};
use rota_protocol::spool::LaunchOrder;

const LIMIT: usize = FRAME_BYTES_MAX;

fn request(body: Vec<u8>) -> PeerRequest {
    PeerRequest::Raft { call: RaftCall::Vote, body }
}

#[test]
fn more_bytes_than_allowed_are_refused_unseen() {
    let bytes = codec::encode(&request(vec![1; 100])).unwrap();
    assert!(codec::decode::<PeerRequest>(&bytes, bytes.len()).is_ok());
    match codec::decode::<PeerRequest>(&bytes, bytes.len() - 1) {
        Err(DecodeError::TooLarge { len, limit }) => assert_eq!((len, limit), (103, 102)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn left_over_bytes_are_refused() {
    let mut bytes = codec::encode(&request(vec![1; 100])).unwrap();
    bytes.push(0);
    match codec::decode::<PeerRequest>(&bytes, LIMIT) {
        Err(DecodeError::LeftOver { left }) => assert_eq!(left, 1),
        other => panic!("{other:?}"),
    }
}

/// An unlimited decode of such bytes would end the process.
#[test]
fn a_vector_that_claims_2_to_60_elements_in_eight_bytes_allocates_nothing() {
    let mut huge = vec![0xfd];
    huge.extend((1_u64 << 60).to_le_bytes());
    for limit in [1 << 10, 1 << 20, 1 << 30] {
        assert!(codec::decode::<Vec<u64>>(&huge, limit).is_err());
        assert!(codec::decode::<Vec<u8>>(&huge, limit).is_err());
        assert!(codec::decode::<String>(&huge, limit).is_err());
        // Inside a message: raft, vote, then the length of the body.
        let inside = [&[0, 1], &huge[..]].concat();
        assert!(codec::decode::<PeerRequest>(&inside, limit).is_err());
        // And a vector of vectors.
        assert!(codec::decode::<Vec<(Vec<u8>, Vec<u8>)>>(&huge, limit).is_err());
    }
    let mut most = vec![0xfd];
    most.extend(u64::MAX.to_le_bytes());
    assert!(codec::decode::<Vec<u64>>(&most, LIMIT).is_err());
}

#[test]
fn an_unknown_variant_and_bad_text_are_malformed_not_a_panic() {
    for bytes in [&[250_u8][..], &[251, 1, 1], &[]] {
        let refused = codec::decode::<PeerReply>(bytes, LIMIT);
        assert!(matches!(refused, Err(DecodeError::Malformed(_))), "{bytes:?}");
    }
    assert!(codec::decode::<String>(&[2, 0xff, 0xfe], LIMIT).is_err());
    assert!(codec::decode::<bool>(&[7], LIMIT).is_err());
    assert!(codec::decode::<Option<u8>>(&[9, 1], LIMIT).is_err());
}

#[test]
fn a_header_is_refused_for_each_single_wrong_field() {
    let good = Header { version: VERSION_MAX, kind: FrameKind::PeerRequest, len: 5 };
    let bytes = good.to_bytes();
    assert_eq!(Header::from_bytes(bytes), Ok(good));
    let with = |change: fn(&mut [u8; HEADER_BYTES])| {
        let mut changed = bytes;
        change(&mut changed);
        Header::from_bytes(changed)
    };
    assert_eq!(with(|b| b[0] = b'X'), Err(HeaderError::Magic));
    let other = |version| Err(HeaderError::Version { version, kind: FrameKind::PeerRequest });
    assert_eq!(with(|b| b[4] = 0), other(0));
    assert_eq!(with(|b| b[5] = 1), other(256 + VERSION_MAX));
    assert_eq!(with(|b| b[6] = 0), Err(HeaderError::Kind(0)));
    assert_eq!(with(|b| b[7] = 9), Err(HeaderError::Kind(2 + 9 * 256)));
    let length = |len: u32| {
        let mut changed = bytes;
        changed[8..].copy_from_slice(&len.to_le_bytes());
        Header::from_bytes(changed).map(|header| header.len)
    };
    let max = u32::try_from(FRAME_BYTES_MAX).unwrap();
    for ok in [0, 1, max] {
        assert_eq!(length(ok), Ok(ok));
    }
    for bad in [max + 1, 1 << 31, u32::MAX] {
        assert_eq!(length(bad), Err(HeaderError::TooLarge(bad)));
    }
}

#[test]
fn every_kind_survives_its_number_and_unknown_ones_are_refused() {
    let known = (0..=u16::MAX)
        .filter(|kind| {
            [HELLO_VERSION, SHIM_VERSION, VERSION_MAX].into_iter().any(|version| {
                let mut bytes = frame::frame(version, FrameKind::Hello, &[]).unwrap();
                bytes[6..8].copy_from_slice(&kind.to_le_bytes());
                let header = bytes.try_into().map(Header::from_bytes).unwrap();
                header.is_ok_and(|header| header.kind as u16 == *kind)
            })
        })
        .count();
    assert_eq!(known, 10);
    assert!(frame::frame(HELLO_VERSION, FrameKind::Hello, &vec![0; FRAME_BYTES_MAX]).is_ok());
    assert!(frame::frame(HELLO_VERSION, FrameKind::Hello, &vec![0; FRAME_BYTES_MAX + 1]).is_err());
}

/// The first build spoke version 1 alone. It must be able to read our greeting, and we its, so that each can tell its
/// user; beyond that not a frame of it is taken for one of ours. Its shims, which outlive it, are understood.
#[test]
fn the_first_build_is_greeted_and_refused() {
    let of = |version, kind| Header::from_bytes(Header { version, kind, len: 0 }.to_bytes());
    assert!(of(1, FrameKind::Hello).is_ok());
    assert!(of(1, FrameKind::Shim).is_ok());
    assert_eq!((HELLO_VERSION, SHIM_VERSION), (1, 1));
    for kind in [FrameKind::PeerRequest, FrameKind::ApiCall, FrameKind::Gossip, FrameKind::JoinRequest] {
        let refused = of(1, kind).unwrap_err();
        assert_eq!(refused, HeaderError::Version { version: 1, kind });
        assert_eq!(refused.to_string(), format!("a {kind:?} frame of version 1, this build speaks 2 to 3"));
    }
    let error = negotiate((VERSION_MIN, VERSION_MAX), (1, 1)).unwrap_err();
    let text = "no common protocol version: this side speaks 2 to 3, the other 1 to 1; upgrade the side that speaks \
                the older ones";
    assert_eq!((error.code, error.message.as_str()), (ErrorCode::Version, text));
}

#[test]
fn two_builds_speak_the_newest_common_version_or_none() {
    assert_eq!(negotiate((1, 3), (2, 5)), Ok(3));
    assert_eq!(negotiate((2, 5), (1, 3)), Ok(3));
    assert_eq!(negotiate((1, 1), (1, 1)), Ok(1));
    for (ours, theirs) in [((1, 2), (3, 4)), ((3, 4), (1, 2)), ((2, 3), (9, 1))] {
        let error = negotiate(ours, theirs).unwrap_err();
        assert!(error.message.contains("no common protocol version"), "{error}");
    }
}

proptest! {
    /// Any bytes give a value or an error, in bounded memory; a value that came out goes back in unchanged.
    #[test]
    fn any_bytes_are_taken_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        fn taken<T: serde::Serialize + serde::de::DeserializeOwned + PartialEq + std::fmt::Debug>(bytes: &[u8]) {
            if let Ok(value) = codec::decode::<T>(bytes, LIMIT) {
                let again = codec::encode(&value).unwrap();
                assert_eq!(codec::decode::<T>(&again, LIMIT).unwrap(), value);
            }
        }
        taken::<PeerRequest>(&bytes);
        taken::<PeerReply>(&bytes);
        taken::<Entry>(&bytes);
        taken::<LaunchOrder>(&bytes);
        taken::<rota_protocol::api::ApiCall>(&bytes);
        taken::<rota_protocol::api::ApiAnswer>(&bytes);
        taken::<rota_protocol::gossip::StatusDigest>(&bytes);
        if let Some(header) = bytes.first_chunk::<HEADER_BYTES>() {
            let _ = Header::from_bytes(*header);
        }
    }
}
