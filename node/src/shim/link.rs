//! The agent's connections: the fork server's process and its stream of orders, and the sockets on which shims speak.

use super::SERVER_ARG;
use super::adopt;
use super::host::Inner;
use super::known::Phase;
use super::record::{self, record_path};
use super::wire::{EVENT_BYTES_MAX, decode_event};
use rota_protocol::Token;
use rota_protocol::spool::ExitRecord;
use rustix::io::Errno;
use rustix::net::sockopt;
use rustix::net::{AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::io::unix::AsyncFd;
use tokio::net::UnixStream;
use tokio::process::{Child, Command};
use tokio::sync::mpsc;

/// Room for events on their way, in bytes (the kernel counts about 1 KiB for a small one): a burst of launches must
/// not make shims wait for the agent.
const EVENT_ROOM_BYTES: usize = 2 << 20;
/// Orders written at once.
const ORDERS_BATCH: usize = 256;
/// First pause before a fork server that died is replaced; doubled up to the greatest.
const RESTART_PAUSE: Duration = Duration::from_millis(50);
/// Greatest pause before a fork server is replaced.
const RESTART_PAUSE_MAX: Duration = Duration::from_secs(5);
/// A fork server that lived this long is replaced after the first pause again.
const RESTART_CALM: Duration = Duration::from_secs(60);

/// The socket for events of shims whose fork server this agent starts: the reading end, and the end that is inherited.
pub(super) fn event_sockets() -> io::Result<(AsyncFd<OwnedFd>, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC;
    let (reader, writer) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    // Best effort: less room only means that shims wait.
    let _ = sockopt::set_socket_send_buffer_size(&writer, EVENT_ROOM_BYTES);
    rustix::io::ioctl_fionbio(&reader, true)?;
    Ok((crate::io::ffi::async_fd(reader)?, writer))
}

/// The socket on which this agent hears shims of an earlier one.
pub(super) fn bind_agent_socket(dir: &Path, name: &str) -> io::Result<AsyncFd<OwnedFd>> {
    match std::fs::remove_file(dir.join(name)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
    // Through the folder's descriptor: a socket's path has room for 107 bytes, a data directory's may be longer.
    let folder = std::fs::File::open(dir)?;
    let path = format!("/proc/self/fd/{}/{name}", folder.as_raw_fd());
    rustix::net::bind(&socket, &SocketAddrUnix::new(path.as_str())?)?;
    crate::io::ffi::async_fd(socket)
}

/// Hears events until the agent ends.
pub(super) async fn read_events(inner: Arc<Inner>, socket: AsyncFd<OwnedFd>) {
    let mut buffer = vec![0; EVENT_BYTES_MAX];
    loop {
        let Ok(mut ready) = socket.readable().await else { return };
        let received = ready.try_io(|socket| {
            let (len, _) = rustix::net::recv(socket, &mut buffer[..], RecvFlags::DONTWAIT)?;
            Ok(len)
        });
        match received {
            // Every other end is gone, which is told again and again: nothing else would let this task be ended.
            Ok(Ok(0)) => tokio::time::sleep(RESTART_PAUSE).await,
            Ok(Ok(len)) => match decode_event(&buffer[..len]) {
                Ok((token, event)) => inner.on_event(token, event).await,
                Err(error) => tracing::warn!(%error, "a shim's message cannot be read"),
            },
            Ok(Err(error)) if error.raw_os_error() == Some(Errno::INTR.raw_os_error()) => {}
            Ok(Err(error)) => {
                tracing::error!(%error, "shims cannot be heard");
                tokio::time::sleep(RESTART_PAUSE).await;
            }
            // Not readable after all.
            Err(_) => {}
        }
    }
}

/// A running fork server.
pub(super) struct Server {
    child: Child,
    orders: UnixStream,
}

/// Starts a fork server: orders on its standard input, events on its standard output, an empty environment.
pub(super) fn spawn_server(exe: &Path, inner: &Inner, events: &OwnedFd) -> io::Result<Server> {
    let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
    ours.set_nonblocking(true)?;
    let child = Command::new(exe)
        .arg(SERVER_ARG)
        .arg(&inner.dir)
        .args(inner.place.folders_of_agent())
        .env_clear()
        .stdin(Stdio::from(OwnedFd::from(theirs)))
        .stdout(Stdio::from(events.try_clone()?))
        .stderr(Stdio::inherit())
        .spawn()?;
    Ok(Server { child, orders: UnixStream::from_std(ours)? })
}

/// Hands orders to the fork server, and replaces it when it dies.
pub(super) async fn run_server(
    inner: Arc<Inner>,
    exe: PathBuf,
    events: OwnedFd,
    first: Server,
    mut queue: mpsc::Receiver<Token>,
) {
    let mut pause = RESTART_PAUSE;
    let mut server = Some(first);
    loop {
        let began = tokio::time::Instant::now();
        match server.take().map_or_else(|| spawn_server(&exe, &inner, &events), Ok) {
            Ok(running) => match serve(&inner, running, &mut queue).await {
                Ended::Died(how) => tracing::error!(how, "the fork server died; it is replaced"),
                Ended::Stopped => return,
            },
            Err(error) => tracing::error!(%error, "the fork server cannot be started; it is tried again"),
        }
        watch_orphans(&inner);
        if began.elapsed() > RESTART_CALM {
            pause = RESTART_PAUSE;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(RESTART_PAUSE_MAX);
    }
}

enum Ended {
    Died(String),
    Stopped,
}

async fn serve(inner: &Arc<Inner>, server: Server, queue: &mut mpsc::Receiver<Token>) -> Ended {
    let Server { mut child, mut orders } = server;
    let mut tokens = Vec::with_capacity(ORDERS_BATCH);
    // Orders that an earlier fork server took without a word: if it did start them, their records stand in the way.
    let mut bytes = unheard_orders(inner);
    loop {
        let written = async {
            orders.write_all(&bytes).await?;
            bytes.clear();
            Ok::<usize, io::Error>(queue.recv_many(&mut tokens, ORDERS_BATCH).await)
        };
        tokio::select! {
            biased;
            status = child.wait() => return Ended::Died(match status {
                Ok(status) => status.to_string(),
                Err(error) => error.to_string(),
            }),
            got = written => match got {
                Ok(0) => return Ended::Stopped,
                Ok(_) => {
                    for token in tokens.drain(..) {
                        if let Some(record) = take_order(inner, token, &mut bytes) {
                            // Not waited for: whoever hears notes may be waiting for room for an order.
                            let inner = Arc::clone(inner);
                            tokio::spawn(async move { inner.on_ended(record).await });
                        }
                    }
                }
                // It is going: its end is heard next.
                Err(_) => return Ended::Died(match child.wait().await {
                    Ok(status) => status.to_string(),
                    Err(error) => error.to_string(),
                }),
            },
        }
    }
}

/// Appends a queued order. One that was asked to end meanwhile ends without having been started.
fn take_order(inner: &Inner, token: Token, bytes: &mut Vec<u8>) -> Option<ExitRecord> {
    let mut known = inner.known();
    let attempt = known.get_mut(&token)?;
    if !matches!(attempt.phase, Phase::Queued) {
        return None;
    }
    if let Some(reason) = attempt.end {
        return Some(ExitRecord::never_ran(token, reason.end()));
    }
    bytes.extend_from_slice(attempt.order.as_deref().unwrap_or_default());
    attempt.phase = Phase::Sent;
    None
}

fn unheard_orders(inner: &Inner) -> Vec<u8> {
    let known = inner.known();
    let unheard = known.values().filter(|attempt| matches!(attempt.phase, Phase::Sent));
    unheard.filter_map(|attempt| attempt.order.as_deref()).flatten().copied().collect()
}

/// Shims whose fork server died have nobody who hears of their deaths: the agent watches them itself from now on.
fn watch_orphans(inner: &Arc<Inner>) {
    let running: Vec<Token> = {
        let known = inner.known();
        known
            .iter()
            .filter(|(_, attempt)| matches!(attempt.phase, Phase::Running { .. }) && !attempt.watched)
            .map(|(token, _)| *token)
            .collect()
    };
    for token in running {
        let kept = record::read(&record_path(&inner.dir, token)).ok().filter(|found| found.kept);
        let watched = kept.and_then(|found| found.shim).map(|shim| adopt::watch(inner, &shim));
        if !matches!(watched, Some(Ok(()))) {
            // It went with its fork server, or cannot be watched: its record is looked at.
            let inner = Arc::clone(inner);
            tokio::spawn(async move { adopt::look(&inner, token).await });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shim::cage::{CageSettings, Offer};
    use crate::shim::{ShimHost, ShimNote};

    /// A closed stream of events is told again and again: a task that hears it must still let itself be ended.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_reader_whose_writers_are_gone_can_be_ended() {
        let dir = tempfile::tempdir().unwrap();
        let (notes, _heard) = mpsc::channel::<ShimNote>(1);
        let settings =
            CageSettings { isolation: rota_protocol::cage::Isolation::None, ..CageSettings::default() };
        let caging = (&settings, Offer::default());
        let (host, _) =
            ShimHost::start_caged(Path::new("/bin/false"), dir.path(), caging, notes).await.unwrap();
        let (reader, writer) = event_sockets().unwrap();
        let reading = tokio::spawn(read_events(host.shared(), reader));
        drop(writer);
        tokio::time::sleep(Duration::from_millis(20)).await;
        reading.abort();
        let ended = tokio::time::timeout(Duration::from_secs(20), reading).await;
        assert!(ended.expect("it spins").unwrap_err().is_cancelled());
    }
}
