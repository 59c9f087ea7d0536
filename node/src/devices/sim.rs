//! Simulated devices from a text such as `8xH100:80GiB`, `4xA100:40GiB,1xfpga:u250` or `14xmig:1g.10gb`: for the demo,
//! labs, and tests of everything above the driver. Cards stand four to an island of fast links. UUIDs depend on the host's name and the ordinal alone, so that they are the same
//! after a restart; readings depend on the device and on how often it was read. No clock, no randomness.

use super::sim_script::{Heard, SimScript};
use super::{DeviceError, DeviceProvider, Found};
use rota_protocol::device::{DeviceFacts, DeviceHealth, DeviceKind, DeviceReading};
use rota_protocol::ids::DeviceUuid;
use rota_protocol::limits::{HOST_DEVICES_MAX, NAME_BYTES_MAX};
use std::path::PathBuf;

/// Memory of models that people write without a size, in MiB.
const KNOWN_VRAM_MIB: [(&str, u64); 12] = [
    ("b200", 180 << 10),
    ("h200", 141 << 10),
    ("h100", 80 << 10),
    ("a100", 80 << 10),
    ("l40s", 48 << 10),
    ("a40", 48 << 10),
    ("v100", 32 << 10),
    ("l4", 24 << 10),
    ("a10", 24 << 10),
    ("rtx4090", 24 << 10),
    ("t4", 16 << 10),
    ("p100", 16 << 10),
];

/// Compute capability of models, in tenths (NVIDIA, "CUDA GPU Compute Capability"); the first name that the model
/// begins with counts.
const KNOWN_COMPUTE_CAP: [(&str, u16); 12] = [
    ("b200", 100),
    ("h200", 90),
    ("h100", 90),
    ("l40", 89),
    ("l4", 89),
    ("rtx4090", 89),
    ("a100", 80),
    ("a40", 86),
    ("a10", 86),
    ("t4", 75),
    ("v100", 70),
    ("p100", 60),
];
/// Cards of one island, and of one NUMA node.
const ISLAND_CARDS: u32 = 4;

/// First group of a simulated UUID, so that people can tell it from a real one.
const UUID_MARK: u32 = 0x5151_0000;

/// Why a description of simulated devices is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SimError {
    /// One part is not `COUNTxMODEL[:SIZE]`, `COUNTxfpga[:MODEL]`, `COUNTxmig:PROFILE` or `COUNTxother:MODEL`.
    #[error(
        "`{part}` is not a count, `x` and a model, such as `8xH100:80GiB`, `1xfpga:u250` or `7xmig:1g.10gb`"
    )]
    Form {
        /// The part.
        part: String,
    },
    /// The size cannot be read.
    #[error("`{size}` in `{part}` is not a size in MiB, GiB or TiB")]
    Size {
        /// The size as written.
        size: String,
        /// The part it stands in.
        part: String,
    },
    /// More devices than a host may have.
    #[error("{count} devices are more than the {HOST_DEVICES_MAX} that one host may have")]
    TooMany {
        /// How many were asked for.
        count: u64,
    },
}

/// A provider of simulated devices.
#[derive(Debug, Clone)]
pub struct SimProvider {
    devices: Vec<DeviceFacts>,
    reads: u64,
    script: Option<PathBuf>,
    heard: Heard,
}

impl SimProvider {
    /// The devices of `description` for the host of this name.
    ///
    /// # Errors
    /// When the description cannot be read; the message names the part.
    pub fn new(description: &str, host_name: &str) -> Result<Self, SimError> {
        let mut devices = Vec::new();
        let (mut gpus, mut fpgas, mut slices, mut others) = (0u32, 0u32, 0u32, 0u32);
        for part in description.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let group = Group::parse(part)?;
            let count = devices.len() as u64 + u64::from(group.count);
            if count > HOST_DEVICES_MAX as u64 {
                return Err(SimError::TooMany { count });
            }
            let ordinal = match group.kind {
                DeviceKind::Fpga => &mut fpgas,
                DeviceKind::Mig => &mut slices,
                DeviceKind::Gpu => &mut gpus,
                DeviceKind::Other => &mut others,
            };
            for _ in 0..group.count {
                devices.push(group.device(host_name, *ordinal));
                *ordinal += 1;
            }
        }
        devices.sort_by(|a, b| a.uuid.cmp(&b.uuid));
        Ok(Self { devices, reads: 0, script: None, heard: Heard::new() })
    }

    /// The same devices with the faults that this file says, whenever it is there.
    #[must_use]
    pub fn scripted(self, script: Option<PathBuf>) -> Self {
        Self { script, ..self }
    }

    /// The script as it is now; one that cannot be read says nothing, with a note.
    fn script(&self) -> (SimScript, Vec<String>) {
        let Some(path) = self.script.as_deref().filter(|path| path.exists()) else {
            return (SimScript::default(), Vec::new());
        };
        match SimScript::read(path) {
            Ok(script) => (script, Vec::new()),
            Err(error) => (SimScript::default(), vec![format!("{}: {error}", path.display())]),
        }
    }
}

