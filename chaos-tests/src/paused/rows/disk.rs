//! Rows of disks: D1 to D11. D9 has no place here: the log is replicated from memory, never from the disk.

use super::super::air::Weather;
use super::super::disk::files_below;
use super::super::lab::{Failure, Lab};
use super::super::peer::Way;
use super::Attempt;
use super::crash::all_off_and_on;
use super::net::{at_work, gap_over, until_written};
use rota_consensus::StartError;
use rota_protocol::{ErrorCode, HostId};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::time::sleep;

const PATIENCE: Duration = Duration::from_secs(20);

fn io(error: std::io::Error) -> Failure {
    format!("the lab failed: {error}")
}

/// The newest segment of a host that is off.
fn last_segment(dir: &Path) -> Result<PathBuf, Failure> {
    let segments = files_below(dir).map_err(io)?.into_iter().map(|(path, _)| path);
    let newest = segments.filter(|path| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.starts_with("log-")
    });
    newest.max().ok_or_else(|| "no segment".into())
}

/// Where the log's last record ends: behind it there are zeros.
fn end_of(bytes: &[u8]) -> usize {
    bytes.iter().rposition(|byte| *byte != 0).map_or(64, |at| at + 1)
}

pub(super) async fn torn_tails(attempt: &mut Attempt) -> Result<(), Failure> {
    let (mut lab, leader) = at_work(attempt, 3, 2).await?;
    let victim = lab.others(leader)[0];
    lab.rest().await;
    lab.settled(PATIENCE).await?;
    lab.crash(victim)?;
    let (file, files) = (last_segment(&lab.files(victim))?, lab.files(victim));
    let whole = std::fs::read(&file).map_err(io)?;
    let end = end_of(&whole);
    // What was never durable is torn: bytes behind the end that are a part of a record, of any length.
    let record = whole[end.saturating_sub(120)..end].to_vec();
    let began = lab.now_ms();
    for torn in (1..record.len()).step_by(7) {
        let mut bytes = whole.clone();
        let place = end.next_multiple_of(8);
        bytes[place..place + torn].copy_from_slice(&record[..torn]);
        std::fs::write(&file, &bytes).map_err(io)?;
        lab.start(victim).await.map_err(|error| format!("torn after {torn} bytes: {error}"))?;
        attempt.exercised = true;
        lab.crash(victim)?;
        // Its files have moved on with its life.
        let next = last_segment(&lab.files(victim))?;
        std::fs::write(&next, &whole).map_err(io)?;
        attempt.must(files != lab.files(victim), || "the lab did not begin a new life".into());
        std::fs::write(last_segment(&lab.files(victim))?, &whole).map_err(io)?;
        return_to(&file, &next)?;
    }
    lab.start(victim).await.map_err(|error| error.to_string())?;
    let took = until_written(&lab, &[victim]).await?;
    attempt.took(took);
    lab.ground.trace.note(format_args!("torn tails from {began}"));
    attempt.close(lab).await.map(|_| ())
}

/// The next life is tried on the same file.
fn return_to(file: &Path, next: &Path) -> Result<(), Failure> {
    std::fs::copy(next, file).map(|_| ()).map_err(io)
}

/// Starts a host whose files were damaged; says whether it refused for that reason.
async fn refuses(lab: &mut Lab, host: HostId) -> Result<bool, Failure> {
    match lab.start(host).await {
        Ok(()) => {
            lab.crash(host)?;
            Ok(false)
        }
        Err(StartError::Log(_) | StartError::Snapshot(_)) => Ok(true),
        Err(other) => Err(format!("another reason: {other}")),
    }
}

pub(super) async fn bit_flips(attempt: &mut Attempt) -> Result<(), Failure> {
    let mut plan = attempt.plan(3);
    plan.snapshot_entries = (25, 5);
    let mut lab = Lab::of(&plan).await?;
    lab.load(3);
    sleep(Duration::from_secs(3)).await;
    lab.rest().await;
    let victim = lab.others(lab.leader(PATIENCE).await?)[0];
    lab.crash(victim)?;
    let dir = lab.files(victim);
    for (path, _) in files_below(&dir).map_err(io)? {
        // Leftovers are gone with the first try to start.
        let Ok(whole) = std::fs::read(&path) else { continue };
        let is_log = path.extension().is_some_and(|end| end == "seg");
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
        let counts = is_log && name.starts_with("log-") || name.ends_with(".snap");
        if !counts || whole.len() < 64 {
            continue;
        }
        // Of the log all but the last record was told to be durable by a later one.
        let last = if is_log { end_of(&whole).saturating_sub(600) } else { whole.len() };
        for _ in 0..6 {
            let at = lab.rng.below(last as u64) as usize;
            if is_log && padding(&whole, at) {
                continue;
            }
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << lab.rng.below(8);
            std::fs::write(&path, &bytes).map_err(io)?;
            let before = lab.files(victim);
            let refused = refuses(&mut lab, victim).await?;
            attempt.exercised = true;
            attempt.must(refused, || format!("D2: a turned bit at {at} of {name} was not seen"));
            if before != lab.files(victim) {
                // It started: what follows would be tried on other files.
                return Err(format!("D2: host {victim} started on a turned bit at {at} of {name}"));
            }
        }
        std::fs::write(&path, &whole).map_err(io)?;
    }
    lab.start(victim).await.map_err(|error| error.to_string())?;
    attempt.close(lab).await.map(|_| ())
}

