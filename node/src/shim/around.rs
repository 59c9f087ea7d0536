//! What an attempt has around its program: ports that must be free, and the removal of a container that may outlive
//! every process the shim can see.
//!
//! A removal is written down (`<token>.remove`) before the program starts: if the shim is killed, the agent finds it
//! there and removes the container in its stead. Until it has succeeded nothing that the attempt held is free.

use super::program::{CODE_NOT_FOUND, cannot_start, launch_failed};
use super::timer::timespec;
use super::uplink::{Link, Sent};
use super::wire;
use crate::io::clock::boottime_ms;
use crate::io::ffi::{self, CStrings, Start};
use rota_protocol::Token;
use rota_protocol::around::{Around, CID_NAME, EndHook, RuntimeOrder};
use rota_protocol::codec;
use rota_protocol::job::AttemptEnd;
use rota_protocol::spool::{LaunchOrder, ShimCall, ShimEvent};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::AsFd;
use rustix::net::{AddressFamily, SocketType, bind, ipproto, listen, socket_with, sockopt};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use std::ffi::{CString, OsStr};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Longest removal that is read back, in bytes.
const HOOK_BYTES_MAX: usize = 64 << 10;
/// How long one try may take, in ms: a runtime's daemon may hang.
const TRY_MS: u64 = 10_000;
/// First pause after a try that failed, in ms; doubled up to the greatest.
const PAUSE_MS: u64 = 50;
const PAUSE_MS_MAX: u64 = 2_000;
/// Tries to remove what was most likely never made.
const UNMADE_TRIES: u32 = 5;
/// Longest end of standard error that goes into a reason, in bytes.
const TAIL_BYTES: u64 = 300;

/// How runtimes and registries say that there is no such image, in small letters.
const NO_IMAGE: [&str; 9] = [
    "did not resolve to an alias",
    "invalid reference format",
    "manifest unknown",
    "name unknown",
    "no such image",
    "image not known",
    "repository does not exist",
    "pull access denied",
    "requested access to the resource is denied",
];

/// All ports of the attempt's own are free, or why not.
pub(super) fn ports_are_free(order: &LaunchOrder) -> Result<(), String> {
    match taken_port(order.around.ports) {
        Some(port) => Err(format!("port {port} of its gang is taken on this host; it is tried with others")),
        None => Ok(()),
    }
}

/// The first of these ports that somebody listens at. What is only in a closed connection's memory counts as free, as
/// it does for every server that reuses its address.
fn taken_port((first, count): (u16, u16)) -> Option<u16> {
    (first..first.saturating_add(count)).find(|port| {
        let v4 = try_port(SocketAddr::from((Ipv4Addr::UNSPECIFIED, *port)));
        v4 || try_port(SocketAddr::from((Ipv6Addr::UNSPECIFIED, *port)))
    })
}

/// Somebody has it. A family that the machine does not know has no ports.
fn try_port(addr: SocketAddr) -> bool {
    use rustix::io::Errno;
    use rustix::net::SocketFlags;
    let family = if addr.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let attempt = || -> rustix::io::Result<()> {
        let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, Some(ipproto::TCP))?;
        sockopt::set_socket_reuseaddr(&socket, true)?;
        if addr.is_ipv6() {
            sockopt::set_ipv6_v6only(&socket, true)?;
        }
        bind(&socket, &addr)?;
        // With reuse, two may bind; only one may listen.
        listen(&socket, 1)
    };
    attempt() == Err(Errno::ADDRINUSE)
}

fn hook_path(dir: &Path, token: Token) -> PathBuf {
    dir.join(format!("{token}.remove"))
}

/// Writes down what must be removed, before there is anything. The working directory is the attempts folder.
pub(super) fn note_hook(order: &LaunchOrder) -> io::Result<()> {
    use std::io::Write;
    let Some(hook) = hook_of(&order.around) else { return Ok(()) };
    let bytes = codec::encode(hook).map_err(io::Error::other)?;
    let path = hook_path(Path::new(""), order.token);
    std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?.write_all(&bytes)
}

fn hook_of(around: &Around) -> Option<&EndHook> {
    around.runtime.as_ref()?.remove.as_ref()
}

