//! One client's connection: frames in, calls run side by side, answers out in the order they are ready.

use super::caller::Caller;
use super::together::Together;
use super::{logs, read, sessions, write};
use crate::data;
use crate::framing::{FrameReader, FramingError, encode_behind, encode_message, write_frame};
use crate::members::backup;
use crate::node::Node;
use rota_protocol::api::{ApiAnswer, ApiCall, ApiReply, ApiRequest};
use rota_protocol::error::{ErrorCode, PublicError};
use rota_protocol::frame::{FrameKind, HELLO_VERSION, Hello, VERSION_MAX, VERSION_MIN, negotiate};
use rota_protocol::members::MembersAsk;
use rota_protocol::output::{AttemptName, LogAsk, LogStart};
use std::sync::Arc;
use std::time::Duration;
use std::time::Instant;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Answers that may wait for a slow reader before its calls wait too.
const ANSWERS_QUEUED_MAX: usize = 256;
/// Pieces of output among them: two megabytes.
const PIECES_QUEUED_MAX: usize = 8;
/// Calls of one connection that run at once; further ones wait unread, which the client feels as back-pressure.
const CALLS_OPEN_MAX: usize = 1_024;
/// How long a stranger may take to greet, and to show a token: a stream that says nothing frees its place.
const GREETING_TIME: Duration = Duration::from_secs(5);
/// Answers that are written together at most.
const ANSWERS_TOGETHER_MAX: usize = 64;

/// Where the answers to one call go.
#[derive(Clone)]
pub struct Answers {
    seq: u32,
    queue: mpsc::Sender<Queued>,
    room: Arc<Semaphore>,
}

/// An answer that waits to be written, and the place of a large one.
struct Queued {
    answer: ApiAnswer,
    _place: Option<OwnedSemaphorePermit>,
}

impl Answers {
    /// Sends one answer; false when the client is gone.
    pub async fn send(&self, more: bool, result: Result<ApiReply, PublicError>) -> bool {
        let place = match &result {
            // A reader that is slow must not make this process hold much: its calls wait with the next piece.
            Ok(ApiReply::Log(_)) => tokio::select! {
                place = Arc::clone(&self.room).acquire_owned() => place.ok(),
                () = self.queue.closed() => return false,
            },
            _ => None,
        };
        let answer = ApiAnswer { seq: self.seq, more, result };
        self.queue.send(Queued { answer, _place: place }).await.is_ok()
    }

    /// Resolves when the client is gone.
    pub async fn closed(&self) {
        self.queue.closed().await;
    }
}

/// What calls were answered, for tests.
#[cfg(test)]
pub(super) struct Answered {
    queue: Option<mpsc::Sender<Queued>>,
    told: mpsc::Receiver<Queued>,
}

#[cfg(test)]
impl Answered {
    pub(super) fn new() -> Self {
        let (queue, told) = mpsc::channel(ANSWERS_QUEUED_MAX);
        Self { queue: Some(queue), told }
    }

    /// Where the answers to a call go.
    pub(super) fn answers(&self, seq: u32) -> Answers {
        let queue = self.queue.clone().expect("no answer was asked for yet");
        Answers { seq, queue, room: Arc::new(Semaphore::new(PIECES_QUEUED_MAX)) }
    }

    /// The next answer; none when all calls are over.
    pub(super) async fn next(&mut self) -> Option<(u32, Result<ApiReply, PublicError>)> {
        self.queue = None;
        self.told.recv().await.map(|told| (told.answer.seq, told.answer.result))
    }
}

/// Serves a connection until it ends. `caller` is known already on a unix socket.
///
/// # Errors
/// The connection broke or spoke something else; there is nobody left to tell.
pub async fn serve<S>(node: Arc<Node>, stream: S, caller: Option<Caller>) -> Result<(), FramingError>
where
    S: AsyncRead + AsyncWrite + Send + 'static,
{
    let (reader, mut writer) = tokio::io::split(stream);
    let mut frames = FrameReader::new(reader);
    let Some(version) = greet(&node, &mut frames, &mut writer).await? else { return Ok(()) };
    let (queue, answers) = mpsc::channel(ANSWERS_QUEUED_MAX);
    let pump = tokio::spawn(write_answers(writer, version, answers));
    let outcome = take_calls(node, frames, caller, queue).await;
    // The client is gone or silent for good: dropping the calls dropped their senders, the pump ends by itself.
    let _ = pump.await;
    outcome
}

