//! The agent's side of sessions: calls to a shim over its socket, and reading a session's output from its files.

use super::host::{Inner, ShimHost};
use super::inside::files_base;
use super::known::Phase;
use super::logs::attempt_is_over;
use super::sessions::{CALL_BYTES_MAX, socket_name};
use rota_protocol::api::{LogChunk, OutputStream};
use rota_protocol::limits::LOG_CHUNK_BYTES_MAX;
use rota_protocol::session::{
    INPUT_BYTES_MAX, MAIN_SESSION, READ_WAIT_MS_MAX, SessionAsk, SessionEnd, SessionNews, ShimSessionCall,
};
use rota_protocol::spool::ShimCall;
use rota_protocol::{ErrorCode, PublicError, Token, codec};
use rustix::fd::OwnedFd;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::unix::AsyncFd;
use tokio::sync::Mutex;

/// How long a shim may take to open its socket, or to answer: it is one thread and waits for nobody.
const ANSWER_LIMIT: Duration = Duration::from_secs(3);
/// Pause before a shim's socket is tried again.
const PAUSE: Duration = Duration::from_millis(2);
/// How long the last output of a session may be fetched after its attempt was released.
const FETCH_TIME: Duration = Duration::from_secs(60);
/// Bytes of one answer: no output is in it.
const ANSWER_BYTES_MAX: usize = 4 << 10;

/// Connections to shims, by attempt. Each carries one exchange at a time.
#[derive(Debug, Default)]
pub(super) struct Lines(std::sync::Mutex<BTreeMap<Token, Arc<Line>>>);

/// A connection, while none is under way on it.
type Line = Mutex<Option<AsyncFd<OwnedFd>>>;

impl Lines {
    fn of(&self, token: Token) -> Arc<Line> {
        let mut lines = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        Arc::clone(lines.entry(token).or_default())
    }

    /// The attempt is released. Whether it had sessions.
    fn forget(&self, token: Token) -> bool {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner).remove(&token).is_some()
    }
}

impl ShimHost {
    /// One step of a session of an attempt on this host. The caller's rights were checked.
    ///
    /// # Errors
    /// `NotFound` when the attempt does not run here or has no such session, `Busy` when its shim does not answer.
    pub async fn session(
        &self,
        token: Token,
        session: u64,
        ask: SessionAsk,
    ) -> Result<SessionNews, PublicError> {
        match ask {
            SessionAsk::Read { stream, offset, wait_ms } => {
                let wait = Duration::from_millis(u64::from(wait_ms.min(READ_WAIT_MS_MAX)));
                self.read_session(token, session, stream, offset, wait).await
            }
            SessionAsk::Send { ref bytes, .. } if bytes.len() > INPUT_BYTES_MAX => {
                let message = format!("{} bytes typed at once are above {INPUT_BYTES_MAX}", bytes.len());
                Err(PublicError::new(ErrorCode::TooLarge, message))
            }
            ask => self.inner().exchange(token, ShimSessionCall { session, ask }).await,
        }
    }

    async fn read_session(
        &self,
        token: Token,
        session: u64,
        stream: OutputStream,
        offset: u64,
        wait: Duration,
    ) -> Result<SessionNews, PublicError> {
        let none = SessionNews::none(token);
        if session == MAIN_SESSION {
            let chunk = self.read_log(token, stream, offset, wait).await?;
            return Ok(SessionNews { chunk: Some(chunk), ..none });
        }
        let until = tokio::time::Instant::now() + wait;
        let inner = self.inner();
        let base = inner.dir.join(files_base(token, session));
        let file = |name: &str| {
            let mut path = base.clone().into_os_string();
            path.push(name);
            PathBuf::from(path)
        };
        let output = match stream {
            OutputStream::Stdout => file(".stdout"),
            OutputStream::Stderr => file(".stderr"),
        };
        loop {
            let changed = inner.watch_changes(token);
            let news = changed.as_ref().map(|changed| changed.notified());
            let mut news = std::pin::pin!(news);
            if let Some(news) = news.as_mut().as_pin_mut() {
                // Registered before the files are looked at: growth after the look is not missed.
                news.enable();
            }
            // The end first: what is written before it is all there then.
            let mut end = read_end(&file(".end"));
            if end.is_none() && attempt_is_over(inner, token)? {
                end = Some(read_end(&file(".end")).unwrap_or(SessionEnd::WithTask));
            }
            let bytes = read_piece(output.clone(), offset).await?;
            let more = !bytes.is_empty();
            if more || end.is_some() || tokio::time::Instant::now() >= until {
                // Its end is told with the last bytes, or after them.
                let there = tokio::fs::metadata(&output).await.map_or(0, |meta| meta.len());
                let last = end.is_some() && offset.saturating_add(bytes.len() as u64) >= there;
                let chunk = Some(LogChunk { attempt: token, offset, bytes, last });
                return Ok(SessionNews { chunk, end, ..none });
            }
            match news.as_mut().as_pin_mut() {
                Some(news) => {
                    let _ = tokio::time::timeout_at(until, news).await;
                }
                None => tokio::time::sleep(PAUSE).await,
            }
        }
    }

    /// The log has an attempt's end: its sessions' output stays for a moment, for whoever still reads it.
    pub(super) fn release_sessions(&self, token: Token) {
        if !self.inner().lines.forget(token) {
            return;
        }
        let dir = self.inner().dir.clone();
        tokio::spawn(async move {
            tokio::time::sleep(FETCH_TIME).await;
            let _ = tokio::task::spawn_blocking(move || sweep(&dir, |found| found == token)).await;
        });
    }
}

