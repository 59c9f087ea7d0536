//! The policies of the experiment: the published baselines, and ours by calls into `rota_core::placement::hetero`.

use super::GavelPolicy;
use super::cluster::{Active, FLEET, ROUND_S};
use super::rates::Rates;
use super::twister::Twister;
use rota_core::placement::hetero::lengths::Lengths;
use rota_core::placement::hetero::pair::PairTable;
use rota_core::placement::hetero::table::{ClassId, ModelId, SpeedTable};
use rota_core::placement::hetero::time_shares::TimeShares;
use rota_core::placement::hetero::{Job, RoundConfig, Run, who_runs};
use std::collections::BTreeMap;

/// Time between two settings of the shares of the published policies, in seconds.
const RESET_S: f64 = 1920.0;
const ROUND_MS: u64 = (ROUND_S * 1000.0) as u64;

/// A policy with what it remembers.
pub(super) struct Chooser {
    policy: GavelPolicy,
    shares: TimeShares,
    lengths: Lengths,
    table: SpeedTable,
    sticky: BTreeMap<u64, usize>,
    rng: Twister,
    reset_at_ms: Option<u64>,
    changed: bool,
    pairs: Option<PairTable>,
}

impl Chooser {
    pub(super) fn new(rates: &Rates, policy: GavelPolicy, seed: u32) -> Self {
        Self {
            policy,
            shares: TimeShares::default(),
            lengths: Lengths::default(),
            table: SpeedTable::default(),
            sticky: BTreeMap::new(),
            rng: Twister::new(seed.wrapping_add(5)),
            reset_at_ms: None,
            changed: false,
            pairs: policy.shares_gpus().then(|| pair_table(rates)),
        }
    }

    pub(super) fn ran(&mut self, id: u64, model: usize, time_ms: f64) {
        self.shares.ran(id, model, time_ms);
    }

    /// Takes a measured speed, in steps per second.
    pub(super) fn measured(&mut self, class: ClassId, model: usize, rate: f64) {
        self.table.observe(class, ModelId(model as u32), (rate * 1e6) as u64);
    }

    pub(super) fn ended(&mut self, job: &Active) {
        self.lengths.observe(self.attained_ms(job));
        self.sticky.remove(&job.view.id);
        self.changed = true;
    }

    /// Who runs in the next round.
    pub(super) fn round(&mut self, jobs: &[Active], now_ms: u64) -> Vec<Run> {
        let views: Vec<Job> = jobs.iter().map(|job| self.view(job)).collect();
        self.changed |= jobs.iter().any(|job| job.view.attained_ms == 0);
        match self.policy {
            GavelPolicy::LasBlind | GavelPolicy::LasAware => {
                let blind = self.policy == GavelPolicy::LasBlind;
                if self.due(now_ms) {
                    self.shares.set(&views, &FLEET, blind, ROUND_MS, now_ms);
                } else {
                    self.shares.meet(&views, &FLEET, ROUND_MS);
                }
                let mut models = vec![0, 1, 2];
                if blind {
                    for at in (1..models.len()).rev() {
                        let other = self.rng.below(at as u32 + 1) as usize;
                        models.swap(at, other);
                    }
                }
                self.shares.round(&views, &FLEET, &models)
            }
            GavelPolicy::FifoBlind | GavelPolicy::FifoAware => self.fifo(&views, now_ms),
            _ => {
                let (indices, config) = (self.lengths.indices(), RoundConfig::default());
                who_runs(&views, &FLEET, &indices, self.pairs.as_ref(), &config)
            }
        }
    }

    /// What the policy may know of a job.
    fn view(&self, job: &Active) -> Job {
        let mut view = job.view.clone();
        if !self.policy.knows_work() {
            view.remaining_ms = None;
        }
        if self.policy == GavelPolicy::EngineLearning {
            view.speeds = self.table.speeds(view.class, FLEET.len() as u32);
            view.attained_ms = self.attained_ms(job);
        }
        view
    }

    /// Work done, as time alone on the best model that the policy knows of.
    fn attained_ms(&self, job: &Active) -> u64 {
        match self.table.best(job.view.class) {
            Some((_, best_micro)) if self.policy == GavelPolicy::EngineLearning => {
                ((job.arrival.steps - job.steps_left) * 1e9 / best_micro as f64) as u64
            }
            _ => job.view.attained_ms,
        }
    }

    /// Whether the published policies set their shares now.
    fn due(&mut self, now_ms: u64) -> bool {
        let waited = self.reset_at_ms.is_none_or(|at| now_ms >= at + (RESET_S * 1000.0) as u64);
        let due = self.changed && waited;
        if due {
            self.reset_at_ms = Some(now_ms);
            self.changed = false;
        }
        due
    }

    /// First come, first served: on the first model with room, kept to the end, or on the best free one, chosen anew each
    /// time. The published text says "at random" for the former; its figures at low load are those of V100 first.
    fn fifo(&mut self, jobs: &[Job], now_ms: u64) -> Vec<Run> {
        if self.due(now_ms) {
            if self.policy == GavelPolicy::FifoAware {
                self.sticky.clear();
            }
            let mut left = FLEET;
            for job in jobs {
                if let Some(model) = self.sticky.get(&job.id) {
                    left[*model] -= job.workers;
                }
            }
            for job in jobs {
                if self.sticky.contains_key(&job.id) {
                    continue;
                }
                let open: Vec<usize> = (0..FLEET.len()).filter(|m| left[*m] >= job.workers).collect();
                if open.is_empty() {
                    break;
                }
                let choice = if self.policy == GavelPolicy::FifoBlind {
                    open.into_iter().next()
                } else {
                    open.into_iter().max_by_key(|model| (job.speeds[*model], std::cmp::Reverse(*model)))
                };
                if let Some(model) = choice.filter(|model| job.speeds[*model] > 0) {
                    left[model] -= job.workers;
                    self.sticky.insert(job.id, model);
                }
            }
        }
        let run = |(at, job): (usize, &Job)| {
            self.sticky.get(&job.id).map(|model| Run { job: at, model: *model, partner: None })
        };
        jobs.iter().enumerate().filter_map(run).collect()
    }
}

/// What each class keeps of its speed beside another, as measured.
fn pair_table(rates: &Rates) -> PairTable {
    let mut table = PairTable::default();
    for ((class, other), by_model) in &rates.pairs {
        for (model, pair) in by_model.iter().enumerate() {
            let alone = rates.alone[*class][model];
            let keeps = if alone > 0.0 { (pair[0] / alone * 1000.0).round() as u32 } else { 0 };
            table.observe(ModelId(model as u32), ClassId(*class as u32), ClassId(*other as u32), keeps);
        }
    }
    table
}
