//! The same sequence on several replicas, bit for bit: one leads with a planner that it has kept all along, one follows
//! by the entries alone as they would come over the wire, and one joins halfway from a snapshot. In each round a fresh
//! planner, the follower's own kept one and the newcomer's plan too, each over its own state: all plans must be equal
//! byte by byte, and so must the states after each entry.

use super::Times;
use crate::cluster::{Cluster, ClusterError, HostKind};
use crate::rng::Rng;
use rota_core::placement::{PlanConfig, Planner, View};
use rota_core::{State, snapshot};
use rota_protocol::ask::{Ask, CARD_MILLI};
use rota_protocol::codec;
use rota_protocol::command::{Command, Entry};
use rota_protocol::job::{ArraySpec, AttemptEnd, JobSpec};
use rota_protocol::limits::ENTRY_BYTES_MAX;
use rota_protocol::plan::Plan;
use rota_protocol::work::{GangSpec, Layout};
use rota_protocol::{HostId, JobId, Token};
use serde::Serialize;
use std::time::Instant;
use thiserror::Error;

/// Cards of each host.
const CARDS: u32 = 8;
/// Models of the hosts, one after the other.
const MODELS: [&str; 3] = ["H100", "A100", "L4"];
/// Jobs that come in a round, at the most.
const JOBS_MAX: u64 = 12;
/// Attempts that end in a round, at the most.
const ENDS_MAX: u64 = 40;
/// Rounds after which all rows are compared: the rolling hash is compared after each entry.
const FULL_EVERY: usize = 32;
/// Virtual time between rounds, at the most, in ms.
const PAUSE_MS_MAX: u64 = 20_000;

/// At what scale.
#[derive(Debug, Clone, PartialEq)]
pub struct ReplicaCheck {
    /// Hosts of eight cards.
    pub hosts: usize,
    /// Rounds with some events each.
    pub rounds: usize,
    /// What the events are drawn from.
    pub seed: u64,
}

/// What was compared; that it was equal is what there is a report for.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ReplicaReport {
    /// Hosts.
    pub hosts: usize,
    /// Rounds.
    pub rounds: usize,
    /// Plans that were compared with the leader's.
    pub plans_compared: usize,
    /// Of the leader's plans those that moved something.
    pub plans_with_moves: usize,
    /// Moves in all of them.
    pub moves: usize,
    /// Entries that each replica applied.
    pub entries: usize,
    /// Attempts that live at the end.
    pub attempts: usize,
    /// The state's own hash over all its rows, at the end, of every replica.
    pub state_hash: String,
    /// The leader's planning.
    pub plan: Times,
}

