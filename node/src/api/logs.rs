//! A task's output, from whichever host has it, byte-addressed: nothing skipped, nothing repeated.
//!
//! Following goes on over retries: when an attempt has given its last byte and the task is not ended for good, the
//! next attempt's output follows from its own byte 0, marked by its token. A host that is gone for good does not hold
//! up its successors: what it has is told as missing.

use super::caller::Caller;
use super::read::touches;
use super::session::Answers;
use super::{READ_DEADLINE, not_found};
use crate::logic::attempts::{self, Numbered};
use crate::net::PeerLink;
use crate::node::Node;
use rota_consensus::AppliedNote;
use rota_protocol::api::{ApiReply, LogChunk, OutputStream};
use rota_protocol::error::{ErrorCode, PublicError};
use rota_protocol::ids::{HostId, JobId, TaskId, Token};
use rota_protocol::output::{AttemptName, LogAsk, LogNews, LogNote, LogStart};
use rota_protocol::peer::{PeerReply, PeerRequest};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::Instant;

/// How long a host holds a read open while there is nothing new.
const WAIT: Duration = Duration::from_millis(10_000);
/// How long to wait for a host that does not answer before it is asked again.
const RETRY_PAUSE: Duration = Duration::from_millis(200);
/// How often a silent host is asked again before the reader is told.
const RETRIES_MAX: u32 = 150;
/// How long the host of an attempt that is over may be silent before its output is told as missing: longer than an agent
/// takes to start.
const SILENCE: Duration = Duration::from_secs(10);

/// Which output.
pub(super) struct Wanted {
    pub(super) ask: LogAsk,
    /// The caller understands notes.
    pub(super) notes: bool,
}

/// An attempt whose output is to be read.
#[derive(Debug, Clone)]
struct Source {
    token: Token,
    number: u32,
    host: HostId,
    host_name: String,
    because: Option<String>,
}

impl Source {
    fn note(&self, what: LogNews) -> ApiReply {
        ApiReply::LogNote(LogNote { attempt: self.token, number: self.number, what })
    }

    fn begins(&self) -> ApiReply {
        self.note(LogNews::Begins { host: self.host_name.clone(), because: self.because.clone() })
    }
}

