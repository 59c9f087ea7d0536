//! The planner's ground: hosts with what a round has taken of them, hosts of equal kind and fill as one group, and for
//! each kind of ask the groups that fit it, best first. Kept from round to round; what follows from the view alone is
//! brought in line by pointers, so a round in which one host changed costs one host. A ground that was kept gives the
//! same answers as a fresh one (`tests/it/planner.rs`).

use super::models::Models;
use super::score::{self, Demand, Fill, Policy, Standing};
use super::view::{HostView, View};
use crate::fit::{self, Want};
use crate::hash::Digest;
use crate::state::host::Used;
use rota_protocol::ask::{Ask, CARD_MILLI};
use rota_protocol::device::{DeviceFacts, DeviceKind};
use rota_protocol::job::AttemptState;
use rota_protocol::view::HostState;
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

/// A group's number, never used again.
type GroupId = u64;
/// What decides whether and how well an ask fits: two 64-bit digests of all that `fits` and the scorer look at.
type Signature = (u64, u64);

/// One host in a round.
#[derive(Debug, Clone)]
pub(super) struct Site {
    pub(super) row: HostView,
    /// With what the round has placed here; none while that is nothing.
    taken: Option<Box<Used>>,
    group: GroupId,
    avoided: bool,
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

/// Hosts that no ask can tell apart but by name.
#[derive(Debug, Clone)]
struct Group {
    members: BTreeSet<usize>,
    signature: Signature,
    roof: Roof,
    plain: Option<Plain>,
}

/// A fill that the scorer can judge without a look at the devices: healthy cards of one known model, shared by one
/// tenant at the most.
#[derive(Debug, Clone)]
struct Plain {
    model: u16,
    free_milli: Vec<u16>,
    sharer: Option<String>,
    has_vram: bool,
    standing: Standing,
}

impl Plain {
    fn of(site: &Site, models: &Models, demand: &Demand) -> Option<Self> {
        let used = site.used();
        let gpus = || site.row.host.facts.devices.iter().filter(|d| d.kind == DeviceKind::Gpu);
        let name = gpus().next().map_or("", |d| d.model.as_str());
        let model = if name.is_empty() { 0 } else { models.known(name)? };
        let mut plain = Self {
            model,
            free_milli: Vec::new(),
            sharer: None,
            has_vram: false,
            standing: Standing::new(&fill(model, &[], site), demand),
        };
        for card in gpus() {
            if !card.health.is_healthy() || card.model != name {
                return None;
            }
            let held = used.devices.get(&card.uuid);
            let free = CARD_MILLI.saturating_sub(held.map_or(0, |held| held.milli()));
            plain.free_milli.push(free as u16);
            plain.has_vram |= card.vram_mib.is_some();
            if let Some(held) = held.filter(|_| free > 0) {
                match &plain.sharer {
                    Some(sharer) if *sharer != held.tenant => return None,
                    _ => plain.sharer = Some(held.tenant.clone()),
                }
            }
        }
        plain.standing = Standing::new(&plain.fill(site), demand);
        Some(plain)
    }

    /// Whether what `fits` looks at beyond amounts and models is of no concern to this ask.
    fn answers(&self, want: Want<'_>) -> bool {
        let ask = want.ask;
        let shares = ask.share_milli().is_some();
        ask.labels.is_empty()
            && ask.devices.is_empty()
            && ask.vram_mib == 0
            && ask.compute_cap_min == 0
            && ask.gpu_models_preferred.is_empty()
            && (!shares
                || !self.has_vram && self.sharer.as_deref().is_none_or(|tenant| tenant == want.tenant))
    }

    fn fill<'a>(&'a self, site: &Site) -> Fill<'a> {
        fill(self.model, &self.free_milli, site)
    }
}

/// The most of each part that is free: an ask above it is turned away without a look at the devices.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Roof {
    open: bool,
    cards: u32,
    card_milli: u32,
    cpus_milli: u64,
    mem_mib: u64,
}

impl Roof {
    fn of(site: &Site, now_ms: u64) -> Self {
        let used = site.used();
        let facts = &site.row.host.facts;
        let open = !site.avoided && fit::open(&site.row.host, used, now_ms).is_ok();
        let mut roof = Self {
            open,
            cpus_milli: u64::from(facts.cpus_milli).saturating_sub(used.cpus_milli),
            mem_mib: facts.mem_mib.saturating_sub(used.mem_mib),
            ..Self::default()
        };
        for device in facts.devices.iter().filter(|d| d.kind == DeviceKind::Gpu && d.health.is_healthy()) {
            let free =
                CARD_MILLI.saturating_sub(used.devices.get(&device.uuid).map_or(0, |held| held.milli()));
            roof.cards += u32::from(free == CARD_MILLI);
            roof.card_milli = roof.card_milli.max(free);
        }
        roof
    }

