//! The host's own programs around an attempt: its prolog before the task, its epilog after the last process of it.
//!
//! They run as the agent's user in an environment of their own, of which the tenant writes nothing but its name. A hook
//! that fails or hangs is the host's fault: after a prolog the task runs elsewhere, after an epilog the devices stay out.
//! Whatever a hook leaves running is ended with it, and what hangs is killed with all that it made.

use super::lease_file::LeaseReader;
use super::processes::{Processes, Reaped};
use super::program::launch_failed;
use super::timer::timespec;
use super::uplink::{Inherited, Link};
use super::wire;
use crate::io::clock::boottime_ms;
use crate::io::ffi::cage::Steps;
use crate::io::ffi::{self, CStrings, Start};
use rota_protocol::job::AttemptEnd;
use rota_protocol::spool::{LaunchOrder, ShimCall, ShimEvent};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, WaitStatus};
use std::ffi::CString;
use std::path::Path;

/// The only folders in which a hook's own commands are looked for without a path.
const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Bytes of a hook's last words that are kept for people.
const WORDS_BYTES_MAX: usize = 200;
/// A prolog that takes longer than this is told to the agent, so that it can be ended.
const UNTOLD_MS: u64 = 20;
/// How often the lease is looked at under a slow prolog, in ms.
const LOOK_MS: u64 = 200;
/// Pause between two rounds of killing, in ms.
const KILL_PAUSE_MS: u64 = 5;

/// Why a hook did not do its work.
enum Failure {
    /// It failed, took too long, or was no program.
    Host(String),
    /// The attempt was to end meanwhile.
    Asked(AttemptEnd),
}

/// Runs the host's prolog, if it has one.
pub(super) fn prolog<'a>(
    inherited: &'a Inherited,
    link: &mut Link<'a>,
    order: &LaunchOrder,
    lease: &mut LeaseReader,
) -> Result<(), AttemptEnd> {
    let path = &order.life.hooks.prolog;
    if path.is_empty() {
        return Ok(());
    }
    let run = Run::new(inherited, link, order, Some(lease)).start("prolog", path, None);
    run.map_err(|failure| match failure {
        Failure::Host(reason) => launch_failed(format!("prolog: {reason}")),
        Failure::Asked(end) => end,
    })
}

/// Runs the host's epilog, if it has one; says why it did not do its work.
pub(super) fn epilog<'a>(
    inherited: &'a Inherited,
    link: &mut Link<'a>,
    order: &LaunchOrder,
    end: &AttemptEnd,
) -> Result<(), String> {
    let path = &order.life.hooks.epilog;
    if path.is_empty() {
        return Ok(());
    }
    match Run::new(inherited, link, order, None).start("epilog", path, Some(end)) {
        Ok(()) => Ok(()),
        Err(Failure::Host(reason)) => Err(format!("epilog: {reason}")),
        Err(Failure::Asked(_)) => Err("epilog: the host was shut down under it".to_owned()),
    }
}

/// One run of one hook.
struct Run<'r, 'a> {
    inherited: &'a Inherited,
    link: &'r mut Link<'a>,
    order: &'r LaunchOrder,
    /// Of a prolog: nothing may be begun that the lease does not cover.
    lease: Option<&'r mut LeaseReader>,
    words: Vec<u8>,
    asked: Option<AttemptEnd>,
    told: bool,
}

impl<'r, 'a> Run<'r, 'a> {
    fn new(
        inherited: &'a Inherited,
        link: &'r mut Link<'a>,
        order: &'r LaunchOrder,
        lease: Option<&'r mut LeaseReader>,
    ) -> Self {
        Self { inherited, link, order, lease, words: Vec::new(), asked: None, told: false }
    }

