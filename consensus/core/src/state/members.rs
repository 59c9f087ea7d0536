//! What became of the membership: how often the cluster began anew, and what was done to its voters and why.

use crate::state::State;
use crate::state::host::HostLife;
use rota_protocol::members::{DataLife, MemberNote, NOTES_MAX, Removal};
use rota_protocol::{ClusterId, HostId};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// The table.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct MemberTable {
    /// Counts how often the cluster began anew; an agent of an earlier epoch belongs to another cluster.
    pub epoch: u64,
    notes: VecDeque<MemberNote>,
}

impl MemberTable {
    /// What was done last, oldest first.
    pub fn notes(&self) -> impl Iterator<Item = &MemberNote> {
        self.notes.iter()
    }

    pub(crate) fn note(&mut self, at_ms: u64, text: String) {
        if self.notes.len() >= NOTES_MAX {
            self.notes.pop_front();
        }
        self.notes.push_back(MemberNote { at_ms, text });
    }
}

/// How a state goes on after the majority is gone, or from a backup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rebirth {
    /// The new cluster's id: certificates name it, so whoever belongs to the old one is refused.
    pub cluster: ClusterId,
    /// The host that survived and stays, if any.
    pub survivor: Option<HostId>,
    /// The name and address of a host that is added, if any.
    pub founder: Option<(String, String)>,
    /// Wall time, in ms since the epoch.
    pub at_ms: u64,
    /// For people.
    pub reason: String,
}

impl State {
    /// The state with which a cluster begins a new epoch, outside of any log. All hosts but the survivor are removed;
    /// those that held leases keep them until they run out, so that no task runs twice. Gives the host that goes on.
    #[must_use]
    pub fn reborn(&self, rebirth: &Rebirth) -> (Self, HostId) {
        let mut state = self.clone();
        if let Some(meta) = state.meta.cluster.as_mut() {
            meta.id = rebirth.cluster;
        }
        state.meta.clock_ms = state.meta.clock_ms.max(rebirth.at_ms);
        state.members.epoch += 1;
        state.tokens.drop_joins();
        state.trust.begin_anew();
        let at_ms = state.meta.clock_ms;
        let removal = Removal { at_ms, by: "recovery".into(), reason: rebirth.reason.clone() };
        let others: Vec<HostId> =
            state.hosts().map(|host| host.id).filter(|id| Some(*id) != rebirth.survivor).collect();
        for id in others {
            if let Some(host) = state.hosts.get_mut(id)
                && host.belonging.removed.is_none()
            {
                host.belonging.removed = Some(removal.clone());
                if host.life == HostLife::Joining {
                    host.life = HostLife::Lost;
                }
            }
        }
        if let Some(host) = rebirth.survivor.and_then(|id| state.hosts.get_mut(id)) {
            // Its data directory is a new one to the new cluster.
            host.belonging.life = DataLife::default();
        }
        let host = match (&rebirth.founder, rebirth.survivor) {
            (Some((name, addr)), _) => {
                let id = HostId(state.meta.next_host);
                state.meta.next_host += 1;
                state.hosts.insert(crate::Host::new(id, name.clone(), addr.clone()));
                id
            }
            (None, Some(id)) => id,
            (None, None) => HostId(0),
        };
        let text = format!("epoch {} begins with host {host}: {}", state.members.epoch, rebirth.reason);
        state.members.note(at_ms, text);
        (state, host)
    }
}
