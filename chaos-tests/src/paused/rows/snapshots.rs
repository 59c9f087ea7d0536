//! The row of snapshots that are not what they say: D11b. The sender is the leader itself, so nothing but the receiver's own
//! checks stands between them and the state.

use super::super::lab::{Failure, Lab};
use super::Attempt;
use super::net::until_written;
use rota_consensus::inspect::{piece_taken, reseal_snapshot};
use rota_protocol::HostId;
use rota_protocol::peer::{PeerReply, PeerRequest};
use std::time::Duration;
use tokio::time::sleep;

const PATIENCE: Duration = Duration::from_secs(20);

/// What is sent: its name, its bytes, and the length that is announced.
type Forgery = (&'static str, Vec<u8>, u64);

fn forgeries(whole: &[u8]) -> Vec<Forgery> {
    let len = whole.len() as u64;
    let changed = |at: usize, bytes: &[u8]| {
        let mut forged = whole.to_vec();
        forged[at..at + bytes.len()].copy_from_slice(bytes);
        reseal_snapshot(&mut forged);
        forged
    };
    let short = |len: usize| whole[..len].to_vec();
    vec![
        ("cut in half", short(whole.len() / 2), len / 2),
        ("without its last byte", short(whole.len() - 1), len - 1),
        ("shorter than its header", short(40), 40),
        ("announced whole and never sent so", short(whole.len() / 2), len),
        ("with a wrong checksum of its body", changed(44, &[whole[44] ^ 1]), len),
        ("with a wrong checksum of its meta", changed(40, &[whole[40] ^ 1]), len),
        ("with a turned bit in its body", changed(whole.len() - 9, &[whole[whole.len() - 9] ^ 4]), len),
        ("of another cluster", changed(16, &0xbad_u128.to_le_bytes()), len),
        ("of a newer format", changed(8, &99_u16.to_le_bytes()), len),
        ("with a body of 2^60 bytes by its header", changed(32, &(1_u64 << 60).to_le_bytes()), len),
        ("with a meta of 4 GiB by its header", changed(12, &u32::MAX.to_le_bytes()), len),
        ("announced as 2^60 bytes", whole.to_vec(), 1 << 60),
        ("announced as all bytes there are", whole.to_vec(), u64::MAX),
        ("of zeros", vec![0; whole.len()], len),
    ]
}

/// Sends all of it and asks whether it is installed.
async fn sent(lab: &Lab, (from, to): (HostId, HostId), pieces: Vec<PeerRequest>) -> Result<bool, Failure> {
    let door = lab.door(to)?;
    for _ in 0..20 {
        let mut last = None;
        for piece in &pieces {
            match door.chance.scope(door.peer.handle(from, piece.clone())).await {
                PeerReply::Refused(_) => return Ok(false),
                reply => last = piece_taken(&reply),
            }
        }
        match last {
            Some((_, true)) => return Ok(true),
            // It begins anew, or waits for what never comes.
            _ => sleep(Duration::from_millis(50)).await,
        }
    }
    Ok(false)
}

pub(super) async fn forged(attempt: &mut Attempt) -> Result<(), Failure> {
    let mut plan = attempt.plan(3);
    plan.snapshot_entries = (25, 5);
    let mut lab = Lab::of(&plan).await?;
    lab.load(3);
    let leader = lab.leader(PATIENCE).await?;
    let taken = || lab.door(leader).ok().filter(|door| door.peer.status().snapshot > 30).map(|_| ());
    lab.until(PATIENCE, "snapshot", taken).await?;
    let old = std::fs::read(lab.files(leader).join("snapshot.snap")).map_err(|error| error.to_string())?;
    sleep(Duration::from_secs(2)).await;
    lab.rest().await;
    lab.settled(PATIENCE).await?;
    let victim = lab.others(leader)[0];
    let sender = lab.door(leader)?.peer.clone();
    let whole = std::fs::read(lab.files(leader).join("snapshot.snap")).map_err(|error| error.to_string())?;
    let before = lab.door(victim)?.peer.fingerprint();
    for (what, bytes, total) in forgeries(&whole) {
        let installed = sent(&lab, (leader, victim), sender.pieces_of(&bytes, total)).await?;
        attempt.exercised = true;
        attempt.must(!installed, || format!("D11: a snapshot {what} was installed"));
        let after = lab.door(victim)?.peer.fingerprint();
        attempt.must(after == before, || format!("D11: a snapshot {what} changed the state"));
        let failed = lab.door(victim)?.peer.failed().borrow().clone();
        attempt.must(failed.is_none(), || format!("D11: a snapshot {what} ended the peer: {failed:?}"));
    }
    // One that is sound and older than the log: whatever it is answered, nothing goes back.
    let stale = sender.pieces_of(&old, old.len() as u64);
    sent(&lab, (leader, victim), stale).await?;
    let after = lab.door(victim)?.peer.fingerprint();
    attempt.must(after == before, || {
        format!("D11: an old snapshot took the state from {before:?} to {after:?}")
    });
    let took = until_written(&lab, &[victim]).await?;
    attempt.took(took);
    attempt.close(lab).await.map(|_| ())
}
