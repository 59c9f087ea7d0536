//! The lead as this agent's own affair: it gives it up by itself when it is not fit for it (`logic::lead` decides), before
//! it stops, and when an operator says so; and always to a voter that was asked and would take it.

use crate::io::clock;
use crate::logic::lead::{LeadKeeper, Look, Step, Unfit};
use crate::net::PeerLink;
use crate::node::Node;
use rota_consensus::Moved;
use rota_protocol::error::{ErrorCode, PublicError};
use rota_protocol::ids::HostId;
use rota_protocol::lead::{LeadAsk, LeadMoved, LeadNews};
use rota_protocol::peer::{PeerReply, PeerRequest};
use std::sync::Weak;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// How often this peer looks at itself.
const LOOK: Duration = Duration::from_millis(200);
/// How long a voter may take to say whether it would lead: one that does not answer is no successor.
const ASK: Duration = Duration::from_millis(300);
/// How long the leader may take to hand over for an operator who asked elsewhere.
const MOVE: Duration = Duration::from_millis(5_000);

/// Calls of clients that are being answered; a stop waits for them, and lets no new ones in.
#[derive(Debug, Default)]
pub struct Serving {
    closed: AtomicBool,
    open: AtomicUsize,
}

/// One of them.
#[derive(Debug)]
pub struct Open<'a>(&'a Serving);

impl Serving {
    /// A call comes in; none when the agent is stopping.
    pub fn enter(&self) -> Option<Open<'_>> {
        self.open.fetch_add(1, Ordering::SeqCst);
        let open = Open(self);
        // Counted first: whoever closes the door afterwards waits for it.
        (!self.closed.load(Ordering::SeqCst)).then_some(open)
    }

    /// Lets nobody in any more, and waits until those inside are done, but not longer than this.
    pub async fn close(&self, patience: Duration) {
        self.closed.store(true, Ordering::SeqCst);
        let idle = async {
            while self.open.load(Ordering::SeqCst) > 0 {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        // Who is still inside has a deadline of its own; the client hears that its answer is lost.
        let _ = tokio::time::timeout(patience, idle).await;
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::SeqCst);
    }
}

fn look(node: &Node) -> Look {
    let slow_ms = node.consensus.timings().election_max_ms / 2;
    let pace = node.consensus.disk(Duration::from_millis(slow_ms));
    let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    Look {
        stopping: node.is_closing(),
        drained: node.consensus.read(|state| state.host(node.host).and_then(|host| host.drain.clone())),
        full: pace.full,
        slow_syncs: pace.slow,
        fsync_p99_ms: ms(pace.p99),
        fsync_worst_ms: ms(pace.worst),
        slow_ms,
    }
}

/// Until the agent ends.
pub(crate) async fn watch(node: Weak<Node>) {
    let mut keeper = LeadKeeper::default();
    loop {
        tokio::time::sleep(LOOK).await;
        let Some(node) = node.upgrade().filter(|node| !node.is_closing()) else { return };
        let leads = node.consensus.leadership().borrow().leading;
        match keeper.step(&look(&node), leads, clock::boottime_ms()) {
            Step::Stay => {}
            Step::Rest(ms) => node.consensus.rest(Duration::from_millis(ms)),
            Step::HandOver(unfit) => {
                if let Err(error) = give_up(&node, &unfit).await {
                    tracing::warn!(%error, why = %unfit, "this peer should not lead, and nobody took over");
                    keeper.failed(clock::boottime_ms());
                }
            }
        }
    }
}

/// Hands the lead over because this peer is not fit for it.
///
/// # Errors
/// Nobody is fit, or took over.
async fn give_up(node: &Node, why: &Unfit) -> Result<Moved, PublicError> {
    let to = successor(node).await?;
    let moved = node.consensus.transfer_leader(Some(to)).await?;
    node.consensus.rest(Duration::from_millis(why.rest_ms()));
    tracing::warn!(to = %moved.to, took_ms = moved.took.as_millis(), %why, "handed over the lead");
    Ok(moved)
}

/// Before this agent stops: to whoever is fit, or else to whoever is there, which is still better than an election.
///
/// # Errors
/// Nobody took over.
pub(crate) async fn before_stop(node: &Node) -> Result<Moved, PublicError> {
    let to = successor(node).await.ok();
    node.consensus.transfer_leader(to).await
}

