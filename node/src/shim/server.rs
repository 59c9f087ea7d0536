//! The fork server: turns each order into a shim by copying itself, so that a launch costs no exec of a large binary.
//!
//! One thread and no runtime, because only such a process can be copied safely. Standard input is the stream of
//! orders, standard output the socket for events. It ends when the agent does. It is a subreaper: what a killed shim
//! leaves behind becomes its child, and every child that is not a shim is killed.

use super::cage::{Numbers, tidy};
use super::seats::{Given, Seat, Seats};
use super::timer::timespec;
use super::turns::keep;
use super::uplink::{Inherited, Sent};
use super::wire;
use crate::io::clock::boottime_ms;
use crate::io::ffi::{self, Forked};
use crate::io::proc;
use rota_protocol::Token;
use rota_protocol::job::AttemptEnd;
use rota_protocol::limits::FRAME_BYTES_MAX;
use rota_protocol::spool::{ExitRecord, ShimEvent};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::{DupFlags, Errno, fcntl_dupfd_cloexec};
use rustix::process::{Pid, Signal, WaitOptions, kill_process};
use std::collections::BTreeMap;
use std::io;
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::time::Duration;

/// Bytes read at once: many small orders in one call.
const READ_BYTES: usize = 32 << 10;
/// Pause between two rounds of killing what a dead shim left.
const SWEEP_PAUSE: Duration = Duration::from_millis(5);

/// Runs the fork server; to be called first thing in `main`, before any thread exists. Arguments: the attempts folder,
/// then the folders of the agent's control groups.
///
/// Returns the process's exit code.
#[must_use]
pub fn server_main(mut args: impl Iterator<Item = std::ffi::OsString>) -> i32 {
    let Some(dir) = args.next() else {
        eprintln!("rota {}: this is a part of the agent and is not run by hand", super::SERVER_ARG);
        return 2;
    };
    // The standard library looks once per process what the processor can do, which is slow in a virtual machine: looked
    // up here, it is inherited by every shim.
    #[cfg(target_arch = "x86_64")]
    let _ = std::arch::is_x86_feature_detected!("sse4.2");
    // The same holds for the clock's place in memory.
    let _ = boottime_ms();
    let bases: Vec<PathBuf> = args.map(PathBuf::from).collect();
    let served = Server::start(&dir).and_then(|mut server| server.run());
    tidy_after(&dir, &bases);
    match served {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("rota {}: {error}", super::SERVER_ARG);
            1
        }
    }
}

/// The agent may still be ending: its lock goes a moment after its sockets.
fn tidy_after(dir: &std::ffi::OsStr, bases: &[PathBuf]) {
    const TRIES: u32 = 10;
    const PAUSE: Duration = Duration::from_millis(20);
    for _ in 0..TRIES {
        if bases.iter().all(|base| !base.exists()) {
            return;
        }
        // A shim that was only just forked makes its groups in these folders; one that lives removes them itself at its end.
        if !shims_live() {
            // Where the folder is gone, nobody can be in it any more, and the lock would be looked for elsewhere.
            let lock = std::env::set_current_dir(dir).is_ok();
            tidy(bases, lock);
        }
        std::thread::sleep(PAUSE);
    }
}

fn shims_live() -> bool {
    use rustix::process::{WaitOptions, wait};
    while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
    matches!(wait(WaitOptions::NOHANG), Ok(None))
}

/// A living shim.
struct Shim {
    /// The attempt that it serves; none while it sits.
    token: Option<Token>,
    /// Of its spare groups.
    number: Option<u32>,
    seat: Option<u32>,
}

struct Server {
    orders: OwnedFd,
    inherited: Inherited,
    shims: BTreeMap<i32, Shim>,
    /// None in a copy.
    seats: Option<Seats>,
    numbers: Numbers,
    /// Shims that died; their leftovers are being killed.
    died: Vec<Token>,
    /// What shims were sent that died before they received it.
    unread: Vec<(Token, Given)>,
    /// What the agent was too busy to hear.
    untold: Vec<(Token, ShimEvent)>,
}

