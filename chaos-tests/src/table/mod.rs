//! `rota-chaos table`: every row of the catalogue of faults that any rung tries, in one table: how often it was tried, what
//! did not hold, and how long recovery took beside the stated bound. What was not tried counts as failed (law I23), also an
//! id of the catalogue for which there is no row, and what a budget of time left no room for.
//!
//! Rows are tried once each in the order of their worth, then again and again, so that a short budget sees much and a long
//! one sees it often.

mod catalogue;
mod drift;
mod leases;
mod long_log;

use crate::paused::command::lines;
use crate::paused::rows as paused;
use crate::paused::table::{Line, Outcome as Virtual};
use crate::real::report::{Report, Verdict};
use crate::real::row::{Outcome, Row};
use crate::real::{self, Bench, SCENARIOS, hands, members};
use catalogue::{CATALOGUE, WORTH, belongs_to, rounds_of, subject_of, what_of};
use rota_node::lab::LabError;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Faults of this catalogue that the table of attempts and cards tries.
const HANDS: [&str; 1] = ["P10"];

/// The budget where the command names none, in seconds.
const BUDGET: &str = "ROTA_CHAOS_BUDGET";

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Only these ids of the catalogue, such as N1,D4: all rows of each.
    #[arg(long, value_name = "ID", value_delimiter = ',')]
    pub only: Vec<String>,
    /// Only what this rung tries.
    #[arg(long, value_enum)]
    pub rung: Option<Rung>,
    /// How often each row is tried: with real processes.
    #[arg(long, default_value_t = 3)]
    pub rounds: u64,
    /// The same in virtual time, by so many seeds.
    #[arg(long, default_value_t = 10)]
    pub seeds: u64,
    /// No row is begun after so many seconds; also by the environment, as `ROTA_CHAOS_BUDGET`.
    #[arg(long, value_name = "SECONDS")]
    pub budget: Option<u64>,
    /// Also write one JSON document to this file.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// Where a row is tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Rung {
    /// Both sides of a lease, each on a clock of its own.
    Leases,
    /// One peer's log on a real disk.
    Log,
    /// The real agreement in virtual time.
    Paused,
    /// Real processes.
    Real,
    /// Real processes that lack what they need.
    Hands,
    /// Real processes that come, go, are wiped and copied.
    Members,
    /// Nowhere.
    None,
}

impl Rung {
    fn name(self) -> &'static str {
        match self {
            Self::Leases => "leases",
            Self::Paused => "paused",
            Self::Real => "real",
            Self::Log => "log",
            Self::Hands => "hands",
            Self::Members => "members",
            Self::None => "-",
        }
    }
}

/// A row with where it is tried.
#[derive(Debug, Clone)]
struct Entry {
    rung: Rung,
    row: Row,
}

/// Tries all of it and prints the table. Exit code: 0 all held, 1 something did not, 2 something was not exercised.
#[must_use]
pub fn command(args: &Args) -> ExitCode {
    if let Some(unknown) = args.only.iter().find(|id| !known(id)) {
        eprintln!("no fault {unknown} in the catalogue; there are {}", CATALOGUE.join(", "));
        return ExitCode::from(2);
    }
    let set = std::env::var(BUDGET).ok();
    let budget = match (args.budget, set.as_deref().map(str::parse::<u64>)) {
        (Some(seconds), _) | (None, Some(Ok(seconds))) => Some(Duration::from_secs(seconds)),
        (None, None) => None,
        (None, Some(Err(_))) => {
            eprintln!(
                "{BUDGET} is `{}`, which is no number of seconds, such as 480",
                set.unwrap_or_default()
            );
            return ExitCode::from(2);
        }
    };
    let began = Instant::now();
    let mut entries = plan(args);
    let over = || budget.is_some_and(|budget| began.elapsed() >= budget);
    if let Err(error) =
        real::with_runtime(None, 1, async |bench| try_all(&mut entries, args, &bench, over).await)
    {
        eprintln!("the lab cannot be set up: {error}");
        return ExitCode::from(2);
    }
    for entry in entries.iter_mut().filter(|entry| entry.rung != Rung::None && entry.row.runs == 0) {
        entry.row.skipped.get_or_insert_with(|| "never met, or no time was left for it".into());
    }
    println!("{}", head());
    for entry in &entries {
        println!("{:8}{}", entry.rung.name(), entry.row.lines());
    }
    let seconds = began.elapsed().as_secs_f64();
    println!("{}", summary(&entries, seconds));
    if let Some(path) = &args.json
        && let Err(error) = std::fs::write(path, format!("{:#}\n", document(&entries, budget, seconds)))
    {
        eprintln!("cannot write {}: {error}", path.display());
        return ExitCode::from(2);
    }
    verdict(&entries)
}

