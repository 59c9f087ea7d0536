//! The planner's ground: hosts with what a round has taken of them, hosts of equal kind and fill as one group, and for
//! each kind of ask the groups that fit it, best first. Kept from round to round; what follows from the view alone is
//! brought in line by pointers, so a round in which one host changed costs one host. A ground that was kept gives the
//! same answers as a fresh one (`tests/it/planner.rs`).

use super::groups::{
    Cards, Fitting, Group, GroupId, Kind, Plain, Rank, Roof, Signature, lowest, preference, signature,
};
use super::models::Models;
use super::pace::Pace;
use super::score::{self, Demand, Fill, Policy};
use super::view::{HostView, View};
use crate::fit::{self, Want};
use crate::state::host::Used;
use rota_protocol::ask::Ask;
use rota_protocol::device::DeviceFacts;
use rota_protocol::{DeviceUuid, HostId, Token};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Scores kept over all kinds of ask, groups times kinds: about 50 MiB at most. Beyond it all are dropped.
const SCORES_KEPT_MAX: usize = 1_000_000;

/// Kinds of ask whose scores are kept.
const KINDS_KEPT_MAX: usize = 512;
/// Groups that one round scores, over all kinds of ask: a tenth of a second or so. Beyond it a new kind of ask looks
/// only at the first [`GROUPS_GLANCED_AT`] that seem to have room.
const GROUPS_SCORED_MAX: usize = 100_000;
/// See [`GROUPS_SCORED_MAX`].
const GROUPS_GLANCED_AT: usize = 16;

/// One host in a round.
#[derive(Debug, Clone)]
pub(super) struct Site {
    pub(super) row: HostView,
    /// With what the round has placed here; none while that is nothing.
    taken: Option<Box<Used>>,
    group: GroupId,
    pub(super) avoided: bool,
    /// Its openness may change with time alone.
    timed: bool,
    /// The lowest priority of an attempt that may be ended to make room; none if there is none.
    pub(super) lowest: Option<u16>,
}

impl Site {
    /// What is in use, the round's own placements included.
    pub(super) fn used(&self) -> &Used {
        self.taken.as_deref().unwrap_or(&self.row.host.used)
    }

    pub(super) fn id(&self) -> HostId {
        self.row.host.id
    }
}

/// All hosts of a round.
#[derive(Debug, Clone, Default)]
pub(super) struct Ground {
    pub(super) sites: Vec<Site>,
    groups: BTreeMap<GroupId, Group>,
    by_signature: BTreeMap<Signature, GroupId>,
    next_group: GroupId,
    /// Sites that a round has placed on, or that were regrouped for it.
    touched: BTreeSet<usize>,
    kinds: BTreeMap<Kind, Fitting>,
    /// The last kind that was looked at without being kept.
    passing: Option<(Kind, Fitting)>,
    scores_kept: usize,
    /// Groups scored in this round.
    scored: usize,
    pub(super) models: Models,
    demand: Option<Arc<Demand>>,
    demand_version: u64,
    policy: Option<Policy>,
    now_ms: u64,
}

