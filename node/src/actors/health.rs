//! Role: tells the state what the kernel's log and the drivers say of this host's devices. Supervisor: root, which
//! restarts it: what stands against devices is in the state, what they say now is seen at the next look.
//!
//! The decisions are `logic::health`; this actor is its pump.

use super::devices;
use crate::devices::{KMSG_DEFAULT, Signs};
use crate::io::kmsg::{self as stream, Told};
use crate::io::{clock, durable, proc};
use crate::logic::env::TOKEN_VAR;
use crate::logic::health::kmsg::{self, Bus, XidLine};
use crate::logic::health::{self, Culprit, Health, Own, Rules, Seen, teams};
use crate::meters;
use crate::node::Node;
use ractor::{Actor, ActorProcessingErr, ActorRef};
use rota_protocol::RequestId;
use rota_protocol::command::{Command, Proposal};
use rota_protocol::device::HostFacts;
use rota_protocol::health::{FINDINGS_MAX, Finding, HealthReport, Source};
use rota_protocol::ids::{BootId, DeviceUuid, Token};
use rota_protocol::job::Actor as Author;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// How long one report may take to commit before it is told again.
const REPORT_DEADLINE: Duration = Duration::from_millis(2_000);
/// Pause before findings are told again that were not committed.
const REPORT_PAUSE: Duration = Duration::from_millis(200);
/// Most Xids on their way to this actor; more are as good as lost, and the drivers are asked instead.
const XIDS_WAITING_MAX: usize = 4_096;
/// How long a device's reset may take.
const RESET_DEADLINE: Duration = Duration::from_secs(60);
/// Pause between two tries to reset one device, in ms.
const RESET_AGAIN_MS: u64 = 600_000;

/// What it is told.
pub enum Msg {
    /// A driver's Xid, with the number of its record.
    Xid(XidLine, Option<u64>),
    /// Lines of the kernel's log were lost.
    Overrun,
    /// The kernel's log can be read, or why not.
    Opened(Result<(), String>),
    /// The hardware was looked at.
    Looked(Box<(HostFacts, Signs)>),
    /// Tell the state, again.
    Tell(Vec<Finding>),
    /// A try to reset a device is over; why it failed, if it did.
    Reset(DeviceUuid, Result<(), String>),
}

/// The health actor.
pub struct HealthActor;

/// The decider, and what it is shown.
pub struct State {
    node: Arc<Node>,
    health: Health,
    facts: HostFacts,
    signs: Signs,
    /// Xids on their way.
    waiting: Arc<AtomicUsize>,
    /// The kernel's log is read: its Xids are fuller than those of the library's events.
    reads_kmsg: bool,
    place: Place,
    /// When a reset of each device was tried last.
    resets: BTreeMap<DeviceUuid, u64>,
}

impl Actor for HealthActor {
    type Msg = Msg;
    type State = State;
    type Arguments = Arc<Node>;

    async fn pre_start(&self, myself: ActorRef<Msg>, node: Arc<Node>) -> Result<State, ActorProcessingErr> {
        let settings = &node.config.devices;
        let rules = Rules { table: settings.xid_table()?, trial_ms: settings.trial_ms()? };
        let place = Place::load(&node);
        let waiting = Arc::new(AtomicUsize::new(0));
        // Simulated devices have no kernel driver; a file may stand for its log.
        let path = settings.kmsg_path.clone().or(node.config.sim_gpus.is_none().then(|| KMSG_DEFAULT.into()));
        if let Some(path) = path {
            follow(path, &place, &myself, Arc::clone(&waiting))?;
        }
        let facts = node.facts.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let facts = facts.unwrap_or_else(no_facts);
        let health = Health::new(rules);
        let (signs, resets) = (Signs::new(), BTreeMap::new());
        Ok(State { node, health, facts, signs, waiting, reads_kmsg: false, place, resets })
    }

    async fn handle(
        &self,
        myself: ActorRef<Msg>,
        message: Msg,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        super::failpoint::hit("health");
        match message {
            Msg::Xid(line, sequence) => {
                state.waiting.fetch_sub(1, Ordering::Relaxed);
                state.place.came_to(sequence);
                xid(&myself, state, &line, Source::Kmsg);
            }
            Msg::Overrun => {
                tracing::warn!("lines of the kernel's log were lost; the drivers are asked");
                metrics::counter!(meters::KMSG_OVERRUNS).increment(1);
                state.node.doors.devices.knock(devices::Msg::Advice);
            }
            Msg::Opened(opened) => {
                if let Err(why) = &opened {
                    tracing::warn!(why, "the kernel's log cannot be read; Xids come from the library alone");
                }
                state.reads_kmsg = opened.is_ok();
            }
            Msg::Looked(looked) => {
                (state.facts, state.signs) = *looked;
                look(&myself, state);
            }
            Msg::Tell(findings) => tell(&myself, &state.node, findings),
            Msg::Reset(uuid, Ok(())) => tell(&myself, &state.node, vec![state.health.was_reset(&uuid)]),
            Msg::Reset(device, Err(why)) => tracing::error!(%device, why, "a device could not be reset"),
        }
        Ok(())
    }
}

