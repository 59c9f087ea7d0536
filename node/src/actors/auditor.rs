//! Role: the truth checker. Compares what the log says of this host with its shims and its cards once a second, counts
//! what lasts, and shows what differs now. Supervisor: root, which restarts it. It repairs nothing.

use crate::io::clock;
use crate::logic::audit::{Audit, Here, Logged, Sides, differences};
use crate::logic::ledger::{Ledger, Standing};
use crate::logic::reconcile::LocalState;
use crate::meters;
use crate::node::Node;
use ractor::{Actor, ActorProcessingErr, ActorRef};
use rota_consensus::Difference;
use rota_protocol::device::{DeviceFacts, DeviceHealth};
use rota_protocol::job::AttemptState;
use rota_protocol::{DeviceUuid, Token};
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// How often both sides are compared.
const TICK: Duration = Duration::from_millis(1_000);

/// Most processes that are looked at in one second: 256 cost about 3 ms.
const PROCESSES_MAX: usize = 256;

/// What it is told.
pub enum Msg {
    /// Time passed.
    Tick,
}

/// The auditor actor.
pub struct Auditor;

/// What it needs.
pub struct State {
    node: Arc<Node>,
    audit: Audit,
    turn: usize,
    ledger: Ledger,
    /// Copies of the state that differ, as they were told last.
    copies: Option<Difference>,
}

impl Actor for Auditor {
    type Msg = Msg;
    type State = State;
    type Arguments = Arc<Node>;

    async fn pre_start(&self, myself: ActorRef<Msg>, node: Arc<Node>) -> Result<State, ActorProcessingErr> {
        myself.send_interval(TICK, || Msg::Tick);
        Ok(State { node, audit: Audit::default(), turn: 0, ledger: Ledger::default(), copies: None })
    }

    async fn handle(
        &self,
        _: ActorRef<Msg>,
        Msg::Tick: Msg,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        super::failpoint::hit("auditor");
        state.turn = state.turn.wrapping_add(1);
        let node = &state.node;
        // This host first: what starts between the two looks is then younger than the state.
        let sides = look(node, state.turn);
        let now_ms = clock::boottime_ms();
        for difference in state.audit.looked(differences(&sides), is_leased(node, now_ms), now_ms) {
            match difference.is_violation() {
                true => tracing::error!(%difference, "log and host differ: report this as a bug"),
                false => tracing::warn!(%difference, "a task is where it may not be"),
            }
            if difference.is_violation() {
                metrics::counter!(meters::VIOLATIONS, "law" => difference.id()).increment(1);
            }
        }
        state.ledger.stands(&standings(node), now_ms);
        for (standing, spent_ms) in state.ledger.spent_ms() {
            metrics::counter!(meters::CARD_SECONDS, "standing" => standing.word()).absolute(spent_ms / 1_000);
        }
        for card in state.ledger.unbalanced() {
            tracing::error!(%card, "card time does not add up: report this as a bug");
            metrics::counter!(meters::VIOLATIONS, "law" => "CardTimeUnbalanced").increment(1);
        }
        let copies = node.consensus.differs().borrow().clone();
        if let Some(difference) = copies.as_ref().filter(|now| state.copies.as_ref() != Some(now)) {
            tracing::error!(%difference, "copies of the state differ: report this as a bug");
            metrics::counter!(meters::VIOLATIONS, "law" => "CopiesDiffer").increment(1);
        }
        state.copies = copies;
        for (id, count) in state.audit.counts() {
            metrics::gauge!(meters::DRIFT, "kind" => id).set(f64::from(count));
        }
        Ok(())
    }
}

/// How the cards stand by the log.
fn standings(node: &Node) -> BTreeMap<DeviceUuid, Standing> {
    node.consensus.read(|replica| {
        let Some(host) = replica.host(node.host) else { return BTreeMap::new() };
        let standing = |device: &DeviceFacts| match &device.health {
            _ if host.used.devices.contains_key(&device.uuid) => Standing::Granted,
            DeviceHealth::Healthy => Standing::Idle,
            DeviceHealth::Dirty { .. } => Standing::Dirty,
            _ => Standing::Down,
        };
        host.facts.devices.iter().map(|device| (device.uuid.clone(), standing(device))).collect()
    })
}

/// The log's copy here is at most as old as the lease.
fn is_leased(node: &Node, now_ms: u64) -> bool {
    let lease = node.lease.lock().unwrap_or_else(PoisonError::into_inner);
    lease.as_ref().and_then(|own| own.holder.deadline_ms()).is_some_and(|deadline_ms| now_ms < deadline_ms)
}

fn look(node: &Node, turn: usize) -> Sides {
    let locals = node.shims.locals();
    let shims: BTreeMap<Token, i32> =
        node.shims.shim_pids().into_iter().map(|(pid, token)| (token, pid)).collect();
    // A host with thousands of tasks looks at some of them each second.
    let parts = shims.len().div_ceil(PROCESSES_MAX).max(1);
    let lives = |token: Token| {
        let now = usize::try_from(token.0 % parts as u64).is_ok_and(|part| part == turn % parts);
        let shim = shims.get(&token).filter(|_| now);
        shim.is_none_or(|pid| crate::io::proc::stat(*pid).is_ok_and(|stat| stat.state != b'Z'))
    };
    let here = locals.into_iter().map(|(token, local)| {
        let here = match local.state {
            LocalState::Launching => Here::Launching,
            LocalState::Running { .. } => Here::Running { shim: lives(token) },
            LocalState::Ended(_) => Here::Ended,
        };
        (token, (here, local.end_asked.is_some()))
    });
    let mut sides = Sides {
        here: here.collect(),
        closed: node.marks.lock().unwrap_or_else(PoisonError::into_inner).keys().cloned().collect(),
        on_cards: node.on_cards.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        ..Sides::default()
    };
    node.consensus.read(|replica| {
        sides.applied = replica.applied_index();
        sides.logged = replica
            .attempts_on(node.host)
            .map(|attempt| {
                let running = attempt.state == AttemptState::Running;
                let (devices, shares) = (attempt.devices.clone(), attempt.shares_card());
                (attempt.token, Logged { running, devices, shares })
            })
            .collect();
        let facts = replica.host(node.host).map(|host| Arc::clone(&host.facts));
        let devices = facts.iter().flat_map(|facts| &facts.devices);
        sides.healthy =
            devices.filter(|device| device.health.is_healthy()).map(|device| device.uuid.clone()).collect();
    });
    sides
}