/// The first voter that is caught up and says that it would lead.
async fn successor(node: &Node) -> Result<HostId, PublicError> {
    let mut refused = PublicError::new(ErrorCode::Conflict, "no other voter answers");
    for host in node.consensus.successors() {
        match ask_fit(node, host).await {
            Ok(()) => return Ok(host),
            Err(error) => refused = error,
        }
    }
    Err(refused)
}

async fn ask_fit(node: &Node, host: HostId) -> Result<(), PublicError> {
    match node.net.call(host, PeerRequest::Lead(LeadAsk::Fit), ASK).await {
        Ok(PeerReply::Lead(LeadNews::Fit)) => Ok(()),
        Ok(PeerReply::Refused(error)) => Err(error),
        Ok(other) => Err(PublicError::new(ErrorCode::Internal, format!("unexpected reply {other:?}"))),
        Err(error) => Err(PublicError::new(
            ErrorCode::Conflict,
            format!("host {host} does not say whether it would lead: {error}"),
        )),
    }
}

/// Answers another peer.
pub(crate) async fn answer(node: &Node, ask: LeadAsk) -> PeerReply {
    let reply = match ask {
        LeadAsk::Fit => match look(node).unfit() {
            None => Ok(LeadNews::Fit),
            Some(why) => {
                let message = format!("host {} would not lead: {why}", node.host);
                Err(PublicError::new(ErrorCode::Conflict, message))
            }
        },
        LeadAsk::Move { to } => move_here(node, to).await.map(LeadNews::Moved),
    };
    reply.map_or_else(PeerReply::Refused, PeerReply::Lead)
}

/// Moves the lead for an operator, wherever it is.
///
/// # Errors
/// `Conflict` with the reason why the host cannot take it; `NoLeader`.
pub(crate) async fn moved(node: &Node, to: Option<HostId>) -> Result<LeadMoved, PublicError> {
    let leadership = *node.consensus.leadership().borrow();
    match leadership.leader {
        Some(leader) if to == Some(leader) => Ok(LeadMoved { from: leader, to: leader, took_ms: 0 }),
        Some(leader) if leader != node.host => {
            match node.net.call(leader, PeerRequest::Lead(LeadAsk::Move { to }), MOVE).await {
                Ok(PeerReply::Lead(LeadNews::Moved(moved))) => Ok(moved),
                Ok(PeerReply::Refused(error)) => Err(error),
                Ok(other) => {
                    Err(PublicError::new(ErrorCode::Internal, format!("unexpected reply {other:?}")))
                }
                Err(error) => Err(PublicError::new(
                    ErrorCode::Unknown,
                    format!("the leader, host {leader}, did not answer: {error}"),
                )),
            }
        }
        _ => move_here(node, to).await,
    }
}

async fn move_here(node: &Node, to: Option<HostId>) -> Result<LeadMoved, PublicError> {
    if !node.consensus.leadership().borrow().leading {
        let error = PublicError::new(ErrorCode::NoLeader, "this host does not lead (any more): ask again");
        return Err(error.retry_after(100));
    }
    let to = match to {
        Some(host) => {
            // Without a vote it need not be asked, and the refusal says who has one.
            if node.consensus.status().voters.contains(&host) && host != node.host {
                ask_fit(node, host).await?;
            }
            host
        }
        None => successor(node).await?,
    };
    if to == node.host {
        return Ok(LeadMoved { from: to, to, took_ms: 0 });
    }
    let moved = node.consensus.transfer_leader(Some(to)).await?;
    let took_ms = u64::try_from(moved.took.as_millis()).unwrap_or(u64::MAX);
    tracing::info!(to = %moved.to, took_ms, "handed over the lead, as an operator wished");
    Ok(LeadMoved { from: moved.from, to: moved.to, took_ms })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_stop_waits_for_calls_inside_and_lets_none_in() {
        let serving = Serving::default();
        let inside = serving.enter().expect("open");
        let close = serving.close(Duration::from_secs(3_600));
        tokio::pin!(close);
        let early = tokio::time::timeout(Duration::from_secs(1), &mut close).await;
        assert!(early.is_err(), "one is inside");
        assert!(serving.enter().is_none(), "nobody comes in any more");
        drop(inside);
        close.await;
        let stuck = Serving::default();
        let _inside = stuck.enter().expect("open");
        stuck.close(Duration::from_millis(500)).await;
    }
}
