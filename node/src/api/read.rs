//! Calls that look: at one consistent copy, confirmed by a quorum unless the caller wants it stale.

use super::caller::Caller;
use super::session::Answers;
use super::{READ_DEADLINE, not_found, staging};
use crate::logic::attempts;
use crate::members;
use crate::node::Node;
use rota_consensus::AppliedNote;
use rota_core::placement::PlanConfig;
use rota_core::{Event, State, explain, view};
use rota_protocol::api::{ApiReply, ApiRequest, Freshness};
use rota_protocol::error::{ErrorCode, PublicError};
use rota_protocol::ids::JobId;
use rota_protocol::job::Role;
use rota_protocol::view::{ClusterView, JobRow, LogUse, PeerRow};
use std::time::Duration;
use tokio::sync::broadcast::error::RecvError;

pub(super) async fn answer(
    node: &Node,
    caller: &Caller,
    request: ApiRequest,
) -> Result<ApiReply, PublicError> {
    let Some(age) = allowed_age(&request) else { return fresh(node, caller, request).await };
    let age = node.consensus.read_within(age, READ_DEADLINE).await?;
    let age_ms = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
    let reply = Box::new(fresh(node, caller, request).await?);
    Ok(ApiReply::Aged { age_ms, reply })
}

/// How old an answer may be, where the caller gives a bound.
fn allowed_age(request: &ApiRequest) -> Option<Duration> {
    match request {
        ApiRequest::Queue { freshness, .. }
        | ApiRequest::Show { freshness, .. }
        | ApiRequest::Hosts { freshness }
        | ApiRequest::Devices { freshness }
        | ApiRequest::Queues { freshness }
        | ApiRequest::Reservations { freshness }
        | ApiRequest::Idle(freshness)
        | ApiRequest::Usage(freshness)
        | ApiRequest::Trust(freshness)
        | ApiRequest::Cluster { freshness } => match freshness {
            Freshness::Within(ms) => Some(Duration::from_millis(u64::from(*ms))),
            Freshness::Linearizable | Freshness::Stale => None,
        },
        _ => None,
    }
}

async fn fresh(node: &Node, caller: &Caller, request: ApiRequest) -> Result<ApiReply, PublicError> {
    match request {
        ApiRequest::Queue { filter, freshness } => {
            listed(node, freshness, |state| {
                let (rows, next) = view::queue(state, &filter, &caller.actor);
                ApiReply::Queue { index: state.applied_index(), rows, next }
            })
            .await
        }
        ApiRequest::Show { job, freshness } => show(node, caller, job, freshness).await,
        ApiRequest::Why { job } => {
            barrier(node, Freshness::Linearizable).await?;
            why(node, caller, job).await
        }
        ApiRequest::Hosts { freshness } => {
            listed(node, freshness, |state| ApiReply::Hosts {
                index: state.applied_index(),
                rows: view::hosts_at(state, crate::io::clock::wall_ms()),
            })
            .await
        }
        ApiRequest::Devices { freshness } => devices(node, freshness).await,
        ApiRequest::Queues { freshness } => {
            listed(node, freshness, |state| ApiReply::Queues {
                index: state.applied_index(),
                rows: view::queues(state, &caller.actor, crate::io::clock::wall_ms()),
            })
            .await
        }
        ApiRequest::Reservations { freshness } => {
            listed(node, freshness, |state| ApiReply::Reservations {
                index: state.applied_index(),
                rows: view::reservations(state, crate::io::clock::wall_ms()),
            })
            .await
        }
        ApiRequest::Idle(freshness) => {
            let sees = |tenant: &str| caller.sees(tenant);
            listed(node, freshness, |state| {
                let mut rows = view::idle(state);
                rows.retain(|row| sees(&row.tenant));
                ApiReply::Idle(rows)
            })
            .await
        }
        ApiRequest::Usage(freshness) => usage(node, caller, freshness).await,
        ApiRequest::Cluster { freshness } => cluster(node, freshness).await,
        ApiRequest::Trust(freshness) => trust(node, caller, freshness).await,
        ApiRequest::Doctor => {
            caller.at_least(Role::Operator)?;
            Ok(ApiReply::Doctor(node.doctor().await))
        }
        ApiRequest::Me => Ok(me(node, caller)),
        ApiRequest::Digest { at_least } => digest(node, caller, at_least).await,
        other => Err(PublicError::new(ErrorCode::Internal, format!("not a read: {other:?}"))),
    }
}

/// Whom the cluster trusts.
async fn trust(node: &Node, caller: &Caller, freshness: Freshness) -> Result<ApiReply, PublicError> {
    caller.at_least(Role::Operator)?;
    let view = |state: &rota_core::State| view::trust(state, crate::io::clock::wall_ms());
    listed(node, freshness, |state| ApiReply::Trust(Box::new(view(state)))).await
}

