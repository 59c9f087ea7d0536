//! What a lab's cluster says of itself: leader, hosts, hashes. Not here: starting and ending its processes.

use super::{Lab, LabError, Peer, wait_for};
use crate::io::proc;
use rota_protocol::api::{ApiReply, ApiRequest, Freshness};
use rota_protocol::error::{ErrorCode, PublicError};
use rota_protocol::ids::HostId;
use rota_protocol::view::{ClusterView, HostRow, HostState};
use std::path::Path;
use std::time::Duration;

impl Lab {
    /// Waits until a host's agent answers on its socket.
    ///
    /// # Errors
    /// Not within 20 s.
    pub async fn until_answers(&self, number: usize) -> Result<(), LabError> {
        let request = || ApiRequest::Cluster { freshness: Freshness::Linearizable };
        let peer = &self.peers[number];
        wait_for(&format!("an answer of {}", peer.name), Duration::from_secs(20), async || {
            let Ok(client) = peer.client().await else { return None };
            match client.call(request()).await {
                Ok(ApiReply::Cluster(view)) if view.linearizable => Some(()),
                _ => None,
            }
        })
        .await
    }

    /// Waits until a host that was started again takes part again, and all the others do. A host that was away for less than
    /// its lease never ceased to be up in the log, so that alone says nothing.
    ///
    /// # Errors
    /// Not in time.
    pub async fn until_back(&self, number: usize) -> Result<(), LabError> {
        self.until_answers(number).await?;
        self.until_up(self.peers.len()).await
    }

    /// Waits until `count` hosts take work and as many of them vote as should.
    ///
    /// # Errors
    /// Not within 30 s; it is told what each host was like then.
    pub async fn until_up(&self, count: usize) -> Result<(), LabError> {
        let voters_wanted = match count {
            0..=2 => 1,
            3..=4 => 3,
            _ => 5,
        };
        let mut last = String::new();
        let what = format!("{count} hosts up");
        let up = wait_for(&what, Duration::from_secs(30), async || {
            let hosts = self.hosts().await.inspect_err(|error| last = error.to_string()).ok()?;
            let up = hosts.iter().filter(|host| host.state == HostState::Up).count();
            let view = self.cluster().await.inspect_err(|error| last = error.to_string()).ok()?;
            let voters = view.peers.iter().filter(|peer| peer.votes()).count();
            let states: Vec<_> = hosts.iter().map(|host| format!("{} {:?}", host.name, host.state)).collect();
            last = format!("{}, {voters} vote", states.join(", "));
            (up >= count && voters >= voters_wanted && view.leader.is_some()).then_some(())
        });
        match up.await {
            Err(LabError::Late(what, ms)) => {
                Err(LabError::Late(format!("{what} ({last}{})", self.gone()), ms))
            }
            up => up,
        }
    }

    /// The agents that ended although nobody asked them to, with their last words.
    fn gone(&self) -> String {
        let ended = |peer: &&Peer| {
            let stat = peer.pid().and_then(|pid| proc::stat(pid.cast_signed()).ok());
            peer.child.is_some() && stat.is_none_or(|stat| stat.state == b'Z')
        };
        let words = |peer: &Peer| {
            let log = std::fs::read_to_string(peer.dir.join("agent.log")).unwrap_or_default();
            format!("; {} has ended: {}", peer.name, log.lines().last().unwrap_or_default())
        };
        self.peers.iter().filter(ended).map(words).collect()
    }

    /// The cluster as the first peer sees it that can have it confirmed by a quorum.
    ///
    /// # Errors
    /// Nobody can.
    pub async fn cluster(&self) -> Result<ClusterView, LabError> {
        let confirmed = |reply: &ApiReply| matches!(reply, ApiReply::Cluster(view) if view.linearizable);
        let request = ApiRequest::Cluster { freshness: Freshness::Linearizable };
        match self.ask_until(request, confirmed).await? {
            ApiReply::Cluster(view) => Ok(*view),
            other => Err(PublicError::new(ErrorCode::Internal, format!("unexpected reply {other:?}")).into()),
        }
    }