/// Zeros between the records of a log carry nothing: those behind a payload, up to a multiple of 8.
fn padding(log: &[u8], at: usize) -> bool {
    const HEADER: usize = 16;
    let mut record = 64;
    while let Some(length) = log.get(record..record + 4).and_then(|bytes| bytes.try_into().ok()) {
        let end = record + HEADER + u32::from_le_bytes(length) as usize;
        let next = end.next_multiple_of(8);
        if at < next {
            return at >= end;
        }
        record = next;
    }
    false
}

/// Turns a byte in the middle of a host's log.
fn damage(lab: &Lab, host: HostId) -> Result<(), Failure> {
    let file = last_segment(&lab.files(host))?;
    let mut bytes = std::fs::read(&file).map_err(io)?;
    // Kind and length of the first record: never padding.
    bytes[64 + 12] ^= 0x40;
    std::fs::write(&file, bytes).map_err(io)
}

pub(super) async fn majority_damaged(attempt: &mut Attempt) -> Result<(), Failure> {
    let (mut lab, leader) = at_work(attempt, 3, 2).await?;
    lab.rest().await;
    let victims = lab.others(leader);
    for victim in &victims {
        lab.crash(*victim)?;
        damage(&lab, *victim)?;
    }
    for victim in &victims {
        let refused = refuses(&mut lab, *victim).await?;
        attempt.must(refused, || format!("D3: host {victim} started on a damaged log"));
    }
    attempt.exercised = true;
    sleep(Duration::from_secs(2)).await;
    let door = lab.door(leader)?;
    let confirmed = door.chance.scope(door.peer.confirm_quorum()).await;
    attempt.must(confirmed.is_err(), || "D3: the last of three still serves".into());
    attempt.judge(lab);
    Ok(())
}

pub(super) async fn forgetful(attempt: &mut Attempt) -> Result<(), Failure> {
    let (mut lab, _) = at_work(attempt, 3, 6).await?;
    for peer in lab.peers.values() {
        if let Some(disk) = peer.disk() {
            // Much is under way when the power goes.
            disk.ail(|ills| ills.sync_us = Some((5_000, 30_000)));
        }
    }
    sleep(Duration::from_millis(700)).await;
    let took = all_off_and_on(&mut lab).await?;
    attempt.took(took);
    let reach = attempt.close(lab).await?;
    attempt.exercised = reach.contains_key("what was not synced was lost or torn");
    Ok(())
}

/// Something befalls the leader's disk; until the others commit, in virtual ms.
async fn until_replaced(
    attempt: &mut Attempt,
    ail: impl FnOnce(&mut super::super::disk::Ills),
) -> Result<(Lab, HostId), Failure> {
    let (lab, leader) = at_work(attempt, 3, 3).await?;
    if let Some(disk) = lab.peers.get(&leader).and_then(|peer| peer.disk()) {
        disk.ail(ail);
    }
    let door = lab.door(leader)?;
    lab.until(PATIENCE, "failure", || door.peer.failed().borrow().is_some().then_some(())).await?;
    Ok((lab, leader))
}

pub(super) async fn sync_fails(attempt: &mut Attempt) -> Result<(), Failure> {
    let (mut lab, leader) = until_replaced(attempt, |ills| ills.sync_fails = true).await?;
    // The product's process ends when its agreement has failed.
    let rest = lab.others(leader);
    lab.crash(leader)?;
    let took = until_written(&lab, &rest).await?;
    attempt.took(took);
    lab.start(leader).await.map_err(|error| error.to_string())?;
    attempt.close(lab).await.map(|_| ())
}

pub(super) async fn read_only(attempt: &mut Attempt) -> Result<(), Failure> {
    let (mut lab, leader) = until_replaced(attempt, |ills| ills.read_only = true).await?;
    let rest = lab.others(leader);
    lab.crash(leader)?;
    let took = until_written(&lab, &rest).await?;
    attempt.took(took);
    lab.start(leader).await.map_err(|error| error.to_string())?;
    attempt.close(lab).await.map(|_| ())
}

