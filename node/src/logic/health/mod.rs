//! Health of this host's devices, from signs to findings: what the kernel's log and the driver say becomes what the
//! state is told. Where a device stands is the state's to keep ([`Stage`]); here is only what was seen lately, and what
//! is lost with the agent is seen again.
//!
//! Findings follow from how things are, not from how they changed, wherever that can be: one that was not committed is
//! found again at the next look.

pub mod kmsg;
pub mod xid;

mod faults;
mod links;
mod look;
mod pace;

pub use faults::Faults;
pub use look::Looked;
pub use pace::{Mate, Team, teams};

use crate::devices::Signs;
use kmsg::{Bus, XidLine, advice};
use rota_core::State;
use rota_protocol::device::DeviceFacts;
use rota_protocol::health::{Cause, Finding, Source, Stage};
use rota_protocol::ids::{DeviceUuid, HostId, JobId, Token};
use rota_protocol::job::AttemptEnd;
use std::collections::BTreeMap;
use xid::{Class, XidTable};

/// One Xid of one card is acted upon once within this time, in ms; more of them are counted.
pub const ONCE_MS: u64 = 60_000;
/// Looks in a row in which a device must be well before it counts as that.
pub const CLEAN_LOOKS: u32 = 5;
/// How long a device is on trial unless the operator says otherwise, in ms.
pub const TRIAL_MS: u64 = 600_000;
/// A failed end is blamed on a fault that was told no longer ago than this, in ms.
pub const BLAME_MS: u64 = 60_000;
/// Xids that are remembered so that they are not acted upon again.
const ACTED_MAX: usize = 4_096;

/// What the decider goes by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rules {
    /// What Xids mean.
    pub table: XidTable,
    /// How long a time of trial is, in ms.
    pub trial_ms: u64,
}

/// What the state knows of one device of this host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Own {
    /// Where it stands.
    pub stage: Stage,
    /// When its time of trial may end, ms since the epoch.
    pub until_ms: Option<u64>,
    /// The newest thing that is held against it, and who said so.
    pub cause: Option<(Cause, Source)>,
    /// Attempts that hold it.
    pub holders: Vec<(Token, JobId)>,
}

/// What the state knows of a host's devices.
#[must_use]
pub fn own(state: &State, host: HostId, facts: &[DeviceFacts]) -> BTreeMap<DeviceUuid, Own> {
    let bad = |cause: Cause| {
        !matches!(cause, Cause::Clean | Cause::Repaired | Cause::Served | Cause::Cleared | Cause::Noted)
    };
    let own = |uuid: &DeviceUuid| {
        let mark = state.care().mark(uuid);
        let used = state.host(host).and_then(|host| host.used.devices.get(uuid));
        let holders = used
            .into_iter()
            .flat_map(|used| &used.holders)
            .filter_map(|holder| Some((holder.token, state.attempt(holder.token)?.task.job)));
        Own {
            stage: mark.map(|mark| mark.stage).unwrap_or_default(),
            until_ms: mark.and_then(|mark| mark.until_ms),
            cause: mark
                .and_then(|mark| mark.reasons.iter().rev().find(|reason| bad(reason.cause)))
                .map(|reason| (reason.cause, reason.source)),
            holders: holders.collect(),
        }
    };
    facts.iter().map(|device| (device.uuid.clone(), own(&device.uuid))).collect()
}

/// What is known at one moment. Times are ms since the epoch, as the state counts.
#[derive(Debug, Clone, Copy)]
pub struct Seen<'a> {
    /// What the driver lists, lost devices included.
    pub facts: &'a [DeviceFacts],
    /// What cards say of themselves.
    pub signs: &'a Signs,
    /// What the state knows.
    pub own: &'a BTreeMap<DeviceUuid, Own>,
    /// The work over several cards that its devices take part in.
    pub teams: &'a [Team],
    /// Now.
    pub now_ms: u64,
}

impl Seen<'_> {
    fn own(&self, uuid: &DeviceUuid) -> Own {
        self.own.get(uuid).cloned().unwrap_or_default()
    }
}

/// Whose process an Xid names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Culprit {
    /// That of an attempt.
    Attempt(Token),
    /// One that is no attempt's.
    Stranger,
    /// None is named, or it is gone.
    Unknown,
}

/// What an Xid comes to, whichever device it is about.
struct Told {
    cause: Cause,
    source: Source,
    text: String,
    trial_ms: u64,
}

impl Told {
    fn of(&self, uuid: &DeviceUuid) -> Finding {
        Finding {
            uuid: uuid.clone(),
            cause: self.cause,
            source: self.source,
            text: self.text.clone(),
            program: None,
            trial_ms: self.trial_ms,
        }
    }
}

/// What follows from one Xid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// Its class.
    pub class: Class,
    /// What the state is told.
    pub findings: Vec<Finding>,
    /// How attempts ended if they are found to have failed before the state hears of it.
    pub ends: Vec<(Token, AttemptEnd)>,
    /// An Xid that nobody knows: somebody should look at it.
    pub alarm: bool,
}

/// The decider.
#[derive(Debug)]
pub struct Health {
    rules: Rules,
    /// When each Xid was acted upon.
    acted: BTreeMap<(Bus, u32, Option<Token>), u64>,
    cards: BTreeMap<DeviceUuid, look::Card>,
}

impl Health {
    /// One that has seen nothing yet.
    #[must_use]
    pub fn new(rules: Rules) -> Self {
        Self { rules, acted: BTreeMap::new(), cards: BTreeMap::new() }
    }

