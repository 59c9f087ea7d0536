//! The shape of the work: gangs, dependencies, times, queue, warning. Only what the spec alone can tell.

use super::check_name;
use crate::explain::span;
use rota_protocol::PublicError;
use rota_protocol::job::JobSpec;
use rota_protocol::limits::{ALTERNATIVES_MAX, DEPENDENCIES_MAX, GANG_PARTS_MAX, WARN_MS_MAX};
use rota_protocol::queue::is_queue_name;
use rota_protocol::work::Layout;
use std::collections::BTreeSet;

/// Highest signal of the kernel (`SIGRTMAX`).
const SIGNAL_MAX: u8 = 64;

/// Checks all but the asks.
///
/// # Errors
/// The first field at fault.
pub(super) fn check(spec: &JobSpec) -> Result<(), PublicError> {
    check_gang(spec)?;
    check_after(spec)?;
    check_times(spec)?;
    check_name("queue", &spec.queue)?;
    if !spec.queue.is_empty() && !is_queue_name(&spec.queue) {
        let message = format!("'{}' is no queue's path", spec.queue);
        return Err(PublicError::invalid("queue", message, "research/vision"));
    }
    if spec.alternatives.len() > ALTERNATIVES_MAX {
        let message = format!("{} further asks are above {ALTERNATIVES_MAX}", spec.alternatives.len());
        return Err(PublicError::invalid("alternatives", message, "1 alternative"));
    }
    if let Some(warning) = spec.warning {
        if warning.signal == 0 || warning.signal > SIGNAL_MAX {
            let message = format!("{} is no signal", warning.signal);
            return Err(PublicError::invalid("warn", message, "USR1@60s"));
        }
        if warning.before_ms > WARN_MS_MAX {
            let message = format!("{} ms is above one day", warning.before_ms);
            return Err(PublicError::invalid("warn", message, "USR1@60s"));
        }
    }
    if spec.requeue_status == Some(0) {
        let message = "exit status 0 means success, it cannot ask for another run";
        return Err(PublicError::invalid("requeue_status", message, "75"));
    }
    if spec.session.is_some() && (spec.array.is_some() || spec.gang.is_some() || spec.service) {
        let message = "a terminal is for one task, not for an array, a gang or a service";
        return Err(PublicError::invalid("pty", message, "rota run --pty -- bash"));
    }
    if spec.service && spec.array.is_some() {
        let message = "a service is one task or one gang, not an array";
        return Err(PublicError::invalid("service", message, "without array"));
    }
    Ok(())
}

fn check_gang(spec: &JobSpec) -> Result<(), PublicError> {
    let Some(gang) = spec.gang else {
        return Ok(());
    };
    if spec.array.is_some() {
        let message = "a job is an array or a gang, not both";
        return Err(PublicError::invalid("gang", message, "several gang jobs"));
    }
    if gang.min == 0 || gang.max < gang.min {
        let message = format!("{}..{} parts", gang.min, gang.max);
        return Err(PublicError::invalid("gang", message, "4, or 2..4"));
    }
    if gang.max > GANG_PARTS_MAX {
        let message = format!("{} parts are above {GANG_PARTS_MAX}", gang.max);
        return Err(PublicError::invalid("gang", message, "4"));
    }
    if spec.layout == Layout::SameHost && !spec.alternatives.is_empty() {
        let message = "parts on one host have one ask";
        return Err(PublicError::invalid("alternatives", message, "none"));
    }
    Ok(())
}

fn check_after(spec: &JobSpec) -> Result<(), PublicError> {
    if spec.after.len() > DEPENDENCIES_MAX {
        let message = format!("{} jobs are above {DEPENDENCIES_MAX}", spec.after.len());
        return Err(PublicError::invalid("after", message, "ok:17"));
    }
    let mut seen = BTreeSet::new();
    for parent in &spec.after {
        if parent.job.0 == 0 {
            return Err(PublicError::invalid("after", "there is no job 0", "ok:17"));
        }
        if !seen.insert((parent.job, parent.relation, parent.each)) {
            let message = format!("{}:{} is named twice", parent.relation, parent.job);
            return Err(PublicError::invalid("after", message, "ok:17"));
        }
        if parent.each && spec.array.is_none() {
            let message = format!("element by element after job {}, but this is no array", parent.job);
            return Err(PublicError::invalid("after", message, "array=0-9 after=each-ok:17"));
        }
    }
    Ok(())
}

fn check_times(spec: &JobSpec) -> Result<(), PublicError> {
    if let (Some(begin_ms), Some(deadline_ms)) = (spec.begin_ms, spec.deadline_ms)
        && deadline_ms <= begin_ms
    {
        let message = match begin_ms - deadline_ms {
            0 => "is the begin itself: nothing could start".to_owned(),
            before_ms => format!("lies {} before the begin: nothing could start", span(before_ms)),
        };
        return Err(PublicError::invalid("deadline", message, "now+2h"));
    }
    Ok(())
}
