//! Submits that came over one connection at once: they are proposed as one call, so that a client, or a service with
//! many clients of its own, pays for one task and one wake-up instead of one for each.

use super::caller::Caller;
use super::session::{Answers, stopping};
use super::write::{self, Results};
use crate::lead::Serving;
use crate::node::Node;
use rota_protocol::api::ApiReply;
use rota_protocol::error::PublicError;
use rota_protocol::ids::{JobId, RequestId};
use rota_protocol::job::JobSpec;
use std::time::Instant;

/// Jobs that go together at most: past this, sharing gains nothing.
const JOBS_MAX: usize = 128;
/// Bytes of frames that go together at most: far below what one entry takes.
const BYTES_MAX: usize = 128 << 10;

/// Submits that wait for the last of them.
#[derive(Default)]
pub(super) struct Together {
    calls: Vec<(Answers, usize)>,
    jobs: Vec<(RequestId, JobSpec)>,
    bytes: usize,
}

impl Together {
    /// Whether a submit of so many jobs, in a frame of so many bytes, may join.
    pub(super) fn has_room(&self, jobs: usize, bytes: usize) -> bool {
        self.jobs.len() + jobs <= JOBS_MAX && self.bytes + bytes <= BYTES_MAX
    }

    pub(super) fn join(&mut self, answers: Answers, mut jobs: Vec<(RequestId, JobSpec)>, bytes: usize) {
        self.calls.push((answers, jobs.len()));
        self.jobs.append(&mut jobs);
        self.bytes += bytes;
    }

    /// What has joined so far, if anything.
    pub(super) fn take(&mut self) -> Option<Self> {
        (!self.calls.is_empty()).then(|| std::mem::take(self))
    }

    /// Submits all, and gives each call its own answer.
    pub(super) async fn answer(self, node: &Node, caller: &Caller) {
        self.answer_inside(&node.serving, async |jobs| write::submit(node, caller, jobs).await).await;
    }

    /// A stop waits for them, as for any call; when it has begun, they are told to ask another host.
    async fn answer_inside(
        self,
        serving: &Serving,
        submit: impl AsyncFnOnce(Vec<(RequestId, JobSpec)>) -> Result<Results<JobId>, PublicError>,
    ) {
        match serving.enter() {
            Some(_inside) => self.answer_by(submit).await,
            None => self.answer_by(async |_| Err(stopping())).await,
        }
    }

    async fn answer_by(
        self,
        submit: impl AsyncFnOnce(Vec<(RequestId, JobSpec)>) -> Result<Results<JobId>, PublicError>,
    ) {
        let started = Instant::now();
        let mut results = submit(self.jobs).await.map(Vec::into_iter);
        let outcome = if results.is_ok() { "ok" } else { "refused" };
        let times = metrics::histogram!(crate::meters::API_SECONDS, "kind" => "write", "result" => outcome);
        for (answers, jobs) in self.calls {
            times.record(started.elapsed().as_secs_f64());
            let own = match &mut results {
                Ok(results) => Ok(ApiReply::Submitted(results.by_ref().take(jobs).collect())),
                Err(error) => Err(error.clone()),
            };
            answers.send(false, own).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::session::Answered;
    use super::*;
    use rota_protocol::error::ErrorCode;
    use std::time::Duration;

    fn jobs(first: u128, count: u128) -> Vec<(RequestId, JobSpec)> {
        (first..first + count).map(|id| (RequestId(id), JobSpec::default())).collect()
    }

    fn joined(told: &Answered, counts: &[u128]) -> Together {
        let mut together = Together::default();
        for (seq, count) in (1..).zip(counts) {
            let first = u128::from(seq) * 100;
            together.join(told.answers(seq), jobs(first, *count), 10);
        }
        together
    }

    /// One proposal carries all; each call hears of its own jobs, of one that was refused too, when all are through.
    #[tokio::test(start_paused = true)]
    async fn each_call_hears_of_its_own_jobs() {
        let (mut told, began) = (Answered::new(), tokio::time::Instant::now());
        let refused = PublicError::new(ErrorCode::Invalid, "not this one");
        let calls = joined(&told, &[2, 0, 1, 3]);
        let submit = async |jobs: Vec<(RequestId, JobSpec)>| {
            tokio::time::sleep(Duration::from_millis(7)).await;
            let result = |(id, _): (RequestId, JobSpec)| match id.0 {
                402 => Err(refused.clone()),
                id => Ok(JobId(id as u64)),
            };
            Ok(jobs.into_iter().map(result).collect())
        };
        calls.answer_by(submit).await;
        let own = [
            vec![Ok(JobId(100)), Ok(JobId(101))],
            vec![],
            vec![Ok(JobId(300))],
            vec![Ok(JobId(400)), Ok(JobId(401)), Err(refused)],
        ];
        for (seq, own) in (1..).zip(own) {
            assert_eq!(told.next().await, Some((seq, Ok(ApiReply::Submitted(own)))));
        }
        assert_eq!(began.elapsed(), Duration::from_millis(7), "they were proposed together");
        assert_eq!(told.next().await, None);
    }

    /// A peer that is overloaded says so to every one of them, and when to come back.
    #[tokio::test(start_paused = true)]
    async fn all_hear_that_the_peer_is_busy() {
        let mut told = Answered::new();
        let busy = PublicError::new(ErrorCode::Busy, "too many proposals wait at this peer").retry_after(20);
        joined(&told, &[1, 2]).answer_by(async |_| Err(busy.clone())).await;
        for seq in 1..=2 {
            assert_eq!(told.next().await, Some((seq, Err(busy.clone()))));
        }
        assert_eq!(told.next().await, None);
    }

    /// A stop waits until they are answered, and whoever comes after it has begun is sent on.
    #[tokio::test(start_paused = true)]
    async fn a_stop_waits_for_them_and_lets_no_more_in() {
        let (mut told, serving, began) = (Answered::new(), Serving::default(), tokio::time::Instant::now());
        let late = joined(&told, &[1]);
        let inside = joined(&told, &[1]).answer_inside(&serving, async |jobs| {
            tokio::time::sleep(Duration::from_millis(7)).await;
            Ok(jobs.into_iter().map(|(id, _)| Ok(JobId(id.0 as u64))).collect())
        });
        tokio::join!(inside, serving.close(Duration::from_secs(60)));
        assert!(began.elapsed() >= Duration::from_millis(7), "the stop came before the answer");
        assert_eq!(told.next().await, Some((1, Ok(ApiReply::Submitted(vec![Ok(JobId(100))])))));
        late.answer_inside(&serving, async |_| unreachable!("it is stopping")).await;
        assert_eq!(told.next().await, Some((1, Err(stopping()))));
    }

    #[test]
    fn what_goes_together_is_bounded() {
        let told = Answered::new();
        let mut together = Together::default();
        assert!(together.take().is_none());
        assert!(together.has_room(JOBS_MAX, BYTES_MAX));
        assert!(!together.has_room(JOBS_MAX + 1, 0) && !together.has_room(1, BYTES_MAX + 1));
        together.join(told.answers(1), jobs(1, 1), 1_000);
        assert!(together.has_room(JOBS_MAX - 1, BYTES_MAX - 1_000));
        assert!(!together.has_room(JOBS_MAX, 0) && !together.has_room(1, BYTES_MAX - 999));
        // Whoever takes it leaves an empty one behind.
        assert_eq!(together.take().map(|taken| (taken.calls.len(), taken.jobs.len())), Some((1, 1)));
        assert!(together.has_room(JOBS_MAX, BYTES_MAX) && together.take().is_none());
    }
}
