//! How long `explain::why`, and a list of the queue with its reasons, take on a large cluster:
//! `cargo run --release -p rota-core --example why_speed -- [hosts] [jobs]`. Prints times; asserts nothing.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a measurement needs a clock; it is no part of the core"
)]

use rota_core::placement::{PlanConfig, Planner, View};
use rota_core::{State, explain, hash, view};
use rota_protocol::api::QueueFilter;
use rota_protocol::ask::Ask;
use rota_protocol::command::{Command, Entry, LOG_FORMAT, Proposal, TokenUse};
use rota_protocol::device::{DeviceFacts, DeviceHealth, DeviceKind, HostFacts, HostRegistration};
use rota_protocol::job::{Actor, JobSpec, Role};
use rota_protocol::work::GangSpec;
use rota_protocol::{BootId, ClusterId, DeviceUuid, HostId, JobId, RequestId};
use std::collections::BTreeMap;
use std::time::Instant;

/// Runs of which the best counts.
const REPEATS: usize = 5;
const START_MS: u64 = 1_000_000;
const MODELS: [(&str, u64); 4] = [("A100", 40), ("A100", 80), ("H100", 80), ("L4", 24)];

fn main() {
    let mut numbers = std::env::args().skip(1).filter_map(|word| word.parse::<u64>().ok());
    let (hosts, jobs) = (numbers.next().unwrap_or(1_000), numbers.next().unwrap_or(10_000));
    let mut state = State::new();
    cluster(&mut state, hosts);
    // Half of the jobs fill the cluster, the rest wait behind them.
    submit(&mut state, 0..jobs / 2, START_MS);
    let mut planner = Planner::default();
    let mut now_ms = START_MS;
    for _ in 0..20 {
        now_ms += 1_000;
        let plan = planner.plan(&View::of(&state, now_ms), &PlanConfig::default(), now_ms);
        if plan.moves.is_empty() {
            break;
        }
        apply(&mut state, now_ms, Actor::system(), Command::CommitPlan { plan });
    }
    submit(&mut state, jobs / 2..jobs, now_ms);
    now_ms += 10_000;
    let began = Instant::now();
    let plan = planner.plan(&View::of(&state, now_ms), &PlanConfig::default(), now_ms);
    println!("a round of the kept planner: {:?}, {} moves", began.elapsed(), plan.moves.len());
    apply(&mut state, now_ms, Actor::system(), Command::CommitPlan { plan });
    now_ms += 1_000;
    let waiting: Vec<JobId> = state.jobs().filter(|job| job.live == 0).map(|job| job.id).collect();
    println!("{} hosts, {} jobs, {} wait", hosts, jobs, waiting.len());
    measure(&state, &waiting, now_ms);
}

fn measure(state: &State, waiting: &[JobId], now_ms: u64) {
    let mut times: Vec<(u128, JobId, String)> = Vec::new();
    for at in (0..40).map(|n| n * waiting.len() / 40) {
        let Some(job) = waiting.get(at) else {
            continue;
        };
        // The best of a few: others use the machine as well.
        let runs = (0..REPEATS).map(|_| {
            let began = Instant::now();
            let why = explain::why(state, *job, now_ms);
            (began.elapsed().as_micros(), *job, why.map(|why| why.cause).unwrap_or_default())
        });
        times.extend(runs.min());
    }
    times.sort_unstable();
    for part in [0, times.len() / 2, times.len().saturating_sub(1)] {
        if let Some((us, job, cause)) = times.get(part) {
            println!("why {job} ({cause}): {}.{:03} ms", us / 1_000, us % 1_000);
        }
    }
    let viewer = Actor { tenant: "t0".into(), user: "u".into(), role: Role::Admin };
    let began = Instant::now();
    let mut filter = QueueFilter::default();
    let (mut rows, mut pages) = (0, 0);
    loop {
        let (page, next) = view::queue(state, &filter, &viewer);
        rows += page.len();
        pages += 1;
        match next {
            Some(next) => filter.after = Some(next),
            None => break,
        }
    }
    println!("the queue with reasons: {rows} rows in {pages} pages, {:?}", began.elapsed());
}

fn apply(state: &mut State, at_ms: u64, actor: Actor, command: Command) {
    let proposals = vec![Proposal { request: RequestId::NONE, actor, command }];
    state.apply(state.applied_index() + 1, &Entry { format: LOG_FORMAT, at_ms, proposals });
}

fn cluster(state: &mut State, hosts: u64) {
    let (cluster, name) = (ClusterId(1), "speed".to_owned());
    let create = Command::CreateCluster { cluster, name, host_name: "h1".into(), addr: "a:1".into() };
    apply(state, START_MS, Actor::system(), create);
    for n in 1..=hosts {
        if n > 1 {
            let mut token = [0; 32];
            token[..8].copy_from_slice(&n.to_le_bytes());
            let usage = TokenUse::Join { host_name: None };
            let expires_at_ms = u64::MAX;
            apply(state, START_MS, Actor::system(), Command::MintToken { token, usage, expires_at_ms });
            let admit = Command::AdmitHost { token, host_name: format!("h{n}"), addr: "a:1".into() };
            apply(state, START_MS, Actor::system(), admit);
        }
        let registration = HostRegistration { boot: BootId(1), addr: "a:1".into(), facts: facts(n) };
        apply(state, START_MS, Actor::system(), Command::RegisterHost { host: HostId(n), registration });
    }
}

fn facts(n: u64) -> HostFacts {
    let (model, gib) = MODELS[(hash::mix(n) % 4) as usize];
    let card = |index: u32| DeviceFacts {
        uuid: DeviceUuid(format!("GPU-{n}-{index}")),
        kind: DeviceKind::Gpu,
        model: model.into(),
        vram_mib: Some(gib << 10),
        bus: None,
        index: Some(index),
        numa: Some(index / 4),
        compute_cap: Some(80),
        island: Some(index / 4),
        health: DeviceHealth::Healthy,
        detail: Default::default(),
    };
    let labels = BTreeMap::from([("rack".to_owned(), format!("r{}", n / 16))]);
    HostFacts {
        cpus_milli: 96_000,
        mem_mib: 1 << 20,
        devices: (0..8).map(card).collect(),
        labels,
        version: "1".into(),
        notes: Default::default(),
    }
}

fn submit(state: &mut State, numbers: std::ops::Range<u64>, at_ms: u64) {
    for n in numbers {
        let draw = hash::mix(n);
        let cards = [1, 1, 1, 2, 2, 4, 8, 8][(draw % 8) as usize];
        let gang = (draw >> 8).is_multiple_of(16).then_some(GangSpec { min: 4, max: 4 });
        let model = (draw >> 16).is_multiple_of(3).then(|| MODELS[(draw >> 20) as usize % 4].0.to_owned());
        let ask = Ask {
            gpu_milli: cards * 1_000,
            gpu_models: model.into_iter().collect(),
            cpus_milli: 1_000 * (1 + (draw >> 24) as u32 % 16),
            mem_mib: 4_096 << ((draw >> 32) % 4),
            ..Ask::default()
        };
        let spec = JobSpec {
            name: "job".into(),
            argv: vec![b"true".to_vec()],
            ask,
            gang,
            time_limit_ms: Some(600_000 + (draw >> 40) % 36_000_000),
            ..JobSpec::default()
        };
        let actor = Actor { tenant: format!("t{}", draw % 20), user: "u".into(), role: Role::Submitter };
        apply(state, at_ms, actor, Command::Submit { spec });
    }
}
