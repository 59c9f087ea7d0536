//! Users: they submit, cancel, drain, ask again when no answer comes, and now and then although one came.

use super::queue::{Ev, Outside, Own};
use super::sim::World;
use rota_protocol::ask::Ask;
use rota_protocol::command::{Command, Outcome, Proposal};
use rota_protocol::job::{Actor, ArraySpec, JobSpec, Role};
use rota_protocol::queue::{Ceiling, Excess, QueueSpec};
use rota_protocol::work::{Dependency, GangSpec, Relation, Warning};
use rota_protocol::{HostId, JobId, RequestId};

/// A client asks again after this.
const PATIENCE_MS: (u64, u64) = (700, 2_000);
/// From a client to a peer.
const DELAY_MS: (u64, u64) = (1, 20);
/// Answers that are lost on the way to the client.
const LOST_PERMILLE: u64 = 100;
/// More GPUs than any host has.
const TOO_MANY_GPUS: u32 = 16;

/// Submits most.
const LARGE_TENANT: &str = "lab";
/// Has a queue with a guarantee.
pub(super) const SMALL_TENANT: &str = "ops";

/// What users did so far.
#[derive(Debug, Default)]
pub struct Clients {
    /// Every request ever made.
    pub requests: Vec<Request>,
    /// Hosts that are drained.
    pub drained: Vec<HostId>,
    /// The request of the probe after the healing.
    pub probe: Option<usize>,
}

/// One request.
#[derive(Debug, Clone)]
pub struct Request {
    /// What is asked, under which id.
    pub proposal: Proposal,
    /// The answer heard.
    pub answer: Option<Outcome>,
}

impl World {
    /// A user acts.
    pub(super) fn client_acts(&mut self) {
        if self.healed {
            return;
        }
        let gap = self.params.client_gap_ms;
        let next = self.now + self.rng.range(1, 2 * gap);
        self.queue.push(next, Ev::Outside(Outside::Client));
        match self.rng.weighted(&[60, 22, 6, 6, 6, 3]) {
            0 => {
                let spec = self.draw_spec();
                self.request(Command::Submit { spec });
            }
            1 => {
                // Often the newest, which its host may not have started yet.
                let newest = self.oracle.acked.last().copied().filter(|_| self.rng.chance(400));
                let job = newest.unwrap_or(JobId(self.rng.range(1, 1 + self.oracle.acked.len() as u64)));
                let index = self.rng.chance(200).then(|| u32::try_from(self.rng.below(4)).unwrap_or(0));
                self.request(Command::Cancel { job, index });
            }
            2 => {
                // Asked although the answer is known: the same id, the same answer.
                let known = self.clients.requests.len() as u64;
                if known > 0 {
                    let again = usize::try_from(self.rng.below(known)).unwrap_or(0);
                    self.ask(again);
                }
            }
            3 => {
                let host = HostId(self.rng.range(1, self.hosts.len() as u64));
                let reason = "new fans".to_owned();
                let evict_at_ms = self.wall_ms(host) + self.rng.range(0, 2_000);
                let command = if self.rng.chance(500) {
                    Command::DrainWith { host, reason, evict_at_ms: Some(evict_at_ms) }
                } else {
                    Command::DrainHost { host, reason }
                };
                self.request(command);
            }
            4 => {
                let host = HostId(self.rng.range(1, self.hosts.len() as u64));
                self.request(Command::UndrainHost { host });
            }
            _ => {
                let cards = self.rng.chance(600).then(|| self.rng.range(0, 4) * 1_000);
                self.request(ceiling(cards));
            }
        }
    }

    fn draw_spec(&mut self) -> JobSpec {
        let most = u64::from(self.params.gpus.iter().copied().max().unwrap_or(1));
        let gpus = match self.rng.below(20) {
            0 => TOO_MANY_GPUS,
            1..=4 => 0,
            _ => u32::try_from(self.rng.range(1, most)).unwrap_or(1),
        };
        let array = self.rng.chance(200).then(|| ArraySpec {
            start: 0,
            end: u32::try_from(self.rng.range(0, 4)).unwrap_or(0),
            step: 1,
            parallel_max: u32::try_from(self.rng.below(3)).unwrap_or(0),
        });
        let mut spec = JobSpec {
            name: format!("job-{}", self.clients.requests.len()),
            argv: vec![b"/bin/train".to_vec()],
            env: Vec::new(),
            workdir: b"/".to_vec(),
            ask: Ask {
                gpu_milli: gpus * 1_000,
                cpus_milli: u32::try_from(self.rng.range(1, 4) * 500).unwrap_or(500),
                mem_mib: self.rng.range(1, 8) * 512,
                ..Ask::default()
            },
            array,
            priority: u16::try_from(self.rng.range(0, 100)).unwrap_or(50),
            time_limit_ms: self.rng.chance(200).then(|| self.rng.range(200, 4_000)),
            grace_ms: self.rng.chance(500).then(|| u32::try_from(self.rng.range(0, 1_500)).unwrap_or(0)),
            retries: u16::try_from(self.rng.below(3)).unwrap_or(0),
            requeue: !self.rng.chance(200),
            requeue_status: self.rng.chance(400).then_some(super::shim::REQUEUE_STATUS),
            warning: self.rng.chance(300).then(|| Warning {
                signal: 10,
                before_ms: u32::try_from(self.rng.range(0, 3_000)).unwrap_or(0),
                leader_only: self.rng.chance(200),
            }),
            ..JobSpec::default()
        };
        match self.rng.below(10) {
            0 | 1 => self.make_gang(&mut spec),
            2 | 3 => spec.ask.gpu_milli = u32::try_from(self.rng.range(1, 9) * 100).unwrap_or(100),
            4 | 5 => self.make_dependent(&mut spec),
            6 => spec.deadline_ms = Some(self.wall_ms(HostId(1)) + self.rng.range(2_000, 20_000)),
            _ => {}
        }
        spec
    }