    fn admits(&self, ask: &Ask) -> bool {
        self.open
            && match ask.share_milli() {
                Some(share) => share <= self.card_milli,
                None => ask.gpus() <= self.cards,
            }
            && u64::from(ask.cpus_milli) <= self.cpus_milli
            && ask.mem_mib <= self.mem_mib
    }
}

/// A kind of ask: what it is, and who may share a card with it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Kind {
    ask: Ask,
    tenant: String,
}

/// How good a group is, lower is better: the preference for its models, then the scorer's word.
type Rank = (u8, Reverse<i64>);

/// The groups that fit a kind of ask.
#[derive(Debug, Clone, Default)]
struct Fitting {
    best: BTreeSet<(Rank, GroupId)>,
    /// Groups made before this number were looked at.
    seen: GroupId,
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
    models: Models,
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
                let timed = row.host.launches.suspension.is_some();
                let (row, group) = (row.clone(), GroupId::MAX);
                let lowest = lowest(&row);
                self.sites.push(Site { row, taken: None, group, avoided, timed, lowest });
                self.regroup(at);
                continue;
            };
            let changed = !Arc::ptr_eq(&site.row.host, &row.host);
            if changed || site.timed || site.avoided != avoided || touched.contains(&at) {
                facts_changed |= !Arc::ptr_eq(&site.row.host.facts, &row.host.facts);
                site.timed = row.host.launches.suspension.is_some();
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
    pub(super) fn prepare(&mut self, want: Want<'_>) {
        let kind = Kind { ask: want.ask.clone(), tenant: shared_by(want) };
        let (mut fitting, kept) = match self.kinds.remove(&kind) {
            Some(fitting) => (fitting, true),
            None => (Fitting::default(), self.kinds.len() < KINDS_KEPT_MAX),
        };
        self.refresh(&mut fitting, want);
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
    pub(super) fn pick(&self, want: Want<'_>, mut allowed: impl FnMut(usize) -> bool) -> Option<usize> {
        let tenant = shared_by(want);
        let passing =
            self.passing.as_ref().filter(|(kind, _)| kind.ask == *want.ask && kind.tenant == tenant);
        let fitting = match passing {
            Some((_, fitting)) => fitting,
            None => self.kinds.get(&Kind { ask: want.ask.clone(), tenant })?,
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
    pub(super) fn groups_fitting(&self, want: Want<'_>) -> Vec<Vec<usize>> {
        let shape = self.models.shape(want.ask);
        let ranked = self.groups.values().filter_map(|group| Some((self.rank(group, want, &shape)?, group)));
        let mut ranked: Vec<(Rank, &Group)> = ranked.collect();
        ranked.sort_by_key(|(rank, group)| (*rank, group.members.first().copied()));
        ranked.into_iter().map(|(_, group)| group.members.iter().copied().collect()).collect()
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
    fn refresh(&mut self, fitting: &mut Fitting, want: Want<'_>) {
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
            if let Some(rank) = self.rank(group, want, &shape) {
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

    fn rank(&self, group: &Group, want: Want<'_>, shape: &score::Shape) -> Option<Rank> {
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
            return Some((liking, Reverse(scored.score)));
        }
        let eligible = fit::fits(&site.row.host, site.used(), want, self.now_ms).ok()?;
        let own = Cards::of(site, want.ask, &self.models, Some(&eligible));
        let scored = self.judge(&own.fill(site), shape, site.id())?;
        let asks_devices = want.ask.gpu_milli > 0 || !want.ask.devices.is_empty();
        let liking = if asks_devices {
            preference(want.ask, &eligible)
        } else {
            // Work without devices goes where there are none: cards are not stranded behind it.
            u8::from(!site.row.host.facts.devices.is_empty())
        };
        Some((liking, Reverse(scored.score)))
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

/// The lowest priority of what may be ended on a host.
fn lowest(row: &HostView) -> Option<u16> {
    let live = row.attempts.iter().filter(|a| a.preemptible && a.state != AttemptState::Ending);
    live.map(|a| a.priority).min()
}

/// Whose shares may lie on one card; asks that share nothing are alike for all tenants.
fn shared_by(want: Want<'_>) -> String {
    if want.ask.share_milli().is_some() { want.tenant.to_owned() } else { String::new() }
}

/// Position of the first preferred model that a host offers; past the end if none.
fn preference(ask: &Ask, eligible: &[&DeviceFacts]) -> u8 {
    let wanted = &ask.gpu_models_preferred;
    let offered = |name: &String| {
        let gpus = eligible.iter().filter(|d| d.kind == DeviceKind::Gpu);
        gpus.filter(|d| fit::model_accepted(&d.model, std::slice::from_ref(name))).count()
            >= ask.gpus() as usize
    };
    wanted.iter().position(offered).unwrap_or(wanted.len()).min(usize::from(u8::MAX)) as u8
}

/// A site's cards as the scorer sees them: those of the model that the ask would get.
struct Cards {
    model: u16,
    free_milli: Vec<u16>,
    uuids: Vec<DeviceUuid>,
}

impl Cards {
    fn of(site: &Site, ask: &Ask, models: &Models, eligible: Option<&[&DeviceFacts]>) -> Self {
        let used = site.used();
        let is_gpu = |d: &&DeviceFacts| d.kind == DeviceKind::Gpu && d.health.is_healthy();
        let gpus = || site.row.host.facts.devices.iter().filter(is_gpu);
        let first = eligible.and_then(|list| list.iter().find(|d| d.kind == DeviceKind::Gpu).copied());
        // A host may mix models: what is scored is the kind of card that would be taken.
        let model = first.or_else(|| gpus().next()).map(|d| d.model.as_str());
        let mut cards =
            Self { model: model.map_or(0, |name| models.id(name)), free_milli: vec![], uuids: vec![] };
        for device in gpus().filter(|d| Some(d.model.as_str()) == model) {
            let may_take = eligible.is_none_or(|list| list.iter().any(|d| d.uuid == device.uuid));
            let held = used.devices.get(&device.uuid).map_or(0, |held| held.milli());
            let free = CARD_MILLI.saturating_sub(held) as u16;
            // A card with room that this ask may not have (another tenant's, or too little memory) counts as too
            // full for it; it is still free for others.
            let shown =
                if may_take || ask.gpus() == 0 { free } else { free.min(ask.card_milli() as u16 - 1) };
            cards.free_milli.push(shown);
            cards.uuids.push(device.uuid.clone());
        }
        cards
    }

    fn fill<'a>(&'a self, site: &Site) -> Fill<'a> {
        fill(self.model, &self.free_milli, site)
    }
}

fn fill<'a>(model: u16, cards: &'a [u16], site: &Site) -> Fill<'a> {
    let (facts, used) = (&site.row.host.facts, site.used());
    let cpus_free = u64::from(facts.cpus_milli).saturating_sub(used.cpus_milli);
    Fill {
        model,
        cards,
        cpus_milli_free: u32::try_from(cpus_free).unwrap_or(u32::MAX),
        cpus_milli: facts.cpus_milli,
        mem_mib_free: facts.mem_mib.saturating_sub(used.mem_mib),
        mem_mib: facts.mem_mib,
        classes: 0,
    }
}

/// Everything that `fits` and the scorer read of a host, but for its name and the names of its cards.
fn signature(site: &Site, now_ms: u64) -> Signature {
    let (host, used) = (&site.row.host, site.used());
    let mut both = [Digest::new(1), Digest::new(2)];
    let mut write = |word: u64| both.iter_mut().for_each(|digest| digest.write_u64(word));
    let open = !site.avoided && host.state(now_ms) == HostState::Up;
    write(u64::from(open));
    write(u64::from(host.on_probation() && used.launching > 0));
    write(u64::from(host.facts.cpus_milli));
    write(used.cpus_milli);
    write(host.facts.mem_mib);
    write(used.mem_mib);
    for device in &host.facts.devices {
        write(device.kind as u64);
        write(u64::from(device.health.is_healthy()));
        write(device.vram_mib.unwrap_or(u64::MAX));
        write(u64::from(device.compute_cap.unwrap_or(0)));
        write(u64::from(device.island.map_or(u32::MAX, |island| island)));
        write(u64::from(device.numa.map_or(u32::MAX, |numa| numa)));
        let held = used.devices.get(&device.uuid);
        write(held.map_or(0, |held| u64::from(held.milli())));
        write(held.map_or(0, |held| held.vram_mib()));
    }
    let mut text = |text: &str| both.iter_mut().for_each(|digest| digest.write(text.as_bytes()));
    for device in &host.facts.devices {
        text(&device.model);
        let held = used.devices.get(&device.uuid).filter(|held| held.milli() < CARD_MILLI);
        text(held.map_or("", |held| &held.tenant));
    }
    for (key, value) in &host.facts.labels {
        text(key);
        text(value);
    }
    let [first, second] = both;
    (first.finish(), second.finish())
}
