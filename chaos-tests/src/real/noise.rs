//! Bad links (faults N5, N7, N11): packets are lost, doubled, overtaken, a link flaps. Work goes on, no lease runs out,
//! no task notices.

use super::Bench;
use super::beats::Beats;
use super::proxy::{Counts, Fault, Wires};
use super::report::Report;
use super::traffic::Traffic;
use rota_node::lab::{Lab, LabError};
use rota_node::lab_work::{Stubborn, shell_job, true_job, with_gpus};
use rota_protocol::ids::{HostId, LeaseEpoch};
use rota_protocol::job::JobState;
use std::time::{Duration, Instant};

/// How long the network is bad.
const BAD: Duration = Duration::from_secs(10);
/// How long the beating tasks live: through the bad time and the look at it afterwards.
const BEATS_SECONDS: u32 = 60;

/// N5: a fifth of all packets is lost.
pub(super) async fn lossy(bench: &Bench) -> Result<Report, LabError> {
    let loss = Fault { loss_permille: 200, ..Fault::default() };
    bad_network(bench, "N5", |wires, _| wires.set_all(loss), |counts| counts.dropped > 0).await
}

/// N7: half of all packets come twice, a quarter out of order.
pub(super) async fn repeated(bench: &Bench) -> Result<Report, LabError> {
    let again = Fault { duplicate_permille: 500, reorder_permille: 250, ..Fault::default() };
    let met = |counts: &Counts| counts.doubled > 0 && counts.late > 0;
    bad_network(bench, "N7", |wires, _| wires.set_all(again), met).await
}

/// N11: all links of one host that does not lead are down every other 200 ms.
pub(super) async fn flapping(bench: &Bench) -> Result<Report, LabError> {
    let flap = Fault { flap_ms: 200, ..Fault::default() };
    let spoil = |wires: &Wires, leader: usize| wires.set_around((leader + 1) % 3, flap);
    bad_network(bench, "N11", spoil, |counts| counts.dropped > 0).await
}

/// Hosts with the epoch of their lease: a lease that ran out shows as another epoch.
async fn epochs(lab: &Lab) -> Result<Vec<(HostId, LeaseEpoch)>, LabError> {
    let mut epochs: Vec<_> = lab.hosts().await?.iter().map(|host| (host.host, host.epoch)).collect();
    epochs.sort_unstable();
    Ok(epochs)
}

async fn bad_network(
    bench: &Bench,
    name: &str,
    spoil: impl Fn(&Wires, usize),
    met: impl Fn(&Counts) -> bool,
) -> Result<Report, LabError> {
    let wires = Wires::new(3)?;
    let lab = bench.lab(name, 3, |options| options.ports = wires.ports()).await?;
    let mut client = Stubborn::new(&lab, 0);
    // One task on each host, by its four cards.
    let (mut lasting, mut beats) = (Vec::new(), Vec::new());
    for number in 0..lab.peers.len() {
        let beat = Beats::new(&bench.dir.join(name), &format!("beats-{number}"));
        let spec = with_gpus(shell_job(&format!("lasts-{number}"), &beat.script(BEATS_SECONDS)), 4);
        lasting.push(client.submit(spec).await?);
        beats.push(beat);
    }
    for beat in &beats {
        let limit = Duration::from_secs(10);
        rota_node::lab::wait_for("first beats", limit, async || (!beat.lives().is_empty()).then_some(()))
            .await?;
    }
    let (mut traffic, mut violations, mut before) = (Traffic::default(), Vec::new(), epochs(&lab).await?);
    for round in 0..bench.rounds {
        spoil(&wires, lab.leader().await?);
        traffic.run(&mut client, Instant::now() + BAD, true_job).await?;
        wires.heal();
        let after = epochs(&lab).await?;
        if after != before {
            violations.push(format!("round {round}: a lease ran out: {before:?} became {after:?}"));
        }
        before = after;
    }
    let rows = client.until_done(&traffic.jobs(), Duration::from_secs(20), |_, _| {}).await?;
    let state = |job| rows.iter().find(|row| row.job == job).map(|row| row.state);
    let undone = traffic.jobs().into_iter().filter(|job| state(*job) != Some(JobState::Succeeded)).count();
    if undone > 0 {
        violations.push(format!("{undone} of {} jobs did not succeed", traffic.acked()));
    }
    for (job, beat) in lasting.iter().zip(&beats) {
        // With rounds enough the tasks end by themselves.
        let over = bench.rounds > 2 && state(*job) == Some(JobState::Succeeded);
        if beat.lives().len() != 1 || !(over || state(*job) == Some(JobState::Running)) {
            let copies = beat.lives().len();
            violations.push(format!("job {job} is {:?} after {copies} attempts", state(*job)));
        }
    }
    violations.extend(traffic.judge(&lab, &mut client).await?);
    let counts = wires.counts();
    if !met(&counts) || counts.overflowed > 0 {
        violations.push(format!("not exercised as meant: {counts:?}"));
    }
    Ok(Report::of(name, bench.rounds, &violations)
        .figure("acked", traffic.acked(), None)
        .figure("gap_max_ms", traffic.gap_max_ms, None)
        .figure("packets_passed", counts.passed, None)
        .figure("packets_dropped", counts.dropped, None)
        .figure("packets_doubled", counts.doubled, None))
}
