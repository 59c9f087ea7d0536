//! Tests of both sides of the lease together: no interleaving lets a task outlive the leader's patience.

use super::*;
use crate::logic::lease::LeaseHolder;
use proptest::prelude::*;

const HOST: HostId = HostId(7);
const EPOCH: LeaseEpoch = LeaseEpoch(1);

fn elected(now_ms: u64) -> LeaseBook {
    let mut book = LeaseBook::new(LeaseParams::CHAOS);
    book.on_elected([(HOST, EPOCH)], now_ms);
    book
}

#[test]
fn a_renewal_is_acknowledged_only_by_a_round_that_began_after_it() {
    let mut book = elected(0);
    assert_eq!(book.on_receipt(HOST, EPOCH, 1, 10), Receipt::Waits);
    let first = book.round_begin().unwrap();
    assert_eq!(book.on_receipt(HOST, EPOCH, 2, 11), Receipt::Waits);
    assert_eq!(book.round_end(first, true), RoundEnd::Acknowledge(vec![1]));
    let second = book.round_begin().unwrap();
    assert_eq!(book.round_begin(), None, "one round serves all that wait");
    assert_eq!(book.round_end(second, false), RoundEnd::Refuse(vec![2]));
}

#[test]
fn a_later_round_serves_the_renewals_of_an_earlier_one() {
    let mut book = elected(0);
    book.on_receipt(HOST, EPOCH, 1, 10);
    let first = book.round_begin().unwrap();
    book.on_receipt(HOST, EPOCH, 2, 11);
    let second = book.round_begin().unwrap();
    assert_eq!(book.round_end(second, true), RoundEnd::Acknowledge(vec![1, 2]));
    assert_eq!(book.round_end(first, false), RoundEnd::Refuse(vec![]));
}

#[test]
fn a_deposed_leader_refuses_what_waits_and_knows_nobody() {
    let mut book = elected(0);
    book.on_receipt(HOST, EPOCH, 5, 10);
    assert_eq!(book.on_deposed(), vec![5]);
    assert_eq!(book.on_receipt(HOST, EPOCH, 6, 11), Receipt::NotHere);
    assert!(book.due(1_000_000).is_empty());
}

#[test]
fn expiry_needs_silence_a_drained_queue_and_a_confirmed_quorum() {
    let mut book = elected(100);
    assert!(book.due(100 + 5_100).is_empty(), "exactly L (1 + rho) + delta is not past it");
    let due = book.due(100 + 5_101);
    assert_eq!(due.len(), 1);
    assert!(book.still_due(&due, false).is_empty(), "no quorum, no expiry");
    book.on_receipt(HOST, EPOCH, 1, 5_202);
    assert!(book.still_due(&due, true).is_empty(), "a queued renewal saves the lease");
    let due = book.due(5_202 + 5_101);
    assert_eq!(book.still_due(&due, true), vec![(HOST, EPOCH)]);
}

/// Found by the simulator: the expiry waits on a slow disk, a renewal comes, is confirmed and acknowledged, then the
/// expiry is committed, and the task runs twice.
#[test]
fn a_renewal_that_comes_after_the_verdict_is_not_taken() {
    let mut book = elected(0);
    let due = book.due(5_101);
    assert_eq!(book.still_due(&due, true), vec![(HOST, EPOCH)]);
    assert_eq!(book.on_receipt(HOST, EPOCH, 1, 5_102), Receipt::NotHere);
    assert_eq!(book.round_begin(), None);
    let again = book.due(5_200);
    assert_eq!(book.still_due(&again, true), vec![(HOST, EPOCH)], "until the log has it, it stays due");
    book.set_hosts([(HOST, LeaseEpoch(2))], 5_300);
    assert_eq!(book.on_receipt(HOST, LeaseEpoch(2), 2, 5_301), Receipt::Waits);
}

