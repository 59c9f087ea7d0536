//! Properties over arbitrary commands of every kind, hostile ones included: `apply` never panics, every law holds after
//! every step, a request id gives one answer, snapshots and replays give the same state, and what waits can be started.

use crate::dice::{self, Dice, KINDS, OLD_KINDS};
use crate::lab::{Lab, exit, user};
use proptest::prelude::*;
use rota_core::state::host::LaunchRecord;
use rota_core::{Applied, Event, fit, snapshot};
use rota_protocol::command::{Command, JobChange, Outcome, Proposal};
use rota_protocol::health::Tending;
use rota_protocol::job::{Actor, AttemptEnd};
use rota_protocol::plan::{Move, Refusal};
use rota_protocol::queue::QueueSpec;
use rota_protocol::{DeviceUuid, HostId, JobId, RequestId, Token};
use std::collections::BTreeMap;

/// One step; every law is checked by the lab.
fn step(lab: &mut Lab, dice: Dice, kinds: u8) -> (Proposal, Applied) {
    let (kind, a, b, c) = dice;
    lab.now_ms = match kind >> 4 {
        0..=3 => lab.now_ms,
        4..=9 => lab.now_ms.saturating_add(u64::from(a) * 50),
        10..=12 => lab.now_ms.saturating_add(u64::from(b) * 10_000),
        13 => lab.now_ms.saturating_sub(u64::from(c) * 1_000_000),
        14 => lab.now_ms.saturating_add(25 * 3_600_000),
        _ if a == 255 => u64::MAX,
        _ => lab.now_ms.saturating_add(1),
    };
    let command = dice::command(lab, dice, kinds);
    // Hostile authors now and then; else whoever may.
    let actor = match (c % 5, &command) {
        (0, _) => dice::actor(b),
        (_, Command::Submit { .. } | Command::Cancel { .. } | Command::Adjust { .. }) => user("t"),
        _ => Actor::system(),
    };
    let request = RequestId(if b % 3 == 0 { 0 } else { u128::from(lab.log.len() as u64 + 1) });
    let proposal = Proposal { request, actor, command };
    let applied = lab.apply(vec![proposal.clone()]);
    if request != RequestId::NONE && c % 2 == 0 {
        resubmit(lab, &proposal, &applied.outcomes);
    }
    (proposal, applied)
}

/// The same request id gives the same answer and changes nothing but index and clock.
fn resubmit(lab: &mut Lab, proposal: &Proposal, first: &[Outcome]) {
    let rows = |lab: &Lab| {
        let jobs: Vec<_> = lab.state.jobs().cloned().collect();
        let hosts: Vec<_> = lab.state.hosts().cloned().collect();
        let attempts: Vec<_> = lab.state.attempts().cloned().collect();
        (jobs, hosts, attempts)
    };
    let before = rows(lab);
    let again = lab.apply(vec![proposal.clone()]);
    assert_eq!(again.outcomes, first);
    assert_eq!(again.events, Vec::new());
    assert_eq!(rows(lab), before);
}

/// Reach (I23): the dice do lead to what matters; a generator that only ever met refusals would prove nothing.
#[test]
fn the_dice_reach_everything() {
    let mut seen = Seen::default();
    let mut draw = 1_u64;
    for world in 0..260 {
        let mut lab = small_world();
        if world % 2 == 1 {
            fill(&mut lab);
        }
        for _ in 0..60 {
            draw = rota_core::hash::mix(draw.wrapping_add(1));
            let [a, b, c, d, ..] = draw.to_le_bytes();
            let (proposal, applied) = step(&mut lab, (a, b, c, d), KINDS);
            seen.step(&proposal, &applied);
            seen.state(&lab);
        }
        seen.end(&lab);
    }
    let all = [
        "event: granted, end asked, ended, job, host, plan",
        "job: pending, running, ending, succeeded, failed, cancelled, time limit, preempted, dependency failed, \
         deadline missed, host lost",
        "attempt: exit 0, exit, signal, lost, fenced, cancelled, preempted, requeued, gang broken, launch failed, \
         vanished, time limit, device fault, program fault",
        "asked: cancel, preempt, gang, drain, move, reclaim, ceiling, device, program",
        "stage: degraded, quarantined, on probation, out, cordoned",
        "move: Place, Start, Evict, Promise, Lapse",
        "refusal: NotPending, HostGone, HostDraining, DoesNotFit, ParallelCap, OverCeiling, GangSize, NotEvictable, \
         Reserved, NotYet",
        "now: held, blocked, promised, evicting, paused, gang ends, elastic gang lives, port, share, slice, excess, \
         reservation, drain with a time, evicted, each, launch record",
        "command: SetQueue, RemoveQueue, Adjust, Reserve, Unreserve, DrainWith, Submit, Cancel, CommitPlan, Health, \
         Tend",
    ];
    for line in all {
        let (group, names) = line.split_once(": ").expect("group: names");
        for name in names.split(", ") {
            let count = seen.0.get(&format!("{group}: {name}")).copied().unwrap_or(0);
            assert!(count >= 3, "{group}: {name} was hardly reached, {count} times: {:#?}", seen.0);
        }
    }
}

