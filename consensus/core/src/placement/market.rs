//! Who takes turns in a round: the jobs of one queue and one priority that go on where they stopped, with the cards that
//! they hold or could have. `rotate` makes moves of what `hetero::who_runs` decides for each such market.
//!
//! A market changes only with the turns of the clock: what a job has done and waited counts as of the beginning of the
//! turn, and what was granted too short a time before that stays for this turn.

use super::hetero;
use super::hetero::table::ClassId;
use super::round::Round;
use super::share::ShareKey;
use crate::apply::RUN_MS_MIN;
use crate::fit;
use crate::state::attempt::Attempt;
use crate::state::host::Used;
use crate::state::job::Job;
use crate::state::pace::{KnownSpeeds, work_ms as work_ms_of};
use rota_protocol::DeviceUuid;
use rota_protocol::ask::CARD_MILLI;
use rota_protocol::device::DeviceKind;
use rota_protocol::job::AttemptState;
use rota_protocol::pace::Turns;
use rota_protocol::queue::QueueId;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Length of a turn, in ms: what runs is weighed against what waits at its beginning. With shorter ones starts and
/// checkpoints cost more than a better place gains; with longer ones short work waits for long work.
pub const TURN_MS: u64 = 360_000;
/// Work that is left at the least of what has been done, in permille: what was said of it is an estimate.
const BEYOND_PERMILLE: u32 = 250;
/// Most jobs that wait for a turn in one market; the first in the order of their classes.
const WAITING_MAX: usize = 2_048;

/// A GPU model, with the cards of it on hosts that have no other.
#[derive(Debug, Clone)]
pub(super) struct Model {
    pub(super) id: u16,
    pub(super) name: String,
    /// A host that has it.
    at: usize,
    /// Free, or about to be, and promised to nobody.
    pub(super) free: u32,
}

/// One job in a market.
pub(super) struct Unit<'p> {
    pub(super) job: &'p Arc<Job>,
    /// What runs of it; nothing of one that waits.
    pub(super) attempts: &'p [Arc<Attempt>],
    pub(super) seen: hetero::Job,
}

/// Jobs that may trade places.
pub(super) type MarketKey = (Reverse<u16>, ShareKey, QueueId);

/// All markets of a round.
#[derive(Default)]
pub(super) struct Markets<'p> {
    pub(super) models: Vec<Model>,
    pub(super) units: BTreeMap<MarketKey, Vec<Unit<'p>>>,
    /// Cards that jobs in turn want or hold, and cards that there are for them.
    wanted: u32,
    cards: u32,
}

impl<'p> Round<'p> {
    /// When the turn of now began.
    pub(super) fn turn_ms(&self) -> u64 {
        self.now_ms / TURN_MS * TURN_MS
    }

