//! Gangs (R036, R041): all parts or none at every index, whatever becomes of single parts, hosts, cancels and
//! evictions; elastic ones shrink and grow within their bounds; layouts and meeting ports are re-checked.

use crate::lab::{Lab, exit, launch_failed, user};
use proptest::prelude::*;
use rota_core::state::attempt::{GANG_PORT_BLOCKS, GANG_PORT_FIRST, PORTS_OF_A_GANG};
use rota_protocol::command::{Command, JobChange, Outcome};
use rota_protocol::job::{AttemptEnd, EndReason, JobState};
use rota_protocol::plan::{Move, Refusal};
use rota_protocol::{HostId, JobId, Token};
use std::collections::BTreeSet;

const HOSTS: [&str; 3] = [
    "h1 gpus=4xA100:80GiB cpus=16 rack=a",
    "h2 gpus=4xA100:80GiB cpus=16 rack=a",
    "h3 gpus=4xA100:80GiB cpus=16 rack=b",
];

/// R036: a gang starts with all its parts or with none, and one part that does not fit is enough for none.
#[test]
fn all_or_nothing() {
    let mut lab = Lab::with(&HOSTS);
    let gang = lab.submit("gpus=2 gang=3");
    for (parts, why) in [
        ("0@h1:0,1 1@h2:0,1", Refusal::GangSize),
        ("0@h1:0,1", Refusal::GangSize),
        ("0@h1:0,1 1@h2:0,1 1@h3:0,1", Refusal::NotPending),
        ("0@h1:0,1 1@h2:0,1 3@h3:0,1", Refusal::NotPending),
        ("0@h1:0,1 1@h1:1,2 2@h3:0,1", Refusal::DoesNotFit),
        ("0@h1:0,1 1@h2:0,1 2@h3:0", Refusal::DoesNotFit),
        ("0@h1:0,1 1@h2:0,1 2@founder:0,1", Refusal::HostGone),
    ] {
        assert_eq!(lab.begin(gang, parts), Err(why), "{parts}");
        assert!(lab.is_idle(), "{parts}");
    }
    let task = lab.state.job(gang).expect("known").task(0);
    let parts = lab.parts("0@h1:0,1");
    let place =
        Move::Place { task, host: parts[0].host, epoch: parts[0].epoch, devices: parts[0].devices.clone() };
    assert_eq!(lab.one_move(place), Err(Refusal::GangSize));
    assert_eq!(lab.begin(gang, "2@h3:0,1 0@h1:0,1 1@h1:2,3"), Ok(()));
    assert_eq!((lab.live(gang), lab.state_of(gang).as_str()), (3, "running"));
    // Two gangs of six on eight cards: the second one holds nothing until the first is gone.
    let mut lab = Lab::with(&HOSTS[..2]);
    let (x, y) = (lab.submit("gpus=1 gang=6"), lab.submit("gpus=1 gang=6"));
    let parts = "0@h1:0 1@h1:1 2@h1:2 3@h1:3 4@h2:0 5@h2:1";
    assert_eq!(lab.begin(x, parts), Ok(()));
    assert_eq!(lab.begin(y, "0@h2:2 1@h2:3 2@h1:2 3@h1:3 4@h2:0 5@h2:1"), Err(Refusal::DoesNotFit));
    assert_eq!(lab.live(y), 0);
    for token in lab.tokens(x) {
        lab.end(token, exit(0));
    }
    assert_eq!(lab.state_of(x), "succeeded");
    assert_eq!(lab.begin(y, parts), Ok(()));
    lab.check_copies();
}

