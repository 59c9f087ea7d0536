//! What the log wants on this host against what is here: the difference as a list of actions.
//!
//! Pure and idempotent: it may be asked after any change of either side, and asking twice gives the same list. A token
//! is launched at most once in the life of the data directory, only under its own epoch, only while the lease holds.

use super::lease::LeaseHolder;
use rota_protocol::job::{AttemptEnd, AttemptState, EndReason};
use rota_protocol::spool::ExitRecord;
use rota_protocol::{LeaseEpoch, Token};
use std::collections::BTreeMap;

/// A live attempt that the log places on this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Desired {
    /// The attempt.
    pub token: Token,
    /// The lease epoch of its grant.
    pub epoch: LeaseEpoch,
    /// Where the log believes it stands.
    pub state: AttemptState,
    /// Why it is being ended, when it is.
    pub end_reason: Option<EndReason>,
}

/// Where an attempt really stands on this host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LocalState {
    /// Ordered; no process was reported yet.
    Launching,
    /// A process runs.
    Running {
        /// The task's first process.
        pid: u32,
    },
    /// Every process is gone.
    Ended(ExitRecord),
}

/// An attempt that this host knows of and has not released.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Local {
    /// Where it stands.
    pub state: LocalState,
    /// The shim was told to end it, for this reason.
    pub end_asked: Option<EndReason>,
}

/// One thing to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Start it.
    Launch(Token),
    /// Ask its shim to end it.
    End(Token, EndReason),
    /// Tell the log that it runs.
    ReportStarted {
        /// The attempt.
        token: Token,
        /// Its first process.
        pid: u32,
    },
    /// Tell the log that it is over.
    ReportEnded(ExitRecord),
    /// The log is done with it: forget it, keep its output by retention.
    Release(Token),
}

/// The differences. `applied_index` is the log index of the state that `desired` was read from: an attempt granted
/// after it is not missing there, only not seen yet.
#[must_use]
pub fn reconcile(
    desired: &[Desired],
    local: &BTreeMap<Token, Local>,
    holder: &LeaseHolder,
    applied_index: u64,
    now_ms: u64,
) -> Vec<Action> {
    let mut actions = Vec::new();
    let wanted: BTreeMap<Token, &Desired> = desired.iter().map(|d| (d.token, d)).collect();
    for (token, want) in &wanted {
        match local.get(token) {
            None => absent(want, holder, now_ms, &mut actions),
            Some(here) => present(want, here, &mut actions),
        }
    }
    for (token, here) in local.iter().filter(|(token, _)| !wanted.contains_key(token)) {
        if token.log_index() > applied_index {
            continue;
        }
        match here.state {
            LocalState::Ended(_) => actions.push(Action::Release(*token)),
            // Over in the log (lost, expired) and alive here: it must go, and nobody waits for its result.
            LocalState::Launching | LocalState::Running { .. } if here.end_asked.is_none() => {
                actions.push(Action::End(*token, EndReason::Cancel));
            }
            LocalState::Launching | LocalState::Running { .. } => {}
        }
    }
    actions
}

/// The log wants it, this host has nothing of it.
fn absent(want: &Desired, holder: &LeaseHolder, now_ms: u64, actions: &mut Vec<Action>) {
    let gone = |end| Action::ReportEnded(ExitRecord::never_ran(want.token, end));
    match (want.state, want.end_reason) {
        (AttemptState::Ending, reason) => {
            actions.push(gone(reason.map_or(AttemptEnd::Cancelled, EndReason::end)))
        }
        (AttemptState::Running, _) => {
            actions.push(gone(AttemptEnd::Vanished { reason: "the host has no record of it".to_owned() }))
        }
        (AttemptState::Granted, _) if holder.may_start(want.epoch, now_ms) => {
            actions.push(Action::Launch(want.token));
        }
        // No lease yet, or not for this epoch: it waits, or the log ends it.
        (AttemptState::Granted, _) => {}
    }
}

