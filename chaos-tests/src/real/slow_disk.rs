//! A leader on a disk that has become slow (fault D8): the kernel's own throttle holds up every write of that one agent.
//! It hands over before anybody calls, and does not come back while the disk is slow.

use super::Bench;
use super::report::{Report, Verdict};
use super::traffic::{Traffic, waits};
use rota_node::lab::{Lab, LabError, wait_for};
use rota_node::lab_work::Stubborn;
use rota_protocol::api::{ApiReply, ApiRequest, Freshness};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The throttle of the first version of control groups, where it is mounted.
const THROTTLES: &str = "/sys/fs/cgroup/blkio";
/// Operations a second that the disk takes: an fsync is two or three of them.
const OPERATIONS: [u32; 2] = [5, 1];
/// Longest time until another peer leads, in ms (D8).
const MOVED_MS_MAX: u64 = 5_000;
/// Longest wait of a client for one acknowledgement meanwhile, in ms.
const GAP_MS_MAX: u64 = 5_000;
/// How long the slow peer is watched afterwards.
const WATCHED: Duration = Duration::from_secs(5);

/// One agent under the throttle.
#[derive(Debug)]
pub(super) struct Throttle {
    group: PathBuf,
}

impl Throttle {
    /// Why there is none here.
    pub(super) fn missing(dir: &Path) -> Option<String> {
        let file = Path::new(THROTTLES).join("blkio.throttle.write_iops_device");
        if !rustix::process::geteuid().is_root() || !file.exists() {
            return Some(format!("needs root and {}", file.display()));
        }
        let device = std::fs::metadata(dir).ok()?.dev();
        (rustix::fs::major(device) == 0)
            .then(|| format!("{} lies on no disk that can be throttled", dir.display()))
    }

    pub(super) fn around(pid: u32, dir: &Path, operations: u32) -> std::io::Result<Self> {
        let group = Path::new(THROTTLES).join(format!("rota-slow-{pid}"));
        std::fs::create_dir_all(&group)?;
        let throttle = Self { group };
        let device = std::fs::metadata(dir)?.dev();
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        let limit = throttle.group.join("blkio.throttle.write_iops_device");
        std::fs::write(limit, format!("{major}:{minor} {operations}"))?;
        std::fs::write(throttle.group.join("cgroup.procs"), pid.to_string())?;
        Ok(throttle)
    }
}

impl Drop for Throttle {
    fn drop(&mut self) {
        let inside = std::fs::read_to_string(self.group.join("cgroup.procs")).unwrap_or_default();
        for pid in inside.lines() {
            let _ = std::fs::write(Path::new(THROTTLES).join("cgroup.procs"), pid);
        }
        let _ = std::fs::remove_dir(&self.group);
    }
}

/// D8: the leader's disk becomes slow under submits.
pub(super) async fn leader_on_a_slow_disk(bench: &Bench) -> Result<Report, LabError> {
    if let Some(why) = Throttle::missing(&bench.dir) {
        return Ok(Report::new("D8", Verdict::NotExercised(why)));
    }
    let (mut violations, rounds) = (Vec::new(), bench.rounds * OPERATIONS.len());
    let (mut moved_max, mut gap_max, mut after_max) = (0, 0, 0);
    for round in 0..rounds {
        // A cluster of its own each time: a peer that was slow leaves the lead to others for a minute.
        let lab = bench.lab("D8", 3, |_| {}).await?;
        let leader = lab.leader().await?;
        let mut client = Stubborn::without(&lab, leader);
        let pid = lab.peers[leader].pid().unwrap_or_default();
        let operations = OPERATIONS[round % OPERATIONS.len()];
        let throttle = Throttle::around(pid, &bench.dir, operations)
            .map_err(|e| LabError::Io("cannot throttle an agent".into(), e))?;
        let (mut traffic, began) = (Traffic::default(), Instant::now());
        let (others, moved) =
            tokio::join!(traffic.run(&mut client, began + WATCHED, waits), moved_from(&lab, leader, began));
        others?;
        match moved {
            Some(ms) => moved_max = moved_max.max(ms),
            None => violations
                .push(format!("round {round}: nobody took over at {operations} operations a second")),
        }
        gap_max = gap_max.max(std::mem::take(&mut traffic.gap_max_ms));
        let until = Instant::now() + WATCHED;
        while Instant::now() < until {
            traffic.run(&mut client, Instant::now() + Duration::from_millis(500), waits).await?;
            if leads_among_others(&lab, leader).await == Some(leader) {
                violations.push(format!("round {round}: the slow peer leads again"));
                break;
            }
        }
        after_max = after_max.max(traffic.gap_max_ms);
        drop(throttle);
        violations.extend(traffic.judge(&lab, &mut client).await?);
    }
    Ok(Report::of("D8", rounds, &violations)
        .figure("moved_after_ms", moved_max, Some(MOVED_MS_MAX))
        .figure("gap_max_ms", gap_max, Some(GAP_MS_MAX))
        .figure("gap_afterwards_ms", after_max, None))
}

/// When another peer came to lead, in ms.
async fn moved_from(lab: &Lab, leader: usize, began: Instant) -> Option<u64> {
    let limit = Duration::from_millis(MOVED_MS_MAX * 2);
    let moved = wait_for("another leader", limit, async || {
        (leads_among_others(lab, leader).await? != leader).then_some(())
    });
    moved.await.ok().map(|()| began.elapsed().as_millis() as u64)
}

/// Who leads as the other peers know it: the slow one takes its time with every answer.
async fn leads_among_others(lab: &Lab, slow: usize) -> Option<usize> {
    let at = (slow + 1) % lab.peers.len();
    let ask = ApiRequest::Cluster { freshness: Freshness::Linearizable };
    match lab.peers[at].client().await.ok()?.call(ask).await.ok()? {
        ApiReply::Cluster(view) if view.linearizable => {
            let leader = view.leader?;
            lab.peers.iter().position(|peer| peer.host == leader)
        }
        _ => None,
    }
}
