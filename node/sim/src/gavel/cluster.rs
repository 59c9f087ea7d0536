//! The simulated cluster of the experiment: rounds, progress, ends. Policies only say who runs.

use super::policy::Chooser;
use super::product::equal_ms;
use super::rates::Rates;
use super::trace::{Arrival, Trace};
use super::{GavelError, GavelPolicy};
use rota_core::placement::hetero::table::ClassId;
use rota_core::placement::hetero::{Job, Run};

/// GPUs of each model.
pub(super) const FLEET: [u32; 3] = [36, 36, 36];
/// Length of a round, in seconds.
pub(super) const ROUND_S: f64 = 360.0;

/// Rounds and waiting jobs at which a run is given up as overloaded. The published runs stay far below.
const ROUNDS_MAX: u64 = 400_000;
const JOBS_MAX: usize = 2_500;

/// A job in the cluster.
#[derive(Debug, Clone)]
pub(super) struct Active {
    /// As it arrived.
    pub(super) arrival: Arrival,
    /// What the policy sees of it.
    pub(super) view: Job,
    /// Steps still to do.
    pub(super) steps_left: f64,
    /// Steps per second on its best model.
    pub(super) best_rate: f64,
    /// Its time alone with an equal share of every model.
    pub(super) asked_ms: f64,
    /// Sum over rounds of workers asked over GPUs, and rounds.
    pub(super) crowd: (f64, u32),
}

/// What one run of one seed gave.
#[derive(Debug, Clone, Default)]
pub(super) struct Outcome {
    /// Time from arrival to end of each measured job, in seconds.
    pub(super) completion_s: Vec<f64>,
    /// Finish-time fairness of each measured job.
    pub(super) fairness: Vec<f64>,
    /// GPU-seconds held over GPU-seconds there were.
    pub(super) utilisation: f64,
    /// Rounds played.
    pub(super) rounds: u64,
    /// Mean jobs in the cluster.
    pub(super) jobs_mean: f64,
    /// Most jobs in the cluster.
    pub(super) jobs_max: usize,
    /// Jobs that ran on another model than in the round before, or again after a pause.
    pub(super) moves: u64,
}

/// Runs one seed until all jobs `first..last` (by order of arrival) have ended.
pub(super) fn run(
    rates: &Rates,
    trace: &mut Trace<'_>,
    policy: GavelPolicy,
    seed: u32,
    window: (u64, u64),
) -> Result<Outcome, GavelError> {
    let mut chooser = Chooser::new(rates, policy, seed);
    let mut out = Outcome::default();
    let (mut jobs, mut now_s, mut arrived, mut held_s) = (Vec::<Active>::new(), 0.0_f64, 0_u64, 0.0_f64);
    let wanted = (window.1 - window.0) as usize;
    while out.completion_s.len() < wanted {
        if jobs.is_empty() {
            now_s = now_s.max(trace.next_at_s());
        }
        while trace.next_at_s() <= now_s {
            jobs.push(admit(rates, trace.draw()?, arrived));
            arrived += 1;
        }
        for job in &mut jobs {
            job.view.age_ms = ((now_s - job.arrival.at_s) * 1000.0) as u64;
        }
        let runs = chooser.round(&jobs, (now_s * 1000.0) as u64);
        out.rounds += 1;
        out.jobs_mean += jobs.len() as f64;
        out.jobs_max = out.jobs_max.max(jobs.len());
        let end_s = advance(rates, &mut jobs, &runs, now_s, &mut chooser, &mut held_s, &mut out);
        finish(&mut jobs, window, &mut chooser, &mut out);
        now_s = end_s;
        if out.rounds > ROUNDS_MAX || jobs.len() > JOBS_MAX {
            return Err(GavelError::Endless);
        }
    }
    out.jobs_mean /= out.rounds as f64;
    out.utilisation = held_s / (now_s * FLEET.iter().sum::<u32>() as f64);
    Ok(out)
}

