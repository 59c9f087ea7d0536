//! What attempts that were granted wait for on their hosts: only these know.

use crate::net::PeerLink;
use crate::node::Node;
use futures_util::future::join_all;
use rota_protocol::data::{BlobAsk, BlobNews, StagingRow};
use rota_protocol::ids::{HostId, JobId, Token};
use rota_protocol::job::AttemptState;
use rota_protocol::peer::{PeerReply, PeerRequest};
use std::time::Duration;

/// How long a host may take to say it.
const ASK: Duration = Duration::from_millis(1_000);
/// Attempts of one job that are asked about.
const ASKED_MAX: usize = 16;

/// Of a job without inputs, or without such attempts: nothing, and nobody is asked.
pub(super) async fn of(node: &Node, job: JobId) -> Vec<StagingRow> {
    let waiting: Vec<(Token, HostId, String)> = node.consensus.read(|state| {
        let with_inputs = state.job(job).is_some_and(|job| !job.spec.inputs.is_empty());
        let granted = state.attempts_of(job).filter(|one| with_inputs && one.state == AttemptState::Granted);
        let named = granted.filter_map(|one| Some((one.token, one.host, state.host(one.host)?.name.clone())));
        named.take(ASKED_MAX).collect()
    });
    let rows = waiting.into_iter().map(async |(attempt, host, name)| {
        let waits_for = if host == node.host {
            node.data.standing(attempt)
        } else {
            let ask = PeerRequest::Data(BlobAsk::Standing { attempt });
            match node.net.call(host, ask, ASK).await {
                Ok(PeerReply::Data(BlobNews::Standing(standing))) => standing,
                _ => None,
            }
        };
        Some(StagingRow { attempt, host: name, waits_for: waits_for? })
    });
    join_all(rows).await.into_iter().flatten().collect()
}
