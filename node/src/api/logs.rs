//! A task's output, from whichever host has it, byte-addressed: nothing skipped, nothing repeated.
//!
//! Following goes on over retries: when an attempt has given its last byte and the task is not ended for good, the
//! next attempt's output follows from its own byte 0, marked by its token.

use super::caller::Caller;
use super::read::touches;
use super::session::Answers;
use super::{READ_DEADLINE, not_found};
use crate::net::PeerLink;
use crate::node::Node;
use rota_consensus::AppliedNote;
use rota_protocol::api::{ApiReply, LogChunk, OutputStream};
use rota_protocol::error::{ErrorCode, PublicError};
use rota_protocol::ids::{HostId, JobId, TaskId, Token};
use rota_protocol::peer::{PeerReply, PeerRequest};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;

/// How long a host holds a read open while there is nothing new.
const WAIT: Duration = Duration::from_millis(10_000);
/// How long to wait for a host that does not answer before it is asked again.
const RETRY_PAUSE: Duration = Duration::from_millis(200);
/// How often a silent host is asked again before the reader is told.
const RETRIES_MAX: u32 = 150;

/// Which output.
pub(super) struct Wanted {
    pub(super) job: JobId,
    pub(super) index: u32,
    pub(super) attempt: Option<Token>,
    pub(super) stream: OutputStream,
    pub(super) offset: u64,
    pub(super) follow: bool,
}