/// The log wants it, this host has it.
fn present(want: &Desired, here: &Local, actions: &mut Vec<Action>) {
    match &here.state {
        LocalState::Ended(record) => {
            actions.push(Action::ReportEnded(record.clone()));
            return;
        }
        LocalState::Running { pid } if want.state == AttemptState::Granted => {
            actions.push(Action::ReportStarted { token: want.token, pid: *pid });
        }
        LocalState::Launching | LocalState::Running { .. } => {}
    }
    if want.state == AttemptState::Ending {
        let reason = want.end_reason.unwrap_or(EndReason::Cancel);
        // A cancel waits for less than what was asked before.
        let more = here.end_asked.is_none_or(|asked| asked != reason && reason == EndReason::Cancel);
        if more {
            actions.push(Action::End(want.token, reason));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::logic::lease::LeaseParams;

    const EPOCH: LeaseEpoch = LeaseEpoch(1);

    fn token(index: u64) -> Token {
        Token::new(index, 0)
    }

    fn leased() -> LeaseHolder {
        let mut holder = LeaseHolder::new(LeaseParams::CHAOS);
        holder.set_epoch(EPOCH);
        let renewal = holder.send(0).unwrap();
        holder.ack(renewal, 1).unwrap();
        holder
    }

    fn want(index: u64, state: AttemptState) -> Desired {
        let end_reason = (state == AttemptState::Ending).then_some(EndReason::Preempt);
        Desired { token: token(index), epoch: EPOCH, state, end_reason }
    }

    fn here(state: LocalState) -> Local {
        Local { state, end_asked: None }
    }

    fn ended(index: u64) -> ExitRecord {
        ExitRecord { ran_ms: 9, ..ExitRecord::never_ran(token(index), AttemptEnd::Exited { code: 3 }) }
    }

    fn check(want: &[Desired], local: &[(u64, Local)], now_ms: u64, expected: &[Action]) {
        let local = local.iter().map(|(index, l)| (token(*index), l.clone())).collect();
        let actions = reconcile(want, &local, &leased(), 100, now_ms);
        assert_eq!(actions, expected);
    }

    #[test]
    fn a_grant_is_launched_once_and_only_under_a_lease_of_its_epoch() {
        let grant = want(5, AttemptState::Granted);
        check(&[grant], &[], 10, &[Action::Launch(token(5))]);
        check(&[grant], &[(5, here(LocalState::Launching))], 10, &[]);
        check(&[grant], &[], 4_400, &[]);
        check(&[Desired { epoch: LeaseEpoch(2), ..grant }], &[], 10, &[]);
    }

    #[test]
    fn facts_are_told_until_the_log_has_them() {
        let running = here(LocalState::Running { pid: 42 });
        let started = Action::ReportStarted { token: token(5), pid: 42 };
        check(&[want(5, AttemptState::Granted)], &[(5, running.clone())], 10, &[started]);
        check(&[want(5, AttemptState::Running)], &[(5, running)], 10, &[]);
        let over = here(LocalState::Ended(ended(5)));
        check(&[want(5, AttemptState::Running)], &[(5, over)], 10, &[Action::ReportEnded(ended(5))]);
    }

    #[test]
    fn an_end_is_asked_once_and_what_never_ran_ends_without_running() {
        let running = here(LocalState::Running { pid: 42 });
        let asked = Local { end_asked: Some(EndReason::Preempt), ..running.clone() };
        let ending = want(5, AttemptState::Ending);
        check(&[ending], &[(5, running)], 10, &[Action::End(token(5), EndReason::Preempt)]);
        check(&[ending], &[(5, asked.clone())], 10, &[]);
        let cancelled = Desired { end_reason: Some(EndReason::Cancel), ..ending };
        check(&[cancelled], &[(5, asked)], 10, &[Action::End(token(5), EndReason::Cancel)]);
        let mut never = ended(5);
        (never.end, never.ran_ms) = (AttemptEnd::Preempted, 0);
        check(&[ending], &[], 10, &[Action::ReportEnded(never)]);
    }

    #[test]
    fn every_reason_ends_what_never_ran_as_the_log_names_it() {
        use EndReason::{Cancel, Ceiling, Drain, Gang, Move, Preempt, Reclaim};
        for reason in [Cancel, Preempt, Gang, Drain, Move, Reclaim, Ceiling] {
            let ending = Desired { end_reason: Some(reason), ..want(5, AttemptState::Ending) };
            let record = ExitRecord { end: reason.end(), ran_ms: 0, ..ended(5) };
            check(&[ending], &[], 10, &[Action::ReportEnded(record)]);
            let running = here(LocalState::Running { pid: 42 });
            check(&[ending], &[(5, running)], 10, &[Action::End(token(5), reason)]);
        }
    }

    #[test]
    fn what_the_log_is_done_with_is_ended_then_released() {
        let running = here(LocalState::Running { pid: 42 });
        check(&[], &[(5, running.clone())], 10, &[Action::End(token(5), EndReason::Cancel)]);
        check(&[], &[(5, here(LocalState::Ended(ended(5))))], 10, &[Action::Release(token(5))]);
        check(&[], &[(101, running)], 10, &[]);
        check(&[], &[(101, here(LocalState::Ended(ended(101))))], 10, &[]);
    }

    #[test]
    fn a_running_attempt_without_a_record_is_not_started_again() {
        let mut record = ended(5);
        record.end = AttemptEnd::Vanished { reason: "the host has no record of it".into() };
        record.ran_ms = 0;
        check(&[want(5, AttemptState::Running)], &[], 10, &[Action::ReportEnded(record)]);
    }
}
