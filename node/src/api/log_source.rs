//! Which attempt's output is meant, and which host has it.

use super::caller::Caller;
use super::not_found;
use crate::logic::attempts::{self, Numbered};
use crate::net::PeerLink;
use crate::node::Node;
use futures_util::{StreamExt, stream};
use rota_protocol::api::ApiReply;
use rota_protocol::error::{ErrorCode, PublicError};
use rota_protocol::ids::{HostId, TaskId, Token};
use rota_protocol::output::{AttemptName, LogAsk, LogNews, LogNote};
use rota_protocol::peer::{PeerReply, PeerRequest};
use std::time::Duration;

/// An attempt whose output is to be read.
#[derive(Debug, Clone)]
pub(super) struct Source {
    pub(super) token: Token,
    number: u32,
    pub(super) host: HostId,
    pub(super) host_name: String,
    because: Option<String>,
}

impl Source {
    pub(super) fn note(&self, what: LogNews) -> ApiReply {
        ApiReply::LogNote(LogNote { attempt: self.token, number: self.number, what })
    }

    pub(super) fn begins(&self) -> ApiReply {
        self.note(LogNews::Begins { host: self.host_name.clone(), because: self.because.clone() })
    }
}

/// Where a task's output is to be found now.
pub(super) enum Place {
    /// This attempt, on its host.
    At(Source),
    /// The task waits for its next attempt.
    NotYet,
    /// No further attempt will come.
    Over,
    /// It ran, but which attempt it was and where is no longer kept.
    Forgotten,
    /// No such job, or not the caller's.
    NoJob,
    /// The job has no such index.
    NoIndex,
    /// The job has no such attempt, or it is no longer kept.
    NoAttempt,
}

/// Hosts that are asked at once for what the state no longer knows.
const ASKED_AT_ONCE: usize = 64;
/// How long one may take to look.
const SEARCH_TIME: Duration = Duration::from_secs(5);

/// Looks on all hosts for an attempt that the state forgot: its output lies there for longer. None if nobody has it.
pub(super) async fn search(node: &Node, ask: &LogAsk) -> Option<Source> {
    let task = TaskId { job: ask.job, index: ask.index };
    let hosts: Vec<(HostId, String)> =
        node.consensus.read(|state| state.hosts().map(|host| (host.id, host.name.clone())).collect());
    let questions = hosts.into_iter().map(|(host, name)| async move {
        let found = if host == node.host {
            node.shims.find_task(task).await.unwrap_or_default()
        } else {
            match node.net.call(host, PeerRequest::FindTask { task }, SEARCH_TIME).await {
                Ok(PeerReply::Attempts(found)) => found,
                _ => Vec::new(),
            }
        };
        found.into_iter().map(move |token| (token, host, name.clone())).collect::<Vec<_>>()
    });
    let found = stream::iter(questions).buffer_unordered(ASKED_AT_ONCE).collect::<Vec<_>>().await;
    let mut found: Vec<(Token, HostId, String)> = found.into_iter().flatten().collect();
    found.sort_unstable_by_key(|(token, ..)| *token);
    // Numbers of what is there: earlier ones may be gone for good.
    let mut numbered = (1..).zip(found);
    let meant = match ask.attempt {
        None => numbered.last(),
        Some(AttemptName::Number(number)) => numbered.find(|(at, _)| *at == number),
        Some(AttemptName::Token(token)) => numbered.find(|(_, (other, ..))| *other == token),
    };
    let (number, (token, host, host_name)) = meant?;
    Some(Source { token, number, host, host_name, because: None })
}

/// Where the output is now that is asked for; after an attempt that was read already, the next one.
pub(super) fn place(node: &Node, caller: &Caller, ask: &LogAsk, after: Option<Token>) -> Place {
    node.consensus.read(|state| {
        let Some(job) = state.job(ask.job).filter(|job| caller.sees(&job.tenant)) else {
            return Place::NoJob;
        };
        // By its token an attempt is found whatever its index; then the index is looked up, not asked for.
        let index = match ask.attempt {
            Some(AttemptName::Token(token)) => {
                let ended = job.ended.iter().find(|one| one.token == token).map(|one| one.index);
                let live = state.attempt(token).filter(|one| one.task.job == ask.job);
                match ended.or(live.map(|one| one.task.index)) {
                    Some(index) => index,
                    None => return Place::NoAttempt,
                }
            }
            _ => ask.index,
        };
        let Some(ordinal) = job.ordinal(index) else { return Place::NoIndex };
        let all = attempts::of_task(state, ask.job, index);
        let source = |at: usize| {
            let one = &all[at];
            let before = at.checked_sub(1).map(|before| all[before].why_again_told());
            let host_name =
                state.host(one.host).map_or_else(|| one.host.to_string(), |host| host.name.clone());
            let (token, number, host) = (one.token, one.number, one.host);
            Place::At(Source { token, number, host, host_name, because: before })
        };
        if let Some(name) = ask.attempt {
            let is_meant = |one: &Numbered| match name {
                AttemptName::Token(token) => one.token == token,
                AttemptName::Number(number) => one.number == number,
            };
            return all.iter().position(is_meant).map_or(Place::NoAttempt, source);
        }
        let newest = all.last();
        // Successes are forgotten first: what is left of a task that succeeded may be an earlier failure.
        let succeeded = newest.is_some_and(|one| one.end.as_ref().is_some_and(|end| end.is_success()));
        let ran =
            job.succeeded.contains(ordinal) && !succeeded || job.failed.contains(ordinal) && newest.is_none();
        if after.is_none() && ran && job.ended_forgotten > 0 {
            return Place::Forgotten;
        }
        // The next one that was not read, not the newest: a short one between two looks is not passed over.
        let next = match after {
            Some(seen) => all.iter().position(|one| one.token > seen),
            None => all.len().checked_sub(1),
        };
        match next {
            Some(at) => source(at),
            None if [&job.succeeded, &job.failed, &job.cancelled]
                .iter()
                .any(|over| over.contains(ordinal)) =>
            {
                Place::Over
            }
            None => Place::NotYet,
        }
    })
}

/// Why there is nothing to read. An empty output would be taken for the task's own silence.
pub(super) fn nowhere(found: &Place, ask: &LogAsk) -> PublicError {
    let job = ask.job;
    let (field, message) = match found {
        Place::NoIndex => ("index", format!("job {job} has no index {}", ask.index)),
        Place::NoAttempt => ("attempt", format!("job {job} has no such attempt, or it is no longer kept")),
        Place::Forgotten => {
            let task = TaskId { job, index: ask.index };
            let kept =
                "a job knows only its newest ended attempts, and no host that answers has output of it";
            ("index", format!("where task {task} ran is no longer known: {kept}"))
        }
        _ => return not_found("job", &job.to_string()),
    };
    PublicError { field: Some(field.into()), ..PublicError::new(ErrorCode::NotFound, message) }
}