/// Whatever ends one part, the others follow; the gang then waits again as a whole, or is over as a whole.
#[test]
fn one_part_decides_for_all() {
    let cases: [(&str, AttemptEnd, &str); 8] = [
        ("gang=3", exit(1), "failed"),
        ("gang=3 retries=1", exit(1), "pending"),
        ("gang=3", AttemptEnd::TimeLimit, "time limit"),
        ("gang=3", AttemptEnd::Fenced, "pending"),
        ("gang=3", launch_failed(), "pending"),
        ("gang=3", AttemptEnd::Requeued { code: 75 }, "pending"),
        ("gang=3", AttemptEnd::Vanished { reason: "no record".into() }, "pending"),
        ("gang=3 service=yes", exit(0), "pending"),
    ];
    for (line, end, state) in cases {
        for first in 0..3 {
            let mut lab = Lab::with(&HOSTS);
            let gang = lab.run(&format!("gpus=1 {line}"), "0@h1:0 1@h1:1 2@h2:0");
            let tokens = lab.tokens(gang);
            lab.end(tokens[first], end.clone());
            assert_eq!(lab.ending(gang), 2, "{line} {end}");
            assert!(lab.begin(gang, &format!("{first}@h3:0")).is_err());
            // What the others say on their way out changes nothing: not even that they did well.
            let rest: Vec<Token> = lab.tokens(gang);
            lab.end(rest[0], exit(0));
            assert_eq!(lab.state_of(gang), "running");
            lab.end(rest[1], AttemptEnd::GangBroken);
            assert_eq!(lab.state_of(gang), state, "{line} {end}");
            assert!(lab.is_idle());
            let job = lab.state.job(gang).expect("known");
            let again = if state == "pending" { 3 } else { 0 };
            assert_eq!(job.pending.len(), again, "{line} {end}");
            assert!(job.retries_used.values().all(|n| *n == 1) && job.host_faults.values().all(|n| *n == 1));
            lab.check_copies();
        }
    }
}

/// The last part's failure fails the gang, even after all the others did well.
#[test]
fn the_last_part_counts() {
    for (code, retries, state) in [(0, 0, "succeeded"), (7, 0, "failed"), (7, 1, "pending")] {
        let mut lab = Lab::with(&HOSTS);
        let gang = lab.run(&format!("gpus=1 gang=2 retries={retries}"), "0@h1:0 1@h1:1");
        let tokens = lab.tokens(gang);
        lab.end(tokens[0], exit(0));
        assert_eq!((lab.state_of(gang).as_str(), lab.ending(gang)), ("running", 0));
        lab.end(tokens[1], exit(code));
        assert_eq!(lab.state_of(gang), state);
        let pending = lab.state.job(gang).map(|j| j.pending.len());
        assert_eq!(pending, Some(if state == "pending" { 2 } else { 0 }));
    }
    let mut lab = Lab::with(&HOSTS);
    let alone = lab.run("gpus=1 gang=1", "0@h1:0");
    let token = lab.token(alone);
    assert!(lab.state.attempts_of(alone).all(|attempt| attempt.port.is_some()));
    lab.end(token, AttemptEnd::Fenced);
    assert_eq!(lab.begin(alone, "0@h2:0"), Ok(()));
    let token = lab.token(alone);
    lab.end(token, exit(0));
    assert_eq!(lab.state_of(alone), "succeeded");
}

/// A cancel at every point of a gang's life ends it as cancelled, once, with nothing held: while it waits, runs, has
/// lost a part, is being evicted, is being queued again.
#[test]
fn cancel_at_every_point() {
    type Point = fn(&mut Lab, JobId);
    let points: [(&str, Point); 6] = [
        ("waits", |_, _| ()),
        ("granted", |lab, gang| assert_eq!(lab.begin(gang, "0@h1:0 1@h1:1 2@h2:0"), Ok(()))),
        ("a part did well", |lab, gang| {
            assert_eq!(lab.begin(gang, "0@h1:0 1@h1:1 2@h2:0"), Ok(()));
            let token = lab.tokens(gang)[1];
            lab.end(token, exit(0));
        }),
        ("a part was lost", |lab, gang| {
            assert_eq!(lab.begin(gang, "0@h1:0 1@h1:1 2@h2:0"), Ok(()));
            lab.all_started();
            lab.expire(HostId(3));
        }),
        ("a part failed for good", |lab, gang| {
            assert_eq!(lab.begin(gang, "0@h1:0 1@h1:1 2@h2:0"), Ok(()));
            let token = lab.tokens(gang)[0];
            lab.end(token, exit(1));
        }),
        ("queued again", |lab, gang| {
            assert_eq!(lab.begin(gang, "0@h1:0 1@h1:1 2@h2:0"), Ok(()));
            assert_eq!(lab.adjust(user("t"), gang, JobChange::Requeue), Outcome::Done);
        }),
    ];
    for (name, point) in points {
        let mut lab = Lab::with(&HOSTS);
        let gang = lab.submit("gpus=1 gang=3");
        point(&mut lab, gang);
        // One index of a gang is the gang.
        lab.ask(user("t"), rota_protocol::RequestId::NONE, Command::Cancel { job: gang, index: Some(1) });
        assert_eq!(lab.ending(gang) as u32, lab.live(gang), "{name}");
        for (at, token) in lab.tokens(gang).into_iter().enumerate() {
            lab.end(token, if at == 0 { exit(0) } else { AttemptEnd::Cancelled });
        }
        assert_eq!(lab.state_of(gang), "cancelled", "{name}");
        assert!(lab.is_idle(), "{name}");
        lab.check_copies();
    }
}

