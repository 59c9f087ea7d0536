//! What the planner sees: a bounded copy of the state that costs pointers, not rows.

use crate::apply::PREEMPT_GAP;
use crate::placement::hetero::lengths::Lengths;
use crate::state::State;
use crate::state::attempt::Attempt;
use crate::state::demand::Workload;
use crate::state::host::Host;
use crate::state::job::{Job, Place};
use crate::state::parted::Parted;
use crate::state::queue::Queue;
use crate::state::speeds::Speeds;
use rota_protocol::limits::PLAN_MOVES_MAX;
use rota_protocol::queue::QueueId;
use rota_protocol::reservation::ReservationSpec;
use rota_protocol::{HostId, JobId};
use std::sync::Arc;

/// Most jobs copied for one round, over all classes.
const VIEW_JOBS_MAX: usize = 65_536;
/// Jobs that are copied of each class, if there are so many.
const CLASS_JOBS_MIN: usize = 64;
/// Most running jobs that take turns in one round; the older ones.
const TURNING_MAX: usize = 4_096;
/// Most jobs whose deadline has passed that one round gives up.
const LAPSES_MAX: usize = 256;

/// One host and what lives there.
#[derive(Debug, Clone)]
pub struct HostView {
    /// The host.
    pub host: Arc<Host>,
    /// Its live attempts by token.
    pub attempts: Arc<Vec<Arc<Attempt>>>,
}

/// A copy of what planning needs.
#[derive(Debug, Clone, Default)]
pub struct View {
    /// The log index of the copy.
    pub index: u64,
    /// All hosts by number.
    pub hosts: Vec<HostView>,
    /// Ready jobs by class (equal asks on one account), each class in order, the first ones of each.
    pub classes: Vec<Vec<Arc<Job>>>,
    /// Some class has more ready jobs than were copied: after a round that started something there may be more.
    pub is_cut: bool,
    /// Waiting jobs that were promised a start, by number.
    pub promised: Vec<Arc<Job>>,
    /// Waiting jobs whose deadline has passed.
    pub lapsed: Vec<JobId>,
    /// All queues by number.
    pub queues: Vec<Arc<Queue>>,
    /// Advance reservations by name.
    pub reservations: Vec<Arc<ReservationSpec>>,
    /// What the cluster is asked for, and what was free for it.
    pub demand: Arc<Workload>,
    /// Grows when `demand` should be looked at again.
    pub demand_version: u64,
    /// How long jobs ran on which model.
    pub speeds: Arc<Speeds>,
    /// Jobs that take turns and run, by number.
    pub turning: Vec<Turning>,
    /// How much work such jobs turned out to be.
    pub lengths: Arc<Lengths>,
}

/// A job that takes turns, and what runs of it.
#[derive(Debug, Clone)]
pub struct Turning {
    /// The job.
    pub job: Arc<Job>,
    /// Its live attempts by index.
    pub attempts: Vec<Arc<Attempt>>,
}

impl View {
    /// A copy of `state`, as of `now_ms`.
    #[must_use]
    pub fn of(state: &State, now_ms: u64) -> Self {
        let promised = state.jobs.promised().filter_map(|id| state.jobs.shared(id));
        // One that moves to other cards is promised them while it still ends on its own.
        let moves = |job: &Job| job.spec.takes_turns() && job.promise.as_ref().is_some_and(|p| p.evicting);
        let (none, mut rows) = (Arc::default(), state.attempts.rows().peekable());
        // Both are in the order of hosts: one walk.
        let hosts = state.hosts.shared().map(|host| {
            while rows.peek().is_some_and(|(id, _)| *id < host.id) {
                rows.next();
            }
            let own = rows.peek().filter(|(id, _)| *id == host.id).map_or(&none, |(_, row)| *row);
            HostView { host: Arc::clone(host), attempts: Arc::clone(own) }
        });
        let hosts: Vec<HostView> = hosts.collect();
        let (classes, is_cut) = classes(state);
        Self {
            index: state.applied_index(),
            hosts,
            classes,
            is_cut,
            promised: promised.filter(|job| job.is_ready() || moves(job)).cloned().collect(),
            lapsed: state.jobs.lapsed(now_ms).take(LAPSES_MAX).collect(),
            queues: state.queues.shared().cloned().collect(),
            reservations: state.reservations.shared().cloned().collect(),
            demand: state.demand.published(),
            demand_version: state.demand.version,
            speeds: Arc::clone(&state.speeds),
            turning: turning(state),
            lengths: Arc::clone(&state.lengths),
        }
    }

