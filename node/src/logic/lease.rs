//! The lease of a host, holder's side: until when its attempts may run. The leader's side is `lease_book`.
//!
//! Why two live copies of a task cannot exist: the holder counts `L (1 - rho)` from the moment it *sent* the last
//! renewal that was acknowledged; the leader counts `L (1 + rho) + delta` from the moment it *received* the last
//! renewal, or was elected. A slow holder clock stops the task by `send + L` of real time; a fast leader clock lets
//! the lease go at `receipt + L >= send + L`. A renewal is acknowledged only after the leader confirmed its quorum
//! after it came in, so that a deposed leader cannot extend what its successor lets run out.

use rota_protocol::LeaseEpoch;
use std::collections::VecDeque;

use super::Faults;

/// Renewals that may be under way at once; older ones are forgotten, which only makes the deadline earlier.
const RENEWALS_OPEN_MAX: usize = 64;

/// The figures of the lease rule, equal on all hosts of a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseParams {
    /// How long a host may be silent, in ms (L).
    pub ttl_ms: u64,
    /// How far a clock's rate may be off, in thousandths (rho).
    pub drift_permille: u64,
    /// What the leader waits on top, in ms (delta).
    pub margin_ms: u64,
    /// The part of the lease that killing may take, in ms (K).
    pub kill_budget_ms: u64,
    /// How often a host renews, in ms.
    pub renew_ms: u64,
    /// The longest time without a leader that a healthy host must survive, in ms.
    pub leader_gap_ms: u64,
}

/// Why figures for the lease cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LeaseConfigError {
    /// A healthy task would be ended by one change of leaders.
    #[error(
        "the lease is too short: ttl {ttl_ms} ms less {drift_permille} permille drift less kill budget {kill_budget_ms} ms leaves {left_ms} ms, \
         which must be more than a leader gap of {leader_gap_ms} ms plus two renewals of {renew_ms} ms"
    )]
    TooShort {
        /// L.
        ttl_ms: u64,
        /// rho.
        drift_permille: u64,
        /// K.
        kill_budget_ms: u64,
        /// What is left of L.
        left_ms: u64,
        /// Longest gap without a leader.
        leader_gap_ms: u64,
        /// Renewal interval.
        renew_ms: u64,
    },
    /// A figure is outside of what makes sense.
    #[error("{name} is {value}, which must be from {min} to {max}")]
    Range {
        /// Which figure.
        name: &'static str,
        /// Its value.
        value: u64,
        /// Least value.
        min: u64,
        /// Greatest value.
        max: u64,
    },
}

impl LeaseParams {
    /// For clusters: a lost host's tasks run elsewhere within 16 s, and 9 s of trouble end nothing.
    pub const PRODUCTION: Self = Self {
        ttl_ms: 15_000,
        drift_permille: 10,
        margin_ms: 50,
        kill_budget_ms: 5_000,
        renew_ms: 3_000,
        leader_gap_ms: 1_500,
    };
    /// For fault tests and demonstrations, where waiting is waste.
    pub const CHAOS: Self = Self {
        ttl_ms: 5_000,
        drift_permille: 10,
        margin_ms: 50,
        kill_budget_ms: 600,
        renew_ms: 500,
        leader_gap_ms: 2_500,
    };

    /// How long the holder may count on from the send time of an acknowledged renewal, in ms: `L (1 - rho)`.
    #[must_use]
    pub fn holder_ms(&self) -> u64 {
        self.ttl_ms - (self.ttl_ms * self.drift_permille).div_ceil(1_000)
    }

    /// How long the leader waits after the last receipt before it may expire a lease, in ms: `L (1 + rho) + delta`.
    #[must_use]
    pub fn expiry_ms(&self) -> u64 {
        self.ttl_ms + (self.ttl_ms * self.drift_permille).div_ceil(1_000) + self.margin_ms
    }

    /// How long a host may be silent before nothing new is placed there, in ms.
    #[must_use]
    pub fn suspect_ms(&self) -> u64 {
        const SUSPECT_MS_MAX: u64 = 3_000;
        (2 * self.renew_ms).min(SUSPECT_MS_MAX.max(self.renew_ms + self.renew_ms / 2))
    }