/// Tells a client why there is no room for it, and lets it go.
///
/// # Errors
/// As for [`serve`].
pub async fn refuse<S>(node: Arc<Node>, stream: S, why: PublicError) -> Result<(), FramingError>
where
    S: AsyncRead + AsyncWrite + Send + 'static,
{
    let (reader, mut writer) = tokio::io::split(stream);
    let mut frames = FrameReader::new(reader);
    let Some(version) = greet(&node, &mut frames, &mut writer).await? else { return Ok(()) };
    let Ok(first) = timeout(GREETING_TIME, frames.next()).await else { return Ok(()) };
    let Some(first) = first? else { return Ok(()) };
    let call: ApiCall = first.message(FrameKind::ApiCall)?;
    let answer = ApiAnswer { seq: call.seq, more: false, result: Err(why) };
    write_frame(&mut writer, &encode_message(version, FrameKind::ApiAnswer, &answer)?).await
}

/// Agrees on a version; none if there is none, or the client went.
async fn greet<R: AsyncRead + Unpin, W: AsyncWrite + Unpin>(
    node: &Node,
    frames: &mut FrameReader<R>,
    writer: &mut W,
) -> Result<Option<u16>, FramingError> {
    let Ok(first) = timeout(GREETING_TIME, frames.next()).await else { return Ok(None) };
    let Some(first) = first? else { return Ok(None) };
    let hello: Hello = first.message(FrameKind::Hello)?;
    let ours = Hello {
        version_min: VERSION_MIN,
        version_max: VERSION_MAX,
        cluster: Some(node.cluster),
        host: Some(node.host),
        build: env!("CARGO_PKG_VERSION").to_owned(),
    };
    write_frame(writer, &encode_message(HELLO_VERSION, FrameKind::Hello, &ours)?).await?;
    // Without a version the client reads our range in our hello and says so to its user.
    Ok(negotiate((VERSION_MIN, VERSION_MAX), (hello.version_min, hello.version_max)).ok())
}

async fn take_calls<R: AsyncRead + Unpin>(
    node: Arc<Node>,
    mut frames: FrameReader<R>,
    mut caller: Option<Caller>,
    queue: mpsc::Sender<Queued>,
) -> Result<(), FramingError> {
    let room = Arc::new(Semaphore::new(PIECES_QUEUED_MAX));
    let mut calls = Calls { node, open: Arc::new(Semaphore::new(CALLS_OPEN_MAX)), running: JoinSet::new() };
    loop {
        let first = match &caller {
            Some(_) => frames.next().await?,
            None => match timeout(GREETING_TIME, frames.next()).await {
                Ok(frame) => frame?,
                Err(_) => return Ok(()),
            },
        };
        let Some(first) = first else { return Ok(()) };
        let mut together = Together::default();
        let mut next = Some(first);
        while let Some(frame) = next {
            let bytes = frame.body.len();
            let ApiCall { seq, request } = frame.message(FrameKind::ApiCall)?;
            let answers = Answers { seq, queue: queue.clone(), room: Arc::clone(&room) };
            match (request, &caller) {
                (ApiRequest::Authenticate { token }, before) => {
                    if let Some(before) = before {
                        // What came before was asked in the earlier name.
                        calls.submit(together.take(), before).await;
                    }
                    let known = Caller::of_token(&calls.node, &token);
                    answers.send(false, known.as_ref().map(|_| ApiReply::Done).map_err(Clone::clone)).await;
                    match known {
                        Ok(known) => caller = Some(known),
                        Err(_) => {
                            calls.node.net.count_refused();
                            return Ok(()); // One guess per connection; handshakes are rate-limited.
                        }
                    }
                }
                (_, None) => {
                    let error =
                        PublicError::new(ErrorCode::Unauthenticated, "authenticate with a token first");
                    answers.send(false, Err(error)).await;
                    return Ok(());
                }
                (ApiRequest::Submit { jobs }, Some(_)) if together.has_room(jobs.len(), bytes) => {
                    together.join(answers, jobs, bytes);
                }
                (request, Some(known)) => {
                    calls.submit(together.take(), known).await;
                    calls.start(request, known, answers).await;
                }
            }
            next = frames.ready()?;
        }
        if let Some(known) = &caller {
            calls.submit(together.take(), known).await;
        }
        while calls.running.try_join_next().is_some() {}
    }
}

