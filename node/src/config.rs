//! What an operator may set: one TOML file, each key also a flag of `rota agent`. Unknown keys are refused by name.
//!
//! Not here: anything that the cluster decides for itself (membership, leadership, lease epochs).

use crate::certificates::CertificateSettings;
use crate::containers::{self, ContainersConfig};
use crate::data::InputsConfig;
use crate::devices::{DeviceConfig, DeviceSettings, Limit, host};
use crate::elections::ElectionsConfig;
use crate::hooks::{HooksConfig, SessionsConfig};
use crate::logic::lease::LeaseParams;
use crate::members::settings::MembershipConfig;
use crate::output_config::OutputConfig;
use crate::shim::cage::{CageSettings, Offer};
use crate::warden::mps;
use crate::warden::settings::SharingSettings;
use rota_consensus::Timings;
use rota_protocol::cage::Isolation;
use rota_protocol::{PublicError, version};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// Where a host's data lies unless told otherwise.
pub const DATA_DIR_DEFAULT: &str = "/var/lib/rota";
/// The UDP port of peers, joins and remote clients.
pub const LISTEN_DEFAULT: &str = "0.0.0.0:7420";

/// Named sets of time bounds; a file names one rather than twelve numbers that must agree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Profile {
    /// Lease 15 s, elections 150 to 300 ms.
    #[default]
    Production,
    /// Lease 5 s, elections 300 to 600 ms: for tests that wait for expiries.
    Chaos,
}

impl Profile {
    /// Raft's times.
    #[must_use]
    pub fn timings(self) -> Timings {
        match self {
            Self::Production => Timings::PRODUCTION,
            Self::Chaos => Timings::CHAOS,
        }
    }

    /// The lease's times.
    #[must_use]
    pub fn lease(self) -> LeaseParams {
        match self {
            Self::Production => LeaseParams::PRODUCTION,
            Self::Chaos => LeaseParams::CHAOS,
        }
    }

    /// Idle time after which a silent connection is given up, in ms.
    #[must_use]
    pub fn idle_timeout_ms(self) -> u64 {
        match self {
            Self::Production => 3_000,
            Self::Chaos => 1_500,
        }
    }
}

/// One agent's settings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct AgentConfig {
    /// Identity, log, attempts and socket.
    pub data_dir: PathBuf,
    /// The API's unix socket, if not `api.sock` in the data directory.
    pub socket: Option<PathBuf>,
    /// UDP address for peers, joins and remote clients.
    pub listen: SocketAddr,
    /// What others dial, if it is not the listen address: an interface, a network or an address.
    pub advertise: Option<String>,
    /// The interface, network or address at which parts of gangs meet, if not where peers do.
    pub gang_network: Option<String>,
    /// Addresses or names at which some host of the cluster can be found when none is where it was.
    pub peers: Vec<String>,
    /// TCP address for `/metrics` and `/healthz`; none for neither.
    pub http_listen: Option<SocketAddr>,
    /// Simulated devices, such as `8xH100:80GiB`; the real ones are then not looked for.
    pub sim_gpus: Option<String>,
    /// CPUs offered, if not all of them, such as `30` or `7.5`.
    pub cpus: Option<String>,
    /// Memory offered, if not all but a reserve, such as `240GiB`.
    pub mem: Option<String>,
    /// Labels that jobs may ask for.
    pub labels: BTreeMap<String, String>,
    /// Time bounds.
    pub profile: Profile,
    /// Where the NVIDIA management library lies, if not in the loader's path.
    pub nvml_library: Option<PathBuf>,
    /// More about devices.
    pub devices: DeviceSettings,
    /// Serve `/metrics` to loopback callers without a token.
    pub metrics_open_on_loopback: bool,
    /// What is kept of the output of tasks.
    pub output: OutputConfig,
    /// The host's own programs around attempts.
    pub hooks: HooksConfig,
    /// Interactive sessions.
    pub sessions: SessionsConfig,
    /// Data that jobs name by its hash.
    pub inputs: InputsConfig,
    /// Containers.
    pub containers: ContainersConfig,
    /// How far tasks are kept apart: `full`, `basic` or `none`.
    pub isolation: Isolation,
    /// The rest of what bounds tasks.
    pub tasks: CageSettings,
    /// Strangers on cards, scrubbing, shared cards, declared slices.
    pub sharing: SharingSettings,
    /// How long a silent leader is waited for.
    pub elections: ElectionsConfig,
    /// How long this host's certificate lives.
    pub certificates: CertificateSettings,
    /// How many hosts are members of the agreement.
    pub membership: MembershipConfig,
    /// Take part as an older build would, which reads no newer version of the cluster's words than this one: for trying
    /// out an upgrade and the way back.
    pub reads_up_to: Option<u16>,
}