/// One Xid, wherever it was heard of.
fn xid(myself: &ActorRef<Msg>, state: &mut State, line: &XidLine, source: Source) {
    let own = own(state);
    let culprit = line.pid.map_or(Culprit::Unknown, |pid| culprit(&state.node, pid));
    let (facts, now_ms) = (&state.facts.devices, clock::wall_ms());
    let seen = Seen { facts, signs: &state.signs, own: &own, teams: &[], now_ms };
    let verdict = state.health.xid(line, source, culprit, &seen);
    metrics::counter!(meters::XIDS, "class" => verdict.class.word()).increment(1);
    if verdict.alarm {
        tracing::error!(bus = %line.bus, xid = line.xid, text = line.text, "an Xid that is not in the table");
    }
    if !verdict.findings.is_empty() {
        tracing::warn!(bus = %line.bus, xid = line.xid, class = verdict.class.word(), "an Xid");
        let mut ends = state.node.faults.lock().unwrap_or_else(PoisonError::into_inner);
        ends.note(verdict.ends, clock::boottime_ms());
    }
    tell(myself, &state.node, verdict.findings);
    // The driver may have its own advice by now.
    state.node.doors.devices.knock(devices::Msg::Advice);
}

fn look(myself: &ActorRef<Msg>, state: &mut State) {
    let own = own(state);
    let now_ms = clock::wall_ms();
    let readings = state.node.readings();
    let teams = state.node.consensus.read(|replica| teams(replica, &own, &readings));
    let seen = Seen { facts: &state.facts.devices, signs: &state.signs, own: &own, teams: &teams, now_ms };
    let looked = state.health.look(&seen);
    for finding in &looked.findings {
        tracing::warn!(device = %finding.uuid, cause = finding.cause.word(), text = finding.text, "found");
    }
    if !looked.ends.is_empty() {
        let mut ends = state.node.faults.lock().unwrap_or_else(PoisonError::into_inner);
        ends.note(looked.ends, clock::boottime_ms());
    }
    tell(myself, &state.node, looked.findings);
    for uuid in looked.to_reset {
        reset(myself, state, uuid, now_ms);
    }
    if !state.reads_kmsg {
        for line in events(&state.facts, &state.signs) {
            xid(myself, state, &line, Source::Nvml);
        }
    }
    state.place.save(&state.node);
    let breaker = state.node.consensus.read(|replica| rota_core::view::breaker(replica, now_ms));
    let open = if breaker.open_since_ms.is_some() { 1.0 } else { 0.0 };
    metrics::gauge!(meters::BREAKER_OPEN).set(open);
}

/// Xids as the library's events tell them.
fn events(facts: &HostFacts, signs: &Signs) -> Vec<XidLine> {
    let bus_of = |uuid: &DeviceUuid| {
        let device = facts.devices.iter().find(|device| device.uuid == *uuid)?;
        Bus::parse(device.bus.as_deref()?)
    };
    let told = signs.iter().filter_map(|(uuid, signs)| Some((bus_of(uuid)?, &signs.xids)));
    told.flat_map(|(bus, xids)| {
        xids.iter().map(move |xid| XidLine { bus, xid: *xid, pid: None, text: String::new() })
    })
    .collect()
}

/// What the state knows of this host's devices.
fn own(state: &State) -> BTreeMap<DeviceUuid, Own> {
    let node = &state.node;
    node.consensus.read(|replica| health::own(replica, node.host, &state.facts.devices))
}

/// Whose process this is: its environment says which attempt it belongs to, or its session does.
fn culprit(node: &Node, pid: u32) -> Culprit {
    let Some(stat) = i32::try_from(pid).ok().and_then(|pid| proc::stat(pid).ok().map(|stat| (pid, stat)))
    else {
        return Culprit::Unknown;
    };
    let (pid, stat) = stat;
    let named = proc::variable(pid, TOKEN_VAR).and_then(|text| text.parse().ok().map(Token));
    let by_session = || {
        node.consensus.read(|replica| {
            let of_session = |attempt: &&rota_core::Attempt| {
                attempt.pid.and_then(|pid| i32::try_from(pid).ok()) == Some(stat.session)
            };
            replica.attempts_on(node.host).find(of_session).map(|attempt| attempt.token)
        })
    };
    named.or_else(by_session).map_or(Culprit::Stranger, Culprit::Attempt)
}

