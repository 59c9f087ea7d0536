//! AMD cards through sysfs: no library. A card's name is the `unique_id` that is burnt into it, in the form that ROCm
//! uses. Reading these files asks the driver, which may hang as any: see [`super::probe`].

use super::signs::{DeviceSigns, EccCounts};
use super::{DeviceError, DeviceProvider, Found, Progress, clean, unified};
use rota_protocol::device::{DeviceDetail, DeviceFacts, DeviceHealth, DeviceKind, DeviceReading};
use rota_protocol::ids::DeviceUuid;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// PCI vendor number of AMD.
const AMD: &str = "0x1002";
/// Where the kernel lists graphics devices.
const CLASS: &str = "sys/class/drm";
/// The device file of all compute work, beside those of the card.
const KFD: &str = "/dev/kfd";
/// Most numbers of cards that are looked at.
const CARDS_MAX: usize = 128;

/// Cards below a root folder.
pub struct AmdProvider {
    root: PathBuf,
    progress: Arc<Progress>,
}

impl AmdProvider {
    /// Cards below `root`, which is `/` outside tests. Touches nothing yet.
    #[must_use]
    pub fn new(root: PathBuf) -> Self {
        Self { root, progress: Arc::default() }
    }
}

/// Whether the kernel shows any AMD card. The vendor's number is kept by the kernel: no driver is asked.
#[must_use]
pub fn is_present(root: &Path) -> bool {
    !folders(root).is_empty()
}

impl DeviceProvider for AmdProvider {
    fn name(&self) -> &str {
        "amd"
    }

    fn discover(&mut self) -> Result<Found, DeviceError> {
        let mut found = Found::default();
        for (place, folder) in (0..).zip(folders(&self.root)) {
            let Some(uuid) = uuid(&folder) else {
                found.notes.push(format!("amd: card {place} has no unique_id, and so no name"));
                continue;
            };
            if self.progress.skips(&uuid) {
                found.doubt = Some(format!("an earlier call about {uuid} has not returned"));
                continue;
            }
            self.progress.asking(&uuid);
            let mut part = Found::default();
            let facts = facts(&folder, uuid.clone(), place);
            if facts.vram_mib.is_none() && !facts.detail.unified {
                let warning = "does not tell its memory: only tasks that ask for no GPU memory may have it";
                part.warnings.push(format!("{uuid} {warning}"));
            }
            part.signs.insert(uuid, signs(&folder));
            part.devices.push(facts);
            self.progress.answered(&part);
            found.add(part);
        }
        Ok(found)
    }

    fn read(&mut self) -> Vec<DeviceReading> {
        let mut all = Vec::new();
        for folder in folders(&self.root) {
            let Some(uuid) = uuid(&folder).filter(|uuid| !self.progress.skips(uuid)) else { continue };
            self.progress.asking(&uuid);
            all.push(reading(&folder, uuid));
            self.progress.answered(&Found::default());
        }
        all
    }

    fn attend(&mut self, progress: Arc<Progress>) {
        self.progress = progress;
    }
}

/// The cards' folders (`card0/device`, not their connectors), in the order of their numbers.
fn folders(root: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(root.join(CLASS)).into_iter().flatten().flatten();
    let mut cards: Vec<(u32, PathBuf)> = entries
        .filter_map(|entry| {
            let number = entry.file_name().to_str()?.strip_prefix("card")?.parse().ok()?;
            let folder = entry.path().join("device");
            (text(&folder, "vendor")? == AMD).then_some((number, folder))
        })
        .collect();
    cards.sort_unstable();
    cards.truncate(CARDS_MAX);
    cards.into_iter().map(|(_, folder)| folder).collect()
}

fn text(folder: &Path, file: &str) -> Option<String> {
    Some(fs::read_to_string(folder.join(file)).ok()?.trim().to_owned())
}

fn number(folder: &Path, file: &str) -> Option<u64> {
    text(folder, file)?.parse().ok()
}