/// The caller and its newest job.
fn me(node: &Node, caller: &Caller) -> ApiReply {
    let actor = caller.actor.clone();
    let last = node.consensus.read(|state| {
        let own = |job: &&rota_core::Job| job.tenant == actor.tenant && job.user == actor.user;
        state.jobs().filter(own).last().map(|job| job.id)
    });
    ApiReply::Me { actor, last }
}

/// A list from one copy that is fresh enough.
async fn listed(
    node: &Node,
    freshness: Freshness,
    list: impl FnOnce(&State) -> ApiReply,
) -> Result<ApiReply, PublicError> {
    barrier(node, freshness).await?;
    Ok(node.consensus.read(list))
}

/// Devices with the newest readings that gossip brought.
async fn devices(node: &Node, freshness: Freshness) -> Result<ApiReply, PublicError> {
    barrier(node, freshness).await?;
    let (index, mut rows) = node.consensus.read(|state| (state.applied_index(), view::devices(state)));
    let readings = node.readings();
    for row in &mut rows {
        row.reading = readings.get(&row.facts.uuid).cloned();
    }
    Ok(ApiReply::Devices { index, rows })
}

async fn barrier(node: &Node, freshness: Freshness) -> Result<(), PublicError> {
    match freshness {
        Freshness::Linearizable => node.consensus.read_barrier(READ_DEADLINE).await.map(|_| ()),
        // A bound on the age was looked at before.
        Freshness::Stale | Freshness::Within(_) => Ok(()),
    }
}

/// All about one job, its attempts numbered.
async fn show(
    node: &Node,
    caller: &Caller,
    job: JobId,
    freshness: Freshness,
) -> Result<ApiReply, PublicError> {
    barrier(node, freshness).await?;
    let found = node.consensus.read(|state| {
        let mut found = view::job(state, job)?;
        attempts::number(state, &mut found);
        Some(found)
    });
    found
        .filter(|found| caller.sees(&found.row.tenant))
        .map(|found| ApiReply::Job(Box::new(found)))
        .ok_or_else(|| not_found("job", &job.to_string()))
}

async fn usage(node: &Node, caller: &Caller, freshness: Freshness) -> Result<ApiReply, PublicError> {
    let sees = |tenant: &str| caller.sees(tenant);
    listed(node, freshness, |state| {
        let mut rows = view::usage(state, crate::io::clock::wall_ms());
        rows.retain(|row| sees(&row.tenant));
        ApiReply::Usage(rows)
    })
    .await
}

/// Worked out on a copy, beside the runtime: it plans a round, and the state must not wait for that.
async fn why(node: &Node, caller: &Caller, job: JobId) -> Result<ApiReply, PublicError> {
    let now_ms = crate::io::clock::wall_ms();
    // What the planner is told as well, where this peer leads: hosts of which nothing is heard just now.
    let config = PlanConfig { avoid_hosts: node.suspected(), ..PlanConfig::default() };
    let not_found = || not_found("job", &job.to_string());
    let seen = |state: &State| caller.sees(&state.job(job)?.tenant).then(|| state.clone());
    let copy = node.consensus.read(seen).ok_or_else(not_found)?;
    let answer = tokio::task::spawn_blocking(move || explain::why_with(&copy, job, now_ms, &config)).await;
    let answer = answer.map_err(|error| PublicError::new(ErrorCode::Internal, error.to_string()))?;
    let mut why = answer.ok_or_else(not_found)?;
    why.more.staging = staging::of(node, job).await;
    Ok(ApiReply::Why(Box::new(why)))
}

async fn cluster(node: &Node, freshness: Freshness) -> Result<ApiReply, PublicError> {
    // Without a quorum the answer is still given, and says that it is not confirmed.
    let linearizable =
        freshness == Freshness::Linearizable && node.consensus.read_barrier(READ_DEADLINE).await.is_ok();
    let raft = node.consensus.status();
    let gossip = node.gossip_states();
    let look = members::look(node);
    Ok(node.consensus.read(|state| {
        let members = members::view(node, &look, state);
        // A host that was removed is shown for as long as it follows.
        let shown = |host: &&rota_core::Host| {
            host.belonging.removed.is_none()
                || raft.learners.contains(&host.id)
                || raft.voters.contains(&host.id)
        };
        let peers = state
            .hosts()
            .filter(shown)
            .map(|host| PeerRow {
                host: host.id,
                name: host.name.clone(),
                addr: host.addr.clone(),
                role: if raft.leader == Some(host.id) {
                    "leader"
                } else if raft.voters.contains(&host.id) {
                    "voter"
                } else if raft.learners.contains(&host.id) {
                    "learner"
                } else {
                    "follower"
                }
                .to_owned(),
                seen: if host.id == node.host {
                    "alive"
                } else {
                    gossip.get(&host.id).copied().unwrap_or("unknown")
                }
                .to_owned(),
            })
            .collect();
        ApiReply::Cluster(Box::new(ClusterView {
            cluster: node.cluster,
            name: state.cluster().map(|meta| meta.name.clone()).unwrap_or_default(),
            answered_by: node.host,
            leader: raft.leader,
            term: raft.term,
            applied: state.applied_index(),
            state_hash: state.rolling_hash(),
            linearizable,
            peers,
            jobs: view::jobs_by_state(state),
            breaker: view::breaker(state, crate::io::clock::wall_ms()),
            log: LogUse {
                written_bytes: raft.log_written.0,
                fsyncs: raft.log_written.1,
                snapshot_bytes: raft.snapshot_bytes,
            },
            members,
        }))
    }))
}

