//! The steps that bound a starting task, in the order in which they must come: into its groups, into a view of the host
//! of its own, a trial that the device rules hold, then, just before its program, what cannot be taken back.
//!
//! The new mounts are slaves of the host's: what the host mounts later is seen, nothing goes the other way.

use super::filter;
use super::group::Groups;
use super::held::JOIN;
use super::nodes::COMMON_NAMES;
use super::place::{CLOSED_FILE, CLOSED_FOLDER};
use crate::io::ffi::cage::{Planned, Step, Steps};
use rota_protocol::cage::{Cage, Controller, DeviceRule, Isolation};
use rustix::process::Pid;
use std::ffi::{CString, OsStr, c_ulong};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Bits that new files of a task do not get, unless it says otherwise.
const UMASK: u32 = 0o022;
/// Only the own processes are seen. Members of the named group would see all, and by default that is root's.
const HIDDEN: &str = "hidepid=2,gid=4294967294";
/// Where a `/dev` of its own is built before it is put in place. Any folder does: only this task sees it.
const DEV_SITE: &str = "/proc";

/// The steps of a task, and which of its groups it is born in. One that starts `beside` a process of its attempt sees what
/// that one sees.
#[must_use]
pub fn steps(cage: &Cage, groups: &Groups, beside: Option<Pid>) -> Steps {
    if cage.isolation == Isolation::None {
        return Steps::default();
    }
    let mut plan = Plan::default();
    join_groups(&mut plan, groups);
    let full = cage.isolation == Isolation::Full;
    match beside.filter(|_| full) {
        Some(pid) => their_view(&mut plan, pid),
        None if full => own_view(&mut plan, cage),
        None => {}
    }
    limits(&mut plan, cage);
    if let Some(probe) = cage.probe.as_ref().filter(|_| cage.devices != DeviceRule::None) {
        plan.must(Step::Closed(text(OsStr::from_bytes(probe))));
    }
    if full && !cage.keep_caps {
        plan.must(Step::DropBounding);
    }
    let enter = std::mem::take(&mut plan.steps);
    plan.must(Step::Mask(UMASK));
    if full && !cage.keep_caps {
        plan.must(Step::DropAll);
        plan.must(Step::NoNewPrivileges);
        if let Some(program) = filter::shared() {
            plan.must(Step::Filter(program));
        }
    }
    let group = groups.path(Controller::Unified).and_then(|path| std::fs::File::open(path).ok());
    Steps { group: group.map(Into::into), enter, lock: plan.steps, ..Steps::default() }
}

#[derive(Default)]
struct Plan {
    steps: Vec<Planned>,
}

impl Plan {
    fn must(&mut self, step: Step) {
        self.steps.push(Planned { step, optional: false });
    }

    fn wish(&mut self, step: Step) {
        self.steps.push(Planned { step, optional: true });
    }

    fn bind(&mut self, source: impl AsRef<OsStr>, place: impl AsRef<OsStr>) {
        let none = CString::default();
        let (source, place) = (text(source), text(place));
        self.must(Step::Mount(source, place, none.clone(), libc::MS_BIND, none));
    }

    fn fresh(&mut self, kind: &str, place: &str, flags: c_ulong, options: &str) {
        self.must(Step::Mount(text(kind), text(place), text(kind), flags, text(options)));
    }
}

/// Each by the thread's own number and the file for single threads: the kernel then stops nobody else for it. Version 2
/// knows no such file, so there the task is better born inside.
fn join_groups(plan: &mut Plan, groups: &Groups) {
    for (controller, path, file) in groups.to_join() {
        match (controller, file) {
            (Controller::Unified, _) => plan.must(Step::Join(text(path.join("cgroup.procs")), text("0"))),
            (_, Some(file)) => plan.must(Step::Put(file, text("0"))),
            (_, None) => plan.must(Step::Write(text(path.join(JOIN)), text("0"))),
        }
    }
}

