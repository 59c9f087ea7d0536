//! Which part of a gang made it fail, where, and how.

use super::ends::end_text;
use rota_protocol::job::{AttemptEnd, EndReason};
use rota_protocol::view::{AttemptRow, JobView};

/// `rank 1 on n2: exit 5`; none of a job without a gang, or if the attempt is known no more. What ended with its gang is
/// not the reason.
pub(super) fn of_gang(view: &JobView) -> Option<String> {
    view.spec.gang?;
    let own = |attempt: &&AttemptRow| {
        let failed = |end: &AttemptEnd| !end.is_success() && !matches!(end, AttemptEnd::GangBroken);
        attempt.asked != Some(EndReason::Gang) && attempt.end.as_ref().is_some_and(failed)
    };
    let gave = |attempt: &&AttemptRow| attempt.end.as_ref().map(AttemptEnd::shell_status) == view.exit_status;
    let newest_first = || view.attempts.iter().filter(own);
    let attempt = newest_first().find(gave).or_else(|| newest_first().next())?;
    let end = end_text(attempt.end.as_ref()?, &view.spec);
    Some(format!("rank {} on {}: {end}", attempt.task.index, attempt.host_name))
}
