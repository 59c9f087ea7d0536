//! Promise: a waiting job is told by when it starts, and where. A promise only ever moves to an earlier start, unless
//! the planner names what broke it.

use super::{Event, Step, start};
use crate::fit::{self, Want};
use crate::state::State;
use crate::state::host::Used;
use crate::state::job::Promise;
use rota_protocol::JobId;
use rota_protocol::limits::GANG_PARTS_MAX;
use rota_protocol::plan::{PromiseBreak, Refusal, Slot};

pub(super) fn promise(
    state: &mut State,
    step: &mut Step,
    id: JobId,
    at_ms: u64,
    slots: &[Slot],
    choice: u8,
    broken_by: Option<PromiseBreak>,
) -> Result<(), Refusal> {
    let job = state.job(id).filter(|job| job.is_ready()).ok_or(Refusal::NotPending)?;
    let ask = job.spec.ask_at(choice).ok_or(Refusal::DoesNotFit)?;
    if slots.len() > GANG_PARTS_MAX as usize {
        return Err(Refusal::GangSize);
    }
    start::check_count(job, slots.len())?;
    // Not now, but once nothing else runs there: else it is no promise.
    let want = Want::of(job, ask);
    for slot in slots {
        let host = state.host(slot.host).ok_or(Refusal::HostGone)?;
        fit::takes(host, &Used::default(), want, &slot.devices, step.now_ms).map_err(start::refusal)?;
    }
    let later = job.promise.as_ref().is_some_and(|old| at_ms > old.at_ms);
    if later && broken_by.is_none() {
        return Err(Refusal::NotYet);
    }
    let made_ms = match &job.promise {
        Some(old) if !later => old.made_ms,
        _ => step.now_ms,
    };
    let known = job.promise.as_ref().and_then(|old| old.broken_by);
    // What is being ended for these slots is so whatever time is named for them.
    let same = |old: &Promise| old.slots == slots && old.choice == choice;
    let evicting = job.promise.as_ref().is_some_and(|old| old.evicting && same(old));
    let promise =
        Promise { at_ms, made_ms, slots: slots.to_vec(), choice, evicting, broken_by: broken_by.or(known) };
    state.jobs.update(id, step.now_ms, |job| job.promise = Some(Box::new(promise)));
    step.note(Event::JobChanged(id));
    Ok(())
}