fn uuid(folder: &Path) -> Option<DeviceUuid> {
    let id = text(folder, "unique_id")?;
    let fair = !id.is_empty() && id.bytes().all(|b| b.is_ascii_hexdigit()) && id.bytes().any(|b| b != b'0');
    clean::uuid(&format!("GPU-{}", id.to_ascii_lowercase())).filter(|_| fair).map(DeviceUuid)
}

fn facts(folder: &Path, uuid: DeviceUuid, index: u32) -> DeviceFacts {
    let named = text(folder, "product_name").and_then(|name| clean::text(&name));
    let numbered = || text(folder, "device").map(|id| format!("AMD device {id}"));
    let model = named.or_else(numbered).unwrap_or_default();
    let place = fs::canonicalize(folder).ok();
    let bus = place.and_then(|path| path.file_name()?.to_str().and_then(clean::text));
    let hwmon = hwmon(folder);
    let limit_uw = hwmon.as_deref().and_then(|hwmon| number(hwmon, "power1_cap"));
    DeviceFacts {
        uuid,
        kind: DeviceKind::Gpu,
        vram_mib: number(folder, "mem_info_vram_total").and_then(clean::vram_mib),
        bus,
        index: Some(index),
        numa: text(folder, "numa_node").and_then(|node| node.parse().ok()),
        compute_cap: None,
        island: None,
        health: DeviceHealth::Healthy,
        detail: DeviceDetail {
            unified: unified::is_shared(&model),
            nodes: nodes(folder),
            power_limit_mw: limit_uw.and_then(milliwatts),
            ..DeviceDetail::default()
        },
        model,
    }
}

/// `/dev/kfd` and the card's own files, such as `/dev/dri/card0` and `/dev/dri/renderD128`.
fn nodes(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder.join("drm")).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let own = names.filter(|name| name.starts_with("card") || name.starts_with("renderD"));
    let mut nodes: Vec<String> = own.map(|name| format!("/dev/dri/{name}")).collect();
    nodes.sort_unstable();
    nodes.insert(0, KFD.to_owned());
    nodes
}

fn signs(folder: &Path) -> DeviceSigns {
    // `ue: 0` and `ce: 0`, of the memory, since the driver was loaded.
    let counts = text(&folder.join("ras"), "umc_err_count").unwrap_or_default();
    let count =
        |key: &str| counts.lines().find_map(|line| line.trim().strip_prefix(key)?.trim().parse().ok());
    let ecc = EccCounts {
        volatile_corrected: count("ce:"),
        volatile_uncorrected: count("ue:"),
        ..EccCounts::default()
    };
    DeviceSigns { ecc, ..DeviceSigns::default() }
}

fn reading(folder: &Path, uuid: DeviceUuid) -> DeviceReading {
    let percent = number(folder, "gpu_busy_percent").and_then(|percent| u32::try_from(percent).ok());
    let total = number(folder, "mem_info_vram_total").unwrap_or(0);
    let hwmon = hwmon(folder);
    let of = |file: &str| hwmon.as_deref().and_then(|hwmon| number(hwmon, file));
    let heat = of("temp1_input").and_then(|milli| u32::try_from(milli / 1_000).ok());
    DeviceReading {
        uuid,
        busy_permille: percent.and_then(clean::permille),
        vram_used_mib: number(folder, "mem_info_vram_used")
            .and_then(|used| clean::vram_used_mib(used, total)),
        temperature_c: heat.and_then(clean::temperature_c),
        power_mw: of("power1_average").or_else(|| of("power1_input")).and_then(milliwatts),
        clock_permille: None,
    }
}

fn milliwatts(microwatts: u64) -> Option<u32> {
    u32::try_from(microwatts / 1_000).ok().and_then(clean::power_mw)
}

