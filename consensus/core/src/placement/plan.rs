//! One round of planning. The phases are those of README.md: order, feasible, score, hold, choose devices.

use super::check::check_plan;
use super::choose::choose;
use super::view::{ReadyJob, View};
use crate::fit::{self, Misfit, Want};
use crate::hash::mix;
use crate::state::host::{Host, Used};
use rota_protocol::ask::Ask;
use rota_protocol::device::{DeviceFacts, DeviceKind};
use rota_protocol::limits::PLAN_MOVES_MAX;
use rota_protocol::plan::{Move, Plan};
use rota_protocol::{HostId, JobId, Token};
use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

/// A job that has waited this long in front of others gets a host held for it.
pub const HOLD_AFTER_MS: u64 = 30_000;

/// Most classes whose hosts are all looked at in one round: with 1,000 hosts a few tenths of a second at worst.
/// Classes that ask more than any host has free are turned away before and do not count.
const CLASSES_SCANNED_MAX: usize = 4_096;

/// What a round may do.
#[derive(Debug, Clone)]
pub struct PlanConfig {
    /// Hosts that are silent just now: nothing is placed there.
    pub avoid_hosts: BTreeSet<HostId>,
    /// Most moves; never more than [`PLAN_MOVES_MAX`].
    pub moves_max: usize,
}

impl Default for PlanConfig {
    fn default() -> Self {
        Self { avoid_hosts: BTreeSet::new(), moves_max: PLAN_MOVES_MAX }
    }
}

/// What may start now, and where. Equal arguments give equal plans; `seed` only breaks ties between equal hosts.
#[must_use]
pub fn plan(view: &View, config: &PlanConfig, now_ms: u64, seed: u64) -> Plan {
    let mut round = Round::new(view, config, now_ms, seed);
    round.run();
    let plan = Plan { seen_index: view.index, moves: round.moves };
    debug_assert_eq!(check_plan(view, config, now_ms, &plan), Vec::<String>::new());
    plan
}

/// The host that a round would keep free, and the waiting job that it is kept for.
#[must_use]
pub fn held(view: &View, config: &PlanConfig, now_ms: u64, seed: u64) -> Option<(HostId, JobId)> {
    let mut round = Round::new(view, config, now_ms, seed);
    round.run();
    let hold = round.hold?;
    Some((round.hosts.get(hold.host)?.0.id, hold.job))
}

/// Lower is better: devices left idle beside it (or, for work without devices, whether the host has any), CPU left,
/// memory left, then a draw by seed.
type Score = (u64, u64, u64, u64);

/// The next job of a class: its place in the order, the class, its position there.
type Head = ((Reverse<u16>, JobId), usize, usize);

/// The most of each part that any host of a round has: an ask above it is turned away without a look at the hosts.
#[derive(Default)]
struct Ceiling {
    gpus: u64,
    cpus_milli: u64,
    mem_mib: u64,
}

impl Ceiling {
    fn raise(&mut self, host: &Host, used: &Used) {
        let idle = |d: &&DeviceFacts| {
            d.kind == DeviceKind::Gpu && d.health.is_healthy() && !used.devices.contains_key(&d.uuid)
        };
        let gpus = host.facts.devices.iter().filter(idle).count() as u64;
        let cpus = u64::from(host.facts.cpus_milli).saturating_sub(used.cpus_milli);
        let mem = host.facts.mem_mib.saturating_sub(used.mem_mib);
        self.gpus = self.gpus.max(gpus);
        self.cpus_milli = self.cpus_milli.max(cpus);
        self.mem_mib = self.mem_mib.max(mem);
    }

    fn admits(&self, ask: &Ask) -> bool {
        u64::from(ask.gpus()) <= self.gpus
            && u64::from(ask.cpus_milli) <= self.cpus_milli
            && ask.mem_mib <= self.mem_mib
    }
}

/// One class of equal asks: its jobs, and the hosts that fit it now, best first.
struct Class<'v> {
    jobs: &'v [ReadyJob],
    fitting: BTreeSet<(Score, usize)>,
    scores: BTreeMap<usize, Score>,
    /// How much of the round's list of touched hosts is in `fitting` already; none before the first look.
    seen: Option<usize>,
}

/// A host kept free for the first job that waits too long.
struct Hold<'v> {
    host: usize,
    job: JobId,
    ask: &'v Ask,
}

