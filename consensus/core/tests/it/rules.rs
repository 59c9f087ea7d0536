//! Single rules of commands: rights, request ids, tokens, names, limits, planted defects.

use crate::lab::{Lab, exit, host_facts, job_spec, launch_failed, user};
use rota_core::{Faults, State, invariant, view};
use rota_protocol::api::QueueFilter;
use rota_protocol::cage::Used;
use rota_protocol::command::{Command, Entry, JobChange, LOG_FORMAT, Outcome, Proposal, TokenUse};
use rota_protocol::device::HostFacts;
use rota_protocol::job::{Actor, AttemptEnd, JobState, Role};
use rota_protocol::plan::{Move, Part, Plan, Refusal};
use rota_protocol::report::{AttemptFact, AttemptReport};
use rota_protocol::{ClusterId, DeviceUuid, ErrorCode, HostId, JobId, PublicError, RequestId, Token};

fn refused(outcome: Outcome) -> PublicError {
    match outcome {
        Outcome::Refused(error) => error,
        other => panic!("not refused: {other:?}"),
    }
}

fn submit(line: &str) -> Command {
    Command::Submit { spec: job_spec(line) }
}

/// Fault R9: a retry with the same request id is answered as before, and nothing happens twice.
#[test]
fn request_ids_deduplicate_for_a_day() {
    let mut lab = Lab::new();
    let first = lab.ask(user("t"), RequestId(1), submit("gpus=1"));
    assert_eq!(first, Outcome::Submitted { job: JobId(1) });
    assert_eq!(lab.ask(user("t"), RequestId(1), submit("gpus=1")), first);
    assert_eq!(lab.state.jobs().count(), 1);
    // A refusal is remembered too, even if the request would be accepted now.
    let bad = lab.ask(user("t"), RequestId(2), submit("gpu_milli=1500"));
    assert_eq!(lab.ask(user("t"), RequestId(2), submit("gpus=1")), bad);
    // Someone else with the same id learns nothing.
    let stranger = refused(lab.ask(user("other"), RequestId(1), submit("gpus=1")));
    assert_eq!(stranger.code, ErrorCode::Conflict);
    // After a day the id is free again, unless it is among the newest: a wall clock that jumps by years is no day.
    lab.now_ms += 24 * 3_600_000 - 1;
    assert_eq!(lab.ask(user("t"), RequestId(1), submit("gpus=1")), first);
    lab.now_ms += 10 * 366 * 24 * 3_600_000;
    assert_eq!(lab.ask(user("t"), RequestId(1), submit("gpus=1")), first);
    let hold = Command::Adjust { job: JobId(1), change: JobChange::Hold };
    let newer = |n: u128| Proposal { request: RequestId(1_000 + n), actor: user("t"), command: hold.clone() };
    lab.apply((0..16_384).map(newer).collect());
    assert_eq!(lab.ask(user("t"), RequestId(1), submit("gpus=1")), Outcome::Submitted { job: JobId(2) });
    lab.check_copies();
}

#[test]
fn roles_are_checked_again() {
    let mut lab = Lab::with(&["h1 gpus=1xA100:80GiB"]);
    let viewer = Actor { role: Role::Viewer, ..user("t") };
    let drain = || Command::DrainHost { host: HostId(2), reason: String::new() };
    let expire = || Command::Expire { host: HostId(2), epoch: lab_epoch() };
    for (actor, command) in [
        (viewer, submit("gpus=1")),
        (user("t"), drain()),
        (Actor { role: Role::Operator, ..user("t") }, expire()),
    ] {
        let error = refused(lab.ask(actor, RequestId::NONE, command));
        assert_eq!(error.code, ErrorCode::Forbidden);
    }
}

fn lab_epoch() -> rota_protocol::LeaseEpoch {
    rota_protocol::LeaseEpoch(1)
}

