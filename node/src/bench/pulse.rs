//! A plain client at work while something happens to the cluster: it submits without a pause, or submits and waits for the
//! end, and notes when each is answered. The longest time between two answers is the gap that it felt.

use crate::client::Client;
use crate::lab::{Lab, new_request};
use crate::lab_work::{Stubborn, shell_job};
use rota_protocol::api::{ApiReply, ApiRequest};
use rota_protocol::error::PublicError;
use rota_protocol::ids::JobId;
use rota_protocol::job::JobSpec;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

/// How long one submit may take, tries included, before the pulse has stopped for good.
const SUBMIT_LIMIT: Duration = Duration::from_secs(30);
/// Between a submit's answer and the next submit: enough to feel a gap of a few ms, and no load that is one itself.
const PAUSE: Duration = Duration::from_millis(2);

/// What a pulse has seen.
#[derive(Debug, Default)]
struct Beats {
    at: Vec<Instant>,
    jobs: Vec<JobId>,
    /// Whom it asked last.
    asked: PathBuf,
    failure: Option<PublicError>,
}

/// A client at work.
pub struct Pulse {
    beats: Arc<Mutex<Beats>>,
    stop: Arc<AtomicBool>,
    task: JoinHandle<()>,
}

/// What was felt between two moments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    from: Instant,
    until: Instant,
}

impl Span {
    /// From this moment until now.
    #[must_use]
    pub fn since(from: Instant) -> Self {
        Self { from, until: Instant::now() }
    }
}

impl Pulse {
    /// Submits one job after the other.
    #[must_use]
    pub fn submits(client: Stubborn, script: &str) -> Self {
        Self::start(client, shell_job("pulse", script), None)
    }

    /// Submits a job and waits until it is done, one after the other. `at` is the socket of the peer that is watched.
    #[must_use]
    pub fn runs(client: Stubborn, script: &str, at: PathBuf) -> Self {
        Self::start(client, shell_job("work", script), Some(at))
    }

    fn start(mut client: Stubborn, spec: JobSpec, watch_at: Option<PathBuf>) -> Self {
        let (beats, stop) = (Arc::new(Mutex::new(Beats::default())), Arc::new(AtomicBool::new(false)));
        let (noted, stopped) = (Arc::clone(&beats), Arc::clone(&stop));
        let task = tokio::spawn(async move {
            while !stopped.load(Ordering::Relaxed) {
                let submitted = client.submit_as(new_request(), spec.clone(), SUBMIT_LIMIT).await;
                if let (Ok(job), Some(socket)) = (&submitted, &watch_at) {
                    until_over(socket, *job).await;
                }
                let Some(()) = note(&noted, client.place(), submitted) else { return };
                tokio::time::sleep(PAUSE).await;
            }
        });
        Self { beats, stop, task }
    }

    /// Waits until it has beaten so many times.
    pub async fn warm(&self, beats: usize) {
        while self.beats.lock().unwrap_or_else(PoisonError::into_inner).at.len() < beats
            && !self.task.is_finished()
        {
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// The longest time between two answers that touches a span.
    #[must_use]
    pub fn gap(&self, span: Span) -> Duration {
        longest(&self.beats.lock().unwrap_or_else(PoisonError::into_inner).at, span)
    }

    /// Whether it asked the peer of this socket last.
    #[must_use]
    pub fn asks(&self, socket: &Path) -> bool {
        self.beats.lock().unwrap_or_else(PoisonError::into_inner).asked == socket
    }

    /// Ends it. Returns what it submitted.
    ///
    /// # Errors
    /// What ended it before.
    pub async fn finish(self) -> Result<Vec<JobId>, PublicError> {
        self.stop.store(true, Ordering::Relaxed);
        // A panic of it would have been a failed assertion of the lab.
        let _ = self.task.await;
        let mut beats = self.beats.lock().unwrap_or_else(PoisonError::into_inner);
        match beats.failure.take() {
            Some(error) => Err(error),
            None => Ok(std::mem::take(&mut beats.jobs)),
        }
    }
}

/// Two clients of a lab that are not the bench's own: one that submits, one that waits for each job's end.
#[must_use]
pub fn pair(lab: &Lab, script: &str, watched: usize) -> (Pulse, Pulse) {
    let submits = Pulse::submits(Stubborn::new(lab, 0), script);
    (submits, Pulse::runs(Stubborn::new(lab, watched), script, lab.peers[watched].socket()))
}

/// Notes an answer; none when the pulse has stopped.
fn note(beats: &Mutex<Beats>, asked: &Path, submitted: Result<JobId, PublicError>) -> Option<()> {
    let mut beats = beats.lock().unwrap_or_else(PoisonError::into_inner);
    asked.clone_into(&mut beats.asked);
    match submitted {
        Ok(job) => {
            beats.at.push(Instant::now());
            beats.jobs.push(job);
            Some(())
        }
        Err(error) => {
            beats.failure = Some(error);
            None
        }
    }
}

/// Waits until a job is over, as far as this peer tells.
async fn until_over(socket: &Path, job: JobId) {
    let Ok(client) = Client::connect_socket(socket).await else { return };
    let Ok(mut rows) = client.stream(ApiRequest::Watch { job }).await else { return };
    while let Some(Ok(ApiReply::Changed(row))) = rows.next().await {
        if row.state.is_terminal() {
            return;
        }
    }
}

fn longest(at: &[Instant], span: Span) -> Duration {
    at.windows(2)
        .filter(|pair| pair[1] > span.from && pair[0] < span.until)
        .map(|pair| pair[1] - pair[0])
        .max()
        .unwrap_or_else(|| span.until - span.from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gap_is_the_longest_silence_that_touches_the_span() {
        let start = Instant::now();
        let ms = |ms: u64| start + Duration::from_millis(ms);
        let at = [ms(0), ms(500), ms(510), ms(600), ms(610), ms(1_610)];
        let gap = |from, until| longest(&at, Span { from: ms(from), until: ms(until) }).as_millis();
        assert_eq!(gap(505, 605), 90, "what lies before and after is nobody's");
        assert_eq!(gap(505, 620), 1_000, "one that is under way counts whole");
        assert_eq!(gap(2_000, 2_300), 300, "no answer at all");
    }
}
