//! One driver as these tests see it, and the short notation for what became of its cards.

use fake_nvml::script::{Card, Script};
use fake_nvml::stage::Stage;
use rota_node::devices::probe::{Program, Source};
use rota_node::devices::sim::SimProvider;
use rota_node::devices::{DeviceConfig, Inventory, Probe};
use rota_protocol::device::{DeviceFacts, DeviceHealth, DeviceKind, HostFacts};
use std::path::PathBuf;
use std::time::Duration;
use tempfile::TempDir;

/// Deadline of tests in which something hangs: long for a healthy call, short to wait for.
pub(crate) const HANG_DEADLINE: Duration = Duration::from_millis(1_000);

/// One copy of the library and its script.
pub(crate) struct Driver {
    pub(crate) dir: TempDir,
    pub(crate) stage: Stage,
}

impl Driver {
    pub(crate) fn with(cards: Vec<Card>) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let stage = Stage::in_folder(dir.path(), cards).expect("built as a dependency of this test");
        Self { dir, stage }
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

    pub(crate) fn library(&self) -> PathBuf {
        self.stage.library()
    }

    pub(crate) fn inventory(&self) -> Inventory {
        // Nothing hangs here, so that only a very slow machine would notice the deadline.
        self.inventory_within(Duration::from_secs(60))
    }

    /// As the agent asks: by a process.
    pub(crate) fn inventory_within(&self, deadline: Duration) -> Inventory {
        Self::over(Probe::process(self.source(), program(), deadline))
    }

    /// As where no process can be started: by a thread.
    pub(crate) fn inventory_by_threads(&self, deadline: Duration) -> Inventory {
        let source = self.source();
        Self::over(Probe::guarded("nvml", deadline, Box::new(move || source.make())))
    }

    fn source(&self) -> Source {
        Source::Nvml { library: self.library().into(), root: self.dir.path().to_owned() }
    }

    fn over(nvml: Probe) -> Inventory {
        let sim = Box::new(SimProvider::new("1xfpga", "h").expect("fair"));
        Inventory::of(vec![nvml, Probe::direct(sim)], &DeviceConfig::default())
    }
}

/// The tests' own program is no probe; the crate's is.
pub(crate) fn program() -> Program {
    Program { file: env!("CARGO_BIN_EXE_rota-chaos").into(), args: Vec::new() }
}

pub(crate) fn cards(names: &[&str]) -> Vec<Card> {
    names.iter().map(|name| Card::new(name)).collect()
}

pub(crate) fn gpus(facts: &HostFacts) -> Vec<DeviceFacts> {
    facts.devices.iter().filter(|d| d.kind != DeviceKind::Fpga).cloned().collect()
}

/// `A B- C?`: healthy, lost, unknown.
pub(crate) fn marks(facts: &HostFacts) -> String {
    let marks: Vec<String> = gpus(facts)
        .iter()
        .map(|d| match d.health {
            DeviceHealth::Healthy => d.uuid.0.clone(),
            DeviceHealth::Lost { .. } => format!("{}-", d.uuid),
            // The state's words; a look never says them.
            DeviceHealth::Degraded { .. } | DeviceHealth::Quarantined { .. } => format!("{}!", d.uuid),
            DeviceHealth::Unknown { .. } | DeviceHealth::Dirty { .. } => format!("{}?", d.uuid),
        })
        .collect();
    marks.join(" ")
}

/// Looks until the cards are so. On a busy machine a healthy driver may miss a short deadline now and then.
pub(crate) async fn until(inventory: &mut Inventory, expected: &str) {
    for _ in 0..200 {
        if marks(&inventory.refresh().await) == expected {
            return;
        }
        tokio::time::sleep(HANG_DEADLINE / 20).await;
    }
    panic!("never `{expected}`: {:?} {:?}", marks(&inventory.refresh().await), inventory.notes());
}
