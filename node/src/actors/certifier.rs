//! Role: keeps this host's certificate young and its authorities those of the cluster. Supervisor: root, which restarts it:
//! all that it knows is in the state and in the files.
//!
//! It renews with the authority's key that this host holds, so it needs no one; it then makes connections anew, none is
//! cut. A change of authorities is followed stage by stage (`rota_core::state::trust`); the leader ends a stage once all have
//! done their part. A host that finds itself revoked ends.

use super::root::end_process;
use crate::io::clock;
use crate::logic::renewal::{Due, Moment, Renewal};
use crate::meters;
use crate::net::{Identity, PeerLink, Trusted};
use crate::node::Node;
use ractor::{Actor, ActorProcessingErr, ActorRef};
use rota_protocol::command::{Command, Outcome, Proposal};
use rota_protocol::ids::{HostId, RequestId};
use rota_protocol::job::Actor as Author;
use rota_protocol::peer::{PeerReply, PeerRequest};
use rota_protocol::trust::{CaStage, Print, TrustChange};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// How often it looks: a sixtieth of the shortest third of a life that is allowed would be less.
const TICK_MS: u64 = 500;
/// How long a step of it may take to commit.
const STEP_DEADLINE: Duration = Duration::from_secs(2);
/// How long a peer may take to give an authority's key.
const KEY_DEADLINE: Duration = Duration::from_secs(2);
/// A renewal that failed is tried again, and told, this often.
const RETRY_MS: u64 = 10_000;
/// So many hosts are asked for a key at one look.
const KEY_TRIES: usize = 5;
/// The end of the authority is told from so many days before on, each day.
const AUTHORITY_DAYS: u64 = 90;
const DAY_MS: u64 = 24 * 3_600_000;
/// Refused joins become one line of the audit log at most this often.
const SEEN_MS: u64 = 60_000;

/// What it is told.
pub enum Msg {
    /// Time passed.
    Tick,
    /// Whom the cluster trusts has changed.
    Changed,
}

/// The certifier actor.
pub struct Certifier;

/// What it needs.
pub struct State {
    node: Arc<Node>,
    life: Duration,
    renewal: Renewal,
    /// Boot time of the last failure, of the last line about guesses.
    failed_ms: Option<u64>,
    seen_ms: Option<u64>,
    guesses: u32,
    /// Boot time of the end of the last look.
    looked_ms: u64,
    /// The last trouble told, so that each is told once.
    told: String,
}

impl Actor for Certifier {
    type Msg = Msg;
    type State = State;
    type Arguments = Arc<Node>;

    async fn pre_start(&self, myself: ActorRef<Msg>, node: Arc<Node>) -> Result<State, ActorProcessingErr> {
        let life = node.config.certificates.life()?;
        let renewal = watch_over(&node.net.identity(), life);
        myself.send_interval(Duration::from_millis(TICK_MS), || Msg::Tick);
        Ok(State {
            node,
            life,
            renewal,
            failed_ms: None,
            seen_ms: None,
            guesses: 0,
            looked_ms: 0,
            told: String::new(),
        })
    }

    async fn handle(
        &self,
        _: ActorRef<Msg>,
        message: Msg,
        state: &mut State,
    ) -> Result<(), ActorProcessingErr> {
        super::failpoint::hit("certifier");
        match message {
            Msg::Changed => state.node.doors.certifier.answered(),
            // What came while the last look waited for a quorum is one look's worth.
            Msg::Tick if clock::boottime_ms() < state.looked_ms + TICK_MS / 2 => return Ok(()),
            Msg::Tick => {}
        }
        end_if_revoked(&state.node);
        renew(state);
        warn_of_the_authority(state);
        if state.node.consensus.read(rota_core::State::version) >= 3 {
            record_key(state).await;
            follow_authorities(state).await;
            lead_authorities(state).await;
            note_guesses(state).await;
        }
        show(state);
        state.looked_ms = clock::boottime_ms();
        Ok(())
    }
}

/// Tells the network whom the cluster trusts. Called at each commit that changed it: what is revoked is cut now.
pub fn publish(node: &Node) {
    let trusted = node.consensus.read(|state| {
        let table = state.trust();
        Trusted {
            keys: table.keys().map(|(host, key)| (host, *key)).collect(),
            revoked: table.all_revoked().map(|(host, why)| (host, why.reason.clone())).collect(),
            version: table.version(),
        }
    });
    node.net.set_trusted(trusted);
}

fn now() -> Moment {
    Moment { boot_ms: clock::boottime_ms(), wall_ms: clock::wall_ms() }
}

