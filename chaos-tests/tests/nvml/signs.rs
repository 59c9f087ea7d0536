//! What cards say of their own wellbeing (faults G7, G8), as it reaches the agent.

use crate::driver::{Driver, marks};
use fake_nvml::script::{Card, Ecc, Links, List, Process, Ramp, Remap, code, throttle};
use rota_chaos::report::row;
use rota_node::devices::Inventory;
use rota_node::devices::signs::{CardProcess, DeviceSigns, LinkSigns, Recovery};
use rota_protocol::ids::DeviceUuid;
use std::time::Duration;

async fn signs(inventory: &mut Inventory, card: &str) -> DeviceSigns {
    inventory.refresh().await;
    inventory.signs().get(&DeviceUuid(card.into())).cloned().expect("each card tells")
}

#[tokio::test]
async fn a_healthy_card_says_that_all_is_well() {
    let driver = Driver::with(vec![Card::new("A")]);
    let told = signs(&mut driver.inventory(), "A").await;
    assert_eq!(told.ecc.volatile_uncorrected, Some(0));
    assert_eq!((told.remap.pending, told.remap.failed), (Some(false), Some(false)));
    assert!(told.throttle.is_some_and(|bits| !bits.is_trouble()));
    assert_eq!((told.clock_mhz, told.recovery), (Some((1_980, 1_980)), Some(Recovery::None)));
    assert_eq!((told.processes, told.xids), (Some(vec![]), vec![]));
    assert!(!told.lost && !told.reset_required);
}

#[tokio::test]
async fn each_sign_of_trouble_arrives() {
    let mut card = Card::new("A");
    card.ecc = Some(Ecc { volatile_corrected: 7, aggregate_uncorrected: u64::MAX, ..Ecc::default() });
    card.remap = Some(Remap { corrected: 1, uncorrected: 2, pending: true, failed: true });
    card.throttle = Some(throttle::HW_SLOWDOWN | throttle::HW_THERMAL | throttle::POWER_BRAKE);
    card.clock = Some((210, 1_980));
    card.recovery = Some(4);
    card.links = Some(Links { count: 18, up: 17, errors: 3 });
    card.processes = vec![
        Process { pid: 12, bytes: Some(3 << 30), list: List::Compute },
        Process { pid: 11, bytes: None, list: List::Graphics },
    ];
    let driver = Driver::with(vec![card]);
    let told = signs(&mut driver.inventory(), "A").await;
    assert_eq!(told.ecc.volatile_corrected, Some(7));
    assert_eq!(
        (told.remap.uncorrected, told.remap.pending, told.remap.failed),
        (Some(2), Some(true), Some(true))
    );
    // Two kinds of errors on each link that is up.
    assert_eq!(told.links, LinkSigns { up: Some(17), errors: Some(17 * 2 * 3) });
    assert_eq!(told.busy_permille, Some(70));
    let bits = told.throttle.expect("told");
    assert!(bits.hw_slowdown() && bits.thermal() && bits.power_brake());
    assert_eq!((told.clock_mhz, told.recovery), (Some((210, 1_980)), Some(Recovery::DrainAndReset)));
    let processes =
        vec![CardProcess { pid: 11, vram_mib: None }, CardProcess { pid: 12, vram_mib: Some(3 << 10) }];
    assert_eq!(told.processes, Some(processes));
}

#[tokio::test]
async fn what_a_card_does_not_tell_is_absent() {
    let mut card = Card::new("A");
    (card.ecc, card.remap, card.throttle, card.clock, card.recovery) = (None, None, None, None, None);
    (card.processes_said, card.busy) = (Some(u32::MAX), u32::MAX);
    let driver = Driver::with(vec![card, Card::new("B").failing("field", code::UNKNOWN)]);
    let mut inventory = driver.inventory();
    assert_eq!(marks(&inventory.refresh().await), "A B");
    assert_eq!(signs(&mut inventory, "A").await, DeviceSigns::default());
    let told = signs(&mut inventory, "B").await;
    assert_eq!((told.remap.failed, told.recovery, told.ecc.volatile_corrected), (None, None, Some(0)));
}

