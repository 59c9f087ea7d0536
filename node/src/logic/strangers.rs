//! Who is on a card that should not be there (reports R025, R026): processes of nobody's job, memory without a process,
//! and jobs on cards that they were not granted. A card with strangers is marked and not granted until they are gone.
//!
//! Sans-io. Which process belongs to which attempt is worked out before; what the log grants is given.

use super::reclaim::{Left, SLACK_MIB, named};
use rota_protocol::{DeviceUuid, Token};
use std::collections::{BTreeMap, BTreeSet};

/// Most memory that an idle card may use, in MiB, when it is first seen: drivers reserve some hundred MiB of large
/// cards. More than this, and more than a thirty-second part of the card, is somebody's.
pub const BASELINE_MIB_MAX: u64 = 1_024;
/// How long a process that does not exist here must be listed before it counts, in ms: one that has just ended is in the
/// driver's list for a moment, one in another pid namespace stays.
pub const GHOST_MS: u64 = 5_000;
/// How long memory without a process must be there before it counts, in ms: a driver frees it a moment after the process.
pub const LEAK_MS: u64 = 5_000;
/// A reason is told anew at most this often, in ms, while the card stays marked: strangers that come and go by the second
/// must not fill the log.
pub const RETELL_MS: u64 = 30_000;

/// Whose a process is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Whose {
    /// A process of this attempt.
    Attempt(Token),
    /// Rota's own, or one that the site allows on any card.
    Ours,
    /// Nobody's job; with the user's name or number.
    Stranger(String),
    /// It is there, and may not be looked into.
    Unreadable,
    /// There is no such process here.
    Absent,
}

/// One process on one card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// Its id on this host.
    pub pid: u32,
    /// Its memory there, in MiB, if the driver tells.
    pub mib: Option<u64>,
    /// Whose it is.
    pub whose: Whose,
}

/// One card at one look, each process with whose it is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CardSeen {
    /// Processes; none if the driver did not answer.
    pub processes: Option<Vec<Seen>>,
    /// Memory in use, in MiB.
    pub used_mib: Option<u64>,
    /// All of its memory, in MiB.
    pub total_mib: Option<u64>,
    /// Its load, in permille.
    pub busy_permille: Option<u16>,
}

/// A card, and who may be on it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Sight {
    /// What was seen.
    pub card: CardSeen,
    /// Attempts that the log, or this host, still has on it.
    pub held: BTreeSet<Token>,
}

/// A job on a card that is not its own.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Trespass {
    /// The attempt.
    pub token: Token,
    /// Its process.
    pub pid: u32,
    /// The card where it is.
    pub on: DeviceUuid,
}

/// What is known of each card between looks.
#[derive(Debug, Clone, Default)]
pub struct Strangers {
    cards: BTreeMap<DeviceUuid, Card>,
    told: BTreeSet<Trespass>,
}

#[derive(Debug, Clone, Default)]
struct Card {
    /// Least memory seen without a process, in MiB.
    baseline_mib: Option<u64>,
    /// Since when each absent process was listed.
    ghosts: BTreeMap<u32, u64>,
    leaks_since: Option<u64>,
    mark: Option<Mark>,
}

#[derive(Debug, Clone)]
struct Mark {
    reason: String,
    pids: Vec<u32>,
    told_ms: u64,
}

impl Strangers {
    /// Takes in one look. Cards that are not in it keep what was known. Gives trespasses that were not told before.
    pub fn looked(&mut self, sights: &BTreeMap<DeviceUuid, Sight>, now_ms: u64) -> Vec<Trespass> {
        let mut trespasses = BTreeSet::new();
        for (uuid, sight) in sights {
            let card = self.cards.entry(uuid.clone()).or_default();
            let Some(processes) = &sight.card.processes else { continue };
            card.learn(sight, processes.is_empty());
            let left = card.strangers(sight, processes, now_ms);
            card.judge(uuid, sight, left, now_ms);
            trespasses.extend(processes.iter().filter_map(|process| match process.whose {
                Whose::Attempt(token) if !sight.held.contains(&token) => {
                    Some(Trespass { token, pid: process.pid, on: uuid.clone() })
                }
                _ => None,
            }));
        }
        let new = trespasses.difference(&self.told).cloned().collect();
        self.told = trespasses;
        new
    }

    /// Why each marked card must not be granted.
    pub fn marks(&self) -> impl Iterator<Item = (&DeviceUuid, &str)> {
        self.cards.iter().filter_map(|(uuid, card)| Some((uuid, card.mark.as_ref()?.reason.as_str())))
    }