fn watch_over(identity: &Identity, life: Duration) -> Renewal {
    let life_ms = u64::try_from(life.as_millis()).unwrap_or(u64::MAX);
    Renewal::new(life_ms, identity.valid_ms().1, now())
}

fn end_if_revoked(node: &Node) {
    let why = node.consensus.read(|state| state.trust().revoked(node.host).cloned());
    if let Some(why) = why
        && !node.is_closing()
    {
        end_process(&format!(
            "the cluster trusts this host no more ({} by {}); to join anew, move {} away and run `rota join`",
            why.reason,
            why.by,
            node.config.data_dir.display()
        ));
    }
}

fn renew(state: &mut State) {
    let due = state.renewal.due(now());
    let rested = state.failed_ms.is_none_or(|at| clock::boottime_ms() >= at + RETRY_MS);
    match due {
        Due::NotYet => state.failed_ms = None,
        Due::ClockJumped(off_ms) => tell(
            state,
            format!(
                "the wall clock is {off_ms} ms from where it should be: the renewal of the certificate waits for it"
            ),
        ),
        Due::Now if rested => match state.node.net.identity().renewed(state.life, SystemTime::now()) {
            Ok(renewed) => take(state, renewed, false),
            Err(error) => {
                state.failed_ms = Some(clock::boottime_ms());
                metrics::counter!(meters::CERTIFICATE_RENEWALS, "result" => "failed").increment(1);
                tell(state, format!("cannot renew the certificate, it is tried again: {error}"));
            }
        },
        Due::Now => {}
    }
}

/// Keeps an identity and uses it from now on. A disk that refuses does not keep a renewed certificate from being used: at the
/// next start the old one renews itself. Authorities must be kept: the others go on by what this host says it has.
fn take(state: &mut State, identity: Identity, must_be_kept: bool) {
    let identity = Arc::new(identity);
    if let Err(error) = identity.store_again(&state.node.config.data_dir) {
        tell(state, format!("the renewed certificate cannot be kept: {error}"));
        if must_be_kept {
            return;
        }
    }
    match state.node.net.renew(Arc::clone(&identity)) {
        Ok(()) => {
            state.renewal = watch_over(&identity, state.life);
            state.failed_ms = None;
            metrics::counter!(meters::CERTIFICATE_RENEWALS, "result" => "ok").increment(1);
            tracing::info!(
                until = crate::net::stamp(seconds(identity.valid_ms().1)),
                "renewed the certificate"
            );
        }
        Err(error) => {
            state.failed_ms = Some(clock::boottime_ms());
            metrics::counter!(meters::CERTIFICATE_RENEWALS, "result" => "failed").increment(1);
            tell(state, format!("the renewed certificate cannot be used: {error}"));
        }
    }
}

/// Report R078: nothing that ends after years may come as a surprise.
fn warn_of_the_authority(state: &mut State) {
    let ends_ms = state.node.net.identity().authority(0).map_or(u64::MAX, |(_, ends_ms)| ends_ms);
    let days = ends_ms.saturating_sub(clock::wall_ms()) / DAY_MS;
    if days < AUTHORITY_DAYS {
        tell(
            state,
            format!(
                "the cluster's authority ends in {days} days: `rota cluster ca rotate` makes the next one"
            ),
        );
    }
}

fn seconds(ms: u64) -> i64 {
    i64::try_from(ms / 1_000).unwrap_or(i64::MAX)
}

fn tell(state: &mut State, trouble: String) {
    if state.told != trouble {
        tracing::error!("{trouble}");
        state.told = trouble;
    }
}

async fn record_key(state: &State) {
    let node = &state.node;
    let recorded = node.consensus.read(|replica| replica.trust().key(node.host).is_some());
    if let Some(key) = node.net.identity().key_print().filter(|_| !recorded) {
        propose(node, TrustChange::Key { host: node.host, key }).await;
    }
}