fn known(id: &str) -> bool {
    CATALOGUE.contains(&id) || paused::row(id).is_some() || SCENARIOS.contains(&id)
}

/// All rows of the arguments, untried, in the order of their worth.
fn plan(args: &Args) -> Vec<Entry> {
    let wanted =
        |id: &str| args.only.is_empty() || args.only.iter().any(|only| only == id || belongs_to(id, only));
    let mut entries: Vec<Entry> = Vec::new();
    let mut add = |rung, row| entries.push(Entry { rung, row });
    for (id, what) in leases::ROWS.into_iter().filter(|(id, _)| wanted(id)) {
        add(Rung::Leases, Row::new(id, what, None));
    }
    for (id, what) in [drift::ROW].into_iter().filter(|(id, _)| wanted(id)) {
        add(Rung::Leases, Row::new(id, what, None));
    }
    for (id, what) in [long_log::ROW].into_iter().filter(|(id, _)| wanted(id)) {
        add(Rung::Log, Row::new(id, what, None));
    }
    for row in paused::ROWS.iter().filter(|row| wanted(row.id)) {
        add(Rung::Paused, Row::new(row.id, row.what, row.stated_ms));
    }
    for id in SCENARIOS.into_iter().filter(|id| wanted(id)) {
        add(Rung::Real, Row::new(id, what_of(id), None));
    }
    // The others of that table are not of this catalogue, or have a row of their own above.
    for id in HANDS.into_iter().filter(|id| wanted(id)) {
        add(Rung::Hands, Row::new(id, "", None));
    }
    for (id, _) in members::ROWS.iter().filter(|(id, _)| wanted(id)) {
        add(Rung::Members, Row::new(id, "", None));
    }
    let tried: Vec<String> = entries.iter().map(|entry| entry.row.id.clone()).collect();
    for id in CATALOGUE.iter().filter(|id| wanted(id)) {
        if !tried.iter().any(|row| belongs_to(row, id)) {
            let row = Row::new(id, what_of(id), None);
            let row = match subject_of(id) {
                Some(why) => row.without_subject(why),
                None => row.skip("there is no row for it"),
            };
            entries.push(Entry { rung: Rung::None, row });
        }
    }
    entries.retain(|entry| args.rung.is_none_or(|rung| entry.rung == rung));
    let worth =
        |entry: &Entry| WORTH.iter().position(|id| belongs_to(&entry.row.id, id)).unwrap_or(WORTH.len());
    entries.sort_by_key(|entry| (worth(entry), entry.rung != Rung::Paused));
    entries
}

/// Once each, then again, until all have been tried as often as they should or the time is over.
async fn try_all(
    entries: &mut [Entry],
    args: &Args,
    bench: &Bench,
    over: impl Fn() -> bool,
) -> Result<(), LabError> {
    for pass in 1..=args.rounds.max(args.seeds) {
        for entry in entries.iter_mut() {
            let virtual_time = matches!(entry.rung, Rung::Paused | Rung::Leases);
            let times = if virtual_time { args.seeds } else { args.rounds };
            if over() || pass > times || entry.rung == Rung::None {
                continue;
            }
            let row = once(entry, pass, bench).await;
            println!("{:8}{}", entry.rung.name(), row.lines());
            entry.row.merge(row);
        }
    }
    println!();
    Ok(())
}

async fn once(entry: &Entry, pass: u64, bench: &Bench) -> Row {
    let id = entry.row.id.as_str();
    match entry.rung {
        Rung::Leases if id == drift::ROW.0 => drift::row(pass),
        Rung::Leases => leases::row(id, &entry.row.what, pass),
        Rung::Log => long_log::row().await,
        Rung::Hands => hands::row(id, bench).await.unwrap_or_else(|| entry.row.clone()),
        Rung::Paused => {
            let specs: Vec<_> = paused::row(id).into_iter().collect();
            lines(&specs, (pass, pass)).pop().map_or_else(|| entry.row.clone(), |line| of_line(&line))
        }
        Rung::Real => {
            let bench = Bench { rounds: rounds_of(id), ..bench.clone() };
            let report = real::run(id, &bench).await;
            let failed = |error: LabError| Report::new(id, Verdict::Fail(format!("the lab failed: {error}")));
            Row::of(&report.unwrap_or_else(failed), what_of(id))
        }
        Rung::Members => members::row(id, bench).await.unwrap_or_else(|| entry.row.clone()),
        Rung::None => entry.row.clone(),
    }
}

