//! One attempt's life as its shim decides it: when to warn, when to kill, and how the end is named. The shim supplies
//! the clock, the lease file and the processes; the simulator supplies models of them.
//!
//! Rules. The task is warned (TERM) when asked to end, at its time limit, or when the lease comes within the kill
//! budget of its deadline; it is killed after its grace, or after half the kill budget when the lease is the reason.
//! When the first process has ended by itself, whatever it left behind is killed at once: an attempt is over when its
//! first process is, and its devices are free only when every process is gone. What caused the end first names it.

use rota_protocol::job::{AttemptEnd, EndReason};

/// The figures of one attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LifeParams {
    /// Longest run, in ms.
    pub time_limit_ms: Option<u64>,
    /// Time between TERM and KILL, in ms.
    pub grace_ms: u64,
    /// The part of the lease that killing may take, in ms.
    pub kill_budget_ms: u64,
}

/// What is to be done to the processes now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Do {
    /// Nothing.
    Nothing,
    /// Ask every process to end.
    Term,
    /// Kill every process, and again until none is left.
    Kill,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Running,
    Warned { kill_at_ms: u64 },
    Killing,
}

/// One attempt between its start and the end of its last process.
#[derive(Debug, Clone)]
pub struct Life {
    params: LifeParams,
    started_ms: u64,
    phase: Phase,
    cause: Option<AttemptEnd>,
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
            cause: None,
            lease_check_ms: deadline_ms.saturating_sub(params.kill_budget_ms),
            fenced: false,
        }
    }

    /// It is asked to end. Asking again changes nothing.
    pub fn end(&mut self, reason: EndReason, now_ms: u64) -> Do {
        self.warn(reason.end(), now_ms, self.params.grace_ms)
    }

    /// The host's service manager wants the shim gone: the host's doing, so the task will run again.
    pub fn host_stops(&mut self, now_ms: u64) -> Do {
        let reason = "the host ended it while shutting down".to_owned();
        self.warn(AttemptEnd::Vanished { reason }, now_ms, self.params.grace_ms)
    }

    /// The first process has ended by itself or on demand. `left` says whether others are still there.
    pub fn main_ended(&mut self, how: AttemptEnd, left: bool) -> Do {
        self.cause.get_or_insert(how);
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
            Phase::Warned { kill_at_ms } if now_ms >= kill_at_ms => {
                self.phase = Phase::Killing;
                Do::Kill
            }
            Phase::Running if self.limit_ms().is_some_and(|at| now_ms >= at) => {
                self.warn(AttemptEnd::TimeLimit, now_ms, self.params.grace_ms)
            }
            _ => Do::Nothing,
        }
    }

    /// When [`Self::on_time`] is to be called next, in ms.
    #[must_use]
    pub fn next_ms(&self) -> Option<u64> {
        let lease = (!self.fenced).then_some(self.lease_check_ms);
        let phase = match self.phase {
            Phase::Running => self.limit_ms(),
            Phase::Warned { kill_at_ms } => Some(kill_at_ms),
            Phase::Killing => return None,
        };
        [lease, phase].into_iter().flatten().min()
    }

    /// Every process is to be killed until none is left.
    #[must_use]
    pub fn is_killing(&self) -> bool {
        self.phase == Phase::Killing
    }

    /// The last process is gone: how the attempt ended.
    #[must_use]
    pub fn ended(self) -> AttemptEnd {
        self.cause.unwrap_or_else(|| AttemptEnd::Vanished {
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

    fn warn(&mut self, cause: AttemptEnd, now_ms: u64, grace_ms: u64) -> Do {
        if self.phase != Phase::Running {
            return Do::Nothing;
        }
        self.cause.get_or_insert(cause);
        self.phase = Phase::Warned { kill_at_ms: now_ms.saturating_add(grace_ms) };
        if grace_ms == 0 {
            self.phase = Phase::Killing;
            return Do::Kill;
        }
        Do::Term
    }

    /// The lease was not extended in time. Half of the kill budget is for the task to save itself; none of it when
    /// the shim comes too late (it was frozen).
    fn fence(&mut self, now_ms: u64, deadline_ms: u64) -> Do {
        let kill_at_ms = deadline_ms.saturating_sub(self.params.kill_budget_ms / 2);
        match self.phase {
            Phase::Killing => Do::Nothing,
            _ if now_ms >= kill_at_ms => {
                self.cause.get_or_insert(AttemptEnd::Fenced);
                self.phase = Phase::Killing;
                Do::Kill
            }
            Phase::Warned { kill_at_ms: asked } => {
                self.phase = Phase::Warned { kill_at_ms: asked.min(kill_at_ms) };
                Do::Nothing
            }
            Phase::Running => self.warn(AttemptEnd::Fenced, now_ms, kill_at_ms - now_ms),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARAMS: LifeParams =
        LifeParams { time_limit_ms: Some(10_000), grace_ms: 1_000, kill_budget_ms: 600 };

    fn life() -> Life {
        Life::new(PARAMS, 0, 5_000)
    }

    #[test]
    fn an_extended_lease_is_slept_on() {
        let mut life = life();
        assert_eq!(life.next_ms(), Some(4_400));
        assert_eq!(life.on_time(4_400, || 8_000), Do::Nothing);
        assert_eq!(life.next_ms(), Some(7_400));
    }

    #[test]
    fn a_lease_that_runs_out_warns_then_kills_half_a_budget_before_the_deadline() {
        let mut life = life();
        assert_eq!(life.on_time(4_400, || 5_000), Do::Term);
        assert_eq!(life.next_ms(), Some(4_700));
        assert_eq!(life.on_time(4_700, || 9_000), Do::Kill, "an extension that comes now is too late");
        assert_eq!(life.ended(), AttemptEnd::Fenced);
    }

    #[test]
    fn a_shim_that_wakes_past_the_deadline_kills_at_once() {
        let mut life = life();
        assert_eq!(life.on_time(60_000, || 5_000), Do::Kill);
        assert_eq!(life.ended(), AttemptEnd::Fenced);
    }

    #[test]
    fn a_lease_shortens_the_grace_of_an_end_and_keeps_its_name() {
        let mut life = Life::new(LifeParams { grace_ms: 60_000, ..PARAMS }, 0, 5_000);
        assert_eq!(life.end(EndReason::Preempt, 4_000), Do::Term);
        assert_eq!(life.end(EndReason::Cancel, 4_001), Do::Nothing, "the first cause stays");
        assert_eq!(life.on_time(4_400, || 5_000), Do::Nothing);
        assert_eq!(life.next_ms(), Some(4_700));
        assert_eq!(life.on_time(4_700, || 5_000), Do::Kill);
        assert_eq!(life.ended(), AttemptEnd::Preempted);
    }

    #[test]
    fn leftovers_of_a_first_process_are_killed_and_its_code_stays() {
        let mut life = life();
        assert_eq!(life.main_ended(AttemptEnd::Exited { code: 0 }, true), Do::Kill);
        assert_eq!(life.end(EndReason::Cancel, 1), Do::Nothing);
        assert_eq!(life.ended(), AttemptEnd::Exited { code: 0 });
    }

    #[test]
    fn the_time_limit_warns_and_kills_after_the_grace() {
        let mut life = Life::new(PARAMS, 0, 1_000_000);
        assert_eq!(life.on_time(9_999, || 0), Do::Nothing);
        assert_eq!(life.on_time(10_000, || 1_000_000), Do::Term);
        assert_eq!(life.on_time(11_000, || 1_000_000), Do::Kill);
        life.main_ended(AttemptEnd::Signalled { signal: 9 }, false);
        assert_eq!(life.ended(), AttemptEnd::TimeLimit);
    }

    #[test]
    fn no_start_inside_the_kill_budget() {
        assert!(Life::may_start(600, 4_399, 5_000));
        assert!(!Life::may_start(600, 4_400, 5_000));
        assert!(!Life::may_start(600, u64::MAX, 5_000));
    }
}