impl Ground {
    /// Brings the ground in line with a view.
    pub(super) fn sync(&mut self, view: &View, avoid: &BTreeSet<HostId>, policy: Policy, now_ms: u64) {
        self.now_ms = now_ms;
        self.scored = 0;
        self.passing = None;
        let same_hosts = self.sites.len() <= view.hosts.len()
            && self.sites.iter().zip(&view.hosts).all(|(site, row)| site.id() == row.host.id);
        if !same_hosts {
            *self = Self { now_ms, ..Self::default() };
        }
        let touched = std::mem::take(&mut self.touched);
        let mut facts_changed = self.sites.len() < view.hosts.len();
        for (at, row) in view.hosts.iter().enumerate() {
            let avoided = avoid.contains(&row.host.id);
            let Some(site) = self.sites.get_mut(at) else {
                let timed = row.host.openness_is_timed();
                let (row, group) = (row.clone(), GroupId::MAX);
                let lowest = lowest(&row);
                self.sites.push(Site { row, taken: None, group, avoided, timed, lowest });
                self.regroup(at);
                continue;
            };
            let changed = !Arc::ptr_eq(&site.row.host, &row.host);
            if changed || site.timed || site.avoided != avoided || touched.contains(&at) {
                facts_changed |= !Arc::ptr_eq(&site.row.host.facts, &row.host.facts);
                site.timed = row.host.openness_is_timed();
                site.avoided = avoided;
                site.taken = None;
                site.row = row.clone();
                site.lowest = lowest(row);
                self.regroup(at);
            } else if !Arc::ptr_eq(&site.row.attempts, &row.attempts) {
                site.row = row.clone();
                site.lowest = lowest(row);
            }
        }
        let policy_changed = self.policy != Some(policy);
        if facts_changed
            || policy_changed
            || self.demand_version != view.demand_version
            || self.demand.is_none()
        {
            self.models = Models::of(view);
            self.demand = Some(Arc::new(self.models.demand(view)));
            self.demand_version = view.demand_version;
            self.policy = Some(policy);
            self.judge_anew();
            self.forget_scores();
        }
        if self.scores_kept > SCORES_KEPT_MAX {
            self.forget_scores();
        }
    }

    /// Some host is open and has the asked amounts free, as far as a quick look tells.
    pub(super) fn may_fit(&self, ask: &Ask) -> bool {
        self.groups.values().any(|group| group.roof.admits(ask))
    }

    /// Looks at what changed since the last look for this kind of ask, so that [`Self::pick`] can answer.
    pub(super) fn prepare(&mut self, want: Want<'_>, pace: &Pace) {
        let kind = Kind::of(want, pace);
        let (mut fitting, kept) = match self.kinds.remove(&kind) {
            Some(fitting) => (fitting, true),
            None => (Fitting::default(), self.kinds.len() < KINDS_KEPT_MAX),
        };
        self.refresh(&mut fitting, want, pace);
        self.prune(&mut fitting);
        if kept {
            self.kinds.insert(kind, fitting);
        } else {
            self.scores_kept = self.scores_kept.saturating_sub(fitting.best.len());
            self.passing = Some((kind, fitting));
        }
    }

    /// The best site that fits and that `allowed` lets through; of equal ones the one of lowest number. Only after
    /// [`Self::prepare`] for the same ask.
    pub(super) fn pick(
        &self,
        want: Want<'_>,
        pace: &Pace,
        mut allowed: impl FnMut(usize) -> bool,
    ) -> Option<usize> {
        let kind = Kind::of(want, pace);
        let fitting = match self.passing.as_ref().filter(|(passing, _)| *passing == kind) {
            Some((_, fitting)) => fitting,
            None => self.kinds.get(&kind)?,
        };
        let mut found: Option<(Rank, usize)> = None;
        for (rank, id) in &fitting.best {
            if found.is_some_and(|(best, _)| *rank > best) {
                break;
            }
            let members = self.groups.get(id).into_iter().flat_map(|group| group.members.iter().copied());
            let before = found.map_or(usize::MAX, |(_, other)| other);
            if let Some(at) = members.take_while(|at| *at < before).find(|at| allowed(*at)) {
                found = Some((*rank, at));
            }
        }
        found.map(|(_, at)| at)
    }

    /// Groups that have room for an ask, best first, each with its members by number.
    pub(super) fn groups_fitting(&self, want: Want<'_>, pace: &Pace) -> Vec<(Rank, Vec<usize>)> {
        let shape = self.models.shape(want.ask);
        let rank = |group| self.rank(group, want, pace, &shape);
        let ranked = self.groups.values().filter_map(|group| Some((rank(group)?, group)));
        let mut ranked: Vec<(Rank, &Group)> = ranked.collect();
        ranked.sort_by_key(|(rank, group)| (*rank, group.members.first().copied()));
        ranked.into_iter().map(|(rank, group)| (rank, group.members.iter().copied().collect())).collect()
    }