fn of_line(line: &Line) -> Row {
    let mut row = Row::new(line.id, line.what, line.stated_ms);
    row.runs = line.runs;
    row.measured_ms.clone_from(&line.measured_ms);
    row.violations = line.wrong.iter().map(|(seed, what)| format!("seed {seed}: {what}")).collect();
    if line.outcome() == Virtual::NotExercised {
        // Another seed may meet it.
        row.runs = 0;
        row.also("not_met_count", 1, None);
    }
    row
}

fn head() -> String {
    format!("{:8}{}", "RUNG", Row::head())
}

fn count(entries: &[Entry], outcome: Outcome) -> usize {
    entries.iter().filter(|entry| entry.row.outcome() == outcome).count()
}

fn summary(entries: &[Entry], seconds: f64) -> String {
    let [held, broken, untried] =
        [Outcome::Held, Outcome::Broken, Outcome::NotExercised].map(|one| count(entries, one));
    let runs: usize = entries.iter().map(|entry| entry.row.runs).sum();
    let violations: usize = entries.iter().map(|entry| entry.row.violations.len()).sum();
    format!(
        "{} rows, {runs} runs in {seconds:.0} s: {held} held, {broken} broken, {untried} not exercised; {violations} violations",
        entries.len()
    )
}

fn document(entries: &[Entry], budget: Option<Duration>, seconds: f64) -> Value {
    let row = |entry: &Entry| {
        let mut row = entry.row.json();
        row["rung"] = json!(entry.rung.name());
        row
    };
    json!({
        "rows": entries.iter().map(row).collect::<Vec<_>>(),
        "budget_s": budget.map(|budget| budget.as_secs()),
        "seconds": seconds,
        "held": count(entries, Outcome::Held),
        "broken": count(entries, Outcome::Broken),
        "not_exercised": count(entries, Outcome::NotExercised),
    })
}

fn verdict(entries: &[Entry]) -> ExitCode {
    let all = entries.iter().map(|entry| entry.row.outcome());
    let worst = all.max_by_key(|outcome| match outcome {
        Outcome::Held | Outcome::NoSubject => 0,
        Outcome::NotExercised => 1,
        Outcome::Broken => 2,
    });
    worst.unwrap_or(Outcome::NotExercised).exit_code()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(only: &[&str]) -> Args {
        let only = only.iter().map(|id| (*id).to_owned()).collect();
        Args { only, rung: None, rounds: 1, seeds: 1, budget: None, json: None }
    }

    #[test]
    fn every_id_of_the_catalogue_has_a_line_and_what_has_no_row_is_not_exercised() {
        let all = plan(&args(&[]));
        for id in CATALOGUE {
            let found: Vec<_> = all.iter().filter(|entry| belongs_to(&entry.row.id, id)).collect();
            assert!(!found.is_empty(), "{id}");
            let none = [Outcome::NotExercised, Outcome::NoSubject];
            assert!(found.iter().all(|entry| none.contains(&entry.row.outcome())), "{id}");
        }
        let ids: Vec<_> =
            plan(&args(&["N1"])).iter().map(|entry| (entry.rung, entry.row.id.clone())).collect();
        let wanted = [(Rung::Paused, "N1"), (Rung::Paused, "N1b"), (Rung::Paused, "N1c"), (Rung::Real, "N1")];
        assert_eq!(ids, wanted.map(|(rung, id)| (rung, id.to_owned())));
    }

    #[test]
    fn a_row_in_virtual_time_is_tried_and_the_worst_decides() {
        let mut entries = plan(&args(&["R10"]));
        let specs: Vec<_> = paused::row("R10").into_iter().collect();
        for line in lines(&specs, (1, 1)) {
            entries[0].row.merge(of_line(&line));
        }
        assert_eq!(entries[0].row.outcome(), Outcome::Held, "{}", entries[0].row.lines());
        assert!(summary(&entries, 1.0).contains("1 held, 0 broken, 0 not exercised"));
        let skipped = Row::new("R8", "", None).skip("there is no row for it");
        entries.push(Entry { rung: Rung::None, row: skipped });
        assert_eq!(document(&entries, None, 1.0)["not_exercised"], json!(1));
        assert_eq!(format!("{:?}", verdict(&entries)), format!("{:?}", ExitCode::from(2)));
        let mut broken = Row::new("N9", "", None);
        broken.wrong("x");
        entries.push(Entry { rung: Rung::Real, row: broken });
        assert_eq!(format!("{:?}", verdict(&entries)), format!("{:?}", ExitCode::from(1)));
    }
}