impl DeviceProvider for SimProvider {
    fn name(&self) -> &str {
        "sim"
    }

    fn discover(&mut self) -> Result<Found, DeviceError> {
        if self.script.is_none() {
            return Ok(Found { devices: self.devices.clone(), ..Found::default() });
        }
        let (script, notes) = self.script();
        Ok(Found { notes, ..script.show(&self.devices, &mut self.heard) })
    }

    fn read(&mut self) -> Vec<DeviceReading> {
        self.reads = self.reads.wrapping_add(1);
        let (script, _) = self.script();
        let usual = |device| reading(device, self.reads);
        self.devices.iter().filter_map(|device| script.reading(device, usual(device))).collect()
    }
}

/// One part of a description.
struct Group {
    count: u32,
    kind: DeviceKind,
    model: String,
    vram_mib: Option<u64>,
}

impl Group {
    fn parse(part: &str) -> Result<Self, SimError> {
        let form = || SimError::Form { part: part.to_owned() };
        let (count, rest) = part.split_once(['x', 'X']).ok_or_else(form)?;
        let count: u32 = count.trim().parse().map_err(|_| form())?;
        let (model, after) = match rest.split_once(':') {
            Some((model, after)) => (model.trim(), Some(after.trim())),
            None => (rest.trim(), None),
        };
        let fair = |c: char| c.is_ascii_alphanumeric() || matches!(c, ' ' | '-' | '_' | '.');
        let named =
            |name: &str| !name.is_empty() && name.len() <= NAME_BYTES_MAX / 2 && name.chars().all(fair);
        if !named(model) || after.is_some_and(|after| !after.is_empty() && !named(after)) {
            return Err(form());
        }
        if model.eq_ignore_ascii_case("fpga") {
            let model = after.map_or_else(|| model.to_owned(), |after| format!("{model} {after}"));
            return Ok(Self { count, kind: DeviceKind::Fpga, model, vram_mib: None });
        }
        if model.eq_ignore_ascii_case("other") {
            let model = after.filter(|after| !after.is_empty()).ok_or_else(form)?.to_owned();
            return Ok(Self { count, kind: DeviceKind::Other, model, vram_mib: None });
        }
        if model.eq_ignore_ascii_case("mig") {
            let profile = after.ok_or_else(form)?;
            let vram_mib = Some(profile_mib(profile).ok_or_else(form)?);
            return Ok(Self { count, kind: DeviceKind::Mig, model: format!("MIG {profile}"), vram_mib });
        }
        let vram_mib = match after {
            None => known_vram_mib(model),
            Some(size) => Some(
                size_mib(size)
                    .ok_or_else(|| SimError::Size { size: size.to_owned(), part: part.to_owned() })?,
            ),
        };
        Ok(Self { count, kind: DeviceKind::Gpu, model: model.to_owned(), vram_mib })
    }

    fn device(&self, host_name: &str, ordinal: u32) -> DeviceFacts {
        let prefix = match self.kind {
            DeviceKind::Gpu => "GPU",
            DeviceKind::Mig => "MIG",
            DeviceKind::Fpga => "FPGA",
            DeviceKind::Other => "DEV",
        };
        let is_gpu = self.kind == DeviceKind::Gpu;
        let name = fnv1a(host_name.as_bytes());
        DeviceFacts {
            uuid: DeviceUuid(format!(
                "{prefix}-{UUID_MARK:08x}-{:04x}-{:04x}-{:04x}-{ordinal:012x}",
                (name >> 32) & 0xffff,
                (name >> 16) & 0xffff,
                name & 0xffff,
            )),
            kind: self.kind,
            model: format!("{} (simulated)", self.model),
            vram_mib: self.vram_mib,
            bus: Some(format!("0000:{:02x}:00.0", ordinal % 0x100)),
            index: Some(ordinal),
            numa: Some(ordinal / ISLAND_CARDS),
            compute_cap: if is_gpu { known_compute_cap(&self.model) } else { None },
            island: is_gpu.then_some(ordinal / ISLAND_CARDS),
            health: DeviceHealth::Healthy,
            detail: Default::default(),
        }
    }
}

