//! Hosts of two versions in one cluster (fault O2; report R068). The older one is this program told to read no more than
//! version 2, and it stops where such a build would.

use super::load::{Load, Loaded};
use super::report::Report;
use super::traffic::waits;
use super::{Bench, said};
use rota_node::lab::{Lab, LabError, wait_for};
use rota_node::lab_work::Stubborn;
use std::time::Duration;

const OLD: &str = "reads_up_to = 2\n";
const NEW: &str = "";
/// A cluster without a leader this long, in ms, is more than a restart of it costs.
const WAIT_MS_MAX: u64 = 2_500;

/// O2: up one host at a time, down again half-way, up again, under load; raised only when all read it; the old one is then
/// refused with what to do, and its files still serve the new one.
pub(super) async fn up_down_and_up(bench: &Bench) -> Result<Report, LabError> {
    let mut lab = bench.lab("O2", 3, |options| options.config = Some(OLD.into())).await?;
    let mut violations = Vec::new();
    let mut all = Loaded::default();
    let mut restarts = 0_u64;
    let steps = [(0, NEW), (1, NEW), (0, OLD), (0, NEW), (2, NEW)];
    for (peer, build) in steps.into_iter().cycle().take(steps.len()) {
        let others: Vec<usize> = (0..3).filter(|other| *other != peer).collect();
        let load = Load::begin(&lab, &others, &waits("load"));
        lab.configure(build);
        lab.stop(peer).await?;
        lab.spawn(peer)?;
        lab.until_answers(peer).await?;
        lab.until_up(3).await?;
        restarts += 1;
        let loaded = load.end().await;
        all.acked.extend(loaded.acked);
        all.dropped.extend(loaded.dropped);
        all.wait_max_ms = all.wait_max_ms.max(loaded.wait_max_ms);
        if restarts < steps.len() as u64 {
            let early =
                said(&mut bench.rota(&lab, others[0], &["cluster", "version", "--raise", "3"])).await?;
            if early.status == 0 || !early.err.contains("reads up to 2") {
                violations.push(format!("raised while a host could not read it: {}", early.err));
            }
            let gated = said(&mut bench.rota(&lab, others[0], &["cluster", "ca", "rotate"])).await?;
            if gated.status == 0 || !gated.err.contains("rota cluster version --raise") {
                violations.push(format!("what only version 3 has was done before it: {}", gated.err));
            }
        }
    }
    if let Some(first) = all.dropped.first() {
        violations.push(format!("{} submits were dropped, the first: {first}", all.dropped.len()));
    }
    // A registration with what it reads now may be a moment behind the answer to the first call.
    let raise = async || {
        let done = said(&mut bench.rota(&lab, 1, &["cluster", "version", "--raise"])).await.ok()?;
        let out = String::from_utf8_lossy(&done.out).into_owned();
        (done.status == 0 && out.contains("version  3")).then_some(())
    };
    wait_for("the raise", Duration::from_secs(10), raise).await?;
    refused(bench, &mut lab, &mut violations).await?;
    let mut client = Stubborn::new(&lab, 0);
    let rows = client.all_jobs().await?;
    let lost = all.acked.iter().filter(|job| !rows.iter().any(|row| row.job == **job)).count() as u64;
    Ok(Report::of("O2", 1, &violations)
        .figure("restarts", restarts, None)
        .figure("acknowledged", all.acked.len() as u64, None)
        .figure("lost", lost, Some(0))
        .figure("dropped", all.dropped.len() as u64, Some(0))
        .figure("wait_max_ms", all.wait_max_ms, Some(WAIT_MS_MAX)))
}

/// After the raise: the older one ends by itself and says what to do, the others go on, and the newer one takes over its
/// folder.
async fn refused(bench: &Bench, lab: &mut Lab, violations: &mut Vec<String>) -> Result<(), LabError> {
    lab.configure(OLD);
    lab.stop(2).await?;
    lab.spawn(2)?;
    let started = std::time::Instant::now();
    while lab.exited(2).is_none() {
        if started.elapsed() > Duration::from_secs(20) {
            violations.push("a build that cannot read the log goes on".into());
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let log = std::fs::read_to_string(lab.peers[2].dir.join("agent.log")).unwrap_or_default();
    if !log.contains("version 3") || !log.contains("install the version that the other hosts run") {
        violations.push("the older build does not say what to do".into());
    }
    let mut client = Stubborn::without(lab, 2);
    client.submit(waits("after the raise")).await?;
    lab.configure(NEW);
    lab.spawn(2)?;
    lab.until_answers(2).await?;
    lab.until_up(3).await?;
    let digests = lab.digests().await?;
    if digests.windows(2).any(|pair| (pair[0].2, pair[0].3) != (pair[1].2, pair[1].3)) {
        violations.push(format!("state hashes differ: {digests:?}"));
    }
    let rotated = said(&mut bench.rota(lab, 0, &["cluster", "ca", "rotate"])).await?;
    if rotated.status != 0 {
        let out = String::from_utf8_lossy(&rotated.out);
        violations.push(format!("what version 3 brought does not work after it: {} {out}", rotated.err));
    }
    Ok(())
}