/// Brings this host's authorities to those of the state, and says so.
async fn follow_authorities(state: &mut State) {
    let node = Arc::clone(&state.node);
    let (named, stage, took) = node.consensus.read(|replica| {
        let table = replica.trust();
        let named: Vec<(Print, String)> =
            table.authorities().iter().map(|ca| (ca.ca, ca.certificate_pem.clone())).collect();
        (named, table.stage(), table.took(node.host))
    });
    let mut fetched: Vec<(Print, String)> = Vec::new();
    loop {
        match node.net.identity().as_named(&named, &fetched, state.life, SystemTime::now()) {
            Ok(None) => break,
            Ok(Some(identity)) => {
                take(state, identity, true);
                break;
            }
            Err(Ok(missing)) if fetched.iter().all(|(ca, _)| *ca != missing) => {
                let own = node.authority_key(&missing);
                let key = match own {
                    Some(key) => Some(key),
                    None => fetch_key(&node, missing).await,
                };
                match key {
                    Some(key) => fetched.push((missing, key)),
                    None => return tell(state, "no host gives the key of the next authority yet".into()),
                }
            }
            Err(Ok(_)) => return,
            Err(Err(error)) => return tell(state, format!("the next authority cannot be taken: {error}")),
        }
    }
    // Only what is on the disk and in use counts: the others go on by it.
    let held = node.net.identity().authority_prints();
    let next = match stage {
        CaStage::Settled => return,
        CaStage::Trusting => named.get(1),
        CaStage::Issuing => named.first(),
    };
    if let Some((ca, _)) = next
        && !took
        && held.iter().eq(named.iter().map(|(ca, _)| ca))
        && node.net.is_renewed()
    {
        propose(&node, TrustChange::TookCa { host: node.host, stage, ca: *ca }).await;
    }
}

/// The key of an authority that the state names, from any host that holds it.
async fn fetch_key(node: &Node, ca: Print) -> Option<String> {
    let others: Vec<HostId> = node.consensus.read(|state| {
        let table = state.trust();
        let mut hosts: Vec<HostId> = state
            .hosts()
            .map(|host| host.id)
            .filter(|id| *id != node.host && table.revoked(*id).is_none())
            .collect();
        hosts.sort_by_key(|id| !table.took(*id));
        hosts
    });
    for host in others.into_iter().take(KEY_TRIES) {
        let request = PeerRequest::Authority { ca };
        match node.net.call(host, request, KEY_DEADLINE).await {
            Ok(PeerReply::Authority { key_pem }) => return Some(key_pem.0),
            other => tracing::debug!(%host, ?other, "no key of the next authority there"),
        }
    }
    None
}

/// The leader records the first authority, and ends a stage when every host has done its part.
async fn lead_authorities(state: &State) {
    let node = &state.node;
    if !node.consensus.leadership().borrow().leading {
        return;
    }
    let (none, stage, waits) = node.consensus.read(|replica| {
        let table = replica.trust();
        (table.authorities().is_empty(), table.stage(), !replica.behind_in_ca().is_empty())
    });
    let identity = node.net.identity();
    if none {
        if let (Some((certificate_pem, ends_ms)), Some(ca)) =
            (identity.authority(0), identity.authority_prints().first().copied())
        {
            propose(node, TrustChange::OfferCa { certificate_pem, ca, ends_ms }).await;
        }
    } else if stage != CaStage::Settled && !waits {
        propose(node, TrustChange::AdvanceCa { from: stage }).await;
    }
}

/// Guesses are counted, and told now and then: a line for each would fill the log that they attack.
async fn note_guesses(state: &mut State) {
    state.guesses = state.guesses.saturating_add(state.node.net.take_refused());
    let now_ms = clock::boottime_ms();
    if state.guesses == 0 || state.seen_ms.is_some_and(|at| now_ms < at + SEEN_MS) {
        return;
    }
    let (host, count) = (state.node.host, std::mem::take(&mut state.guesses));
    state.seen_ms = Some(now_ms);
    propose(
        &state.node,
        TrustChange::Seen { host, what: "a join or a user token was refused".into(), count },
    )
    .await;
}

async fn propose(node: &Node, change: TrustChange) {
    let command = Command::Trust { change };
    let proposal = Proposal { request: RequestId::NONE, actor: Author::system(), command };
    match node.consensus.propose(vec![proposal], STEP_DEADLINE).await.map(|mut outcomes| outcomes.pop()) {
        Ok(Some(Outcome::Refused(error))) => tracing::info!(%error, "a change of trust was refused"),
        Ok(_) => {}
        Err(error) => tracing::debug!(%error, "a change of trust was not committed"),
    }
}

#[allow(clippy::cast_precision_loss)] // Gauges are floats; seconds are exact up to 2^52.
fn show(state: &State) {
    let left_ms = state.renewal.left_ms(now());
    metrics::gauge!(meters::CERTIFICATE_SECONDS_LEFT).set(left_ms as f64 / 1_000.0);
    if let Some((_, ends_ms)) = state.node.net.identity().authority(0) {
        let left_ms = ends_ms.saturating_sub(clock::wall_ms());
        metrics::gauge!(meters::AUTHORITY_SECONDS_LEFT).set(left_ms as f64 / 1_000.0);
    }
}
