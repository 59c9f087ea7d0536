//! A shim: keeps one attempt from its record's first byte to its end. A copy of the fork server, one thread, asleep in
//! `poll` nearly always. What it decides is in `logic::life`; this file carries it out.

use super::lease_file::LeaseReader;
use super::processes::{Processes, Reaped};
use super::pump::{MOVE_BYTES, Pump};
use super::record::{OwnRecord, record_name};
use super::{AGENT_SOCKET, wire};
use crate::io::clock::boottime_ms;
use crate::io::ffi::{self, CStrings, Stage, Start, StartError};
use crate::logic::life::{Do, Life, LifeParams};
use rota_protocol::job::AttemptEnd;
use rota_protocol::limits::REASON_BYTES_MAX;
use rota_protocol::spool::{ExitRecord, LaunchOrder, ShimCall, ShimEvent, ShimRecord};
use rota_protocol::{BootId, Token};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, WaitStatus};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};
use std::ffi::{CString, OsStr};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// How long a start is not told, in ms: most tasks that end sooner are told in one message instead of two.
const STARTED_DELAY_MS: u64 = 3;
/// Least time between two messages about grown output, in ms; the first growth after a pause is told at once.
const OUTPUT_GAP_MS: u64 = 50;
/// First pause between two rounds of killing, in ms; doubled up to the greatest.
const KILL_PAUSE_MS: u64 = 2;
/// Greatest pause between two rounds of killing, in ms.
const KILL_PAUSE_MS_MAX: u64 = 100;
/// Waits up to this long are left to `poll`, in ms; longer ones need a clock that goes on while the machine sleeps.
const POLL_WAIT_MS_MAX: u64 = 100;
/// Where programs are searched when the task's environment has no `PATH`.
const PATH_DEFAULT: &[u8] = b"/usr/local/bin:/usr/bin:/bin";
/// A shell's code for a program that cannot be run.
const CODE_CANNOT_RUN: u8 = 126;
/// A shell's code for a program that does not exist.
const CODE_NOT_FOUND: u8 = 127;

/// What a shim has from the fork server.
pub(crate) struct Inherited {
    /// This boot.
    pub(crate) boot: BootId,
    /// The socket for events, shared by all shims.
    pub(crate) events: OwnedFd,
    /// Reads this process's signals.
    pub(crate) signals: OwnedFd,
    /// Tasks must not inherit the agent's protection from the kernel's memory killer.
    pub(crate) oom_default: bool,
}

impl Inherited {
    /// Tells the agent that started the fork server.
    pub(crate) fn tell(&self, token: Token, event: &ShimEvent) -> Sent {
        send(&self.events, token, event)
    }
}

/// What became of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sent {
    /// The kernel has it.
    Yes,
    /// The agent does not keep up; it can be sent later.
    Full,
    /// Nobody is there.
    Down,
}

/// Keeps the attempt. Returns the exit code of the shim: 0 when all that was to be said is said or written.
pub(crate) fn keep(inherited: &Inherited, token: Token, order: &[u8]) -> i32 {
    let fail = |reason: String| {
        let end = launch_failed(reason);
        inherited.tell(token, &ShimEvent::Ended(ExitRecord::never_ran(token, end)));
        0
    };
    // In its own session nothing that is sent to the agent's terminal or group reaches it.
    let prepared = rustix::process::setsid()
        .and_then(|_| rustix::process::set_child_subreaper(Some(rustix::process::getpid())))
        .and_then(|()| rustix::thread::set_name(c"rota-shim"));
    if let Err(error) = prepared {
        return fail(format!("cannot prepare the shim: {error}"));
    }
    let order = match wire::decode_order(order) {
        Ok(order) => order,
        Err(error) => return fail(format!("the launch order cannot be read: {error}")),
    };
    let record = ShimRecord {
        cluster: order.cluster,
        token,
        epoch: order.epoch,
        boot: inherited.boot,
        shim_pid: Pid::as_raw(Some(rustix::process::getpid())).cast_unsigned(),
    };
    let record = match OwnRecord::create(Path::new(&record_name(token)), &record) {
        Ok(record) => record,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            inherited.tell(token, &ShimEvent::Exists);
            return 0;
        }
        Err(error) => return fail(format!("cannot write the attempt's record: {error}")),
    };
    let mut link = Link { inherited, own: None, blocked: false };
    let exit = match Keeper::start(inherited, &mut link, &order) {
        Ok(keeper) => keeper.run(),
        Err((end, stderr_bytes)) => ExitRecord { stderr_bytes, ..ExitRecord::never_ran(token, end) },
    };
    conclude(record, link, &exit)
}

