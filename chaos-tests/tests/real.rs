//! Rung 3 on a small budget: real agents are killed, frozen, restarted and cut off. `ROTA_REAL_ROUNDS` makes it longer; the
//! command `rota-chaos real --rounds N` does the same by hand and prints a table.
//!
//! The scenarios share two cores with each other and with everything else, so they run one at a time.

// Helpers of tests: what cannot be set up should stop the test where it stands.
#![allow(clippy::unwrap_used)]

mod machine;

use machine::with_bench;
use rota_chaos::real::report::Verdict;
use rota_chaos::real::row::Outcome;
use rota_chaos::real::{run, soak};
use std::time::Duration;

fn scenario(name: &str, rounds: usize) {
    let report = with_bench(rounds, async |bench| run(name, bench).await)
        .unwrap_or_else(|error| panic!("{name}: the lab failed: {error}"));
    println!("{}", report.line());
    if let Verdict::NotExercised(_) = report.verdict {
        return;
    }
    assert_eq!(report.verdict, Verdict::Pass, "{}", report.line());
}

#[test]
fn p1_leader_killed_under_submits() {
    scenario("P1", 4);
}

#[test]
fn p2_all_agents_killed_at_once() {
    scenario("P2", 1);
}

#[test]
fn p3_woken_leader_serves_no_stale_read() {
    scenario("P3", 3);
}

#[test]
fn p4_agent_frozen_past_its_lease() {
    scenario("P4", 1);
}

#[test]
fn p5_a_whole_host_frozen_past_its_lease() {
    scenario("P5", 1);
}

#[test]
fn p6_agent_killed_and_restarted_adopts() {
    scenario("P6", 1);
}

#[test]
fn p6_agent_that_starts_longer_than_its_lease_lasts() {
    scenario("P6-slow", 1);
}

#[test]
fn p7_agent_or_shim_killed_for_good() {
    scenario("P7", 1);
}

#[test]
fn p8_actors_panic() {
    scenario("P8", 1);
}

#[test]
fn p11_two_agents_on_one_data_directory() {
    scenario("P11", 1);
}

#[test]
fn r9_lost_answer_retried() {
    scenario("R9", 4);
}

#[test]
fn r054_black_hole_host() {
    scenario("R054", 1);
}

#[test]
fn n1_leader_cut_off() {
    scenario("N1", 1);
}

#[test]
fn n3_one_way_cuts() {
    scenario("N3", 1);
}

#[test]
fn n5_a_fifth_of_all_packets_lost() {
    scenario("N5", 1);
}

#[test]
fn n7_packets_doubled_and_out_of_order() {
    scenario("N7", 1);
}

#[test]
fn n11_flapping_link() {
    scenario("N11", 1);
}

#[test]
fn r064_network_blip() {
    scenario("R064", 1);
}

#[test]
fn t9_floods_are_bounded() {
    scenario("T9", 1);
}

#[test]
fn r055_every_attempt_keeps_its_output() {
    scenario("R055", 1);
}

#[test]
fn r056_output_stays_by_rule() {
    scenario("R056", 1);
}

#[test]
fn r058_following_gives_every_byte_once() {
    scenario("R058", 1);
}

#[test]
fn r060_each_attempt_starts_from_the_same_copy() {
    scenario("R060", 1);
}

#[test]
fn t3_a_lost_part_ends_its_gang() {
    scenario("T3", 1);
}

#[test]
fn r039_gangs_meet_at_ports_of_their_own() {
    scenario("R039", 1);
}

#[test]
fn r039_gangs_meet_where_there_is_only_ipv6() {
    scenario("R039-6", 1);
}

#[test]
fn r039_gangs_meet_past_a_bridge_that_is_listed_first() {
    scenario("R039-bridge", 1);
}

#[test]
fn r041_a_gang_shrinks_and_grows() {
    scenario("R041", 1);
}

#[test]
fn p3f_frozen_follower_costs_one_deadline() {
    scenario("P3F", 1);
}

#[test]
fn o1_rolling_restart() {
    scenario("O1", 1);
}

/// A few seconds of overlapping faults; `rota-chaos soak` does it for hours, `ROTA_SOAK_SECONDS` here for longer.
#[test]
fn a_short_soak_holds() {
    let set = std::env::var("ROTA_SOAK_SECONDS").ok().and_then(|text| text.parse().ok());
    let faults = Duration::from_secs(set.unwrap_or(10));
    let plan = soak::Plan {
        faults,
        seed: 1,
        leg: Duration::from_secs(120),
        profile: "chaos".into(),
        talks: true,
        meets_all: faults > Duration::from_secs(600),
    };
    let row = with_bench(1, async |bench| soak::run(bench, &plan).await).unwrap();
    println!("{}", row.lines());
    // Times are for the command: this machine is shared with other tests, and so are its two cores.
    assert!(row.violations.is_empty() && row.runs > 0, "{}", row.lines());
    assert_ne!(row.outcome(), Outcome::NotExercised, "{}", row.lines());
}

#[test]
fn o4_wrong_settings_are_refused() {
    scenario("O4", 1);
}

#[test]
fn r065_any_one_host_may_go_away() {
    scenario("R065", 1);
}

#[test]
fn r070_drained_and_not_forgotten() {
    scenario("R070", 1);
}

#[test]
fn o5_drained_leader_moves_first() {
    scenario("O5", 1);
}

#[test]
fn d6_full_disks() {
    scenario("D6", 1);
}

#[test]
fn d7_read_only_disk() {
    scenario("D7", 1);
}

#[test]
fn d8_slow_disk() {
    scenario("D8", 1);
}

#[test]
fn o2_upgrade_downgrade_and_upgrade_again() {
    scenario("O2", 1);
}

#[test]
fn o3_certificates_renewed_under_load_and_after_all_have_run_out() {
    scenario("O3", 1);
}

#[test]
fn o3_revoked_hosts_are_cut() {
    scenario("O3-revoke", 2);
}

#[test]
fn o3_the_authority_is_replaced_under_load() {
    scenario("O3-ca", 1);
}
