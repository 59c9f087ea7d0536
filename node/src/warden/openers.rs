//! Who has a card's device node open. A dear look, so it is taken only when a card is given back and all else is well;
//! bounded in time and in files.
//!
//! Not counted: this process, programs that the site allows to watch cards, and whatever began before the attempt did:
//! that cannot be left of it.

use crate::io::proc;
use crate::logic::reclaim::Left;
use crate::warden::settings::SharingSettings;
use crate::warden::whose::user_of;
use rota_protocol::DeviceUuid;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Longest look: a host with very many processes gives the card back on its other proofs.
const LOOK_MAX: Duration = Duration::from_millis(500);
/// Most open files of one process that are looked at.
const FILES_MAX: usize = 4_096;

/// Cards and their device nodes. A card whose node is not known has none.
pub type Nodes = BTreeMap<PathBuf, DeviceUuid>;

/// Who has any of these nodes open and began at `since_ticks` (clock ticks since boot) or later. Processes that may not be
/// looked into are passed over.
///
/// # Errors
/// `/proc` cannot be read.
pub fn openers(
    nodes: &Nodes,
    since_ticks: u64,
    settings: &SharingSettings,
) -> io::Result<BTreeMap<DeviceUuid, Vec<Left>>> {
    let mut found: BTreeMap<DeviceUuid, Vec<Left>> =
        nodes.values().map(|uuid| (uuid.clone(), Vec::new())).collect();
    if nodes.is_empty() {
        return Ok(found);
    }
    let (began, own) = (Instant::now(), std::process::id());
    for pid in proc::pids()? {
        if began.elapsed() > LOOK_MAX {
            tracing::warn!("looking for open device nodes took too long; the rest is passed over");
            break;
        }
        let Ok(number) = u32::try_from(pid) else { continue };
        let late = proc::stat(pid).is_ok_and(|stat| stat.start_ticks >= since_ticks);
        if number == own || !late {
            continue;
        }
        for uuid in opened(pid, nodes) {
            let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            if !settings.is_watcher(name.trim_end())
                && let Some(left) = found.get_mut(&uuid)
            {
                left.push(Left { pid: number, user: user_of(pid), mib: None });
            }
        }
    }
    Ok(found)
}

/// The cards whose nodes a process has open, each once.
fn opened(pid: i32, nodes: &Nodes) -> Vec<DeviceUuid> {
    let Ok(files) = fs::read_dir(format!("/proc/{pid}/fd")) else { return Vec::new() };
    let links = files.take(FILES_MAX).filter_map(|file| fs::read_link(file.ok()?.path()).ok());
    let mut cards: Vec<DeviceUuid> = links.filter_map(|path| nodes.get(&path).cloned()).collect();
    cards.sort_unstable();
    cards.dedup();
    cards
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_late_opener_is_found_an_early_one_and_a_watcher_are_not() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let node = dir.path().join("nvidia0");
        fs::write(&node, "").expect("writable");
        let nodes = Nodes::from([(node.clone(), DeviceUuid("GPU-a".into()))]);
        let mut child = Command::new("sh")
            .args(["-c", "exec 9<\"$0\"; echo; read -r _", &node.to_string_lossy()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a shell");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("piped");
        io::BufRead::read_line(&mut io::BufReader::new(stdout), &mut line).expect("it has opened it");
        let pid = i32::try_from(child.id()).expect("a pid");
        let ticks = proc::stat(pid).expect("alive").start_ticks;
        let look = |since, settings: &SharingSettings| {
            openers(&nodes, since, settings).expect("readable")[&DeviceUuid("GPU-a".into())].clone()
        };
        let settings = SharingSettings::default();
        let left = look(ticks, &settings);
        assert_eq!(left.iter().map(|one| one.pid).collect::<Vec<_>>(), [child.id()]);
        assert!(left[0].user.is_some());
        assert_eq!(look(ticks + 1, &settings), []);
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).expect("alive").trim_end().to_owned();
        assert_eq!(look(ticks, &SharingSettings { watchers: vec![name], ..settings.clone() }), []);
        child.kill().expect("alive");
        child.wait().expect("a child");
        assert_eq!(look(ticks, &settings), []);
    }
}