    /// Memory above that of the idle card, in MiB.
    #[must_use]
    pub fn over_mib(&self, uuid: &DeviceUuid, used_mib: u64) -> u64 {
        let baseline = self.cards.get(uuid).and_then(|card| card.baseline_mib).unwrap_or(0);
        used_mib.saturating_sub(baseline)
    }
}

impl Card {
    /// The idle card's memory is the least that was seen while nobody was there; what is too much for that is a leak.
    fn learn(&mut self, sight: &Sight, is_empty: bool) {
        let fair = BASELINE_MIB_MAX.max(sight.card.total_mib.unwrap_or(0) / 32);
        if let Some(used) = sight.card.used_mib.filter(|used| is_empty && *used <= fair) {
            self.baseline_mib = Some(self.baseline_mib.map_or(used, |known| known.min(used)));
        }
    }

    /// Processes of nobody's job.
    fn strangers(&mut self, sight: &Sight, processes: &[Seen], now_ms: u64) -> Vec<Left> {
        let absent: BTreeSet<u32> =
            processes.iter().filter(|p| p.whose == Whose::Absent).map(|p| p.pid).collect();
        self.ghosts.retain(|pid, _| absent.contains(pid));
        for pid in absent {
            self.ghosts.entry(pid).or_insert(now_ms);
        }
        let counts = |process: &&Seen| match process.whose {
            Whose::Attempt(_) | Whose::Ours => false,
            Whose::Stranger(_) => true,
            // Under a job on its own card nobody can tell that it is not the job's.
            Whose::Unreadable => sight.held.is_empty(),
            Whose::Absent => {
                let since = self.ghosts.get(&process.pid).copied().unwrap_or(now_ms);
                sight.held.is_empty() && now_ms.saturating_sub(since) >= GHOST_MS
            }
        };
        let left = |process: &Seen| Left {
            pid: process.pid,
            user: match &process.whose {
                Whose::Stranger(user) => Some(user.clone()),
                _ => None,
            },
            mib: process.mib,
        };
        processes.iter().filter(counts).map(left).collect()
    }

