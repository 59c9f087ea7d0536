//! Shims that serve more than one attempt. To copy the fork server, and to let the copy find its memory, costs more than
//! what a short task does itself. So a shim whose attempt is over sits for a while and takes the next order, one after
//! the other: never two at once.
//!
//! Nothing of an attempt's isolation hangs on that: what bounds a task is done by its own process, between its birth and
//! its program, and a shim is never inside. What a shim has of one attempt (record, lease, groups, output) ends with it;
//! only one after which that is plain ([`Seat::next`] is asked by `turns`) sits. Calls bear the mark of their attempt
//! (`wire`), so that one that comes late is not taken for the next.
//!
//! Each shim with a seat has a socket on which orders come; all of them tell on one pipe that they sit. The fork server
//! ends them: it closes the socket of one that sat for too long, and all when it dies. So no order goes to one that is
//! leaving. One that is killed while it sits may be sent an order before its end can be seen: the kernel tells whether that
//! was received, and what was not is begun by a copy.

use crate::io::ffi;
use rota_protocol::Token;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How long a shim sits without an order. Short: it is there for bursts.
pub(crate) const SIT: Duration = Duration::from_millis(250);
/// Longest order that goes to one that sits, in bytes; longer ones get a copy that has it in memory already.
const ORDER_BYTES_MAX: usize = 64 << 10;
/// Attempts that one shim serves: whatever a long life gathers is bounded.
const SERVES_MAX: u32 = 1_000;
/// Notices read at once.
const NOTICES: usize = 64;
const NOTICE_BYTES: usize = 4;
const TOKEN_BYTES: usize = 8;

/// The fork server's side.
pub(super) struct Seats {
    /// Where shims tell that they sit.
    notices: OwnedFd,
    /// The other end, for copies.
    tell: OwnedFd,
    last: u32,
    /// Living shims, by the number of their seat: numbers are never given twice.
    shims: BTreeMap<u32, Seated>,
    /// Those that sit, and since when; the last is the next to serve, so that few are kept warm.
    sitting: Vec<(u32, Instant)>,
}

struct Seated {
    socket: OwnedFd,
    pid: i32,
    /// What it was sent last, until it sits again.
    given: Option<Given>,
}

/// A token and an order behind it, as they were sent to one that sat.
pub(super) struct Given(Vec<u8>);

impl Given {
    pub(super) fn order(&self) -> &[u8] {
        self.0.get(TOKEN_BYTES..).unwrap_or_default()
    }
}

impl Seats {
    pub(super) fn new() -> std::io::Result<Self> {
        let (notices, tell) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        Ok(Self { notices, tell, last: 0, shims: BTreeMap::new(), sitting: Vec::new() })
    }