/// That of a process which is in the cage already and which only its shim can reap: its number means nobody else. All of an
/// attempt share one view, the filter lets none make another.
fn their_view(plan: &mut Plan, pid: Pid) {
    let pid = Pid::as_raw(Some(pid));
    // The mounts last: they bring another `/proc`.
    for (name, flag) in [("ipc", libc::CLONE_NEWIPC), ("mnt", libc::CLONE_NEWNS)] {
        plan.must(Step::Enter(text(format!("/proc/{pid}/ns/{name}")), flag));
    }
}

fn own_view(plan: &mut Plan, cage: &Cage) {
    const PRIVATE: c_ulong = libc::MS_NOSUID | libc::MS_NODEV;
    let ipc = if cage.private_ipc { libc::CLONE_NEWIPC } else { 0 };
    plan.must(Step::Unshare(libc::CLONE_NEWNS | ipc));
    let none = CString::default();
    let slave = libc::MS_REC | libc::MS_SLAVE;
    plan.must(Step::Mount(none.clone(), text("/"), none.clone(), slave, none));
    if cage.devices == DeviceRule::Folder {
        own_dev(plan, cage);
    }
    if cage.private_tmp {
        plan.fresh("tmpfs", "/tmp", PRIVATE, "mode=1777");
    }
    if cage.private_ipc {
        plan.fresh("tmpfs", "/dev/shm", PRIVATE, "mode=1777");
    }
    for path in &cage.hidden {
        let path = Path::new(OsStr::from_bytes(path));
        match path.symlink_metadata() {
            Ok(metadata) => plan.bind(if metadata.is_dir() { CLOSED_FOLDER } else { CLOSED_FILE }, path),
            // What is not there need not be covered.
            Err(_) => continue,
        }
    }
    // Old kernels cannot; the files' own modes hold everybody but root off.
    plan.wish(Step::ReadOnly(text("/sys")));
    // Of others, neither processes nor what they were started with can be seen.
    plan.fresh("proc", "/proc", PRIVATE | libc::MS_NOEXEC, HIDDEN);
}

/// A `/dev` with what everybody may open and what was granted, for hosts that have no better way.
fn own_dev(plan: &mut Plan, cage: &Cage) {
    plan.fresh("tmpfs", DEV_SITE, libc::MS_NOSUID, "mode=755");
    let site = Path::new(DEV_SITE);
    let common = COMMON_NAMES.iter().map(|name| Path::new("/dev").join(name));
    let granted = cage.nodes.iter().map(|path| PathBuf::from(OsStr::from_bytes(path)));
    for node in common.chain(granted).filter(|node| node.exists()) {
        // One that was described elsewhere is seen there already.
        let Ok(below) = node.strip_prefix("/dev") else { continue };
        let copy = site.join(below);
        if let Some(folder) = copy.parent().filter(|folder| *folder != site) {
            plan.must(Step::Folder(text(folder)));
        }
        plan.must(Step::File(text(&copy)));
        plan.bind(&node, &copy);
    }
    for name in ["pts", "shm"] {
        plan.must(Step::Folder(text(site.join(name))));
        plan.bind(Path::new("/dev").join(name), site.join(name));
    }
    let links = [
        ("fd", "/proc/self/fd"),
        ("stdin", "fd/0"),
        ("stdout", "fd/1"),
        ("stderr", "fd/2"),
        ("ptmx", "pts/ptmx"),
    ];
    for (name, to) in links {
        plan.must(Step::Link(text(site.join(name)), text(to)));
    }
    let none = CString::default();
    plan.must(Step::Mount(text(site), text("/dev"), none.clone(), libc::MS_BIND | libc::MS_REC, none));
}

fn limits(plan: &mut Plan, cage: &Cage) {
    let resource = |resource: libc::__rlimit_resource_t| resource.cast_signed();
    plan.must(Step::Limit(resource(libc::RLIMIT_CORE), 0));
    if cage.nofile > 0 {
        plan.must(Step::Limit(resource(libc::RLIMIT_NOFILE), cage.nofile));
    }
    if cage.nproc > 0 {
        plan.must(Step::Limit(resource(libc::RLIMIT_NPROC), cage.nproc));
    }
}

/// Paths come from the kernel or were paths before: none of them holds a zero byte. One that did would name nothing.
fn text(text: impl AsRef<OsStr>) -> CString {
    CString::new(text.as_ref().as_bytes()).unwrap_or_default()
}
