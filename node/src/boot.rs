//! Who supervises whom, and what a death means. The table is the whole policy; `actors::supervisor` carries it out.
//!
//! A death restarts the actor with a growing pause. More than [`RESTARTS_MAX`] deaths within [`RESTART_WINDOW_MS`]
//! end the process: a limping host is worse than a restarted one, and attempts outlive the agent anyway.

/// What the death of an actor means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnDeath {
    /// It is started again; it rebuilds itself from the replicated state and the shims.
    Restart,
    /// The process ends with a message; systemd starts it again.
    EndProcess,
    /// Nothing: it ends by itself when its work is done, and its parent looks at the world again.
    Reconcile,
}

/// One kind of actor.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    /// The kind.
    pub name: &'static str,
    /// Its supervisor.
    pub parent: &'static str,
    /// What its death means.
    pub on_death: OnDeath,
    /// Why.
    pub why: &'static str,
}

/// Deaths of one kind within the window that are still answered by a restart.
pub const RESTARTS_MAX: usize = 5;
/// The window, in ms.
pub const RESTART_WINDOW_MS: u64 = 60_000;
/// First pause before a restart, in ms; doubles with each death in the window.
pub const RESTART_PAUSE_MS: u64 = 5;

/// The tree.
pub const TABLE: &[Row] = &[
    Row {
        name: "raft",
        parent: "root",
        on_death: OnDeath::EndProcess,
        why: "an entry that panics in apply panics again at each replay",
    },
    Row {
        name: "scheduler",
        parent: "root",
        on_death: OnDeath::Restart,
        why: "plans are rebuilt from the state; a lost plan was never promised",
    },
    Row {
        name: "leases",
        parent: "root",
        on_death: OnDeath::Restart,
        why: "a fresh book counts every lease from now, which only makes expiry later",
    },
    Row {
        name: "renewer",
        parent: "root",
        on_death: OnDeath::Restart,
        why: "the lease file keeps the last deadline",
    },
    Row {
        name: "reconciler",
        parent: "root",
        on_death: OnDeath::Restart,
        why: "desired and running are both read again",
    },
    Row {
        name: "attempt",
        parent: "reconciler",
        on_death: OnDeath::Reconcile,
        why: "the shim holds the truth; the reconciler asks it",
    },
    Row { name: "devices", parent: "root", on_death: OnDeath::Restart, why: "devices are discovered again" },
    Row {
        name: "device",
        parent: "devices",
        on_death: OnDeath::Restart,
        why: "a reading is worth nothing after a second",
    },
    Row {
        name: "health",
        parent: "root",
        on_death: OnDeath::Restart,
        why: "what stands against devices is in the state, what they say is seen again",
    },
    Row {
        name: "gossip",
        parent: "root",
        on_death: OnDeath::Restart,
        why: "members are announced again; nothing rests on gossip alone",
    },
    Row {
        name: "api",
        parent: "root",
        on_death: OnDeath::Restart,
        why: "clients reconnect with the same request ids",
    },
    Row {
        name: "warden",
        parent: "root",
        on_death: OnDeath::Restart,
        why: "cards are looked at again; the reconciler asks again for those on their way back",
    },
    Row {
        name: "auditor",
        parent: "root",
        on_death: OnDeath::Restart,
        why: "both sides are compared again; what lasts is seen again",
    },
    Row {
        name: "certifier",
        parent: "root",
        on_death: OnDeath::Restart,
        why: "certificates are in files, whom to trust is in the state",
    },
    Row { name: "meter", parent: "root", on_death: OnDeath::Restart, why: "gauges are read again" },
];

/// The row of a kind.
#[must_use]
pub fn row(name: &str) -> Option<&'static Row> {
    TABLE.iter().find(|row| row.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_parent_is_in_the_table_or_the_root() {
        for entry in TABLE {
            assert!(entry.parent == "root" || row(entry.parent).is_some(), "{} has no parent", entry.name);
            assert!(!entry.why.is_empty());
        }
    }
}
