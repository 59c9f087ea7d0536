//! Submits at every peer at once, each tried once only: what is refused or not answered counts as dropped.

use rota_node::client::Client;
use rota_node::lab::{Lab, new_request};
use rota_protocol::api::{ApiReply, ApiRequest};
use rota_protocol::ids::JobId;
use rota_protocol::job::JobSpec;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

/// Time between two submits at one peer: enough of them, and the log stays small.
const PAUSE: Duration = Duration::from_millis(15);
/// A submit that is not answered by then is dropped.
const PATIENCE: Duration = Duration::from_secs(10);

/// What came of the submits.
#[derive(Debug, Default)]
pub(super) struct Loaded {
    /// Acknowledged.
    pub(super) acked: Vec<JobId>,
    /// Refused, lost or late, each with its words.
    pub(super) dropped: Vec<String>,
    /// Longest wait for an acknowledgement, in ms.
    pub(super) wait_max_ms: u64,
}

/// Submits under way.
pub(super) struct Load {
    over: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<Loaded>>,
}

impl Load {
    /// Begins at these peers; `spec` is what is submitted.
    pub(super) fn begin(lab: &Lab, peers: &[usize], spec: &JobSpec) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let start = |peer: &usize| {
            let socket = lab.peers[*peer].socket();
            tokio::spawn(submit(socket, spec.clone(), over.clone()))
        };
        let tasks = peers.iter().map(start).collect();
        Self { over, tasks }
    }

    /// Ends, and tells.
    pub(super) async fn end(self) -> Loaded {
        self.over.store(true, Ordering::Relaxed);
        let mut all = Loaded::default();
        for task in self.tasks {
            match task.await {
                Ok(one) => {
                    all.acked.extend(one.acked);
                    all.dropped.extend(one.dropped);
                    all.wait_max_ms = all.wait_max_ms.max(one.wait_max_ms);
                }
                Err(error) => all.dropped.push(error.to_string()),
            }
        }
        all
    }
}

async fn submit(socket: PathBuf, spec: JobSpec, over: Arc<AtomicBool>) -> Loaded {
    let mut told = Loaded::default();
    let mut client = None;
    while !over.load(Ordering::Relaxed) {
        let asked = Instant::now();
        let jobs = vec![(new_request(), spec.clone())];
        let call = async {
            let client = match client.as_mut() {
                Some(client) => client,
                None => client.insert(Client::connect_socket(&socket).await?),
            };
            client.call(ApiRequest::Submit { jobs }).await
        };
        match tokio::time::timeout(PATIENCE, call).await {
            Ok(Ok(ApiReply::Submitted(results))) => {
                for result in results {
                    match result {
                        Ok(job) => told.acked.push(job),
                        Err(error) => told.dropped.push(error.to_string()),
                    }
                }
            }
            Ok(Ok(other)) => told.dropped.push(format!("{other:?}")),
            Ok(Err(error)) => {
                told.dropped.push(error.to_string());
                client = None;
            }
            Err(_) => {
                told.dropped.push(format!("no answer within {PATIENCE:?}"));
                client = None;
            }
        }
        told.wait_max_ms = told.wait_max_ms.max(asked.elapsed().as_millis() as u64);
        tokio::time::sleep(PAUSE).await;
    }
    told
}
