//! A network to spoil: one UDP proxy on loopback in front of each agent. Peers advertise their proxy's port, so all that
//! others send them on their own account passes it, and so do the answers, each over a socket of its own. Whoever
//! sends from an agent's port is that agent: agents dial from the port that they listen on.
//!
//! The proxies run on a thread of their own: a test that waits does not slow the network. Not here: anything that looks
//! into a packet.

use rota_node::lab::{LabError, PeerPorts, free_port};
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::net::UdpSocket;

/// Packets that are held back at once; more are lost, as in a real queue.
const HELD_MAX: usize = 4_096;
/// Addresses that one proxy serves; a lab has a dozen, commands that join and ask come and go.
const PATHS_MAX: usize = 256;
/// Largest datagram.
const DATAGRAM_MAX: usize = 65_536;
/// How long a packet that is to be overtaken stays behind, in ms.
const OVERTAKEN_MS: u64 = 8;
/// How often the thread looks whether it shall end.
const STOP_LOOK: Duration = Duration::from_millis(50);

/// What happens to packets of one direction of one link.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Fault {
    /// Nothing passes.
    pub cut: bool,
    /// Nothing passes in every other period of this many ms; 0 for never.
    pub flap_ms: u64,
    /// Lost at random, in thousandths.
    pub loss_permille: u32,
    /// Sent twice, in thousandths.
    pub duplicate_permille: u32,
    /// Overtaken by later ones, in thousandths.
    pub reorder_permille: u32,
    /// All are late by this much, in ms.
    pub delay_ms: u64,
}

impl Fault {
    /// Nothing passes.
    pub const CUT: Self = Self {
        cut: true,
        flap_ms: 0,
        loss_permille: 0,
        duplicate_permille: 0,
        reorder_permille: 0,
        delay_ms: 0,
    };
}

/// What the proxies did so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Packets sent on.
    pub passed: u64,
    /// Packets kept back by a fault.
    pub dropped: u64,
    /// Packets sent a second time.
    pub doubled: u64,
    /// Packets sent late.
    pub late: u64,
    /// Packets lost because a queue or a table was full: not what a test asked for.
    pub overflowed: u64,
    /// Packets to an agent that does not listen.
    pub unheard: u64,
}

#[derive(Debug, Default)]
struct Tally {
    passed: AtomicU64,
    dropped: AtomicU64,
    doubled: AtomicU64,
    late: AtomicU64,
    overflowed: AtomicU64,
    unheard: AtomicU64,
}

#[derive(Debug)]
struct Shared {
    ports: Vec<PeerPorts>,
    faults: Mutex<BTreeMap<(usize, usize), Fault>>,
    born: Instant,
    held: AtomicUsize,
    tally: Tally,
    stop: AtomicBool,
}

/// The links between the agents of a lab. Dropping it ends the proxies.
#[derive(Debug)]
pub struct Wires {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Wires {
    /// Proxies for `peers` agents, all passing everything.
    ///
    /// # Errors
    /// No ports, or no thread.
    pub fn new(peers: usize) -> Result<Self, LabError> {
        let io = |e| LabError::Io("cannot set up a proxy".into(), e);
        let (mut ports, mut fronts) = (Vec::new(), Vec::new());
        for _ in 0..peers {
            let front = std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).map_err(io)?;
            front.set_nonblocking(true).map_err(io)?;
            ports.push(PeerPorts { listen: 0, advertise: front.local_addr().map_err(io)?.port() });
            fronts.push(front);
        }
        for ports in &mut ports {
            ports.listen = free_port()?;
        }
        let shared = Arc::new(Shared {
            ports,
            faults: Mutex::default(),
            born: Instant::now(),
            held: AtomicUsize::new(0),
            tally: Tally::default(),
            stop: AtomicBool::new(false),
        });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(io)?;
        let theirs = Arc::clone(&shared);
        let serve = move || runtime.block_on(serve(theirs, fronts));
        let thread = std::thread::Builder::new().name("wires".into()).spawn(serve).map_err(io)?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Ports for the lab's options.
    #[must_use]
    pub fn ports(&self) -> Vec<PeerPorts> {
        self.shared.ports.clone()
    }

    /// Sets what happens from one peer to another, from the next packet on.
    pub fn set(&self, from: usize, to: usize, fault: Fault) {
        self.shared.faults().insert((from, to), fault);
    }

    /// The same on every link from a peer.
    pub fn set_from(&self, from: usize, fault: Fault) {
        (0..self.shared.ports.len()).filter(|to| *to != from).for_each(|to| self.set(from, to, fault));
    }