    /// The hosts, confirmed by a quorum.
    ///
    /// # Errors
    /// Nobody answers.
    pub async fn hosts(&self) -> Result<Vec<HostRow>, LabError> {
        match self.ask(ApiRequest::Hosts { freshness: Freshness::Linearizable }).await? {
            ApiReply::Hosts { rows, .. } => Ok(rows),
            other => Err(PublicError::new(ErrorCode::Internal, format!("unexpected reply {other:?}")).into()),
        }
    }

    /// Asks the running peers in turn until one answers.
    ///
    /// # Errors
    /// The last refusal.
    pub async fn ask(&self, request: ApiRequest) -> Result<ApiReply, LabError> {
        self.ask_until(request, |_| true).await
    }

    /// The same, until a reply will do.
    async fn ask_until(
        &self,
        request: ApiRequest,
        will_do: impl Fn(&ApiReply) -> bool,
    ) -> Result<ApiReply, LabError> {
        let mut error = PublicError::new(ErrorCode::NoLeader, "no agent runs");
        for peer in self.peers.iter().filter(|peer| peer.child.is_some()) {
            match peer.client().await {
                Ok(client) => match client.call(request.clone()).await {
                    Ok(reply) if will_do(&reply) => return Ok(reply),
                    Ok(reply) => {
                        error = PublicError::new(ErrorCode::NoLeader, format!("not confirmed: {reply:?}"))
                    }
                    Err(refused) => error = refused,
                },
                Err(refused) => error = refused,
            }
        }
        Err(error.into())
    }

    /// The position of the leader among the peers.
    ///
    /// # Errors
    /// Nobody leads.
    pub async fn leader(&self) -> Result<usize, LabError> {
        let leader = wait_for("a leader", Duration::from_secs(20), async || {
            self.cluster().await.ok().and_then(|view| view.leader)
        })
        .await?;
        self.peers.iter().position(|peer| peer.host == leader).ok_or_else(|| {
            PublicError::new(ErrorCode::Internal, format!("leader {leader} is no peer")).into()
        })
    }

    /// The state's hashes of every running peer, taken at one log index: `(host, index, rolling, full)`.
    ///
    /// # Errors
    /// A peer does not reach the index in time.
    pub async fn digests(&self) -> Result<Vec<(HostId, u64, u64, u64)>, LabError> {
        wait_for("equal log indices at all peers", Duration::from_secs(15), async || {
            let applied = self.cluster().await.ok()?.applied;
            let mut digests = Vec::new();
            for peer in self.peers.iter().filter(|peer| peer.child.is_some()) {
                let client = peer.client().await.ok()?;
                match client.call(ApiRequest::Digest { at_least: applied }).await {
                    Ok(ApiReply::Digest { index, rolling, full, host }) => {
                        digests.push((host, index, rolling, full))
                    }
                    _ => return None,
                }
            }
            // The cluster may be busy: only copies at one index can be compared.
            digests.windows(2).all(|pair| pair[0].1 == pair[1].1).then_some(digests)
        })
        .await
    }
}

/// What the agents of a lab said of broken laws: the state's own, and what differed between log and host, and grants that a host could not
/// carry out. The folder is
/// the lab's; its hosts may be gone.
#[must_use]
pub fn violations(dir: &Path) -> Vec<String> {
    let logs =
        std::fs::read_dir(dir).into_iter().flatten().flatten().map(|host| host.path().join("agent.log"));
    let texts: Vec<String> = logs.filter_map(|log| std::fs::read_to_string(log).ok()).collect();
    let lines = texts.iter().flat_map(|text| text.lines());
    let broken = |line: &&str| line.contains("report this as a bug") || line.contains("a grant bounced");
    lines.filter(broken).map(str::to_owned).collect()
}