/// A foreign job and an unknown one are told apart by nobody but operators (S-rows: exact tenant match).
#[test]
fn a_foreign_job_is_an_unknown_job() {
    let mut lab = Lab::new();
    let job = lab.submit("gpus=1");
    let cancel = |job| Command::Cancel { job, index: None };
    let foreign = refused(lab.ask(user("t2"), RequestId::NONE, cancel(job)));
    let unknown = refused(lab.ask(user("t2"), RequestId::NONE, cancel(JobId(2))));
    assert_eq!(foreign.code, unknown.code);
    assert_eq!(foreign.message.replace('1', "2"), unknown.message);
    let operator = Actor { role: Role::Operator, ..user("ops") };
    let outcome = lab.ask(operator, RequestId::NONE, cancel(job));
    assert_eq!(outcome, Outcome::Cancelling { live: 0 });
    let sees = |tenant| {
        view::queue(&lab.state, &QueueFilter { all: true, ..QueueFilter::default() }, &user(tenant)).0
    };
    assert_eq!(sees("t").len(), 1);
    assert_eq!(sees("t2").len(), 0);
}

#[test]
fn a_queue_is_paged() {
    let mut lab = Lab::new();
    for _ in 0..5 {
        lab.submit("gpus=1");
    }
    let page = |after| {
        let filter = QueueFilter { after, limit: Some(2), ..QueueFilter::default() };
        let (rows, next) = view::queue(&lab.state, &filter, &user("t"));
        (rows.iter().map(|row| row.job.0).collect::<Vec<_>>(), next)
    };
    assert_eq!(page(None), (vec![1, 2], Some(JobId(2))));
    assert_eq!(page(Some(JobId(2))), (vec![3, 4], Some(JobId(4))));
    assert_eq!(page(Some(JobId(4))), (vec![5], None));
}

#[test]
fn a_join_token_admits_one_host_once() {
    let mut lab = Lab::new();
    let token = [9; 32];
    let usage = TokenUse::Join { host_name: Some("gpu-1".into()) };
    let expires_at_ms = lab.now_ms + 1_000;
    lab.system(Command::MintToken { token, usage: usage.clone(), expires_at_ms });
    let admit = |name: &str| Command::AdmitHost { token, host_name: name.into(), addr: "10.0.0.2:1".into() };
    assert_eq!(refused(lab.system(admit("gpu-2"))).code, ErrorCode::Forbidden);
    assert_eq!(lab.system(admit("gpu-1")), Outcome::HostAdmitted { host: HostId(2) });
    assert_eq!(refused(lab.system(admit("gpu-1"))).code, ErrorCode::Unauthenticated);
    // An expired one admits nobody.
    lab.system(Command::MintToken { token, usage, expires_at_ms });
    lab.now_ms += 1_000;
    assert_eq!(refused(lab.system(admit("gpu-1"))).code, ErrorCode::Unauthenticated);
}

#[test]
fn a_user_token_stands_for_its_user_until_it_expires() {
    let mut lab = Lab::new();
    let (token, actor) = ([5; 32], user("t"));
    let expires_at_ms = lab.now_ms + 10;
    let usage = TokenUse::User { actor: actor.clone() };
    lab.system(Command::MintToken { token, usage, expires_at_ms });
    assert_eq!(lab.state.user_token(&token, lab.now_ms), Some(&actor));
    assert_eq!(lab.state.user_token(&token, expires_at_ms), None);
    assert_eq!(lab.state.user_token(&[6; 32], lab.now_ms), None);
}

/// R082: two hosts with one name are told apart; a name in use is not given away.
#[test]
fn a_name_in_use_is_refused() {
    let mut lab = Lab::with(&["h1 gpus=1xA100:80GiB"]);
    let token = [77; 32];
    let usage = TokenUse::Join { host_name: None };
    lab.system(Command::MintToken { token, usage, expires_at_ms: u64::MAX });
    let admit = || Command::AdmitHost { token, host_name: "h1".into(), addr: "a:1".into() };
    assert_eq!(refused(lab.system(admit())).code, ErrorCode::Conflict);
    lab.expire(HostId(2));
    assert_eq!(lab.system(admit()), Outcome::HostAdmitted { host: HostId(3) });
    assert_eq!(lab.state.host_by_name_or_id("h1").map(|h| h.id), Some(HostId(3)));
    assert_eq!(lab.state.host_by_name_or_id("2").map(|h| h.id), Some(HostId(2)));
}

