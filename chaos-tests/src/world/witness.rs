//! What the witness knows of gangs, of evicted work, and of work that asks to be queued again.

use super::oracle::Law;
use super::sim::World;
use rota_core::EndedAttempt;
use rota_node::logic::gang::Meeting;
use rota_protocol::job::{AttemptEnd, EndReason, JobState};
use rota_protocol::{HostId, JobId, Token};
use std::collections::BTreeMap;

/// From the log's wish that a gang ends to its last process, at most: a host that is cut off goes by its lease, one
/// that is behind by its replica. Longer than both together.
const GANG_ENDS_MS: u64 = 20_000;

/// Seen so far.
#[derive(Debug, Default)]
pub struct Gangs {
    /// By job and the entry of its start: what the first part that came to its launch was told.
    told: BTreeMap<(JobId, u64), Vec<(u32, HostId)>>,
    /// Since when a gang is to end.
    ending: BTreeMap<JobId, u64>,
}

impl World {
    /// A host launches a part: what it tells it must be what every other host tells.
    pub(super) fn oracle_meets(&mut self, host: HostId, token: Token, meeting: &Meeting) {
        self.reach.hit("gang started");
        let Some(attempt) = self.log.head.attempt(token) else { return };
        let job = attempt.task.job;
        let Some(spec) = self.log.head.job(job).and_then(|job| job.spec.gang) else { return };
        let seats: Vec<_> = meeting.seats.iter().map(|seat| (seat.index, seat.host)).collect();
        let now = self.now;
        if seats.get(meeting.rank) != Some(&(attempt.task.index, host)) {
            let what = format!("attempt {token} on host {host} is told rank {}: {seats:?}", meeting.rank);
            self.oracle.broken(now, Law::I7, what);
        }
        self.ports_are_told(job, meeting);
        if spec.is_elastic() {
            return;
        }
        if seats.len() != spec.max as usize {
            let what = format!("a part of gang {job} is told of {} parts", seats.len());
            self.oracle.broken(now, Law::I7, what);
        }
        let told = self.oracle.gangs.told.entry((job, token.log_index())).or_insert_with(|| seats.clone());
        if *told != seats {
            let what = format!("parts of gang {job} are told {told:?} and {seats:?}");
            self.oracle.broken(now, Law::I7, what);
        }
    }

    /// Whoever is told of the part that holds the ports is told to meet there. A part of an elastic gang that comes late
    /// to its launch may not know of it: it is told of those it started with, and one that came later took over.
    fn ports_are_told(&mut self, job: JobId, meeting: &Meeting) {
        let Some(holder) = self.log.head.attempts_of(job).find(|part| part.port.is_some()) else { return };
        let (token, port) = (holder.token, holder.port);
        let rigid =
            self.log.head.job(job).and_then(|job| job.spec.gang).is_some_and(|gang| !gang.is_elastic());
        let knows = meeting.seats.iter().any(|seat| seat.token == token);
        let first = meeting.seats.first().map(|seat| seat.token);
        if (knows || rigid) && (first != Some(token) || meeting.port != port) {
            let what = format!(
                "a part of gang {job} is told to meet {first:?} at {:?}, ports {port:?} are held by {token}",
                meeting.port
            );
            self.oracle.broken(self.now, Law::I7, what);
        }
    }

    /// A part has started: of a rigid gang only parts of one start live at once.
    pub(super) fn oracle_part_started(&mut self, token: Token, job: JobId) {
        let rigid = |gang: rota_protocol::work::GangSpec| !gang.is_elastic();
        if !self.log.head.job(job).and_then(|job| job.spec.gang).is_some_and(rigid) {
            return;
        }
        let others = self.oracle.live_of(job);
        if let Some(other) = others.into_iter().find(|other| other.log_index() != token.log_index()) {
            let what = format!("gang {job} runs as of {other} and as of {token} at once");
            self.oracle.broken(self.now, Law::I7, what);
        }
    }

    /// After every entry: a gang that is to end ends everywhere, in bounded time.
    pub(super) fn oracle_gangs(&mut self) {
        let now = self.now;
        let head = &self.log.head;
        let ending: Vec<JobId> =
            head.jobs().filter(|job| job.gang_ending && job.live > 0).map(|job| job.id).collect();
        self.oracle.gangs.ending.retain(|job, _| ending.contains(job));
        for job in ending {
            let since = *self.oracle.gangs.ending.entry(job).or_insert(now);
            // Time without a leader, or with hosts that are down, is nobody's fault here; processes are.
            let left = self.oracle.live_of(job);
            if now - since > GANG_ENDS_MS && !left.is_empty() {
                let what = format!("gang {job} is to end since {since} ms, and {left:?} live");
                self.oracle.broken(now, Law::I7, what);
            }
        }
    }

    /// An attempt is over: what was put out, or asked for it, waits again; nobody's retries pay.
    pub(super) fn oracle_comes_back(&mut self, id: JobId, ended: &EndedAttempt) {
        let Some(job) = self.log.head.job(id).filter(|job| !job.cancel_asked) else { return };
        let evicted = ended.asked.is_some_and(EndReason::is_eviction);
        let moved = matches!(ended.asked, Some(EndReason::Drain | EndReason::Move | EndReason::Turn));
        let asks = matches!(ended.end, AttemptEnd::Requeued { .. }) && ended.asked.is_none();
        let comes_back = asks || (evicted && (job.spec.requeue || moved) && !ended.end.is_success());
        if asks {
            self.reach.hit("asked to be queued again");
        }
        let evicted_to = match ended.asked {
            Some(EndReason::Preempt) => Some("evicted to preempt"),
            Some(EndReason::Drain) => Some("evicted to drain"),
            Some(EndReason::Move) => Some("evicted to move"),
            Some(EndReason::Turn) => Some("evicted for a turn"),
            Some(EndReason::Reclaim) => Some("evicted to reclaim"),
            Some(EndReason::Ceiling) => Some("evicted to ceiling"),
            Some(
                EndReason::Cancel
                | EndReason::Gang
                | EndReason::Device
                | EndReason::Program
                | EndReason::Vram
                | EndReason::SharedFault
                | EndReason::Idle,
            )
            | None => None,
        };
        if let Some(what) = evicted_to {
            self.reach.hit(what);
        }
        // One that had not really begun may be given up in the same entry.
        if !comes_back || job.gang_over.is_some() || job.state == JobState::DeadlineMissed {
            return;
        }
        let waits = job.ordinal(ended.index).is_some_and(|ordinal| job.pending.contains(ordinal));
        if !waits || job.state.is_terminal() {
            let what = format!(
                "task {id}_{} ended as {} (asked {:?}) and does not wait again: job {}",
                ended.index, ended.end, ended.asked, job.state
            );
            self.oracle.broken(self.now, Law::I18, what);
        }
    }
}