impl Server {
    fn start(dir: &std::ffi::OsStr) -> io::Result<Self> {
        const FIRST_FREE: i32 = 3;
        // What the agent itself was started with is none of the shims' business.
        ffi::close_inherited(FIRST_FREE.cast_unsigned())?;
        std::env::set_current_dir(dir)?;
        let orders = fcntl_dupfd_cloexec(rustix::stdio::stdin(), FIRST_FREE)?;
        let events = fcntl_dupfd_cloexec(rustix::stdio::stdout(), FIRST_FREE)?;
        let null = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null")?;
        rustix::stdio::dup2_stdin(&null)?;
        rustix::stdio::dup2_stdout(&null)?;
        // Not the agent's session: a terminal's interrupt is for the agent alone.
        rustix::process::setsid()?;
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
        rustix::thread::set_name(c"rota-shimd")?;
        super::cage::warm_up();
        ffi::take_signals()?;
        let signals = ffi::signal_fd()?;
        let own_oom = std::fs::read_to_string("/proc/self/oom_score_adj").unwrap_or_default();
        let boot = proc::boot_id()?;
        Ok(Self {
            orders,
            inherited: Inherited { boot, events, signals, oom_default: own_oom.trim() != "0", number: None },
            shims: BTreeMap::new(),
            seats: Some(Seats::new()?),
            numbers: Numbers::default(),
            died: Vec::new(),
            unread: Vec::new(),
            untold: Vec::new(),
        })
    }

