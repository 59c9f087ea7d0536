//! Fast links between cards that go down, flap, or err (fault G9).

use super::look::TROUBLE_MINUTES;
use crate::devices::signs::LinkSigns;
use std::collections::{BTreeSet, VecDeque};

/// Looks in a row with fewer links than there were: one alone may be a card that is just being reset.
const DOWN_LOOKS: u32 = 3;
/// So often a link went down within [`TROUBLE_MINUTES`]: it flaps.
const DROPS_MAX: usize = 3;
/// So many of the newest minutes with new errors.
const ERROR_MINUTES_MAX: usize = 6;

/// What was seen of one card's links so far.
#[derive(Debug, Default)]
pub(super) struct Links {
    /// The most that were up.
    most: u32,
    last_up: Option<u32>,
    down_looks: u32,
    /// When one went down.
    drops: VecDeque<u64>,
    errors: Option<u64>,
    /// Minutes since the epoch in which errors were counted.
    erring: BTreeSet<u64>,
}

impl Links {
    /// Takes in a look; what there is to tell. `equals_up` are the most links of any equal card of the same island: what
    /// was down when the agent started is down as well.
    pub(super) fn look(&mut self, signs: &LinkSigns, equals_up: u32, now_ms: u64) -> Option<String> {
        let up = signs.up?;
        let minute = now_ms / 60_000;
        if self.last_up.is_some_and(|before| up < before) {
            self.drops.push_back(now_ms);
            // No more of them are needed to call it so.
            while self.drops.len() > DROPS_MAX {
                self.drops.pop_front();
            }
        }
        self.last_up = Some(up);
        self.drops.retain(|at_ms| at_ms + TROUBLE_MINUTES * 60_000 > now_ms);
        self.most = self.most.max(up);
        let should = self.most.max(equals_up);
        self.down_looks = if up < should { self.down_looks.saturating_add(1) } else { 0 };
        // A count that went backwards was reset, and has grown by nothing.
        if self.errors.zip(signs.errors).is_some_and(|(before, now)| now > before) {
            self.erring.insert(minute);
        }
        self.errors = signs.errors.or(self.errors);
        self.erring.retain(|at| at + TROUBLE_MINUTES > minute);
        if self.down_looks >= DOWN_LOOKS {
            return Some(format!("{up} of {should} NVLinks are up"));
        }
        if self.drops.len() >= DROPS_MAX {
            return Some(format!("its NVLinks went down {DROPS_MAX} times within {TROUBLE_MINUTES} minutes"));
        }
        let minutes = self.erring.len();
        (minutes >= ERROR_MINUTES_MAX)
            .then(|| format!("errors on its NVLinks in {minutes} of the last {TROUBLE_MINUTES} minutes"))
    }
}