/// An evicted gang goes as a whole; it waits again or is over by its own rule, and one that was faster than the order
/// to end has succeeded (T6).
#[test]
fn evicted_as_a_whole() {
    for (requeue, codes, state) in [
        ("yes", [143, 143], "pending"),
        ("no", [143, 143], "preempted"),
        ("yes", [0, 143], "pending"),
        ("no", [0, 143], "preempted"),
        ("yes", [0, 0], "succeeded"),
        ("no", [0, 0], "succeeded"),
    ] {
        let mut lab = Lab::with(&HOSTS[..1]);
        let gang = lab.run(&format!("gpus=2 gang=2 prio=20 requeue={requeue}"), "0@h1:0,1 1@h1:2,3");
        let urgent = lab.submit("gpus=2 prio=80");
        let victims = lab.tokens(gang);
        let half = lab.evict(Some(urgent), EndReason::Preempt, &victims[..1], "h1:0,1");
        assert_eq!(half, Err(Refusal::NotEvictable), "half a gang");
        assert_eq!(lab.evict(Some(urgent), EndReason::Preempt, &victims, "h1:0,1"), Ok(()));
        for (token, code) in victims.into_iter().zip(codes) {
            lab.end(token, exit(code));
        }
        assert_eq!(lab.state_of(gang), state, "requeue={requeue} {codes:?}");
        assert!(lab.is_idle());
        lab.check_copies();
    }
}

/// R041: with 2..4 parts a gang goes on with what is left, takes new parts, and breaks only below its fewest.
#[test]
fn elastic_gangs_shrink_and_grow() {
    let mut lab = Lab::with(&HOSTS);
    let gang = lab.submit("gpus=1 gang=2..4 retries=0");
    assert_eq!(lab.begin(gang, "0@h1:0"), Err(Refusal::GangSize));
    assert_eq!(lab.begin(gang, "0@h1:0 1@h2:0 2@h3:0"), Ok(()));
    lab.all_started();
    // It grows by single parts, never above its most.
    assert_eq!(lab.begin(gang, "3@h2:1"), Ok(()));
    assert_eq!(lab.begin(gang, "3@h2:2"), Err(Refusal::NotPending));
    assert_eq!(lab.live(gang), 4);
    // A host with two parts is lost: the rest goes on, untouched.
    lab.expire(lab.host_named("h2"));
    assert_eq!((lab.live(gang), lab.ending(gang), lab.state_of(gang).as_str()), (2, 0, "running"));
    assert_eq!(lab.state.job(gang).map(|j| j.is_ready()), Some(true), "and looks for replacements");
    assert_eq!(lab.begin(gang, "1@h1:1 3@h1:2"), Ok(()));
    assert_eq!(lab.live(gang), 4);
    // One too many: the gang starts again as a whole.
    lab.expire(lab.host_named("h1"));
    assert_eq!((lab.live(gang), lab.ending(gang)), (1, 1));
    assert_eq!(lab.begin(gang, "0@h3:1"), Err(Refusal::NotYet));
    let last = lab.token(gang);
    lab.end(last, AttemptEnd::GangBroken);
    assert_eq!(lab.state.job(gang).map(|j| (j.pending.len(), j.live)), Some((4, 0)));
    assert_eq!(lab.begin(gang, "2@h3:1"), Err(Refusal::GangSize));
    assert_eq!(lab.begin(gang, "2@h3:1 0@h3:2"), Ok(()));
    // The program's own failure is no host's fault: it ends the gang whatever is left.
    let tokens = lab.tokens(gang);
    lab.end(tokens[0], exit(9));
    let token = lab.token(gang);
    lab.end(token, AttemptEnd::GangBroken);
    assert_eq!(lab.state_of(gang), "failed");
    lab.check_copies();
}

