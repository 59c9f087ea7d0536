//! Groups of hosts that nothing but their names tells apart, what the scorer sees of them, and the kinds of asks that
//! are looked for among them.

use super::models::Models;
use super::pace::Pace;
use super::score::{Demand, Fill, Standing};
use super::sites::Site;
use super::view::HostView;
use crate::fit::{self, Want};
use crate::hash::Digest;
use rota_protocol::DeviceUuid;
use rota_protocol::ask::{Ask, CARD_MILLI};
use rota_protocol::device::{DeviceFacts, DeviceKind};
use rota_protocol::job::AttemptState;
use rota_protocol::view::HostState;
use std::cmp::Reverse;
use std::collections::BTreeSet;

/// A group's number, never used again.
pub(super) type GroupId = u64;
/// What decides whether and how well an ask fits: two 64-bit digests of all that `fits` and the scorer look at.
pub(super) type Signature = (u64, u64);

/// Hosts that no ask can tell apart but by name.
#[derive(Debug, Clone)]
pub(super) struct Group {
    pub(super) members: BTreeSet<usize>,
    pub(super) signature: Signature,
    pub(super) roof: Roof,
    pub(super) plain: Option<Plain>,
}

/// A fill that the scorer can judge without a look at the devices: healthy cards of one known model, shared by one
/// tenant at the most.
#[derive(Debug, Clone)]
pub(super) struct Plain {
    pub(super) model: u16,
    pub(super) free_milli: Vec<u16>,
    pub(super) sharer: Option<String>,
    pub(super) has_vram: bool,
    pub(super) standing: Standing,
}

impl Plain {
    pub(super) fn of(site: &Site, models: &Models, demand: &Demand) -> Option<Self> {
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
            if !card.health.is_whole() || card.model != name {
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
    pub(super) fn answers(&self, want: Want<'_>) -> bool {
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

    pub(super) fn fill<'a>(&'a self, site: &Site) -> Fill<'a> {
        fill(self.model, &self.free_milli, site)
    }
}

/// The most of each part that is free: an ask above it is turned away without a look at the devices.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Roof {
    pub(super) open: bool,
    pub(super) cards: u32,
    pub(super) card_milli: u32,
    pub(super) cpus_milli: u64,
    pub(super) mem_mib: u64,
}

impl Roof {
    pub(super) fn of(site: &Site, now_ms: u64) -> Self {
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

    pub(super) fn admits(&self, ask: &Ask) -> bool {
        self.open
            && match ask.share_milli() {
                Some(share) => share <= self.card_milli,
                None => ask.gpus() <= self.cards,
            }
            && u64::from(ask.cpus_milli) <= self.cpus_milli
            && ask.mem_mib <= self.mem_mib
    }
}

/// A kind of ask: what it is, who may share a card with it, and where it runs how fast.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Kind {
    pub(super) ask: Ask,
    pub(super) tenant: String,
    /// What is fit for one card only is not for it.
    pub(super) is_wide: bool,
    pub(super) pace: Pace,
}

impl Kind {
    pub(super) fn of(want: Want<'_>, pace: &Pace) -> Self {
        let (ask, tenant) = (want.ask.clone(), shared_by(want));
        Self { ask, tenant, is_wide: want.is_wide(), pace: pace.clone() }
    }
}

/// How good a group is, lower is better: the preference for its models, how much slower they are than the best, then
/// the scorer's word.
pub(super) type Rank = (u8, u8, Reverse<i64>);

/// The groups that fit a kind of ask.
#[derive(Debug, Clone, Default)]
pub(super) struct Fitting {
    pub(super) best: BTreeSet<(Rank, GroupId)>,
    /// Groups made before this number were looked at.
    pub(super) seen: GroupId,
}

/// The lowest priority of what may be ended on a host.
pub(super) fn lowest(row: &HostView) -> Option<u16> {
    let live = row.attempts.iter().filter(|a| a.preemptible && a.state != AttemptState::Ending);
    live.map(|a| a.priority).min()
}

/// Whose shares may lie on one card; asks that share nothing are alike for all tenants.
pub(super) fn shared_by(want: Want<'_>) -> String {
    if want.ask.share_milli().is_some() { want.tenant.to_owned() } else { String::new() }
}

/// Position of the first preferred model that a host offers; past the end if none.
pub(super) fn preference(ask: &Ask, eligible: &[&DeviceFacts]) -> u8 {
    let wanted = &ask.gpu_models_preferred;
    let offered = |name: &String| {
        let gpus = eligible.iter().filter(|d| d.kind == DeviceKind::Gpu);
        gpus.filter(|d| fit::model_accepted(&d.model, std::slice::from_ref(name))).count()
            >= ask.gpus() as usize
    };
    wanted.iter().position(offered).unwrap_or(wanted.len()).min(usize::from(u8::MAX)) as u8
}

/// A site's cards as the scorer sees them: those of the model that the ask would get.
pub(super) struct Cards {
    pub(super) model: u16,
    pub(super) free_milli: Vec<u16>,
    pub(super) uuids: Vec<DeviceUuid>,
}

impl Cards {
    pub(super) fn of(site: &Site, ask: &Ask, models: &Models, eligible: Option<&[&DeviceFacts]>) -> Self {
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

    pub(super) fn fill<'a>(&'a self, site: &Site) -> Fill<'a> {
        fill(self.model, &self.free_milli, site)
    }
}

pub(super) fn fill<'a>(model: u16, cards: &'a [u16], site: &Site) -> Fill<'a> {
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
pub(super) fn signature(site: &Site, now_ms: u64) -> Signature {
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
        write(u64::from(device.health.is_healthy()) + u64::from(device.health.is_whole()));
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
