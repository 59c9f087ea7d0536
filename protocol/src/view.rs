//! What people and programs are shown: one consistent copy of the state, at a stated log index.

use crate::cage::Used;
use crate::care::Care;
use crate::device::{DeviceFacts, DeviceReading};
use crate::health::{BreakerView, HostCareView, MarkView};
use crate::ids::{BootId, ClusterId, HostId, JobId, LeaseEpoch, TaskId, Token};
use crate::job::{AttemptEnd, AttemptState, EndReason, JobSpec, JobState};
use crate::members::MembersView;
use crate::queue::{Amounts, QueueSpec};
use crate::reservation::ReservationSpec;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// How many tasks of a job are where.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct TaskCounts {
    /// Waiting.
    pub pending: u32,
    /// With a live attempt.
    pub live: u32,
    /// Ended well.
    pub succeeded: u32,
    /// Failed for good.
    pub failed: u32,
    /// Cancelled.
    pub cancelled: u32,
}

impl TaskCounts {
    /// All tasks of the job.
    #[must_use]
    pub fn total(&self) -> u32 {
        self.pending + self.live + self.succeeded + self.failed + self.cancelled
    }
}

/// One row of the queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobRow {
    /// Its number.
    pub job: JobId,
    /// Its name.
    pub name: String,
    /// Who pays.
    pub tenant: String,
    /// Who submitted it.
    pub user: String,
    /// Where it stands.
    pub state: JobState,
    /// Its priority.
    pub priority: u16,
    /// When it was accepted, ms since the epoch.
    pub submitted_ms: u64,
    /// When its first attempt started.
    pub started_ms: Option<u64>,
    /// When it reached its terminal state.
    pub ended_ms: Option<u64>,
    /// Its tasks.
    pub tasks: TaskCounts,
    /// What each task asks, as text: `2 gpu, 4 cpu, 8 GiB`.
    pub ask: String,
    /// Hosts of live attempts, or the short reason for waiting in round brackets.
    pub place: String,
}

/// A job that was accepted, and what became of its spec on the way.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Accepted {
    /// Its number.
    pub job: JobId,
    /// The queue that it counts for.
    pub queue: String,
    /// Longest run of one attempt as stored, in ms: the queue's where the job names none.
    pub time_limit_ms: Option<u64>,
    /// What its user should know: rules that stand above the job's own, an ask that no host meets yet.
    pub notes: Vec<String>,
}

/// One attempt, live or ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttemptRow {
    /// Its fencing token.
    pub token: Token,
    /// Which task.
    pub task: TaskId,
    /// Where.
    pub host: HostId,
    /// The host's name.
    pub host_name: String,
    /// Its devices: UUID, with index and bus address for people.
    pub devices: Vec<DeviceFacts>,
    /// Where it stands, while live.
    pub state: Option<AttemptState>,
    /// How it ended.
    pub end: Option<AttemptEnd>,
    /// When its devices were granted, ms since the epoch.
    pub granted_ms: u64,
    /// When its process was reported.
    pub started_ms: Option<u64>,
    /// When its end was applied.
    pub ended_ms: Option<u64>,
    /// Its process id on the host.
    pub pid: Option<u32>,
    /// What the kernel counted of it, once it is over.
    pub used: Used,
    /// What its host told of it beside start and end.
    pub care: Option<Box<Care>>,
    /// Why its end was asked, if it was.
    pub asked: Option<EndReason>,
    /// Its number among the attempts of its task, from 1; 0 where the answer does not say.
    pub number: u32,
}

/// Card time that one user held and did not use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdleRow {
    /// Who pays.
    pub tenant: String,
    /// The user.
    pub user: String,
    /// Card-milliseconds held idle so far.
    pub gpu_ms: u64,
    /// Live attempts that were warned or counted as idle.
    pub now: Vec<TaskId>,
}

/// All about one job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobView {
    /// The log index of this copy.
    pub index: u64,
    /// Its row.
    pub row: JobRow,
    /// What was submitted, as stored.
    pub spec: JobSpec,
    /// Live attempts, then ended ones, newest first; at most a fixed number of ended ones is kept.
    pub attempts: Vec<AttemptRow>,
    /// Ended attempts that are no longer kept one by one.
    pub attempts_forgotten: u64,
    /// Shell status of the job: 0, or that of its first failed task.
    pub exit_status: Option<u8>,
    /// Hosts that were lost under it since it last ended well or was released.
    pub host_deaths: u16,
    /// It is held because of them.
    pub held_for_deaths: bool,
    /// It, or some of its tasks, rest before they are started again.
    pub paused: Option<Paused>,
}

/// A pause before something is started again that ended too soon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Paused {
    /// Until when, ms since the epoch; of several tasks the first.
    pub until_ms: u64,
    /// Tasks that rest.
    pub tasks: u32,
}

/// Whether a host takes work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum HostState {
    /// Admitted, has never registered.
    Joining,
    /// Takes work.
    Up,
    /// Takes nothing new, runs what it has.
    Draining,
    /// Takes nothing new until a date because launches failed there.
    Suspended,
    /// Its lease expired; it must register again.
    Lost,
    /// Takes nothing: a fault of the host itself.
    Faulty,
    /// Takes nothing new for a while: jobs fail there that run well elsewhere.
    Shunned,
    /// No longer part of the cluster; what runs there ends.
    Removed,
}

