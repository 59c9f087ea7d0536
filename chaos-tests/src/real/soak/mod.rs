//! `rota-chaos soak`: real agents at work for minutes or hours under faults that come two or three at a time, drawn from a
//! seed. After each leg everything is mended, and all that was promised must be true (`verdict.rs`); what must have been met
//! and was not makes the run fail as well (law I23).
//!
//! `trouble.rs` is what goes wrong, `work.rs` what the clients do meanwhile.

mod trouble;
mod verdict;
mod work;

use super::Bench;
use super::mounts::{Mounted, cannot_mount};
use super::proxy::Wires;
use super::row::Row;
use crate::world::rng::Rng;
use rota_node::lab::LabError;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use trouble::Trouble;
use verdict::Verdicts;
use work::Work;

/// Hosts of the cluster: two may fail at any time, and sometimes more do.
const PEERS: usize = 5;
/// Of them, so many have small disks of their own, which can be filled.
const SMALL_DISKS: usize = 3;
/// Their size, in MiB: nothing is written there before it is needed.
const DISK_MIB: u64 = 512;
/// Tasks that each host runs at once: what waits is work too, and a machine that is busy with tasks alone shows nothing else.
const CPUS: &str = "6";
/// Settings of all agents: small disks hold little room from the beginning.
const SETTINGS: &str = "[output]\ndisk_floor = \"1MiB\"\n";

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// How long there are faults, in minutes; mending and judging comes on top.
    #[arg(long, default_value_t = 60.0)]
    pub minutes: f64,
    /// What goes wrong when.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Between two looks at whether all is well, in seconds.
    #[arg(long, default_value_t = 180, value_name = "SECONDS")]
    pub leg: u64,
    /// Time bounds of the agents: production or chaos.
    #[arg(long, default_value = "chaos")]
    pub profile: String,
    /// Also write one JSON document to this file.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Leave the agents' folders there.
    #[arg(long, value_name = "DIR")]
    pub keep: Option<PathBuf>,
}

/// The plan of a soak.
#[derive(Debug, Clone)]
pub struct Plan {
    /// How long there are faults.
    pub faults: Duration,
    /// What goes wrong when.
    pub seed: u64,
    /// Between two looks.
    pub leg: Duration,
    /// Time bounds of the agents.
    pub profile: String,
    /// Tell what happens while it happens.
    pub talks: bool,
    /// All that [`trouble::MUST`] names must have been met: what a short run cannot promise.
    pub meets_all: bool,
}

/// What a run says while it goes on.
#[derive(Debug, Clone, Copy)]
struct Voice {
    began: Instant,
    talks: bool,
}

impl Voice {
    fn say(self, what: &str) {
        if self.talks {
            println!("{:7.1} s  {what}", self.began.elapsed().as_secs_f64());
        }
    }
}

/// Runs it, and prints what came of it. Exit code: 0 all held, 1 something did not, 2 something was not exercised.
#[must_use]
pub fn command(args: &Args) -> ExitCode {
    let plan = Plan {
        faults: Duration::from_secs_f64(args.minutes.max(0.1) * 60.0),
        seed: args.seed,
        leg: Duration::from_secs(args.leg.max(10)),
        profile: args.profile.clone(),
        talks: true,
        meets_all: args.minutes >= 10.0,
    };
    let outcome = super::with_runtime(args.keep.as_deref(), 1, async |bench| run(&bench, &plan).await);
    let row = match outcome {
        Ok(row) => row,
        Err(error) => {
            eprintln!("the lab failed: {error}");
            return ExitCode::from(2);
        }
    };
    println!("{}\n{}", Row::head(), row.lines());
    if let Some(path) = &args.json
        && let Err(error) = std::fs::write(path, format!("{:#}\n", row.json()))
    {
        eprintln!("cannot write {}: {error}", path.display());
        return ExitCode::from(2);
    }
    row.outcome().exit_code()
}

/// One soak in a cluster of its own.
///
/// # Errors
/// The cluster does not start.
pub async fn run(bench: &Bench, plan: &Plan) -> Result<Row, LabError> {
    let wires = Wires::new(PEERS)?;
    let mounts = RefCell::new(Ok(Vec::new()));
    let lab = bench
        .lab("soak", PEERS, |options| {
            options.ports = wires.ports();
            options.profile.clone_from(&plan.profile);
            options.cpus = Some(CPUS.into());
            options.config = Some(SETTINGS.into());
            if cannot_mount().is_none() {
                let places = (1..=SMALL_DISKS).map(|number| options.dir.join(format!("n{number}")));
                *mounts.borrow_mut() = places.map(|place| Mounted::tmpfs(&place, DISK_MIB)).collect();
            }
        })
        .await;
    let mounts: Vec<Mounted> = mounts.into_inner()?;
    // Declared after them, so that its agents end before their disks go.
    let mut lab = lab?;
    let voice = Voice { began: Instant::now(), talks: plan.talks };
    let dir = bench.dir.join("soak");
    let mut rng = Rng::new(plan.seed);
    let mut row = Row::new(
        "SOAK",
        "faults two or three at once: from the mending until all is well",
        Some(verdict::WELL_MS),
    );
    let mut met: BTreeMap<String, u64> = BTreeMap::new();
    let mut verdicts = Verdicts::new(&dir);
    let work = Work::begin(&lab, &dir, rng.bits());
    let mut left = plan.faults;
    while left > Duration::ZERO {
        let leg = left.min(plan.leg);
        left -= leg;
        let mut trouble = Trouble::new(&mut lab, &wires, &mounts, (&bench.dir, voice), &mut met);
        trouble.leg(leg, &mut rng).await?;
        drop(trouble);
        work.pause().await;
        let found = verdicts.leg(&lab, &work).await?;
        voice.say(&format!("mended; well after {} ms: {}", found.well_ms, found.words()));
        row.ran(found.well_ms);
        let broken = !found.wrong.is_empty();
        row.violations.extend(found.wrong);
        if broken {
            break;
        }
        work.resume();
    }
    let tally = work.end().await;
    verdicts.figures(&mut row, &tally, &mut met);
    for (what, times) in &met {
        row.also(what, *times, None);
    }
    for what in trouble::MUST.iter().filter(|_| plan.meets_all) {
        if !met.contains_key(*what) {
            row = row.skip(&format!("never met: {what}"));
        }
    }
    Ok(row)
}
