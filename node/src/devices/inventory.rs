//! What this host offers over time: each look at the providers is merged with what was known, by UUID and never by
//! index (fault G4, R014). A card that appears is offered without a restart (R098); one that is no longer shown is
//! `Lost`; one that comes back is on probation (fault G3); one whose provider does not answer is `Unknown`.
//!
//! The merge ([`Known`]) is a function over data; only [`Inventory`] asks anyone.

use super::described::DescribedProvider;
use super::probe::{PROBE_DEADLINE, Probe, Source};
use super::signs::Signs;
use super::sim::{SimError, SimProvider};
use super::{DeviceConfig, DeviceError, Found, Limit, clean, host, managed};
use futures_util::future::join_all;
use rota_protocol::device::{DeviceFacts, DeviceHealth, DeviceReading, HostFacts, HostNotes};
use rota_protocol::ids::{BootId, DeviceUuid};
use rota_protocol::limits::HOST_DEVICES_MAX;
use std::collections::BTreeMap;

/// Looks in which a returned card must be well, one after the other, before it is offered again.
pub const PROBATION_LOOKS: u32 = 3;

/// Most warnings that a host tells of: more say no more.
const WARNINGS_MAX: usize = 16;

/// This host's hardware and the ways to ask about it.
pub struct Inventory {
    probes: Vec<Probe>,
    known: Vec<Known>,
    notes: Vec<String>,
    signs: Signs,
    limits: Vec<Limit>,
    base: HostFacts,
    boot: BootId,
}

impl Inventory {
    /// Prepares the providers; asks none of them yet.
    ///
    /// # Errors
    /// When the description of simulated devices cannot be read. A host without driver or card is no error.
    pub fn new(config: &DeviceConfig) -> Result<Self, SimError> {
        let mut probes = match &config.sim_gpus {
            Some(description) => {
                let sim =
                    SimProvider::new(description, &config.host_name)?.scripted(config.sim_script.clone());
                vec![Probe::direct(Box::new(sim))]
            }
            None => {
                let root = || config.root().to_owned();
                let library = super::nvml::library_path(config.nvml_library.as_deref());
                vec![
                    Probe::apart(Source::Nvml { library, root: root() }, PROBE_DEADLINE),
                    Probe::apart(Source::Amd { root: root() }, PROBE_DEADLINE),
                ]
            }
        };
        if let Some(path) = &config.described {
            probes.push(Probe::direct(Box::new(DescribedProvider::new(path.clone()))));
        }
        Ok(Self::of(probes, config))
    }

    /// An inventory over these providers.
    #[must_use]
    pub fn of(probes: Vec<Probe>, config: &DeviceConfig) -> Self {
        Self {
            known: probes.iter().map(|_| Known::default()).collect(),
            probes,
            notes: Vec::new(),
            signs: Signs::new(),
            limits: if config.sim_gpus.is_some() { Vec::new() } else { config.limits.clone() },
            base: HostFacts {
                cpus_milli: config.cpus_milli.unwrap_or_else(host::cpus_milli),
                mem_mib: config.mem_mib.unwrap_or_else(host::mem_mib),
                devices: Vec::new(),
                labels: config.labels.clone(),
                version: env!("CARGO_PKG_VERSION").to_owned(),
                notes: Default::default(),
            },
            boot: config.boot.or_else(host::boot_id).unwrap_or_default(),
        }
    }

    /// The kernel's boot id, or what stands for it in a lab.
    #[must_use]
    pub fn boot(&self) -> BootId {
        self.boot
    }

    /// For people: what the last look saw and could not offer.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// What the physical cards said of their own wellbeing at the last look, by UUID. Cards that could not be asked, or
    /// whose source knows no such signs, are absent.
    #[must_use]
    pub fn signs(&self) -> &Signs {
        &self.signs
    }

