//! Who leads, as far as this peer knows: a hint for routing, and the word that lets the leader's actors start.
//!
//! What this is not: proof. Writes carry the term they are meant for, and reads confirm a quorum; nothing that
//! matters rests on this alone.

use crate::config::{LogId, Raft, Rota};
use crate::turn::Heard;
use crate::watch;
use openraft::RaftMetrics;
use openraft::type_config::TypeConfigExt;
use rota_protocol::ids::HostId;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// Who leads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Leadership {
    /// The leader, if one is known that may still have a quorum.
    pub leader: Option<HostId>,
    /// This peer's current term.
    pub term: u64,
    /// This peer leads, has a quorum as of one lease ago, and has applied all that earlier leaders committed.
    pub leading: bool,
}

/// What becomes known over a peer's life.
pub(crate) struct Watched {
    pub leadership: watch::Sender<Leadership>,
    pub failed: watch::Sender<Option<String>>,
    pub recovered: watch::Sender<bool>,
    /// What the copies of the state differ in.
    pub differs: watch::Sender<Option<crate::compare::Difference>>,
    /// This peer stops on purpose: the end of the raft core is no failure.
    pub stopping: AtomicBool,
}

impl Watched {
    /// Nothing is known yet.
    pub(crate) fn new() -> Self {
        Self {
            leadership: watch::Sender::new(Leadership::default()),
            failed: watch::Sender::new(None),
            recovered: watch::Sender::new(false),
            differs: watch::Sender::new(None),
            stopping: AtomicBool::new(false),
        }
    }
}

/// Follows openraft's metrics until the raft core ends.
pub(crate) async fn follow(
    raft: Raft,
    me: HostId,
    lease: Duration,
    watched: Arc<Watched>,
    heard: Arc<Heard>,
) {
    let mut metrics = raft.metrics();
    loop {
        // Looked at under the borrow, never over an await: that would block the raft core.
        let seen = Seen::of(&metrics.borrow_and_update(), me, lease);
        if seen.is_leader {
            heard.forget();
        }
        if let Some(fatal) = &seen.fatal {
            stop(&watched, fatal);
            return;
        }
        watched
            .leadership
            .send_if_modified(|held| std::mem::replace(held, seen.leadership) != seen.leadership);
        if seen.recovered {
            watched.recovered.send_if_modified(|held| !std::mem::replace(held, true));
        }
        let changed = match seen.lapses {
            Some(at) => tokio::time::timeout_at(at, metrics.changed()).await,
            None => Ok(metrics.changed().await),
        };
        if let Ok(Err(_)) = changed {
            stop(&watched, "the raft core has ended");
            return;
        }
    }
}

fn stop(watched: &Watched, why: &str) {
    if !watched.stopping.load(Ordering::Acquire) {
        watched.failed.send_if_modified(|held| {
            let first = held.is_none();
            held.get_or_insert_with(|| why.to_owned());
            first
        });
    }
    // After the failure, and always: whoever waits for a leader must look at it.
    watched.leadership.send_modify(|held| {
        held.leader = None;
        held.leading = false;
    });
}

/// What one look at the metrics shows.
struct Seen {
    leadership: Leadership,
    /// When the leadership lapses if no quorum answers.
    lapses: Option<Instant>,
    /// All that was committed is applied.
    recovered: bool,
    is_leader: bool,
    fatal: Option<String>,
}

impl Seen {
    fn of(metrics: &RaftMetrics<Rota>, me: HostId, lease: Duration) -> Self {
        let (leadership, lapses) = judge(metrics, me, lease);
        let index = |id: &Option<LogId>| id.as_ref().map(|id| id.index);
        let committed = index(&metrics.cluster_committed);
        Self {
            leadership,
            lapses,
            recovered: committed.is_some()
                && committed >= metrics.last_log_index
                && index(&metrics.last_applied) >= committed,
            is_leader: metrics.state.is_leader(),
            fatal: metrics.running_state.as_ref().err().map(ToString::to_string),
        }
    }
}

/// The leadership that metrics show, and when it lapses if no quorum answers.
fn judge(metrics: &RaftMetrics<Rota>, me: HostId, lease: Duration) -> (Leadership, Option<Instant>) {
    let mut found =
        Leadership { leader: metrics.current_leader.map(HostId), term: metrics.current_term, leading: false };
    if !metrics.state.is_leader() {
        if found.leader == Some(me) {
            found.leader = None;
        }
        return (found, None);
    }
    let alone = match &metrics.membership_config.get_joint_config()[..] {
        [voters] => voters.len() == 1 && voters.contains(&me.0),
        _ => false,
    };
    let mut lapses = None;
    if !alone {
        // Without a first answer the term has only just begun.
        if let Some(acked) = metrics.last_quorum_acked {
            let left = lease.saturating_sub(Rota::now() - acked.into_inner());
            if left.is_zero() {
                found.leader = None;
                return (found, None);
            }
            lapses = Some(Instant::now() + left);
        }
    }
    found.leading = metrics.last_applied.as_ref().is_some_and(|id| id.leader_id.term == metrics.current_term);
    (found, lapses)
}
