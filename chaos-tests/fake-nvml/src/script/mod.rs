//! The text that says what the fake library answers: [`Script`] and its [`Card`]s. `text.rs` beside this file turns
//! them into lines and back.
//!
//! ```text
//! init=0                       what nvmlInit returns; 0 is success
//! driver=580.95.05
//! library=580.95.05            the version of the library itself
//! count=4294967295             how many cards there are said to be, if not as many as there are
//! fail.count=999               before the first card: the return code of `count driver library events`
//! hang=init                    before the first card: a call that does not return; also `count driver library events`
//! card=GPU-a                   starts a card; the keys below belong to it
//! name=NVIDIA H100 80GB HBM3
//! bus=00000000:3B:00.0
//! minor=0                      the number in /dev/nvidia0
//! total=85520809984            bytes
//! used=4194304                 bytes
//! busy=7                       percent
//! temperature=33               degrees Celsius
//! power=71000                  mW
//! power_limit=700000           mW
//! capability=90                compute capability in tenths
//! clock=1980 1980              of the multiprocessors, now and at most, in MHz
//! throttle=0                   NVML's bits: 8 slowdown, 32 and 64 heat, 128 power brake
//! ecc=0 0 0 0                  volatile corrected, volatile uncorrected, aggregate corrected, aggregate uncorrected
//! ecc_ramp=2 0 1700000000000   what is added a second to corrected and uncorrected, since this wall time in ms
//! remap=0 0 0 0                rows remapped after corrected and uncorrected errors, pending, failed
//! recovery=0                   recovery action: 1 reset, 2 reboot, 3 drain, 4 drain and reset
//! xid=1 79                     an event: its number, which grows, and the Xid
//! process=4711 1073741824 compute   pid, bytes (`-` when not told), `compute`, `graphics` or `mps`
//! processes=4294967295         how many processes there are said to be, if not as many as there are
//! nvlink=0                     cards of one number are joined by NVLink
//! links=18 17 0                NVLinks: how many there are, how many are up, errors of each that is
//! switch=0                     cards of one number hang on one PCIe switch
//! mig=1                        MIG mode; slices imply it
//! slots=7                      how many slices the card may have
//! slice=MIG-a1 10737418240 1 1 1g.10gb   UUID, bytes, slices of the GPU and of the compute instance, profile in the name
//! profile=0 1 9728 7           a profile: number, slices, MiB, how many fit
//! fail.memory=15               the return code of one call, or of all with `fail.*`
//! hang=temperature             a call that does not return as long as this line is here, or all with `*`
//! ```
//!
//! Calls are `handle uuid name bus minor memory utilization temperature power power_limit capability clock throttle
//! ecc field processes mig slice profile p2p topology events links`. Values are bytes up to the line's end. A line that is
//! absent where an `Option` stands below makes the call answer "not supported".

pub mod code;
mod signs;
mod text;
pub mod throttle;

pub use signs::{Ecc, Links, Ramp, Remap};

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// Calls about a card that may fail or hang.
pub const CALLS: [&str; 23] = [
    "handle",
    "uuid",
    "name",
    "bus",
    "minor",
    "memory",
    "utilization",
    "temperature",
    "power",
    "power_limit",
    "capability",
    "clock",
    "throttle",
    "ecc",
    "field",
    "processes",
    "mig",
    "slice",
    "profile",
    "p2p",
    "topology",
    "events",
    "links",
];

/// What the library answers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Script {
    /// Return code of the start.
    pub init: u32,
    /// The driver's version.
    pub driver: String,
    /// The library's version.
    pub library: String,
    /// How many cards there are said to be.
    pub count: Option<u32>,
    /// Faults of the calls that are about no card.
    pub faults: Faults,
    /// The cards, in the driver's order.
    pub cards: Vec<Card>,
}

/// Calls that fail or hang.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Faults {
    /// Return code by call; `*` is any.
    pub fail: BTreeMap<String, u32>,
    /// Calls that do not return; `*` is any.
    pub hang: BTreeSet<String>,
}

