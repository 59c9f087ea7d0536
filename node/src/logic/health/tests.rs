//! The decider under a virtual clock, against a state that is only a map of stages.

use super::*;
use crate::devices::signs::{DeviceSigns, Recovery, RowRemap, Throttle};
use proptest::prelude::*;
use rota_protocol::device::{DeviceHealth, DeviceKind};

/// One look before a full minute.
const T0: u64 = 1_790_000_040_000 - LOOK_MS;
pub(super) const LOOK_MS: u64 = 2_000;

/// A host's devices, what the state holds against them, and the decider.
pub(super) struct Lab {
    health: Health,
    pub(super) facts: Vec<DeviceFacts>,
    signs: Signs,
    pub(super) own: BTreeMap<DeviceUuid, Own>,
    pub(super) teams: Vec<Team>,
    now_ms: u64,
}

pub(super) fn uuid(name: &str) -> DeviceUuid {
    DeviceUuid(name.into())
}

fn card(name: &str, at: u32) -> DeviceFacts {
    DeviceFacts {
        uuid: uuid(name),
        kind: DeviceKind::Gpu,
        model: "H100".into(),
        vram_mib: Some(81_920),
        bus: Some(format!("00000000:{at:02X}:00.0")),
        index: Some(at),
        numa: None,
        compute_cap: None,
        island: Some(at / 2),
        detail: rota_protocol::device::DeviceDetail::default(),
        health: DeviceHealth::Healthy,
    }
}

impl Lab {
    pub(super) fn new() -> Self {
        let rules = Rules { table: XidTable::built_in(), trial_ms: TRIAL_MS };
        let facts: Vec<DeviceFacts> =
            ["A", "B", "C", "D"].into_iter().zip(0..).map(|(n, at)| card(n, at)).collect();
        let own = facts.iter().map(|d| (d.uuid.clone(), Own::default())).collect();
        Self { health: Health::new(rules), facts, signs: Signs::new(), own, teams: Vec::new(), now_ms: T0 }
    }

