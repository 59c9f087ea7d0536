//! What is held against devices, hosts and jobs, from a finding to a grant that is or is not made (law I17; faults G1,
//! G3, G7, G8, G13, G14; reports R014, R018, R053).

use crate::lab::{Lab, exit, user};
use proptest::prelude::*;
use rota_core::placement::Planner;
use rota_core::state::care::{BREAKER_MS, RESETS_MS};
use rota_core::state::host::{HostLife, LEMON_MS, PASSES_PER_BLAME};
use rota_core::{Applied, explain, snapshot, view};
use rota_protocol::command::{Command, JobChange, Outcome};
use rota_protocol::health::{Cause, Finding, HealthReport, Source, Stage, Tending};
use rota_protocol::job::{Actor, AttemptEnd, EndReason, Role};
use rota_protocol::view::HostState;
use rota_protocol::{DeviceUuid, ErrorCode, HostId, JobId, RequestId, Token};

const TRIAL_MS: u64 = 600_000;

fn uuid(text: &str) -> DeviceUuid {
    DeviceUuid(text.into())
}

fn finding(device: &str, cause: Cause, text: &str) -> Finding {
    let (source, text) = (Source::Kmsg, text.to_owned());
    Finding { uuid: uuid(device), cause, source, text, program: None, trial_ms: TRIAL_MS }
}

fn operator() -> Actor {
    Actor { tenant: "ops".into(), user: "olga".into(), role: Role::Operator }
}

/// The command of dice: findings about any device, by its own host mostly; an operator's words.
pub(crate) fn command(lab: &Lab, kind: u8, a: u8, b: u8, c: u8) -> Command {
    let devices: Vec<(HostId, DeviceUuid)> = lab
        .state
        .hosts()
        .flat_map(|host| host.facts.devices.iter().map(|device| (host.id, device.uuid.clone())))
        .collect();
    let (host, uuid) = match devices.len() {
        0 => (HostId(2), uuid("GPU-none")),
        len => devices[usize::from(a) % len].clone(),
    };
    if kind % 4 == 3 {
        let tending = match b % 6 {
            0 | 1 => Tending::Cordon { uuid, reason: "é".repeat(usize::from(c) * 4) },
            2 | 3 => Tending::Clear { uuid },
            4 => Tending::BreakerCap { hosts: (!c.is_multiple_of(3)).then(|| u32::from(c % 3) - 1) },
            _ => Tending::BreakerReset,
        };
        return Command::Tend { tending };
    }
    let live = lab.state.attempts_on(host).find(|attempt| attempt.devices.contains(&uuid));
    let program = match (live, c % 8) {
        (_, 0) => Some((Token(u64::from(c)), JobId(u64::from(b)))),
        (live, _) => live.map(|attempt| (attempt.token, attempt.task.job)),
    };
    let cause = match (&program, c % 4) {
        (Some(_), 1 | 2) => Cause::Program,
        _ => Cause::ALL[usize::from(b) % Cause::ALL.len()],
    };
    let one = Finding {
        uuid,
        cause,
        source: Source::Nvml,
        text: if c.is_multiple_of(32) { "ü".repeat(600) } else { format!("word {}", c % 4) },
        program,
        trial_ms: if c == 255 { u64::MAX } else { u64::from(c) * 10 },
    };
    let host = if c % 16 == 15 { HostId(u64::from(c)) } else { host };
    let findings = vec![one; if c == 99 { 300 } else { 1 + usize::from(c % 2) }];
    Command::Health { host, report: HealthReport { findings, stopping: c % 32 == 31 } }
}

impl Lab {
    fn find(&mut self, host: u64, findings: Vec<Finding>) -> Applied {
        let report = HealthReport { findings, stopping: false };
        let command = Command::Health { host: HostId(host), report };
        let proposal =
            rota_protocol::command::Proposal { request: RequestId::NONE, actor: Actor::system(), command };
        let applied = self.apply(vec![proposal]);
        assert_eq!(applied.outcomes, [Outcome::Done]);
        applied
    }

    fn finds(&mut self, host: u64, device: &str, cause: Cause) {
        self.find(host, vec![finding(device, cause, &format!("{} found", cause.word()))]);
    }

    fn tend(&mut self, tending: Tending) -> Outcome {
        self.ask(operator(), RequestId::NONE, Command::Tend { tending })
    }

    fn stage(&self, device: &str) -> Stage {
        self.state.care().mark(&uuid(device)).map_or(Stage::Well, |mark| mark.stage)
    }

