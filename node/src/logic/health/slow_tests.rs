//! Slow cards and bad links under a virtual clock (faults G8, G9).

use super::tests::{LOOK_MS, Lab, uuid};
use super::*;
use crate::devices::signs::{DeviceSigns, LinkSigns, Throttle};
use rota_protocol::device::DeviceReading;

/// Looks in a minute.
const MINUTE: u32 = 30;
/// G9's bound.
const FLAGGED_MS_MAX: u64 = 300_000;

fn busy(clock: (u32, u32), throttle: Option<u64>) -> DeviceSigns {
    DeviceSigns {
        clock_mhz: Some(clock),
        throttle: throttle.map(Throttle),
        busy_permille: Some(980),
        ..DeviceSigns::default()
    }
}

fn slow(name: &str) -> (String, Cause) {
    (name.to_owned(), Cause::Slow)
}

/// A card with its clock in permille and its power in W.
type Worker<'a> = (&'a str, u16, u32);

/// Cards of one job.
fn team(cards: &[Worker<'_>]) -> Team {
    let mate = |(name, permille, watts): &Worker<'_>| Mate {
        uuid: uuid(name),
        model: "H100".into(),
        reading: DeviceReading {
            uuid: uuid(name),
            busy_permille: Some(990),
            vram_used_mib: None,
            temperature_c: None,
            power_mw: Some(watts * 1_000),
            clock_permille: Some(*permille),
        },
    };
    Team { job: JobId(7), cards: cards.iter().map(mate).collect() }
}

/// All cards of the host under load at full speed.
fn under_load(lab: &mut Lab) {
    for name in ["A", "B", "C", "D"] {
        lab.sign(name, busy((1_980, 1_980), Some(0)));
    }
}

fn until_told(lab: &mut Lab, looks_max: u32) -> Option<u64> {
    (1..=looks_max).find(|_| !lab.look().is_empty()).map(|looks| u64::from(looks) * LOOK_MS)
}

/// G8: a clock that is stuck low under load, with no reason told, degrades its card by the same rate as heat does.
#[test]
fn a_stuck_clock_is_found_by_its_rate() {
    let mut lab = Lab::new();
    under_load(&mut lab);
    lab.sign("B", busy((210, 1_980), Some(0)));
    let told_ms = until_told(&mut lab, 20 * MINUTE).expect("found");
    assert!((6 * 60_000..=600_000).contains(&told_ms), "{told_ms}");
    assert_eq!(lab.stage("B"), Stage::Degraded);
    for name in ["A", "C", "D"] {
        assert_eq!(lab.stage(name), Stage::Well);
    }
    // While it idles nobody knows; at speed under load it comes back by a time of trial.
    lab.sign("B", DeviceSigns { busy_permille: Some(0), ..busy((210, 1_980), Some(1)) });
    assert_eq!(lab.looks(60 * MINUTE), []);
    lab.sign("B", busy((1_980, 1_980), Some(0)));
    let back = lab.looks(20 * MINUTE);
    assert_eq!(back, [("B".to_owned(), Cause::Clean), ("B".into(), Cause::Served)]);
}

/// What has a reason, what is not busy, what does not tell, what somebody set for all, and what is slow now and then:
/// none of it is a stuck clock.
#[test]
fn a_low_clock_with_a_reason_is_no_fault() {
    let full = (1_980, 1_980);
    for (bits, word) in
        [(0x1, "idle"), (0x2, "set by an operator"), (0x4, "power cap"), (0x10, "kept in step")]
    {
        let mut lab = Lab::new();
        under_load(&mut lab);
        lab.sign("B", busy((210, 1_980), Some(bits)));
        assert_eq!(lab.looks(30 * MINUTE), [], "{word}");
    }
    let idle = DeviceSigns { busy_permille: Some(100), ..busy((210, 1_980), Some(0)) };
    let silent = DeviceSigns { busy_permille: None, ..busy((210, 1_980), Some(0)) };
    for signs in [idle, silent, busy((210, 1_980), None), busy((1_100, 1_980), Some(0))] {
        let mut lab = Lab::new();
        under_load(&mut lab);
        lab.sign("B", signs.clone());
        assert_eq!(lab.looks(30 * MINUTE), [], "{signs:?}");
    }
    let mut lab = Lab::new();
    for name in ["A", "B", "C", "D"] {
        lab.sign(name, busy((900, 1_980), Some(0)));
    }
    assert_eq!(lab.looks(30 * MINUTE), [], "all are as slow: somebody set them so");
    let mut lab = Lab::new();
    for _ in 0..30 {
        under_load(&mut lab);
        lab.sign("B", busy((210, 1_980), Some(0)));
        let mut told = lab.looks(MINUTE - 1);
        lab.sign("B", busy(full, Some(0)));
        told.extend(lab.look());
        assert_eq!(told, [], "at speed once in each minute");
    }
}

