//! The layouts of format 1 that have grown since: how log entries and snapshots of that time are read, for ever.
//!
//! What this is not: a language to write in. Nothing here encodes, and the fields are private; each type only turns
//! into today's. Types that gained nothing but variants at their end (`Plan`, `AttemptReport`, ...) read old bytes
//! as they are and are not repeated here; whoever grows one of them otherwise freezes it here first.

use crate::ask;
use crate::attempt::AttemptEnd;
use crate::cage::Used;
use crate::command::{self, SecretHash, TokenUse};
use crate::device::{self, DeviceHealth, DeviceKind};
use crate::ids::{BootId, ClusterId, DeviceUuid, HostId, JobId, LeaseEpoch, RequestId, Token};
use crate::job::{self, Actor, ArraySpec};
use crate::plan::Plan;
use crate::report::AttemptReport;
use crate::spool;
use serde::Deserialize;
use std::collections::BTreeMap;

/// A task's needs: whole cards only.
#[derive(Debug, Clone, Deserialize)]
pub struct Ask {
    gpu_milli: u32,
    gpu_models: Vec<String>,
    vram_mib: u64,
    cpus_milli: u32,
    mem_mib: u64,
    devices: BTreeMap<String, u32>,
    labels: BTreeMap<String, String>,
}

impl From<Ask> for ask::Ask {
    fn from(old: Ask) -> Self {
        Self {
            gpu_milli: old.gpu_milli,
            gpu_models: old.gpu_models,
            gpu_models_preferred: Vec::new(),
            vram_mib: old.vram_mib,
            compute_cap_min: 0,
            cpus_milli: old.cpus_milli,
            mem_mib: old.mem_mib,
            devices: old.devices,
            labels: old.labels,
        }
    }
}

/// A job as submitted: one task or an array.
#[derive(Debug, Clone, Deserialize)]
pub struct JobSpec {
    name: String,
    argv: Vec<Vec<u8>>,
    env: Vec<(Vec<u8>, Vec<u8>)>,
    workdir: Vec<u8>,
    ask: Ask,
    array: Option<ArraySpec>,
    priority: u16,
    time_limit_ms: Option<u64>,
    grace_ms: Option<u32>,
    retries: u16,
    uid_gid: Option<(u32, u32)>,
}

impl From<JobSpec> for job::JobSpec {
    /// What its user could not say yet is as for a user of today who says nothing.
    fn from(old: JobSpec) -> Self {
        Self {
            name: old.name,
            argv: old.argv,
            env: old.env,
            workdir: old.workdir,
            ask: old.ask.into(),
            array: old.array,
            priority: old.priority,
            time_limit_ms: old.time_limit_ms,
            grace_ms: old.grace_ms,
            retries: old.retries,
            uid_gid: old.uid_gid,
            ..Self::default()
        }
    }
}

/// A device, before compute capability and links were told.
#[derive(Debug, Clone, Deserialize)]
pub struct DeviceFacts {
    uuid: DeviceUuid,
    kind: DeviceKind,
    model: String,
    vram_mib: Option<u64>,
    bus: Option<String>,
    index: Option<u32>,
    numa: Option<u32>,
    health: DeviceHealth,
}

impl From<DeviceFacts> for device::DeviceFacts {
    /// Absent until the host registers again.
    fn from(old: DeviceFacts) -> Self {
        Self {
            uuid: old.uuid,
            kind: old.kind,
            model: old.model,
            vram_mib: old.vram_mib,
            bus: old.bus,
            index: old.index,
            numa: old.numa,
            compute_cap: None,
            island: None,
            health: old.health,
            detail: device::DeviceDetail::default(),
        }
    }
}

/// A host's hardware.
#[derive(Debug, Clone, Deserialize)]
pub struct HostFacts {
    cpus_milli: u32,
    mem_mib: u64,
    devices: Vec<DeviceFacts>,
    labels: BTreeMap<String, String>,
    version: String,
}

impl From<HostFacts> for device::HostFacts {
    fn from(old: HostFacts) -> Self {
        Self {
            cpus_milli: old.cpus_milli,
            mem_mib: old.mem_mib,
            devices: old.devices.into_iter().map(Into::into).collect(),
            labels: old.labels,
            version: old.version,
            notes: device::HostNotes::default(),
        }
    }
}

#[derive(Deserialize)]
pub(crate) struct HostRegistration {
    boot: BootId,
    addr: String,
    facts: HostFacts,
}

impl From<HostRegistration> for device::HostRegistration {
    fn from(old: HostRegistration) -> Self {
        Self { boot: old.boot, addr: old.addr, facts: old.facts.into() }
    }
}

/// How an attempt ended, before anything was counted of it. In the records of attempts that ended under that build.
#[derive(Debug, Clone, Deserialize)]
pub struct ExitRecord {
    token: Token,
    end: AttemptEnd,
    ran_ms: u64,
    stdout_bytes: u64,
    stderr_bytes: u64,
    dropped_bytes: u64,
}

impl From<ExitRecord> for spool::ExitRecord {
    fn from(old: ExitRecord) -> Self {
        Self {
            token: old.token,
            end: old.end,
            ran_ms: old.ran_ms,
            stdout_bytes: old.stdout_bytes,
            stderr_bytes: old.stderr_bytes,
            dropped_bytes: old.dropped_bytes,
            used: Used::default(),
        }
    }
}

/// One proposal of an entry of format 1.
#[derive(Deserialize)]
pub(crate) struct Proposal {
    request: RequestId,
    actor: Actor,
    command: Command,
}

impl From<Proposal> for command::Proposal {
    fn from(old: Proposal) -> Self {
        Self { request: old.request, actor: old.actor, command: old.command.into() }
    }
}

/// All commands that there were, in their order.
#[derive(Deserialize)]
enum Command {
    CreateCluster { cluster: ClusterId, name: String, host_name: String, addr: String },
    AdmitHost { token: SecretHash, host_name: String, addr: String },
    RegisterHost { host: HostId, registration: HostRegistration },
    DrainHost { host: HostId, reason: String },
    UndrainHost { host: HostId },
    MintToken { token: SecretHash, usage: TokenUse, expires_at_ms: u64 },
    Submit { spec: JobSpec },
    Cancel { job: JobId, index: Option<u32> },
    CommitPlan { plan: Plan },
    Report { host: HostId, reports: Vec<AttemptReport> },
    Expire { host: HostId, epoch: LeaseEpoch },
}

impl From<Command> for command::Command {
    fn from(old: Command) -> Self {
        match old {
            Command::CreateCluster { cluster, name, host_name, addr } => {
                Self::CreateCluster { cluster, name, host_name, addr }
            }
            Command::AdmitHost { token, host_name, addr } => Self::AdmitHost { token, host_name, addr },
            Command::RegisterHost { host, registration } => {
                Self::RegisterHost { host, registration: registration.into() }
            }
            Command::DrainHost { host, reason } => Self::DrainHost { host, reason },
            Command::UndrainHost { host } => Self::UndrainHost { host },
            Command::MintToken { token, usage, expires_at_ms } => {
                Self::MintToken { token, usage, expires_at_ms }
            }
            Command::Submit { spec } => Self::Submit { spec: spec.into() },
            Command::Cancel { job, index } => Self::Cancel { job, index },
            Command::CommitPlan { plan } => Self::CommitPlan { plan },
            Command::Report { host, reports } => Self::Report { host, reports },
            Command::Expire { host, epoch } => Self::Expire { host, epoch },
        }
    }
}
