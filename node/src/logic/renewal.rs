//! When a host renews its certificate: at two thirds of its life, counted by the clock that does not jump.
//!
//! Sans-io. A wall clock that is not where it should be by the monotonic one was set meanwhile; which of the two was wrong
//! nobody here can know. A certificate made by a wrong clock shuts the host out, so the renewal then waits, for half of
//! what is left of the old one: long enough to mend a clock, too short to lose the certificate (fault C1).

/// A wall clock may differ this much from where it should be: clocks are corrected all the time.
const JUMP_MS_MAX: u64 = 60_000;
/// A certificate that is good for longer than this above its life was made under other settings.
const LONGER_MS_MAX: u64 = 3_600_000;

/// The clocks of one moment, in ms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    /// Since boot, sleep included.
    pub boot_ms: u64,
    /// Since 1970, as this host believes.
    pub wall_ms: u64,
}

/// What to do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Due {
    /// Nothing.
    NotYet,
    /// Renew.
    Now,
    /// Renew later: the wall clock is off by so many ms from where it should be.
    ClockJumped(i64),
}

/// Counts one certificate's life.
#[derive(Debug, Clone, Copy)]
pub struct Renewal {
    life_ms: u64,
    made: Moment,
    /// What it had left then.
    left_ms: u64,
}

impl Renewal {
    /// A certificate that ends at this wall time, looked at now.
    #[must_use]
    pub fn new(life_ms: u64, ends_ms: u64, now: Moment) -> Self {
        Self { life_ms, made: now, left_ms: ends_ms.saturating_sub(now.wall_ms) }
    }

    /// What it has left, by the clock that does not jump.
    #[must_use]
    pub fn left_ms(&self, now: Moment) -> u64 {
        self.left_ms.saturating_sub(now.boot_ms.saturating_sub(self.made.boot_ms))
    }

    /// Whether it is to be renewed.
    #[must_use]
    pub fn due(&self, now: Moment) -> Due {
        let left_ms = self.left_ms(now);
        let third = self.life_ms / 3;
        if left_ms > third && left_ms <= self.life_ms.saturating_add(LONGER_MS_MAX) {
            return Due::NotYet;
        }
        let should_be = self.made.wall_ms.saturating_add(now.boot_ms.saturating_sub(self.made.boot_ms));
        let off_ms = now.wall_ms.cast_signed().saturating_sub(should_be.cast_signed());
        if off_ms.unsigned_abs() > JUMP_MS_MAX && left_ms > third / 2 {
            return Due::ClockJumped(off_ms);
        }
        Due::Now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3_600_000;
    const DAY: u64 = 24 * HOUR;
    const START: Moment = Moment { boot_ms: 1_000, wall_ms: 1_800_000_000_000 };

    fn after(ms: u64, jump_ms: i64) -> Moment {
        let wall_ms = (START.wall_ms + ms).saturating_add_signed(jump_ms);
        Moment { boot_ms: START.boot_ms + ms, wall_ms }
    }

    fn fresh() -> Renewal {
        Renewal::new(DAY, START.wall_ms + DAY, START)
    }

    #[test]
    fn a_certificate_is_renewed_at_two_thirds_of_its_life() {
        assert_eq!(fresh().due(after(16 * HOUR - 1, 0)), Due::NotYet);
        assert_eq!(fresh().due(after(16 * HOUR, 0)), Due::Now);
        assert_eq!(fresh().left_ms(after(30 * HOUR, 0)), 0);
        let seconds = Renewal::new(6_000, START.wall_ms + 6_000, START);
        assert_eq!((seconds.due(after(3_999, 0)), seconds.due(after(4_000, 0))), (Due::NotYet, Due::Now));
    }

    /// One of another setting is brought to this one's life at once; one that has ended as well.
    #[test]
    fn a_certificate_of_another_life_is_renewed_at_once() {
        let year = Renewal::new(DAY, START.wall_ms + 366 * DAY, START);
        assert_eq!(year.due(START), Due::Now);
        assert_eq!(Renewal::new(DAY, START.wall_ms - DAY, START).due(START), Due::Now);
        assert_eq!(Renewal::new(DAY, START.wall_ms + 10 * HOUR, START).due(START), Due::NotYet);
    }

    /// Fault C1: a clock that was set does not make a certificate that shuts the host out, for as long as there is time
    /// to mend it; and it does not move the time of the renewal.
    #[test]
    fn a_clock_that_jumped_is_waited_for_and_named() {
        for jump in [HOUR.cast_signed(), -HOUR.cast_signed(), 3_650 * DAY.cast_signed(), i64::MIN / 4] {
            assert_eq!(fresh().due(after(HOUR, jump)), Due::NotYet, "{jump}");
            let due = fresh().due(after(17 * HOUR, jump));
            assert!(matches!(due, Due::ClockJumped(off) if off.signum() == jump.signum()), "{jump}: {due:?}");
            assert_eq!(fresh().due(after(20 * HOUR, jump)), Due::Now, "{jump}");
        }
        assert_eq!(fresh().due(after(16 * HOUR, 30_000)), Due::Now, "a small correction is none");
    }
}