    /// Looks at every provider and gives the host's facts. Takes at most the probe deadline per provider and does
    /// not block the thread. The caller registers the host anew when the facts differ from the last ones.
    pub async fn refresh(&mut self) -> HostFacts {
        self.notes.clear();
        self.signs.clear();
        let (mut devices, mut aside) = (BTreeMap::new(), BTreeMap::new());
        let mut warnings = Vec::new();
        // Side by side: one that hangs keeps no other waiting.
        let looks = join_all(self.probes.iter_mut().map(Probe::discover)).await;
        for ((probe, known), look) in self.probes.iter().zip(&mut self.known).zip(looks) {
            match &look {
                Ok(found) => {
                    self.notes.extend(found.notes.iter().cloned());
                    warnings
                        .extend(found.notes.iter().chain(&found.warnings).map(|note| clean::reason(note)));
                    self.signs.extend(found.signs.clone());
                    self.notes.extend(found.doubt.iter().map(|doubt| format!("{}: {doubt}", probe.name())));
                }
                Err(error) => {
                    let note = format!("{}: {error}", probe.name());
                    // A card that is known says it itself.
                    if known.cards.is_empty() {
                        warnings.push(clean::reason(&note));
                    }
                    self.notes.push(note);
                }
            }
            if let Ok(found) = &look {
                aside.extend(found.set_aside.iter().map(|facts| (facts.uuid.clone(), facts.clone())));
            }
            known.merge(look);
            for mut facts in known.devices() {
                if facts.detail.unified {
                    // What the host offers of it is what there is.
                    facts.vram_mib = Some(self.base.mem_mib);
                }
                devices.entry(facts.uuid.clone()).or_insert(facts);
            }
        }
        warnings.extend(managed::apply(&self.limits, &mut devices, &mut aside));
        if devices.len() > HOST_DEVICES_MAX {
            self.notes.push(format!(
                "{} devices are more than the {HOST_DEVICES_MAX} a host may offer; the last ones are left out",
                devices.len()
            ));
        }
        // What is offered may hide behind no other word on it.
        aside.retain(|uuid, _| !devices.contains_key(uuid));
        warnings.sort_unstable();
        warnings.truncate(WARNINGS_MAX);
        let set_aside = aside.into_values().take(HOST_DEVICES_MAX).collect();
        let notes = HostNotes { warnings, set_aside, ..HostNotes::default() };
        let devices = devices.into_values().take(HOST_DEVICES_MAX).collect();
        HostFacts { devices, notes, ..self.base.clone() }
    }

    /// Live readings of all devices, by UUID. Does not block the thread.
    pub async fn readings(&mut self) -> Vec<DeviceReading> {
        let all = join_all(self.probes.iter_mut().map(Probe::read)).await;
        let mut all: Vec<DeviceReading> = all.into_iter().flatten().collect();
        all.sort_by(|a, b| a.uuid.cmp(&b.uuid));
        all
    }

    /// Probes that hang in drivers now.
    pub fn stuck(&mut self) -> usize {
        self.probes.iter_mut().map(Probe::stuck).sum()
    }
}

/// One provider's devices over time.
#[derive(Debug, Default)]
pub struct Known {
    cards: BTreeMap<DeviceUuid, Card>,
}

#[derive(Debug)]
struct Card {
    facts: DeviceFacts,
    /// Good looks still needed after it was lost.
    probation: u32,
}

impl Known {
    /// Takes in one look.
    pub fn merge(&mut self, look: Result<Found, DeviceError>) {
        match look {
            Ok(found) => self.take(found),
            // Nobody knows of any.
            Err(error) => self.take(Found { doubt: Some(error.to_string()), ..Found::default() }),
        }
    }

    /// The devices as they may be offered, in the order of their UUIDs.
    pub fn devices(&self) -> impl Iterator<Item = DeviceFacts> {
        self.cards.values().map(Card::shown)
    }

    fn take(&mut self, found: Found) {
        let mut seen: BTreeMap<DeviceUuid, DeviceFacts> = BTreeMap::new();
        for mut facts in found.devices {
            if seen.contains_key(&facts.uuid) {
                facts.health = unknown("two devices claim this uuid");
            }
            seen.insert(facts.uuid.clone(), facts);
        }
        for (uuid, card) in &mut self.cards {
            match &found.doubt {
                _ if seen.contains_key(uuid) => {}
                // Nobody knows: a running task keeps the card, nothing new is placed. A lost card stays lost.
                Some(doubt) => card.doubt(doubt),
                None => card.lose("the driver no longer shows it"),
            }
        }
        for (uuid, facts) in seen {
            match self.cards.get_mut(&uuid) {
                Some(card) => card.look(facts),
                None => drop(self.cards.insert(uuid, Card::new(facts))),
            }
        }
    }
}

