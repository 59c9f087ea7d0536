//! Cards that are given back (faults G6, S13; field report R052): clean, or dirty with the reason.

use super::site::{Settings, Site, program};
use super::{Bench, io, ms, sharing::two};
use crate::real::row::Row;
use rota_node::lab::LabError;
use rota_node::lab_work::{shell_job, with_gpus};
use rota_protocol::job::JobState;
use std::process::{Child, Command};
use std::time::Instant;

/// Kept from being granted for 30 s, then named dirty; the end of a 2 s job and a look before, in ms.
const DIRTY_MS_MAX: u64 = 36_000;
/// Never before its time.
const DIRTY_MS_MIN: u64 = 28_000;
/// What giving a clean card back may take.
const CLEAN_MS_MAX: u64 = 5_000;
/// From the end of what was left on a card to the card's next job.
const BACK_MS_MAX: u64 = 30_000;
const GIB: u64 = 1 << 30;

/// A process that is nobody's job; ended when dropped.
#[derive(Debug)]
pub struct Stranger(Child);

impl Stranger {
    /// Starts it.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn new() -> Result<Self, LabError> {
        Command::new("sleep").arg("600").spawn().map(Self).map_err(io("a stranger"))
    }

    /// Its number.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// G6, S13: a card is not free until it is clean; after 30 s it is dirty with the reason, its attempt ends, the other card
/// stays in use, and it comes back by itself. The steps are on the attempt, in their order.
pub(in crate::real) async fn clean_or_dirty(bench: &Bench) -> Result<Row, LabError> {
    let what = "a stranger left on a card: from its job's start (2 s) to the card named dirty; it comes back by itself";
    let mut row = Row::new("G6", what, Some(DIRTY_MS_MAX));
    let dir = Site::folder(bench, "G6")?;
    program(&dir.join("scrub"), "echo \"$ROTA_DEVICES\" >> \"${0%/*}/scrubbed\"")?;
    let settings = Settings { sharing: "scrub = [\"DIR/scrub\"]", ..Settings::default() };
    let site = Site::well(bench, "G6", two(), settings).await?;
    clean(&site, &mut row).await?;
    // Something is left on the card of the next one.
    let job = site.submit(with_gpus(shell_job("leaves", "exec sleep 2"), 1)).await?;
    let on = super::site::card_of(&site.running(job, None).await?);
    let left = Stranger::new()?;
    let mut cards = two();
    let at = usize::from(on == "GPU-b");
    cards[at] = cards[at].clone().used_by(left.pid(), 10 * GIB);
    cards[at].used = 11 * GIB;
    site.driver.shows(cards).map_err(io("the script"))?;
    let began = Instant::now();
    let view = site.over(job).await?;
    let dirty_ms = ms(began);
    row.ran(dirty_ms);
    row.must(dirty_ms >= DIRTY_MS_MIN, || format!("dirty before its time, after {dirty_ms} ms"));
    let named = format!("pid {} of ", left.pid());
    let release = view.attempts.first().and_then(|attempt| attempt.care.as_ref()?.release.clone());
    let why = release.and_then(|release| release.dirty).unwrap_or_default();
    row.must(why.contains(&named) && why.contains("10240 MiB"), || format!("the attempt says {why:?}"));
    row.must(view.row.state == JobState::Succeeded, || format!("its own end became {}", view.row.state));
    let shown = site.reason(&on).await?.unwrap_or_default();
    row.must(shown.contains(&named), || format!("the card says {shown:?}"));
    // The other card is in use meanwhile, and only that one.
    let both = site.submit(with_gpus(shell_job("both", "true"), 2)).await?;
    let other = site.submit(with_gpus(shell_job("other", "true"), 1)).await?;
    let view = site.over(other).await?;
    let used = view.attempts.first().map(super::site::card_of);
    row.must(used.as_ref().is_some_and(|used| *used != on), || format!("{used:?} is in use, {on} is dirty"));
    let state = site.show(both).await?.row.state;
    row.must(state == JobState::Pending, || format!("a job of both cards is {state}"));
    drop(left);
    site.driver.shows(two()).map_err(io("the script"))?;
    let began = Instant::now();
    site.over(both).await?;
    row.also("back_after_ms", ms(began), Some(BACK_MS_MAX));
    row.violations.extend(site.broken_laws());
    Ok(row)
}

/// A clean card: what giving it back costs, and that its steps are told in their order.
async fn clean(site: &Site, row: &mut Row) -> Result<(), LabError> {
    let clean = site.submit(with_gpus(shell_job("clean", "true"), 1)).await?;
    let view = site.over(clean).await?;
    let release = view.attempts.first().and_then(|attempt| attempt.care.as_ref()?.release.clone());
    let steps: Vec<String> =
        release.iter().flat_map(|release| release.steps.iter().map(ToString::to_string)).collect();
    row.must(steps == ["processes gone", "nodes closed", "memory back", "scrubbed", "verified"], || {
        format!("steps: {steps:?}")
    });
    row.also("clean_release_ms", release.map_or(u64::MAX, |release| release.took_ms), Some(CLEAN_MS_MAX));
    let scrubbed = std::fs::read_to_string(site.dir.join("scrubbed")).unwrap_or_default();
    row.must(scrubbed.starts_with("GPU-"), || format!("the scrub was told {scrubbed:?}"));
    Ok(())
}
