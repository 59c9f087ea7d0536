//! Devices that an operator describes in a file: FPGAs and whatever no provider knows. The file is read again at each look, so
//! that a device is added without a restart; a file that cannot be read leaves the devices as they were, and a warning.

use super::{DeviceError, DeviceProvider, Found, clean};
use rota_protocol::device::{DeviceDetail, DeviceFacts, DeviceHealth, DeviceKind, DeviceReading};
use rota_protocol::ids::DeviceUuid;
use rota_protocol::limits::HOST_DEVICES_MAX;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Largest file that is read, in bytes: some 1,000 bytes for each device that a host may have.
const FILE_BYTES_MAX: u64 = 256 << 10;
/// How often a health command runs unless told otherwise, in seconds.
const EVERY_S: u64 = 30;
/// How long one may take unless told otherwise, in ms.
const DEADLINE_MS: u64 = 2_000;

/// The whole file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    device: Vec<Described>,
}

/// One device.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Described {
    /// Its name for ever.
    uuid: String,
    /// Its family.
    kind: Family,
    /// What asks name it by: `fpga:u250`, `other:tpu`.
    model: String,
    /// Device files that must be there, and that a task on it needs.
    #[serde(default)]
    nodes: Vec<String>,
    /// A program with its arguments that ends with 0 when the device is well.
    #[serde(default)]
    health: Vec<String>,
    /// How often it runs, in seconds.
    #[serde(default = "every_s")]
    every_s: u64,
    /// How long it may take, in ms.
    #[serde(default = "deadline_ms")]
    deadline_ms: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Family {
    Fpga,
    Other,
}

fn every_s() -> u64 {
    EVERY_S
}

fn deadline_ms() -> u64 {
    DEADLINE_MS
}

/// Devices of one file.
pub struct DescribedProvider {
    path: PathBuf,
    file: File,
    checks: BTreeMap<String, Check>,
}

/// What the health command of one device is at.
#[derive(Debug, Default)]
struct Check {
    running: Option<(Child, Instant)>,
    ended: Option<Instant>,
    /// Why the device is not well; none before the first answer.
    verdict: Option<Result<(), String>>,
}

impl DescribedProvider {
    /// Devices of this file; does not read it yet.
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        Self { path, file: File::default(), checks: BTreeMap::new() }
    }
}

impl DeviceProvider for DescribedProvider {
    fn name(&self) -> &str {
        "described"
    }

    fn discover(&mut self) -> Result<Found, DeviceError> {
        let mut found = Found::default();
        match read(&self.path) {
            Ok(file) => self.file = file,
            Err(error) => found.notes.push(format!("{}: {error}", self.path.display())),
        }
        let named: Vec<&str> = self.file.device.iter().map(|device| device.uuid.as_str()).collect();
        self.checks.retain(|uuid, _| named.contains(&uuid.as_str()));
        for device in &self.file.device {
            let health = health(device, self.checks.entry(device.uuid.clone()).or_default());
            found.devices.push(facts(device, health));
        }
        Ok(found)
    }

    fn read(&mut self) -> Vec<DeviceReading> {
        Vec::new()
    }
}

/// Reads and checks a file.
fn read(path: &Path) -> Result<File, String> {
    let bytes = std::fs::metadata(path).map_err(|error| error.to_string())?.len();
    if bytes > FILE_BYTES_MAX {
        return Err(format!("{bytes} bytes are above {FILE_BYTES_MAX}"));
    }
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    let file: File = toml::from_str(&text).map_err(|error| error.to_string().trim().replace('\n', " "))?;
    if file.device.len() > HOST_DEVICES_MAX {
        return Err(format!("{} devices are above {HOST_DEVICES_MAX}", file.device.len()));
    }
    for device in &file.device {
        let Described { uuid, model, every_s, deadline_ms, .. } = device;
        if clean::uuid(uuid).is_none() {
            return Err(format!("uuid = {uuid:?} is no name; one would be \"FPGA-0001\""));
        }
        if clean::text(model).as_deref() != Some(model.as_str()) {
            return Err(format!("model = {model:?} of {uuid} is no name; one would be \"u250\""));
        }
        if *every_s == 0 || *deadline_ms == 0 || *deadline_ms > every_s.saturating_mul(1_000) {
            return Err(format!(
                "deadline_ms = {deadline_ms} of {uuid} is not between 1 and every_s = {every_s}; 2000 and 30 would do"
            ));
        }
        if file.device.iter().filter(|other| other.uuid == *uuid).count() > 1 {
            return Err(format!("uuid = {uuid:?} is there twice"));
        }
    }
    Ok(file)
}

fn facts(device: &Described, health: DeviceHealth) -> DeviceFacts {
    DeviceFacts {
        uuid: DeviceUuid(device.uuid.clone()),
        kind: match device.kind {
            Family::Fpga => DeviceKind::Fpga,
            Family::Other => DeviceKind::Other,
        },
        model: device.model.clone(),
        vram_mib: None,
        bus: None,
        index: None,
        numa: None,
        compute_cap: None,
        island: None,
        health,
        detail: DeviceDetail { nodes: device.nodes.clone(), ..DeviceDetail::default() },
    }
}

/// Looks at the device files and at the command, and starts it when it is due. Waits for nothing.
fn health(device: &Described, check: &mut Check) -> DeviceHealth {
    if let Some(node) = device.nodes.iter().find(|node| !Path::new(node).exists()) {
        return DeviceHealth::Lost { reason: clean::reason(&format!("{node} is not there")) };
    }
    let Some((program, args)) = device.health.split_first() else {
        return DeviceHealth::Healthy;
    };
    check.look(Duration::from_millis(device.deadline_ms));
    let due = check.ended.is_none_or(|at| at.elapsed() >= Duration::from_secs(device.every_s));
    if check.running.is_none() && due {
        let mut command = Command::new(program);
        let started =
            command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        match started {
            Ok(child) => check.running = Some((child, Instant::now())),
            Err(error) => check.end(Err(format!("cannot start {program}: {error}"))),
        }
    }
    match &check.verdict {
        Some(Ok(())) => DeviceHealth::Healthy,
        Some(Err(reason)) => DeviceHealth::Unknown { reason: clean::reason(reason) },
        None => DeviceHealth::Unknown { reason: "its health command has not answered yet".to_owned() },
    }
}

