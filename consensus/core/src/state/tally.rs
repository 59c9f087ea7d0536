//! Sums along the paths of queues, for thoughts of what would be held. Part of no state.

use crate::state::queue::QueueTable;
use rota_protocol::queue::{Amounts, QueueId};
use std::collections::BTreeMap;

/// Amounts by queue, and by user within it, for thoughts of what would be held.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tally {
    queues: BTreeMap<QueueId, Amounts>,
    users: BTreeMap<(QueueId, String), Amounts>,
}

impl Tally {
    /// Adds amounts to a queue and all above it.
    pub fn add(&mut self, table: &QueueTable, queue: QueueId, user: &str, amounts: &Amounts) {
        for queue in table.path(queue) {
            let sum = self.queues.entry(queue.id).or_default();
            *sum = sum.plus(amounts);
            let sum = self.users.entry((queue.id, user.to_owned())).or_default();
            *sum = sum.plus(amounts);
        }
    }

    /// What a queue has, or one user of it.
    #[must_use]
    pub fn of(&self, queue: QueueId, user: Option<&str>) -> Amounts {
        let found = match user {
            None => self.queues.get(&queue),
            Some(user) => self.users.get(&(queue, user.to_owned())),
        };
        found.copied().unwrap_or_default()
    }

    /// What each queue has.
    pub fn queues(&self) -> impl Iterator<Item = (QueueId, &Amounts)> {
        self.queues.iter().map(|(id, amounts)| (*id, amounts))
    }
}
