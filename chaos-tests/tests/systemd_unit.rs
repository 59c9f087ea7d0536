//! The files in `deploy/`: the unit has what the agent's promises rest on, nothing that reaches into tasks, and systemd
//! itself finds no fault with it, where systemd is installed.

use rota_node::config::AgentConfig;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn deploy(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy").join(file)
}

fn text(file: &str) -> String {
    let path = deploy(file);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// `section.key` to value; a key that is set twice is an error in this file.
fn directives(unit: &str) -> BTreeMap<String, String> {
    let mut section = String::new();
    let mut all = BTreeMap::new();
    for line in unit.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            section = name.to_owned();
            continue;
        }
        let (key, value) = line.split_once('=').unwrap_or_else(|| panic!("`{line}` is no directive"));
        let known = all.insert(format!("{section}.{key}"), value.to_owned());
        assert_eq!(known, None, "{section}.{key} is set twice");
    }
    all
}

#[test]
fn the_unit_keeps_the_agents_promises() {
    let unit = directives(&text("rota.service"));
    let needed = [
        ("Service.Type", "notify", "systemd waits until the agent is ready"),
        ("Service.KillMode", "process", "a restart of the agent ends no task"),
        ("Service.Delegate", "yes", "each attempt has a control group of its own"),
        ("Service.Restart", "always", "an agent that ends comes back"),
        ("Unit.StartLimitIntervalSec", "0", "an agent that fails often is still tried again"),
        ("Service.OOMPolicy", "continue", "a task killed for memory does not end the agent"),
        (
            "Service.OOMScoreAdjust",
            "-900",
            "the agent is a late choice for the kernel; its shims give it back for tasks",
        ),
        ("Service.DelegateSubgroup", "agent", "the agent sits beside the groups of attempts, not above them"),
        ("Service.StateDirectory", "rota", "the data directory exists"),
        ("Service.TasksMax", "infinity", "tasks count as the service's"),
        ("Service.WatchdogSec", "30s", "a frozen agent is started anew"),
    ];
    for (key, value, why) in needed {
        assert_eq!(unit.get(key).map(String::as_str), Some(value), "{key}: {why}");
    }
    assert!(unit.contains_key("Service.LimitNOFILE"));
    assert!(unit["Service.ExecStart"].starts_with("/usr/bin/rota agent"), "{}", unit["Service.ExecStart"]);
}

/// Tasks are children of the service: whatever of this kind is set for it is set for them.
#[test]
fn the_unit_does_not_reach_into_tasks() {
    let unit = directives(&text("rota.service"));
    let inherited = [
        "NoNewPrivileges",
        "ProtectSystem",
        "ProtectHome",
        "PrivateTmp",
        "PrivateDevices",
        "PrivateUsers",
        "PrivateNetwork",
        "DevicePolicy",
        "DeviceAllow",
        "ProtectClock",
        "ProtectKernelLogs",
        "SystemCallFilter",
        "MemoryDenyWriteExecute",
        "RestrictNamespaces",
        "RestrictRealtime",
        "RestrictSUIDSGID",
        "LockPersonality",
        "User",
        "DynamicUser",
        "CPUQuota",
        "MemoryMax",
        "RootDirectory",
        "ProtectControlGroups",
    ];
    let set: Vec<_> = inherited.iter().filter(|key| unit.contains_key(&format!("Service.{key}"))).collect();
    assert!(set.is_empty(), "tasks would inherit {set:?}");
    let dropped = &unit["Service.CapabilityBoundingSet"];
    assert!(dropped.starts_with('~'), "a list of what is dropped, not of what is kept");
    for needed in [
        "CAP_SETUID",
        "CAP_SETGID",
        "CAP_KILL",
        "CAP_CHOWN",
        "CAP_DAC_OVERRIDE",
        "CAP_SYS_ADMIN",
        "CAP_SYS_RESOURCE",
    ] {
        assert!(!dropped.split(['~', ' ']).any(|cap| cap == needed), "launching as a user needs {needed}");
    }
}

