//! In which order waiting jobs are tried, and what start a job is promised. Pure integer functions; who asks them
//! keeps the queue and the promises.
//!
//! **Order.** Highest priority first; within one priority the smallest
//!
//! ```text
//! rank = width * p^2 / (waited + p)        p = max(predicted run time, 10 s)
//! ```
//!
//! which is width * p, the work that the job is expected to take from the machine, divided by (waited + p) / p, how
//! many times its own length it will have been in the system if it starts now: its slowdown so far. Of jobs just
//! submitted the smallest work goes first. Of jobs that have waited for equally long, and longer than they run, the
//! order is that of width * p * p, which is the rule of Smith (1956) for the mean slowdown: work by weight, where the
//! weight of a job's delay is 1/p. And the rank of every job falls to nothing as it waits, so that a stream of small
//! jobs cannot pass it for ever.
//! A wrong prediction costs order, never a promise.
//!
//! **Promise.** Of the jobs that cannot start, the one that has waited longest (by priority, then submission, not by
//! rank) holds a promise: it starts by the time that limits alone allow, or within twice its own limit of submission,
//! whichever is later, see [`promised_start_ms`]. Others may pass it while their limits show that the promise will be
//! kept; so the promise is a date by which, not a place in the queue, and it never moves later. A backfilled job is
//! thus judged by its limit, never by its prediction. The slack keeps short jobs from waiting for hours behind a long
//! one that has only just come; a job that has spent it is promised the earliest start there is.

use std::cmp::Reverse;

/// Runs below it count as this long, ms: the bound of "bounded slowdown" (Feitelson), so that a job of one second
/// does not pass all others for ever because it might have been a little faster.
pub const RUN_MS_MIN: u64 = 10_000;
/// Predictions above it count as this long, ms: a hundred years, the length of a job with no limit and no history.
pub const RUN_MS_MAX: u64 = 100 * 365 * 86_400_000;
/// How many times its own limit a job may have to wait before a promise to it is as early as can be. With less, long
/// jobs that have only just come hold up short ones; with more, the longest waits grow (`rota sim swf`).
pub const PROMISE_SLACK_LIMITS: u64 = 2;
/// Fractional bits of a rank, so that long waits still tell short jobs apart.
const RANK_BITS: u32 = 8;

/// What is known of a waiting job in a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Waiting {
    /// Higher is first.
    pub priority: u16,
    /// When it was submitted, ms.
    pub submitted_ms: u64,
    /// How long it is expected to run, ms.
    pub predicted_ms: u64,
    /// How long it may run at most, ms, if it said so.
    pub limit_ms: Option<u64>,
    /// Devices, or processors, that it asks in all; none counts as one.
    pub width: u32,
}

/// The place of a job in the order of a round: smaller is tried first. Ties are for the caller to break by job number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct OrderKey {
    priority: Reverse<u16>,
    rank: u128,
    submitted_ms: u64,
}

/// The place of a waiting job at `now_ms`. It changes as time goes by: ask in each round.
#[must_use]
pub fn order_key(job: &Waiting, now_ms: u64) -> OrderKey {
    let expected_ms = job.predicted_ms.min(job.limit_ms.unwrap_or(u64::MAX));
    let run_ms = u128::from(expected_ms.clamp(RUN_MS_MIN, RUN_MS_MAX));
    let waited_ms = u128::from(now_ms.saturating_sub(job.submitted_ms));
    // 42 bits twice, 32 and 8: below 2^124.
    let weighted = (u128::from(job.width.max(1)) * run_ms * run_ms) << RANK_BITS;
    OrderKey {
        priority: Reverse(job.priority),
        rank: weighted / (waited_ms + run_ms),
        submitted_ms: job.submitted_ms,
    }
}

