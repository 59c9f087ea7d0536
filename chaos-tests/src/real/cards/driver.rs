//! One scripted driver under the agent's own inventory, without an agent, and the short notation for what became of its
//! cards.

use super::{io, library};
use crate::real::Bench;
use fake_nvml::script::Card;
use fake_nvml::stage::Stage;
use rota_node::devices::probe::{Program, Source};
use rota_node::devices::sim::SimProvider;
use rota_node::devices::{DeviceConfig, Inventory, Probe};
use rota_node::lab::LabError;
use rota_protocol::device::{DeviceFacts, DeviceHealth, DeviceKind, HostFacts};
use std::path::PathBuf;
use std::time::Duration;

/// Deadline where something hangs: long for a healthy call, short to wait for.
pub const HANG_DEADLINE: Duration = Duration::from_millis(1_000);
/// Where nothing hangs: only a very slow machine would notice it.
const LONG: Duration = Duration::from_secs(60);

/// One copy of the library and its script.
#[derive(Debug)]
pub struct Driver {
    /// Where they lie.
    pub dir: PathBuf,
    /// The library and its script.
    pub stage: Stage,
    /// The program that the agent would ask by.
    exe: PathBuf,
}

impl Driver {
    /// A driver in a folder of its own, asked by the program that can be a probe.
    #[must_use]
    pub fn of(dir: PathBuf, stage: Stage, exe: PathBuf) -> Self {
        Self { dir, stage, exe }
    }

    pub(super) fn new(bench: &Bench, name: &str, cards: Vec<Card>) -> Result<Self, LabError> {
        let dir = bench.dir.join(format!("{name}-driver"));
        std::fs::create_dir_all(&dir).map_err(io("a folder"))?;
        let built = library(bench).map_err(std::io::Error::other).map_err(io("the scripted driver"))?;
        let stage = Stage::of(built, &dir, cards).map_err(io("the scripted driver"))?;
        Ok(Self::of(dir, stage, bench.exe.clone()))
    }

    pub(super) fn shows(&self, cards: Vec<Card>) -> Result<(), LabError> {
        self.stage.shows(cards).map_err(io("the script"))
    }

    /// The library.
    #[must_use]
    pub fn library(&self) -> PathBuf {
        self.stage.library()
    }

    /// As the agent asks, with time enough.
    #[must_use]
    pub fn inventory(&self) -> Inventory {
        self.inventory_within(LONG)
    }

    /// As the agent asks: by a process.
    #[must_use]
    pub fn inventory_within(&self, deadline: Duration) -> Inventory {
        let program = Program { file: self.exe.clone(), args: Vec::new() };
        Self::over(Probe::process(self.source(), program, deadline))
    }

    /// As where no process can be started: by a thread.
    #[must_use]
    pub fn inventory_by_threads(&self, deadline: Duration) -> Inventory {
        let source = self.source();
        Self::over(Probe::guarded("nvml", deadline, Box::new(move || source.make())))
    }

    fn source(&self) -> Source {
        Source::Nvml { library: self.library().into(), root: self.dir.clone() }
    }

    fn over(nvml: Probe) -> Inventory {
        // A device of another source, which must be there whatever happens to the driver.
        let sim = SimProvider::new("1xfpga", "h").ok().map(|sim| Probe::direct(Box::new(sim)));
        Inventory::of([nvml].into_iter().chain(sim).collect(), &DeviceConfig::default())
    }
}

/// Healthy cards of these names.
#[must_use]
pub fn cards(names: &[&str]) -> Vec<Card> {
    names.iter().map(|name| Card::new(name)).collect()
}

/// All but the device of another source.
#[must_use]
pub fn gpus(facts: &HostFacts) -> Vec<DeviceFacts> {
    facts.devices.iter().filter(|d| d.kind != DeviceKind::Fpga).cloned().collect()
}

/// `A B- C?`: healthy, lost, unknown.
#[must_use]
pub fn marks(facts: &HostFacts) -> String {
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
///
/// # Errors
/// They never are.
pub async fn until(inventory: &mut Inventory, expected: &str) -> Result<(), LabError> {
    let mut last = String::new();
    for _ in 0..200 {
        last = marks(&inventory.refresh().await);
        if last == expected {
            return Ok(());
        }
        tokio::time::sleep(HANG_DEADLINE / 20).await;
    }
    Err(LabError::Late(format!("`{expected}`, but `{last}`, {:?}", inventory.notes()), 10_000))
}
