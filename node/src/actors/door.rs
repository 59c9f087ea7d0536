//! How the rest of the process reaches an actor that may be restarted: a door keeps the address, the actor behind it
//! changes.
//!
//! Mailboxes are unbounded, so wake-ups are coalesced here: however often a door is knocked at, one knock waits.

use ractor::{ActorRef, Message};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock};

/// The lasting address of an actor.
#[derive(Debug)]
pub struct Door<M: Message> {
    behind: RwLock<Option<ActorRef<M>>>,
    knocked: AtomicBool,
}

impl<M: Message> Default for Door<M> {
    fn default() -> Self {
        Self { behind: RwLock::new(None), knocked: AtomicBool::new(false) }
    }
}

impl<M: Message> Door<M> {
    /// A new actor stands behind the door. Whatever was knocked before counts for it.
    pub fn open(&self, actor: ActorRef<M>) {
        *self.behind.write().unwrap_or_else(PoisonError::into_inner) = Some(actor);
        self.knocked.store(false, Ordering::SeqCst);
    }

    /// Sends a message; false when nobody is there to take it.
    pub fn send(&self, message: M) -> bool {
        let behind = self.behind.read().unwrap_or_else(PoisonError::into_inner);
        behind.as_ref().is_some_and(|actor| actor.cast(message).is_ok())
    }

    /// Sends a wake-up unless one already waits.
    pub fn knock(&self, wake: M) {
        if !self.knocked.swap(true, Ordering::SeqCst) && !self.send(wake) {
            self.knocked.store(false, Ordering::SeqCst);
        }
    }

    /// The actor has taken the wake-up and is about to look at the world; the next knock counts again.
    pub fn answered(&self) {
        self.knocked.store(false, Ordering::SeqCst);
    }
}
