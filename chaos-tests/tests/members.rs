//! The table of membership on a small budget; `rota-chaos members` does the same by hand and prints it.

// Helpers of tests: what cannot be set up should stop the test where it stands.
#![allow(clippy::unwrap_used)]

mod machine;

use machine::with_bench;
use rota_chaos::real::members;
use rota_chaos::real::row::Outcome;

fn row(id: &str) {
    let row = with_bench(1, async |bench| members::row(id, bench).await).unwrap();
    println!("{}", row.lines());
    if row.skipped.is_some() && !rustix::process::geteuid().is_root() {
        // Said in its lines: what it needs is root's.
        return;
    }
    // Times are for the table: this machine is shared with other tests, and so are its two cores.
    assert!(row.violations.is_empty() && row.runs > 0, "{}", row.lines());
    assert_ne!(row.outcome(), Outcome::NotExercised, "{}", row.lines());
}

#[test]
fn r1_membership_changes_under_kills() {
    row("R1");
}

#[test]
fn r3_majority_lost() {
    row("R3");
}

#[test]
fn r4_parent_of_a_follower_killed() {
    row("R4");
}

#[test]
fn r6_wiped_under_its_old_id() {
    row("R6");
}

#[test]
fn r11_voter_gone_for_good() {
    row("R11");
}

#[test]
fn r074_all_addresses_change() {
    row("R074");
}

#[test]
fn r076_wrong_order_of_replacing() {
    row("R076");
}

#[test]
fn r077_wiped_host_comes_back() {
    row("R077");
}

#[test]
fn r082_two_hosts_with_one_identity() {
    row("R082");
}

#[test]
fn r083_several_addresses() {
    row("R083");
}

#[test]
fn r085_all_down_in_any_order() {
    row("R085");
}

#[test]
fn d2_and_d3_flipped_bits() {
    row("D2");
}

#[test]
fn d12_older_copy_of_the_data() {
    row("D12");
}

#[test]
fn d13_swapped_data() {
    row("D13");
}

#[test]
fn o6_restored_from_a_backup() {
    row("O6");
}

/// Between the choice and the use of a port anybody may take it: a lab goes on with another.
#[test]
fn a_lab_takes_another_port_where_one_was_taken() {
    with_bench(1, async |bench| {
        let mut lab = bench.lab("ports", 1, |_| {}).await.unwrap();
        let number = lab.place().unwrap();
        let take = |port| std::net::UdpSocket::bind(("127.0.0.1", port)).unwrap();
        let first = take(lab.peers[number].port);
        lab.enter(number, 0).await.unwrap();
        let joined_at = lab.peers[number].port;
        assert_ne!(joined_at, first.local_addr().unwrap().port());
        let second = take(joined_at);
        lab.spawn(number).unwrap();
        lab.until_listens(number).await.unwrap();
        assert_ne!(lab.peers[number].port, second.local_addr().unwrap().port());
        lab.until_up(2).await.unwrap();
    });
}
