//! Submits under faults, and what must be true of them afterwards: whatever was acknowledged is there once, under the
//! number that was told, and nothing is there twice.

use rota_node::lab::{Lab, LabError, new_request};
use rota_node::lab_work::{Stubborn, true_job};
use rota_protocol::ids::JobId;
use rota_protocol::job::JobSpec;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Time between two submits: enough of them, and the log stays small.
const PAUSE: Duration = Duration::from_millis(20);
/// A submit that is not answered by then has failed.
const SUBMIT_LIMIT: Duration = Duration::from_secs(15);

/// Submits that were acknowledged.
#[derive(Debug, Default)]
pub(super) struct Traffic {
    /// By name, which each has for itself.
    acked: BTreeMap<String, JobId>,
    /// Longest wait for an acknowledgement, in ms.
    pub(super) gap_max_ms: u64,
}

impl Traffic {
    /// Submits one job after the other until `until`.
    pub(super) async fn run(
        &mut self,
        client: &mut Stubborn,
        until: Instant,
        spec: impl Fn(&str) -> JobSpec,
    ) -> Result<(), LabError> {
        while Instant::now() < until {
            let name = format!("t{}", self.acked.len());
            let asked = Instant::now();
            let job = client.submit_as(new_request(), spec(&name), SUBMIT_LIMIT).await?;
            self.gap_max_ms = self.gap_max_ms.max(asked.elapsed().as_millis() as u64);
            self.acked.insert(name, job);
            tokio::time::sleep(PAUSE).await;
        }
        Ok(())
    }

    /// Notes what was acknowledged elsewhere.
    pub(super) fn note(&mut self, name: String, job: JobId) {
        self.acked.insert(name, job);
    }

    /// How many were acknowledged.
    pub(super) fn acked(&self) -> u64 {
        self.acked.len() as u64
    }

    /// The numbers of all that were acknowledged.
    pub(super) fn jobs(&self) -> Vec<JobId> {
        self.acked.values().copied().collect()
    }

    /// What is wrong with the cluster's jobs, and with its copies of the state.
    pub(super) async fn judge(&self, lab: &Lab, client: &mut Stubborn) -> Result<Vec<String>, LabError> {
        let mut found: BTreeMap<String, Vec<JobId>> = BTreeMap::new();
        for row in client.all_jobs().await? {
            found.entry(row.name).or_default().push(row.job);
        }
        let mut violations = Vec::new();
        for (name, job) in &self.acked {
            if found.get(name).is_none_or(|jobs| !jobs.contains(job)) {
                violations.push(format!("{name} was acknowledged as job {job} and is not there"));
            }
        }
        for (name, jobs) in found.iter().filter(|(_, jobs)| jobs.len() > 1) {
            violations.push(format!("{name} is there as jobs {jobs:?}"));
        }
        let digests = lab.digests().await?;
        if digests.windows(2).any(|pair| (pair[0].2, pair[0].3) != (pair[1].2, pair[1].3)) {
            violations.push(format!("state hashes differ: {digests:?}"));
        }
        Ok(violations)
    }
}

/// A job that no host can run: it is accepted and waits.
pub(super) fn waits(name: &str) -> JobSpec {
    let mut spec = true_job(name);
    spec.ask.labels.insert("chaos".into(), "no-host-has-this".into());
    spec
}
