//! What a job's row is made of, besides numbers and sets: its class, its promise, its back-offs, the name of its end.

use super::Job;
use rota_protocol::ask::Ask;
use rota_protocol::plan::{PromiseBreak, Slot};
use rota_protocol::queue::QueueId;
use rota_protocol::work::{GangSpec, Layout};
use serde::{Deserialize, Serialize};
use std::borrow::Borrow;
use std::cmp::Ordering;

/// A start that a waiting job was promised.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Promise {
    /// It starts no later than this log time.
    pub at_ms: u64,
    /// Since when it is promised.
    pub made_ms: u64,
    /// Where.
    pub slots: Vec<Slot>,
    /// With which of its asks.
    pub choice: u8,
    /// Attempts are being ended for it: the slots are its own as soon as they are free.
    pub evicting: bool,
    /// Why the promise before this one did not hold.
    pub broken_by: Option<PromiseBreak>,
}

/// Jobs that ask the same of the same hosts on the same account: if one of them does not fit, none does.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ClassKey {
    /// Whose account.
    pub queue: QueueId,
    /// Who pays: shares of a card are not lent across tenants.
    pub tenant: String,
    /// Who submitted it: a queue is shared by its users.
    pub user: String,
    /// What each task asks.
    pub ask: Ask,
    /// What would do as well.
    pub alternatives: Vec<Ask>,
    /// Parts that must start together.
    pub gang: Option<GangSpec>,
    /// How tasks lie to one another.
    pub layout: Layout,
    /// They take turns: a round may have seats for some of them and not for others.
    pub turns: bool,
}

/// A [`ClassKey`], or a job as if it were its own: looked for without making one.
pub(super) trait Class {
    fn parts(&self) -> Parts<'_>;
}

/// The fields of a [`ClassKey`] in their order, by which keys are ordered.
type Parts<'a> = (QueueId, &'a str, &'a str, &'a Ask, &'a [Ask], Option<GangSpec>, Layout, bool);

impl Class for ClassKey {
    fn parts(&self) -> Parts<'_> {
        let Self { queue, tenant, user, ask, alternatives, gang, layout, turns } = self;
        (*queue, tenant, user, ask, alternatives, *gang, *layout, *turns)
    }
}

impl Class for Job {
    fn parts(&self) -> Parts<'_> {
        let spec = &self.spec;
        let turns = spec.takes_turns();
        (self.queue, &self.tenant, &self.user, &spec.ask, &spec.alternatives, spec.gang, spec.layout, turns)
    }
}

impl<'a> Borrow<dyn Class + 'a> for ClassKey {
    fn borrow(&self) -> &(dyn Class + 'a) {
        self
    }
}

impl PartialEq for dyn Class + '_ {
    fn eq(&self, other: &Self) -> bool {
        self.parts() == other.parts()
    }
}

impl Eq for dyn Class + '_ {}

impl PartialOrd for dyn Class + '_ {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for dyn Class + '_ {
    fn cmp(&self, other: &Self) -> Ordering {
        self.parts().cmp(&other.parts())
    }
}

/// A job's back-off from one host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Avoid {
    /// Not placed there before this log time.
    pub until_ms: u64,
    /// How often it backed off from there.
    pub failures: u32,
}

/// How a gang ends for good.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum GangOver {
    /// A part failed.
    Failed,
    /// It was ended to make room, and is not to be queued again.
    Preempted,
}

#[cfg(test)]
mod tests {
    use super::*;
    use rota_protocol::JobId;
    use rota_protocol::job::{Actor, JobSpec, Role};

    /// A key that is looked for by its job is ordered as keys are.
    #[test]
    fn a_job_stands_where_its_class_does() {
        let job = |number: u32| {
            let actor = Actor {
                user: format!("user {}", number % 2),
                tenant: format!("tenant {}", number / 2 % 2),
                role: Role::Submitter,
            };
            let ask = |milli| Ask { gpu_milli: milli, ..Ask::default() };
            let spec = JobSpec {
                ask: ask(number / 4 % 2 * 1_000),
                alternatives: (0..number / 8 % 2).map(|_| ask(500)).collect(),
                gang: (number / 16 % 2 == 1).then_some(GangSpec { min: 2, max: 2 }),
                layout: if number / 32 % 2 == 1 { Layout::Pack } else { Layout::Any },
                ..JobSpec::default()
            };
            Job::new(JobId(1), &actor, QueueId(u64::from(number / 64)), spec, 0)
        };
        let jobs: Vec<Job> = (0..128).map(job).collect();
        for (a, b) in jobs.iter().flat_map(|a| jobs.iter().map(move |b| (a, b))) {
            let by_key = a.class().cmp(&b.class());
            let (seen, key): (&dyn Class, ClassKey) = (a, b.class());
            assert_eq!(seen.cmp(key.borrow()), by_key);
        }
    }
}
