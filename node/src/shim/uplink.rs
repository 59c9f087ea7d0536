//! A shim's way to the agent: the inherited socket, or the one of an agent that attached later.

use super::{AGENT_SOCKET, wire};
use rota_protocol::spool::ShimEvent;
use rota_protocol::{BootId, Token};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType};

/// What a shim has from the fork server.
pub(crate) struct Inherited {
    /// This boot.
    pub(crate) boot: BootId,
    /// The socket for events, shared by all shims.
    pub(crate) events: OwnedFd,
    /// Reads this process's signals.
    pub(crate) signals: OwnedFd,
    /// Tasks must not inherit the agent's protection from the kernel's memory killer.
    pub(crate) oom_default: bool,
    /// The number of the spare groups that this shim may take and leave.
    pub(crate) number: Option<u32>,
}

impl Inherited {
    /// Tells the agent that started the fork server.
    pub(crate) fn tell(&self, token: Token, event: &ShimEvent) -> Sent {
        send(&self.events, token, event)
    }

    /// Tells it even if the agent is busy; gives up only when the agent is gone.
    pub(super) fn tell_surely(&self, token: Token, event: &ShimEvent) {
        while self.tell(token, event) == Sent::Full {
            let _ = poll(&mut [PollFd::new(&self.events, PollFlags::OUT)], None);
        }
    }
}

/// What became of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sent {
    /// The kernel has it.
    Yes,
    /// The agent does not keep up; it can be sent later.
    Full,
    /// Nobody is there.
    Down,
}

/// The way to the agent.
pub(super) struct Link<'a> {
    pub(super) inherited: &'a Inherited,
    /// To an agent that attached later.
    own: Option<OwnedFd>,
    /// The agent did not keep up; nothing is sent until it does.
    pub(super) blocked: bool,
}

impl<'a> Link<'a> {
    pub(super) fn new(inherited: &'a Inherited) -> Self {
        Self { inherited, own: None, blocked: false }
    }

    /// The agent that it speaks to is the one that started its fork server.
    pub(super) fn is_first(&self) -> bool {
        self.own.is_none()
    }

    pub(super) fn fd(&self) -> rustix::fd::BorrowedFd<'_> {
        self.own.as_ref().unwrap_or(&self.inherited.events).as_fd()
    }

    pub(super) fn send(&mut self, token: Token, event: &ShimEvent) -> Sent {
        let sent = send(self.fd(), token, event);
        self.blocked = sent == Sent::Full;
        sent
    }

    /// Connects to the agent that listens now. The working directory is the attempts folder.
    pub(super) fn attach(&mut self) {
        let connect = || -> rustix::io::Result<OwnedFd> {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
            rustix::net::connect(&socket, &SocketAddrUnix::new(AGENT_SOCKET)?)?;
            Ok(socket)
        };
        if let Ok(socket) = connect() {
            self.own = Some(socket);
            self.blocked = false;
        }
    }
}

fn send(fd: impl AsFd, token: Token, event: &ShimEvent) -> Sent {
    let Ok(bytes) = wire::encode_event(token, event) else {
        return Sent::Down;
    };
    loop {
        return match rustix::net::send(&fd, &bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(_) => Sent::Yes,
            Err(Errno::INTR) => continue,
            Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM) => Sent::Full,
            Err(_) => Sent::Down,
        };
    }
}
