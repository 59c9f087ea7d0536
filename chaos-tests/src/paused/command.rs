//! `rota-chaos paused`: the table of rows, and storms by seed.

use super::peer::Way;
use super::plant::Plant;
use super::rows::{ROWS, RowSpec, Tried};
use super::storm::{self, Run};
use super::table::{Line, Outcome};
use serde_json::json;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// From here on a sweep of storms must have met everything (I23).
pub const SEEDS_FOR_REACH: u64 = 60;

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Seeds, from and to: `1-20`.
    #[arg(long, default_value = "1-4", value_parser = range)]
    pub seeds: (u64, u64),
    /// Only these rows, such as N1,D4.
    #[arg(long, value_delimiter = ',')]
    pub only: Vec<String>,
    /// The table or the storms as a JSON document.
    #[arg(long)]
    pub json: Option<PathBuf>,
    /// Storms in place of rows: all kinds of faults by chance, one on top of the other.
    #[arg(long)]
    pub storm: bool,
    /// Tell one seed line by line: of a storm, or of the one row that `--only` names.
    #[arg(long)]
    pub talk: bool,
    /// How messages travel in storms; by default odd seeds go directly and even ones over QUIC.
    #[arg(long, value_enum)]
    pub way: Option<Way>,
    /// Break something on purpose: a storm must see it. Implies `--storm`.
    #[arg(long, value_enum)]
    pub plant: Option<Plant>,
}

fn range(text: &str) -> Result<(u64, u64), String> {
    let (from, to) = text.split_once('-').unwrap_or((text, text));
    match (from.parse(), to.parse()) {
        (Ok(from), Ok(to)) if from <= to => Ok((from, to)),
        _ => Err(format!("`{text}` is no range of seeds, such as 1-20")),
    }
}

/// Runs it.
#[must_use]
pub fn run(args: &Args) -> ExitCode {
    if args.storm || args.plant.is_some() { storms(args) } else { table(args) }
}

fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Calls `work` for each number below `count`, on all processors.
fn side_by_side(count: usize, work: impl Fn(usize) + Sync) {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..threads() {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    if at >= count {
                        return;
                    }
                    work(at);
                }
            });
        }
    });
}

/// A try that panics broke a law too, and its seed must be known.
fn caught(row: &RowSpec, seed: u64, talks: bool) -> Tried {
    std::panic::catch_unwind(|| row.attempt(seed, talks)).unwrap_or_else(|_| Tried {
        measured: Vec::new(),
        wrong: vec!["it panicked, see above".into()],
        exercised: true,
        trace: 0,
        lines: Vec::new(),
    })
}

/// Rows over seeds, side by side.
#[must_use]
pub fn lines(rows: &[&RowSpec], seeds: (u64, u64)) -> Vec<Line> {
    let tries = Mutex::new(BTreeMap::new());
    let each = usize::try_from(seeds.1 - seeds.0 + 1).unwrap_or(usize::MAX);
    side_by_side(each.saturating_mul(rows.len()), |at| {
        let (row, seed) = (at / each, seeds.0 + (at % each) as u64);
        let tried = caught(rows[row], seed, false);
        tries.lock().unwrap_or_else(PoisonError::into_inner).insert((row, seed), tried);
    });
    let mut lines: Vec<Line> = rows.iter().map(|row| Line::new(row)).collect();
    for ((row, seed), tried) in tries.into_inner().unwrap_or_else(PoisonError::into_inner) {
        lines[row].add(seed, tried);
    }
    lines
}

fn table(args: &Args) -> ExitCode {
    if let Some(unknown) = args.only.iter().find(|wanted| ROWS.iter().all(|row| row.id != *wanted)) {
        let all: Vec<&str> = ROWS.iter().map(|row| row.id).collect();
        eprintln!("no row {unknown}; there are {}", all.join(", "));
        return ExitCode::from(2);
    }
    let chosen = || ROWS.iter().filter(|row| args.only.is_empty() || args.only.iter().any(|id| id == row.id));
    if args.talk {
        for row in chosen() {
            let tried = caught(row, args.seeds.0, true);
            for text in &tried.lines {
                println!("{text}");
            }
            println!("{} seed {}: {:?}, {:#?}", row.id, args.seeds.0, tried.measured, tried.wrong);
        }
        return ExitCode::SUCCESS;
    }
    let began = Instant::now();
    println!("{}", Line::head());
    let mut told = Vec::new();
    for row in chosen() {
        for line in lines(&[row], args.seeds) {
            println!("{}", line.text());
            told.push(line);
        }
    }
    println!("{} rows in {:.0} s; times are virtual ms", told.len(), began.elapsed().as_secs_f64());
    let document = json!({ "seeds": args.seeds, "rows": told.iter().map(Line::json).collect::<Vec<_>>() });
    if !written(args, &document) {
        return ExitCode::from(2);
    }
    let any = |wanted: &[Outcome]| told.iter().any(|line| wanted.contains(&line.outcome()));
    ExitCode::from(match () {
        () if any(&[Outcome::Broken, Outcome::Late]) => 1,
        () if any(&[Outcome::NotExercised]) => 2,
        () => 0,
    })
}

