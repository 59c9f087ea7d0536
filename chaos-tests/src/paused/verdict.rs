//! The end of a run: what all checkers say, and what was met.

use super::client::views;
use super::lab::{Failure, Lab};
use super::peer::{Peer, step_met};
use std::collections::BTreeMap;
use std::time::Duration;

/// Violations that are told of one run.
const VIOLATIONS_MAX: usize = 8;

/// Every acknowledged job is in everybody's state (I3), and all states are one (I8).
pub(super) async fn final_states(lab: &Lab) -> Result<(), Failure> {
    // What clients left under way may still come in.
    tokio::time::sleep(Duration::from_millis(200)).await;
    let doors = lab.ground.doors.all();
    let mut prints = BTreeMap::new();
    for door in &doors {
        for (key, job) in lab.clients.history.acknowledged() {
            let held = door.peer.read(|state| views(state, key));
            if !held.iter().any(|view| view.job == job) {
                return Err(format!(
                    "I3: job {job} of key {key} was acknowledged and is not at host {}",
                    door.host
                ));
            }
            if held.len() > 1 {
                return Err(format!("I4: key {key} has jobs {held:?} at host {}", door.host));
            }
        }
        let (index, hash) = door.peer.fingerprint();
        if let Some((other, held)) = prints.insert(index, (door.host, hash))
            && held != hash
        {
            return Err(format!("I8: hosts {other} and {} differ at index {index}", door.host));
        }
    }
    Ok(())
}

/// What the checkers say.
pub(super) fn judge(lab: &Lab, violations: &mut Vec<String>, reach: &mut BTreeMap<String, u64>) {
    violations.extend(lab.ground.laws.broken());
    violations.extend(lab.clients.history.judge());
    let (streams, notes) = lab.ground.streams.judge();
    violations.extend(streams);
    // A broken run tells the same story many times.
    violations.truncate(VIOLATIONS_MAX);
    let mut met = |what: &str, count: u64| {
        if count > 0 {
            *reach.entry(what.to_owned()).or_default() += count;
        }
    };
    for (what, count) in lab.ground.air.counts() {
        met(what, count);
    }
    for (what, count) in lab.ground.trace.counts() {
        met(&what, count);
    }
    for (step, times) in lab.peers.values().filter_map(Peer::disk).flat_map(|disk| disk.met()) {
        met(step_met(step), times);
    }
    let leaders = lab.ground.laws.leaders();
    let changes = leaders.values().zip(leaders.values().skip(1)).filter(|(a, b)| a != b).count();
    met("leader changed", changes as u64);
    met("event told", notes as u64);
    met("write done", lab.clients.history.done() as u64);
    met("answer unknown", lab.clients.history.unknown() as u64);
    met("asked again under one request id", lab.clients.history.repeated() as u64);
}