/// Writes the end, tells it, and makes it durable when nobody hears it.
fn conclude(mut record: OwnRecord, mut link: Link<'_>, exit: &ExitRecord) -> i32 {
    const RETRY_MS: u64 = 500;
    let event = ShimEvent::Ended(exit.clone());
    let (mut written, mut synced) = (record.end(exit).is_ok(), false);
    loop {
        let sent = link.send(exit.token, &event);
        if sent == Sent::Yes {
            return 0;
        }
        written = written || record.end(exit).is_ok();
        synced = synced || (written && record.sync().is_ok());
        if synced && sent == Sent::Down {
            return 0;
        }
        // Either a busy agent (it will read) or a full disk (it will be cleared, or a new agent attaches).
        let timeout = timespec(RETRY_MS);
        let mut fds = [
            PollFd::new(&link.inherited.signals, PollFlags::IN),
            PollFd::from_borrowed_fd(link.fd(), if sent == Sent::Full { PollFlags::OUT } else { PollFlags::empty() }),
        ];
        let _ = poll(&mut fds, Some(&timeout));
        while let Ok(Some(received)) = ffi::read_signal(link.inherited.signals.as_fd()) {
            if received.signal == ffi::call_signal() && wire::call_of(received.value) == Some(ShimCall::Attach) {
                link.attach();
            }
        }
    }
}

/// The way to the agent.
struct Link<'a> {
    inherited: &'a Inherited,
    /// To an agent that attached later.
    own: Option<OwnedFd>,
    blocked: bool,
}

impl Link<'_> {
    fn fd(&self) -> rustix::fd::BorrowedFd<'_> {
        self.own.as_ref().unwrap_or(&self.inherited.events).as_fd()
    }

    fn send(&mut self, token: Token, event: &ShimEvent) -> Sent {
        let sent = send(self.fd(), token, event);
        self.blocked = sent == Sent::Full;
        sent
    }

    /// Connects to the agent that listens now. The working directory is the attempts folder.
    fn attach(&mut self) {
        let connect = || -> rustix::io::Result<OwnedFd> {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
            rustix::net::connect(&socket, &SocketAddrUnix::new(AGENT_SOCKET)?)?;
            Ok(socket)
        };
        if let Ok(socket) = connect() {
            self.own = Some(socket);
            self.blocked = false;
        }
    }
}

fn send(fd: impl AsFd, token: Token, event: &ShimEvent) -> Sent {
    let Ok(bytes) = wire::encode_event(token, event) else {
        return Sent::Down;
    };
    loop {
        return match rustix::net::send(&fd, &bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(_) => Sent::Yes,
            Err(Errno::INTR) => continue,
            Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM) => Sent::Full,
            Err(_) => Sent::Down,
        };
    }
}

/// A running attempt.
struct Keeper<'a, 'l> {
    inherited: &'a Inherited,
    link: &'l mut Link<'a>,
    token: Token,
    lease: LeaseReader,
    life: Life,
    processes: Processes,
    pumps: [Pump; 2],
    buffer: Vec<u8>,
    timer: Timer,
    started_due_ms: Option<u64>,
    output_told: [u64; 2],
    output_due_ms: u64,
    kill_due_ms: u64,
    kill_pause_ms: u64,
    kill_since_ms: Option<u64>,
    kill_budget_ms: u64,
    stuck_told: bool,
}

