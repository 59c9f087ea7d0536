//! Bytes of the membership protocol: each item is a length (u16, big-endian) and a value in Rota's own encoding.
//! What comes in is bounded before it is believed: lengths, addresses, incarnations, the number of hosts.

use super::GOSSIP_HOSTS_MAX;
use crate::net::identity::is_addr;
use bytes::{Buf, BufMut};
use foca::Header;
use rota_protocol::gossip::GossipMember;
use rota_protocol::{HostId, codec};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Longest encoded header or member: three members with the longest addresses.
const ITEM_BYTES_MAX: usize = 1_024;
/// No honest incarnation is larger: they begin at the wall clock in ms.
pub(super) const INCARNATION_MAX: u64 = 1 << 60;

/// A member, as the membership protocol knows it: one host at one life of its agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Member(pub(super) GossipMember);

impl foca::Identity for Member {
    type Addr = HostId;

    fn renew(&self) -> Option<Self> {
        let mut next = self.clone();
        next.0.incarnation = next.0.incarnation.saturating_add(1);
        Some(next)
    }

    fn addr(&self) -> HostId {
        self.0.host
    }

    /// The newest life wins; among equals the address decides, so that all sides agree.
    fn win_addr_conflict(&self, adversary: &Self) -> bool {
        (self.0.incarnation, &self.0.addr) > (adversary.0.incarnation, &adversary.0.addr)
    }
}

/// Why bytes were not taken, or did not fit.
#[derive(Debug, thiserror::Error)]
pub(super) enum ItemError {
    #[error("no room left in the packet")]
    Full,
    #[error("the packet is cut short")]
    Short,
    #[error("{0}")]
    Decode(#[from] codec::DecodeError),
    #[error("{0}")]
    Encode(#[from] codec::EncodeError),
    #[error("host {0} has an address or an incarnation that cannot be")]
    Implausible(HostId),
    #[error("more than {GOSSIP_HOSTS_MAX} hosts")]
    TooMany,
}

/// Encodes and decodes, and keeps what it learns on the way.
#[derive(Debug)]
pub(super) struct Codec {
    own: HostId,
    hosts: BTreeSet<HostId>,
    /// Largest incarnation of this very host that anybody spoke of.
    own_seen: Arc<AtomicU64>,
}

impl Codec {
    /// The counter is how the incarnation gets out: the protocol does not let anybody look at its codec.
    pub(super) fn new(own: HostId, own_seen: Arc<AtomicU64>) -> Self {
        Self { own, hosts: BTreeSet::new(), own_seen }
    }

    fn check(&mut self, member: &Member) -> Result<(), ItemError> {
        let Member(GossipMember { host, incarnation, addr }) = member;
        if !is_addr(addr) || *incarnation > INCARNATION_MAX {
            return Err(ItemError::Implausible(*host));
        }
        if *host == self.own {
            self.own_seen.fetch_max(*incarnation, Ordering::Relaxed);
        } else if !self.hosts.contains(host) {
            if self.hosts.len() >= GOSSIP_HOSTS_MAX {
                return Err(ItemError::TooMany);
            }
            self.hosts.insert(*host);
        }
        Ok(())
    }
}

/// The sender and the target that a packet names, without looking further.
pub(super) fn parties(mut packet: &[u8]) -> Option<(GossipMember, GossipMember)> {
    let header: Header<Member> = take(&mut packet).ok()?;
    let plausible = header.dst.0.incarnation <= INCARNATION_MAX;
    plausible.then_some((header.src.0, header.dst.0))
}

impl foca::Codec<Member> for Codec {
    type Error = ItemError;

    fn encode_header(&mut self, item: &Header<Member>, buf: impl BufMut) -> Result<(), ItemError> {
        put(item, buf)
    }

    fn decode_header(&mut self, buf: impl Buf) -> Result<Header<Member>, ItemError> {
        let header: Header<Member> = take(buf)?;
        self.check(&header.src)?;
        Ok(header)
    }

    fn encode_member(&mut self, item: &foca::Member<Member>, buf: impl BufMut) -> Result<(), ItemError> {
        put(item, buf)
    }

    fn decode_member(&mut self, buf: impl Buf) -> Result<foca::Member<Member>, ItemError> {
        let member: foca::Member<Member> = take(buf)?;
        self.check(member.id())?;
        Ok(member)
    }
}

fn put<T: Serialize>(item: &T, mut buf: impl BufMut) -> Result<(), ItemError> {
    let bytes = codec::encode(item)?;
    let len = u16::try_from(bytes.len()).map_err(|_| ItemError::Full)?;
    if buf.remaining_mut() < bytes.len() + size_of::<u16>() {
        return Err(ItemError::Full);
    }
    buf.put_u16(len);
    buf.put_slice(&bytes);
    Ok(())
}

fn take<T: DeserializeOwned>(mut buf: impl Buf) -> Result<T, ItemError> {
    let len = usize::from(buf.try_get_u16().map_err(|_| ItemError::Short)?);
    if buf.remaining() < len {
        return Err(ItemError::Short);
    }
    if len > ITEM_BYTES_MAX {
        return Err(codec::DecodeError::TooLarge { len, limit: ITEM_BYTES_MAX }.into());
    }
    Ok(codec::decode(&buf.copy_to_bytes(len), ITEM_BYTES_MAX)?)
}
