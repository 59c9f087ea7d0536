//! Turns: work that goes on where it stopped gives its cards to other such work of its queue, or moves to another
//! model. Which of them gains by it is the planner's to say; here stands what it may never do.

use super::Eviction;
use super::gain::{Going, Then};
use crate::apply::start;
use crate::state::State;
use crate::state::attempt::Attempt;
use crate::state::job::Job;
use crate::state::speeds;
use rota_protocol::pace::Turns;
use rota_protocol::plan::Refusal;
use rota_protocol::{HostId, Token};
use std::collections::BTreeSet;

/// Shortest turn, in ms: what was granted runs for so long before its turn may end, so that starts and checkpoints stay
/// a small part of it.
pub const RUN_MS_MIN: u64 = 180_000;

/// A victim has had its turn, and who comes is one of its own kind: of its queue, not below it, and taking turns.
pub(super) fn may_end(state: &State, beneficiary: Option<&Job>, victim: &Attempt, now_ms: u64) -> bool {
    let turns = |job: &Job| {
        let off = state.queues.path(job.queue).any(|queue| queue.spec.turns == Turns::Off);
        job.spec.takes_turns() && !off
    };
    let its_own = state.job(victim.task.job).is_some_and(turns);
    let others = beneficiary
        .is_some_and(|job| turns(job) && job.queue == victim.queue && job.priority >= victim.priority);
    victim.preemptible && its_own && others && now_ms >= victim.granted_ms.saturating_add(RUN_MS_MIN)
}

/// A job that runs goes on in the slots: all of it, on another model, and in room that is there once it and the other
/// victims are gone.
pub(super) fn moves(
    state: &State,
    job: &Job,
    one: &Eviction<'_>,
    victims: &[&Attempt],
    now_ms: u64,
) -> Result<(), Refusal> {
    let ask = job.spec.ask_at(one.choice).ok_or(Refusal::DoesNotFit)?;
    let own: Vec<&Attempt> = state.attempts_of(job.id).collect();
    let tokens: BTreeSet<Token> = victims.iter().map(|victim| victim.token).collect();
    if one.slots.len() != own.len() || own.iter().any(|attempt| !tokens.contains(&attempt.token)) {
        return Err(Refusal::GangSize);
    }
    if job.held || job.cancel_asked || job.gang_ending || now_ms < job.earliest_ms() {
        return Err(Refusal::NotYet);
    }
    if one.slots.iter().any(|slot| start::is_reserved(state, job, slot.host, now_ms)) {
        return Err(Refusal::Reserved);
    }
    let model = |host: HostId, devices: &[_]| {
        let host = state.host(host)?;
        speeds::one_model(devices.iter().filter_map(|uuid| host.device(uuid)))
    };
    let here: BTreeSet<Option<&str>> = own.iter().map(|a| model(a.host, &a.devices)).collect();
    if one.slots.iter().any(|slot| here.contains(&model(slot.host, &slot.devices))) {
        return Err(Refusal::NotEvictable);
    }
    let then = Then::of(state, job, one.slots);
    let going = Going { victims, tokens: &tokens };
    let gained = then.room(ask, one.slots, going, now_ms)?;
    then.quota(&gained, going)?;
    let hosts: BTreeSet<HostId> = one.slots.iter().map(|slot| slot.host).collect();
    let in_vain =
        |victim: &&Attempt| victim.task.job != job.id && !victim.in_gang && !hosts.contains(&victim.host);
    if victims.iter().any(in_vain) { Err(Refusal::NotEvictable) } else { Ok(()) }
}
