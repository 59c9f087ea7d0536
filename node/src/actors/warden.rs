//! Role: knows who is on this host's cards: gives cards back clean, marks those that strangers use, ends who takes too
//! much of a shared one, warns who holds cards idle, keeps sharing daemons and declared slices. Supervisor: root, which
//! restarts it; the reconciler asks again for cards that are on their way back, all else is seen anew.
//!
//! The decisions are `logic::duty`; this actor is its pump. It asks no driver: looks come from the devices actor.

use super::{devices, reconciler};
use crate::io::clock;
use crate::logic::duty::{Do, Duty, Granted, Rules};
use crate::logic::reclaim::Left;
use crate::meters;
use crate::node::Node;
use crate::warden::look::{self, RawLook};
use crate::warden::openers::{self, Nodes};
use crate::warden::settings::{Outside, OverVram};
use crate::warden::sides::{mps_cards, on_cards, read_log, series};
use crate::warden::whose::Roots;
use crate::warden::{mig, scrub};
use ractor::{Actor, ActorProcessingErr, ActorRef};
use rota_protocol::care::HostCause;
use rota_protocol::command::{Command, Proposal};
use rota_protocol::device::DeviceFacts;
use rota_protocol::job::Actor as Author;
use rota_protocol::report::AttemptFact;
use rota_protocol::{DeviceUuid, RequestId, Token};
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// Between two looks while cards are on their way back.
const HURRY: Duration = Duration::from_millis(250);
/// How long the ends that it asks for may take to commit.
const END_DEADLINE: Duration = Duration::from_millis(5_000);
/// Between two looks at what tasks use of the processor: dearer than a look at a card, and never urgent.
const GROUP_EVERY_MS: u64 = 10_000;
/// Slack in what is said of an attempt's start, in ms.
const START_SLACK_MS: u64 = 5_000;

/// What it is told.
pub enum Msg {
    /// A look at the cards, and the devices as the drivers say.
    Looked(Arc<RawLook>, Arc<Vec<DeviceFacts>>),
    /// The last process of an attempt is gone; it ran so long, in ms.
    GiveBack(Token, Vec<DeviceUuid>, u64),
    /// Who has the nodes of an attempt's cards open.
    Opened(Token, BTreeMap<DeviceUuid, Vec<Left>>),
    /// A scrub has ended.
    Scrubbed(Token, DeviceUuid, Result<(), String>),
    /// Ask for another look.
    Hurry,
}

/// The warden actor.
pub struct Warden;

/// What it knows.
pub struct State {
    node: Arc<Node>,
    duty: Duty,
    rules: Rules,
    raw: Arc<RawLook>,
    /// When attempts whose cards come back began, in clock ticks since boot.
    began_ticks: BTreeMap<Token, u64>,
    /// Processor time and bytes of tasks, and when they were looked at.
    groups: BTreeMap<Token, (u64, u64)>,
    groups_ms: u64,
    /// When slices of a card were last made.
    slices_ms: BTreeMap<String, u64>,
    hurrying: bool,
    /// Processes of sharing daemons.
    daemons: Vec<i32>,
}

impl Actor for Warden {
    type Msg = Msg;
    type State = State;
    type Arguments = Arc<Node>;

    async fn pre_start(&self, _: ActorRef<Msg>, node: Arc<Node>) -> Result<State, ActorProcessingErr> {
        let settings = &node.config.sharing;
        let rules = Rules {
            outside_allowed: settings.outside == Outside::Allow,
            scrubs: !settings.scrub.is_empty(),
            vram_warns: settings.over_vram == OverVram::Warn,
            vram_slack_mib: settings.vram_slack_mib,
        };
        Ok(State {
            node,
            duty: Duty::default(),
            rules,
            raw: Arc::default(),
            began_ticks: BTreeMap::new(),
            groups: BTreeMap::new(),
            groups_ms: 0,
            slices_ms: BTreeMap::new(),
            hurrying: false,
            daemons: Vec::new(),
        })
    }

