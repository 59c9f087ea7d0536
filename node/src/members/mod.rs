//! Membership as this agent carries it out: what the autopilot decided, what operators ask, and which hosts may speak.
//!
//! | file | what |
//! | --- | --- |
//! | `mod.rs` | the leader's steps: look, decide (`logic/autopilot`), change, leave word of it |
//! | `ask.rs` | `rota cluster remove`, `promote`, `address` |
//! | `backup.rs` | the state as a stream of pieces |
//! | `life.rs` | which data directory this is, and which start on it |
//! | `door.rs` | who is let in, and what to do when not let in |
//! | `replace.rs` | `rota join --replace` |
//! | `settings.rs` | `[membership]` |

pub mod ask;
pub mod backup;
pub mod door;
pub mod life;
pub mod replace;
pub mod settings;

use crate::io::clock;
use crate::logic::autopilot::{Autopilot, Change, DOMAINS, Look, Peer, advice, tolerates};
use crate::node::Node;
use rota_consensus::MemberChange as Raft;
use rota_core::State;
use rota_core::state::host::HostLife;
use rota_protocol::RequestId;
use rota_protocol::command::{Command, Proposal};
use rota_protocol::error::PublicError;
use rota_protocol::follow::FollowView;
use rota_protocol::ids::HostId;
use rota_protocol::job::Actor as Author;
use rota_protocol::members::{DataLife, MemberChange, MembersView};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long the log may take to hear what was done.
const NOTE_DEADLINE: Duration = Duration::from_secs(2);

/// What a leader remembers of its steps.
#[derive(Debug, Default)]
pub struct Membership {
    pilot: Mutex<Autopilot>,
    /// What it waits for.
    next: Mutex<String>,
    /// What was heard at other doors.
    pub heard: door::Heard,
    /// This start of the agent.
    pub life: DataLife,
}

impl Membership {
    /// Of this start of the agent.
    #[must_use]
    pub fn of(life: DataLife) -> Self {
        Self { life, ..Self::default() }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each change is one assignment.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The cluster as this peer sees it; complete where it leads.
pub fn look(node: &Node) -> Look {
    let members = node.consensus.members();
    let suspected = node.suspected();
    let known: BTreeSet<HostId> = members.voters.union(&members.learners).copied().collect();
    let peers = node.consensus.read(|state| {
        let revoked = |host: &rota_core::Host| state.trust().revoked(host.id).is_some();
        let one = |host: &rota_core::Host| Peer {
            id: host.id,
            name: host.name.clone(),
            // One that is trusted no more does not vote, whatever it does.
            up: host.life == HostLife::Up && !suspected.contains(&host.id) && !revoked(host),
            lost: host.life == HostLife::Lost || revoked(host),
            removed: host.belonging.removed.is_some(),
            member: known.contains(&host.id),
            voter: members.voters.contains(&host.id),
            lag: if host.id == node.host { Some(0) } else { members.lag.get(&host.id).copied().flatten() },
            site: DOMAINS.map(|label| host.facts.labels.get(label).cloned()),
            wished: host.belonging.wished,
        };
        state.hosts().map(one).collect()
    });
    Look { me: node.host, peers, members_max: members_max(node) }
}

/// Up to how many hosts are members: all, as long as one of an older build might not know how to follow its peers.
fn members_max(node: &Node) -> usize {
    let knows = node.consensus.read(State::version) >= rota_consensus::follow::SINCE_VERSION;
    if knows { node.config.membership.members_max() } else { usize::MAX }
}

/// How this host, and those that are no members, are fed.
fn follow_view(node: &Node, look: &Look) -> FollowView {
    let following = node.consensus.following();
    let small = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    FollowView {
        members_max: if look.members_max == usize::MAX { 0 } else { small(look.members_max) },
        followers: small(look.peers.iter().filter(|peer| !peer.removed && !peer.member).count()),
        parent: following.parent,
        depth: following.depth,
        children: small(following.children),
        moves: following.moves,
        snapshots: following.snapshots,
        sent_bytes: node.net.sent_bytes(),
    }
}

/// At the leader: takes the next step, if there is one, and leaves word of it.
///
/// # Errors
/// The membership did not change.
pub async fn step(node: &Node) -> Result<(), PublicError> {
    let members = node.consensus.members();
    if !members.leading {
        lock(&node.membership.next).clear();
        return Ok(());
    }
    if !members.settled {
        // One is under way, or a leader died over it and it is to be finished.
        node.consensus.change_members(&Raft::Follow(BTreeSet::new())).await?;
        return Ok(());
    }
    let now_ms = clock::boottime_ms();
    let decision = lock(&node.membership.pilot).next(&look(node), now_ms);
    let Some(change) = decision.change else {
        *lock(&node.membership.next) = decision.why;
        return Ok(());
    };
    let change = match change {
        Change::Follow(hosts) => Raft::Follow(hosts),
        Change::Vote(hosts) => Raft::Vote(hosts),
        Change::Forget(hosts) | Change::Release(hosts) => Raft::Forget(hosts),
        Change::HandOver => {
            tracing::info!(why = decision.why, "hands over the lead");
            return node.consensus.transfer_leader(None).await.map(|_| ());
        }
    };
    let done = node.consensus.change_members(&change).await?;
    lock(&node.membership.pilot).changed(clock::boottime_ms());
    if done {
        tracing::info!(why = decision.why, "the membership changed");
        note(node, decision.why).await;
    }
    Ok(())
}

async fn note(node: &Node, text: String) {
    let command = Command::Members(MemberChange::Note { text });
    let proposal = Proposal { request: RequestId::NONE, actor: Author::system(), command };
    // The change itself is in the log; that nobody wrote down why is a pity, no more.
    if let Err(error) = node.consensus.propose(vec![proposal], NOTE_DEADLINE).await {
        tracing::info!(%error, "the log did not hear why the membership changed");
    }
}

/// Where membership stands, for people.
pub fn view(node: &Node, look: &Look, state: &State) -> MembersView {
    let follow = follow_view(node, look);
    let mut advice = advice(look);
    for (host, told, from, why) in node.net.one_way() {
        advice.push(format!(
            "host {host} says that it is at {told}, and does not answer there ({why}); it calls from {from}: \
             correct its `advertise`, or the firewall"
        ));
    }
    let small = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    MembersView {
        epoch: state.members().epoch,
        tolerates: small(tolerates(look)),
        wanted: small(look.wanted()),
        next: lock(&node.membership.next).clone(),
        advice,
        notes: state.members().notes().cloned().collect(),
        follow,
    }
}

/// The file that says that this host was removed: its id is never used again, so a restart would not help.
#[must_use]
pub fn removed_path(data_dir: &Path) -> PathBuf {
    data_dir.join("removed")
}

/// Why this host was removed, if it was and nothing of it runs any more.
#[must_use]
pub fn removal_done(node: &Node) -> Option<String> {
    // Its vote may still be needed to let it go, and a leader hands over first.
    if node.consensus.members().voters.contains(&node.host) {
        return None;
    }
    node.consensus.read(|state| {
        let host = state.host(node.host)?;
        let removal = host.belonging.removed.as_ref()?;
        let over = host.life != HostLife::Up || state.attempts_on(node.host).next().is_none();
        over.then(|| {
            format!(
                "this host was removed from the cluster by {}: {}; to use the machine again: \
                 `rota join --replace`",
                removal.by, removal.reason
            )
        })
    })
}