    /// Checks that one change of leaders cannot end healthy tasks: `L (1 - rho) - K > gap + 2 x renew`.
    ///
    /// # Errors
    /// Names the figure, or the sum, that does not hold.
    pub fn check(&self) -> Result<(), LeaseConfigError> {
        let range = |name, value: u64, min: u64, max: u64| {
            if (min..=max).contains(&value) {
                Ok(())
            } else {
                Err(LeaseConfigError::Range { name, value, min, max })
            }
        };
        range("lease ttl_ms", self.ttl_ms, 500, 3_600_000)?;
        range("lease drift_permille", self.drift_permille, 1, 100)?;
        range("lease renew_ms", self.renew_ms, 10, self.ttl_ms)?;
        range("lease kill_budget_ms", self.kill_budget_ms, 50, self.ttl_ms)?;
        let left_ms = self.holder_ms().saturating_sub(self.kill_budget_ms);
        if left_ms > self.leader_gap_ms + 2 * self.renew_ms {
            return Ok(());
        }
        Err(LeaseConfigError::TooShort {
            ttl_ms: self.ttl_ms,
            drift_permille: self.drift_permille,
            kill_budget_ms: self.kill_budget_ms,
            left_ms,
            leader_gap_ms: self.leader_gap_ms,
            renew_ms: self.renew_ms,
        })
    }
}

/// One renewal to be sent. Its number comes back with the acknowledgement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Renewal {
    /// The epoch it is for.
    pub epoch: LeaseEpoch,
    /// Counts this holder's renewals.
    pub number: u64,
}

/// The holder's side: one per host, fed by the agent.
#[derive(Debug, Clone)]
pub struct LeaseHolder {
    params: LeaseParams,
    faults: Faults,
    epoch: Option<LeaseEpoch>,
    next_number: u64,
    last_sent_ms: Option<u64>,
    open: VecDeque<(u64, u64)>,
    deadline_ms: Option<u64>,
}

impl LeaseHolder {
    /// A holder that was not given an epoch yet: nothing may run.
    #[must_use]
    pub fn new(params: LeaseParams) -> Self {
        Self::with_faults(params, Faults::default())
    }

    #[doc(hidden)]
    #[must_use]
    pub fn with_faults(params: LeaseParams, faults: Faults) -> Self {
        Self {
            params,
            faults,
            epoch: None,
            next_number: 0,
            last_sent_ms: None,
            open: VecDeque::new(),
            deadline_ms: None,
        }
    }

    /// The epoch that the log gave to this host. A new one starts without any time to run: what was acknowledged for
    /// an older epoch counts for nothing. The same epoch again changes nothing.
    pub fn set_epoch(&mut self, epoch: LeaseEpoch) {
        if self.epoch.is_some_and(|held| held >= epoch) {
            return;
        }
        self.epoch = Some(epoch);
        self.open.clear();
        self.last_sent_ms = None;
        self.deadline_ms = None;
    }

    /// The epoch held.
    #[must_use]
    pub fn epoch(&self) -> Option<LeaseEpoch> {
        self.epoch
    }

    /// When the next renewal is to be sent, in ms; none without an epoch.
    #[must_use]
    pub fn next_send_ms(&self) -> Option<u64> {
        self.epoch?;
        Some(self.last_sent_ms.map_or(0, |at| at.saturating_add(self.params.renew_ms)))
    }

    /// A renewal leaves now. To be called before the bytes are handed to the network, never after.
    pub fn send(&mut self, now_ms: u64) -> Option<Renewal> {
        let epoch = self.epoch?;
        let number = self.next_number;
        self.next_number += 1;
        self.last_sent_ms = Some(now_ms);
        if self.open.len() == RENEWALS_OPEN_MAX {
            self.open.pop_front();
        }
        self.open.push_back((number, now_ms));
        Some(Renewal { epoch, number })
    }

    /// A renewal was acknowledged. Returns the deadline if it moved; it never moves back.
    pub fn ack(&mut self, renewal: Renewal, now_ms: u64) -> Option<u64> {
        if self.epoch != Some(renewal.epoch) {
            return None;
        }
        let at = self.open.iter().position(|(number, _)| *number == renewal.number)?;
        let (_, sent_ms) = self.open[at];
        // Older renewals that are still open can only give earlier deadlines.
        self.open.drain(..=at);
        let from_ms = if self.faults.count_from_ack { now_ms } else { sent_ms };
        let deadline_ms = from_ms.saturating_add(self.params.holder_ms());
        if self.deadline_ms.is_some_and(|held| held >= deadline_ms) {
            return None;
        }
        self.deadline_ms = Some(deadline_ms);
        Some(deadline_ms)
    }

