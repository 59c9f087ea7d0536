//! Cards that are gone and come back, and what a card says of its memory (faults G3, G7; field reports R014, R018).

use super::site::{PATIENCE, Settings, Site, card_of, shown, sleeper, stage_in};
use super::{Bench, NAMES, eight, io};
use crate::real::row::Row;
use fake_nvml::script::{Card, Remap, code};
use rota_node::lab::{LabError, wait_for};
use rota_protocol::DeviceUuid;
use rota_protocol::device::DeviceHealth;
use rota_protocol::health::{Stage, Tending};
use rota_protocol::job::JobState;
use rota_protocol::view::{DeviceRow, HostState};
use std::time::Duration;

/// What changed without any line of the kernel's is found within this.
const FOUND_MS_MAX: u64 = 30_000;

/// G3: a card that is gone without a word closes the host, one that is back is on probation; marks follow the UUID
/// when the driver lists cards in another order.
pub(in crate::real) async fn gone_and_back(bench: &Bench) -> Result<Row, LabError> {
    let what =
        "a card of eight gone without a word: from its absence to the closed host; back, it is on probation";
    let mut row = Row::new("G3", what, Some(FOUND_MS_MAX));
    super::looks::come_and_go(bench, &mut row).await?;
    for _ in 0..bench.rounds.min(2) {
        let site =
            Site::well(bench, "G3", eight(), Settings { probation: "2s", ..Settings::default() }).await?;
        let mut gone = eight();
        gone.remove(2);
        site.driver.shows(gone).map_err(io("the script"))?;
        row.ran(site.until_stage(NAMES[2], Stage::Quarantined).await?);
        let state = site.host_state().await?;
        row.must(state == Some(HostState::Faulty), || format!("the host of a lost card is {state:?}"));
        let mut lost = eight();
        lost[2] = Card::new(NAMES[2]).failing("*", code::GPU_IS_LOST);
        site.driver.shows(lost).map_err(io("the script"))?;
        tokio::time::sleep(Duration::from_secs(3)).await;
        let stage = site.stage(NAMES[2]).await?;
        row.must(stage == Some(Stage::Quarantined), || format!("a lost card is {stage:?}"));
        let mut back = eight();
        back.reverse();
        site.driver.shows(back).map_err(io("the script"))?;
        row.also("back_to_probation_ms", site.until_stage(NAMES[2], Stage::Probation).await?, None);
        let is_closed = |rows: &[DeviceRow]| {
            let of = rows.iter().find(|row| row.facts.uuid.0 == NAMES[2]);
            of.is_some_and(|row| {
                let probation = row.mark.as_ref().is_some_and(|mark| mark.stage == Stage::Probation);
                !probation || matches!(row.facts.health, DeviceHealth::Quarantined { .. })
            })
        };
        let rows = site.devices().await?;
        row.must(is_closed(&rows), || format!("granted at once: {:?}", shown(&rows)));
        site.until_stage(NAMES[2], Stage::Well).await?;
        let state = site.host_state().await?;
        row.must(state == Some(HostState::Up), || format!("the host with all its cards is {state:?}"));
        let rows = site.devices().await?;
        row.must(rows.iter().all(|row| row.facts.health.is_healthy()), || format!("{:?}", shown(&rows)));
    }
    Ok(row)
}

/// G7: a failed remap takes the card out for good, a pending one leaves it at work and is shown; an operator's cordon
/// keeps new work off and lets old work run.
pub(in crate::real) async fn remaps_and_cordons(bench: &Bench) -> Result<Row, LabError> {
    let what = "a remap that failed: from the driver's word to the card taken out; a pending one works on and is shown";
    let mut row = Row::new("G7", what, Some(FOUND_MS_MAX));
    for _ in 0..bench.rounds.min(2) {
        let site =
            Site::well(bench, "G7", eight(), Settings { probation: "2s", ..Settings::default() }).await?;
        let mut sick = eight();
        sick[0].remap = Some(Remap { pending: true, ..Remap::default() });
        sick[1].remap = Some(Remap { failed: true, ..Remap::default() });
        site.driver.shows(sick).map_err(io("the script"))?;
        row.ran(site.until_stage(NAMES[1], Stage::Out).await?);
        let noted = |rows: &[DeviceRow]| {
            let of = rows.iter().find(|row| row.facts.uuid.0 == NAMES[0]);
            of.is_some_and(|row| {
                row.facts.health.is_healthy()
                    && row.mark.as_ref().is_some_and(|mark| !mark.reasons.is_empty())
            })
        };
        site.until_rows("the pending remap is shown", noted).await?;
        site.tend(Tending::Cordon { uuid: DeviceUuid(NAMES[2].into()), reason: "a loud fan".into() }).await?;
        let used: Vec<String> = site.occupy(6).await?.into_iter().map(|holder| holder.card).collect();
        row.must(!used.iter().any(|card| card == NAMES[1] || card == NAMES[2]), || format!("used: {used:?}"));
        let seventh = site.submit(sleeper()).await?;
        tokio::time::sleep(Duration::from_millis(500)).await;
        let state = site.show(seventh).await?.row.state;
        row.must(state == JobState::Pending, || format!("a job for a cordoned card is {state}"));
        site.tend(Tending::Clear { uuid: DeviceUuid(NAMES[2].into()) }).await?;
        let placed = wait_for("a start on the cleared card", PATIENCE, async || {
            let view = site.show(seventh).await.ok()?;
            (card_of(view.attempts.first()?) == NAMES[2]).then_some(())
        });
        placed.await?;
        let out = stage_in(&site.devices().await?, NAMES[1]);
        row.must(out == Some(Stage::Out), || format!("the worn-out card is {out:?}"));
        row.violations.extend(site.broken_laws());
    }
    Ok(row)
}