    fn run(&mut self) -> io::Result<()> {
        let mut bytes: Vec<u8> = Vec::with_capacity(READ_BYTES);
        loop {
            let idle = self.seats.as_mut().and_then(Seats::end_idle);
            let busy = !self.died.is_empty() || !self.untold.is_empty();
            let wait = if busy { Some(SWEEP_PAUSE) } else { idle };
            let wait = wait.map(|wait| timespec(wait.as_millis() as u64 + 1));
            let mut fds = vec![
                PollFd::new(&self.orders, PollFlags::IN),
                PollFd::new(&self.inherited.signals, PollFlags::IN),
            ];
            fds.extend(self.seats.as_ref().map(|seats| PollFd::from_borrowed_fd(seats.fd(), PollFlags::IN)));
            match poll(&mut fds, wait.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            let (orders, signals) = (fds[0].revents(), fds[1].revents());
            let notices = fds.get(2).is_some_and(|fd| !fd.revents().is_empty());
            if !signals.is_empty() {
                while ffi::read_signal(self.inherited.signals.as_fd())?.is_some() {}
                self.reap();
            }
            if !self.died.is_empty() {
                self.sweep();
            }
            self.launch_unread();
            for (token, event) in std::mem::take(&mut self.untold) {
                self.tell(token, event);
            }
            if notices {
                for pid in self.seats.as_mut().map(Seats::sat_down).unwrap_or_default() {
                    self.shims.entry(pid).and_modify(|shim| shim.token = None);
                }
            }
            if !orders.is_empty() {
                if !self.read_orders(&mut bytes)? {
                    return Ok(());
                }
                self.launch_all(&mut bytes)?;
            }
        }
    }

    /// Adds what came. False at the end of the stream: the agent is gone.
    fn read_orders(&self, bytes: &mut Vec<u8>) -> io::Result<bool> {
        bytes.reserve(READ_BYTES);
        match rustix::io::read(&self.orders, rustix::buffer::spare_capacity(bytes)) {
            Ok(0) => Ok(false),
            Ok(_) | Err(Errno::INTR) => Ok(true),
            Err(error) => Err(error.into()),
        }
    }

    fn launch_all(&mut self, bytes: &mut Vec<u8>) -> io::Result<()> {
        let mut used = 0;
        while let Some((token, order, len)) = wire::first_order(&bytes[used..]).map_err(io::Error::other)? {
            match self.seats.as_mut().and_then(|seats| seats.give(token, order)) {
                Some(pid) => {
                    self.shims.entry(pid).and_modify(|shim| shim.token = Some(token));
                }
                None => self.launch(token, order),
            }
            used += len;
        }
        bytes.drain(..used);
        if bytes.capacity() > 2 * READ_BYTES && bytes.len() < READ_BYTES {
            bytes.shrink_to(READ_BYTES);
        }
        debug_assert!(bytes.len() <= FRAME_BYTES_MAX + READ_BYTES);
        Ok(())
    }

    fn launch(&mut self, token: Token, order: &[u8]) {
        let number = self.numbers.lend();
        self.inherited.number = number;
        // What is beyond the spare groups is made as it is needed: so many sockets are not held.
        let seats = self.seats.as_mut().filter(|_| number.is_some());
        let (seat, socket) = seats.and_then(Seats::make).unzip();
        let at = seat.as_ref().map(Seat::number);
        match ffi::fork() {
            Ok(Forked::Child) => {
                // Its other end must be the fork server's alone: by its closing the shim knows that it is to go.
                drop(socket);
                ffi::exit_now(self.become_shim(token, order, seat))
            }
            Ok(Forked::Parent(pid)) => {
                let pid = Pid::as_raw(Some(pid));
                if let (Some(seats), Some(at), Some(socket)) = (self.seats.as_mut(), at, socket) {
                    seats.add(at, socket, pid);
                }
                self.shims.insert(pid, Shim { token: Some(token), number, seat: at });
            }
            Err(error) => {
                self.numbers.take_back(number);
                self.tell(token, ShimEvent::Ended(refused(token, &error)));
            }
        }
    }

    /// In the copy: the order's stream and other shims' sockets are the fork server's alone.
    fn become_shim(&mut self, token: Token, order: &[u8], seat: Option<Seat>) -> i32 {
        const PANICKED: i32 = 70;
        drop(self.seats.take());
        let closed = rustix::io::dup3(rustix::stdio::stdin(), &mut self.orders, DupFlags::CLOEXEC)
            // Whoever reads the agent's standard error must not wait for shims that outlive it.
            .and_then(|()| rustix::stdio::dup2_stderr(rustix::stdio::stdin()));
        if closed.is_err() {
            return PANICKED;
        }
        std::panic::catch_unwind(AssertUnwindSafe(|| keep(&self.inherited, token, order, seat)))
            .unwrap_or(PANICKED)
    }

    fn reap(&mut self) {
        while let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) {
            let Some(shim) = self.shims.remove(&Pid::as_raw(Some(pid))) else {
                continue;
            };
            self.numbers.take_back(shim.number);
            let unread = self.seats.as_mut().and_then(|seats| seats.remove(shim.seat));
            match shim.token.zip(unread) {
                Some(unread) => self.unread.push(unread),
                None if status.exit_status() != Some(0) => self.died.extend(shim.token),
                None => {}
            }
        }
    }

    /// By copies, so that it comes to an end whatever kills those that sit.
    fn launch_unread(&mut self) {
        for (token, given) in std::mem::take(&mut self.unread) {
            self.launch(token, given.order());
        }
    }

    /// Kills children that are not shims. Once there are none, tells which shims died.
    fn sweep(&mut self) {
        let own = Pid::as_raw(Some(rustix::process::getpid()));
        let mut left = 0;
        for pid in proc::children(own).unwrap_or_default() {
            if !self.shims.contains_key(&pid)
                && let Some(pid) = Pid::from_raw(pid)
            {
                // Only this process reaps its children: the number cannot mean anybody else.
                let _ = kill_process(pid, Signal::KILL);
                left += 1;
            }
        }
        self.reap();
        if left == 0 {
            for token in std::mem::take(&mut self.died) {
                self.tell(token, ShimEvent::ShimDied);
            }
        }
    }

    /// Never waits: shims must be started and reaped meanwhile.
    fn tell(&mut self, token: Token, event: ShimEvent) {
        if self.inherited.tell(token, &event) == Sent::Full {
            self.untold.push((token, event));
        }
    }
}

fn refused(token: Token, error: &io::Error) -> ExitRecord {
    let end = AttemptEnd::LaunchFailed { reason: format!("cannot make a process: {error}") };
    ExitRecord::never_ran(token, end)
}