/// Ranks that an elastic gang never filled do not run alone after the others did well.
#[test]
fn elastic_gangs_end_with_those_that_ran() {
    let mut lab = Lab::with(&HOSTS);
    let gang = lab.run("gpus=1 gang=2..4", "0@h1:0 1@h2:0 2@h3:0");
    lab.expire(lab.host_named("h3"));
    for token in lab.tokens(gang) {
        lab.end(token, exit(0));
    }
    assert_eq!(lab.state_of(gang), "succeeded");
    assert_eq!(lab.state.job(gang).map(|j| (j.succeeded.len(), j.cancelled.len())), Some((2, 2)));
}

/// An elastic gang may lose parts to an eviction down to its fewest, and what is ending already does not count as
/// staying. Its rule for being queued again is for its end, not for shrinking.
#[test]
fn elastic_gangs_are_evicted_in_part() {
    for requeue in ["yes", "no"] {
        let mut lab = Lab::with(&HOSTS[..1]);
        let line = format!("gpus=1 gang=2..4 prio=10 requeue={requeue}");
        let gang = lab.run(&line, "0@h1:0 1@h1:1 2@h1:2 3@h1:3");
        let tokens = lab.tokens(gang);
        let urgent: Vec<JobId> = (0..4).map(|_| lab.submit("gpus=1 prio=90")).collect();
        let evict = |lab: &mut Lab, for_whom: usize, victims: &[Token], slots: &str| {
            lab.evict(Some(urgent[for_whom]), EndReason::Preempt, victims, slots)
        };
        assert_eq!(evict(&mut lab, 0, &tokens[..3], "h1:0"), Err(Refusal::NotEvictable), "one is too few");
        assert_eq!(evict(&mut lab, 0, &tokens[..1], "h1:0"), Ok(()));
        let too_many = evict(&mut lab, 1, &tokens[1..3], "h1:1");
        assert_eq!(too_many, Err(Refusal::NotEvictable), "of four, one is ending: two more leave one");
        assert_eq!(evict(&mut lab, 1, &tokens[1..2], "h1:1"), Ok(()));
        for token in &tokens[..2] {
            lab.end(*token, exit(143));
        }
        assert_eq!((lab.live(gang), lab.ending(gang), lab.state_of(gang).as_str()), (2, 0, "running"));
        // Now only as a whole.
        assert_eq!(evict(&mut lab, 2, &tokens[2..3], "h1:2"), Err(Refusal::NotEvictable));
        assert_eq!(evict(&mut lab, 2, &tokens[2..], "h1:2"), Ok(()));
        assert_eq!(lab.begin(gang, "0@h1:0"), Err(Refusal::NotYet), "it does not grow while it ends");
        for token in &tokens[2..] {
            lab.end(*token, exit(143));
        }
        assert_eq!(lab.state_of(gang), if requeue == "yes" { "pending" } else { "preempted" });
        lab.check_copies();
    }
}

/// An elastic gang that runs on through many lost hosts is not given up for their number: each part counts its own.
#[test]
fn elastic_gangs_outlive_many_hosts() {
    let mut lab = Lab::with(&HOSTS);
    let gang = lab.run("gpus=1 gang=1..4", "0@h1:0 1@h2:0 2@h2:1 3@h2:2");
    for _ in 0..15 {
        for token in lab.tokens(gang).into_iter().skip(1) {
            lab.end(token, AttemptEnd::Fenced);
        }
        assert_eq!(lab.begin(gang, "1@h2:0 2@h2:1 3@h2:2"), Ok(()));
    }
    assert_eq!((lab.live(gang), lab.ending(gang)), (4, 0));
}