/// Removes the container, however often it takes. Tells the agent once if it takes longer than killing may. Where the
/// engine has never said that it made one (`made`), and all processes are gone, a removal that fails as well is no sign of
/// one: after a few tries there is none.
pub(super) fn remove(order: &LaunchOrder, link: &mut Link<'_>) {
    let Some(hook) = hook_of(&order.around) else { return };
    let began_ms = boottime_ms();
    let (mut pause_ms, mut told, mut tries) = (PAUSE_MS, false, 0);
    while !try_once(hook, order.token, link) {
        tries += 1;
        if tries >= UNMADE_TRIES && !made(order) {
            break;
        }
        let late = boottime_ms().saturating_sub(began_ms) > u64::from(order.kill_budget_ms);
        told = told || (late && link.send(order.token, &ShimEvent::Stuck { left: 1 }) == Sent::Yes);
        doze(pause_ms, order.token, link);
        pause_ms = (pause_ms * 2).min(PAUSE_MS_MAX);
    }
    let _ = std::fs::remove_file(hook_path(Path::new(""), order.token));
}

/// Nothing was started, so there is nothing to be removed.
pub(super) fn forget_hook(order: &LaunchOrder) {
    if hook_of(&order.around).is_some() {
        let _ = std::fs::remove_file(hook_path(Path::new(""), order.token));
    }
}