/// The latest start that is promised to a job which the limits of all others allow to start at `earliest_ms`, given
/// a slack in lengths of its own limit, as a rule [`PROMISE_SLACK_LIMITS`]. A job without a limit of its own has no
/// length to measure slack by, and is promised the earliest start.
#[must_use]
pub fn promised_start_ms(
    earliest_ms: u64,
    submitted_ms: u64,
    limit_ms: Option<u64>,
    slack_limits: u64,
) -> u64 {
    let slack_ms = limit_ms.unwrap_or(0).saturating_mul(slack_limits);
    earliest_ms.max(submitted_ms.saturating_add(slack_ms))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR_MS: u64 = 3_600_000;

    fn job(width: u32, predicted_ms: u64) -> Waiting {
        Waiting { priority: 5, submitted_ms: HOUR_MS, predicted_ms, limit_ms: None, width }
    }

    #[track_caller]
    fn first(a: Waiting, b: Waiting, now_ms: u64) {
        assert!(order_key(&a, now_ms) < order_key(&b, now_ms), "{a:?} after {b:?}");
    }

    #[test]
    fn short_and_narrow_go_first() {
        first(job(4, HOUR_MS), job(4, 2 * HOUR_MS), HOUR_MS);
        first(job(2, HOUR_MS), job(4, HOUR_MS), HOUR_MS);
        // At first twice as long is as heavy as twice as wide; after a long wait, as four times as wide.
        first(job(1, 2 * HOUR_MS), job(3, HOUR_MS), HOUR_MS);
        first(job(3, HOUR_MS), job(1, 2 * HOUR_MS), 1_000 * HOUR_MS);
        first(job(1, 2 * HOUR_MS), job(5, HOUR_MS), 1_000 * HOUR_MS);
    }

    #[test]
    fn priority_goes_before_all() {
        let high = Waiting { priority: 6, ..job(1_000, RUN_MS_MAX) };
        first(high, job(1, 1), 100 * HOUR_MS);
    }

    #[test]
    fn waiting_brings_any_job_to_the_front() {
        let large = job(64, 24 * HOUR_MS);
        let small = |now_ms| Waiting { submitted_ms: now_ms, ..job(1, HOUR_MS) };
        first(small(10 * HOUR_MS), large, 10 * HOUR_MS);
        let later_ms = 24 * 24 * 64 * HOUR_MS + 10 * HOUR_MS;
        first(large, small(later_ms), later_ms);
    }

    #[test]
    fn a_rank_never_rises() {
        let waiting = job(7, 3 * HOUR_MS);
        let keys: Vec<_> = (1..200).map(|hours| order_key(&waiting, hours * HOUR_MS)).collect();
        assert!(keys.is_sorted_by(|earlier, later| earlier > later));
    }

    #[test]
    fn below_ten_seconds_only_width_and_age_tell() {
        assert_eq!(order_key(&job(2, 1), HOUR_MS), order_key(&job(2, 9_999), HOUR_MS));
        let older = Waiting { submitted_ms: HOUR_MS - 1, ..job(2, 1) };
        first(older, job(2, 1), HOUR_MS);
    }

    #[test]
    fn the_limit_bounds_the_prediction() {
        let limited = Waiting { limit_ms: Some(HOUR_MS), ..job(2, u64::MAX) };
        assert_eq!(order_key(&limited, HOUR_MS), order_key(&job(2, HOUR_MS), HOUR_MS));
    }

    #[test]
    fn extremes_do_not_overflow() {
        let all = Waiting { submitted_ms: 0, limit_ms: None, ..job(u32::MAX, u64::MAX) };
        first(job(0, 0), all, HOUR_MS);
        first(all, Waiting { submitted_ms: u64::MAX, ..all }, u64::MAX);
        assert_eq!(order_key(&job(0, HOUR_MS), 0), order_key(&job(1, HOUR_MS), 0));
    }

    #[test]
    fn a_promise_is_the_earliest_start_or_twice_the_limit_after_submission() {
        let promised_ms =
            |earliest_ms, limit_ms| promised_start_ms(earliest_ms, HOUR_MS, limit_ms, PROMISE_SLACK_LIMITS);
        assert_eq!(promised_ms(5 * HOUR_MS, Some(4 * HOUR_MS)), 9 * HOUR_MS);
        assert_eq!(promised_ms(11 * HOUR_MS, Some(4 * HOUR_MS)), 11 * HOUR_MS);
        assert_eq!(promised_ms(11 * HOUR_MS, None), 11 * HOUR_MS);
        assert_eq!(promised_ms(0, Some(u64::MAX)), u64::MAX);
    }
}
