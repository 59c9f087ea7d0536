//! Is my GPU seen, and if not, why? The library, the devices it shows, and the device files.

use super::{fail, pass, warn};
use crate::devices::probe::PROBE_DEADLINE;
use crate::devices::{DeviceConfig, Inventory, nvml};
use rota_protocol::device::{DeviceFacts, DeviceHealth};
use rota_protocol::view::DoctorRow;
use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::path::Path;
use tokio::sync::oneshot;

/// PCI vendor number of NVIDIA.
const NVIDIA: &str = "0x10de";
/// PCI classes (two digits) of display controllers and accelerators.
const CLASSES: [&str; 2] = ["0x03", "0x12"];

/// All rows about devices.
pub(super) async fn rows(config: &DeviceConfig, root: &Path) -> Vec<DoctorRow> {
    let cards = pci_cards(root);
    let mut rows = Vec::new();
    if config.sim_gpus.is_none() {
        rows.push(library(config, &cards).await);
    }
    rows.extend(devices(config, &cards).await);
    if config.sim_gpus.is_none() {
        rows.push(device_files(root, &cards));
    }
    rows
}

async fn library(config: &DeviceConfig, cards: &[String]) -> DoctorRow {
    const CHECK: &str = "nvidia library";
    let path = nvml::library_path(config.nvml_library.as_deref());
    let name = path.to_string_lossy().into_owned();
    let (answer, answered) = oneshot::channel();
    let own_root = config.root().to_owned();
    // A thread of its own, left behind if the driver hangs: it must not hold a worker of the runtime.
    let spawned = std::thread::Builder::new()
        .name("doctor-nvml".to_owned())
        .spawn(move || drop(answer.send(nvml::inspect(&path, &own_root))));
    if let Err(error) = spawned {
        return fail(CHECK, format!("cannot start a thread: {error}"), "check the limit on processes");
    }
    match tokio::time::timeout(PROBE_DEADLINE, answered).await {
        Err(_) => fail(
            CHECK,
            format!("{name} does not answer within {} ms", PROBE_DEADLINE.as_millis()),
            "the driver hangs: see `dmesg`; `nvidia-smi` will hang as well; a reboot may be needed",
        ),
        Ok(Err(_)) => fail(CHECK, format!("{name} breaks when it is used"), "reinstall the driver"),
        Ok(Ok(Ok(Some(facts)))) => pass(
            CHECK,
            format!(
                "{}, library {}, driver {}, {} cards",
                facts.file.unwrap_or(name),
                facts.library.as_deref().unwrap_or("of unknown version"),
                facts.driver.as_deref().unwrap_or("of unknown version"),
                facts.cards
            ),
        ),
        Ok(Ok(Ok(None))) if cards.is_empty() => warn(
            CHECK,
            format!("{name} is not here, and no NVIDIA card is either; CPU is offered"),
            "nothing, if this host has no NVIDIA card",
        ),
        Ok(Ok(Ok(None))) => fail(
            CHECK,
            format!("{name} is not found, and the card at {} needs it", cards.join(", ")),
            "install the driver; if it is in an odd place, set `nvml_library` in rota.toml",
        ),
        Ok(Ok(Err(error))) => fail(
            CHECK,
            error.to_string(),
            "load the kernel module (`modprobe nvidia`); after a driver upgrade reload it or reboot",
        ),
    }
}

/// A row about all devices, then one for each that a person should look at, and one for each warning.
async fn devices(config: &DeviceConfig, cards: &[String]) -> Vec<DoctorRow> {
    const CHECK: &str = "devices";
    let mut inventory = match Inventory::new(config) {
        Ok(inventory) => inventory,
        Err(error) => return vec![fail(CHECK, error.to_string(), "correct `sim_gpus` in rota.toml")],
    };
    // A health command of a described device answers at the second look.
    let mut facts = inventory.refresh().await;
    if facts.devices.iter().any(|d| d.health.reason().is_some_and(|r| r.contains("not answered yet"))) {
        tokio::time::sleep(PROBE_DEADLINE).await;
        facts = inventory.refresh().await;
    }
    let notes: Vec<&str> = inventory.notes().iter().map(String::as_str).collect();
    let (found, aside) = (&facts.devices, &facts.notes.set_aside);
    let mut rows = vec![match (found.is_empty(), aside.is_empty()) {
        (false, _) => pass(CHECK, summary(found)),
        (true, false) => warn(CHECK, "none offered; see below what is there", "CPU is offered"),
        (true, true) if cards.is_empty() && facts.notes.warnings.is_empty() => {
            pass(CHECK, "none; CPU is offered")
        }
        (true, true) if cards.is_empty() => warn(CHECK, "none that answers; CPU is offered", "see below"),
        (true, true) => fail(
            CHECK,
            format!("none, though there is a card at {}: {}", cards.join(", "), notes.join("; ")),
            "see the line about the library",
        ),
    }];
    // Simulated ones are well unless somebody says otherwise.
    let told = |device: &&DeviceFacts| config.sim_gpus.is_none() || !device.health.is_healthy();
    rows.extend(found.iter().chain(aside).filter(told).map(card));
    rows.extend(facts.notes.warnings.iter().map(|warning| {
        warn(
            CHECK,
            warning.clone(),
            "a card that does not open has often fallen off the bus: see `dmesg | grep Xid`",
        )
    }));
    rows
}