/// One host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostRow {
    /// Its number.
    pub host: HostId,
    /// Its name.
    pub name: String,
    /// Where peers reach it.
    pub addr: String,
    /// Whether it takes work.
    pub state: HostState,
    /// Why not, if not.
    pub reason: Option<String>,
    /// Its boot.
    pub boot: BootId,
    /// Its lease epoch.
    pub epoch: LeaseEpoch,
    /// CPU capacity and what is granted, in thousandths.
    pub cpus_milli: u32,
    /// CPU granted.
    pub cpus_milli_used: u32,
    /// Memory capacity, MiB.
    pub mem_mib: u64,
    /// Memory granted, MiB.
    pub mem_mib_used: u64,
    /// Whole GPUs that may be granted.
    pub gpus: u32,
    /// Whole GPUs granted.
    pub gpus_used: u32,
    /// Live attempts.
    pub attempts: u32,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Its version of Rota.
    pub version: String,
    /// What is held against it.
    pub care: HostCareView,
    /// What is not as it should be there.
    pub warnings: Vec<String>,
}

/// One attempt's part of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceHold {
    /// Which task.
    pub task: TaskId,
    /// Which attempt.
    pub token: Token,
    /// Of the device's cores, in thousandths.
    pub milli: u32,
    /// Of the device's memory, in MiB.
    pub vram_mib: u64,
}

/// One device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceRow {
    /// Its host.
    pub host: HostId,
    /// The host's name.
    pub host_name: String,
    /// Its facts.
    pub facts: DeviceFacts,
    /// Who holds how much of it.
    pub held_by: Vec<DeviceHold>,
    /// The newest reading that gossip brought, if any.
    pub reading: Option<DeviceReading>,
    /// What is held against it, if anything is.
    pub mark: Option<MarkView>,
    /// False for a device that its host shows and does not offer; its health says why.
    pub offered: bool,
}

/// One queue with what is held in it, all below it included.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueRow {
    /// Its path and rules.
    pub spec: QueueSpec,
    /// Held now.
    pub held: Amounts,
    /// Tasks that wait, for whatever.
    pub tasks_waiting: u64,
    /// Jobs that are not over.
    pub jobs_open: u64,
    /// Live attempts.
    pub tasks_running: u64,
    /// Use that still counts, in card-milliseconds: half of what was used a week ago.
    pub used_gpu_ms: u64,
    /// The same in core-milliseconds.
    pub used_cpu_ms: u64,
    /// The largest part that it holds of anything that the cluster has.
    pub share_permille: u32,
}

/// One reservation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReservationRow {
    /// Which hosts, when, for whom.
    pub spec: ReservationSpec,
    /// Names of its hosts, in their order.
    pub host_names: Vec<String>,
    /// Its time has come.
    pub active: bool,
    /// Live attempts on its hosts of those for whom it is not.
    pub foreign_tasks: u64,
}

/// One peer as agreement sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerRow {
    /// The host.
    pub host: HostId,
    /// Its name.
    pub name: String,
    /// Its address.
    pub addr: String,
    /// `leader`, `voter`, `learner` (a member without a vote), `follower` (no member).
    pub role: String,
    /// Seen by gossip: `alive`, `suspect`, `down`, `unknown`.
    pub seen: String,
}

impl PeerRow {
    /// Whether it votes.
    #[must_use]
    pub fn votes(&self) -> bool {
        matches!(&*self.role, "leader" | "voter")
    }
}

/// What the answering peer's log has cost since its agent started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogUse {
    /// Bytes written.
    pub written_bytes: u64,
    /// Fsyncs.
    pub fsyncs: u64,
    /// Bytes of the newest snapshot; 0 without one.
    pub snapshot_bytes: u64,
}

/// The cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterView {
    /// Its id.
    pub cluster: ClusterId,
    /// Its name.
    pub name: String,
    /// The peer that answers.
    pub answered_by: HostId,
    /// Who leads, as far as this peer knows.
    pub leader: Option<HostId>,
    /// The raft term.
    pub term: u64,
    /// Last log index applied here.
    pub applied: u64,
    /// Rolling hash of the state at `applied`.
    pub state_hash: u64,
    /// Whether a quorum confirmed this answer.
    pub linearizable: bool,
    /// Its peers.
    pub peers: Vec<PeerRow>,
    /// Jobs by state.
    pub jobs: BTreeMap<String, u64>,
    /// The breaker of mass alarms.
    pub breaker: BreakerView,
    /// The log of the peer that answers.
    pub log: LogUse,
    /// Where membership stands.
    pub members: MembersView,
}

/// One line of `rota doctor`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DoctorRow {
    /// What was looked at.
    pub check: String,
    /// `pass`, `warn`, `fail`.
    pub verdict: String,
    /// What was found.
    pub found: String,
    /// What to do next, unless it passed.
    pub next: Option<String>,
}
