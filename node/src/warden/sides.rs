//! The log's side of this host's cards, and what both sides together say: for the warden and for the metrics.

use super::mps;
use super::series::{JobSeries, JobUse};
use crate::logic::duty::{Granted, memory_of};
use crate::logic::strangers::{CardSeen, Whose};
use crate::node::Node;
use rota_core::state::attempt::Attempt;
use rota_protocol::job::AttemptState;
use rota_protocol::{DeviceUuid, Token};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Attempts with devices, devices that the log does not grant, and who runs through MPS on which card.
pub type LogSide = (BTreeMap<Token, Granted>, BTreeSet<DeviceUuid>, BTreeMap<DeviceUuid, Vec<Token>>);

/// What the log has on this host: attempts with devices, devices that it does not grant, and who runs through MPS.
#[must_use]
pub fn read_log(node: &Node) -> LogSide {
    node.consensus.read(|replica| {
        let mut log = BTreeMap::new();
        let mut through_mps: BTreeMap<DeviceUuid, Vec<Token>> = BTreeMap::new();
        for attempt in replica.attempts_on(node.host).filter(|attempt| !attempt.devices.is_empty()) {
            let running = attempt.state == AttemptState::Running;
            if running && let Some(card) = mps::card_of(replica, attempt) {
                through_mps.entry(card).or_default().push(attempt.token);
            }
            log.insert(attempt.token, granted(replica, attempt, running));
        }
        let facts = replica.host(node.host).map(|host| Arc::clone(&host.facts));
        let devices = facts.iter().flat_map(|facts| &facts.devices);
        let closed = devices.filter(|device| !device.health.is_healthy()).map(|device| device.uuid.clone());
        (log, closed.collect(), through_mps)
    })
}

fn granted(replica: &rota_core::State, attempt: &Attempt, running: bool) -> Granted {
    let job = replica.job(attempt.task.job);
    let queue = replica.queues().get(attempt.queue);
    Granted {
        task: attempt.task,
        devices: attempt.devices.clone(),
        gpu_milli: attempt.gpu_milli,
        share_mib: attempt.shares_card().then_some(attempt.card_vram_mib),
        running,
        idle: queue.map(|queue| queue.spec.idle).unwrap_or_default(),
        idle_until_ms: job.and_then(|job| job.spec.idle_until_ms),
        cpu_ms: None,
        io_bytes: None,
    }
}

/// Cards that live attempts share through MPS, those not started yet included.
#[must_use]
pub fn mps_cards(node: &Node) -> BTreeSet<DeviceUuid> {
    node.consensus.read(|replica| {
        replica.attempts_on(node.host).filter_map(|attempt| mps::card_of(replica, attempt)).collect()
    })
}

/// Memory of each attempt on each card.
#[must_use]
pub fn series(cards: &BTreeMap<DeviceUuid, CardSeen>, log: &BTreeMap<Token, Granted>) -> JobSeries {
    let mut rows = BTreeMap::new();
    for (uuid, card) in cards {
        for (token, granted) in log.iter().filter(|(_, granted)| granted.devices.contains(uuid)) {
            if let Some(used_mib) = memory_of(*token, card) {
                let over = granted.share_mib.is_some_and(|asked| asked > 0 && used_mib > asked);
                rows.insert((uuid.clone(), granted.task), JobUse { used_mib, over });
            }
        }
    }
    let used = cards.iter().filter_map(|(uuid, card)| Some((uuid.clone(), card.used_mib?)));
    JobSeries::new(rows, &used.collect())
}

/// Attempts by their processes on cards.
#[must_use]
pub fn on_cards(cards: &BTreeMap<DeviceUuid, CardSeen>) -> BTreeSet<(Token, DeviceUuid)> {
    let on = cards.iter().flat_map(|(uuid, card)| {
        card.processes.iter().flatten().filter_map(move |process| match process.whose {
            Whose::Attempt(token) => Some((token, uuid.clone())),
            _ => None,
        })
    });
    on.collect()
}
