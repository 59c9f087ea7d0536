//! What labs submit and how they judge it: shell tasks that leave witness lines outside the system, a client that
//! retries with the same request id at another peer, and the counts of what was lost or ran twice.

use crate::client::Client;
use crate::lab::{Lab, LabError, new_request};
use rota_protocol::api::{ApiReply, ApiRequest, Freshness, QueueFilter};
use rota_protocol::ask::Ask;
use rota_protocol::error::{ErrorCode, PublicError};
use rota_protocol::ids::{JobId, RequestId};
use rota_protocol::job::{ArraySpec, JobSpec};
use rota_protocol::view::JobRow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A shell job with modest asks; the caller changes what it needs.
#[must_use]
pub fn shell_job(name: &str, script: &str) -> JobSpec {
    JobSpec {
        name: name.to_owned(),
        argv: vec![b"/bin/sh".to_vec(), b"-c".to_vec(), script.as_bytes().to_vec()],
        ..true_job(name)
    }
}

/// A job that runs `true`.
#[must_use]
pub fn true_job(name: &str) -> JobSpec {
    JobSpec {
        name: name.to_owned(),
        argv: vec![b"/bin/true".to_vec()],
        env: vec![(b"PATH".to_vec(), b"/usr/local/bin:/usr/bin:/bin".to_vec())],
        ask: Ask { cpus_milli: 1_000, ..Ask::default() },
        grace_ms: Some(500),
        ..JobSpec::default()
    }
}

/// Asks whole GPUs.
#[must_use]
pub fn with_gpus(mut spec: JobSpec, gpus: u32) -> JobSpec {
    spec.ask.gpu_milli = gpus * 1_000;
    spec
}

/// Makes it an array with indices `1..=count`.
#[must_use]
pub fn as_array(mut spec: JobSpec, count: u32) -> JobSpec {
    spec.array = Some(ArraySpec { start: 1, end: count, step: 1, parallel_max: 0 });
    spec
}

/// The witness file: each task appends its start and its end, outside of anything that Rota writes.
#[derive(Debug, Clone)]
pub struct Witness {
    path: PathBuf,
}

impl Witness {
    /// A witness file in `dir`.
    #[must_use]
    pub fn new(dir: &Path) -> Self {
        Self { path: dir.join("witness") }
    }

    /// A script that runs `body` between two witness lines and returns its status.
    #[must_use]
    pub fn script(&self, body: &str) -> String {
        let file = self.path.display();
        format!(
            "echo \"start $ROTA_JOB_ID $ROTA_TASK_INDEX $ROTA_TOKEN\" >> {file}; {body}; code=$?; \
             echo \"end $ROTA_JOB_ID $ROTA_TASK_INDEX $ROTA_TOKEN\" >> {file}; exit $code"
        )
    }

    /// What was written so far.
    #[must_use]
    pub fn text(&self) -> String {
        std::fs::read_to_string(&self.path).unwrap_or_default()
    }

    /// Starts and ends of each task.
    #[must_use]
    pub fn counts(&self) -> BTreeMap<(u64, u32), (u32, u32)> {
        let mut counts: BTreeMap<(u64, u32), (u32, u32)> = BTreeMap::new();
        for line in self.text().lines() {
            let mut words = line.split(' ');
            let (Some(what), Some(Ok(job)), Some(Ok(index))) =
                (words.next(), words.next().map(str::parse), words.next().map(str::parse))
            else {
                continue;
            };
            let entry = counts.entry((job, index)).or_default();
            match what {
                "start" => entry.0 += 1,
                "end" => entry.1 += 1,
                _ => {}
            }
        }
        counts
    }

    /// Tasks that started more than once.
    #[must_use]
    pub fn run_twice(&self) -> u64 {
        self.counts().values().filter(|(starts, _)| *starts > 1).count() as u64
    }
}

/// A client that keeps trying: same request id, next peer, until it is answered.
#[derive(Debug)]
pub struct Stubborn {
    sockets: Vec<PathBuf>,
    at: usize,
    client: Option<Client>,
    /// How long one peer may take before the next is tried.
    pub patience: Duration,
    /// A full disk passes: another peer may lead, or room may come.
    pub storage_full_passes: bool,
}

impl Stubborn {
    /// A client of all of a lab's peers, beginning with the one at `first`.
    #[must_use]
    pub fn new(lab: &Lab, first: usize) -> Self {
        let sockets = lab.peers.iter().map(crate::lab::Peer::socket).collect();
        Self {
            sockets,
            at: first,
            client: None,
            patience: Duration::from_millis(5_000),
            storage_full_passes: true,
        }
    }

