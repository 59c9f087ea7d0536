//! What the planner sees: hosts by reference, and the heads of the queue by class. Bounded, whatever the queue.

use crate::state::State;
use crate::state::host::Host;
use rota_protocol::job::JobSpec;
use rota_protocol::limits::PLAN_MOVES_MAX;
use rota_protocol::{HostId, JobId, TaskId};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Most jobs copied for one round, over all classes.
const VIEW_JOBS_MAX: usize = 32_768;

/// One job that may be placed.
#[derive(Debug, Clone)]
pub struct ReadyJob {
    /// Its number.
    pub id: JobId,
    /// What it asks.
    pub spec: Arc<JobSpec>,
    /// Who pays.
    pub tenant: String,
    /// Log time of acceptance.
    pub submitted_ms: u64,
    /// The first waiting tasks, as ranges of ordinals.
    pub tasks: Vec<(u32, u32)>,
    /// How many may be placed at once.
    pub room: u32,
    /// Hosts to keep away from, and until when.
    pub avoid: Vec<(HostId, u64)>,
}

impl ReadyJob {
    /// Highest priority first, then the order of submission.
    pub(super) fn place(&self) -> (std::cmp::Reverse<u16>, JobId) {
        (std::cmp::Reverse(self.spec.priority), self.id)
    }

    /// The task at a position.
    pub(super) fn task(&self, ordinal: u32) -> TaskId {
        let index = self.spec.array.map_or(0, |array| array.index(ordinal));
        TaskId { job: self.id, index }
    }

    /// Tasks in order, no more than may be placed.
    pub(super) fn ordinals(&self) -> impl Iterator<Item = u32> + '_ {
        let flat = self.tasks.iter().flat_map(|(start, end)| *start..*end);
        flat.take(self.room as usize)
    }
}

/// A copy of what planning needs; taking it costs pointers, not jobs.
#[derive(Debug, Clone)]
pub struct View {
    /// The log index of the copy.
    pub index: u64,
    /// All hosts by number.
    pub hosts: Vec<Arc<Host>>,
    /// Ready jobs by class (equal asks), each class in order. A class holds no more jobs than a plan has moves.
    pub classes: Vec<Vec<ReadyJob>>,
}

impl View {
    /// A copy of `state`.
    #[must_use]
    pub fn of(state: &State) -> Self {
        let mut classes: Vec<(&BTreeSet<_>, _)> = Vec::new();
        for class in state.jobs.ready().values() {
            if let Some(head) = class.first() {
                classes.push((class, *head));
            }
        }
        // Should the copy be too small for all, the classes with the first heads are in it.
        classes.sort_by_key(|(_, head)| *head);
        let mut left = VIEW_JOBS_MAX;
        let classes = classes.into_iter().map_while(|(class, _)| {
            if left == 0 {
                return None;
            }
            let ids = class.iter().take(PLAN_MOVES_MAX.min(left)).map(|(_, _, id)| *id);
            let jobs: Vec<ReadyJob> = ids.filter_map(|id| ready(state, id)).collect();
            left = left.saturating_sub(jobs.len());
            Some(jobs)
        });
        Self {
            index: state.applied_index(),
            classes: classes.collect(),
            hosts: state.hosts.shared().cloned().collect(),
        }
    }
}

fn ready(state: &State, id: JobId) -> Option<ReadyJob> {
    let job = state.job(id)?;
    let room = job.parallel_room();
    let avoided = job.avoided(state.clock_ms());
    Some(ReadyJob {
        id,
        spec: Arc::clone(&job.spec),
        tenant: job.tenant.clone(),
        submitted_ms: job.submitted_ms,
        tasks: job.pending.first(room.min(PLAN_MOVES_MAX as u32)),
        room,
        avoid: avoided.map(|(host, avoid)| (host, avoid.until_ms)).collect(),
    })
}
