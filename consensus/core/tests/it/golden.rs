//! Snapshots of every format must load for ever (fault R7): `tests/golden/snapshot_N.hex`, 64 bytes a line.
//!
//! `UPDATE_EXPECT=1` writes only the newest, and only if it is not there. A failure means that a peer could not read
//! its own disk after an upgrade: make a new format beside the old ones instead. Only while no release has written the
//! newest format may its file be removed and written anew.

use crate::lab::{Lab, exit, job_spec, user};
use rota_core::hash::Digest;
use rota_core::snapshot::{self, SNAPSHOT_FORMAT, SnapshotError};
use rota_core::state::host::Holder;
use rota_core::{State, invariant};
use rota_protocol::command::{Command, JobChange, Outcome};
use rota_protocol::health::{Cause, Finding, HealthReport, Source, Stage, Tending};
use rota_protocol::job::{AttemptEnd, AttemptState, EndReason, JobState};
use rota_protocol::plan::{Move, Part, Plan, PromiseBreak, Slot};
use rota_protocol::queue::{Amounts, Ceiling, QueueSpec};
use rota_protocol::report::AttemptFact;
use rota_protocol::reservation::{ReservationSpec, ReservedFor};
use rota_protocol::version::NEWEST;
use rota_protocol::{DeviceUuid, HostId, JobId, RequestId};
use std::fmt::Write;
use std::path::PathBuf;

/// Bytes before the body: magic 8, format 2, cluster 16, then four numbers of 8.
const HEADER_BYTES: usize = 58;

#[test]
fn the_first_format_loads() {
    let old = bytes(&read(1));
    let header = snapshot::header(&old).expect("a header");
    let state = snapshot::decode(&old).expect("the first format loads");
    assert_eq!(header.format, 1);
    let states: Vec<String> = state.jobs().map(|j| j.state.to_string()).collect();
    assert_eq!(states, ["succeeded", "failed", "cancelled", "running", "pending", "ending"]);
    assert_eq!(state.attempts().count(), 2);
    assert_eq!(state.hosts().count(), 4);
    assert_eq!(state.usage().map(|(_, usage)| usage.gpu_ms).sum::<u64>(), 12_000);
    assert_eq!(state.job(JobId(5)).map(|j| (j.tasks(), j.pending.len())), Some((1_000_000, 999_999)));
    // The chain goes on where it stood; written again it is of the newest format, and nothing is lost by that.
    assert_eq!(state.rolling_hash(), header.rolling_hash);
    let again = snapshot::encode(&state);
    assert_eq!(snapshot::header(&again).map(|h| h.format).expect("a header"), SNAPSHOT_FORMAT);
    assert_eq!(snapshot::decode(&again).expect("sound").full_hash(), state.full_hash());
}

/// What the first format could not say is as if today's rules had held from the start.
#[test]
fn the_first_format_becomes_queues_shares_and_accounts() {
    let state = snapshot::decode(&bytes(&read(1))).expect("the first format loads");
    assert_eq!(invariant::check(&state), Vec::new());
    let queues: Vec<_> = state.queues().iter().collect();
    let [queue] = queues[..] else { panic!("one tenant, one queue: {queues:?}") };
    assert_eq!(queue.spec, QueueSpec::open("t"));
    assert_eq!(queue.jobs_open, 3);
    let held = Amounts { gpu_milli: 1_000, cpus_milli: 8_000, mem_mib: 0, vram_mib: 144_384 };
    assert_eq!((queue.held, queue.users["u"].held), (held, held));
    // Past use is what the records tell: the same card-ms that the tenant was charged.
    assert_eq!((queue.used.gpu_ms, queue.used.at_ms, queue.users["u"].used), (12_000, 1_006_000, queue.used));
    assert!(state.jobs().all(|job| job.queue == queue.id && job.spec.preemptible && job.spec.requeue));
    let priorities: Vec<u16> = state.jobs().map(|job| job.priority).collect();
    assert_eq!(priorities[4], 90);
    assert_eq!(state.job(JobId(2)).and_then(|job| job.verdict), Some(JobState::Failed));
    let attempt = state.attempts_of(JobId(4)).next().expect("it runs");
    assert_eq!((attempt.tenant.as_str(), attempt.user.as_str(), attempt.queue), ("t", "u", queue.id));
    assert_eq!((attempt.gpu_milli, attempt.card_milli, attempt.vram_mib), (1_000, 1_000, 144_384));
    let used = &state.host(attempt.host).expect("known").used.devices[&attempt.devices[0]];
    assert_eq!(used.tenant, "t");
    assert_eq!(used.holders, [Holder { token: attempt.token, milli: 1_000, vram_mib: 0 }]);
    // Three runs ended by themselves: kinds of two cards, of none, and the user's own.
    assert_eq!(state.history().len(), 3);
    assert_eq!(state.job(JobId(5)).and_then(|job| job.predicted_ms), Some(1_000));
    // One plain task each, and the array as many as count at most for one job.
    assert_eq!(state.demand().counts().map(|(_, count)| count >> 16).sum::<u64>(), 5 + 1_024);
}

