//! Followers without a state, a thousand in one process: each speaks all the words of a real one over real connections,
//! checks that what it gets has no gap and is what the others got, and serves its children from a log in memory that all
//! of them share. For measuring what many hosts cost those who feed them.
//!
//! What this is not: a replica. It applies nothing, and serves no snapshots.

use super::shelf::{Missing, Shelf, Shown, Took};
use super::words::{Mark, Standing};
use super::{Fed, Following, Server, Terms, Tree, pull};
use crate::config::{EntryPayload, LogEntry, Vote};
use crate::leadership::Leadership;
use crate::link::PeerLink;
use crate::snapshot_file::SnapshotFile;
use crate::watch;
use crate::wire::{Chunk, WireAppend, WireId, wire_id};
use rota_protocol::PublicError;
use rota_protocol::ids::HostId;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// Entries that the shared log keeps.
const KEPT: usize = 50_000;
/// Bytes of entries in one message.
const MESSAGE_BYTES_MAX: usize = 1 << 20;

/// The log that all light followers of one process share.
#[derive(Clone, Default)]
pub struct LightLog(Arc<Mutex<BTreeMap<u64, LogEntry>>>);

impl LightLog {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, LogEntry>> {
        // Each change is one call.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The commands of an entry, encoded.
    #[must_use]
    pub fn commands(&self, index: u64) -> Option<Arc<[u8]>> {
        match &self.lock().get(&index)?.payload {
            EntryPayload::Normal(data) => Some(data.0.clone()),
            EntryPayload::Blank | EntryPayload::Membership(_) => None,
        }
    }

    /// Adds what one follower got. False if another one got something else.
    fn add(&self, entries: Vec<LogEntry>) -> bool {
        let mut log = self.lock();
        for entry in entries {
            let index = entry.log_id.index;
            if log.get(&index).is_some_and(|known| *known != entry) {
                return false;
            }
            log.insert(index, entry);
        }
        while log.len() > KEPT {
            log.pop_first();
        }
        true
    }
}

/// The cluster as light followers know it.
#[derive(Debug, Clone)]
pub struct LightSite {
    /// Members of the agreement.
    pub members: BTreeSet<HostId>,
    /// All hosts, by number.
    pub hosts: Arc<[HostId]>,
    /// Children of each host.
    pub fan_out: usize,
}

/// Told of each span of entries that became visible: the first and the last index.
pub type Told = Box<dyn Fn(u64, u64) + Send + Sync>;

struct Light {
    me: HostId,
    log: LightLog,
    site: LightSite,
    fed: Arc<Fed>,
    now: Mutex<Now>,
    applied: watch::Sender<u64>,
    leadership: watch::Sender<Leadership>,
    told: Told,
    /// The way up under one leader: hosts do not come or go here.
    way: Mutex<Option<(Option<HostId>, Vec<HostId>)>>,
}

#[derive(Default, Clone, Copy)]
struct Now {
    applied: Option<WireId>,
    vote: Option<Vote>,
    /// Something did not fit.
    faults: u64,
}

/// One light follower.
pub struct LightFollower {
    shelf: Arc<Light>,
    server: Server<Light>,
}

impl LightFollower {
    /// A follower that knows nothing yet.
    #[must_use]
    pub fn new(me: HostId, log: LightLog, site: LightSite, told: Told) -> Self {
        let shelf = Arc::new(Light {
            me,
            log,
            site,
            fed: Arc::default(),
            now: Mutex::default(),
            applied: watch::Sender::new(0),
            leadership: watch::Sender::new(Leadership::default()),
            told,
            way: Mutex::default(),
        });
        Self { server: Server::new(shelf.clone(), Arc::default()), shelf }
    }

    /// Answers another follower.
    ///
    /// # Errors
    /// What it asks cannot be read, or is not here.
    pub async fn answer(&self, from: HostId, body: &[u8]) -> Result<Vec<u8>, PublicError> {
        self.server.answer(from, body).await
    }

    /// Follows from now on, until the task is ended.
    pub fn follow(&self, link: Arc<dyn PeerLink>) -> JoinHandle<()> {
        let terms = Terms { link, fed: self.shelf.fed.clone() };
        crate::runtime::spawn(pull(self.shelf.clone(), terms))
    }

    /// How it is fed.
    #[must_use]
    pub fn following(&self) -> Following {
        Following { children: self.server.count(), ..self.shelf.fed.now().following }
    }

    /// The last entry that it has.
    #[must_use]
    pub fn applied(&self) -> u64 {
        *self.shelf.applied.borrow()
    }

