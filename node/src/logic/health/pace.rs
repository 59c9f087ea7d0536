//! Cards that are slower than they should be and do not say why (faults G8, G9): a clock that is stuck low under load, and
//! one that falls behind its equals in the same work. What has a reason (heat, power, a cap, an operator's clocks) is
//! no matter of this file.
//!
//! A card is only ever held against itself or against cards of its own model that do the same work at the same time:
//! there is no table of how fast a card ought to be.

use super::Own;
use super::look::TROUBLE_MINUTES;
use crate::devices::clean;
use crate::devices::signs::DeviceSigns;
use rota_core::State;
use rota_protocol::device::DeviceReading;
use rota_protocol::ids::{DeviceUuid, JobId};
use std::collections::{BTreeMap, BTreeSet};

/// Load from which a card's clock says something, in permille.
const BUSY_PERMILLE_MIN: u16 = 500;
/// A clock below this share of the most it can be is stuck, in permille.
const STUCK_BELOW_PERMILLE: u16 = 500;
/// So much of a minute must be spent so, and none of it otherwise, in ms.
const STUCK_MS_MIN: u64 = 20_000;
/// So many of the newest [`TROUBLE_MINUTES`] minutes degrade the card: 0.6 a minute, as for heat.
const STUCK_MINUTES_MAX: usize = 6;
/// A clock below this share of the middle one of its equals is behind, in percent; with one equal alone there is no middle.
const BEHIND_CLOCK_PERCENT: u64 = 85;
const BEHIND_CLOCK_PERCENT_OF_ONE: u64 = 70;
/// Power below this share of the middle one of its equals is behind, in percent: it does not do the work that they do.
const BEHIND_POWER_PERCENT: u64 = 50;
/// Equals that it takes to call power too little: parts of a program may differ by design.
const POWER_EQUALS_MIN: usize = 3;
/// Time behind, less thrice the time that it kept up, after which it is told, in ms. Constantly behind is found within this,
/// nine tenths of the time within five minutes.
const BEHIND_MS: u64 = 180_000;
/// Time at speed under load that clears it, in ms.
const PROVEN_MS: u64 = 60_000;
/// Clock of a card at speed, in permille of the most it can be, unless its power cap holds it back.
const SPEED_PERMILLE_MIN: u16 = 850;
/// Most time that one look speaks for, in ms.
const LOOK_MS_MAX: u64 = 10_000;

/// A card at work beside others, as the newest readings say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mate {
    /// Which.
    pub uuid: DeviceUuid,
    /// Its model: only equals are compared.
    pub model: String,
    /// What was read of it.
    pub reading: DeviceReading,
}

/// The cards of one job, on whatever hosts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Team {
    /// The job.
    pub job: JobId,
    /// Cards of which something was read.
    pub cards: Vec<Mate>,
}

/// The teams that these cards of a host are in, each of two cards and more.
#[must_use]
pub fn teams(
    state: &State,
    own: &BTreeMap<DeviceUuid, Own>,
    readings: &BTreeMap<DeviceUuid, DeviceReading>,
) -> Vec<Team> {
    let jobs: BTreeSet<JobId> = own.values().flat_map(|own| &own.holders).map(|(_, job)| *job).collect();
    let cards = |job: JobId| {
        let parts = state.attempts_of(job).flat_map(|part| part.devices.iter().map(|uuid| (part.host, uuid)));
        let mates = parts.filter_map(|(host, uuid)| {
            let model = state.host(host)?.device(uuid)?.model.clone();
            Some(Mate { uuid: uuid.clone(), model, reading: readings.get(uuid)?.clone() })
        });
        mates.collect::<Vec<Mate>>()
    };
    // Elements of an array do not wait for one another: what one of them does says nothing of the others.
    let alone = |job: &JobId| state.job(*job).is_none_or(|job| job.spec.array.is_some());
    let teams = jobs.into_iter().filter(|job| !alone(job)).map(|job| Team { job, cards: cards(job) });
    teams.filter(|team| team.cards.len() > 1).collect()
}

/// What one look says of a card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Said {
    /// Slower than it should be.
    Slow,
    /// At speed.
    Well,
    /// It is idle, or has a reason, or nobody can tell.
    Nothing,
}

/// What was seen of one card's speed so far.
#[derive(Debug, Default)]
pub(super) struct Pace {
    looked_ms: Option<u64>,
    /// The work that it is compared in.
    team: Option<JobId>,
    behind_ms: u64,
    /// Minutes since the epoch in which its clock was stuck.
    stuck: BTreeSet<u64>,
    /// The present minute, and how long it was stuck in it; none once it was at speed.
    minute: (u64, Option<u64>),
    /// Time at speed under load since it was last slow.
    proven_ms: u64,
}

impl Pace {
    /// Takes in a look; what there is to tell. `set_low` says that most busy cards of this model here are as slow: then
    /// somebody has set them so.
    pub(super) fn look(
        &mut self,
        uuid: &DeviceUuid,
        signs: &DeviceSigns,
        team: Option<&Team>,
        set_low: bool,
        now_ms: u64,
    ) -> Option<String> {
        let passed_ms = self.looked_ms.map_or(0, |at_ms| now_ms.saturating_sub(at_ms)).min(LOOK_MS_MAX);
        self.looked_ms = Some(now_ms);
        let (alone, beside) = (if set_low { Said::Nothing } else { alone(signs) }, beside(uuid, signs, team));
        self.count_stuck(alone, passed_ms, now_ms);
        self.count_behind(beside.as_ref().map_or(Said::Nothing, |(said, _)| *said), team, passed_ms);
        match (alone, &beside) {
            (Said::Slow, _) | (_, Some((Said::Slow, _))) => self.proven_ms = 0,
            (Said::Well, _) if at_speed(signs) => self.proven_ms = self.proven_ms.saturating_add(passed_ms),
            _ => {}
        }
        if self.stuck.len() >= STUCK_MINUTES_MAX {
            let (now, most) = signs.clock_mhz.unwrap_or_default();
            let (minutes, of) = (self.stuck.len(), TROUBLE_MINUTES);
            return Some(format!(
                "its clock was stuck low under load in {minutes} of the last {of} minutes, without a reason: {now} of {most} MHz"
            ));
        }
        let (_, how) = beside.filter(|_| self.behind_ms >= BEHIND_MS)?;
        let job = team.map(|team| team.job)?;
        Some(format!("slower than its equals under job {job}, without a reason: {how}"))
    }

