//! Readers of `/proc`. Everything here may be stale when it returns; nothing here proves an identity by itself.

use rota_protocol::BootId;
use rustix::process::Pid;
use std::collections::BTreeMap;
use std::fs;
use std::io;

/// Longest environment that is searched for markers, in bytes: the kernel's limit for arguments and environment is
/// a quarter of the stack limit, 2 MiB by default.
const ENVIRON_BYTES_MAX: u64 = 8 << 20;

/// The kernel's id of this boot.
///
/// # Errors
/// `/proc` is not mounted, or its text is not an id.
pub fn boot_id() -> io::Result<BootId> {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    text.trim().parse().map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))
}

/// Parent, process group, times of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcStat {
    /// One letter: `R`, `S`, `D`, `Z`, `T` ...
    pub state: u8,
    /// Parent's process id.
    pub ppid: i32,
    /// Process group.
    pub pgrp: i32,
    /// Session.
    pub session: i32,
    /// The kernel's flags of the process (field 9).
    pub flags: u64,
    /// Processor time that it used itself, all threads, in clock ticks (fields 14 and 15).
    pub cpu_ticks: u64,
    /// Start time in clock ticks since boot (field 22).
    pub start_ticks: u64,
}

/// Reads `/proc/<pid>/stat`.
///
/// # Errors
/// The process is gone.
pub fn stat(pid: i32) -> io::Result<ProcStat> {
    let text = fs::read(format!("/proc/{pid}/stat"))?;
    parse_stat(&text).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "unreadable process status"))
}

/// Processor time of this process and of all children that it has reaped, in clock ticks (100 per second).
///
/// # Errors
/// `/proc` cannot be read.
pub fn cpu_ticks() -> io::Result<u64> {
    let text = fs::read("/proc/self/stat")?;
    let rest = text.iter().rposition(|b| *b == b')').and_then(|at| std::str::from_utf8(&text[at + 1..]).ok());
    // Fields 14 to 17; the first after the name is field 3.
    let times = rest.unwrap_or_default().split_ascii_whitespace().skip(11).take(4);
    Ok(times.filter_map(|ticks| ticks.parse::<u64>().ok()).sum())
}

/// A program's name may hold anything, spaces and parentheses included: fields are counted after the last `)`.
fn parse_stat(text: &[u8]) -> Option<ProcStat> {
    let after = text.iter().rposition(|b| *b == b')')? + 1;
    let rest = std::str::from_utf8(text.get(after..)?).ok()?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    Some(ProcStat {
        state: *fields.first()?.as_bytes().first()?,
        ppid: fields.get(1)?.parse().ok()?,
        pgrp: fields.get(2)?.parse().ok()?,
        session: fields.get(3)?.parse().ok()?,
        flags: fields.get(6)?.parse().ok()?,
        cpu_ticks: fields.get(11)?.parse::<u64>().ok()?.saturating_add(fields.get(12)?.parse().ok()?),
        start_ticks: fields.get(19)?.parse().ok()?,
    })
}

/// The process does something with this signal: it catches it, or holds it back to fetch it. Sent to any other, the
/// signal does what the kernel does by default. False when the process is gone.
#[must_use]
pub fn awaits(pid: i32, signal: u8) -> bool {
    has_signal(pid, signal, ["SigCgt:", "SigBlk:"])
}

/// The signal is in one of these sets of `/proc/<pid>/status`.
fn has_signal(pid: i32, signal: u8, sets: [&str; 2]) -> bool {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let Some(bit) = signal.checked_sub(1).and_then(|at| 1_u64.checked_shl(u32::from(at))) else {
        return false;
    };
    let masks = text.lines().filter_map(|line| {
        let mask = sets.iter().find_map(|set| line.strip_prefix(set))?;
        u64::from_str_radix(mask.trim(), 16).ok()
    });
    masks.fold(0, std::ops::BitOr::bitor) & bit != 0
}

/// The process that began at `start_ticks` is there and will stay: it is neither a zombie, nor being taken apart by the
/// kernel, nor has it a kill before it. What cannot be read goes on no more.
#[must_use]
pub fn goes_on(pid: i32, start_ticks: u64) -> bool {
    /// The kernel's flag for a process that is being taken apart.
    const EXITING: u64 = 0x4;
    const KILL: u8 = 9;
    let stays = |found: ProcStat| {
        found.start_ticks == start_ticks && found.flags & EXITING == 0 && !matches!(found.state, b'Z' | b'X')
    };
    stat(pid).is_ok_and(stays) && !has_signal(pid, KILL, ["SigPnd:", "ShdPnd:"])
}

/// Every process id of this pid namespace.
///
/// # Errors
/// `/proc` cannot be read.
pub fn pids() -> io::Result<Vec<i32>> {
    Ok(fs::read_dir("/proc")?.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect())
}

/// The living children of a process, zombies that it has not reaped included where the kernel lists children.
///
/// # Errors
/// `/proc` cannot be read.
pub fn children(pid: i32) -> io::Result<Vec<i32>> {
    match listed_children(pid) {
        Some(found) => Ok(found),
        None => Ok(children_by_parent()?.remove(&pid).unwrap_or_default()),
    }
}

