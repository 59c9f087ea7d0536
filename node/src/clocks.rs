//! Asks voters what their clocks say: `logic::drift` decides whether this host's own runs as it should, this carries it to
//! the log, to the metrics and to people.

use crate::io::clock;
use crate::logic::drift::{ASK_MS, Answer, Drift, PEERS_MAX, Verdict};
use crate::meters;
use crate::net::PeerLink;
use crate::node::Node;
use crate::own_drain;
use futures_util::future::join_all;
use rota_protocol::HostId;
use rota_protocol::peer::{PeerReply, PeerRequest};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// An answer that takes longer says little about a rate.
const TTL: Duration = Duration::from_millis(500);
/// How long the log may take to know of it before it is tried again.
const DEADLINE: Duration = Duration::from_secs(2);

/// Until the agent ends.
pub(crate) async fn watch(node: Weak<Node>) {
    let mut decider: Option<Drift> = None;
    let mut before = Verdict::Sound;
    loop {
        tokio::time::sleep(Duration::from_millis(ASK_MS)).await;
        let Some(node) = node.upgrade().filter(|node| !node.is_closing()) else { return };
        let drift = decider.get_or_insert_with(|| Drift::new(node.config.profile.lease()));
        for (host, answer) in ask(&node).await {
            drift.heard(host, answer);
        }
        let now_us = clock::boottime_us();
        let verdict = drift.look(now_us);
        #[expect(clippy::cast_precision_loss, reason = "a gauge, of thousands")]
        metrics::gauge!(meters::CLOCK_DRIFT).set(verdict.ppm() as f64);
        if let (Verdict::Broken(ppm), false) = (verdict, matches!(before, Verdict::Broken(_))) {
            tracing::error!(
                ppm,
                "clock_drift>rho: this host's clock runs at another rate than those of most peers"
            );
            metrics::counter!(meters::VIOLATIONS, "law" => "clock_drift>rho").increment(1);
        }
        before = verdict;
        let change = node.consensus.read(|state| {
            let host = state.host(node.host)?;
            drift.decide(verdict, now_us, host.drain.as_deref())
        });
        if let Some(change) = change {
            own_drain::tell(&node, change, "the rate of the clock", DEADLINE).await;
        }
    }
}

async fn ask(node: &Arc<Node>) -> Vec<(HostId, Answer)> {
    let voters = node.consensus.status().voters;
    let peers = voters.into_iter().filter(|host| *host != node.host).take(PEERS_MAX);
    let answers = peers.map(|host| async move {
        let asked_us = clock::boottime_us();
        let reply = node.net.call(host, PeerRequest::Clock, TTL).await.ok()?;
        let PeerReply::Clock { boot, boottime_us } = reply else { return None };
        let heard_us = clock::boottime_us();
        Some((host, Answer { asked_us, heard_us, theirs_us: boottime_us, boot }))
    });
    join_all(answers).await.into_iter().flatten().collect()
}
