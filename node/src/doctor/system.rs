//! The system around the agent: what it can offer, who runs it, cgroups, systemd, the clock, limits.

use super::{fail, pass, warn};
use crate::devices::{DeviceConfig, host};
use rota_protocol::view::DoctorRow;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Open files that an agent with many connections and attempts needs.
const FILES_WANTED: u64 = 65_536;
/// Below this it fails in normal use.
const FILES_LEAST: u64 = 4_096;
/// Controllers that limits of tasks rest on.
const CONTROLLERS: [&str; 3] = ["cpu", "memory", "pids"];
/// A clock before this moment (2025-01-01) was never set.
const SANE_S: u64 = 1_735_689_600;

/// CPU and memory to offer.
pub(super) fn capacity(config: &DeviceConfig) -> DoctorRow {
    let cpus = config.cpus_milli.unwrap_or_else(host::cpus_milli);
    let mem_mib = config.mem_mib.unwrap_or_else(host::mem_mib);
    if mem_mib == 0 {
        return fail("capacity", "memory cannot be read", "mount /proc, or set `mem` in rota.toml");
    }
    pass("capacity", format!("{}.{:03} cores, {mem_mib} MiB for tasks", cpus / 1_000, cpus % 1_000))
}

/// Who runs this.
pub(super) fn user() -> DoctorRow {
    let uid = rustix::process::geteuid().as_raw();
    if uid == 0 {
        return pass("user", "root: tasks run as the users that submitted them");
    }
    warn(
        "user",
        format!("user {uid}: all tasks run as this user"),
        "run the agent as root to keep users apart",
    )
}

/// Which cgroups there are, and whether this process may make its own.
pub(super) fn cgroup(root: &Path) -> DoctorRow {
    const CHECK: &str = "cgroup";
    let mount = root.join("sys/fs/cgroup");
    let Ok(controllers) = fs::read_to_string(mount.join("cgroup.controllers")) else {
        let hybrid = mount.join("unified").is_dir();
        return if mount.join("memory").is_dir() {
            let kind = if hybrid { "version 1 and 2 mixed" } else { "version 1" };
            pass(CHECK, kind)
        } else {
            warn(CHECK, "none", "mount cgroup2 at /sys/fs/cgroup; without it tasks are not limited")
        };
    };
    let missing: Vec<&str> = CONTROLLERS
        .into_iter()
        .filter(|wanted| !controllers.split_whitespace().any(|found| found == *wanted))
        .collect();
    if !missing.is_empty() {
        let found = format!("version 2 without {}", missing.join(", "));
        return warn(CHECK, found, "let the parent give them away: `Delegate=yes`, cgroup.subtree_control");
    }
    match own_cgroup(root) {
        Some(own) if rustix::fs::access(&own, rustix::fs::Access::WRITE_OK).is_ok() => {
            pass(CHECK, "version 2, own subtree can be written")
        }
        _ => warn(
            CHECK,
            "version 2, but this process may not make groups of its own",
            "set `Delegate=yes` in the unit",
        ),
    }
}

fn own_cgroup(root: &Path) -> Option<PathBuf> {
    let text = fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
    let path = text.lines().find_map(|line| line.strip_prefix("0::/"))?;
    Some(root.join("sys/fs/cgroup").join(path))
}

/// Whether systemd runs this machine.
pub(super) fn systemd(root: &Path) -> DoctorRow {
    const CHECK: &str = "systemd";
    if !root.join("run/systemd/system").is_dir() {
        let next = "nothing in a container or a trial; else install deploy/rota.service, so that tasks survive a restart";
        return warn(CHECK, "this machine was not started by systemd", next);
    }
    let text = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    match text.lines().flat_map(|line| line.split('/')).find(|part| part.ends_with(".service")) {
        Some(unit) => pass(CHECK, format!("runs in {unit}")),
        None => pass(CHECK, "present; this process is not a service"),
    }
}

