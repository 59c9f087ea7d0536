//! What is going to happen, in order of true time, and of insertion among equals.

use super::net::Msg;
use rota_node::logic::lease_book::DueLease;
use rota_protocol::command::Outcome;
use rota_protocol::job::AttemptEnd;
use rota_protocol::plan::Plan;
use rota_protocol::spool::ExitRecord;
use rota_protocol::{HostId, Token};
use std::collections::BTreeMap;

/// One thing that happens.
#[derive(Debug, Clone)]
pub enum Ev {
    /// A message reaches whatever process runs there.
    Deliver(HostId, Msg),
    /// A timer or an event of the agent's process of this life; waits while the process is frozen.
    Own(HostId, u64, Own),
    /// Something of the machine since this boot, whatever its agent does.
    Machine(HostId, u64, Machine),
    /// Something outside of all hosts.
    Outside(Outside),
}

/// Inside an agent's process.
#[derive(Debug, Clone)]
pub enum Own {
    /// Renew, register, compare, tell.
    Tick,
    /// The state machine catches up with what is known to be committed.
    Apply,
    /// Elected: everything before this term is to be applied, then it leads.
    Lead(u64),
    /// Leases and planning.
    LeadTick(u64),
    /// The log writer takes what waits.
    Drain(u64),
    /// The votes of a quorum confirmation come together.
    Sample(u64, Confirm),
    /// A quorum confirmation is over.
    Confirmed(u64, Confirm, bool),
    /// A plan was made.
    Planned(u64, Plan),
    /// A shim speaks.
    Note(Note),
    /// A call's time is up.
    CallDue(u64),
    /// A client hands something in.
    Asked(usize),
}

/// What a quorum confirmation is for.
#[derive(Debug, Clone)]
pub enum Confirm {
    /// Acknowledging renewals.
    Renewals(u64),
    /// Letting leases go.
    Expiry(Vec<DueLease>),
}

/// What a shim tells.
#[derive(Debug, Clone)]
pub enum Note {
    /// A process runs.
    Started(Token, u32),
    /// Everything is gone.
    Ended(ExitRecord),
}

/// On a machine.
#[derive(Debug, Clone)]
pub enum Machine {
    /// The shim is there and decides whether to start its task.
    Start(Token),
    /// The shim's alarm; only the newest counts.
    Wake(Token, u64),
    /// The task's first process ends.
    Exit(Token, AttemptEnd),
    /// The last process is gone.
    Gone(Token),
    /// Power is back.
    Boot,
    /// The service manager starts the agent.
    StartAgent,
}

/// Outside.
#[derive(Debug, Clone)]
pub enum Outside {
    /// Followers judge their leader.
    Election,
    /// The leader tells what is committed.
    Heartbeat,
    /// A client acts.
    Client,
    /// A client has waited long enough for an answer.
    Retry(usize),
    /// A client hears.
    Answer(usize, Outcome),
    /// Something breaks.
    Fault,
    /// The fault of this number is over.
    Undo(u64),
    /// All faults stop.
    Heal,
    /// Looks whether the cluster has settled.
    Settle,
}

/// The agenda.
#[derive(Debug, Default)]
pub struct Queue {
    events: BTreeMap<(u64, u64), Ev>,
    next: u64,
}

impl Queue {
    /// Adds an event at a true time.
    pub fn push(&mut self, at_ms: u64, event: Ev) {
        self.events.insert((at_ms, self.next), event);
        self.next += 1;
    }

    /// The next event and its time.
    pub fn pop(&mut self) -> Option<(u64, Ev)> {
        self.events.pop_first().map(|((at, _), event)| (at, event))
    }
}
