//! Reading an attempt's output: by byte offset, whole and in order, waiting without polling. The files are the only
//! source; shims' messages just say when it is worth looking again.

use super::host::{Inner, ShimHost};
use super::known::Phase;
use super::pieces::Stream;
use super::record::{self, record_path};
use super::removed;
use crate::cli::times::stamp;
use rota_protocol::api::{LogChunk, OutputStream};
use rota_protocol::spool::ExitRecord;
use rota_protocol::{ErrorCode, PublicError, TaskId, Token};
use std::io;
use std::time::Duration;
use tokio::sync::Semaphore;

impl ShimHost {
    /// The next piece of an attempt's output from byte `offset` on. Waits up to `wait` for a first byte or the end;
    /// an empty piece that is not the last means that nothing came. No byte is given twice to a reader that asks on
    /// from `offset + bytes.len()`, and none is skipped but those that were not kept: then the piece begins later.
    ///
    /// # Errors
    /// `NotFound` when this host has nothing of the attempt, or no more; `Internal` when the disk fails.
    pub async fn read_log(
        &self,
        token: Token,
        stream: OutputStream,
        offset: u64,
        wait: Duration,
    ) -> Result<LogChunk, PublicError> {
        let until = tokio::time::Instant::now() + wait;
        let inner = self.inner();
        let files = Stream::new(&inner.dir, token, stream);
        loop {
            let changed = inner.watch_changes(token);
            let news = changed.as_ref().map(|changed| changed.notified());
            let mut news = std::pin::pin!(news);
            if let Some(news) = news.as_mut().as_pin_mut() {
                // Registered before the file is looked at: growth after the look is not missed.
                news.enable();
            }
            let total = end_of(inner, token)?.map(|exit| match stream {
                OutputStream::Stdout => exit.stdout_bytes,
                OutputStream::Stderr => exit.stderr_bytes,
            });
            let look = files.clone();
            let read = on_disk(move || look.read(offset)).await?;
            let (at, bytes) = match (read, total) {
                (Some((at, bytes)), _) => (at, bytes),
                // Nothing is kept up to the end: the piece is as empty as that.
                (None, Some(total)) => (total.max(offset), Vec::new()),
                (None, None) => (offset, Vec::new()),
            };
            let last = total.is_some_and(|total| at.saturating_add(bytes.len() as u64) >= total);
            if !bytes.is_empty() || last || tokio::time::Instant::now() >= until {
                return Ok(LogChunk { attempt: token, offset: at, bytes, last });
            }
            // One that is not known any more has ended, so that this piece was its last.
            let Some(news) = news.as_mut().as_pin_mut() else { continue };
            let _ = tokio::time::timeout_at(until, news).await;
        }
    }

    /// The position at which the last `lines` lines of what is there begin.
    ///
    /// # Errors
    /// As for [`Self::read_log`].
    pub async fn find_log(&self, token: Token, stream: OutputStream, lines: u32) -> Result<u64, PublicError> {
        let inner = self.inner();
        end_of(inner, token)?;
        let files = Stream::new(&inner.dir, token, stream);
        on_disk(move || files.last_lines(lines)).await
    }

    /// The ended attempts of a task whose output this host still has, in their order.
    ///
    /// # Errors
    /// The disk fails.
    pub async fn find_task(&self, task: TaskId) -> Result<Vec<Token>, PublicError> {
        /// Each looks at all that is kept.
        static SEARCHES: Semaphore = Semaphore::const_new(1);
        let _one = SEARCHES.acquire().await;
        let dir = self.inner().dir.clone();
        on_disk(move || record::of_task(&dir, task)).await
    }
}

/// Whether an attempt has ended.
pub(super) fn attempt_is_over(inner: &Inner, token: Token) -> Result<bool, PublicError> {
    Ok(end_of(inner, token)?.is_some())
}

/// The attempt's end, if it has ended.
fn end_of(inner: &Inner, token: Token) -> Result<Option<ExitRecord>, PublicError> {
    if let Some(attempt) = inner.known().get(&token) {
        return Ok(match &attempt.phase {
            Phase::Ended { record, .. } => Some(record.clone()),
            Phase::Queued | Phase::Sent | Phase::Running { .. } => None,
        });
    }
    match record::read(&record_path(&inner.dir, token)) {
        // Released ones have an end; without one the record was damaged since.
        Ok(found) => Ok(Some(found.exit.unwrap_or_else(|| {
            let reason = "its record was damaged".to_owned();
            ExitRecord::never_ran(token, rota_protocol::job::AttemptEnd::Vanished { reason })
        }))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(gone(inner, token)),
        Err(error) => Err(unreadable(&error)),
    }
}

/// Why there is nothing of an attempt here.
fn gone(inner: &Inner, token: Token) -> PublicError {
    let message = match removed::find(&inner.dir, token) {
        Ok(Some((at_ms, rule))) => {
            let (at, rule) = (stamp(at_ms), rule.setting());
            format!("the output of attempt {token} was removed at {at} by the rule {rule}")
        }
        _ => format!(
            "this host has no output of attempt {token}: it never ran here, or it was removed long ago"
        ),
    };
    PublicError::new(ErrorCode::NotFound, message)
}

/// The disk may stall; the runtime must not.
async fn on_disk<T: Send + 'static>(
    act: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, PublicError> {
    match tokio::task::spawn_blocking(act).await {
        Ok(Ok(found)) => Ok(found),
        Ok(Err(error)) => Err(unreadable(&error)),
        Err(error) => Err(unreadable(&io::Error::other(error))),
    }
}

fn unreadable(error: &io::Error) -> PublicError {
    PublicError::new(ErrorCode::Internal, format!("the output cannot be read: {error}"))
}
