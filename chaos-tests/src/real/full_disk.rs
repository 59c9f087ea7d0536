//! Disks that take no more (faults D6, D7, report R072): small file systems of the hosts' own are filled or turn
//! read-only. One such host costs the cluster its lead at most; when all are full, votes go on, no write is
//! acknowledged, and all is well again when there is room.

use super::Bench;
use super::mounts::{Mounted, cannot_mount};
use super::report::{Report, Verdict};
use super::traffic::{Traffic, waits};
use rota_node::lab::{Lab, LabError, new_request, wait_for};
use rota_node::lab_work::Stubborn;
use rota_protocol::api::{ApiReply, ApiRequest, Freshness};
use rota_protocol::error::{ErrorCode, PublicError};
use rota_protocol::ids::HostId;
use rota_protocol::job::JobSpec;
use rustix::process::Signal;
use std::cell::RefCell;
use std::path::Path;
use std::time::{Duration, Instant};

/// Size of each host's own file system, in MiB: the log's segments, two snapshots of all the heavy jobs, and room to be
/// filled.
const DISK_MIB: u64 = 320;
/// Environment of a job that is to weigh, in pieces that an environment takes.
const PIECES: usize = 8;
const PIECE_BYTES: usize = 100 << 10;
/// So many of them are more than the log has room for.
const HEAVY_MAX: usize = 60;
/// Submits that must go through while one disk is full (R072).
const LIGHT: usize = 100;
/// Longest time until another peer leads, counted from the refusal that the full disk made, in ms (R072: 10 s).
const GAP_MS_MAX: u64 = 5_000;
/// Longest time from the room that came back until the host, or the cluster, is as before, in ms (D6).
const RECOVERS_MS_MAX: u64 = 2_000;
/// Longest gap when the leader's disk turns read-only, in ms: its agent ends, the others elect.
const READ_ONLY_GAP_MS_MAX: u64 = 2_500;
/// The hosts' folders hold little room from the beginning.
const SETTINGS: &str = "[output]\ndisk_floor = \"1MiB\"\n";

fn heavy(name: &str) -> JobSpec {
    let mut spec = waits(name);
    let piece = |number: usize| (format!("WEIGHT_{number}").into_bytes(), vec![b'x'; PIECE_BYTES]);
    spec.env.extend((0..PIECES).map(piece));
    spec
}

/// A cluster whose hosts have file systems of their own.
async fn small_lab(
    bench: &Bench,
    name: &str,
    mount: fn(&Path, u64) -> Result<Mounted, LabError>,
) -> Result<(Vec<Mounted>, Lab), LabError> {
    let mounts = RefCell::new(Ok(Vec::new()));
    let lab = bench
        .lab(name, 3, |options| {
            options.config = Some(SETTINGS.into());
            let places = (1..=3).map(|number| options.dir.join(format!("n{number}")));
            *mounts.borrow_mut() = places.map(|place| mount(&place, DISK_MIB)).collect::<Result<Vec<_>, _>>();
        })
        .await;
    // Without its file systems the lab would have filled the machine's disk; they are looked at first.
    Ok((mounts.into_inner()?, lab?))
}

/// D6: the leader's disk is full, then all are.
pub(super) async fn no_room(bench: &Bench) -> Result<Report, LabError> {
    if let Some(why) = cannot_mount() {
        return Ok(Report::new("D6", Verdict::NotExercised(why.into())));
    }
    let (mut violations, mut figures) = (Vec::new(), Figures::default());
    for round in 0..bench.rounds {
        let (mounts, mut lab) = small_lab(bench, "D6", Mounted::tmpfs).await?;
        let mut traffic = Traffic::default();
        let mut found = leader_full(&lab, &mounts, &mut traffic, &mut figures).await?;
        found.extend(all_full(&mut lab, &mounts, &mut figures).await?);
        found.extend(traffic.judge(&lab, &mut Stubborn::new(&lab, 0)).await?);
        violations.extend(found.into_iter().map(|what| format!("round {round}: {what}")));
        drop(lab);
    }
    Ok(Report::of("D6", bench.rounds, &violations)
        .figure("moved_after_ms", figures.moved_ms, Some(GAP_MS_MAX))
        .figure("host_back_after_ms", figures.host_back_ms, Some(RECOVERS_MS_MAX))
        .figure("voted_while_full_ms", figures.elected_ms, Some(READ_ONLY_GAP_MS_MAX))
        .figure("writes_back_after_ms", figures.writes_back_ms, Some(RECOVERS_MS_MAX)))
}