/// True when it succeeded.
fn try_once(hook: &EndHook, token: Token, link: &mut Link<'_>) -> bool {
    let Some(child) = start(hook) else { return false };
    let until_ms = boottime_ms() + TRY_MS;
    loop {
        match waitpid(Some(child), WaitOptions::NOHANG) {
            Ok(Some((_, status))) => return status.exit_status() == Some(0),
            Ok(None) if boottime_ms() < until_ms => doze(20, token, link),
            Ok(None) => {
                // Not reaped yet: the number is its own.
                let _ = kill_process(child, Signal::KILL);
                let _ = waitpid(Some(child), WaitOptions::empty());
                return false;
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return false,
        }
    }
}

fn start(hook: &EndHook) -> Option<Pid> {
    let text = |bytes: &[u8]| CString::new(bytes).ok();
    let argv: Vec<CString> = hook.argv.iter().map(|a| text(a)).collect::<Option<_>>()?;
    let pair = |(name, value): &(Vec<u8>, Vec<u8>)| text(&[name, b"=".as_slice(), value].concat());
    let envp: Vec<CString> = hook.env.iter().map(pair).collect::<Option<_>>()?;
    let programs = [argv.first()?.clone()];
    let (argv, envp) = (CStrings::new(argv), CStrings::new(envp));
    let null = std::fs::OpenOptions::new().write(true).open("/dev/null").ok()?;
    let start = Start {
        programs: &programs,
        argv: &argv,
        envp: &envp,
        workdir: c"/",
        stdin: None,
        terminal: false,
        stdout: null.as_fd(),
        stderr: null.as_fd(),
        uid_gid: hook.uid_gid,
        oom_default: true,
        // The runtime's own program, which only removes.
        cage: &ffi::cage::Steps::default(),
    };
    ffi::start_task(&start).ok()
}

/// Sleeps, but hears of an agent that attaches and reaps what comes home.
fn doze(ms: u64, token: Token, link: &mut Link<'_>) {
    let signals = &link.inherited.signals;
    let _ = poll(&mut [PollFd::new(signals, PollFlags::IN)], Some(&timespec(ms)));
    while let Ok(Some(received)) = ffi::read_signal(link.inherited.signals.as_fd()) {
        if received.signal == ffi::call_signal()
            && wire::call_of(received.value, token) == Some(ShimCall::Attach)
        {
            link.attach();
        }
    }
}

/// The same after the shim's own death, by the agent: true once nothing is left to be removed.
pub(super) async fn remove_left_behind(dir: &Path, token: Token) {
    let path = hook_path(dir, token);
    let hook = match std::fs::read(&path) {
        Ok(bytes) => codec::decode::<EndHook>(&bytes, HOOK_BYTES_MAX),
        Err(_) => return,
    };
    match hook {
        Ok(hook) => {
            let mut pause_ms = PAUSE_MS;
            while !run_as_agent(&hook).await {
                tracing::warn!(%token, "a container that a dead shim left cannot be removed yet");
                tokio::time::sleep(std::time::Duration::from_millis(pause_ms)).await;
                pause_ms = (pause_ms * 2).min(PAUSE_MS_MAX);
            }
        }
        // Torn: the shim died before it started anything.
        Err(error) => tracing::warn!(%token, %error, "what is to be removed cannot be read"),
    }
    let _ = std::fs::remove_file(path);
}

async fn run_as_agent(hook: &EndHook) -> bool {
    let Some((program, args)) = hook.argv.split_first() else { return true };
    let mut command = tokio::process::Command::new(OsStr::from_bytes(program));
    command.args(args.iter().map(|arg| OsStr::from_bytes(arg))).env_clear();
    command.envs(hook.env.iter().map(|(name, value)| (OsStr::from_bytes(name), OsStr::from_bytes(value))));
    if let Some((uid, gid)) = hook.uid_gid.filter(|_| rustix::process::geteuid().is_root()) {
        command.uid(uid).gid(gid);
    }
    let null = std::process::Stdio::null;
    command.stdin(null()).stdout(null()).stderr(null()).current_dir("/").kill_on_drop(true);
    let Ok(mut child) = command.spawn() else { return false };
    let limit = std::time::Duration::from_millis(TRY_MS);
    matches!(tokio::time::timeout(limit, child.wait()).await, Ok(Ok(status)) if status.success())
}

/// The end as it is to be told: a runtime that made no container is the host's fault, not the program's end; but an
/// image that nobody has is the job's.
pub(super) fn judged(end: AttemptEnd, order: &LaunchOrder) -> AttemptEnd {
    let Some(runtime) = &order.around.runtime else { return end };
    match end {
        AttemptEnd::Exited { code } if runtime.failed_status == Some(code) && !made(order) => {
            let said = last_line(&format!("{}.stderr", order.token)).unwrap_or_default();
            let reason = failure(runtime, code, &said);
            if names_no_image(&said) { cannot_start(CODE_NOT_FOUND, reason) } else { launch_failed(reason) }
        }
        same => same,
    }
}

fn made(order: &LaunchOrder) -> bool {
    let path = [order.notes_base.as_slice(), b".", CID_NAME.as_bytes()].concat();
    Path::new(OsStr::from_bytes(&path)).symlink_metadata().is_ok()
}

fn failure(runtime: &RuntimeOrder, code: u8, said: &str) -> String {
    let said: String = said.chars().filter(|c| !c.is_control()).collect();
    format!("{} could not make the container (status {code}): {said}", runtime.name)
}

/// The runtime, or the registry, says that there is no such image. A registry that does not answer says nothing of it.
fn names_no_image(said: &str) -> bool {
    let said = said.to_lowercase();
    NO_IMAGE.iter().any(|words| said.contains(words))
}

/// The line that says what went wrong: the last one, unless it only tells how to get help.
fn last_line(path: &str) -> io::Result<String> {
    use std::io::{Read, Seek, SeekFrom};
    let mut file = std::fs::File::open(path)?;
    let from = file.metadata()?.len().saturating_sub(TAIL_BYTES);
    file.seek(SeekFrom::Start(from))?;
    let mut bytes = Vec::new();
    file.take(TAIL_BYTES).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    Ok(text
        .lines()
        .rev()
        .find(|line| !line.trim().is_empty() && !line.contains("--help'"))
        .unwrap_or_default()
        .to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_at_which_somebody_listens_is_taken_in_either_family() {
        for at in ["127.0.0.1:0", "[::1]:0", "0.0.0.0:0"] {
            let Ok(held) = std::net::TcpListener::bind(at) else {
                eprintln!("SKIPPED: {at} cannot be bound on this machine");
                continue;
            };
            let port = held.local_addr().unwrap().port();
            assert_eq!(taken_port((port, 1)), Some(port), "{at}");
            assert!(taken_port((port.saturating_sub(1), 2)).is_some(), "{at}");
        }
        assert!((20_000..21_000).any(|port| taken_port((port, 1)).is_none()), "not every port is taken");
        assert_eq!(taken_port((0, 0)), None);
    }

    #[test]
    fn an_image_that_nobody_has_is_told_from_a_registry_that_does_not_answer() {
        for (said, is_jobs) in [
            (
                "Error: short-name \"foo\" did not resolve to an alias and no unqualified-search registries are defined",
                true,
            ),
            (
                "docker: Error response from daemon: pull access denied for foo, repository does not exist",
                true,
            ),
            ("Error: initializing source docker://quay.io/a:9: reading manifest 9: manifest unknown", true),
            ("docker: invalid reference format: repository name must be lowercase", true),
            (
                "Error: pinging container registry localhost: dial tcp 127.0.0.1:443: connect: connection refused",
                false,
            ),
            ("Error: writing blob: no space left on device", false),
            ("nvidia-container-cli: initialization error: driver error", false),
        ] {
            assert_eq!(names_no_image(said), is_jobs, "{said}");
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("stderr");
        std::fs::write(&path, "docker: no such image\n\nRun 'docker run --help' for more information\n")
            .unwrap();
        assert_eq!(last_line(path.to_str().unwrap()).unwrap(), "docker: no such image");
    }

    #[test]
    fn a_block_at_the_end_of_all_ports_ends_there() {
        assert!(taken_port((u16::MAX, 16)).is_none_or(|port| port == u16::MAX));
    }
}