/// One card.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Card {
    /// Its UUID.
    pub uuid: Vec<u8>,
    /// Its model.
    pub name: Vec<u8>,
    /// Its PCI address.
    pub bus: Vec<u8>,
    /// The number of its device file.
    pub minor: Option<u32>,
    /// Memory, in bytes.
    pub total: u64,
    /// Memory in use, in bytes.
    pub used: u64,
    /// Busy share, in percent.
    pub busy: u32,
    /// In degrees Celsius.
    pub temperature: u32,
    /// In mW.
    pub power: u32,
    /// In mW.
    pub power_limit: Option<u32>,
    /// Compute capability in tenths.
    pub capability: u32,
    /// MHz now and at most.
    pub clock: Option<(u32, u32)>,
    /// Throttle bits ([`throttle`]).
    pub throttle: Option<u64>,
    /// Memory errors; none when the card counts none.
    pub ecc: Option<Ecc>,
    /// How they grow.
    pub ecc_ramp: Option<Ramp>,
    /// Remapped rows.
    pub remap: Option<Remap>,
    /// Recovery action (field 230).
    pub recovery: Option<u32>,
    /// Events: number and Xid.
    pub xids: Vec<(u64, u64)>,
    /// Who uses the card.
    pub processes: Vec<Process>,
    /// How many processes there are said to be.
    pub processes_said: Option<u32>,
    /// Cards of one number are joined by NVLink.
    pub nvlink: Option<u32>,
    /// NVLinks; none where the card has none.
    pub links: Option<Links>,
    /// Cards of one number hang on one PCIe switch.
    pub switch: Option<u32>,
    /// MIG mode without a slice; slices imply the mode.
    pub mig: bool,
    /// How many slices the card may have; seven if not said.
    pub slots: Option<u32>,
    /// MIG slices.
    pub slices: Vec<Slice>,
    /// MIG profiles.
    pub profiles: Vec<Profile>,
    /// Its faults.
    pub faults: Faults,
}

/// A process on a card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// Its memory, in bytes; none when the driver does not tell.
    pub bytes: Option<u64>,
    /// Which list it is in.
    pub list: List,
}

/// The lists of processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum List {
    /// Computes.
    Compute,
    /// Draws.
    Graphics,
    /// Computes by way of MPS.
    Mps,
}

/// A MIG slice.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Slice {
    /// Its UUID.
    pub uuid: Vec<u8>,
    /// Memory, in bytes.
    pub bytes: u64,
    /// Slices of its GPU instance.
    pub gpu_slices: u32,
    /// Slices of its compute instance.
    pub compute_slices: u32,
    /// Its profile as the driver writes it behind the card's name; empty when it does not.
    pub profile: String,
}

impl Slice {
    /// A slice such as `1g.10gb`: as many slices as its profile says, and one compute instance over all of them.
    #[must_use]
    pub fn new(uuid: &str, profile: &str) -> Self {
        let (slices, memory) = profile.split_once("g.").unwrap_or(("1", "1gb"));
        let digits = memory.trim_end_matches(|c: char| !c.is_ascii_digit());
        let gib: u64 = digits.parse().unwrap_or(1);
        let slices = slices.parse().unwrap_or(1);
        Self {
            uuid: uuid.into(),
            bytes: gib << 30,
            gpu_slices: slices,
            compute_slices: slices,
            profile: profile.to_owned(),
        }
    }
}

/// A MIG profile that a card offers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Profile {
    /// Its number in the C interface.
    pub number: u32,
    /// Slices.
    pub slices: u32,
    /// Memory.
    pub mib: u64,
    /// How many of it fit on an empty card.
    pub count: u32,
}