/// How often what was seen.
#[derive(Default)]
struct Seen(BTreeMap<String, u32>);

impl Seen {
    fn note(&mut self, group: &str, name: impl std::fmt::Display) {
        *self.0.entry(format!("{group}: {name}")).or_default() += 1;
    }

    fn step(&mut self, proposal: &Proposal, applied: &Applied) {
        for event in &applied.events {
            self.note(
                "event",
                match event {
                    Event::Granted { .. } => "granted",
                    Event::EndAsked { .. } => "end asked",
                    Event::AttemptEnded { .. } => "ended",
                    Event::JobChanged(_) => "job",
                    Event::HostChanged(_) => "host",
                    Event::PlanNeeded => "plan",
                    Event::TrustChanged => "trust",
                },
            );
        }
        // Only what was done counts.
        if !matches!(applied.outcomes[0], Outcome::Refused(_)) {
            let text = format!("{:?}", proposal.command);
            self.note("command", text.split([' ', '(']).next().unwrap_or_default());
        }
        if let (Command::CommitPlan { plan }, Outcome::Planned { refused }) =
            (&proposal.command, &applied.outcomes[0])
        {
            let refused: BTreeMap<u32, Refusal> = refused.iter().copied().collect();
            for (at, one) in (0..).zip(&plan.moves) {
                match refused.get(&at) {
                    Some(refusal) => self.note("refusal", format!("{refusal:?}")),
                    None => self.note("move", format!("{one:?}").split(' ').next().unwrap_or_default()),
                }
            }
        }
    }

    fn state(&mut self, lab: &Lab) {
        for attempt in lab.state.attempts() {
            if let Some(reason) = attempt.end_reason {
                self.note("asked", reason);
            }
            for (name, is) in [
                ("port", attempt.port.is_some()),
                ("share", attempt.card_milli > 0 && attempt.card_milli < 1_000),
                ("slice", attempt.card_milli == 0 && attempt.gpu_milli > 0),
            ] {
                if is {
                    self.note("now", name);
                }
            }
        }
        for job in lab.state.jobs() {
            let elastic = job.spec.gang.is_some_and(|gang| gang.is_elastic());
            for (name, is) in [
                ("held", job.held),
                ("blocked", !job.blocked.is_empty()),
                ("promised", job.promise.is_some()),
                ("evicting", job.promise.as_ref().is_some_and(|promise| promise.evicting)),
                ("paused", job.pause_until_ms > lab.state.clock_ms()),
                ("gang ends", job.gang_ending),
                ("elastic gang lives", elastic && job.live > 0 && job.live < job.tasks()),
                ("evicted", job.evicted > 0 && !job.state.is_terminal()),
                ("each", !job.blocked.is_empty() && job.spec.after.iter().any(|dep| dep.each)),
            ] {
                if is {
                    self.note("now", name);
                }
            }
        }
        for (_, mark) in lab.state.care().marks() {
            self.note("stage", mark.stage);
            if mark.cordon.is_some() {
                self.note("stage", "cordoned");
            }
        }
        let none = rota_protocol::queue::Amounts::default();
        if lab.state.queues().iter().any(|queue| !queue.held.within(&queue.bound()) && queue.excess != none) {
            self.note("now", "excess");
        }
        if lab.state.reservations().next().is_some() {
            self.note("now", "reservation");
        }
        if lab.state.hosts().any(|host| host.evict_at_ms.is_some()) {
            self.note("now", "drain with a time");
        }
    }