/// Sums over hosts stay far from overflow: a limit that is none, or an error code, is no memory.
#[test]
fn memory_that_no_host_has_is_refused() {
    let mut lab = Lab::with(&["h1 cpus=4"]);
    let host = HostId(2);
    let facts = lab.facts(host);
    for (mem_mib, taken) in [(1 << 30, true), ((1 << 30) + 1, false), (u64::MAX, false)] {
        let outcome = lab.register(host, HostFacts { mem_mib, ..facts.clone() }, false);
        if taken {
            assert!(matches!(outcome, Outcome::HostRegistered { .. }), "{outcome:?}");
            continue;
        }
        let said = refused(outcome).to_string();
        assert!(said.contains(&format!("mem: {mem_mib} MiB is above 1073741824")), "{said}");
        assert!(said.contains("512GiB"), "{said}");
        assert_eq!(lab.facts(host).mem_mib, 1 << 30, "what was refused changes nothing");
    }
}

/// One UUID is offered by one host only: a copied identity or a moved card never leads to two grants.
#[test]
fn a_card_registered_twice_is_offered_once() {
    let mut lab = Lab::with(&["h1 gpus=1xA100:80GiB", "h2 gpus=1xH100:80GiB"]);
    let stolen = host_facts("h1 gpus=1xA100:80GiB").1;
    lab.register(HostId(3), stolen.clone(), false);
    let row = view::devices(&lab.state).into_iter().find(|row| row.host == HostId(3)).expect("listed");
    assert_eq!(row.facts.health.reason(), Some("also registered by host 2"));
    for _ in 0..2 {
        lab.submit("gpus=1");
    }
    assert_eq!(lab.round(), 1);
    // Its first host is gone: the card may be offered by the second from its next registration on.
    lab.expire(HostId(2));
    assert_eq!(lab.round(), 0);
    lab.register(HostId(3), stolen, false);
    assert_eq!(lab.round(), 1);
    lab.check_copies();
}

#[test]
fn a_held_card_that_vanished_is_not_offered_elsewhere() {
    let mut lab = Lab::with(&["h1 gpus=1xA100:80GiB", "h2 cpus=4"]);
    let job = lab.submit("gpus=1");
    assert_eq!(lab.round(), 1);
    let card = host_facts("h1 gpus=1xA100:80GiB").1;
    lab.register(HostId(2), host_facts("h1 cpus=4").1, false);
    lab.register(HostId(3), card.clone(), false);
    lab.submit("gpus=1");
    assert_eq!(lab.round(), 0);
    let token = lab.token(job);
    lab.end(token, exit(0));
    lab.register(HostId(3), card, false);
    assert_eq!(lab.round(), 1);
    lab.check_copies();
}

#[test]
fn a_host_reports_only_its_own_attempts() {
    let mut lab = Lab::with(&["h1 gpus=1xA100:80GiB", "h2 gpus=1xH100:80GiB"]);
    let job = lab.submit("model=A100 gpus=1");
    lab.round();
    let token = lab.token(job);
    let fact = AttemptFact::Ended { end: exit(0), ran_ms: 1 };
    let reports = vec![AttemptReport { token, fact }];
    let before = lab.state.full_hash();
    assert_eq!(lab.system(Command::Report { host: HostId(3), reports }), Outcome::Done);
    assert_eq!(lab.state_of(job), "running");
    assert_ne!(lab.state.full_hash(), before, "the index moved at least");
    let nobody = Command::Report { host: HostId(99), reports: Vec::new() };
    assert_eq!(refused(lab.system(nobody)).code, ErrorCode::NotFound);
}

/// Fault C1: a clock that jumps back does not take log time with it, and nothing is billed a negative time.
#[test]
fn log_time_never_moves_back() {
    let mut lab = Lab::with(&["h1 gpus=2xA100:80GiB cpus=8"]);
    let job = lab.submit("gpus=2 cpus=4");
    lab.round();
    let clock = lab.state.clock_ms();
    lab.now_ms = 5;
    let token = lab.token(job);
    lab.end(token, exit(0));
    assert_eq!(lab.state.clock_ms(), clock);
    assert_eq!(lab.state.job(job).map(|j| j.gpu_ms), Some(0));
}

