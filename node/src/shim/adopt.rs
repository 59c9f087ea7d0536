//! From files to knowledge: what an earlier agent left, and what became of a shim that went without a word.
//!
//! A record that is kept names a living shim: it is watched and asked to attach. One with an end has ended. Anything
//! else is ended here: its processes are found by its group and by the marks in their environment, and killed, then its
//! record is sealed, so that no shim can start it late and every later agent finds the same end.

use super::host::{Adopted, Inner};
use super::known::{Known, Phase};
use super::pieces::Stream;
use super::record::{self, Found, record_path};
use crate::io::proc;
use crate::logic::env::markers;
use crate::logic::reconcile::LocalState;
use rota_protocol::api::OutputStream;
use rota_protocol::job::AttemptEnd;
use rota_protocol::spool::{ExitRecord, ShimCall, ShimRecord};
use rota_protocol::{ClusterId, Token};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Pause between two rounds of killing what a dead shim left.
const ROUND: Duration = Duration::from_millis(5);
/// The same, once a second of rounds did not help.
const ROUND_SLOW: Duration = Duration::from_millis(200);

/// Says which attempts run on, and how many are over.
pub fn tell_adopted(adopted: &[Adopted]) {
    let (over, alive): (Vec<_>, Vec<_>) =
        adopted.iter().partition(|attempt| matches!(attempt.state, LocalState::Ended(_)));
    for attempt in alive {
        tracing::info!(token = %attempt.token, "took over an attempt that runs");
    }
    if !over.is_empty() {
        tracing::info!(attempts = over.len(), "found attempts that are over");
    }
}

/// Reads the whole folder.
pub(super) async fn scan(inner: &Arc<Inner>) -> io::Result<Vec<Adopted>> {
    let mut tokens: Vec<Token> = std::fs::read_dir(&inner.dir)?
        .filter_map(|entry| record::token_of(entry.ok()?.file_name().to_str()?))
        .collect();
    tokens.sort_unstable();
    let mut adopted = Vec::with_capacity(tokens.len());
    for token in tokens {
        let found = match record::read(&record_path(&inner.dir, token)) {
            Ok(found) => found,
            Err(error) => {
                tracing::error!(%token, %error, "an attempt's record cannot be read");
                continue;
            }
        };
        inner.known().insert(token, Known::new(Phase::Sent));
        let state = settle(inner, token, found).await;
        if let LocalState::Ended(record) = &state {
            inner.known().insert(token, Known::ended(record.clone()));
        }
        adopted.push(Adopted { token, state });
    }
    Ok(adopted)
}

/// Looks again at one attempt whose shim died, or whose token was used before.
pub(super) async fn look(inner: &Arc<Inner>, token: Token) {
    let unsettled = inner.known().get(&token).is_some_and(|a| !matches!(a.phase, Phase::Ended { .. }));
    if !unsettled {
        return;
    }
    let path = record_path(&inner.dir, token);
    let found = match record::read(&path) {
        Ok(found) => found,
        // Its shim died before it wrote anything: nothing was started.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let reason = "its shim died before it started anything".to_owned();
            inner.on_ended(ExitRecord::never_ran(token, AttemptEnd::LaunchFailed { reason })).await;
            return;
        }
        Err(error) => {
            tracing::error!(%token, %error, "an attempt's record cannot be read");
            Found { shim: None, exit: None, task: None, kept: false }
        }
    };
    if let LocalState::Ended(record) = settle(inner, token, found).await {
        inner.on_ended(record).await;
    }
}

/// What a record means, after everything was done to make it mean something.
async fn settle(inner: &Arc<Inner>, token: Token, found: Found) -> LocalState {
    const TRIES: u32 = 20;
    const PAUSE: Duration = Duration::from_millis(50);
    let mut found = found;
    for _ in 0..TRIES {
        // Kept and with an end: the host's epilog is under way, or the shim waits for somebody to tell.
        if let Some(record) = found.exit.take_if(|_| !found.kept) {
            return LocalState::Ended(record);
        }
        if !found.kept {
            return LocalState::Ended(end_left_behind(inner, token, found.shim.as_ref()).await);
        }
        if let Some(shim) = &found.shim {
            match watch(inner, shim) {
                Ok(()) => {
                    inner.call(token, shim.shim_pid, ShimCall::Attach).await;
                    return LocalState::Launching;
                }
                Err(error) => tracing::debug!(%token, %error, "a shim went while it was looked at"),
            }
        }
        // It is going, or it has only just made its record.
        tokio::time::sleep(PAUSE).await;
        if let Ok(again) = record::read(&record_path(&inner.dir, token)) {
            found = again;
        }
    }
    tracing::error!(%token, "a shim lives but cannot be watched");
    LocalState::Launching
}