    fn host_state(&self, host: u64) -> HostState {
        self.state.host(HostId(host)).expect("known").state(self.now_ms)
    }

    fn reason(&self, job: JobId) -> String {
        let why = explain::why(&self.state, job, self.now_ms).expect("known");
        why.by_reason.iter().map(|row| format!("{}: {}", row.kind, row.detail)).collect::<Vec<_>>().join("; ")
    }

    /// Where the one attempt of a job is.
    fn place(&self, job: JobId) -> String {
        self.state.attempts_of(job).next().map_or("nowhere".into(), |attempt| attempt.devices[0].0.clone())
    }

    fn last_end(&self, job: JobId) -> AttemptEnd {
        self.state.job(job).expect("known").ended.back().expect("ended").end.clone()
    }
}

/// G1: a fault that a reset mends ends what ran on the card as its own fault, and no work comes there until it was
/// repaired and its trial is over.
#[test]
fn a_broken_card_gives_its_work_back_and_returns_by_trial_alone() {
    let mut lab = Lab::with(&["h1 gpus=2xH100:80GiB"]);
    let job = lab.submit("gpus=1 retries=0");
    lab.round();
    let card = lab.place(job);
    let token = lab.token(job);
    lab.start(token);
    lab.find(2, vec![finding(&card, Cause::Fault, "Xid 95: uncontained memory error")]);
    assert_eq!(lab.stage(&card), Stage::Quarantined);
    assert_eq!(lab.state.attempt(token).and_then(|a| a.end_reason), Some(EndReason::Device));
    lab.end(token, exit(1));
    let AttemptEnd::DeviceFault { reason } = lab.last_end(job) else { panic!("{:?}", lab.last_end(job)) };
    assert!(reason.contains("Xid 95") && reason.contains(&card), "{reason}");
    assert_eq!(lab.round(), 1, "it runs again, and not on the user's account");
    assert_ne!(lab.place(job), card);
    let second = lab.submit("gpus=1");
    assert_eq!(lab.round(), 0);
    let why = lab.reason(second);
    assert!(why.contains("Xid 95") || why.contains("gpus_busy"), "{why}");

    // Looks that are good, and time, are not enough: it must be repaired first.
    lab.now_ms += 10 * TRIAL_MS;
    lab.finds(2, &card, Cause::Clean);
    lab.finds(2, &card, Cause::Served);
    assert_eq!(lab.stage(&card), Stage::Quarantined);
    lab.finds(2, &card, Cause::Repaired);
    assert_eq!(lab.stage(&card), Stage::Probation);
    lab.now_ms += TRIAL_MS - 1;
    lab.finds(2, &card, Cause::Served);
    lab.round();
    let early = (lab.stage(&card), lab.state_of(second));
    assert_eq!(early, (Stage::Probation, "pending".into()), "a moment too early");
    lab.now_ms += 1;
    lab.finds(2, &card, Cause::Served);
    lab.round();
    assert_eq!((lab.stage(&card), lab.place(second)), (Stage::Well, card));
    lab.check_copies();
}

/// The third time within a week is the last; the operator's word makes it new. Repeated lines of one fault are one.
#[test]
fn the_third_reset_within_a_week_takes_a_card_out() {
    for (pause_ms, last) in [(1_000, Stage::Out), (RESETS_MS / 2 + 1, Stage::Quarantined)] {
        let mut lab = Lab::with(&["h1 gpus=1xH100:80GiB"]);
        let card = "GPU-h1-0";
        for time in 1..=3 {
            for _ in 0..5 {
                lab.finds(2, card, Cause::Fault);
            }
            assert_eq!(lab.stage(card), if time < 3 { Stage::Quarantined } else { last });
            lab.finds(2, card, Cause::Repaired);
            lab.now_ms += TRIAL_MS + pause_ms;
            lab.finds(2, card, Cause::Served);
        }
        if last == Stage::Out {
            let facts = lab.facts(HostId(2));
            lab.register(HostId(2), facts, true);
            assert_eq!(lab.stage(card), Stage::Out, "no restart brings it back");
            assert_eq!(lab.tend(Tending::Clear { uuid: uuid(card) }), Outcome::Done);
            lab.finds(2, card, Cause::Fault);
            assert_eq!(lab.stage(card), Stage::Quarantined, "the count began anew");
        }
    }
}

