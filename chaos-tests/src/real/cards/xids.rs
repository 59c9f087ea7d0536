//! Lines of the kernel's log that become decisions in the state (fault G1; field report R018): every class, a thousand
//! copies, a stranger's process, lines that were lost, a restart of the agent.

use super::site::{Settings, Site, sleeper};
use super::{Bench, NAMES, bus, eight, io, ms, place};
use crate::real::row::Row;
use fake_nvml::script::Card;
use rota_node::lab::LabError;
use rota_protocol::DeviceUuid;
use rota_protocol::health::{Stage, Tending};
use rota_protocol::job::{AttemptEnd, JobState};
use rota_protocol::view::HostState;
use std::time::{Duration, Instant};

/// From the line to the decision in the state.
const QUARANTINE_MS_MAX: u64 = 500;

/// G1: reset class, duplicates, program class with and without a process of ours, an unknown Xid, an overrun, node class;
/// what stands against cards outlives the agent.
pub(in crate::real) async fn decided_in_time(bench: &Bench) -> Result<Row, LabError> {
    let what = "Xids of every class in the kernel's log: from the line to the decision in the state";
    let mut row = Row::new("G1", what, Some(QUARANTINE_MS_MAX));
    for _ in 0..bench.rounds.min(3) {
        let mut site = Site::well(bench, "G1", eight(), Settings::default()).await?;
        let jobs = site.occupy(4).await?;
        let sick = a_thousand_lines(&mut site, &jobs[0].card, jobs[0].job, &mut row).await?;
        programs(&mut site, &jobs[1..3], &mut row).await?;
        unknown_and_lost(&mut site, &mut row).await?;
        restarted(&mut site, &sick, &mut row).await?;
        node_class(&mut site, &mut row).await?;
        row.violations.extend(site.broken_laws());
    }
    Ok(row)
}

/// A fault of the card, a thousand times: its job is ended as the card's fault, once, and runs again elsewhere.
async fn a_thousand_lines(
    site: &mut Site,
    card: &str,
    job: rota_protocol::JobId,
    row: &mut Row,
) -> Result<String, LabError> {
    for _ in 0..1_000 {
        site.kernel.xid(&bus(place(card)), 95, None, "Uncontained ECC error").map_err(io("a line"))?;
    }
    row.ran(site.until_stage(card, Stage::Quarantined).await?);
    let end = site.until_ended(job).await?;
    row.must(matches!(&end, AttemptEnd::DeviceFault { reason } if reason.contains("Xid 95")), || {
        format!("Xid 95 ended its job as {end:?}")
    });
    let elsewhere = site.running(job, None).await?;
    row.must(elsewhere.devices.iter().all(|device| device.uuid.0 != card), || {
        format!("it runs again on {card}")
    });
    let mark =
        site.devices().await?.into_iter().find(|row| row.facts.uuid.0 == card).and_then(|row| row.mark);
    row.must(mark.as_ref().is_some_and(|mark| mark.resets == 1), || {
        format!("one fault, however often it is told: {mark:?}")
    });
    Ok(card.to_owned())
}

/// A program's own failure, named by its process: the job fails, the card stays. A stranger's process: nobody pays.
async fn programs(site: &mut Site, jobs: &[super::site::Holder], row: &mut Row) -> Result<(), LabError> {
    let [own, other] = jobs else { return Ok(()) };
    let line = site.kernel.xid(&bus(place(&own.card)), 31, Some((own.pid, "sleep")), "MMU Fault");
    line.map_err(io("a line"))?;
    let started = Instant::now();
    let end = site.until_ended(own.job).await?;
    row.also("program_to_end_ms", ms(started), None);
    row.must(matches!(&end, AttemptEnd::ProgramFault { reason } if reason.contains("gpu_app_xid31")), || {
        format!("Xid 31 ended its job as {end:?}")
    });
    let state = site.show(own.job).await?.row.state;
    row.must(state == JobState::Failed, || format!("the job whose program failed is {state}"));
    let stage = site.stage(&own.card).await?;
    row.must(stage == Some(Stage::Well), || format!("the card under a failed program is {stage:?}"));
    let stranger = Some((std::process::id(), "x"));
    let line = site.kernel.xid(&bus(place(&other.card)), 13, stranger, "Graphics Exception");
    line.map_err(io("a line"))?;
    // Long enough for the line: the one after it, of another card, is waited for.
    let free = NAMES.iter().position(|name| jobs.iter().all(|job| job.card != *name)).unwrap_or_default();
    let free = free.max(6);
    site.kernel.xid(&bus(free), 9_999, None, "something new").map_err(io("a line"))?;
    row.ran(site.until_stage(NAMES[free], Stage::Quarantined).await?);
    let view = site.show(other.job).await?;
    row.must(view.attempts.iter().all(|attempt| attempt.end.is_none()), || {
        format!("a stranger's failure ended {:?}", view.attempts)
    });
    // An operator clears what nobody knows.
    site.tend(Tending::Clear { uuid: DeviceUuid(NAMES[free].into()) }).await?;
    site.until_stage(NAMES[free], Stage::Well).await?;
    Ok(())
}

/// Lines are lost: the driver itself is asked at once.
async fn unknown_and_lost(site: &mut Site, row: &mut Row) -> Result<(), LabError> {
    let mut sick = eight();
    sick[7] = Card { recovery: Some(1), ..sick[7].clone() };
    site.driver.shows(sick).map_err(io("the script"))?;
    site.kernel.overrun(100);
    site.kernel.line("usb 1-1: new device").map_err(io("a line"))?;
    row.also("overrun_to_decision_ms", site.until_stage(NAMES[7], Stage::Quarantined).await?, None);
    Ok(())
}

/// What stands outlives the agent, and old lines are no new faults.
async fn restarted(site: &mut Site, sick: &str, row: &mut Row) -> Result<(), LabError> {
    site.lab.stop(0).await?;
    site.lab.spawn(0)?;
    site.lab.until_answers(0).await?;
    tokio::time::sleep(Duration::from_secs(6)).await;
    let stage = site.stage(sick).await?;
    row.must(stage == Some(Stage::Quarantined), || format!("a restart made a sick card {stage:?}"));
    let stage = site.stage(NAMES[6]).await?;
    row.must(stage == Some(Stage::Well), || format!("old lines made a card {stage:?}"));
    Ok(())
}

/// The host itself: closed, and what used its cards is ended now.
async fn node_class(site: &mut Site, row: &mut Row) -> Result<(), LabError> {
    let job = site.submit(sleeper()).await?;
    let card = super::site::card_of(&site.running(job, None).await?);
    site.kernel.xid(&bus(place(&card)), 79, None, "GPU has fallen off the bus.").map_err(io("a line"))?;
    row.ran(site.until_stage(&card, Stage::Quarantined).await?);
    let state = site.host_state().await?;
    row.must(state == Some(HostState::Faulty), || format!("the host is {state:?}"));
    let end = site.until_ended(job).await?;
    row.must(matches!(&end, AttemptEnd::DeviceFault { reason } if reason.contains("Xid 79")), || {
        format!("Xid 79 ended a job as {end:?}")
    });
    Ok(())
}