pub(super) async fn full(attempt: &mut Attempt) -> Result<(), Failure> {
    let mut plan = attempt.plan(3);
    plan.segment_bytes = 16 << 10;
    let mut lab = Lab::of(&plan).await?;
    lab.load(4);
    let leader = lab.leader(PATIENCE).await?;
    let disk = lab.peers.get(&leader).and_then(|peer| peer.disk()).cloned().ok_or("no disk")?;
    disk.ail(|ills| ills.full = true);
    let door = lab.door(leader)?;
    lab.until(PATIENCE, "full disk", || door.peer.status().storage_full.then_some(())).await?;
    let refused = lab.propose(leader, vec![super::raft::submission(900_001)]).await;
    let code = refused.err().map(|error| error.code);
    attempt.must(code == Some(ErrorCode::StorageFull), || format!("D6: a full disk answers {code:?}"));
    let still = door.chance.scope(door.peer.confirm_quorum()).await;
    attempt.must(still.is_ok(), || "D6: the leader lost its quorum over a full disk".into());
    disk.ail(|ills| ills.full = false);
    let took = until_written(&lab, &lab.ids()).await?;
    attempt.took(took);
    attempt.must(door.peer.failed().borrow().is_none(), || "D6: the peer gave up".into());
    attempt.close(lab).await.map(|_| ())
}

pub(super) async fn slow_leader(attempt: &mut Attempt) -> Result<(), Failure> {
    let (lab, leader) = at_work(attempt, 3, 4).await?;
    let from = lab.now_ms();
    let disk = lab.peers.get(&leader).and_then(|peer| peer.disk()).cloned().ok_or("no disk")?;
    disk.ail(|ills| ills.sync_us = Some((150_000, 250_000)));
    sleep(Duration::from_secs(5)).await;
    disk.stall(Duration::from_secs(5));
    sleep(Duration::from_secs(8)).await;
    attempt.took(lab.clients.history.longest_gap(from, lab.now_ms()));
    disk.ail(|ills| ills.sync_us = None);
    attempt.close(lab).await.map(|_| ())
}

pub(super) async fn slow_follower(attempt: &mut Attempt) -> Result<(), Failure> {
    let (mut lab, leader) = at_work(attempt, 3, 0).await?;
    let slow = lab.others(leader)[0];
    // Whoever asks the slow one itself waits for it.
    lab.load_at(4, &lab.others(slow));
    let disk = lab.peers.get(&slow).and_then(|peer| peer.disk()).cloned().ok_or("no disk")?;
    disk.ail(|ills| ills.sync_us = Some((1_500_000, 2_500_000)));
    gap_over(attempt, &lab, Duration::from_secs(10)).await;
    disk.ail(|ills| ills.sync_us = None);
    attempt.close(lab).await.map(|_| ())
}

pub(super) async fn stale_block(attempt: &mut Attempt) -> Result<(), Failure> {
    let (mut lab, leader) = at_work(attempt, 3, 3).await?;
    lab.rest().await;
    let victim = lab.others(leader)[0];
    lab.crash(victim)?;
    let file = last_segment(&lab.files(victim))?;
    let whole = std::fs::read(&file).map_err(io)?;
    let end = end_of(&whole);
    if end < 4_096 {
        return Err(format!("not exercised: the log has only {end} bytes"));
    }
    // A sector as it was before it was written, and one that belongs elsewhere.
    for (from, to) in [(whole.len() - 512, 1_024), (512, 2_048)] {
        let mut bytes = whole.clone();
        bytes.copy_within(from..from + 512, to);
        std::fs::write(&file, &bytes).map_err(io)?;
        let refused = refuses(&mut lab, victim).await?;
        attempt.must(refused, || format!("D10: an old block at {to} was not seen"));
        attempt.exercised = true;
    }
    std::fs::write(&file, &whole).map_err(io)?;
    lab.start(victim).await.map_err(|error| error.to_string())?;
    attempt.close(lab).await.map(|_| ())
}

pub(super) async fn damaged_snapshots(attempt: &mut Attempt) -> Result<(), Failure> {
    // Over QUIC damage never comes that far.
    attempt.way = Way::Direct;
    let mut plan = attempt.plan(3);
    plan.snapshot_entries = (30, 5);
    let mut lab = Lab::of(&plan).await?;
    let leader = lab.leader(PATIENCE).await?;
    let behind = lab.others(leader)[0];
    lab.crash(behind)?;
    lab.load(4);
    let snapshot = || lab.door(leader).ok().filter(|door| door.peer.status().snapshot > 60).map(|_| ());
    lab.until(PATIENCE, "snapshot", snapshot).await?;
    lab.rest().await;
    let damaging = Weather { flip_permille: 700, ..Weather::FAIR };
    lab.ground.air.weather_on(leader, behind, damaging);
    lab.start(behind).await.map_err(|error| error.to_string())?;
    let (began, door) = (lab.now_ms(), lab.door(behind)?);
    let goal = lab.door(leader)?.peer.status().applied;
    lab.until(PATIENCE, "host that is even", || (door.peer.status().applied >= goal).then_some(())).await?;
    attempt.took(lab.now_ms() - began);
    let reach = attempt.close(lab).await?;
    attempt.exercised = reach.contains_key("a bit turned");
    Ok(())
}
