//! Following a job over broken connections: its state until the end, its output without a byte lost or doubled.

use crate::client::steady::Steady;
use crate::client::{Replies, unexpected};
use rota_protocol::api::{ApiReply, ApiRequest, LogChunk, OutputStream};
use rota_protocol::output::{AttemptName, LogAsk, LogNews, LogNote, LogStart};
use rota_protocol::view::JobRow;
use rota_protocol::{ErrorCode, JobId, PublicError, Token};
use std::time::Duration;
use tokio::time::Instant;

/// Pause before output is asked for again.
const PAUSE: Duration = Duration::from_millis(100);
/// Who does not follow gives up after so long without a byte.
const PATIENCE: Duration = Duration::from_secs(30);

/// A stream that can be asked for again after its connection broke.
fn is_passing(error: &PublicError) -> bool {
    matches!(error.code, ErrorCode::Unknown | ErrorCode::NoLeader | ErrorCode::Busy)
}

async fn open(client: &Steady, request: ApiRequest) -> Result<Replies, PublicError> {
    let mut streams = client.streams(&[request]).await?;
    streams.pop().ok_or_else(|| PublicError::new(ErrorCode::Internal, "no stream was opened"))
}

/// The states of one job.
pub struct JobWatch<'a> {
    client: &'a Steady,
    job: JobId,
    replies: Option<Replies>,
}

impl<'a> JobWatch<'a> {
    /// A watch; `replies` may have been opened by the caller already.
    pub fn new(client: &'a Steady, job: JobId, replies: Option<Replies>) -> Self {
        Self { client, job, replies }
    }

    /// The next state of the job; the last one is terminal.
    ///
    /// # Errors
    /// A refusal, or the cluster cannot be reached any more.
    pub async fn next(&mut self) -> Result<JobRow, PublicError> {
        loop {
            let replies = match &mut self.replies {
                Some(replies) => replies,
                None => {
                    let request = ApiRequest::Watch { job: self.job };
                    self.replies.insert(open(self.client, request).await?)
                }
            };
            match replies.next().await {
                Some(Ok(ApiReply::Changed(row))) => return Ok(*row),
                Some(Ok(other)) => return Err(unexpected(&other)),
                Some(Err(error)) if !is_passing(&error) => return Err(error),
                Some(Err(_)) | None => self.replies = None,
            }
        }
    }

    /// The row of the job when nothing can change any more.
    ///
    /// # Errors
    /// As for [`Self::next`].
    pub async fn last(&mut self) -> Result<JobRow, PublicError> {
        loop {
            let row = self.next().await?;
            if row.state.is_terminal() {
                return Ok(row);
            }
        }
    }
}

/// Which output of which task.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// The job.
    pub job: JobId,
    /// The task.
    pub index: u32,
    /// One attempt only.
    pub attempt: Option<AttemptName>,
    /// Which output.
    pub stream: OutputStream,
    /// Where to begin.
    pub start: LogStart,
    /// Go on until the task has ended for good.
    pub follow: bool,
}

impl Wanted {
    /// All of the newest attempt, and what follows.
    #[must_use]
    pub fn all(job: JobId, stream: OutputStream) -> Self {
        Self { job, index: 0, attempt: None, stream, start: LogStart::Offset(0), follow: true }
    }

    /// The request for it.
    #[must_use]
    pub fn request(&self) -> ApiRequest {
        self.request_from(self.attempt, None, self.start)
    }

    fn request_from(
        &self,
        attempt: Option<AttemptName>,
        after: Option<Token>,
        start: LogStart,
    ) -> ApiRequest {
        let (job, index, stream, follow) = (self.job, self.index, self.stream, self.follow);
        ApiRequest::Output { ask: LogAsk { job, index, attempt, after, stream, start, follow } }
    }
}

/// A piece of what comes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// Output.
    Bytes(Vec<u8>),
    /// A line for the person who reads it.
    Told(String),
}

/// One output of one task.
pub struct Output<'a> {
    client: &'a Steady,
    wanted: Wanted,
    replies: Option<Replies>,
    place: Place,
    /// A broken stream was asked for again, for the rest of this attempt only.
    rest_only: bool,
    /// Bytes that came with the word that others before them are missing.
    waiting: Option<Vec<u8>>,
    silent_since: Instant,
}