fn written(args: &Args, document: &serde_json::Value) -> bool {
    let Some(path) = &args.json else { return true };
    let written = std::fs::write(path, format!("{document:#}\n"));
    if let Err(error) = &written {
        eprintln!("cannot write {}: {error}", path.display());
    }
    written.is_ok()
}

/// Runs storms side by side, in the order of their seeds; no more than the first that breaks a law, if asked to.
#[must_use]
pub fn sweep(seeds: (u64, u64), plant: Option<Plant>, way: Option<Way>, first_only: bool) -> Vec<Run> {
    let (runs, last) = (Mutex::new(Vec::new()), AtomicU64::new(seeds.1));
    let count = usize::try_from(seeds.1 - seeds.0 + 1).unwrap_or(usize::MAX);
    side_by_side(count, |at| {
        let seed = seeds.0 + at as u64;
        if seed > last.load(Ordering::Relaxed) {
            return;
        }
        let ran = std::panic::catch_unwind(|| storm::run(seed, plant, way, false));
        let run = ran.unwrap_or_else(|_| Run::failed(seed, "it panicked, see above"));
        if first_only && !run.violations.is_empty() {
            last.fetch_min(seed, Ordering::Relaxed);
        }
        runs.lock().unwrap_or_else(PoisonError::into_inner).push(run);
    });
    let mut runs = runs.into_inner().unwrap_or_else(PoisonError::into_inner);
    runs.sort_by_key(|run| run.seed);
    runs
}

/// What runs met together.
#[must_use]
pub fn reach(runs: &[Run]) -> BTreeMap<String, u64> {
    let mut reach = BTreeMap::new();
    for (what, times) in runs.iter().flat_map(|run| &run.reach) {
        *reach.entry(what.clone()).or_default() += times;
    }
    reach
}

fn storms(args: &Args) -> ExitCode {
    if args.talk {
        let run = storm::run(args.seeds.0, args.plant, args.way, true);
        for line in &run.lines {
            println!("{line}");
        }
        println!("{}", told(&run));
        return ExitCode::from(u8::from(!run.violations.is_empty()));
    }
    let began = Instant::now();
    let runs = sweep(args.seeds, args.plant, args.way, args.plant.is_some());
    for run in &runs {
        println!("{}", told(run));
    }
    let met = reach(&runs);
    for (what, times) in &met {
        println!("{times:>9}  {what}");
    }
    let missing: Vec<_> = storm::MUST.iter().filter(|what| !met.contains_key(**what)).collect();
    for what in &missing {
        println!("not exercised: {what}");
    }
    let virtual_s = runs.iter().map(|run| run.virtual_ms).sum::<u64>() / 1_000;
    println!("{} storms, {virtual_s} virtual s in {:.0} s", runs.len(), began.elapsed().as_secs_f64());
    let document = json!({
        "seeds": args.seeds,
        "storms": runs.iter().map(Run::json).collect::<Vec<_>>(),
        "reach": met,
        "not_exercised": missing,
    });
    if !written(args, &document) {
        return ExitCode::from(2);
    }
    let broken = runs.iter().any(|run| !run.violations.is_empty());
    let all = args.seeds.1 - args.seeds.0 + 1 >= SEEDS_FOR_REACH;
    ExitCode::from(match args.plant {
        Some(_) => u8::from(!broken),
        None if broken => 1,
        None if all && !missing.is_empty() => 2,
        None => 0,
    })
}

fn told(run: &Run) -> String {
    let recovered = run.recovery_ms.map_or("never".to_owned(), |ms| format!("in {ms} ms"));
    let mut text = format!(
        "seed {:>4}  trace {:016x}  {:>6} virtual ms  recovered {recovered}",
        run.seed, run.trace, run.virtual_ms
    );
    for violation in &run.violations {
        text.push_str(&format!("\n    {violation}"));
    }
    text
}
