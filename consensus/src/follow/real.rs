//! A host's own log and state, as what others are served from and as what it is fed into.

use super::shelf::{Missing, Shelf, Shown, Took};
use super::tree::{FAN_OUT, Tree};
use super::words::{Mark, Standing};
use super::{Fed, SINCE_VERSION};
use crate::config::{EntryPayload, LogEntry, Raft, Timings};
use crate::inbound::Inbound;
use crate::leadership::{Leadership, Watched};
use crate::log::store::LogStore;
use crate::machine::Shared;
use crate::snapshot_file::SnapshotFile;
use crate::turn::Heard;
use crate::watch;
use crate::wire::{Chunk, WireAppend, WireId, wire_id};
use openraft::async_runtime::watch::WatchReceiver;
use openraft::raft::AppendEntriesResponse;
use rota_core::state::host::HostLife;
use rota_protocol::ids::HostId;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// How long a host that votes by its own last word waits for its leader before it asks others: elections are long over,
/// and if it was taken out meanwhile nobody else will tell it.
const VOTER_SILENCE: Duration = Duration::from_secs(10);
/// How long entries may take to be applied before more are asked for.
const APPLY_TIME: Duration = Duration::from_secs(10);
/// How often the way up is worked out: it changes with the membership.
const WAY_TIME: Duration = Duration::from_millis(500);
/// Of a host that has never heard anything.
const SILENT_FOR_EVER_MS: u64 = u64::MAX / 2;

/// A host's own copy.
pub(crate) struct Own {
    me: HostId,
    raft: Raft,
    log: LogStore,
    pub(crate) machine: Arc<Shared>,
    pub(crate) inbound: Arc<Inbound>,
    heard: Arc<Heard>,
    watched: Arc<Watched>,
    timings: Timings,
    pub(crate) fed: Arc<Fed>,
    born: Instant,
    /// Hosts that may know the log while this one knows nothing.
    pub(crate) seeds: Mutex<Vec<HostId>>,
    way: Mutex<Option<(Instant, Vec<HostId>)>>,
}

impl Own {
    /// The copy of a host that begins to take part.
    pub(crate) fn new(
        me: HostId,
        raft: &Raft,
        (log, machine): (&LogStore, &Arc<Shared>),
        inbound: &Arc<Inbound>,
        (heard, watched): (&Arc<Heard>, &Arc<Watched>),
        timings: Timings,
    ) -> Self {
        Self {
            me,
            raft: raft.clone(),
            log: log.clone(),
            machine: machine.clone(),
            inbound: inbound.clone(),
            heard: heard.clone(),
            watched: watched.clone(),
            timings,
            fed: Arc::default(),
            born: Instant::now(),
            seeds: Mutex::default(),
            way: Mutex::default(),
        }
    }

    fn leadership(&self) -> Leadership {
        *self.watched.leadership.borrow()
    }

    fn votes(&self) -> bool {
        let metrics = self.raft.metrics().borrow_watched().clone();
        metrics.membership_config.voter_ids().any(|id| id == self.me.0)
    }

    /// How long members are left to be fed by the leader.
    fn patience(&self) -> Duration {
        if self.votes() { VOTER_SILENCE } else { Duration::from_millis(self.timings.election_max_ms * 2) }
    }

    fn standing(&self) -> Standing {
        if self.leadership().leading {
            return Standing { depth: 0, silent_ms: 0 };
        }
        let fed = self.fed.now();
        let direct = self.heard.led().map(|at| at.elapsed());
        let indirect = fed.heard_at.map(|at| at.elapsed());
        let ms = |age: Duration| u64::try_from(age.as_millis()).unwrap_or(SILENT_FOR_EVER_MS);
        let silent = [direct, indirect].into_iter().flatten().min();
        let by_leader = direct.is_some_and(|age| age <= self.patience());
        Standing {
            depth: if by_leader { 1 } else { fed.following.depth },
            silent_ms: silent.map_or(SILENT_FOR_EVER_MS, ms),
        }
    }