/// How far the output was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    attempt: Option<Token>,
    offset: u64,
    /// Where the first piece begins is for its host to say.
    anywhere: bool,
}

/// Bytes of a stream that are not kept: from, to.
type Gap = (u64, u64);

impl Place {
    fn new(start: LogStart) -> Self {
        match start {
            LogStart::Offset(offset) => Self { attempt: None, offset, anywhere: false },
            LogStart::Lines(_) => Self { attempt: None, offset: 0, anywhere: true },
        }
    }

    /// Another attempt begins. False for one that was taken before.
    fn begin(&mut self, attempt: Token) -> bool {
        match self.attempt {
            Some(known) if attempt <= known => return false,
            Some(_) => *self = Self { attempt: Some(attempt), offset: 0, anywhere: false },
            None => self.attempt = Some(attempt),
        }
        true
    }

    /// The bytes of a chunk that were not taken before, and what is missing before them.
    fn take(&mut self, chunk: LogChunk) -> (Option<Gap>, Vec<u8>) {
        self.begin(chunk.attempt);
        if self.attempt != Some(chunk.attempt) {
            // Of an older attempt: all of it was taken, or was given up for the newer one.
            return (None, Vec::new());
        }
        let gap = (chunk.offset > self.offset && !self.anywhere).then_some((self.offset, chunk.offset));
        if self.anywhere || gap.is_some() {
            self.offset = chunk.offset;
        }
        self.anywhere = false;
        let known = self.offset.saturating_sub(chunk.offset);
        let known = usize::try_from(known).unwrap_or(usize::MAX).min(chunk.bytes.len());
        let mut bytes = chunk.bytes;
        bytes.drain(..known);
        self.offset += bytes.len() as u64;
        (gap, bytes)
    }
}

impl<'a> Output<'a> {
    /// An output; `replies` may have been opened by the caller already, by [`Wanted::request`].
    pub fn new(client: &'a Steady, wanted: Wanted, replies: Option<Replies>) -> Self {
        let place = Place::new(wanted.start);
        let silent_since = Instant::now();
        Self { client, wanted, replies, place, rest_only: false, waiting: None, silent_since }
    }

