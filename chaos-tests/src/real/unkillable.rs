//! Processes that cannot be killed (fault T2, field report R052): in a frozen control group, as if a driver held them.

use super::Bench;
use super::agent_death::show;
use super::ends::{cancel, until};
use super::row::Row;
use rota_node::io::proc;
use rota_node::lab::{Lab, LabError, wait_for};
use rota_node::lab_work::{Stubborn, shell_job, true_job, with_gpus};
use rota_protocol::api::{ApiReply, ApiRequest, Freshness};
use rota_protocol::device::DeviceHealth;
use rota_protocol::job::JobState;
use rota_protocol::view::{DeviceRow, HostState};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Grace, kill budget, and one look of the host at its devices, in ms.
const TOLD_MS: u64 = 500 + 600 + 1_000;
/// From the thaw until everything is back, in ms.
const BACK_MS: u64 = 5_000;
/// Longest wait for anything that a lab should do.
const LIMIT: Duration = Duration::from_secs(30);

/// A group that is frozen: KILL waits there until it thaws.
struct Frozen(PathBuf);

impl Frozen {
    /// Freezes these processes; none where the kernel has no freezer of the old kind, or lets us not use it.
    fn new(name: &str, pids: &[i32]) -> Option<Self> {
        let dir = PathBuf::from("/sys/fs/cgroup/freezer").join(format!("{name}-{}", std::process::id()));
        std::fs::create_dir(&dir).ok()?;
        let frozen = Self(dir);
        for pid in pids {
            std::fs::write(frozen.0.join("cgroup.procs"), pid.to_string()).ok()?;
        }
        std::fs::write(frozen.0.join("freezer.state"), "FROZEN").ok()?;
        let is = |state: &str| {
            std::fs::read_to_string(frozen.0.join("freezer.state")).is_ok_and(|text| text.trim() == state)
        };
        for _ in 0..200 {
            if is("FROZEN") {
                return Some(frozen);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        None
    }

    fn thaw(&self) {
        let _ = std::fs::write(self.0.join("freezer.state"), "THAWED");
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        self.thaw();
        for _ in 0..200 {
            if std::fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

async fn devices(lab: &Lab) -> Result<Vec<DeviceRow>, LabError> {
    match lab.ask(ApiRequest::Devices { freshness: Freshness::Linearizable }).await? {
        ApiReply::Devices { rows, .. } => Ok(rows),
        other => {
            let message = format!("unexpected reply {other:?}");
            Err(rota_protocol::PublicError::new(rota_protocol::ErrorCode::Internal, message).into())
        }
    }
}

/// T2: the card under what cannot be killed is dirty, with a reason; the host's other card goes on working; the job says
/// that it is ending and where; all of it is back by itself after the thaw.
pub(super) async fn frozen(bench: &Bench) -> Result<Row, LabError> {
    let lab = bench.lab("T2", 1, |options| options.sim_gpus = Some("2xH100:80GiB".into())).await?;
    let mut client = Stubborn::new(&lab, 0);
    let what = "processes that cannot be killed: from cancel to the card shown dirty; other cards work, all comes back";
    let mut row = Row::new("T2", what, Some(TOLD_MS));
    for round in 0..bench.rounds {
        let job = client.submit(with_gpus(shell_job("stuck", "sleep 9999 & sleep 9998"), 1)).await?;
        let runs = |view: &rota_protocol::view::JobView| view.attempts.iter().any(|a| a.pid.is_some());
        let view = until(&mut client, job, "a run", runs).await?;
        let attempt = view.attempts.first();
        let Some((pid, card)) =
            attempt.and_then(|a| Some((i32::try_from(a.pid?).ok()?, a.devices.first()?.uuid.clone())))
        else {
            row.wrong(format!("round {round}: no process or card in {:?}", view.attempts));
            continue;
        };
        let mut pids = proc::descendants(pid).unwrap_or_default();
        pids.push(pid);
        let Some(group) = Frozen::new(&format!("rota-t2-{round}"), &pids) else {
            cancel(&mut client, job).await?;
            return Ok(row.skip("no freezer of control groups that this user may write"));
        };
        let asked = Instant::now();
        cancel(&mut client, job).await?;
        let is_dirty = |rows: &[DeviceRow]| {
            rows.iter().any(|r| r.facts.uuid == card && matches!(r.facts.health, DeviceHealth::Dirty { .. }))
        };
        wait_for("a dirty card", LIMIT, async || is_dirty(&devices(&lab).await.ok()?).then_some(())).await?;
        row.ran(asked.elapsed().as_millis() as u64);
        let view = show(&mut client, job).await?;
        row.must(view.row.state == JobState::Ending && view.row.place == "n1", || {
            format!("round {round}: the job is {} on {}", view.row.state, view.row.place)
        });
        let host = lab.hosts().await?.pop();
        row.must(host.is_some_and(|host| host.state == HostState::Up), || {
            format!("round {round}: the host is out")
        });
        let other = client.submit(with_gpus(true_job("other-card"), 1)).await?;
        let ran = until(&mut client, other, "a run on the other card", |v| v.row.state.is_terminal()).await?;
        row.must(ran.row.state == JobState::Succeeded, || {
            format!("round {round}: the other card: {}", ran.row.state)
        });
        let both = client.submit(with_gpus(true_job("both-cards"), 2)).await?;
        tokio::time::sleep(Duration::from_millis(300)).await;
        let waits = show(&mut client, both).await?.row.state;
        row.must(waits == JobState::Pending, || format!("round {round}: a job of both cards is {waits}"));
        let thawed = Instant::now();
        group.thaw();
        until(&mut client, job, "the end", |view| view.row.state == JobState::Cancelled).await?;
        let ran = until(&mut client, both, "a run on both", |view| view.row.state.is_terminal()).await?;
        let back_ms = thawed.elapsed().as_millis() as u64;
        row.must(ran.row.state == JobState::Succeeded && back_ms <= BACK_MS, || {
            format!("round {round}: after the thaw {} in {back_ms} ms", ran.row.state)
        });
        row.must(!is_dirty(&devices(&lab).await?), || format!("round {round}: the card is still dirty"));
    }
    Ok(row)
}