    /// Who leads, as far as it was told.
    #[must_use]
    pub fn leader(&self) -> Option<HostId> {
        self.shelf.leadership.borrow().leader
    }

    /// How often something did not fit what others got, or had a gap.
    #[must_use]
    pub fn faults(&self) -> u64 {
        self.shelf.lock().faults
    }
}

impl Light {
    fn lock(&self) -> MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn refuse(&self) -> Took {
        self.lock().faults += 1;
        Took::Refused
    }

    fn reached(&self, id: WireId, vote: Vote) {
        let before = {
            let mut now = self.lock();
            now.vote = Some(vote);
            now.applied.replace(id)
        };
        let leader = Some(HostId(vote.leader_id.voted_for));
        let led = Leadership { leader, term: vote.leader_id.term, leading: false };
        self.leadership.send_if_modified(|held| std::mem::replace(held, led) != led);
        let first = before.map_or(0, |before| before.index + 1);
        if first <= id.index {
            (self.told)(first, id.index);
            self.applied.send_replace(id.index);
        }
    }
}

impl Shelf for Light {
    fn shown(&self) -> Shown {
        let now = *self.lock();
        let fed = self.fed.now();
        let silent = fed.heard_at.map(|at: Instant| at.elapsed());
        let silent_ms = silent.and_then(|age| u64::try_from(age.as_millis()).ok()).unwrap_or(u64::MAX / 2);
        let standing = Standing { depth: fed.following.depth, silent_ms };
        Shown { applied: now.applied, mark: None, vote: now.vote, standing }
    }

    fn changes(&self) -> (watch::Receiver<u64>, watch::Receiver<Leadership>) {
        (self.applied.subscribe(), self.leadership.subscribe())
    }

    fn entries(&self, after: Option<WireId>, upto: WireId) -> Result<Vec<LogEntry>, Missing> {
        let log = self.log.lock();
        let first = after.map_or(0, |after| after.index + 1);
        if first > upto.index {
            return Ok(Vec::new());
        }
        let mut bytes = 0;
        let mut entries = Vec::new();
        for (index, entry) in log.range(first..=upto.index) {
            if *index != first + entries.len() as u64 {
                return Err(Missing::Cut);
            }
            if let EntryPayload::Normal(data) = &entry.payload {
                bytes += data.0.len();
            }
            if bytes > MESSAGE_BYTES_MAX && !entries.is_empty() {
                break;
            }
            entries.push(entry.clone());
        }
        if entries.is_empty() { Err(Missing::Cut) } else { Ok(entries) }
    }

    fn snapshot(&self) -> Option<(WireId, SnapshotFile)> {
        None
    }

    fn leads(&self) -> bool {
        false
    }

    fn rest(&self) -> Option<Duration> {
        None
    }

    fn way_up(&self) -> Vec<HostId> {
        let LightSite { members, hosts, fan_out } = &self.site;
        let leader = self.leadership.borrow().leader;
        let mut held = self.way.lock().unwrap_or_else(PoisonError::into_inner);
        match &*held {
            Some((under, way)) if *under == leader => way.clone(),
            _ => {
                let tree = Tree::new(members, leader, hosts.iter().copied(), *fan_out);
                let way = tree.way_up(self.me, &BTreeSet::new());
                *held = Some((leader, way.clone()));
                way
            }
        }
    }

    async fn take(&self, append: WireAppend, _: Option<Mark>) -> Took {
        let Ok(rpc) = append.request() else { return self.refuse() };
        let now = *self.lock();
        if now.vote.is_some_and(|held| held > rpc.vote) {
            return Took::Older;
        }
        if rpc.prev_log_id.as_ref().map(wire_id) != now.applied {
            return self.refuse();
        }
        let last = rpc.entries.last().map(|entry| wire_id(&entry.log_id)).or(now.applied);
        if !self.log.add(rpc.entries) {
            return self.refuse();
        }
        if let Some(last) = last {
            self.reached(last, rpc.vote);
        }
        Took::All
    }

    async fn take_piece(&self, _: HostId, of: WireId, chunk: Chunk) -> Option<(u64, bool)> {
        if crc32fast::hash(&chunk.bytes.0) != chunk.crc {
            self.refuse();
            return None;
        }
        let next = chunk.offset + chunk.bytes.0.len() as u64;
        let done = next == chunk.total;
        if done {
            self.reached(of, chunk.vote());
        }
        Some((next, done))
    }
}