impl Default for AgentConfig {
    fn default() -> Self {
        Self {
            data_dir: DATA_DIR_DEFAULT.into(),
            // The constant is a literal address.
            listen: SocketAddr::from(([0, 0, 0, 0], 7420)),
            socket: None,
            advertise: None,
            gang_network: None,
            peers: Vec::new(),
            http_listen: Some(SocketAddr::from(([127, 0, 0, 1], 7421))),
            sim_gpus: None,
            cpus: None,
            mem: None,
            labels: BTreeMap::new(),
            profile: Profile::Production,
            nvml_library: None,
            devices: DeviceSettings::default(),
            metrics_open_on_loopback: false,
            output: OutputConfig::default(),
            hooks: HooksConfig::default(),
            sessions: SessionsConfig::default(),
            inputs: InputsConfig::default(),
            containers: ContainersConfig::default(),
            isolation: Isolation::Full,
            tasks: CageSettings::default(),
            sharing: SharingSettings::default(),
            elections: ElectionsConfig::default(),
            certificates: CertificateSettings::default(),
            membership: MembershipConfig::default(),
            reads_up_to: None,
        }
    }
}

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file is not a configuration; the message names line and key.
    #[error("{path}: {message}")]
    Parse {
        /// The file.
        path: PathBuf,
        /// Line, column, key.
        message: String,
    },
    /// The values do not go together.
    #[error("{0}")]
    Rule(String),
}

