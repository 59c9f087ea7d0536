//! A small world for tests: a state under a virtual clock, and a language of one line for hosts and jobs.
//!
//! `h1 gpus=4xH100:80GiB cpus=32 mem=256GiB fpga=1 rack=a1` is a host: four cards `GPU-h1-0`..`3`, labels at the end;
//! `mig=7x1g.10gb:10GiB` are slices `MIG-h1-0`..; `order=reversed` and `dirty=GPU-h1-2` change how the cards named before are listed.
//! `gpus=2 model=H100 vram=40GiB cpus=4 mem=8GiB fpga=1 rack=a1 array=0-9%2 prio=60 retries=1` is a job.

use rota_core::placement::{PlanConfig, View, plan};
use rota_core::{Applied, State, invariant, snapshot};
use rota_protocol::command::{Command, Entry, LOG_FORMAT, Outcome, Proposal, TokenUse};
use rota_protocol::device::{DeviceFacts, DeviceHealth, DeviceKind, HostFacts, HostRegistration};
use rota_protocol::job::{Actor, ArraySpec, AttemptEnd, JobSpec, Role};
use rota_protocol::plan::Plan;
use rota_protocol::report::{AttemptFact, AttemptReport};
use rota_protocol::work::{Dependency, GangSpec, Layout, Relation};
use rota_protocol::{BootId, ClusterId, DeviceUuid, HostId, JobId, RequestId, TaskId, Token};
use std::collections::BTreeMap;

/// A state, its clock and everything that was applied.
pub(crate) struct Lab {
    pub(crate) state: State,
    pub(crate) now_ms: u64,
    pub(crate) log: Vec<(u64, Entry)>,
    boots: u128,
    tokens: u8,
}

impl Lab {
    /// A cluster without hosts; its clock stands at 1,000,000 ms.
    pub(crate) fn new() -> Self {
        let mut lab = Self { state: State::new(), now_ms: 1_000_000, log: Vec::new(), boots: 0, tokens: 0 };
        lab.system(Command::CreateCluster {
            cluster: ClusterId(7),
            name: "lab".into(),
            host_name: "founder".into(),
            addr: "10.0.0.1:1".into(),
        });
        // Host 1 exists in every cluster; here it never registers, so that scripts own all hosts that count.
        lab
    }

    /// A cluster with these hosts.
    pub(crate) fn with(hosts: &[&str]) -> Self {
        let mut lab = Self::new();
        for line in hosts {
            lab.host(line);
        }
        lab
    }

    /// Applies one entry; checks every law afterwards.
    pub(crate) fn apply(&mut self, proposals: Vec<Proposal>) -> Applied {
        let index = self.state.applied_index() + 1;
        let entry = Entry { format: LOG_FORMAT, at_ms: self.now_ms, proposals };
        let applied = self.state.apply(index, &entry);
        assert_eq!(applied.outcomes.len(), entry.proposals.len());
        self.log.push((index, entry));
        self.check();
        applied
    }

    pub(crate) fn check(&self) {
        assert_eq!(invariant::check(&self.state), Vec::new(), "after {:?}", self.log.last());
    }

    /// One command by an actor under a request id.
    pub(crate) fn ask(&mut self, actor: Actor, request: RequestId, command: Command) -> Outcome {
        let proposal = Proposal { request, actor, command };
        self.apply(vec![proposal]).outcomes.remove(0)
    }

    pub(crate) fn system(&mut self, command: Command) -> Outcome {
        self.ask(Actor::system(), RequestId::NONE, command)
    }

    /// Admits and registers a host; gives its number.
    pub(crate) fn host(&mut self, line: &str) -> HostId {
        let (name, facts) = host_facts(line);
        let id = self.admit(&name);
        let outcome = self.register(id, facts, true);
        assert!(matches!(outcome, Outcome::HostRegistered { .. }), "{outcome:?}");
        id
    }

    pub(crate) fn admit(&mut self, name: &str) -> HostId {
        self.tokens += 1;
        let token = [self.tokens; 32];
        let usage = TokenUse::Join { host_name: None };
        let expires_at_ms = u64::MAX;
        self.system(Command::MintToken { token, usage, expires_at_ms });
        let outcome =
            self.system(Command::AdmitHost { token, host_name: name.into(), addr: "10.0.0.9:1".into() });
        match outcome {
            Outcome::HostAdmitted { host } => host,
            other => panic!("{other:?}"),
        }
    }

