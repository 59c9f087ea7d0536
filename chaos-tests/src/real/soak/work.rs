//! What clients do during a soak: they submit jobs of several shapes, some of them twice under one request id at different
//! peers, cancel some, and remember what they were told. Each task beats into a file outside of Rota.

use crate::world::rng::Rng;
use rota_node::lab::lives::Lives;
use rota_node::lab::{Lab, new_request};
use rota_node::lab_work::{Stubborn, as_array, shell_job, with_gpus};
use rota_protocol::api::{ApiReply, ApiRequest};
use rota_protocol::error::{ErrorCode, PublicError};
use rota_protocol::ids::{JobId, RequestId};
use rota_protocol::job::JobSpec;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

/// Clients at work.
const CLIENTS: u64 = 3;
/// Between two submits of one client, in ms.
const PAUSE_MS: (u64, u64) = (150, 900);
/// How long a client asks before it gives up for now; what it asked for is asked again when all is mended.
const LIMIT: Duration = Duration::from_secs(20);
/// How long one peer may take before the next is asked.
const PATIENCE: Duration = Duration::from_millis(1_500);
/// Beats of a task, a tenth of a second apart: shorter than, about, and longer than a lease.
const BEATS: [u32; 4] = [3, 10, 25, 70];

/// One submission.
#[derive(Debug, Clone)]
pub(super) struct Asked {
    pub(super) name: String,
    pub(super) request: RequestId,
    pub(super) spec: JobSpec,
    /// Tasks, and beats of each.
    pub(super) tasks: u32,
    pub(super) beats: u32,
    /// All numbers that were told for it: must be one.
    pub(super) told: Vec<JobId>,
    /// Its cancel was acknowledged, or may have been.
    pub(super) cancelled: bool,
}

/// What clients remember.
#[derive(Debug, Clone, Default)]
pub(super) struct Tally {
    pub(super) asked: BTreeMap<String, Asked>,
    pub(super) asked_twice: u64,
    pub(super) cancels: u64,
    pub(super) refused: BTreeMap<String, u64>,
    /// Longest wait for an acknowledgement, in ms.
    pub(super) wait_max_ms: u64,
    /// Time without an answer to anybody, beyond a second each, in ms.
    pub(super) silent_ms: u64,
    /// When somebody was answered last.
    pub(super) last: Option<Instant>,
}

/// Clients at work.
pub(super) struct Work {
    tally: Arc<Mutex<Tally>>,
    resting: Arc<AtomicBool>,
    over: Arc<AtomicBool>,
    busy: Vec<Arc<tokio::sync::Mutex<()>>>,
    tasks: Vec<JoinHandle<()>>,
}

fn held(tally: &Mutex<Tally>) -> MutexGuard<'_, Tally> {
    tally.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Work {
    pub(super) fn begin(lab: &Lab, dir: &Path, seed: u64) -> Self {
        let tally = Arc::new(Mutex::new(Tally::default()));
        let (resting, over) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (mut busy, mut tasks) = (Vec::new(), Vec::new());
        for number in 0..CLIENTS {
            let mut client = Stubborn::new(lab, usize::try_from(number).unwrap_or(0));
            client.patience = PATIENCE;
            let at_work = Arc::new(tokio::sync::Mutex::new(()));
            busy.push(Arc::clone(&at_work));
            let one = One {
                client,
                other: Stubborn::new(lab, usize::try_from(number + 2).unwrap_or(0)),
                lives: lives(dir),
                tally: Arc::clone(&tally),
                rng: Rng::new(seed.wrapping_add(number)),
                number,
            };
            let (resting, over) = (Arc::clone(&resting), Arc::clone(&over));
            tasks.push(tokio::spawn(one.run(resting, over, at_work)));
        }
        Self { tally, resting, over, busy, tasks }
    }

    /// Lets the clients finish what they have begun.
    pub(super) async fn pause(&self) {
        self.resting.store(true, Ordering::SeqCst);
        for one in &self.busy {
            drop(one.lock().await);
        }
    }

    pub(super) fn resume(&self) {
        // What passed meanwhile is nobody's silence.
        held(&self.tally).last = None;
        self.resting.store(false, Ordering::SeqCst);
    }

    pub(super) fn tally(&self) -> Tally {
        held(&self.tally).clone()
    }

    /// Notes what was told when it was asked again.
    pub(super) fn told(&self, name: &str, job: JobId) {
        if let Some(asked) = held(&self.tally).asked.get_mut(name) {
            asked.told.push(job);
        }
    }

    pub(super) async fn end(self) -> Tally {
        self.over.store(true, Ordering::SeqCst);
        self.resting.store(false, Ordering::SeqCst);
        for task in self.tasks {
            let _ = task.await;
        }
        held(&self.tally).clone()
    }
}