/// Marks are kept by UUID: over a restart of the whole cluster, a permuted list, a move to another host (R014, R018).
#[test]
fn a_mark_follows_its_card() {
    let mut lab = Lab::with(&["h1 gpus=4xH100:80GiB", "h2 cpus=1"]);
    let cordoned = uuid("GPU-h1-1");
    lab.tend(Tending::Cordon { uuid: cordoned.clone(), reason: "a loud fan".into() });
    lab.finds(2, "GPU-h1-2", Cause::Fatal);
    lab.state = snapshot::decode(&snapshot::encode(&lab.state)).expect("sound");
    let (_, reversed) = crate::lab::host_facts("h1 gpus=4xH100:80GiB order=reversed");
    lab.register(HostId(2), reversed, true);
    for _ in 0..3 {
        lab.submit("gpus=1");
    }
    lab.round();
    let held: Vec<String> = lab.state.attempts().map(|a| a.devices[0].0.clone()).collect();
    assert_eq!(held, ["GPU-h1-0", "GPU-h1-3"]);
    let why = lab.reason(JobId(3));
    assert!(why.contains("gpus_busy"), "{why}");

    // Both are plugged into the other host.
    let facts = lab.facts(HostId(2));
    let (stay, go) = facts.devices.iter().cloned().partition(|d| d.index.is_some_and(|i| i % 3 == 0));
    lab.register(HostId(2), rota_protocol::device::HostFacts { devices: stay, ..facts.clone() }, false);
    lab.register(HostId(3), rota_protocol::device::HostFacts { devices: go, ..facts }, false);
    assert_eq!(lab.round(), 0, "wherever they are, they are not granted");
    let why = lab.reason(JobId(3));
    assert!(why.contains("gpus_unhealthy") && why.contains("a loud fan (olga)"), "{why}");
    let mut rows = view::devices(&lab.state).into_iter();
    let row = rows.rfind(|row| row.facts.uuid == cordoned).expect("a row");
    let cordon = row.mark.and_then(|mark| mark.cordon).expect("shown");
    assert_eq!((row.host, cordon.source), (HostId(3), Source::Operator));
    assert_eq!(lab.tend(Tending::Clear { uuid: cordoned }), Outcome::Done);
    assert_eq!(lab.round(), 1);
}

/// G8, fabric: such a card stays for work that needs one card, and takes part in nothing wider.
#[test]
fn a_degraded_card_is_for_one_card_work_only() {
    for (cause, wide) in
        [(Cause::Throttled, "gpus=2"), (Cause::Fabric, "gpus=1 gang=2"), (Cause::Slow, "gpus=2")]
    {
        let mut lab = Lab::with(&["h1 gpus=2xH100:80GiB"]);
        lab.finds(2, "GPU-h1-0", cause);
        let wide = lab.submit(wide);
        assert_eq!(lab.round(), 0);
        let why = lab.reason(wide);
        assert!(why.contains("gpus_degraded") || why.contains("some_parts"), "{why}");
        let narrow = lab.submit("gpus=1 prio=90");
        let other = lab.submit("gpus=1 prio=90");
        assert!(lab.round() >= 1);
        assert_eq!(lab.state_of(narrow), "running");
        lab.cancel(other);
        lab.cancel(narrow);
        let live: Vec<Token> = lab.state.attempts().map(|a| a.token).collect();
        live.into_iter().for_each(|token| lab.end(token, exit(0)));
        // Well for a time, and no sooner.
        lab.finds(2, "GPU-h1-0", Cause::Clean);
        assert_eq!((lab.stage("GPU-h1-0"), lab.round()), (Stage::Trial, 0));
        lab.now_ms += TRIAL_MS;
        lab.finds(2, "GPU-h1-0", Cause::Served);
        assert!(lab.round() > 0);
        assert_eq!(lab.state_of(wide), "running");
    }
}

