//! Does what the log says of this host agree with what is here? The auditor compares, each second, the log's attempts,
//! the shims' processes and the cards, and counts what differs. A difference counts only if it lasts while this host's
//! lease holds, so that its copy of the log is a fresh one: starts and ends are on their way for a moment (I2, I6).
//!
//! Sans-io. It repairs nothing: the reconciler does. It only tells that something is wrong, for a person and for the
//! chaos runs.

use rota_protocol::{DeviceUuid, Token};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Looks in which a difference must show.
const LOOKS: u32 = 2;
/// How long it must show, in ms: reports are told again for as long.
pub const LASTS_MS: u64 = 10_000;

/// One difference. The variant's name is the metric's label.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Difference {
    /// The log has it running here, and this host knows nothing of it.
    Unknown(Token),
    /// It has a process here, the log is done with it, and nobody asked for its end.
    Leftover(Token),
    /// It runs by this host's record, and its shim is not there.
    NoProcess(Token),
    /// Two attempts have processes, and one of them holds the whole device.
    TwiceUsed(DeviceUuid, Token, Token),
    /// This host says that the device is not to be granted, and the log believes that it is healthy.
    HealthStale(DeviceUuid),
    /// A job's process is on a card that it was not granted.
    Trespass(Token, DeviceUuid),
}

impl Difference {
    /// A word of a fixed set.
    #[must_use]
    pub fn id(&self) -> &'static str {
        match self {
            Self::Unknown(_) => "HostUnknown",
            Self::Leftover(_) => "HostLeftover",
            Self::NoProcess(_) => "HostNoProcess",
            Self::TwiceUsed(..) => "HostTwiceUsed",
            Self::HealthStale(_) => "HostHealthStale",
            Self::Trespass(..) => "HostTrespass",
        }
    }

    /// Rota itself is wrong; a task that goes where it may not is the task's doing.
    #[must_use]
    pub fn is_violation(&self) -> bool {
        !matches!(self, Self::Trespass(..))
    }

    /// Every id, for gauges that are zero.
    pub const IDS: [&'static str; 6] =
        ["HostUnknown", "HostLeftover", "HostNoProcess", "HostTwiceUsed", "HostHealthStale", "HostTrespass"];
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(token) => write!(f, "attempt {token} runs in the log and is not known here"),
            Self::Leftover(token) => write!(f, "attempt {token} is over in the log and lives here"),
            Self::NoProcess(token) => write!(f, "attempt {token} runs by the record and has no shim"),
            Self::TwiceUsed(uuid, a, b) => write!(f, "attempts {a} and {b} are both on {uuid}"),
            Self::HealthStale(uuid) => write!(f, "the log believes that {uuid} is healthy"),
            Self::Trespass(token, uuid) => {
                write!(f, "attempt {token} is on {uuid}, which it was not granted")
            }
        }
    }
}

/// What the log has of one attempt here.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Logged {
    /// It was reported as running, and is not being ended.
    pub running: bool,
    /// Its devices.
    pub devices: Vec<DeviceUuid>,
    /// It holds a part of the first of them.
    pub shares: bool,
}

/// What this host has of one attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Here {
    /// Ordered, not reported.
    Launching,
    /// A process was reported; `shim` says whether its shim lives.
    Running {
        /// The shim lives.
        shim: bool,
    },
    /// Over; its end is on the way to the log, or its cards are being given back.
    Ended,
}

/// Both sides at one moment.
#[derive(Debug, Clone, Default)]
pub struct Sides {
    /// The log index of the state.
    pub applied: u64,
    /// By the log.
    pub logged: BTreeMap<Token, Logged>,
    /// By this host, with whether its end was asked.
    pub here: BTreeMap<Token, (Here, bool)>,
    /// Devices that this host does not offer.
    pub closed: BTreeSet<DeviceUuid>,
    /// Devices that the log believes healthy.
    pub healthy: BTreeSet<DeviceUuid>,
    /// Attempts by their processes on cards.
    pub on_cards: BTreeSet<(Token, DeviceUuid)>,
}

/// What differs at one moment.
#[must_use]
pub fn differences(sides: &Sides) -> BTreeSet<Difference> {
    let mut found = BTreeSet::new();
    for (token, logged) in &sides.logged {
        if logged.running && !sides.here.contains_key(token) {
            found.insert(Difference::Unknown(*token));
        }
    }
    for (token, (here, end_asked)) in &sides.here {
        // One that was granted after the state was read is not missing in it.
        let over = !sides.logged.contains_key(token) && token.log_index() <= sides.applied;
        match here {
            Here::Launching | Here::Running { .. } if over && !end_asked => {
                found.insert(Difference::Leftover(*token));
            }
            Here::Running { shim: false } => {
                found.insert(Difference::NoProcess(*token));
            }
            Here::Launching | Here::Running { .. } | Here::Ended => {}
        }
    }
    found.extend(twice_used(sides));
    let stale = sides.closed.intersection(&sides.healthy);
    found.extend(stale.map(|uuid| Difference::HealthStale(uuid.clone())));
    found.extend(sides.on_cards.iter().filter_map(|(token, uuid)| {
        let logged = sides.logged.get(token)?;
        (!logged.devices.contains(uuid)).then(|| Difference::Trespass(*token, uuid.clone()))
    }));
    found
}