impl<'a, 'l> Keeper<'a, 'l> {
    fn start(inherited: &'a Inherited, link: &'l mut Link<'a>, order: &LaunchOrder) -> Result<Self, (AttemptEnd, u64)> {
        let path = Path::new(OsStr::from_bytes(&order.lease_path));
        let mut lease = LeaseReader::open(path, &inherited.boot, order.epoch)
            .map_err(|e| (launch_failed(format!("cannot read the lease: {e}")), 0))?;
        let pipe = || pipe_with(PipeFlags::CLOEXEC).map_err(|e| (launch_failed(format!("cannot make a pipe: {e}")), 0));
        let (stdout, stdout_end) = pipe()?;
        let (stderr, stderr_end) = pipe()?;
        let mut pumps =
            [Pump::new(stdout, format!("{}.stdout", order.token)), Pump::new(stderr, format!("{}.stderr", order.token))];
        // As late as possible: an order may have waited while this host's lease ran out.
        let (now_ms, deadline_ms) = (boottime_ms(), lease.deadline_ms());
        let kill_budget_ms = u64::from(order.kill_budget_ms);
        if !Life::may_start(kill_budget_ms, now_ms, deadline_ms) {
            return Err((AttemptEnd::Fenced, 0));
        }
        let main = run_program(order, inherited.oom_default, &stdout_end, &stderr_end).map_err(|failed| {
            if let NotRun::Program(_, line) = &failed {
                pumps[1].say(line);
            }
            (failed.end(), pumps[1].len())
        })?;
        let params = LifeParams {
            time_limit_ms: order.time_limit_ms,
            grace_ms: u64::from(order.grace_ms),
            kill_budget_ms,
        };
        Ok(Self {
            inherited,
            link,
            token: order.token,
            lease,
            life: Life::new(params, now_ms, deadline_ms),
            processes: Processes::new(main),
            pumps,
            buffer: Vec::new(),
            timer: Timer::default(),
            started_due_ms: Some(now_ms + STARTED_DELAY_MS),
            output_told: [0; 2],
            output_due_ms: 0,
            kill_due_ms: 0,
            kill_pause_ms: KILL_PAUSE_MS,
            kill_since_ms: None,
            kill_budget_ms,
            stuck_told: false,
        })
    }

    /// Until no process is left.
    fn run(mut self) -> ExitRecord {
        loop {
            let now_ms = boottime_ms();
            let lease = &mut self.lease;
            let what = self.life.on_time(now_ms, || lease.deadline_ms());
            self.carry_out(what, now_ms);
            if self.life.is_killing() && now_ms >= self.kill_due_ms {
                self.kill_round(now_ms);
            }
            self.tell_due(now_ms);
            if self.wait(now_ms) {
                return self.finish();
            }
        }
    }

    fn finish(mut self) -> ExitRecord {
        let ran_ms = boottime_ms().saturating_sub(self.life.started_ms());
        for pump in &mut self.pumps {
            if pump.pipe().is_some() {
                self.buffer.resize(MOVE_BYTES, 0);
                pump.finish(&mut self.buffer);
            }
        }
        ExitRecord {
            token: self.token,
            end: self.life.ended(),
            ran_ms,
            stdout_bytes: self.pumps[0].len(),
            stderr_bytes: self.pumps[1].len(),
            dropped_bytes: self.pumps.iter().map(Pump::dropped).sum(),
        }
    }

    /// Sleeps until something happens, and handles it. True when the last process is gone.
    fn wait(&mut self, now_ms: u64) -> bool {
        let next_ms = self.next_ms();
        let wait_ms = next_ms.map(|at| at.saturating_sub(now_ms));
        let by_timer = wait_ms.is_some_and(|ms| ms > POLL_WAIT_MS_MAX) && self.timer.arm(next_ms.unwrap_or(0));
        let timeout = if by_timer { None } else { wait_ms.map(|ms| timespec(ms.min(POLL_WAIT_MS_MAX))) };

        let mut fds = Vec::with_capacity(5);
        fds.push(PollFd::new(&self.inherited.signals, PollFlags::IN));
        let pipes = [0, 1].map(|at: usize| watch(&mut fds, self.pumps[at].pipe(), PollFlags::IN));
        if self.link.blocked {
            fds.push(PollFd::from_borrowed_fd(self.link.fd(), PollFlags::OUT));
        }
        let timer = watch(&mut fds, self.timer.fd.as_ref(), PollFlags::IN);
        let _ = poll(&mut fds, timeout.as_ref());
        let ready = |at: Option<usize>| at.is_some_and(|at| !fds[at].revents().is_empty());
        let (signals, pipes, timer) = (ready(Some(0)), pipes.map(ready), ready(timer));
        drop(fds);

        if timer {
            self.timer.clear();
        }
        for (pump, _) in self.pumps.iter_mut().zip(pipes).filter(|(_, ready)| *ready) {
            self.buffer.resize(MOVE_BYTES, 0);
            pump.move_some(&mut self.buffer);
        }
        signals && self.take_signals()
    }