/// I14: what a job held is billed from grant to release, in log time.
#[test]
fn held_cards_are_billed() {
    let mut lab = Lab::with(&["h1 gpus=2xA100:80GiB cpus=8"]);
    let job = lab.submit("gpus=2 cpus=4");
    lab.round();
    lab.now_ms += 7_000;
    let token = lab.token(job);
    lab.end(token, exit(0));
    let usage: Vec<_> = lab.state.usage().collect();
    assert_eq!(usage.len(), 1);
    assert_eq!((usage[0].0, usage[0].1.gpu_ms, usage[0].1.cpu_ms), ("t", 14_000, 28_000));
}

#[test]
fn commands_before_and_after_creation() {
    let mut state = State::new();
    let mut at = 0;
    let mut ask = |state: &mut State, command| {
        at += 1;
        let proposal = Proposal { request: RequestId::NONE, actor: Actor::system(), command };
        let entry = Entry { format: LOG_FORMAT, at_ms: 1, proposals: vec![proposal] };
        state.apply(at, &entry).outcomes.remove(0)
    };
    let create = || Command::CreateCluster {
        cluster: ClusterId(1),
        name: "c".into(),
        host_name: "h".into(),
        addr: "a:1".into(),
    };
    assert_eq!(refused(ask(&mut state, submit("gpus=1"))).code, ErrorCode::Conflict);
    assert_eq!(ask(&mut state, create()), Outcome::HostAdmitted { host: HostId(1) });
    assert_eq!(refused(ask(&mut state, create())).code, ErrorCode::Conflict);
}

/// An entry that was applied, or of a newer format, changes nothing.
#[test]
fn an_old_index_and_a_new_format_change_nothing() {
    let mut lab = Lab::new();
    let (index, entry) = lab.log[0].clone();
    let before = (lab.state.full_hash(), lab.state.rolling_hash());
    assert_eq!(lab.state.apply(index, &entry).outcomes.len(), 1);
    let newer = Entry { format: rota_protocol::version::NEWEST + 1, ..entry };
    let applied = lab.state.apply(index + 1, &newer);
    assert!(matches!(&applied.outcomes[..], [Outcome::Refused(e)] if e.code == ErrorCode::Version));
    assert_eq!(before, (lab.state.full_hash(), lab.state.rolling_hash()));
}

/// Each refusal names the field, the value and one that would do (R001, R005).
#[test]
fn specs_are_refused_by_field() {
    for (line, field, word) in [
        ("gpu_milli=1500", "ask.gpus", "1.5"),
        ("gpus=129", "ask.gpus", "129"),
        ("vram=20GiB", "ask.vram", "20480"),
        ("model=H100", "ask.model", "H100"),
        ("gpus=1 npu=1", "ask.devices", "npu"),
        ("gpus=1 fpga=0", "ask.devices", "0 fpga"),
        ("prio=101", "priority", "101"),
        ("retries=1001", "retries", "1001"),
        ("array=9-0", "array", "9-0"),
        ("array=0-9:0", "array", "step"),
        ("array=0-10000000", "array", "10000001"),
    ] {
        let error = rota_core::spec::validate(&job_spec(line)).expect_err(line);
        assert_eq!(error.field.as_deref(), Some(field), "{line}");
        assert!(error.message.contains(word), "{line}: {error}");
        assert!(error.example.is_some(), "{line}");
    }
    let mut spec = job_spec("");
    spec.argv = Vec::new();
    assert!(rota_core::spec::validate(&spec).is_err());
    spec = job_spec("");
    spec.workdir = b"relative".to_vec();
    assert!(rota_core::spec::validate(&spec).is_err());
    spec = job_spec("");
    spec.env = (b'A'..=b'K').map(|name| (vec![name], vec![b'x'; 128 << 10])).collect();
    assert!(rota_core::spec::validate(&spec).is_err());
}

/// A task that only ever meets failing hosts fails after a bounded number of tries, on the hosts' account.
#[test]
fn host_faults_are_bounded() {
    let mut lab = Lab::with(&["h1 gpus=1xA100:80GiB"]);
    let job = lab.submit("gpus=1 retries=3");
    let mut tries = 0;
    while lab.round() > 0 {
        tries += 1;
        let token = lab.token(job);
        lab.end(token, AttemptEnd::Fenced);
    }
    assert_eq!(tries, 20);
    assert_eq!(lab.state_of(job), "host lost");
    assert_eq!(view::job(&lab.state, job).and_then(|v| v.exit_status), Some(125));
}

