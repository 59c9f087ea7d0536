//! How a lab's hosts look, and where they live.

use std::path::{Path, PathBuf};

/// The UDP ports of one host on loopback.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerPorts {
    /// Where its agent listens.
    pub listen: u16,
    /// What the others dial: the same, or that of something in between.
    pub advertise: u16,
}

/// A network namespace in which one host of a lab lives, in place of loopback.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetSpace {
    /// Its file, as `ip netns add` leaves it.
    pub file: PathBuf,
    /// The address there at which the other hosts reach it.
    pub addr: String,
}

/// How a lab's hosts look.
#[derive(Debug, Clone)]
pub struct LabOptions {
    /// How many hosts.
    pub peers: usize,
    /// The `rota` program.
    pub exe: PathBuf,
    /// Arguments before the subcommand, for a program that is `rota` only after them.
    pub exe_args: Vec<String>,
    /// Where the hosts' folders go.
    pub dir: PathBuf,
    /// `production` or `chaos`.
    pub profile: String,
    /// Simulated devices of each host; none to look for real ones.
    pub sim_gpus: Option<String>,
    /// The first host offers the machine's real cards instead.
    pub first_has_real_gpus: bool,
    /// CPUs that each host offers; none for what the machine has.
    pub cpus: Option<String>,
    /// Memory that each host offers.
    pub mem: Option<String>,
    /// Environment of the agents.
    pub env: Vec<(String, String)>,
    /// Ports of the hosts, in order; hosts beyond them get a free one.
    pub ports: Vec<PeerPorts>,
    /// Settings beyond the flags, in TOML; read by each agent when it starts.
    pub config: Option<String>,
    /// Hosts know each other by `[::1]` alone.
    pub ipv6: bool,
    /// Network namespaces of the hosts, in order; hosts beyond them are on loopback.
    pub spaces: Vec<NetSpace>,
}

impl LabOptions {
    /// `peers` hosts with four simulated cards each, run by this very program, under `dir`.
    ///
    /// # Errors
    /// The system does not say which program this is.
    pub fn new(peers: usize, dir: &Path) -> std::io::Result<Self> {
        Ok(Self {
            peers,
            exe: std::env::current_exe()?,
            exe_args: Vec::new(),
            dir: dir.to_owned(),
            profile: "production".into(),
            sim_gpus: Some("4xH100:80GiB".into()),
            first_has_real_gpus: false,
            cpus: None,
            mem: None,
            env: Vec::new(),
            ports: Vec::new(),
            config: None,
            ipv6: false,
            spaces: Vec::new(),
        })
    }
}
