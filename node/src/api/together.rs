//! Submits that came over one connection at once: they are proposed as one call, so that a client, or a service with
//! many clients of its own, pays for one task and one wake-up instead of one for each.

use super::caller::Caller;
use super::session::Answers;
use super::write;
use crate::node::Node;
use rota_protocol::api::ApiReply;
use rota_protocol::ids::RequestId;
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
        let started = Instant::now();
        let mut results = write::submit(node, caller, self.jobs).await.map(Vec::into_iter);
        let outcome = if results.is_ok() { "ok" } else { "refused" };
        for (answers, jobs) in self.calls {
            metrics::histogram!(crate::meters::API_SECONDS, "kind" => "write", "result" => outcome)
                .record(started.elapsed().as_secs_f64());
            let own = match &mut results {
                Ok(results) => Ok(ApiReply::Submitted(results.by_ref().take(jobs).collect())),
                Err(error) => Err(error.clone()),
            };
            answers.send(false, own).await;
        }
    }
}
