//! Calls that change something: checked here, decided by the log.

use super::caller::Caller;
use super::{WRITE_DEADLINE, not_found, notes, trust};
use crate::lead;
use crate::members;
use crate::net::{PeerLink, TokenKind, mint_secret};
use crate::node::Node;
use rota_core::apply::check_priority_at_edge;
use rota_core::view;
use rota_protocol::api::{ApiReply, ApiRequest};
use rota_protocol::command::{Command, Outcome, Proposal, TokenUse};
use rota_protocol::error::{ErrorCode, PublicError};
use rota_protocol::health::Tending;
use rota_protocol::ids::{DeviceUuid, HostId, JobId, RequestId, Token};
use rota_protocol::job::{JobSpec, Role};
use rota_protocol::limits::PRIORITY_DEFAULT;
use rota_protocol::peer::{PeerReply, PeerRequest};
use rota_protocol::reservation::{ReservationAsk, ReservationSpec};
use rota_protocol::view::Accepted;
use std::time::Duration;

/// Longest life of a join token, in ms: one hour (security requirement S3).
const JOIN_TOKEN_TTL_MS_MAX: u64 = 3_600_000;
/// Longest life of a user token, in ms: one year.
const USER_TOKEN_TTL_MS_MAX: u64 = 366 * 24 * 3_600_000;
/// How long one host may take to deliver a signal.
const SIGNAL_DEADLINE: Duration = Duration::from_millis(2_000);
/// Most jobs in one call.
const JOBS_PER_CALL_MAX: usize = 1_024;

pub(super) async fn answer(
    node: &Node,
    caller: &Caller,
    request: ApiRequest,
) -> Result<ApiReply, PublicError> {
    match request {
        ApiRequest::Submit { jobs } => Ok(ApiReply::Submitted(submit(node, caller, jobs).await?)),
        ApiRequest::SubmitNoted { jobs } => Ok(ApiReply::Accepted(submit_noted(node, caller, jobs).await?)),
        ApiRequest::Cancel { request, job, index } => {
            match one(node, caller, request, Command::Cancel { job, index }).await? {
                Outcome::Cancelling { live } => Ok(ApiReply::Cancelling { live }),
                other => Err(unexpected(&other)),
            }
        }
        ApiRequest::Signal { job, index, signal } => send_signal(node, caller, job, index, signal).await,
        ApiRequest::Drain { request, host, reason } => {
            caller.at_least(Role::Operator)?;
            let host = host_named(node, &host)?;
            done(one(node, caller, request, Command::DrainHost { host, reason }).await?)
        }
        ApiRequest::Undrain { request, host } => {
            caller.at_least(Role::Operator)?;
            let host = host_named(node, &host)?;
            done(one(node, caller, request, Command::UndrainHost { host }).await?)
        }
        ApiRequest::DrainWith { request, host, reason, evict_in_ms } => {
            caller.at_least(Role::Operator)?;
            let host = host_named(node, &host)?;
            let now_ms = crate::io::clock::wall_ms();
            let evict_at_ms = evict_in_ms.map(|ms| now_ms.saturating_add(ms));
            done(one(node, caller, request, Command::DrainWith { host, reason, evict_at_ms }).await?)
        }
        ApiRequest::SetQueue { request, queue } => {
            done(one(node, caller, request, Command::SetQueue { queue }).await?)
        }
        ApiRequest::RemoveQueue { request, name } => {
            done(one(node, caller, request, Command::RemoveQueue { name }).await?)
        }
        ApiRequest::Adjust { request, job, change } => {
            done(one(node, caller, request, Command::Adjust { job, change }).await?)
        }
        ApiRequest::Reserve { request, reservation } => {
            caller.at_least(Role::Operator)?;
            let reservation = reservation_of(node, reservation)?;
            done(one(node, caller, request, Command::Reserve { reservation }).await?)
        }
        ApiRequest::Unreserve { request, name } => {
            done(one(node, caller, request, Command::Unreserve { name }).await?)
        }
        ApiRequest::Tend { request, tending } => {
            caller.at_least(Role::Operator)?;
            let tending = with_whole_uuid(node, tending)?;
            done(one(node, caller, request, Command::Tend { tending }).await?)
        }
        ApiRequest::ChangeTrust(request, ask) => trust::change(node, caller, request, ask).await,
        ApiRequest::Members(ask) => members::ask::answer(node, caller, ask).await,
        // Never deduplicated: the stored answer of an earlier request could not repeat the secret.
        ApiRequest::MintToken { request: _, usage, ttl_ms } => mint(node, caller, usage, ttl_ms).await,
        ApiRequest::MoveLead { to } => {
            caller.at_least(Role::Operator)?;
            let to = to.map(|name| host_named(node, &name)).transpose()?;
            lead::moved(node, to).await.map(ApiReply::LeadMoved)
        }
        other => Err(PublicError::new(ErrorCode::Internal, format!("not a write: {other:?}"))),
    }
}

