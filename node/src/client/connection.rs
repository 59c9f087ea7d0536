//! One connection: calls are told apart by number, one task reads and hands each answer to the call it belongs to.
//!
//! A reader that does not take its answers holds up the others of the connection (back-pressure, not memory).

use super::{CONNECT_LIMIT, Dial, ReadHalf, UnixDial, WriteHalf, unexpected};
use crate::framing::{FrameReader, FramingError, client_hello, encode_message, exchange_hello, write_frame};
use rota_protocol::api::{ApiAnswer, ApiCall, ApiReply, ApiRequest};
use rota_protocol::frame::FrameKind;
use rota_protocol::{ErrorCode, PublicError};
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{Mutex as AsyncMutex, mpsc};
use tokio::task::JoinHandle;

/// Answers of one call that wait for its reader before the connection waits: two megabytes of output, so that a client
/// that follows all ranks of a wide gang stays small.
const ANSWERS_QUEUED_MAX: usize = 8;

/// A connection to one peer. Dropping it ends every call on it.
pub struct Client {
    version: u16,
    writer: AsyncMutex<WriteHalf>,
    calls: Arc<Mutex<Calls>>,
    reader: JoinHandle<()>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("version", &self.version)
            .field("open", &lock(&self.calls).open.len())
            .finish_non_exhaustive()
    }
}

/// One answer and whether more follow, or the refusal that ends the call.
type Answer = Result<(bool, ApiReply), PublicError>;

/// Open calls of a connection.
#[derive(Default)]
struct Calls {
    last_seq: u32,
    open: BTreeMap<u32, mpsc::Sender<Answer>>,
    /// Why no further answers come.
    broken: Option<String>,
}

impl Calls {
    /// Lets every open call know that no answer will come.
    fn close(&mut self, why: &str) {
        self.broken.get_or_insert_with(|| why.to_owned());
        self.open.clear();
    }
}

/// No panic can happen while it is held, and its content is whole at any time.
fn lock(calls: &Mutex<Calls>) -> MutexGuard<'_, Calls> {
    calls.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Client {
    /// Connects to an agent's unix socket.
    ///
    /// # Errors
    /// Nobody listens there, or not in our protocol.
    pub async fn connect_socket(path: &Path) -> Result<Self, PublicError> {
        let path = path.to_owned();
        Self::connect(&UnixDial { path }).await
    }

    /// Connects by any way, agrees on a version, and shows the token if one is needed.
    ///
    /// # Errors
    /// `NoLeader` when the peer cannot be reached, `Version`, `Unauthenticated`.
    pub async fn connect(dial: &dyn Dial) -> Result<Self, PublicError> {
        let connect = async {
            let (reader, writer) = dial.dial().await?;
            Self::over(reader, writer, dial.token()).await
        };
        tokio::time::timeout(CONNECT_LIMIT, connect).await.unwrap_or_else(|_| {
            let place = dial.place();
            let limit_s = CONNECT_LIMIT.as_secs();
            Err(PublicError::new(ErrorCode::NoLeader, format!("{place} did not answer within {limit_s} s")))
        })
    }

    /// Speaks over a stream that is open already.
    ///
    /// # Errors
    /// The stream broke, no common version, or the token was refused.
    pub async fn over(
        reader: ReadHalf,
        mut writer: WriteHalf,
        token: Option<&str>,
    ) -> Result<Self, PublicError> {
        let mut frames = FrameReader::new(reader);
        let (_, version) =
            exchange_hello(&mut frames, &mut writer, &client_hello()).await.map_err(no_hello)?;
        let calls = Arc::new(Mutex::new(Calls::default()));
        let client = Self {
            version,
            writer: AsyncMutex::new(writer),
            reader: tokio::spawn(read_answers(frames, Arc::clone(&calls))),
            calls,
        };
        if let Some(token) = token {
            let token = token.to_owned();
            match client.call(ApiRequest::Authenticate { token: token.into() }).await? {
                ApiReply::Done => {}
                other => return Err(unexpected(&other)),
            }
        }
        Ok(client)
    }

    /// Asks for one answer.
    ///
    /// # Errors
    /// The peer's refusal; `Unknown` when the connection broke before the answer came: the request may or may not
    /// have been carried out.
    pub async fn call(&self, request: ApiRequest) -> Result<ApiReply, PublicError> {
        let mut replies = self.stream(request).await?;
        replies.next().await.unwrap_or_else(|| Err(broken("no answer came")))
    }

    /// Asks for a stream of answers.
    ///
    /// # Errors
    /// As for [`Self::call`].
    pub async fn stream(&self, request: ApiRequest) -> Result<Replies, PublicError> {
        let mut all = self.streams([request]).await?;
        all.pop().ok_or_else(|| broken("no stream"))
    }

    /// Asks for several streams with one write; they come back in the order of the requests.
    ///
    /// # Errors
    /// As for [`Self::call`]; `TooLarge` when a request does not fit a frame, with nothing sent.
    pub async fn streams(
        &self,
        requests: impl IntoIterator<Item = ApiRequest>,
    ) -> Result<Vec<Replies>, PublicError> {
        let mut bytes = Vec::new();
        let mut streams = Vec::new();
        for request in requests {
            let (sender, answers) = mpsc::channel(ANSWERS_QUEUED_MAX);
            let seq = {
                let mut calls = lock(&self.calls);
                if let Some(why) = &calls.broken {
                    return Err(broken(why));
                }
                calls.last_seq = calls.last_seq.wrapping_add(1);
                let seq = calls.last_seq;
                calls.open.insert(seq, sender);
                seq
            };
            // From here on, dropping it takes the call off the list.
            streams.push(Replies { seq, answers, done: false, calls: Arc::clone(&self.calls) });
            let call = ApiCall { seq, request };
            let frame = encode_message(self.version, FrameKind::ApiCall, &call)
                .map_err(|error| PublicError::new(ErrorCode::TooLarge, format!("the request: {error}")))?;
            bytes.extend_from_slice(&frame);
        }
        let mut writer = self.writer.lock().await;
        if let Err(error) = write_frame(&mut *writer, &bytes).await {
            return Err(broken(&error.to_string()));
        }
        Ok(streams)
    }

    /// Whether calls can still be made on it.
    #[must_use]
    pub fn is_open(&self) -> bool {
        lock(&self.calls).broken.is_none()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.reader.abort();
        lock(&self.calls).close("it was given up");
    }
}