    /// A queue by its number.
    #[must_use]
    pub fn queue(&self, id: QueueId) -> Option<&Arc<Queue>> {
        self.queues.binary_search_by_key(&id, |queue| queue.id).ok().map(|at| &self.queues[at])
    }

    /// The queue itself, then those above it.
    pub fn queue_path(&self, id: QueueId) -> impl Iterator<Item = &Arc<Queue>> {
        std::iter::successors(self.queue(id), |queue| self.queue(queue.parent?))
    }

    /// The same without jobs that cannot be in the way of `job`: of so much lower priority that not even a promise to
    /// them holds it back.
    #[must_use]
    pub(super) fn until(&self, job: &Job) -> Self {
        let classes = self.classes.iter().filter_map(|class| {
            // Each class is in the order of priority.
            let end =
                class.partition_point(|other| other.priority.saturating_add(PREEMPT_GAP) > job.priority);
            (end > 0).then(|| class[..end].to_vec())
        });
        Self { classes: classes.collect(), ..self.clone() }
    }

    /// The same with `other` in the place of the job of that number, as if it had been submitted so.
    #[must_use]
    pub(super) fn with(&self, other: &Arc<Job>) -> Self {
        let mut view = self.clone();
        for class in &mut view.classes {
            class.retain(|job| job.id != other.id);
        }
        view.classes.retain(|class| !class.is_empty());
        view.promised.retain(|job| job.id != other.id);
        let key = other.class();
        match view.classes.iter_mut().find(|class| class[0].class() == key) {
            Some(class) => {
                let at = class.partition_point(|job| job.place() < other.place());
                class.insert(at, Arc::clone(other));
            }
            None => view.classes.push(vec![Arc::clone(other)]),
        }
        view
    }

    /// Where a host stands among the hosts.
    #[must_use]
    pub fn host_at(&self, id: HostId) -> Option<usize> {
        self.hosts.binary_search_by_key(&id, |row| row.host.id).ok()
    }
}

fn turning(state: &State) -> Vec<Turning> {
    let row = |id| {
        let attempts = state.attempts.shared_of_job(id).cloned().collect();
        Some(Turning { job: Arc::clone(state.jobs.shared(id)?), attempts })
    };
    state.jobs.turning().take(TURNING_MAX).filter_map(row).collect()
}

/// The first jobs of each class, and whether there are more. Should the copy be too small for all, the classes with
/// the first heads are in it.
fn classes(state: &State) -> (Vec<Vec<Arc<Job>>>, bool) {
    let mut classes: Vec<(&Parted<Place, ()>, Place)> =
        state.jobs.ready().values().filter_map(|class| Some((class, *class.iter().next()?.0))).collect();
    classes.sort_by_key(|(_, head)| *head);
    let mut left = VIEW_JOBS_MAX;
    let mut is_cut = false;
    // Mostly only the first job of a class is looked at: a copy of all would cost more than the round.
    let per_class = (PLAN_MOVES_MAX / classes.len().max(1)).max(CLASS_JOBS_MIN);
    let copied = classes.into_iter().map_while(|(class, _)| {
        if left == 0 {
            is_cut = true;
            return None;
        }
        is_cut |= class.len() > per_class.min(left);
        let ids = class.iter().take(per_class.min(left)).map(|((_, _, id), ())| *id);
        let jobs: Vec<Arc<Job>> = ids.filter_map(|id| state.jobs.shared(id)).cloned().collect();
        left = left.saturating_sub(jobs.len());
        Some(jobs)
    });
    let copied = copied.collect();
    (copied, is_cut)
}