/// G9, law I18: a card that holds up a gang costs it one new start, on other cards, and never another; what may not be
/// queued again, and what needs one card, goes on where it is.
#[test]
fn a_gang_is_placed_anew_once_for_a_slow_card() {
    for cause in [Cause::Slow, Cause::Fabric] {
        let mut lab = Lab::with(&["h1 gpus=4xH100:80GiB", "h2 gpus=4xH100:80GiB"]);
        let gang = lab.submit("gpus=1 gang=4 layout=same-host");
        lab.round();
        let first: Vec<(Token, HostId)> = lab.state.attempts().map(|a| (a.token, a.host)).collect();
        assert_eq!(first.len(), 4);
        let (host, card) = (first[0].1, lab.place(gang));
        lab.finds(host.0, &card, cause);
        let asked = lab.state.attempts().filter(|a| a.end_reason == Some(EndReason::Device)).count();
        assert_eq!(asked, 1, "{cause:?}: its part is ended; the others end with it");
        let (own, rest) = (lab.token(gang), first[1..].iter());
        lab.end(own, exit(143));
        rest.for_each(|(token, _)| lab.end(*token, AttemptEnd::GangBroken));
        assert_eq!(lab.state_of(gang), "pending", "on nobody's account");
        let last = lab.last_end(gang);
        assert!(matches!(last, AttemptEnd::GangBroken | AttemptEnd::DeviceFault { .. }), "{last:?}");
        lab.round();
        let second: Vec<(Token, HostId)> = lab.state.attempts().map(|a| (a.token, a.host)).collect();
        assert!(second.len() == 4 && second.iter().all(|(_, on)| *on != host), "{second:?}");
        // The new cards are no faster: it stays, however often that is found.
        let card = lab.place(gang);
        lab.state = snapshot::decode(&snapshot::encode(&lab.state)).expect("sound");
        lab.finds(second[0].1.0, &card, cause);
        assert_eq!(lab.stage(&card), Stage::Degraded);
        assert!(lab.state.attempts().all(|a| a.end_reason.is_none()), "{cause:?}: once");
        lab.check_copies();
    }
    let mut lab = Lab::with(&["h1 gpus=4xH100:80GiB"]);
    let (stays, narrow) = (lab.submit("gpus=2 requeue=no"), lab.submit("gpus=1"));
    lab.round();
    for job in [stays, narrow] {
        let card = lab.place(job);
        lab.finds(2, &card, Cause::Slow);
    }
    assert!(lab.state.attempts().all(|a| a.end_reason.is_none()));
}

/// A promise of slots that became unfit for the job that has it is made anew elsewhere, and the kept planner sees the
/// change as a fresh one does.
#[test]
fn a_kept_planner_sees_marks_come_and_go() {
    let mut lab = Lab::with(&["h1 gpus=2xH100:80GiB", "h2 gpus=2xH100:80GiB"]);
    let mut kept = Planner::default();
    let config = rota_core::placement::PlanConfig::default();
    for (cause, host, device) in [
        (Cause::Throttled, 2, "GPU-h1-0"),
        (Cause::JobsFailed, 3, "GPU-h2-1"),
        (Cause::Fault, 3, "GPU-h2-1"),
        (Cause::Clean, 2, "GPU-h1-0"),
        (Cause::Repaired, 3, "GPU-h2-1"),
        (Cause::Served, 2, "GPU-h1-0"),
        (Cause::Served, 3, "GPU-h2-1"),
    ] {
        lab.submit("gpus=2");
        lab.submit("gpus=1");
        lab.now_ms += TRIAL_MS;
        lab.finds(host, device, cause);
        let view = rota_core::placement::View::of(&lab.state, lab.now_ms);
        let again = kept.plan(&view, &config, lab.now_ms);
        assert_eq!(again, lab.plan(), "after {cause:?}");
        lab.round();
        let live: Vec<Token> = lab.state.attempts().map(|a| a.token).collect();
        live.into_iter().for_each(|token| lab.end(token, exit(0)));
    }
    assert_eq!((lab.stage("GPU-h1-0"), lab.stage("GPU-h2-1")), (Stage::Well, Stage::Well));
}

/// R018: a program's own failure costs the card nothing; the second card tells whose fault it is.
#[test]
fn a_programs_failure_is_the_users_and_two_cards_prove_it() {
    let mut lab = Lab::with(&["h1 gpus=1xH100:80GiB", "h2 gpus=1xH100:80GiB"]);
    let job = lab.submit("gpus=1 retries=5");
    for (time, host) in [(1, 2), (2, 3)] {
        lab.round();
        let (token, card) = (lab.token(job), lab.place(job));
        let on = lab.state.attempt(token).expect("live").host.0;
        let mut one = finding(&card, Cause::Program, "gpu_app_xid13: graphics engine exception");
        one.program = Some((token, job));
        lab.find(on, vec![one.clone(), one]);
        assert_eq!(lab.state.attempt(token).and_then(|a| a.end_reason), Some(EndReason::Program));
        lab.end(token, exit(139));
        let AttemptEnd::ProgramFault { reason } = lab.last_end(job) else {
            panic!("{:?}", lab.last_end(job))
        };
        assert!(reason.contains("gpu_app_xid13"), "{reason}");
        assert_eq!(lab.stage(&card), Stage::Well);
        let expected = if time == 1 { "pending" } else { "failed" };
        assert_eq!(lab.state_of(job), expected, "on {host}: retries are left, but two cards are enough");
        // The other host is next.
        let drained = Command::DrainHost { host: HostId(on), reason: String::new() };
        lab.system(drained);
    }
    assert_eq!(view::job(&lab.state, job).and_then(|v| v.exit_status), Some(120));
}

