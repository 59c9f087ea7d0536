//! The second rung's own gate: one seed is one run, also in another process and over real QUIC; storms on a small budget; and
//! planted bugs that must be seen.
//!
//! `ROTA_CHAOS_SEEDS` sets the budget, a tenth of it here; from [`SEEDS_FOR_REACH`] seeds on, the storms must also have met
//! every fault (fault I23).

use rota_chaos::paused::command::{SEEDS_FOR_REACH, lines, reach, sweep};
use rota_chaos::paused::rows::ROWS;
use rota_chaos::paused::table::Outcome;
use rota_chaos::paused::{Plant, Way, storm};
use std::process::Command;

/// Storms of the gate.
const SEEDS_DEFAULT: u64 = 8;
/// A planted bug must be seen within this many seeds.
const PLANT_SEEDS_MAX: u64 = 30;

fn seeds() -> u64 {
    let set = std::env::var("ROTA_CHAOS_SEEDS").ok().and_then(|text| text.parse::<u64>().ok());
    set.map_or(SEEDS_DEFAULT, |seeds| (seeds / 10).max(1))
}

#[test]
fn laws_hold_in_every_storm() {
    let upto = seeds();
    let runs = sweep((1, upto), None, None, false);
    for run in &runs {
        assert!(
            run.violations.is_empty(),
            "rota-chaos paused --storm --seeds {}: {:#?}",
            run.seed,
            run.violations
        );
    }
    let met = reach(&runs);
    let missing: Vec<_> = storm::MUST.iter().filter(|what| !met.contains_key(**what)).collect();
    if upto < SEEDS_FOR_REACH {
        println!("NOT EXERCISED in {upto} storms: {missing:?}");
    } else {
        assert!(missing.is_empty(), "not exercised: {missing:?}");
    }
}

/// Each row once, or as often as the long budget says; times are for the table, which states them beside the bounds.
#[test]
fn rows_hold() {
    let upto = (seeds() / SEEDS_DEFAULT).max(1);
    let rows: Vec<_> = ROWS.iter().collect();
    for line in lines(&rows, (1, upto)) {
        println!("{}", line.text());
        assert!(matches!(line.outcome(), Outcome::Held | Outcome::Late), "{}", line.text());
    }
}

/// The trace of a seed, told by another process.
fn elsewhere(seed: u64, way: &str) -> String {
    let exe = env!("CARGO_BIN_EXE_rota-chaos");
    let range = format!("{seed}-{seed}");
    let output = Command::new(exe).args(["paused", "--storm", "--seeds", &range, "--way", way]).output();
    let text = String::from_utf8_lossy(&output.expect("runs").stdout).into_owned();
    let trace = text.split("trace ").nth(1).and_then(|rest| rest.split_whitespace().next());
    trace.unwrap_or_else(|| panic!("no trace in {text}")).to_owned()
}

#[test]
fn one_seed_is_one_run_also_in_another_process() {
    for (way, name) in [(Way::Quic, "quic"), (Way::Direct, "direct")] {
        for seed in [3, 4] {
            let here = format!("{:016x}", storm::run(seed, None, Some(way), false).trace);
            assert_eq!(elsewhere(seed, name), here, "seed {seed} over {name}");
        }
    }
    let other = storm::run(5, None, Some(Way::Direct), false).trace;
    assert_ne!(storm::run(6, None, Some(Way::Direct), false).trace, other);
}

fn is_seen(plant: Plant, by: &[&str]) {
    let runs = sweep((1, PLANT_SEEDS_MAX), Some(plant), None, true);
    let seen: Vec<_> = runs.iter().flat_map(|run| &run.violations).collect();
    assert!(!seen.is_empty(), "{plant:?} was not seen in {PLANT_SEEDS_MAX} storms");
    let known = seen.iter().any(|what| by.iter().any(|law| what.starts_with(law)));
    assert!(known, "{plant:?} was seen as {seen:#?}");
}

#[test]
fn an_acknowledgement_before_the_quorum_is_seen() {
    is_seen(Plant::AckBeforeQuorum, &["I3", "I8", "I9", "I10", "I20", "I21"]);
}

#[test]
fn a_vote_that_was_not_synced_is_seen() {
    is_seen(Plant::VoteNotSynced, &["I9"]);
}

#[test]
fn forgotten_request_ids_are_seen() {
    is_seen(Plant::SkipDedup, &["I4", "I10"]);
}

#[test]
fn a_stale_read_of_a_former_leader_is_seen() {
    is_seen(Plant::StaleRead, &["I10"]);
}

#[test]
fn an_apply_without_an_order_is_seen() {
    is_seen(Plant::DisorderedApply, &["I8"]);
}

#[test]
fn a_snapshot_that_nobody_checked_is_seen() {
    is_seen(Plant::UncheckedSnapshot, &["I3", "I8", "I9", "I10", "I20", "D11"]);
}

#[test]
fn copies_that_nobody_compares_are_seen() {
    is_seen(Plant::BlindCompare, &["R8"]);
}

#[test]
fn a_host_with_the_certificate_of_another_is_seen() {
    is_seen(Plant::Impostor, &["N14"]);
}
