//! The rows of the fault catalogue that bound how fast the agent sees trouble, with what was measured.

use crate::driver::{Driver, cards, gpus, marks, until};
use fake_nvml::script::{Card, Script, code};
use rota_chaos::report::row;
use rota_node::devices::inventory::PROBATION_LOOKS;
use rota_node::devices::probe::{PROBE_DEADLINE, STUCK_MAX};
use rota_protocol::device::DeviceHealth;
use std::fs;
use std::time::{Duration, Instant};

/// How often the agent looks.
const LOOK_EVERY: Duration = Duration::from_millis(2_000);
const EIGHT: [&str; 8] = ["A", "B", "C", "D", "E", "F", "G", "H"];

fn eight_but(index: usize, card: Card) -> Vec<Card> {
    let mut all = cards(&EIGHT);
    all[index] = card;
    all
}

/// G2: a call that never returns closes its card within 2,500 ms, and no other for longer than one look.
#[tokio::test]
async fn g2_a_hung_call_costs_one_card_and_two_and_a_half_seconds() {
    let driver = Driver::with(cards(&EIGHT));
    let mut inventory = driver.inventory_within(PROBE_DEADLINE);
    until(&mut inventory, "A B C D E F G H").await;
    driver.shows(eight_but(3, Card::new("D").hanging("memory")));
    let began = Instant::now();
    let facts = inventory.refresh().await;
    let took = began.elapsed();
    assert!(marks(&facts).starts_with("A B C D?"), "{}", marks(&facts));
    assert_eq!(facts.devices.len(), 9, "devices of other sources are there");
    println!("{}", row("G2", "closed within 2500 ms", format!("{} ms", took.as_millis())));
    assert!(took <= Duration::from_millis(2_500), "{took:?}");
    let began = Instant::now();
    assert_eq!(marks(&inventory.refresh().await), "A B C D? E F G H", "the others are asked without it");
    assert!(began.elapsed() < PROBE_DEADLINE, "what hung is not asked again at once");
    assert!(inventory.stuck() <= STUCK_MAX);
    assert_eq!(inventory.readings().await.len(), 8, "seven cards and the simulated one");
    // It hangs again and again, and costs its own card alone: it is asked last.
    for _ in 0..4 {
        tokio::time::sleep(LOOK_EVERY).await;
        assert_eq!(marks(&inventory.refresh().await), "A B C D? E F G H");
        assert!(inventory.stuck() <= STUCK_MAX);
    }
    driver.shows(cards(&EIGHT));
    let fixed = Instant::now();
    while marks(&inventory.refresh().await) != "A B C D E F G H" {
        assert!(fixed.elapsed() < Duration::from_secs(20), "{:?}", inventory.notes());
        tokio::time::sleep(LOOK_EVERY).await;
    }
    println!("{}", row("G2", "back by itself", format!("{} ms after the fix", fixed.elapsed().as_millis())));
}

/// G3: one of eight lost, seven shown, none shown, all back: names stay, and who returns is on probation first.
#[tokio::test]
async fn g3_cards_come_and_go_by_name() {
    let driver = Driver::with(cards(&EIGHT));
    let mut inventory = driver.inventory();
    assert_eq!(marks(&inventory.refresh().await), "A B C D E F G H");
    driver.shows(eight_but(0, Card::new("A").failing("*", code::GPU_IS_LOST)));
    assert_eq!(marks(&inventory.refresh().await), "A- B C D E F G H");
    driver.shows(cards(&EIGHT[1..]));
    assert_eq!(marks(&inventory.refresh().await), "A- B C D E F G H", "seven shown");
    driver.shows(Vec::new());
    assert_eq!(marks(&inventory.refresh().await), "A- B- C- D- E- F- G- H-", "none shown");
    driver.shows(cards(&EIGHT));
    for look in 1..PROBATION_LOOKS {
        assert_eq!(marks(&inventory.refresh().await), "A? B? C? D? E? F? G? H?", "look {look}");
    }
    assert_eq!(marks(&inventory.refresh().await), "A B C D E F G H");
    let measured = format!("{PROBATION_LOOKS} good looks until granted again");
    println!("{}", row("G3", "a returning card is not healthy at once", measured));
}

/// G4: renumbered at run time, and between two lives of the agent.
#[tokio::test]
async fn g4_marks_follow_names_through_every_order() {
    let sick = || Card::new("B").failing("memory", code::RESET_REQUIRED);
    let boot_1 = vec![Card::new("A"), sick(), Card::new("C"), Card::new("D")];
    let driver = Driver::with(boot_1.clone());
    let mut inventory = driver.inventory();
    let mut orders = 0;
    for swap in [(0, 1), (1, 3), (0, 2), (2, 3), (0, 3)] {
        let mut order = boot_1.clone();
        order.swap(swap.0, swap.1);
        driver.shows(order);
        assert_eq!(marks(&inventory.refresh().await), "A B- C D", "at run time, {swap:?}");
        assert_eq!(marks(&driver.inventory().refresh().await), "A B- C D", "after a restart, {swap:?}");
        orders += 2;
    }
    println!("{}", row("G4", "marks follow UUIDs", format!("{orders} of {orders} orders")));
}

fn two() -> Script {
    Script::of(cards(&["A", "B"]))
}