    fn next_ms(&self) -> Option<u64> {
        let killing = self.life.is_killing().then_some(self.kill_due_ms);
        let blocked = self.link.blocked;
        let started = self.started_due_ms.filter(|_| !blocked);
        let output = (!blocked && self.output_grew()).then_some(self.output_due_ms);
        [self.life.next_ms(), killing, started, output].into_iter().flatten().min()
    }

    fn take_signals(&mut self) -> bool {
        let mut children = false;
        while let Ok(Some(received)) = ffi::read_signal(self.inherited.signals.as_fd()) {
            let now_ms = boottime_ms();
            if received.signal == ffi::call_signal() {
                match wire::call_of(received.value) {
                    Some(ShimCall::End { reason }) => {
                        let what = self.life.end(reason, now_ms);
                        self.carry_out(what, now_ms);
                    }
                    Some(ShimCall::Signal { signal }) => {
                        if let Some(signal) = Signal::from_named_raw(i32::from(signal)) {
                            self.processes.signal(signal);
                        }
                    }
                    Some(ShimCall::Attach) => {
                        self.link.attach();
                        self.started_due_ms = Some(now_ms);
                        self.output_told = [0; 2];
                        self.output_due_ms = now_ms;
                    }
                    None => {}
                }
            } else if received.signal == Signal::TERM.as_raw() {
                let what = self.life.host_stops(now_ms);
                self.carry_out(what, now_ms);
            } else {
                children = true;
            }
        }
        children && self.children_ended()
    }

    fn children_ended(&mut self) -> bool {
        let reaped = self.processes.reap();
        if let Some(status) = self.processes.take_status() {
            let what = self.life.main_ended(end_of(status), reaped == Reaped::Some);
            self.carry_out(what, boottime_ms());
        } else if self.life.is_killing() && reaped == Reaped::Some {
            // Orphans came home: they are next.
            self.kill_due_ms = 0;
        }
        reaped == Reaped::All
    }

    fn carry_out(&mut self, what: Do, now_ms: u64) {
        match what {
            Do::Nothing => {}
            Do::Term => {
                self.processes.signal(Signal::TERM);
                // A stopped process hears nothing until it goes on.
                self.processes.signal(Signal::CONT);
            }
            Do::Kill => self.kill_round(now_ms),
        }
    }

    fn kill_round(&mut self, now_ms: u64) {
        let left = self.processes.signal(Signal::KILL);
        let since_ms = *self.kill_since_ms.get_or_insert(now_ms);
        if !self.stuck_told && left > 0 && now_ms.saturating_sub(since_ms) > self.kill_budget_ms {
            let left = u32::try_from(left).unwrap_or(u32::MAX);
            self.stuck_told = self.link.send(self.token, &ShimEvent::Stuck { left }) == Sent::Yes;
        }
        self.kill_due_ms = now_ms + self.kill_pause_ms;
        self.kill_pause_ms = (self.kill_pause_ms * 2).min(KILL_PAUSE_MS_MAX);
    }

    fn output_grew(&self) -> bool {
        self.output_told != [self.pumps[0].len(), self.pumps[1].len()]
    }

    /// Tells what is due. A message that finds nobody is not repeated: whoever attaches later hears all of it.
    fn tell_due(&mut self, now_ms: u64) {
        if self.started_due_ms.is_some_and(|at| now_ms >= at) {
            let event = ShimEvent::Started {
                shim_pid: Pid::as_raw(Some(rustix::process::getpid())).cast_unsigned(),
                task_pid: Pid::as_raw(Some(self.processes.main())).cast_unsigned(),
            };
            if self.link.send(self.token, &event) == Sent::Full {
                return;
            }
            self.started_due_ms = None;
        }
        if self.output_grew() && now_ms >= self.output_due_ms {
            let [stdout, stderr] = [self.pumps[0].len(), self.pumps[1].len()];
            if self.link.send(self.token, &ShimEvent::Output { stdout, stderr }) == Sent::Full {
                return;
            }
            self.output_told = [stdout, stderr];
            self.output_due_ms = now_ms + OUTPUT_GAP_MS;
        }
    }
}

