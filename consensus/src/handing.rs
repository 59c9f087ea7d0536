//! Snapshots on their way to others. Whoever takes one goes on with the entries behind it; were those cut meanwhile, it would
//! have to take the next one, and under steady load it would never be even. So the next snapshot, with which the log is
//! cut, waits: not for ever, and not at any weight.

use rota_protocol::ids::HostId;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// How long after its last piece a taker is waited for: that may be lost thrice, must be installed, and then the entries
/// behind it must be sent.
const TAKER_TIME: Duration = Duration::from_secs(20);
/// How much longer than else the log may become meanwhile, in entries.
pub(crate) const ENTRIES_TIMES: u64 = 4;
/// How much heavier, in bytes.
pub(crate) const BYTES_MORE: usize = 64 << 20;

/// Who takes a snapshot from here, and until when that is waited for.
#[derive(Debug, Default)]
pub(crate) struct Handing(Mutex<BTreeMap<HostId, Instant>>);

impl Handing {
    fn with<T>(&self, act: impl FnOnce(&mut BTreeMap<HostId, Instant>) -> T) -> T {
        // Each change is one call.
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A piece goes to this host.
    pub(crate) fn piece(&self, to: HostId) {
        self.with(|takers| takers.insert(to, Instant::now() + TAKER_TIME));
    }

    /// Whether anybody takes one.
    pub(crate) fn any(&self) -> bool {
        self.with(|takers| {
            let now = Instant::now();
            takers.retain(|_, until| now < *until);
            !takers.is_empty()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn takers_are_waited_for_a_while_after_their_last_pieces() {
        let handing = Handing::default();
        assert!(!handing.any());
        handing.piece(HostId(4));
        handing.piece(HostId(5));
        tokio::time::sleep(TAKER_TIME / 2).await;
        handing.piece(HostId(5));
        tokio::time::sleep(TAKER_TIME * 3 / 4).await;
        assert!(handing.any(), "each piece counts anew");
        tokio::time::sleep(TAKER_TIME / 2).await;
        assert!(!handing.any());
    }
}
