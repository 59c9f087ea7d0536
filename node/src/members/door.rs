//! Who is let in by this peer, by what its copy of the state knows; and what this agent does when it is not let in.

use crate::actors::root::end_process;
use crate::io::{clock, durable::write_atomic};
use crate::logic::door::Doors;
use crate::node::Node;
use rota_consensus::Consensus;
use rota_core::state::host::HostLife;
use rota_protocol::HostId;
use rota_protocol::error::{ErrorCode, PublicError};
use rota_protocol::members::{Admission, NotLetIn, PeerLife};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Whether a host may speak here. One that was removed may for as long as it is a member or holds a lease: it is to hear
/// of it, and its vote may still be needed to let it go.
#[must_use]
pub fn admit(consensus: Option<&Consensus>, own: &PeerLife, from: HostId, life: &PeerLife) -> Admission {
    let Some(consensus) = consensus else {
        let busy = PublicError::new(ErrorCode::Busy, "this host is still starting").retry_after(100);
        return Admission::NotYet(busy);
    };
    let refused = consensus.read(|state| {
        // A host that this copy of the state does not know yet was admitted a moment ago.
        let host = state.host(from)?;
        let why = host.belonging.check(&life.life).err()?;
        Some((why, host.not_let_in(why)))
    });
    let member = || {
        let members = consensus.members();
        let follows =
            || consensus.read(|state| state.host(from).is_some_and(|host| host.life == HostLife::Up));
        members.voters.contains(&from) || members.learners.contains(&from) || follows()
    };
    match refused {
        Some((NotLetIn::Removed, _)) if member() => Admission::LetIn(own.clone()),
        Some((why, text)) => Admission::Refused { why, text },
        None => Admission::LetIn(own.clone()),
    }
}

/// What this agent heard at other doors.
#[derive(Debug, Default)]
pub struct Heard(Mutex<Doors>);

impl Heard {
    /// A fellow let this agent in.
    pub fn let_in(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).let_in();
    }

    /// A fellow turned this agent away: it may have to end.
    pub fn turned_away(&self, node: &Node, by: HostId, why: NotLetIn, text: &str) {
        tracing::warn!(%by, ?why, text, "this host is not let in");
        let now_ms = clock::boottime_ms();
        let holds_lease = {
            let lease = node.lease.lock().unwrap_or_else(PoisonError::into_inner);
            let deadline_ms = lease.as_ref().and_then(|own| own.holder.deadline_ms());
            deadline_ms.is_some_and(|deadline_ms| now_ms < deadline_ms)
        };
        let mut doors = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if doors.turned_away(why, holds_lease, now_ms) && !node.is_closing() {
            give_up(&node.config.data_dir, why, text);
        }
    }
}

/// The file that says why the last agent gave up, for `rota doctor`.
#[must_use]
pub fn note_path(data_dir: &Path) -> PathBuf {
    data_dir.join("turned-away")
}

/// Ends the process, with word of why. Its attempts end by their lease.
pub fn give_up(data_dir: &Path, why: NotLetIn, text: &str) -> ! {
    // An id that was removed is never used again: the next start hears it at once.
    let path = if why == NotLetIn::Removed { super::removed_path(data_dir) } else { note_path(data_dir) };
    if let Err(error) = write_atomic(&path, format!("{text}\n").as_bytes(), 0o644) {
        tracing::warn!(%error, "cannot keep the reason");
    }
    end_process(text)
}
