//! Clusters of real `rota` processes on loopback, each with its own folder, for the demo, the benches and the chaos
//! tests: start, kill, stop, freeze, restart, ask.
//!
//! Not a simulation: identities, QUIC, log files, shims and tasks are what a real host has.

mod asks;
mod growing;
pub mod lives;
mod options;

pub use asks::violations;
pub use options::{LabOptions, NetSpace, PeerPorts};

use crate::client::Client;
pub use crate::client::fresh_request as new_request;
use crate::io::{clock, proc};
use rota_protocol::error::PublicError;
use rota_protocol::ids::{ClusterId, HostId};
use rustix::process::{Pid, Signal};
use std::net::UdpSocket;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Why a lab could not do something.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// The system refused.
    #[error("{0}: {1}")]
    Io(String, std::io::Error),
    /// A `rota` command failed.
    #[error("`{command}` failed: {output}")]
    Command {
        /// What was run.
        command: String,
        /// What it printed.
        output: String,
    },
    /// Something did not happen in time.
    #[error("{0} did not happen within {1} ms")]
    Late(String, u128),
    /// A peer refused.
    #[error("{0}")]
    Refused(#[from] PublicError),
    /// The scheduler refused what a bench in virtual time must be able to do.
    #[error(transparent)]
    Virtual(#[from] rota_sim::cluster::ClusterError),
    /// Two replicas differ.
    #[error(transparent)]
    Replicas(rota_sim::bench::replicas::ReplicaError),
}

/// What a file operation of a lab failed at.
pub fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> LabError {
    let what = what.into();
    move |error| LabError::Io(what, error)
}

/// One host of a lab.
#[derive(Debug)]
pub struct Peer {
    /// Its name.
    pub name: String,
    /// Its folder.
    pub dir: PathBuf,
    /// Its UDP port on loopback.
    pub port: u16,
    /// The port that the others dial.
    pub advertise: u16,
    /// Its number.
    pub host: HostId,
    child: Option<Child>,
}

impl Peer {
    /// The process id of its agent, while it runs.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Its API socket.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.dir.join("api.sock")
    }

    /// A client of this very peer.
    ///
    /// # Errors
    /// It does not answer.
    pub async fn client(&self) -> Result<Client, PublicError> {
        Client::connect_socket(&self.socket()).await
    }
}

/// A running cluster. Dropping it ends its agents, their attempts and, unless kept, its folder.
#[derive(Debug)]
pub struct Lab {
    /// Its hosts, in the order of their numbers.
    pub peers: Vec<Peer>,
    options: LabOptions,
    cluster: Option<ClusterId>,
}

impl Lab {
    /// Founds a cluster, lets the others join, and waits until all hosts are up.
    ///
    /// # Errors
    /// A command fails, or the hosts are not up in time.
    pub async fn start(options: LabOptions) -> Result<Self, LabError> {
        let mut lab = Self { peers: Vec::new(), options, cluster: None };
        for number in 1..=lab.options.peers {
            let name = format!("n{number}");
            let dir = lab.options.dir.join(&name);
            let ports = match lab.options.ports.get(number - 1) {
                Some(ports) => *ports,
                None => free_port().map(|port| PeerPorts { listen: port, advertise: port })?,
            };
            let PeerPorts { listen: port, advertise } = ports;
            lab.peers.push(Peer { name, dir, port, advertise, host: HostId(number as u64), child: None });
        }
        let (listen, advertise) = (lab.listen(0), lab.advertise(0));
        let first = lab.peers[0].dir.display().to_string();
        lab.rota(&[
            "init",
            "--data-dir",
            &first,
            "--name",
            "n1",
            "--cluster-name",
            "lab",
            "--listen",
            &listen,
            "--advertise",
            &advertise,
        ])
        .await?;
        lab.spawn(0)?;
        lab.until_listens(0).await?;
        lab.until_answers(0).await?;
        for number in 1..lab.peers.len() {
            lab.join(number).await?;
        }
        for number in 1..lab.peers.len() {
            lab.until_listens(number).await?;
        }
        lab.until_up(lab.peers.len()).await?;
        lab.cluster = Some(lab.cluster().await?.cluster);
        Ok(lab)
    }

    fn listen(&self, number: usize) -> String {
        format!("{}:{}", self.addr(number), self.peers[number].port)
    }

    fn advertise(&self, number: usize) -> String {
        format!("{}:{}", self.addr(number), self.peers[number].advertise)
    }

    fn addr(&self, number: usize) -> &str {
        let loopback = if self.options.ipv6 { "[::1]" } else { "127.0.0.1" };
        self.options.spaces.get(number).map_or(loopback, |space| &space.addr)
    }

    /// The program, run in a host's network namespace if it has one. It keeps the process id of what is started.
    fn program(&self, number: usize) -> Command {
        let mut command = match self.options.spaces.get(number) {
            Some(space) => {
                let mut command = Command::new("nsenter");
                command.arg(format!("--net={}", space.file.display())).arg(&self.options.exe);
                command
            }
            None => Command::new(&self.options.exe),
        };
        command.args(&self.options.exe_args);
        command
    }

    /// Runs a `rota` command to its end.
    ///
    /// # Errors
    /// It fails; its output is told.
    pub async fn rota(&self, args: &[&str]) -> Result<String, LabError> {
        self.rota_at(usize::MAX, args).await
    }