impl Check {
    fn look(&mut self, deadline: Duration) {
        let Some((child, since)) = &mut self.running else { return };
        let verdict = match child.try_wait() {
            Ok(Some(status)) if status.success() => Ok(()),
            Ok(Some(status)) => Err(format!("its health command ended with {status}")),
            Err(error) => Err(format!("its health command is lost: {error}")),
            Ok(None) if since.elapsed() < deadline => return,
            Ok(None) => {
                // One that does not even die of this is waited for at the next looks.
                let _ = child.kill();
                if self.ended.is_none_or(|at| at < *since) {
                    self.verdict =
                        Some(Err(format!("its health command took over {} ms", deadline.as_millis())));
                }
                return;
            }
        };
        let overdue = since.elapsed() >= deadline && verdict.is_err();
        let late = Err(format!("its health command took over {} ms", deadline.as_millis()));
        self.end(if overdue { late } else { verdict });
    }

    fn end(&mut self, verdict: Result<(), String>) {
        self.running = None;
        self.ended = Some(Instant::now());
        self.verdict = Some(verdict);
    }
}

impl Drop for Check {
    fn drop(&mut self) {
        if let Some((child, _)) = &mut self.running {
            let _ = child.kill();
            let _ = child.try_wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Lab {
        dir: tempfile::TempDir,
        provider: DescribedProvider,
    }

    impl Lab {
        fn new() -> Self {
            let dir = tempfile::tempdir().expect("a temporary directory");
            let provider = DescribedProvider::new(dir.path().join("devices.toml"));
            Self { dir, provider }
        }

        fn says(&self, text: &str) {
            std::fs::write(self.dir.path().join("devices.toml"), text).expect("writable");
        }

        fn look(&mut self) -> (Vec<(String, bool)>, Vec<String>) {
            let found = self.provider.discover().expect("never fails as a whole");
            (found.devices.into_iter().map(|d| (d.uuid.0, d.health.is_healthy())).collect(), found.notes)
        }

        fn until(&mut self, healthy: bool) -> String {
            for _ in 0..1_000 {
                let found = self.provider.discover().expect("never fails as a whole");
                let health = &found.devices[0].health;
                let told = health.reason().is_none_or(|reason| !reason.contains("not answered yet"));
                if told && health.is_healthy() == healthy {
                    return health.reason().unwrap_or_default().to_owned();
                }
                std::thread::sleep(Duration::from_millis(10));
            }
            panic!("never {healthy}");
        }
    }

    #[test]
    fn a_file_is_taken_at_each_look_and_a_bad_one_changes_nothing() {
        let mut lab = Lab::new();
        assert_eq!(lab.look().0, []);
        lab.says("[[device]]\nuuid = \"FPGA-1\"\nkind = \"fpga\"\nmodel = \"u250\"\n");
        assert_eq!(lab.look(), (vec![("FPGA-1".into(), true)], vec![]));
        let bad = [
            ("[[device]]\nuuid = \"F 1\"\nkind = \"fpga\"\nmodel = \"m\"\n", "F 1"),
            ("[[device]]\nuuid = \"F\"\nkind = \"gpu\"\nmodel = \"m\"\n", "gpu"),
            ("[[device]]\nuuid = \"F\"\nkind = \"other\"\nmodel = \"\"\n", "model"),
            ("[[device]]\nuuid = \"F\"\nkind = \"other\"\nmodel = \"m\"\ncolour = 1\n", "colour"),
            ("[[device]]\nuuid = \"F\"\nkind = \"other\"\nmodel = \"m\"\nevery_s = 0\n", "every_s"),
            ("[[dev", "line 1"),
        ];
        for (text, word) in bad {
            lab.says(text);
            let (devices, notes) = lab.look();
            assert_eq!(devices, [("FPGA-1".to_owned(), true)], "{text}");
            assert!(notes[0].contains(word), "{text}: {notes:?}");
        }
        lab.says("[[device]]\nuuid = \"TPU-1\"\nkind = \"other\"\nmodel = \"tpu v4\"\nnodes = [\"/dev/none-such\"]\n");
        assert_eq!(lab.look().0, [("TPU-1".to_owned(), false)], "its file is not there");
    }

    #[test]
    fn a_command_says_whether_a_device_is_well_and_never_holds_anyone_up() {
        let mut lab = Lab::new();
        let gate = lab.dir.path().join("well");
        let device = |command: &str| {
            format!(
                "[[device]]\nuuid = \"F-1\"\nkind = \"fpga\"\nmodel = \"u250\"\nevery_s = 1\ndeadline_ms = 300\nhealth = {command}\n"
            )
        };
        lab.says(&device(&format!("[\"test\", \"-e\", \"{}\"]", gate.display())));
        assert!(lab.until(false).contains("exit status: 1"));
        std::fs::write(&gate, "").expect("writable");
        lab.until(true);
        lab.says(&device("[\"/nonexistent/check\"]"));
        assert!(lab.until(false).contains("/nonexistent/check"));
        lab.says(&device("[\"sleep\", \"60\"]"));
        let began = Instant::now();
        lab.look();
        assert!(began.elapsed() < Duration::from_secs(5));
        while !lab.until(false).contains("took over 300 ms") {}
    }
}
