//! Output of released attempts on its way out: what the rules of `retention` name is deleted.

use super::host::{Inner, ShimHost};
use super::record::record_path;
use super::retention::{self, KeepRules, Kept, Rule};
use crate::io::clock::wall_ms;
use rota_protocol::Token;
use rota_protocol::spool::ExitRecord;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// How often ages are looked at: the precision of a rule that is told in minutes or days.
const LOOK: Duration = Duration::from_secs(1);

impl ShimHost {
    /// By which rules output stays from now on.
    pub fn keep_by(&self, rules: KeepRules) {
        self.inner().retention.lock().unwrap_or_else(PoisonError::into_inner).set_rules(rules);
    }
}

impl Inner {
    /// An attempt was released: its output stays by the rules.
    pub(super) fn keep_output(&self, record: &ExitRecord) {
        // Since its end, not since this agent found it.
        let written = std::fs::metadata(record_path(&self.dir, record.token));
        let ended_ms = written.ok().and_then(|meta| u64::try_from(meta.mtime()).ok()).map(|s| s * 1_000);
        let kept = Kept {
            token: record.token,
            bytes: (record.stdout_bytes + record.stderr_bytes).saturating_sub(record.dropped_bytes),
            ended_ms: ended_ms.unwrap_or_else(wall_ms),
            succeeded: record.end.is_success(),
        };
        let old = self.retention.lock().unwrap_or_else(PoisonError::into_inner).keep(kept);
        self.delete(old);
    }

    fn delete(&self, old: Vec<(Token, Rule)>) {
        if !old.is_empty() {
            let dir = self.dir.clone();
            tokio::task::spawn_blocking(move || retention::delete(&dir, &old, wall_ms()));
        }
    }
}

/// Looks for output that is too old, until the agent ends.
pub(super) async fn look(inner: Arc<Inner>) {
    loop {
        tokio::time::sleep(LOOK).await;
        let old = inner.retention.lock().unwrap_or_else(PoisonError::into_inner).expired(wall_ms());
        inner.delete(old);
    }
}
