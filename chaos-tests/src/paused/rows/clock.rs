//! The row of wall clocks: C1. Rates of clocks and stuck ones (C2, C3, C5) and leases (C4, C6) are of the first rung: here
//! all peers share one steady clock, and there are no leases.

use super::super::lab::Failure;
use super::Attempt;
use super::net::{at_work, gap_over};
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::sleep;

const HOUR_MS: i64 = 3_600_000;
const JUMPS: [i64; 5] = [HOUR_MS, -HOUR_MS, 87_660 * HOUR_MS, -87_660 * HOUR_MS, i64::MIN / 2];

pub(super) async fn wall_jumps(attempt: &mut Attempt) -> Result<(), Failure> {
    let (lab, leader) = at_work(attempt, 3, 3).await?;
    let term = lab.door(leader)?.peer.status().term;
    let from = lab.now_ms();
    let mut last = 0;
    for jump in JUMPS {
        for peer in lab.peers.values() {
            // All of them, or the leader alone: its clock stamps the entries.
            if peer.host == leader || attempt.seed.is_multiple_of(3) {
                peer.skew_ms.store(jump, Ordering::Relaxed);
            }
        }
        sleep(Duration::from_millis(700)).await;
        let now = lab.door(leader)?.peer.read(rota_core::State::clock_ms);
        attempt.must(now >= last, || format!("I14: log time went back from {last} to {now}"));
        last = now;
    }
    gap_over(attempt, &lab, Duration::from_millis(500)).await;
    attempt.measured.clear();
    attempt.took(lab.clients.history.longest_gap(from, lab.now_ms()));
    let now = lab.door(leader)?.peer.status().term;
    attempt.must(now == term, || format!("C1: term {term} became {now}"));
    attempt.close(lab).await.map(|_| ())
}