/// Whether the clock is kept. Nothing in Rota decides by it, but certificates and people read it.
pub(super) fn clock(root: &Path) -> DoctorRow {
    const CHECK: &str = "clock";
    let now_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    if now_s < SANE_S {
        return fail(CHECK, "the clock was never set", "start chrony or systemd-timesyncd");
    }
    let keepers = [
        ("run/systemd/timesync/synchronized", "kept by systemd-timesyncd"),
        ("run/chrony/chronyd.pid", "kept by chrony"),
        ("run/chronyd.pid", "kept by chrony"),
        ("run/ntpd.pid", "kept by ntpd"),
    ];
    match keepers.into_iter().find(|(path, _)| root.join(path).exists()) {
        Some((_, found)) => pass(CHECK, found),
        None => warn(
            CHECK,
            "nobody seems to keep it",
            "start chrony or systemd-timesyncd; or ignore this in a container",
        ),
    }
}

/// The limit on open files.
pub(super) fn open_files() -> DoctorRow {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    judge_files(limit.unwrap_or(u64::MAX))
}

fn judge_files(limit: u64) -> DoctorRow {
    const CHECK: &str = "open files";
    let next = format!("set `LimitNOFILE={FILES_WANTED}` in the unit, or `ulimit -n {FILES_WANTED}`");
    if limit < FILES_LEAST {
        fail(CHECK, format!("{limit} at most"), next)
    } else if limit < FILES_WANTED {
        warn(CHECK, format!("{limit} at most"), next)
    } else {
        pass(CHECK, if limit == u64::MAX { "unlimited".to_owned() } else { format!("{limit} at most") })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("a temporary directory");
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("below the root")).expect("creatable");
            fs::write(path, text).expect("writable");
        }
        root
    }

    #[test]
    fn cgroups_are_told_apart() {
        let none = machine(&[]);
        assert_eq!(cgroup(none.path()).found, "none");
        let old = machine(&[("sys/fs/cgroup/memory/tasks", "")]);
        assert_eq!(cgroup(old.path()).found, "version 1");
        let mixed =
            machine(&[("sys/fs/cgroup/memory/tasks", ""), ("sys/fs/cgroup/unified/cgroup.procs", "")]);
        assert_eq!(cgroup(mixed.path()).found, "version 1 and 2 mixed");
        let poor = machine(&[("sys/fs/cgroup/cgroup.controllers", "hugetlb cpu\n")]);
        assert_eq!(cgroup(poor.path()).found, "version 2 without memory, pids");
        let full = machine(&[
            ("sys/fs/cgroup/cgroup.controllers", "cpuset cpu io memory pids\n"),
            ("sys/fs/cgroup/system.slice/rota.service/cgroup.procs", ""),
            ("proc/self/cgroup", "0::/system.slice/rota.service\n"),
        ]);
        assert_eq!(cgroup(full.path()).verdict, "pass");
        let lost = machine(&[
            ("sys/fs/cgroup/cgroup.controllers", "cpuset cpu io memory pids\n"),
            ("proc/self/cgroup", "0::/gone\n"),
        ]);
        assert_eq!(cgroup(lost.path()).verdict, "warn");
    }

    #[test]
    fn a_service_names_its_unit() {
        let root =
            machine(&[("run/systemd/system/x", ""), ("proc/self/cgroup", "0::/system.slice/rota.service\n")]);
        assert_eq!(systemd(root.path()).found, "runs in rota.service");
        assert_eq!(systemd(machine(&[]).path()).verdict, "warn");
    }

    #[test]
    fn a_kept_clock_passes() {
        assert_eq!(clock(machine(&[("run/systemd/timesync/synchronized", "")]).path()).verdict, "pass");
        assert_eq!(clock(machine(&[]).path()).verdict, "warn");
    }

    #[test]
    fn few_open_files_are_named() {
        for (limit, verdict) in [(1_024, "fail"), (8_192, "warn"), (65_536, "pass"), (u64::MAX, "pass")] {
            assert_eq!(judge_files(limit).verdict, verdict, "{limit}");
        }
    }

    #[test]
    fn capacity_follows_the_operator() {
        let config =
            DeviceConfig { cpus_milli: Some(7_500), mem_mib: Some(1_024), ..DeviceConfig::default() };
        assert_eq!(capacity(&config).found, "7.500 cores, 1024 MiB for tasks");
    }
}
