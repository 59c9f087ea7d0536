//! Interactive sessions at the API: which host has the attempt, and whether the caller may sit down at it.
//!
//! Whoever types into a task is its user there. So it is only the job's own user, or an operator; the host that runs it
//! asks its own copy of the state once more, whatever the peer in between has said.

use super::caller::Caller;
use super::not_found;
use crate::net::PeerLink;
use crate::node::Node;
use rota_core::State;
use rota_protocol::api::ApiReply;
use rota_protocol::error::{ErrorCode, PublicError};
use rota_protocol::ids::{HostId, JobId, Token};
use rota_protocol::job::{Actor, AttemptState, Role};
use rota_protocol::peer::{PeerReply, PeerRequest};
use rota_protocol::session::{READ_WAIT_MS_MAX, SessionAsk, SessionCall, SessionNews};
use std::time::Duration;

/// How long another host may take for one step, besides the wait that was asked for.
const STEP_DEADLINE: Duration = Duration::from_millis(4_000);

/// Answers one step at the peer that the client talks to.
pub(super) async fn answer(node: &Node, caller: &Caller, call: SessionCall) -> Result<ApiReply, PublicError> {
    caller.at_least(Role::Submitter)?;
    let SessionCall { job, index, attempt, session, ask } = call;
    let (attempt, host) = node.consensus.read(|state| {
        may_sit_down(state, &caller.actor, job)?;
        place(state, job, index, attempt)
    })?;
    if host == node.host {
        let news = serve_here(node, &caller.actor, job, attempt, session, ask).await?;
        return Ok(ApiReply::Session(Box::new(news)));
    }
    let wait_ms = match ask {
        SessionAsk::Read { wait_ms, .. } => wait_ms.min(READ_WAIT_MS_MAX),
        _ => 0,
    };
    let deadline = STEP_DEADLINE + Duration::from_millis(u64::from(wait_ms));
    let request = PeerRequest::Session { job, attempt, actor: caller.actor.clone(), session, ask };
    match node.net.call(host, request, deadline).await {
        Ok(PeerReply::Session(news)) => Ok(ApiReply::Session(news)),
        Ok(PeerReply::Refused(error)) => Err(error),
        Ok(other) => Err(PublicError::new(ErrorCode::Internal, format!("an unexpected reply: {other:?}"))),
        Err(error) => Err(PublicError::new(ErrorCode::Busy, format!("host {host} does not answer: {error}"))
            .retry_after(500)),
    }
}

/// Answers one step on the host that has the attempt.
///
/// # Errors
/// The caller may not, or the attempt is not here.
pub async fn serve_here(
    node: &Node,
    actor: &Actor,
    job: JobId,
    attempt: Token,
    session: u64,
    ask: SessionAsk,
) -> Result<SessionNews, PublicError> {
    node.consensus.read(|state| {
        may_sit_down(state, actor, job)?;
        if matches!(ask, SessionAsk::Start { .. }) {
            may_start_inside(state, job)?;
        }
        place(state, job, 0, Some(attempt))
    })?;
    node.shims.session(attempt, session, ask).await
}

fn may_sit_down(state: &State, actor: &Actor, id: JobId) -> Result<(), PublicError> {
    let operates = actor.role >= Role::Operator;
    // What another tenant has is answered like what does not exist.
    let job = state.job(id).filter(|job| operates || job.tenant == actor.tenant);
    let job = job.ok_or_else(|| not_found("job", &id.to_string()))?;
    if operates || (actor.role >= Role::Submitter && job.user == actor.user) {
        return Ok(());
    }
    let message = format!("only {} or an operator may sit down at job {id}", job.user);
    Err(PublicError::new(ErrorCode::Forbidden, message))
}

/// Beside a container a command would run on the host's own files, which is not what was asked.
fn may_start_inside(state: &State, id: JobId) -> Result<(), PublicError> {
    if state.job(id).is_none_or(|job| job.spec.container.is_none()) {
        return Ok(());
    }
    let message = format!(
        "job {id} runs in an image: no command can be run beside it, only its own terminal can be used"
    );
    Err(PublicError::new(ErrorCode::Invalid, message))
}