    /// When every process must be gone, in ms; none before the first acknowledgement of this epoch.
    #[must_use]
    pub fn deadline_ms(&self) -> Option<u64> {
        self.deadline_ms
    }

    /// Something of `epoch` may be started now: killing would not have to begin at once.
    #[must_use]
    pub fn may_start(&self, epoch: LeaseEpoch, now_ms: u64) -> bool {
        self.epoch == Some(epoch)
            && self
                .deadline_ms
                .is_some_and(|deadline| now_ms.saturating_add(self.params.kill_budget_ms) < deadline)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder() -> LeaseHolder {
        let mut holder = LeaseHolder::new(LeaseParams::CHAOS);
        holder.set_epoch(LeaseEpoch(1));
        holder
    }

    #[test]
    fn shipped_figures_pass_their_own_check() {
        LeaseParams::PRODUCTION.check().unwrap();
        LeaseParams::CHAOS.check().unwrap();
        assert_eq!(LeaseParams::PRODUCTION.holder_ms(), 14_850);
        assert_eq!(LeaseParams::CHAOS.expiry_ms(), 5_100);
    }

    #[test]
    fn a_lease_shorter_than_one_failover_is_refused_with_the_sum() {
        let params = LeaseParams { ttl_ms: 4_000, ..LeaseParams::CHAOS };
        let error = params.check().unwrap_err();
        assert!(matches!(error, LeaseConfigError::TooShort { left_ms: 3_360, .. }), "{error}");
        assert!(error.to_string().contains("leader gap of 2500 ms"));
        let params = LeaseParams { renew_ms: 0, ..LeaseParams::CHAOS };
        assert!(params.check().unwrap_err().to_string().contains("renew_ms is 0"));
    }

    #[test]
    fn the_deadline_counts_from_the_send_not_from_the_acknowledgement() {
        let mut holder = holder();
        let renewal = holder.send(1_000).unwrap();
        assert_eq!(holder.deadline_ms(), None);
        assert_eq!(holder.ack(renewal, 3_500), Some(1_000 + 4_950));
    }

    #[test]
    fn late_double_and_foreign_acknowledgements_move_nothing_back() {
        let mut holder = holder();
        let first = holder.send(0).unwrap();
        let second = holder.send(500).unwrap();
        assert_eq!(holder.ack(second, 600), Some(5_450));
        assert_eq!(holder.ack(first, 700), None);
        assert_eq!(holder.ack(second, 800), None);
        assert_eq!(holder.ack(Renewal { epoch: LeaseEpoch(1), number: 99 }, 800), None);
        assert_eq!(holder.deadline_ms(), Some(5_450));
    }

    #[test]
    fn a_new_epoch_starts_with_no_time_and_ignores_old_acknowledgements() {
        let mut holder = holder();
        let old = holder.send(0).unwrap();
        holder.set_epoch(LeaseEpoch(2));
        assert_eq!(holder.ack(old, 10), None);
        assert_eq!(holder.deadline_ms(), None);
        assert!(!holder.may_start(LeaseEpoch(2), 10));
        let new = holder.send(20).unwrap();
        holder.ack(new, 30).unwrap();
        assert!(holder.may_start(LeaseEpoch(2), 30));
        assert!(!holder.may_start(LeaseEpoch(1), 30), "a grant of another epoch is never started");
        holder.set_epoch(LeaseEpoch(1));
        assert_eq!(holder.epoch(), Some(LeaseEpoch(2)), "epochs only grow");
    }

    #[test]
    fn nothing_starts_when_killing_would_have_to_begin() {
        let mut holder = holder();
        let renewal = holder.send(0).unwrap();
        holder.ack(renewal, 1);
        assert!(holder.may_start(LeaseEpoch(1), 4_349));
        assert!(!holder.may_start(LeaseEpoch(1), 4_350));
    }
}
