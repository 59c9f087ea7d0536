//! The shim's side: the groups of one attempt, from before its first process until after its last.
//!
//! Only the kernel can say that a group is empty: it then lets its folder be removed, or says so of one that is kept
//! (`pool`). That is the proof on which the end is told.

use super::device_program;
use super::held::Held;
use super::nodes::{COMMON, nodes_at};
use super::place::BARE;
use super::pool::{self, Kept, Spare};
use crate::io::ffi::devices::{attach_device_program, load_device_program};
use rota_protocol::cage::{Cage, Controller, DeviceRule, Group, Used};
use rota_protocol::job::AttemptEnd;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::{AsFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Below this nothing can be run at all, in MiB.
const MEM_MIB_MIN: u64 = 4;
/// The kernel's word for a whole core, by default, in version 1 and in version 2.
const SHARES_PER_CORE: u64 = 1_024;
const WEIGHT_PER_CORE: u64 = 100;
/// The period over which processor time is counted, in us.
const PERIOD_US: u64 = 100_000;
/// Processes that are killed at once: each costs a descriptor for a moment.
const KILLED_AT_ONCE: usize = 256;

/// The groups of one attempt.
#[derive(Debug, Default)]
pub struct Groups {
    groups: Vec<(Controller, PathBuf)>,
    /// That of all attempts without a device, which has nothing of any one of them.
    shared: Option<(Controller, PathBuf)>,
    limit_mib: u64,
    spare: Option<Spare>,
    held: Held,
    /// Its processor time has a ceiling, which is not taken away again.
    capped: bool,
    /// One of its programs may have written to the files of these groups.
    spoiled: AtomicBool,
}

impl Groups {
    /// Makes them, with their limits, or takes spare ones.
    ///
    /// # Errors
    /// The words for people say which folder; nothing is left then.
    pub(crate) fn make(cage: &Cage, spare: Option<Spare>, mut held: Held) -> Result<Self, String> {
        if let Some(spare) = spare {
            held.turn_to(spare);
        }
        let mut groups = Self { spare, held, capped: cage.cpus_hard, ..Self::default() };
        for group in &cage.groups {
            let path = path_of(group);
            if path.file_name() == Some(OsStr::new(BARE)) {
                groups.held.open_shared(&path);
                groups.shared = Some((group.controller, path));
                continue;
            }
            let made = groups.make_one(group.controller, &path, cage);
            if let Err(error) = made {
                groups.remove();
                return Err(format!("cannot make the control group {}: {error}", path.display()));
            }
        }
        let bounded = groups.memory().is_some() && cage.mem_mib > 0;
        groups.limit_mib = if bounded { cage.mem_mib.max(MEM_MIB_MIN) } else { 0 };
        Ok(groups)
    }

    fn make_one(&mut self, controller: Controller, path: &Path, cage: &Cage) -> io::Result<()> {
        let spare = self.spare_for(controller);
        let claimed = spare.is_some_and(|spare| pool::claim(&mut self.held, controller, path, spare));
        if !claimed {
            self.held.forget(controller);
            make_or_take(path)?;
        }
        self.groups.push((controller, path.to_owned()));
        if spare.is_some() {
            self.held.open(controller, path);
            self.held.open_join(controller);
        }
        if claimed && controller == Controller::Memory {
            pool::begin_count(&mut self.held, path)?;
        }
        limit(&mut self.held, controller, path, cage, claimed)
    }

    /// What is open of those that are spare now.
    pub(crate) fn give_back(self) -> Held {
        self.held
    }

    fn spare_for(&self, controller: Controller) -> Option<Spare> {
        let capped = self.capped && controller == Controller::Cpu;
        self.spare.filter(|_| pool::is_kept(controller) && !capped)
    }

    /// The groups of an attempt that somebody else made.
    #[must_use]
    pub fn found(groups: Vec<(Controller, PathBuf)>) -> Self {
        Self { groups, ..Self::default() }
    }

    /// Controller and folder of each.
    pub fn paths(&self) -> impl Iterator<Item = (Controller, &Path)> {
        self.groups.iter().map(|(controller, path)| (*controller, path.as_path()))
    }

    /// The folder in one hierarchy.
    #[must_use]
    pub fn path(&self, controller: Controller) -> Option<&Path> {
        self.paths().find(|(found, _)| *found == controller).map(|(_, path)| path)
    }

    /// What its processes are to join; by which open file, if there is one. It is open for as long as this lives.
    pub(super) fn to_join(&self) -> impl Iterator<Item = (Controller, &Path, Option<RawFd>)> {
        let own = self.paths().map(|(controller, path)| (controller, path, self.held.join(controller)));
        let shared = self.shared.iter().map(|(controller, path)| (*controller, path.as_path()));
        own.chain(shared.map(|(controller, path)| (controller, path, self.held.join_shared(path))))
    }

    /// A program ran that may have written to their files: no other attempt gets them.
    pub fn spoil(&self) {
        self.spoiled.store(true, Ordering::Relaxed);
    }

    /// Every process in any of them.
    #[must_use]
    pub fn pids(&self) -> Vec<i32> {
        let mut pids: Vec<i32> = self.paths().flat_map(|(_, path)| pids_in(path)).collect();
        pids.sort_unstable();
        pids.dedup();
        pids
    }

    /// Kills every process in them: at once where the kernel can, else one by one while none can make others.
    pub fn kill(&self) {
        if let Some(path) = self.path(Controller::Unified)
            && fs::write(path.join("cgroup.kill"), "1").is_ok()
        {
            return;
        }
        if let Some(path) = self.path(Controller::Pids) {
            let _ = fs::write(path.join("pids.max"), "0");
        }
        let freezer = self.path(Controller::Freezer).map(|path| path.join("freezer.state"));
        if let Some(state) = &freezer {
            let _ = fs::write(state, "FROZEN");
        }
        for pids in self.pids().chunks(KILLED_AT_ONCE) {
            self.kill_some(pids);
        }
        // Only a process that goes on can end.
        if let Some(state) = &freezer {
            let _ = fs::write(state, "THAWED");
        }
    }

    /// Those that are still in the groups once they are held: a number may have passed to a stranger meanwhile.
    fn kill_some(&self, pids: &[i32]) {
        let hold = |pid: &i32| Some((*pid, pidfd_open(Pid::from_raw(*pid)?, PidfdFlags::empty()).ok()?));
        let held: Vec<_> = pids.iter().filter_map(hold).collect();
        let still = self.pids();
        for (_, pidfd) in held.iter().filter(|(pid, _)| still.binary_search(pid).is_ok()) {
            let _ = pidfd_send_signal(pidfd, Signal::KILL);
        }
    }

    /// Removes them, or leaves them to the next attempt. False while one of them holds a process.
    pub fn remove(&mut self) -> bool {
        let mut groups = std::mem::take(&mut self.groups);
        groups.retain(|(controller, path)| self.holds(*controller, path));
        self.groups = groups;
        self.groups.is_empty()
    }

    /// A group cannot be let go yet.
    fn holds(&mut self, controller: Controller, path: &Path) -> bool {
        let spare = self.spare_for(controller).filter(|_| !self.spoiled.load(Ordering::Relaxed));
        match spare.map_or(Kept::No, |spare| pool::keep(&mut self.held, controller, path, spare)) {
            Kept::Yes => false,
            Kept::Busy => true,
            Kept::No => {
                self.held.forget(controller);
                fs::remove_dir(path).is_err_and(|error| error.kind() != io::ErrorKind::NotFound)
            }
        }
    }

    /// Kills until they are empty, and removes them. `stuck` hears once that this takes longer than it should.
    pub fn leave(&mut self, patience_ms: u64, mut stuck: impl FnMut(usize)) {
        const PAUSE_MS_MAX: u64 = 100;
        let (mut waited_ms, mut pause_ms, mut told) = (0, 1, false);
        while !self.remove() {
            self.kill();
            std::thread::sleep(Duration::from_millis(pause_ms));
            waited_ms += pause_ms;
            pause_ms = (pause_ms * 2).min(PAUSE_MS_MAX);
            if waited_ms > patience_ms && !std::mem::replace(&mut told, true) {
                stuck(self.pids().len());
            }
        }
    }

    /// What the kernel counted.
    #[must_use]
    pub fn used(&mut self) -> Used {
        let Some((controller, path)) = self.memory() else { return Used::default() };
        let path = path.to_owned();
        let (peak, events) = match controller {
            Controller::Unified => ("memory.peak", "memory.events"),
            _ => ("memory.max_usage_in_bytes", "memory.oom_control"),
        };
        let peak = self.held.read(controller, &path, peak).ok();
        let peak = peak.and_then(|text| text.trim().parse::<u64>().ok());
        let events = self.held.read(controller, &path, events).unwrap_or_default();
        Used {
            peak_mib: peak.map_or(0, |bytes| bytes.div_ceil(1 << 20)),
            limit_mib: self.limit_mib,
            oom_kills: count(&events, "oom_kill"),
        }
    }

    /// Where memory is counted.
    fn memory(&self) -> Option<(Controller, &Path)> {
        let v1 = self.path(Controller::Memory).map(|path| (Controller::Memory, path));
        let unified = || self.path(Controller::Unified).filter(|path| path.join("memory.max").exists());
        v1.or_else(|| Some((Controller::Unified, unified()?)))
    }
}

fn path_of(group: &Group) -> PathBuf {
    OsStr::from_bytes(&group.path).into()
}

/// How an attempt ended, given what was counted: out of memory names the cause of what looks like a signal or a
/// failure. A success stays one.
#[must_use]
pub fn end_with(end: AttemptEnd, used: Used) -> AttemptEnd {
    let by_itself = matches!(end, AttemptEnd::Exited { code: 1.. } | AttemptEnd::Signalled { .. });
    if by_itself && used.oom_kills > 0 {
        return AttemptEnd::OutOfMemory { limit_mib: used.limit_mib, peak_mib: used.peak_mib };
    }
    end
}

/// A folder of that name is what a shim left that died before it could start anything, or holds processes of it.
fn make_or_take(path: &Path) -> io::Result<()> {
    match fs::create_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            fs::remove_dir(path).and_then(|()| fs::create_dir(path))
        }
        made => made,
    }
}