/// G5: whatever an upgrade does to the driver under the agent, cards are closed, nothing else is, and they are back
/// within 10,000 ms of the fix without a restart of the agent.
#[tokio::test]
async fn g5_a_driver_upgraded_under_the_agent_comes_back_by_itself() {
    type Harm = fn(&Driver);
    let harms: [(&str, Harm); 6] = [
        ("version mismatch", |d| d.says(&two().failing_to_start(code::LIB_RM_VERSION_MISMATCH))),
        ("every call says mismatch", |d| {
            let failing = |card: Card| card.failing("*", code::LIB_RM_VERSION_MISMATCH);
            d.shows(cards(&["A", "B"]).into_iter().map(failing).collect());
        }),
        ("module not loaded", |d| d.says(&two().failing_to_start(code::DRIVER_NOT_LOADED))),
        ("library gone", |d| d.stage.uninstall().expect("removable")),
        ("half a library", |d| d.stage.replace(b"\x7fELF and no more").expect("writable")),
        ("functions missing", |d| {
            d.stage.lacks(&["nvmlInit_v2", "nvmlDeviceGetCount_v2"]).expect("exported")
        }),
    ];
    let mut slowest = Duration::ZERO;
    for (name, harm) in harms {
        let driver = Driver::with(cards(&["A", "B"]));
        let mut inventory = driver.inventory_within(PROBE_DEADLINE);
        until(&mut inventory, "A B").await;
        harm(&driver);
        // The library that is loaded works on until it is started anew.
        let noticed = Instant::now();
        while marks(&inventory.refresh().await) != "A? B?" {
            assert!(noticed.elapsed() < Duration::from_secs(20), "{name}: {:?}", inventory.notes());
            tokio::time::sleep(LOOK_EVERY / 4).await;
        }
        let facts = inventory.refresh().await;
        assert!(facts.cpus_milli > 0 && facts.devices.len() == 3, "{name}: all else is offered");
        driver.stage.lacks(&[]).expect("the whole library is back");
        driver.shows(cards(&["A", "B"]));
        let fixed = Instant::now();
        loop {
            // The fix comes just after a look.
            tokio::time::sleep(LOOK_EVERY).await;
            if marks(&inventory.refresh().await) == "A B" {
                break;
            }
            assert!(fixed.elapsed() < Duration::from_secs(10), "{name}: {:?}", inventory.notes());
        }
        slowest = slowest.max(fixed.elapsed());
    }
    println!("{}", row("G5", "back within 10000 ms of the fix", format!("{} ms", slowest.as_millis())));
}

/// R020: the reason names both versions and the cure.
#[tokio::test]
async fn a_mismatch_names_both_versions_and_the_cure() {
    let driver = Driver::with(cards(&["A"]));
    let mut inventory = driver.inventory();
    assert_eq!(marks(&inventory.refresh().await), "A");
    // As distributions install it: a link to a file that ends in the version.
    let library = driver.library();
    let versioned = library.with_file_name("libnvidia-ml.so.590.10.01");
    fs::rename(&library, &versioned).expect("movable");
    std::os::unix::fs::symlink(&versioned, &library).expect("linkable");
    let version = driver.dir.path().join("proc/driver/nvidia/version");
    fs::create_dir_all(version.parent().expect("it has one")).expect("creatable");
    fs::write(version, "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Mon\n").expect("writable");
    driver.says(&Script::of(cards(&["A"])).failing_to_start(code::LIB_RM_VERSION_MISMATCH));
    until(&mut inventory, "A?").await;
    let facts = inventory.refresh().await;
    let reason = gpus(&facts)[0].health.reason().unwrap_or_default().to_owned();
    for part in ["580.95.05", "590.10.01", "reboot"] {
        assert!(reason.contains(part), "{part}: {reason}");
    }
    let mut fresh = driver.inventory();
    let told = fresh.refresh().await.notes.warnings;
    assert!(
        told.iter().any(|warning| warning.contains("590.10.01")),
        "a fresh agent says it as well: {told:?}"
    );
}

/// R016: what is told of a dead card does not change from look to look, so that nobody hears of it again and again; and
/// its neighbours keep their places and links.
#[tokio::test]
async fn one_dead_card_is_told_once_and_spoils_no_neighbour() {
    let joined = |name: &str| Card { nvlink: Some(0), ..Card::new(name) };
    let driver = Driver::with(["A", "B", "C", "D"].map(joined).to_vec());
    let mut inventory = driver.inventory();
    let before = inventory.refresh().await;
    assert!(gpus(&before).iter().all(|card| card.island == Some(0)));
    for dead in [
        joined("B").failing("*", code::GPU_IS_LOST),
        joined("B").failing("handle", code::GPU_IS_LOST),
        joined("B").failing("p2p", code::UNKNOWN).failing("memory", code::GPU_IS_LOST),
    ] {
        driver.shows(vec![joined("A"), dead, joined("C"), joined("D")]);
        let first = inventory.refresh().await;
        assert_eq!(marks(&first), "A B- C D");
        let healthy = |d: &&rota_protocol::device::DeviceFacts| d.health == DeviceHealth::Healthy;
        assert!(gpus(&first).iter().filter(healthy).all(|card| card.island == Some(0)));
        for _ in 0..5 {
            assert_eq!(inventory.refresh().await, first, "the same each time");
        }
    }
}