/// A state that was read from old bytes goes on: what ran ends, what waited starts.
#[test]
fn the_first_format_lives_on() {
    let mut lab = Lab::new();
    lab.state = snapshot::decode(&bytes(&read(1))).expect("the first format loads");
    lab.now_ms = lab.state.clock_ms() + 60_000;
    let runs = lab.token(JobId(4));
    lab.end(runs, exit(0));
    assert_eq!(lab.state_of(JobId(4)), "succeeded");
    let ending = lab.token(JobId(6));
    lab.end(ending, AttemptEnd::Signalled { signal: 15 });
    assert_eq!(lab.state_of(JobId(6)), "cancelled");
    assert!(lab.is_idle());
    let queue = lab.state.queues().named("t").expect("made").clone();
    assert_eq!((queue.held, queue.jobs_open), (Amounts::default(), 1));
    let job = JobId(5);
    let part = part(&lab, 0, 2, &[]);
    commit(&mut lab, vec![Move::Start { job, choice: 0, parts: vec![part] }]);
    let started = lab.token(job);
    lab.start(started);
    assert_eq!(lab.state_of(job), "running");
}

#[test]
fn the_newest_format_loads() {
    let text = read(SNAPSHOT_FORMAT);
    let state = snapshot::decode(&bytes(&text)).expect("the newest format loads");
    // Nothing is lost on the way: writing it again gives the same bytes.
    assert_eq!(hex(&snapshot::encode(&state)), text);
    assert_eq!(snapshot::header(&bytes(&text)).map(|h| h.format).expect("a header"), SNAPSHOT_FORMAT);
    // Whoever changes what the story leaves must see that it still leaves something of everything.
    has_something_of_everything(&state);
    has_something_of_everything(&story().state);
}

/// A piece of a snapshot is refused, whether the header still speaks of the whole or was written for the piece.
#[test]
fn a_piece_of_a_snapshot_is_no_snapshot() {
    for format in 1..=SNAPSHOT_FORMAT {
        let whole = bytes(&read(format));
        for end in 0..whole.len() {
            let refused = snapshot::decode(&whole[..end]);
            assert!(matches!(refused, Err(SnapshotError::Truncated { .. })), "{format}: {end} bytes");
            if let Some(body) = whole[..end].get(HEADER_BYTES..) {
                assert!(
                    snapshot::decode(&with_body(&whole, body)).is_err(),
                    "{format}: {end} bytes, resealed"
                );
            }
        }
        let body = &whole[HEADER_BYTES..];
        assert!(snapshot::decode(&with_body(&whole, body)).is_ok());
        let longer = [body, &[0]].concat();
        assert!(matches!(snapshot::decode(&with_body(&whole, &longer)), Err(SnapshotError::Body(_))));
    }
}

/// Formats are told apart by their number: unknown ones are named, and none is read as another.
#[test]
fn a_snapshot_of_another_format_is_refused_by_its_number() {
    let with = |format: u16, mut bytes: Vec<u8>| {
        bytes[8..10].copy_from_slice(&format.to_le_bytes());
        bytes
    };
    let newest = bytes(&read(SNAPSHOT_FORMAT));
    for format in [0, NEWEST + 1, u16::MAX] {
        let strange = with(format, newest.clone());
        assert!(matches!(snapshot::header(&strange), Err(SnapshotError::Format(found)) if found == format));
        assert!(matches!(snapshot::decode(&strange), Err(SnapshotError::Format(found)) if found == format));
    }
    assert!(snapshot::decode(&with(1, newest)).is_err());
    assert!(snapshot::decode(&with(SNAPSHOT_FORMAT, bytes(&read(1)))).is_err());
}

/// The stored hash is that of the stored bytes, in every format.
#[test]
fn a_changed_bit_is_seen() {
    for format in 1..=SNAPSHOT_FORMAT {
        let whole = bytes(&read(format));
        for at in HEADER_BYTES..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 1;
            let refused = snapshot::decode(&changed);
            assert!(matches!(refused, Err(SnapshotError::Hash { .. })), "format {format}, byte {at}");
        }
    }
}

