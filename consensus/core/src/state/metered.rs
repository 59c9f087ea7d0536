//! What users held of GPUs and CPUs since the cluster began, by tenant, user and queue: what is to be paid for. It never
//! fades; the use that queues are compared by does, and stands with them.

use super::meta::Usage;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Rows remembered; what the smallest one held is added to that of [`OTHERS`] when it gives way. A site has fewer.
pub const METERED_MAX: usize = 16_384;
/// Stands for the users and queues of a tenant that are not remembered one by one.
pub const OTHERS: &str = "(others)";

/// Tenant, user, path of the queue.
type Key = (String, String, String);

/// The table.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Metered {
    rows: BTreeMap<Key, Usage>,
}

impl Metered {
    /// Adds what an attempt held.
    pub(crate) fn add(&mut self, tenant: &str, user: &str, queue: &str, held: Usage) {
        let key = (tenant.to_owned(), user.to_owned(), queue.to_owned());
        if self.rows.len() >= METERED_MAX && !self.rows.contains_key(&key) {
            self.fold_least();
        }
        self.rows.entry(key).or_default().add(held);
    }

    fn fold_least(&mut self) {
        let single = self.rows.iter().filter(|((_, user, _), _)| user != OTHERS);
        let least = single.min_by_key(|(_, held)| (held.gpu_ms, held.cpu_ms)).map(|(key, _)| key.clone());
        let Some((key, held)) = least.and_then(|key| self.rows.remove_entry(&key)) else { return };
        self.rows.entry((key.0, OTHERS.to_owned(), OTHERS.to_owned())).or_default().add(held);
    }

    /// Tenant, user, queue and what was held, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str, &str, Usage)> {
        self.rows.iter().map(|((tenant, user, queue), held)| (&**tenant, &**user, &**queue, *held))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_bounded_and_loses_no_time() {
        let mut table = Metered::default();
        let held = |ms| Usage { gpu_ms: ms, cpu_ms: 1, attempts: 1 };
        for n in 0..METERED_MAX + 10 {
            table.add("t", &format!("u{n:06}"), "q", held(n as u64 + 1));
        }
        assert!(table.iter().count() <= METERED_MAX + 1);
        let sum = |value: fn(Usage) -> u64| table.iter().map(|(.., held)| value(held)).sum::<u64>();
        let all = (METERED_MAX + 10) as u64;
        assert_eq!((sum(|held| held.gpu_ms), sum(|held| held.attempts)), (all * (all + 1) / 2, all));
    }
}
