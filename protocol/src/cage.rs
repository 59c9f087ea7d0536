//! What bounds one attempt: how far it is kept apart from the rest of the host, its limits, its device nodes; and what
//! the kernel counted of it. Words only: how a cage is built is the shim's business.

use serde::{Deserialize, Serialize};
use std::fmt;

/// How far attempts are kept apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Isolation {
    /// Nothing but the change of user: processes are found through their parents.
    #[default]
    None,
    /// A control group for each attempt: limits, device rules, an end that nothing escapes.
    Basic,
    /// The group, and a view of the host of its own: private temporary folders, `/proc` without neighbours, no
    /// capabilities, no system calls that only administrators need.
    Full,
}

impl fmt::Display for Isolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Basic => "basic",
            Self::Full => "full",
        })
    }
}

/// What a folder of control groups is there for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Controller {
    /// Version 2: all controllers that are enabled there, `cgroup.kill`, the device program.
    Unified,
    /// Version 1: memory.
    Memory,
    /// Version 1: number of processes and threads.
    Pids,
    /// Version 1: processor time.
    Cpu,
    /// Version 1: device nodes.
    Devices,
    /// Version 1: freezing.
    Freezer,
}

/// The folder of one attempt's group in one hierarchy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Group {
    /// Which.
    pub controller: Controller,
    /// Its absolute path; made by the shim.
    pub path: Vec<u8>,
}

/// How device nodes are kept from an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum DeviceRule {
    /// They are not.
    #[default]
    None,
    /// By the devices controller of version 1.
    Group,
    /// By a program on its version 2 group.
    Program,
    /// By a `/dev` of its own that holds nothing else.
    Folder,
}

/// The cage of one attempt. The default is none at all.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Cage {
    /// How far it is kept apart.
    pub isolation: Isolation,
    /// Its groups; none on a host where the agent may make none.
    pub groups: Vec<Group>,
    /// Memory that it may use, in MiB; 0 for no limit.
    pub mem_mib: u64,
    /// Processor time that it is to get, in thousandths of a core.
    pub cpus_milli: u32,
    /// It gets no more processor time than that, even if the host is idle.
    pub cpus_hard: bool,
    /// Most processes and threads; 0 for no limit.
    pub pids: u32,
    /// How other device nodes are kept away.
    pub devices: DeviceRule,
    /// Device nodes that it may open, beside those that everybody may.
    pub nodes: Vec<Vec<u8>>,
    /// A node that it must not be able to open: tried before its program runs.
    pub probe: Option<Vec<u8>>,
    /// A `/tmp` of its own.
    pub private_tmp: bool,
    /// Shared memory and message queues of its own.
    pub private_ipc: bool,
    /// Paths that it finds empty or closed.
    pub hidden: Vec<Vec<u8>>,
    /// Keep the capabilities of root.
    pub keep_caps: bool,
    /// Most open files; 0 for what the agent has.
    pub nofile: u64,
    /// Most processes of its user; 0 for what the agent has.
    pub nproc: u64,
}

/// What the kernel counted of an attempt that is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct Used {
    /// Greatest use of memory, in MiB, file caches and temporary folders included; 0 if it was not counted.
    pub peak_mib: u64,
    /// The limit on it, in MiB; 0 for none.
    pub limit_mib: u64,
    /// Processes that the kernel killed because the limit was reached.
    pub oom_kills: u32,
}

impl Used {
    /// Nothing was counted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
