//! The last thing a shim does: its attempt's end goes to the record and to the agent.

use super::record::OwnRecord;
use super::timer::timespec;
use super::uplink::{Link, Sent};
use super::wire;
use crate::io::ffi;
use rota_protocol::spool::{ExitRecord, ShimCall, ShimEvent};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::AsFd;

/// Writes the end, tells it, and makes it durable when nobody hears it. True when all went as it mostly does: it was
/// written, and heard at once by the agent whose fork server made this shim.
pub(super) fn conclude(mut record: OwnRecord, mut link: Link<'_>, exit: &ExitRecord) -> bool {
    const RETRY_MS: u64 = 500;
    let event = ShimEvent::Ended(exit.clone());
    let (mut written, mut synced) = (record.end(exit).is_ok(), false);
    loop {
        let sent = link.send(exit.token, &event);
        if sent == Sent::Yes {
            return written && link.is_first();
        }
        written = written || record.end(exit).is_ok();
        synced = synced || (written && record.sync().is_ok());
        if synced && sent == Sent::Down {
            return false;
        }
        // Either a busy agent (it will read) or a full disk (it will be cleared, or a new agent attaches).
        let timeout = timespec(RETRY_MS);
        let mut fds = [
            PollFd::new(&link.inherited.signals, PollFlags::IN),
            PollFd::from_borrowed_fd(
                link.fd(),
                if sent == Sent::Full { PollFlags::OUT } else { PollFlags::empty() },
            ),
        ];
        let _ = poll(&mut fds, Some(&timeout));
        while let Ok(Some(received)) = ffi::read_signal(link.inherited.signals.as_fd()) {
            if received.signal == ffi::call_signal()
                && wire::call_of(received.value, exit.token) == Some(ShimCall::Attach)
            {
                link.attach();
            }
        }
    }
}