/// A plausible idle card: a little warm, a little restless, always the same at the same count.
fn reading(device: &DeviceFacts, reads: u64) -> DeviceReading {
    let own = fnv1a(device.uuid.0.as_bytes());
    let sway = fnv1a(&(own ^ reads).to_le_bytes());
    let small = |modulus: u64| u16::try_from(sway % modulus).unwrap_or(0);
    DeviceReading {
        uuid: device.uuid.clone(),
        busy_permille: Some(small(21)),
        vram_used_mib: device.vram_mib.map(|vram| (vram / 100).min(512)),
        temperature_c: Some(31 + small(5)),
        power_mw: Some(62_000 + u32::from(small(6_000))),
        clock_permille: None,
    }
}

fn known_vram_mib(model: &str) -> Option<u64> {
    KNOWN_VRAM_MIB.iter().find(|(name, _)| model.eq_ignore_ascii_case(name)).map(|(_, vram_mib)| *vram_mib)
}

fn known_compute_cap(model: &str) -> Option<u16> {
    let starts = |name: &str| model.get(..name.len()).is_some_and(|head| head.eq_ignore_ascii_case(name));
    KNOWN_COMPUTE_CAP.iter().find(|(name, _)| starts(name)).map(|(_, tenths)| *tenths)
}

/// Memory of a slice by its profile: `1g.10gb` has 10 GiB.
fn profile_mib(profile: &str) -> Option<u64> {
    let (slices, memory) = profile.split_once("g.")?;
    let gib: u64 = memory.strip_suffix("gb")?.parse().ok()?;
    let fair = (1..=7).contains(&slices.parse::<u32>().ok()?);
    super::clean::vram_mib(gib.checked_mul(1 << 30)?).filter(|_| fair)
}

fn size_mib(text: &str) -> Option<u64> {
    let split = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(split);
    let number: u64 = number.parse().ok()?;
    let mib = match unit.trim().to_ascii_lowercase().as_str() {
        "mib" => number,
        "gib" => number.checked_mul(1 << 10)?,
        "tib" => number.checked_mul(1 << 20)?,
        _ => return None,
    };
    super::clean::vram_mib(mib.checked_mul(1 << 20)?)
}

