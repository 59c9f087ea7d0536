//! What hosts said of a job that they could not start, and how a job that is over came to its end.

use super::text::count;
use crate::apply::HOSTS_TRIED_MAX;
use crate::state::State;
use crate::state::attempt::EndedAttempt;
use crate::state::job::Job;
use rota_protocol::HostId;
use rota_protocol::job::{AttemptEnd, EndReason, JobState};
use std::collections::BTreeSet;

/// The newest words of a host that could not start it.
pub(super) fn words(job: &Job, host: HostId) -> Option<&str> {
    job.ended.iter().rev().filter(|ended| ended.host == host).find_map(|ended| ended.end.unstarted())
}

/// What follows the sentence on a job whose newest attempt could not be started for a reason that lies in it: that the
/// next one will most likely not be either, and when that is over.
pub(super) fn will_fail(job: &Job) -> Option<String> {
    let newest = job.ended.iter().max_by_key(|ended| ended.token)?;
    let AttemptEnd::CannotStart { reason, .. } = &newest.end else { return None };
    let said = job.ended.iter().filter(|ended| matches!(ended.end, AttemptEnd::CannotStart { .. }));
    let hosts = said.map(|ended| ended.host).collect::<BTreeSet<_>>().len();
    let tried = count(hosts as u64, "host");
    Some(format!(
        "its next start may fail as the last one: {reason}; that is said by {tried}, with {HOSTS_TRIED_MAX}, or all \
         that could run it, it has failed"
    ))
}

/// The attempt that made the job fail, in one line: ` (rank 1 on n2: exit 5)`; nothing of one that did not fail.
pub(super) fn culprit(state: &State, job: &Job) -> String {
    if !matches!(job.state, JobState::Failed | JobState::HostLost | JobState::TimedOut) {
        return String::new();
    }
    let Some(ended) = first_to_fail(job) else { return String::new() };
    let host = state.host(ended.host).map_or_else(|| ended.host.to_string(), |host| host.name.clone());
    let part = match (job.spec.gang, job.spec.array) {
        (Some(_), _) => format!("rank {} on ", ended.index),
        (None, Some(_)) => format!("task {}_{} on ", job.id, ended.index),
        (None, None) => "on ".to_owned(),
    };
    format!(" ({part}{host}: {})", ended.end)
}

/// Of the attempts that are kept the one whose end gave the job its status; what ended with its gang did not.
fn first_to_fail(job: &Job) -> Option<&EndedAttempt> {
    let own = |ended: &&EndedAttempt| {
        !ended.end.is_success()
            && ended.asked != Some(EndReason::Gang)
            && !matches!(ended.end, AttemptEnd::GangBroken | AttemptEnd::Cancelled)
    };
    let gave = |ended: &&EndedAttempt| Some(ended.end.shell_status()) == job.first_failure;
    let newest_first = || job.ended.iter().rev().filter(own);
    newest_first().find(gave).or_else(|| newest_first().next())
}