    /// Parts that find room on the cluster when it is empty: what never fits is another story.
    fn make_gang(&mut self, spec: &mut JobSpec) {
        let cards = u32::try_from(self.rng.below(3)).unwrap_or(0);
        let room: u32 = self.params.gpus.iter().map(|gpus| gpus.checked_div(cards).unwrap_or(2)).sum();
        if room == 0 {
            return;
        }
        let max = u32::try_from(self.rng.range(1, u64::from(room.min(6)))).unwrap_or(1);
        let min = if self.rng.chance(300) {
            u32::try_from(self.rng.range(1, u64::from(max))).unwrap_or(1)
        } else {
            max
        };
        spec.array = None;
        spec.ask.gpu_milli = cards * 1_000;
        spec.gang = Some(GangSpec { min, max });
    }

    /// Waits for a job that somebody submitted, or two.
    fn make_dependent(&mut self, spec: &mut JobSpec) {
        let known: Vec<JobId> = self.oracle.acked.iter().rev().take(8).copied().collect();
        let mut parents = std::collections::BTreeSet::new();
        for _ in 0..self.rng.range(1, 2) {
            let relation = [Relation::Ok, Relation::Any, Relation::NotOk];
            let relation = self.rng.pick(&relation).unwrap_or(Relation::Any);
            if let Some(job) = self.rng.pick(&known).filter(|job| parents.insert(*job)) {
                spec.after.push(Dependency { job, relation, each: false });
            }
        }
    }

    /// Makes a new request.
    pub(super) fn request(&mut self, command: Command) -> usize {
        let at = self.clients.requests.len();
        let small = matches!(command, Command::Submit { .. }) && !self.healed && self.rng.chance(200);
        let tenant = if small { SMALL_TENANT } else { LARGE_TENANT };
        let actor = Actor { tenant: tenant.into(), user: "ann".into(), role: Role::Operator };
        let proposal = Proposal { request: RequestId(at as u128 + 1), actor, command };
        self.clients.requests.push(Request { proposal, answer: None });
        self.ask(at);
        at
    }

    /// Hands a request to some peer that runs, and waits.
    pub(super) fn ask(&mut self, at: usize) {
        let running: Vec<HostId> = self.ids().filter(|id| self.host(*id).agent.is_some()).collect();
        if let Some(peer) = self.rng.pick(&running) {
            let after = self.rng.range(DELAY_MS.0, DELAY_MS.1);
            self.own_after(peer, after, Own::Asked(at));
        }
        let again = self.now + self.rng.range(PATIENCE_MS.0, PATIENCE_MS.1);
        self.queue.push(again, Ev::Outside(Outside::Retry(at)));
    }

    /// The peer has it.
    pub(super) fn asked(&mut self, host: HostId, at: usize) {
        let proposal = self.clients.requests[at].proposal.clone();
        self.call(host, super::agent::CallKind::Client(at), vec![proposal]);
    }

    /// No answer yet: the same request again, at some peer.
    pub(super) fn retry(&mut self, at: usize) {
        if self.clients.requests[at].answer.is_none() {
            self.ask(at);
        }
    }

    /// An answer, unless it is lost.
    pub(super) fn answered(&mut self, at: usize, outcome: Outcome) {
        if !self.healed && self.rng.chance(LOST_PERMILLE) {
            return;
        }
        let request = self.clients.requests[at].proposal.request;
        self.oracle_answered(request, &outcome);
        self.clients.requests[at].answer = Some(outcome);
    }
}

/// Bounds what the large tenant may hold; none lifts the bound.
pub(super) fn ceiling(gpu_milli: Option<u64>) -> Command {
    let open = QueueSpec::open(LARGE_TENANT);
    let ceiling = Ceiling { gpu_milli, ..Ceiling::default() };
    Command::SetQueue { queue: QueueSpec { ceiling, excess: Excess::RequeueYoungest, ..open } }
}