#[derive(Debug, Default)]
struct Figures {
    moved_ms: u64,
    host_back_ms: u64,
    elected_ms: u64,
    writes_back_ms: u64,
}

fn ms(since: Instant) -> u64 {
    since.elapsed().as_millis() as u64
}

/// One full disk: the others go on, and the host is back by itself.
async fn leader_full(
    lab: &Lab,
    mounts: &[Mounted],
    traffic: &mut Traffic,
    figures: &mut Figures,
) -> Result<Vec<String>, LabError> {
    let mut violations = Vec::new();
    let leader = lab.leader().await?;
    let mut client = Stubborn::without(lab, leader);
    let filler = mounts[leader].fill()?;
    let mut now = leader;
    let mut asked = Instant::now();
    for number in 0..HEAVY_MAX {
        // The one during which the leader finds no room for another segment is told as the time that the move took.
        asked = Instant::now();
        let name = format!("heavy-{number}");
        let job = client.submit_as(new_request(), heavy(&name), Duration::from_secs(20)).await?;
        traffic.note(name, job);
        now = lab.leader().await?;
        if now != leader {
            break;
        }
    }
    figures.moved_ms = figures.moved_ms.max(ms(asked));
    if now == leader {
        violations.push("not exercised: a leader without room went on leading".into());
    }
    for number in 0..LIGHT {
        let name = format!("light-{number}");
        let job = client.submit_as(new_request(), waits(&name), Duration::from_secs(10)).await?;
        traffic.note(name, job);
    }
    let applied = lab.cluster().await?.applied;
    std::fs::remove_file(filler).map_err(|e| LabError::Io("cannot empty a disk".into(), e))?;
    let freed = Instant::now();
    wait_for("the full host to catch up", Duration::from_secs(20), async || {
        let client = lab.peers[leader].client().await.ok()?;
        client.call(ApiRequest::Digest { at_least: applied }).await.ok()
    })
    .await?;
    figures.host_back_ms = figures.host_back_ms.max(ms(freed));
    Ok(violations)
}

/// All disks full: no write is acknowledged, a vote is written.
async fn all_full(lab: &mut Lab, mounts: &[Mounted], figures: &mut Figures) -> Result<Vec<String>, LabError> {
    let mut violations = Vec::new();
    let fillers = mounts.iter().map(Mounted::fill).collect::<Result<Vec<_>, _>>()?;
    let mut client = Stubborn::new(lab, 0);
    client.storage_full_passes = false;
    let mut refused = None;
    for number in 0..HEAVY_MAX {
        let spec = heavy(&format!("full-{number}"));
        if let Err(error) = client.submit_as(new_request(), spec, Duration::from_secs(5)).await {
            refused = Some(error.code);
            break;
        }
    }
    // A leader that has room left for what its followers have none for cannot tell at first what becomes of it, and the
    // client asks again; but from then on it refuses by name.
    if refused != Some(ErrorCode::StorageFull) {
        violations.push(format!("full disks were answered with {refused:?}"));
    }
    // Nothing may be certain now, not even a read: a leader that was elected while the last entries were under way has
    // them before its own, and its followers take neither. That it leads is known all the same.
    let (term, leader) = newest_term(lab, lab.peers.len()).await;
    let leader = leader.and_then(|leader| lab.peers.iter().position(|peer| peer.host == leader));
    let leader =
        leader.ok_or_else(|| LabError::from(PublicError::new(ErrorCode::NoLeader, "nobody leads")))?;
    let killed = Instant::now();
    lab.signal(leader, Signal::KILL)?;
    // What the new leader lacks room for it cannot commit; but it was voted for, and the votes are on the disks.
    let voted = wait_for("votes on full disks", Duration::from_secs(20), async || {
        (newest_term(lab, leader).await.0 > term).then_some(())
    });
    if voted.await.is_err() {
        violations.push("no vote could be written on full disks".into());
    }
    figures.elected_ms = figures.elected_ms.max(ms(killed));
    for filler in fillers {
        std::fs::remove_file(filler).map_err(|e| LabError::Io("cannot empty a disk".into(), e))?;
    }
    let freed = Instant::now();
    let mut client = Stubborn::without(lab, leader);
    client.submit_as(new_request(), waits("room again"), Duration::from_secs(20)).await?;
    figures.writes_back_ms = figures.writes_back_ms.max(ms(freed));
    lab.spawn(leader)?;
    lab.until_up(3).await?;
    Ok(violations)
}