/// Jobs that can launch nowhere do not take the hosts out of service one after the other: only the first host that
/// each of them meets is blamed.
#[test]
fn poisoned_jobs_do_not_suspend_the_cluster() {
    let mut lab = Lab::with(&["h1 cpus=12", "h2 cpus=12", "h3 cpus=12"]);
    for _ in 0..3 {
        lab.submit("cpus=4");
    }
    let mut failures = 0;
    for _ in 0..3 {
        lab.round();
        let live: Vec<Token> = lab.state.attempts().map(|a| a.token).collect();
        failures += live.len();
        for token in live {
            lab.end(token, launch_failed());
        }
        lab.now_ms += 1_000;
    }
    assert_eq!(failures, 9, "each job met each host");
    let suspended = |h: &&rota_core::Host| h.suspension(lab.now_ms).is_some();
    assert_eq!(lab.state.hosts().filter(suspended).count(), 1);
}

/// A plan made before the host rebooted, and an expiry of a lease that was renewed by then, are void.
#[test]
fn an_old_epoch_is_refused() {
    let mut lab = Lab::with(&["h1 gpus=1xA100:80GiB"]);
    let (host, job) = (HostId(2), lab.submit("gpus=1"));
    let (plan, epoch) = (lab.plan(), lab.state.host(host).expect("host").epoch);
    let facts = lab.facts(host);
    lab.register(host, facts, true);
    assert_eq!(plan.moves.len(), 1);
    let outcome = lab.system(Command::CommitPlan { plan });
    let refused_moves = vec![(0, Refusal::HostGone)];
    assert_eq!(outcome, Outcome::Planned { refused: refused_moves });
    assert_eq!(lab.round(), 1);
    let late = refused(lab.system(Command::Expire { host, epoch }));
    assert_eq!(late.code, ErrorCode::Conflict);
    assert_eq!(lab.state_of(job), "running");
}

/// Only healthy devices are granted, of whatever kind.
#[test]
fn a_dirty_device_of_any_kind_is_not_granted() {
    for (line, ask) in
        [("h1 gpus=1xA100:80GiB dirty=GPU-h1-0", "gpus=1"), ("h1 fpga=1 dirty=FPGA-h1-0", "fpga=1")]
    {
        let mut lab = Lab::with(&[line]);
        lab.submit(ask);
        assert_eq!(lab.round(), 0, "{line}");
        let facts = host_facts(line.split(" dirty").next().expect("first")).1;
        lab.register(HostId(2), facts, false);
        assert_eq!(lab.round(), 1, "{line}");
    }
}

/// What a host counted of an attempt stands beside its end.
#[test]
fn what_was_counted_of_an_attempt_is_kept_beside_its_end() {
    let mut lab = Lab::with(&["h1 cpus=4"]);
    let job = lab.submit("cpus=1 retries=1");
    let used = |peak_mib| Used { peak_mib, limit_mib: 256, oom_kills: 1 };
    for round in [1, 2] {
        assert_eq!(lab.round(), 1, "out of memory counts against the retries of its user");
        let token = lab.state.attempts().next().expect("live").token;
        let end = AttemptEnd::OutOfMemory { limit_mib: 256, peak_mib: 255 };
        lab.report(token, AttemptFact::EndedWith { end, ran_ms: 7, used: used(round) });
    }
    let view = view::job(&lab.state, job).expect("job");
    let kept: Vec<Used> = view.attempts.iter().map(|attempt| attempt.used).collect();
    assert_eq!((kept, view.exit_status), (vec![used(2), used(1)], Some(137)));
    assert_eq!(lab.round(), 0);
}

/// Of a job's ended attempts a fixed number is kept, and failures longest: they are what people ask for.
#[test]
fn ended_attempts_are_bounded_and_failures_stay() {
    let mut lab = Lab::with(&["h1 cpus=4"]);
    let job = lab.submit("cpus=1 array=0-99");
    let mut failed = Vec::new();
    while lab.round() > 0 {
        let live: Vec<(Token, u32)> = lab.state.attempts().map(|a| (a.token, a.task.index)).collect();
        for (token, index) in live {
            let bad = index % 10 == 0;
            lab.end(token, exit(u8::from(bad)));
            if bad {
                failed.push(index);
            }
        }
    }
    let view = view::job(&lab.state, job).expect("job");
    assert_eq!((view.attempts.len(), view.attempts_forgotten), (64, 36));
    let mut kept: Vec<u32> =
        view.attempts.iter().filter(|a| a.end == Some(exit(1))).map(|a| a.task.index).collect();
    kept.sort_unstable();
    assert_eq!(kept, failed);
    assert_eq!(view.row.tasks.total(), 100);
    assert_eq!((lab.state_of(job).as_str(), view.exit_status), ("failed", Some(1)));
}

