//! Followers in virtual time: parents that die, lag, fill up or hear nothing themselves.

use super::*;
use crate::follow::tree::Tree;
use std::collections::BTreeSet;

const FED: Heard = Heard::Fed { silent_ms: 0, depth: 1 };

fn course(way: &[u64]) -> Course {
    let mut course = Course::default();
    course.set_way(way.iter().map(|id| HostId(*id)).collect());
    course
}

#[track_caller]
fn asks(course: &mut Course, now_ms: u64, whom: u64) {
    assert_eq!(course.next(now_ms), Step::Ask(HostId(whom)));
}

#[test]
fn a_follower_stays_with_a_parent_that_serves_it() {
    let mut course = course(&[5, 2, 1]);
    for now_ms in (0..120_000).step_by(700) {
        asks(&mut course, now_ms, 5);
        course.heard(HostId(5), FED, now_ms);
    }
    assert_eq!(course.moves, 0);
}

/// Parent loss: the next one on the way up is asked at once, and the own parent again when it is back.
#[test]
fn a_lost_parent_costs_one_question_and_is_tried_again() {
    let mut course = course(&[5, 2, 1]);
    asks(&mut course, 0, 5);
    course.heard(HostId(5), Heard::Lost, 1_500);
    asks(&mut course, 1_500, 2);
    course.heard(HostId(2), FED, 1_600);
    asks(&mut course, 1_600, 2);
    // Its way home is looked at now and then; a parent that is still away costs one question each time.
    let home_ms = 1_500 + HOMEWARD_MS;
    asks(&mut course, home_ms, 5);
    course.heard(HostId(5), Heard::Lost, home_ms + 1_500);
    asks(&mut course, home_ms + 1_500, 2);
    course.heard(HostId(2), FED, home_ms + 1_500);
    asks(&mut course, home_ms + 1_500 + HOMEWARD_MS, 5);
    course.heard(HostId(5), FED, home_ms + 1_500 + HOMEWARD_MS);
    asks(&mut course, home_ms + 2_500 + HOMEWARD_MS, 5);
}

/// One that is cut off from the leader answers all the same: what it says of itself counts. So does a lag.
#[test]
fn a_parent_that_is_silent_behind_full_or_in_a_ring_is_left() {
    for why in [
        Heard::Fed { silent_ms: SILENT_MS_MAX + 1, depth: 1 },
        Heard::Fed { silent_ms: 0, depth: DEPTH_MAX },
        Heard::Behind,
        Heard::Full,
    ] {
        let mut course = course(&[5, 2, 1]);
        asks(&mut course, 0, 5);
        course.heard(HostId(5), why, 10);
        asks(&mut course, 10, 2);
    }
}

/// Without a leader all are silent: they are asked in turn, without a storm and without giving up.
#[test]
fn when_all_rest_somebody_is_asked_after_a_pause() {
    let mut course = course(&[5, 2, 1]);
    let (mut now_ms, mut asked) = (0, 0);
    while now_ms < 60_000 {
        match course.next(now_ms) {
            Step::Ask(host) => {
                asked += 1;
                course.heard(host, Heard::Fed { silent_ms: 60_000, depth: 1 }, now_ms);
            }
            Step::Pause(ms) => now_ms += ms,
        }
    }
    assert!((60..=240).contains(&asked), "{asked} in a minute");
    let host = loop {
        match course.next(now_ms) {
            Step::Pause(ms) => now_ms += ms,
            Step::Ask(host) => break host,
        }
    };
    course.heard(host, FED, now_ms);
    assert_eq!(course.next(now_ms), Step::Ask(host), "the first that is well again is kept");
}

/// A new leader is nobody's parent: who followed it goes elsewhere at once.
#[test]
fn a_parent_that_comes_to_lead_is_left() {
    let mut course = course(&[2, 3, 1]);
    asks(&mut course, 0, 2);
    course.heard(HostId(2), FED, 5);
    course.set_way([1, 3, 2].map(HostId).to_vec());
    asks(&mut course, 10, 1);
    course.set_way([1, 3].map(HostId).to_vec());
    asks(&mut course, 20, 1);
    course.set_way(vec![HostId(3)]);
    asks(&mut course, 30, 3);
}

#[test]
fn nobody_to_ask_is_no_storm() {
    let mut course = course(&[]);
    assert_eq!(course.next(0), Step::Pause(PAUSE_MS));
}

/// A thousand followers in virtual time, a tenth of which die at once: all others have a living parent within 3 s.
#[test]
fn a_thousand_followers_find_other_parents() {
    const ALL: u64 = 1_003;
    const ANSWER_MS: u64 = 1_500;
    let members: BTreeSet<HostId> = (1..=3).map(HostId).collect();
    let tree = Tree::new(&members, Some(HostId(1)), (1..=ALL).map(HostId), crate::follow::FAN_OUT);
    let dead = |id: HostId| id.0 > 3 && id.0.is_multiple_of(10);
    for id in (4..=ALL).map(HostId).filter(|id| !dead(*id)) {
        let mut course = Course::default();
        course.set_way(tree.way_up(id, &BTreeSet::new()));
        let mut now_ms = 0;
        let fed_ms = loop {
            match course.next(now_ms) {
                Step::Ask(parent) if dead(parent) => {
                    now_ms += ANSWER_MS;
                    course.heard(parent, Heard::Lost, now_ms);
                }
                Step::Ask(parent) => {
                    course.heard(parent, FED, now_ms);
                    break now_ms;
                }
                Step::Pause(ms) => now_ms += ms,
            }
        };
        assert!(fed_ms <= 2 * ANSWER_MS, "host {id} after {fed_ms} ms");
    }
}