/// Why there is no report.
#[derive(Debug, Error)]
pub enum ReplicaError {
    /// The scheduler refused what the check must be able to do.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// An entry or plan that cannot be written or read.
    #[error("an entry or a plan cannot be {0}")]
    Codec(&'static str),
    /// What must be equal is not.
    #[error("round {round}: {what}")]
    Diverged {
        /// In which round.
        round: usize,
        /// What differs.
        what: String,
    },
}

/// A replica that only applies what it is sent.
struct Follower {
    name: &'static str,
    state: State,
    planner: Planner,
}

/// Plays the rounds and compares.
///
/// # Errors
/// Something differs, or the scheduler refused what it must take.
pub fn run(check: &ReplicaCheck) -> Result<ReplicaReport, ReplicaError> {
    let kind = |at: usize| HostKind {
        cpus_milli: 64_000,
        mem_mib: 512 << 10,
        cards: CARDS,
        model: MODELS[at % MODELS.len()].to_owned(),
        vram_mib: Some(81_920),
    };
    let kinds: Vec<HostKind> = (0..check.hosts).map(kind).collect();
    let mut leader = Cluster::recording(&kinds, PlanConfig::default())?;
    let mut followers = vec![Follower::new("the follower", State::new())];
    let mut rng = Rng::new(check.seed);
    let (mut plans_compared, mut plans_with_moves, mut moves, mut entries) = (0, 0, 0, 0);
    let mut times = Vec::new();
    for round in 0..check.rounds {
        events(&mut leader, &mut rng)?;
        entries += ship(&mut leader, &mut followers, round)?;
        if round == check.rounds / 2 {
            let state = snapshot::decode(&snapshot::encode(leader.state()));
            let state = state.map_err(|_| ReplicaError::Codec("read from a snapshot"))?;
            followers.push(Follower::new("the newcomer", state));
        }
        let started = Instant::now();
        let plan = leader.plan();
        times.push(started.elapsed());
        let (config, now_ms) = (leader.config.clone(), leader.now_ms());
        let own = bytes(&plan)?;
        let fresh = Planner::default().plan(&View::of(leader.state(), now_ms), &config, now_ms);
        let mut others = vec![("a fresh planner", fresh)];
        for follower in &mut followers {
            let view = View::of(&follower.state, now_ms);
            others.push((follower.name, follower.planner.plan(&view, &config, now_ms)));
        }
        for (name, other) in &others {
            if bytes(other)? != own {
                let what =
                    format!("{name} plans otherwise than the leader: {}", first_difference(&plan, other));
                return Err(ReplicaError::Diverged { round, what });
            }
        }
        plans_compared += others.len();
        plans_with_moves += usize::from(!plan.moves.is_empty());
        moves += plan.moves.len();
        if !plan.moves.is_empty() {
            leader.commit(plan)?;
        }
        entries += ship(&mut leader, &mut followers, round)?;
        if round.is_multiple_of(FULL_EVERY) {
            full_hash(&leader, &followers, round)?;
        }
    }
    let hash = full_hash(&leader, &followers, check.rounds)?;
    Ok(ReplicaReport {
        hosts: check.hosts,
        rounds: check.rounds,
        plans_compared,
        plans_with_moves,
        moves,
        entries,
        attempts: leader.state().attempts().count(),
        state_hash: format!("{hash:016x}"),
        plan: Times::of(times),
    })
}

impl Follower {
    fn new(name: &'static str, state: State) -> Self {
        Self { name, state, planner: Planner::default() }
    }
}

/// Sends what the leader has applied since the last time, as bytes, and compares states after each entry.
fn ship(leader: &mut Cluster, followers: &mut [Follower], round: usize) -> Result<usize, ReplicaError> {
    let recorded = leader.take_recorded();
    for (index, entry, hash) in &recorded {
        let bytes = codec::encode(entry).map_err(|_| ReplicaError::Codec("written"))?;
        for follower in followers.iter_mut() {
            let entry: Entry =
                codec::decode(&bytes, ENTRY_BYTES_MAX).map_err(|_| ReplicaError::Codec("read"))?;
            follower.state.apply(*index, &entry);
            if follower.state.rolling_hash() != *hash {
                let what = format!("{} is in another state after entry {index}", follower.name);
                return Err(ReplicaError::Diverged { round, what });
            }
        }
    }
    Ok(recorded.len())
}

/// The hash over all rows of the state, which every replica must have.
fn full_hash(leader: &Cluster, followers: &[Follower], round: usize) -> Result<u64, ReplicaError> {
    let hash = leader.state().full_hash();
    match followers.iter().find(|follower| follower.state.full_hash() != hash) {
        Some(other) => {
            Err(ReplicaError::Diverged { round, what: format!("{} holds another state", other.name) })
        }
        None => Ok(hash),
    }
}

fn bytes(plan: &Plan) -> Result<Vec<u8>, ReplicaError> {
    codec::encode(plan).map_err(|_| ReplicaError::Codec("written"))
}

fn first_difference(plan: &Plan, other: &Plan) -> String {
    let both = plan.moves.iter().zip(&other.moves);
    let at = both.take_while(|(one, other)| one == other).count();
    format!("move {at} is {:?}, and {:?}", plan.moves.get(at), other.moves.get(at))
}

/// What happens between two rounds: time passes, work ends, comes and is cancelled, hosts are drained and come back.
fn events(cluster: &mut Cluster, rng: &mut Rng) -> Result<(), ClusterError> {
    cluster.advance_to(cluster.now_ms() + rng.below(PAUSE_MS_MAX));
    let live: Vec<Token> = cluster.state().attempts().map(|attempt| attempt.token).collect();
    for _ in 0..rng.below(ENDS_MAX).min(live.len() as u64) {
        let token = live[rng.below(live.len() as u64) as usize];
        match rng.below(4) {
            0 => cluster.started(token)?,
            1 => cluster.end(token, AttemptEnd::Exited { code: 1 }, rng.below(600_000))?,
            _ => cluster.end(token, AttemptEnd::Exited { code: 0 }, rng.below(600_000))?,
        }
    }
    for _ in 0..=rng.below(JOBS_MAX) {
        let user = format!("u{}", rng.below(5));
        let tenant = format!("t{}", rng.below(3));
        cluster.submit(&tenant, &user, spec(rng))?;
    }
    if rng.below(3) == 0 {
        let jobs: Vec<JobId> =
            cluster.state().jobs().filter(|job| !job.state.is_terminal()).map(|job| job.id).collect();
        let job = jobs[rng.below(jobs.len() as u64) as usize];
        cluster.cancel(job)?;
    }
    let host = HostId(2 + rng.below(cluster.state().hosts().count() as u64 - 1));
    match rng.below(8) {
        0 => {
            let evict_at_ms = Some(cluster.now_ms() + rng.below(60_000));
            cluster.system(Command::DrainWith { host, reason: "fans".into(), evict_at_ms })?;
        }
        1 => {
            cluster.system(Command::UndrainHost { host })?;
        }
        _ => {}
    }
    Ok(())
}

/// A job of any shape: shares, whole cards, wide ones, gangs, arrays, alternatives, with and without limits.
fn spec(rng: &mut Rng) -> JobSpec {
    let gpu_milli = match rng.below(8) {
        0 => 0,
        1 | 2 => 100 * (1 + rng.below(9) as u32),
        3 => CARDS * CARD_MILLI,
        _ => CARD_MILLI * (1 + rng.below(4) as u32),
    };
    let mut ask = Ask { gpu_milli, cpus_milli: 500 * (1 + rng.below(8) as u32), ..Ask::default() };
    if gpu_milli > 0 && rng.below(3) == 0 {
        ask.gpu_models = vec![MODELS[rng.below(3) as usize].to_owned()];
    }
    let mut spec = JobSpec {
        name: format!("n{}", rng.below(20)),
        argv: vec![b"true".to_vec()],
        ask,
        priority: [10, 50, 50, 50, 90][rng.below(5) as usize],
        time_limit_ms: (rng.below(3) > 0).then(|| 60_000 * (1 + rng.below(120))),
        retries: rng.below(2) as u16,
        ..JobSpec::default()
    };
    match rng.below(6) {
        0 => {
            let min = 2 + rng.below(6) as u32;
            spec.gang = Some(GangSpec { min, max: min + rng.below(2) as u32 });
            spec.layout =
                [Layout::Any, Layout::Pack, Layout::Spread, Layout::SameHost][rng.below(4) as usize];
        }
        1 | 2 => {
            let end = rng.below(400) as u32;
            spec.array = Some(ArraySpec { start: 0, end, step: 1, parallel_max: rng.below(3) as u32 * 50 });
        }
        3 => spec.alternatives = vec![Ask { cpus_milli: 4_000, gpu_milli: CARD_MILLI, ..Ask::default() }],
        _ => {}
    }
    spec
}

#[cfg(test)]
mod tests {
    use super::*;

    /// P8 at a tenth of the scale that `rota bench replicas` has by default.
    #[test]
    fn a_thousand_hosts_are_planned_alike_by_all() {
        let report = run(&ReplicaCheck { hosts: 1_000, rounds: 8, seed: 1 }).expect("all equal");
        assert_eq!(report.plans_compared, 8 * 2 + 4, "{report:?}");
        assert!(report.plans_with_moves > 6 && report.moves > 500, "{report:?}");
    }

    #[test]
    fn what_differs_is_seen() {
        let mut leader = Cluster::recording(&[HostKind::default()], PlanConfig::default()).expect("a host");
        let mut other = State::new();
        other
            .apply(1, &Entry { format: rota_protocol::command::LOG_FORMAT, at_ms: 1, proposals: Vec::new() });
        let mut followers = [Follower::new("another", other)];
        let error = ship(&mut leader, &mut followers, 7).expect_err("another beginning");
        assert!(error.to_string().starts_with("round 7: another is in another state"), "{error}");
    }
}