/// Fault C6: however many leases are due at once, an entry lets go of a hundred, and only those can be renewed no more.
#[test]
fn a_storm_of_due_leases_is_let_go_in_pieces() {
    let hosts = |from: u64| (from..=10_000).map(|host| (HostId(host), LeaseEpoch(1)));
    let mut book = LeaseBook::new(LeaseParams::CHAOS);
    book.on_elected(hosts(1), 0);
    let mut first = 1;
    for _ in 0..3 {
        let due = book.due(6_000);
        let gone = book.still_due(&due, true);
        assert_eq!((due.len(), gone.len(), gone[0].0), (EXPIRIES_MAX, EXPIRIES_MAX, HostId(first)));
        assert_eq!(book.on_receipt(HostId(first), LeaseEpoch(1), 1, 6_000), Receipt::NotHere);
        // The log has let them go.
        first += EXPIRIES_MAX as u64;
        book.set_hosts(hosts(first), 6_000);
    }
    for host in first..=10_000 {
        assert_eq!(book.on_receipt(HostId(host), LeaseEpoch(1), host, 6_001), Receipt::Waits);
    }
    assert_eq!(book.due(6_001), [], "all others are back in time");
}

#[test]
fn epochs_keep_old_renewals_out_and_new_ones_count_afresh() {
    let mut book = elected(0);
    book.set_hosts([(HOST, LeaseEpoch(2))], 4_000);
    assert_eq!(book.on_receipt(HOST, EPOCH, 1, 4_001), Receipt::WrongEpoch { current: LeaseEpoch(2) });
    assert!(book.due(9_100).is_empty());
    assert_eq!(book.due(9_101).len(), 1);
    assert_eq!(book.next_due_ms(), Some(9_101));
    assert_eq!(book.suspected(5_000), vec![]);
    assert_eq!(book.suspected(5_001), vec![HOST]);
}

/// One step of a run: real time passes, then something happens.
#[derive(Debug, Clone)]
enum Step {
    Renew { reaches_after: Option<u64>, ack_after: Option<u64> },
    NewLeader { origin_ms: u64, rate_permyriad: u64 },
}

fn steps() -> impl Strategy<Value = Vec<(u64, Step)>> {
    let renew =
        (proptest::option::weighted(0.8, 0_u64..3_000), proptest::option::weighted(0.8, 0_u64..3_000))
            .prop_map(|(reaches_after, ack_after)| Step::Renew { reaches_after, ack_after });
    let leader = (0_u64..1_000_000, 9_900_u64..=10_100)
        .prop_map(|(origin_ms, rate_permyriad)| Step::NewLeader { origin_ms, rate_permyriad });
    let step = prop_oneof![8 => renew, 1 => leader];
    proptest::collection::vec((1_u64..6_000, step), 1..40)
}

/// A clock of another origin and rate: local ms at a real time.
#[derive(Debug, Clone, Copy)]
struct Clock {
    origin_ms: u64,
    rate_permyriad: u64,
    since_ms: u64,
}

impl Clock {
    fn at(self, real_ms: u64) -> u64 {
        self.origin_ms + (real_ms - self.since_ms) * self.rate_permyriad / 10_000
    }
}

proptest! {
    /// Faults P4, C2, N7: whatever is lost, late or out of order, and however the clocks run within rho, the moment
    /// the leader's book lets a lease go is not before the holder's own deadline in real time.
    #[test]
    fn no_leader_expires_what_a_holder_may_still_run(
        holder_origin in 0_u64..1_000_000,
        holder_rate in 9_900_u64..=10_100,
        steps in steps(),
    ) {
        let mut real_ms = 0;
        let holder_clock = Clock { origin_ms: holder_origin, rate_permyriad: holder_rate, since_ms: 0 };
        let mut leader_clock = Clock { origin_ms: 5, rate_permyriad: 10_000, since_ms: 0 };
        let mut holder = LeaseHolder::new(LeaseParams::CHAOS);
        holder.set_epoch(EPOCH);
        let mut book = elected(leader_clock.at(0));
        // (when, what): renewals in the network, acknowledgements in the network.
        let mut inbox: Vec<(u64, crate::logic::lease::Renewal, Option<u64>)> = Vec::new();
        let mut acks: Vec<(u64, crate::logic::lease::Renewal)> = Vec::new();
        let mut expired = false;
        for (gap, step) in steps {
            for _ in 0..gap {
                real_ms += 1;
                let arrived: Vec<_> = inbox.extract_if(.., |(at, ..)| *at <= real_ms).collect();
                for (_, renewal, ack_after) in arrived {
                    if expired {
                        continue;
                    }
                    if book.on_receipt(HOST, EPOCH, 0, leader_clock.at(real_ms)) == Receipt::Waits {
                        let round = book.round_begin();
                        if let (Some(round), Some(after)) = (round, ack_after) {
                            book.round_end(round, true);
                            acks.push((real_ms + after, renewal));
                        }
                    }
                }
                let back: Vec<_> = acks.extract_if(.., |(at, _)| *at <= real_ms).collect();
                for (_, renewal) in back {
                    holder.ack(renewal, holder_clock.at(real_ms));
                }
                let due = book.due(leader_clock.at(real_ms));
                expired |= !book.still_due(&due, true).is_empty();
                if expired && let Some(deadline) = holder.deadline_ms() {
                    prop_assert!(
                        holder_clock.at(real_ms) >= deadline,
                        "expired at {real_ms} ms, but the holder may run on to {deadline} of its own clock"
                    );
                }
            }
            match step {
                Step::Renew { reaches_after, ack_after } => {
                    let renewal = holder.send(holder_clock.at(real_ms)).unwrap();
                    if let Some(after) = reaches_after {
                        inbox.push((real_ms + after, renewal, ack_after));
                    }
                }
                Step::NewLeader { origin_ms, rate_permyriad } if !expired => {
                    leader_clock = Clock { origin_ms, rate_permyriad, since_ms: real_ms };
                    book.on_deposed();
                    book.on_elected([(HOST, EPOCH)], leader_clock.at(real_ms));
                }
                Step::NewLeader { .. } => {}
            }
        }
    }
}