impl AgentConfig {
    /// Reads a TOML file.
    ///
    /// # Errors
    /// Unreadable, malformed, an unknown key, a value of the wrong type.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
        toml::from_str(&text).map_err(|e| ConfigError::Parse {
            path: path.to_owned(),
            message: e.to_string().trim().to_owned(),
        })
    }

    /// Checks what the types cannot.
    ///
    /// # Errors
    /// Names the rule and the values that break it.
    pub fn check(&self) -> Result<(), ConfigError> {
        self.elections.check(self.profile).map_err(|e| ConfigError::Rule(e.to_string()))?;
        self.sharing.check().map_err(|e| ConfigError::Rule(e.to_string()))?;
        self.profile.lease().check().map_err(|e| ConfigError::Rule(e.to_string()))?;
        self.output.check().map_err(|e| ConfigError::Rule(e.to_string()))?;
        self.inputs.check().map_err(|e| ConfigError::Rule(e.to_string()))?;
        self.hooks.check().map_err(|e| ConfigError::Rule(e.to_string()))?;
        self.sessions.idle_ms().map_err(|e| ConfigError::Rule(e.to_string()))?;
        self.containers.check().map_err(ConfigError::Rule)?;
        self.devices.xid_table().map_err(|e| ConfigError::Rule(e.to_string()))?;
        self.devices.trial_ms().map_err(|e| ConfigError::Rule(e.to_string()))?;
        self.tasks.check().map_err(ConfigError::Rule)?;
        self.certificates.life().map_err(|e| ConfigError::Rule(e.to_string()))?;
        self.membership.check().map_err(|e| ConfigError::Rule(e.to_string()))?;
        if let Some(reads) =
            self.reads_up_to.filter(|reads| !(version::FIRST..=version::NEWEST).contains(reads))
        {
            let range = (version::FIRST, version::NEWEST);
            return Err(ConfigError::Rule(format!(
                "reads_up_to = {reads} is none that this build knows: {} to {}",
                range.0, range.1
            )));
        }
        if self.listen.port() == 0 {
            return Err(ConfigError::Rule(
                "listen: port 0 would change at each start; give one, such as 7420".into(),
            ));
        }
        Ok(())
    }

    /// The newest version of the cluster's words that this agent reads.
    #[must_use]
    pub fn reads(&self) -> u16 {
        self.reads_up_to.unwrap_or(version::NEWEST)
    }

    /// What the inventory needs to know.
    ///
    /// # Errors
    /// `cpus` or `mem` is no amount; the message names the key and an example.
    pub fn devices(&self, host_name: &str) -> Result<DeviceConfig, PublicError> {
        Ok(DeviceConfig {
            host_name: host_name.to_owned(),
            sim_gpus: self.sim_gpus.clone(),
            nvml_library: self.nvml_library.clone(),
            kmsg_path: self.devices.kmsg_path.clone(),
            root: self.devices.root.clone(),
            described: self.devices.described.clone(),
            sim_script: self.devices.sim_script.clone(),
            limits: Limit::configured(self.devices.allow.as_deref())
                .into_iter()
                .chain(Limit::of_environment())
                .collect(),
            cpus_milli: self
                .cpus
                .as_deref()
                .map(|text| crate::parse::cpus_milli("cpus", text))
                .transpose()?,
            mem_mib: self.mem.as_deref().map(|text| crate::parse::memory_mib("mem", text)).transpose()?,
            labels: self.offered_labels(),
            boot: None,
        })
    }

    /// What is offered to all tasks together.
    ///
    /// # Errors
    /// As for [`Self::devices`].
    pub fn offer(&self) -> Result<Offer, ConfigError> {
        let devices = self.devices("").map_err(|error| ConfigError::Rule(error.to_string()))?;
        Ok(Offer {
            cpus_milli: devices.cpus_milli.unwrap_or_else(host::cpus_milli),
            mem_mib: devices.mem_mib.unwrap_or_else(host::mem_mib),
            socket: self.socket_path(),
        })
    }

    /// What bounds tasks.
    #[must_use]
    pub fn cages(&self) -> CageSettings {
        CageSettings { isolation: self.isolation, ..self.tasks.clone() }
    }

    /// The operator's labels, and those by which the settings speak.
    fn offered_labels(&self) -> BTreeMap<String, String> {
        let mut labels: BTreeMap<String, String> =
            self.labels.clone().into_iter().chain(containers::labels(&self.containers)).collect();
        // Settled at the start; a setting that was not says nothing.
        if let Some(ip) = self.gang_network.as_ref().filter(|ip| ip.parse::<std::net::IpAddr>().is_ok()) {
            labels.insert(crate::logic::gang::ADDR_LABEL.to_owned(), ip.clone());
        }
        if self.sharing.mps {
            labels.insert(mps::LABEL.0.to_owned(), mps::LABEL.1.to_owned());
        }
        labels
    }

    /// What peers dial.
    #[must_use]
    pub fn advertised(&self) -> String {
        self.advertise.clone().unwrap_or_else(|| self.listen.to_string())
    }

    /// The unix socket of the API.
    #[must_use]
    pub fn socket_path(&self) -> PathBuf {
        self.socket.clone().unwrap_or_else(|| self.data_dir.join("api.sock"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_profiles_obey_the_rules() {
        for profile in [Profile::Production, Profile::Chaos] {
            AgentConfig { profile, ..AgentConfig::default() }.check().unwrap();
        }
    }

    #[test]
    fn an_unknown_key_is_refused_by_name() {
        let error = toml::from_str::<AgentConfig>("data_dri = \"/x\"").unwrap_err().to_string();
        assert!(error.contains("data_dri") && error.contains("data_dir"), "{error}");
    }
}