    /// Registers facts, after a reboot or with the boot it has.
    pub(crate) fn register(&mut self, host: HostId, facts: HostFacts, reboot: bool) -> Outcome {
        self.boots += 1;
        let boot =
            if reboot { BootId(self.boots) } else { self.state.host(host).map_or(BootId(0), |h| h.boot) };
        let registration = HostRegistration { boot, addr: "10.0.0.9:1".into(), facts };
        self.system(Command::RegisterHost { host, registration })
    }

    pub(crate) fn facts(&self, host: HostId) -> HostFacts {
        (*self.state.host(host).expect("known").facts).clone()
    }

    /// Submits a job of tenant `t`, user `u`.
    pub(crate) fn submit(&mut self, line: &str) -> JobId {
        let spec = job_spec(line);
        match self.ask(user("t"), RequestId::NONE, Command::Submit { spec }) {
            Outcome::Submitted { job } => job,
            other => panic!("{line}: {other:?}"),
        }
    }

    pub(crate) fn plan(&self) -> Plan {
        plan(&View::of(&self.state, self.now_ms), &PlanConfig::default(), self.now_ms)
    }

    /// Plans and commits; nothing may be refused. Gives the number of moves.
    pub(crate) fn round(&mut self) -> usize {
        let plan = self.plan();
        let moves = plan.moves.len();
        if moves > 0 {
            let outcome = self.system(Command::CommitPlan { plan });
            assert_eq!(outcome, Outcome::Planned { refused: Vec::new() });
        }
        moves
    }

    pub(crate) fn cancel(&mut self, job: JobId) -> Outcome {
        self.ask(user("t"), RequestId::NONE, Command::Cancel { job, index: None })
    }

    /// The live attempt of a plain job.
    pub(crate) fn token(&self, job: JobId) -> Token {
        self.state.attempts_of(job).next().expect("live").token
    }

    pub(crate) fn start(&mut self, token: Token) {
        self.report(token, AttemptFact::Started { pid: 42 });
    }

    pub(crate) fn end(&mut self, token: Token, end: AttemptEnd) {
        self.report(token, AttemptFact::Ended { end, ran_ms: 1_000 });
    }

    pub(crate) fn report(&mut self, token: Token, fact: AttemptFact) {
        let host = self.state.attempt(token).expect("live").host;
        let reports = vec![AttemptReport { token, fact }];
        assert_eq!(self.system(Command::Report { host, reports }), Outcome::Done);
    }

    pub(crate) fn expire(&mut self, host: HostId) -> Outcome {
        let epoch = self.state.host(host).expect("known").epoch;
        self.system(Command::Expire { host, epoch })
    }

    pub(crate) fn state_of(&self, job: JobId) -> String {
        self.state.job(job).expect("known").state.to_string()
    }

    /// Nothing is granted anywhere.
    pub(crate) fn is_idle(&self) -> bool {
        self.state.hosts().all(|h| h.used == rota_core::state::host::Used::default())
    }

    /// A snapshot gives the same state, and replaying the log too.
    pub(crate) fn check_copies(&self) {
        let copy = snapshot::decode(&snapshot::encode(&self.state)).expect("sound snapshot");
        let mut replay = State::new();
        for (index, entry) in &self.log {
            replay.apply(*index, entry);
        }
        for other in [&copy, &replay] {
            assert_eq!(other.rolling_hash(), self.state.rolling_hash());
            assert_eq!(other.full_hash(), self.state.full_hash());
        }
    }
}

/// A submitter of a tenant.
pub(crate) fn user(tenant: &str) -> Actor {
    Actor { tenant: tenant.into(), user: "u".into(), role: Role::Submitter }
}

pub(crate) fn exit(code: u8) -> AttemptEnd {
    AttemptEnd::Exited { code }
}

pub(crate) fn launch_failed() -> AttemptEnd {
    AttemptEnd::LaunchFailed { reason: "read-only file system".into() }
}

pub(crate) fn task(job: JobId, index: u32) -> TaskId {
    TaskId { job, index }
}