/// Terminal jobs are kept up to a number; the oldest go first, and nothing that is open ever goes.
#[test]
fn the_oldest_terminal_jobs_go_first() {
    let mut lab = Lab::new();
    let open = lab.submit("cpus=1");
    let actor = || user("t");
    let mut apply = |proposals: Vec<Command>| {
        let proposals = proposals.into_iter();
        let proposals =
            proposals.map(|command| Proposal { request: RequestId::NONE, actor: actor(), command });
        let entry = Entry { format: LOG_FORMAT, at_ms: lab.now_ms, proposals: proposals.collect() };
        lab.state.apply(lab.state.applied_index() + 1, &entry);
    };
    for first in (2..100_012).step_by(1_000) {
        let jobs = first..(first + 1_000).min(100_012);
        apply(jobs.clone().map(|_| submit("cpus=1")).collect());
        apply(jobs.map(|n| Command::Cancel { job: JobId(n), index: None }).collect());
    }
    assert_eq!(lab.state.jobs().count(), 100_001);
    let kept: Vec<bool> = [open, JobId(11), JobId(12)].map(|id| lab.state.job(id).is_some()).into();
    assert_eq!(kept, [true, false, true]);
    lab.check();
}

#[test]
fn planted_defects_show() {
    let faults = Faults { skip_dedup: true, ..Faults::default() };
    let mut lab = Lab::new();
    lab.state = lab.state.clone().with_faults(faults);
    let first = lab.ask(user("t"), RequestId(1), submit("gpus=1"));
    assert_ne!(lab.ask(user("t"), RequestId(1), submit("gpus=1")), first);

    let faults = Faults { free_on_cancel: true, ..Faults::default() };
    let mut lab = Lab::with(&["h1 gpus=1xA100:80GiB"]);
    lab.state = lab.state.clone().with_faults(faults);
    let job = lab.submit("gpus=1");
    lab.round();
    let entry = Entry {
        format: LOG_FORMAT,
        at_ms: lab.now_ms,
        proposals: vec![Proposal {
            request: RequestId::NONE,
            actor: user("t"),
            command: Command::Cancel { job, index: None },
        }],
    };
    lab.state.apply(lab.state.applied_index() + 1, &entry);
    assert!(!invariant::check(&lab.state).is_empty());
}

/// Seeds 12 and 38 of the simulator: the last part of a broken gang ended after the cancel, and the gang waited again.
#[test]
fn a_cancel_is_the_last_word_on_a_gang_that_is_ending() {
    let mut lab = Lab::with(&["h1 gpus=2xA100:80GiB"]);
    let job = lab.submit("gpus=1 gang=2");
    let host = lab.state.hosts().find(|host| host.name == "h1").unwrap();
    let (host, epoch) = (host.id, host.epoch);
    let devices = |index| vec![DeviceUuid(format!("GPU-h1-{index}"))];
    let parts = (0..2).map(|index| Part { index, host, epoch, devices: devices(index) }).collect();
    let moves = vec![Move::Start { job, choice: 0, parts }];
    let plan = Plan { seen_index: lab.state.applied_index(), moves };
    assert_eq!(lab.system(Command::CommitPlan { plan }), Outcome::Planned { refused: vec![] });
    let tokens: Vec<Token> = lab.state.attempts_of(job).map(|attempt| attempt.token).collect();
    lab.end(tokens[0], launch_failed());
    assert!(lab.state.job(job).is_some_and(|job| job.gang_ending));
    lab.cancel(job);
    lab.end(tokens[1], AttemptEnd::GangBroken);
    assert_eq!(lab.state.job(job).map(|job| job.state), Some(JobState::Cancelled));
    assert!(lab.is_idle());
    lab.check();
}
