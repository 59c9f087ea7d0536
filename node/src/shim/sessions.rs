//! A shim's sessions: the terminal of its task, commands inside it, and the socket on which the agent asks for them.
//!
//! The socket is opened when it is first called for, so that an attempt without sessions costs nothing. One agent talks
//! on it, one message and one answer at a time. Output goes through pumps into files, like all output.

use super::cage::Groups;
use super::inside::{Inside, files_base};
use super::processes::Processes;
use super::program::Birth;
use super::terminal::Input;
use rota_protocol::session::{
    HOLD_MS_MAX, LifeOrder, MAIN_SESSION, SESSIONS_MAX, SessionAsk, SessionNews, ShimSessionCall,
    TerminalSize,
};
use rota_protocol::spool::LaunchOrder;
use rota_protocol::{ErrorCode, PublicError, Token, codec};
use rustix::event::{PollFd, PollFlags};
use rustix::fd::{AsFd, OwnedFd};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{Pid, Signal};
use std::collections::BTreeMap;

/// Longest message on the socket, in bytes: a command line at its longest, within what the kernel takes at once.
pub(crate) const CALL_BYTES_MAX: usize = 160 << 10;
/// How long a command may be without a word of its client, in ms: longer than an agent takes to be restarted.
const HOLD_MS: u32 = 60_000;
/// Least time between two messages about news, in ms.
const NEWS_GAP_MS: u64 = 5;
/// A user is warned of an idle end this long before it, at most a tenth of the whole, in ms.
const IDLE_WARN_MS_MAX: u64 = 60_000;

/// Name of the socket, in the attempts folder.
pub(crate) fn socket_name(token: Token) -> String {
    format!("{token}.sock")
}

/// What the attempt itself is to do for its terminal's sake.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Wish {
    /// Say this on the terminal.
    Say(String),
    /// Nobody used it for too long.
    EndIdle,
    /// Its client is gone.
    HangUp,
}

/// What sessions need of their attempt.
pub(super) struct Around<'a> {
    pub(super) order: &'a LaunchOrder,
    pub(super) oom_default: bool,
    pub(super) groups: &'a Groups,
    pub(super) processes: &'a mut Processes,
    pub(super) buffer: &'a mut Vec<u8>,
    /// Commands may be started.
    pub(super) open: bool,
    pub(super) now_ms: u64,
    /// Bytes that the task's terminal has shown.
    pub(super) shown: u64,
}

/// The task's own terminal.
struct Main {
    input: Input,
    /// Hung up when its client is silent until then.
    held_until_ms: Option<u64>,
    /// By the job's own wish, whatever a client says.
    hold_ms: Option<u32>,
    idle_ms: Option<u64>,
    used_ms: u64,
    warned: bool,
    shown: u64,
}

/// All sessions of one attempt.
pub(super) struct Sessions {
    token: Token,
    socket: Option<OwnedFd>,
    agent: Option<OwnedFd>,
    main: Option<Main>,
    inside: BTreeMap<u64, Inside>,
    news: bool,
    news_due_ms: u64,
}

impl Sessions {
    pub(super) fn new(token: Token) -> Self {
        let (main, inside) = (None, BTreeMap::new());
        Self { token, socket: None, agent: None, main, inside, news: false, news_due_ms: 0 }
    }

    /// The task has this terminal.
    pub(super) fn set_main(&mut self, ours: OwnedFd, life: &LifeOrder, now_ms: u64) {
        let hold_ms = life.session.and_then(|session| session.hold_ms);
        self.main = Some(Main {
            input: Input::new(ours, true),
            held_until_ms: hold_ms.map(|ms| now_ms + u64::from(ms)),
            hold_ms,
            idle_ms: life.idle_ms,
            used_ms: now_ms,
            warned: false,
            shown: 0,
        });
    }

    /// The task has a terminal.
    pub(super) fn has_main(&self) -> bool {
        self.main.is_some()
    }

