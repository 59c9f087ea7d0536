//! A host that is rebooted under its tasks (fault T11, field report R063): its processes are gone, its boot id is new, and
//! numbers of processes in its records mean nobody.

use super::Bench;
use super::agent_death::show;
use super::beats::Beats;
use super::ends::{cancel, left_over};
use super::host_files::{lab_with_files, set_boot, set_settings};
use super::row::Row;
use rota_node::io::proc;
use rota_node::lab::{LabError, wait_for};
use rota_node::lab_work::{Stubborn, shell_job};
use rota_protocol::job::AttemptEnd;
use rustix::process::{Pid, Signal};
use std::time::{Duration, Instant};

/// From the host's registration to its tasks' new processes, in ms.
const REPLACED_MS: u64 = 1_500;
const TASKS: usize = 8;
const LIMIT: Duration = Duration::from_secs(30);

/// Kills every process of an attempt as a power cut does: the shims first, so that nothing writes an end.
fn cut_power(tasks: &[i32]) {
    let kill = |pid: i32| Pid::from_raw(pid).map(|pid| rustix::process::kill_process(pid, Signal::KILL));
    let shims: Vec<i32> =
        tasks.iter().filter_map(|pid| proc::stat(*pid).ok()).map(|stat| stat.ppid).collect();
    for pid in shims.iter().filter(|shim| !tasks.contains(shim)).chain(tasks) {
        kill(*pid);
    }
}

/// T11: a host with eight tasks is cut off its power and comes back with another boot id.
pub(super) async fn with_tasks(bench: &Bench) -> Result<Row, LabError> {
    let what = "a host reboots with 8 tasks: from its registration to all of them running again";
    let mut row = Row::new("T11", what, Some(REPLACED_MS));
    if !rustix::process::geteuid().is_root() {
        return Ok(row.skip("only root can show an agent another boot id"));
    }
    let mut lab = lab_with_files(bench, "T11", 3).await?;
    let at = (lab.leader().await? + 1) % 3;
    lab.stop(at).await?;
    set_settings(&lab.peers[at], "[labels]\nt11 = \"here\"\n")?;
    lab.spawn(at)?;
    lab.until_up(3).await?;
    for round in 0..bench.rounds {
        let mut client = Stubborn::without(&lab, at);
        let (mut jobs, mut beats) = (Vec::new(), Vec::new());
        for number in 0..TASKS {
            let beat = Beats::new(&bench.dir.join("T11"), &format!("beats-{round}-{number}"));
            let mut spec = shell_job("beats", &beat.script(60));
            spec.ask.labels.insert("t11".into(), "here".into());
            jobs.push(client.submit(spec).await?);
            beats.push(beat);
        }
        let all_live = |lives: usize| beats.iter().all(|beat| beat.lives().len() == lives);
        wait_for("eight tasks", LIMIT, async || all_live(1).then_some(())).await?;
        let host = lab.peers[at].host;
        let seen = lab.hosts().await?.into_iter().find(|row| row.host == host);
        let (epoch, boot) = seen.map(|host| (host.epoch, host.boot)).unwrap_or_default();
        lab.signal(at, Signal::KILL)?;
        cut_power(&left_over(&lab).await?);
        wait_for("the end of all", LIMIT, async || left_over(&lab).await.ok()?.is_empty().then_some(()))
            .await?;
        set_boot(&lab.peers[at], 1 + round as u64)?;
        lab.spawn(at)?;
        let registered = wait_for("the host's registration", LIMIT, async || {
            let hosts = lab.hosts().await.ok()?;
            hosts
                .iter()
                .any(|row| row.host == host && row.epoch != epoch && row.boot != boot)
                .then(Instant::now)
        })
        .await?;
        wait_for("eight second lives", LIMIT, async || all_live(2).then_some(())).await?;
        row.ran(registered.elapsed().as_millis() as u64);
        for (job, beat) in jobs.iter().zip(&beats) {
            let ends: Vec<_> =
                show(&mut client, *job).await?.attempts.into_iter().filter_map(|a| a.end).collect();
            row.must(ends == [AttemptEnd::Lost], || format!("round {round}: job {job} ended as {ends:?}"));
            let apart = beat.distance_ms().unwrap_or(0);
            row.must(apart > 0, || format!("round {round}: two copies lived at once, {apart} ms apart"));
            cancel(&mut client, *job).await?;
        }
        client.until_done(&jobs, LIMIT, |_, _| {}).await?;
    }
    Ok(row)
}