/// Conditions on where parts lie are checked at the commit, with the parts that live.
#[test]
fn layouts_are_checked_again() {
    for (layout, line, good, bad) in [
        ("same-host", "gpus=1 gang=2..3", "0@h1:0 1@h1:1", "0@h1:0 1@h2:0"),
        ("same-rack", "gpus=1 gang=2..3", "0@h1:0 1@h2:0", "0@h1:0 1@h3:0"),
        ("same-island", "gpus=2 gang=2..3", "0@h4:0,1 1@h4:2,3", "0@h4:0,1 1@h4:3,4"),
    ] {
        let mut lab = Lab::with(&HOSTS);
        lab.host("h4 gpus=8xA100:80GiB cpus=16");
        lab.host("h5 gpus=8xA100:80GiB cpus=16");
        let gang = lab.submit(&format!("{line} layout={layout}"));
        assert_eq!(lab.begin(gang, bad), Err(Refusal::DoesNotFit), "{layout}");
        assert!(lab.is_idle());
        // A rack that nobody named is no rack that two hosts share; one host is in one rack, named or not.
        if layout == "same-rack" {
            assert_eq!(lab.begin(gang, "0@h4:0 1@h5:0"), Err(Refusal::DoesNotFit));
            assert_eq!(lab.begin(gang, "0@h4:0 1@h1:0"), Err(Refusal::DoesNotFit));
            let other = lab.submit(&format!("{line} layout={layout}"));
            assert_eq!(lab.begin(other, "0@h4:0 1@h4:1"), Ok(()));
        }
        assert_eq!(lab.begin(gang, good), Ok(()), "{layout}");
        let (more, why) = match layout {
            "same-host" => ("2@h2:1", Err(Refusal::DoesNotFit)),
            "same-rack" => ("2@h3:1", Err(Refusal::DoesNotFit)),
            _ => ("2@h4:4,5", Ok(())),
        };
        assert_eq!(lab.begin(gang, more), why, "{layout}: grows");
        lab.check_copies();
    }
}

/// Each gang meets at ports of its own on the host of its lowest rank; they come back with it, and they run out.
#[test]
fn meeting_ports() {
    let mut lab = Lab::with(&["h1 cpus=1000", "h2 cpus=1000"]);
    let port_of = |lab: &Lab, job: JobId| -> Vec<(u32, u16)> {
        lab.state.attempts_of(job).filter_map(|a| Some((a.task.index, a.port?))).collect()
    };
    let mut seen = BTreeSet::new();
    let gangs: Vec<JobId> = (0..GANG_PORT_BLOCKS)
        .map(|_| {
            let gang = lab.submit("cpus=1 gang=2");
            assert_eq!(lab.begin(gang, "1@h2 0@h1"), Ok(()));
            let [(0, port)] = port_of(&lab, gang)[..] else { panic!("rank 0 has the ports") };
            let offset = port - GANG_PORT_FIRST;
            assert!(
                offset.is_multiple_of(PORTS_OF_A_GANG) && offset / PORTS_OF_A_GANG < GANG_PORT_BLOCKS,
                "{port}"
            );
            assert!(seen.insert(port), "{port} is handed to two gangs at once");
            gang
        })
        .collect();
    let of_seventh = port_of(&lab, gangs[7]);
    let last = lab.submit("cpus=1 gang=2");
    assert_eq!(lab.begin(last, "0@h1 1@h2"), Err(Refusal::NoPorts));
    // What is ending still holds its ports; what is gone does not.
    lab.cancel(gangs[7]);
    assert_eq!(lab.begin(last, "0@h1 1@h2"), Err(Refusal::NoPorts));
    for token in lab.tokens(gangs[7]) {
        lab.end(token, AttemptEnd::Cancelled);
    }
    assert_eq!(lab.begin(last, "0@h1 1@h2"), Ok(()));
    assert_eq!(port_of(&lab, last), of_seventh);
    // On the other host they are all free; jobs that are no gangs need none.
    let other = lab.submit("cpus=1 gang=2");
    assert_eq!(lab.begin(other, "0@h2 1@h1"), Ok(()));
    assert_eq!(port_of(&lab, other).len(), 1);
    let plain = lab.submit("cpus=1 array=0-3");
    assert_eq!(lab.begin(plain, "0@h1 1@h1"), Ok(()));
    assert_eq!(port_of(&lab, plain), []);
    lab.check_copies();
}

