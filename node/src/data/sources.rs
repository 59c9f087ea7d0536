//! Who might have a blob: every other host is asked, a few at a time, and the first that has it is the source. A host
//! whose bytes were wrong, or that broke off, is left out for a while.

use super::lock;
use futures_util::StreamExt;
use futures_util::stream;
use rota_consensus::PeerLink;
use rota_protocol::data::{BlobAsk, BlobId, BlobNews};
use rota_protocol::ids::{HostId, JobId};
use rota_protocol::peer::{PeerReply, PeerRequest};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::Instant;

/// Hosts that are asked at once.
const ASKED_AT_ONCE: usize = 16;
/// How long one may take to say whether it has a blob.
const ASK: Duration = Duration::from_millis(1_000);
/// How long a host is left out whose bytes had another hash.
pub(super) const WRONG_FOR: Duration = Duration::from_secs(60);
/// How long one is that broke off.
pub(super) const BROKE_FOR: Duration = Duration::from_secs(2);

/// Another host of the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Peer {
    pub(super) host: HostId,
    pub(super) name: String,
    /// It is there, as far as the log knows.
    pub(super) up: bool,
}

/// The other hosts, and the way to them.
#[derive(Clone)]
pub(super) struct Peers {
    pub(super) link: Arc<dyn PeerLink>,
    pub(super) all: Arc<dyn Fn() -> Vec<Peer> + Send + Sync>,
}

/// One that has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Source {
    pub(super) host: HostId,
    pub(super) name: String,
    pub(super) bytes: u64,
    pub(super) public: bool,
}

/// What a look around found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Found {
    Source(Source),
    /// Nobody has it; whether all could be asked.
    Nobody {
        asked_all: bool,
    },
}

/// Hosts that are left out for one blob, and until when.
#[derive(Default)]
pub(super) struct Doubts(Mutex<BTreeMap<(BlobId, HostId), Instant>>);

impl Doubts {
    pub(super) fn leave_out(&self, blob: BlobId, host: HostId, during: Duration) {
        let mut all = lock(&self.0);
        let now = Instant::now();
        // What is over is forgotten, so that this cannot grow.
        all.retain(|_, until| *until > now);
        let until = all.entry((blob, host)).or_insert(now);
        *until = (*until).max(now + during);
    }

    fn is_out(&self, blob: BlobId, host: HostId) -> bool {
        lock(&self.0).get(&(blob, host)).is_some_and(|until| *until > Instant::now())
    }
}

impl Peers {
    /// One question to one host.
    pub(super) async fn ask(&self, host: HostId, ask: BlobAsk, ttl: Duration) -> Result<BlobNews, String> {
        match self.link.call(host, PeerRequest::Data(ask), ttl).await {
            Ok(PeerReply::Data(news)) => Ok(news),
            Ok(PeerReply::Refused(error)) => Err(error.to_string()),
            Ok(other) => Err(format!("an unexpected reply: {other:?}")),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Looks for a blob.
    pub(super) async fn find(&self, doubts: &Doubts, blob: BlobId, job: JobId) -> Found {
        let all = (self.all)();
        let mut asked_all = true;
        let mut asked = Vec::new();
        for peer in all {
            match peer.up && !doubts.is_out(blob, peer.host) {
                true => asked.push(peer),
                false => asked_all = false,
            }
        }
        let answers = asked.into_iter().map(async |peer| {
            let answer = self.ask(peer.host, BlobAsk::Have { blob, job }, ASK).await;
            (peer, answer)
        });
        let mut answers = std::pin::pin!(stream::iter(answers).buffer_unordered(ASKED_AT_ONCE));
        while let Some((peer, answer)) = answers.next().await {
            match answer {
                Ok(BlobNews::Here { bytes, public }) => {
                    return Found::Source(Source { host: peer.host, name: peer.name, bytes, public });
                }
                Ok(BlobNews::Absent) => {}
                Ok(_) | Err(_) => asked_all = false,
            }
        }
        Found::Nobody { asked_all }
    }
}
