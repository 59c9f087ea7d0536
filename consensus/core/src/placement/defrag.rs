//! Move: small work goes elsewhere so that something wide finds room in one place sooner than it was promised.
//!
//! Only where it pays: the cards times the time that the wide job gains must be [`GAIN_PER_LOSS`] times the work that
//! the moved attempts lose, since they start again; each of them must find room elsewhere at once; and no round moves
//! more than [`MOVED_MAX`].

use super::pace::Pace;
use super::round::Round;
use super::sites::Ground;
use crate::fit::Want;
use crate::state::attempt::Attempt;
use crate::state::host::Used;
use crate::state::job::Job;
use rota_protocol::ask::Ask;
use rota_protocol::device::DeviceKind;
use rota_protocol::job::EndReason;
use rota_protocol::plan::Slot;
use rota_protocol::{HostId, Token};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A start that lies nearer than this is waited for, in ms.
const WAIT_MS_MIN: u64 = 300_000;
/// What is gained must be this many times what is lost, both in card-milliseconds.
const GAIN_PER_LOSS: u64 = 4;
/// Most attempts that one round moves.
const MOVED_MAX: usize = 16;

impl<'p> Round<'p> {
    /// Moves others out of the way of a job that would wait long; false if it does not pay or cannot be.
    pub(super) fn move_for(&mut self, job: &Arc<Job>) -> bool {
        let Some(at_ms) = job.promise.as_ref().filter(|promise| !promise.evicting).map(|p| p.at_ms) else {
            return false;
        };
        let gained_ms = at_ms.saturating_sub(self.now_ms);
        // One that is lost in this round is made anew first: to bind it again would free what it holds off others.
        let holds = self.guards.holds(job.id);
        if !self.config.evicts || !holds || gained_ms < WAIT_MS_MIN || !self.may_search_again() {
            return false;
        }
        // Its own promise is not in its way.
        self.guards.unbind(job.id);
        let found = self.moves_that_pay(job, gained_ms);
        if !found && let Some(promise) = job.promise.as_ref() {
            self.bind_standing(job, promise);
        }
        found
    }

    fn moves_that_pay(&mut self, job: &Arc<Job>, gained_ms: u64) -> bool {
        let parts = u64::from(job.start_range().0);
        for (choice, ask) in (0_u8..).zip(job.spec.asks()) {
            let Some((victims, slots)) = self.search(job, ask, EndReason::Move) else {
                continue;
            };
            let moved = self.attempts_of(&victims);
            let lost: u64 = moved.iter().map(|attempt| self.work_lost(attempt)).sum();
            let gained = gained_ms.saturating_mul(u64::from(ask.gpu_milli) * parts) / 1_000;
            let pays = gained >= lost.saturating_mul(GAIN_PER_LOSS) && moved.len() <= MOVED_MAX;
            if pays && self.find_room_elsewhere(&moved, &slots) {
                self.carry_out(job, choice, EndReason::Move, victims, slots);
                return true;
            }
        }
        false
    }

    fn attempts_of(&self, tokens: &[Token]) -> Vec<&'p Arc<Attempt>> {
        let wanted: BTreeSet<Token> = tokens.iter().copied().collect();
        let rows = self.view.hosts.iter().flat_map(|row| row.attempts.iter());
        rows.filter(|attempt| wanted.contains(&attempt.token)).collect()
    }

    /// Each would find room now on a host that the wide job does not take, all of them together.
    fn find_room_elsewhere(&mut self, moved: &[&Arc<Attempt>], slots: &[Slot]) -> bool {
        let taken: BTreeSet<HostId> = slots.iter().map(|slot| slot.host).collect();
        let mut before: BTreeMap<usize, Option<Box<Used>>> = BTreeMap::new();
        let mut all = true;
        for attempt in moved {
            let ask = as_asked(attempt, self.ground);
            let want = Want { ask: &ask, tenant: &attempt.tenant, in_gang: attempt.in_gang };
            // On the model that it has it runs as fast as it does.
            let pace = Pace::default();
            self.ground.prepare(want, &pace);
            let found = self.ground.pick(want, &pace, |at| {
                let host = self.ground.sites[at].id();
                !taken.contains(&host)
                    && !self.guards.is_promised(at)
                    && self.ground.eligible(at, want).is_some()
            });
            let devices = found.and_then(|at| {
                let eligible = self.ground.eligible(at, want)?;
                let layout = rota_protocol::work::Layout::Any;
                super::choose::choose(self.ground, at, want, layout, &eligible)
            });
            let (Some(at), Some(devices)) = (found, devices) else {
                all = false;
                break;
            };
            before.entry(at).or_insert_with(|| self.ground.taken(at));
            self.ground.take(at, want, &devices, attempt.token);
        }
        // Only a trial: they are placed when they are gone and wait again.
        for (at, taken) in before {
            self.ground.restore(at, taken);
        }
        all
    }
}

/// What an attempt holds as an ask, on cards of the model that it has: as much as is known without its job.
fn as_asked(attempt: &Attempt, ground: &Ground) -> Ask {
    let site = ground.sites.iter().find(|site| site.id() == attempt.host);
    let cards = attempt.devices.iter().filter_map(|uuid| site?.row.host.device(uuid));
    let models: BTreeSet<String> =
        cards.filter(|d| d.kind == DeviceKind::Gpu).map(|d| d.model.clone()).collect();
    Ask {
        gpu_milli: attempt.gpu_milli,
        gpu_models: models.into_iter().filter(|model| !model.is_empty()).collect(),
        vram_mib: attempt.card_vram_mib,
        cpus_milli: attempt.cpus_milli,
        mem_mib: attempt.mem_mib,
        ..Ask::default()
    }
}
