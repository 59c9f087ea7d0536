//! `rota-chaos`: runs the rungs of doubt by hand. `cargo test` runs small budgets of the same.

use clap::{Parser, Subcommand};
use rota_chaos::paused;
use rota_chaos::real::report::{Report, Verdict};
use rota_chaos::real::row::{Outcome, Row};
use rota_chaos::real::{self, Bench, SCENARIOS};
use rota_chaos::real::{hands, members};
use rota_chaos::report;
use rota_chaos::world::plant::Plant;
use rota_chaos::world::sweep::{run, sweep};
use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

/// As the program `rota` has it, which this one is when it is told so.
#[global_allocator]
static ALLOCATOR: rota_node::Allocator = rota_node::Allocator;

/// Fewer seeds than this need not have met everything.
const SEEDS_FOR_REACH: u64 = 200;
/// Seeds that once found something.
const CORPUS: &str = include_str!("../corpus.txt");

#[derive(Debug, Parser)]
#[command(name = "rota-chaos", about = "Looks for what breaks Rota's laws")]
struct Cli {
    #[command(subcommand)]
    rung: Rung,
}

#[derive(Debug, Subcommand)]
enum Rung {
    /// The real state machine and deciders in a simulated world. Exit code: 0 all laws held (or the planted bug was
    /// caught), 1 one was broken (or it was not caught), 2 something was never exercised.
    World {
        /// How many seeds to run, after the corpus.
        #[arg(long, default_value_t = 200)]
        seeds: u64,
        /// The first of them.
        #[arg(long, default_value_t = 1)]
        from: u64,
        /// Only this one, told line by line.
        #[arg(long)]
        seed: Option<u64>,
        /// Break something on purpose: the sweep must see it.
        #[arg(long, value_enum)]
        plant: Option<Plant>,
        /// For programs.
        #[arg(long)]
        json: bool,
        /// How many at once; all cores if not given.
        #[arg(long)]
        threads: Option<usize>,
    },
    /// Real agents on loopback, killed, frozen and restarted. Exit code: 0 all held, 1 one did not.
    Real {
        /// How often each scenario is repeated.
        #[arg(long, default_value_t = 3)]
        rounds: usize,
        /// Only this one, by its fault id; may be repeated.
        #[arg(long)]
        only: Vec<String>,
        /// One JSON document a scenario.
        #[arg(long)]
        json: bool,
    },
    /// The real agreement over real QUIC in one process, in virtual time. Exit code: 0 all held (or the planted bug was
    /// caught), 1 something did not (or it was not caught), 2 something was not exercised.
    Paused(paused::command::Args),
    /// The table of faults of attempts and cards: what was measured beside what is stated. Exit code: 0 all held, 1 one
    /// did not, 2 one was not exercised.
    Hands {
        /// How often each fault is tried, at least.
        #[arg(long, default_value_t = 4)]
        rounds: usize,
        /// Only these rows, such as T1,G10; may be repeated.
        #[arg(long, value_name = "ID", value_delimiter = ',')]
        only: Vec<String>,
        /// Also write one JSON document with all rows to this file.
        #[arg(long, value_name = "FILE")]
        json: Option<PathBuf>,
        /// The scripted driver library, where it is not beside this program (`libfake_nvml.so`).
        #[arg(long, value_name = "FILE")]
        nvml: Option<PathBuf>,
    },
    /// Every fault of the catalogue that any rung tries, in one table.
    Table(rota_chaos::table::Args),
    /// Real agents at work under random faults that overlap, for minutes or hours, judged leg by leg.
    Soak(real::soak::Args),
    /// The table of membership: hosts that come, go, are wiped, copied and mixed up, clusters that begin anew. As `hands`.
    Members {
        /// How often each row is tried, at least.
        #[arg(long, default_value_t = 1)]
        rounds: usize,
        /// Only these rows, such as R1,R3; may be repeated.
        #[arg(long, value_name = "ID", value_delimiter = ',')]
        only: Vec<String>,
        /// Also write one JSON document with all rows to this file.
        #[arg(long, value_name = "FILE")]
        json: Option<PathBuf>,
    },
}

/// Which table of rows.
#[derive(Clone, Copy)]
enum Table {
    Hands,
    Members,
}

impl Table {
    fn ids(self) -> Vec<&'static str> {
        match self {
            Self::Hands => hands::ROWS.iter().map(|(id, _)| *id).collect(),
            Self::Members => members::ROWS.iter().map(|(id, _)| *id).collect(),
        }
    }

    async fn row(self, id: &str, bench: &Bench) -> Option<Row> {
        match self {
            Self::Hands => hands::row(id, bench).await,
            Self::Members => members::row(id, bench).await,
        }
    }
}

fn main() -> ExitCode {
    // The labs run this very program as `rota`, and its agents start their fork server by it.
    let mut args: Vec<OsString> = std::env::args_os().collect();
    match args.get(1).and_then(|first| first.to_str()) {
        Some("rota") => {
            args.remove(1);
            return rota_node::main_with(args);
        }
        Some(rota_node::shim::SERVER_ARG | rota_node::devices::probe::PROBE_ARG) => {
            return rota_node::main_with(args);
        }
        _ => {}
    }
    match Cli::parse().rung {
        Rung::World { seeds, from, seed, plant, json, threads } => {
            world(seeds, from, seed, plant, json, threads)
        }
        Rung::Paused(args) => paused::command::run(&args),
        Rung::Table(args) => rota_chaos::table::command(&args),
        Rung::Soak(args) => real::soak::command(&args),
        Rung::Real { rounds, only, json } => real(rounds, &only, json),
        Rung::Hands { rounds, only, json, nvml } => {
            done(table(Table::Hands, rounds, &only, json.as_deref(), nvml))
        }
        Rung::Members { rounds, only, json } => {
            done(table(Table::Members, rounds, &only, json.as_deref(), None))
        }
    }
}