/// Where a task's output is to be found now.
enum Place {
    /// This attempt, on this host.
    At(Token, HostId),
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

pub(super) async fn stream(node: &Node, caller: &Caller, wanted: Wanted, answers: Answers) {
    let mut notes = node.consensus.events();
    // A job that was accepted elsewhere a moment ago must be known here before it is looked for.
    if let Err(error) = node.consensus.read_barrier(READ_DEADLINE).await
        && wanted.follow
    {
        answers.send(false, Err(error)).await;
        return;
    }
    let mut offset = wanted.offset;
    let mut after: Option<Token> = None;
    loop {
        let found = place(node, caller, &wanted, after);
        match found {
            Place::At(token, host) => {
                let pumped = tokio::select! {
                    pumped = pump(node, &wanted, token, host, offset, &answers) => pumped,
                    () = answers.closed() => return,
                };
                match pumped {
                    Ok(true) => {}
                    // Granted, but its host has not begun with it: the next news of the job says more.
                    Err(error)
                        if error.code == ErrorCode::NotFound && wanted.follow && is_live(node, token) =>
                    {
                        if !next_news(&mut notes, wanted.job, &answers).await {
                            return;
                        }
                        continue;
                    }
                    Err(error) if error.code == ErrorCode::NotFound && !has_begun(node, token) => {
                        answers.send(false, Ok(ApiReply::Done)).await;
                        return;
                    }
                    Ok(false) => return,
                    Err(error) => {
                        answers.send(false, Err(error)).await;
                        return;
                    }
                }
                if !wanted.follow || wanted.attempt.is_some() {
                    answers.send(false, Ok(ApiReply::Done)).await;
                    return;
                }
                (after, offset) = (Some(token), 0);
            }
            Place::NotYet if wanted.follow => {
                if !next_news(&mut notes, wanted.job, &answers).await {
                    return;
                }
            }
            Place::NotYet | Place::Over => {
                answers.send(false, Ok(ApiReply::Done)).await;
                return;
            }
            Place::Forgotten | Place::NoJob | Place::NoIndex | Place::NoAttempt => {
                answers.send(false, Err(nowhere(&found, &wanted))).await;
                return;
            }
        }
    }
}

/// Why there is nothing to read. An empty output would be taken for the task's own silence.
fn nowhere(found: &Place, wanted: &Wanted) -> PublicError {
    let job = wanted.job;
    let (field, message) = match found {
        Place::NoIndex => ("index", format!("job {job} has no index {}", wanted.index)),
        Place::NoAttempt => ("attempt", format!("job {job} has no such attempt, or it is no longer kept")),
        Place::Forgotten => {
            let task = TaskId { job, index: wanted.index };
            let kept = "a job keeps only its newest ended attempts, failed ones before others";
            ("index", format!("where task {task} ran is no longer kept: {kept}"))
        }
        _ => return not_found("job", &job.to_string()),
    };
    PublicError { field: Some(field.into()), ..PublicError::new(ErrorCode::NotFound, message) }
}

/// Waits for a commit that touches the job; false when there is nobody left to tell.
async fn next_news(notes: &mut broadcast::Receiver<Arc<AppliedNote>>, job: JobId, answers: &Answers) -> bool {
    loop {
        tokio::select! {
            note = notes.recv() => match note {
                Ok(note) if touches(&note, job) => return true,
                Ok(_) => {}
                Err(RecvError::Lagged(_)) => return true,
                Err(RecvError::Closed) => return false,
            },
            () = answers.closed() => return false,
        }
    }
}

fn is_live(node: &Node, token: Token) -> bool {
    node.consensus.read(|state| state.attempt(token).is_some())
}

/// Its host has begun with it, so that there is output, if none but an empty one.
fn has_begun(node: &Node, token: Token) -> bool {
    node.consensus.read(|state| state.attempt(token).is_none_or(|attempt| attempt.started_ms.is_some()))
}

fn place(node: &Node, caller: &Caller, wanted: &Wanted, after: Option<Token>) -> Place {
    node.consensus.read(|state| {
        let Some(job) = state.job(wanted.job).filter(|job| caller.sees(&job.tenant)) else {
            return Place::NoJob;
        };
        let live = state.attempts_of(wanted.job).map(|a| (a.task.index, a.token, a.host, false));
        let ended = job.ended.iter().map(|a| (a.index, a.token, a.host, a.end.is_success()));
        let mut attempts = live.chain(ended);
        if let Some(token) = wanted.attempt {
            return match attempts.find(|(_, known, ..)| *known == token) {
                Some((_, token, host, _)) => Place::At(token, host),
                None => Place::NoAttempt,
            };
        }
        let Some(ordinal) = job.ordinal(wanted.index) else { return Place::NoIndex };
        let newest =
            attempts.filter(|(index, ..)| *index == wanted.index).max_by_key(|(_, token, ..)| *token);
        // Successes are forgotten first: what is left of a task that succeeded may be an earlier failure.
        let succeeded = newest.is_some_and(|(.., success)| success);
        let ran =
            job.succeeded.contains(ordinal) && !succeeded || job.failed.contains(ordinal) && newest.is_none();
        if after.is_none() && ran && job.ended_forgotten > 0 {
            return Place::Forgotten;
        }
        match newest {
            Some((_, token, host, _)) if after.is_none_or(|seen| token > seen) => Place::At(token, host),
            _ if [&job.succeeded, &job.failed, &job.cancelled].iter().any(|over| over.contains(ordinal)) => {
                Place::Over
            }
            _ => Place::NotYet,
        }
    })
}

/// Sends one attempt's output up to its end (or to what there is, without `follow`); false when the client is gone.
async fn pump(
    node: &Node,
    wanted: &Wanted,
    token: Token,
    host: HostId,
    mut offset: u64,
    answers: &Answers,
) -> Result<bool, PublicError> {
    let wait = if wanted.follow { WAIT } else { Duration::ZERO };
    let mut failures = 0;
    loop {
        let chunk = match read(node, host, token, wanted.stream, offset, wait).await {
            Ok(chunk) => chunk,
            Err(error) if error.code == ErrorCode::Busy && failures < RETRIES_MAX && wanted.follow => {
                failures += 1;
                tokio::time::sleep(RETRY_PAUSE).await;
                continue;
            }
            Err(error) => return Err(error),
        };
        failures = 0;
        let (last, empty) = (chunk.last, chunk.bytes.is_empty());
        offset = chunk.offset + chunk.bytes.len() as u64;
        if !empty && !answers.send(true, Ok(ApiReply::Log(chunk))).await {
            return Ok(false);
        }
        if last || (empty && !wanted.follow) {
            return Ok(true);
        }
    }
}

async fn read(
    node: &Node,
    host: HostId,
    attempt: Token,
    stream: OutputStream,
    offset: u64,
    wait: Duration,
) -> Result<LogChunk, PublicError> {
    if host == node.host {
        return node.shims.read_log(attempt, stream, offset, wait).await;
    }
    let wait_ms = u32::try_from(wait.as_millis()).unwrap_or(u32::MAX);
    let request = PeerRequest::ReadLog { attempt, stream, offset, wait_ms };
    match node.net.call(host, request, wait + Duration::from_secs(2)).await {
        Ok(PeerReply::Log(chunk)) => Ok(chunk),
        Ok(PeerReply::Refused(error)) => Err(error),
        Ok(other) => Err(PublicError::new(ErrorCode::Internal, format!("an unexpected reply: {other:?}"))),
        Err(error) => Err(PublicError::new(ErrorCode::Busy, format!("host {host} does not answer: {error}"))
            .retry_after(500)),
    }
}
