//! Which process speaks: the first exchange on a fresh connection of peers, after the certificates were checked. Both
//! sides say on which data directory they run, and whoever may not speak for its host is told so, for good.
//!
//! Two processes under one identity are told apart by a sign of life: before a second one is let in, the first is sent
//! a datagram, which a living one acknowledges at once. What is right is the handler's to say; here is only the exchange.

use super::link::Up;
use super::wire::{self, WholeSend};
use super::{CloseCode, Inner};
use crate::framing;
use quinn::Connection;
use rota_protocol::HostId;
use rota_protocol::frame::FrameKind;
use rota_protocol::limits::FRAME_BYTES_MAX;
use rota_protocol::members::{Admission, NotLetIn, PeerLife};
use rota_protocol::peer::{PeerReply, PeerRequest};
use rota_protocol::{ErrorCode, PublicError};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// The first version of the wire that has it; older builds are known by their certificates alone.
const HAIL_SINCE: u16 = 3;
/// Largest hail, in bytes.
const HAIL_BYTES_MAX: usize = 4 << 10;
/// How long another process of the same identity has to show a sign of life.
const SIGN_TIME: Duration = Duration::from_millis(400);
/// How often it is looked for.
const SIGN_LOOK: Duration = Duration::from_millis(10);

/// The processes that speak on open connections, by host.
#[derive(Default)]
pub(super) struct Sessions(Mutex<BTreeMap<HostId, Vec<(PeerLife, Connection)>>>);

impl Sessions {
    fn map(&self) -> MutexGuard<'_, BTreeMap<HostId, Vec<(PeerLife, Connection)>>> {
        // Each change is one call.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Open connections of another process of this host.
    fn rivals(&self, host: HostId, life: &PeerLife) -> Vec<(PeerLife, Connection)> {
        let mut map = self.map();
        let all = map.entry(host).or_default();
        all.retain(|(_, connection)| connection.close_reason().is_none());
        all.iter().filter(|(other, _)| other.life.session != life.life.session).cloned().collect()
    }

    fn add(&self, host: HostId, life: PeerLife, connection: Connection) {
        self.map().entry(host).or_default().push((life, connection));
    }

    /// Hosts with open connections: where they say they are, and where they call from.
    pub(super) fn callers(&self) -> Vec<(HostId, String, SocketAddr)> {
        let map = self.map();
        let open = |all: &Vec<(PeerLife, Connection)>| {
            let (life, connection) =
                all.iter().rev().find(|(_, connection)| connection.close_reason().is_none())?;
            Some((life.addr.clone(), connection.remote_address()))
        };
        map.iter().filter_map(|(host, all)| open(all).map(|(told, from)| (*host, told, from))).collect()
    }

    /// Closes all connections of a host.
    pub(super) fn cut(&self, host: HostId) {
        for (_, connection) in self.map().remove(&host).unwrap_or_default() {
            CloseCode::Unauthenticated.close(&connection, "this host is no longer part of the cluster");
        }
    }
}

/// The caller's side. `Err`: it was not let in, or the other may not speak for its host.
pub(super) async fn call(inner: &Inner, to: HostId, up: &Up) -> Result<(), PublicError> {
    let Some(own) = inner.handler.hail().filter(|_| up.version >= HAIL_SINCE) else {
        return Ok(());
    };
    let lost = |why: String| PublicError::new(ErrorCode::Busy, why);
    let request = PeerRequest::Hail(own);
    let bytes = framing::encode_message(up.version, FrameKind::PeerRequest, &request)
        .map_err(|error| lost(error.to_string()))?;
    let (send, mut recv) = up.connection.open_bi().await.map_err(|error| lost(error.to_string()))?;
    WholeSend::new(send).send(&bytes).await.map_err(|error| lost(error.to_string()))?;
    let reply = wire::read_only(&mut recv, FrameKind::PeerReply, up.version, FRAME_BYTES_MAX);
    let admission = match reply.await.map_err(|error| lost(error.to_string()))? {
        PeerReply::Admission(admission) => *admission,
        PeerReply::Refused(error) => return Err(error),
        _ => return Err(lost("not an answer to a hail".to_owned())),
    };
    match admission {
        Admission::NotYet(error) => Err(error),
        Admission::Refused { why, text } => {
            inner.handler.turned_away(to, why, &text);
            Err(PublicError::new(ErrorCode::Forbidden, text))
        }
        Admission::LetIn(theirs) => match inner.handler.admit(to, &theirs) {
            Admission::LetIn(_) => {
                inner.hear_address(to, &theirs.addr);
                inner.handler.let_in(to);
                Ok(())
            }
            Admission::NotYet(error) => Err(error),
            Admission::Refused { text, .. } => Err(PublicError::new(ErrorCode::Forbidden, text)),
        },
    }
}

