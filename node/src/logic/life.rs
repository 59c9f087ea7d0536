//! One attempt's life as its shim decides it: when to warn, when to end, when to kill, and how the end is named. The
//! shim supplies the clock, the lease file and the processes; the simulator supplies models of them.
//!
//! Rules. The task is asked to end (TERM) on request, at its time limit, or when the lease comes within the kill budget
//! of its deadline; it is killed after its grace, or after half the kill budget when the lease is the reason.
//!
//! A task that has ordered a warning gets it first. Before the time limit it comes the ordered time earlier, at once if
//! less is left at the start. When the task is put out (evicted, or its host shuts down) it comes at once, TERM follows
//! after the ordered time, bounded so that whoever waits for the devices does not wait for long
//! (`EVICTION_WARNING_MS_MAX`), and KILL comes a whole grace after TERM. A cancel, a broken gang and a lease that runs out
//! leave no time for it: TERM at once.
//!
//! When the first process has ended by itself, whatever it left behind is killed at once: an attempt is over when its
//! first process is, and its devices are free only when every process is gone. What caused the end first names it,
//! but a task that asks to be queued again, by its status or by the file, is not called failed or out of time.

use rota_protocol::job::{AttemptEnd, EndReason};
use rota_protocol::work::Warning;
use std::fmt;

/// The signal of a line that was cut, on every machine that Rota runs on.
const HANGUP: u8 = 1;

/// The figures of one attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LifeParams {
    /// Longest run, in ms.
    pub time_limit_ms: Option<u64>,
    /// Time between TERM and KILL, in ms.
    pub grace_ms: u64,
    /// The part of the lease that killing may take, in ms.
    pub kill_budget_ms: u64,
    /// A signal before an end that Rota brings about.
    pub warning: Option<Warning>,
    /// Exit status by which the task asks to be queued again.
    pub requeue_status: Option<u8>,
}

/// What is to be done to the processes now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Do {
    /// Nothing.
    Nothing,
    /// Write the notice, then warn them with the ordered signal.
    Warn,
    /// Write the notice, then ask every process to end.
    Term,
    /// Kill every process, and again until none is left.
    Kill,
}

/// Why a task is to end, as it reads it in its notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// By the log's wish.
    Asked(EndReason),
    /// Its time limit.
    TimeLimit,
    /// The host has lost contact with the cluster.
    Lease,
    /// The host shuts down.
    Shutdown,
    /// Nobody used its terminal.
    Idle,
    /// The client of its terminal is gone, and it was not to go on without.
    Hangup,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Asked(reason) => reason.fmt(f),
            Self::TimeLimit => f.write_str("time_limit"),
            Self::Lease => f.write_str("fenced"),
            Self::Shutdown => f.write_str("shutdown"),
            Self::Idle => f.write_str("idle"),
            Self::Hangup => f.write_str("hangup"),
        }
    }
}

/// What a task is told of its end. Times on the caller's clock, in ms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Notice {
    /// Why.
    pub cause: Cause,
    /// TERM comes then.
    pub term_ms: u64,
    /// KILL comes then.
    pub kill_ms: u64,
}

impl Notice {
    /// The file's text: lines of `name=value`, times in ms since the Unix epoch. `wall_ms` and `now_ms` are the same
    /// moment on both clocks.
    #[must_use]
    pub fn text(&self, now_ms: u64, wall_ms: u64) -> String {
        let wall = |at_ms: u64| wall_ms.saturating_add(at_ms.saturating_sub(now_ms));
        let (term_ms, deadline_ms) = (wall(self.term_ms), wall(self.kill_ms));
        format!("reason={}\ndeadline_ms={deadline_ms}\nterm_ms={term_ms}\n", self.cause)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Running,
    /// Put out and warned; TERM is still to come.
    Warned {
        term_at_ms: u64,
        kill_at_ms: u64,
    },
    Termed {
        kill_at_ms: u64,
    },
    Killing,
}

/// One attempt between its start and the end of its last process.
#[derive(Debug, Clone)]
pub struct Life {
    params: LifeParams,
    started_ms: u64,
    phase: Phase,
    end: Option<AttemptEnd>,
    notice: Option<Notice>,
    lease_check_ms: u64,
    fenced: bool,
}

impl Life {
    /// Whether a task may be started under a lease with this deadline: never when killing would have to begin at once.
    #[must_use]
    pub fn may_start(kill_budget_ms: u64, now_ms: u64, deadline_ms: u64) -> bool {
        now_ms.saturating_add(kill_budget_ms) < deadline_ms
    }

