//! `rota-chaos`: runs the rungs of doubt by hand. `cargo test` runs small budgets of the same.

use clap::{Parser, Subcommand};
use rota_chaos::report;
use rota_chaos::world::plant::Plant;
use rota_chaos::world::sweep::{run, sweep};
use std::io::Write;
use std::process::ExitCode;
use std::time::Instant;

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
}

fn main() -> ExitCode {
    let Rung::World { seeds, from, seed, plant, json, threads } = Cli::parse().rung;
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
