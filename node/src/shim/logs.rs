//! Reading an attempt's output: by byte offset, whole and in order, waiting without polling. The file is the only
//! source; shims' messages just say when it is worth looking again.

use super::host::{Inner, Phase, ShimHost};
use super::record::{self, record_path};
use rota_protocol::api::{LogChunk, OutputStream};
use rota_protocol::limits::LOG_CHUNK_BYTES_MAX;
use rota_protocol::spool::ExitRecord;
use rota_protocol::{ErrorCode, PublicError, Token};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::Duration;

impl ShimHost {
    /// The next piece of an attempt's output from byte `offset` on. Waits up to `wait` for a first byte or the end;
    /// an empty piece that is not the last means that nothing came. No byte is skipped or given twice to a reader
    /// that asks on from `offset + bytes.len()`.
    ///
    /// # Errors
    /// `NotFound` when this host has nothing of the attempt, `Internal` when the disk fails.
    pub async fn read_log(
        &self,
        token: Token,
        stream: OutputStream,
        offset: u64,
        wait: Duration,
    ) -> Result<LogChunk, PublicError> {
        let until = tokio::time::Instant::now() + wait;
        let name = match stream {
            OutputStream::Stdout => format!("{token}.stdout"),
            OutputStream::Stderr => format!("{token}.stderr"),
        };
        let inner = self.inner();
        let path = inner.dir.join(name);
        loop {
            let changed = inner.watch_changes(token);
            let news = changed.as_ref().map(|changed| changed.notified());
            let mut news = std::pin::pin!(news);
            if let Some(news) = news.as_mut().as_pin_mut() {
                // Registered before the file is looked at: growth after the look is not missed.
                news.enable();
            }
            let end = end_of(inner, token)?;
            let total = end.as_ref().map(|exit| match stream {
                OutputStream::Stdout => exit.stdout_bytes,
                OutputStream::Stderr => exit.stderr_bytes,
            });
            let bytes = read_at(path.clone(), offset).await?;
            let last = total.is_some_and(|total| offset.saturating_add(bytes.len() as u64) >= total);
            if !bytes.is_empty() || last || tokio::time::Instant::now() >= until {
                return Ok(LogChunk { attempt: token, offset, bytes, last });
            }
            match news.as_mut().as_pin_mut() {
                Some(news) => {
                    let _ = tokio::time::timeout_at(until, news).await;
                }
                // Released, and the file is shorter than its record says: it was damaged or cut.
                None => return Ok(LogChunk { attempt: token, offset, bytes, last: true }),
            }
        }
    }
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
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let message = format!(
                "this host has no output of attempt {token}: it never ran here, or its output was cleared"
            );
            Err(PublicError::new(ErrorCode::NotFound, message))
        }
        Err(error) => Err(unreadable(&error)),
    }
}

async fn read_at(path: PathBuf, offset: u64) -> Result<Vec<u8>, PublicError> {
    // The disk may stall; the runtime must not.
    let read = tokio::task::spawn_blocking(move || {
        let file = match std::fs::File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let there = file.metadata()?.len().saturating_sub(offset);
        let mut bytes = vec![0; usize::try_from(there).unwrap_or(usize::MAX).min(LOG_CHUNK_BYTES_MAX)];
        let mut read = 0;
        while read < bytes.len() {
            match file.read_at(&mut bytes[read..], offset + read as u64)? {
                0 => break,
                len => read += len,
            }
        }
        bytes.truncate(read);
        Ok(bytes)
    });
    match read.await {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(error)) => Err(unreadable(&error)),
        Err(error) => Err(unreadable(&io::Error::other(error))),
    }
}

fn unreadable(error: &io::Error) -> PublicError {
    PublicError::new(ErrorCode::Internal, format!("the output cannot be read: {error}"))
}
