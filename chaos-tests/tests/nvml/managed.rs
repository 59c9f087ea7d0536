//! An agent that was given only some of the cards offers no others (R015).

use crate::driver::{Driver, marks, program};
use fake_nvml::script::Card;
use rota_node::devices::probe::{Program, Source};
use rota_node::devices::{DeviceConfig, Inventory, Limit, Probe};
use rota_protocol::device::HostFacts;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const DEADLINE: Duration = Duration::from_secs(60);

fn four() -> Driver {
    let card = |(minor, name): (u32, &str)| Card { minor: Some(minor), ..Card::new(name) };
    Driver::with((0..).zip(["GPU-A", "GPU-B", "GPU-C", "GPU-D"]).map(card).collect())
}

async fn offered(driver: &Driver, limits: Vec<Limit>, program: Program) -> HostFacts {
    let source = Source::Nvml { library: driver.library().into(), root: driver.dir.path().to_owned() };
    let config = DeviceConfig { limits, ..DeviceConfig::default() };
    Inventory::of(vec![Probe::process(source, program, DEADLINE)], &config).refresh().await
}

fn aside(facts: &HostFacts) -> Vec<(&str, bool)> {
    let row = |d: &rota_protocol::device::DeviceFacts| {
        d.health.reason().is_some_and(|r| r.starts_with("not managed"))
    };
    facts.notes.set_aside.iter().map(|d| (d.uuid.0.as_str(), row(d))).collect()
}

#[tokio::test]
async fn lists_limit_to_exactly_what_they_name() {
    let driver = four();
    let cuda = |value: &str| Limit::visible("CUDA_VISIBLE_DEVICES", value).into_iter().collect::<Vec<_>>();
    let allow = |uuids: &[&str]| {
        let uuids: Vec<String> = uuids.iter().map(|uuid| (*uuid).to_owned()).collect();
        Limit::configured(Some(&uuids)).into_iter().collect::<Vec<_>>()
    };
    for (limits, expected) in [
        (allow(&["GPU-A", "GPU-C"]), "GPU-A GPU-C"),
        (cuda("1,3"), "GPU-B GPU-D"),
        (cuda("GPU-B,GPU-C"), "GPU-B GPU-C"),
        (cuda(""), ""),
        (cuda("GPU-does-not-exist"), ""),
        (Vec::new(), "GPU-A GPU-B GPU-C GPU-D"),
    ] {
        let unknown =
            limits.iter().any(|limit| limit.entries.iter().any(|entry| entry.contains("not-exist")));
        let facts = offered(&driver, limits, program()).await;
        assert_eq!(marks(&facts), expected);
        assert_eq!(facts.devices.len() + facts.notes.set_aside.len(), 4, "all are shown");
        assert!(aside(&facts).iter().all(|(_, says_so)| *says_so));
        assert_eq!(!facts.notes.warnings.is_empty(), unknown, "{:?}", facts.notes.warnings);
    }
}

/// A device cgroup that forbids one card's file. Needs root and the first version's hierarchy for devices.
#[tokio::test]
async fn a_device_cgroup_limits_to_what_it_lets_through() {
    let driver = four();
    let dev = driver.dir.path().join("dev");
    fs::create_dir(&dev).expect("creatable");
    // The files of /dev/null, /dev/zero, /dev/full and /dev/random stand for those of cards.
    for (minor, stands_for) in [3, 5, 7, 8].iter().enumerate() {
        let path = dev.join(format!("nvidia{minor}"));
        let made = Command::new("mknod").arg(&path).args(["c", "1", &stands_for.to_string()]).status();
        if !made.is_ok_and(|status| status.success()) {
            println!("R015 by cgroup: not exercised, no device file can be made here");
            return;
        }
    }
    let Some(cgroup) = Cgroup::forbidding("c 1:7 rw") else {
        println!("R015 by cgroup: not exercised, no hierarchy for devices that can be written");
        return;
    };
    let script = format!("echo $$ > {} && exec \"$@\"", cgroup.0.join("tasks").display());
    let own = program().file.into_os_string();
    let args = vec!["-c".into(), script.into(), "sh".into(), own];
    let facts = offered(&driver, Vec::new(), Program { file: "/bin/sh".into(), args }).await;
    assert_eq!(marks(&facts), "GPU-A GPU-B GPU-D");
    assert_eq!(aside(&facts), [("GPU-C", true)]);
}

struct Cgroup(PathBuf);

impl Cgroup {
    fn forbidding(rule: &str) -> Option<Self> {
        let root = Path::new("/sys/fs/cgroup/devices");
        let path = root.join(format!("rota-test-managed-{}", std::process::id()));
        root.join("devices.deny").exists().then_some(())?;
        fs::create_dir(&path).ok()?;
        let cgroup = Self(path);
        fs::write(cgroup.0.join("devices.deny"), rule).ok()?;
        Some(cgroup)
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // The probe may need a moment to end.
        for _ in 0..200 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        println!("{} is left behind", self.0.display());
    }
}