/// The attempt that is meant, and its host.
fn place(
    state: &State,
    id: JobId,
    index: u32,
    wanted: Option<Token>,
) -> Result<(Token, HostId), PublicError> {
    let job = state.job(id).ok_or_else(|| not_found("job", &id.to_string()))?;
    if let Some(token) = wanted {
        let live = state.attempt(token).filter(|attempt| attempt.task.job == id).map(|attempt| attempt.host);
        let ended = || job.ended.iter().find(|attempt| attempt.token == token).map(|attempt| attempt.host);
        let host = live.or_else(ended).ok_or_else(|| not_found("attempt", &token.to_string()))?;
        return Ok((token, host));
    }
    if job.ordinal(index).is_none() {
        return Err(not_found("index", &index.to_string()));
    }
    let live = state.attempts_of(id).filter(|attempt| attempt.task.index == index).max_by_key(|a| a.token);
    match live {
        Some(attempt) if attempt.state != AttemptState::Granted => Ok((attempt.token, attempt.host)),
        _ => {
            let message = format!("no task of job {id} runs now: it is {}", job.state);
            Err(PublicError::new(ErrorCode::Conflict, message))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rota_protocol::ClusterId;
    use rota_protocol::command::{Command, Entry, LOG_FORMAT, Outcome, Proposal};
    use rota_protocol::container::ContainerSpec;
    use rota_protocol::ids::RequestId;
    use rota_protocol::job::JobSpec;

    fn actor(tenant: &str, user: &str, role: Role) -> Actor {
        Actor { tenant: tenant.into(), user: user.into(), role }
    }

    /// A state in which a user has one job.
    fn with_job(by: &Actor, change: impl FnOnce(&mut JobSpec)) -> (State, JobId) {
        let mut state = State::new();
        let text = |text: &str| text.to_owned();
        let create = Command::CreateCluster {
            cluster: ClusterId(1),
            name: text("c"),
            host_name: text("h1"),
            addr: text("127.0.0.1:1"),
        };
        let mut spec = JobSpec { name: text("j"), argv: vec![b"true".to_vec()], ..JobSpec::default() };
        change(&mut spec);
        let mut outcomes = Vec::new();
        for (index, (actor, command)) in
            (1..).zip([(Actor::system(), create), (by.clone(), Command::Submit { spec })])
        {
            let proposals = vec![Proposal { request: RequestId::NONE, actor, command }];
            let entry = Entry { format: LOG_FORMAT, at_ms: index * 10, proposals };
            outcomes.extend(state.apply(index, &entry).outcomes);
        }
        match outcomes[..] {
            [_, Outcome::Submitted { job }] => (state, job),
            ref other => panic!("{other:?}"),
        }
    }

    #[test]
    fn only_the_jobs_user_and_operators_sit_down() {
        let (state, job) = with_job(&actor("vision", "ann", Role::Submitter), |_| ());
        let may =
            |tenant, user, role| may_sit_down(&state, &actor(tenant, user, role), job).map_err(|e| e.code);
        assert_eq!(may("vision", "ann", Role::Submitter), Ok(()));
        assert_eq!(may("vision", "bob", Role::Submitter), Err(ErrorCode::Forbidden));
        assert_eq!(may("vision", "ann", Role::Viewer), Err(ErrorCode::Forbidden));
        assert_eq!(may("speech", "ann", Role::Submitter), Err(ErrorCode::NotFound));
        assert_eq!(may("ops", "eve", Role::Operator), Ok(()));
    }

    #[test]
    fn no_command_runs_beside_a_container() {
        let ann = actor("vision", "ann", Role::Submitter);
        let (state, job) = with_job(&ann, |_| ());
        assert_eq!(may_start_inside(&state, job), Ok(()));
        let (state, job) = with_job(&ann, |spec| {
            let image = "docker.io/library/debian:13".to_owned();
            spec.container = Some(Box::new(ContainerSpec { image, ..ContainerSpec::default() }));
            spec.ask.labels.insert("containers".into(), "yes".into());
        });
        assert_eq!(may_start_inside(&state, job).map_err(|e| e.code), Err(ErrorCode::Invalid));
    }
}
