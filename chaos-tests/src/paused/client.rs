//! Clients: each asks one thing after the other at whatever peer it likes, waits for a while, and then does not know.

use super::history::{Call, History, Key};
use super::linear::{Ask, Got, OPS_MAX, PRIORITY, View};
use super::peer::{Door, Doors};
use super::plant::Plant;
use super::trace::Trace;
use crate::world::rng::Rng;
use rota_core::State;
use rota_core::state::job::Job;
use rota_protocol::command::{Command, JobChange, Outcome, Proposal};
use rota_protocol::job::{Actor, JobSpec};
use rota_protocol::{ErrorCode, HostId, JobId, RequestId};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// What the product's own edge allows a call.
pub(super) const CALL: Duration = Duration::from_millis(900);
/// After this a client gives up on an answer.
const PATIENCE: Duration = Duration::from_millis(1_500);

/// What all clients of a run share.
#[derive(Clone)]
pub(super) struct Clients {
    pub(super) doors: Doors,
    pub(super) history: History,
    pub(super) trace: Trace,
    pub(super) plant: Option<Plant>,
    pub(super) over: Arc<AtomicBool>,
    /// Keys that were begun.
    pub(super) keys: Arc<AtomicU64>,
    /// Only these hosts are asked; all if empty.
    pub(super) only: Vec<HostId>,
    pub(super) gap_ms: (u64, u64),
}

impl Clients {
    /// One client, until the run is over.
    pub(super) async fn run(self, mut rng: Rng) {
        while !self.over.load(Ordering::Relaxed) {
            let (low, high) = self.gap_ms;
            tokio::time::sleep(Duration::from_millis(rng.range(low, high))).await;
            let Some(door) = self.pick(&mut rng) else { continue };
            let (key, ask) = self.draw(&mut rng);
            self.once(&door, key, ask).await;
        }
    }

    fn pick(&self, rng: &mut Rng) -> Option<Door> {
        let mut doors = self.doors.all();
        doors.retain(|door| self.only.is_empty() || self.only.contains(&door.host));
        let at = rng.below(doors.len() as u64) as usize;
        (!doors.is_empty()).then(|| doors.swap_remove(at))
    }

    /// Mostly about the newest jobs, so that clients meet.
    fn draw(&self, rng: &mut Rng) -> (Key, Ask) {
        let newest = self.keys.load(Ordering::Relaxed);
        let key = newest.saturating_sub(rng.below(3));
        if key == 0 || rng.chance(180) || self.history.len(key) + 20 > OPS_MAX {
            return (self.keys.fetch_add(1, Ordering::Relaxed) + 1, Ask::Submit);
        }
        let known = self.history.job(key).is_some();
        let ask = match rng.below(20) {
            0..=3 => Ask::Submit,
            4..=10 if known => Ask::Set(rng.below(100) as u16),
            11 if known => Ask::Cancel,
            _ => Ask::Read,
        };
        (key, ask)
    }

    /// Asks once, and writes down what came of it.
    pub(super) async fn once(&self, door: &Door, key: Key, ask: Ask) -> Option<Got> {
        let call = self.history.call(key, ask);
        let mut ended = door.ended.clone();
        let asked = tokio::time::timeout(PATIENCE, door.chance.scope(self.ask(door, key, ask, &call)));
        let got = tokio::select! {
            biased;
            _ = ended.wait_for(|ended| *ended) => Some(Got::Open),
            got = asked => got.unwrap_or(Some(Got::Open)),
        };
        self.trace.note(format_args!("host {} key {key} {ask:?} -> {got:?}", door.host));
        if let Some(got) = got {
            self.history.heard(call, got, self.trace.now_ms());
        }
        got
    }

    /// `None`: it surely did not happen.
    async fn ask(&self, door: &Door, key: Key, ask: Ask, call: &Call) -> Option<Got> {
        let job = || JobId(self.history.job(key).unwrap_or(0));
        let command = match ask {
            Ask::Read => return self.read(door, key).await,
            Ask::Submit => Command::Submit { spec: spec(key) },
            Ask::Cancel => Command::Cancel { job: job(), index: None },
            Ask::Set(priority) => Command::Adjust { job: job(), change: JobChange::Priority(priority) },
        };
        // A submission has one request id, however often it is made; everything else has a fresh one, as from the tools.
        let number = if ask == Ask::Submit { 1 } else { call.number() };
        let request = RequestId(u128::from(key) << 64 | u128::from(number));
        let proposal = Proposal { request, actor: Actor::system(), command };
        match door.peer.propose(vec![proposal], CALL).await.as_deref() {
            Ok([Outcome::Submitted { job }]) => Some(Got::Job(job.0)),
            Ok([Outcome::Done | Outcome::Cancelling { .. }]) => Some(Got::Done),
            Ok([Outcome::Refused(error)]) if error.code == ErrorCode::Conflict => Some(Got::Refused),
            Ok(other) => {
                self.history.wrong(format!("I10: key {key}: {ask:?} was answered by {other:?}"));
                Some(Got::Open)
            }
            Err(error) if error.code == ErrorCode::Unknown => Some(Got::Open),
            Err(_) => None,
        }
    }

    async fn read(&self, door: &Door, key: Key) -> Option<Got> {
        let believes = door.peer.leadership().borrow().leader == Some(door.host) || door.peer.inspect().leads;
        if self.plant != Some(Plant::StaleRead) || !believes {
            door.peer.read_barrier(CALL).await.ok()?;
        }
        let views = door.peer.read(|state| views(state, key));
        if views.len() > 1 {
            self.history.wrong(format!("I4: request {key} became jobs {views:?}"));
        }
        Some(Got::Seen(views.first().copied()))
    }
}

/// The jobs of one request.
pub(super) fn views(state: &State, key: Key) -> Vec<View> {
    let name = name(key);
    let view = |job: &Job| View { job: job.id.0, priority: job.priority, over: job.state.is_terminal() };
    state.jobs().filter(|job| job.spec.name == name).map(view).collect()
}

fn name(key: Key) -> String {
    format!("key-{key}")
}

/// A small job.
pub(super) fn spec(key: Key) -> JobSpec {
    JobSpec {
        name: name(key),
        argv: vec![b"true".to_vec()],
        workdir: b"/".to_vec(),
        priority: PRIORITY,
        ..JobSpec::default()
    }
}