    fn end(&mut self, lab: &Lab) {
        for job in lab.state.jobs() {
            self.note("job", job.state);
            for attempt in &job.ended {
                self.note(
                    "attempt",
                    match &attempt.end {
                        AttemptEnd::Exited { code: 0 } => "exit 0",
                        AttemptEnd::Exited { .. } => "exit",
                        AttemptEnd::Signalled { .. } => "signal",
                        AttemptEnd::TimeLimit => "time limit",
                        AttemptEnd::Cancelled => "cancelled",
                        AttemptEnd::Preempted => "preempted",
                        AttemptEnd::LaunchFailed { .. } => "launch failed",
                        AttemptEnd::InputsMissing { .. } => "inputs missing",
                        AttemptEnd::CannotStart { .. } => "cannot start",
                        AttemptEnd::Fenced => "fenced",
                        AttemptEnd::Lost => "lost",
                        AttemptEnd::Vanished { .. } => "vanished",
                        AttemptEnd::Requeued { .. } => "requeued",
                        AttemptEnd::GangBroken => "gang broken",
                        AttemptEnd::HostStopped => "host stopped",
                        AttemptEnd::DeviceFault { .. } => "device fault",
                        AttemptEnd::ProgramFault { .. } => "program fault",
                        AttemptEnd::OutOfMemory { .. } => "out of memory",
                        AttemptEnd::VramLimit { .. } | AttemptEnd::SharedFault | AttemptEnd::Idle { .. } => {
                            "host's end"
                        }
                    },
                );
            }
        }
        if lab.state.hosts().any(|host| host.launches != LaunchRecord::default()) {
            self.note("now", "launch record");
        }
    }
}

/// Two hosts, two queues, and a job that has met failing hosts nineteen times.
fn small_world() -> Lab {
    let mut lab = Lab::with(&[
        "h2 gpus=4xA100:80GiB cpus=8 mem=32GiB rack=a",
        "h0 gpus=2xH100:80GiB fpga=1 mig=3x1g.10gb:10GiB",
    ]);
    lab.queue("t");
    lab.queue("t/a");
    let tired = lab.submit("cpus=1 prio=100");
    for _ in 0..19 {
        assert_eq!(lab.begin(tired, "0@h2"), Ok(()));
        let token = lab.token(tired);
        lab.end(token, AttemptEnd::Fenced);
    }
    lab
}

/// Every card is taken, by work that may be ended; the queue to which two are guaranteed has none.
fn fill(lab: &mut Lab) {
    lab.run("gpus=2 prio=5 requeue=no", "0@h2:0,1");
    lab.run_as(user("other"), "gpus=1 gang=2 prio=5", "0@h2:2 1@h2:3");
    lab.run("gpus=1 gang=1..2 prio=20 requeue=no", "0@h0:0 1@h0:1");
    lab.queue("t/a guarantee=2");
    lab.submit("gpus=1 queue=t/a");
}

/// All hosts are back and empty, nobody is drained, nothing is kept or held or bounded, a day has gone by.
fn heal(lab: &mut Lab) {
    let hosts: Vec<HostId> = lab.state.hosts().map(|h| h.id).collect();
    for host in hosts {
        let facts = lab.facts(host);
        lab.register(host, facts, true);
        lab.system(Command::UndrainHost { host });
    }
    let marked: Vec<DeviceUuid> = lab.state.care().marks().map(|(uuid, _)| uuid.clone()).collect();
    for uuid in marked {
        let cleared = lab.system(Command::Tend { tending: Tending::Clear { uuid: uuid.clone() } });
        assert_eq!(cleared, Outcome::Done, "{uuid}");
    }
    // The end of one part asks the others to end: until none is left.
    while let Some(token) = next_live(lab) {
        lab.end(token, exit(0));
    }
    lab.now_ms += 24 * 3_600_000;
    let kept: Vec<String> = lab.state.reservations().map(|row| row.name.clone()).collect();
    for name in kept {
        lab.system(Command::Unreserve { name });
    }
    // Children first: a parent is not cut below what they are guaranteed.
    let mut names: Vec<String> = lab.state.queues().iter().map(|queue| queue.spec.name.clone()).collect();
    names.sort_by_key(|name| std::cmp::Reverse(name.len()));
    for name in names {
        assert_eq!(lab.system(Command::SetQueue { queue: QueueSpec::open(&name) }), Outcome::Done, "{name}");
    }
    let open: Vec<JobId> = lab.state.jobs().filter(|j| !j.state.is_terminal()).map(|j| j.id).collect();
    for job in open {
        assert_eq!(lab.adjust(Actor::system(), job, JobChange::Release), Outcome::Done);
    }
}

fn next_live(lab: &Lab) -> Option<Token> {
    lab.state.attempts().next().map(|attempt| attempt.token)
}