/// All living processes below `root` (itself not included), however deep.
///
/// # Errors
/// `/proc` cannot be read.
pub fn descendants(root: i32) -> io::Result<Vec<i32>> {
    let lists = listed_children(root).is_some();
    let mut by_parent = if lists { BTreeMap::new() } else { children_by_parent()? };
    let mut below = |pid| {
        if lists {
            // A process that is gone by now has handed its children to the subreaper above; the caller looks again.
            listed_children(pid).unwrap_or_default()
        } else {
            by_parent.remove(&pid).unwrap_or_default()
        }
    };
    let mut found = below(root);
    let mut next = 0;
    while let Some(pid) = found.get(next).copied() {
        found.extend(below(pid));
        next += 1;
    }
    Ok(found)
}

fn children_by_parent() -> io::Result<BTreeMap<i32, Vec<i32>>> {
    let mut by_parent: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    for pid in pids()? {
        if let Ok(stat) = stat(pid)
            && stat.state != b'Z'
        {
            by_parent.entry(stat.ppid).or_default().push(pid);
        }
    }
    Ok(by_parent)
}

/// The quick way. None when the process is gone or the kernel keeps no such lists.
fn listed_children(pid: i32) -> Option<Vec<i32>> {
    let mut found = Vec::new();
    let mut listed = false;
    for thread in fs::read_dir(format!("/proc/{pid}/task")).ok()? {
        if let Ok(text) = fs::read_to_string(thread.ok()?.path().join("children")) {
            listed = true;
            found.extend(text.split_ascii_whitespace().filter_map(|p| p.parse::<i32>().ok()));
        }
    }
    listed.then_some(found)
}

/// Processes whose environment at their start had all of `markers` (`NAME=value` each), this process excepted.
///
/// # Errors
/// `/proc` cannot be read. Processes that may not be looked into are passed over.
pub fn marked(markers: &[Vec<u8>]) -> io::Result<Vec<i32>> {
    let own = Pid::as_raw(Some(rustix::process::getpid()));
    Ok(pids()?.into_iter().filter(|pid| *pid != own && has_markers(*pid, markers)).collect())
}

/// A variable of a process's environment as it was when it started; none if it may not be looked at.
#[must_use]
pub fn variable(pid: i32, name: &str) -> Option<String> {
    use std::io::Read as _;
    let mut environ = Vec::new();
    fs::File::open(format!("/proc/{pid}/environ"))
        .ok()?
        .take(ENVIRON_BYTES_MAX)
        .read_to_end(&mut environ)
        .ok()?;
    let mut variables = environ.split(|byte| *byte == 0).filter_map(|one| std::str::from_utf8(one).ok());
    variables.find_map(|one| one.strip_prefix(name)?.strip_prefix('=').map(str::to_owned))
}

pub(crate) fn has_markers(pid: i32, markers: &[Vec<u8>]) -> bool {
    use std::io::Read as _;
    let mut environ = Vec::new();
    let read = fs::File::open(format!("/proc/{pid}/environ"))
        .and_then(|file| file.take(ENVIRON_BYTES_MAX).read_to_end(&mut environ));
    read.is_ok()
        && !environ.is_empty()
        && markers
            .iter()
            .all(|marker| environ.split(|b| *b == 0).any(|variable| variable == marker.as_slice()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_counted_after_the_last_parenthesis() {
        let text = b"12 (a) S 9 (b) R 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4242 20 21";
        let stat = parse_stat(text).unwrap();
        assert_eq!((stat.state, stat.ppid, stat.pgrp, stat.session), (b'R', 1, 2, 3));
        assert_eq!(stat.start_ticks, 4242);
        assert_eq!(parse_stat(b"12 (x"), None);
        assert_eq!(parse_stat(b""), None);
    }

    #[test]
    fn tells_who_awaits_a_signal() {
        const USR1: u8 = 10;
        let mut child = std::process::Command::new("sh")
            .args(["-c", "trap : USR1; echo; read -r _"])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let stdout = child.stdout.take().unwrap();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut line).unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        assert!(awaits(pid, USR1) && !awaits(pid, 12) && !awaits(pid, 0) && !awaits(pid, 65));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!awaits(pid, USR1));
    }

    #[test]
    fn finds_children_by_either_way_and_processes_by_marker() {
        let mut child = std::process::Command::new("sh")
            .args(["-c", "sleep 60 & wait"])
            .env("ROTA_PROC_TEST", "yes 1")
            .spawn()
            .unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let grandchild = loop {
            if let Some(found) = descendants(pid).unwrap().first() {
                break *found;
            }
            std::thread::yield_now();
        };
        assert_eq!(stat(grandchild).unwrap().ppid, pid);
        assert_eq!(children_by_parent().unwrap()[&pid], [grandchild]);
        let mut marked = marked(&[b"ROTA_PROC_TEST=yes 1".to_vec()]).unwrap();
        marked.sort_unstable();
        assert_eq!(marked, [pid, grandchild]);
        assert!(super::marked(&[b"ROTA_PROC_TEST=yes".to_vec()]).unwrap().is_empty());
        for pid in [pid, grandchild] {
            let pid = Pid::from_raw(pid).unwrap();
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        }
        child.wait().unwrap();
    }
}