    fn way_now(&self) -> Vec<HostId> {
        let metrics = self.raft.metrics().borrow_watched().clone();
        let membership = metrics.membership_config.membership();
        let members: BTreeSet<HostId> = membership.nodes().map(|(id, _)| HostId(*id)).collect();
        let (hosts, down, version) = self.machine.read(|state| {
            let here = |host: &&rota_core::Host| host.belonging.removed.is_none();
            let hosts: Vec<HostId> = state.hosts().filter(here).map(|host| host.id).collect();
            let lost = |host: &&rota_core::Host| {
                host.life == HostLife::Lost || state.trust().revoked(host.id).is_some()
            };
            let down: BTreeSet<HostId> = state.hosts().filter(lost).map(|host| host.id).collect();
            (hosts, down, state.cluster().map(|_| state.version()))
        });
        match version {
            None => {
                let seeds = self.seeds.lock().unwrap_or_else(PoisonError::into_inner);
                seeds.iter().copied().filter(|id| *id != self.me).collect()
            }
            Some(version) if version < SINCE_VERSION => Vec::new(),
            Some(_) => Tree::new(&members, self.leadership().leader, hosts, FAN_OUT).way_up(self.me, &down),
        }
    }
}

impl Shelf for Own {
    fn shown(&self) -> Shown {
        let (applied, mark) = self.machine.standing();
        let vote = Some(self.raft.metrics().borrow_watched().vote).filter(|vote| vote.committed);
        Shown { applied: applied.as_ref().map(wire_id), mark: Some(mark), vote, standing: self.standing() }
    }

    fn changes(&self) -> (watch::Receiver<u64>, watch::Receiver<Leadership>) {
        (self.machine.applied(), self.watched.leadership.subscribe())
    }

    fn entries(&self, after: Option<WireId>, upto: WireId) -> Result<Vec<LogEntry>, Missing> {
        self.log.0.memory().behind(after.map(|id| (id.term, id.index)), upto.index)
    }

    fn snapshot(&self) -> Option<(WireId, SnapshotFile)> {
        let (id, file) = self.machine.current()?;
        Some((wire_id(&id), file))
    }

    fn leads(&self) -> bool {
        self.leadership().leading
    }

    fn rest(&self) -> Option<Duration> {
        let patience = self.patience();
        let heard = self.heard.led().map_or(self.born, |at| at.max(self.born));
        // One that leads hears nobody.
        let age = if self.leadership().leading { Duration::ZERO } else { heard.elapsed() };
        patience.checked_sub(age).filter(|left| !left.is_zero())
    }

    fn way_up(&self) -> Vec<HostId> {
        let mut held = self.way.lock().unwrap_or_else(PoisonError::into_inner);
        match &*held {
            Some((at, way)) if at.elapsed() < WAY_TIME => way.clone(),
            _ => {
                let way = self.way_now();
                *held = Some((Instant::now(), way.clone()));
                way
            }
        }
    }

    async fn take(&self, append: WireAppend, mark: Option<Mark>) -> Took {
        if append.is_empty() && self.votes() {
            // A leader's silence is what elections go by; who votes is not to be soothed by third hosts.
            return Took::All;
        }
        let last = append.last();
        let rpc = match append.request() {
            Ok(rpc) => rpc,
            Err(error) => {
                tracing::warn!(%error, "a parent sent what cannot be");
                return Took::Refused;
            }
        };
        let weighs = |entry: &LogEntry| matches!(entry.payload, EntryPayload::Normal(_));
        if rpc.entries.iter().any(weighs) && self.log.0.is_full() {
            return Took::Refused;
        }
        self.machine.must_become(mark);
        match self.inbound.feed(rpc).await {
            Ok(AppendEntriesResponse::HigherVote(_)) => return Took::Older,
            Ok(AppendEntriesResponse::Success) => {}
            other => {
                tracing::warn!(?other, "entries of a parent were not taken");
                return Took::Refused;
            }
        }
        let Some(last) = last else { return Took::All };
        let mut applied = self.machine.applied();
        // What is applied is asked for no more: the next question begins there.
        match timeout(APPLY_TIME, applied.wait_for(|index| *index >= last.index)).await {
            Ok(Ok(_)) => Took::All,
            Ok(Err(_)) | Err(_) => Took::Refused,
        }
    }

    async fn take_piece(&self, from: HostId, _: WireId, chunk: Chunk) -> Option<(u64, bool)> {
        let vote = chunk.vote();
        match self.inbound.piece(from, chunk).await {
            // A newer leader is known here: the parent's word is not.
            Ok(reply) if reply.vote() > vote && reply.done && reply.next == 0 => None,
            Ok(reply) => Some((reply.next, reply.done)),
            Err(error) => {
                tracing::warn!(%from, %error, "a piece of a snapshot was not taken");
                None
            }
        }
    }
}