/// Starts every job that can be started on hosts that are otherwise empty, and ends it well, until none is left.
fn run_all_that_waits(lab: &mut Lab) {
    for _ in 0..1_000 {
        lab.now_ms += 600_000;
        let late: Vec<Move> = lab.state.jobs().map(|job| Move::Lapse { job: job.id }).collect();
        lab.moves(late.into_iter().take(1_000).collect());
        let ready: Vec<JobId> = lab.state.jobs().filter(|job| job.is_ready()).map(|job| job.id).collect();
        let mut any = false;
        for id in ready {
            let fewest = lab.state.job(id).map_or(1, |job| job.start_range().0) as usize;
            for (choice, from) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                let Some(start) = dice::start(lab, id, choice, fewest, from) else {
                    continue;
                };
                any |= lab.one_move(start).is_ok();
            }
            if lab.state.job(id).is_some_and(|job| job.spec.service) {
                lab.ask(Actor::system(), RequestId::NONE, Command::Cancel { job: id, index: None });
            }
            for token in lab.tokens(id) {
                lab.end(token, exit(0));
            }
        }
        if !any {
            return;
        }
    }
    panic!("it never comes to rest");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_commands_keep_every_law(dice in prop::collection::vec(any::<Dice>(), 1..80)) {
        let mut lab = small_world();
        for one in dice {
            step(&mut lab, one, KINDS);
        }
        lab.check_copies();
    }

    /// Whatever happened, nothing that waits is lost for ever: once all is well again, each job that the hosts can carry
    /// at all runs to its end, and nothing is left behind anywhere (I20).
    #[test]
    fn what_waits_can_be_started(dice in prop::collection::vec(any::<Dice>(), 1..60)) {
        let mut lab = small_world();
        for one in dice {
            step(&mut lab, one, KINDS);
        }
        lab.now_ms = lab.now_ms.max(lab.state.clock_ms());
        prop_assume!(lab.now_ms < u64::MAX / 2);
        heal(&mut lab);
        run_all_that_waits(&mut lab);
        prop_assert!(lab.is_idle());
        let held = lab.state.queues().iter().map(|queue| queue.held).max_by_key(|held| held.gpu_milli);
        prop_assert_eq!(held.unwrap_or_default(), rota_protocol::queue::Amounts::default());
        for job in lab.state.jobs().filter(|job| !job.state.is_terminal()) {
            // What is left asks for what no host here has, or for too many parts of it.
            let want = |ask| fit::Want::of(job, ask);
            // The dice start nothing on hosts without devices.
            let hosts = || lab.state.hosts().filter(|host| !host.facts.devices.is_empty());
            let fits = |ask| hosts().any(|h| fit::fits(h, &h.used, want(ask), lab.now_ms).is_ok());
            let impossible = job.spec.gang.is_some() || !job.spec.asks().any(fits);
            prop_assert!(!job.blocked.is_empty() || impossible, "{job:?}");
        }
        lab.check_copies();
    }

    /// Whatever happened, what waits and fits is placed, and nothing that lives stays for ever (I20).
    #[test]
    fn it_always_converges(dice in prop::collection::vec(any::<Dice>(), 1..60)) {
        let mut lab = small_world();
        for one in dice {
            step(&mut lab, one, OLD_KINDS);
        }
        // Heal: hosts are back, nobody is drained, every report comes, a day goes by for the back-offs.
        lab.now_ms = lab.now_ms.max(lab.state.clock_ms());
        prop_assume!(lab.now_ms < u64::MAX / 2);
        let hosts: Vec<HostId> = lab.state.hosts().map(|h| h.id).collect();
        for host in hosts {
            let facts = lab.facts(host);
            lab.register(host, facts, true);
            lab.system(Command::UndrainHost { host });
        }
        // Jobs under which hosts were lost again and again wait for somebody to look at them.
        let held: Vec<JobId> = lab.state.jobs().filter(|job| job.is_held_for_deaths()).map(|job| job.id).collect();
        for job in held {
            lab.adjust(Actor::system(), job, JobChange::Release);
        }
        for _ in 0..2_000 {
            lab.now_ms += 60_000;
            let moves = lab.round();
            let live: Vec<Token> = lab.state.attempts().map(|a| a.token).collect();
            if moves == 0 && live.is_empty() {
                break;
            }
            for token in live {
                lab.start(token);
                lab.end(token, AttemptEnd::Exited { code: 0 });
            }
        }
        prop_assert!(lab.is_idle());
        for job in lab.state.jobs().filter(|j| !j.state.is_terminal()) {
            let why = rota_core::explain::why(&lab.state, job.id, lab.now_ms).expect("job");
            prop_assert!(why.impossible || why.by_reason.iter().all(|r| r.kind != "fits"), "{why:?}");
        }
    }

    /// No bytes from outside make a snapshot reader panic, and none but the true ones are believed (fault D11).
    #[test]
    fn a_damaged_snapshot_is_refused(at in any::<prop::sample::Index>(), flip in 1..=255_u8, cut in any::<bool>()) {
        let mut lab = Lab::with(&["h1 gpus=2xA100:80GiB"]);
        lab.submit("gpus=1 array=0-3");
        lab.round();
        let mut bytes = snapshot::encode(&lab.state);
        let at = at.index(bytes.len());
        if cut {
            bytes.truncate(at);
        } else {
            bytes[at] ^= flip;
        }
        prop_assert!(snapshot::decode(&bytes).is_err());
    }
}