/// Calls of one connection that run. Further ones wait unread.
struct Calls {
    node: Arc<Node>,
    open: Arc<Semaphore>,
    running: JoinSet<()>,
}

impl Calls {
    async fn start(&mut self, request: ApiRequest, caller: &Caller, answers: Answers) {
        let Ok(permit) = Arc::clone(&self.open).acquire_owned().await else { return };
        let (node, caller) = (Arc::clone(&self.node), caller.clone());
        self.running.spawn(async move {
            answer(&node, caller, request, answers).await;
            drop(permit);
        });
    }

    /// Starts submits that came together.
    async fn submit(&mut self, together: Option<Together>, caller: &Caller) {
        let Some(together) = together else { return };
        let Ok(permit) = Arc::clone(&self.open).acquire_owned().await else { return };
        let (node, caller) = (Arc::clone(&self.node), caller.clone());
        self.running.spawn(async move {
            together.answer(&node, &caller).await;
            drop(permit);
        });
    }
}

async fn answer(node: &Arc<Node>, caller: Caller, request: ApiRequest, answers: Answers) {
    let started = Instant::now();
    let request = match request {
        ApiRequest::Watch { job } => return read::watch(node, &caller, job, answers).await,
        ApiRequest::Changes { after } => return read::changes(node, &caller, after, answers).await,
        ApiRequest::Logs { job, index, attempt, stream, offset, follow } => {
            let (attempt, start) = (attempt.map(AttemptName::Token), LogStart::Offset(offset));
            let ask = LogAsk { job, index, attempt, after: None, stream, start, follow };
            return logs::stream(node, &caller, logs::Wanted { ask, notes: false }, answers).await;
        }
        ApiRequest::Output { ask } => {
            return logs::stream(node, &caller, logs::Wanted { ask, notes: true }, answers).await;
        }
        ApiRequest::Members(MembersAsk::Backup { stale }) => {
            return backup::stream(node, &caller, stale, answers).await;
        }
        other => other,
    };
    let Some(_inside) = node.serving.enter() else {
        answers.send(false, Err(stopping())).await;
        return;
    };
    let (kind, result) = match request {
        ApiRequest::Data(ask) => ("data", data::answer_client(node, &caller, ask).await),
        ApiRequest::Session(call) => ("session", sessions::answer(node, &caller, *call).await),
        ApiRequest::Authenticate { .. } => ("read", Ok(ApiReply::Done)), // Taken by the session.
        request if !request.is_read() => ("write", write::answer(node, &caller, request).await),
        request => ("read", read::answer(node, &caller, request).await),
    };
    let outcome = if result.is_ok() { "ok" } else { "refused" };
    metrics::histogram!(crate::meters::API_SECONDS, "kind" => kind, "result" => outcome)
        .record(started.elapsed().as_secs_f64());
    answers.send(false, result).await;
}

/// To whoever comes when this agent has begun to stop.
pub(super) fn stopping() -> PublicError {
    PublicError::new(ErrorCode::NoLeader, "this agent is stopping: ask another host").retry_after(100)
}

/// Writes answers as they come, those that are ready together in one go.
async fn write_answers<W: AsyncWrite + Unpin>(
    mut writer: W,
    version: u16,
    mut answers: mpsc::Receiver<Queued>,
) {
    let mut together = Vec::with_capacity(ANSWERS_TOGETHER_MAX);
    while answers.recv_many(&mut together, ANSWERS_TOGETHER_MAX).await > 0 {
        let mut bytes = Vec::new();
        for Queued { answer, _place } in &together {
            if let Err(error) = encode_behind(&mut bytes, version, FrameKind::ApiAnswer, answer) {
                let error =
                    PublicError::new(ErrorCode::TooLarge, format!("the answer is too large: {error}"));
                let short = ApiAnswer { seq: answer.seq, more: false, result: Err(error) };
                // A refusal fits any frame.
                let _ = encode_behind(&mut bytes, version, FrameKind::ApiAnswer, &short);
            }
        }
        if write_frame(&mut writer, &bytes).await.is_err() {
            return;
        }
        // Their places are free once they are written.
        together.clear();
    }
}
