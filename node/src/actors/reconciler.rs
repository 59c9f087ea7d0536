//! Role: makes what runs on this host equal to what the log wants there, and tells the log what became of it.
//! Supervisor: root, which restarts it: desired is read from the state, running from the shims.
//!
//! The decisions are `logic::reconcile` and `logic::outbox`; this actor is their pump.

use super::order::order;
use super::returning::Returning;
use super::{attempt, stains, telling};
use crate::io::clock;
use crate::logic::attempts::end_word;
use crate::logic::cards::{Cards, Gate};
use crate::logic::gang;
use crate::logic::gather::Gather;
use crate::logic::outbox::Outbox;
use crate::logic::reconcile::{Action, Desired, Local, LocalState, reconcile};
use crate::node::Node;
use crate::shim::ShimNote;
use ractor::{Actor, ActorProcessingErr, ActorRef, SupervisionEvent};
use rota_protocol::care::Release;
use rota_protocol::ids::{DeviceUuid, HostId, JobId, Token};
use rota_protocol::job::AttemptEnd;
use rota_protocol::report::AttemptFact;
use rota_protocol::spool::ExitRecord;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// Pause before facts are told again that could not be.
const REPORT_PAUSE: Duration = Duration::from_millis(50);
/// How often both sides are compared although nothing says that they differ.
const TICK: Duration = Duration::from_millis(1_000);

/// What it is told.
pub enum Msg {
    /// The log's wishes or the lease changed.
    Wake,
    /// Time passed.
    Tick,
    /// Something happened to an attempt.
    Shim(ShimNote),
    /// The batch of reports under way was committed, or not.
    Reported(bool),
    /// Tell the log what waits.
    Tell,
    /// Tell the log something beside start and end.
    Beside(Token, AttemptFact),
    /// The cards of an attempt that is over are clean, but for these, which the log knows to be dirty.
    Returned(Token, Release, Vec<DeviceUuid>),
    /// The rest of them is clean too.
    Back(Token),
}

/// The reconciler actor.
pub struct Reconciler;

/// Both sides as far as known, and what is still to be told.
pub struct State {
    node: Arc<Node>,
    local: BTreeMap<Token, Local>,
    cards: Cards,
    actors: BTreeMap<Token, ActorRef<attempt::Msg>>,
    outbox: Outbox,
    gather: Gather,
    /// What parts of elastic gangs were told of their gangs.
    rosters: BTreeMap<Token, String>,
    /// What is over and whose cards the warden gives back: its end is told when they are.
    returning: Returning,
}

impl Actor for Reconciler {
    type Msg = Msg;
    type State = State;
    type Arguments = Arc<Node>;

    async fn pre_start(&self, myself: ActorRef<Msg>, node: Arc<Node>) -> Result<State, ActorProcessingErr> {
        let local = node.shims.locals();
        myself.send_interval(TICK, || Msg::Tick);
        myself.cast(Msg::Wake)?;
        let cards = Cards::default();
        let (actors, rosters) = (BTreeMap::new(), BTreeMap::new());
        Ok(State {
            node,
            local,
            cards,
            actors,
            outbox: Outbox::new(),
            gather: Gather::default(),
            rosters,
            returning: Returning::default(),
        })
    }

    async fn handle(
        &self,
        myself: ActorRef<Msg>,
        message: Msg,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        super::failpoint::hit("reconciler");
        match message {
            Msg::Wake => {
                state.node.doors.reconciler.answered();
                compare(&myself, state).await?;
            }
            Msg::Tick => {
                state.returning.ask_again(&state.node);
                compare(&myself, state).await?;
            }
            Msg::Shim(note) => took_note(state, note),
            Msg::Reported(true) => {
                state.outbox.committed();
            }
            Msg::Reported(false) => {
                state.outbox.failed();
                myself.send_after(REPORT_PAUSE, || Msg::Tell);
                return Ok(());
            }
            Msg::Tell => {}
            Msg::Beside(token, fact) => state.outbox.beside(token, fact),
            Msg::Returned(token, release, dirty) => returned(state, token, release, dirty),
            Msg::Back(token) => {
                state.returning.back(token);
                state.cards.left(token);
            }
        }
        tell_waiting(&myself, state);
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        myself: ActorRef<Msg>,
        event: SupervisionEvent,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        match event {
            SupervisionEvent::ActorFailed(cell, error) => {
                tracing::error!(%error, "an attempt's actor died; its shim is asked again");
                state.actors.retain(|_, actor| actor.get_id() != cell.get_id());
                state.local = state.node.shims.locals();
                myself.cast(Msg::Wake)?;
            }
            // Released: the token was taken out of the map when it was told to.
            SupervisionEvent::ActorTerminated(..) | SupervisionEvent::ActorStarted(_) => {}
            SupervisionEvent::ProcessGroupChanged(_) => {}
        }
        Ok(())
    }
}

