//! A shim while its attempt runs. A copy of the fork server, one thread, asleep in `poll` nearly always. What it decides is
//! in `logic::life`; this file carries it out.

mod attend;

use super::cage::{Groups, Held, Spare, end_with};
use super::lease_file::LeaseReader;
use super::notes::Notes;
use super::processes::{Processes, Reaped};
use super::program::{Birth, NotRun, Streams as Io, is_own, launch_failed, run_program};
use super::sessions::Sessions;
use super::streams::{Streams, give_input, take_input_back};
use super::terminal;
use super::timer::{Timer, timespec};
use super::uplink::{Inherited, Link, Sent};
use super::warner::Warner;
use super::wire;
use crate::io::clock::{boottime_ms, wall_ms};
use crate::io::ffi;
use crate::logic::life::{Do, Life, LifeParams};
use rota_protocol::Token;
use rota_protocol::job::AttemptEnd;
use rota_protocol::spool::{ExitRecord, LaunchOrder, ShimCall, ShimEvent};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::process::{Signal, WaitStatus};

/// How long a start is not told, in ms: tasks that end sooner are told in one message, and one log entry, instead of
/// two. A person does not see the difference. On a host that is full of short tasks each takes twenty times as long as alone.
const STARTED_DELAY_MS: u64 = 50;
/// First pause between two rounds of killing, in ms; doubled up to the greatest.
const KILL_PAUSE_MS: u64 = 2;
/// Greatest pause between two rounds of killing, in ms.
const KILL_PAUSE_MS_MAX: u64 = 100;
/// Waits up to this long are left to `poll`, in ms; longer ones need a clock that goes on while the machine sleeps.
const POLL_WAIT_MS_MAX: u64 = 100;