fn tell(myself: &ActorRef<Msg>, node: &Arc<Node>, mut findings: Vec<Finding>) {
    while !findings.is_empty() {
        let rest = findings.split_off(findings.len().min(FINDINGS_MAX));
        let batch = std::mem::replace(&mut findings, rest);
        let (myself, node) = (myself.clone(), Arc::clone(node));
        tokio::spawn(async move {
            let report = HealthReport { findings: batch.clone(), stopping: false };
            let command = Command::Health { host: node.host, report };
            let proposal = Proposal { request: RequestId::NONE, actor: Author::system(), command };
            if let Err(error) = node.consensus.propose(vec![proposal], REPORT_DEADLINE).await {
                tracing::warn!(%error, "findings were not committed; they are told again");
                myself.send_after(REPORT_PAUSE, || Msg::Tell(batch));
                return;
            }
            for finding in &batch {
                metrics::counter!(meters::FINDINGS, "cause" => finding.cause.word()).increment(1);
            }
        });
    }
}

/// Resets a device that nothing holds, by the operator's command.
fn reset(myself: &ActorRef<Msg>, state: &mut State, uuid: DeviceUuid, now_ms: u64) {
    let Some(mut command) = state.node.config.devices.reset_of(&uuid) else { return };
    let lately = |at_ms: &u64| now_ms.saturating_sub(*at_ms) < RESET_AGAIN_MS;
    if state.resets.get(&uuid).is_some_and(lately) {
        return;
    }
    state.resets.insert(uuid.clone(), now_ms);
    tracing::warn!(device = %uuid, ?command, "resetting a device");
    command.stdin(std::process::Stdio::null()).stdout(std::process::Stdio::null()).kill_on_drop(true);
    let myself = myself.clone();
    tokio::spawn(async move {
        let done = match tokio::time::timeout(RESET_DEADLINE, command.status()).await {
            Ok(Ok(status)) if status.success() => Ok(()),
            Ok(Ok(status)) => Err(format!("the command ended with {status}")),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err(format!("the command took longer than {RESET_DEADLINE:?}")),
        };
        // Nobody hears it while the actor restarts: then it is tried again later.
        let _ = myself.cast(Msg::Reset(uuid, done));
    });
}

/// Reads the kernel's log from where it was left in this boot, or from now on.
fn follow(
    path: PathBuf,
    place: &Place,
    myself: &ActorRef<Msg>,
    waiting: Arc<AtomicUsize>,
) -> std::io::Result<()> {
    let (myself, after) = (myself.clone(), place.sequence);
    let mut last = None;
    stream::follow(path, after.is_some(), move |told| {
        let message = match told {
            Told::Opened(opened) => Some(Msg::Opened(opened)),
            Told::Overrun => Some(Msg::Overrun),
            Told::Line { bytes, old } => {
                let record = kmsg::read(&bytes);
                let handled = old && record.sequence.is_none_or(|n| after.is_some_and(|after| n <= after));
                let gap = record.sequence.zip(last).is_some_and(|(n, last): (u64, u64)| n > last + 1);
                last = record.sequence.or(last);
                // A gap is an overrun that nobody told of.
                if gap && !old && myself.cast(Msg::Overrun).is_err() {
                    return false;
                }
                record.xid.filter(|_| !handled).map(|xid| Msg::Xid(xid, record.sequence))
            }
        };
        match message {
            Some(Msg::Xid(..)) if waiting.load(Ordering::Relaxed) >= XIDS_WAITING_MAX => {
                std::thread::sleep(Duration::from_millis(10));
                myself.cast(Msg::Overrun).is_ok()
            }
            Some(message) => {
                if matches!(message, Msg::Xid(..)) {
                    waiting.fetch_add(1, Ordering::Relaxed);
                }
                myself.cast(message).is_ok()
            }
            None => myself.get_status() <= ractor::ActorStatus::Draining,
        }
    })
}

fn no_facts() -> HostFacts {
    HostFacts {
        cpus_milli: 0,
        mem_mib: 0,
        devices: Vec::new(),
        labels: BTreeMap::new(),
        version: String::new(),
        notes: rota_protocol::device::HostNotes::default(),
    }
}

/// The record of the kernel's log up to which Xids were heard in this boot, kept beside the node's data: old lines are
/// still there after a restart of the agent, and are no new faults.
struct Place {
    path: PathBuf,
    boot: BootId,
    sequence: Option<u64>,
    saved: Option<u64>,
}

impl Place {
    fn load(node: &Node) -> Self {
        let path = node.config.data_dir.join("kmsg-place");
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        let sequence = text.split_once(' ').and_then(|(boot, sequence)| {
            (boot.parse() == Ok(node.boot)).then(|| sequence.trim().parse().ok()).flatten()
        });
        Self { path, boot: node.boot, sequence, saved: sequence }
    }

    fn came_to(&mut self, sequence: Option<u64>) {
        self.sequence = self.sequence.max(sequence);
    }

    fn save(&mut self, node: &Node) {
        let Some(sequence) = self.sequence.filter(|_| self.sequence != self.saved) else { return };
        let text = format!("{} {sequence}\n", self.boot);
        match durable::write_atomic(&self.path, text.as_bytes(), 0o600) {
            Ok(()) => self.saved = self.sequence,
            Err(error) => {
                tracing::warn!(host = %node.host, %error, "cannot note the place in the kernel's log")
            }
        }
    }
}
