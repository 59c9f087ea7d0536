//! A UDP socket in memory, for the product's own QUIC: datagrams go through [`Air`].

use super::air::Air;
use super::trace::Trace;
use quinn::udp::{RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, UdpPoller};
use rota_protocol::HostId;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};

const PORT: u16 = 4_600;

/// Where a host is.
pub(super) fn address(host: HostId) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 0, 0, host.0 as u8)), PORT)
}

fn host_at(addr: SocketAddr) -> Option<HostId> {
    match addr.ip() {
        IpAddr::V4(ip) => Some(HostId(u64::from(ip.octets()[3]))),
        IpAddr::V6(_) => None,
    }
}

/// The newest socket of each host.
#[derive(Clone, Default)]
pub(super) struct Sockets(Arc<Mutex<BTreeMap<HostId, Weak<Socket>>>>);

#[derive(Default)]
struct Inbox {
    waiting: VecDeque<(SocketAddr, Vec<u8>)>,
    waker: Option<Waker>,
    closed: bool,
}

/// One life's socket.
pub(super) struct Socket {
    me: HostId,
    air: Air,
    trace: Trace,
    others: Sockets,
    inbox: Mutex<Inbox>,
}

impl Sockets {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<HostId, Weak<Socket>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Binds a host's address, in place of its former life's.
    pub(super) fn bind(&self, me: HostId, air: Air, trace: Trace) -> Arc<Socket> {
        let socket =
            Arc::new(Socket { me, air, trace, others: self.clone(), inbox: Mutex::new(Inbox::default()) });
        self.lock().insert(me, Arc::downgrade(&socket));
        socket
    }
}

impl Socket {
    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The host is off: nothing more leaves.
    pub(super) fn close(&self) {
        self.inbox().closed = true;
    }

    fn take(&self, from: HostId, bytes: Vec<u8>) {
        let mut inbox = self.inbox();
        if !inbox.closed {
            inbox.waiting.push_back((address(from), bytes));
            if let Some(waker) = inbox.waker.take() {
                waker.wake();
            }
        }
    }
}

impl fmt::Debug for Socket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "socket of host {}", self.me)
    }
}

#[derive(Debug)]
struct AlwaysWritable;

impl UdpPoller for AlwaysWritable {
    fn poll_writable(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl AsyncUdpSocket for Socket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(AlwaysWritable)
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let Some(to) = host_at(transmit.destination) else {
            return Ok(());
        };
        if self.inbox().closed {
            return Ok(());
        }
        for fate in self.air.fates(self.me, to, transmit.contents.len()) {
            let mut bytes = transmit.contents.to_vec();
            if let Some(draw) = fate.flip {
                let at = (draw as usize >> 3) % bytes.len().max(1);
                bytes[at] ^= 1 << (draw & 7);
            }
            let (others, from, trace) = (self.others.clone(), self.me, self.trace.clone());
            self.air.send(to, &fate, move || {
                // Not its length: a signature's encoding may be a byte shorter from one run to the next.
                trace.hop("datagram", from, to);
                let socket = others.lock().get(&to).and_then(Weak::upgrade);
                if let Some(socket) = socket {
                    socket.take(from, bytes);
                }
            });
        }
        Ok(())
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let mut inbox = self.inbox();
        let mut count = 0;
        for (buf, meta) in bufs.iter_mut().zip(meta) {
            let Some((addr, bytes)) = inbox.waiting.pop_front() else {
                break;
            };
            let len = bytes.len().min(buf.len());
            buf[..len].copy_from_slice(&bytes[..len]);
            *meta = RecvMeta { addr, len, stride: len, ecn: None, dst_ip: None };
            count += 1;
        }
        if count > 0 {
            return Poll::Ready(Ok(count));
        }
        inbox.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(address(self.me))
    }

    fn may_fragment(&self) -> bool {
        false
    }
}
