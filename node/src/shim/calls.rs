//! What the agent does for attempts that live or have ended, outside of messages: calls to shims, and ends that must
//! become durable because nobody confirms them.

use super::host::{Inner, ShimHost};
use super::known::{Known, Phase};
use super::record::{self, record_path};
use super::wire::call_value;
use crate::io::ffi;
use rota_protocol::Token;
use rota_protocol::spool::ShimCall;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

impl ShimHost {
    /// Shims that live, by process id.
    #[must_use]
    pub fn shim_pids(&self) -> BTreeMap<i32, Token> {
        let shim = |(token, attempt): (&Token, &Known)| match attempt.phase {
            Phase::Running { shim_pid, .. } => Some((i32::try_from(shim_pid).ok()?, *token)),
            Phase::Queued | Phase::Sent | Phase::Ended { .. } => None,
        };
        self.inner().known().iter().filter_map(shim).collect()
    }
}

impl Inner {
    /// The host's prolog runs for longer than a moment: the attempt can be ended from now on.
    pub(super) async fn on_preparing(&self, token: Token, shim_pid: u32) {
        let end = {
            let mut known = self.known();
            let attempt = known.get_mut(&token).filter(|attempt| matches!(attempt.phase, Phase::Sent));
            attempt.and_then(|attempt| {
                attempt.preparing = Some(shim_pid);
                attempt.end
            })
        };
        if let Some(reason) = end {
            self.call(token, shim_pid, ShimCall::End { reason }).await;
        }
    }

    /// Calls a shim by a queued signal, after making sure that the number still means that shim.
    pub(super) async fn call(&self, token: Token, shim_pid: u32, call: ShimCall) {
        const TRIES: u32 = 50;
        const PAUSE: Duration = Duration::from_millis(10);
        let Some(pidfd) = self.shim_pidfd(token, shim_pid) else {
            // It is gone, or going: its end is on the way.
            return;
        };
        for _ in 0..TRIES {
            match ffi::queue_call(std::os::fd::AsFd::as_fd(&pidfd), call_value(call, token)) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => tokio::time::sleep(PAUSE).await,
                Err(error) if error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error()) => return,
                Err(error) => {
                    tracing::error!(%token, shim_pid, %error, "a shim cannot be called");
                    return;
                }
                Ok(()) => return,
            }
        }
        tracing::error!(%token, shim_pid, "a shim cannot be called: too many signals are queued on this host");
    }

    /// A handle on the shim that keeps `token`; none when it is gone.
    pub(super) fn shim_pidfd(&self, token: Token, shim_pid: u32) -> Option<std::os::fd::OwnedFd> {
        let pid = Pid::from_raw(i32::try_from(shim_pid).ok()?)?;
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        // The descriptor first, then the proof: a kept record names a living process, and that is the one held.
        let found = record::read(&record_path(&self.dir, token)).ok()?;
        (found.kept && found.shim.is_some_and(|shim| shim.shim_pid == shim_pid)).then_some(pidfd)
    }
}

/// Ends that the log does not take soon are made durable here: without a leader the record may be the only copy.
pub(super) async fn sync_unconfirmed(inner: Arc<Inner>) {
    const LOOK: Duration = Duration::from_millis(500);
    const UNCONFIRMED: Duration = Duration::from_secs(1);
    loop {
        tokio::time::sleep(LOOK).await;
        let mut late = Vec::new();
        for (token, attempt) in inner.known().iter_mut() {
            if let Phase::Ended { at, synced, .. } = &mut attempt.phase
                && !*synced
                && at.elapsed() > UNCONFIRMED
            {
                *synced = true;
                late.push(record_path(&inner.dir, *token));
            }
        }
        if late.is_empty() {
            continue;
        }
        let synced = tokio::task::spawn_blocking(move || {
            late.iter().try_for_each(|path| std::fs::File::open(path)?.sync_data())
        });
        if let Ok(Err(error)) = synced.await {
            tracing::warn!(%error, "an attempt's end cannot be made durable");
        }
    }
}