/// Bytes that were damaged before they were sealed are refused or are another sound state; they never end the process.
#[test]
fn damage_under_a_good_seal_is_no_panic() {
    for format in 1..=SNAPSHOT_FORMAT {
        let whole = bytes(&read(format));
        for at in HEADER_BYTES..whole.len() {
            for value in [0, 0xff, whole[at] ^ 1] {
                let mut body = whole[HEADER_BYTES..].to_vec();
                body[at - HEADER_BYTES] = value;
                if let Ok(state) = snapshot::decode(&with_body(&whole, &body)) {
                    assert_eq!(invariant::check(&state), Vec::new(), "format {format}, byte {at}");
                }
            }
        }
    }
}

/// Something of everything that a state can hold, put there by moves that no planner chooses: queues, a gang, a job
/// that waits for it, shares of a card, promises, evictions, a hold, a drain with a time, a reservation.
fn story() -> Lab {
    let mut lab = Lab::with(&[
        "h1 gpus=2xA100:80GiB cpus=16 rack=a",
        "h2 gpus=2xA100:80GiB cpus=16 rack=a",
        "h3 gpus=1xH100:80GiB cpus=8 fpga=1",
    ]);
    let ceiling = Ceiling { gpu_milli: Some(8_000), ..Ceiling::default() };
    let guarantee = Amounts { gpu_milli: 2_000, ..Amounts::default() };
    lab.system(Command::SetQueue { queue: QueueSpec { ceiling, guarantee, ..QueueSpec::open("t") } });
    let time_limit_default_ms = Some(600_000);
    lab.system(Command::SetQueue {
        queue: QueueSpec { time_limit_default_ms, ..QueueSpec::open("t/night") },
    });

    let gang = lab.submit("gang=2 gpus=1 cpus=2 layout=same-rack prefer=A100 queue=t/night");
    let parts = vec![part(&lab, 0, 2, &["GPU-h1-0"]), part(&lab, 1, 3, &["GPU-h2-0"])];
    commit(&mut lab, vec![Move::Start { job: gang, choice: 0, parts }]);
    let first = lab.token(gang);
    lab.start(first);
    let child = Command::Submit { spec: job_spec(&format!("cpus=1 after=ok:{gang}")) };
    lab.ask(user("t"), RequestId(79), child);

    for index in 0..2 {
        let share = lab.submit("gpu_milli=300 vram=20GiB or=gpus~1");
        let part = part(&lab, 0, 2, &["GPU-h1-1"]);
        commit(&mut lab, vec![Move::Start { job: share, choice: 0, parts: vec![part] }]);
        if index == 0 {
            let over = lab.token(share);
            lab.start(over);
            lab.now_ms += 10_000;
            lab.end(over, exit(0));
        }
    }
    evict(&mut lab);

    let wide = lab.submit("gpus=2 model=A100 limit=60 prio=80");
    let promise = |at_ms, broken_by| {
        let devices = vec![DeviceUuid("GPU-h2-0".into()), DeviceUuid("GPU-h2-1".into())];
        let slots = vec![Slot { host: HostId(3), devices }];
        Move::Promise { job: wide, at_ms, slots, choice: 0, broken_by }
    };
    commit(&mut lab, vec![promise(2_000_000, None), promise(2_100_000, Some(PromiseBreak::Outranked))]);
    let held = lab.submit("cpus=1 begin=1500000 deadline=3000000 service=yes");
    let change = JobChange::Hold;
    lab.ask(user("t"), RequestId::NONE, Command::Adjust { job: held, change });
    lab.system(Command::Reserve {
        reservation: ReservationSpec {
            name: "maintenance-7".into(),
            hosts: vec![HostId(4)],
            start_ms: 5_000_000,
            end_ms: 6_000_000,
            kept_for: ReservedFor::Queues(vec!["t/night".into()]),
            reason: "new fans".into(),
        },
    });
    let evict_at_ms = Some(4_000_000);
    lab.system(Command::DrainWith { host: HostId(4), reason: "new fans".into(), evict_at_ms });
    marks(&mut lab);
    lab
}

/// Something is held against a card, and an operator keeps work off another.
fn marks(lab: &mut Lab) {
    let throttled = Finding {
        uuid: DeviceUuid("GPU-h3-0".into()),
        cause: Cause::Throttled,
        source: Source::Nvml,
        text: "power brake".into(),
        program: None,
        trial_ms: 600_000,
    };
    let report = HealthReport { findings: vec![throttled], stopping: true };
    lab.system(Command::Health { host: HostId(4), report });
    let uuid = DeviceUuid("FPGA-h3-0".into());
    lab.system(Command::Tend { tending: Tending::Cordon { uuid, reason: "a loud fan".into() } });
}

