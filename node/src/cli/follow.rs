//! Following a job over broken connections: its state until the end, its output without a byte lost or doubled.

use crate::client::steady::Steady;
use crate::client::{Replies, unexpected};
use rota_protocol::api::{ApiReply, ApiRequest, LogChunk, OutputStream};
use rota_protocol::view::JobRow;
use rota_protocol::{ErrorCode, JobId, PublicError, Token};

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
    pub attempt: Option<Token>,
    /// Which output.
    pub stream: OutputStream,
    /// Go on until the task has ended for good.
    pub follow: bool,
}

impl Wanted {
    /// The request for all of it.
    #[must_use]
    pub fn request(&self) -> ApiRequest {
        self.request_from(self.attempt, 0)
    }

    fn request_from(&self, attempt: Option<Token>, offset: u64) -> ApiRequest {
        ApiRequest::Logs {
            job: self.job,
            index: self.index,
            attempt,
            stream: self.stream,
            offset,
            follow: self.follow,
        }
    }
}

/// One output of one task.
pub struct Output<'a> {
    client: &'a Steady,
    wanted: Wanted,
    replies: Option<Replies>,
    place: Place,
    /// A broken stream was asked for again, for the rest of this attempt only.
    rest_only: bool,
}

/// How far the output was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Place {
    attempt: Option<Token>,
    offset: u64,
}

impl Place {
    /// The bytes of a chunk that were not taken before.
    fn take(&mut self, chunk: LogChunk) -> Vec<u8> {
        match self.attempt {
            // Of an older attempt: all of it was taken, or was given up for the newer one.
            Some(attempt) if chunk.attempt < attempt => return Vec::new(),
            Some(attempt) if chunk.attempt == attempt => {}
            _ => {
                *self = Self { attempt: Some(chunk.attempt), offset: chunk.offset };
            }
        }
        let known = self.offset.saturating_sub(chunk.offset);
        let known = usize::try_from(known).unwrap_or(usize::MAX).min(chunk.bytes.len());
        let mut bytes = chunk.bytes;
        bytes.drain(..known);
        self.offset = self.offset.max(chunk.offset) + bytes.len() as u64;
        bytes
    }
}

impl<'a> Output<'a> {
    /// An output; `replies` may have been opened by the caller already, by [`Wanted::request`].
    pub fn new(client: &'a Steady, wanted: Wanted, replies: Option<Replies>) -> Self {
        Self { client, wanted, replies, place: Place::default(), rest_only: false }
    }

    /// The next bytes; `None` after the last.
    ///
    /// # Errors
    /// A refusal, or the cluster cannot be reached any more.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, PublicError> {
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
                    let bytes = self.place.take(chunk);
                    if !bytes.is_empty() {
                        return Ok(Some(bytes));
                    }
                }
                Some(Ok(ApiReply::Done)) | None if !self.rest_only => return Ok(None),
                // The rest of the attempt has come; now on to the attempts after it.
                Some(Ok(ApiReply::Done)) | None => {
                    self.rest_only = false;
                    let request = self.wanted.request();
                    self.replies = Some(open(self.client, request).await?);
                }
                Some(Ok(other)) => return Err(unexpected(&other)),
                Some(Err(error)) if !is_passing(&error) => return Err(error),
                Some(Err(_)) => self.replies = None,
            }
        }
    }

    /// Takes no more: what is still on its way must not hold up the other streams of the connection.
    pub fn close(&mut self) {
        self.replies = None;
    }

    /// The request that goes on where the stream broke.
    fn resume(&mut self) -> ApiRequest {
        match self.place.attempt {
            Some(attempt) => {
                self.rest_only = self.wanted.attempt.is_none() && self.wanted.follow;
                self.wanted.request_from(Some(attempt), self.place.offset)
            }
            None => self.wanted.request(),
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
        let mut place = Place::default();
        assert_eq!(place.take(chunk(5, 0, b"abc")), b"abc");
        assert_eq!(place.take(chunk(5, 0, b"abc")), b"");
        assert_eq!(place.take(chunk(5, 2, b"cde")), b"de");
        assert_eq!(place.take(chunk(4, 0, b"older")), b"");
        assert_eq!(place.take(chunk(6, 0, b"retry")), b"retry");
        assert_eq!(place.take(chunk(6, 5, b"!")), b"!");
        // Output that was cut off on the host leaves a gap, never a repetition.
        assert_eq!(place.take(chunk(6, 9, b"x")), b"x");
        assert_eq!(place.take(chunk(6, 9, b"xy")), b"y");
        assert_eq!(place, Place { attempt: Some(Token(6)), offset: 11 });
    }
}