/// Programs of three jobs within a day make a card suspect; it comes back by itself. Contained errors of the card are
/// no fault of the program.
#[test]
fn three_jobs_that_fail_on_one_card_make_it_suspect() {
    let mut lab = Lab::with(&["h1 gpus=1xH100:80GiB"]);
    let card = "GPU-h1-0";
    for n in 1..=3 {
        let job = lab.submit("gpus=1");
        assert_eq!(lab.round(), 1);
        let token = lab.token(job);
        let mut one = finding(card, Cause::Contained, "Xid 94: contained memory error");
        one.program = Some((token, job));
        // Told twice: that is no second job.
        lab.find(2, vec![one.clone()]);
        lab.end(token, exit(1));
        lab.find(2, vec![one]);
        assert!(matches!(lab.last_end(job), AttemptEnd::DeviceFault { .. }));
        lab.cancel(job);
        assert_eq!(lab.stage(card), if n < 3 { Stage::Well } else { Stage::Suspect });
    }
    let job = lab.submit("gpus=1");
    assert_eq!(lab.round(), 0);
    assert!(lab.reason(job).contains("Xid 94"), "{}", lab.reason(job));
    lab.finds(2, card, Cause::Clean);
    lab.now_ms += TRIAL_MS;
    lab.finds(2, card, Cause::Served);
    assert_eq!((lab.stage(card), lab.round()), (Stage::Well, 1));
}

/// Node class: the host is closed and its attempts end now; a restart mends it, the card itself is on probation.
#[test]
fn a_fault_of_the_host_empties_it_until_it_restarts() {
    let mut lab = Lab::with(&["h1 gpus=2xH100:80GiB cpus=8"]);
    let (gpu, cpu) = (lab.submit("gpus=1"), lab.submit("cpus=1"));
    lab.round();
    lab.finds(2, "GPU-h1-1", Cause::NodeFault);
    assert_eq!(lab.host_state(2), HostState::Faulty);
    let asked = |lab: &Lab, job| lab.state.attempts_of(job).next().and_then(|a| a.end_reason);
    assert_eq!((asked(&lab, gpu), asked(&lab, cpu)), (Some(EndReason::Device), Some(EndReason::Drain)));
    for job in [gpu, cpu] {
        let token = lab.token(job);
        lab.end(token, AttemptEnd::Signalled { signal: 15 });
        assert_eq!((lab.state_of(job).as_str(), lab.round()), ("pending", 0));
    }
    assert!(lab.reason(cpu).contains("faulty: h1: node_fault found"), "{}", lab.reason(cpu));
    let facts = lab.facts(HostId(2));
    lab.register(HostId(2), facts, true);
    assert_eq!((lab.host_state(2), lab.stage("GPU-h1-1")), (HostState::Up, Stage::Probation));
    assert_eq!(lab.round(), 2);
    assert_eq!(lab.place(gpu), "GPU-h1-0");
}

/// G3: the host is well again when the cards that ailed it are, restart or not; one alone does not do.
#[test]
fn a_host_is_mended_when_all_its_cards_are() {
    let mut lab = Lab::with(&["h1 gpus=3xH100:80GiB"]);
    for card in ["GPU-h1-0", "GPU-h1-1"] {
        lab.finds(2, card, Cause::NodeFault);
    }
    lab.finds(2, "GPU-h1-0", Cause::Repaired);
    assert_eq!(lab.host_state(2), HostState::Faulty);
    lab.finds(2, "GPU-h1-1", Cause::Repaired);
    assert_eq!(lab.host_state(2), HostState::Up);
    assert_eq!((lab.stage("GPU-h1-0"), lab.stage("GPU-h1-1")), (Stage::Probation, Stage::Probation));
}

