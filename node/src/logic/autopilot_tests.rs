//! The autopilot in virtual time: a cluster of tables, a leader that looks again and again, and the laws after each step.

use super::*;

fn peer(id: u64) -> Peer {
    Peer { id: HostId(id), name: format!("n{id}"), up: true, member: true, lag: Some(0), ..Peer::default() }
}

fn voter(id: u64) -> Peer {
    Peer { voter: true, ..peer(id) }
}

fn lost(id: u64) -> Peer {
    Peer { up: false, lost: true, ..voter(id) }
}

fn at(peer: Peer, zone: &str, rack: &str) -> Peer {
    Peer { site: [Some(zone.into()), Some(rack.into())], ..peer }
}

fn look(peers: Vec<Peer>) -> Look {
    Look { me: HostId(1), peers, members_max: MEMBERS_MAX }
}

fn ids(list: &[u64]) -> BTreeSet<HostId> {
    list.iter().map(|id| HostId(*id)).collect()
}

#[track_caller]
fn check(peers: Vec<Peer>, expected: Option<Change>) -> String {
    let decision = decide(&look(peers));
    assert_eq!(decision.change, expected, "{}", decision.why);
    decision.why
}

#[test]
fn every_admitted_host_follows_first() {
    let new = |id| Peer { member: false, lag: None, ..peer(id) };
    check(vec![voter(1), new(2), new(3)], Some(Change::Follow(ids(&[2, 3]))));
}

fn follower(id: u64) -> Peer {
    Peer { member: false, lag: None, ..peer(id) }
}

/// Five voters, two that stand by, and others.
fn large(others: impl IntoIterator<Item = Peer>) -> Vec<Peer> {
    (1..=5).map(voter).chain((6..=7).map(peer)).chain(others).collect()
}

/// Above the limit nobody more is fed by the leader: who is lost is replaced by one that stands by, and that one by another.
#[test]
fn in_a_large_cluster_few_are_members() {
    check(large((8..=1_000).map(follower)), None);
    let mut hurt = large((8..=1_000).map(follower));
    hurt[1] = lost(2);
    check(hurt.clone(), Some(Change::Vote(ids(&[1, 3, 4, 5, 6]))));
    hurt[1] = Peer { voter: false, ..lost(2) };
    hurt[5] = voter(6);
    check(hurt.clone(), Some(Change::Follow(ids(&[8]))));
    hurt[7].member = true;
    check(hurt.clone(), Some(Change::Release(ids(&[2]))));
    hurt[1].member = false;
    check(hurt, None);
    // Where nobody stands by, a follower is taken in for a lost voter.
    let mut bare = look(vec![voter(1), lost(2), voter(3), follower(4), follower(5)]);
    bare.members_max = 3;
    assert_eq!(decide(&bare).change, Some(Change::Follow(ids(&[4]))));
    // Nobody lives that could: the lost one may come back.
    let mut hurt = large([Peer { up: false, ..follower(8) }]);
    hurt[6] = Peer { voter: false, ..lost(7) };
    check(hurt, None);
    // One that was never up is not waited for, and a whole rack does not stand by alone.
    let joins = vec![voter(1), Peer { up: false, ..follower(2) }];
    let joins = joins.into_iter().chain((3..=9).map(follower)).collect();
    check(joins, Some(Change::Follow(ids(&[3, 4, 5, 6, 7, 8]))));
}

/// A cluster of an older build, or one whose limit was lowered, lets go of those who only follow.
#[test]
fn members_beyond_the_limit_are_let_go() {
    let many = (1..=5).map(voter).chain((6..=9).map(peer)).collect();
    let why = check(many, Some(Change::Release(ids(&[8, 9]))));
    assert!(why.contains("7 members are enough"), "{why}");
    let mut slow: Vec<Peer> = (1..=5).map(voter).chain((6..=8).map(peer)).collect();
    slow[5].lag = Some(5_000);
    check(slow, Some(Change::Release(ids(&[6]))));
    let of = |members_max| Look { members_max, ..look((1..=9).map(follower).collect()) }.wanted();
    assert_eq!([3, 4, 5, 6, 7, usize::MAX].map(of), [3, 3, 5, 5, 5, 5]);
}

/// Somebody wants a follower to vote: it becomes a member first, and one that is not needed goes.
#[test]
fn a_wished_follower_becomes_a_member_and_votes() {
    let mut peers = large([follower(8), Peer { wished: true, ..follower(9) }]);
    check(peers.clone(), Some(Change::Follow(ids(&[9]))));
    peers[8].member = true;
    // Until it is caught up it is one too many, and another one makes room.
    check(peers.clone(), Some(Change::Release(ids(&[7]))));
    peers[8].lag = Some(0);
    check(peers.clone(), Some(Change::Vote(ids(&[1, 3, 4, 5, 9]))));
    peers[1].voter = false;
    peers[8].voter = true;
    check(peers, Some(Change::Release(ids(&[7]))));
}

