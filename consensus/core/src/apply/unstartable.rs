//! Jobs that no host can start, for a reason that lies in them: a working directory that is not there, an image that
//! nobody has. One host may lack what another has, so a few are tried; then the job is over, with the host's words.

use crate::fit;
use crate::state::State;
use crate::state::attempt::Attempt;
use crate::state::job::Job;
use rota_protocol::HostId;
use rota_protocol::job::AttemptEnd;
use rota_protocol::view::HostState;
use std::collections::BTreeSet;

/// Hosts that are tried.
pub(crate) const HOSTS_TRIED_MAX: usize = 3;

/// The attempt ended so, and no further host is to be tried: so many said the same, or every host that is up and could
/// run the job did.
pub(super) fn is_final(state: &State, attempt: &Attempt, end: &AttemptEnd) -> bool {
    let Some(job) = state.job(attempt.task.job).filter(|_| matches!(end, AttemptEnd::CannotStart { .. }))
    else {
        return false;
    };
    let tried = tried(job, attempt);
    let others = || {
        state.hosts().any(|host| {
            !tried.contains(&host.id)
                && host.state(state.clock_ms()) == HostState::Up
                && job.spec.asks().any(|ask| fit::capable(host, ask).is_ok())
        })
    };
    tried.len() >= HOSTS_TRIED_MAX || !others()
}

/// The hosts that have said so. Of an array of which something has started, each task is tried for itself: what the
/// others met may have been the hosts.
fn tried(job: &Job, attempt: &Attempt) -> BTreeSet<HostId> {
    let alone = job.spec.array.is_some() && job.started_ms.is_some();
    let said = job.ended.iter().filter(|ended| {
        matches!(ended.end, AttemptEnd::CannotStart { .. }) && (!alone || ended.index == attempt.task.index)
    });
    said.map(|ended| ended.host).chain([attempt.host]).collect()
}
