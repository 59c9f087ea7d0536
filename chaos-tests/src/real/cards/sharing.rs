//! Cards that several jobs share, and the daemon that does it (fault G10; field report R035), and slices that change
//! outside of Rota.

use super::site::{Settings, Site, card_of, program};
use super::{Bench, io, ms};
use crate::real::row::Row;
use fake_nvml::script::Card;
use rota_node::lab::LabError;
use rota_node::lab_work::{shell_job, with_gpus};
use rota_protocol::job::{AttemptEnd, JobSpec};
use rota_protocol::view::DeviceRow;
use std::process::Command;
use std::time::Instant;

/// From what happened outside to what follows from it.
const SEEN_MS_MAX: u64 = 5_000;
/// From the daemon's death to the jobs running again.
const AGAIN_MS_MAX: u64 = 15_000;
const GIB: u64 = 1 << 30;
const CONTROL: &str = "echo $$ > \"${0%/*}/daemon-$CUDA_VISIBLE_DEVICES\"\n\
                       : > \"$CUDA_MPS_PIPE_DIRECTORY/control\"\nexec sleep 600";

/// A card at an address of its own, some memory of which the driver itself uses.
#[must_use]
pub fn card(uuid: &str, bus: &str) -> Card {
    Card { bus: bus.as_bytes().to_vec(), used: GIB / 2, ..Card::new(uuid) }
}

/// Two such cards.
#[must_use]
pub fn two() -> Vec<Card> {
    vec![card("GPU-a", "00000000:3B:00.0"), card("GPU-b", "00000000:5E:00.0")]
}

/// A job with a share of one card.
#[must_use]
pub fn share(name: &str, milli: u32, vram_mib: u64) -> JobSpec {
    let mut spec = shell_job(name, "exec sleep 600");
    (spec.ask.gpu_milli, spec.ask.vram_mib) = (milli, vram_mib);
    spec
}

/// G10: the daemon of one card dies: only the jobs on that card end, with the reason, are queued again on no one's
/// account, and run again through a new daemon. Slices that are gone are seen.
pub(in crate::real) async fn daemon_dies(bench: &Bench) -> Result<Row, LabError> {
    let what = "a sharing daemon dies: from its death to the end of its card's jobs, which run again; slices that vanish";
    let mut row = Row::new("G10", what, Some(SEEN_MS_MAX));
    for _ in 0..bench.rounds.min(2) {
        one_daemon(bench, &mut row).await?;
    }
    slices_vanish(bench, &mut row).await?;
    Ok(row)
}

async fn one_daemon(bench: &Bench, row: &mut Row) -> Result<(), LabError> {
    let dir = Site::folder(bench, "G10")?;
    program(&dir.join("mps-control"), CONTROL)?;
    let sharing = "mps = true\nmps_control = \"DIR/mps-control\"";
    let site = Site::well(bench, "G10", two(), Settings { sharing, ..Settings::default() }).await?;
    let through_mps = |name: &str| {
        let mut spec = share(name, 400, 10 << 10);
        spec.ask.labels.insert("rota.share".into(), "mps".into());
        let seen = "test -e \"$CUDA_MPS_PIPE_DIRECTORY/control\" || exit 9; exec sleep 600";
        JobSpec { argv: shell_job(name, seen).argv, ..spec }
    };
    let jobs = [site.submit(through_mps("one")).await?, site.submit(through_mps("two")).await?];
    let whole = site.submit(with_gpus(shell_job("whole", "exec sleep 600"), 1)).await?;
    let first = [site.running(jobs[0], None).await?, site.running(jobs[1], None).await?];
    let whole_row = site.running(whole, None).await?;
    let daemon = dir.join(format!("daemon-{}", card_of(&first[0])));
    let pid = std::fs::read_to_string(&daemon).map_err(io("the daemon's number"))?;
    let killed = Command::new("kill").args(["-9", pid.trim()]).status().map_err(io("kill"))?;
    row.must(killed.success(), || format!("not exercised: kill of {pid} ended with {killed}"));
    let began = Instant::now();
    for (job, old) in jobs.iter().zip(&first) {
        let ended = async |site: &Site| {
            let attempts = site.show(*job).await.ok()?.attempts;
            attempts.into_iter().find(|other| other.token == old.token)?.end
        };
        let end = site.until("the attempt's end", ended).await?;
        row.must(end == AttemptEnd::SharedFault, || format!("it ended as {end:?}"));
    }
    row.ran(ms(began));
    for (job, old) in jobs.iter().zip(&first) {
        site.running(*job, Some(old.token)).await?;
    }
    row.also("running_again_ms", ms(began), Some(AGAIN_MS_MAX));
    let now = std::fs::read_to_string(&daemon).unwrap_or_default();
    row.must(now != pid, || "the dead daemon was not replaced".into());
    let token = site.running(whole, None).await?.token;
    row.must(token == whole_row.token, || "the other card's job was ended too".into());
    for job in [jobs[0], jobs[1], whole] {
        site.cancel(job).await?;
    }
    row.violations.extend(site.broken_laws());
    Ok(())
}

/// A slice is removed behind the agent's back while a job runs on another: it is no longer offered, the other stays.
async fn slices_vanish(bench: &Bench, row: &mut Row) -> Result<(), LabError> {
    let cut = |slices: &[(&str, &str)]| vec![card("GPU-a", "00000000:3B:00.0").cut(slices)];
    let both = [("MIG-1", "1g.10gb"), ("MIG-2", "1g.10gb")];
    let site = Site::start(bench, "G10-mig", cut(&both), Settings::default()).await?;
    let offered = |rows: &[DeviceRow]| rows.iter().filter(|row| row.facts.health.is_healthy()).count() == 2;
    site.until_rows("both slices are offered", offered).await?;
    let mut spec = shell_job("on-a-slice", "exec sleep 600");
    spec.ask.devices.insert("mig:1g.10gb".into(), 1);
    let job = site.submit(spec).await?;
    let running = site.running(job, None).await?;
    let kept = card_of(&running);
    let gone = if kept == "MIG-1" { "MIG-2" } else { "MIG-1" };
    site.driver.shows(cut(&[(&kept, "1g.10gb")])).map_err(io("the script"))?;
    let closed = |rows: &[DeviceRow]| {
        rows.iter().find(|row| row.facts.uuid.0 == gone).is_none_or(|row| !row.facts.health.is_healthy())
    };
    row.also(
        "slice_gone_ms",
        site.until_rows("the slice that is gone is closed", closed).await?,
        Some(SEEN_MS_MAX),
    );
    let now = site.running(job, None).await?;
    row.must(now.token == running.token, || "the job on the other slice was ended".into());
    row.must(site.reason(&kept).await?.is_none(), || format!("{kept} is no longer offered"));
    row.violations.extend(site.broken_laws());
    Ok(())
}