    fn start(mut self, name: &str, path: &[u8], end: Option<&AttemptEnd>) -> Result<(), Failure> {
        let host = |reason: String| Failure::Host(reason);
        let file = Path::new(std::ffi::OsStr::new(std::str::from_utf8(path).unwrap_or_default()));
        // Looked at each time: what may be run as root must not have become anybody's to write.
        crate::hooks::check_file(name, file).map_err(|error| host(error.message))?;
        let (out, out_end) =
            pipe_with(PipeFlags::CLOEXEC).map_err(|e| host(format!("cannot make a pipe: {e}")))?;
        let text = |text: Vec<u8>| CString::new(text).map_err(|_| host("a zero byte in its order".into()));
        let programs = [text(path.to_vec())?];
        let envp = environment(name, self.order, end).into_iter().map(text).collect::<Result<Vec<_>, _>>()?;
        let start = Start {
            programs: &programs,
            argv: &CStrings::new(programs.to_vec()),
            envp: &CStrings::new(envp),
            workdir: c"/",
            stdin: None,
            terminal: false,
            stdout: out_end.as_fd(),
            stderr: out_end.as_fd(),
            uid_gid: None,
            oom_default: self.inherited.oom_default,
            // The host's own program, not the task's.
            cage: &Steps::default(),
        };
        let pid = ffi::start_task(&start)
            .map_err(|failed| host(format!("{} cannot be run: {}", file.display(), failed.error)))?;
        drop(out_end);
        self.watch(pid, out)
    }

    fn watch(&mut self, pid: Pid, out: OwnedFd) -> Result<(), Failure> {
        let began_ms = boottime_ms();
        let timeout_ms = u64::from(self.order.life.hooks.timeout_ms);
        let budget_ms = u64::from(self.order.kill_budget_ms);
        let (due_ms, mut given_up_ms) = (began_ms + timeout_ms, u64::MAX);
        let mut processes = Processes::new(pid, false);
        let (mut out, mut status, mut late) = (Some(out), None, false);
        loop {
            let now_ms = boottime_ms();
            self.tell(now_ms.saturating_sub(began_ms));
            let over = status.is_some() || self.asked.is_some() || late;
            if !over && now_ms >= due_ms {
                late = true;
            }
            if !over && self.lease_is_short(now_ms, budget_ms) {
                self.asked = Some(AttemptEnd::Fenced);
            }
            if status.is_some() || self.asked.is_some() || late {
                given_up_ms = given_up_ms.min(now_ms + budget_ms);
                processes.signal(Signal::KILL);
            }
            let pause_ms = if self.told || self.lease.is_none() { LOOK_MS } else { UNTOLD_MS };
            let wait_ms = if given_up_ms < u64::MAX {
                KILL_PAUSE_MS
            } else {
                due_ms.saturating_sub(now_ms).min(pause_ms)
            };
            self.wait(wait_ms, &mut out);
            let left = processes.reap();
            status = status.or_else(|| processes.take_status());
            let gave_up = boottime_ms() >= given_up_ms;
            if left == Reaped::All || gave_up {
                self.drain(out.as_ref());
                let killed = gave_up && left == Reaped::Some;
                return self.outcome(status, late, killed, timeout_ms);
            }
        }
    }

    fn outcome(
        &mut self,
        status: Option<WaitStatus>,
        late: bool,
        stuck: bool,
        timeout_ms: u64,
    ) -> Result<(), Failure> {
        if let Some(end) = self.asked.take() {
            return Err(Failure::Asked(end));
        }
        let mut reason = match (late, status) {
            _ if stuck => "it cannot be killed".to_owned(),
            (true, _) => format!("killed after its time-out of {timeout_ms} ms"),
            (false, Some(status)) if status.exit_status() == Some(0) => return Ok(()),
            (false, Some(status)) => match (status.exit_status(), status.terminating_signal()) {
                (Some(code), _) => format!("exit {code}"),
                (None, signal) => format!("signal {}", signal.unwrap_or_default()),
            },
            (false, None) => "it is gone without a status".to_owned(),
        };
        let words = String::from_utf8_lossy(&self.words);
        if let Some(line) = words.lines().map(str::trim).rfind(|line| !line.is_empty()) {
            reason.push_str(": ");
            reason.extend(line.chars().filter(|c| !c.is_control()));
        }
        Err(Failure::Host(reason))
    }

