//! What this host can offer: devices behind one trait with real second implementations, and the host's own facts.
//! Nothing here decides an allocation or talks to a peer.
//!
//! - [`settings`]: the `[devices]` table of the configuration;
//! - [`signs`]: what cards say of their own wellbeing, as raw facts;
//! - [`nvml`]: NVIDIA cards and MIG slices, through the vendor's library, loaded at run time;
//! - [`amd`]: AMD cards, through sysfs;
//! - [`described`]: FPGAs and others that an operator describes in a file;
//! - [`sim`], [`sim_script`]: cards made up from a text such as `8xH100:80GiB`, for the demo, labs and tests;
//! - [`probe`]: a vendor call may hang for ever, so it runs in a process of its own under a deadline;
//! - [`progress`]: how far a question to a provider has come, for whoever gives up on it;
//! - [`unified`]: chips whose GPU has the host's memory;
//! - [`managed`]: which of them this agent may offer;
//! - [`inventory`]: merges what the providers say now with what was known, by UUID and never by index;
//! - [`host`]: CPU, memory and boot id.

pub mod amd;
pub mod clean;
pub mod described;
pub mod host;
pub mod inventory;
pub mod managed;
pub mod nvml;
pub mod probe;
pub mod progress;
pub mod settings;
pub mod signs;
pub mod sim;
pub mod sim_script;
pub mod unified;

use rota_protocol::device::{DeviceFacts, DeviceReading};
use rota_protocol::ids::BootId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use inventory::{Inventory, Known};
pub use managed::Limit;
pub use probe::Probe;
pub use progress::{Progress, ProgressStep};
pub use settings::{DeviceSettings, KMSG_DEFAULT};
pub use signs::{DeviceSigns, Signs};

/// A source of devices. Only the UUID of a device is mandatory; whatever else cannot be told is absent.
///
/// Calls may block for as long as a driver likes: [`Probe`] keeps that away from everyone else.
pub trait DeviceProvider: Send {
    /// Its short name, such as `nvml`.
    fn name(&self) -> &str;

    /// All devices that the host shows now, in any order. A host without such devices has none: that is not an error.
    ///
    /// # Errors
    /// When the source exists but could not be asked, so that nothing can be said of its devices.
    fn discover(&mut self) -> Result<Found, DeviceError>;

    /// Live readings of the devices that the last discovery found; devices that do not answer are left out.
    fn read(&mut self) -> Vec<DeviceReading>;

    /// Where to note the steps of the next question, and which devices to leave alone in it. A provider that cannot
    /// hang has no use for it.
    fn attend(&mut self, _progress: Arc<Progress>) {}
}

/// What one provider shows at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Found {
    /// The devices.
    pub devices: Vec<DeviceFacts>,
    /// For people: what was seen and cannot be offered, or why there is nothing.
    pub notes: Vec<String>,
    /// For people: what is as it is, and they should know.
    pub warnings: Vec<String>,
    /// Why devices that are not among these may still be there: some could not be asked.
    pub doubt: Option<String>,
    /// What the cards say of their own wellbeing.
    pub signs: Signs,
    /// Devices that are there and not offered; their health says why.
    pub set_aside: Vec<DeviceFacts>,
}

impl Found {
    /// Adds what else was found.
    pub fn add(&mut self, more: Self) {
        self.devices.extend(more.devices);
        self.notes.extend(more.notes);
        self.warnings.extend(more.warnings);
        self.doubt = self.doubt.take().or(more.doubt);
        self.signs.extend(more.signs);
        self.set_aside.extend(more.set_aside);
    }
}

/// Why nothing can be said of a provider's devices.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum DeviceError {
    /// The library is there and refuses to start.
    #[error("cannot start {library}: {cause}")]
    Start {
        /// The library's path or name.
        library: String,
        /// What it answered.
        cause: String,
    },
    /// A call that everything rests on failed.
    #[error("{call} failed: {cause}")]
    Call {
        /// Which call.
        call: String,
        /// What it answered.
        cause: String,
    },
    /// No answer within the deadline.
    #[error("no answer within {deadline_ms} ms")]
    Deadline {
        /// The deadline, in ms.
        deadline_ms: u64,
    },
    /// Too many probes already hang in this provider; it is not asked until one comes back.
    #[error("{stuck} probes hang in the driver")]
    Stuck {
        /// How many hang.
        stuck: usize,
    },
    /// The probe ended by itself.
    #[error("the probe died")]
    Died,
    /// Neither process nor thread could be started.
    #[error("cannot start a probe: {0}")]
    Thread(String),
}

impl DeviceConfig {
    /// Below which the kernel tells of devices.
    #[must_use]
    pub fn root(&self) -> &Path {
        self.root.as_deref().unwrap_or(Path::new("/"))
    }
}

/// What the operator says of this host's devices; every field has a working default.
#[derive(Debug, Clone, Default)]
pub struct DeviceConfig {
    /// The host's name: simulated devices take their UUIDs from it.
    pub host_name: String,
    /// Simulated devices (`8xH100:80GiB,1xfpga`). With it, real ones are not looked for.
    pub sim_gpus: Option<String>,
    /// Where the kernel's messages are read.
    pub kmsg_path: Option<PathBuf>,
    /// Below which the kernel tells of devices; `/` if not said.
    pub root: Option<PathBuf>,
    /// Where FPGAs and others are described.
    pub described: Option<PathBuf>,
    /// Faults of simulated devices.
    pub sim_script: Option<PathBuf>,
    /// Lists outside which nothing is offered. Simulated devices are never limited.
    pub limits: Vec<Limit>,
    /// Path of the NVML library; then `ROTA_NVML_LIBRARY`, then the loader's own search.
    pub nvml_library: Option<PathBuf>,
    /// CPU to offer, in thousandths of a core; measured when absent.
    pub cpus_milli: Option<u32>,
    /// Memory to offer, in MiB; measured, less a reserve for the host itself, when absent.
    pub mem_mib: Option<u64>,
    /// Labels for placement.
    pub labels: BTreeMap<String, String>,
    /// Stands for the kernel's boot id where a lab plays several hosts on one machine.
    pub boot: Option<BootId>,
}