    async fn handle(
        &self,
        myself: ActorRef<Msg>,
        message: Msg,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        super::failpoint::hit("warden");
        match message {
            Msg::Looked(raw, devices) => {
                state.raw = raw;
                keep_slices(state, &devices);
                round(&myself, state, true).await;
            }
            Msg::GiveBack(token, cards, ran_ms) => {
                let now_ms = clock::boottime_ms();
                let began_ms = now_ms.saturating_sub(ran_ms.saturating_add(START_SLACK_MS));
                // A hundredth of a second is a tick.
                state.began_ticks.entry(token).or_insert(began_ms / 10);
                state.duty.give_back(token, &cards, state.rules, now_ms);
                ask_for_look(&state.node);
            }
            Msg::Opened(token, found) => {
                state.duty.opened(token, found);
                round(&myself, state, false).await;
            }
            Msg::Scrubbed(token, card, result) => {
                state.duty.scrubbed(token, &card, result, clock::boottime_ms());
                publish_marks(state);
                ask_for_look(&state.node);
            }
            Msg::Hurry => {
                state.hurrying = false;
                ask_for_look(&state.node);
            }
        }
        if state.duty.is_hurried() && !state.hurrying {
            state.hurrying = true;
            myself.send_after(HURRY, || Msg::Hurry);
        }
        Ok(())
    }
}

fn ask_for_look(node: &Node) {
    node.doors.devices.send(devices::Msg::LookNow);
}

/// One round over the last look; of one that was looked at before only what is on its way back.
async fn round(myself: &ActorRef<Msg>, state: &mut State, fresh: bool) {
    let node = Arc::clone(&state.node);
    // While a daemon is being started nobody waits for it here.
    if let Ok(sharing) = node.mps.try_lock() {
        state.daemons = sharing.pids();
    }
    let roots = Roots {
        shims: node.shims.shim_pids(),
        ours: state.daemons.clone(),
        watchers: node.config.sharing.watchers.clone(),
    };
    let (mut log, closed, through_mps) = read_log(&node);
    let now_ms = clock::boottime_ms();
    look_at_groups(state, &roots, &log, now_ms).await;
    for (token, granted) in &mut log {
        let group = state.groups.get(token).copied();
        (granted.cpu_ms, granted.io_bytes) = (group.map(|(cpu, _)| cpu), group.map(|(_, io)| io));
    }
    let raw = Arc::clone(&state.raw);
    let cards = match raw.values().any(|card| card.processes.as_ref().is_some_and(|all| !all.is_empty())) {
        true => {
            let raw = Arc::clone(&raw);
            tokio::task::spawn_blocking(move || look::attribute(&raw, &roots)).await.unwrap_or_default()
        }
        false => look::attribute(&raw, &roots),
    };
    let times = (now_ms, clock::wall_ms());
    let rules = state.rules;
    let mut todo = match fresh {
        true => state.duty.looked(&cards, &log, &closed, rules, times),
        false => state.duty.look_for_returns(&cards, &log, &closed, rules, now_ms),
    };
    if let Ok(mut sharing) = node.mps.try_lock() {
        for (card, tokens) in &through_mps {
            if !sharing.lives(card) {
                todo.extend(tokens.iter().map(|token| Do::End(*token, HostCause::SharedFault)));
            }
        }
        sharing.keep_only(&mps_cards(&node));
    }
    *node.job_series.write().unwrap_or_else(PoisonError::into_inner) = series(&cards, &log);
    node.on_cards_now(on_cards(&cards));
    publish_marks(state);
    carry_out(myself, state, todo);
}

/// What tasks on cards that can be looked at use of the processor, now and then.
async fn look_at_groups(state: &mut State, roots: &Roots, log: &BTreeMap<Token, Granted>, now_ms: u64) {
    if now_ms.saturating_sub(state.groups_ms) < GROUP_EVERY_MS {
        return;
    }
    state.groups_ms = now_ms;
    let watched = |token: &Token| {
        log.get(token).is_some_and(|granted| granted.devices.iter().any(|uuid| state.raw.contains_key(uuid)))
    };
    let shims: BTreeMap<i32, Token> =
        roots.shims.iter().filter(|(_, token)| watched(token)).map(|(pid, token)| (*pid, *token)).collect();
    state.groups = match shims.is_empty() {
        true => BTreeMap::new(),
        false => tokio::task::spawn_blocking(move || look::group_use(&shims)).await.unwrap_or_default(),
    };
}

fn publish_marks(state: &State) {
    let marks = state.duty.marks(state.rules);
    let changed = {
        let mut shown = state.node.marks.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = *shown != marks;
        *shown = marks;
        changed
    };
    if changed {
        state.node.doors.devices.send(devices::Msg::Marks);
    }
}