/// Where a task's output is to be found now.
enum Place {
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

/// How reading one attempt ended.
enum Pumped {
    /// With its last byte, or with all there is.
    All,
    /// The client is gone.
    Gone,
    /// Its host does not answer, and what it has from this byte on is missing.
    Missing(u64),
}

pub(super) async fn stream(node: &Node, caller: &Caller, wanted: Wanted, answers: Answers) {
    let mut notes = node.consensus.events();
    let ask = &wanted.ask;
    // A job that was accepted elsewhere a moment ago must be known here before it is looked for.
    if let Err(error) = node.consensus.read_barrier(READ_DEADLINE).await
        && ask.follow
    {
        answers.send(false, Err(error)).await;
        return;
    }
    let mut start = ask.start;
    let mut after: Option<Token> = ask.after;
    let mut told: Option<Token> = None;
    loop {
        let found = place(node, caller, ask, after);
        match found {
            Place::At(source) => {
                if wanted.notes && told != Some(source.token) {
                    told = Some(source.token);
                    if !answers.send(true, Ok(source.begins())).await {
                        return;
                    }
                }
                let pumped = tokio::select! {
                    pumped = pump(node, ask, &source, start, &answers) => pumped,
                    () = answers.closed() => return,
                };
                match pumped {
                    Ok(Pumped::All) => {}
                    Ok(Pumped::Gone) => return,
                    Ok(Pumped::Missing(offset)) if wanted.notes => {
                        let host = source.host_name.clone();
                        let note = source.note(LogNews::Unreachable { host, offset });
                        if !answers.send(true, Ok(note)).await {
                            return;
                        }
                    }
                    Ok(Pumped::Missing(_)) => {}
                    // Granted, but its host has not begun with it: the next news of the job says more.
                    Err(error)
                        if error.code == ErrorCode::NotFound && ask.follow && is_live(node, source.token) =>
                    {
                        if !next_news(&mut notes, ask.job, &answers).await {
                            return;
                        }
                        continue;
                    }
                    Err(error) if error.code == ErrorCode::NotFound && !has_begun(node, source.token) => {
                        answers.send(false, Ok(ApiReply::Done)).await;
                        return;
                    }
                    Err(error) => {
                        answers.send(false, Err(error)).await;
                        return;
                    }
                }
                if !ask.follow || ask.attempt.is_some() {
                    answers.send(false, Ok(ApiReply::Done)).await;
                    return;
                }
                (after, start) = (Some(source.token), LogStart::Offset(0));
            }
            Place::NotYet if ask.follow => {
                if !next_news(&mut notes, ask.job, &answers).await {
                    return;
                }
            }
            Place::NotYet | Place::Over => {
                answers.send(false, Ok(ApiReply::Done)).await;
                return;
            }
            Place::Forgotten | Place::NoJob | Place::NoIndex | Place::NoAttempt => {
                answers.send(false, Err(nowhere(&found, ask))).await;
                return;
            }
        }
    }
}

/// Why there is nothing to read. An empty output would be taken for the task's own silence.
fn nowhere(found: &Place, ask: &LogAsk) -> PublicError {
    let job = ask.job;
    let (field, message) = match found {
        Place::NoIndex => ("index", format!("job {job} has no index {}", ask.index)),
        Place::NoAttempt => ("attempt", format!("job {job} has no such attempt, or it is no longer kept")),
        Place::Forgotten => {
            let task = TaskId { job, index: ask.index };
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

fn place(node: &Node, caller: &Caller, ask: &LogAsk, after: Option<Token>) -> Place {
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
            let before = at.checked_sub(1).map(|before| all[before].why_again().to_owned());
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

/// Sends one attempt's output up to its end, or to what there is, without `follow`.
async fn pump(
    node: &Node,
    ask: &LogAsk,
    source: &Source,
    start: LogStart,
    answers: &Answers,
) -> Result<Pumped, PublicError> {
    let wait = if ask.follow { WAIT } else { Duration::ZERO };
    let mut patience = Patience::default();
    let mut start = start;
    loop {
        let offset = match start {
            LogStart::Offset(offset) => offset,
            LogStart::Lines(_) => 0,
        };
        let chunk = match start {
            LogStart::Offset(offset) => read(node, source, ask.stream, offset, wait).await,
            LogStart::Lines(lines) => match find(node, source, ask.stream, lines).await {
                Ok(found) => {
                    start = LogStart::Offset(found);
                    continue;
                }
                Err(error) => Err(error),
            },
        };
        let chunk = match chunk {
            Ok(chunk) => chunk,
            Err(error) if error.code == ErrorCode::Busy && ask.follow => {
                if patience.is_over(is_live(node, source.token)) {
                    return Ok(Pumped::Missing(offset));
                }
                if patience.failures > RETRIES_MAX {
                    return Err(error);
                }
                tokio::time::sleep(RETRY_PAUSE).await;
                continue;
            }
            Err(error) => return Err(error),
        };
        patience = Patience::default();
        let (last, empty, moved) = (chunk.last, chunk.bytes.is_empty(), chunk.offset > offset);
        start = LogStart::Offset(chunk.offset + chunk.bytes.len() as u64);
        // An empty piece that begins later tells of what is not kept at the end.
        if (!empty || moved) && !answers.send(true, Ok(ApiReply::Log(chunk))).await {
            return Ok(Pumped::Gone);
        }
        if last || (empty && !ask.follow) {
            return Ok(Pumped::All);
        }
    }
}

/// How long a host was silent.
#[derive(Default)]
struct Patience {
    failures: u32,
    over_since: Option<Instant>,
}

impl Patience {
    /// It failed again. Whether what it has is given up: only that of an attempt which is over, after a while.
    fn is_over(&mut self, live: bool) -> bool {
        self.failures += 1;
        if live {
            self.over_since = None;
            return false;
        }
        self.over_since.get_or_insert_with(Instant::now).elapsed() > SILENCE
    }
}

async fn read(
    node: &Node,
    source: &Source,
    stream: OutputStream,
    offset: u64,
    wait: Duration,
) -> Result<LogChunk, PublicError> {
    let attempt = source.token;
    if source.host == node.host {
        return node.shims.read_log(attempt, stream, offset, wait).await;
    }
    let wait_ms = u32::try_from(wait.as_millis()).unwrap_or(u32::MAX);
    let request = PeerRequest::ReadLog { attempt, stream, offset, wait_ms };
    match ask_host(node, source, request, wait).await? {
        PeerReply::Log(chunk) => Ok(chunk),
        other => Err(PublicError::new(ErrorCode::Internal, format!("an unexpected reply: {other:?}"))),
    }
}

async fn find(node: &Node, source: &Source, stream: OutputStream, lines: u32) -> Result<u64, PublicError> {
    let attempt = source.token;
    if source.host == node.host {
        return node.shims.find_log(attempt, stream, lines).await;
    }
    let request = PeerRequest::FindLog { attempt, stream, lines };
    match ask_host(node, source, request, Duration::ZERO).await? {
        PeerReply::LogAt { offset } => Ok(offset),
        other => Err(PublicError::new(ErrorCode::Internal, format!("an unexpected reply: {other:?}"))),
    }
}

async fn ask_host(
    node: &Node,
    source: &Source,
    request: PeerRequest,
    wait: Duration,
) -> Result<PeerReply, PublicError> {
    match node.net.call(source.host, request, wait + Duration::from_secs(2)).await {
        Ok(PeerReply::Refused(error)) => Err(error),
        Ok(reply) => Ok(reply),
        Err(error) => {
            let message = format!("host {} does not answer: {error}", source.host_name);
            Err(PublicError::new(ErrorCode::Busy, message).retry_after(500))
        }
    }
}
