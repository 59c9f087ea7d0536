//! One look at the devices: what their drivers say now, beside what was seen before.

use super::links::Links;
use super::pace::{Pace, Team, is_low};
use super::{CLEAN_LOOKS, Health, Own, Seen};
use crate::devices::signs::{DeviceSigns, EccCounts, Recovery};
use rota_protocol::device::{DeviceFacts, DeviceHealth, DeviceKind};
use rota_protocol::health::{Cause, Finding, Source, Stage};
use rota_protocol::ids::{DeviceUuid, Token};
use rota_protocol::job::AttemptEnd;
use std::collections::{BTreeMap, BTreeSet};

/// So many of the newest [`TROUBLE_MINUTES`] minutes with a slowed card degrade it: 0.6 a minute.
const TROUBLE_MAX: usize = 6;
/// The minutes that are looked at.
pub(super) const TROUBLE_MINUTES: u64 = 10;
/// The same is told again no sooner than this, in ms: the state may have refused it, or nobody heard it.
const AGAIN_MS: u64 = 10_000;
/// The same for what the breaker may hold back.
const ALERT_AGAIN_MS: u64 = 60_000;
/// The same for what is only worth knowing.
const NOTE_AGAIN_MS: u64 = 3_600_000;

/// What was seen of one device so far.
#[derive(Debug, Default)]
pub(super) struct Card {
    /// Looks in a row in which it was well.
    clean: u32,
    /// It was gone, and has not been told as back since.
    gone: bool,
    /// Minutes since the epoch in which it was slowed down.
    troubled: BTreeSet<u64>,
    /// When what was told last.
    told: BTreeMap<Cause, u64>,
    ecc: Option<EccCounts>,
    pace: Pace,
    links: Links,
}

/// What one device is seen beside.
struct Beside<'a> {
    team: Option<&'a Team>,
    /// Most busy cards of its model here are as slow.
    set_low: bool,
    /// The most links that any equal card of its island has up.
    links_up: u32,
}

/// What a look comes to.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Looked {
    /// What the state is told.
    pub findings: Vec<Finding>,
    /// How attempts ended if they are found to have failed before the state hears of it.
    pub ends: Vec<(Token, AttemptEnd)>,
    /// Devices that only a reset mends and that nothing holds.
    pub to_reset: Vec<DeviceUuid>,
}

/// Something to tell of one device.
type Told = (Cause, Source, String);

impl Health {
    /// The devices were looked at.
    pub fn look(&mut self, seen: &Seen<'_>) -> Looked {
        let mut looked = Looked::default();
        for device in seen.facts {
            let own = seen.own(&device.uuid);
            let signs = seen.signs.get(&device.uuid);
            let card = self.cards.entry(device.uuid.clone()).or_default();
            let gone = is_gone(device, seen.facts);
            let beside = beside(device, seen);
            let told = card.look(device, signs, &own, gone, &beside, seen.now_ms);
            for (cause, source, text) in told {
                if card.may_tell(cause, own.stage, seen.now_ms) {
                    if matches!(cause, Cause::Fault | Cause::NodeFault | Cause::Fatal) {
                        looked.ends.extend(broken(&own, &device.uuid, &text));
                    }
                    looked.findings.push(Finding {
                        uuid: device.uuid.clone(),
                        cause,
                        source,
                        text,
                        program: None,
                        trial_ms: self.rules.trial_ms,
                    });
                }
            }
            let by_reset = own.cause.is_some_and(|(cause, _)| cause == Cause::Fault);
            if own.stage == Stage::Quarantined && by_reset && own.holders.is_empty() {
                looked.to_reset.push(device.uuid.clone());
            }
        }
        let listed: BTreeSet<&DeviceUuid> = seen.facts.iter().map(|device| &device.uuid).collect();
        self.cards.retain(|uuid, _| listed.contains(uuid));
        looked
    }

    /// A device was reset by this host.
    #[must_use]
    pub fn was_reset(&self, uuid: &DeviceUuid) -> Finding {
        Finding {
            uuid: uuid.clone(),
            cause: Cause::Repaired,
            source: Source::Probe,
            text: "it was reset".into(),
            program: None,
            trial_ms: self.rules.trial_ms,
        }
    }
}

