//! One driver as these tests see it: the library's, in a temporary folder, and a test that cannot set it up stops.

use fake_nvml::script::{Card, Script};
use fake_nvml::stage::Stage;
use rota_chaos::real::cards::driver as shared;
pub(crate) use rota_chaos::real::cards::driver::{HANG_DEADLINE, cards, gpus, marks};
use rota_node::devices::Inventory;
use rota_node::devices::probe::Program;
use std::ops::Deref;
use tempfile::TempDir;

/// One copy of the library and its script.
pub(crate) struct Driver {
    pub(crate) dir: TempDir,
    shared: shared::Driver,
}

impl Deref for Driver {
    type Target = shared::Driver;

    fn deref(&self) -> &shared::Driver {
        &self.shared
    }
}

impl Driver {
    pub(crate) fn with(cards: Vec<Card>) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let stage = Stage::in_folder(dir.path(), cards).expect("built as a dependency of this test");
        let shared = shared::Driver::of(dir.path().to_owned(), stage, program().file);
        Self { dir, shared }
    }

    /// The same driver without one of its functions.
    pub(crate) fn lacking(self, symbol: &str) -> Self {
        self.stage.lacks(&[symbol]).expect("it is exported");
        self
    }

    pub(crate) fn shows(&self, cards: Vec<Card>) {
        self.stage.shows(cards).expect("writable");
    }

    pub(crate) fn says(&self, script: &Script) {
        self.stage.says(script).expect("writable");
    }
}

/// The tests' own program is no probe; the crate's is.
pub(crate) fn program() -> Program {
    Program { file: env!("CARGO_BIN_EXE_rota-chaos").into(), args: Vec::new() }
}

/// Looks until the cards are so.
pub(crate) async fn until(inventory: &mut Inventory, expected: &str) {
    shared::until(inventory, expected).await.expect("the cards come to be so");
}