/// An elastic gang whose meeting host is lost meets at the next part that starts.
#[test]
fn a_lost_meeting_place_is_replaced() {
    let mut lab = Lab::with(&HOSTS);
    let gang = lab.run("gpus=1 gang=2..4", "0@h1:0 1@h2:0 2@h3:0");
    lab.expire(lab.host_named("h1"));
    assert!(lab.state.attempts_of(gang).all(|a| a.port.is_none()));
    assert_eq!(lab.begin(gang, "3@h2:1 0@h3:1"), Ok(()));
    let ports: Vec<(u32, u16)> =
        lab.state.attempts_of(gang).filter_map(|a| Some((a.task.index, a.port?))).collect();
    assert_eq!(ports.iter().map(|(index, _)| *index).collect::<Vec<_>>(), [0]);
}

/// R039: a gang whose port was found taken is tried again with others, on a host that does nothing else too; so is the
/// next gang of a host, since what held a port may hold it still.
#[test]
fn the_next_try_gets_other_ports() {
    let mut lab = Lab::with(&["h1 cpus=1000"]);
    let gang = lab.submit("cpus=1 gang=2");
    let mut seen = Vec::new();
    for _ in 0..3 {
        lab.now_ms += 600_000;
        assert_eq!(lab.begin(gang, "0@h1 1@h1"), Ok(()));
        seen.extend(lab.state.attempts_of(gang).filter_map(|a| a.port));
        let tokens = lab.tokens(gang);
        lab.end(tokens[0], launch_failed());
        lab.end(tokens[1], AttemptEnd::GangBroken);
        assert_eq!(lab.state_of(gang), "pending");
    }
    seen.dedup();
    assert_eq!(seen.len(), 3, "{seen:?}");
}

/// O5: a gang that runs partly on a drained host is asked to end as a whole, and waits again.
#[test]
fn a_gang_is_drained_as_a_whole() {
    let mut lab = Lab::with(&HOSTS);
    let gang = lab.run("gpus=1 gang=3 requeue=no", "0@h1:0 1@h2:0 2@h2:1");
    let host = lab.host_named("h1");
    let evict_at_ms = Some(lab.now_ms + 5_000);
    lab.system(Command::DrainWith { host, reason: "fan".into(), evict_at_ms });
    let victims = lab.tokens(gang);
    assert_eq!(lab.evict(None, EndReason::Drain, &victims, ""), Err(Refusal::NotEvictable), "too early");
    lab.now_ms += 5_000;
    assert_eq!(lab.evict(None, EndReason::Drain, &victims[..1], ""), Err(Refusal::NotEvictable), "a third");
    assert_eq!(lab.evict(None, EndReason::Drain, &victims, ""), Ok(()));
    for token in victims {
        lab.end(token, exit(143));
    }
    assert_eq!(lab.state_of(gang), "pending");
    assert_eq!(lab.begin(gang, "0@h1:0 1@h2:0 2@h2:1"), Err(Refusal::HostDraining));
    assert_eq!(lab.begin(gang, "0@h3:0 1@h2:0 2@h2:1"), Ok(()));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    /// R036, I7: under random ends, lost hosts, cancels, requeues and evictions every law holds at every index (the lab
    /// checks them), and at the end every gang is over or could start.
    #[test]
    fn gangs_under_fire(dice in prop::collection::vec(any::<(u8, u8, u8)>(), 1..60)) {
        let mut lab = Lab::with(&HOSTS);
        let lines = ["gpus=1 gang=3", "gpus=2 gang=2..4 retries=1", "gpus=1 gang=1..6 requeue=no prio=20",
            "gpus=1 gang=2 retries=2 prio=80", "gpus=1 gang=2 service=yes"];
        for (kind, a, b) in dice {
            lab.now_ms += u64::from(a) * 400;
            fire(&mut lab, &lines, kind, a, b);
        }
        heal(&mut lab);
        for job in lab.state.jobs() {
            prop_assert!(job.state.is_terminal() || job.is_ready(), "{job:?}");
        }
        prop_assert!(lab.is_idle());
        lab.check_copies();
    }
}