/// What a device is seen beside.
fn beside<'a>(device: &DeviceFacts, seen: &Seen<'a>) -> Beside<'a> {
    let equals = || seen.facts.iter().filter(|other| other.model == device.model);
    let signs = |other: &DeviceFacts| seen.signs.get(&other.uuid);
    let busy: Vec<bool> = equals().filter_map(|other| is_low(signs(other)?)).collect();
    let low = busy.iter().filter(|low| **low).count();
    let joined = |other: &&DeviceFacts| device.island.is_some() && other.island == device.island;
    Beside {
        team: seen.teams.iter().find(|team| team.cards.iter().any(|mate| mate.uuid == device.uuid)),
        set_low: busy.len() > 1 && 2 * low > busy.len(),
        links_up: equals().filter(joined).filter_map(|other| signs(other)?.links.up).max().unwrap_or(0),
    }
}

/// What ran on a broken device, and how it ended if it did.
fn broken(own: &Own, uuid: &DeviceUuid, text: &str) -> Vec<(Token, AttemptEnd)> {
    let end = |token| (token, AttemptEnd::DeviceFault { reason: format!("{text} ({uuid})") });
    own.holders.iter().map(|(token, _)| end(*token)).collect()
}

/// A card that its driver has lost. A slice that is gone was cut otherwise, and so was a card that is gone while slices
/// of it are there.
fn is_gone(device: &DeviceFacts, facts: &[DeviceFacts]) -> bool {
    let slice = |d: &DeviceFacts| d.kind == DeviceKind::Mig && d.bus.is_some() && d.bus == device.bus;
    matches!(device.health, DeviceHealth::Lost { .. })
        && device.kind == DeviceKind::Gpu
        && !facts.iter().any(|d| slice(d) && d.health.is_healthy())
}

impl Card {
    /// What there is to tell, the worst first.
    fn look(
        &mut self,
        device: &DeviceFacts,
        signs: Option<&DeviceSigns>,
        own: &Own,
        gone: bool,
        beside: &Beside<'_>,
        now_ms: u64,
    ) -> Vec<Told> {
        let none = DeviceSigns::default();
        let signs = signs.unwrap_or(&none);
        if gone {
            self.clean = 0;
            self.gone = true;
            let reason = device.health.reason().unwrap_or_default();
            return vec![match signs.reset_required {
                true => (Cause::Fault, Source::Nvml, format!("it must be reset: {reason}")),
                false => (Cause::NodeFault, Source::Probe, format!("it is gone: {reason}")),
            }];
        }
        let mut told = self.trouble(signs, now_ms);
        let links = self.links.look(&signs.links, beside.links_up, now_ms);
        told.extend(links.map(|text| (Cause::Fabric, Source::Nvml, text)));
        let slow = self.pace.look(&device.uuid, signs, beside.team, beside.set_low, now_ms);
        told.extend(slow.map(|text| (Cause::Slow, Source::Probe, text)));
        let noted = told.iter().all(|(cause, ..)| *cause == Cause::Noted);
        // What nobody knows is neither good nor bad.
        self.clean = match device.health {
            DeviceHealth::Healthy if noted => self.clean.saturating_add(1),
            _ => 0,
        };
        if self.clean >= CLEAN_LOOKS {
            told.extend(self.recovery(signs, own, now_ms));
        }
        told
    }