/// A running attempt.
pub(super) struct Keeper<'a, 'l> {
    inherited: &'a Inherited,
    link: &'l mut Link<'a>,
    notes: &'l Notes,
    order: &'l LaunchOrder,
    sessions: Sessions,
    token: Token,
    lease: LeaseReader,
    life: Life,
    processes: Processes,
    groups: Groups,
    held: &'l mut Held,
    warner: Warner,
    streams: Streams,
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
    pub(super) fn start(
        inherited: &'a Inherited,
        link: &'l mut Link<'a>,
        order: &'l LaunchOrder,
        notes: &'l Notes,
        mut lease: LeaseReader,
        held: &'l mut Held,
    ) -> Result<Self, (AttemptEnd, u64)> {
        let hosts = |reason: String| (launch_failed(reason), 0);
        let (typed, shown) = terminal::of(order).map_err(hosts)?.unzip();
        let (mut streams, [stdout_end, stderr_end]) = Streams::open(order, shown)?;
        give_input(&order.output.stdin).map_err(|e| hosts(format!("cannot make its input: {e}")))?;
        // As late as possible: an order may have waited while this host's lease ran out.
        let (now_ms, deadline_ms) = (boottime_ms(), lease.deadline_ms());
        let kill_budget_ms = u64::from(order.kill_budget_ms);
        if !Life::may_start(kill_budget_ms, now_ms, deadline_ms) {
            return Err((AttemptEnd::Fenced, 0));
        }
        let terminal = typed.is_some();
        let io = Io {
            stdin: terminal.then_some(&stdout_end),
            stdout: &stdout_end,
            stderr: if terminal { &stdout_end } else { &stderr_end },
            terminal,
        };
        let spare = inherited.number.map(|number| Spare { number, own: is_own(order) });
        let mut groups = Groups::make(&order.cage, spare, std::mem::take(held)).map_err(hosts)?;
        let birth = Birth { groups: &groups, beside: None };
        let main = run_program(order, inherited.oom_default, birth, io).map_err(|failed| {
            groups.leave(kill_budget_ms, |_| ());
            let stderr_bytes = match &failed {
                NotRun::Program(_, line) => streams.last_word(line),
                NotRun::Job(..) | NotRun::Host(_) => 0,
            };
            (failed.end(order.around.runtime.is_some()), stderr_bytes)
        })?;
        if !order.output.stdin.is_empty() {
            // Best effort: an input that stays open here costs its memory until the attempt is over.
            let _ = take_input_back();
        }
        let mut sessions = Sessions::new(order.token);
        if let Some(typed) = typed {
            sessions.set_main(typed, &order.life, now_ms);
        }
        Ok(Self {
            inherited,
            link,
            notes,
            order,
            sessions,
            token: order.token,
            lease,
            life: Life::new(life_of(order), now_ms, deadline_ms),
            processes: Processes::new(main, passes_signals(order)),
            groups,
            held,
            warner: Warner::new(order.warning),
            streams,
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
    pub(super) fn run(mut self) -> ExitRecord {
        loop {
            let now_ms = boottime_ms();
            let lease = &mut self.lease;
            let what = self.life.on_time(now_ms, || lease.deadline_ms());
            self.carry_out(what, now_ms);
            if self.life.is_killing() && now_ms >= self.kill_due_ms {
                self.kill_round(now_ms);
            }
            self.warner.look(&self.processes, now_ms);
            self.attend_sessions(now_ms);
            self.tell_due(now_ms);
            if self.wait(now_ms) {
                return self.finish();
            }
        }
    }

    fn finish(mut self) -> ExitRecord {
        let ran_ms = boottime_ms().saturating_sub(self.life.started_ms());
        self.sessions.finish(&mut self.buffer);
        self.streams.finish();
        let used = self.groups.used();
        let (link, token) = (&mut *self.link, self.token);
        self.groups.leave(self.kill_budget_ms, |left| {
            let left = u32::try_from(left).unwrap_or(u32::MAX);
            link.send(token, &ShimEvent::Stuck { left });
        });
        *self.held = self.groups.give_back();
        let ([stdout_bytes, stderr_bytes], dropped_bytes) = (self.streams.lens(), self.streams.dropped());
        let end = end_with(self.life.ended(), used);
        ExitRecord { token, end, ran_ms, stdout_bytes, stderr_bytes, dropped_bytes, used }
    }

    /// Sleeps until something happens, and handles it. True when the last process is gone.
    fn wait(&mut self, now_ms: u64) -> bool {
        let next_ms = self.next_ms();
        let wait_ms = next_ms.map(|at| at.saturating_sub(now_ms));
        let by_timer =
            wait_ms.is_some_and(|ms| ms > POLL_WAIT_MS_MAX) && self.timer.arm(next_ms.unwrap_or(0));
        let timeout = if by_timer { None } else { wait_ms.map(|ms| timespec(ms.min(POLL_WAIT_MS_MAX))) };

        let mut fds = Vec::with_capacity(5);
        fds.push(PollFd::new(&self.inherited.signals, PollFlags::IN));
        let pipes = self.streams.watch(&mut fds);
        if self.link.blocked {
            fds.push(PollFd::from_borrowed_fd(self.link.fd(), PollFlags::OUT));
        }
        let timer = watch(&mut fds, self.timer.fd(), PollFlags::IN);
        let first = fds.len();
        self.sessions.watch(&mut fds);
        let _ = poll(&mut fds, timeout.as_ref());
        let ready = |at: Option<usize>| at.is_some_and(|at| !fds[at].revents().is_empty());
        let (signals, pipes, timer) = (ready(Some(0)), pipes.map(ready), ready(timer));
        let sessions: Vec<bool> = fds[first..].iter().map(|fd| !fd.revents().is_empty()).collect();
        drop(fds);

        if sessions.contains(&true) {
            self.sessions_ready(&sessions);
        }
        if timer {
            self.timer.clear();
        }
        self.streams.go_on(pipes);
        signals && self.take_signals()
    }

    fn next_ms(&self) -> Option<u64> {
        let killing = self.life.is_killing().then_some(self.kill_due_ms);
        let blocked = self.link.blocked;
        let started = self.started_due_ms.filter(|_| !blocked);
        let output = (!blocked && self.output_grew()).then_some(self.output_due_ms);
        let sessions = self.sessions.next_ms();
        [self.life.next_ms(), killing, self.warner.next_ms(), started, output, sessions]
            .into_iter()
            .flatten()
            .min()
    }

    fn take_signals(&mut self) -> bool {
        let mut children = false;
        while let Ok(Some(received)) = ffi::read_signal(self.inherited.signals.as_fd()) {
            let now_ms = boottime_ms();
            if received.signal == ffi::call_signal() {
                match wire::call_of(received.value, self.token) {
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
                    Some(ShimCall::Sessions) => self.sessions.listen(),
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
        self.sessions.reaped(&mut self.processes, !self.life.is_running(), &mut self.buffer);
        if let Some(status) = self.processes.take_status() {
            let (left, again) = (reaped == Reaped::Some, self.notes.asks_again());
            let what = self.life.main_ended(end_of(status), left, again);
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
            Do::Warn => {
                self.give_notice(now_ms);
                self.warner.begin(now_ms);
                self.warner.look(&self.processes, now_ms);
            }
            Do::Term => {
                self.give_notice(now_ms);
                self.warner.stop();
                if self.sessions.has_main() {
                    // A shell that talks to a person does not heed TERM.
                    self.processes.signal(Signal::HUP);
                }
                self.processes.signal(Signal::TERM);
                // A stopped process hears nothing until it goes on.
                self.processes.signal(Signal::CONT);
            }
            Do::Kill => {
                self.warner.stop();
                self.kill_round(now_ms);
            }
        }
    }

    /// Tells the task why and by when it is to end. A disk that is full must not keep it from ending.
    fn give_notice(&self, now_ms: u64) {
        if let Some(notice) = self.life.notice() {
            let _ = self.notes.notice(&notice.text(now_ms, wall_ms()));
        }
    }

    fn kill_round(&mut self, now_ms: u64) {
        self.groups.kill();
        let left = self.processes.signal(Signal::KILL);
        let since_ms = *self.kill_since_ms.get_or_insert(now_ms);
        if !self.stuck_told && left > 0 && now_ms.saturating_sub(since_ms) > self.kill_budget_ms {
            let left = u32::try_from(left).unwrap_or(u32::MAX);
            self.stuck_told = self.link.send(self.token, &ShimEvent::Stuck { left }) == Sent::Yes;
        }
        self.kill_due_ms = now_ms + self.kill_pause_ms;
        self.kill_pause_ms = (self.kill_pause_ms * 2).min(KILL_PAUSE_MS_MAX);
    }
}

fn passes_signals(order: &LaunchOrder) -> bool {
    order.around.runtime.as_ref().is_some_and(|runtime| runtime.passes_signals)
}

/// Adds a descriptor, if it is open. Returns its position.
fn watch<'f>(fds: &mut Vec<PollFd<'f>>, fd: Option<&'f OwnedFd>, flags: PollFlags) -> Option<usize> {
    fds.push(PollFd::new(fd?, flags));
    Some(fds.len() - 1)
}

fn end_of(status: WaitStatus) -> AttemptEnd {
    let byte = |n: i32| u8::try_from(n).unwrap_or(u8::MAX);
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => AttemptEnd::Exited { code: byte(code) },
        (None, Some(signal)) => AttemptEnd::Signalled { signal: byte(signal) },
        (None, None) => AttemptEnd::Vanished { reason: "it ended with an unknown status".to_owned() },
    }
}

fn life_of(order: &LaunchOrder) -> LifeParams {
    LifeParams {
        time_limit_ms: order.time_limit_ms,
        grace_ms: u64::from(order.grace_ms),
        kill_budget_ms: u64::from(order.kill_budget_ms),
        warning: order.warning,
        requeue_status: order.requeue_status,
    }
}