/// Fault R2: a host that is far behind does not vote, nor does one that never answered or never started.
#[test]
fn voters_grow_by_pairs_of_hosts_that_are_caught_up() {
    check(vec![voter(1), peer(2)], None);
    let slow = Peer { lag: Some(PROMOTE_LAG_MAX + 1), ..peer(3) };
    let why = check(vec![voter(1), peer(2), slow], None);
    assert!(why.contains("n3 is not caught up"), "{why}");
    check(vec![voter(1), peer(2), Peer { lag: None, ..peer(3) }], None);
    check(vec![voter(1), peer(2), Peer { up: false, ..peer(3) }], None);
    check(vec![voter(1), peer(2), peer(3)], Some(Change::Vote(ids(&[1, 2, 3]))));
    let six = |voters: u64| (1..=6).map(|id| if id <= voters { voter(id) } else { peer(id) }).collect();
    check(six(3), Some(Change::Vote(ids(&[1, 2, 3, 4, 5]))));
    check(six(5), None);
}

/// Fault R11: a lost voter is replaced, one at a time, and only by a host that is caught up.
#[test]
fn a_lost_voter_is_replaced() {
    check(vec![voter(1), lost(2), voter(3), peer(4)], Some(Change::Vote(ids(&[1, 3, 4]))));
    let why = check(vec![voter(1), lost(2), voter(3)], None);
    assert!(why.contains("n2 votes and is lost"), "{why}");
    let two = vec![voter(1), lost(2), lost(3), voter(4), voter(5), peer(6), peer(7)];
    check(two, Some(Change::Vote(ids(&[1, 3, 4, 5, 6]))));
}

#[test]
fn voters_without_a_live_majority_are_not_made() {
    let why = check(vec![voter(1), lost(2), lost(3), peer(4), peer(5)], None);
    assert!(why.contains("too few voters live"), "{why}");
}

#[test]
fn voters_stand_in_different_zones_then_in_different_racks() {
    let peers =
        vec![at(voter(1), "a", "1"), at(peer(2), "a", "1"), at(peer(3), "a", "2"), at(peer(4), "b", "1")];
    check(peers, Some(Change::Vote(ids(&[1, 3, 4]))));
    // A better place is taken later too, one voter at a time, and never the leader's.
    let peers =
        vec![at(voter(1), "a", "1"), at(voter(2), "a", "1"), at(voter(3), "a", "1"), at(peer(4), "b", "1")];
    let why = check(peers, Some(Change::Vote(ids(&[1, 3, 4]))));
    assert!(why.contains("further apart (zone b, rack 1)"), "{why}");
    let peers =
        vec![at(voter(1), "a", "1"), at(voter(2), "a", "2"), at(voter(3), "b", "1"), at(peer(4), "a", "1")];
    check(peers, None);
}

#[test]
fn a_wished_host_votes_instead_of_another() {
    let wished = Peer { wished: true, ..peer(4) };
    check(vec![voter(1), voter(2), voter(3), wished.clone()], Some(Change::Vote(ids(&[1, 3, 4]))));
    check(vec![voter(1), voter(2), voter(3), Peer { lag: None, ..wished }], None);
}

#[test]
fn a_removed_voter_is_replaced_or_done_without() {
    let gone = |peer: Peer| Peer { removed: true, ..peer };
    check(vec![voter(1), gone(voter(2)), voter(3), peer(4)], Some(Change::Vote(ids(&[1, 3, 4]))));
    // Two hosts are left: one vote tolerates as much as two.
    check(vec![voter(1), gone(voter(2)), voter(3)], Some(Change::Vote(ids(&[1]))));
    // The leader itself: another one carries it out.
    check(vec![gone(voter(1)), voter(2), voter(3), peer(4)], Some(Change::HandOver));
    check(vec![gone(voter(1)), peer(2)], Some(Change::Vote(ids(&[2]))));
    // It follows until its lease is over.
    check(vec![voter(1), gone(peer(2))], None);
    check(vec![voter(1), gone(Peer { up: false, ..peer(2) })], Some(Change::Forget(ids(&[2]))));
    // Five that became four: three vote.
    let four = vec![voter(1), lost(2), voter(3), voter(4), gone(lost(5))];
    check(four, Some(Change::Vote(ids(&[1, 3, 4]))));
}

/// Report R076: what would leave no majority is refused, with the safe order.
#[test]
fn the_wrong_order_of_replacing_a_dead_member_is_refused() {
    let sick = look(vec![voter(1), voter(2), lost(3), Peer { up: false, lag: None, ..peer(4) }]);
    let why = refusal(&sick, HostId(2)).unwrap_err();
    assert!(why.contains("1 of 3 voters live") && why.contains("remove n3"), "{why}");
    // The dead one may go, and so may the learner that never appeared.
    assert_eq!(refusal(&sick, HostId(3)), Ok(()));
    assert_eq!(refusal(&sick, HostId(4)), Ok(()));
    assert!(refusal(&look(vec![voter(1)]), HostId(1)).unwrap_err().contains("last host"));
    let alone = look(vec![voter(1), Peer { up: false, ..peer(2) }]);
    assert!(refusal(&alone, HostId(1)).unwrap_err().contains("alone votes"));
    assert_eq!(refusal(&look(vec![voter(1), peer(2)]), HostId(1)), Ok(()));
}

