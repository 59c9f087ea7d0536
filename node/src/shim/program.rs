//! Starting the program of an attempt, and telling whose fault it is when it does not start: a program that is
//! missing or cannot be run is the user's, and ends as a shell would end it; what the job names and this host does not
//! have may be there elsewhere; anything else is the host's.

use super::cage::{self, Groups};
use crate::io::ffi::cage::Steps;
use crate::io::ffi::{self, CStrings, Stage, Start, StartError};
use rota_protocol::cage::Isolation;
use rota_protocol::job::AttemptEnd;
use rota_protocol::limits::REASON_BYTES_MAX;
use rota_protocol::spool::LaunchOrder;
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::process::Pid;
use std::ffi::CString;
use std::sync::atomic::Ordering;

/// Where programs are searched when the task's environment has no `PATH`.
const PATH_DEFAULT: &[u8] = b"/usr/local/bin:/usr/bin:/bin";
/// A shell's code for a program that cannot be run.
const CODE_CANNOT_RUN: u8 = 126;
/// A shell's code for a program that does not exist.
pub(super) const CODE_NOT_FOUND: u8 = 127;

/// Why no program runs.
pub(super) enum NotRun {
    /// The user's fault: a code as a shell gives it, and a line for standard error.
    Program(u8, String),
    /// The job's fault, unless other hosts have what it names here: a code as a shell gives it, and the reason.
    Job(u8, String),
    /// The host's fault.
    Host(String),
}

impl NotRun {
    /// Where the program is a container runtime, it is the host's and not the user's.
    pub(super) fn end(self, is_runtime: bool) -> AttemptEnd {
        match self {
            Self::Program(_, line) if is_runtime => launch_failed(line.trim_end().to_owned()),
            Self::Program(code, _) => AttemptEnd::Exited { code },
            Self::Job(code, reason) => cannot_start(code, reason),
            Self::Host(reason) => launch_failed(reason),
        }
    }
}

/// Where a program is born.
#[derive(Clone, Copy)]
pub(super) struct Birth<'a> {
    /// The attempt's groups.
    pub(super) groups: &'a Groups,
    /// Sees what this process of the attempt sees; none: the attempt's first, whose view is made for it.
    pub(super) beside: Option<Pid>,
}

/// The three descriptors of a program.
#[derive(Clone, Copy)]
pub(super) struct Streams<'a> {
    /// None: there is nothing to read.
    pub(super) stdin: Option<&'a OwnedFd>,
    pub(super) stdout: &'a OwnedFd,
    pub(super) stderr: &'a OwnedFd,
    /// All three are one terminal.
    pub(super) terminal: bool,
}

/// Starts the order's program with the given ends of its pipes, or its end of a terminal.
pub(super) fn run_program(
    order: &LaunchOrder,
    oom_default: bool,
    birth: Birth<'_>,
    streams: Streams<'_>,
) -> Result<Pid, NotRun> {
    let bad = |what: &str| NotRun::Program(CODE_CANNOT_RUN, format!("rota: {what} holds a zero byte\n"));
    let text = |bytes: &[u8], what: &str| CString::new(bytes).map_err(|_| bad(what));
    let Some(name) = order.argv.first().filter(|name| !name.is_empty()) else {
        return Err(NotRun::Program(CODE_NOT_FOUND, "rota: no program is named\n".to_owned()));
    };
    let argv = order.argv.iter().map(|a| text(a, "an argument")).collect::<Result<Vec<_>, _>>()?;
    let envp = order
        .env
        .iter()
        .map(|(name, value)| text(&[name, b"=".as_slice(), value].concat(), "the environment"))
        .collect::<Result<Vec<_>, _>>()?;
    let programs = candidates(name, &order.env)
        .into_iter()
        .map(|path| text(&path, "the program's name"))
        .collect::<Result<Vec<_>, _>>()?;
    let arguments = argv[1..].to_vec();
    let (argv, envp) = (CStrings::new(argv), CStrings::new(envp));
    let workdir = text(&order.workdir, "the working directory")?;
    let cage = cage::steps(&order.cage, birth.groups, birth.beside);
    let start = Start {
        programs: &programs,
        argv: &argv,
        envp: &envp,
        workdir: &workdir,
        stdin: streams.stdin.map(AsFd::as_fd),
        terminal: streams.terminal,
        stdout: streams.stdout.as_fd(),
        stderr: streams.stderr.as_fd(),
        uid_gid: order.uid_gid,
        oom_default,
        cage: &cage,
    };
    let failed = match ffi::start_task(&start) {
        Ok(pid) => return Ok(begun(pid, order, &cage, birth.groups)),
        Err(failed) => failed,
    };
    if failed.stage != Stage::Exec || failed.error.raw_os_error() != Some(Errno::NOEXEC.raw_os_error()) {
        return Err(blame(&failed, order, &cage));
    }
    // Neither a binary nor a script that names its interpreter: the shell's, as every shell and `execvp` do it.
    let script = programs.get(failed.program).cloned().unwrap_or_default();
    let shell_argv = CStrings::new([c"sh".to_owned(), script].into_iter().chain(arguments).collect());
    let start = Start { programs: &[c"/bin/sh".to_owned()], argv: &shell_argv, ..start };
    let started = ffi::start_task(&start).map_err(|failed| blame(&failed, order, &cage));
    started.map(|pid| begun(pid, order, &cage, birth.groups))
}

