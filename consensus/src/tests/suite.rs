//! openraft's own suite for stores, on our log and state machine.

use super::CLUSTER;
use crate::config::Rota;
use crate::log::header::Owner;
use crate::log::store::LogStore;
use crate::log::{self, LogConfig};
use crate::machine::Machine;
use openraft::StorageError;
use openraft::testing::log::{StoreBuilder, Suite};
use rota_protocol::ids::HostId;
use tempfile::TempDir;

struct Stores;

impl StoreBuilder<Rota, LogStore, Machine, TempDir> for Stores {
    async fn build(&self) -> Result<(TempDir, LogStore, Machine), StorageError<Rota>> {
        let dir = tempfile::tempdir().expect("a directory");
        let log = log::open(LogConfig {
            dir: dir.path().join("raft"),
            owner: Owner { cluster: CLUSTER, host: HostId(0) },
            segment_bytes: 64 << 10,
            disk: crate::disk::real(),
            on_failure: Box::new(|error| panic!("{error}")),
        })
        .expect("opens");
        let machine =
            Machine::open(&dir.path().join("raft"), CLUSTER, &crate::Tuning::default()).expect("opens");
        Ok((dir, log, machine))
    }
}

#[tokio::test]
async fn openrafts_own_suite_passes() {
    Suite::test_all(Stores).await.expect("every test of the suite");
}