    /// Readable when a shim sat down.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.notices.as_fd()
    }

    /// A seat for the next copy. Without one a shim serves once.
    pub(super) fn make(&mut self) -> Option<(Seat, OwnedFd)> {
        let tell = rustix::io::fcntl_dupfd_cloexec(&self.tell, 0).ok()?;
        let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
        let (ours, theirs) = rustix::net::socketpair(AddressFamily::UNIX, kind, flags, None).ok()?;
        self.last = self.last.checked_add(1)?;
        Some((Seat { number: self.last, orders: theirs, tell, served: 0 }, ours))
    }

    /// The copy lives.
    pub(super) fn add(&mut self, seat: u32, socket: OwnedFd, pid: i32) {
        self.shims.insert(seat, Seated { socket, pid, given: None });
    }

    /// The processes of those that sat down since it was last asked.
    pub(super) fn sat_down(&mut self) -> Vec<i32> {
        let mut bytes = [0_u8; NOTICES * NOTICE_BYTES];
        let mut found = Vec::new();
        // A notice is written and read as a whole: a pipe keeps small writes together, and there is one length.
        while let Ok(len @ 1..) = rustix::io::read(&self.notices, &mut bytes[..]) {
            let (notices, _) = bytes[..len].as_chunks::<NOTICE_BYTES>();
            found.extend(notices.iter().map(|notice| u32::from_le_bytes(*notice)));
            if len < bytes.len() {
                break;
            }
        }
        let now = Instant::now();
        found.retain(|seat| self.shims.contains_key(seat));
        self.sitting.extend(found.iter().map(|seat| (*seat, now)));
        let sits = |seat| {
            let seated = self.shims.get_mut(seat)?;
            seated.given = None;
            Some(seated.pid)
        };
        found.iter().filter_map(sits).collect()
    }

    /// Gives an order to one that sits; its process, or none if nobody takes it.
    pub(super) fn give(&mut self, token: Token, order: &[u8]) -> Option<i32> {
        if order.len() > ORDER_BYTES_MAX {
            return None;
        }
        while let Some((seat, _)) = self.sitting.pop() {
            let Some(seated) = self.shims.get_mut(&seat) else { continue };
            let message = [&token.0.to_le_bytes(), order].concat();
            // One that was killed is known by its closed end; what it would have served goes to the next.
            match rustix::net::send(&seated.socket, &message, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(_) => {
                    seated.given = Some(Given(message));
                    return Some(seated.pid);
                }
                Err(_) => drop(self.shims.remove(&seat)),
            }
        }
        None
    }

    /// Ends those that sat for too long. When that is to be looked at again, if anyone sits.
    pub(super) fn end_idle(&mut self) -> Option<Duration> {
        let now = Instant::now();
        let idle = self.sitting.iter().take_while(|(_, since)| now.duration_since(*since) >= SIT).count();
        for (seat, _) in self.sitting.drain(..idle) {
            self.shims.remove(&seat);
        }
        self.sitting.first().map(|(_, since)| SIT.saturating_sub(now.duration_since(*since)))
    }

    /// A shim is gone, and was reaped. The order that it was sent and never received, if there is one: nothing of it was
    /// begun. A record that is missing would be no such proof, since the agent removes those of attempts that are over.
    pub(super) fn remove(&mut self, seat: Option<u32>) -> Option<Given> {
        let Seated { socket, given, .. } = self.shims.remove(&seat?)?;
        // What the kernel says of the other end when that was closed with a message in it.
        let unread = matches!(rustix::net::sockopt::socket_error(&socket), Ok(Err(Errno::CONNRESET)));
        given.filter(|_| unread)
    }
}

/// A shim's side.
pub(super) struct Seat {
    number: u32,
    orders: OwnedFd,
    tell: OwnedFd,
    served: u32,
}

/// What a shim is to do next.
pub(super) enum Next {
    /// This.
    Serve(Token, Vec<u8>),
    /// End: it never sat down.
    End,
    /// End, and say that it failed: an order may have come that nobody takes.
    EndSat,
}

impl Seat {
    pub(super) fn number(&self) -> u32 {
        self.number
    }

    /// Sits until an order comes or the fork server has no more use for this shim.
    pub(super) fn next(&mut self, signals: &OwnedFd) -> Next {
        self.served += 1;
        let told =
            self.served < SERVES_MAX && rustix::io::write(&self.tell, &self.number.to_le_bytes()).is_ok();
        if !told {
            return Next::End;
        }
        loop {
            let mut fds = [PollFd::new(&self.orders, PollFlags::IN), PollFd::new(signals, PollFlags::IN)];
            let _ = poll(&mut fds, None);
            // Nothing runs: whatever else is said was meant for an attempt that is over.
            while let Ok(Some(received)) = ffi::read_signal(signals.as_fd()) {
                if received.signal == Signal::TERM.as_raw() {
                    return Next::EndSat;
                }
            }
            match self.receive() {
                Ok(Some((token, order))) => return Next::Serve(token, order),
                Err(Errno::AGAIN | Errno::INTR) => {}
                Ok(None) | Err(_) => return Next::EndSat,
            }
        }
    }

    /// An order; none when there will be no more.
    fn receive(&self) -> rustix::io::Result<Option<(Token, Vec<u8>)>> {
        let look = RecvFlags::DONTWAIT | RecvFlags::PEEK | RecvFlags::TRUNC;
        let (_, len) = rustix::net::recv(&self.orders, &mut [0_u8; 0][..], look)?;
        let mut token = [0; TOKEN_BYTES];
        if len < TOKEN_BYTES {
            return Ok(None);
        }
        let mut message = vec![0; len];
        let (got, _) = rustix::net::recv(&self.orders, &mut message[..], RecvFlags::DONTWAIT)?;
        token.copy_from_slice(&message[..TOKEN_BYTES]);
        debug_assert_eq!(got, len, "the peeked message is the one that is read");
        Ok(Some((Token(u64::from_le_bytes(token)), message.split_off(TOKEN_BYTES))))
    }
}