    /// A task starts.
    #[must_use]
    pub fn new(params: LifeParams, now_ms: u64, deadline_ms: u64) -> Self {
        Self {
            params,
            started_ms: now_ms,
            phase: Phase::Running,
            end: None,
            notice: None,
            lease_check_ms: deadline_ms.saturating_sub(params.kill_budget_ms),
            fenced: false,
        }
    }

    /// It is asked to end. Asking again changes nothing.
    pub fn end(&mut self, reason: EndReason, now_ms: u64) -> Do {
        let cause = Cause::Asked(reason);
        if reason.is_eviction() {
            self.put_out(cause, reason.end(), now_ms)
        } else {
            self.term(cause, reason.end(), now_ms, self.params.grace_ms)
        }
    }

    /// The host's service manager wants the shim gone: the host's doing, so the task will run again.
    pub fn host_stops(&mut self, now_ms: u64) -> Do {
        self.put_out(Cause::Shutdown, AttemptEnd::HostStopped, now_ms)
    }

    /// Nobody used its terminal for as long as the host allows: a limit of time like another.
    pub fn idle(&mut self, now_ms: u64) -> Do {
        self.term(Cause::Idle, AttemptEnd::TimeLimit, now_ms, self.params.grace_ms)
    }

    /// Whoever sat at its terminal is gone: as on a line that was cut.
    pub fn hang_up(&mut self, now_ms: u64) -> Do {
        let end = AttemptEnd::Signalled { signal: HANGUP };
        self.term(Cause::Hangup, end, now_ms, self.params.grace_ms)
    }

    /// It is not to end yet, as far as is known.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.phase == Phase::Running && self.end.is_none()
    }

    /// The first process has ended by itself or on demand. `left` says whether others are still there, `again`
    /// whether the file by which the task asks to be queued again is there.
    pub fn main_ended(&mut self, how: AttemptEnd, left: bool, again: bool) -> Do {
        let by_status = |code: &u8| self.params.requeue_status == Some(*code);
        let again = again || matches!(&how, AttemptEnd::Exited { code } if by_status(code));
        let own = self.end.as_ref().is_none_or(|end| *end == AttemptEnd::TimeLimit);
        if again && own && how.is_users() {
            self.end = Some(AttemptEnd::Requeued { code: how.shell_status() });
        }
        self.end.get_or_insert(how);
        if !left || self.phase == Phase::Killing {
            return Do::Nothing;
        }
        self.phase = Phase::Killing;
        Do::Kill
    }

    /// Time has passed. `read_deadline_ms` is called only when the lease must be looked at.
    pub fn on_time(&mut self, now_ms: u64, read_deadline_ms: impl FnOnce() -> u64) -> Do {
        if !self.fenced && now_ms >= self.lease_check_ms {
            let deadline_ms = read_deadline_ms();
            self.lease_check_ms = deadline_ms.saturating_sub(self.params.kill_budget_ms);
            if now_ms >= self.lease_check_ms {
                self.fenced = true;
                let done = self.fence(now_ms, deadline_ms);
                if done != Do::Nothing {
                    return done;
                }
            }
        }
        match self.phase {
            Phase::Warned { kill_at_ms, .. } | Phase::Termed { kill_at_ms } if now_ms >= kill_at_ms => {
                self.phase = Phase::Killing;
                Do::Kill
            }
            Phase::Warned { term_at_ms, kill_at_ms } if now_ms >= term_at_ms => {
                self.phase = Phase::Termed { kill_at_ms };
                Do::Term
            }
            Phase::Running if self.limit_ms().is_some_and(|at| now_ms >= at) => {
                self.term(Cause::TimeLimit, AttemptEnd::TimeLimit, now_ms, self.params.grace_ms)
            }
            Phase::Running if self.warn_ms().is_some_and(|at| now_ms >= at) => self.warn_of_limit(),
            _ => Do::Nothing,
        }
    }

    /// When [`Self::on_time`] is to be called next, in ms.
    #[must_use]
    pub fn next_ms(&self) -> Option<u64> {
        let lease = (!self.fenced).then_some(self.lease_check_ms);
        let phase = match self.phase {
            Phase::Running => self.warn_ms().or(self.limit_ms()),
            Phase::Warned { term_at_ms, kill_at_ms } => Some(term_at_ms.min(kill_at_ms)),
            Phase::Termed { kill_at_ms } => Some(kill_at_ms),
            Phase::Killing => return None,
        };
        [lease, phase].into_iter().flatten().min()
    }

