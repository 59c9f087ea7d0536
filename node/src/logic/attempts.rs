//! The attempts of one task in their order, each with its number: the first is 1. A pure function of the state, so that
//! the task, whoever asks for its output, and every host say the same.
//!
//! A job keeps only its newest ended attempts. Where others are forgotten the number of the next one is at least what
//! is still counted of them (retries, faults of hosts, evictions), and never less than was told before it.

use rota_core::{Job, State};
use rota_protocol::job::{AttemptEnd, EndReason};
use rota_protocol::view::JobView;
use rota_protocol::{HostId, JobId, TaskId, Token};
use std::collections::BTreeMap;

/// One attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Numbered {
    /// Its token.
    pub token: Token,
    /// Its number.
    pub number: u32,
    /// Where.
    pub host: HostId,
    /// How it ended; none while it is live.
    pub end: Option<AttemptEnd>,
    /// Why its end was asked, if it was.
    pub asked: Option<EndReason>,
}

impl Numbered {
    /// The same for a person: where nothing was started, in its host's words.
    #[must_use]
    pub fn why_again_told(&self) -> String {
        let word = self.why_again();
        match &self.end {
            Some(AttemptEnd::LaunchFailed { reason } | AttemptEnd::CannotStart { reason, .. }) => {
                format!("{word}: {reason}")
            }
            _ => word.to_owned(),
        }
    }

    /// In one word, why there was, or is, another attempt after this one.
    #[must_use]
    pub fn why_again(&self) -> &'static str {
        match (&self.end, self.asked) {
            (None, _) => "",
            (Some(AttemptEnd::Preempted), Some(reason)) => match reason {
                EndReason::Drain => "drain",
                EndReason::Move => "move",
                EndReason::Turn => "turn",
                EndReason::Reclaim => "reclaim",
                EndReason::Ceiling => "ceiling",
                EndReason::Preempt
                | EndReason::Cancel
                | EndReason::Gang
                | EndReason::Device
                | EndReason::Program
                | EndReason::Vram
                | EndReason::SharedFault
                | EndReason::Idle => "preempt",
            },
            (Some(end), _) => match end {
                AttemptEnd::Exited { code: 0 } => "ended",
                AttemptEnd::Exited { .. } | AttemptEnd::Signalled { .. } => "failed",
                AttemptEnd::TimeLimit => "time_limit",
                AttemptEnd::Cancelled => "cancel",
                AttemptEnd::Preempted => "preempt",
                AttemptEnd::LaunchFailed { .. } | AttemptEnd::InputsMissing { .. } => "launch_failed",
                AttemptEnd::CannotStart { .. } => "cannot_start",
                AttemptEnd::Fenced | AttemptEnd::Lost | AttemptEnd::Vanished { .. } => "host_lost",
                AttemptEnd::Requeued { .. } => "requeue",
                AttemptEnd::GangBroken => "gang",
                AttemptEnd::HostStopped => "shutdown",
                AttemptEnd::DeviceFault { .. } => "device",
                AttemptEnd::ProgramFault { .. } => "program",
                AttemptEnd::OutOfMemory { .. } => "out_of_memory",
                AttemptEnd::VramLimit { .. } => "vram",
                AttemptEnd::SharedFault => "shared_fault",
                AttemptEnd::Idle { .. } => "idle",
            },
        }
    }
}

/// For the metric: a word from a fixed set.
#[must_use]
pub fn end_word(end: &AttemptEnd) -> &'static str {
    match end {
        AttemptEnd::Exited { code: 0 } => "succeeded",
        AttemptEnd::Exited { .. } | AttemptEnd::Signalled { .. } => "failed",
        AttemptEnd::TimeLimit => "time_limit",
        AttemptEnd::OutOfMemory { .. } => "out_of_memory",
        AttemptEnd::Cancelled => "cancelled",
        AttemptEnd::Preempted => "preempted",
        AttemptEnd::LaunchFailed { .. } => "launch_failed",
        AttemptEnd::InputsMissing { .. } => "inputs_missing",
        AttemptEnd::CannotStart { .. } => "cannot_start",
        AttemptEnd::Requeued { .. } => "requeued",
        AttemptEnd::GangBroken => "gang_broken",
        AttemptEnd::HostStopped => "host_stopped",
        AttemptEnd::DeviceFault { .. } => "device_fault",
        AttemptEnd::ProgramFault { .. } => "program_fault",
        AttemptEnd::VramLimit { .. } => "vram_limit",
        AttemptEnd::SharedFault => "shared_fault",
        AttemptEnd::Idle { .. } => "idle",
        AttemptEnd::Fenced | AttemptEnd::Lost | AttemptEnd::Vanished { .. } => "lost",
    }
}

/// The known attempts of a task, oldest first.
#[must_use]
pub fn of_task(state: &State, id: JobId, index: u32) -> Vec<Numbered> {
    let Some(job) = state.job(id) else { return Vec::new() };
    let ended = job.ended.iter().filter(|one| one.index == index).map(|one| Numbered {
        token: one.token,
        number: 0,
        host: one.host,
        end: Some(one.end.clone()),
        asked: one.asked,
    });
    let live = state.attempt_of(TaskId { job: id, index }).into_iter().map(|one| Numbered {
        token: one.token,
        number: 0,
        host: one.host,
        end: None,
        asked: one.end_reason,
    });
    let mut all: Vec<Numbered> = ended.chain(live).collect();
    all.sort_by_key(|one| one.token);
    let known_ended = all.iter().filter(|one| one.end.is_some()).count();
    let forgotten = forgotten_of(job, index, u32::try_from(known_ended).unwrap_or(u32::MAX));
    for (one, number) in all.iter_mut().zip(forgotten.saturating_add(1)..) {
        one.number = number;
    }
    all
}

/// Numbers the attempts of an answer.
pub fn number(state: &State, view: &mut JobView) {
    let mut numbers: BTreeMap<u32, Vec<Numbered>> = BTreeMap::new();
    for row in &mut view.attempts {
        let task = row.task;
        let of_task = numbers.entry(task.index).or_insert_with(|| of_task(state, task.job, task.index));
        let found = of_task.iter().find(|one| one.token == row.token);
        row.number = found.map_or(0, |one| one.number);
    }
}

/// How many ended attempts of the task are not kept any more, as far as that is known.
fn forgotten_of(job: &Job, index: u32, known: u32) -> u32 {
    let all = u32::try_from(job.ended_forgotten).unwrap_or(u32::MAX);
    if all == 0 || job.tasks() == 1 {
        return all;
    }
    let Some(ordinal) = job.ordinal(index) else { return 0 };
    let count = |map: &BTreeMap<u32, u16>| u32::from(map.get(&ordinal).copied().unwrap_or(0));
    let evicted = job.evictions.iter().filter(|(_, position)| *position == ordinal).count();
    let counted = count(&job.retries_used) + count(&job.host_faults) + u32::try_from(evicted).unwrap_or(0);
    counted.saturating_sub(known).min(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_word_says_who_wanted_it() {
        let word = |end, asked| {
            let (token, host) = (Token(1), HostId(1));
            Numbered { token, number: 1, host, end: Some(end), asked }.why_again()
        };
        assert_eq!(word(AttemptEnd::Preempted, Some(EndReason::Drain)), "drain");
        assert_eq!(word(AttemptEnd::Preempted, None), "preempt");
        assert_eq!(word(AttemptEnd::Lost, Some(EndReason::Move)), "host_lost");
        assert_eq!(word(AttemptEnd::Exited { code: 3 }, None), "failed");
        assert_eq!(word(AttemptEnd::Requeued { code: 75 }, None), "requeue");
    }
}