/// In one that was `used` before, every limit is written, also where there is to be none.
fn limit(held: &mut Held, controller: Controller, path: &Path, cage: &Cage, used: bool) -> io::Result<()> {
    let mut text = |name: &'static str, text: &str| held.write(controller, path, name, text);
    let mut put = |name: &'static str, value: u64| text(name, &value.to_string());
    let bytes = cage.mem_mib.max(MEM_MIB_MIN) << 20;
    let cpus_milli = u64::from(cage.cpus_milli);
    let quota_us = (cpus_milli * PERIOD_US / 1_000).max(1_000);
    match controller {
        Controller::Memory if cage.mem_mib > 0 => {
            if let Err(error) = put("memory.limit_in_bytes", bytes) {
                // With swap space it may never be less than this, and the attempt before may have had less.
                put("memory.memsw.limit_in_bytes", bytes).map_err(|_| error)?;
                put("memory.limit_in_bytes", bytes)?;
            }
            // Without it the rest would go to swap space; absent where the kernel does not count that.
            absent_is_fine(put("memory.memsw.limit_in_bytes", bytes))
        }
        Controller::Pids if cage.pids > 0 => put("pids.max", u64::from(cage.pids)),
        Controller::Cpu if cpus_milli > 0 => {
            put("cpu.shares", (cpus_milli * SHARES_PER_CORE / 1_000).max(2))?;
            if cage.cpus_hard {
                absent_is_fine(put("cpu.cfs_period_us", PERIOD_US))?;
                absent_is_fine(put("cpu.cfs_quota_us", quota_us))?;
            }
            Ok(())
        }
        Controller::Memory if used => {
            absent_is_fine(text("memory.memsw.limit_in_bytes", "-1"))?;
            text("memory.limit_in_bytes", "-1")
        }
        Controller::Pids if used => text("pids.max", "max"),
        Controller::Cpu if used => put("cpu.shares", SHARES_PER_CORE),
        Controller::Devices => device_rules(path, cage),
        Controller::Unified => {
            let has = |name: &str| path.join(name).exists();
            if cage.mem_mib > 0 && has("memory.max") {
                put("memory.max", bytes)?;
                absent_is_fine(put("memory.swap.max", 0))?;
            }
            if cage.pids > 0 && has("pids.max") {
                put("pids.max", u64::from(cage.pids))?;
            }
            if cpus_milli > 0 && has("cpu.weight") {
                put("cpu.weight", (cpus_milli * WEIGHT_PER_CORE / 1_000).clamp(1, 10_000))?;
                if cage.cpus_hard {
                    fs::write(path.join("cpu.max"), format!("{quota_us} {PERIOD_US}"))?;
                }
            }
            if cage.devices == DeviceRule::Program { device_rules_by_program(path, cage) } else { Ok(()) }
        }
        Controller::Memory | Controller::Pids | Controller::Cpu | Controller::Freezer => Ok(()),
    }
}

