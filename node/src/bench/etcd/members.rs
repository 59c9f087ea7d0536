//! Three members of etcd on loopback, in a folder beside that of Rota's peers, so that both write to one disk.
//! No TLS between them or to their clients: that is in etcd's favour.

use super::puts;
use crate::io::usage::{cpu_ms, rss_kib};
use crate::lab::{LabError, wait_for};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// How many members.
const MEMBERS: usize = 3;

/// A running etcd; dropping it ends the members and removes their folder.
pub(super) struct Members {
    children: Vec<Child>,
    /// Where each takes clients.
    pub(super) clients: Vec<SocketAddr>,
    dir: PathBuf,
}

impl Members {
    /// Starts them and waits until one leads.
    pub(super) async fn start(program: &str, dir: &Path) -> Result<Self, LabError> {
        std::fs::create_dir_all(dir)
            .map_err(|e| LabError::Io(format!("cannot make {}", dir.display()), e))?;
        let clients = (0..MEMBERS).map(|_| free_address()).collect::<Result<Vec<_>, _>>()?;
        let peers = (0..MEMBERS).map(|_| free_address()).collect::<Result<Vec<_>, _>>()?;
        let names: Vec<_> = peers.iter().enumerate().map(|(n, peer)| format!("m{n}=http://{peer}")).collect();
        let mut members = Self { children: Vec::new(), clients, dir: dir.to_owned() };
        for (number, peer) in peers.iter().enumerate() {
            let (client, peer) = (format!("http://{}", members.clients[number]), format!("http://{peer}"));
            let log = std::fs::File::create(dir.join(format!("m{number}.log")))
                .map_err(|e| LabError::Io("cannot make a log file for etcd".into(), e))?;
            let mut command = Command::new(program);
            command
                .arg("--name")
                .arg(format!("m{number}"))
                .arg("--data-dir")
                .arg(dir.join(number.to_string()));
            command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
            command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
            command.args(["--initial-cluster", &names.join(","), "--initial-cluster-state", "new"]);
            command.args(["--logger", "zap", "--log-level", "warn"]);
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
            let child = command.spawn().map_err(|e| {
                LabError::Io(format!("cannot run `{program}` (Debian: apt-get install etcd-server)"), e)
            })?;
            members.children.push(child);
        }
        wait_for("a leader of etcd", Duration::from_secs(20), async || members.leader().await).await?;
        Ok(members)
    }

    /// The member that leads.
    pub(super) async fn leader(&self) -> Option<SocketAddr> {
        for client in &self.clients {
            if puts::is_leader(*client).await.ok()? {
                return Some(*client);
            }
        }
        None
    }

    /// Processor time of all members so far, in ms.
    pub(super) fn cpu_ms(&self) -> u64 {
        self.children.iter().filter_map(|child| cpu_ms(child.id())).sum()
    }

    /// Memory of all members, in KiB.
    pub(super) fn rss_kib(&self) -> u64 {
        self.children.iter().filter_map(|child| rss_kib(child.id())).sum()
    }
}

impl Drop for Members {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn free_address() -> Result<SocketAddr, LabError> {
    let bound = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    bound.map_err(|e| LabError::Io("cannot bind a port".into(), e))
}

/// The version of the program, from its first line.
pub(super) fn version(program: &str) -> Result<String, LabError> {
    let output = Command::new(program).arg("--version").output();
    let output = output.map_err(|e| {
        LabError::Io(format!("cannot run `{program}` (Debian: apt-get install etcd-server)"), e)
    })?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok(text.lines().next().unwrap_or_default().trim_start_matches("etcd Version: ").to_owned())
}