/// G13: of twenty hosts that tell the same fault within a minute two are taken out; the others only alert. Coming back
/// is never held up, a restart of the leader forgets nothing, and time closes the breaker.
#[test]
fn a_mass_alarm_takes_out_a_tenth() {
    let names: Vec<String> = (1..=20).map(|n| format!("h{n} gpus=1xH100:80GiB")).collect();
    let lines: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut lab = Lab::with(&lines);
    let alarm = |lab: &mut Lab, range: std::ops::Range<u64>| {
        for host in range {
            lab.now_ms += 1_000;
            lab.finds(host, &format!("GPU-h{}-0", host - 1), Cause::NodeFault);
        }
    };
    let out = |lab: &Lab| lab.state.hosts().filter(|h| h.state(lab.now_ms) == HostState::Faulty).count();
    alarm(&mut lab, 2..14);
    assert_eq!(out(&lab), 2, "twelve of twenty hosts cried");
    let breaker = view::breaker(&lab.state, lab.now_ms);
    assert_eq!((breaker.taken_out.len(), breaker.cap, breaker.alerts), (2, 2, 10));
    assert!(breaker.open_since_ms.is_some());
    let rows = view::hosts_at(&lab.state, lab.now_ms);
    let alerted = rows.iter().filter(|row| row.care.alert.is_some() && row.state == HostState::Up);
    assert_eq!(alerted.count(), 10);
    lab.state = snapshot::decode(&snapshot::encode(&lab.state)).expect("sound");
    alarm(&mut lab, 14..16);
    assert_eq!(out(&lab), 2, "the breaker is in the log");

    // An operator, and a restart, bring hosts back while it is open.
    lab.system(Command::UndrainHost { host: HostId(2) });
    let facts = lab.facts(HostId(3));
    lab.register(HostId(3), facts, true);
    assert_eq!(out(&lab), 0);
    alarm(&mut lab, 5..6);
    assert_eq!(out(&lab), 0, "that they are back opens no room for others");
    assert_eq!(lab.tend(Tending::BreakerCap { hosts: Some(3) }), Outcome::Done);
    alarm(&mut lab, 5..8);
    assert_eq!(out(&lab), 1);
    lab.now_ms += BREAKER_MS;
    assert!(view::breaker(&lab.state, lab.now_ms).taken_out.is_empty());
    alarm(&mut lab, 8..20);
    assert_eq!(out(&lab), 4);
    let refused = lab.tend(Tending::BreakerCap { hosts: Some(0) });
    assert!(matches!(refused, Outcome::Refused(error) if error.code == ErrorCode::Invalid));
    lab.check_copies();
}

/// A program that fails now and then, wherever it runs, takes no host out of service.
#[test]
fn a_job_that_fails_in_several_places_blames_none_of_them() {
    let mut lab = Lab::with(&["h1 cpus=4", "h2 cpus=4", "h3 cpus=4"]);
    for _ in 0..8 {
        let job = lab.submit("cpus=1 retries=3");
        for (on, code) in [("0@h1", 1), ("0@h2", 1), ("0@h3", 0)] {
            let until_ms = lab.state.job(job).map_or(0, |job| job.earliest_ms().max(job.rests_until_ms(0)));
            lab.now_ms = lab.now_ms.max(until_ms);
            assert_eq!(lab.begin(job, on), Ok(()));
            let token = lab.token(job);
            lab.end(token, exit(code));
        }
    }
    for row in view::hosts_at(&lab.state, lab.now_ms) {
        assert_eq!((row.care.failed_jobs, row.care.shunned), (0, false), "{}", row.name);
    }
}

