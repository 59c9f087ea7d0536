//! Of a job that takes turns and runs: on which model, how that suits it, and how often it changed places.

use super::text::count;
use crate::placement::TURN_MS;
use crate::state::State;
use crate::state::attempt::EndedAttempt;
use crate::state::job::Job;
use crate::state::pace::{BEST_PERMILLE, KnownSpeeds};
use crate::state::speeds;
use rota_protocol::job::EndReason;

/// How a note begins that tells an attempt why it is put out.
pub(crate) const TOLD: &str = "asked to end: ";

/// What follows the sentence on a job that waits for nothing; nothing of one that takes no turns.
pub(super) fn told(state: &State, job: &Job) -> String {
    let live = state.attempts_of(job.id).next().filter(|_| job.spec.takes_turns());
    let host = live.and_then(|attempt| state.host(attempt.host));
    let Some((attempt, host)) = live.zip(host) else {
        return String::new();
    };
    let Some(model) = speeds::one_model(attempt.devices.iter().filter_map(|uuid| host.device(uuid))) else {
        return String::new();
    };
    let ask = job.spec.ask_at(attempt.choice).unwrap_or(&job.spec.ask);
    let suits = match KnownSpeeds::of(job, ask, &state.speeds).on(model) {
        Some(BEST_PERMILLE) => ", the fastest that is known for it".to_owned(),
        Some(permille) => format!(", at {}.{}% of its speed on its best model", permille / 10, permille % 10),
        None => String::new(),
    };
    let turns = job.ended.iter().filter(|ended: &&EndedAttempt| ended.asked == Some(EndReason::Turn)).count();
    let before = match turns {
        0 => String::new(),
        turns => format!(" after {}", count(turns as u64, "earlier turn")),
    };
    format!(
        "; on {model}{suits}{before}; it takes turns with others of its queue, which may change every {}",
        super::text::span(TURN_MS)
    )
}

/// What was told to the owner of an attempt that was ended to make room, while nothing of the job runs since.
pub(super) fn evicted(job: &Job) -> Option<String> {
    let newest = job.ended.iter().max_by_key(|one| one.ended_ms).filter(|_| job.live == 0)?;
    let evicted = newest.asked.filter(|reason| reason.is_eviction())?;
    let notes = newest.care.as_ref().map(|care| care.notes.as_slice()).unwrap_or_default();
    let told = notes.iter().rev().find(|note| note.starts_with(TOLD));
    Some(told.cloned().unwrap_or_else(|| format!("{TOLD}{evicted}")))
}