/// One device by all its names, and the cure where it is not offered.
fn card(device: &DeviceFacts) -> DoctorRow {
    const CHECK: &str = "device";
    let index = device.index.map_or_else(|| "-".to_owned(), |index| index.to_string());
    let names = format!("{index} {} {}", device.bus.as_deref().unwrap_or("-"), device.uuid);
    let Some(reason) = device.health.reason() else {
        return pass(CHECK, format!("{names}: {}", summary(std::slice::from_ref(device))));
    };
    let found = format!("{names}: {reason}");
    if reason.starts_with("not managed") || reason.ends_with("offered") {
        return pass(CHECK, found);
    }
    let cure = "see `dmesg | grep Xid`; reset the card with `nvidia-smi --gpu-reset -i UUID`, or reboot";
    match &device.health {
        DeviceHealth::Lost { .. } => fail(CHECK, found, cure),
        _ if reason.contains("MIG mode") => {
            warn(CHECK, found, "`nvidia-smi mig -lgip` lists how it can be cut")
        }
        _ => warn(CHECK, found, cure),
    }
}

/// `8x NVIDIA H100 80GB HBM3 (80 GiB)`.
fn summary(devices: &[DeviceFacts]) -> String {
    let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
    for device in devices {
        let model = if device.model.is_empty() { "card of unknown model" } else { &device.model };
        let size = device.vram_mib.map_or_else(String::new, |mib| format!(" ({} GiB)", mib >> 10));
        *kinds.entry(format!("{model}{size}")).or_default() += 1;
    }
    let parts: Vec<String> = kinds.iter().map(|(kind, count)| format!("{count}x {kind}")).collect();
    parts.join(", ")
}

fn device_files(root: &Path, cards: &[String]) -> DoctorRow {
    const CHECK: &str = "device files";
    let mut files: Vec<_> = fs::read_dir(root.join("dev"))
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| is_card_file(path))
        .collect();
    files.sort();
    if files.is_empty() {
        return if cards.is_empty() {
            pass(CHECK, "none needed")
        } else {
            fail(
                CHECK,
                "there is no /dev/nvidia*",
                "load the kernel module, or run `nvidia-modprobe -c 0 -u`",
            )
        };
    }
    let closed: Vec<String> = files
        .iter()
        .filter_map(|path| {
            let error = OpenOptions::new().read(true).write(true).open(path).err()?;
            Some(format!("{}: {error}", path.display()))
        })
        .collect();
    if closed.is_empty() {
        pass(CHECK, format!("{} can be opened", files.len()))
    } else {
        fail(CHECK, closed.join("; "), "give this user access: usually the group `video`, or mode 666")
    }
}

/// `nvidiactl` and `nvidia0`, `nvidia1`, ...: what each CUDA program opens.
fn is_card_file(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let Some(rest) = name.strip_prefix("nvidia") else {
        return false;
    };
    rest == "ctl" || (!rest.is_empty() && rest.bytes().all(|b| b.is_ascii_digit()))
}

/// Addresses of NVIDIA cards that the kernel sees, driver or not.
fn pci_cards(root: &Path) -> Vec<String> {
    let told = |path: &Path| fs::read_to_string(path).unwrap_or_default();
    let mut cards: Vec<String> = fs::read_dir(root.join("sys/bus/pci/devices"))
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| {
            let class = told(&entry.path().join("class"));
            told(&entry.path().join("vendor")).trim() == NVIDIA
                && CLASSES.iter().any(|prefix| class.starts_with(prefix))
        })
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    cards.sort();
    cards
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine_with_a_card() -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("a temporary directory");
        for (bus, vendor, class) in [
            ("0000:3b:00.0", "0x10de", "0x030200"),
            ("0000:3b:00.1", "0x10de", "0x040300"),
            ("0000:00:02.0", "0x8086", "0x030000"),
        ] {
            let dir = root.path().join("sys/bus/pci/devices").join(bus);
            fs::create_dir_all(&dir).expect("creatable");
            fs::write(dir.join("vendor"), vendor).expect("writable");
            fs::write(dir.join("class"), class).expect("writable");
        }
        root
    }

    #[tokio::test]
    async fn a_card_without_a_driver_fails_and_is_named() {
        let root = machine_with_a_card();
        let config = DeviceConfig {
            nvml_library: Some("/nonexistent/libnvidia-ml.so.1".into()),
            ..DeviceConfig::default()
        };
        let rows = rows(&config, root.path()).await;
        assert!(rows.iter().all(|row| row.verdict == "fail"), "{rows:?}");
        assert!(rows[0].found.contains("0000:3b:00.0"), "{rows:?}");
        assert!(!rows[0].found.contains("3b:00.1"), "its sound device is no card");
    }

    #[tokio::test]
    async fn simulated_devices_pass_and_a_wrong_description_fails() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let sim = |text: &str| DeviceConfig { sim_gpus: Some(text.into()), ..DeviceConfig::default() };
        let rows_good = rows(&sim("8xH100:80GiB"), root.path()).await;
        assert_eq!(rows_good.len(), 1);
        assert_eq!(
            (rows_good[0].verdict.as_str(), rows_good[0].found.as_str()),
            ("pass", "8x H100 (simulated) (80 GiB)")
        );
        assert_eq!(rows(&sim("eight"), root.path()).await[0].verdict, "fail");
    }

    #[test]
    fn device_files_are_tried() {
        let root = machine_with_a_card();
        assert_eq!(device_files(root.path(), &["x".into()]).verdict, "fail");
        assert_eq!(device_files(root.path(), &[]).verdict, "pass");
        fs::create_dir(root.path().join("dev")).expect("creatable");
        for name in ["nvidia0", "nvidiactl", "nvidia-modeset", "nvme0"] {
            fs::write(root.path().join("dev").join(name), "").expect("writable");
        }
        let row = device_files(root.path(), &["x".into()]);
        assert_eq!((row.verdict.as_str(), row.found.as_str()), ("pass", "2 can be opened"));
    }
}