/// G14: three jobs that fail on a host and run well elsewhere keep work off it; time, runs that go well and an operator
/// give it another chance, and never are more than a tenth of the hosts shunned.
#[test]
fn a_lemon_is_shunned_after_three_jobs() {
    let mut lab = Lab::with(&["h1 cpus=4", "h2 cpus=4 good=1", "h3 cpus=4 bad=1"]);
    let fails_on = |lab: &mut Lab, host: u64| {
        let job = lab.submit("cpus=1 retries=1");
        assert_eq!(lab.begin(job, &format!("0@h{}", host - 1)), Ok(()));
        let token = lab.token(job);
        lab.end(token, exit(1));
        assert_eq!(lab.begin(job, "0@h2"), Ok(()));
        let token = lab.token(job);
        lab.end(token, exit(0));
        job
    };
    // The same job over and over is one job.
    let array = lab.submit("cpus=1 array=0-5 retries=9");
    let rested = |lab: &mut Lab| {
        let until_ms = lab.state.job(array).map_or(0, |job| job.earliest_ms().max(job.rests_until_ms(0)));
        lab.now_ms = lab.now_ms.max(until_ms);
    };
    for _ in 0..5 {
        rested(&mut lab);
        assert_eq!(lab.begin(array, "0@h1"), Ok(()));
        let token = lab.token(array);
        lab.end(token, exit(1));
    }
    rested(&mut lab);
    assert_eq!(lab.begin(array, "0@h2"), Ok(()));
    let token = lab.token(array);
    lab.end(token, exit(0));
    // What is left of it is in nobody's way.
    lab.cancel(array);
    fails_on(&mut lab, 2);
    assert_eq!(lab.host_state(2), HostState::Up, "two jobs");
    fails_on(&mut lab, 2);
    assert_eq!(lab.host_state(2), HostState::Shunned);
    let row = view::hosts_at(&lab.state, lab.now_ms).into_iter().find(|row| row.host == HostId(2));
    let row = row.expect("a row");
    assert_eq!((row.care.failed_jobs, row.care.shunned), (3, true));
    assert!(row.reason.is_some_and(|why| why.contains("3 jobs failed here that ran well elsewhere")));
    // Nobody else is shunned meanwhile: of three hosts one is enough.
    for _ in 0..4 {
        fails_on(&mut lab, 4);
    }
    assert_eq!(lab.host_state(4), HostState::Up);

    let job = lab.submit("cpus=4 array=0-2");
    lab.round();
    let on: Vec<u64> = lab.state.attempts_of(job).map(|a| a.host.0).collect();
    assert_eq!(on.len(), 2);
    assert!(lab.reason(job).contains("shunned"), "{}", lab.reason(job));
    assert!(!on.contains(&2), "{on:?}");
    assert_eq!(lab.system(Command::UndrainHost { host: HostId(2) }), Outcome::Done);
    assert_eq!((lab.host_state(2), lab.round()), (HostState::Up, 1), "an operator's word");
    lab.cancel(job);
    let live: Vec<Token> = lab.state.attempts().map(|a| a.token).collect();
    live.into_iter().for_each(|token| lab.end(token, exit(0)));

    fails_on(&mut lab, 4);
    assert_eq!(lab.host_state(4), HostState::Shunned, "its turn: what it did before still counts");
    lab.now_ms += LEMON_MS;
    assert_eq!(lab.host_state(4), HostState::Up, "a day later it is tried again");
    lab.check_copies();
}

/// Runs that go well make up for jobs that fail by chance.
#[test]
fn a_host_where_most_runs_go_well_is_no_lemon() {
    let mut lab = Lab::with(&["h1 cpus=4", "h2 cpus=4"]);
    for _ in 0..6 {
        for code in [1, 0] {
            let job = lab.submit("cpus=1 retries=1");
            assert_eq!(lab.begin(job, "0@h1"), Ok(()));
            let token = lab.token(job);
            lab.end(token, exit(code));
            if code == 1 {
                assert_eq!(lab.begin(job, "0@h2"), Ok(()));
                let token = lab.token(job);
                lab.end(token, exit(0));
            }
        }
        for _ in 0..PASSES_PER_BLAME {
            let job = lab.submit("cpus=1");
            assert_eq!(lab.begin(job, "0@h1"), Ok(()));
            let token = lab.token(job);
            lab.end(token, exit(0));
        }
        assert_eq!(lab.host_state(2), HostState::Up);
    }
}

/// R053: the third host that is lost under a job holds it; planned stops never do; a release forgets.
#[test]
fn a_job_that_kills_its_hosts_is_held_after_three() {
    let mut lab = Lab::with(&["h1 cpus=4"]);
    let job = lab.submit("cpus=1 retries=10");
    let host = HostId(2);
    for planned in [true, false] {
        for time in 1..=if planned { 10 } else { 3 } {
            assert_eq!(lab.round(), 1, "time {time}, planned {planned}");
            let token = lab.token(job);
            lab.start(token);
            if planned && time % 2 == 0 {
                let report = HealthReport { findings: Vec::new(), stopping: true };
                lab.system(Command::Health { host, report });
            } else if planned {
                lab.system(Command::DrainHost { host, reason: "new fans".into() });
            }
            lab.expire(host);
            let facts = lab.facts(host);
            lab.register(host, facts, true);
            lab.system(Command::UndrainHost { host });
        }
    }
    assert_eq!((lab.round(), lab.state_of(job).as_str()), (0, "pending"));
    let shown = view::job(&lab.state, job).expect("known");
    assert_eq!((shown.host_deaths, shown.held_for_deaths), (3, true));
    assert_eq!(shown.row.place, "(held: 3 hosts lost under it)");
    let why = explain::why(&lab.state, job, lab.now_ms).expect("known");
    assert_eq!(why.verdict, "is held: 3 hosts were lost while it ran there, and it may be the reason");
    lab.check_copies();
    let change = JobChange::Release;
    assert_eq!(lab.ask(user("t"), RequestId::NONE, Command::Adjust { job, change }), Outcome::Done);
    assert_eq!((lab.round(), view::job(&lab.state, job).expect("known").host_deaths), (1, 0));
}