    /// Nothing of it is remembered as slow, and it has shown its speed since.
    pub(super) fn is_proven(&self) -> bool {
        self.stuck.is_empty() && self.behind_ms == 0 && self.proven_ms >= PROVEN_MS
    }

    fn count_stuck(&mut self, said: Said, passed_ms: u64, now_ms: u64) {
        let minute = now_ms / 60_000;
        if self.minute.0 != minute {
            if self.minute.1.is_some_and(|ms| ms >= STUCK_MS_MIN) {
                self.stuck.insert(self.minute.0);
            }
            self.minute = (minute, Some(0));
        }
        self.minute.1 = match said {
            Said::Slow => self.minute.1.map(|ms| ms + passed_ms),
            Said::Well => None,
            Said::Nothing => self.minute.1,
        };
        self.stuck.retain(|at| at + TROUBLE_MINUTES > minute);
    }

    fn count_behind(&mut self, said: Said, team: Option<&Team>, passed_ms: u64) {
        let job = team.map(|team| team.job);
        if self.team != job {
            (self.team, self.behind_ms) = (job, 0);
        }
        self.behind_ms = match said {
            Said::Slow => self.behind_ms.saturating_add(passed_ms).min(2 * BEHIND_MS),
            Said::Well => self.behind_ms.saturating_sub(3 * passed_ms),
            Said::Nothing => self.behind_ms,
        };
    }
}

fn permille(clock: (u32, u32)) -> u16 {
    clean::clock_permille(clock).unwrap_or(u16::MAX)
}

/// A card's clock beside the most it can be. What does not tell why it is slow is not judged.
fn alone(signs: &DeviceSigns) -> Said {
    let (Some(clock), Some(throttle), Some(busy)) = (signs.clock_mhz, signs.throttle, signs.busy_permille)
    else {
        return Said::Nothing;
    };
    match busy >= BUSY_PERMILLE_MIN {
        false => Said::Nothing,
        true if permille(clock) >= STUCK_BELOW_PERMILLE => Said::Well,
        true if throttle.is_explained() => Said::Nothing,
        true => Said::Slow,
    }
}

/// Whether a busy card of this model is as slow as if its clock were stuck; none if it is not busy.
pub(super) fn is_low(signs: &DeviceSigns) -> Option<bool> {
    match alone(signs) {
        Said::Slow => Some(true),
        Said::Well => Some(false),
        Said::Nothing => None,
    }
}

fn at_speed(signs: &DeviceSigns) -> bool {
    let capped = signs.throttle.is_some_and(|throttle| throttle.power_cap());
    signs.clock_mhz.is_some_and(|clock| capped || permille(clock) >= SPEED_PERMILLE_MIN)
}

/// A card beside its equals, with the figures.
fn beside(uuid: &DeviceUuid, signs: &DeviceSigns, team: Option<&Team>) -> Option<(Said, String)> {
    let team = team?;
    let busy = |mate: &&Mate| mate.reading.busy_permille.is_some_and(|busy| busy >= BUSY_PERMILLE_MIN);
    let own = team.cards.iter().filter(busy).find(|mate| mate.uuid == *uuid)?;
    if signs.throttle.is_none_or(|throttle| throttle.is_explained()) {
        return None;
    }
    let equals =
        || team.cards.iter().filter(busy).filter(|mate| mate.uuid != *uuid && mate.model == own.model);
    let clocks = equals().filter_map(|mate| mate.reading.clock_permille).map(u64::from).collect();
    let own_clock = own.reading.clock_permille;
    if let Some((own_clock, (middle, count))) = own_clock.zip(middle(own_clock.map(u64::from), clocks)) {
        let percent = if count == 1 { BEHIND_CLOCK_PERCENT_OF_ONE } else { BEHIND_CLOCK_PERCENT };
        let how = format!("clock at {own_clock} permille, theirs at {middle}");
        if u64::from(own_clock) * 100 < middle * percent {
            return Some((Said::Slow, how));
        }
    }
    let powers = equals().filter_map(|mate| mate.reading.power_mw).map(u64::from).collect();
    let own_mw = own.reading.power_mw;
    if let Some((own_mw, (middle, count))) = own_mw.zip(middle(own_mw.map(u64::from), powers)) {
        let how = format!("power {} W, theirs {} W", own_mw / 1_000, middle / 1_000);
        if count >= POWER_EQUALS_MIN && u64::from(own_mw) * 100 < middle * BEHIND_POWER_PERCENT {
            return Some((Said::Slow, how));
        }
    }
    Some((Said::Well, String::new())).filter(|_| equals().next().is_some())
}

/// The middle value of a card and its equals, and how many equals there are. Of an even number it is the lower one of the
/// two, so that no half is behind the other; one equal alone is the middle itself.
fn middle(own: Option<u64>, equals: Vec<u64>) -> Option<(u64, usize)> {
    let count = equals.len();
    let mut values = equals;
    values.extend(own.filter(|_| count > 1));
    values.sort_unstable();
    let at = values.len().checked_sub(1)? / 2;
    Some((values[at], count))
}