/// Adds a descriptor, if it is open. Returns its position.
fn watch<'f>(fds: &mut Vec<PollFd<'f>>, fd: Option<&'f OwnedFd>, flags: PollFlags) -> Option<usize> {
    fds.push(PollFd::new(fd?, flags));
    Some(fds.len() - 1)
}

/// An alarm on the clock that goes on while the machine sleeps, made when it is first needed.
#[derive(Default)]
struct Timer {
    fd: Option<OwnedFd>,
    armed_ms: u64,
}

impl Timer {
    /// Sets the alarm. False when there can be none; the caller then looks at the clock often.
    fn arm(&mut self, at_ms: u64) -> bool {
        if self.fd.is_none() {
            let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
            self.fd = rustix::time::timerfd_create(TimerfdClockId::Boottime, flags).ok();
        }
        let Some(fd) = &self.fd else { return false };
        if self.armed_ms != at_ms {
            let alarm = Itimerspec { it_interval: timespec(0), it_value: timespec(at_ms) };
            if rustix::time::timerfd_settime(fd, TimerfdTimerFlags::ABSTIME, &alarm).is_err() {
                return false;
            }
            self.armed_ms = at_ms;
        }
        true
    }

    fn clear(&mut self) {
        self.armed_ms = 0;
        if let Some(fd) = &self.fd {
            let _ = rustix::io::read(fd, &mut [0_u8; 8][..]);
        }
    }
}

/// Why no program runs.
enum NotRun {
    /// The user's fault: a code as a shell gives it, and a line for standard error.
    Program(u8, String),
    /// The host's fault.
    Host(String),
}

impl NotRun {
    fn end(self) -> AttemptEnd {
        match self {
            Self::Program(code, _) => AttemptEnd::Exited { code },
            Self::Host(reason) => launch_failed(reason),
        }
    }
}

fn run_program(order: &LaunchOrder, oom_default: bool, stdout: &OwnedFd, stderr: &OwnedFd) -> Result<Pid, NotRun> {
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
    let start = Start {
        programs: &programs,
        argv: &argv,
        envp: &envp,
        workdir: &workdir,
        stdout: stdout.as_fd(),
        stderr: stderr.as_fd(),
        uid_gid: order.uid_gid,
        oom_default,
    };
    let failed = match ffi::start_task(&start) {
        Ok(pid) => return Ok(pid),
        Err(failed) => failed,
    };
    if failed.stage != Stage::Exec || failed.error.raw_os_error() != Some(Errno::NOEXEC.raw_os_error()) {
        return Err(blame(&failed, order));
    }
    // Neither a binary nor a script that names its interpreter: the shell's, as every shell and `execvp` do it.
    let script = programs.get(failed.program).cloned().unwrap_or_default();
    let shell_argv = CStrings::new([c"sh".to_owned(), script].into_iter().chain(arguments).collect());
    let start = Start { programs: &[c"/bin/sh".to_owned()], argv: &shell_argv, ..start };
    ffi::start_task(&start).map_err(|failed| blame(&failed, order))
}

/// Whether the user or the host is at fault.
fn blame(failed: &StartError, order: &LaunchOrder) -> NotRun {
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
        (Stage::Workdir, _) => {
            host(&format!("cannot enter the working directory {}", String::from_utf8_lossy(&order.workdir)))
        }
        (Stage::User, _) => host("cannot change to the task's user"),
        (Stage::Prepare | Stage::Clone, _) => host("cannot make the task's process"),
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

fn end_of(status: WaitStatus) -> AttemptEnd {
    let byte = |n: i32| u8::try_from(n).unwrap_or(u8::MAX);
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => AttemptEnd::Exited { code: byte(code) },
        (None, Some(signal)) => AttemptEnd::Signalled { signal: byte(signal) },
        (None, None) => AttemptEnd::Vanished { reason: "it ended with an unknown status".to_owned() },
    }
}

fn launch_failed(mut reason: String) -> AttemptEnd {
    let mut end = reason.len().min(REASON_BYTES_MAX);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    reason.truncate(end);
    AttemptEnd::LaunchFailed { reason }
}

fn timespec(ms: u64) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(ms / 1_000).unwrap_or(i64::MAX),
        tv_nsec: i64::try_from(ms % 1_000).unwrap_or(0) * 1_000_000,
    }
}