/// Losses hold a job only if they come thick for what it stands on: not one a day, not three under a gang of eight.
#[test]
fn losses_that_need_no_culprit_hold_nobody() {
    let day_ms = 24 * 3_600_000;
    for (ask, apart_ms, losses, held) in [
        ("cpus=1 retries=99", day_ms + 1, 10, false),
        ("cpus=1 retries=99", 1, 3, true),
        ("cpus=1 retries=99 gang=1..4", 1, 3, false),
        ("cpus=1 retries=99 gang=1..4", 1, 4, true),
    ] {
        let mut lab = Lab::with(&["h1 cpus=1"]);
        let (job, host) = (lab.submit(ask), HostId(2));
        for time in 1..=losses {
            assert_eq!(lab.round(), 1, "{ask}, time {time}");
            let token = lab.state.attempts_on(host).next().expect("it runs").token;
            lab.start(token);
            lab.now_ms += apart_ms;
            lab.expire(host);
            let facts = lab.facts(host);
            lab.register(host, facts, true);
        }
        let shown = view::job(&lab.state, job).expect("known");
        assert_eq!(shown.held_for_deaths, held, "{ask}: {losses} losses");
    }
}

/// S5: a host speaks of its own devices alone, and never in an operator's place; users have no say.
#[test]
fn nobody_speaks_for_another() {
    let mut lab = Lab::with(&["h1 gpus=1xH100:80GiB", "h2 gpus=1xH100:80GiB"]);
    lab.finds(2, "GPU-h2-0", Cause::Fault);
    lab.finds(3, "GPU-nowhere", Cause::Fault);
    lab.finds(3, "GPU-h2-0", Cause::JobsFailed);
    assert_eq!(lab.state.care().marks().count(), 0);
    lab.finds(3, "GPU-h2-0", Cause::Fault);
    lab.finds(3, "GPU-h2-0", Cause::Cleared);
    assert_eq!(lab.stage("GPU-h2-0"), Stage::Quarantined);
    let clear = Command::Tend { tending: Tending::Clear { uuid: uuid("GPU-h2-0") } };
    let report = HealthReport { findings: Vec::new(), stopping: true };
    for (actor, command) in
        [(user("t"), clear), (operator(), Command::Health { host: HostId(2), report: report.clone() })]
    {
        let refused = lab.ask(actor, RequestId::NONE, command);
        assert!(matches!(refused, Outcome::Refused(error) if error.code == ErrorCode::Forbidden));
    }
    let unknown = lab.tend(Tending::Clear { uuid: uuid("GPU-typo") });
    assert!(matches!(unknown, Outcome::Refused(error) if error.code == ErrorCode::NotFound));
    assert!(lab.state.hosts().all(|host| host.life != HostLife::Up || !host.care.stopping));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    /// I17: whatever is found in whatever order, a card moves along the table and by one finding at a time; only a
    /// trial that is over or an operator gives it back, and no program's failure takes it.
    #[test]
    fn a_card_moves_along_the_table_alone(steps in prop::collection::vec((0..Cause::ALL.len(), 0..900_u64), 1..60)) {
        let mut lab = Lab::with(&["h1 gpus=2xH100:80GiB"]);
        let card = "GPU-h1-0";
        for (cause, pause_s) in steps {
            lab.now_ms += pause_s * 1_000;
            let cause = Cause::ALL[cause];
            let before = lab.state.care().mark(&uuid(card)).cloned().unwrap_or_default();
            match cause {
                Cause::Cleared => drop(lab.tend(Tending::Clear { uuid: uuid(card) })),
                _ => lab.finds(2, card, cause),
            }
            let after = lab.stage(card);
            prop_assert_eq!(lab.stage("GPU-h1-1"), Stage::Well);
            if after != before.stage {
                let third = cause == Cause::Fault && after == Stage::Out;
                prop_assert!(before.stage.after(cause) == Some(after) || third, "{:?} {cause:?} {after}", before);
                let served = before.until_ms.is_some_and(|until_ms| lab.now_ms >= until_ms);
                prop_assert!(after != Stage::Well || cause == Cause::Cleared || served);
                prop_assert!(!matches!(cause, Cause::Program | Cause::Contained | Cause::JobsFailed | Cause::Noted));
            }
            let host = lab.state.host(HostId(2)).expect("known");
            let shown = host.device(&uuid(card)).expect("listed").health.is_healthy();
            prop_assert_eq!(shown, after.is_granted());
        }
    }
}
