//! Sitting at a session: keys go in, what is shown comes out, each at its own offset, so that a broken connection only
//! takes time.

use super::context::tell;
use super::terminal::{Escape, Raw, size};
use crate::client::steady::Steady;
use crate::client::unexpected;
use rota_protocol::api::{ApiReply, ApiRequest, OutputStream};
use rota_protocol::session::{
    INPUT_BYTES_MAX, READ_WAIT_MS_MAX, SessionAsk, SessionCall, SessionEnd, SessionNews, TerminalSize,
};
use rota_protocol::{ErrorCode, JobId, PublicError, Token};
use std::future::Future;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::signal::unix::{SignalKind, signal};

/// How often a client says that it is there when nobody types.
const HEARTBEAT: Duration = Duration::from_secs(3);
/// Pause before keys are offered again that the program did not read yet.
const FULL_PAUSE: Duration = Duration::from_millis(20);
/// How long a session is asked for that cannot be reached.
const LOST_PATIENCE: Duration = Duration::from_secs(120);
/// Of what a terminal showed before, so much is shown to whoever sits down at it.
const SHOWN_BEFORE: u64 = 2 << 10;

/// A client at one session.
pub(super) struct Seat<'a> {
    /// For output.
    pub(super) client: &'a Steady,
    /// For keys, which must not wait behind output.
    pub(super) control: Steady,
    pub(super) job: JobId,
    pub(super) index: u32,
    pub(super) attempt: Option<Token>,
    pub(super) session: u64,
    /// Hang up after this long without this client, in ms.
    pub(super) hold_ms: Option<u32>,
    /// Drawn.
    pub(super) me: u64,
}

/// Why a client no longer sits there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Left {
    /// The session is over; how, if it was a command's.
    Over(Option<SessionEnd>),
    /// The person left, or this process was asked to end.
    ByWish,
}