    /// As far as a quick look tells, the ask has room on a site now.
    pub(super) fn has_room(&self, at: usize, want: Want<'_>) -> bool {
        self.groups.get(&self.sites[at].group).is_some_and(|group| group.roof.admits(want.ask))
    }

    /// The time of the round.
    pub(super) fn now_ms(&self) -> u64 {
        self.now_ms
    }

    /// Whole cards that are free on a site.
    pub(super) fn cards_free(&self, at: usize) -> u32 {
        self.groups.get(&self.sites[at].group).map_or(0, |group| group.roof.cards)
    }

    /// The devices that fit on a site now.
    pub(super) fn eligible(&self, at: usize, want: Want<'_>) -> Option<Vec<&DeviceFacts>> {
        let site = &self.sites[at];
        if site.avoided {
            return None;
        }
        fit::fits(&site.row.host, site.used(), want, self.now_ms).ok()
    }

    /// Takes devices, CPU and memory of a site for the round, under a token that is unlike any real one.
    pub(super) fn take(&mut self, at: usize, want: Want<'_>, devices: &[DeviceUuid], token: Token) {
        let site = &mut self.sites[at];
        let used = site.taken.get_or_insert_with(|| Box::new(site.row.host.used.clone()));
        fit::take(&site.row.host, used, want, devices, token);
        self.touched.insert(at);
        self.regroup(at);
    }

    /// Puts a site back to an earlier state of the round.
    pub(super) fn restore(&mut self, at: usize, taken: Option<Box<Used>>) {
        self.sites[at].taken = taken;
        self.touched.insert(at);
        self.regroup(at);
    }

    /// What the round has taken of a site, to be given to `restore`.
    pub(super) fn taken(&self, at: usize) -> Option<Box<Used>> {
        self.sites[at].taken.clone()
    }

    /// The card of those given that a share is best taken from.
    pub(super) fn best_card(
        &self,
        at: usize,
        want: Want<'_>,
        eligible: &[&DeviceFacts],
    ) -> Option<DeviceUuid> {
        let site = &self.sites[at];
        let own = Cards::of(site, want.ask, &self.models, Some(eligible));
        let shape = self.models.shape(want.ask);
        let scored = self.judge(&own.fill(site), &shape, site.id())?;
        own.uuids.get(scored.card?).cloned()
    }

    /// Numbers of models, or what is expected, have changed.
    fn judge_anew(&mut self) {
        let Some(demand) = self.demand.clone() else {
            return;
        };
        for group in self.groups.values_mut() {
            let first = group.members.first().map(|at| &self.sites[*at]);
            group.plain = first.and_then(|site| Plain::of(site, &self.models, &demand));
        }
    }

    /// Sites that are in another group than their own, or in several.
    pub(super) fn misgrouped(&self) -> Vec<String> {
        let mut seen: BTreeSet<usize> = BTreeSet::new();
        let mut wrong = Vec::new();
        for (id, group) in &self.groups {
            for at in &group.members {
                let site = &self.sites[*at];
                let own = site.group == *id && group.signature == signature(site, self.now_ms);
                if !own || !seen.insert(*at) {
                    wrong.push(format!("host {} is not where it belongs", site.id()));
                }
            }
        }
        if seen.len() != self.sites.len() {
            wrong.push(format!("{} of {} hosts are in groups", seen.len(), self.sites.len()));
        }
        wrong
    }

    fn forget_scores(&mut self) {
        self.kinds = BTreeMap::new();
        self.passing = None;
        self.scores_kept = 0;
    }

    /// Looks at the groups made since the last look.
    fn refresh(&mut self, fitting: &mut Fitting, want: Want<'_>, pace: &Pace) {
        let mut glances = if self.scored < GROUPS_SCORED_MAX { usize::MAX } else { GROUPS_GLANCED_AT };
        let shape = self.models.shape(want.ask);
        for (id, group) in self.groups.range(fitting.seen..) {
            if !group.roof.admits(want.ask) {
                continue;
            }
            if glances == 0 {
                break;
            }
            glances -= 1;
            self.scored += 1;
            if let Some(rank) = self.rank(group, want, pace, &shape) {
                fitting.best.insert((rank, *id));
                self.scores_kept += 1;
            }
        }
        fitting.seen = self.next_group;
    }