impl Card {
    fn new(facts: DeviceFacts) -> Self {
        let probation = if matches!(facts.health, DeviceHealth::Lost { .. }) { PROBATION_LOOKS } else { 0 };
        Self { facts, probation }
    }

    fn lose(&mut self, reason: &str) {
        self.facts.health = DeviceHealth::Lost { reason: reason.to_owned() };
        self.facts.index = None;
        self.probation = PROBATION_LOOKS;
    }

    /// The first doubt stays: whoever hears of it need not hear each later wording.
    fn doubt(&mut self, reason: &str) {
        if self.facts.health.is_healthy() {
            self.facts.health = unknown(reason);
        }
    }

    fn look(&mut self, facts: DeviceFacts) {
        match facts.health {
            DeviceHealth::Healthy => self.probation = self.probation.saturating_sub(1),
            DeviceHealth::Lost { .. } => self.probation = PROBATION_LOOKS,
            // Neither good nor lost: a probation that runs starts again, none begins.
            // What is held against a device is the state's to say, never a provider's.
            DeviceHealth::Unknown { .. }
            | DeviceHealth::Dirty { .. }
            | DeviceHealth::Degraded { .. }
            | DeviceHealth::Quarantined { .. } => {
                if self.probation > 0 {
                    self.probation = PROBATION_LOOKS;
                }
            }
        }
        // A call that fails for a moment takes no lasting fact away: a card does not lose its memory size.
        let before = std::mem::replace(&mut self.facts, facts);
        let now = &mut self.facts;
        if now.model.is_empty() {
            now.model = before.model;
            now.detail.unified |= before.detail.unified;
        }
        now.vram_mib = now.vram_mib.or(before.vram_mib);
        now.numa = now.numa.or(before.numa);
        now.bus = now.bus.take().or(before.bus);
        now.compute_cap = now.compute_cap.or(before.compute_cap);
        now.island = now.island.or(before.island);
        now.detail.minor = now.detail.minor.or(before.detail.minor);
        now.detail.power_limit_mw = now.detail.power_limit_mw.or(before.detail.power_limit_mw);
    }

    fn shown(&self) -> DeviceFacts {
        let mut facts = self.facts.clone();
        if facts.health.is_healthy() && self.probation > 0 {
            facts.health = unknown("it was lost and came back; on probation");
        }
        facts
    }
}

