//! Gives gossip a clock and the network: one task that owns the timers, and a handle for everybody else.

use super::{Action, Gossip, GossipTimer, HostStatus, Seen};
use crate::net::Net;
use rota_protocol::HostId;
use rota_protocol::gossip::{GossipMember, StatusDigest};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{broadcast, mpsc};
use tokio::time::{Instant, sleep_until};

/// Packets that wait for the task; more are dropped, as a network would.
const INBOX_MAX: usize = 1_024;
/// Changes that a slow listener may lag behind; past this it reads the list anew.
const CHANGES_MAX: usize = 256;

/// A host appeared or went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Is there.
    Up(GossipMember),
    /// Does not answer.
    Down(GossipMember),
}

enum Input {
    Datagram(HostId, Vec<u8>),
    Leave,
}

struct Shared {
    gossip: Mutex<Gossip>,
    began: Instant,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Gossip> {
        // A step that panicked may have lost a packet or a timer; neither is worth more than the agent.
        self.gossip.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }
}

/// For all who feed gossip or ask it. Cheap to clone; never blocks for long.
#[derive(Clone)]
pub struct GossipHandle {
    shared: Arc<Shared>,
    inbox: mpsc::Sender<Input>,
    changes: broadcast::Sender<Change>,
}

/// The task's side; [`GossipDriver::run`] it once the network is up.
pub struct GossipDriver {
    shared: Arc<Shared>,
    inbox: mpsc::Receiver<Input>,
    changes: broadcast::Sender<Change>,
    timers: BinaryHeap<Reverse<(Instant, GossipTimer)>>,
}

/// Makes handle and task around a gossip. The handle may be used before the task runs.
#[must_use]
pub fn driver(gossip: Gossip) -> (GossipHandle, GossipDriver) {
    let shared = Arc::new(Shared { gossip: Mutex::new(gossip), began: Instant::now() });
    let (inbox_tx, inbox) = mpsc::channel(INBOX_MAX);
    let changes = broadcast::Sender::new(CHANGES_MAX);
    let handle = GossipHandle { shared: shared.clone(), inbox: inbox_tx, changes: changes.clone() };
    let driver = GossipDriver { shared, inbox, changes, timers: BinaryHeap::new() };
    (handle, driver)
}

impl GossipHandle {
    /// A packet came, see [`crate::net::PeerHandler::gossip`]. Dropped when too many wait.
    pub fn datagram(&self, from: HostId, bytes: Vec<u8>) {
        let _ = self.inbox.try_send(Input::Datagram(from, bytes));
    }

    /// This host's news, see [`Gossip::set_status`].
    pub fn set_status(&self, digest: StatusDigest) {
        let now = self.shared.now();
        self.shared.lock().set_status(now, digest);
    }

    /// How often to call [`Self::set_status`].
    #[must_use]
    pub fn status_period(&self) -> Duration {
        self.shared.lock().status_period()
    }

    /// Hosts to look for while nobody answers, see [`Gossip::set_seeds`].
    pub fn set_seeds(&self, seeds: Vec<(HostId, String)>) {
        self.shared.lock().set_seeds(seeds);
    }

    /// Every other host that is there.
    #[must_use]
    pub fn members(&self) -> Vec<GossipMember> {
        self.shared.lock().members().cloned().collect()
    }

    /// How a host is seen.
    #[must_use]
    pub fn seen(&self, host: HostId) -> Seen {
        self.shared.lock().seen(host)
    }

    /// How all other hosts are seen.
    #[must_use]
    pub fn all_seen(&self) -> BTreeMap<HostId, Seen> {
        self.shared.lock().all_seen()
    }

    /// A host's news, none if stale.
    #[must_use]
    pub fn status(&self, host: HostId) -> Option<HostStatus> {
        let now = self.shared.now();
        self.shared.lock().status(now, host)
    }

    /// Hosts that appear and go from now on. A listener that lags reads [`Self::members`] anew.
    #[must_use]
    pub fn changes(&self) -> broadcast::Receiver<Change> {
        self.changes.subscribe()
    }

    /// Says goodbye to the others; the task ends.
    pub async fn leave(&self) {
        // The task is gone already: nothing to say.
        let _ = self.inbox.send(Input::Leave).await;
        self.inbox.closed().await;
    }
}

impl GossipDriver {
    /// Runs until [`GossipHandle::leave`], or until every handle is gone. Looks for members among the seeds that
    /// the network's identity has, and those that were set.
    pub async fn run(mut self, net: Arc<Net>) {
        let now = self.shared.now();
        let actions = {
            let mut gossip = self.shared.lock();
            let mut seeds = gossip.seeds.clone();
            seeds.extend(net.identity().seeds.iter().cloned());
            gossip.start(now, seeds)
        };
        self.perform(&net, actions);
        loop {
            let next = self.timers.peek().map(|Reverse((at, _))| *at);
            let actions = tokio::select! {
                input = self.inbox.recv() => match input {
                    Some(Input::Datagram(from, bytes)) => {
                        let now = self.shared.now();
                        self.shared.lock().handle_datagram(now, from, &bytes)
                    }
                    Some(Input::Leave) => {
                        let now = self.shared.now();
                        let actions = self.shared.lock().leave(now);
                        self.perform(&net, actions);
                        return;
                    }
                    None => return,
                },
                () = sleep_until(next.unwrap_or_else(far)), if next.is_some() => self.due(),
            };
            self.perform(&net, actions);
        }
    }

    /// Fires every timer whose time has come, in order.
    fn due(&mut self) -> Vec<Action> {
        let mut actions = Vec::new();
        let until = Instant::now();
        while let Some(Reverse((at, _))) = self.timers.peek() {
            if *at > until {
                break;
            }
            if let Some(Reverse((_, timer))) = self.timers.pop() {
                let now = self.shared.now();
                actions.extend(self.shared.lock().handle_timer(now, timer));
            }
        }
        actions
    }

    fn perform(&mut self, net: &Net, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Send { to, bytes } => {
                    net.hint_peer(to.host, to.addr);
                    net.gossip_send(to.host, bytes);
                }
                Action::Schedule { after, timer } => {
                    self.timers.push(Reverse((Instant::now() + after, timer)));
                }
                Action::MemberUp(member) => {
                    tracing::info!(host = %member.host, addr = %member.addr, "seen by gossip");
                    net.hint_peer(member.host, member.addr.clone());
                    let _ = self.changes.send(Change::Up(member));
                }
                Action::MemberDown(member) => {
                    tracing::info!(host = %member.host, "no longer seen by gossip");
                    let _ = self.changes.send(Change::Down(member));
                }
            }
        }
    }
}

/// Never reached: the branch that uses it is off without a timer.
fn far() -> Instant {
    Instant::now() + Duration::from_secs(3_600)
}