    /// Forgets groups that are no more: those in front at once, the others when they are many.
    fn prune(&mut self, fitting: &mut Fitting) {
        let before = fitting.best.len();
        while let Some(first) = fitting.best.first().copied()
            && !self.groups.contains_key(&first.1)
        {
            fitting.best.remove(&first);
        }
        if fitting.best.len() > 2 * self.groups.len() + 64 {
            fitting.best.retain(|(_, id)| self.groups.contains_key(id));
        }
        self.scores_kept = self.scores_kept.saturating_sub(before - fitting.best.len());
    }

    fn rank(&self, group: &Group, want: Want<'_>, pace: &Pace, shape: &score::Shape) -> Option<Rank> {
        if !group.roof.admits(want.ask) {
            return None;
        }
        let site = &self.sites[*group.members.first()?];
        if let Some(plain) = group.plain.as_ref().filter(|plain| plain.answers(want)) {
            let (policy, draw) = (self.policy.unwrap_or(Policy::Rota), self.draw(site.id()));
            let demand = self.demand.as_deref()?;
            let scored =
                score::score_standing(policy, &plain.fill(site), &plain.standing, shape, demand, draw)?;
            let liking =
                if want.ask.gpu_milli > 0 { 0 } else { u8::from(!site.row.host.facts.devices.is_empty()) };
            let slowness = pace.slowness(plain.model, &site.row.host.facts);
            return Some((liking, slowness, Reverse(scored.score)));
        }
        let eligible = fit::fits(&site.row.host, site.used(), want, self.now_ms).ok()?;
        let own = Cards::of(site, want.ask, &self.models, Some(&eligible));
        // Whether it fits is `fits` to say: where the scorer sees less (cards of several models), it comes last.
        let score = self.judge(&own.fill(site), shape, site.id()).map_or(i64::MIN, |scored| scored.score);
        let asks_devices = want.ask.gpu_milli > 0 || !want.ask.devices.is_empty();
        let liking = if asks_devices {
            preference(want.ask, &eligible)
        } else {
            // Work without devices goes where there are none: cards are not stranded behind it.
            u8::from(!site.row.host.facts.devices.is_empty())
        };
        Some((liking, pace.slowness(own.model, &site.row.host.facts), Reverse(score)))
    }

    fn judge(&self, fill: &Fill<'_>, shape: &score::Shape, host: HostId) -> Option<score::Scored> {
        let policy = self.policy.unwrap_or(Policy::Rota);
        score::score(policy, fill, shape, self.demand.as_deref()?, self.draw(host))
    }

    fn draw(&self, host: HostId) -> u64 {
        crate::hash::mix(self.now_ms ^ host.0)
    }

    /// Moves a site to the group of its present kind and fill.
    fn regroup(&mut self, at: usize) {
        let site = &self.sites[at];
        let signature = signature(site, self.now_ms);
        let old = site.group;
        if self.groups.get(&old).is_some_and(|group| group.signature == signature) {
            return;
        }
        if let Some(group) = self.groups.get_mut(&old) {
            group.members.remove(&at);
            if group.members.is_empty() {
                let signature = group.signature;
                self.groups.remove(&old);
                self.by_signature.remove(&signature);
            }
        }
        let id = match self.by_signature.get(&signature) {
            Some(id) => *id,
            None => {
                let id = self.next_group;
                self.next_group += 1;
                let roof = Roof::of(&self.sites[at], self.now_ms);
                let demand = self.demand.as_deref();
                let plain = demand.and_then(|demand| Plain::of(&self.sites[at], &self.models, demand));
                self.groups.insert(id, Group { members: BTreeSet::new(), signature, roof, plain });
                self.by_signature.insert(signature, id);
                id
            }
        };
        if let Some(group) = self.groups.get_mut(&id) {
            group.members.insert(at);
        }
        self.sites[at].group = id;
    }
}