fn fire(lab: &mut Lab, lines: &[&str], kind: u8, a: u8, b: u8) {
    let live: Vec<Token> = lab.state.attempts().map(|attempt| attempt.token).collect();
    let job = JobId(1 + u64::from(a) % lab.state.jobs().count().max(1) as u64);
    match kind % 10 {
        0 | 1 => {
            lab.submit(lines[a as usize % lines.len()]);
        }
        2 | 3 => try_begin(lab, job, u32::from(b)),
        4 | 5 if !live.is_empty() => {
            let token = live[a as usize % live.len()];
            let ends =
                [exit(0), exit(b), AttemptEnd::Fenced, AttemptEnd::Requeued { code: 75 }, launch_failed()];
            lab.end(token, ends[b as usize % ends.len()].clone());
        }
        6 => {
            let host = HostId(2 + u64::from(b % 3));
            lab.expire(host);
            let facts = lab.facts(host);
            lab.register(host, facts, true);
        }
        7 if lab.state.job(job).is_some() => {
            lab.cancel(job);
        }
        8 if lab.state.job(job).is_some() => {
            lab.adjust(user("t"), job, JobChange::Requeue);
        }
        _ => {
            let victims: Vec<Token> = lab.tokens(job).into_iter().take(1 + b as usize % 6).collect();
            let urgent = lab.submit("gpus=1 prio=100");
            let slots = format!("h{}:{}", 1 + b % 3, b % 4);
            let _ = lab.evict(Some(urgent), EndReason::Preempt, &victims, &slots);
        }
    }
}

/// Any free cards for as many parts as fit: `apply` says whether that is a gang.
fn try_begin(lab: &mut Lab, id: JobId, most: u32) {
    let Some(job) = lab.state.job(id) else {
        return;
    };
    let each = job.spec.ask.gpus() as usize;
    let mut free: Vec<(String, Vec<usize>)> = Vec::new();
    for host in lab.state.hosts().skip(1) {
        let idle = |at: &usize| {
            !host.used.devices.contains_key(&rota_protocol::DeviceUuid(format!("GPU-{}-{at}", host.name)))
        };
        free.push((host.name.clone(), (0..4).filter(idle).collect()));
    }
    let mut parts = Vec::new();
    let indices = job.pending.ranges().flat_map(|(start, end)| start..end);
    for index in indices.take(1 + most as usize % 6) {
        let Some((name, cards)) = free.iter_mut().find(|(_, cards)| cards.len() >= each) else {
            break;
        };
        let cards: Vec<String> = cards.drain(..each).map(|at| at.to_string()).collect();
        parts.push(format!("{index}@{name}:{}", cards.join(",")));
    }
    let _ = lab.begin(id, &parts.join(" "));
}

fn heal(lab: &mut Lab) {
    for _ in 0..100 {
        let ending: Vec<Token> = lab.state.attempts().map(|attempt| attempt.token).collect();
        if ending.is_empty() {
            return release_held(lab);
        }
        for token in ending {
            if lab.state.attempt(token).is_some() {
                lab.end(token, exit(0));
            }
        }
    }
    let states: Vec<JobState> = lab.state.jobs().map(|job| job.state).collect();
    panic!("something lives for ever: {states:?}");
}

/// Jobs under which hosts were lost again and again wait for somebody to look at them.
fn release_held(lab: &mut Lab) {
    let held: Vec<JobId> =
        lab.state.jobs().filter(|job| job.is_held_for_deaths()).map(|job| job.id).collect();
    for job in held {
        lab.adjust(user("t"), job, JobChange::Release);
    }
}