/// The file that all tasks of a soak beat into.
pub(super) fn lives(dir: &Path) -> Lives {
    Lives::new(dir, "lives")
}

/// One client.
struct One {
    client: Stubborn,
    /// For what is asked twice.
    other: Stubborn,
    lives: Lives,
    tally: Arc<Mutex<Tally>>,
    rng: Rng,
    number: u64,
}

impl One {
    async fn run(
        mut self,
        resting: Arc<AtomicBool>,
        over: Arc<AtomicBool>,
        busy: Arc<tokio::sync::Mutex<()>>,
    ) {
        for count in 0_u64.. {
            let at_work = busy.lock().await;
            if over.load(Ordering::SeqCst) {
                return;
            }
            if resting.load(Ordering::SeqCst) {
                drop(at_work);
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
            let asked = self.draw(count);
            self.submit(asked).await;
            drop(at_work);
            let pause = self.rng.range(PAUSE_MS.0, PAUSE_MS.1);
            tokio::time::sleep(Duration::from_millis(pause)).await;
        }
    }

    fn draw(&mut self, count: u64) -> Asked {
        let name = format!("c{}-{count}", self.number);
        let beats = BEATS[usize::try_from(self.rng.below(BEATS.len() as u64)).unwrap_or(0)];
        let mut spec = shell_job(&name, &self.lives.times(beats));
        let mut tasks = 1;
        match self.rng.below(4) {
            0 => spec = with_gpus(spec, 1),
            1 => {
                tasks = 4;
                spec = as_array(spec, tasks);
            }
            _ => {}
        }
        Asked { name, request: new_request(), spec, tasks, beats, told: Vec::new(), cancelled: false }
    }

    async fn submit(&mut self, asked: Asked) {
        let (name, request, spec) = (asked.name.clone(), asked.request, asked.spec.clone());
        // Remembered before it is asked for: whatever comes of it, it may be there.
        held(&self.tally).asked.insert(name.clone(), asked);
        let began = Instant::now();
        let answer = self.client.submit_as(request, spec.clone(), LIMIT).await;
        let job = self.note(&name, answer, began);
        if self.rng.chance(150) {
            let again = self.other.submit_as(request, spec, LIMIT).await;
            held(&self.tally).asked_twice += 1;
            self.note(&name, again, Instant::now());
        }
        if self.rng.chance(80)
            && let Some(job) = job
        {
            tokio::time::sleep(Duration::from_millis(self.rng.below(600))).await;
            // Whether or not the answer comes: it may have been carried out.
            if let Some(asked) = held(&self.tally).asked.get_mut(&name) {
                asked.cancelled = true;
            }
            let cancel = ApiRequest::Cancel { request: new_request(), job, index: None };
            if let Ok(ApiReply::Done) = self.client.ask(cancel, LIMIT).await {
                held(&self.tally).cancels += 1;
            }
        }
    }

    fn note(&self, name: &str, answer: Result<JobId, PublicError>, began: Instant) -> Option<JobId> {
        const SILENT_MS: u64 = 1_000;
        let mut tally = held(&self.tally);
        match answer {
            Ok(job) => {
                let now = Instant::now();
                let ms =
                    |since: Instant| u64::try_from(now.duration_since(since).as_millis()).unwrap_or(u64::MAX);
                tally.wait_max_ms = tally.wait_max_ms.max(ms(began));
                let silence = tally.last.map_or(0, ms);
                tally.silent_ms += silence.saturating_sub(SILENT_MS);
                tally.last = Some(now);
                tally.asked.get_mut(name)?.told.push(job);
                Some(job)
            }
            Err(error) => {
                let code: ErrorCode = error.code;
                *tally.refused.entry(format!("{code:?}")).or_default() += 1;
                None
            }
        }
    }
}
