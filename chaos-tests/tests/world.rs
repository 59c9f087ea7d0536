//! The simulator's own gate: a budget of seeds, the corpus first; determinism; and planted bugs that it must see.
//!
//! `ROTA_CHAOS_SEEDS` sets the budget; from 200 seeds on, the sweep must also have met every fault (fault I23).

use rota_chaos::report;
use rota_chaos::world::oracle::Law;
use rota_chaos::world::plant::Plant;
use rota_chaos::world::sweep::{run, sweep};

/// Enough for a change that breaks something often; more by hand.
const SEEDS_DEFAULT: u64 = 60;
/// From here on everything must have been met.
const SEEDS_FOR_REACH: u64 = 200;
/// A planted bug must be seen within this many seeds.
const PLANT_SEEDS_MAX: u64 = 200;

fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

#[test]
fn laws_hold_in_every_world() {
    let seeds =
        std::env::var("ROTA_CHAOS_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(SEEDS_DEFAULT);
    let corpus =
        include_str!("../corpus.txt").lines().filter_map(|line| line.split_whitespace().next()?.parse().ok());
    let all: Vec<u64> = corpus.chain(1..=seeds).collect();
    let found = sweep(&all, None, threads(), false);
    let missing = if seeds >= SEEDS_FOR_REACH { found.reach.missing() } else { Vec::new() };
    assert!(found.failed.is_empty() && missing.is_empty(), "{}", report::text(&found, &missing, 0.0));
}

#[test]
fn one_seed_is_one_run() {
    for seed in [1, 7, 12] {
        let (first, second) = (run(seed, None, false), run(seed, None, true));
        assert_eq!((first.trace, first.steps), (second.trace, second.steps), "seed {seed}");
    }
    assert_ne!(run(1, None, false).trace, run(2, None, false).trace);
}

fn is_seen(plant: Plant, as_one_of: &[Law]) {
    let seeds: Vec<u64> = (1..=PLANT_SEEDS_MAX).collect();
    let found = sweep(&seeds, Some(plant), threads(), true);
    let laws: Vec<Law> = found.failed.iter().flat_map(|run| run.violations.iter().map(|v| v.law)).collect();
    assert!(!laws.is_empty(), "{plant:?} was not seen in {PLANT_SEEDS_MAX} seeds");
    assert!(laws.iter().all(|law| as_one_of.contains(law)), "{plant:?} was seen as {laws:?}");
}

#[test]
fn a_renewal_acknowledged_at_once_is_seen() {
    is_seen(Plant::AckRenewalAtOnce, &[Law::I1, Law::I6, Law::I7]);
}

#[test]
fn devices_freed_before_the_processes_are_gone_are_seen() {
    is_seen(Plant::FreeBeforeGone, &[Law::Core, Law::I2, Law::I6]);
}

#[test]
fn forgotten_request_ids_are_seen() {
    is_seen(Plant::SkipDedup, &[Law::I4]);
}

#[test]
fn an_expiry_without_a_quorum_is_seen() {
    is_seen(Plant::ExpireWithoutQuorum, &[Law::I1, Law::I6, Law::I7]);
}

#[test]
fn a_lease_counted_from_the_acknowledgement_is_seen() {
    is_seen(Plant::CountFromAck, &[Law::I1, Law::I6, Law::I7]);
}

#[test]
fn a_token_that_is_used_again_is_seen() {
    is_seen(Plant::ForgetTokens, &[Law::I1, Law::I2, Law::I7]);
}

#[test]
fn a_replica_that_is_behind_and_acted_upon_is_seen() {
    is_seen(Plant::StaleReplica, &[Law::I1, Law::I2, Law::I7]);
}
