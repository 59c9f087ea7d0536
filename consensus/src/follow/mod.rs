//! How hosts that are no members of the agreement get the log: each asks one peer for what was committed behind its own
//! last entry, and is asked by others in turn. The leader's cost does not grow with their number.
//!
//! | file | what |
//! | --- | --- |
//! | `tree.rs` | who asks whom (pure) |
//! | `course.rs` | when a parent is left, and for whom (pure) |
//! | `words.rs` | what they say to each other |
//! | `shelf.rs` | what both sides need of a copy of the log |
//! | `serve.rs` | a parent's side: waits until there is something, bounds its children |
//! | `pull.rs` | a child's side |
//! | `real.rs` | a host's own log and state as a shelf |
//! | `light.rs` | a shelf in memory without a state, for a thousand followers in one process |
//!
//! What a child gets are the leader's own appends, committed entries only, handed on: it takes them as it would take
//! them from the leader, into its own durable log, and is caught up at once should it become a member. A child asks when it
//! is ready, so nothing is kept for a slow one; whoever asks for what was cut away is given the snapshot.
//!
//! Invariant: what is handed on was committed, so no copy ever takes back what it got here. Invariant: who votes by its
//! own last word does not rest on this; its leader's silence must stay its own.

mod course;
pub mod light;
mod pull;
mod real;
mod serve;
mod shelf;
#[cfg(test)]
mod snapshot_tests;
#[cfg(test)]
mod tests;
mod tree;
mod words;

pub use course::{Course, Heard, SILENT_MS_MAX, Step};
pub use tree::{FAN_OUT, Tree};

pub(crate) use pull::{Terms, pull};
pub(crate) use real::Own;
pub(crate) use serve::Server;
pub(crate) use shelf::Missing;
pub(crate) use words::Mark;

use crate::link::PeerLink;
use crate::{Consensus, runtime};
use rota_protocol::ids::HostId;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::time::Instant;

/// The cluster's version from which all hosts know these words.
pub const SINCE_VERSION: u16 = 3;

/// How a host is fed, for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Following {
    /// Whom it asks; none where the leader feeds it as a member.
    pub parent: Option<HostId>,
    /// Steps from the leader.
    pub depth: u8,
    /// How often it went from one parent to another.
    pub moves: u64,
    /// Snapshots that it took from a parent.
    pub snapshots: u64,
    /// Hosts that ask this one.
    pub children: usize,
}

/// What a child knows of the way that its news take.
#[derive(Debug, Default)]
pub(crate) struct Fed(Mutex<FedNow>);

#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct FedNow {
    pub(crate) following: Following,
    /// Since when nothing was heard from above, as far as its parent knew.
    pub(crate) heard_at: Option<Instant>,
}

impl Consensus {
    /// From now on this peer asks others for what was committed whenever no leader feeds it: hosts that are no members
    /// have the log from there. `seeds` are asked while it knows nobody.
    pub fn follow(&self, seeds: Vec<HostId>, link: Arc<dyn PeerLink>) {
        *self.0.own.seeds.lock().unwrap_or_else(PoisonError::into_inner) = seeds;
        let terms = Terms { link, fed: self.0.own.fed.clone() };
        let task = runtime::spawn(pull(self.0.own.clone(), terms));
        self.0.tasks.lock().unwrap_or_else(PoisonError::into_inner).push(task);
    }

    /// How this peer is fed, and how many it feeds.
    #[must_use]
    pub fn following(&self) -> Following {
        Following { children: self.0.follow.count(), ..self.0.own.fed.now().following }
    }
}

impl Fed {
    fn lock(&self) -> MutexGuard<'_, FedNow> {
        // Each change is an assignment.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn now(&self) -> FedNow {
        *self.lock()
    }
}