    /// The same on every link to a peer.
    pub fn set_to(&self, to: usize, fault: Fault) {
        (0..self.shared.ports.len()).filter(|from| *from != to).for_each(|from| self.set(from, to, fault));
    }

    /// The same on every link of a peer, both ways.
    pub fn set_around(&self, peer: usize, fault: Fault) {
        self.set_from(peer, fault);
        self.set_to(peer, fault);
    }

    /// The same on every link.
    pub fn set_all(&self, fault: Fault) {
        (0..self.shared.ports.len()).for_each(|from| self.set_from(from, fault));
    }

    /// Everything passes again.
    pub fn heal(&self) {
        self.shared.faults().clear();
    }

    /// What happened so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let tally = &self.shared.tally;
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counts {
            passed: read(&tally.passed),
            dropped: read(&tally.dropped),
            doubled: read(&tally.doubled),
            late: read(&tally.late),
            overflowed: read(&tally.overflowed),
            unheard: read(&tally.unheard),
        }
    }
}

impl Drop for Wires {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Where a packet goes.
#[derive(Debug, Clone)]
enum Way {
    /// To the agent behind a proxy, over the socket of one caller.
    In(Arc<UdpSocket>),
    /// Back to the caller, from the proxy's own port.
    Out(Arc<UdpSocket>, SocketAddr),
}

impl Way {
    fn send(&self, bytes: &[u8]) -> std::io::Result<usize> {
        match self {
            Self::In(socket) => socket.try_send(bytes),
            Self::Out(socket, to) => socket.try_send_to(bytes, *to),
        }
    }
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

fn hit(permille: u32) -> bool {
    permille > 0 && rand::random_range(0..1_000) < permille
}

impl Shared {
    fn faults(&self) -> MutexGuard<'_, BTreeMap<(usize, usize), Fault>> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Who sends from this port; none for commands, which are no peers and meet no faults.
    fn peer_at(&self, port: u16) -> Option<usize> {
        self.ports.iter().position(|ports| ports.listen == port)
    }

    fn fault(&self, link: (Option<usize>, Option<usize>)) -> Fault {
        let (Some(from), Some(to)) = link else { return Fault::default() };
        self.faults().get(&(from, to)).copied().unwrap_or_default()
    }

    fn is_down(&self, fault: &Fault) -> bool {
        let periods = u64::try_from(self.born.elapsed().as_millis()).unwrap_or(u64::MAX);
        fault.cut || periods.checked_div(fault.flap_ms).is_some_and(|period| period % 2 == 1)
    }

    /// Does to one packet what its link does.
    fn pass(self: &Arc<Self>, link: (Option<usize>, Option<usize>), bytes: &[u8], way: &Way) {
        let fault = self.fault(link);
        if self.is_down(&fault) || hit(fault.loss_permille) {
            return count(&self.tally.dropped);
        }
        let copies = if hit(fault.duplicate_permille) { 2 } else { 1 };
        for copy in 0..copies {
            if copy > 0 {
                count(&self.tally.doubled);
            }
            let behind = if hit(fault.reorder_permille) { OVERTAKEN_MS } else { 0 };
            match fault.delay_ms + behind {
                0 => self.send(bytes, way),
                wait_ms => self.send_late(wait_ms, bytes, way),
            }
        }
    }

    fn send(&self, bytes: &[u8], way: &Way) {
        count(match way.send(bytes) {
            Ok(_) => &self.tally.passed,
            Err(error) if error.kind() == ErrorKind::WouldBlock => &self.tally.overflowed,
            Err(_) => &self.tally.unheard,
        });
    }

    fn send_late(self: &Arc<Self>, wait_ms: u64, bytes: &[u8], way: &Way) {
        if self.held.fetch_add(1, Ordering::Relaxed) >= HELD_MAX {
            self.held.fetch_sub(1, Ordering::Relaxed);
            return count(&self.tally.overflowed);
        }
        count(&self.tally.late);
        let (shared, way, bytes) = (Arc::clone(self), way.clone(), bytes.to_vec());
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(wait_ms)).await;
            shared.held.fetch_sub(1, Ordering::Relaxed);
            shared.send(&bytes, &way);
        });
    }
}

async fn serve(shared: Arc<Shared>, fronts: Vec<std::net::UdpSocket>) {
    for (peer, front) in fronts.into_iter().enumerate() {
        match UdpSocket::from_std(front) {
            Ok(front) => drop(tokio::spawn(front_door(Arc::clone(&shared), peer, Arc::new(front)))),
            Err(error) => eprintln!("proxy of peer {peer}: {error}"),
        }
    }
    while !shared.stop.load(Ordering::Relaxed) {
        tokio::time::sleep(STOP_LOOK).await;
    }
}

