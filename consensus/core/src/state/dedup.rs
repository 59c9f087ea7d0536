//! Answers by request id, for 24 hours of log time and longer where there are few: a client that lost the answer asks again and nothing happens
//! twice. Refusals are remembered too.

use super::arrivals::Arrivals;
use super::ids::Ids;
use crate::hash::Digest;
use rota_protocol::command::Outcome;
use rota_protocol::job::Actor;
use rota_protocol::limits::DEDUP_MS;
use rota_protocol::{ErrorCode, JobId, PublicError, RequestId};
use serde::{Deserialize, Serialize};

/// Most request ids remembered: about 190 a second for a whole day, 1.5 GiB of memory. Beyond it new requests are
/// refused as busy rather than an old answer forgotten.
pub(crate) const REQUESTS_MAX: usize = 16_000_000;

/// The newest are kept whatever the clock says: a leader whose wall clock is years ahead must not make everybody forget
/// what is being asked again at that very moment (fault C1).
pub(crate) const RECENT_MIN: usize = 16_384;

/// Most entries swept per command: a jump of the clock must not stall one command over millions of entries.
const SWEEP_MAX: usize = 16;

/// An answer in few bytes: nearly all are `Submitted`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
enum Answer {
    Submitted(JobId),
    Other(Box<Outcome>),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Remembered {
    /// Digest of the author: another author with the same id learns nothing.
    author: u32,
    answer: Answer,
}

/// All remembered answers.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct DedupTable {
    map: Ids<Remembered>,
    /// In order of arrival: (log time, request).
    queue: Arrivals,
}

impl DedupTable {
    /// The answer given before, or a refusal if another author used this id.
    pub(crate) fn answer(&self, request: RequestId, actor: &Actor) -> Option<Outcome> {
        let known = self.map.get(request.0)?;
        if known.author != author(actor) {
            return Some(Outcome::Refused(PublicError::new(
                ErrorCode::Conflict,
                "this request id was used by someone else; draw a new one",
            )));
        }
        Some(match &known.answer {
            Answer::Submitted(job) => Outcome::Submitted { job: *job },
            Answer::Other(outcome) => (**outcome).clone(),
        })
    }

    /// No room for another id.
    pub(crate) fn is_full(&self) -> bool {
        self.map.len() >= REQUESTS_MAX
    }

    /// Keeps an answer.
    pub(crate) fn remember(&mut self, request: RequestId, actor: &Actor, outcome: &Outcome, now_ms: u64) {
        let answer = match outcome {
            Outcome::Submitted { job } => Answer::Submitted(*job),
            other => Answer::Other(Box::new(other.clone())),
        };
        let known = Remembered { author: author(actor), answer };
        if self.map.insert(request.0, known).is_none() {
            self.queue.push(now_ms, request.0);
        }
    }

    /// Forgets a bounded number of those whose time is over. Later calls go on; until then they still answer.
    pub(crate) fn sweep(&mut self, now_ms: u64) {
        for _ in 0..SWEEP_MAX.min(self.map.len().saturating_sub(RECENT_MIN)) {
            match self.queue.first() {
                Some((at_ms, request)) if now_ms.saturating_sub(at_ms) >= DEDUP_MS => {
                    self.map.remove(request);
                    self.queue.pop();
                }
                _ => return,
            }
        }
    }

    /// Queue and map name the same ids, and the queue is in order of time.
    pub(crate) fn is_sound(&self) -> bool {
        self.queue.len() == self.map.len()
            && self.queue.iter().all(|(_, request)| self.map.get(*request).is_some())
            && self.queue.iter().zip(self.queue.iter().skip(1)).all(|(a, b)| a.0 <= b.0)
    }
}

/// A digest of who asks.
fn author(actor: &Actor) -> u32 {
    let mut digest = Digest::new(0);
    digest.write(actor.tenant.as_bytes());
    digest.write(actor.user.as_bytes());
    (digest.finish() >> 32) as u32
}