/// A program runs. One of the user whose the groups are can write to their files, unless its cage is whole.
fn begun(pid: Pid, order: &LaunchOrder, steps: &Steps, groups: &Groups) -> Pid {
    let cage = &order.cage;
    let held = cage.isolation == Isolation::Full && !cage.keep_caps && !steps.missed.load(Ordering::Relaxed);
    if is_own(order) && !held {
        groups.spoil();
    }
    pid
}

/// The task runs as the agent's own user.
pub(super) fn is_own(order: &LaunchOrder) -> bool {
    let own = rustix::process::geteuid().as_raw();
    order.uid_gid.is_none_or(|(uid, _)| uid == own || uid == 0)
}

/// Whether the user or the host is at fault.
fn blame(failed: &StartError, order: &LaunchOrder, cage: &Steps) -> NotRun {
    let error = &failed.error;
    let name = order.argv.first().map(|n| String::from_utf8_lossy(n).into_owned()).unwrap_or_default();
    let host = |what: &str| NotRun::Host(format!("{what}: {error}"));
    match (failed.stage, error.raw_os_error().map(Errno::from_raw_os_error)) {
        (Stage::Exec, Some(Errno::NOENT | Errno::NOTDIR)) => {
            NotRun::Program(CODE_NOT_FOUND, format!("rota: {name}: program not found\n"))
        }
        (Stage::Exec, Some(Errno::AGAIN | Errno::NOMEM | Errno::MFILE | Errno::NFILE | Errno::IO)) => {
            host("cannot run the program")
        }
        (Stage::Exec, _) => NotRun::Program(CODE_CANNOT_RUN, format!("rota: {name}: {error}\n")),
        (Stage::Workdir, errno) => {
            let what =
                format!("cannot enter the working directory {}", String::from_utf8_lossy(&order.workdir));
            match errno.and_then(of_path) {
                Some(code) => NotRun::Job(code, format!("{what}: {error}")),
                None => host(&what),
            }
        }
        (Stage::Cage, _) => host(&format!("cannot bound the task: {}", cage.name(failed.program))),
        (Stage::User, _) => host("cannot change to the task's user"),
        (Stage::Prepare | Stage::Clone, _) => host("cannot make the task's process"),
    }
}

/// The code of a path that cannot be entered because of what it names; none if what is below it does not work.
fn of_path(errno: Errno) -> Option<u8> {
    match errno {
        Errno::NOENT | Errno::NOTDIR => Some(CODE_NOT_FOUND),
        Errno::ACCESS | Errno::PERM | Errno::LOOP | Errno::NAMETOOLONG => Some(CODE_CANNOT_RUN),
        _ => None,
    }
}

/// Where a program may be: itself if it names a path, else in each folder of the task's own `PATH`.
fn candidates(name: &[u8], env: &[(Vec<u8>, Vec<u8>)]) -> Vec<Vec<u8>> {
    if name.contains(&b'/') {
        return vec![name.to_vec()];
    }
    let path = env.iter().rev().find(|(n, _)| n == b"PATH").map_or(PATH_DEFAULT, |(_, value)| value);
    path.split(|b| *b == b':')
        .map(|dir| [if dir.is_empty() { b".".as_slice() } else { dir }, b"/", name].concat())
        .collect()
}

/// An end that is the host's fault, its reason cut to what the log keeps.
pub(super) fn launch_failed(reason: String) -> AttemptEnd {
    AttemptEnd::LaunchFailed { reason: cut(reason) }
}

/// An end that is the job's fault, unless another host can start it.
pub(super) fn cannot_start(code: u8, reason: String) -> AttemptEnd {
    AttemptEnd::CannotStart { code, reason: cut(reason) }
}

fn cut(mut reason: String) -> String {
    let mut end = reason.len().min(REASON_BYTES_MAX);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    reason.truncate(end);
    reason
}