impl Card {
    /// A healthy card of 80 GiB.
    #[must_use]
    pub fn new(uuid: &str) -> Self {
        Self {
            uuid: uuid.into(),
            name: b"NVIDIA H100 80GB HBM3".to_vec(),
            bus: b"00000000:3B:00.0".to_vec(),
            minor: Some(0),
            total: 80 << 30,
            used: 4 << 20,
            busy: 7,
            temperature: 33,
            power: 71_000,
            power_limit: Some(700_000),
            capability: 90,
            clock: Some((1_980, 1_980)),
            throttle: Some(0),
            ecc: Some(Ecc::default()),
            remap: Some(Remap::default()),
            recovery: Some(0),
            ..Self::default()
        }
    }

    /// The same card with a call that fails.
    #[must_use]
    pub fn failing(mut self, call: &str, code: u32) -> Self {
        self.faults.fail.insert(call.to_owned(), code);
        self
    }

    /// The same card with a call that does not return.
    #[must_use]
    pub fn hanging(mut self, call: &str) -> Self {
        self.faults.hang.insert(call.to_owned());
        self
    }

    /// The same card with an event. Whoever began to listen before hears each number once.
    #[must_use]
    pub fn xid(mut self, number: u64, xid: u64) -> Self {
        self.xids.push((number, xid));
        self
    }

    /// The same card with memory errors that grow from now on.
    #[must_use]
    pub fn ramping(mut self, corrected_per_s: u64, uncorrected_per_s: u64) -> Self {
        self.ecc_ramp = Some(Ramp { corrected_per_s, uncorrected_per_s, since_ms: wall_ms() });
        self
    }

    /// The same card with a process on it.
    #[must_use]
    pub fn used_by(mut self, pid: u32, bytes: u64) -> Self {
        self.processes.push(Process { pid, bytes: Some(bytes), list: List::Compute });
        self
    }

    /// The same card cut into these slices, each a UUID and a profile. With none, it is in MIG mode and empty.
    #[must_use]
    pub fn cut(mut self, slices: &[(&str, &str)]) -> Self {
        self.mig = true;
        self.slices = slices.iter().map(|(uuid, profile)| Slice::new(uuid, profile)).collect();
        self
    }

    /// The memory errors at this wall time.
    #[must_use]
    pub fn ecc_at(&self, now_ms: u64) -> Option<Ecc> {
        let mut ecc = self.ecc?;
        let Some(ramp) = self.ecc_ramp else { return Some(ecc) };
        let seconds = now_ms.saturating_sub(ramp.since_ms) / 1_000;
        let (corrected, uncorrected) = (ramp.corrected_per_s * seconds, ramp.uncorrected_per_s * seconds);
        ecc.volatile_corrected += corrected;
        ecc.aggregate_corrected += corrected;
        ecc.volatile_uncorrected += uncorrected;
        ecc.aggregate_uncorrected += uncorrected;
        Some(ecc)
    }
}

impl Faults {
    /// The return code that the script gives a call.
    #[must_use]
    pub fn code_of(&self, call: &str) -> u32 {
        self.fail.get(call).or_else(|| self.fail.get("*")).copied().unwrap_or(code::SUCCESS)
    }

    /// Whether the script lets a call hang.
    #[must_use]
    pub fn hangs_in(&self, call: &str) -> bool {
        self.hang.contains(call) || self.hang.contains("*")
    }
}

impl Script {
    /// A library that starts, with these cards.
    #[must_use]
    pub fn of(cards: Vec<Card>) -> Self {
        let version = || "580.95.05".to_owned();
        Self { driver: version(), library: version(), cards, ..Self::default() }
    }

    /// The same library, which does not start any more. Whoever has started it goes on.
    #[must_use]
    pub fn failing_to_start(self, init: u32) -> Self {
        Self { init, ..self }
    }

    /// Writes the script so that a reader sees the old one or the new one.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        let beside = path.with_extension("new");
        std::fs::write(&beside, self.render()?)?;
        std::fs::rename(beside, path)
    }
}

/// Wall time in ms: what ramps are counted from.
pub(crate) fn wall_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