    /// The markets as they stand; none if nobody takes turns.
    pub(super) fn markets(&self) -> Markets<'p> {
        let mut markets = Markets::default();
        let waiting =
            self.view.classes.iter().filter(|jobs| jobs.first().is_some_and(|job| job.spec.takes_turns()));
        let waiting: Vec<&'p Arc<Job>> =
            waiting.flatten().filter(|job| self.may_wait_for_a_turn(job)).take(WAITING_MAX).collect();
        if waiting.is_empty() && self.view.turning.is_empty() {
            return markets;
        }
        markets.models = self.models_of_sites();
        markets.cards = markets.models.iter().map(|model| model.free).sum();
        for row in &self.view.turning {
            self.admit_running(&mut markets, &row.job, &row.attempts);
        }
        for job in waiting {
            if let Some(unit) = self.unit(&markets.models, job, &[], None) {
                markets.wanted += unit.seen.workers;
                markets.add(self, unit);
            }
        }
        markets.drop_misfits();
        let crowd = u64::from(markets.wanted) * 1_000 / u64::from(markets.cards.max(1));
        let crowd_permille = u32::try_from(crowd).unwrap_or(u32::MAX);
        markets.units.values_mut().flatten().for_each(|unit| unit.seen.crowd_permille = crowd_permille);
        markets
    }

    fn may_wait_for_a_turn(&self, job: &Job) -> bool {
        job.live == 0
            && self.now_ms >= job.earliest_ms()
            && !self.is_late(job)
            && !self.guards.owns(job.id)
            && !self.is_waiting_for_victims(job)
    }

    /// What runs takes part if it has run for long enough, on one model, on hosts that take work.
    fn admit_running(&self, markets: &mut Markets<'p>, job: &'p Arc<Job>, attempts: &'p [Arc<Attempt>]) {
        let held: u32 = attempts.iter().map(|attempt| attempt.gpu_milli / CARD_MILLI).sum();
        if attempts.iter().any(|attempt| attempt.state == AttemptState::Ending) {
            return;
        }
        (markets.wanted, markets.cards) = (markets.wanted + held, markets.cards + held);
        let begun_ms = self.turn_ms();
        let had_its_turn = |attempt: &Arc<Attempt>| {
            self.wake_at(attempt.spared_until_ms);
            attempt.granted_ms.saturating_add(RUN_MS_MIN) <= begun_ms
                && self.now_ms >= attempt.spared_until_ms
                && !self.victims.contains(&attempt.token)
        };
        let mut places = attempts.iter().map(|attempt| self.model_index(&markets.models, attempt));
        let first = places.next().flatten();
        let on_one = first.is_some() && places.all(|other| other == first);
        let whole = attempts.len() == job.live as usize && job.pending.is_empty();
        if !on_one || !whole || !attempts.iter().all(had_its_turn) {
            return;
        }
        if let Some(unit) = self.unit(&markets.models, job, attempts, first) {
            markets.add(self, unit);
        }
    }

    /// The model of an attempt, if its host is open and has no other.
    fn model_index(&self, models: &[Model], attempt: &Attempt) -> Option<usize> {
        let at = self.view.host_at(attempt.host)?;
        let host = &self.ground.sites[at].row.host;
        if self.ground.sites[at].avoided || fit::open(host, &Used::default(), self.now_ms).is_err() {
            return None;
        }
        let id = self.one_model(at)?;
        models.iter().position(|model| model.id == id)
    }

    /// The model of a site whose cards are all of one.
    pub(super) fn one_model(&self, at: usize) -> Option<u16> {
        let gpus =
            || self.ground.sites[at].row.host.facts.devices.iter().filter(|d| d.kind == DeviceKind::Gpu);
        let first = gpus().next()?;
        gpus().all(|other| other.model == first.model).then(|| self.ground.models.id(&first.model))
    }

    /// All models with what is free of them for whoever comes: on open hosts that nobody has reserved, promised cards
    /// left out, those of work that ends already counted in.
    fn models_of_sites(&self) -> Vec<Model> {
        let mut models: BTreeMap<u16, Model> = BTreeMap::new();
        for (at, site) in self.ground.sites.iter().enumerate().take(self.view.hosts.len()) {
            let Some(id) = self.one_model(at) else {
                continue;
            };
            let gpus = site.row.host.facts.devices.iter().filter(|d| d.kind == DeviceKind::Gpu);
            let model = models.entry(id).or_insert_with(|| {
                let name = gpus.clone().next().map(|d| d.model.clone()).unwrap_or_default();
                Model { id, name, at, free: 0 }
            });
            let open = !site.avoided && fit::open(&site.row.host, &Used::default(), self.now_ms).is_ok();
            if !open || self.reserved.any(site.id()) {
                continue;
            }
            let kept: BTreeSet<&DeviceUuid> = self.guards.kept_on(at).collect();
            let ending =
                site.row.attempts.iter().filter(|a| a.state == AttemptState::Ending && !a.shares_card());
            let leaving: BTreeSet<&DeviceUuid> = ending.flat_map(|a| &a.devices).collect();
            let is_free = |uuid: &DeviceUuid| {
                !kept.contains(uuid) && (leaving.contains(uuid) || !site.used().devices.contains_key(uuid))
            };
            model.free += gpus.filter(|d| d.health.is_whole() && is_free(&d.uuid)).count() as u32;
        }
        models.into_values().collect()
    }

    /// A job as the market sees it; none if its queue's rule leaves it out.
    fn unit(
        &self,
        models: &[Model],
        job: &'p Arc<Job>,
        attempts: &'p [Arc<Attempt>],
        on: Option<usize>,
    ) -> Option<Unit<'p>> {
        let ask = &job.spec.ask;
        let known = KnownSpeeds::of(job, ask, &self.view.speeds);
        let speed = |model: &Model| {
            let able = fit::capable(&self.ground.sites[model.at].row.host, ask).is_ok();
            if able { self.speed_on(&known, model) } else { 0 }
        };
        let speeds: Vec<u32> = models.iter().map(speed).collect();
        let mut able = speeds.iter().filter(|speed| **speed > 0);
        let first = able.next()?;
        let alike = able.all(|other| other == first);
        let left_out = self.view.queue_path(job.queue).any(|queue| match queue.spec.turns {
            Turns::Auto => false,
            Turns::Unlike => alike,
            Turns::Off => true,
        });
        if left_out {
            return None;
        }
        let begun_ms = self.turn_ms();
        let started_ms = attempts.iter().map(|a| a.started_ms.unwrap_or(a.granted_ms)).max();
        let runs_ms = started_ms.map_or(0, |at_ms| begun_ms.saturating_sub(at_ms));
        let now_done_ms = on.map_or(0, |at| work_ms_of(runs_ms, speeds[at]));
        let attained_ms = job.done_ms(&known).saturating_add(now_done_ms);
        let parts = job.spec.gang.map_or(1, |gang| gang.min);
        let stated = job.spec.pace.as_deref().and_then(|pace| pace.work_ms);
        let seen = hetero::Job {
            id: job.id.0,
            class: ClassId(0),
            workers: ask.gpus().saturating_mul(parts),
            weight: 1,
            speeds,
            attained_ms,
            remaining_ms: stated.map(|work_ms| {
                let beyond_ms = work_ms_of(attained_ms, BEYOND_PERMILLE);
                work_ms.saturating_sub(attained_ms).max(beyond_ms)
            }),
            age_ms: begun_ms.saturating_sub(job.submitted_ms),
            crowd_permille: 1_000,
            on,
        };
        Some(Unit { job, attempts, seen })
    }

    /// What is known of a job's speed on a model, else what the labels of its hosts say.
    fn speed_on(&self, known: &KnownSpeeds<'_>, model: &Model) -> u32 {
        match known {
            KnownSpeeds::Nothing => self.ground.models.given_of(model.id),
            known => known.reckoned(&model.name),
        }
    }
}

impl<'p> Markets<'p> {
    fn add(&mut self, round: &Round<'p>, unit: Unit<'p>) {
        let job = unit.job;
        let key = (Reverse(job.priority), round.shares.key(round.view, job.queue, ""), job.queue);
        self.units.entry(key).or_default().push(unit);
    }

    /// A job that waits and for which no model of its market will do, all of them together, waits like any other.
    fn drop_misfits(&mut self) {
        let free: Vec<u32> = self.models.iter().map(|model| model.free).collect();
        for units in self.units.values_mut() {
            let mut fleet = free.clone();
            for unit in units.iter() {
                if let Some(on) = unit.seen.on {
                    fleet[on] += unit.seen.workers;
                }
            }
            let fits = |unit: &Unit<'_>| {
                let seats = unit.seen.speeds.iter().zip(&fleet);
                unit.seen.on.is_some()
                    || seats.clone().any(|(speed, seats)| *speed > 0 && *seats >= unit.seen.workers)
            };
            units.retain(fits);
        }
        self.units.retain(|_, units| !units.is_empty());
    }
}
