//! Take turns: jobs that go on where they stopped change places so that each model goes to who gains most on it, and so
//! that short work does not wait for long work. `market` says who takes part, `hetero::who_runs` who has the next turn.
//!
//! Moves of a market, in this order: a job that waits and has its turn starts where there is room, else those of its
//! model whose turn is over are ended for it; a job that runs and is better placed on another model is ended for the
//! sake of slots there. Nobody is ended unless somebody, or the job itself, gets a seat by it.

use super::hetero::{RoundConfig, Run, who_runs};
use super::market::{Markets, Model, TURN_MS, Unit};
use super::round::Round;
use super::turns::standing;
use crate::fit::Want;
use crate::state::job::Job;
use rota_protocol::ask::Ask;
use rota_protocol::job::EndReason;
use std::sync::Arc;

/// Most evictions that one round proposes for turns.
const EVICTIONS_MAX: usize = 128;

impl<'p> Round<'p> {
    /// Who has the next turn, market by market; cards that one market takes are gone for those after it.
    pub(super) fn take_turns(&mut self) {
        if !self.config.evicts {
            return;
        }
        let mut markets = self.markets();
        self.seat_the_promised(&markets.models);
        // Who may not take part yet, as what runs has not had its turn, may at the next one.
        if !markets.models.is_empty() {
            self.wake_at(self.turn_ms().saturating_add(TURN_MS));
        }
        if markets.units.is_empty() {
            return;
        }
        let indices = self.view.lengths.indices();
        let mut left = EVICTIONS_MAX;
        let Markets { models, units, .. } = &mut markets;
        for market in units.values() {
            let seen: Vec<_> = market.iter().map(|unit| unit.seen.clone()).collect();
            let mut held = vec![0; models.len()];
            for job in &seen {
                if let Some(on) = job.on {
                    held[on] += job.workers;
                }
            }
            let fleet: Vec<u32> = models.iter().zip(&held).map(|(model, held)| model.free + held).collect();
            let runs = who_runs(&seen, &fleet, &indices, None, &RoundConfig::default());
            self.play(models, market, &runs, &mut left);
            let mut taken = vec![0; models.len()];
            for run in &runs {
                taken[run.model] += seen[run.job].workers;
            }
            for ((model, held), taken) in models.iter_mut().zip(held).zip(taken) {
                model.free -= taken.saturating_sub(held).min(model.free);
            }
        }
    }

    /// Those for whom others are being ended wait for their slots, and for nothing else.
    fn seat_the_promised(&mut self, models: &[Model]) {
        if models.is_empty() {
            return;
        }
        for job in self.view.promised.iter().filter(|job| job.spec.takes_turns() && self.guards.owns(job.id))
        {
            let slot = job.promise.as_ref().and_then(|promise| promise.slots.first());
            let model = slot.and_then(|slot| self.one_model(self.view.host_at(slot.host)?));
            self.turns.insert(job.id, model);
        }
    }

    /// Makes moves of a market's decisions.
    fn play(&mut self, models: &[Model], market: &[Unit<'p>], runs: &[Run], left: &mut usize) {
        let mut goes_to: Vec<Option<usize>> = vec![None; market.len()];
        for run in runs {
            goes_to[run.job] = Some(run.model);
        }
        self.leavers.clear();
        let mut comers: Vec<(usize, usize)> = Vec::new();
        let mut movers: Vec<(usize, usize)> = Vec::new();
        for (at, (unit, model)) in market.iter().zip(&goes_to).enumerate() {
            match (unit.seen.on, model) {
                (None, _) => {
                    self.turns.insert(unit.job.id, model.map(|model| models[model].id));
                    comers.extend(model.map(|model| (at, model)));
                }
                (Some(on), Some(model)) if on == *model => {}
                (Some(_), _) => {
                    self.leavers.extend(unit.attempts.iter().map(|attempt| attempt.token));
                    movers.extend(model.map(|model| (at, model)));
                }
            }
        }
        let mut free: Vec<u32> = models.iter().map(|model| model.free).collect();
        comers.sort_by_key(|(at, _)| standing(market[*at].job, self.now_ms));
        for (at, model) in comers {
            let (job, workers) = (market[at].job, market[at].seen.workers);
            if free[model] >= workers && self.has_room_now(job, &models[model]) {
                free[model] -= workers;
                continue;
            }
            self.displace(job, &models[model], left);
        }
        for (at, model) in movers {
            let unit = &market[at];
            if unit.attempts.iter().all(|attempt| !self.victims.contains(&attempt.token)) {
                self.displace(unit.job, &models[model], left);
            }
        }
        self.leavers.clear();
    }

    /// It could start on a model right now.
    fn has_room_now(&mut self, job: &Arc<Job>, model: &Model) -> bool {
        let ask = on_model(job, model);
        let (fewest, _) = job.start_range();
        if fewest == 1 {
            return self.find(job, &ask, &|_| true).is_ok();
        }
        let opening = self.opening(&self.guards, job, Want::of(job, &ask), fewest as usize);
        opening.is_some_and(|opening| opening.at_ms <= self.now_ms)
    }

    /// Ends those whose turn is over on a model for the sake of a job; one that runs moves there itself.
    fn displace(&mut self, job: &Arc<Job>, model: &Model, left: &mut usize) {
        if *left == 0 || self.is_full() {
            return;
        }
        let ask = on_model(job, model);
        if let Some((victims, slots)) = self.search(job, &ask, EndReason::Turn) {
            *left -= 1;
            self.carry_out(job, 0, EndReason::Turn, victims, slots);
        }
    }

    /// Somebody's turn is over on a site.
    pub(super) fn has_leavers(&self, at: usize) -> bool {
        self.ground.sites[at].row.attempts.iter().any(|attempt| self.leavers.contains(&attempt.token))
    }

    /// A job that has its turn on one model is kept for that.
    pub(super) fn is_its_turn_on(&self, at: usize, job: &Job) -> bool {
        match self.turns.get(&job.id) {
            None => true,
            Some(None) => false,
            Some(Some(model)) => self.one_model(at) == Some(*model),
        }
    }
}

/// What a job asks, on cards of one model.
fn on_model(job: &Job, model: &Model) -> Ask {
    Ask { gpu_models: vec![model.name.clone()], ..job.spec.ask.clone() }
}
