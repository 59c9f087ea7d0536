//! Renewals of other hosts on their way to the leader: what comes within a moment goes on as one request, so that a leader
//! of a thousand hosts hears a few dozen requests for each interval of renewal.
//!
//! Safe however long it takes: a lease counts from when its holder sent the renewal, and is acknowledged by the leader
//! alone, after a confirmation that began when the renewal reached it.

use crate::net::{Net, PeerLink};
use crate::node::Node;
use crate::peer_handler;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, join_all};
use rota_protocol::error::{ErrorCode, PublicError};
use rota_protocol::ids::{HostId, LeaseEpoch};
use rota_protocol::limits::RENEWALS_MAX;
use rota_protocol::peer::{PeerReply, PeerRequest, Renewal};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;

/// Hosts that hand a renewal on: more than there are steps in any tree of hosts that is none of a defect.
const HOPS_MAX: u8 = 16;
/// How long what was gathered may take on its way up and back.
const RELAY_DEADLINE: Duration = Duration::from_millis(1_000);
/// The part of an interval of renewal for which a host that is no member gathers renewals, in thousandths.
const GATHER_PERMILLE: u64 = 25;
/// The same at a member: it asks the leader itself, so this bounds what the leader hears, however many hosts there are.
const GATHER_MEMBER_PERMILLE: u64 = 100;

/// Asks whoever stands above: renewals and how many peers have handed them on; one result for each.
pub type Above = Arc<dyn Fn(Vec<(HostId, LeaseEpoch)>, u8) -> BoxFuture<'static, Vec<Renewal>> + Send + Sync>;

/// Renewals that wait to be handed on.
#[derive(Debug, Clone, Default)]
pub struct Relay(Arc<Mutex<Gathered>>);

#[derive(Debug, Default)]
struct Gathered {
    /// Somebody waits to send them.
    underway: bool,
    hops: u8,
    waiting: Vec<Waiting>,
}

#[derive(Debug)]
struct Waiting {
    host: HostId,
    epoch: LeaseEpoch,
    answer: oneshot::Sender<Renewal>,
}

/// How long renewals are gathered where they are due so often: on the longest way it is less than a quarter of the interval.
#[must_use]
pub fn gather(renew_ms: u64, member: bool) -> Duration {
    let part = if member { GATHER_MEMBER_PERMILLE } else { GATHER_PERMILLE };
    Duration::from_millis(renew_ms * part / 1_000)
}

