//! Two jobs on the same GPUs: worth it when both keep more than half of their speed. Adds partners to what `assign`
//! chose; it never takes a job off a GPU. Whether the hardware may be shared at all is the caller's to know.

use super::assign::Bid;
use super::table::{ClassId, ModelId};
use super::{Job, Run};
use std::cmp::Ordering;
use std::collections::{BTreeMap, BinaryHeap};

/// Speed that both must keep, in permille of being alone.
pub const KEEP_MIN_PERMILLE: u32 = 500;

/// What a class keeps of its speed beside another, by model, in permille of being alone.
#[derive(Debug, Clone, Default)]
pub struct PairTable {
    keeps: BTreeMap<(ModelId, ClassId, ClassId), u32>,
}

impl PairTable {
    /// Takes what `class` kept beside `other` on a model.
    pub fn observe(&mut self, model: ModelId, class: ClassId, other: ClassId, keeps_permille: u32) {
        self.keeps.insert((model, class, other), keeps_permille);
    }

    /// What both keep, the first named first; none unless both keep more than half.
    #[must_use]
    pub fn keeps(&self, model: ModelId, class: ClassId, other: ClassId) -> Option<(u32, u32)> {
        let first = *self.keeps.get(&(model, class, other))?;
        let second = *self.keeps.get(&(model, other, class))?;
        (first > KEEP_MIN_PERMILLE && second > KEEP_MIN_PERMILLE).then_some((first, second))
    }
}

/// One offer: a waiting class beside a running job.
#[derive(PartialEq)]
struct Offer {
    gain: f64,
    run: usize,
    class: ClassId,
    waiting: usize,
}

impl Eq for Offer {}

impl Ord for Offer {
    fn cmp(&self, other: &Self) -> Ordering {
        let name = |offer: &Self| (offer.run, offer.waiting);
        self.gain.total_cmp(&other.gain).then(name(other).cmp(&name(self)))
    }
}

impl PartialOrd for Offer {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Gives running jobs partners from among the waiting, the largest gain first. Both then name each other.
pub fn pair(jobs: &[Job], bids: &[Bid], pairs: &PairTable, runs: &mut Vec<Run>) {
    let mut waits = vec![true; jobs.len()];
    for run in runs.iter() {
        waits[run.job] = false;
    }
    // Jobs of one class and size differ in worth alone, so only the first of each needs to be looked at.
    let mut queues: BTreeMap<(ClassId, u32), Vec<usize>> = BTreeMap::new();
    for (at, job) in jobs.iter().enumerate().filter(|(at, _)| waits[*at]) {
        queues.entry((job.class, job.workers)).or_default().push(at);
    }
    let top = |at: usize| bids[at].values.iter().copied().fold(0.0, f64::max);
    for queue in queues.values_mut() {
        queue.sort_by(|a, b| top(*a).total_cmp(&top(*b)).then(b.cmp(a)));
    }
    let offer = |run: usize, seat: &Run, class: ClassId, waiting: usize| {
        let (keeps, brings) = pairs.keeps(ModelId(seat.model as u32), jobs[seat.job].class, class)?;
        let lost = bids[seat.job].values[seat.model] * f64::from(1000 - keeps.min(1000)) / 1000.0;
        let gain = bids[waiting].values[seat.model] * f64::from(brings) / 1000.0 - lost;
        (gain > 0.0).then_some(Offer { gain, run, class, waiting })
    };
    let mut offers = BinaryHeap::new();
    for (run, seat) in runs.iter().enumerate() {
        for ((class, workers), queue) in &queues {
            if *workers == jobs[seat.job].workers
                && let Some(first) = queue.last()
            {
                offers.extend(offer(run, seat, *class, *first));
            }
        }
    }
    while let Some(Offer { run, class, waiting, .. }) = offers.pop() {
        let seat = runs[run];
        if seat.partner.is_some() {
            continue;
        }
        let Some(queue) = queues.get_mut(&(class, jobs[seat.job].workers)) else { continue };
        if queue.last() != Some(&waiting) {
            if let Some(next) = queue.last() {
                offers.extend(offer(run, &seat, class, *next));
            }
            continue;
        }
        queue.pop();
        runs[run].partner = Some(waiting);
        runs.push(Run { job: waiting, model: seat.model, partner: Some(seat.job) });
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::job;
    use super::*;

    /// One GPU, three equal jobs; beside job 0, job 1 would keep 0.7 and job 2 0.9 while job 0 keeps 0.6 and 0.8.
    #[test]
    fn the_best_partner_joins_and_half_speed_is_refused() {
        let mut jobs = vec![job(0, 1, 600_000, 0), job(1, 1, 600_000, 0), job(2, 1, 600_000, 0)];
        for (at, job) in jobs.iter_mut().enumerate() {
            job.class = ClassId(at as u32);
        }
        let bids = vec![Bid { workers: 1, values: vec![1.0] }; 3];
        let mut pairs = PairTable::default();
        for (class, other, keeps) in [(0, 1, 600), (1, 0, 700), (0, 2, 800), (2, 0, 900)] {
            pairs.observe(ModelId(0), ClassId(class), ClassId(other), keeps);
        }
        let alone = vec![Run { job: 0, model: 0, partner: None }];
        let mut runs = alone.clone();
        pair(&jobs, &bids, &pairs, &mut runs);
        assert_eq!(runs[0].partner, Some(2));
        assert_eq!(runs[1], Run { job: 2, model: 0, partner: Some(0) });
        pairs.observe(ModelId(0), ClassId(2), ClassId(0), 500);
        pairs.observe(ModelId(0), ClassId(0), ClassId(1), 450);
        let mut runs = alone.clone();
        pair(&jobs, &bids, &pairs, &mut runs);
        assert_eq!(runs, alone);
    }
}
