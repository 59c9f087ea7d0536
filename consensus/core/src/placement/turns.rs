//! Order: whose turn it is. Accounts take turns by priority and fair share; on one account those that were evicted go
//! first, then the order key decides (`order.rs`).

use super::order::{OrderKey, Waiting, order_key};
use super::round::Round;
use super::share::ShareKey;
use super::view::View;
use crate::state::job::Job;
use rota_protocol::JobId;
use rota_protocol::queue::QueueId;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;

/// How long a job of which nothing is known is taken to run when jobs are put in order, in ms.
const UNKNOWN_RUN_MS: u64 = 4 * 3_600 * 1_000;

/// The heads of one account's classes: the job's standing, its class, its place there.
pub(super) struct Line {
    queue: QueueId,
    user: String,
    pub(super) heads: BinaryHeap<Reverse<(Standing, usize, usize)>>,
}

/// Place of a job on its account: those that were evicted before those that never started, then by the order key.
pub(crate) type Standing = (Reverse<u16>, Reverse<bool>, OrderKey, JobId);

/// An account's place among all, and the job that it would be for.
pub(super) type Turn = (Reverse<u16>, ShareKey, Standing, usize);

/// Ready jobs of one class in the order of the round.
pub(super) type Sorted = Vec<(Standing, usize)>;

impl Round<'_> {
    pub(super) fn turn(&self, line: &Line, at: usize) -> Option<Turn> {
        let Reverse((standing, _, _)) = line.heads.peek()?;
        let key = self.shares.key(self.view, line.queue, &line.user);
        Some((standing.0, key, *standing, at))
    }

    pub(super) fn sorted(&self, jobs: &[Arc<Job>]) -> Sorted {
        let standings = jobs.iter().enumerate().map(|(at, job)| (standing(job, self.now_ms), at));
        let mut sorted: Sorted = standings.collect();
        sorted.sort_unstable();
        sorted
    }
}

/// Where a job stands on its account at `now_ms`: smaller goes first.
pub(crate) fn standing(job: &Job, now_ms: u64) -> Standing {
    let waiting = Waiting {
        priority: job.priority,
        submitted_ms: job.submitted_ms.max(job.earliest_ms()),
        predicted_ms: job.predicted_ms.unwrap_or(UNKNOWN_RUN_MS),
        limit_ms: job.spec.time_limit_ms,
        width: width(job),
    };
    (Reverse(job.priority), Reverse(job.evicted > 0), order_key(&waiting, now_ms), job.id)
}

/// One line for each account that waits.
pub(super) fn lines(view: &View, sorted: &[Sorted]) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    let mut known: BTreeMap<(QueueId, &str), usize> = BTreeMap::new();
    for (class, jobs) in view.classes.iter().enumerate() {
        let Some(head) = jobs.first() else {
            continue;
        };
        let line = *known.entry((head.queue, &head.user)).or_insert_with(|| {
            lines.push(Line { queue: head.queue, user: head.user.clone(), heads: BinaryHeap::new() });
            lines.len() - 1
        });
        lines[line].heads.extend(sorted[class].first().map(|(first, _)| Reverse((*first, class, 0))));
    }
    lines
}

/// Cards, or hosts' worth of CPU, that a job asks in all.
fn width(job: &Job) -> u32 {
    let parts = job.spec.gang.map_or(1, |gang| gang.min);
    job.spec.ask.gpus().max(1).saturating_mul(parts)
}
