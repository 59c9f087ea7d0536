//! Finish-time fairness: how long a job takes, over how long it would take with its equal share of the cluster. 1 is
//! fair, above is worse. Source: Mahajan et al., NSDI 2020 (Themis); Zheng et al., NSDI 2023.

use super::Job;

/// Fairness above which an operator should be told, in permille.
pub const ALARM_ABOVE_PERMILLE: u64 = 2000;

/// What a job's fairness will be if it runs from now on without a break, in permille; none if nobody can tell how much
/// work is left. For a job that has ended (nothing left) it is what the fairness was.
#[must_use]
pub fn fairness_permille(job: &Job) -> Option<u64> {
    let left_ms = job.remaining_ms? as f64;
    let fairness =
        lateness_of(job.age_ms as f64 + left_ms, job.attained_ms as f64 + left_ms, job.crowd_permille);
    Some((fairness * 1000.0 + 0.5) as u64)
}

/// The worst fairness among jobs and whose it is, in permille.
#[must_use]
pub fn worst(jobs: &[Job]) -> Option<(u64, u64)> {
    let all = jobs.iter().filter_map(|job| fairness_permille(job).map(|fairness| (fairness, job.id)));
    all.max_by_key(|(fairness, id)| (*fairness, std::cmp::Reverse(*id)))
}

/// Time taken over time alone, over the crowd (jobs per GPU, at least 1).
pub(super) fn lateness_of(taken_ms: f64, alone_ms: f64, crowd_permille: u32) -> f64 {
    taken_ms / alone_ms.max(1.0) * 1000.0 / f64::from(crowd_permille.max(1000))
}

#[cfg(test)]
mod tests {
    use super::super::tests::job;
    use super::*;

    /// Ten minutes of work, asked an hour ago, in a cluster with three jobs per GPU: (60 + 10) / (10 x 3).
    #[test]
    fn worked_by_hand() {
        let mut late = job(4, 1, 600_000, 3_600_000);
        late.crowd_permille = 3000;
        assert_eq!(fairness_permille(&late), Some(2333));
        let fresh = job(5, 1, 600_000, 0);
        assert_eq!(fairness_permille(&fresh), Some(1000));
        assert_eq!(worst(&[fresh, late]), Some((2333, 4)));
        assert_eq!(worst(&[]), None);
    }
}