/// One result for each job.
pub(super) type Results<T> = Vec<Result<T, PublicError>>;

/// Submits, and tells what the cluster made of each job.
async fn submit_noted(
    node: &Node,
    caller: &Caller,
    jobs: Vec<(RequestId, JobSpec)>,
) -> Result<Results<Accepted>, PublicError> {
    let sent: Vec<JobSpec> = jobs.iter().map(|(_, spec)| spec.clone()).collect();
    let results = submit(node, caller, jobs).await?;
    let tenant = &caller.actor.tenant;
    Ok(node.consensus.read(|state| {
        let told = results.into_iter().zip(&sent);
        told.map(|(result, sent)| result.map(|job| notes::accepted(state, job, sent, tenant))).collect()
    }))
}

pub(super) async fn submit(
    node: &Node,
    caller: &Caller,
    jobs: Vec<(RequestId, JobSpec)>,
) -> Result<Results<JobId>, PublicError> {
    caller.at_least(Role::Submitter)?;
    if jobs.len() > JOBS_PER_CALL_MAX {
        let message = format!("{} jobs in one call, at most {JOBS_PER_CALL_MAX}", jobs.len());
        return Err(PublicError {
            field: Some("jobs".into()),
            ..PublicError::new(ErrorCode::TooLarge, message)
        });
    }
    let task_user = caller.task_user(&node.config.tasks)?;
    let mut results: Vec<Option<Result<JobId, PublicError>>> = Vec::with_capacity(jobs.len());
    let mut proposals = Vec::with_capacity(jobs.len());
    for (request, mut spec) in jobs {
        // The submitter's own user, never one that the request names.
        spec.uid_gid = task_user;
        let checked = rota_core::spec::validate(&spec).and_then(|()| match spec.priority {
            ..=PRIORITY_DEFAULT => Ok(()),
            _ => node.consensus.read(|state| check_priority_at_edge(state, &caller.actor, &spec)),
        });
        match checked {
            Ok(()) => {
                proposals.push(Proposal {
                    request,
                    actor: caller.actor.clone(),
                    command: Command::Submit { spec },
                });
                results.push(None);
            }
            Err(error) => results.push(Some(Err(error))),
        }
    }
    let mut outcomes = if proposals.is_empty() {
        Vec::new()
    } else {
        node.consensus.propose(proposals, WRITE_DEADLINE).await?
    }
    .into_iter();
    Ok(results
        .into_iter()
        .map(|refused| {
            refused.unwrap_or_else(|| match outcomes.next() {
                Some(Outcome::Submitted { job }) => Ok(job),
                Some(Outcome::Refused(error)) => Err(error),
                other => {
                    Err(PublicError::new(ErrorCode::Internal, format!("no outcome for a submit: {other:?}")))
                }
            })
        })
        .collect())
}

/// Signals go straight to the hosts: they are not state.
async fn send_signal(
    node: &Node,
    caller: &Caller,
    job: JobId,
    index: Option<u32>,
    signal: u8,
) -> Result<ApiReply, PublicError> {
    let live: Vec<(Token, HostId)> = node
        .consensus
        .read(|state| {
            state.job(job).filter(|found| caller.sees(&found.tenant))?;
            Some(
                state
                    .attempts_of(job)
                    .filter(|attempt| index.is_none_or(|wanted| attempt.task.index == wanted))
                    .map(|attempt| (attempt.token, attempt.host))
                    .collect(),
            )
        })
        .ok_or_else(|| not_found("job", &job.to_string()))?;
    caller.at_least(Role::Submitter)?;
    // All at once: a host that does not answer costs its own deadline, and no other host's tasks their signal.
    let sent = live.into_iter().map(|(token, host)| signal_one(node, token, host, signal));
    let results: Vec<_> = futures_util::future::join_all(sent).await;
    results.into_iter().collect::<Result<Vec<()>, _>>().map(|_| ApiReply::Done)
}