/// Watches a living shim by its process; when it goes, its record says how.
pub(super) fn watch(inner: &Arc<Inner>, shim: &ShimRecord) -> io::Result<()> {
    let token = shim.token;
    let Some(pidfd) = inner.shim_pidfd(token, shim.shim_pid) else {
        return Err(io::ErrorKind::NotFound.into());
    };
    let pidfd = crate::io::ffi::async_fd(pidfd)?;
    {
        let mut known = inner.known();
        match known.get_mut(&token) {
            Some(attempt) if !attempt.watched => attempt.watched = true,
            _ => return Ok(()),
        }
    }
    let inner = Arc::clone(inner);
    tokio::spawn(async move {
        let _ = pidfd.readable().await;
        look(&inner, token).await;
    });
    Ok(())
}

/// Ends whatever is left of an attempt without a shim, and seals its record.
async fn end_left_behind(inner: &Arc<Inner>, token: Token, shim: Option<&ShimRecord>) -> ExitRecord {
    let reason = match shim {
        Some(shim) if shim.boot != inner.boot => "the host was restarted",
        Some(shim) => {
            inner.place.end_all(token).await;
            kill_marked(shim.cluster, token).await;
            "its shim died without a word; what it left was ended"
        }
        // A shim writes its record before it starts anything.
        None => "its shim died before it started anything",
    };
    super::around::remove_left_behind(&inner.dir, token).await;
    super::notes::clear(&inner.tasks, token);
    let end = AttemptEnd::Vanished { reason: reason.to_owned() };
    let mut exit = ExitRecord::never_ran(token, end);
    let [stdout, stderr] =
        [OutputStream::Stdout, OutputStream::Stderr].map(|stream| Stream::new(&inner.dir, token, stream));
    (exit.stdout_bytes, exit.stderr_bytes) = (stdout.end().unwrap_or(0), stderr.end().unwrap_or(0));
    let kept = stdout.kept().unwrap_or(0) + stderr.kept().unwrap_or(0);
    exit.dropped_bytes = (exit.stdout_bytes + exit.stderr_bytes).saturating_sub(kept);
    seal_until_done(record_path(&inner.dir, token), exit).await
}

/// A full disk must not make the agent forget that something ended: it is told all the same, and sealed at the next
/// look if it cannot be now.
async fn seal_until_done(path: PathBuf, exit: ExitRecord) -> ExitRecord {
    match record::seal(&path, &exit) {
        Ok(Some(record)) => record,
        Ok(None) => exit,
        Err(error) => {
            tracing::error!(path = %path.display(), %error, "an attempt's record cannot be sealed");
            exit
        }
    }
}

/// Kills every process that carries the marks of an attempt, until none is left.
async fn kill_marked(cluster: ClusterId, token: Token) {
    const QUICK_ROUNDS: u32 = 200;
    let marks = markers(cluster, token);
    let mut round = 0_u32;
    loop {
        let marks = marks.clone();
        let left = tokio::task::spawn_blocking(move || kill_round(&marks)).await;
        match left {
            Ok(Ok(0)) => return,
            Ok(Ok(_)) => {}
            // Without /proc nothing can be proven; the kernel has killed the first process with its shim.
            Ok(Err(error)) => {
                tracing::error!(%token, %error, "cannot look for left processes");
                return;
            }
            Err(_) => return,
        }
        if round == QUICK_ROUNDS {
            tracing::warn!(%token, "processes of a dead shim are left although they were killed");
        }
        round += 1;
        tokio::time::sleep(if round > QUICK_ROUNDS { ROUND_SLOW } else { ROUND }).await;
    }
}

fn kill_round(marks: &[Vec<u8>]) -> io::Result<usize> {
    let mut left = 0;
    for pid in proc::marked(marks)? {
        let Some(pidfd) = Pid::from_raw(pid).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()) else {
            continue;
        };
        // Again, now that the descriptor holds the process: its number may have passed to a stranger.
        if proc::has_markers(pid, marks) {
            let _ = pidfd_send_signal(&pidfd, Signal::KILL);
            left += 1;
        }
    }
    Ok(left)
}
