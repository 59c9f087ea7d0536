//! The way without QUIC: whole messages in their real encoding go through [`Air`], so that one message may also be lost,
//! come twice or too late as a whole (fault N7), or be damaged behind any checksum of the transport (fault D11).

use super::air::Air;
use super::desk::Desk;
use super::trace::Trace;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use rota_consensus::{LinkError, PeerLink};
use rota_protocol::HostId;
use rota_protocol::codec;
use rota_protocol::limits::FRAME_BYTES_MAX;
use rota_protocol::peer::{PeerReply, PeerRequest, RaftCall};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::mpsc;

/// Replies to one call that are kept: the first one counts, the network may deliver it again.
const REPLIES_MAX: usize = 4;

/// The desks of all lives that are on.
#[derive(Clone, Default)]
pub(super) struct Desks(Arc<Mutex<BTreeMap<HostId, Arc<Desk>>>>);

impl Desks {
    pub(super) fn put(&self, desk: Arc<Desk>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(desk.me, desk);
    }

    pub(super) fn remove(&self, host: HostId) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&host);
    }

    fn at(&self, host: HostId) -> Option<Arc<Desk>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&host).cloned()
    }
}

/// One life's way to the others.
pub(super) struct Direct {
    pub(super) me: HostId,
    pub(super) air: Air,
    pub(super) desks: Desks,
    pub(super) trace: Trace,
    /// The host is off.
    pub(super) dead: Arc<AtomicBool>,
}

impl PeerLink for Direct {
    fn call(
        &self,
        to: HostId,
        request: PeerRequest,
        ttl: Duration,
    ) -> BoxFuture<'static, Result<PeerReply, LinkError>> {
        let way = Way {
            me: self.me,
            to,
            air: self.air.clone(),
            trace: self.trace.clone(),
            arrived: Arc::new(AtomicBool::new(false)),
        };
        let (desks, dead) = (self.desks.clone(), self.dead.clone());
        async move {
            let (tell, mut replies) = mpsc::channel(REPLIES_MAX);
            if !dead.load(Ordering::Relaxed) {
                way.ask(&desks, &request, &tell);
            }
            drop(tell);
            let answered = tokio::time::timeout(ttl, async {
                match replies.recv().await {
                    Some(reply) => reply,
                    // Lost on its way: nobody says so.
                    None => std::future::pending().await,
                }
            });
            answered.await.map_err(|_| {
                if way.arrived.load(Ordering::Relaxed) {
                    LinkError::Timeout
                } else {
                    LinkError::Unreachable("it never arrived".into())
                }
            })
        }
        .boxed()
    }
}

struct Way {
    me: HostId,
    to: HostId,
    air: Air,
    trace: Trace,
    arrived: Arc<AtomicBool>,
}

impl Way {
    fn ask(&self, desks: &Desks, request: &PeerRequest, tell: &mpsc::Sender<PeerReply>) {
        let bytes = codec::encode(request).unwrap_or_default();
        for fate in self.air.fates(self.me, self.to, bytes.len()) {
            let mut bytes = bytes.clone();
            if let Some(draw) = fate.flip {
                turn_a_bit(request, &mut bytes, draw);
            }
            let (me, to) = (self.me, self.to);
            let (air, trace, tell) = (self.air.clone(), self.trace.clone(), tell.clone());
            let (desks, arrived) = (desks.clone(), self.arrived.clone());
            self.air.send(to, &fate, move || {
                trace.hop("request", me, to);
                let Some(desk) = desks.at(to) else { return };
                let Ok(request) = codec::decode::<PeerRequest>(&bytes, 2 * FRAME_BYTES_MAX) else { return };
                arrived.store(true, Ordering::Relaxed);
                tokio::spawn(async move {
                    let reply = desk.answer(me, request).await;
                    back(&air, &trace, (to, me), &reply, &tell);
                });
            });
        }
    }
}

fn back(
    air: &Air,
    trace: &Trace,
    (from, to): (HostId, HostId),
    reply: &PeerReply,
    tell: &mpsc::Sender<PeerReply>,
) {
    let bytes = codec::encode(reply).unwrap_or_default();
    for fate in air.fates(from, to, bytes.len()) {
        let (trace, tell, bytes) = (trace.clone(), tell.clone(), bytes.clone());
        air.send(to, &fate, move || {
            trace.hop("reply", from, to);
            if let Ok(reply) = codec::decode(&bytes, 2 * FRAME_BYTES_MAX) {
                // Whoever asked may have given up.
                let _ = tell.try_send(reply);
            }
        });
    }
}

/// Only pieces of snapshots are damaged: they alone have checksums of their own, all else rests on the transport's.
fn turn_a_bit(request: &PeerRequest, bytes: &mut [u8], draw: u64) {
    if let PeerRequest::Raft { call: RaftCall::Snapshot, body } = request
        && body.len() > 512
    {
        // Within the piece, behind what frames it.
        let at = bytes.len() - 1 - (draw as usize >> 3) % (body.len() - 400);
        bytes[at] ^= 1 << (draw & 7);
    }
}
