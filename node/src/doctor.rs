//! `rota doctor`: is this host fit, and if not, what is the next step? One row per thing looked at; every row that is
//! not `pass` says what to do. Works without a GPU, a configuration, an identity or a running agent (R098), changes
//! nothing but a scratch file in the data directory, and never hangs: drivers are asked under a deadline.

mod disk;
mod gpu;
mod identity;
mod members;
mod system;

use crate::devices::DeviceConfig;
use crate::shim::cage::Place;
use rota_protocol::view::DoctorRow;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

/// What to look at.
#[derive(Debug, Clone)]
pub struct DoctorInput {
    /// The data directory; it need not exist.
    pub data_dir: PathBuf,
    /// The agent's unix socket, if not `api.sock` in the data directory.
    pub socket: Option<PathBuf>,
    /// The UDP address of peers.
    pub listen: Option<SocketAddr>,
    /// The TCP address of `/metrics` and `/healthz`.
    pub http_listen: Option<SocketAddr>,
    /// Which devices to look for.
    pub devices: DeviceConfig,
    /// Where the kernel shows itself: `/`, but for tests.
    pub root: PathBuf,
}

impl DoctorInput {
    /// A host with this data directory and nothing else said.
    #[must_use]
    pub fn new(data_dir: &Path) -> Self {
        Self {
            data_dir: data_dir.to_owned(),
            socket: None,
            listen: None,
            http_listen: None,
            devices: DeviceConfig::default(),
            root: "/".into(),
        }
    }
}

/// The name of the check of [`isolation`].
pub const ISOLATION: &str = "isolation";

/// How far tasks are kept apart here, and by what.
#[must_use]
pub fn isolation(place: &Place) -> DoctorRow {
    let found = place.to_string();
    if place.is_whole() {
        return pass(ISOLATION, found);
    }
    let next = "run the agent as root outside of containers, on a host with control groups; or set `isolation` to what there is";
    warn(ISOLATION, found, next)
}

/// Looks at everything, in the order in which a person would.
pub async fn examine(input: &DoctorInput) -> Vec<DoctorRow> {
    let mut rows = gpu::rows(&input.devices, &input.root).await;
    let input = input.clone();
    let rest = tokio::task::spawn_blocking(move || still_rows(&input)).await;
    match rest {
        Ok(rest) => rows.extend(rest),
        Err(error) => rows.push(fail("checks", format!("they died: {error}"), "report this as a bug")),
    }
    rows
}

/// The checks that ask no driver.
fn still_rows(input: &DoctorInput) -> Vec<DoctorRow> {
    let root = &input.root;
    let socket = input.socket.clone().unwrap_or_else(|| input.data_dir.join("api.sock"));
    let agent = UnixStream::connect(&socket).is_ok();
    let mut rows = vec![system::capacity(&input.devices), system::user()];
    rows.extend(disk::rows(&input.data_dir));
    rows.extend(identity::rows(&input.data_dir));
    rows.extend(members::rows(&input.data_dir, agent));
    rows.push(agent_row(&socket, agent));
    rows.extend(input.listen.map(|addr| port("peer port", "UDP", addr, agent, udp_free)));
    rows.extend(input.http_listen.map(|addr| port("http port", "TCP", addr, agent, tcp_free)));
    rows.extend([system::cgroup(root), system::systemd(root), system::clock(root), system::open_files()]);
    rows
}

fn agent_row(socket: &Path, answers: bool) -> DoctorRow {
    if answers {
        return pass("agent", format!("it answers at {}", socket.display()));
    }
    let found = format!("nobody answers at {}", socket.display());
    warn("agent", found, "start it: `systemctl start rota`, or `rota agent`; if it runs, check `data_dir`")
}

fn port(
    check: &str,
    kind: &str,
    addr: SocketAddr,
    agent: bool,
    free: fn(SocketAddr) -> std::io::Result<()>,
) -> DoctorRow {
    match free(addr) {
        Ok(()) => pass(check, format!("{kind} {addr} is free")),
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse && agent => {
            pass(check, format!("{kind} {addr} is in use, and the agent runs"))
        }
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => fail(
            check,
            format!("{kind} {addr} is in use by another program"),
            format!("find it with `ss -lnp | grep {}`, or choose another port", addr.port()),
        ),
        Err(error) => fail(
            check,
            format!("{kind} {addr} cannot be used: {error}"),
            "choose an address of this host and a port that this user may open",
        ),
    }
}

fn udp_free(addr: SocketAddr) -> std::io::Result<()> {
    UdpSocket::bind(addr).map(drop)
}

fn tcp_free(addr: SocketAddr) -> std::io::Result<()> {
    TcpListener::bind(addr).map(drop)
}

fn row(check: &str, verdict: &str, found: String, next: Option<String>) -> DoctorRow {
    DoctorRow { check: check.to_owned(), verdict: verdict.to_owned(), found, next }
}

fn pass(check: &str, found: impl Into<String>) -> DoctorRow {
    row(check, "pass", found.into(), None)
}

fn warn(check: &str, found: impl Into<String>, next: impl Into<String>) -> DoctorRow {
    row(check, "warn", found.into(), Some(next.into()))
}

fn fail(check: &str, found: impl Into<String>, next: impl Into<String>) -> DoctorRow {
    row(check, "fail", found.into(), Some(next.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_empty_machine_gets_one_line_per_check_and_a_next_step_for_each_that_did_not_pass() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let mut input = DoctorInput::new(&root.path().join("data"));
        input.root = root.path().to_owned();
        input.devices.nvml_library = Some("/nonexistent/libnvidia-ml.so.1".into());
        input.listen = Some(([127, 0, 0, 1], 0).into());
        input.http_listen = Some(([127, 0, 0, 1], 0).into());
        let rows = examine(&input).await;
        let checks: Vec<&str> = rows.iter().map(|r| r.check.as_str()).collect();
        let expected = [
            "nvidia library",
            "devices",
            "device files",
            "capacity",
            "user",
            "data directory",
            "identity",
            "agent",
            "peer port",
            "http port",
            "cgroup",
            "systemd",
            "clock",
            "open files",
        ];
        assert_eq!(checks, expected);
        for row in rows {
            assert!(["pass", "warn", "fail"].contains(&row.verdict.as_str()), "{row:?}");
            assert_eq!(row.next.is_some(), row.verdict != "pass", "{row:?}");
            assert!(!row.found.is_empty(), "{row:?}");
        }
        assert!(!root.path().join("data").exists(), "a check makes nothing");
    }

    #[test]
    fn a_port_in_use_fails_unless_the_agent_has_it() {
        let taken = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let addr = taken.local_addr().expect("bound");
        assert_eq!(port("p", "TCP", addr, false, tcp_free).verdict, "fail");
        assert_eq!(port("p", "TCP", addr, true, tcp_free).verdict, "pass");
        drop(taken);
        assert_eq!(port("p", "TCP", addr, false, tcp_free).verdict, "pass");
        let foreign = "192.0.2.1:7420".parse().expect("an address for documentation");
        assert_eq!(port("p", "UDP", foreign, true, udp_free).verdict, "fail");
    }
}