struct Round<'v> {
    now_ms: u64,
    seed: u64,
    moves_max: usize,
    /// Hosts that take work at all.
    hosts: Vec<(&'v Host, Cow<'v, Used>)>,
    classes: Vec<Class<'v>>,
    /// Heads of the classes: the next job of all, its class, its position there.
    heads: BinaryHeap<Reverse<Head>>,
    /// No host has more free than this, in any one part, at the start of the round.
    free: Ceiling,
    /// No host has more than this in all.
    total: Ceiling,
    /// Classes of which every host was looked at.
    scanned: usize,
    /// Hosts in the order in which something was placed there.
    touched: Vec<usize>,
    hold: Option<Hold<'v>>,
    moves: Vec<Move>,
}

impl<'v> Round<'v> {
    fn new(view: &'v View, config: &PlanConfig, now_ms: u64, seed: u64) -> Self {
        let takes_work =
            |h: &&'v Host| !config.avoid_hosts.contains(&h.id) && fit::open(h, &h.used, now_ms).is_ok();
        let hosts = view.hosts.iter().map(|h| &**h).filter(takes_work);
        let classes: Vec<Class<'v>> = view.classes.iter().map(|jobs| Class::new(jobs)).collect();
        let heads = classes.iter().enumerate();
        let heads = heads.filter_map(|(at, class)| Some(Reverse((class.jobs.first()?.place(), at, 0))));
        let hosts: Vec<(&Host, Cow<'v, Used>)> = hosts.map(|h| (h, Cow::Borrowed(&h.used))).collect();
        let (mut free, mut total) = (Ceiling::default(), Ceiling::default());
        for (host, used) in &hosts {
            free.raise(host, used);
            total.raise(host, &Used::default());
        }
        Self {
            now_ms,
            seed,
            moves_max: config.moves_max.min(PLAN_MOVES_MAX),
            hosts,
            free,
            total,
            scanned: 0,
            heads: heads.collect(),
            classes,
            touched: Vec::new(),
            hold: None,
            moves: Vec::new(),
        }
    }

    /// Order: always the first job of all classes. A class whose head does not fit is out of the round: its other
    /// jobs ask the same.
    fn run(&mut self) {
        while let Some(Reverse((_, class, at))) = self.heads.pop() {
            if self.moves.len() >= self.moves_max {
                break;
            }
            let jobs = self.classes[class].jobs;
            let Some(job) = jobs.get(at) else {
                continue;
            };
            // A job that keeps away from hosts speaks for itself only.
            if self.place_job(class, job) || !job.avoid.is_empty() {
                if let Some(next) = jobs.get(at + 1) {
                    self.heads.push(Reverse((next.place(), class, at + 1)));
                }
            } else {
                self.hold_for(job);
            }
        }
    }

    /// Places as many tasks of a job as fit; false if one did not.
    fn place_job(&mut self, class: usize, job: &'v ReadyJob) -> bool {
        for ordinal in job.ordinals() {
            if self.moves.len() >= self.moves_max {
                return true;
            }
            let Some(host) = self.best_host(class, job) else {
                return false;
            };
            self.place(host, job, ordinal);
        }
        true
    }

    /// Feasible and score: the best host that the job may take now.
    fn best_host(&mut self, class: usize, job: &ReadyJob) -> Option<usize> {
        if !self.free.admits(&job.spec.ask) || !self.refresh(class, &job.spec.ask) {
            return None;
        }
        let fitting = self.classes[class].fitting.iter().map(|(_, host)| *host);
        let mut allowed = fitting.filter(|at| {
            let id = self.hosts[*at].0.id;
            let avoided = |(host, until_ms): &(HostId, u64)| *host == id && self.now_ms < *until_ms;
            !job.avoid.iter().any(avoided) && self.hold_allows(*at, job)
        });
        allowed.next()
    }

    /// Brings a class's list of fitting hosts up to date: all hosts at the first look, later only touched ones.
    /// False if the round may not look at another class.
    fn refresh(&mut self, class: usize, ask: &Ask) -> bool {
        let stale: Vec<usize> = match self.classes[class].seen {
            None if self.scanned >= CLASSES_SCANNED_MAX => return false,
            None => {
                self.scanned += 1;
                (0..self.hosts.len()).collect()
            }
            Some(seen) => self.touched[seen..].to_vec(),
        };
        for at in stale {
            let score = self.score(at, ask).ok();
            self.classes[class].set(at, score);
        }
        self.classes[class].seen = Some(self.touched.len());
        true
    }

    fn score(&self, at: usize, ask: &Ask) -> Result<Score, Misfit> {
        let (host, used) = &self.hosts[at];
        fit::fits(host, used, Want { ask, tenant: "" }, self.now_ms)?;
        let facts = &*host.facts;
        let asked = u64::from(ask.gpus()) + ask.devices.values().map(|n| u64::from(*n)).sum::<u64>();
        let first = if asked == 0 {
            u64::from(!facts.devices.is_empty())
        } else {
            let idle = |d: &&DeviceFacts| d.health.is_healthy() && !used.devices.contains_key(&d.uuid);
            facts.devices.iter().filter(idle).count() as u64 - asked
        };
        let cpus = u64::from(facts.cpus_milli).saturating_sub(used.cpus_milli);
        let mem = facts.mem_mib.saturating_sub(used.mem_mib);
        Ok((
            first,
            cpus.saturating_sub(u64::from(ask.cpus_milli)),
            mem.saturating_sub(ask.mem_mib),
            mix(self.seed ^ host.id.0),
        ))
    }

    fn place(&mut self, at: usize, job: &ReadyJob, ordinal: u32) {
        let ask = &job.spec.ask;
        let (host, used) = &mut self.hosts[at];
        let Ok(eligible) = fit::fits(host, used, Want { ask, tenant: &job.tenant }, self.now_ms) else {
            return;
        };
        let devices = choose(&eligible, ask);
        // The token is not known before the commit; here it only says "taken".
        fit::take(host, used.to_mut(), Want { ask, tenant: &job.tenant }, &devices, Token(0));
        self.touched.push(at);
        self.moves.push(Move::Place { task: job.task(ordinal), host: host.id, epoch: host.epoch, devices });
    }

    /// Hold: the first job in order that waits too long, and could run if some host emptied, gets the host that is
    /// nearest to it. Later jobs stay off that host, so that it empties.
    fn hold_for(&mut self, job: &'v ReadyJob) {
        let waited_ms = self.now_ms.saturating_sub(job.submitted_ms);
        let ask = &job.spec.ask;
        if self.hold.is_some() || waited_ms <= HOLD_AFTER_MS || !self.total.admits(ask) {
            return;
        }
        let nearest = (0..self.hosts.len())
            .filter(|at| {
                fit::fits(self.hosts[*at].0, &Used::default(), Want { ask, tenant: &job.tenant }, self.now_ms)
                    .is_ok()
            })
            .max_by_key(|at| {
                let (host, used) = &self.hosts[*at];
                let free = |d: &&DeviceFacts| d.health.is_healthy() && !used.devices.contains_key(&d.uuid);
                let gpus = host.facts.devices.iter().filter(|d| fit::gpu_matches(d, ask));
                let cpus = u64::from(host.facts.cpus_milli).saturating_sub(used.cpus_milli);
                (gpus.filter(free).count(), cpus, Reverse(host.id))
            });
        if let Some(host) = nearest {
            let job = job.id;
            self.hold = Some(Hold { host, job, ask });
        }
    }

    /// On the held host only work that takes nothing the waiting job needs: no devices, and CPU and memory that are
    /// over even when the job has come.
    fn hold_allows(&self, at: usize, job: &ReadyJob) -> bool {
        let Some(hold) = self.hold.as_ref().filter(|h| h.host == at && h.job != job.id) else {
            return true;
        };
        let (host, used) = &self.hosts[at];
        let ask = &job.spec.ask;
        let cpus = used.cpus_milli + u64::from(ask.cpus_milli) + u64::from(hold.ask.cpus_milli);
        let mem = used.mem_mib.saturating_add(ask.mem_mib).saturating_add(hold.ask.mem_mib);
        ask.gpus() == 0
            && ask.devices.is_empty()
            && cpus <= u64::from(host.facts.cpus_milli)
            && mem <= host.facts.mem_mib
    }
}

impl<'v> Class<'v> {
    fn new(jobs: &'v [ReadyJob]) -> Self {
        Self { jobs, fitting: BTreeSet::new(), scores: BTreeMap::new(), seen: None }
    }

    fn set(&mut self, host: usize, score: Option<Score>) {
        let old = match score {
            Some(score) => self.scores.insert(host, score),
            None => self.scores.remove(&host),
        };
        if let Some(old) = old {
            self.fitting.remove(&(old, host));
        }
        if let Some(score) = score {
            self.fitting.insert((score, host));
        }
    }
}