impl Inner {
    async fn exchange(&self, token: Token, call: ShimSessionCall) -> Result<SessionNews, PublicError> {
        let bytes =
            codec::encode(&call).map_err(|error| PublicError::new(ErrorCode::Invalid, error.to_string()))?;
        if bytes.len() > CALL_BYTES_MAX {
            let message = format!("a command line of {} bytes is above {CALL_BYTES_MAX}", bytes.len());
            return Err(PublicError::new(ErrorCode::TooLarge, message));
        }
        let line = self.lines.of(token);
        let mut line = line.lock().await;
        // Taken out for the exchange: one that is given up half-way is not used again. A kept line may be that of an
        // earlier call to a shim that is gone; then there is a second try.
        for _ in 0..2 {
            let known = line.take();
            let fresh = known.is_none();
            let socket = match known {
                Some(socket) => socket,
                None => self.connect(token).await?,
            };
            match tokio::time::timeout(ANSWER_LIMIT, ask(&socket, &bytes)).await {
                Ok(Ok(answer)) => {
                    *line = Some(socket);
                    return answer;
                }
                Ok(Err(error)) if fresh => return Err(busy(&error.to_string())),
                Ok(Err(_)) => {}
                Err(_) => return Err(busy("no answer")),
            }
        }
        Err(busy("the line broke twice"))
    }

    /// A connection to a shim, which opens its socket when it is asked to.
    async fn connect(&self, token: Token) -> Result<AsyncFd<OwnedFd>, PublicError> {
        let until = tokio::time::Instant::now() + ANSWER_LIMIT;
        let mut asked = false;
        loop {
            match dial(&self.dir, token) {
                Ok(socket) => return Ok(socket),
                Err(error) if tokio::time::Instant::now() >= until => return Err(busy(&error.to_string())),
                Err(_) => {}
            }
            let shim_pid = match self.known().get(&token).map(|attempt| &attempt.phase) {
                Some(Phase::Running { shim_pid, .. }) => Some(*shim_pid),
                Some(Phase::Queued | Phase::Sent) => None,
                Some(Phase::Ended { .. }) | None => {
                    let message = format!("attempt {token} does not run on this host");
                    return Err(PublicError::new(ErrorCode::NotFound, message));
                }
            };
            match shim_pid {
                Some(shim_pid) if !asked => {
                    self.call(token, shim_pid, ShimCall::Sessions).await;
                    asked = true;
                }
                _ => tokio::time::sleep(PAUSE).await,
            }
        }
    }
}

fn dial(dir: &Path, token: Token) -> io::Result<AsyncFd<OwnedFd>> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    // Through the folder's descriptor: a socket's path has room for 107 bytes, a data directory's may be longer.
    let folder = std::fs::File::open(dir)?;
    let path = format!("/proc/self/fd/{}/{}", folder.as_raw_fd(), socket_name(token));
    rustix::net::connect(&socket, &SocketAddrUnix::new(path.as_str())?)?;
    crate::io::ffi::async_fd(socket)
}

/// Sends a call and hears its answer.
async fn ask(socket: &AsyncFd<OwnedFd>, bytes: &[u8]) -> io::Result<Result<SessionNews, PublicError>> {
    loop {
        let mut ready = socket.writable().await?;
        let sent = ready.try_io(|socket| {
            Ok(rustix::net::send(socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?)
        });
        match sent {
            Ok(Ok(_)) => break,
            Ok(Err(error)) => return Err(error),
            Err(_) => {}
        }
    }
    let mut buffer = vec![0; ANSWER_BYTES_MAX];
    loop {
        let mut ready = socket.readable().await?;
        let received = ready.try_io(|socket| {
            let (len, _) = rustix::net::recv(socket, &mut buffer[..], RecvFlags::DONTWAIT)?;
            Ok(len)
        });
        match received {
            Ok(Ok(0)) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(Ok(len)) => {
                return codec::decode(&buffer[..len], ANSWER_BYTES_MAX).map_err(io::Error::other);
            }
            Ok(Err(error)) => return Err(error),
            Err(_) => {}
        }
    }
}

fn busy(why: &str) -> PublicError {
    PublicError::new(ErrorCode::Busy, format!("the task's shim does not answer: {why}")).retry_after(100)
}

/// At most one chunk of a file from `offset` on; nothing of one that was not made yet.
async fn read_piece(path: PathBuf, offset: u64) -> Result<Vec<u8>, PublicError> {
    // The disk may stall; the runtime must not.
    let read = tokio::task::spawn_blocking(move || -> io::Result<Vec<u8>> {
        let file = match std::fs::File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let there = file.metadata()?.len().saturating_sub(offset);
        let mut bytes = vec![0; usize::try_from(there).unwrap_or(usize::MAX).min(LOG_CHUNK_BYTES_MAX)];
        let len = file.read_at(&mut bytes, offset)?;
        bytes.truncate(len);
        Ok(bytes)
    });
    let failed = |error: String| {
        PublicError::new(ErrorCode::Internal, format!("the session's output cannot be read: {error}"))
    };
    read.await.map_err(|error| failed(error.to_string()))?.map_err(|error| failed(error.to_string()))
}

fn read_end(path: &Path) -> Option<SessionEnd> {
    let bytes = std::fs::read(path).ok()?;
    codec::decode(&bytes, ANSWER_BYTES_MAX).ok()
}

/// Removes the session files and sockets of attempts.
pub(super) fn sweep(dir: &Path, is_over: impl Fn(Token) -> bool) -> io::Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        let of_session = name
            .to_str()
            .and_then(|name| name.split_once('.'))
            .filter(|(_, rest)| *rest == "sock" || (rest.starts_with('x') && rest.contains('.')));
        let token = of_session.and_then(|(token, _)| token.parse().ok()).map(Token);
        if token.is_some_and(&is_over) {
            std::fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}
