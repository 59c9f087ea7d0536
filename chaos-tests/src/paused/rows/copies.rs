//! The row of copies that part: R8. One host has the defect of an apply that iterates a hash map.

use super::super::lab::{Failure, Lab};
use super::Attempt;
use super::net::until_written;
use std::sync::atomic::Ordering;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(30);
/// A copy that differs is found within a second or two, or never.
const HALT: Duration = Duration::from_secs(6);
/// How the checker outside says that copies differ.
const SEEN: &str = "have different states at index ";
/// Whole states are compared at every so many entries.
const GRID: u64 = 64;

/// The last number of a text.
fn number(text: &str) -> Option<u64> {
    text.rsplit(|c: char| !c.is_ascii_digit()).find(|word| !word.is_empty())?.parse().ok()
}

pub(super) async fn part(attempt: &mut Attempt) -> Result<(), Failure> {
    let mut plan = attempt.plan(3);
    // A snapshot of a wrong state would outlive the restart that mends it.
    plan.snapshot_entries = (1 << 30, 500);
    let mut lab = Lab::of(&plan).await?;
    let leader = lab.leader(PATIENCE).await?;
    let victim = lab.others(leader)[usize::try_from(attempt.seed % 2).unwrap_or(0)];
    let rest = lab.others(victim);
    lab.ground.disordered.store(victim.0, Ordering::Relaxed);
    lab.crash(victim)?;
    lab.start(victim).await.map_err(|error| error.to_string())?;
    // Entries of several proposals, of users who do not ask the host that is wrong.
    lab.clients.gap_ms = (0, 6);
    lab.load_at(8, &rest);
    let seen = || lab.ground.laws.broken().iter().find_map(|what| number(what.split_once(SEEN)?.1));
    let index = lab.until(PATIENCE, "copies that differ", seen).await?;
    let began = lab.now_ms();
    let door = lab.door(victim)?;
    let halted = lab.until(HALT, "halt of the copy that differs", || door.peer.failed().borrow().clone());
    match halted.await {
        Ok(why) => {
            attempt.took(lab.now_ms() - began);
            let named = why
                .split_once("entry at ")
                .and_then(|(_, rest)| rest.split_whitespace().next()?.parse().ok());
            attempt.must(named.is_some_and(|named: u64| named <= index + GRID), || {
                format!("R8: seen at {index} from outside, and told as {why}")
            });
        }
        Err(why) => attempt.wrong.push(format!("R8: {why}")),
    }
    lab.rest().await;
    for other in &rest {
        let failed = lab.door(*other)?.peer.failed().borrow().clone();
        attempt.must(failed.is_none(), || format!("R8: host {other}, which is right, stopped: {failed:?}"));
    }
    let named = || {
        let told = lab.door(leader).ok()?.peer.differs().borrow().clone()?;
        told.others.contains(&victim).then_some(())
    };
    let told = lab.until(HALT, "word of who differs", named).await;
    attempt.wrong.extend(told.err().map(|why| format!("R8: {why}")));
    until_written(&lab, &rest).await?;
    lab.ground.disordered.store(0, Ordering::Relaxed);
    lab.crash(victim)?;
    lab.start(victim).await.map_err(|error| error.to_string())?;
    attempt.close(lab).await?;
    // That is the fault itself.
    attempt.wrong.retain(|what| !what.contains(SEEN));
    Ok(())
}