/// A group below the bare folder has its rules already.
fn device_rules(path: &Path, cage: &Cage) -> io::Result<()> {
    if cage.nodes.is_empty() {
        return Ok(());
    }
    fs::write(path.join("devices.deny"), "a")?;
    let allow = path.join("devices.allow");
    COMMON.into_iter().chain(nodes_at(&cage.nodes)).try_for_each(|node| fs::write(&allow, node.rule()))
}

fn device_rules_by_program(path: &Path, cage: &Cage) -> io::Result<()> {
    let allowed: Vec<_> = COMMON.into_iter().chain(nodes_at(&cage.nodes)).collect();
    let program = load_device_program(&device_program::program(&allowed))?;
    attach_device_program(fs::File::open(path)?.as_fd(), program.as_fd())
}

fn absent_is_fine(done: io::Result<()>) -> io::Result<()> {
    match done {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        // Files of these hierarchies cannot be made: a missing one is told in this way too.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
        done => done,
    }
}

/// The processes of a group.
pub(super) fn pids_in(path: &Path) -> Vec<i32> {
    let text = fs::read_to_string(path.join("cgroup.procs")).unwrap_or_default();
    text.lines().filter_map(|line| line.parse().ok()).collect()
}

/// A figure among lines of `name figure`.
pub(super) fn count(text: &str, name: &str) -> u32 {
    let mut figures = text.lines().filter_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    figures.next().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn out_of_memory_names_failures_and_spares_successes() {
        let used = Used { peak_mib: 255, limit_mib: 256, oom_kills: 1 };
        let named = AttemptEnd::OutOfMemory { limit_mib: 256, peak_mib: 255 };
        for end in [AttemptEnd::Signalled { signal: 9 }, AttemptEnd::Exited { code: 137 }] {
            assert_eq!(end_with(end.clone(), used), named);
            assert_eq!(end_with(end.clone(), Used { oom_kills: 0, ..used }), end);
        }
        for end in [AttemptEnd::Exited { code: 0 }, AttemptEnd::Cancelled, AttemptEnd::Requeued { code: 75 }]
        {
            assert_eq!(end_with(end.clone(), used), end);
        }
    }

    #[test]
    fn figures_are_found_by_their_whole_name() {
        let events = "low 0\noom 3\noom_kill 2\noom_group_kill 1\n";
        assert_eq!(count(events, "oom_kill"), 2);
        assert_eq!(count("oom_kill_disable 0\nunder_oom 0\noom_kill 5\n", "oom_kill"), 5);
        assert_eq!(count("", "oom_kill"), 0);
    }
}