/// Takes what callers send to one agent.
async fn front_door(shared: Arc<Shared>, peer: usize, front: Arc<UdpSocket>) {
    let mut paths: BTreeMap<SocketAddr, Arc<UdpSocket>> = BTreeMap::new();
    let mut buffer = vec![0; DATAGRAM_MAX];
    loop {
        // The error is that of an earlier packet to someone who is gone.
        let Ok((length, caller)) = front.recv_from(&mut buffer).await else { continue };
        let from = shared.peer_at(caller.port());
        let path = match paths.get(&caller) {
            Some(path) => Arc::clone(path),
            None if paths.len() >= PATHS_MAX => {
                count(&shared.tally.overflowed);
                continue;
            }
            None => match open_path(&shared, peer, &front, caller).await {
                Ok(path) => Arc::clone(paths.entry(caller).or_insert(path)),
                Err(_) => {
                    count(&shared.tally.overflowed);
                    continue;
                }
            },
        };
        shared.pass((from, Some(peer)), &buffer[..length], &Way::In(path));
    }
}

/// A socket of its own for one caller: the agent answers to it, and the answers are sent on to the caller.
async fn open_path(
    shared: &Arc<Shared>,
    peer: usize,
    front: &Arc<UdpSocket>,
    caller: SocketAddr,
) -> std::io::Result<Arc<UdpSocket>> {
    let path = Arc::new(UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await?);
    path.connect((Ipv4Addr::LOCALHOST, shared.ports[peer].listen)).await?;
    path.writable().await?;
    let (shared, back) = (Arc::clone(shared), Arc::clone(&path));
    let way = Way::Out(Arc::clone(front), caller);
    tokio::spawn(async move {
        let to = shared.peer_at(caller.port());
        let mut buffer = vec![0; DATAGRAM_MAX];
        loop {
            // The error says that an earlier packet found no agent.
            let Ok(length) = back.recv(&mut buffer).await else { continue };
            shared.pass((Some(peer), to), &buffer[..length], &way);
        }
    });
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A "peer": a socket at its listen port, and the address of the other one's proxy.
    fn peer(wires: &Wires, number: usize) -> std::net::UdpSocket {
        let socket = std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, wires.ports()[number].listen)).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        socket
    }

    fn text(socket: &std::net::UdpSocket) -> (String, SocketAddr) {
        let mut buffer = [0; 64];
        let (length, from) = socket.recv_from(&mut buffer).unwrap();
        (String::from_utf8_lossy(&buffer[..length]).into_owned(), from)
    }

    #[test]
    fn answers_come_back_from_the_proxy_and_each_direction_has_its_own_fault() {
        let wires = Wires::new(2).unwrap();
        let (a, b) = (peer(&wires, 0), peer(&wires, 1));
        let proxy = SocketAddr::from((Ipv4Addr::LOCALHOST, wires.ports()[1].advertise));
        a.send_to(b"one", proxy).unwrap();
        let (got, back) = text(&b);
        assert_eq!(got, "one");
        b.send_to(b"two", back).unwrap();
        assert_eq!(text(&a), ("two".to_owned(), proxy));

        // From b to a is cut: the way there is open, the answer is lost; what is sent after the healing arrives.
        wires.set(1, 0, Fault::CUT);
        a.send_to(b"three", proxy).unwrap();
        assert_eq!(text(&b).0, "three");
        b.send_to(b"lost", back).unwrap();
        while wires.counts().dropped == 0 {
            std::thread::yield_now();
        }
        wires.heal();
        b.send_to(b"four", back).unwrap();
        assert_eq!(text(&a).0, "four");
        assert_eq!(wires.counts().dropped, 1);
    }

    #[test]
    fn packets_are_doubled_overtaken_and_held_back() {
        let wires = Wires::new(2).unwrap();
        let (a, b) = (peer(&wires, 0), peer(&wires, 1));
        let proxy = SocketAddr::from((Ipv4Addr::LOCALHOST, wires.ports()[1].advertise));
        wires.set(0, 1, Fault { duplicate_permille: 1_000, ..Fault::default() });
        a.send_to(b"twice", proxy).unwrap();
        assert_eq!((text(&b).0, text(&b).0), ("twice".to_owned(), "twice".to_owned()));

        wires.set(0, 1, Fault { reorder_permille: 1_000, delay_ms: 200, ..Fault::default() });
        a.send_to(b"first", proxy).unwrap();
        while wires.counts().late == 0 {
            std::thread::yield_now();
        }
        wires.heal();
        a.send_to(b"second", proxy).unwrap();
        assert_eq!((text(&b).0, text(&b).0), ("second".to_owned(), "first".to_owned()));
        assert_eq!(wires.counts().doubled, 1);
    }
}
