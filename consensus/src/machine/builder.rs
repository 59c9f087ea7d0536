//! A moment of the state as a snapshot file, made beside the apply path from a copy that shares the rows.

use super::{Replica, Shared};
use crate::config::{Rota, SnapshotMeta};
use crate::snapshot_file::{self, SnapshotFault, SnapshotFile};
use openraft::storage::{RaftSnapshotBuilder, Snapshot};
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

/// Pause before a snapshot that found no room is tried again.
const FULL_PAUSE: Duration = Duration::from_secs(1);

/// Writes one moment of the state as a snapshot, beside the apply path.
pub(crate) struct Builder {
    pub(super) shared: Arc<Shared>,
    pub(super) replica: Replica,
}

impl RaftSnapshotBuilder<Rota> for Builder {
    type SnapshotData = SnapshotFile;

    async fn build_snapshot(&mut self) -> Result<openraft::alias::SnapshotOf<Rota, SnapshotFile>, io::Error> {
        loop {
            let replica = self.replica.clone();
            let build = move |shared: &Shared| {
                let begun = Instant::now();
                let meta = SnapshotMeta { last_log_id: replica.last, last_membership: replica.membership };
                let bytes = snapshot_file::to_bytes(shared.cluster, &meta, &replica.state)?;
                let path = shared.dir.join("snapshot-new.tmp");
                if let Err(error) = snapshot_file::write_durable(&path, &bytes, &*shared.disk) {
                    // A part of it would only keep the room from whoever needs it more.
                    let _ = std::fs::remove_file(&path);
                    return Err(error.into());
                }
                shared.adopt(meta, &path)?;
                let took_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
                shared.built_ms.store(took_ms, Ordering::Relaxed);
                let current = shared.current.lock().unwrap_or_else(PoisonError::into_inner);
                let (meta, snapshot) =
                    current.clone().ok_or_else(|| SnapshotFault::Damaged("it vanished".into()))?;
                Ok(Snapshot { meta, snapshot })
            };
            match self.shared.clone().on_disk(build).await {
                // An error would end the peer, but a full disk passes: until then the log is not cut, and refuses
                // entries when it too has no room.
                Err(error) if is_full(&error) => {
                    tracing::error!(%error, "no room for a snapshot; it is tried again");
                    tokio::time::sleep(FULL_PAUSE).await;
                }
                built => return built,
            }
        }
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}