fn admit(rates: &Rates, arrival: Arrival, id: u64) -> Active {
    let alone = &rates.alone[arrival.class];
    let best_rate = alone.iter().copied().fold(0.0, f64::max);
    let asked_ms = equal_ms(rates, &arrival);
    let view = Job {
        id,
        class: ClassId(arrival.class as u32),
        workers: arrival.workers,
        weight: 1,
        speeds: alone.iter().map(|rate| (rate / best_rate * 1000.0).round() as u32).collect(),
        attained_ms: 0,
        remaining_ms: Some((arrival.steps / best_rate * 1000.0) as u64),
        age_ms: 0,
        crowd_permille: 1000,
        on: None,
    };
    Active { steps_left: arrival.steps, view, best_rate, arrival, asked_ms, crowd: (0.0, 0) }
}

/// Plays one round; gives its end. It ends early if all that ran has ended.
fn advance(
    rates: &Rates,
    jobs: &mut [Active],
    runs: &[Run],
    now_s: f64,
    chooser: &mut Chooser,
    held_s: &mut f64,
    out: &mut Outcome,
) -> f64 {
    let demand: u32 = jobs.iter().map(|job| job.view.workers).sum();
    let crowd = f64::from(demand) / f64::from(FLEET.iter().sum::<u32>());
    let mut on: Vec<Option<usize>> = vec![None; jobs.len()];
    let mut longest_s = 0.0_f64;
    for run in runs {
        let rate = rate_of(rates, jobs, run);
        let job = &mut jobs[run.job];
        let steps = (rate * ROUND_S).floor().min(job.steps_left);
        let time_s = if rate > 0.0 { steps / rate } else { 0.0 };
        job.steps_left -= steps;
        job.view.attained_ms = ((job.arrival.steps - job.steps_left) / job.best_rate * 1000.0) as u64;
        job.view.remaining_ms = Some((job.steps_left / job.best_rate * 1000.0) as u64);
        if job.view.on != Some(run.model) {
            out.moves += 1;
        }
        on[run.job] = Some(run.model);
        if run.partner.is_none() {
            chooser.measured(job.view.class, run.model, rate);
        }
        chooser.ran(job.view.id, run.model, time_s * 1000.0);
        let share = if run.partner.is_some() { 0.5 } else { 1.0 };
        *held_s += time_s * f64::from(job.view.workers) * share;
        longest_s = longest_s.max(time_s);
        job.view.age_ms = ((now_s + time_s - job.arrival.at_s) * 1000.0) as u64;
    }
    for (job, on) in jobs.iter_mut().zip(on) {
        job.view.on = on;
        job.crowd = (job.crowd.0 + crowd, job.crowd.1 + 1);
        job.view.crowd_permille = (job.crowd.0 / f64::from(job.crowd.1) * 1000.0) as u32;
    }
    now_s + if longest_s > 0.0 { longest_s } else { ROUND_S }
}

fn rate_of(rates: &Rates, jobs: &[Active], run: &Run) -> f64 {
    let class = jobs[run.job].arrival.class;
    match run.partner {
        None => rates.alone[class][run.model],
        Some(partner) => {
            rates.pairs.get(&(class, jobs[partner].arrival.class)).map_or(0.0, |pair| pair[run.model][0])
        }
    }
}

/// Takes out the jobs that have ended and measures those of the window.
fn finish(jobs: &mut Vec<Active>, window: (u64, u64), chooser: &mut Chooser, out: &mut Outcome) {
    jobs.retain(|job| {
        if job.steps_left > 0.0 {
            return true;
        }
        chooser.ended(job);
        if (window.0..window.1).contains(&job.view.id) {
            let took_s = job.view.age_ms as f64 / 1000.0;
            out.completion_s.push(took_s);
            let crowd = (job.crowd.0 / f64::from(job.crowd.1.max(1))).max(1.0);
            out.fairness.push(took_s * 1000.0 / (job.asked_ms * crowd));
        }
        false
    });
}
