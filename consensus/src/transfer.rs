//! A planned change of leader: the leader names its successor, and that one needs no election wait.
//!
//! A transfer cannot be taken back: from the moment it is sent the old leader takes no writes and sends no heartbeats,
//! and if the successor does not come, the others must hold an election. So it is sent only to a voter that answered a
//! moment ago and has all but the last entries; it brings itself up to the very last one before it stands.

use crate::config::{Raft, Rota, Timings};
use crate::leadership::Leadership;
use crate::read::no_leader;
use crate::watch;
use openraft::RaftMetrics;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::type_config::TypeConfigExt;
use rota_protocol::ids::HostId;
use rota_protocol::{ErrorCode, PublicError};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// Entries that a successor may still lack when it is named: they are on their way, and it waits for them.
const LAG_MAX: u64 = 64;
/// How often a successor that lags is looked at, and for how long.
const LOOK: Duration = Duration::from_millis(5);
const CATCH_UP: Duration = Duration::from_millis(500);

/// A leadership that moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moved {
    /// Who led.
    pub from: HostId,
    /// Who leads now.
    pub to: HostId,
    /// From the order until this peer knew the new leader.
    pub took: Duration,
}

/// What is known of one voter that might lead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Candidate {
    /// Entries that it lacks.
    lag: u64,
    /// How long ago it was sent what it answered last.
    silent: Duration,
}

fn conflict(why: String) -> PublicError {
    PublicError::new(ErrorCode::Conflict, why)
}

/// The voters beside this peer.
fn candidates(metrics: &RaftMetrics<Rota>, me: HostId) -> BTreeMap<HostId, Candidate> {
    let last = metrics.last_log_index.unwrap_or(0);
    let matched = |id: u64| metrics.replication.as_ref()?.get(&id)?.as_ref().map(|found| found.index);
    let answered =
        |id: u64| metrics.heartbeat.as_ref()?.get(&id)?.map(openraft::metrics::SerdeInstant::into_inner);
    metrics
        .membership_config
        .voter_ids()
        .filter(|id| *id != me.0)
        .map(|id| {
            let silent = answered(id).map_or(Duration::MAX, |at| Rota::now() - at);
            (HostId(id), Candidate { lag: last.saturating_sub(matched(id).unwrap_or(0)), silent })
        })
        .collect()
}

/// Who would take over: all that answered within a lease, the furthest first.
fn able(found: &BTreeMap<HostId, Candidate>, lease: Duration) -> Vec<HostId> {
    let mut able: Vec<_> = found.iter().filter(|(_, one)| one.silent <= lease).collect();
    able.sort_by_key(|(id, one)| (one.lag, one.silent, **id));
    able.into_iter().map(|(id, _)| *id).collect()
}

/// Why a peer cannot be named just now.
fn refusal(found: &BTreeMap<HostId, Candidate>, to: HostId, lease: Duration) -> Option<PublicError> {
    let Some(one) = found.get(&to) else {
        let voters: Vec<String> = found.keys().map(ToString::to_string).collect();
        return Some(conflict(match voters.is_empty() {
            true => "there is no other voter to hand over to".into(),
            false => format!("host {to} has no vote to lead with; hosts that do: {}", voters.join(", ")),
        }));
    };
    if one.silent > lease {
        return Some(conflict(format!("host {to} has not answered the leader for {}", ago(one.silent))));
    }
    (one.lag > LAG_MAX).then(|| conflict(format!("host {to} is {} log entries behind", one.lag)))
}

fn ago(silent: Duration) -> String {
    if silent == Duration::MAX { "as long as it leads".into() } else { format!("{} ms", silent.as_millis()) }
}

/// Hands the lead over.
pub(crate) struct Transfer<'a> {
    pub raft: &'a Raft,
    pub me: HostId,
    pub timings: Timings,
    pub leadership: watch::Receiver<Leadership>,
}

impl Transfer<'_> {
    fn candidates(&self) -> Result<BTreeMap<HostId, Candidate>, PublicError> {
        let metrics = self.raft.metrics().borrow_watched().clone();
        if metrics.state.is_leader() { Ok(candidates(&metrics, self.me)) } else { Err(no_leader()) }
    }

    fn lease(&self) -> Duration {
        Duration::from_millis(self.timings.election_max_ms)
    }

    /// Voters that would take over, the best first.
    pub(crate) fn able(&self) -> Vec<HostId> {
        self.candidates().map(|found| able(&found, self.lease())).unwrap_or_default()
    }

    /// Names the successor, and waits until it leads.
    pub(crate) async fn run(mut self, to: HostId) -> Result<Moved, PublicError> {
        let patience = Instant::now() + CATCH_UP;
        while let Some(error) = refusal(&self.candidates()?, to, self.lease()) {
            let lags = self.candidates()?.get(&to).is_some_and(|one| one.silent <= self.lease());
            if !lags || Instant::now() > patience {
                return Err(error);
            }
            tokio::time::sleep(LOOK).await;
        }
        let began = Instant::now();
        self.raft.trigger().transfer_leader(to.0).await.map_err(|_| no_leader())?;
        let wait = Duration::from_millis(self.timings.leader_gap_ms_max());
        let (me, mut leadership) = (self.me, self.leadership.clone());
        let moved = leadership.wait_for(|now| now.leader.is_some_and(|leader| leader != me));
        let leader = match tokio::time::timeout(wait, moved).await {
            Ok(Ok(now)) => now.leader,
            _ => None,
        };
        match leader {
            Some(leader) if leader == to => Ok(Moved { from: me, to, took: began.elapsed() }),
            Some(leader) => Err(conflict(format!("host {to} did not take over; host {leader} leads now"))),
            None => {
                let known = self.leadership.borrow_and_update().leader;
                let waited = wait.as_millis();
                Err(conflict(format!(
                    "host {to} did not take over within {waited} ms; leader now: {known:?}"
                )))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_millis(300);

    fn found(rows: &[(u64, u64, u64)]) -> BTreeMap<HostId, Candidate> {
        rows.iter()
            .map(|(id, lag, silent)| {
                (HostId(*id), Candidate { lag: *lag, silent: Duration::from_millis(*silent) })
            })
            .collect()
    }

    #[test]
    fn the_furthest_of_those_that_answer_comes_first() {
        let all = found(&[(2, 7, 20), (3, 0, 900), (4, 1, 30), (5, 1, 10)]);
        assert_eq!(able(&all, LEASE), [5, 4, 2].map(HostId));
    }

    #[test]
    fn who_cannot_lead_is_refused_with_the_reason() {
        let all = found(&[(2, 65, 20), (3, 0, 301), (4, 64, 300)]);
        let why = |id| refusal(&all, HostId(id), LEASE).map(|error| error.message);
        assert!(why(2).unwrap().contains("65 log entries behind"));
        assert!(why(3).unwrap().contains("not answered the leader for 301 ms"));
        assert_eq!(why(4), None);
        assert!(why(9).unwrap().contains("hosts that do: 2, 3, 4"));
        let alone = refusal(&found(&[]), HostId(9), LEASE).unwrap();
        assert!(alone.message.contains("no other voter"), "{alone}");
    }
}