    /// An Xid was told.
    pub fn xid(&mut self, line: &XidLine, source: Source, culprit: Culprit, seen: &Seen<'_>) -> Verdict {
        let (class, words) = self.rules.table.of(line.xid);
        let class = match (class, advice(&line.text)) {
            // The driver's own advice comes before any table.
            (Class::Action, Some("reboot")) => Class::Node,
            (Class::Action, Some("reset")) => Class::Reset,
            (Class::Action, Some("fabric")) => Class::Fabric,
            (class, _) => class,
        };
        let more = if line.text.is_empty() { String::new() } else { format!(" ({})", line.text) };
        let text = match class {
            Class::Program | Class::Contained => format!("gpu_app_xid{}: {words}{more}", line.xid),
            _ => format!("Xid {}: {words}{more}", line.xid),
        };
        let mut verdict =
            Verdict { class, findings: Vec::new(), ends: Vec::new(), alarm: class == Class::Unknown };
        let on_card = |d: &&DeviceFacts| d.bus.as_deref().and_then(Bus::parse) == Some(line.bus);
        let hit: Vec<&DeviceFacts> = seen.facts.iter().filter(on_card).collect();
        let cause = match class {
            Class::Program => Cause::Program,
            Class::Contained => Cause::Contained,
            Class::Note => Cause::Noted,
            Class::Reset | Class::Unknown => Cause::Fault,
            Class::Fabric => Cause::Fabric,
            Class::Node => Cause::NodeFault,
            // The next look asks for the advice itself.
            Class::Ignore | Class::Action => return verdict,
        };
        let told = Told { cause, source, text, trial_ms: self.rules.trial_ms };
        if matches!(cause, Cause::Program | Cause::Contained) {
            self.program(line, &told, &hit, culprit, seen, &mut verdict);
        } else if self.first(line, None, seen.now_ms) {
            self.card(&told, hit, seen, &mut verdict);
        }
        verdict
    }

    /// A program failed: the attempt whose it is pays for it, if that is known.
    fn program(
        &mut self,
        line: &XidLine,
        told: &Told,
        hit: &[&DeviceFacts],
        culprit: Culprit,
        seen: &Seen<'_>,
        verdict: &mut Verdict,
    ) {
        let found = hit.iter().find_map(|d| Some((*d, blamed(&seen.own(&d.uuid), culprit)?)));
        if !self.first(line, found.map(|(_, (token, _))| token), seen.now_ms) {
            return;
        }
        let Some((device, program)) = found else {
            // Whose program it was nobody knows: it is worth knowing, and nobody pays.
            let noted = hit.iter().take(1).map(|d| Finding { cause: Cause::Noted, ..told.of(&d.uuid) });
            verdict.findings = noted.collect();
            return;
        };
        let reason = format!("{} ({})", told.text, device.uuid);
        let end = match told.cause {
            Cause::Program => AttemptEnd::ProgramFault { reason },
            _ => AttemptEnd::DeviceFault { reason },
        };
        verdict.ends = vec![(program.0, end)];
        verdict.findings = vec![Finding { program: Some(program), ..told.of(&device.uuid) }];
    }

    /// A card is not as it should be.
    fn card(&mut self, told: &Told, hit: Vec<&DeviceFacts>, seen: &Seen<'_>, verdict: &mut Verdict) {
        let meant = if told.cause == Cause::Fabric { joined(&hit, seen.facts) } else { hit };
        for device in &meant {
            self.cards.entry(device.uuid.clone()).or_default().note(told.cause, seen.now_ms);
            verdict.findings.push(told.of(&device.uuid));
            if matches!(told.cause, Cause::Fault | Cause::NodeFault) {
                let reason = format!("{} ({})", told.text, device.uuid);
                let end = |token| (token, AttemptEnd::DeviceFault { reason: reason.clone() });
                verdict.ends.extend(seen.own(&device.uuid).holders.into_iter().map(|(token, _)| end(token)));
            }
        }
    }

    /// Not acted upon lately.
    fn first(&mut self, line: &XidLine, token: Option<Token>, now_ms: u64) -> bool {
        let recent = |at_ms: &u64| now_ms.saturating_sub(*at_ms) < ONCE_MS;
        if self.acted.len() >= ACTED_MAX {
            self.acted.retain(|_, at_ms| recent(at_ms));
        }
        let key = (line.bus, line.xid, token);
        if self.acted.get(&key).is_some_and(recent) || self.acted.len() >= ACTED_MAX {
            return false;
        }
        self.acted.insert(key, now_ms);
        true
    }
}

/// The attempt whose program failed on a device: the one that the driver names, or the only one there.
fn blamed(own: &Own, culprit: Culprit) -> Option<(Token, JobId)> {
    match (culprit, &own.holders[..]) {
        (Culprit::Attempt(token), holders) => holders.iter().copied().find(|(holder, _)| *holder == token),
        (Culprit::Unknown, [only]) => Some(*only),
        (Culprit::Stranger | Culprit::Unknown, _) => None,
    }
}

/// The cards that are joined with these by fast links, themselves included.
fn joined<'a>(hit: &[&'a DeviceFacts], facts: &'a [DeviceFacts]) -> Vec<&'a DeviceFacts> {
    let same =
        |d: &&DeviceFacts| hit.iter().any(|h| h.uuid == d.uuid || h.island.is_some() && h.island == d.island);
    facts.iter().filter(same).collect()
}

#[cfg(test)]
mod slow_tests;
#[cfg(test)]
mod tests;