    /// What the driver's answers say that is not as it should be.
    fn trouble(&mut self, signs: &DeviceSigns, now_ms: u64) -> Vec<Told> {
        let mut told = Vec::new();
        let mut tell = |cause, text: String| told.push((cause, Source::Nvml, text));
        if signs.remap.failed == Some(true) {
            tell(Cause::Fatal, "a memory row could not be remapped: the card is worn out".into());
        }
        match signs.recovery {
            None | Some(Recovery::None) => {}
            Some(Recovery::Reboot) => tell(Cause::NodeFault, "the driver advises to restart the host".into()),
            Some(Recovery::Reset) => tell(Cause::Fault, "the driver advises a reset".into()),
            Some(Recovery::DrainAndReset) => {
                tell(Cause::Fault, "the driver advises to end all work, then a reset".into());
            }
            Some(Recovery::DrainP2p) => {
                tell(Cause::Fabric, "the driver advises to end work over several cards".into());
            }
            Some(Recovery::Other(number)) => {
                tell(Cause::Fault, format!("the driver advises something new, number {number}"));
            }
        }
        let minute = now_ms / 60_000;
        let slowed = signs.throttle.is_some_and(|throttle| throttle.is_trouble());
        if slowed {
            self.troubled.insert(minute);
        }
        self.troubled.retain(|at| at + TROUBLE_MINUTES > minute);
        if self.troubled.len() >= TROUBLE_MAX {
            let text = format!(
                "slowed down for heat or power in {} of the last {TROUBLE_MINUTES} minutes",
                self.troubled.len()
            );
            tell(Cause::Throttled, text);
        }
        if signs.remap.pending == Some(true) {
            tell(Cause::Noted, "a memory row is to be remapped: a reset is wanted when it is idle".into());
        }
        // A count that went backwards was reset, and has grown by nothing.
        let grown = self.ecc.map(|earlier| signs.ecc.since(&earlier));
        self.ecc = Some(signs.ecc);
        if let Some(errors) = grown.and_then(|grown| grown.volatile_uncorrected).filter(|errors| *errors > 0)
        {
            tell(Cause::Noted, format!("{errors} memory errors that were not corrected"));
        }
        told
    }

    /// What a device that has been well for some looks may hope for.
    fn recovery(&mut self, signs: &DeviceSigns, own: &Own, now_ms: u64) -> Option<Told> {
        let tell = |cause, source, text: &str| Some((cause, source, text.to_owned()));
        match own.stage {
            Stage::Well | Stage::Out => {
                self.gone = false;
                None
            }
            // One that was slow must show its speed: while it idles nobody knows.
            Stage::Degraded if own.cause.is_some_and(|(cause, _)| cause == Cause::Slow) => {
                let proven = self.troubled.is_empty() && self.pace.is_proven();
                tell(Cause::Clean, Source::Probe, "at speed under load").filter(|_| proven)
            }
            Stage::Degraded if self.troubled.is_empty() && self.quiet(Cause::Fabric, now_ms) => {
                tell(Cause::Clean, Source::Nvml, "nothing of it for ten minutes")
            }
            Stage::Suspect => tell(Cause::Clean, Source::Probe, "looked at several times and well"),
            Stage::Quarantined => {
                let was_lost = own.cause == Some((Cause::NodeFault, Source::Probe));
                if self.gone || was_lost {
                    return tell(Cause::Repaired, Source::Probe, "it is back");
                }
                // The driver's advice comes before the table by which it was taken out.
                (signs.recovery == Some(Recovery::None))
                    .then(|| (Cause::Repaired, Source::Nvml, "the driver advises nothing (more)".to_owned()))
            }
            Stage::Trial | Stage::Probation if own.until_ms.is_some_and(|until_ms| now_ms >= until_ms) => {
                self.gone = false;
                tell(Cause::Served, Source::Probe, "well for all of its time of trial")
            }
            Stage::Degraded | Stage::Trial | Stage::Probation => None,
        }
    }

    /// It was not told within the time that counts.
    fn quiet(&self, cause: Cause, now_ms: u64) -> bool {
        self.told.get(&cause).is_none_or(|at_ms| at_ms + TROUBLE_MINUTES * 60_000 <= now_ms)
    }

    /// Worth telling: it is a step from where the device stands, and was not told just now.
    fn may_tell(&mut self, cause: Cause, stage: Stage, now_ms: u64) -> bool {
        let again_ms = match cause {
            Cause::Noted => NOTE_AGAIN_MS,
            Cause::NodeFault => ALERT_AGAIN_MS,
            _ => AGAIN_MS,
        };
        let step = cause == Cause::Noted || stage.after(cause).is_some();
        let lately = self.told.get(&cause).is_some_and(|at_ms| now_ms.saturating_sub(*at_ms) < again_ms);
        if step && !lately {
            self.told.insert(cause, now_ms);
        }
        step && !lately
    }

    /// An Xid told so of this device.
    pub(super) fn note(&mut self, cause: Cause, now_ms: u64) {
        self.clean = 0;
        self.told.insert(cause, now_ms);
    }
}