    /// The same where a host is; beyond all hosts is here.
    async fn rota_at(&self, number: usize, args: &[&str]) -> Result<String, LabError> {
        let mut command = tokio::process::Command::from(self.program(number));
        command.args(args).stdin(Stdio::null());
        let output = command.output().await.map_err(io("cannot run rota"))?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.success() {
            return Ok(text);
        }
        let output = format!("{text}{}", String::from_utf8_lossy(&output.stderr));
        Err(LabError::Command { command: args.join(" "), output })
    }

    /// Starts the agent of a host; it need not be up when this returns.
    ///
    /// # Errors
    /// The program cannot be started.
    pub fn spawn(&mut self, number: usize) -> Result<(), LabError> {
        let (listen, advertise) = (self.listen(number), self.advertise(number));
        let mut command = self.program(number);
        let (options, peer) = (&self.options, &mut self.peers[number]);
        let log = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(peer.dir.join("agent.log"))
            .map_err(io("cannot open agent.log"))?;
        command.arg("agent").arg("--data-dir").arg(&peer.dir);
        command.args(["--listen", &listen, "--advertise", &advertise, "--http-listen", "off"]);
        command.args(["--profile", &options.profile]);
        if let Some(config) = &options.config {
            let path = peer.dir.join("rota.toml");
            std::fs::write(&path, config).map_err(io("cannot write rota.toml"))?;
            command.arg("--config").arg(path);
        }
        let real = options.first_has_real_gpus && number == 0;
        let sim_gpus = if real { &None } else { &options.sim_gpus };
        for (flag, value) in [("--sim-gpus", sim_gpus), ("--cpus", &options.cpus), ("--mem", &options.mem)] {
            if let Some(value) = value {
                command.args([flag, value]);
            }
        }
        command.envs(options.env.iter().map(|(key, value)| (key, value)));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        peer.child = Some(command.spawn().map_err(io("cannot start an agent"))?);
        Ok(())
    }

    /// Other settings for agents that start from now on.
    pub fn configure(&mut self, config: &str) {
        self.options.config = Some(config.to_owned());
    }

    /// Another environment for agents that start from now on.
    pub fn surround(&mut self, env: &[(&str, &str)]) {
        self.options.env = env.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    }

    /// Sends a signal to a host's agent; KILL also waits until it is gone.
    ///
    /// # Errors
    /// It does not run.
    pub fn signal(&mut self, number: usize, signal: Signal) -> Result<(), LabError> {
        let peer = &mut self.peers[number];
        let gone = || std::io::Error::from(std::io::ErrorKind::NotFound);
        let child = peer.child.as_mut().ok_or_else(gone).map_err(io("no agent"))?;
        let pid = i32::try_from(child.id())
            .ok()
            .and_then(Pid::from_raw)
            .ok_or_else(gone)
            .map_err(io("no agent"))?;
        rustix::process::kill_process(pid, signal)
            .map_err(std::io::Error::from)
            .map_err(io("cannot signal"))?;
        if signal == Signal::KILL {
            child.wait().map_err(io("cannot wait for an agent"))?;
            peer.child = None;
        }
        Ok(())
    }

    /// Ends a host's agent in order and waits for it.
    ///
    /// # Errors
    /// It does not run, or does not end.
    pub async fn stop(&mut self, number: usize) -> Result<(), LabError> {
        self.signal(number, Signal::TERM)?;
        let started = Instant::now();
        while let Some(child) = self.peers[number].child.as_mut() {
            if child.try_wait().map_err(io("cannot wait for an agent"))?.is_some() {
                self.peers[number].child = None;
            } else if started.elapsed() > Duration::from_secs(10) {
                return Err(LabError::Late(format!("end of n{}", number + 1), 10_000));
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }

    /// Whether a host's agent has ended by itself, and how.
    pub fn exited(&mut self, number: usize) -> Option<std::process::ExitStatus> {
        self.peers[number].child.as_mut().and_then(|child| child.try_wait().ok().flatten())
    }

    /// Tasks outlive their agents; those of a lab that is over are ended by the mark in their environment, and their
    /// shims go with them.
    fn end_tasks(&self) {
        let Some(cluster) = self.cluster else { return };
        let mark = format!("ROTA_CLUSTER={cluster}").into_bytes();
        for pid in proc::marked(&[mark]).unwrap_or_default() {
            if let Some(pid) = Pid::from_raw(pid) {
                let _ = rustix::process::kill_process(pid, Signal::KILL);
            }
        }
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for peer in &mut self.peers {
            if let Some(mut child) = peer.child.take() {
                let _ = child.kill();
                let _ = child.wait();
            }
        }
        self.end_tasks();
    }
}

/// Polls a condition of the outside world until it holds.
///
/// # Errors
/// It does not hold in time.
pub async fn wait_for<T>(
    what: &str,
    limit: Duration,
    mut probe: impl AsyncFnMut() -> Option<T>,
) -> Result<T, LabError> {
    let deadline_ms = clock::boottime_ms() + u64::try_from(limit.as_millis()).unwrap_or(u64::MAX / 2);
    loop {
        if let Ok(Some(found)) = tokio::time::timeout(limit, probe()).await {
            return Ok(found);
        }
        if clock::boottime_ms() > deadline_ms {
            return Err(LabError::Late(what.to_owned(), limit.as_millis()));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A UDP port on loopback that was free a moment ago.
///
/// # Errors
/// There is none.
pub fn free_port() -> Result<u16, LabError> {
    let socket = UdpSocket::bind("127.0.0.1:0").map_err(io("cannot bind a port"))?;
    Ok(socket.local_addr().map_err(io("no local address"))?.port())
}
