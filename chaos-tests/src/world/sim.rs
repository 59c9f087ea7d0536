//! The world: all hosts, the log, the network, the users, and the loop that lets one thing happen after the other.

use super::client::Clients;
use super::clock::Clock;
use super::host::Host;
use super::log::Log;
use super::nemesis::Nemesis;
use super::net::Net;
use super::oracle::Oracle;
use super::params::Params;
use super::plant::Plant;
use super::queue::{Ev, Machine, Outside, Own, Queue};
use super::reach::Reach;
use super::rng::Rng;
use rota_core::State;
use rota_protocol::command::{Command, TokenUse};
use rota_protocol::job::Actor;
use rota_protocol::queue::{Amounts, QueueSpec};
use rota_protocol::{ClusterId, HostId};
use std::collections::VecDeque;

/// Most steps of a run: about ten times what the longest needs.
const STEPS_MAX: u64 = 4_000_000;
/// Lines that are kept for the reader of a failed run.
const LINES_MAX: usize = 400;

/// Everything.
#[derive(Debug)]
pub struct World {
    /// True time, in ms.
    pub now: u64,
    /// Events so far.
    pub steps: u64,
    /// What is going to happen.
    pub(super) queue: Queue,
    pub(super) rng: Rng,
    pub(super) params: Params,
    pub(super) net: Net,
    pub(super) log: Log,
    pub(super) hosts: Vec<Host>,
    pub(super) clients: Clients,
    pub(super) nemesis: Nemesis,
    /// The witness.
    pub oracle: Oracle,
    /// What was met.
    pub reach: Reach,
    pub(super) calls: u64,
    pub(super) healed: bool,
    pub(super) healed_ms: u64,
    pub(super) settled: bool,
    pub(super) disk_lag_ms: u64,
    /// Hash over every event: equal runs have equal ones.
    pub(super) trace: u64,
    lines: Option<VecDeque<String>>,
}

impl World {
    /// The world of a seed. `talks` keeps lines for a person.
    #[must_use]
    pub fn new(seed: u64, plant: Option<Plant>, talks: bool) -> Self {
        let mut rng = Rng::new(seed);
        let params = Params::draw(&mut rng, plant);
        let rates = params.rates.iter().zip(&params.gpus);
        let hosts = rates.enumerate().map(|(at, (rate, gpus))| {
            let clock = Clock { since_ms: 0, origin_ms: rng.range(1_000, 1_000_000), rate: *rate };
            Host::new(HostId(at as u64 + 1), clock, *gpus)
        });
        let hosts: Vec<Host> = hosts.collect();
        let head = State::new().with_faults(Plant::core(plant));
        let mut world = Self {
            now: 0,
            steps: 0,
            queue: Queue::default(),
            params,
            net: Net::default(),
            log: Log::new(head),
            hosts,
            clients: Clients::default(),
            nemesis: Nemesis::default(),
            oracle: Oracle::default(),
            reach: Reach::default(),
            calls: 0,
            healed: false,
            healed_ms: 0,
            settled: false,
            disk_lag_ms: 0,
            trace: seed,
            lines: talks.then(VecDeque::new),
            rng,
        };
        world.found();
        world
    }

    /// The cluster exists and all hosts were admitted; their agents come up in the first moments.
    fn found(&mut self) {
        let create = Command::CreateCluster {
            cluster: ClusterId(0xc1a0_5000),
            name: "world".into(),
            host_name: "h1".into(),
            addr: "10.0.0.1:4600".into(),
        };
        let mut first = vec![super::lead::by_rota(create)];
        for host in self.ids().skip(1) {
            let token = [u8::try_from(host.0).unwrap_or(0); 32];
            let expires_at_ms = u64::MAX;
            let usage = TokenUse::Join { host_name: None };
            let (host_name, addr) = (format!("h{host}"), format!("10.0.0.{host}:4600"));
            first.push(super::lead::by_rota(Command::MintToken { token, usage, expires_at_ms }));
            first.push(super::lead::by_rota(Command::AdmitHost { token, host_name, addr }));
        }
        // A queue that may take back what others borrow.
        let guarantee = Amounts { gpu_milli: 2_000, ..Amounts::default() };
        let queue = QueueSpec { guarantee, ..QueueSpec::open(super::client::SMALL_TENANT) };
        first.push(super::lead::by_rota(Command::SetQueue { queue }));
        debug_assert!(first.iter().all(|p| p.actor == Actor::system()));
        self.append(HostId(1), first);
        for host in self.ids() {
            let at = self.rng.range(0, 300);
            self.queue.push(at, Ev::Machine(host, 0, Machine::Boot));
        }
        for (at, what) in [
            (10, Outside::Election),
            (20, Outside::Heartbeat),
            (500, Outside::Client),
            (3_000, Outside::Fault),
            (self.params.faults_ms, Outside::Heal),
        ] {
            self.queue.push(at, Ev::Outside(what));
        }
    }