fn real(rounds: usize, only: &[String], json: bool) -> ExitCode {
    done(scenarios(rounds, only, json))
}

fn done(outcome: std::io::Result<ExitCode>) -> ExitCode {
    outcome.unwrap_or_else(|error| {
        eprintln!("the lab cannot be set up: {error}");
        ExitCode::from(2)
    })
}

fn table(
    table: Table,
    rounds: usize,
    only: &[String],
    json: Option<&Path>,
    nvml: Option<PathBuf>,
) -> std::io::Result<ExitCode> {
    let dir = tempfile::tempdir()?;
    let exe = std::env::current_exe()?;
    let bench = Bench { exe, exe_args: vec!["rota".into()], dir: dir.path().to_owned(), rounds, nvml };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let all = table.ids();
    if let Some(unknown) = only.iter().find(|wanted| !all.contains(&wanted.as_str())) {
        eprintln!("no row {unknown}; there are {}", all.join(", "));
        return Ok(ExitCode::from(2));
    }
    println!("{}", Row::head());
    let mut rows = Vec::new();
    for id in all.into_iter().filter(|id| only.is_empty() || only.iter().any(|wanted| wanted == id)) {
        let Some(row) = runtime.block_on(table.row(id, &bench)) else { continue };
        println!("{}", row.lines());
        rows.push(row);
    }
    let count = |outcome| rows.iter().filter(|row| row.outcome() == outcome).count();
    let [held, broken, untried, no_subject] =
        [Outcome::Held, Outcome::Broken, Outcome::NotExercised, Outcome::NoSubject].map(count);
    println!(
        "{} rows: {held} held, {broken} broken, {untried} not exercised, {no_subject} without a subject",
        rows.len()
    );
    if let Some(path) = json {
        let all: Vec<_> = rows.iter().map(Row::json).collect();
        std::fs::write(path, format!("{:#}\n", serde_json::Value::from(all)))?;
    }
    Ok(ExitCode::from(match (broken, untried) {
        (0, 0) => 0,
        (0, _) => 2,
        _ => 1,
    }))
}

fn scenarios(rounds: usize, only: &[String], json: bool) -> std::io::Result<ExitCode> {
    let dir = tempfile::tempdir()?;
    let exe = std::env::current_exe()?;
    let bench = Bench { exe, exe_args: vec!["rota".into()], dir: dir.path().to_owned(), rounds, nvml: None };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let chosen =
        SCENARIOS.into_iter().filter(|name| only.is_empty() || only.iter().any(|wanted| wanted == name));
    let (mut ran, mut failed) = (0, 0);
    for name in chosen {
        let report = runtime
            .block_on(real::run(name, &bench))
            .unwrap_or_else(|error| Report::new(name, Verdict::Fail(format!("the lab failed: {error}"))));
        ran += 1;
        failed += usize::from(report.verdict != Verdict::Pass);
        if json {
            println!("{}", report.json());
        } else {
            println!("{}", report.line());
        }
    }
    if ran == 0 {
        eprintln!("no such scenario; there are {}", SCENARIOS.join(", "));
    }
    Ok(ExitCode::from(u8::from(failed > 0 || ran == 0)))
}

fn world(
    seeds: u64,
    from: u64,
    seed: Option<u64>,
    plant: Option<Plant>,
    json: bool,
    threads: Option<usize>,
) -> ExitCode {
    let mut out = std::io::stdout().lock();
    // A closed pipe is the reader's wish.
    if let Some(seed) = seed {
        let run = run(seed, plant, true);
        for line in &run.lines {
            let _ = writeln!(out, "{line}");
        }
        for violation in &run.violations {
            let _ = writeln!(out, "{violation}");
        }
        let _ = writeln!(
            out,
            "seed {seed}: {} steps, {} virtual ms, trace {:016x}",
            run.steps, run.virtual_ms, run.trace
        );
        return if run.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(1) };
    }
    let corpus = CORPUS.lines().filter_map(|line| line.split_whitespace().next()?.parse().ok());
    let all: Vec<u64> = corpus.chain(from..from.saturating_add(seeds)).collect();
    let threads = threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    let started = Instant::now();
    let found = sweep(&all, plant, threads, plant.is_some());
    let seconds = started.elapsed().as_secs_f64();
    let missing =
        if plant.is_none() && seeds >= SEEDS_FOR_REACH { found.reach.missing() } else { Vec::new() };
    let _ = if json {
        writeln!(out, "{}", report::json(&found, &missing, seconds))
    } else {
        write!(out, "{}", report::text(&found, &missing, seconds))
    };
    let broken = !found.failed.is_empty();
    match plant {
        Some(_) if broken => ExitCode::SUCCESS,
        None if !broken && missing.is_empty() => ExitCode::SUCCESS,
        None if !broken => ExitCode::from(2),
        _ => ExitCode::from(1),
    }
}