/// `name key=value ..` as name and facts.
pub(crate) fn host_facts(line: &str) -> (String, HostFacts) {
    let mut words = line.split_whitespace();
    let name = words.next().expect("a name").to_owned();
    let mut facts = HostFacts {
        cpus_milli: 32_000,
        mem_mib: 256 << 10,
        devices: Vec::new(),
        labels: BTreeMap::new(),
        version: "1".into(),
        notes: Default::default(),
    };
    let mut gpus = 0;
    for (key, value) in words.map(pair) {
        match key {
            "cpus" => facts.cpus_milli = number(value) as u32 * 1_000,
            "mem" => facts.mem_mib = mib(value),
            "gpus" => {
                for group in value.split('+') {
                    let (count, card) = group.split_once('x').expect("4xH100:80GiB");
                    let (model, vram) = card.split_once(':').expect("4xH100:80GiB");
                    for _ in 0..number(count) {
                        facts.devices.push(gpu(&name, gpus, model, mib(vram)));
                        gpus += 1;
                    }
                }
            }
            "fpga" => {
                for at in 0..number(value) {
                    let card = gpu(&name, at as u32, "U50", 0);
                    facts.devices.push(DeviceFacts {
                        uuid: DeviceUuid(format!("FPGA-{name}-{at}")),
                        kind: DeviceKind::Fpga,
                        ..card
                    });
                }
            }
            "mig" => {
                // `7x1g.10gb:10GiB`, several groups apart by `+`.
                let mut at = 0;
                for group in value.split('+') {
                    let (count, slice) = group.split_once('x').expect("7x1g.10gb:10GiB");
                    let (model, vram) = slice.split_once(':').expect("7x1g.10gb:10GiB");
                    for _ in 0..number(count) {
                        let card = gpu(&name, at, model, mib(vram));
                        let uuid = DeviceUuid(format!("MIG-{name}-{at}"));
                        facts.devices.push(DeviceFacts { uuid, kind: DeviceKind::Mig, ..card });
                        at += 1;
                    }
                }
            }
            "unified" => {
                // The cards so far have the host's memory.
                assert_eq!(value, "yes");
                let pool = facts.mem_mib;
                for device in facts.devices.iter_mut().filter(|d| d.kind == DeviceKind::Gpu) {
                    device.detail.unified = true;
                    device.vram_mib = Some(pool);
                }
            }
            "order" => {
                // Another order of the driver's list: names stay.
                assert_eq!(value, "reversed");
                let count = facts.devices.len() as u32;
                for device in &mut facts.devices {
                    device.index = device.index.map(|i| count - 1 - i);
                }
                facts.devices.reverse();
            }
            "dirty" => {
                let named = facts.devices.iter_mut().find(|d| d.uuid.0 == value);
                named.expect("listed before").health =
                    DeviceHealth::Dirty { reason: "a process is left on it".into() };
            }
            label => {
                facts.labels.insert(label.into(), value.into());
            }
        }
    }
    (name, facts)
}

fn gpu(host: &str, index: u32, model: &str, vram_mib: u64) -> DeviceFacts {
    DeviceFacts {
        uuid: DeviceUuid(format!("GPU-{host}-{index}")),
        kind: DeviceKind::Gpu,
        model: model.into(),
        vram_mib: Some(vram_mib),
        bus: Some(format!("0000:{index:02x}:00.0")),
        index: Some(index),
        numa: Some(index / 4),
        compute_cap: None,
        island: Some(index / 4),
        health: DeviceHealth::Healthy,
        detail: Default::default(),
    }
}

