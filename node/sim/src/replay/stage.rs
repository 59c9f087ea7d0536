//! What stands before a history is played: its hosts and its queues.

use super::history::{History, HistoryHost};
use crate::cluster::{Cluster, ClusterError};
use rota_protocol::BootId;
use rota_protocol::command::{Command, Outcome, TokenUse};
use rota_protocol::device::{HostFacts, HostRegistration};
use rota_protocol::queue::{Amounts, QueueSpec};
use std::collections::{BTreeMap, BTreeSet};

/// The hash of the join tokens of a replay.
const JOIN_TOKEN: [u8; 32] = [1; 32];

/// Queues by their rules on record; those that are only named by jobs are open to whoever named them.
pub(super) fn queues(history: &History) -> Vec<QueueSpec> {
    let mut users: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for job in history.jobs.iter().filter(|job| !job.queue.is_empty() && job.queue != job.tenant) {
        users.entry(&job.queue).or_default().insert(&job.tenant);
        for (end, _) in job.queue.match_indices('/') {
            users.entry(&job.queue[..end]).or_default();
        }
    }
    // Whoever wrote the history need not have seen the queues above its own.
    let mut promised: BTreeMap<&str, Amounts> = BTreeMap::new();
    for queue in &history.queues {
        for (end, _) in queue.name.match_indices('/') {
            let above = &queue.name[..end];
            users.entry(above).or_default();
            let sum = promised.entry(above).or_default();
            *sum = sum.plus(&queue.guarantee);
        }
    }
    let known: BTreeSet<&str> = history.queues.iter().map(|queue| queue.name.as_str()).collect();
    let open = users.into_iter().filter(|(name, _)| !known.contains(name)).map(|(name, tenants)| QueueSpec {
        tenants: tenants.into_iter().map(str::to_owned).collect(),
        guarantee: promised.get(name).copied().unwrap_or_default(),
        ..QueueSpec::open(name)
    });
    let mut queues: Vec<QueueSpec> = history.queues.iter().cloned().chain(open).collect();
    // A parent's path is shorter than its children's.
    queues.sort_by(|a, b| a.name.cmp(&b.name));
    queues
}

/// Lets a host join, as a real one would.
pub(super) fn register(cluster: &mut Cluster, at: usize, host: &HistoryHost) -> Result<(), ClusterError> {
    let addr = format!("10.{}.{}.{}:4600", at >> 16 & 255, at >> 8 & 255, at & 255);
    let usage = TokenUse::Join { host_name: None };
    let expires_at_ms = cluster.now_ms() + 1_000;
    cluster.system(Command::MintToken { token: JOIN_TOKEN, usage, expires_at_ms })?;
    let admit = Command::AdmitHost { token: JOIN_TOKEN, host_name: host.name.clone(), addr: addr.clone() };
    let id = match cluster.system(admit)? {
        Outcome::HostAdmitted { host } => host,
        other => return Err(ClusterError::Answer(Box::new(other))),
    };
    let facts = HostFacts {
        cpus_milli: host.cpus_milli,
        mem_mib: host.mem_mib,
        devices: host.devices.clone(),
        labels: host.labels.clone(),
        version: String::new(),
        notes: Default::default(),
    };
    let registration = HostRegistration { boot: BootId(1), addr, facts };
    cluster.system(Command::RegisterHost { host: id, registration }).map(|_| ())
}
