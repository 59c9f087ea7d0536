//! Card time that was held and not used, by tenant and user, as the hosts saw it.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Users remembered; those with the least idle time give way. A site has fewer.
pub const IDLE_USERS_MAX: usize = 16_384;

/// The table.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct IdleTable {
    gpu_ms: BTreeMap<(String, String), u64>,
}

impl IdleTable {
    /// Adds to what a user held idle.
    pub(crate) fn add(&mut self, tenant: &str, user: &str, gpu_ms: u64) {
        let key = (tenant.to_owned(), user.to_owned());
        if self.gpu_ms.len() >= IDLE_USERS_MAX && !self.gpu_ms.contains_key(&key) {
            let least = self.gpu_ms.iter().min_by_key(|(_, ms)| **ms).map(|(key, _)| key.clone());
            if let Some(least) = least {
                self.gpu_ms.remove(&least);
            }
        }
        let held = self.gpu_ms.entry(key).or_default();
        *held = held.saturating_add(gpu_ms);
    }

    /// Tenant, user and card-milliseconds, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str, u64)> {
        self.gpu_ms.iter().map(|((tenant, user), ms)| (tenant.as_str(), user.as_str(), *ms))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_bounded_and_forgets_the_least() {
        let mut table = IdleTable::default();
        for n in 0..IDLE_USERS_MAX + 1 {
            table.add("t", &format!("u{n:06}"), n as u64 + 1);
        }
        assert_eq!(table.iter().count(), IDLE_USERS_MAX);
        assert_eq!(table.iter().next().map(|(_, user, ms)| (user, ms)), Some(("u000001", 2)));
        table.add("t", "u000001", 5);
        assert_eq!(table.iter().next().map(|(_, _, ms)| ms), Some(7));
    }
}
