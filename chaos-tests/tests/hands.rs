//! The table of faults of attempts and cards on a small budget; `rota-chaos hands` does the same by hand and prints it. A
//! row that cannot be tried here says so in its line, and is no success where it could be: as root, on Linux.

// Helpers of tests: what cannot be set up should stop the test where it stands.
#![allow(clippy::unwrap_used)]

mod machine;

use machine::with_bench;
use rota_chaos::real::hands;
use rota_chaos::real::row::{Outcome, Row};

/// Times of attempts are for the table: this machine is shared with other tests, and so are its two cores.
fn row(id: &str, rounds: usize) {
    let Some(row) = tried(id, rounds) else { return };
    assert!(row.violations.is_empty() && row.runs > 0, "{}", row.lines());
    assert_ne!(row.outcome(), Outcome::NotExercised, "{}", row.lines());
}

/// Its bounds leave room for a busy machine, too, and it needs nothing that a host may lack.
fn timely(id: &str) {
    let row = tried(id, 1).unwrap();
    assert_eq!(row.outcome(), Outcome::Held, "{}", row.lines());
}

fn tried(id: &str, rounds: usize) -> Option<Row> {
    let row = with_bench(rounds, async |bench| hands::row(id, bench).await).unwrap();
    println!("{}", row.lines());
    if let Some(why) = &row.skipped {
        println!("NOT EXERCISED: {id}: {why}");
        return None;
    }
    Some(row)
}

#[test]
fn p10_starved_agents() {
    row("P10", 1);
}

#[test]
fn g11_unit_under_systemd() {
    row("G11", 1);
}

#[test]
fn s24_nothing_of_the_node_inside() {
    row("S24", 1);
}

#[test]
fn r061_agent_killed_at_any_point() {
    row("R061", 1);
}

#[test]
fn t1_hidden_trees() {
    row("T1", 1);
}

#[test]
fn t2_unkillable() {
    row("T2", 1);
}

#[test]
fn t4_leader_killed_while_a_gang_starts() {
    row("T4", 6);
}

#[test]
fn t5_cancels_race() {
    row("T5", 1);
}

#[test]
fn t6_preemptors_cancelled() {
    row("T6", 1);
}

#[test]
fn t7_reasons_told() {
    row("T7", 1);
}

#[test]
fn t8_inputs_fetched() {
    row("T8", 1);
}

#[test]
fn t10_prolog_hangs() {
    row("T10", 1);
}

#[test]
fn t11_reboot_with_tasks() {
    row("T11", 1);
}

#[test]
fn r012_no_card_unasked() {
    row("R012", 1);
}

#[test]
fn r049_out_of_memory_told() {
    row("R049", 1);
}

#[test]
fn r050_a_hog_beside_others() {
    row("R050", 1);
}

#[test]
fn r047_warned_and_queued_again() {
    row("R047", 1);
}

#[test]
fn r063_array_goes_on() {
    row("R063", 1);
}

#[test]
fn r097_sessions_are_like_batch() {
    row("R097", 1);
}

#[test]
fn g1_xids_become_decisions() {
    timely("G1");
}

#[test]
fn g2_hung_calls() {
    timely("G2");
}

#[test]
fn g3_cards_come_and_go() {
    timely("G3");
}

#[test]
fn g4_renumbered_cards() {
    timely("G4");
}

#[test]
fn g5_drivers_replaced() {
    timely("G5");
}

#[test]
fn g6_cards_given_back() {
    timely("G6");
}

#[test]
fn g7_remaps_and_cordons() {
    timely("G7");
}

#[test]
fn g8_slowed_cards() {
    timely("G8");
}

#[test]
fn g9_bad_links_and_stragglers() {
    timely("G9");
}

#[test]
fn g10_sharing_daemons_and_slices() {
    timely("G10");
}

#[test]
fn g13_mass_alarms() {
    timely("G13");
}

#[test]
fn g14_lemons() {
    timely("G14");
}

#[test]
fn g15_odd_values() {
    timely("G15");
}
