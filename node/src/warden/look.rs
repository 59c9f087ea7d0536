//! One look at the cards, as the driver tells it, and the same with every process attributed to its attempt.

use super::whose::{Roots, whose};
use crate::io::proc;
use crate::logic::strangers::{CardSeen, Seen, Whose};
use rota_protocol::device::{DeviceFacts, DeviceReading};
use rota_protocol::{DeviceUuid, Token};
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

/// Clock ticks per second in `/proc`: fixed by the kernel's interface.
const TICKS_PER_S: u64 = 100;

/// A process on a card: its id, and its memory there in MiB if the driver tells.
pub type RawProcess = (u32, Option<u64>);

/// What the driver says of one card.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RawCard {
    /// Processes; none if it did not answer.
    pub processes: Option<Vec<RawProcess>>,
    /// Memory in use, in MiB.
    pub used_mib: Option<u64>,
    /// All of its memory, in MiB.
    pub total_mib: Option<u64>,
    /// Its load, in permille.
    pub busy_permille: Option<u16>,
    /// Its device files.
    pub nodes: Vec<PathBuf>,
}

/// One look at all cards that have something to tell; simulated ones have not.
pub type RawLook = BTreeMap<DeviceUuid, RawCard>;

/// Puts together what was found: facts, readings, and the processes of each card that tells them. Of a slice the driver
/// tells memory but no processes: it counts as a card without any.
#[must_use]
pub fn raw_look(
    devices: &[DeviceFacts],
    readings: &[DeviceReading],
    processes: &BTreeMap<DeviceUuid, Option<Vec<RawProcess>>>,
) -> RawLook {
    let reading = |uuid: &DeviceUuid| readings.iter().find(|reading| reading.uuid == *uuid);
    let mut look = RawLook::new();
    for facts in devices {
        let processes = match processes.get(&facts.uuid) {
            Some(told) => told.clone(),
            None if facts.detail.parent.as_ref().is_some_and(|card| processes.contains_key(card)) => {
                Some(Vec::new())
            }
            None => continue,
        };
        let reading = reading(&facts.uuid);
        let card = RawCard {
            processes,
            used_mib: reading.and_then(|reading| reading.vram_used_mib),
            total_mib: facts.vram_mib,
            busy_permille: reading.and_then(|reading| reading.busy_permille),
            nodes: nodes_of(facts),
        };
        look.insert(facts.uuid.clone(), card);
    }
    look
}

/// A card's own device files. A slice has none: its card's are everybody's who has a slice of it.
fn nodes_of(facts: &DeviceFacts) -> Vec<PathBuf> {
    let own = facts.detail.nodes.iter().map(PathBuf::from);
    let by_number = facts.detail.minor.map(|minor| PathBuf::from(format!("/dev/nvidia{minor}")));
    let whole = facts.detail.parent.is_none();
    by_number.into_iter().chain(own).filter(|_| whole).collect()
}

/// The look with every process attributed. Reads `/proc` for each process on a card.
#[must_use]
pub fn attribute(raw: &RawLook, roots: &Roots) -> BTreeMap<DeviceUuid, CardSeen> {
    let mut known: BTreeMap<u32, Whose> = BTreeMap::new();
    let mut seen = |(pid, mib): &RawProcess| Seen {
        pid: *pid,
        mib: *mib,
        whose: known.entry(*pid).or_insert_with(|| whose(*pid, roots)).clone(),
    };
    let cards = raw.iter().map(|(uuid, card)| {
        let processes = card.processes.as_ref().map(|all| all.iter().map(&mut seen).collect());
        let RawCard { used_mib, total_mib, busy_permille, .. } = *card;
        (uuid.clone(), CardSeen { processes, used_mib, total_mib, busy_permille })
    });
    cards.collect()
}

/// Processor time in ms, and bytes read and written, of all processes below each of these shims. Processes that end
/// meanwhile are missing.
#[must_use]
pub fn group_use(shims: &BTreeMap<i32, Token>) -> BTreeMap<Token, (u64, u64)> {
    let of = |shim: i32| {
        let below = proc::descendants(shim).unwrap_or_default();
        let ticks: u64 = below.iter().filter_map(|pid| Some(proc::stat(*pid).ok()?.cpu_ticks)).sum();
        let bytes = below.iter().filter_map(|pid| io_bytes(*pid)).fold(0, u64::saturating_add);
        (ticks * 1_000 / TICKS_PER_S, bytes)
    };
    shims.iter().map(|(shim, token)| (*token, of(*shim))).collect()
}

fn io_bytes(pid: i32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/io")).ok()?;
    let values = text.lines().filter_map(|line| {
        let value = line.strip_prefix("rchar:").or_else(|| line.strip_prefix("wchar:"))?;
        value.trim().parse::<u64>().ok()
    });
    Some(values.fold(0, u64::saturating_add))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn one_process_on_two_cards_is_asked_for_once_and_vanished_ones_are_absent() {
        let own = std::process::id();
        let roots = Roots {
            shims: BTreeMap::from([(i32::try_from(own).expect("a pid"), Token(3))]),
            ..Roots::default()
        };
        let card = RawCard {
            processes: Some(vec![(own, Some(7)), (999_999_999, Some(2_048))]),
            used_mib: Some(3_000),
            ..RawCard::default()
        };
        let raw = RawLook::from([(DeviceUuid("a".into()), card.clone()), (DeviceUuid("b".into()), card)]);
        for seen in attribute(&raw, &roots).values() {
            let whose: Vec<_> = seen.processes.iter().flatten().map(|p| (p.whose.clone(), p.mib)).collect();
            assert_eq!(whose, [(Whose::Attempt(Token(3)), Some(7)), (Whose::Absent, Some(2_048))]);
        }
    }

    #[test]
    fn what_a_group_uses_is_what_its_processes_use() {
        let mut child = Command::new("sh")
            .args([
                "-c",
                "(i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; echo done; exec sleep 60) & wait",
            ])
            .stdout(Stdio::piped())
            .spawn()
            .expect("a shell");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("piped");
        std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut line).expect("it has worked");
        let pid = i32::try_from(child.id()).expect("a pid");
        let used = group_use(&BTreeMap::from([(pid, Token(1))]))[&Token(1)];
        assert!(used.0 > 0 && used.1 > 0, "{used:?}");
        for pid in proc::descendants(pid).expect("readable").into_iter().chain([pid]) {
            let pid = rustix::process::Pid::from_raw(pid).expect("not zero");
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
        child.wait().expect("a child");
        assert_eq!(group_use(&BTreeMap::from([(pid, Token(1))]))[&Token(1)], (0, 0));
    }
}