fn took_note(state: &mut State, note: ShimNote) {
    match note {
        ShimNote::Started { token, pid } => {
            if let Some(local) = state.local.get_mut(&token)
                && matches!(local.state, LocalState::Launching)
            {
                local.state = LocalState::Running { pid };
            }
            state.outbox.started(token, pid);
        }
        ShimNote::Ended { record } => ended(state, record),
        ShimNote::LaunchFailed { token, reason } => {
            metrics::counter!(crate::meters::LAUNCHES_FAILED).increment(1);
            ended(state, ExitRecord::never_ran(token, AttemptEnd::LaunchFailed { reason }));
        }
        ShimNote::Stuck { token, left } => stains::stuck(&state.node, &state.cards, token, left),
        ShimNote::EpilogFailed { token, reason } => {
            stains::epilog_failed(&state.node, &state.cards, token, &reason);
        }
    }
}

fn ended(state: &mut State, mut record: ExitRecord) {
    record.end = state.node.end_of(record.token, record.end);
    let local =
        state.local.entry(record.token).or_insert(Local { state: LocalState::Launching, end_asked: None });
    if matches!(local.state, LocalState::Ended(_)) {
        return;
    }
    stains::gone(&state.node, record.token);
    state.node.data.over(record.token);
    metrics::counter!(crate::meters::OOM_KILLS).increment(u64::from(record.used.oom_kills));
    local.state = LocalState::Ended(record.clone());
    metrics::counter!(crate::meters::ATTEMPTS_ENDED, "end" => end_word(&record.end)).increment(1);
    stains::gone(&state.node, record.token);
    metrics::counter!(crate::meters::OUTPUT_DROPPED_BYTES).increment(record.dropped_bytes);
    tell_end(state, &record);
}

/// The end of an attempt is told when its cards are clean. Those of which no driver tells who is on them count as clean
/// with the last process.
fn tell_end(state: &mut State, record: &ExitRecord) {
    let token = record.token;
    if state.returning.is_pending(token) {
        return;
    }
    let cards = match record.end.unstarted() {
        Some(_) => Vec::new(),
        None => state.returning.cards_of(&state.node, &state.cards, token),
    };
    if cards.is_empty() {
        if !state.returning.is_done(token) {
            state.cards.left(token);
        }
        state.outbox.ended_with(token, record.end.clone(), record.ran_ms, record.used);
    } else {
        state.returning.begin(&state.node, record.clone(), cards);
    }
}

/// The warden has given the cards back.
fn returned(state: &mut State, token: Token, release: Release, dirty: Vec<DeviceUuid>) {
    let record = state.returning.finish(token, !dirty.is_empty());
    match dirty.is_empty() {
        true => state.cards.left(token),
        false => {
            tracing::error!(%token, ?release, "cards of an attempt are dirty");
            state.cards.left_dirty(token, dirty);
        }
    }
    // Else the log gave it up meanwhile, and is told nothing.
    if let Some(record) = record.filter(|_| state.local.contains_key(&token)) {
        state.outbox.beside(token, AttemptFact::Released { release });
        state.outbox.ended_with(token, record.end, record.ran_ms, record.used);
    }
}

async fn compare(myself: &ActorRef<Msg>, state: &mut State) -> Result<(), ActorProcessingErr> {
    let node = Arc::clone(&state.node);
    let (applied, desired, rosters) = node.consensus.read(|replica| {
        // Adopted attempts: which devices are they on?
        for (token, local) in &state.local {
            if !matches!(local.state, LocalState::Ended(_)) && !state.cards.knows(*token) {
                state.cards.taken(*token, replica.attempt(*token).map(|attempt| attempt.devices.clone()));
            }
        }
        let desired: Vec<Desired> = replica
            .attempts_on(node.host)
            .map(|attempt| Desired {
                token: attempt.token,
                epoch: attempt.epoch,
                state: attempt.state,
                end_reason: attempt.end_reason,
            })
            .collect();
        (replica.applied_index(), desired, elastic_rosters(replica, node.host))
    });
    let actions = {
        let lease = node.lease.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(own) = lease.as_ref() else { return Ok(()) };
        reconcile(&desired, &state.local, &own.holder, applied, clock::boottime_ms())
    };
    let live: BTreeSet<Token> = desired.iter().map(|attempt| attempt.token).collect();
    for action in actions {
        carry_out(myself, state, action, &live).await?;
    }
    tell_gangs(myself, state, rosters).await
}

/// The present lists of the elastic gangs that have parts here.
fn elastic_rosters(replica: &rota_core::State, host: HostId) -> Vec<(Token, String)> {
    let elastic = |job| {
        let spec = replica.job(job)?.spec.gang.filter(|gang| gang.is_elastic());
        spec.and_then(|_| gang::roster(replica, job))
    };
    // Many parts may be here, and the list is long: once for each gang.
    let mut known: BTreeMap<JobId, Option<String>> = BTreeMap::new();
    let parts = replica.attempts_on(host).filter(|attempt| attempt.in_gang);
    let with_roster = parts.filter_map(|part| {
        let roster = known.entry(part.task.job).or_insert_with(|| elastic(part.task.job));
        Some((part.token, roster.clone()?))
    });
    with_roster.collect()
}

