//! Which control group hierarchies this host has and where this process is in each, read from `/proc`. Nothing is made
//! or changed here.

use rota_protocol::cage::Controller;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// The controllers of version 1 that are used, by their name in mount options.
const NAMES: [(&str, Controller); 5] = [
    ("memory", Controller::Memory),
    ("pids", Controller::Pids),
    ("cpu", Controller::Cpu),
    ("devices", Controller::Devices),
    ("freezer", Controller::Freezer),
];

/// The folder of this process's own group in each hierarchy.
pub(super) fn own() -> io::Result<BTreeMap<Controller, PathBuf>> {
    let mounts = std::fs::read("/proc/self/mountinfo")?;
    let groups = std::fs::read("/proc/self/cgroup")?;
    Ok(find(&mounts, &groups))
}

/// Those whose means another may have as well come last.
pub(super) fn best_first(found: BTreeMap<Controller, PathBuf>) -> Vec<(Controller, PathBuf)> {
    let mut found: Vec<_> = found.into_iter().collect();
    found.sort_by_key(|(controller, _)| match controller {
        Controller::Memory | Controller::Pids | Controller::Cpu | Controller::Devices => 0,
        Controller::Unified => 1,
        Controller::Freezer => 2,
    });
    found
}

fn find(mounts: &[u8], groups: &[u8]) -> BTreeMap<Controller, PathBuf> {
    let mut found = BTreeMap::new();
    for mount in mounts.split(|b| *b == b'\n').filter_map(Mount::read) {
        for controller in mount.controllers.iter().copied() {
            let folder = group_of(groups, controller).and_then(|group| mount.place_of(&group));
            if let Some(folder) = folder {
                found.entry(controller).or_insert(folder);
            }
        }
    }
    found
}

/// One mounted hierarchy.
struct Mount {
    /// The group that is shown at its place.
    root: PathBuf,
    place: PathBuf,
    controllers: Vec<Controller>,
}

impl Mount {
    /// Reads a line of `mountinfo`; none if it is something else.
    fn read(line: &[u8]) -> Option<Self> {
        let fields: Vec<&[u8]> = line.split(|b| *b == b' ').collect();
        let end = fields.iter().position(|field| *field == b"-")?;
        let kind = *fields.get(end + 1)?;
        let options = std::str::from_utf8(fields.get(end + 3)?).ok()?;
        let controllers = match kind {
            b"cgroup2" => vec![Controller::Unified],
            b"cgroup" => {
                let named =
                    |(name, _): &&(&str, Controller)| options.split(',').any(|option| option == *name);
                NAMES.iter().filter(named).map(|(_, controller)| *controller).collect()
            }
            _ => return None,
        };
        Some(Self { root: unescape(fields.get(3)?), place: unescape(fields.get(4)?), controllers })
    }

    fn place_of(&self, group: &Path) -> Option<PathBuf> {
        let below = group.strip_prefix(&self.root).ok()?;
        Some(if below.as_os_str().is_empty() { self.place.clone() } else { self.place.join(below) })
    }
}

/// This process's group in the hierarchy of one controller.
fn group_of(groups: &[u8], controller: Controller) -> Option<PathBuf> {
    let name = NAMES.iter().find(|(_, known)| *known == controller).map_or("", |(name, _)| *name);
    groups.split(|b| *b == b'\n').find_map(|line| {
        let mut fields = line.splitn(3, |b| *b == b':');
        let names = std::str::from_utf8(fields.nth(1)?).ok()?;
        let path = fields.next()?;
        names.split(',').any(|found| found == name).then(|| PathBuf::from(OsStr::from_bytes(path)))
    })
}

/// Spaces and the like stand as `\040` there.
fn unescape(text: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, after)) = rest.split_first() {
        let octal =
            after.get(..3).filter(|_| *first == b'\\').and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[3..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    std::ffi::OsString::from_vec(bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(found: &BTreeMap<Controller, PathBuf>, controller: Controller) -> Option<&str> {
        found.get(&controller).and_then(|path| path.to_str())
    }

    #[test]
    fn mixed_hierarchies_are_found_with_the_place_in_each() {
        let mounts = b"31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755\n\
            32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct\n\
            35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:7 - cgroup cgroup rw,memory\n\
            37 31 0:34 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd\n\
            38 31 0:35 / /sys/fs/cgroup/uni\\040fied rw - cgroup2 cgroup2 rw\n";
        let groups = b"4:memory:/system.slice/rota.service\n1:cpu,cpuacct:/\n0::/a:b\n";
        let found = find(mounts, groups);
        assert_eq!(
            folder(&found, Controller::Memory),
            Some("/sys/fs/cgroup/memory/system.slice/rota.service")
        );
        assert_eq!(folder(&found, Controller::Cpu), Some("/sys/fs/cgroup/cpu,cpuacct"));
        assert_eq!(folder(&found, Controller::Unified), Some("/sys/fs/cgroup/uni fied/a:b"));
        assert_eq!(folder(&found, Controller::Pids), None);
    }

    #[test]
    fn in_a_container_the_mount_shows_its_own_group_as_the_root() {
        let mounts = b"35 31 0:32 /docker/abc /sys/fs/cgroup rw - cgroup2 cgroup rw,nsdelegate\n";
        let found = find(mounts, b"0::/docker/abc/x\n");
        assert_eq!(folder(&found, Controller::Unified), Some("/sys/fs/cgroup/x"));
        assert_eq!(folder(&find(mounts, b"0::/elsewhere\n"), Controller::Unified), None);
    }
}