#[tokio::test]
async fn xids_are_heard_once_also_beside_a_card_that_is_ill() {
    let ill = || Card::new("B").failing("memory", code::RESET_REQUIRED);
    let driver = Driver::with(vec![Card::new("A").xid(1, 13), ill()]);
    let mut inventory = driver.inventory();
    assert_eq!(signs(&mut inventory, "A").await.xids, [0; 0], "what was before is history");
    driver.shows(vec![Card::new("A").xid(1, 13).xid(2, 48).xid(3, 48), ill().xid(1, 79)]);
    inventory.refresh().await;
    let heard = |card: &str| inventory.signs().get(&DeviceUuid(card.into())).map(|s| s.xids.clone());
    assert_eq!((heard("A"), heard("B")), (Some(vec![48, 48]), Some(vec![79])));
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(signs(&mut inventory, "A").await.xids, [0; 0]);
}

/// G7, the reading side: what a pending and a failed row, and counters that go backwards, look like to the agent. The card
/// itself stays as it is; what follows is decided elsewhere.
#[tokio::test]
async fn g7_rows_and_counters_are_told_within_one_look() {
    let counted = |volatile_uncorrected, pending, failed| Card {
        ecc: Some(Ecc { volatile_uncorrected, aggregate_uncorrected: 40, ..Ecc::default() }),
        remap: Some(Remap { uncorrected: 1, pending, failed, ..Remap::default() }),
        ..Card::new("A")
    };
    let driver = Driver::with(vec![counted(9, false, false)]);
    let mut inventory = driver.inventory();
    let before = signs(&mut inventory, "A").await;
    driver.shows(vec![counted(2, true, false)]);
    let pending = signs(&mut inventory, "A").await;
    assert_eq!((pending.remap.pending, pending.remap.failed), (Some(true), Some(false)));
    let grown = pending.ecc.since(&before.ecc);
    assert_eq!(
        (grown.volatile_uncorrected, grown.aggregate_uncorrected),
        (Some(0), Some(0)),
        "reset, no error"
    );
    driver.shows(vec![counted(5, false, true)]);
    let failed = signs(&mut inventory, "A").await;
    assert_eq!(failed.remap.failed, Some(true));
    assert_eq!(failed.ecc.since(&pending.ecc).volatile_uncorrected, Some(3));
    assert_eq!(marks(&inventory.refresh().await), "A");
    println!(
        "{}",
        row("G7", "a negative delta is a reset", "grown by 0 after 9 became 2; told within 1 look")
    );
}

/// Counts that grow by themselves grow from look to look.
#[tokio::test]
async fn a_ramp_of_errors_is_seen_as_it_grows() {
    let mut ramp = Card::new("A").ramping(1_000, 5);
    ramp.ecc_ramp = ramp.ecc_ramp.map(|ramp| Ramp { since_ms: ramp.since_ms - 60_000, ..ramp });
    let driver = Driver::with(vec![ramp]);
    let told = signs(&mut driver.inventory(), "A").await.ecc;
    assert!(told.volatile_corrected >= Some(60_000) && told.volatile_uncorrected >= Some(300), "{told:?}");
}

/// G8, the reading side: each reason to slow down, and a clock that is stuck low.
#[tokio::test]
async fn g8_each_reason_to_be_slow_is_told_within_one_look() {
    let driver = Driver::with(vec![Card::new("A")]);
    let mut inventory = driver.inventory();
    assert!(!signs(&mut inventory, "A").await.throttle.expect("told").is_trouble());
    let reasons = [throttle::HW_SLOWDOWN, throttle::SW_THERMAL, throttle::HW_THERMAL, throttle::POWER_BRAKE];
    for bits in reasons {
        driver.shows(vec![Card { throttle: Some(bits), clock: Some((210, 1_980)), ..Card::new("A") }]);
        let told = signs(&mut inventory, "A").await;
        assert!(told.throttle.expect("told").is_trouble(), "{bits:#x}");
        assert_eq!(told.clock_mhz, Some((210, 1_980)));
    }
    println!(
        "{}",
        row(
            "G8",
            "slowdowns are told",
            format!("{} of {} reasons within 1 look", reasons.len(), reasons.len())
        )
    );
}