/// A leader and a host are cut off together; the others elect a leader at 0, which hears nothing. Until when may the
/// host run, and when does the new leader let its lease go? All clocks are equal here.
fn cut_off_together(faults: crate::logic::Faults) -> (u64, u64) {
    let mut old = LeaseBook::with_faults(LeaseParams::CHAOS, faults);
    old.on_elected([(HOST, EPOCH)], 0);
    let mut holder = LeaseHolder::with_faults(LeaseParams::CHAOS, faults);
    holder.set_epoch(EPOCH);
    let mut new = elected(0);
    for at in [0, 500, 1_000, 1_500] {
        // The epoch is set above, so there is something to renew.
        let renewal = holder.send(at).expect("an epoch");
        let acknowledged = match old.on_receipt(HOST, EPOCH, at, at) {
            Receipt::Acknowledge => true,
            // The old leader asks its quorum, of which nobody answers.
            _ => {
                // The receipt above waits for a round.
                let round = old.round_begin().expect("one renewal waits");
                old.round_end(round, false) == RoundEnd::Acknowledge(vec![at])
            }
        };
        if acknowledged {
            holder.ack(renewal, at);
        }
    }
    // Nobody renews at the new leader, so its time comes.
    let expires_ms = (0..).find(|now| !new.still_due(&new.due(*now), true).is_empty()).expect("an end");
    (holder.deadline_ms().unwrap_or(0), expires_ms)
}

#[test]
fn a_leader_that_is_cut_off_with_a_host_cannot_extend_its_lease() {
    let (runs_until, expires) = cut_off_together(crate::logic::Faults::default());
    assert!(runs_until < expires);
}

#[test]
fn the_planted_bug_of_acknowledging_at_once_is_seen() {
    // Fault I24: the same walk must tell the difference.
    let faults = crate::logic::Faults { ack_renewal_at_once: true, ..Default::default() };
    let (runs_until, expires) = cut_off_together(faults);
    assert!(runs_until > expires, "two copies would have run");
}

#[test]
fn the_planted_bug_of_counting_from_the_acknowledgement_is_seen() {
    let run = |faults| {
        let mut holder = LeaseHolder::with_faults(LeaseParams::CHAOS, faults);
        holder.set_epoch(EPOCH);
        let mut book = elected(0);
        let renewal = holder.send(0).unwrap();
        book.on_receipt(HOST, EPOCH, 1, 1);
        let round = book.round_begin().unwrap();
        book.round_end(round, true);
        holder.ack(renewal, 4_000);
        (holder.deadline_ms().unwrap(), book.next_due_ms().unwrap())
    };
    let (runs_until, expires) = run(crate::logic::Faults::default());
    assert!(runs_until < expires);
    let (runs_until, expires) = run(crate::logic::Faults { count_from_ack: true, ..Default::default() });
    assert!(runs_until > expires);
}
