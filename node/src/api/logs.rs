//! A task's output, from whichever host has it, byte-addressed: nothing skipped, nothing repeated.
//!
//! Following goes on over retries: when an attempt has given its last byte and the task is not ended for good, the
//! next attempt's output follows from its own byte 0, marked by its token. A host that is gone for good does not hold
//! up its successors: what it has is told as missing.

use super::READ_DEADLINE;
use super::caller::Caller;
use super::log_source::{Place, Source, nowhere, place, search};
use super::read::touches;
use super::session::Answers;
use crate::net::PeerLink;
use crate::node::Node;
use rota_consensus::AppliedNote;
use rota_protocol::api::{ApiReply, LogChunk, OutputStream};
use rota_protocol::error::{ErrorCode, PublicError};
use rota_protocol::ids::{JobId, Token};
use rota_protocol::output::{LogAsk, LogNews, LogStart};
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
        let mut found = place(node, caller, ask, after);
        if after.is_none() && matches!(found, Place::Forgotten | Place::NoAttempt) {
            found = search(node, ask).await.map_or(found, Place::At);
        }
        match found {
            Place::At(source) => {
                if wanted.notes && told != Some(source.token) {
                    told = Some(source.token);
                    if !answers.send(true, Ok(source.begins())).await {
                        return;
                    }
                }
                match read_one(node, &wanted, &source, start, &answers).await {
                    Then::Next => {}
                    Then::Look => {
                        if !next_news(&mut notes, ask.job, &answers).await {
                            return;
                        }
                        continue;
                    }
                    Then::End(result) => {
                        answers.send(false, result).await;
                        return;
                    }
                    Then::Leave => return,
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

/// What follows on one attempt.
enum Then {
    /// The attempts after it.
    Next,
    /// Another look, when there is news of the job.
    Look,
    /// The last answer.
    End(Result<ApiReply, PublicError>),
    /// Nothing: the client is gone.
    Leave,
}

async fn read_one(node: &Node, wanted: &Wanted, source: &Source, start: LogStart, answers: &Answers) -> Then {
    let ask = &wanted.ask;
    let pumped = tokio::select! {
        pumped = pump(node, ask, source, start, answers) => pumped,
        () = answers.closed() => return Then::Leave,
    };
    match pumped {
        Ok(Pumped::Missing(offset)) if wanted.notes => {
            let note = source.note(LogNews::Unreachable { host: source.host_name.clone(), offset });
            if answers.send(true, Ok(note)).await { Then::Next } else { Then::Leave }
        }
        Ok(Pumped::All | Pumped::Missing(_)) => Then::Next,
        Ok(Pumped::Gone) => Then::Leave,
        // Granted, but its host has not begun with it: the next news of the job says more.
        Err(error) if error.code == ErrorCode::NotFound && ask.follow && is_live(node, source.token) => {
            Then::Look
        }
        Err(error) if error.code == ErrorCode::NotFound && !has_begun(node, source.token) => {
            Then::End(Ok(ApiReply::Done))
        }
        Err(error) => Then::End(Err(error)),
    }
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
