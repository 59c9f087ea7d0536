//! What is looked at each second: that nobody holds anything who is not there any more, and what will be needed.
//!
//! Inputs of jobs that were promised a start on this host are fetched before the grant: one at a time, only while no
//! attempt waits for a fetch, and only into room that nobody holds. Each is tried once for a promise: where they do not
//! all fit, one must not push out the other over and over.

use super::stage::peers;
use super::{fetch, lock};
use crate::logic::shelf::Wanted;
use crate::node::Node;
use rota_protocol::ids::{JobId, Token};
use std::collections::BTreeSet;
use std::sync::Weak;
use std::time::Duration;

/// How often the promises are looked at.
const LOOK: Duration = Duration::from_secs(1);

/// Until the agent ends.
pub(crate) async fn watch(node: Weak<Node>) {
    let mut tried: BTreeSet<(JobId, Wanted)> = BTreeSet::new();
    loop {
        tokio::time::sleep(LOOK).await;
        let Some(node) = node.upgrade().filter(|node| !node.is_closing()) else { return };
        node.data.give_up_silent();
        let_go_of_unknown(&node);
        let promised = promised(&node);
        tried.retain(|one| promised.contains(one));
        let Some((job, wanted)) = promised.iter().find(|one| !tried.contains(one)) else { continue };
        if lock(&node.data.flights).is_empty() {
            let begins = lock(&node.data.shelf).want_ahead(wanted);
            if begins {
                fetch::begin(&node.data, &peers(&node), wanted.clone(), *job);
            }
            tried.insert((*job, wanted.clone()));
        }
    }
}

/// What neither the log nor a shim here knows holds nothing, whatever became of those who should have said so.
fn let_go_of_unknown(node: &Node) {
    let users = node.data.users();
    if users.is_empty() {
        return;
    }
    let locals = node.shims.locals();
    let unknown = node.consensus.read(|state| {
        let here = |token: &Token| state.attempt(*token).is_some_and(|attempt| attempt.host == node.host);
        users.into_iter().filter(|token| !here(token) && !locals.contains_key(token)).collect::<Vec<_>>()
    });
    unknown.into_iter().for_each(|token| node.data.over(token));
}

/// Inputs of jobs that are to start here.
fn promised(node: &Node) -> BTreeSet<(JobId, Wanted)> {
    node.consensus.read(|state| {
        let with_inputs = state.promised().filter(|job| !job.spec.inputs.is_empty());
        let here = with_inputs.filter(|job| {
            job.promise
                .as_ref()
                .is_some_and(|promise| promise.slots.iter().any(|slot| slot.host == node.host))
        });
        here.flat_map(|job| job.spec.inputs.iter().map(|input| (job.id, (input.blob, job.tenant.clone()))))
            .collect()
    })
}