fn carry_out(myself: &ActorRef<Msg>, state: &mut State, todo: Vec<Do>) {
    let node = &state.node;
    let tell = |token, fact| node.doors.reconciler.send(reconciler::Msg::Beside(token, fact));
    let mut ends = Vec::new();
    for one in todo {
        match one {
            Do::Note(token, text) => {
                tracing::warn!(%token, text, "an attempt's owner is told");
                tell(token, AttemptFact::Noted { text });
            }
            Do::Idle(token, gpu_ms) => {
                tell(token, AttemptFact::HeldIdle { gpu_ms });
            }
            Do::End(token, cause) => {
                tracing::warn!(%token, ?cause, "an attempt's end is asked for");
                ends.push((token, cause));
            }
            Do::LookAtNodes(token, card) => {
                let since = state.began_ticks.get(&token).copied().unwrap_or(0);
                look_at_nodes(myself, state, token, card, since);
            }
            Do::Scrub(token, card) => scrub_card(myself, state, token, card),
            Do::Returned(token, release, left) => {
                state.began_ticks.remove(&token);
                let took_s = Duration::from_millis(release.took_ms).as_secs_f64();
                metrics::histogram!(meters::RELEASE_SECONDS).record(took_s);
                node.doors.reconciler.send(reconciler::Msg::Returned(token, release, left));
            }
            Do::Back(token) => {
                tracing::info!(%token, "cards that were dirty are clean");
                node.doors.reconciler.send(reconciler::Msg::Back(token));
            }
        }
    }
    if !ends.is_empty() {
        ask_for_ends(Arc::clone(node), ends);
    }
}

fn ask_for_ends(node: Arc<Node>, ends: Vec<(Token, HostCause)>) {
    tokio::spawn(async move {
        let command = Command::EndOwn { host: node.host, ends };
        let proposal = Proposal { request: RequestId::NONE, actor: Author::system(), command };
        if let Err(error) = node.consensus.propose(vec![proposal], END_DEADLINE).await {
            // Seen again at a later look, if it is still so.
            tracing::warn!(%error, "ends were not committed");
        }
    });
}

fn look_at_nodes(myself: &ActorRef<Msg>, state: &State, token: Token, card: DeviceUuid, since: u64) {
    let nodes = state.raw.get(&card).map(|card| card.nodes.clone()).unwrap_or_default();
    let settings = state.node.config.sharing.clone();
    let myself = myself.clone();
    tokio::task::spawn_blocking(move || {
        let nodes: Nodes = nodes.into_iter().map(|node| (node, card.clone())).collect();
        let mut found = openers::openers(&nodes, since, &settings).unwrap_or_default();
        // A card whose node is not known has nothing that could be open.
        found.entry(card).or_default();
        // Its successor is asked anew.
        let _ = myself.cast(Msg::Opened(token, found));
    });
}

fn scrub_card(myself: &ActorRef<Msg>, state: &State, token: Token, card: DeviceUuid) {
    let settings = state.node.config.sharing.clone();
    let myself = myself.clone();
    tokio::spawn(async move {
        // Checked when the settings were read.
        let deadline = settings.scrub_deadline().unwrap_or(HURRY);
        let result = scrub::scrub(&settings.scrub, std::slice::from_ref(&card), deadline).await;
        if let Err(why) = &result {
            tracing::error!(%card, why, "a card could not be scrubbed");
        }
        let _ = myself.cast(Msg::Scrubbed(token, card, result));
    });
}

/// Makes declared slices of cards on which nothing runs, now and then.
fn keep_slices(state: &mut State, devices: &[DeviceFacts]) {
    let node = &state.node;
    let now_ms = clock::boottime_ms();
    for lack in mig::lacking(&node.config.sharing, devices) {
        let due = state.slices_ms.get(&lack.bus).is_none_or(|at| now_ms.saturating_sub(*at) >= mig::RETRY_MS);
        let on_card = |uuid: &DeviceUuid| {
            let device = devices.iter().find(|device| device.uuid == *uuid);
            device.is_none_or(|d| d.bus.as_deref().is_some_and(|bus| mig::same_bus(bus, &lack.bus)))
        };
        let busy = node.consensus.read(|replica| {
            replica.attempts_on(node.host).any(|attempt| attempt.devices.iter().any(on_card))
        });
        if !due || busy {
            continue;
        }
        state.slices_ms.insert(lack.bus.clone(), now_ms);
        let node = Arc::clone(node);
        tokio::spawn(async move {
            match mig::make(&node.config.sharing.nvidia_smi, &lack).await {
                Ok(()) => tracing::info!(card = lack.bus, "declared slices were made"),
                Err(why) => tracing::error!(card = lack.bus, why, "declared slices cannot be made"),
            }
            ask_for_look(&node);
        });
    }
}