/// The newest term that any peer but this one knows, and who leads in it.
async fn newest_term(lab: &Lab, but: usize) -> (u64, Option<HostId>) {
    let mut newest = (0, None);
    for (_, peer) in lab.peers.iter().enumerate().filter(|(number, _)| *number != but) {
        let Ok(client) = peer.client().await else { continue };
        let ask = ApiRequest::Cluster { freshness: Freshness::Stale };
        if let Ok(ApiReply::Cluster(view)) = client.call(ask).await {
            newest = newest.max((view.term, view.leader));
        }
    }
    newest
}

/// D7: the leader's file system turns read-only, as ext4 does after an error of its device.
pub(super) async fn read_only(bench: &Bench) -> Result<Report, LabError> {
    if let Some(why) = cannot_mount() {
        return Ok(Report::new("D7", Verdict::NotExercised(why.into())));
    }
    let (mut violations, mut gap_max, mut back_max) = (Vec::new(), 0, 0);
    for round in 0..bench.rounds {
        let (mut mounts, mut lab) = small_lab(bench, "D7", Mounted::ext4).await?;
        let leader = lab.leader().await?;
        let mut client = Stubborn::without(&lab, leader);
        client.patience = Duration::from_millis(1_000);
        let mut traffic = Traffic::default();
        traffic.run(&mut client, Instant::now() + Duration::from_millis(500), waits).await?;
        mounts[leader].turn_read_only()?;
        traffic.gap_max_ms = 0;
        traffic.run(&mut client, Instant::now() + Duration::from_secs(4), waits).await?;
        gap_max = gap_max.max(traffic.gap_max_ms);
        let ended = wait_for("the end of the agent", Duration::from_secs(10), async || lab.exited(leader));
        match ended.await {
            Ok(status) if !status.success() => {}
            other => violations.push(format!("round {round}: an agent that cannot write goes on: {other:?}")),
        }
        let mount = mounts.remove(leader);
        mounts.insert(leader, mount.mend()?);
        let mended = Instant::now();
        lab.spawn(leader)?;
        lab.until_answers(leader).await?;
        let show = ApiRequest::Cluster { freshness: Freshness::Linearizable };
        match lab.peers[leader].client().await?.call(show).await {
            Ok(ApiReply::Cluster(view)) if view.linearizable => back_max = back_max.max(ms(mended)),
            other => violations.push(format!("round {round}: the mended host answers {other:?}")),
        }
        violations.extend(traffic.judge(&lab, &mut client).await?);
        drop(lab);
    }
    Ok(Report::of("D7", bench.rounds, &violations)
        .figure("gap_max_ms", gap_max, Some(READ_ONLY_GAP_MS_MAX))
        .figure("back_after_mending_ms", back_max, None))
}
