//! Where peers may be: hints from several sides, tried in turn, and what became of them. The certificate decides who
//! answers; nothing here dials.

use super::link::Class;
use super::{Inner, Net, identity};
use rota_protocol::HostId;
use std::net::SocketAddr;
use std::sync::PoisonError;

/// Where a peer may be: hints, tried in this order.
#[derive(Debug, Default)]
pub(super) struct Addresses {
    /// From a person; forgotten once another one proved right.
    told: Option<String>,
    /// From the replicated state, or from the join.
    stated: Option<String>,
    /// From the peer itself, on a connection that its certificate vouched for.
    heard: Option<String>,
    /// From gossip, which may be late.
    rumour: Option<String>,
}

/// Who says where a peer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum By {
    Person,
    State,
    Peer,
    Gossip,
}

impl Addresses {
    fn slot(&mut self, by: By) -> &mut Option<String> {
        match by {
            By::Person => &mut self.told,
            By::State => &mut self.stated,
            By::Peer => &mut self.heard,
            By::Gossip => &mut self.rumour,
        }
    }
}

impl Net {
    /// Where a peer is, by the replicated state. Replaces what was set before.
    pub fn set_peer(&self, host: HostId, addr: String) {
        self.inner.set_address(host, addr, By::State);
    }

    /// Where a peer says it is, by gossip: tried after the other address.
    pub fn hint_peer(&self, host: HostId, addr: String) {
        self.inner.set_address(host, addr, By::Gossip);
    }

    /// Where a peer is, by a person's word: tried before all others.
    pub fn tell_peer(&self, host: HostId, addr: String) {
        self.inner.set_address(host, addr, By::Person);
    }

    /// Closes every connection with a host, which may not speak any more.
    pub fn cut(&self, host: HostId) {
        self.inner.sessions.cut(host);
        for class in [Class::Raft, Class::Rest, Class::Bulk, Class::Gossip] {
            self.inner.link(host, class).cut();
        }
    }

    /// Hosts that call here and cannot be called back: where they say they are, where they call from, and what came of
    /// the last dial.
    #[must_use]
    pub fn one_way(&self) -> Vec<(HostId, String, SocketAddr, String)> {
        let callers = self.inner.sessions.callers();
        let failed = |(host, told, from)| {
            let why = self.inner.link(host, Class::Raft).failing()?;
            Some((host, told, from, why))
        };
        callers.into_iter().filter_map(failed).collect()
    }
}

impl Inner {
    pub(super) fn set_address(&self, host: HostId, addr: String, by: By) {
        let mut book = self.addresses.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = book.entry(host).or_default().slot(by);
        if slot.as_deref() == Some(addr.as_str()) {
            return;
        }
        *slot = Some(addr);
        drop(book);
        self.retry_now(host);
    }

    /// Dials of a host that failed may begin again at once.
    pub(super) fn retry_now(&self, host: HostId) {
        for class in [Class::Raft, Class::Rest, Class::Bulk, Class::Gossip] {
            self.link(host, class).retry_now();
        }
    }

    /// Where a peer itself says it is, if that is an address at all.
    pub(super) fn hear_address(&self, host: HostId, addr: &str) {
        if identity::is_addr(addr) {
            self.set_address(host, addr.to_owned(), By::Peer);
        }
    }

    /// A peer answered at this address.
    pub(super) fn found_at(&self, host: HostId, addr: &str) {
        let mut book = self.addresses.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = book.get_mut(&host)
            && known.told.as_deref().is_some_and(|told| told != addr)
        {
            known.told = None;
        }
    }

    pub(super) fn addresses_of(&self, host: HostId) -> Vec<String> {
        let book = self.addresses.lock().unwrap_or_else(PoisonError::into_inner);
        let known = book.get(&host);
        let hints = known.into_iter().flat_map(|known| {
            [&known.told, &known.stated, &known.heard, &known.rumour].into_iter().flatten()
        });
        let mut all: Vec<String> = Vec::new();
        for addr in hints.chain(&self.anybody) {
            if !all.contains(addr) {
                all.push(addr.clone());
            }
        }
        all
    }
}
