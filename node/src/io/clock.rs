//! The two clocks of the product. Leases, limits and durations use the boot-time clock, which goes on while the
//! machine sleeps and never jumps; the wall clock is for people and for the log's stamps only.

use rustix::time::{ClockId, clock_gettime};

/// Ms since boot, sleep included (`CLOCK_BOOTTIME`).
#[must_use]
pub fn boottime_ms() -> u64 {
    ms(clock_gettime(ClockId::Boottime))
}

/// Microseconds since boot, sleep included.
#[must_use]
pub fn boottime_us() -> u64 {
    let time = clock_gettime(ClockId::Boottime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    seconds.saturating_mul(1_000_000).saturating_add(u64::try_from(time.tv_nsec).unwrap_or(0) / 1_000)
}

/// Ms since the Unix epoch; may jump.
#[must_use]
pub fn wall_ms() -> u64 {
    ms(clock_gettime(ClockId::Realtime))
}

fn ms(time: rustix::time::Timespec) -> u64 {
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    seconds.saturating_mul(1_000).saturating_add(u64::try_from(time.tv_nsec).unwrap_or(0) / 1_000_000)
}