/// FNV-1a, 64 bits: the same in every build, which is all that is asked of it here.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn devices(description: &str, host: &str) -> Vec<DeviceFacts> {
        let mut provider = SimProvider::new(description, host).expect("a fair description");
        provider.discover().expect("simulated devices always answer").devices
    }

    #[test]
    fn a_list_becomes_devices_sorted_by_uuid() {
        let all = devices("4xA100:40GiB, 1xfpga", "h1");
        assert_eq!(all.len(), 5);
        assert!(all.is_sorted_by(|a, b| a.uuid < b.uuid));
        assert_eq!(all.iter().filter(|d| d.kind == DeviceKind::Fpga).count(), 1);
        let gpu = all.iter().find(|d| d.kind == DeviceKind::Gpu).expect("four of them");
        assert_eq!((gpu.model.as_str(), gpu.vram_mib), ("A100 (simulated)", Some(40 << 10)));
    }

    #[test]
    fn models_have_a_capability_and_cards_an_island() {
        let all = devices("6xA100,1xb200,2xfpga:u250,7xmig:1g.10gb,1xOdd", "h1");
        let of =
            |kind, part: &str| all.iter().filter(move |d| d.kind == kind && d.model.contains(part)).count();
        assert_eq!((of(DeviceKind::Fpga, "u250"), of(DeviceKind::Mig, "1g.10gb")), (2, 7));
        let caps: BTreeSet<_> = all.iter().filter_map(|d| d.compute_cap).collect();
        assert_eq!(caps, BTreeSet::from([80, 100]), "an unknown model has none");
        let gpus = all.iter().filter(|d| d.kind == DeviceKind::Gpu);
        let islands: Vec<_> = gpus.map(|d| (d.index, d.island)).collect();
        assert!(islands.iter().all(|(index, island)| island == &index.map(|index| index / 4)), "{islands:?}");
        let slice = all.iter().find(|d| d.kind == DeviceKind::Mig).expect("seven of them");
        assert_eq!((slice.vram_mib, slice.island), (Some(10 << 10), None));
        assert_eq!((known_compute_cap("L40S"), known_compute_cap("l4")), (Some(89), Some(89)));
    }

    #[test]
    fn uuids_are_stable_and_differ_between_hosts() {
        assert_eq!(devices("8xH100", "h1"), devices("8xH100:80GiB", "h1"), "80 GiB is what an H100 has");
        let both: BTreeSet<_> =
            devices("8xH100", "h1").into_iter().chain(devices("8xH100", "h2")).map(|d| d.uuid).collect();
        assert_eq!(both.len(), 16);
        let grown = devices("8xH100,2xL4", "h1");
        for old in devices("8xH100", "h1") {
            assert!(grown.contains(&old), "appending a group renames nothing");
        }
    }

    #[test]
    fn an_empty_description_has_no_devices() {
        assert!(devices("", "h1").is_empty());
        assert!(devices("0xH100", "h1").is_empty());
    }

    #[test]
    fn odd_descriptions_are_refused_by_name() {
        for bad in [
            "H100",
            "x",
            "8x",
            "-1xH100",
            "8xH1\n00",
            "1.5xH100",
            "1xmig",
            "1xmig:9g.10gb",
            "1xmig:1g",
            "1xfpga:a/b",
            "1xother",
        ] {
            let refused = SimProvider::new(bad, "h").expect_err(bad);
            assert!(matches!(refused, SimError::Form { .. }), "{bad:?}: {refused}");
        }
        for bad in ["1xH100:", "1xH100:80", "1xH100:80GB", "1xH100:0GiB", "1xH100:99999999999TiB"] {
            let refused = SimProvider::new(bad, "h").expect_err(bad);
            assert!(matches!(refused, SimError::Size { .. }), "{bad:?}: {refused}");
        }
        let many = SimProvider::new("100xH100,100xH100", "h").expect_err("more than a host may have");
        assert_eq!(many, SimError::TooMany { count: 200 });
        assert!(SimProvider::new("4294967295xH100", "h").is_err());
    }

    #[test]
    fn readings_repeat_and_stay_plausible() {
        let mut one = SimProvider::new("2xH100", "h").expect("fair");
        let mut two = one.clone();
        for _ in 0..100 {
            let readings = one.read();
            assert_eq!(readings, two.read());
            for reading in readings {
                assert!(reading.busy_permille.is_some_and(|b| b <= 1_000));
                assert!(reading.vram_used_mib.is_some_and(|used| used < 80 << 10));
            }
        }
    }

    #[test]
    fn a_script_makes_devices_ill_and_well_again() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("faults.toml");
        let mut sim = SimProvider::new("3xH100", "h").expect("fair").scripted(Some(path.clone()));
        let mut look = |text: &str| {
            std::fs::write(&path, text).expect("writable");
            let found = sim.discover().expect("always answers");
            (found, sim.read())
        };
        let (found, _) = look("[[card]]\nindex = 0\nxids = [[1, 13]]\n");
        assert_eq!((found.devices.len(), found.signs.len()), (3, 3));
        assert!(found.signs.values().all(|signs| signs.xids.is_empty()), "what was before is history");
        let script = "[[card]]\nindex = 0\nxids = [[1, 13], [2, 79]]\nbusy_percent = 55\nvram_used_mib = 9000\nremap_failed = true\nprocesses = [{ pid = 7, vram_mib = 3 }, { pid = 8 }]\n[[card]]\nindex = 1\nlost = \"Xid 79\"\n[[card]]\nindex = 2\ngone = true\n";
        let (found, read) = look(script);
        assert_eq!(found.devices.iter().map(|d| d.health.is_healthy()).collect::<Vec<_>>(), [true, false]);
        let signs = &found.signs[&found.devices[0].uuid];
        assert_eq!((signs.xids.as_slice(), signs.remap.failed), (&[79][..], Some(true)));
        assert_eq!(signs.processes.as_ref().map(Vec::len), Some(2));
        assert_eq!(read.len(), 1);
        assert_eq!((read[0].busy_permille, read[0].vram_used_mib), (Some(550), Some(9_000)));
        let (found, read) = look("[[card]]\ncolour = 1\n");
        assert!(found.notes[0].contains("colour"), "{:?}", found.notes);
        assert_eq!((found.devices.len(), read.len()), (3, 3), "a script that is none says nothing");
    }
}