impl Relay {
    /// Hands renewals on, together with what others bring for as long as is gathered. The results are in order.
    pub async fn hand_on(
        &self,
        above: Above,
        gather: Duration,
        renewals: Vec<(HostId, LeaseEpoch)>,
        hops: u8,
    ) -> Vec<Renewal> {
        if hops >= HOPS_MAX {
            return vec![no_leader("too many hosts handed this on"); renewals.len()];
        }
        let (mut answers, first) = (Vec::with_capacity(renewals.len()), {
            let mut gathered = self.lock();
            gathered.hops = gathered.hops.max(hops.saturating_add(1));
            !std::mem::replace(&mut gathered.underway, true)
        });
        for (host, epoch) in renewals {
            let (answer, answered) = oneshot::channel();
            self.lock().waiting.push(Waiting { host, epoch, answer });
            answers.push(answered);
        }
        if first {
            tokio::spawn(self.clone().go(above, gather));
        }
        let lost = |_| no_leader("a relay ended before it had an answer");
        join_all(answers).await.into_iter().map(|answer| answer.unwrap_or_else(lost)).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Gathered> {
        // Each change is one call.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn go(self, above: Above, gather: Duration) {
        tokio::time::sleep(gather).await;
        let Gathered { hops, waiting: mut left, .. } = std::mem::take(&mut *self.lock());
        while !left.is_empty() {
            let rest = left.split_off(left.len().min(RENEWALS_MAX));
            let renewals = left.iter().map(|one| (one.host, one.epoch)).collect();
            let mut replies = above(renewals, hops).await.into_iter();
            for one in left {
                // Whoever asked may have given up.
                let reply = replies.next().unwrap_or_else(|| no_leader("no answer for this renewal"));
                let _ = one.answer.send(reply);
            }
            left = rest;
        }
    }
}

fn no_leader(why: impl Into<String>) -> Renewal {
    Renewal::Refused(PublicError::new(ErrorCode::NoLeader, why))
}

/// Asks these hosts in turn until one answers.
pub async fn ask_in_turn(
    net: &Net,
    hosts: impl IntoIterator<Item = HostId>,
    renewals: Vec<(HostId, LeaseEpoch)>,
    hops: u8,
) -> Vec<Renewal> {
    let count = renewals.len();
    let mut why = no_leader("no leader is known here");
    for host in hosts {
        let request = PeerRequest::Renewals { renewals: renewals.clone(), hops };
        match net.call(host, request, RELAY_DEADLINE).await {
            Ok(PeerReply::Renewals(replies)) if replies.len() == count => return replies,
            Ok(PeerReply::NotLeader { leader }) => why = Renewal::NotLeader { leader },
            Ok(other) => why = no_leader(format!("host {host} answered {other:?}")),
            Err(error) => why = no_leader(error.to_string()),
        }
    }
    vec![why; count]
}

/// Hands renewals on towards the leader: a host that is no member to the one that it follows, and if that does not
/// answer, and else, to the leader.
pub async fn hand_on(node: &Arc<Node>, renewals: Vec<(HostId, LeaseEpoch)>, hops: u8) -> Vec<Renewal> {
    let asking = Arc::clone(node);
    let above: Above = Arc::new(move |renewals, hops| {
        let node = Arc::clone(&asking);
        async move {
            let leadership = *node.consensus.leadership().borrow();
            if leadership.leading {
                return peer_handler::renew_all_here(&node, renewals).await;
            }
            let mut above = vec![node.consensus.following().parent, leadership.leader];
            above.retain(|host| *host != Some(node.host));
            above.dedup();
            ask_in_turn(&node.net, above.into_iter().flatten(), renewals, hops).await
        }
        .boxed()
    });
    let member = node.consensus.following().parent.is_none();
    node.relay.hand_on(above, gather(node.config.profile.lease().renew_ms, member), renewals, hops).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    const GATHER: Duration = Duration::from_millis(75);

    /// A thousand renewals within a moment are one request above; each gets its own answer.
    #[tokio::test(start_paused = true)]
    async fn what_comes_together_goes_on_together() {
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = calls.clone();
        let above: Above = Arc::new(move |renewals, hops| {
            counted.fetch_add(1, Ordering::SeqCst);
            assert_eq!(hops, 3, "one more than the farthest");
            let odd = |host: HostId| !host.0.is_multiple_of(2);
            let answer =
                |(host, _)| if odd(host) { Renewal::Renewed } else { Renewal::NotLeader { leader: None } };
            let answers = renewals.into_iter().map(answer).collect();
            async move { answers }.boxed()
        });
        let relay = Relay::default();
        let handed = (0..1_000).map(|id| {
            relay.hand_on(
                above.clone(),
                GATHER,
                vec![(HostId(id), LeaseEpoch(1))],
                if id == 9 { 2 } else { 0 },
            )
        });
        let answers = join_all(handed).await;
        assert_eq!(calls.load(Ordering::SeqCst), 1);
        assert_eq!(answers[7], [Renewal::Renewed]);
        assert_eq!(answers[8], [Renewal::NotLeader { leader: None }]);
        assert_eq!(relay.lock().hops, 0, "the next ones begin anew");
    }

    #[tokio::test(start_paused = true)]
    async fn what_goes_in_a_ring_ends() {
        let above: Above = Arc::new(|_, _| unreachable!("it was handed on often enough"));
        let answers =
            Relay::default().hand_on(above, GATHER, vec![(HostId(1), LeaseEpoch(1))], HOPS_MAX).await;
        assert!(matches!(&answers[..], [Renewal::Refused(error)] if error.code == ErrorCode::NoLeader));
    }

    /// A request of any size is cut to what one message may hold.
    #[tokio::test(start_paused = true)]
    async fn more_than_one_message_takes_are_several() {
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = calls.clone();
        let above: Above = Arc::new(move |renewals, _| {
            counted.fetch_add(1, Ordering::SeqCst);
            assert!(renewals.len() <= RENEWALS_MAX);
            async move { vec![Renewal::Renewed; renewals.len()] }.boxed()
        });
        let many = (0..2_500).map(|id| (HostId(id), LeaseEpoch(1))).collect();
        let answers = Relay::default().hand_on(above, GATHER, many, 0).await;
        assert_eq!((answers.len(), calls.load(Ordering::SeqCst)), (2_500, 3));
    }
}
