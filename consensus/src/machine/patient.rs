//! Applying while somebody reads: whoever copies a long list holds the state meanwhile, and the runtime's own threads must
//! not wait for that, because leaders are heard on them.

use super::Machine;
use crate::config::{LogEntry, Reply};
use crate::runtime::blocking;
use std::io;
use std::sync::TryLockError;

impl Machine {
    /// Applies an entry here, or on a thread of its own where it would have to wait for a reader.
    pub(super) async fn apply_patiently(&self, entry: LogEntry) -> io::Result<Reply> {
        let is_read = matches!(self.0.replica.try_write(), Err(TryLockError::WouldBlock));
        if !is_read {
            return self.apply_one(entry);
        }
        let machine = self.clone();
        blocking(move || machine.apply_one(entry)).await.map_err(io::Error::other)?
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Tuning;
    use crate::config::{EntryPayload, log_id};
    use rota_protocol::ids::ClusterId;
    use std::sync::mpsc;
    use std::time::{Duration, Instant};

    /// On a runtime of one thread, which could do nothing else if it waited itself.
    #[tokio::test]
    async fn a_long_read_holds_up_nothing_but_apply() {
        let dir = tempfile::tempdir().expect("a directory");
        let machine = Machine::open(dir.path(), ClusterId(1), &Tuning::default()).expect("opens");
        let (reads, begun) = mpsc::channel();
        let (over, ends) = mpsc::channel::<()>();
        let shared = machine.0.clone();
        let reader = std::thread::spawn(move || {
            shared.read(|_| {
                reads.send(()).expect("somebody waits");
                // Only a failed test waits so long.
                let _ = ends.recv_timeout(Duration::from_secs(10));
            });
        });
        begun.recv().expect("it reads");
        let began = Instant::now();
        let entry = LogEntry { log_id: log_id(1, 1), payload: EntryPayload::Blank };
        let applying = tokio::spawn(async move { machine.apply_patiently(entry).await });
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert!(!applying.is_finished() && began.elapsed() < Duration::from_secs(9));
        over.send(()).expect("it still reads");
        applying.await.expect("it does not panic").expect("it is applied");
        reader.join().expect("it does not panic");
    }
}