    /// Sleeps until something happens, and handles what the agent and the hook say.
    fn wait(&mut self, wait_ms: u64, out: &mut Option<OwnedFd>) {
        let timeout = timespec(wait_ms);
        let mut fds = Vec::with_capacity(2);
        fds.push(PollFd::new(&self.inherited.signals, PollFlags::IN));
        if let Some(out) = &*out {
            fds.push(PollFd::new(out, PollFlags::IN));
        }
        let _ = poll(&mut fds, Some(&timeout));
        let spoke = fds.get(1).is_some_and(|fd| !fd.revents().is_empty());
        drop(fds);
        if spoke && !self.listen(out.as_ref()) {
            *out = None;
        }
        while let Ok(Some(received)) = ffi::read_signal(self.inherited.signals.as_fd()) {
            if received.signal == ffi::call_signal() {
                match wire::call_of(received.value, self.order.token) {
                    // An epilog is not cut short: the attempt is over already.
                    Some(ShimCall::End { reason }) if self.lease.is_some() => self.asked = Some(reason.end()),
                    Some(ShimCall::Attach) => {
                        self.link.attach();
                        self.told = false;
                    }
                    _ => {}
                }
            } else if received.signal == Signal::TERM.as_raw() {
                self.asked.get_or_insert(AttemptEnd::HostStopped);
            }
        }
    }

    /// The agent must be able to end an attempt whose prolog is slow.
    fn tell(&mut self, ran_ms: u64) {
        if !self.told && self.lease.is_some() && ran_ms >= UNTOLD_MS {
            let shim_pid = Pid::as_raw(Some(rustix::process::getpid())).cast_unsigned();
            let event = ShimEvent::Preparing { shim_pid };
            self.told = self.link.send(self.order.token, &event) != super::uplink::Sent::Full;
        }
    }

    fn lease_is_short(&mut self, now_ms: u64, budget_ms: u64) -> bool {
        let Some(lease) = &mut self.lease else { return false };
        now_ms.saturating_add(budget_ms) >= lease.deadline_ms()
    }

    /// Keeps the last words. False at the end of them.
    fn listen(&mut self, out: Option<&OwnedFd>) -> bool {
        let mut buffer = [0; 4 << 10];
        match out.map(|out| rustix::io::read(out, &mut buffer)) {
            Some(Ok(len)) if len > 0 => {
                self.words.extend_from_slice(&buffer[..len]);
                let surplus = self.words.len().saturating_sub(WORDS_BYTES_MAX);
                self.words.drain(..surplus);
                true
            }
            Some(Err(rustix::io::Errno::INTR)) => true,
            _ => false,
        }
    }

    /// What it said last, if it is there already.
    fn drain(&mut self, out: Option<&OwnedFd>) {
        let Some(out) = out else { return };
        // More than a pipe holds: a stranger that goes on writing is not waited for.
        for _ in 0..32 {
            let mut fds = [PollFd::new(out, PollFlags::IN)];
            if !matches!(poll(&mut fds, Some(&timespec(0))), Ok(1..)) || !self.listen(Some(out)) {
                return;
            }
        }
    }
}

/// Everything that a hook is told. None of it is written by a tenant but the name of its user.
fn environment(name: &str, order: &LaunchOrder, end: Option<&AttemptEnd>) -> Vec<Vec<u8>> {
    let devices: Vec<&str> = order.devices.iter().map(|device| device.0.as_str()).collect();
    let mut env = vec![
        PATH.to_owned(),
        format!("ROTA_HOOK={name}"),
        format!("ROTA_JOB={}", order.task.job),
        format!("ROTA_TASK_INDEX={}", order.task.index),
        format!("{}={}", crate::logic::env::TOKEN_VAR, order.token),
        format!("{}={}", crate::logic::env::CLUSTER_VAR, order.cluster),
        format!("ROTA_HOST={}", order.host),
        format!("ROTA_USER={}", order.life.user),
        format!("ROTA_DEVICES={}", devices.join(",")),
    ];
    if let Some((uid, gid)) = order.uid_gid {
        env.extend([format!("ROTA_UID={uid}"), format!("ROTA_GID={gid}")]);
    }
    env.extend(end.map(|end| format!("ROTA_END={end}").replace('\n', " ")));
    env.into_iter().map(String::into_bytes).collect()
}
