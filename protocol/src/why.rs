//! The answer to "why does it wait, and when will it start?". Filled in by the core from one copy of the state; no
//! field decides anything.

use crate::ids::JobId;
use crate::job::JobState;
use crate::plan::PromiseBreak;
use crate::why_more::WhyMore;
use crate::work::Relation;
use serde::{Deserialize, Serialize};

/// Whether a job can start, and if not, why, in numbers that add up to the number of hosts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WhyView {
    /// The log index of this copy.
    pub index: u64,
    /// The job.
    pub job: JobId,
    /// Where it stands.
    pub state: JobState,
    /// One sentence for a person.
    pub verdict: String,
    /// True when it can never start as things are: no host could run it, even when empty, drained or down, or it is
    /// larger than a ceiling of its account.
    pub impossible: bool,
    /// What is asked, as text.
    pub ask: String,
    /// How many hosts the cluster knows.
    pub hosts: u32,
    /// Each host is counted once, under the first reason that keeps the job off it.
    pub by_reason: Vec<WhyReason>,
    /// Tasks in front of it in the order, and the GPUs they ask.
    pub ahead_tasks: u64,
    /// GPUs that the tasks in front ask together.
    pub ahead_gpus: u64,
    /// For the failing part: the largest that any host offers, as text.
    pub largest_offer: Option<String>,
    /// One thing the user can change.
    pub hint: Option<String>,
    /// How long it waited or has waited, in ms.
    pub waited_ms: u64,
    /// What keeps it waiting, machine-readable: `dependency`, `hold`, `begin`, `ceiling`, `gpus_busy` and so on;
    /// `none` if it waits for nothing.
    pub cause: String,
    /// When it is expected to start, if that can be said.
    pub expected: Option<WhyStart>,
    /// The start that it was promised.
    pub promise: Option<WhyPromise>,
    /// Attempts that are being ended so that it finds room.
    pub victims: u32,
    /// What its account holds and may hold, for the part that is the bound, nearest queue first.
    pub account: Vec<WhyAccount>,
    /// Jobs that it waits for and that are not over; the first [`DEPENDENCIES_SHOWN_MAX`].
    pub dependencies: Vec<WhyDependency>,
    /// It is held until it is released.
    pub held: bool,
    /// Not started before, ms since the epoch; none if that is past.
    pub begin_ms: Option<u64>,
    /// Given up if it has not started by then, ms since the epoch.
    pub deadline_ms: Option<u64>,
    /// It ended too soon, or failed again: not started again before, ms since the epoch.
    pub paused_until_ms: Option<u64>,
    /// Its own cap on tasks at once, if it has one.
    pub parallel_max: Option<u32>,
    /// Of a gang that has not started: its fewest parts, and how many find room together now.
    pub parts: Option<WhyParts>,
    /// The nearest ask that would start right now, as text with its host.
    pub smaller_ask: Option<String>,
    /// With a time limit of at most this, in ms, it would start right now, beside promises and reservations.
    pub shorter_limit_ms: Option<u64>,
    /// How long each cause kept it waiting so far, in ms; the longest first. Covers the newest changes of cause.
    pub waits: Vec<WhyWait>,
    /// Further parts.
    pub more: WhyMore,
}

/// Dependencies shown in one answer.
pub const DEPENDENCIES_SHOWN_MAX: usize = 16;

/// Hosts kept off a job for one reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WhyReason {
    /// Machine-readable kind, such as `gpus_busy`.
    pub kind: String,
    /// How many hosts.
    pub hosts: u32,
    /// With numbers: `asks 2 GPUs, 1 is free`.
    pub detail: String,
}

/// An expected start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WhyStart {
    /// When, ms since the epoch.
    pub at_ms: u64,
    /// Why then.
    pub basis: StartBasis,
    /// Where: names of hosts, the first few.
    pub hosts: Vec<String>,
}

/// What an expected start rests on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum StartBasis {
    /// It has room: the next round starts it.
    Now,
    /// Nothing but its own begin time, or its pause, is in the way.
    Begin,
    /// It was promised: no later than this.
    Promise,
    /// Attempts are being ended for it: as soon as they are gone, after their grace at the latest.
    Victims,
    /// A ceiling of its account leaves room again when work of the account has reached its limits; whether the hosts
    /// do then was not looked at.
    Account,
    /// The time limits of what runs, if nothing before it in the order takes the room.
    Limits,
    /// The same, but some of what runs has no limit and was taken to run for a day.
    AssumedLimits,
    /// Others may be ended for it: now, or once they are protected no more; it starts when they are gone, if nothing
    /// before it in the order takes the room.
    Eviction,
}

/// A promised start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WhyPromise {
    /// It starts no later than this, ms since the epoch.
    pub at_ms: u64,
    /// Since when it is promised, ms since the epoch.
    pub made_ms: u64,
    /// Why the promise before this one did not hold.
    pub broken_by: Option<PromiseBreak>,
    /// Why this one cannot be kept, although it has not been replaced yet.
    pub broken_now: Option<PromiseBreak>,
    /// Where: names of hosts, the first few.
    pub hosts: Vec<String>,
}

/// What may hold one bound of an account.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WhyAccount {
    /// The queue's path.
    pub queue: String,
    /// The bound of each user of this queue, and what this user holds; else of the whole queue.
    pub of_user: bool,
    /// `gpus` or `cpus`, in thousandths; `mem` or `vram`, in MiB.
    pub part: String,
    /// Held now.
    pub held: u64,
    /// The most; none without a bound.
    pub ceiling: Option<u64>,
    /// What it gets back whenever it asks for it.
    pub guarantee: u64,
    /// This bound is what keeps the job waiting.
    pub full: bool,
}

/// A job that must be over first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WhyDependency {
    /// Which.
    pub job: JobId,
    /// How it must end.
    pub relation: Relation,
    /// Task by task.
    pub each: bool,
    /// Where it stands.
    pub state: JobState,
}

/// Room for the parts of a gang.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct WhyParts {
    /// The fewest that start together.
    pub needed: u32,
    /// How many find room now, `needed` at the most.
    pub fit: u32,
}

/// Time lost to one cause.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WhyWait {
    /// `room`, `begin`, `dependency`, `hold`, or `runs`.
    pub cause: String,
    /// In ms.
    pub ms: u64,
}
