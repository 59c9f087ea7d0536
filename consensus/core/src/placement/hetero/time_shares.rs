//! Realises time shares in rounds: who has received least of what it should have runs next. The shares are those of
//! `shares::max_min`; the bookkeeping between two settings of the shares lives here.
//!
//! Source: Narayanan et al., OSDI 2020, section 5 (priority = share / part of the time received).

use super::shares::{ShareRow, max_min};
use super::{Job, Run};
use std::collections::BTreeMap;

/// Shares and what was received of them. Jobs are known by their id.
#[derive(Debug, Clone, Default)]
pub struct TimeShares {
    shares: BTreeMap<u64, Vec<f64>>,
    received_ms: BTreeMap<u64, Vec<f64>>,
    deficit_ms: BTreeMap<u64, Vec<f64>>,
    set_at_ms: u64,
}

impl TimeShares {
    /// Sets new shares for these jobs: max-min over their speeds, or over equal speeds if `blind`. Half a round counts
    /// as received at first, so that a new job is ahead by a finite amount.
    pub fn set(&mut self, jobs: &[Job], fleet: &[u32], blind: bool, round_ms: u64, now_ms: u64) {
        let elapsed = now_ms.saturating_sub(self.set_at_ms) as f64;
        let mut deficits = BTreeMap::new();
        for job in jobs {
            let mut deficit = self.deficit_ms.remove(&job.id).unwrap_or_else(|| vec![0.0; fleet.len()]);
            if let (Some(share), Some(received)) = (self.shares.get(&job.id), self.received_ms.get(&job.id)) {
                for (model, deficit) in deficit.iter_mut().enumerate() {
                    *deficit += share[model] * elapsed - (received[model] - round_ms as f64 / 2.0);
                }
            }
            deficits.insert(job.id, deficit);
        }
        self.deficit_ms = deficits;
        self.shares = shares_of(jobs, fleet, blind);
        self.received_ms.clear();
        self.meet(jobs, fleet, round_ms);
        self.set_at_ms = now_ms;
    }

    /// Makes room for jobs that came since; they have no share before the next `set`.
    pub fn meet(&mut self, jobs: &[Job], fleet: &[u32], round_ms: u64) {
        for job in jobs {
            self.received_ms.entry(job.id).or_insert_with(|| vec![round_ms as f64 / 2.0; fleet.len()]);
        }
    }

    /// Books time that a job ran on a model.
    pub fn ran(&mut self, id: u64, model: usize, time_ms: f64) {
        if let Some(received) = self.received_ms.get_mut(&id) {
            received[model] += time_ms;
        }
    }

    /// The time that all jobs received since the shares were set, by model.
    fn totals(&self, models: usize) -> Vec<f64> {
        let mut totals = vec![0.0; models];
        for received in self.received_ms.values() {
            for (total, time) in totals.iter_mut().zip(received) {
                *total += time;
            }
        }
        totals
    }

    /// Who runs: model by model in the given order, the job furthest behind its share first; gangs that do not fit are
    /// passed over. Jobs without a share take what is left.
    #[must_use]
    pub fn round(&self, jobs: &[Job], fleet: &[u32], models: &[usize]) -> Vec<Run> {
        let totals = self.totals(fleet.len());
        let mut seated = vec![false; jobs.len()];
        let mut runs = Vec::new();
        for &model in models {
            let mut queue: Vec<(f64, f64, f64, usize)> = Vec::with_capacity(jobs.len());
            for (at, job) in jobs.iter().enumerate().filter(|(_, job)| job.speeds[model] > 0) {
                let share = self.shares.get(&job.id).map_or(0.0, |share| share[model]);
                let received =
                    self.received_ms.get(&job.id).map_or(0.0, |time| time[model] / totals[model].max(1.0));
                let rank = if received > 0.0 { share / received } else { share * 1e9 };
                let deficit = self.deficit_ms.get(&job.id).map_or(0.0, |deficit| deficit[model]);
                queue.push((rank, deficit, share, at));
            }
            queue.sort_by(|a, b| {
                b.0.total_cmp(&a.0).then(b.1.total_cmp(&a.1)).then(b.2.total_cmp(&a.2)).then(a.3.cmp(&b.3))
            });
            let mut left = fleet[model];
            for (_, _, _, at) in queue {
                if !seated[at] && jobs[at].workers <= left {
                    left -= jobs[at].workers;
                    seated[at] = true;
                    runs.push(Run { job: at, model, partner: None });
                }
            }
        }
        runs
    }
}

/// Solves for the shares, equal jobs as one row.
fn shares_of(jobs: &[Job], fleet: &[u32], blind: bool) -> BTreeMap<u64, Vec<f64>> {
    let mut rows: BTreeMap<(Vec<u32>, u32, u32), Vec<u64>> = BTreeMap::new();
    for job in jobs {
        let speeds = if blind {
            job.speeds.iter().map(|s| 1000 * u32::from(*s > 0)).collect()
        } else {
            job.speeds.clone()
        };
        rows.entry((speeds, job.workers, job.weight)).or_default().push(job.id);
    }
    let row_of = |((speeds, workers, weight), ids): (&(Vec<u32>, u32, u32), &Vec<u64>)| ShareRow {
        count: ids.len() as u32,
        workers: *workers,
        weight: f64::from((*weight).max(1)),
        speeds: speeds.iter().map(|speed| f64::from(*speed)).collect(),
    };
    let solved = max_min(&rows.iter().map(row_of).collect::<Vec<_>>(), fleet);
    let mut shares = BTreeMap::new();
    for (ids, share) in rows.values().zip(solved) {
        shares.extend(ids.iter().map(|id| (*id, share.clone())));
    }
    shares
}