async fn digest(node: &Node, caller: &Caller, at_least: u64) -> Result<ApiReply, PublicError> {
    caller.at_least(Role::Operator)?;
    let mut applied = node.consensus.applied();
    let waited = tokio::time::timeout(READ_DEADLINE, applied.wait_for(|index| *index >= at_least)).await;
    if !matches!(waited, Ok(Ok(_))) {
        let message = format!("log index {at_least} is not applied here yet");
        return Err(PublicError::new(ErrorCode::Busy, message).retry_after(500));
    }
    Ok(node.consensus.read(|state| ApiReply::Digest {
        index: state.applied_index(),
        rolling: state.rolling_hash(),
        full: state.full_hash(),
        host: node.host,
    }))
}

/// Streams a job's row at each change until it is terminal.
pub(super) async fn watch(node: &Node, caller: &Caller, job: JobId, answers: Answers) {
    // Subscribed before the first look, so that no change falls between the two.
    let mut notes = node.consensus.events();
    if let Err(error) = barrier(node, Freshness::Linearizable).await {
        answers.send(false, Err(error)).await;
        return;
    }
    let row =
        || node.consensus.read(|state| view::job_row(state, job)).filter(|row| caller.sees(&row.tenant));
    let Some(mut shown) = row() else {
        answers.send(false, Err(not_found("job", &job.to_string()))).await;
        return;
    };
    if !tell(&answers, &shown).await {
        return;
    }
    loop {
        tokio::select! {
            note = notes.recv() => match note {
                Ok(note) if touches(&note, job) => {}
                Ok(_) => continue,
                Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return,
            },
            () = answers.closed() => return,
        }
        match row() {
            Some(now) if now == shown => {}
            Some(now) => {
                shown = now;
                if !tell(&answers, &shown).await {
                    return;
                }
            }
            None => {
                answers.send(false, Err(not_found("job", &job.to_string()))).await;
                return;
            }
        }
    }
}

/// Streams what jobs of the caller go through, in the order of the log, without a gap: after an index that an earlier
/// stream told, here or at another peer, or from now on.
pub(super) async fn changes(node: &Node, caller: &Caller, after: Option<u64>, answers: Answers) {
    let mut applied = node.consensus.applied();
    let confirmed = match node.consensus.read_barrier(READ_DEADLINE).await {
        Ok(index) => index,
        Err(error) => {
            answers.send(false, Err(error)).await;
            return;
        }
    };
    let mut after = after.unwrap_or(confirmed);
    if after > *applied.borrow_and_update() {
        let message = format!("log index {after} does not exist yet; the newest is {confirmed}");
        answers.send(false, Err(PublicError::invalid("after", message, &confirmed.to_string()))).await;
        return;
    }
    let mut first = true;
    loop {
        let mut piece = match node.consensus.changes_since(after) {
            Ok(piece) => piece,
            Err(fault) => {
                answers.send(false, Err(PublicError::new(ErrorCode::Conflict, fault.to_string()))).await;
                return;
            }
        };
        let moved = piece.upto > after;
        after = piece.upto;
        node.consensus.read(|state| {
            piece.changes.retain(|change| state.job(change.job).is_some_and(|job| caller.sees(&job.tenant)));
        });
        let tells = first || !piece.changes.is_empty();
        if tells && !answers.send(true, Ok(ApiReply::Changes(piece))).await {
            return;
        }
        first = false;
        if moved {
            continue;
        }
        tokio::select! {
            changed = applied.changed() => if changed.is_err() { return },
            () = answers.closed() => return,
        }
    }
}

/// Whether a note may have changed a job's row.
pub(super) fn touches(note: &AppliedNote, job: JobId) -> bool {
    note.resync
        || note.events.iter().any(|event| match event {
            Event::JobChanged(changed) | Event::AttemptEnded { job: changed, .. } => *changed == job,
            _ => false,
        })
}

/// True when more will follow.
async fn tell(answers: &Answers, row: &JobRow) -> bool {
    let more = !row.state.is_terminal();
    answers.send(more, Ok(ApiReply::Changed(Box::new(row.clone())))).await && more
}
