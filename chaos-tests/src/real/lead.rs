//! The lead moved on purpose (faults O1, O5): agents restarted in turn, and the leader's host drained. Nobody waits for an
//! election.

use super::Bench;
use super::report::Report;
use rota_node::bench::pulse::{Pulse, Span};
use rota_node::bench::rolling::{Pace, Rolled, roll};
use rota_node::lab::{LabError, new_request, wait_for};
use rota_node::lab_work::{Stubborn, Witness, as_array, shell_job};
use rota_protocol::api::{ApiReply, ApiRequest, Freshness};
use rota_protocol::job::JobState;
use std::time::{Duration, Instant};

/// The least gap that an election leaves in the chaos profile, in ms: a planned move is shorter.
const ELECTION_MS_MIN: u64 = 750;
/// Longest gap at the restart of a leader, in ms (O1): a move by plan and a busy machine, and still no election;
/// `rota bench rolling` tells what it is on a quiet one.
const LEADER_MS_MAX: u64 = 750;
/// Longest gap at the restart of a peer that does not lead and has no client, in ms (P2: 200), on a busy machine.
const FOLLOWER_MS_MAX: u64 = 500;
/// Longest time until a drained host leads no more, in ms.
const MOVED_MS_MAX: u64 = 2_000;

/// O1: five agents restarted, the leader first, then once more with the leader last. Each is back before the next is
/// stopped, and no lease is lost by that, short as those of this profile are.
pub(super) async fn restarted_in_turn(bench: &Bench) -> Result<Report, LabError> {
    let mut violations = Vec::new();
    let (mut total, mut leader, mut follower) = (0, 0, 0);
    for _ in 0..bench.rounds {
        let mut lab = bench.lab("O1", 5, |options| options.cpus = Some("64".into())).await?;
        let rolled = roll(&mut lab, &bench.dir.join("O1"), Pace::Careful).await?;
        violations.extend(wrong(&rolled));
        for (what, count) in
            [("tasks run twice", rolled.found.run_twice), ("attempts restarted", rolled.attempts_restarted)]
        {
            if count > 0 {
                violations.push(format!("{count} {what}"));
            }
        }
        let most = |gaps: &[u64]| gaps.iter().max().copied().unwrap_or(0);
        total = total.max(rolled.found.gaps_ms.iter().sum());
        leader = leader.max(most(&rolled.leader_gaps_ms));
        follower = follower.max(most(&rolled.unseen_gaps_ms));
    }
    Ok(Report::of("O1", bench.rounds, &violations)
        .figure("gap_leader_ms", leader, Some(LEADER_MS_MAX))
        .figure("gap_follower_ms", follower, Some(FOLLOWER_MS_MAX))
        .figure("gap_total_ms", total, None))
}

/// What no restart may cost, however it is done.
fn wrong(rolled: &Rolled) -> Vec<String> {
    let mut wrong: Vec<String> = rolled.lived.overlaps.iter().map(|what| format!("I1: {what}")).collect();
    for (what, count) in [
        ("accepted jobs lost", rolled.found.lost),
        ("ids given twice", rolled.found.ids_reused),
        ("state hashes differ", rolled.found.hashes_differ),
    ] {
        if count > 0 {
            wrong.push(format!("{count} {what}"));
        }
    }
    if rolled.lived.attempts == 0 {
        wrong.push("not exercised: no task showed that it lived".into());
    }
    wrong
}

/// O1 by somebody who does not look: the next agent is stopped while those before may still be on their way, so that a
/// majority may be away and leases run out. That may cost attempts; no task is ever there twice at once.
pub(super) async fn restarted_in_haste(bench: &Bench) -> Result<Report, LabError> {
    let (mut violations, mut restarted) = (Vec::new(), 0);
    for _ in 0..bench.rounds {
        let mut lab = bench.lab("O1-hasty", 5, |options| options.cpus = Some("64".into())).await?;
        let rolled = roll(&mut lab, &bench.dir.join("O1-hasty"), Pace::Hasty).await?;
        violations.extend(wrong(&rolled));
        restarted += rolled.attempts_restarted;
    }
    Ok(Report::of("O1-hasty", bench.rounds, &violations).figure("attempts_restarted", restarted, None))
}

/// O5: the leader's host is drained while its tasks run; then all hosts are.
pub(super) async fn host_drained(bench: &Bench) -> Result<Report, LabError> {
    let lab = bench.lab("O5", 3, |_| {}).await?;
    let (mut violations, mut moved_max, mut gap_max) = (Vec::new(), 0, 0);
    let witness = Witness::new(&bench.dir.join("O5"));
    let mut client = Stubborn::new(&lab, 0);
    for round in 0..bench.rounds {
        let body = witness.script("sleep 3");
        let job = client.submit(as_array(shell_job("through a drain", &body), 9)).await?;
        let submits = Pulse::submits(Stubborn::new(&lab, 1), "true");
        submits.warm(5).await;
        let leader = lab.leader().await?;
        let began = Instant::now();
        drain(&mut client, &lab.peers[leader].name).await?;
        let moved = wait_for("another leader", Duration::from_secs(10), async || {
            (lab.leader().await.ok()? != leader).then_some(())
        });
        if moved.await.is_err() {
            violations.push(format!("round {round}: a drained host went on leading"));
        }
        moved_max = moved_max.max(began.elapsed().as_millis() as u64);
        tokio::time::sleep(Duration::from_millis(200)).await;
        gap_max = gap_max.max(submits.gap(Span::since(began)).as_millis() as u64);
        // Nobody is fit now, and somebody must lead all the same.
        for peer in &lab.peers {
            drain(&mut client, &peer.name).await?;
        }
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        lab.leader().await?;
        for peer in &lab.peers {
            let (request, host) = (new_request(), peer.name.clone());
            client.ask(ApiRequest::Undrain { request, host }, Duration::from_secs(10)).await?;
        }
        let mut jobs = submits.finish().await?;
        jobs.push(job);
        let rows = client.until_done(&jobs, Duration::from_secs(60), |_, _| {}).await?;
        let ended = rows.iter().filter(|row| row.state == JobState::Succeeded).count();
        if ended < jobs.len() {
            violations.push(format!("round {round}: {ended} of {} jobs succeeded", jobs.len()));
        }
        let show = ApiRequest::Show { job, freshness: Freshness::Linearizable };
        if let ApiReply::Job(view) = client.ask(show, Duration::from_secs(10)).await?
            && view.attempts.len() > 9
        {
            violations.push(format!("round {round}: a drain restarted an attempt"));
        }
    }
    if witness.run_twice() > 0 {
        violations.push(format!("{} tasks ran twice", witness.run_twice()));
    }
    Ok(Report::of("O5", bench.rounds, &violations)
        .figure("moved_after_ms", moved_max, Some(MOVED_MS_MAX))
        .figure("gap_max_ms", gap_max, Some(ELECTION_MS_MIN)))
}

async fn drain(client: &mut Stubborn, host: &str) -> Result<(), LabError> {
    let (request, host, reason) = (new_request(), host.to_owned(), "new fans".to_owned());
    client.ask(ApiRequest::Drain { request, host, reason }, Duration::from_secs(10)).await?;
    Ok(())
}
