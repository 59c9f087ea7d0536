//! Whom a follower asks next: it stays with one parent for as long as that serves it, goes to the next one on its way
//! up when it does not, and comes back when its own is well again. Sans-io: time enters as data.
//!
//! What this is not: proof of anything. Whatever parent a host has, it takes only what was committed.

use rota_protocol::ids::HostId;
use std::collections::BTreeMap;

/// A parent that hears nothing from above for this long is left: a poll ends sooner even where nothing happens.
pub const SILENT_MS_MAX: u64 = 3_000;
/// Steps from the leader beyond which two hosts follow each other.
pub(crate) const DEPTH_MAX: u8 = 16;
/// First rest of a parent that did not answer; it doubles.
const REST_MS: u64 = 1_000;
/// Longest such rest: a host that restarts is asked again soon.
const REST_MS_MAX: u64 = 15_000;
/// Rest of one that has enough children, hears nothing, or is behind.
const PASSING_MS: u64 = 5_000;
/// How often a follower tries whether its own parent is well again.
const HOMEWARD_MS: u64 = 20_000;
/// Pause before anybody is asked when all rest: a cluster may just have no leader.
const PAUSE_MS: u64 = 300;

/// What to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Ask this one.
    Ask(HostId),
    /// Nobody can be asked for so many ms.
    Pause(u64),
}

/// What came of a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heard {
    /// An answer that is good, though it may hold nothing new.
    Fed {
        /// How long the parent has heard nothing from above, in ms.
        silent_ms: u64,
        /// How many steps it stands from the leader.
        depth: u8,
    },
    /// It is behind this host, or knows only an older leader.
    Behind,
    /// It has children enough.
    Full,
    /// It did not answer, or nothing that can be used.
    Lost,
}

#[derive(Debug, Clone, Copy, Default)]
struct Rest {
    until_ms: u64,
    failures: u32,
}

/// The memory of one follower.
#[derive(Debug, Clone, Default)]
pub struct Course {
    way: Vec<HostId>,
    at: Option<HostId>,
    rests: BTreeMap<HostId, Rest>,
    homeward_ms: u64,
    /// How often it went from one parent to another.
    pub moves: u64,
}

impl Course {
    /// Who can be asked, the best first; the last one is the leader.
    pub fn set_way(&mut self, way: Vec<HostId>) {
        if way != self.way {
            self.rests.retain(|host, _| way.contains(host));
            self.way = way;
        }
    }

    /// Whom it follows.
    #[must_use]
    pub fn parent(&self) -> Option<HostId> {
        self.at
    }

    /// Other peers feed it without being asked: begin anew when that ends.
    pub fn reset(&mut self) {
        self.at = None;
    }

    fn rests(&self, host: HostId, now_ms: u64) -> bool {
        self.rests.get(&host).is_some_and(|rest| now_ms < rest.until_ms)
    }

    /// The next step at `now_ms`.
    pub fn next(&mut self, now_ms: u64) -> Step {
        let best = self.way.iter().copied().find(|host| !self.rests(*host, now_ms));
        let stays = self.at.filter(|at| {
            let place = self.way.iter().position(|host| host == at);
            let last_resort = place.is_some_and(|place| place > 0 && place + 1 == self.way.len());
            place.is_some() && !self.rests(*at, now_ms) && !last_resort && now_ms < self.homeward_ms
        });
        if let Some(at) = stays {
            return Step::Ask(at);
        }
        let Some(best) = best else {
            // Whoever may be asked first of all that rest, but not without a pause.
            let first = self.rests.values().map(|rest| rest.until_ms).min();
            let left = first.map_or(PAUSE_MS, |at| at.saturating_sub(now_ms).min(PAUSE_MS));
            self.at = None;
            self.wake(now_ms + left);
            return Step::Pause(left.max(1));
        };
        if self.at != Some(best) {
            self.moves += u64::from(self.at.is_some());
            self.at = Some(best);
        }
        self.homeward_ms = now_ms + HOMEWARD_MS;
        Step::Ask(best)
    }

    /// Lets the one that has rested longest be asked at this time, whatever its rest.
    fn wake(&mut self, at_ms: u64) {
        if let Some(rest) = self.rests.values_mut().min_by_key(|rest| rest.until_ms) {
            rest.until_ms = rest.until_ms.min(at_ms);
        }
    }

    /// What came of asking `from`.
    pub fn heard(&mut self, from: HostId, heard: Heard, now_ms: u64) {
        let rest = self.rests.entry(from).or_default();
        match heard {
            Heard::Fed { silent_ms, depth } if silent_ms <= SILENT_MS_MAX && depth < DEPTH_MAX => {
                *rest = Rest::default();
            }
            Heard::Fed { .. } | Heard::Behind | Heard::Full => rest.until_ms = now_ms + PASSING_MS,
            Heard::Lost => {
                let pause = REST_MS << rest.failures.min(8);
                rest.failures = rest.failures.saturating_add(1);
                rest.until_ms = now_ms + pause.min(REST_MS_MAX);
            }
        }
    }
}

#[cfg(test)]
#[path = "course_tests.rs"]
mod tests;
