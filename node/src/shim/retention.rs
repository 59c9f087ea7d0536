//! What stays of released attempts: the newest, within a number and a size. Deletion is batched and off the hot path.

use super::record::record_name;
use rota_protocol::Token;
use std::collections::VecDeque;
use std::path::Path;

/// Released attempts whose records and output stay on the host.
const ATTEMPTS_MAX: usize = 8_000;
/// Bytes of released output that stay on the host.
const BYTES_MAX: u64 = 1 << 30;
/// Deleted at once: rarely and many. Where files are made and deleted side by side, ext4 passes over each freshly
/// deleted inode for minutes before it finds a free one; that was an eighth of the cost of a short task.
const BATCH: usize = 2_000;

/// Released attempts, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Retention {
    kept: VecDeque<(Token, u64)>,
    bytes: u64,
}

impl Retention {
    /// One more is kept. Returns those that are to be deleted now.
    pub(crate) fn keep(&mut self, token: Token, bytes: u64) -> Vec<Token> {
        self.kept.push_back((token, bytes));
        self.bytes += bytes;
        let mut old = Vec::new();
        if self.kept.len() < ATTEMPTS_MAX + BATCH && self.bytes <= BYTES_MAX {
            return old;
        }
        while self.kept.len() > ATTEMPTS_MAX || (self.bytes > BYTES_MAX && self.kept.len() > 1) {
            if let Some((token, bytes)) = self.kept.pop_front() {
                self.bytes -= bytes;
                old.push(token);
            }
        }
        old
    }
}

/// Deletes the files of released attempts.
pub(crate) fn delete(dir: &Path, tokens: &[Token]) {
    for token in tokens {
        // The record last: while it is there the token counts as used.
        for name in [format!("{token}.stdout"), format!("{token}.stderr"), record_name(*token)] {
            match std::fs::remove_file(dir.join(name)) {
                Ok(()) => {}
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => tracing::warn!(%token, %error, "old output cannot be deleted"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_newest_within_number_and_size() {
        let mut retention = Retention::default();
        let mut deleted = Vec::new();
        for token in 0..30_000 {
            deleted.extend(retention.keep(Token(token), 1));
        }
        assert!(retention.kept.len() >= ATTEMPTS_MAX && retention.kept.len() < ATTEMPTS_MAX + BATCH);
        assert_eq!(deleted.first(), Some(&Token(0)));
        assert_eq!(deleted.len() + retention.kept.len(), 30_000);
        let old = retention.keep(Token(30_000), BYTES_MAX);
        assert_eq!(old.last(), Some(&Token(29_999)), "one large output stays alone");
        assert_eq!(retention.bytes, BYTES_MAX);
    }
}