/// Answers to one request, until the last. Dropping it before that leaves further ones unread.
pub struct Replies {
    seq: u32,
    answers: mpsc::Receiver<Result<(bool, ApiReply), PublicError>>,
    done: bool,
    calls: Arc<Mutex<Calls>>,
}

impl Replies {
    /// The next answer; `None` after the last one. Cancel-safe.
    ///
    /// # Errors
    /// (inside) the peer's refusal, or `Unknown` when the connection broke; both are the last.
    pub async fn next(&mut self) -> Option<Result<ApiReply, PublicError>> {
        if self.done {
            return None;
        }
        let answer = self.answers.recv().await.unwrap_or_else(|| {
            let why = lock(&self.calls).broken.clone();
            Err(broken(&why.unwrap_or_else(|| "it was closed".to_owned())))
        });
        Some(match answer {
            Ok((more, reply)) => {
                self.done = !more;
                Ok(reply)
            }
            Err(error) => {
                self.done = true;
                Err(error)
            }
        })
    }
}

impl fmt::Debug for Replies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replies").field("seq", &self.seq).field("done", &self.done).finish_non_exhaustive()
    }
}

impl Drop for Replies {
    fn drop(&mut self) {
        lock(&self.calls).open.remove(&self.seq);
    }
}

/// The answer to a call is lost.
fn broken(why: &str) -> PublicError {
    PublicError::new(ErrorCode::Unknown, format!("the connection to the agent broke: {why}"))
}

/// Nothing but a hello was sent, so nothing was carried out.
fn no_hello(error: FramingError) -> PublicError {
    match error {
        FramingError::Version(error) => error,
        error => PublicError::new(ErrorCode::NoLeader, format!("the agent did not say hello: {error}")),
    }
}

/// Hands answers to their calls until the connection ends, then lets every open call know.
async fn read_answers(mut frames: FrameReader<ReadHalf>, calls: Arc<Mutex<Calls>>) {
    let why = loop {
        let answer: ApiAnswer = match frames.next_message(FrameKind::ApiAnswer).await {
            Ok(Some(answer)) => answer,
            Ok(None) => break "it was closed by the agent".to_owned(),
            Err(error) => break error.to_string(),
        };
        let sender = {
            let mut calls = lock(&calls);
            if answer.more { calls.open.get(&answer.seq).cloned() } else { calls.open.remove(&answer.seq) }
        };
        // An answer to a call that was given up is nobody's, and so is one whose reader goes meanwhile.
        if let Some(sender) = sender {
            let _ = sender.send(answer.result.map(|reply| (answer.more, reply))).await;
        }
    };
    lock(&calls).close(&why);
}