fn unknown(reason: &str) -> DeviceHealth {
    DeviceHealth::Unknown { reason: clean::reason(reason) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rota_protocol::device::DeviceKind;

    fn card(uuid: &str, index: u32) -> DeviceFacts {
        DeviceFacts {
            uuid: DeviceUuid(uuid.into()),
            kind: DeviceKind::Gpu,
            model: "H100".into(),
            vram_mib: Some(80 << 10),
            bus: None,
            index: Some(index),
            numa: None,
            compute_cap: None,
            island: None,
            health: DeviceHealth::Healthy,
            detail: Default::default(),
        }
    }

    fn look(known: &mut Known, uuids: &[&str]) -> Vec<(String, String)> {
        let devices = (0..).zip(uuids).map(|(index, uuid)| card(uuid, index)).collect();
        known.merge(Ok(Found { devices, ..Found::default() }));
        shown(known)
    }

    fn shown(known: &Known) -> Vec<(String, String)> {
        known
            .devices()
            .map(|d| {
                let health = match d.health {
                    DeviceHealth::Healthy => format!("healthy at {:?}", d.index),
                    DeviceHealth::Unknown { .. } => "unknown".into(),
                    DeviceHealth::Dirty { .. } => "dirty".into(),
                    DeviceHealth::Lost { .. } => "lost".into(),
                    held => format!("{held:?}"),
                };
                (d.uuid.0, health)
            })
            .collect()
    }

    fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
        expected.iter().map(|(a, b)| ((*a).into(), (*b).into())).collect()
    }

    #[test]
    fn a_renumbered_card_follows_its_uuid() {
        let mut known = Known::default();
        look(&mut known, &["A", "B"]);
        let after = look(&mut known, &["B", "A"]);
        assert_eq!(after, pairs(&[("A", "healthy at Some(1)"), ("B", "healthy at Some(0)")]));
    }

    #[test]
    fn a_late_card_is_offered_at_once() {
        let mut known = Known::default();
        assert!(look(&mut known, &[]).is_empty());
        assert_eq!(look(&mut known, &["A"]), pairs(&[("A", "healthy at Some(0)")]));
    }

    #[test]
    fn a_card_that_vanished_is_lost_and_its_return_is_on_probation() {
        let mut known = Known::default();
        look(&mut known, &["A", "B"]);
        let gone = look(&mut known, &["B"]);
        assert_eq!(gone, pairs(&[("A", "lost"), ("B", "healthy at Some(0)")]));
        for good_looks in 1..=PROBATION_LOOKS {
            let back = look(&mut known, &["A", "B"]);
            let expected = if good_looks < PROBATION_LOOKS { "unknown" } else { "healthy at Some(0)" };
            assert_eq!(back, pairs(&[("A", expected), ("B", "healthy at Some(1)")]));
        }
    }

    #[test]
    fn probation_starts_again_when_the_card_goes_away_again() {
        let mut known = Known::default();
        look(&mut known, &["A"]);
        for _ in 0..5 {
            assert_eq!(look(&mut known, &[]), pairs(&[("A", "lost")]));
            assert_eq!(look(&mut known, &["A"]), pairs(&[("A", "unknown")]));
        }
    }

    #[test]
    fn silence_closes_cards_and_the_next_answer_opens_them() {
        let mut known = Known::default();
        look(&mut known, &["A"]);
        known.merge(Err(DeviceError::Deadline { deadline_ms: 2_000 }));
        assert_eq!(shown(&known), pairs(&[("A", "unknown")]));
        assert_eq!(look(&mut known, &["A"]), pairs(&[("A", "healthy at Some(0)")]));
    }

    #[test]
    fn a_doubt_spares_cards_that_answered_and_loses_none() {
        let mut known = Known::default();
        look(&mut known, &["A", "B", "C"]);
        look(&mut known, &["A", "B"]);
        let doubt = Some("no answer within 2000 ms".to_owned());
        known.merge(Ok(Found { devices: vec![card("A", 0)], doubt, ..Found::default() }));
        assert_eq!(shown(&known), pairs(&[("A", "healthy at Some(0)"), ("B", "unknown"), ("C", "lost")]));
        assert_eq!(
            look(&mut known, &["A", "B"]),
            pairs(&[("A", "healthy at Some(0)"), ("B", "healthy at Some(1)"), ("C", "lost")]),
            "who was only in doubt is not on probation"
        );
    }

    #[test]
    fn silence_does_not_find_a_lost_card() {
        let mut known = Known::default();
        look(&mut known, &["A"]);
        look(&mut known, &[]);
        known.merge(Err(DeviceError::Died));
        assert_eq!(shown(&known), pairs(&[("A", "lost")]));
    }

    #[test]
    fn two_cards_of_one_name_are_not_granted() {
        let mut known = Known::default();
        assert_eq!(look(&mut known, &["A", "A"]), pairs(&[("A", "unknown")]));
    }

    #[test]
    fn a_failed_call_takes_no_lasting_fact_away() {
        let mut known = Known::default();
        look(&mut known, &["A"]);
        let poor = DeviceFacts { vram_mib: None, model: String::new(), ..card("A", 0) };
        known.merge(Ok(Found { devices: vec![poor], ..Found::default() }));
        let facts = known.devices().next().expect("one card");
        assert_eq!((facts.vram_mib, facts.model.as_str()), (Some(80 << 10), "H100"));
    }

    #[tokio::test(start_paused = true)]
    async fn simulated_cards_and_overrides_become_the_hosts_facts() {
        let config = DeviceConfig {
            host_name: "h1".into(),
            sim_gpus: Some("8xH100:80GiB".into()),
            cpus_milli: Some(64_000),
            mem_mib: Some(1 << 20),
            boot: Some(BootId(7)),
            ..DeviceConfig::default()
        };
        let mut inventory = Inventory::new(&config).expect("fair");
        assert_eq!(inventory.boot(), BootId(7));
        let facts = inventory.refresh().await;
        assert_eq!((facts.cpus_milli, facts.mem_mib, facts.devices.len()), (64_000, 1 << 20, 8));
        assert!(facts.devices.iter().all(|d| d.health.is_healthy()));
        assert_eq!(facts, inventory.refresh().await, "an unchanged host has unchanged facts");
        assert_eq!(inventory.readings().await.len(), 8);
    }
}
