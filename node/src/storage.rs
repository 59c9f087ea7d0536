//! Watches the disk under the data directory: `logic::storage` decides, this carries it to the log.

use crate::logic::storage::{Change, decide};
use crate::node::Node;
use rota_protocol::command::{Command, Proposal};
use rota_protocol::ids::RequestId;
use rota_protocol::job::Actor;
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
        let command = match change {
            Some(Change::Drain(reason)) => Command::DrainHost { host: node.host, reason },
            Some(Change::Undrain) => Command::UndrainHost { host: node.host },
            None => continue,
        };
        tracing::warn!(?command, free_mib = free >> 20, "the disk's free space decides whether work comes");
        let proposal = Proposal { request: RequestId::NONE, actor: Actor::system(), command };
        if let Err(error) = node.consensus.propose(vec![proposal], DEADLINE).await {
            tracing::warn!(%error, "the log was not told of the disk; it is tried again");
        }
    }
}

/// Free bytes for an unprivileged user: what root may use beyond them is no room for output.
fn free_bytes(dir: &Path) -> Option<u64> {
    let stat = rustix::fs::statvfs(dir).ok()?;
    Some(stat.f_bavail.saturating_mul(stat.f_frsize))
}