impl Seat<'_> {
    /// One step.
    pub(super) async fn ask(&self, client: &Steady, ask: SessionAsk) -> Result<SessionNews, PublicError> {
        let (job, index, attempt, session) = (self.job, self.index, self.attempt, self.session);
        let call = SessionCall { job, index, attempt, session, ask };
        match client.call(ApiRequest::Session(Box::new(call))).await? {
            ApiReply::Session(news) => Ok(*news),
            other => Err(unexpected(&other)),
        }
    }

    /// Says that somebody sits down. What it says of the attempt is pinned by the caller.
    pub(super) async fn hello(&self, size: Option<TerminalSize>) -> Result<SessionNews, PublicError> {
        self.ask(&self.control, self.keys(0, Vec::new(), false, size)).await
    }

    /// Where to begin with the output of a terminal that has shown `shown` bytes.
    pub(super) fn shown_from(shown: u64) -> u64 {
        shown.saturating_sub(SHOWN_BEFORE)
    }

    fn keys(&self, offset: u64, bytes: Vec<u8>, last: bool, size: Option<TerminalSize>) -> SessionAsk {
        SessionAsk::Send { client: self.me, offset, bytes, last, size, hold_ms: self.hold_ms }
    }

    /// Copies one output from byte `offset` on, until its end.
    pub(super) async fn show(
        &self,
        stream: OutputStream,
        mut offset: u64,
        mut sink: impl AsyncWrite + Unpin,
    ) -> Result<Option<SessionEnd>, PublicError> {
        let mut reached = Instant::now();
        loop {
            let ask = SessionAsk::Read { stream, offset, wait_ms: READ_WAIT_MS_MAX };
            let news = match self.ask(self.client, ask).await {
                Ok(news) => news,
                Err(error) if is_passing(&error) && reached.elapsed() < LOST_PATIENCE => continue,
                Err(error) => return Err(error),
            };
            reached = Instant::now();
            let Some(chunk) = news.chunk else { return Ok(news.end) };
            let known = usize::try_from(offset.saturating_sub(chunk.offset)).unwrap_or(usize::MAX);
            let bytes = chunk.bytes.get(known..).unwrap_or_default();
            let written = async {
                sink.write_all(bytes).await?;
                sink.flush().await
            };
            if let Err(error) = written.await {
                let message = format!("cannot write: {error}");
                return Err(PublicError::new(ErrorCode::Internal, message));
            }
            offset = offset.max(chunk.offset + chunk.bytes.len() as u64);
            if chunk.last {
                return Ok(news.end);
            }
        }
    }

    /// Passes keys on until the person leaves (true), or the session is over or out of reach (false).
    pub(super) async fn type_in(&self, raw: bool) -> Result<bool, PublicError> {
        let mut keyboard = tokio::io::stdin();
        let mut resized = signal(SignalKind::window_change()).map_err(no_signals)?;
        let mut escape = Escape::new();
        let mut buffer = vec![0; INPUT_BYTES_MAX];
        let mut typed = Typed::default();
        loop {
            let mut size_now = None;
            tokio::select! {
                read = keyboard.read(&mut buffer), if !typed.last && typed.waiting.len() < INPUT_BYTES_MAX => {
                    match read {
                        Ok(0) | Err(_) => typed.last = true,
                        Ok(len) if raw => {
                            if escape.pass(&buffer[..len], &mut typed.waiting) {
                                return Ok(true);
                            }
                        }
                        Ok(len) => typed.waiting.extend_from_slice(&buffer[..len]),
                    }
                }
                _ = resized.recv() => size_now = Some(size()),
                () = tokio::time::sleep(HEARTBEAT) => {}
                () = tokio::time::sleep(FULL_PAUSE), if !typed.waiting.is_empty() => {}
            }
            if !self.hand_over(&mut typed, size_now).await? {
                return Ok(false);
            }
        }
    }

    /// False when the session is over.
    async fn hand_over(&self, typed: &mut Typed, size: Option<TerminalSize>) -> Result<bool, PublicError> {
        let began = Instant::now();
        loop {
            let part = &typed.waiting[..typed.waiting.len().min(INPUT_BYTES_MAX)];
            let last = typed.last && part.len() == typed.waiting.len();
            match self.ask(&self.control, self.keys(typed.offset, part.to_vec(), last, size)).await {
                // Queued again meanwhile: what waits is typed into the new run.
                Ok(news)
                    if typed.attempt.replace(news.attempt).is_some_and(|known| known != news.attempt) =>
                {
                    typed.offset = news.taken;
                }
                Ok(news) => {
                    let taken = news.taken.saturating_sub(typed.offset);
                    let taken = usize::try_from(taken).unwrap_or(usize::MAX).min(typed.waiting.len());
                    typed.waiting.drain(..taken);
                    typed.offset += taken as u64;
                    if taken == 0 || typed.waiting.is_empty() {
                        return Ok(true);
                    }
                }
                // Between two runs of a job somebody who sits at the job, not at one run, waits for the next.
                Err(error) if matches!(error.code, ErrorCode::NotFound | ErrorCode::Conflict) => {
                    return Ok(self.attempt.is_none());
                }
                Err(error) if is_passing(&error) && began.elapsed() < LOST_PATIENCE => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Sits until the output is over, the person leaves, or this process is asked to end. The terminal is as it was
    /// when this returns.
    pub(super) async fn sit(
        &self,
        terminal: bool,
        output: impl Future<Output = Result<Option<SessionEnd>, PublicError>>,
    ) -> Result<Left, PublicError> {
        let mut term = signal(SignalKind::terminate()).map_err(no_signals)?;
        let mut hangup = signal(SignalKind::hangup()).map_err(no_signals)?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(no_signals)?;
        let raw = if terminal { Raw::enter() } else { None };
        let typing = self.type_in(raw.is_some());
        tokio::pin!(output, typing);
        let mut types = true;
        let left = loop {
            tokio::select! {
                end = &mut output => break end.map(Left::Over),
                leaves = &mut typing, if types => match leaves {
                    Ok(true) => break Ok(Left::ByWish),
                    // The rest of the output is still to come.
                    Ok(false) => types = false,
                    Err(error) => break Err(error),
                },
                _ = term.recv() => break Ok(Left::ByWish),
                _ = hangup.recv() => break Ok(Left::ByWish),
                _ = interrupt.recv() => break Ok(Left::ByWish),
            }
        };
        let was_raw = raw.is_some();
        drop(raw);
        if was_raw && left == Ok(Left::ByWish) {
            tell("");
        }
        left
    }
}

/// Keys that were not taken yet.
#[derive(Default)]
struct Typed {
    attempt: Option<Token>,
    offset: u64,
    waiting: Vec<u8>,
    last: bool,
}

/// What may be otherwise in a moment.
pub(super) fn is_passing(error: &PublicError) -> bool {
    matches!(error.code, ErrorCode::Unknown | ErrorCode::NoLeader | ErrorCode::Busy)
}

fn no_signals(error: std::io::Error) -> PublicError {
    PublicError::new(ErrorCode::Internal, format!("cannot take signals: {error}"))
}