#[test]
fn what_is_tolerated_is_counted_and_told() {
    let five: Vec<Peer> = (1..=5).map(voter).collect();
    assert_eq!(tolerates(&look(five.clone())), 2);
    let mut hurt = five;
    hurt[1] = lost(2);
    hurt[2] = lost(3);
    assert_eq!(tolerates(&look(hurt.clone())), 0);
    let lines = advice(&look(hurt)).join("\n");
    assert!(lines.contains("n2 is lost") && lines.contains("no further voter"), "{lines}");
}

/// A cluster whose hosts come, fall behind, die and come back by chance; the autopilot looks each 100 ms.
struct World {
    peers: Vec<Peer>,
    lost_at: Vec<Option<u64>>,
    dice: u64,
}

impl World {
    fn roll(&mut self, sides: u64) -> u64 {
        self.dice ^= self.dice << 13;
        self.dice ^= self.dice >> 7;
        self.dice ^= self.dice << 17;
        self.dice % sides
    }

    /// Host 1 lives and leads; the others suffer. At most a minority of the voters is down at once.
    fn suffer(&mut self, now_ms: u64) {
        let at = 1 + usize::try_from(self.roll(7)).unwrap_or(0);
        let dead_voters = self.peers.iter().filter(|peer| peer.voter && !peer.up).count();
        let voters = self.peers.iter().filter(|peer| peer.voter).count();
        let may_die = !self.peers[at].voter || (dead_voters + 1) * 2 < voters;
        match self.roll(40) {
            0 if may_die => {
                let peer = &mut self.peers[at];
                (peer.up, peer.lost, peer.lag) = (false, true, Some(9_999));
                self.lost_at[at].get_or_insert(now_ms);
            }
            1 => {
                let peer = &mut self.peers[at];
                (peer.up, peer.lost) = (true, false);
                self.lost_at[at] = None;
            }
            2 => self.peers[at].lag = Some(self.dice % 600),
            _ => {}
        }
        for peer in self.peers.iter_mut().filter(|peer| peer.up) {
            peer.lag = peer.lag.map(|lag| lag.saturating_sub(50));
        }
    }

    fn carry_out(&mut self, change: &Change) {
        for peer in &mut self.peers {
            match change {
                Change::Follow(hosts) => peer.member |= hosts.contains(&peer.id),
                Change::Vote(next) => peer.voter = next.contains(&peer.id),
                Change::Release(hosts) => {
                    assert!(!peer.voter || !hosts.contains(&peer.id), "a voter is let go");
                    peer.member &= !hosts.contains(&peer.id);
                }
                Change::Forget(_) | Change::HandOver => {}
            }
            if peer.member && peer.lag.is_none() {
                peer.lag = Some(500);
            }
        }
    }
}

/// Faults R1, R11: whatever happens, voters are odd in number, one changes at a time, a majority of them lives, and a
/// lost one is replaced within a minute where somebody can.
#[test]
fn the_laws_hold_through_ten_thousand_looks() {
    for seed in 1..=20 {
        let mut peers = vec![voter(1)];
        peers.extend((2..=8).map(|id| Peer { member: false, lag: None, ..peer(id) }));
        for (at, peer) in peers.iter_mut().enumerate() {
            peer.site = [Some(format!("z{}", at % 3)), None];
        }
        let mut world = World { peers, lost_at: vec![None; 8], dice: seed * 0x9e37_79b9 };
        let mut pilot = Autopilot::default();
        let (mut changes, mut last_ms) = (0, None);
        for now_ms in (0..50_000).step_by(100) {
            world.suffer(now_ms);
            let before = look(world.peers.clone());
            let decision = pilot.next(&before, now_ms);
            if let Some(change) = decision.change {
                assert!(
                    last_ms.is_none_or(|at| now_ms >= at + PAUSE_MS),
                    "seed {seed}: no pause at {now_ms}"
                );
                assert!(!decision.why.is_empty());
                if let Change::Vote(next) = &change {
                    let old = before.voters();
                    assert!(next.len() % 2 == 1 && before.has_majority(next), "seed {seed}: {next:?}");
                    assert!(next.contains(&HostId(1)));
                    let (new, out) = (next.difference(&old).count(), old.difference(next).count());
                    assert!(new <= 2 && out <= 1, "seed {seed}: {old:?} to {next:?}");
                }
                world.carry_out(&change);
                pilot.changed(now_ms);
                (changes, last_ms) = (changes + 1, Some(now_ms));
            }
            for at in 0..world.peers.len() {
                let since = world.lost_at[at].filter(|_| world.peers[at].voter);
                let spare = world.peers.iter().any(|peer| peer.is_ready());
                assert!(since.is_none_or(|at| now_ms - at < 60_000 || !spare), "seed {seed}: not replaced");
            }
        }
        assert!(changes >= 3, "seed {seed}: hardly anything happened");
    }
}
