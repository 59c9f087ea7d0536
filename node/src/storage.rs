//! Watches the disk under the data directory: `logic::storage` decides, this carries it to the log.

use crate::logic::storage::decide;
use crate::node::Node;
use crate::own_drain;
use std::path::Path;
use std::sync::Weak;
use std::time::Duration;

/// How often the disk is looked at: a task may fill a gigabyte in a second, and what it fills is bounded.
const LOOK: Duration = Duration::from_secs(2);
/// How long the log may take to know of it before it is tried again.
const DEADLINE: Duration = Duration::from_secs(5);

/// Until the agent ends.
pub(crate) async fn watch(node: Weak<Node>) {
    loop {
        tokio::time::sleep(LOOK).await;
        let Some(node) = node.upgrade().filter(|node| !node.is_closing()) else { return };
        let dir = node.config.data_dir.clone();
        // The disk may stall; the runtime must not.
        let free = tokio::task::spawn_blocking(move || free_bytes(&dir)).await;
        let Ok(Some(free)) = free else { continue };
        let floor = node.config.output.disk_floor();
        let change = node.consensus.read(|state| {
            let host = state.host(node.host)?;
            decide(free, floor, host.drain.as_deref())
        });
        if let Some(change) = change {
            let cause = format!("the disk's free space, {} MiB,", free >> 20);
            own_drain::tell(&node, change, &cause, DEADLINE).await;
        }
    }
}

/// Free bytes for an unprivileged user: what root may use beyond them is no room for output.
fn free_bytes(dir: &Path) -> Option<u64> {
    let stat = rustix::fs::statvfs(dir).ok()?;
    Some(stat.f_bavail.saturating_mul(stat.f_frsize))
}