    /// Runs to the end: settled, or a law broken.
    pub fn run(&mut self) {
        while self.oracle.violations.is_empty() && !self.settled && self.step() {}
    }

    /// One thing happens. False when nothing is left to happen or the limit of steps is reached.
    fn step(&mut self) -> bool {
        let Some((at, event)) = self.queue.pop() else { return false };
        self.now = self.now.max(at);
        self.steps += 1;
        if self.steps > STEPS_MAX {
            let what = format!("no end after {STEPS_MAX} steps");
            self.oracle.broken(self.now, super::oracle::Law::I20, what);
            return false;
        }
        match event {
            Ev::Outside(what) => self.outside(what),
            Ev::Machine(host, boots, what) => {
                if self.host(host).boots == boots {
                    self.machine(host, what);
                }
            }
            Ev::Own(host, life, _) if self.host(host).life != life || self.host(host).agent.is_none() => {}
            Ev::Deliver(host, _) if self.host(host).agent.is_none() => {}
            Ev::Own(host, ..) | Ev::Deliver(host, _) if self.host(host).frozen => {
                self.host_mut(host).held.push(event)
            }
            Ev::Own(host, _, own) => {
                self.mark(host.0 ^ 0x0f0f);
                self.own(host, own);
            }
            Ev::Deliver(host, msg) => {
                self.mark(host.0 ^ 0xf0f0);
                self.deliver(host, msg);
            }
        }
        true
    }

    fn outside(&mut self, what: Outside) {
        match what {
            Outside::Election => self.election(),
            Outside::Heartbeat => self.heartbeat(),
            Outside::Client => self.client_acts(),
            Outside::Retry(at) => self.retry(at),
            Outside::Answer(at, outcome) => self.answered(at, outcome),
            Outside::Fault => self.fault(),
            Outside::Undo(number) => self.undo(number),
            Outside::Heal => self.heal(),
            Outside::Settle => self.settle(),
        }
    }

    fn machine(&mut self, host: HostId, what: Machine) {
        match what {
            Machine::Boot => {
                if !self.host(host).up {
                    self.boot(host);
                }
            }
            Machine::StartAgent => self.start_agent(host),
            Machine::Start(token) => self.shim_start(host, token),
            Machine::Wake(token, alarm) => self.shim_wake(host, token, alarm),
            Machine::Exit(token, how) => self.main_exits(host, token, how),
            Machine::Gone(token) => self.all_gone(host, token),
        }
    }

    fn own(&mut self, host: HostId, own: Own) {
        match own {
            Own::Tick => self.tick(host),
            Own::Apply => self.catch_up(host),
            Own::Lead(term) => self.take_the_lead(host, term),
            Own::LeadTick(term) => self.lead_tick(host, term),
            Own::Drain(term) => self.drain(host, term),
            Own::Sample(term, what) => self.sample(host, term, what),
            Own::Confirmed(term, what, confirmed) => self.confirmed(host, term, what, confirmed),
            Own::Planned(term, plan) => self.planned(host, term, plan),
            Own::Note(note) => self.take_note(host, note),
            Own::CallDue(call) => self.call_due(host, call),
            Own::Asked(at) => self.asked(host, at),
        }
    }

    /// Extends the hash of the run.
    fn mark(&mut self, what: u64) {
        let mixed = (self.trace ^ self.now ^ (what << 32)).wrapping_mul(0x0000_0100_0000_01b3);
        self.trace = mixed.rotate_left(23) ^ self.rng.clone().bits();
    }

    /// The hash of the run so far, the log's state included.
    #[must_use]
    pub fn trace_hash(&self) -> u64 {
        self.trace ^ self.log.head.full_hash()
    }

    /// A line for a person; costs nothing when nobody listens.
    pub(super) fn note(&mut self, line: impl FnOnce() -> String) {
        let now = self.now;
        if let Some(lines) = &mut self.lines {
            if lines.len() == LINES_MAX {
                lines.pop_front();
            }
            lines.push_back(format!("{now:>7} {}", line()));
        }
    }

    /// The last lines.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        self.lines.iter().flatten().cloned().collect()
    }
}
