//! The processes of one attempt as its shim sees them: everything below the shim, however it was made.

use crate::io::{ffi, proc};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, WaitStatus, kill_process_group, pidfd_open, pidfd_send_signal,
};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, OwnedFd};

/// What reaping found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reaped {
    /// Processes are left.
    Some,
    /// None is left.
    All,
}

/// The first process of the attempt and everything it made.
#[derive(Debug)]
pub(crate) struct Processes {
    main: Pid,
    main_lives: bool,
    status: Option<WaitStatus>,
    /// Further processes that the shim started itself, and how they ended.
    others: BTreeMap<i32, Option<WaitStatus>>,
    /// The first process hands signals on to the others.
    passes_on: bool,
}

impl Processes {
    pub(crate) fn new(main: Pid, passes_on: bool) -> Self {
        Self { main, main_lives: true, status: None, others: BTreeMap::new(), passes_on }
    }

    /// The first process.
    pub(crate) fn main(&self) -> Pid {
        self.main
    }

    /// Takes note of everything that ended; the shim is the subreaper, so orphans count too.
    pub(crate) fn reap(&mut self) -> Reaped {
        loop {
            match rustix::process::wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if pid == self.main && self.main_lives => {
                    self.main_lives = false;
                    self.status = Some(status);
                }
                Ok(Some((pid, status))) => {
                    if let Some(end) = self.others.get_mut(&Pid::as_raw(Some(pid))) {
                        *end = Some(status);
                    }
                }
                Err(rustix::io::Errno::INTR) => {}
                Ok(None) => return Reaped::Some,
                // The only other error is that there are no children.
                Err(_) => return Reaped::All,
            }
        }
    }

    /// How the first process ended, once.
    pub(crate) fn take_status(&mut self) -> Option<WaitStatus> {
        self.status.take()
    }

    /// Another process that the shim started: its end is kept.
    pub(crate) fn watch(&mut self, pid: Pid) {
        self.others.insert(Pid::as_raw(Some(pid)), None);
    }

    /// Watched processes that have ended, each once.
    pub(crate) fn take_ended(&mut self) -> Vec<(i32, WaitStatus)> {
        let ended = self.others.iter().filter_map(|(pid, status)| Some((*pid, (*status)?)));
        let ended: Vec<_> = ended.collect();
        self.others.retain(|_, status| status.is_none());
        ended
    }

    /// Signals the group of a watched process that was not reaped: its number means nobody else.
    pub(crate) fn signal_watched(&self, pid: i32, signal: Signal) {
        if let Some(pid) = Pid::from_raw(pid).filter(|_| matches!(self.others.get(&pid), Some(None))) {
            let _ = kill_process_group(pid, signal);
        }
    }

    /// Signals every process. Returns how many there were. Processes made meanwhile are missed: whoever wants all of
    /// them calls again.
    pub(crate) fn signal(&self, signal: Signal) -> usize {
        if self.passes_on && self.main_lives && signal != Signal::KILL {
            return usize::from(rustix::process::kill_process(self.main, signal).is_ok());
        }
        // While the first process is not reaped its number, and so its group's, means nobody else.
        if self.main_lives {
            let _ = kill_process_group(self.main, signal);
        }
        let own = Pid::as_raw(Some(rustix::process::getpid()));
        let below = proc::descendants(own).unwrap_or_default();
        let mut sent = 0;
        for pid in &below {
            // A group's members got it already; twice is once too often for signals that are counted.
            let in_group =
                self.main_lives && proc::stat(*pid).is_ok_and(|s| s.pgrp == Pid::as_raw(Some(self.main)));
            sent += usize::from(in_group || signal_one(*pid, signal, own, &below));
        }
        sent
    }

    /// Sends a signal to every process, or only the first one, that is ready for it and not `told` yet: numbers with
    /// start times, so that a number that is used again counts as another.
    pub(crate) fn warn(&self, signal: u8, leader_only: bool, told: &mut BTreeSet<(i32, u64)>) {
        let own = Pid::as_raw(Some(rustix::process::getpid()));
        let all = proc::descendants(own).unwrap_or_default();
        let leader = Pid::as_raw(Some(self.main));
        for pid in all.iter().copied().filter(|pid| !leader_only || (self.main_lives && *pid == leader)) {
            let Ok(stat) = proc::stat(pid) else { continue };
            let name = (pid, stat.start_ticks);
            if told.contains(&name) || !proc::awaits(pid, signal) {
                continue;
            }
            let Some(pidfd) = open_own(pid, own, &all) else { continue };
            // Once more, now that the number cannot pass on: it may have become another program meanwhile.
            if proc::awaits(pid, signal) && ffi::signal(pidfd.as_fd(), signal).is_ok() {
                told.insert(name);
            }
        }
    }
}

/// Signals one process unless its number has passed to a stranger since it was listed.
fn signal_one(pid: i32, signal: Signal, own: i32, below: &[i32]) -> bool {
    open_own(pid, own, below).is_some_and(|pidfd| pidfd_send_signal(&pidfd, signal).is_ok())
}

/// A handle on a living process of the attempt; none if its number has passed to a stranger since it was listed.
fn open_own(pid: i32, own: i32, below: &[i32]) -> Option<OwnedFd> {
    let pid = Pid::from_raw(pid)?;
    let pidfd = pidfd_open(pid, PidfdFlags::empty()).ok()?;
    // Looked at after the descriptor was opened: if the number is a stranger's now, so is the parent.
    let stat = proc::stat(Pid::as_raw(Some(pid))).ok()?;
    ((stat.ppid == own || below.contains(&stat.ppid)) && stat.state != b'Z').then_some(pidfd)
}