async fn signal_one(node: &Node, token: Token, host: HostId, signal: u8) -> Result<(), PublicError> {
    if host == node.host {
        node.shims.signal(token, signal).await;
        return Ok(());
    }
    let request = PeerRequest::Signal { attempt: token, signal };
    match node.net.call(host, request, SIGNAL_DEADLINE).await {
        Ok(PeerReply::Refused(error)) => Err(error),
        Ok(_) => Ok(()),
        Err(error) => Err(PublicError::new(ErrorCode::Busy, format!("host {host} did not answer: {error}"))),
    }
}

async fn mint(node: &Node, caller: &Caller, usage: TokenUse, ttl_ms: u64) -> Result<ApiReply, PublicError> {
    caller.at_least(Role::Admin)?;
    let (kind, ttl_ms_max, example) = match &usage {
        TokenUse::Join { .. } => (TokenKind::Join, JOIN_TOKEN_TTL_MS_MAX, "1h"),
        TokenUse::User { actor } => {
            if actor.role > caller.actor.role {
                return Err(PublicError::invalid(
                    "role",
                    "a token cannot have more rights than its maker",
                    "submitter",
                ));
            }
            (TokenKind::User, USER_TOKEN_TTL_MS_MAX, "30d")
        }
    };
    if ttl_ms == 0 || ttl_ms > ttl_ms_max {
        let message = format!("a token of this kind lives between 1 ms and {ttl_ms_max} ms, not {ttl_ms}");
        return Err(PublicError::invalid("ttl", message, example));
    }
    let (secret, token) = mint_secret(kind, &node.net.identity().ca_fingerprint())
        .map_err(|error| PublicError::new(ErrorCode::Internal, error.to_string()))?;
    let expires_at_ms = crate::io::clock::wall_ms().saturating_add(ttl_ms);
    done(one(node, caller, RequestId::NONE, Command::MintToken { token, usage, expires_at_ms }).await?)?;
    Ok(ApiReply::Token { secret: secret.into() })
}

pub(super) async fn one(
    node: &Node,
    caller: &Caller,
    request: RequestId,
    command: Command,
) -> Result<Outcome, PublicError> {
    caller.may(&command)?;
    let proposal = Proposal { request, actor: caller.actor.clone(), command };
    match node.consensus.propose(vec![proposal], WRITE_DEADLINE).await?.pop() {
        Some(Outcome::Refused(error)) => Err(error),
        Some(outcome) => Ok(outcome),
        None => Err(PublicError::new(ErrorCode::Internal, "no outcome for a proposal")),
    }
}

pub(super) fn done(outcome: Outcome) -> Result<ApiReply, PublicError> {
    match outcome {
        Outcome::Done => Ok(ApiReply::Done),
        other => Err(unexpected(&other)),
    }
}

fn unexpected(outcome: &Outcome) -> PublicError {
    PublicError::new(ErrorCode::Internal, format!("an unexpected outcome: {outcome:?}"))
}

fn reservation_of(node: &Node, ask: ReservationAsk) -> Result<ReservationSpec, PublicError> {
    let hosts = ask.hosts.iter().map(|name| host_named(node, name)).collect::<Result<_, _>>()?;
    let ReservationAsk { name, start_ms, end_ms, kept_for, reason, .. } = ask;
    Ok(ReservationSpec { name, hosts, start_ms, end_ms, kept_for, reason })
}

/// A device is named by its UUID, or by as much of its beginning as says which.
fn with_whole_uuid(node: &Node, tending: Tending) -> Result<Tending, PublicError> {
    let whole = |uuid: DeviceUuid| {
        let known = node.consensus.read(|state| {
            let all = view::devices(state).into_iter().map(|row| row.facts.uuid);
            let mut known: Vec<DeviceUuid> = all.filter(|other| other.0.starts_with(&uuid.0)).collect();
            known.sort();
            known.dedup();
            known
        });
        match &known[..] {
            [one] => Ok(one.clone()),
            several if several.contains(&uuid) => Ok(uuid),
            [] => Err(not_found("device", &uuid.0)),
            several => {
                let message = format!("{} devices begin with {uuid}", several.len());
                Err(PublicError::invalid("device", message, &several[0].0))
            }
        }
    };
    Ok(match tending {
        Tending::Cordon { uuid, reason } => Tending::Cordon { uuid: whole(uuid)?, reason },
        Tending::Clear { uuid } => Tending::Clear { uuid: whole(uuid)? },
        other => other,
    })
}

pub(super) fn host_named(node: &Node, name: &str) -> Result<HostId, PublicError> {
    node.consensus
        .read(|state| state.host_by_name_or_id(name).map(|host| host.id))
        .ok_or_else(|| not_found("host", name))
}