/// Tells the parts that are here what changed in their gangs.
async fn tell_gangs(
    myself: &ActorRef<Msg>,
    state: &mut State,
    rosters: Vec<(Token, String)>,
) -> Result<(), ActorProcessingErr> {
    for (token, text) in rosters {
        let live = state.local.get(&token).is_some_and(|l| !matches!(l.state, LocalState::Ended(_)));
        if live && state.rosters.get(&token) != Some(&text) {
            actor(myself, state, token).await?.cast(attempt::Msg::Gang(text.clone()))?;
            state.rosters.insert(token, text);
        }
    }
    Ok(())
}

/// `live` is what the log has on this host.
async fn carry_out(
    myself: &ActorRef<Msg>,
    state: &mut State,
    action: Action,
    live: &BTreeSet<Token>,
) -> Result<(), ActorProcessingErr> {
    match action {
        Action::Launch(token) => {
            let order = match order(&state.node, token) {
                Some(Ok(order)) => order,
                Some(Err(reason)) => {
                    took_note(state, ShimNote::LaunchFailed { token, reason });
                    return Ok(());
                }
                None => return Ok(()),
            };
            if let Some(reason) = state.node.sick(&order.devices) {
                // Granted before the log heard of it: it goes back, and neither the job nor the host is blamed.
                ended(state, ExitRecord::never_ran(token, AttemptEnd::DeviceFault { reason }));
                return Ok(());
            }
            let patience_ms = u64::from(order.kill_budget_ms);
            match state.cards.gate(token, &order.devices, live, clock::boottime_ms(), patience_ms) {
                Gate::Open => state.cards.taken(token, Some(order.devices.clone())),
                // Looked at again with the next wake-up or tick.
                Gate::Wait => return Ok(()),
                Gate::Refuse(reason) => {
                    tracing::error!(%token, reason, "a grant bounced");
                    metrics::counter!(crate::meters::GRANTS_BOUNCED).increment(1);
                    took_note(state, ShimNote::LaunchFailed { token, reason });
                    return Ok(());
                }
            }
            state.local.insert(token, Local { state: LocalState::Launching, end_asked: None });
            actor(myself, state, token).await?.cast(attempt::Msg::Launch(Box::new(order)))?;
        }
        Action::End(token, reason) => {
            if let Some(local) = state.local.get_mut(&token) {
                local.end_asked = Some(reason);
            }
            actor(myself, state, token).await?.cast(attempt::Msg::End(reason))?;
        }
        Action::ReportStarted { token, pid } => state.outbox.started(token, pid),
        Action::ReportEnded(record) => {
            state.node.data.over(record.token);
            tell_end(state, &record);
            // Remembered as ended, so that the release below follows when the log has it.
            state
                .local
                .entry(record.token)
                .or_insert(Local { state: LocalState::Ended(record), end_asked: None });
        }
        Action::Release(token) => {
            state.local.remove(&token);
            // Cards that are not clean stay in the way of the next attempt, whatever the log says.
            if state.returning.release(token) {
                state.cards.left(token);
            }
            state.rosters.remove(&token);
            state.outbox.forget(token);
            actor(myself, state, token).await?.cast(attempt::Msg::Release)?;
            state.actors.remove(&token);
        }
    }
    Ok(())
}

async fn actor<'a>(
    myself: &ActorRef<Msg>,
    state: &'a mut State,
    token: Token,
) -> Result<&'a ActorRef<attempt::Msg>, ActorProcessingErr> {
    use std::collections::btree_map::Entry;
    Ok(match state.actors.entry(token) {
        Entry::Occupied(known) => known.into_mut(),
        Entry::Vacant(free) => {
            let args = (Arc::clone(&state.node), token);
            let (actor, _) = Actor::spawn_linked(None, attempt::Attempt, args, myself.get_cell()).await?;
            free.insert(actor)
        }
    })
}

/// Tells what waits, now or a little later.
fn tell_waiting(myself: &ActorRef<Msg>, state: &mut State) {
    let waiting = state.outbox.ready();
    if waiting == 0 {
        return;
    }
    let now_ms = clock::boottime_ms();
    match state.gather.pause_ms(waiting, state.local.len(), now_ms) {
        0 => {
            let Some(batch) = state.outbox.next_batch() else { return };
            state.gather.told(now_ms);
            telling::tell_log(myself, &state.node, batch);
        }
        pause_ms if state.gather.looks_again(now_ms + pause_ms, now_ms) => {
            myself.send_after(Duration::from_millis(pause_ms), || Msg::Tell);
        }
        _ => {}
    }
}