    /// The next piece; `None` after the last.
    ///
    /// # Errors
    /// A refusal, or the cluster cannot be reached any more.
    pub async fn next(&mut self) -> Result<Option<Piece>, PublicError> {
        if let Some(bytes) = self.waiting.take() {
            return Ok(Some(Piece::Bytes(bytes)));
        }
        loop {
            let replies = match &mut self.replies {
                Some(replies) => replies,
                None => {
                    let request = self.resume();
                    self.replies.insert(open(self.client, request).await?)
                }
            };
            match replies.next().await {
                Some(Ok(ApiReply::Log(chunk))) => {
                    self.silent_since = Instant::now();
                    let (gap, bytes) = self.place.take(chunk);
                    if let Some((from, to)) = gap {
                        self.waiting = Some(bytes).filter(|bytes| !bytes.is_empty());
                        let len = to - from;
                        return Ok(Some(Piece::Told(format!("gap {from}..{to}: {len} bytes were not kept"))));
                    }
                    if !bytes.is_empty() {
                        return Ok(Some(Piece::Bytes(bytes)));
                    }
                }
                Some(Ok(ApiReply::LogNote(note))) => {
                    if let Some(line) = self.heard(note) {
                        return Ok(Some(Piece::Told(line)));
                    }
                }
                Some(Ok(ApiReply::Done)) | None if !self.rest_only => return Ok(None),
                // The rest of the attempt has come; now on to the attempts after it.
                Some(Ok(ApiReply::Done)) | None => {
                    self.rest_only = false;
                    let request = self.wanted.request_from(None, self.place.attempt, LogStart::Offset(0));
                    self.replies = Some(open(self.client, request).await?);
                }
                Some(Ok(other)) => return Err(unexpected(&other)),
                Some(Err(error)) if !is_passing(&error) => return Err(error),
                Some(Err(error)) => {
                    self.replies = None;
                    if !self.wanted.follow && self.silent_since.elapsed() > PATIENCE {
                        return Err(error);
                    }
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    /// Takes no more: what is still on its way must not hold up the other streams of the connection.
    pub fn close(&mut self) {
        self.replies = None;
    }

    /// What a person should know of a note.
    fn heard(&mut self, note: LogNote) -> Option<String> {
        let number = note.number;
        match note.what {
            LogNews::Begins { host, because } => {
                let is_first = self.place.attempt.is_none();
                if !self.place.begin(note.attempt) {
                    return None;
                }
                let because = because.filter(|why| !why.is_empty()).unwrap_or_else(|| "unknown".into());
                match (is_first, self.wanted.attempt) {
                    (false, _) => {
                        Some(format!("--- attempt {number} on {host}; the one before ended: {because}"))
                    }
                    (true, None) if number > 1 => {
                        let (job, index) = (self.wanted.job, self.wanted.index);
                        let task = if index == 0 { job.to_string() } else { format!("{job}_{index}") };
                        let other = number - 1;
                        Some(format!(
                            "this is attempt {number}; `rota logs {task} --attempt {other}` has the one before it"
                        ))
                    }
                    (true, _) => None,
                }
            }
            LogNews::Unreachable { host, offset } => Some(format!(
                "the output of attempt {number} from byte {offset} on is on host {host}, which does not answer"
            )),
        }
    }

    /// The request that goes on where the stream broke.
    fn resume(&mut self) -> ApiRequest {
        match self.place.attempt {
            Some(attempt) if !self.place.anywhere => {
                self.rest_only = self.wanted.attempt.is_none() && self.wanted.follow;
                let start = LogStart::Offset(self.place.offset);
                self.wanted.request_from(Some(AttemptName::Token(attempt)), None, start)
            }
            _ => self.wanted.request(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(attempt: u64, offset: u64, bytes: &[u8]) -> LogChunk {
        LogChunk { attempt: Token(attempt), offset, bytes: bytes.to_vec(), last: false }
    }

    #[test]
    fn bytes_are_taken_once_whatever_is_sent_again() {
        let mut place = Place::new(LogStart::Offset(0));
        let mut take = |attempt, offset, bytes: &[u8]| place.take(chunk(attempt, offset, bytes));
        let all = |bytes: &[u8]| (None, bytes.to_vec());
        assert_eq!(take(5, 0, b"abc"), all(b"abc"));
        assert_eq!(take(5, 0, b"abc"), all(b""));
        assert_eq!(take(5, 2, b"cde"), all(b"de"));
        assert_eq!(take(4, 0, b"older"), all(b""));
        assert_eq!(take(6, 0, b"retry"), all(b"retry"));
        assert_eq!(take(6, 5, b"!"), all(b"!"));
        // Output that was not kept leaves a gap, which is told, and never a repetition.
        assert_eq!(take(6, 9, b"x"), (Some((6, 9)), b"x".to_vec()));
        assert_eq!(take(6, 9, b"xy"), all(b"y"));
        assert_eq!(take(6, 20, b""), (Some((11, 20)), Vec::new()), "nothing is kept up to its end");
        assert_eq!(place, Place { attempt: Some(Token(6)), offset: 20, anywhere: false });
    }

    #[test]
    fn what_was_not_asked_for_is_no_gap() {
        let mut last_lines = Place::new(LogStart::Lines(3));
        assert_eq!(last_lines.take(chunk(5, 70, b"abc")), (None, b"abc".to_vec()));
        assert_eq!(last_lines.take(chunk(5, 75, b"d")), (Some((73, 75)), b"d".to_vec()));
        assert_eq!(
            last_lines.take(chunk(6, 4, b"e")),
            (Some((0, 4)), b"e".to_vec()),
            "the next from its start"
        );
        let mut from = Place::new(LogStart::Offset(50));
        assert_eq!(from.take(chunk(5, 50, b"abc")), (None, b"abc".to_vec()));
        assert!(!from.begin(Token(5)) && from.begin(Token(6)));
        assert_eq!(from.offset, 0);
    }
}