/// Devices under processes of two attempts of which one has all of it.
fn twice_used(sides: &Sides) -> Vec<Difference> {
    let mut users: BTreeMap<&DeviceUuid, Vec<(Token, bool)>> = BTreeMap::new();
    for (token, logged) in &sides.logged {
        let live = matches!(sides.here.get(token), Some((Here::Running { .. }, _)));
        for (at, uuid) in logged.devices.iter().enumerate().filter(|_| live) {
            users.entry(uuid).or_default().push((*token, at == 0 && logged.shares));
        }
    }
    let twice = users.into_iter().filter_map(|(uuid, users)| {
        let (whole, _) = users.iter().find(|(_, shares)| !shares)?;
        let (other, _) = users.iter().find(|(token, _)| token != whole)?;
        Some(Difference::TwiceUsed(uuid.clone(), *whole, *other))
    });
    twice.collect()
}

/// Differences over time.
#[derive(Debug, Clone, Default)]
pub struct Audit {
    seen: BTreeMap<Difference, Since>,
}

#[derive(Debug, Clone, Copy)]
struct Since {
    at_ms: u64,
    looks: u32,
    told: bool,
}

impl Audit {
    /// Takes in one look; gives what has lasted, once for each time that it appears. `leased`: this host's lease holds,
    /// so the state that was looked at is no older than that; without it nothing can be said.
    pub fn looked(&mut self, found: BTreeSet<Difference>, leased: bool, now_ms: u64) -> Vec<Difference> {
        self.seen.retain(|difference, _| leased && found.contains(difference));
        if !leased {
            return Vec::new();
        }
        let mut lasting = Vec::new();
        for difference in found {
            let since =
                self.seen.entry(difference.clone()).or_insert(Since { at_ms: now_ms, looks: 0, told: false });
            since.looks = since.looks.saturating_add(1);
            let lasts = since.looks >= LOOKS && now_ms.saturating_sub(since.at_ms) >= LASTS_MS;
            if lasts && !since.told {
                since.told = true;
                lasting.push(difference);
            }
        }
        lasting
    }

    /// How many differences of each id there are now, those on their way included.
    #[must_use]
    pub fn counts(&self) -> BTreeMap<&'static str, u32> {
        let mut counts: BTreeMap<&'static str, u32> = Difference::IDS.iter().map(|id| (*id, 0)).collect();
        for difference in self.seen.keys() {
            *counts.entry(difference.id()).or_default() += 1;
        }
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card(name: &str) -> DeviceUuid {
        DeviceUuid(name.into())
    }

    fn token(index: u64) -> Token {
        Token::new(index, 0)
    }

    fn logged(devices: &[&str], shares: bool) -> Logged {
        Logged { running: true, devices: devices.iter().map(|name| card(name)).collect(), shares }
    }

    fn sides() -> Sides {
        let logged = BTreeMap::from([(token(5), logged(&["a"], false)), (token(6), logged(&["b"], true))]);
        let here = [(token(5), (Here::Running { shim: true }, false)), (token(6), (Here::Launching, false))];
        Sides { applied: 100, logged, here: here.into(), ..Sides::default() }
    }

    fn only(sides: &Sides) -> Vec<Difference> {
        differences(sides).into_iter().collect()
    }

    #[test]
    fn two_sides_that_agree_differ_in_nothing() {
        let mut all = sides();
        assert_eq!(only(&all), []);
        // Granted after the state was read, and what is over on both sides.
        all.here.insert(token(101), (Here::Launching, false));
        all.here.insert(token(7), (Here::Ended, false));
        all.here.insert(token(8), (Here::Running { shim: true }, true));
        assert_eq!(only(&all), []);
    }

    #[test]
    fn each_difference_has_its_name() {
        let mut all = sides();
        all.here.remove(&token(5));
        assert_eq!(only(&all), [Difference::Unknown(token(5))]);
        let mut all = sides();
        all.here.insert(token(7), (Here::Running { shim: true }, false));
        assert_eq!(only(&all), [Difference::Leftover(token(7))]);
        let mut all = sides();
        all.here.insert(token(5), (Here::Running { shim: false }, false));
        assert_eq!(only(&all), [Difference::NoProcess(token(5))]);
        let mut all = sides();
        all.logged.insert(token(6), logged(&["a"], true));
        all.here.insert(token(6), (Here::Running { shim: true }, false));
        assert_eq!(only(&all), [Difference::TwiceUsed(card("a"), token(5), token(6))]);
        all.logged.insert(token(5), logged(&["a"], true));
        assert_eq!(only(&all), [], "two shares of one card");
        let mut all = sides();
        (all.closed, all.healthy) = ([card("a"), card("c")].into(), [card("a"), card("b")].into());
        all.on_cards = [(token(5), card("b"))].into();
        assert_eq!(
            only(&all),
            [Difference::HealthStale(card("a")), Difference::Trespass(token(5), card("b"))]
        );
    }

    #[test]
    fn only_what_lasts_under_a_lease_counts_and_only_once() {
        let mut audit = Audit::default();
        let one = || BTreeSet::from([Difference::Unknown(token(5))]);
        assert_eq!(audit.looked(one(), true, 0), []);
        assert_eq!(audit.looked(one(), true, LASTS_MS - 1), []);
        assert_eq!(audit.counts()["HostUnknown"], 1);
        assert_eq!(audit.looked(one(), true, LASTS_MS), [Difference::Unknown(token(5))]);
        assert_eq!(audit.looked(one(), true, LASTS_MS + 2), []);
        assert_eq!(audit.looked(BTreeSet::new(), true, LASTS_MS + 3), []);
        assert_eq!(audit.counts()["HostUnknown"], 0);
        assert_eq!(audit.looked(one(), true, 50_000), [], "another time begins anew");
        assert_eq!(audit.looked(one(), false, 70_000), [], "cut off, the log is an old one");
        assert_eq!(audit.looked(one(), true, 80_000), []);
        assert_eq!(audit.looked(one(), true, 80_000 + LASTS_MS).len(), 1);
    }
}