#[test]
fn systemd_finds_no_fault_with_the_unit() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let unit = dir.path().join("rota.service");
    // The binary need not be installed where the test runs.
    let stand_in: String = text("rota.service")
        .lines()
        .map(|line| {
            if line.starts_with("ExecStart=") {
                "ExecStart=/bin/true\n".to_owned()
            } else {
                format!("{line}\n")
            }
        })
        .collect();
    fs::write(&unit, stand_in).expect("writable");
    let verify =
        |path: &Path| Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(path).output();
    let Ok(output) = verify(&unit) else {
        println!("NOT CHECKED: systemd-analyze is not installed here");
        return;
    };
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    // Newer than the systemd of some hosts, which pass over it; see the unit.
    let too_new =
        |line: &&str| line.contains("Unknown key 'DelegateSubgroup'") || line.contains("DelegateSubgroup=");
    let about_it: Vec<&str> =
        said.lines().filter(|line| line.contains("rota.service")).filter(|line| !too_new(line)).collect();
    assert!(about_it.is_empty(), "systemd-analyze verify: {said}");
    fs::write(&unit, "[Service]\nType=nonsense\nExecStart=/bin/true\nKillModus=process\n").expect("writable");
    let bad = verify(&unit).expect("it ran a moment ago");
    let said = String::from_utf8_lossy(&bad.stderr).into_owned();
    assert!(said.contains("nonsense") && said.contains("KillModus"), "it can find faults: {said}");
}

#[test]
fn the_example_settings_are_toml_and_name_each_key_once() {
    let example = text("rota.toml");
    let parsed: toml::Table = example.parse().expect("valid as it stands");
    assert_eq!(parsed["http_listen"].as_str(), Some("127.0.0.1:7421"), "loopback unless told otherwise");
    let (mut names, mut table) = (BTreeSet::new(), String::new());
    let uncommented: String = example
        .lines()
        .map(|line| {
            let line = line.strip_prefix("# ").filter(|rest| is_setting(rest)).unwrap_or(line);
            if line.starts_with('[') {
                table = line.to_owned();
            }
            if let Some((key, _)) = line.split_once(" = ") {
                assert!(names.insert(format!("{table}{key}")), "{key} stands twice in {table}");
            }
            format!("{line}\n")
        })
        .collect();
    uncommented.parse::<toml::Table>().expect("valid with every example taken");
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("rota.toml");
    // Settings are refused if a file that they name is not there: this one says what its comment shows.
    let xids = dir.path().join("xids.txt");
    fs::write(&xids, "79 node fallen off the bus\n").expect("writable");
    let here = uncommented.replace("/etc/rota/xids.txt", xids.to_str().expect("a plain path"));
    assert_ne!(here, uncommented, "the example names the file");
    fs::write(&path, here).expect("writable");
    let all = AgentConfig::load(&path).expect("the agent takes it with every example taken");
    all.check().expect("and finds that its values go together");
    assert_eq!(all.sim_gpus.as_deref(), Some("8xH100:80GiB"));
    all.devices("h1").expect("and can read its amounts");
    let as_it_stands = AgentConfig::load(&deploy("rota.toml")).expect("the agent takes it as it stands");
    assert_eq!(as_it_stands, AgentConfig::default(), "each value in it is the default");
    let every_key = toml::Table::try_from(all).expect("settings are a table");
    let missing: Vec<&String> = every_key.keys().filter(|key| !uncommented.contains(key.as_str())).collect();
    assert!(missing.is_empty(), "not explained: {missing:?}");
}

/// `key = value` in a comment is an example; prose is not.
fn is_setting(line: &str) -> bool {
    line.split_once(" = ")
        .is_some_and(|(key, _)| !key.is_empty() && key.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'))
}

#[test]
fn groups_and_directories_fit_the_unit() {
    assert!(text("sysusers.d/rota.conf").lines().any(|line| line.starts_with("g rota")));
    let tmpfiles = text("tmpfiles.d/rota.conf");
    let mode = directives(&text("rota.service"))["Service.StateDirectoryMode"].clone();
    assert!(
        tmpfiles.lines().any(|line| line.starts_with(&format!("d /var/lib/rota {mode} root root"))),
        "both say mode {mode}"
    );
}
