//! How an attempt ended, for people, with what its job could ask for instead.

use rota_protocol::job::{AttemptEnd, EndReason, JobSpec};

/// The end in words; of one that was ended for memory that its job never asked for, also how more is asked for.
#[must_use]
pub fn end_text(end: &AttemptEnd, spec: &JobSpec) -> String {
    let none_asked = spec.asks().all(|ask| ask.mem_mib == 0);
    match end {
        AttemptEnd::OutOfMemory { limit_mib, .. } if none_asked => {
            // Twice as much, in whole GiB: whether that is enough nobody knows.
            let gib = limit_mib.saturating_mul(2).div_ceil(1_024).max(1);
            format!("{end}, its part of the host since none was asked: --mem {gib}G asks for more")
        }
        _ => end.to_string(),
    }
}

/// The same of an attempt whose end was asked: what was to make room is told apart.
#[must_use]
pub fn ended_text(end: &AttemptEnd, asked: Option<EndReason>, spec: &JobSpec) -> String {
    let word = match (end, asked) {
        (AttemptEnd::Preempted, Some(EndReason::Drain)) => "drained: its host was to be empty",
        (AttemptEnd::Preempted, Some(EndReason::Move)) => "moved to make room in one piece",
        (AttemptEnd::Preempted, Some(EndReason::Reclaim)) => "preempted: taken back by a guarantee",
        (AttemptEnd::Preempted, Some(EndReason::Ceiling)) => "ended: its queue was above its ceiling",
        (AttemptEnd::Preempted, Some(EndReason::Turn)) => "ended: its turn was over",
        _ => return end_text(end, spec),
    };
    word.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rota_protocol::ask::Ask;

    #[test]
    fn who_asked_for_no_memory_is_told_how_to() {
        let end = AttemptEnd::OutOfMemory { limit_mib: 2_048, peak_mib: 2_048 };
        let none = JobSpec::default();
        let text = "out of memory: used 2048 MiB of 2048 MiB, its part of the host since none was asked: --mem 4G asks \
                    for more";
        assert_eq!(end_text(&end, &none), text);
        let asked = JobSpec { ask: Ask { mem_mib: 2_048, ..Ask::default() }, ..JobSpec::default() };
        assert_eq!(end_text(&end, &asked), end.to_string());
        let plain = AttemptEnd::Exited { code: 3 };
        assert_eq!(end_text(&plain, &none), "exit 3");
    }

    #[test]
    fn what_was_drained_is_not_called_preempted() {
        let text = |asked| ended_text(&AttemptEnd::Preempted, asked, &JobSpec::default());
        assert!(text(Some(EndReason::Drain)).starts_with("drained"));
        assert_eq!(text(Some(EndReason::Preempt)), "preempted");
        assert_eq!(text(None), "preempted");
    }
}