    /// The same, but it never asks the peer at `left_out`.
    #[must_use]
    pub fn without(lab: &Lab, left_out: usize) -> Self {
        let mut client = Self::new(lab, 0);
        client.sockets.remove(left_out);
        client
    }

    /// A client that knows one peer.
    #[must_use]
    pub fn only(lab: &Lab, peer: usize) -> Self {
        let mut client = Self::new(lab, 0);
        client.sockets = vec![lab.peers[peer].socket()];
        client
    }

    /// The socket of the peer that it asks now.
    #[must_use]
    pub fn place(&self) -> &Path {
        &self.sockets[self.at % self.sockets.len()]
    }

    /// Asks until a peer gives a final answer, for at most `limit`.
    ///
    /// # Errors
    /// A refusal that will not change, or the last error when time is up.
    pub async fn ask(&mut self, request: ApiRequest, limit: Duration) -> Result<ApiReply, PublicError> {
        let started = Instant::now();
        loop {
            let error = match self.try_once(request.clone()).await {
                Ok(reply) => return Ok(reply),
                Err(error) => error,
            };
            let full = error.code == ErrorCode::StorageFull && self.storage_full_passes;
            let passing =
                full || matches!(error.code, ErrorCode::Busy | ErrorCode::NoLeader | ErrorCode::Unknown);
            if !passing || started.elapsed() > limit {
                return Err(error);
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn try_once(&mut self, request: ApiRequest) -> Result<ApiReply, PublicError> {
        let client = match self.client.as_mut() {
            Some(client) => client,
            None => {
                self.at = (self.at + 1) % self.sockets.len();
                self.client.insert(
                    Client::connect_socket(&self.sockets[self.at])
                        .await
                        .map_err(|error| PublicError::new(ErrorCode::NoLeader, error.message))?,
                )
            }
        };
        match tokio::time::timeout(self.patience, client.call(request)).await {
            Ok(Ok(reply)) => Ok(reply),
            Ok(Err(error)) => {
                self.client = None;
                Err(error)
            }
            Err(_) => {
                self.client = None;
                Err(PublicError::new(ErrorCode::Unknown, "no answer in time"))
            }
        }
    }

    /// Submits one job; the request id makes repeating it safe.
    ///
    /// # Errors
    /// See [`Stubborn::ask`].
    pub async fn submit_as(
        &mut self,
        request: RequestId,
        spec: JobSpec,
        limit: Duration,
    ) -> Result<JobId, PublicError> {
        match self.ask(ApiRequest::Submit { jobs: vec![(request, spec)] }, limit).await? {
            ApiReply::Submitted(mut results) => results
                .pop()
                .unwrap_or_else(|| Err(PublicError::new(ErrorCode::Internal, "no result for the job"))),
            other => Err(PublicError::new(ErrorCode::Internal, format!("unexpected reply {other:?}"))),
        }
    }

    /// Submits one job under a fresh request id.
    ///
    /// # Errors
    /// See [`Stubborn::ask`].
    pub async fn submit(&mut self, spec: JobSpec) -> Result<JobId, PublicError> {
        self.submit_as(new_request(), spec, Duration::from_secs(30)).await
    }

    /// Every job the cluster knows.
    ///
    /// # Errors
    /// See [`Stubborn::ask`].
    pub async fn all_jobs(&mut self) -> Result<Vec<JobRow>, PublicError> {
        let mut all = Vec::new();
        let mut after = None;
        loop {
            let filter = QueueFilter { all: true, after, ..QueueFilter::default() };
            let request = ApiRequest::Queue { filter, freshness: Freshness::Linearizable };
            match self.ask(request, Duration::from_secs(30)).await? {
                ApiReply::Queue { rows, next, .. } => {
                    all.extend(rows);
                    match next {
                        Some(job) => after = Some(job),
                        None => return Ok(all),
                    }
                }
                other => {
                    return Err(PublicError::new(ErrorCode::Internal, format!("unexpected reply {other:?}")));
                }
            }
        }
    }

    /// Waits until every one of `jobs` is terminal, telling `progress` of each look.
    ///
    /// # Errors
    /// They are not in time, or nobody answers.
    pub async fn until_done(
        &mut self,
        jobs: &[JobId],
        limit: Duration,
        mut progress: impl FnMut(usize, &[JobRow]),
    ) -> Result<Vec<JobRow>, LabError> {
        let started = Instant::now();
        loop {
            let rows = self.all_jobs().await?;
            let done = |job: &JobId| rows.iter().any(|row| row.job == *job && row.state.is_terminal());
            let finished = jobs.iter().filter(|job| done(job)).count();
            progress(finished, &rows);
            if finished == jobs.len() || started.elapsed() > limit {
                return Ok(rows);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}