/// G9: a card behind its equals in the same work is told within five minutes, wherever the equals are.
#[test]
fn a_straggler_is_told_within_five_minutes() {
    let cases: [(&str, &[Worker<'_>], bool); 8] = [
        ("slower than three", &[("A", 990, 600), ("B", 700, 600), ("X", 980, 610), ("Y", 1_000, 590)], true),
        ("a little slower", &[("A", 990, 600), ("B", 900, 600), ("X", 980, 610), ("Y", 1_000, 590)], false),
        ("slower than one", &[("B", 600, 600), ("X", 990, 600)], true),
        ("a little slower than one", &[("B", 800, 600), ("X", 990, 600)], false),
        ("half are slow", &[("A", 600, 600), ("B", 600, 600), ("X", 990, 600), ("Y", 990, 600)], false),
        ("draws little", &[("A", 990, 600), ("B", 990, 200), ("X", 990, 610), ("Y", 990, 590)], true),
        ("draws less", &[("A", 990, 600), ("B", 990, 400), ("X", 990, 610), ("Y", 990, 590)], false),
        ("draws less than two", &[("A", 990, 600), ("B", 990, 200), ("X", 990, 610)], false),
    ];
    for (what, cards, found) in cases {
        let mut lab = Lab::new();
        under_load(&mut lab);
        lab.teams = vec![team(cards)];
        let told = lab.looks(30 * MINUTE);
        assert_eq!(told, if found { vec![slow("B")] } else { vec![] }, "{what}");
        if found {
            let mut lab = Lab::new();
            under_load(&mut lab);
            lab.teams = vec![team(cards)];
            let told_ms = until_told(&mut lab, 30 * MINUTE).expect("found");
            assert!(told_ms <= FLAGGED_MS_MAX, "{what}: after {told_ms} ms");
        }
    }
}

/// Other models, idle equals, reasons, and work that ends before it is known say nothing.
#[test]
fn only_equals_at_the_same_work_are_compared() {
    let cards = [("A", 990, 600), ("B", 600, 600), ("X", 980, 610), ("Y", 1_000, 590)];
    let none = |lab: &mut Lab, what: &str| assert_eq!(lab.looks(30 * MINUTE), [], "{what}");
    let mut lab = Lab::new();
    under_load(&mut lab);
    let mut other = team(&cards);
    other.cards[1].model = "A100".into();
    lab.teams = vec![other];
    none(&mut lab, "another model");
    let mut idle = team(&cards);
    idle.cards[1].reading.busy_permille = Some(100);
    lab.teams = vec![idle];
    none(&mut lab, "it waits");
    let mut waiting = team(&cards);
    for at in [0, 2, 3] {
        waiting.cards[at].reading.busy_permille = Some(100);
    }
    lab.teams = vec![waiting];
    none(&mut lab, "the others wait");
    lab.teams = vec![team(&cards)];
    lab.sign("B", busy((1_200, 1_980), Some(0x4)));
    none(&mut lab, "its power cap holds it back");
    let mut lab = Lab::new();
    under_load(&mut lab);
    for job in 0..20 {
        lab.teams = vec![Team { job: JobId(job), ..team(&cards) }];
        assert_eq!(lab.looks(2 * MINUTE), [], "job {job} was over before it was known");
    }
    // Behind half of the time: the work is uneven.
    let even = [("A", 990, 600), ("B", 990, 600), ("X", 980, 610), ("Y", 1_000, 590)];
    for _ in 0..100 {
        lab.teams = vec![team(&cards)];
        let mut told = lab.looks(5);
        lab.teams = vec![team(&even)];
        told.extend(lab.looks(5));
        assert_eq!(told, []);
    }
}

fn linked(up: u32, errors: u64) -> DeviceSigns {
    DeviceSigns { links: LinkSigns { up: Some(up), errors: Some(errors) }, ..DeviceSigns::default() }
}

fn fabric(name: &str) -> (String, Cause) {
    (name.to_owned(), Cause::Fabric)
}

/// G9: a link that is down for some looks, also since before the agent, one that flaps, and one that errs all the time.
#[test]
fn links_that_are_down_flap_or_err_are_told() {
    let mut lab = Lab::new();
    lab.sign("A", linked(18, 0));
    assert_eq!(lab.looks(MINUTE), []);
    lab.sign("A", linked(17, 0));
    assert_eq!(lab.looks(2), [], "a card that is just being reset");
    assert_eq!(lab.look(), [fabric("A")]);
    assert_eq!(lab.looks(30 * MINUTE), [], "it stays down, and stays degraded");
    lab.sign("A", linked(18, 0));
    let back = lab.looks(30 * MINUTE);
    assert_eq!(back, [("A".to_owned(), Cause::Clean), ("A".into(), Cause::Served)]);

    // C and D are one island.
    let mut lab = Lab::new();
    lab.sign("C", linked(18, 0));
    lab.sign("D", linked(12, 0));
    assert_eq!(lab.looks(MINUTE), [fabric("D")], "down when the agent started");

    let mut lab = Lab::new();
    let mut told = Vec::new();
    for _ in 0..3 {
        lab.sign("A", linked(18, 0));
        told.extend(lab.looks(10));
        lab.sign("A", linked(17, 0));
        told.extend(lab.looks(1));
    }
    assert_eq!(told, [fabric("A")], "three times within ten minutes");
    let mut lab = Lab::new();
    let mut told = Vec::new();
    for minute in 0..10_u64 {
        lab.sign("A", linked(18, 5 + minute.min(5)));
        told.extend(lab.looks(MINUTE));
    }
    assert_eq!(told, [], "errors in five minutes of ten");
    let mut lab = Lab::new();
    let mut told = Vec::new();
    for minute in 0..10_u64 {
        lab.sign("A", linked(18, 5 + minute));
        told.extend(lab.looks(MINUTE));
    }
    assert_eq!(told, [fabric("A")]);
    // Counts that begin anew are none.
    let mut lab = Lab::new();
    for minute in 0..20_u64 {
        lab.sign("A", linked(18, 1_000 - minute));
        assert_eq!(lab.looks(MINUTE), []);
    }
}