    fn seen<R>(&mut self, ask: impl FnOnce(&mut Health, &Seen<'_>) -> R) -> R {
        let (facts, signs, own, teams) = (&self.facts, &self.signs, &self.own, &self.teams);
        let seen = Seen { facts, signs, own, teams, now_ms: self.now_ms };
        ask(&mut self.health, &seen)
    }

    fn xid(&mut self, at: u32, xid: u32, culprit: Culprit) -> Verdict {
        let line = format!("NVRM: Xid (PCI:0000:{at:02x}:00): {xid}, pid=1, name=x");
        let line = kmsg::read(line.as_bytes()).xid.expect("an Xid");
        let verdict = self.seen(|health, seen| health.xid(&line, Source::Kmsg, culprit, seen));
        self.take(&verdict.findings);
        verdict
    }

    /// One look; the state takes what it is told.
    pub(super) fn look(&mut self) -> Vec<(String, Cause)> {
        self.now_ms += LOOK_MS;
        let looked = self.seen(|health, seen| health.look(seen));
        self.take(&looked.findings);
        looked.findings.into_iter().map(|f| (f.uuid.0, f.cause)).collect()
    }

    pub(super) fn looks(&mut self, count: u32) -> Vec<(String, Cause)> {
        (0..count).flat_map(|_| self.look()).collect()
    }

    fn take(&mut self, findings: &[Finding]) {
        for finding in findings {
            let own = self.own.entry(finding.uuid.clone()).or_default();
            let early = finding.cause == Cause::Served && own.until_ms.is_none_or(|at| self.now_ms < at);
            assert!(!early, "{finding:?} too early");
            if let Some(to) = own.stage.after(finding.cause) {
                own.stage = to;
                let trial = matches!(to, Stage::Trial | Stage::Probation);
                own.until_ms = trial.then_some(self.now_ms + finding.trial_ms);
                if !matches!(finding.cause, Cause::Clean | Cause::Repaired | Cause::Served) {
                    own.cause = Some((finding.cause, finding.source));
                }
            }
        }
    }

    pub(super) fn stage(&self, name: &str) -> Stage {
        self.own[&uuid(name)].stage
    }

    pub(super) fn hold(&mut self, name: &str, tokens: &[u64]) {
        let holders = tokens.iter().map(|n| (Token(*n), JobId(*n))).collect();
        self.own.get_mut(&uuid(name)).expect("known").holders = holders;
    }

    pub(super) fn sign(&mut self, name: &str, signs: DeviceSigns) {
        self.signs.insert(uuid(name), signs);
    }

    fn lose(&mut self, at: usize) {
        self.facts[at].health = DeviceHealth::Lost { reason: "the driver no longer shows it".into() };
    }
}

fn causes(verdict: &Verdict) -> Vec<(&str, Cause)> {
    verdict.findings.iter().map(|f| (f.uuid.0.as_str(), f.cause)).collect()
}

/// G1: the action of a class is taken once for a card, an Xid and a minute, however many lines say so.
#[test]
fn a_thousand_lines_are_one_fault() {
    let mut lab = Lab::new();
    let mut told = 0;
    for n in 0..1_000 {
        lab.now_ms = T0 + n;
        told += lab.xid(1, 95, Culprit::Unknown).findings.len();
    }
    assert_eq!((told, lab.stage("B")), (1, Stage::Quarantined));
    assert_eq!(lab.xid(2, 95, Culprit::Unknown).findings.len(), 1, "another card");
    assert_eq!(lab.xid(1, 48, Culprit::Unknown).findings.len(), 1, "another Xid");
    lab.now_ms += ONCE_MS;
    assert_eq!(lab.xid(1, 95, Culprit::Unknown).findings.len(), 1, "another minute");
}

/// Every class does what it is for, on the card that the line names and, for links, on those joined with it.
#[test]
fn classes_act_on_their_cards() {
    for (xid, expected) in [
        (13, vec![("B", Cause::Noted)]),
        (94, vec![("B", Cause::Noted)]),
        (63, vec![("B", Cause::Noted)]),
        (43, vec![]),
        (45, vec![]),
        (154, vec![]),
        (95, vec![("B", Cause::Fault)]),
        (119, vec![("B", Cause::Fault)]),
        (74, vec![("A", Cause::Fabric), ("B", Cause::Fabric)]),
        (79, vec![("B", Cause::NodeFault)]),
        (9_999, vec![("B", Cause::Fault)]),
    ] {
        let mut lab = Lab::new();
        let verdict = lab.xid(1, xid, Culprit::Unknown);
        assert_eq!(causes(&verdict), expected, "Xid {xid}");
        assert_eq!(verdict.alarm, xid == 9_999, "Xid {xid}");
        assert!(lab.xid(7, xid, Culprit::Unknown).findings.is_empty(), "no card of ours");
    }
}

/// G1: the attempt whose process is named pays; a stranger's process, another device's attempt and doubt cost nobody.
#[test]
fn only_the_attempt_at_fault_pays() {
    let named = Culprit::Attempt(Token(7));
    for (holders, culprit, paid) in [
        (&[7_u64][..], named, Some(7)),
        (&[7, 8], named, Some(7)),
        (&[8], named, None),
        (&[7, 8], Culprit::Unknown, None),
        (&[8], Culprit::Unknown, Some(8)),
        (&[8], Culprit::Stranger, None),
        (&[], Culprit::Unknown, None),
    ] {
        let mut lab = Lab::new();
        lab.hold("B", holders);
        let verdict = lab.xid(1, 31, culprit);
        let program = verdict.findings.iter().find_map(|f| f.program).map(|(token, _)| token.0);
        assert_eq!(program, paid, "{holders:?} {culprit:?}");
        let expected = if paid.is_some() { Cause::Program } else { Cause::Noted };
        assert_eq!(causes(&verdict), [("B", expected)], "{holders:?} {culprit:?}");
        let ended: Vec<u64> = verdict.ends.iter().map(|(token, _)| token.0).collect();
        assert_eq!(ended, paid.into_iter().collect::<Vec<_>>());
        assert_eq!(lab.stage("B"), Stage::Well);
    }
    // Two attempts share a card, and both fail within the minute.
    let mut lab = Lab::new();
    lab.hold("B", &[7, 8]);
    for (token, told) in [(7, 1), (8, 1), (7, 0)] {
        assert_eq!(lab.xid(1, 31, Culprit::Attempt(Token(token))).findings.len(), told, "{token}");
    }
}

/// What ran on a card that breaks is told as broken by it, also if its process is gone before the state hears of it.
#[test]
fn a_broken_card_takes_the_blame_of_all_on_it() {
    let mut lab = Lab::new();
    lab.hold("B", &[7, 8]);
    let ends = lab.xid(1, 48, Culprit::Unknown).ends;
    assert_eq!(ends.iter().map(|(token, _)| token.0).collect::<Vec<_>>(), [7, 8]);
    for (_, end) in ends {
        let AttemptEnd::DeviceFault { reason } = end else { panic!("{end:?}") };
        assert!(reason.contains("Xid 48") && reason.contains("(B)"), "{reason}");
    }
}

/// The driver's own advice comes before the table: in the line itself, or at the next look.
#[test]
fn the_drivers_advice_comes_first() {
    let line = "NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)";
    let mut lab = Lab::new();
    let line = kmsg::read(line.as_bytes()).xid.expect("an Xid");
    let verdict = lab.seen(|health, seen| health.xid(&line, Source::Kmsg, Culprit::Unknown, seen));
    assert_eq!(causes(&verdict), [("B", Cause::NodeFault)]);

    let advised = |recovery| DeviceSigns { recovery: Some(recovery), ..DeviceSigns::default() };
    for (recovery, cause) in [
        (Recovery::Reset, Cause::Fault),
        (Recovery::DrainAndReset, Cause::Fault),
        (Recovery::Reboot, Cause::NodeFault),
        (Recovery::DrainP2p, Cause::Fabric),
        (Recovery::Other(77), Cause::Fault),
    ] {
        let mut lab = Lab::new();
        lab.sign("C", advised(recovery));
        assert_eq!(lab.looks(20), [("C".into(), cause)], "once, though it goes on");
        lab.sign("C", advised(Recovery::None));
        let after = lab.looks(CLEAN_LOOKS);
        let expected = if cause == Cause::Fabric { vec![] } else { vec![("C".to_owned(), Cause::Repaired)] };
        assert_eq!(after, expected, "{recovery:?}: done, says the driver");
    }
    // A fault by the table that the driver does not share.
    let mut lab = Lab::new();
    lab.sign("B", advised(Recovery::None));
    lab.xid(1, 95, Culprit::Unknown);
    assert_eq!(lab.looks(CLEAN_LOOKS), [("B".into(), Cause::Repaired)]);
    // Without such advice nobody knows: it waits for a reset, a restart or an operator.
    lab.xid(0, 95, Culprit::Unknown);
    assert_eq!(lab.looks(50), []);
    assert_eq!(lab.stage("A"), Stage::Quarantined);
}

/// G3, R018: a card that is gone without any Xid is found, and is on probation when it is back, over a restart of the
/// agent too. Missing answers alone are neither good nor bad.
#[test]
fn a_card_that_comes_back_is_on_probation() {
    for restart in [false, true] {
        let mut lab = Lab::new();
        lab.looks(3);
        lab.lose(2);
        lab.hold("C", &[9]);
        let ends = lab.seen(|health, seen| health.look(seen)).ends;
        assert!(matches!(&ends[..], [(Token(9), AttemptEnd::DeviceFault { .. })]), "{ends:?}");
        lab.hold("C", &[]);
        lab.now_ms += ONCE_MS;
        assert_eq!(lab.looks(3), [("C".into(), Cause::NodeFault)]);
        if restart {
            lab.health = Health::new(lab.health.rules.clone());
        }
        lab.facts[2].health = DeviceHealth::Unknown { reason: "no answer".into() };
        assert_eq!(lab.looks(20), []);
        lab.facts[2].health = DeviceHealth::Healthy;
        assert_eq!(lab.looks(CLEAN_LOOKS), [("C".into(), Cause::Repaired)]);
        assert_eq!(lab.stage("C"), Stage::Probation);
        assert_eq!(lab.looks(u32::try_from(TRIAL_MS / LOOK_MS).expect("few") - 1), []);
        assert_eq!(lab.look(), [("C".into(), Cause::Served)]);
    }
    let mut lab = Lab::new();
    lab.facts[0].health = DeviceHealth::Unknown { reason: "a driver upgrade".into() };
    assert_eq!(lab.looks(100), [], "in doubt is not sick");
}

/// G10: a card that is cut has not fallen off the bus, and a slice that is gone was cut otherwise.
#[test]
fn a_card_that_is_cut_is_not_lost() {
    let mut lab = Lab::new();
    lab.lose(1);
    let slice = DeviceFacts { uuid: uuid("MIG-1"), kind: DeviceKind::Mig, ..card("B", 1) };
    lab.facts.push(slice);
    assert_eq!(lab.looks(5), []);
    lab.lose(4);
    lab.facts[1].health = DeviceHealth::Healthy;
    assert_eq!(lab.looks(5), []);
}

/// G7: a pending remap leaves the card usable and is shown; a failed one is the end of it; counts that go backwards are
/// no errors.
#[test]
fn remaps_and_counts() {
    let mut lab = Lab::new();
    let remap = |pending, failed| DeviceSigns {
        remap: RowRemap { pending: Some(pending), failed: Some(failed), ..RowRemap::default() },
        ..DeviceSigns::default()
    };
    lab.sign("A", remap(true, false));
    assert_eq!(lab.looks(50), [("A".into(), Cause::Noted)]);
    lab.sign("A", remap(true, true));
    assert_eq!(lab.look(), [("A".into(), Cause::Fatal)]);
    lab.sign("A", remap(false, false));
    assert_eq!(lab.looks(1_000), [], "no way back but an operator's");

    let ecc = |errors| {
        let mut signs = DeviceSigns::default();
        signs.ecc.volatile_uncorrected = Some(errors);
        signs
    };
    for (errors, noted) in [(5, false), (5, false), (0, false), (3, true)] {
        lab.sign("B", ecc(errors));
        assert_eq!(!lab.look().is_empty(), noted, "{errors}");
    }
    assert_eq!(lab.stage("B"), Stage::Well);
}

/// G8: slowed in six of ten minutes degrades, five do not; it is over when the ten minutes are.
#[test]
fn slowed_cards_are_degraded_by_the_rate() {
    for (minutes, degraded) in [(5, false), (6, true)] {
        let mut lab = Lab::new();
        let mut found = Vec::new();
        for minute in 0..10 {
            let bits = if minute < minutes { 0x8 } else { 0 };
            lab.sign("A", DeviceSigns { throttle: Some(Throttle(bits)), ..DeviceSigns::default() });
            found.extend(lab.looks(30));
        }
        let expected = if degraded { vec![("A".to_owned(), Cause::Throttled)] } else { vec![] };
        assert_eq!(found, expected, "{minutes} minutes");
        // Power caps and idling are no trouble.
        lab.sign("A", DeviceSigns { throttle: Some(Throttle(0x1 | 0x4)), ..DeviceSigns::default() });
        let after = lab.looks(30 * 30);
        let expected =
            if degraded { vec![("A".to_owned(), Cause::Clean), ("A".into(), Cause::Served)] } else { vec![] };
        assert_eq!(after, expected);
        assert_eq!(lab.stage("A"), Stage::Well);
    }
}

/// A card that only a reset mends is named for one when nothing holds it any more, and no other is.
#[test]
fn only_idle_broken_cards_are_to_be_reset() {
    let mut lab = Lab::new();
    lab.hold("B", &[7]);
    lab.xid(1, 95, Culprit::Unknown);
    lab.xid(2, 79, Culprit::Unknown);
    let to_reset = |lab: &mut Lab| lab.seen(|health, seen| health.look(seen)).to_reset;
    assert_eq!(to_reset(&mut lab), []);
    lab.hold("B", &[]);
    assert_eq!(to_reset(&mut lab), [uuid("B")]);
    let reset = lab.health.was_reset(&uuid("B"));
    lab.take(&[reset]);
    assert_eq!((lab.stage("B"), to_reset(&mut lab).len()), (Stage::Probation, 0));
}

#[derive(Debug, Clone)]
enum Happens {
    Xid(u32, u32, u8),
    Sign(u8, u8),
    Health(u8, u8),
    Looks(u32),
    Restart,
}

fn happens() -> impl Strategy<Value = Happens> {
    let xids = prop::sample::select(vec![13, 31, 43, 45, 48, 63, 74, 79, 94, 95, 119, 154, 9_999]);
    prop_oneof![
        (0..5_u32, xids, 0..3_u8).prop_map(|(at, xid, who)| Happens::Xid(at, xid, who)),
        (0..4_u8, any::<u8>()).prop_map(|(at, what)| Happens::Sign(at, what)),
        (0..4_u8, 0..4_u8).prop_map(|(at, what)| Happens::Health(at, what)),
        (1..400_u32).prop_map(Happens::Looks),
        Just(Happens::Restart),
    ]
}

proptest! {
    /// Whatever is seen: a program's failure never takes a card out, nobody comes back before its time (checked where
    /// the state takes it), what is out stays out, and once all is well every card that may comes back.
    #[test]
    fn whatever_is_seen_leads_along_the_table(story in prop::collection::vec(happens(), 1..40)) {
        let mut lab = Lab::new();
        lab.hold("A", &[1]);
        lab.hold("B", &[2, 3]);
        for one in story {
            let before: Vec<Stage> = lab.own.values().map(|own| own.stage).collect();
            match one {
                Happens::Xid(at, xid, who) => {
                    let culprit = [Culprit::Unknown, Culprit::Stranger, Culprit::Attempt(Token(2))][who as usize];
                    let verdict = lab.xid(at, xid, culprit);
                    if matches!(verdict.class, Class::Program | Class::Contained | Class::Note | Class::Ignore) {
                        let after: Vec<Stage> = lab.own.values().map(|own| own.stage).collect();
                        prop_assert_eq!(&before, &after);
                    }
                }
                Happens::Sign(at, what) => {
                    let recovery = [None, Some(0), Some(1), Some(2), Some(3), Some(9)][usize::from(what % 6)];
                    let signs = DeviceSigns {
                        recovery: recovery.map(Recovery::of),
                        throttle: (what & 64 > 0).then_some(Throttle(u64::from(what))),
                        remap: RowRemap { failed: Some(what == 255), pending: Some(what % 5 == 0), ..RowRemap::default() },
                        ..DeviceSigns::default()
                    };
                    let name = lab.facts[usize::from(at)].uuid.clone();
                    lab.signs.insert(name, signs);
                }
                Happens::Health(at, what) => {
                    let reason = "so it says".to_owned();
                    lab.facts[usize::from(at)].health = match what {
                        0 | 1 => DeviceHealth::Healthy,
                        2 => DeviceHealth::Unknown { reason },
                        _ => DeviceHealth::Lost { reason },
                    };
                }
                Happens::Looks(count) => drop(lab.looks(count)),
                Happens::Restart => lab.health = Health::new(lab.health.rules.clone()),
            }
            let after: Vec<Stage> = lab.own.values().map(|own| own.stage).collect();
            for (before, after) in before.iter().zip(&after) {
                prop_assert!(*before != Stage::Out || *after == Stage::Out);
            }
        }
        // All is well again, and the driver says so.
        for at in 0..4 {
            lab.facts[at].health = DeviceHealth::Healthy;
            let name = lab.facts[at].uuid.clone();
            let signs = DeviceSigns { recovery: Some(Recovery::None), ..DeviceSigns::default() };
            lab.signs.insert(name, signs);
        }
        lab.looks(1_200);
        for own in lab.own.values() {
            prop_assert!(matches!(own.stage, Stage::Well | Stage::Out), "{:?}", own);
        }
    }
}