pub(crate) fn job_spec(line: &str) -> JobSpec {
    let mut spec = JobSpec {
        name: "job".into(),
        argv: vec![b"true".to_vec()],
        workdir: b"/tmp".to_vec(),
        ..JobSpec::default()
    };
    for (key, value) in line.split_whitespace().map(pair) {
        match key {
            "gpus" => spec.ask.gpu_milli = number(value) as u32 * 1_000,
            "gpu_milli" => spec.ask.gpu_milli = number(value) as u32,
            "model" => spec.ask.gpu_models = value.split('|').map(str::to_owned).collect(),
            "vram" => spec.ask.vram_mib = mib(value),
            "cpus" => spec.ask.cpus_milli = number(value) as u32 * 1_000,
            "mem" => spec.ask.mem_mib = mib(value),
            "array" => spec.array = Some(array(value)),
            "prio" => spec.priority = number(value) as u16,
            "retries" => spec.retries = number(value) as u16,
            "prefer" => spec.ask.gpu_models_preferred = value.split('|').map(str::to_owned).collect(),
            "or" => spec.alternatives.push(job_spec(&value.replace([';', ':'], " ").replace('~', "=")).ask),
            "gang" => spec.gang = Some(gang(value)),
            "layout" => spec.layout = layout(value),
            "after" => spec.after = value.split(',').map(dependency).collect(),
            "queue" => spec.queue = value.into(),
            "limit" => spec.time_limit_ms = Some(number(value) * 1_000),
            "begin" => spec.begin_ms = Some(number(value)),
            "deadline" => spec.deadline_ms = Some(number(value)),
            "hold" => spec.hold = value == "yes",
            "service" => spec.service = value == "yes",
            "preemptible" => spec.preemptible = value == "yes",
            "requeue" => spec.requeue = value == "yes",
            "resumes" => spec.pace.get_or_insert_default().resumes = value == "yes",
            "work" => spec.pace.get_or_insert_default().work_ms = Some(number(value) * 1_000),
            "speed" => {
                // `A100:1000|K80:100`.
                let speeds = value.split('|').map(|part| part.split_once(':').expect("A100:1000"));
                let speeds = speeds.map(|(model, speed)| (model.to_owned(), number(speed) as u32));
                spec.pace.get_or_insert_default().speeds = speeds.collect();
            }
            "requeue_status" => spec.requeue_status = Some(number(value) as u8),
            kind if matches!(kind, "fpga" | "mig" | "npu") || kind.starts_with("mig:") => {
                spec.ask.devices.insert(key.into(), number(value) as u32);
            }
            label => {
                spec.ask.labels.insert(label.into(), value.into());
            }
        }
    }
    spec
}

/// `4` or `2..4`.
fn gang(text: &str) -> GangSpec {
    let (min, max) = text.split_once("..").unwrap_or((text, text));
    GangSpec { min: number(min) as u32, max: number(max) as u32 }
}

fn layout(text: &str) -> Layout {
    match text {
        "any" => Layout::Any,
        "pack" => Layout::Pack,
        "spread" => Layout::Spread,
        "same-host" => Layout::SameHost,
        "same-rack" => Layout::SameRack,
        "same-island" => Layout::SameIsland,
        other => panic!("no layout: {other}"),
    }
}

/// `ok:3`, `not-ok:3`, `any:3`, `each-ok:3`.
fn dependency(text: &str) -> Dependency {
    let (how, job) = text.split_once(':').unwrap_or(("ok", text));
    let each = how.starts_with("each-");
    let relation = match how.trim_start_matches("each-") {
        "ok" => Relation::Ok,
        "not-ok" => Relation::NotOk,
        "any" => Relation::Any,
        other => panic!("no relation: {other}"),
    };
    Dependency { job: JobId(number(job)), relation, each }
}

/// `0-9:2%3`.
fn array(text: &str) -> ArraySpec {
    let (text, cap) = text.split_once('%').unwrap_or((text, "0"));
    let (text, step) = text.split_once(':').unwrap_or((text, "1"));
    let (start, end) = text.split_once('-').expect("0-9");
    ArraySpec {
        start: number(start) as u32,
        end: number(end) as u32,
        step: number(step) as u32,
        parallel_max: number(cap) as u32,
    }
}

fn pair(word: &str) -> (&str, &str) {
    word.split_once('=').unwrap_or_else(|| panic!("no key=value: {word}"))
}

pub(crate) fn number(text: &str) -> u64 {
    text.parse().unwrap_or_else(|_| panic!("no number: {text}"))
}

fn mib(text: &str) -> u64 {
    match (text.strip_suffix("TiB"), text.strip_suffix("GiB"), text.strip_suffix("MiB")) {
        (Some(n), _, _) => number(n) << 20,
        (_, Some(n), _) => number(n) << 10,
        (_, _, Some(n)) => number(n),
        _ => panic!("no memory: {text}"),
    }
}
