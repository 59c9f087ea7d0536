//! What an attempt has around its program: files made for it, ports that must be free, and what is to be done when its
//! last process is gone. A plain program has none of it.

use serde::{Deserialize, Serialize};

/// Name of the file, for containers, that holds the environment.
pub const ENV_NAME: &str = "env";
/// Name of the file that a container runtime makes once there is a container.
pub const CID_NAME: &str = "cid";
/// Name of the file with a gang's hosts, as `mpirun --hostfile` of Open MPI reads it.
pub const HOSTS_NAME: &str = "hosts";
/// Name of the file with a gang's hosts, as MPICH and its kin read it.
pub const MACHINES_NAME: &str = "machines";
/// All names of this kind.
pub const AROUND_NAMES: [&str; 4] = [ENV_NAME, CID_NAME, HOSTS_NAME, MACHINES_NAME];

/// Beyond the program itself. [`Default`] is nothing.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Around {
    /// Files made beside the task's notes before it starts.
    pub files: Vec<TaskFile>,
    /// First port and number of ports that must be free on this host when it starts; no ports for 0.
    pub ports: (u16, u16),
    /// The container runtime that the program is, when it is one.
    pub runtime: Option<RuntimeOrder>,
}

/// A file made for a task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskFile {
    /// One of [`AROUND_NAMES`].
    pub name: String,
    /// Its content.
    pub bytes: Vec<u8>,
    /// Only the task's user may read it.
    pub private: bool,
}

/// How a container runtime is to be treated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuntimeOrder {
    /// What it is called, for messages.
    pub name: String,
    /// It hands signals on by itself: all but KILL go to the first process alone, or the task would get them twice.
    pub passes_signals: bool,
    /// The status with which it ends when it could not make the container. Counts only while [`CID_NAME`] is absent.
    pub failed_status: Option<u8>,
    /// Removes the container, if there is one, whatever state it is in.
    pub remove: Option<EndHook>,
}

/// A program that is run, until it succeeds, when the last process of an attempt is gone. Before that nothing the
/// attempt held is free.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndHook {
    /// Path of the program, and arguments.
    pub argv: Vec<Vec<u8>>,
    /// The whole environment.
    pub env: Vec<(Vec<u8>, Vec<u8>)>,
    /// Run as, if the agent may change users.
    pub uid_gid: Option<(u32, u32)>,
}