    /// What the task is to know of its end, once it is to end.
    #[must_use]
    pub fn notice(&self) -> Option<Notice> {
        self.notice
    }

    /// Every process is to be killed until none is left.
    #[must_use]
    pub fn is_killing(&self) -> bool {
        self.phase == Phase::Killing
    }

    /// The last process is gone: how the attempt ended.
    #[must_use]
    pub fn ended(self) -> AttemptEnd {
        self.end.unwrap_or_else(|| AttemptEnd::Vanished {
            reason: "its processes are gone without a status".to_owned(),
        })
    }

    /// When it started, in ms.
    #[must_use]
    pub fn started_ms(&self) -> u64 {
        self.started_ms
    }

    fn limit_ms(&self) -> Option<u64> {
        self.params.time_limit_ms.map(|ms| self.started_ms.saturating_add(ms))
    }

    /// When to warn of the time limit; none once it is done.
    fn warn_ms(&self) -> Option<u64> {
        let warning = self.params.warning.filter(|_| self.notice.is_none())?;
        Some(self.limit_ms()?.saturating_sub(u64::from(warning.before_ms)).max(self.started_ms))
    }

    fn warn_of_limit(&mut self) -> Do {
        let term_ms = self.limit_ms().unwrap_or(u64::MAX);
        let kill_ms = term_ms.saturating_add(self.params.grace_ms);
        self.notice = Some(Notice { cause: Cause::TimeLimit, term_ms, kill_ms });
        Do::Warn
    }

    /// To end for somebody else's sake: warned first, if that was ordered.
    fn put_out(&mut self, cause: Cause, end: AttemptEnd, now_ms: u64) -> Do {
        let grace_ms = self.params.grace_ms;
        let Some(warning) = self.params.warning else {
            return self.term(cause, end, now_ms, grace_ms);
        };
        if self.phase != Phase::Running {
            return Do::Nothing;
        }
        self.end.get_or_insert(end);
        let term_at_ms = now_ms.saturating_add(u64::from(warning.eviction_ms()));
        let kill_at_ms = term_at_ms.saturating_add(grace_ms);
        self.notice = Some(Notice { cause, term_ms: term_at_ms, kill_ms: kill_at_ms });
        self.phase = Phase::Warned { term_at_ms, kill_at_ms };
        Do::Warn
    }

    fn term(&mut self, cause: Cause, end: AttemptEnd, now_ms: u64, grace_ms: u64) -> Do {
        // Whoever was only warned until now hears what is more urgent.
        let asked_ms = match self.phase {
            Phase::Running => u64::MAX,
            Phase::Warned { kill_at_ms, .. } => kill_at_ms,
            Phase::Termed { .. } | Phase::Killing => return Do::Nothing,
        };
        self.end.get_or_insert(end);
        let kill_at_ms = now_ms.saturating_add(grace_ms).min(asked_ms);
        self.notice = Some(Notice { cause, term_ms: now_ms, kill_ms: kill_at_ms });
        if kill_at_ms <= now_ms {
            self.phase = Phase::Killing;
            return Do::Kill;
        }
        self.phase = Phase::Termed { kill_at_ms };
        Do::Term
    }

    /// The lease was not extended in time. Half of the kill budget is for the task to save itself; none of it when
    /// the shim comes too late (it was frozen).
    fn fence(&mut self, now_ms: u64, deadline_ms: u64) -> Do {
        let kill_at_ms = deadline_ms.saturating_sub(self.params.kill_budget_ms / 2);
        match self.phase {
            Phase::Killing => Do::Nothing,
            _ if now_ms >= kill_at_ms => {
                self.end.get_or_insert(AttemptEnd::Fenced);
                self.phase = Phase::Killing;
                Do::Kill
            }
            Phase::Termed { kill_at_ms: asked } => {
                self.phase = Phase::Termed { kill_at_ms: asked.min(kill_at_ms) };
                Do::Nothing
            }
            Phase::Running | Phase::Warned { .. } => {
                self.term(Cause::Lease, AttemptEnd::Fenced, now_ms, kill_at_ms - now_ms)
            }
        }
    }
}

#[cfg(test)]
#[path = "life_tests.rs"]
mod tests;