    fn judge(&mut self, uuid: &DeviceUuid, sight: &Sight, left: Vec<Left>, now_ms: u64) {
        let nobody = sight.held.is_empty() && sight.card.processes.as_ref().is_some_and(Vec::is_empty);
        let over = sight.card.used_mib.unwrap_or(0).saturating_sub(self.baseline_mib.unwrap_or(0));
        self.leaks_since = if nobody && over > SLACK_MIB { self.leaks_since.or(Some(now_ms)) } else { None };
        let leaks = self.leaks_since.is_some_and(|since| now_ms.saturating_sub(since) >= LEAK_MS);
        let (reason, pids) = if !left.is_empty() {
            let mut pids: Vec<u32> = left.iter().map(|one| one.pid).collect();
            pids.sort_unstable();
            (format!("used outside: {}", named(&left)), pids)
        } else if leaks {
            (format!("{over} MiB in use on {uuid} without a process"), Vec::new())
        } else {
            self.mark = None;
            return;
        };
        let again = self
            .mark
            .as_ref()
            .is_none_or(|mark| mark.pids != pids && now_ms.saturating_sub(mark.told_ms) >= RETELL_MS);
        if again {
            self.mark = Some(Mark { reason, pids, told_ms: now_ms });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card(name: &str) -> DeviceUuid {
        DeviceUuid(name.into())
    }

    fn sight(used_mib: u64, processes: &[(u32, Whose)], held: &[u64]) -> Sight {
        let seen = |(pid, whose): &(u32, Whose)| Seen { pid: *pid, mib: Some(1_024), whose: whose.clone() };
        let card = CardSeen {
            processes: Some(processes.iter().map(seen).collect()),
            used_mib: Some(used_mib),
            total_mib: Some(80 << 10),
            busy_permille: None,
        };
        Sight { card, held: held.iter().map(|token| Token(*token)).collect() }
    }

    fn look(strangers: &mut Strangers, sight: Sight, now_ms: u64) -> Option<String> {
        strangers.looked(&BTreeMap::from([(card("a"), sight)]), now_ms);
        strangers.marks().next().map(|(_, reason)| reason.to_owned())
    }

    fn stranger(user: &str) -> Whose {
        Whose::Stranger(user.into())
    }

    #[test]
    fn a_stranger_marks_the_card_and_its_end_unmarks_it() {
        let mut all = Strangers::default();
        assert_eq!(look(&mut all, sight(600, &[], &[]), 0), None, "what an idle card uses is its own");
        let used = look(&mut all, sight(10_840, &[(7, stranger("bob"))], &[]), 2_000);
        assert_eq!(used.as_deref(), Some("used outside: pid 7 of bob with 1024 MiB"));
        assert_eq!(look(&mut all, sight(600, &[], &[]), 4_000), None);
        // Also beside a job that has the card.
        assert!(look(&mut all, sight(9_000, &[(7, stranger("bob"))], &[1]), 6_000).is_some());
    }

    #[test]
    fn a_few_mib_without_a_process_are_nobodys_and_many_are_a_leak() {
        let mut all = Strangers::default();
        assert_eq!(look(&mut all, sight(4, &[], &[]), 0), None);
        for at in 0..10 {
            assert_eq!(look(&mut all, sight(4 + SLACK_MIB, &[], &[]), at), None);
        }
        for at in 100..100 + LEAK_MS {
            assert_eq!(look(&mut all, sight(5_000, &[], &[]), at), None);
        }
        let leak = look(&mut all, sight(5_000, &[], &[]), 100 + LEAK_MS).expect("a leak");
        assert!(leak.contains("4996 MiB in use on a without a process"), "{leak}");
        // A leak that is there at the first look is not taken for what the idle card uses.
        let mut all = Strangers::default();
        let mut marked = |at| look(&mut all, sight(20_000, &[], &[]), at).is_some();
        assert_eq!([0, LEAK_MS - 1, LEAK_MS, 90_000].map(&mut marked), [false, false, true, true]);
    }

    #[test]
    fn who_vanished_is_passed_over_and_who_is_never_there_counts_in_the_end() {
        let mut all = Strangers::default();
        let ghost = |pid| sight(3_000, &[(pid, Whose::Absent)], &[]);
        for at in 0..50 {
            assert_eq!(look(&mut all, ghost(1_000 + at), u64::from(at)), None, "each is another one");
        }
        assert_eq!(look(&mut all, ghost(9), 100), None);
        assert_eq!(look(&mut all, ghost(9), 99 + GHOST_MS), None);
        assert_eq!(
            look(&mut all, ghost(9), 100 + GHOST_MS).as_deref(),
            Some("used outside: pid 9 of unknown with 1024 MiB"),
            "with its memory"
        );
        // Where a job is, its processes may be in a pid namespace that is not ours.
        assert_eq!(look(&mut all, sight(3_000, &[(9, Whose::Absent)], &[5]), 9102), None);
        assert_eq!(look(&mut all, sight(3_000, &[(9, Whose::Unreadable)], &[5]), 9103), None);
        assert!(look(&mut all, sight(3_000, &[(9, Whose::Unreadable)], &[]), 9104).is_some());
    }

    #[test]
    fn a_silent_card_keeps_its_mark() {
        let mut all = Strangers::default();
        look(&mut all, sight(9_000, &[(7, stranger("bob"))], &[]), 0);
        assert!(look(&mut all, Sight::default(), 2_000).is_some());
        all.looked(&BTreeMap::new(), 4_000);
        assert_eq!(all.marks().count(), 1);
    }

    #[test]
    fn strangers_that_come_and_go_are_told_now_and_then() {
        let mut all = Strangers::default();
        let mut told = BTreeSet::new();
        for second in 0..60_u64 {
            let pid = u32::try_from(second).unwrap() + 10;
            told.extend(look(&mut all, sight(900, &[(pid, stranger("bob"))], &[]), second * 1_000));
        }
        assert_eq!(told.len(), 2, "{told:?}");
    }

    #[test]
    fn a_job_on_a_card_that_is_not_its_own_is_told_once() {
        let mut all = Strangers::default();
        let look = |all: &mut Strangers, there: bool| {
            let own = sight(2_000, &[(7, Whose::Attempt(Token(1)))], &[1]);
            let other = if there { vec![(8, Whose::Attempt(Token(1)))] } else { Vec::new() };
            let other = sight(2_000, &other, &[2]);
            all.looked(&BTreeMap::from([(card("a"), own), (card("b"), other)]), 0)
        };
        assert_eq!(look(&mut all, true), [Trespass { token: Token(1), pid: 8, on: card("b") }]);
        assert_eq!(look(&mut all, true), []);
        assert_eq!(all.marks().count(), 0, "a job is no stranger");
        look(&mut all, false);
        assert_eq!(look(&mut all, true).len(), 1, "after it had left");
    }
}
