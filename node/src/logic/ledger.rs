//! Where this host's card time went: granted, idle, dirty, down. Exact integers: at any moment the four come to the wall
//! time since each card was first seen, no more and no less (fault I14). The log counts what users are charged; this is
//! the host's own count beside it.

use rota_protocol::DeviceUuid;
use std::collections::BTreeMap;

/// What a card is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Standing {
    /// Somebody holds it, or a part of it.
    Granted,
    /// Nobody does, and it may be granted.
    Idle,
    /// It is not clean, or used outside.
    Dirty,
    /// It is lost, or does not answer.
    Down,
}

impl Standing {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Granted, Self::Idle, Self::Dirty, Self::Down];

    /// For the metric: a word of a fixed set.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Granted => "granted",
            Self::Idle => "idle",
            Self::Dirty => "dirty",
            Self::Down => "down",
        }
    }
}

/// Times by card, in ms.
#[derive(Debug, Clone, Default)]
pub struct Ledger {
    cards: BTreeMap<DeviceUuid, Account>,
}

#[derive(Debug, Clone)]
struct Account {
    first_ms: u64,
    since_ms: u64,
    standing: Standing,
    spent_ms: [u64; 4],
}

impl Ledger {
    /// How the cards stand at `now_ms`; a card that is not named any more is down. A clock that went back counts nothing.
    pub fn stands(&mut self, now: &BTreeMap<DeviceUuid, Standing>, now_ms: u64) {
        for (uuid, account) in &mut self.cards {
            account.until(now_ms);
            account.standing = now.get(uuid).copied().unwrap_or(Standing::Down);
        }
        for (uuid, standing) in now {
            self.cards.entry(uuid.clone()).or_insert(Account {
                first_ms: now_ms,
                since_ms: now_ms,
                standing: *standing,
                spent_ms: [0; 4],
            });
        }
    }

    /// Time of all cards by standing, in ms, up to the last look.
    #[must_use]
    pub fn spent_ms(&self) -> [(Standing, u64); 4] {
        let of = |at: usize| self.cards.values().map(|account| account.spent_ms[at]).sum();
        std::array::from_fn(|at| (Standing::ALL[at], of(at)))
    }

    /// Cards whose times do not come to the time since they were first seen: none, ever.
    #[must_use]
    pub fn unbalanced(&self) -> Vec<DeviceUuid> {
        let off = |account: &Account| {
            account.spent_ms.iter().sum::<u64>() != account.since_ms.saturating_sub(account.first_ms)
        };
        self.cards.iter().filter(|(_, account)| off(account)).map(|(uuid, _)| uuid.clone()).collect()
    }
}

impl Account {
    fn until(&mut self, now_ms: u64) {
        let at = self.standing as usize;
        self.spent_ms[at] += now_ms.saturating_sub(self.since_ms);
        self.since_ms = self.since_ms.max(now_ms);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

        /// Any looks at any times, cards that come and go and come back, clocks that stand or jump.
        #[test]
        fn card_time_is_conserved(looks in prop::collection::vec((0_u64..5_000, prop::collection::vec(0_usize..6, 0..4)), 1..60)) {
            let mut ledger = Ledger::default();
            let (mut now_ms, mut first) = (0_u64, BTreeMap::new());
            for (step_ms, standings) in looks {
                now_ms += step_ms;
                let cards = standings.iter().enumerate().filter(|(_, at)| **at < 4);
                let now: BTreeMap<DeviceUuid, Standing> =
                    cards.map(|(n, at)| (DeviceUuid(format!("c{n}")), Standing::ALL[*at])).collect();
                ledger.stands(&now, now_ms);
                for uuid in now.into_keys() {
                    first.entry(uuid).or_insert(now_ms);
                }
                let wall_ms: u64 = first.values().map(|at| now_ms - at).sum();
                prop_assert_eq!(ledger.spent_ms().iter().map(|(_, ms)| ms).sum::<u64>(), wall_ms);
                prop_assert_eq!(ledger.unbalanced(), Vec::new());
            }
        }
    }

    #[test]
    fn time_goes_where_the_card_stood() {
        let card = DeviceUuid("a".into());
        let mut ledger = Ledger::default();
        let stands = |ledger: &mut Ledger, standing, now_ms| {
            ledger.stands(&BTreeMap::from([(card.clone(), standing)]), now_ms);
        };
        stands(&mut ledger, Standing::Idle, 100);
        stands(&mut ledger, Standing::Granted, 150);
        stands(&mut ledger, Standing::Dirty, 250);
        stands(&mut ledger, Standing::Idle, 240);
        ledger.stands(&BTreeMap::new(), 300);
        ledger.stands(&BTreeMap::new(), 301);
        let spent: Vec<u64> = ledger.spent_ms().into_iter().map(|(_, ms)| ms).collect();
        assert_eq!(spent, [100, 100, 0, 1], "granted, idle, dirty, down");
    }
}
