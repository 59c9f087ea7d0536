//! Values about blobs.

use crate::values::{NOW_MS, text, token};
use rota_protocol::api::{ApiReply, ApiRequest};
use rota_protocol::data::{
    BlobAsk, BlobId, BlobNews, BlobRow, CacheCounts, CacheView, DataAsk, DataNews, Input, StagingRow,
};
use rota_protocol::ids::{HostId, JobId};
use rota_protocol::peer::{PeerReply, PeerRequest};

const BLOB: BlobId = BlobId([0xb1; 32]);

pub(crate) fn input() -> Input {
    Input { name: text("data/train.bin"), blob: BLOB }
}

pub(crate) fn staging() -> StagingRow {
    StagingRow { attempt: token(), host: text("n7"), waits_for: text("fetching") }
}

fn row() -> BlobRow {
    BlobRow {
        blob: BLOB.to_string(),
        bytes: 1 << 33,
        name: text("train.bin"),
        tenants: vec![text("ada")],
        public: true,
        pinned: true,
        holders: vec![token()],
        used_ms: NOW_MS,
    }
}

pub(crate) fn requests() -> Vec<(&'static str, ApiRequest)> {
    let asks = [
        ("Data begin", DataAsk::Begin { bytes: 1 << 33, name: text("train.bin"), public: true }),
        ("Data piece", DataAsk::Piece { upload: 9, offset: 1 << 20, bytes: vec![1, 0, 255] }),
        ("Data commit", DataAsk::Commit { upload: 9, blob: BLOB }),
        ("Data list", DataAsk::List),
        ("Data remove", DataAsk::Remove { blob: BLOB }),
    ];
    asks.into_iter().map(|(label, ask)| (label, ApiRequest::Data(ask))).collect()
}

pub(crate) fn replies() -> Vec<(&'static str, ApiReply)> {
    let view = CacheView {
        host: HostId(7),
        rows: vec![row()],
        bytes_used: 3,
        bytes_max: 1 << 34,
        counts: CacheCounts { hits: 1, misses: 2, fetched_bytes: 3, refused: 4 },
    };
    let news = [
        ("Data upload", DataNews::Upload { upload: 9 }),
        ("Data taken", DataNews::Taken),
        ("Data added", DataNews::Added(row())),
        ("Data cache", DataNews::Cache(Box::new(view))),
        ("Data removed", DataNews::Removed { gone: true }),
    ];
    news.into_iter().map(|(label, news)| (label, ApiReply::Data(news))).collect()
}

pub(crate) fn peer_requests() -> Vec<(&'static str, PeerRequest)> {
    let (blob, job) = (BLOB, JobId(5));
    let asks = [
        ("Data have", BlobAsk::Have { blob, job }),
        ("Data read", BlobAsk::Read { blob, job, offset: 1 << 32, bytes: 512 }),
        ("Data doubt", BlobAsk::Doubt { blob, job }),
        ("Data standing", BlobAsk::Standing { attempt: token() }),
    ];
    asks.into_iter().map(|(label, ask)| (label, PeerRequest::Data(ask))).collect()
}

pub(crate) fn peer_replies() -> Vec<(&'static str, PeerReply)> {
    let news = [
        ("Data absent", BlobNews::Absent),
        ("Data here", BlobNews::Here { bytes: 1 << 33, public: true }),
        ("Data piece", BlobNews::Piece { bytes: vec![1, 0, 255] }),
        ("Data noted", BlobNews::Noted),
        ("Data standing", BlobNews::Standing(Some(text("fetching")))),
    ];
    news.into_iter().map(|(label, news)| (label, PeerReply::Data(news))).collect()
}
