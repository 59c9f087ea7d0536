//! The `[devices]` table of the configuration.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Where the kernel's messages are read unless told otherwise.
pub const KMSG_DEFAULT: &str = "/dev/kmsg";

/// What an operator may say of this host's devices beyond the common keys; every field has a working default.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DeviceSettings {
    /// Where the kernel's messages are read, for Xids; `/dev/kmsg` if not said.
    pub kmsg_path: Option<PathBuf>,
    /// UUIDs of the devices that may be offered; all if not said.
    pub allow: Option<Vec<String>>,
    /// A file that describes FPGAs and other devices; none if not said.
    pub described: Option<PathBuf>,
    /// A file with faults of simulated devices, for tests.
    pub sim_script: Option<PathBuf>,
    /// Below which the kernel tells of devices (`sys`, `proc`, `dev`); `/` if not said. For tests.
    pub root: Option<PathBuf>,
}