    /// Opens the socket. Again when it is there already: somebody may have removed its name.
    pub(super) fn listen(&mut self) {
        let name = socket_name(self.token);
        let _ = std::fs::remove_file(&name);
        let bind = || -> rustix::io::Result<OwnedFd> {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
            rustix::net::bind(&socket, &SocketAddrUnix::new(name.as_str())?)?;
            rustix::net::listen(&socket, 1)?;
            Ok(socket)
        };
        self.socket = bind().ok();
    }

    /// Adds what there is to wait for; [`Self::ready`] takes the answers in the same order.
    pub(super) fn watch<'f>(&'f self, fds: &mut Vec<PollFd<'f>>) {
        let input = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
        let output = |fd| PollFd::from_borrowed_fd(fd, PollFlags::OUT);
        fds.extend(self.socket.iter().chain(&self.agent).map(|fd| input(fd.as_fd())));
        fds.extend(self.main.iter().filter_map(|main| main.input.blocked()).map(output));
        for inside in self.inside.values() {
            fds.extend(inside.input.blocked().map(output));
            fds.extend(inside.outputs().map(input));
        }
    }

    /// Handles what is ready.
    pub(super) fn ready(&mut self, ready: &[bool], mut around: Around<'_>) {
        let mut ready = ready.iter().copied();
        let connects = self.socket.is_some() && ready.next() == Some(true);
        let speaks = self.agent.is_some() && ready.next() == Some(true);
        if let Some(main) = self.main.as_mut().filter(|main| main.input.blocked().is_some())
            && ready.next() == Some(true)
        {
            main.input.flush();
        }
        for inside in self.inside.values_mut() {
            if inside.input.blocked().is_some() && ready.next() == Some(true) {
                inside.input.flush();
            }
            let before = inside.lens();
            inside.move_some(&mut ready, around.buffer);
            self.news |= inside.lens() != before;
        }
        if speaks {
            self.hear(&mut around);
        }
        if connects && let Some(socket) = &self.socket {
            // The newest agent is the one that counts.
            self.agent = rustix::net::accept_with(socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK).ok();
        }
    }

    /// Takes note of commands that were reaped. Of those that a signal ended while their task was being `ended`, it was
    /// Rota's.
    pub(super) fn reaped(&mut self, processes: &mut Processes, ended: bool, buffer: &mut Vec<u8>) {
        for (pid, status) in processes.take_ended() {
            let of = |inside: &&mut Inside| inside.pid().map(|p| Pid::as_raw(Some(p))) == Some(pid);
            if let Some(inside) = self.inside.values_mut().find(of) {
                match ended && status.terminating_signal().is_some() {
                    true => inside.over(buffer),
                    false => inside.reaped(status, buffer),
                }
                self.news = true;
            }
        }
    }

    /// Time has passed, and the task's terminal has shown `shown` bytes.
    pub(super) fn on_time(
        &mut self,
        processes: &Processes,
        grace_ms: u64,
        shown: u64,
        now_ms: u64,
    ) -> Option<Wish> {
        for inside in self.inside.values_mut().filter(|inside| inside.end.is_none()) {
            let Some(pid) = inside.pid().map(|pid| Pid::as_raw(Some(pid))) else { continue };
            if inside.kill_at_ms.is_some_and(|at| now_ms >= at) {
                processes.signal_watched(pid, Signal::KILL);
                inside.kill_at_ms = Some(now_ms + grace_ms.max(1_000));
            } else if inside.kill_at_ms.is_none() && now_ms >= inside.held_until_ms {
                inside.input.close();
                processes.signal_watched(pid, Signal::HUP);
                processes.signal_watched(pid, Signal::CONT);
                inside.kill_at_ms = Some(now_ms + grace_ms);
            }
        }
        let main = self.main.as_mut()?;
        if shown != main.shown {
            (main.shown, main.used_ms, main.warned) = (shown, now_ms, false);
        }
        if main.held_until_ms.is_some_and(|at| now_ms >= at) {
            main.held_until_ms = None;
            return Some(Wish::HangUp);
        }
        let idle_ms = main.idle_ms?;
        if now_ms >= main.used_ms.saturating_add(idle_ms) {
            main.idle_ms = None;
            return Some(Wish::EndIdle);
        }
        let warn_ms = IDLE_WARN_MS_MAX.min(idle_ms / 10);
        if !main.warned && now_ms >= (main.used_ms + idle_ms).saturating_sub(warn_ms) {
            main.warned = true;
            let left = crate::parse::time::duration_text(main.used_ms + idle_ms - now_ms);
            return Some(Wish::Say(format!(
                "\r\n[rota: this terminal is idle and is ended in {left}; press a key to keep it]\r\n"
            )));
        }
        None
    }

    /// What was said on the terminal on Rota's behalf is no use of it.
    pub(super) fn said(&mut self, shown: u64) {
        if let Some(main) = &mut self.main {
            main.shown = shown;
        }
    }

    /// When [`Self::on_time`] is to be called next, in ms.
    pub(super) fn next_ms(&self) -> Option<u64> {
        let inside = self.inside.values().filter(|inside| inside.end.is_none() && inside.pid().is_some());
        let inside = inside.map(|inside| inside.kill_at_ms.unwrap_or(inside.held_until_ms));
        let main = self.main.iter().flat_map(|main| {
            let idle = main.idle_ms.map(|ms| {
                let warn_ms = if main.warned { 0 } else { IDLE_WARN_MS_MAX.min(ms / 10) };
                main.used_ms + ms - warn_ms
            });
            [idle, main.held_until_ms].into_iter().flatten()
        });
        let news = self.news.then_some(self.news_due_ms);
        inside.chain(main).chain(news).min()
    }

    /// Something is to be told, and may be told now.
    pub(super) fn news_due(&self, now_ms: u64) -> bool {
        self.news && now_ms >= self.news_due_ms
    }

    /// It was told.
    pub(super) fn told(&mut self, now_ms: u64) {
        self.news = false;
        self.news_due_ms = now_ms + NEWS_GAP_MS;
    }

    /// The attempt is over.
    pub(super) fn finish(&mut self, buffer: &mut Vec<u8>) {
        for inside in self.inside.values_mut() {
            inside.over(buffer);
        }
        if self.socket.is_some() {
            let _ = std::fs::remove_file(socket_name(self.token));
        }
    }

    fn hear(&mut self, around: &mut Around<'_>) {
        let Some(agent) = &self.agent else { return };
        around.buffer.resize(CALL_BYTES_MAX, 0);
        let flags = RecvFlags::DONTWAIT | RecvFlags::TRUNC;
        let len = match rustix::net::recv(agent, &mut around.buffer[..], flags) {
            Ok((_, len)) if (1..=CALL_BYTES_MAX).contains(&len) => len,
            Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => return,
            _ => {
                self.agent = None;
                return;
            }
        };
        let answer = match codec::decode::<ShimSessionCall>(&around.buffer[..len], CALL_BYTES_MAX) {
            Ok(call) => self.answer(call, around),
            Err(error) => Err(PublicError::new(ErrorCode::Invalid, error.to_string())),
        };
        let sent = codec::encode(&answer).ok().zip(self.agent.as_ref()).is_some_and(|(bytes, agent)| {
            rustix::net::send(agent, &bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL).is_ok()
        });
        if !sent {
            self.agent = None;
        }
    }

    fn answer(&mut self, call: ShimSessionCall, around: &mut Around<'_>) -> Result<SessionNews, PublicError> {
        let ShimSessionCall { session, ask } = call;
        match ask {
            SessionAsk::Start { argv, terminal, term } => {
                self.start(session, argv, terminal, term, around)?
            }
            SessionAsk::Send { client, offset, bytes, last, size, hold_ms } => {
                let hold_ms = hold_ms.map(|ms| ms.min(HOLD_MS_MAX));
                let input = match self.main.as_mut().filter(|_| session == MAIN_SESSION) {
                    Some(main) => {
                        let hold_ms = hold_ms.or(main.hold_ms);
                        main.held_until_ms = hold_ms.map(|ms| around.now_ms + u64::from(ms));
                        if !bytes.is_empty() {
                            (main.used_ms, main.warned) = (around.now_ms, false);
                        }
                        &mut main.input
                    }
                    None => {
                        let inside = self.inside.get_mut(&session).ok_or_else(|| unknown(session))?;
                        inside.held_until_ms = around.now_ms + u64::from(hold_ms.unwrap_or(HOLD_MS));
                        &mut inside.input
                    }
                };
                let taken = input.take(client, offset, &bytes, last);
                if let Some(size) = size {
                    input.resize(size);
                }
                let news = self.news_of(session, around.shown)?;
                return Ok(SessionNews { taken, ..news });
            }
            SessionAsk::Close => {
                let over = self.inside.get(&session).is_some_and(|inside| inside.end.is_some());
                if over && let Some(inside) = self.inside.remove(&session) {
                    inside.forget();
                    return Ok(SessionNews { end: inside.end, ..SessionNews::none(self.token) });
                }
                if let Some(inside) = self.inside.get_mut(&session) {
                    inside.held_until_ms = 0;
                }
            }
            SessionAsk::Read { .. } => {
                return Err(PublicError::new(ErrorCode::Invalid, "output is read from its files"));
            }
        }
        self.news_of(session, around.shown)
    }

    fn news_of(&self, session: u64, shown: u64) -> Result<SessionNews, PublicError> {
        let none = SessionNews::none(self.token);
        if session == MAIN_SESSION && self.main.is_some() {
            return Ok(SessionNews { stdout: shown, ..none });
        }
        let inside = self.inside.get(&session).ok_or_else(|| unknown(session))?;
        let [stdout, stderr] = inside.lens();
        Ok(SessionNews { stdout, stderr, end: inside.end.clone(), ..none })
    }

    fn start(
        &mut self,
        session: u64,
        argv: Vec<Vec<u8>>,
        terminal: Option<TerminalSize>,
        term: Vec<u8>,
        around: &mut Around<'_>,
    ) -> Result<(), PublicError> {
        if session == MAIN_SESSION || self.inside.contains_key(&session) {
            return Ok(());
        }
        if !around.open {
            return Err(PublicError::new(
                ErrorCode::Conflict,
                "the task is ending: nothing is started in it",
            ));
        }
        // Those whose clients never came back to fetch their end make room first.
        while self.inside.len() >= SESSIONS_MAX {
            let over =
                self.inside.iter().find(|(_, inside)| inside.end.is_some()).map(|(session, _)| *session);
            let Some(inside) = over.and_then(|session| self.inside.remove(&session)) else {
                let message = format!("{SESSIONS_MAX} commands run in this task already");
                return Err(PublicError::new(ErrorCode::Busy, message));
            };
            inside.forget();
        }
        let mut order = LaunchOrder { argv, ..around.order.clone() };
        if terminal.is_some() {
            order.env.retain(|(name, _)| name != b"TERM");
            order.env.push((b"TERM".to_vec(), term));
        }
        let base = files_base(self.token, session);
        let birth = Birth { groups: around.groups, beside: Some(around.processes.main()) };
        let started = Inside::start(&order, around.oom_default, birth, base.clone(), terminal);
        let mut inside = started.unwrap_or_else(|reason| Inside::not_started(base, reason));
        inside.held_until_ms = around.now_ms + u64::from(HOLD_MS);
        if let Some(pid) = inside.pid() {
            around.processes.watch(pid);
        }
        self.inside.insert(session, inside);
        self.news = true;
        Ok(())
    }
}

fn unknown(session: u64) -> PublicError {
    if session == MAIN_SESSION {
        let message = "this task has no terminal; `rota exec JOB -- sh` runs a shell in it";
        return PublicError::new(ErrorCode::NotFound, message);
    }
    PublicError::new(ErrorCode::NotFound, format!("no session {session:016x} of this task"))
}