fn hwmon(folder: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir(folder.join("hwmon")).ok()?.flatten();
    entries.map(|entry| entry.path()).filter(|path| path.join("name").exists()).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(path: &Path, value: &str) {
        fs::create_dir_all(path.parent().expect("it has one")).expect("creatable");
        fs::write(path, format!("{value}\n")).expect("writable");
    }

    fn card(root: &Path, number: u32, vendor: &str, files: &[(&str, &str)]) {
        let device = root.join(format!("sys/devices/pci0000:00/0000:{number:02x}:00.0"));
        write(&device.join("vendor"), vendor);
        for (file, value) in files {
            write(&device.join(file), value);
        }
        let class = root.join(format!("sys/class/drm/card{number}"));
        fs::create_dir_all(&class).expect("creatable");
        std::os::unix::fs::symlink(&device, class.join("device")).expect("linkable");
    }

    fn whole(root: &Path, number: u32, id: &str) {
        let files = [
            ("unique_id", id),
            ("product_name", "AMD Instinct MI210"),
            ("mem_info_vram_total", "68702699520"),
            ("mem_info_vram_used", "10485760"),
            ("gpu_busy_percent", "37"),
            ("numa_node", "1"),
            ("hwmon/hwmon3/name", "amdgpu"),
            ("hwmon/hwmon3/temp1_input", "41000"),
            ("hwmon/hwmon3/power1_average", "52000000"),
            ("hwmon/hwmon3/power1_cap", "300000000"),
            ("ras/umc_err_count", "ue: 2\nce: 9"),
            ("drm/card1/uevent", ""),
            ("drm/renderD129/uevent", ""),
        ];
        card(root, number, AMD, &files);
    }

    #[test]
    fn cards_are_read_from_files() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        whole(dir.path(), 1, "9C3D1F2A0B4E5D66");
        card(dir.path(), 0, "0x8086", &[]);
        fs::create_dir_all(dir.path().join("sys/class/drm/card1-DP-1")).expect("creatable");
        assert!(is_present(dir.path()) && !is_present(&dir.path().join("elsewhere")));
        let mut provider = AmdProvider::new(dir.path().to_owned());
        let found = provider.discover().expect("files");
        assert_eq!(found.devices.len(), 1, "another vendor's is no card of this one");
        let card = &found.devices[0];
        assert_eq!(card.uuid.0, "GPU-9c3d1f2a0b4e5d66");
        assert_eq!(
            (card.model.as_str(), card.vram_mib, card.numa),
            ("AMD Instinct MI210", Some(65_520), Some(1))
        );
        assert_eq!((card.bus.as_deref(), card.index), (Some("0000:01:00.0"), Some(0)));
        assert_eq!(card.detail.nodes, ["/dev/kfd", "/dev/dri/card1", "/dev/dri/renderD129"]);
        assert_eq!(card.detail.power_limit_mw, Some(300_000));
        let ecc = found.signs[&card.uuid].ecc;
        assert_eq!((ecc.volatile_corrected, ecc.volatile_uncorrected), (Some(9), Some(2)));
        let reading = &provider.read()[0];
        assert_eq!((reading.busy_permille, reading.vram_used_mib), (Some(370), Some(10)));
        assert_eq!((reading.temperature_c, reading.power_mw), (Some(41), Some(52_000)));
    }

    #[test]
    fn odd_files_are_absent_values_and_a_card_without_a_name_is_told() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        card(dir.path(), 0, AMD, &[("unique_id", "00000000")]);
        card(dir.path(), 1, AMD, &[]);
        let odd = [
            ("unique_id", "abc1"),
            ("mem_info_vram_total", "N/A"),
            ("gpu_busy_percent", "-1"),
            ("hwmon/hwmon0/name", "amdgpu"),
            ("hwmon/hwmon0/temp1_input", "18446744073709551615"),
            ("hwmon/hwmon0/power1_average", "NaN"),
        ];
        card(dir.path(), 2, AMD, &odd);
        let mut provider = AmdProvider::new(dir.path().to_owned());
        let found = provider.discover().expect("files");
        assert_eq!((found.devices.len(), found.notes.len(), found.warnings.len()), (1, 2, 1));
        assert_eq!((found.devices[0].vram_mib, found.devices[0].health.is_healthy()), (None, true));
        let reading = &provider.read()[0];
        let values = (reading.busy_permille, reading.vram_used_mib, reading.temperature_c, reading.power_mw);
        assert_eq!(values, (None, None, None, None));
    }
}