/// One job is put out for another, which keeps the room until it starts.
fn evict(lab: &mut Lab) {
    let low = lab.submit("gpus=1 prio=40");
    let place = part(lab, 0, 3, &["GPU-h2-1"]);
    commit(lab, vec![Move::Start { job: low, choice: 0, parts: vec![place] }]);
    let victim = lab.token(low);
    lab.report(victim, AttemptFact::Started { pid: 43 });
    let high = lab.submit("gpus=1 prio=70");
    let slots = vec![Slot { host: HostId(3), devices: vec![DeviceUuid("GPU-h2-1".into())] }];
    let (reason, victims) = (EndReason::Preempt, vec![victim]);
    commit(lab, vec![Move::Evict { job: Some(high), reason, victims, slots, choice: 0 }]);
    lab.now_ms += 3_000;
    lab.end(victim, AttemptEnd::Preempted);
}

fn has_something_of_everything(state: &State) {
    assert_eq!(state.queues().iter().map(|q| q.spec.name.as_str()).collect::<Vec<_>>(), ["t", "t/night"]);
    assert!(state.queues().iter().any(|q| q.parent.is_some() && q.held.gpu_milli == 2_000));
    assert!(state.queues().iter().any(|q| q.used.gpu_ms == 6_000 && q.users.contains_key("u")));
    assert!(state.attempts().any(|a| a.in_gang && a.port.is_some() && a.state == AttemptState::Running));
    assert!(state.attempts().any(|a| a.card_milli == 300 && a.card_vram_mib == 20 << 10));
    assert!(state.jobs().any(|j| !j.blocked.is_empty() && !j.spec.after.is_empty()));
    assert!(state.jobs().any(|j| j.held && j.spec.service && j.spec.deadline_ms.is_some()));
    assert!(state.jobs().any(|j| j.promise.as_ref().is_some_and(|p| p.evicting)));
    assert!(
        state
            .jobs()
            .any(|j| j.promise.as_ref().is_some_and(|p| p.broken_by == Some(PromiseBreak::Outranked)))
    );
    assert!(state.jobs().any(|j| j.evicted == 1 && j.evictions.len() == 1 && j.waits().count() > 1));
    assert!(state.jobs().flat_map(|j| &j.ended).any(|e| e.asked == Some(EndReason::Preempt)));
    assert_eq!(state.reservations().count(), 1);
    assert!(state.hosts().any(|h| h.evict_at_ms.is_some() && h.drain.is_some()));
    assert!(state.hosts().any(|h| !h.used.ports.is_empty()));
    assert!(state.demand().counts().count() > 1);
    assert!(!state.history().is_empty());
    assert!(!state.speeds().is_empty());
    assert!(state.care().marks().any(|(_, mark)| mark.stage == Stage::Degraded));
    assert!(state.care().marks().any(|(_, mark)| mark.cordon.is_some()));
    assert!(state.hosts().any(|h| h.care.stopping));
}

fn part(lab: &Lab, index: u32, host: u64, devices: &[&str]) -> Part {
    let host = HostId(host);
    let epoch = lab.state.host(host).expect("known").epoch;
    Part { index, host, epoch, devices: devices.iter().map(|uuid| DeviceUuid((*uuid).into())).collect() }
}

fn commit(lab: &mut Lab, moves: Vec<Move>) {
    let plan = Plan { seen_index: lab.state.applied_index(), moves };
    let outcome = lab.system(Command::CommitPlan { plan });
    assert_eq!(outcome, Outcome::Planned { refused: Vec::new() });
}

/// The header of a snapshot, its hash and length made those of another body.
fn with_body(whole: &[u8], body: &[u8]) -> Vec<u8> {
    let mut digest = Digest::new(0);
    digest.write(body);
    let mut out = whole[..HEADER_BYTES - 16].to_vec();
    out.extend(digest.finish().to_le_bytes());
    out.extend((body.len() as u64).to_le_bytes());
    out.extend(body);
    out
}

fn path(format: u16) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/snapshot_{format}.hex"))
}

fn read(format: u16) -> String {
    let path = path(format);
    if std::env::var_os("UPDATE_EXPECT").is_some() && format == SNAPSHOT_FORMAT && !path.exists() {
        std::fs::write(&path, hex(&snapshot::encode(&story().state))).expect("write");
    }
    std::fs::read_to_string(&path).expect("golden bytes")
}

fn hex(bytes: &[u8]) -> String {
    let mut out = String::new();
    for line in bytes.chunks(64) {
        for byte in line {
            write!(out, "{byte:02x}").expect("string");
        }
        out.push('\n');
    }
    out
}

fn bytes(text: &str) -> Vec<u8> {
    let digits: Vec<char> = text.chars().filter(|c| !c.is_whitespace()).collect();
    let pairs = digits.chunks(2).map(|pair| pair.iter().collect::<String>());
    pairs.map(|pair| u8::from_str_radix(&pair, 16).expect("hex")).collect()
}