/// The answering side, on the connection's first stream after the greeting. False: the caller is not to be served.
pub(super) async fn answer(inner: &Inner, connection: &Connection, from: HostId, version: u16) -> bool {
    if inner.handler.hail().is_none() || version < HAIL_SINCE {
        return true;
    }
    let heard = async {
        let (send, mut recv) = connection.accept_bi().await.ok()?;
        let request =
            wire::read_only(&mut recv, FrameKind::PeerRequest, version, HAIL_BYTES_MAX).await.ok()?;
        match request {
            PeerRequest::Hail(life) => Some((life, WholeSend::new(send))),
            _ => None,
        }
    };
    let Some((life, mut send)) = heard.await else {
        CloseCode::Malformed.close(connection, "a hail was due");
        return false;
    };
    let admission = admission(inner, from, &life).await;
    let is_in = matches!(admission, Admission::LetIn(_));
    if is_in {
        // It may have moved while nobody could tell.
        inner.hear_address(from, &life.addr);
        inner.sessions.add(from, life.clone(), connection.clone());
        // It is there: whoever was to be told so by a dial that waits need not wait.
        inner.retry_now(from);
    } else {
        tracing::info!(host = %from, machine = life.machine, ?admission, "a caller is not let in");
    }
    let reply = PeerReply::Admission(Box::new(admission));
    let Ok(bytes) = framing::encode_message(version, FrameKind::PeerReply, &reply) else {
        return false;
    };
    let sent = send.send(&bytes).await.is_ok();
    if !is_in {
        // The caller closes when it has read the answer.
        tokio::select! {
            _ = connection.closed() => {}
            () = sleep(SIGN_TIME) => {}
        }
        CloseCode::Unauthenticated.close(connection, "not let in");
    }
    is_in && sent
}

async fn admission(inner: &Inner, from: HostId, life: &PeerLife) -> Admission {
    let said = inner.handler.admit(from, life);
    if !matches!(said, Admission::LetIn(_)) {
        return said;
    }
    for (rival, connection) in inner.sessions.rivals(from, life) {
        if is_alive(&connection).await {
            let text = format!(
                "host {from} speaks from the machine {} at {} just now, and is not let in from {} at {} too: stop one \
                 of them; if this is a copy, `rota join --replace` makes it a host of its own",
                rival.machine, rival.addr, life.machine, life.addr
            );
            return Admission::Refused { why: NotLetIn::InUse, text };
        }
        CloseCode::Done.close(&connection, "this process was followed by another");
    }
    said
}

/// Whether somebody is at the other end: a living one acknowledges whatever it is sent.
async fn is_alive(connection: &Connection) -> bool {
    let heard = || connection.stats().udp_rx.datagrams;
    let before = heard();
    if connection.close_reason().is_some() || connection.send_datagram(vec![0].into()).is_err() {
        return false;
    }
    let deadline = Instant::now() + SIGN_TIME;
    while Instant::now() < deadline {
        sleep(SIGN_LOOK).await;
        if connection.close_reason().is_some() {
            return false;
        }
        if heard() > before {
            return true;
        }
    }
    false
}
