//! Wrong settings that somebody pushes (fault O4): an agent that starts with them ends at once and names file and place; the
//! others, and what runs, go on; with right settings it is back.

use super::Bench;
use super::agent_death::show;
use super::freeze::{position, running_on};
use super::host_files::{lab_with_files, set_settings};
use super::report::Report;
use rota_node::lab::{Lab, LabError, wait_for};
use rota_node::lab_work::{Stubborn, shell_job, true_job};
use std::time::{Duration, Instant};

/// Until an agent with wrong settings has ended, in ms.
const ENDED_MS_MAX: u64 = 1_000;
const LIMIT: Duration = Duration::from_secs(30);

/// What is pushed, and what the refusal must name.
const WRONG: [(&str, &[&str]); 8] = [
    ("[elections\nmin = \"1s\"\n", &["rota.toml", "line 1"]),
    ("listen = \"0.0.0.0:7420\"\n\n[elections]\nmni = \"1s\"\n", &["rota.toml", "line 4", "mni"]),
    ("\nlisten = 7420\n", &["rota.toml", "line 2", "listen"]),
    ("[elections]\nheartbeat = \"100ms\"\nmin = \"150ms\"\nmax = \"300ms\"\n", &["150", "100"]),
    ("[elections]\nheartbeat = \"50ms\"\nmin = \"9s\"\nmax = \"20s\"\n", &["20"]),
    ("[elections]\nmin = \"-1s\"\n", &["-1s"]),
    ("reads_up_to = 999\n", &["reads_up_to", "999"]),
    ("\u{feff}[elections]\u{0}\n", &["rota.toml", "line 1"]),
];

/// The agent's words since a place in its log, and where it ends now.
fn said(lab: &Lab, at: usize, from: usize) -> (String, usize) {
    let bytes = std::fs::read(lab.peers[at].dir.join("agent.log")).unwrap_or_default();
    (String::from_utf8_lossy(bytes.get(from..).unwrap_or_default()).into_owned(), bytes.len())
}

/// O4.
pub(super) async fn pushed(bench: &Bench) -> Result<Report, LabError> {
    let mut lab = lab_with_files(bench, "O4", 3).await?;
    let (mut violations, mut slowest) = (Vec::new(), 0);
    for round in 0..bench.rounds {
        let mut client = Stubborn::new(&lab, 0);
        let job = client.submit(shell_job("runs", "exec sleep 600")).await?;
        let at = position(&lab, running_on(&mut client, job).await?);
        let pids =
            |view: &rota_protocol::view::JobView| view.attempts.iter().map(|a| a.pid).collect::<Vec<_>>();
        let before = pids(&show(&mut client, job).await?);
        let mut client = Stubborn::without(&lab, at);
        // Pushed while it runs: it keeps what it began with.
        set_settings(&lab.peers[at], WRONG[0].0)?;
        tokio::time::sleep(Duration::from_millis(300)).await;
        if let Some(status) = lab.exited(at) {
            violations.push(format!("round {round}: a running agent ended with {status} over a file"));
        }
        lab.stop(at).await?;
        for (settings, names) in WRONG {
            set_settings(&lab.peers[at], settings)?;
            let (_, from) = said(&lab, at, 0);
            let began = Instant::now();
            lab.spawn(at)?;
            let ended = wait_for("the end of an agent", LIMIT, async || lab.exited(at)).await;
            slowest = slowest.max(began.elapsed().as_millis() as u64);
            let (words, _) = said(&lab, at, from);
            let named = names.iter().all(|name| words.contains(name));
            if !ended.is_ok_and(|status| !status.success()) || !named {
                violations.push(format!(
                    "round {round}: {settings:?} was answered by {words:?}, which should name {names:?}"
                ));
            }
        }
        // The others took no harm.
        let beside = client.submit(true_job("beside")).await?;
        client.until_done(&[beside], LIMIT, |_, _| {}).await?;
        set_settings(
            &lab.peers[at],
            "[elections]\nmin = \"300ms\"\nmax = \"600ms\"\nheartbeat = \"100ms\"\n",
        )?;
        lab.spawn(at)?;
        lab.until_up(3).await?;
        let after = pids(&show(&mut client, job).await?);
        // Its lease may have run out meanwhile, and then it runs anew; it is never forgotten.
        if before.is_empty() || !before.iter().all(|pid| after.contains(pid)) {
            violations.push(format!("round {round}: attempts {before:?} became {after:?}"));
        }
        super::ends::cancel(&mut client, job).await?;
        client.until_done(&[job], LIMIT, |_, _| {}).await?;
        set_settings(&lab.peers[at], "")?;
    }
    Ok(Report::of("O4", bench.rounds, &violations).figure("ended_after_ms", slowest, Some(ENDED_MS_MAX)))
}
