//! The device inventory over the real NVML wrapper and a scripted library (R016, R022, R024, R030, R098; what is told
//! of faults G2, G7, G8). The rows of the fault catalogue are in `real::cards`, and `hands.rs` runs them. Each test loads its own copy of the library, so that each has its own cards.

mod driver;
mod errors;
mod faults;
mod hangs;
mod links;
mod managed;
mod memory;
mod mig;
mod signs;

use driver::{Driver, cards, gpus, marks};
use fake_nvml::script::{Card, Script, code};
use rota_node::devices::DeviceProvider;
use rota_node::devices::inventory::PROBATION_LOOKS;
use rota_node::devices::nvml::{self, NvmlProvider};
use rota_protocol::device::DeviceKind;

#[tokio::test]
async fn cards_are_found_with_what_the_driver_tells() {
    let driver = Driver::with(cards(&["GPU-b", "GPU-a"]));
    let mut inventory = driver.inventory();
    let facts = inventory.refresh().await;
    assert_eq!(marks(&facts), "GPU-a GPU-b", "in the order of their uuids");
    let card = &gpus(&facts)[0];
    assert_eq!(card.kind, DeviceKind::Gpu);
    assert_eq!(card.model, "NVIDIA H100 80GB HBM3");
    assert_eq!(card.vram_mib, Some(80 << 10));
    assert_eq!(card.bus.as_deref(), Some("00000000:3B:00.0"));
    assert_eq!(card.index, Some(1), "where the driver lists it, for people");
    assert_eq!(card.compute_cap, Some(90));
    let readings = inventory.readings().await;
    let reading = readings.iter().find(|r| r.uuid == card.uuid).expect("a reading of each card");
    assert_eq!(reading.busy_permille, Some(70));
    assert_eq!(reading.vram_used_mib, Some(4));
    assert_eq!(reading.temperature_c, Some(33));
    assert_eq!(reading.power_mw, Some(71_000));
    let library = nvml::inspect(driver.library().as_os_str(), driver.dir.path()).expect("it works");
    let library = library.expect("it is there");
    assert_eq!((library.driver.as_deref(), library.cards), (Some("580.95.05"), 2));
}

#[tokio::test]
async fn one_card_of_eight_falls_off_the_bus_and_the_others_stay() {
    let names = ["A", "B", "C", "D", "E", "F", "G", "H"];
    for call in ["handle", "uuid", "memory", "temperature", "*"] {
        let driver = Driver::with(cards(&names));
        let mut inventory = driver.inventory();
        assert_eq!(marks(&inventory.refresh().await), "A B C D E F G H");
        let mut broken = cards(&names);
        broken[2] = Card::new("C").failing(call, code::GPU_IS_LOST);
        driver.shows(broken);
        assert_eq!(marks(&inventory.refresh().await), "A B C- D E F G H", "{call} says lost");
        driver.shows(cards(&names));
        for good in 1..PROBATION_LOOKS {
            assert_eq!(marks(&inventory.refresh().await), "A B C? D E F G H", "look {good}, {call}");
        }
        assert_eq!(marks(&inventory.refresh().await), "A B C D E F G H", "after {call}");
    }
}

#[tokio::test]
async fn a_card_that_needs_a_reset_is_not_offered_and_one_that_does_not_tell_is() {
    let driver = Driver::with(vec![
        Card::new("A").failing("memory", code::RESET_REQUIRED),
        Card::new("B").failing("memory", code::UNKNOWN),
        Card::new("C").failing("memory", code::NOT_SUPPORTED),
    ]);
    let facts = driver.inventory().refresh().await;
    assert_eq!(marks(&facts), "A- B C");
    assert_eq!((gpus(&facts)[1].vram_mib, gpus(&facts)[2].vram_mib), (None, None), "not told is not zero");
    let reason = gpus(&facts)[0].health.reason().map(str::to_owned);
    assert!(reason.is_some_and(|r| r.contains("memory")), "the reason names the call");
}

#[tokio::test]
async fn renumbered_cards_keep_their_marks_by_uuid() {
    let mut with_bad = cards(&["A", "C", "D"]);
    with_bad.insert(1, Card::new("B").failing("memory", code::GPU_IS_LOST));
    let driver = Driver::with(with_bad.clone());
    let mut inventory = driver.inventory();
    assert_eq!(marks(&inventory.refresh().await), "A B- C D");
    with_bad.reverse();
    driver.shows(with_bad);
    let facts = inventory.refresh().await;
    assert_eq!(marks(&facts), "A B- C D");
    let places: Vec<_> = gpus(&facts).iter().map(|d| d.index).collect();
    assert_eq!(places, [Some(3), Some(2), Some(1), Some(0)]);
}

#[tokio::test]
async fn a_card_that_comes_late_is_offered_without_a_restart() {
    let driver = Driver::with(Vec::new());
    let mut inventory = driver.inventory();
    assert_eq!(marks(&inventory.refresh().await), "");
    assert_eq!(inventory.readings().await.len(), 1, "the simulated one; and reading keeps no old list alive");
    driver.shows(cards(&["A"]));
    assert_eq!(marks(&inventory.refresh().await), "A", "an empty host looks anew each time");
    driver.shows(cards(&["A", "B"]));
    let mut looks = 0;
    while marks(&inventory.refresh().await) != "A B" {
        looks += 1;
        assert!(looks < 10, "a host that is well starts the library anew from time to time");
    }
}

#[tokio::test]
async fn a_library_that_fails_to_start_leaves_a_host_that_works() {
    let driver = Driver::with(Vec::new());
    driver.says(&Script::default().failing_to_start(code::DRIVER_NOT_LOADED));
    let mut inventory = driver.inventory();
    let facts = inventory.refresh().await;
    assert_eq!(marks(&facts), "");
    assert!(facts.cpus_milli > 0 && facts.devices.len() == 1, "CPU and other devices are offered");
    assert!(inventory.notes().iter().any(|n| n.contains("libnvidia-ml")), "{:?}", inventory.notes());
    driver.shows(cards(&["A"]));
    assert_eq!(marks(&inventory.refresh().await), "A", "the driver came up later");
    driver.says(&Script { init: code::LIB_RM_VERSION_MISMATCH, ..Script::of(cards(&["A"])) });
    let mut last = marks(&inventory.refresh().await);
    for _ in 0..10 {
        last = marks(&inventory.refresh().await);
        if last == "A?" {
            break;
        }
    }
    assert_eq!(last, "A?", "a driver upgrade under way closes the card");
}

#[tokio::test]
async fn a_missing_function_costs_a_feature_and_no_card() {
    for symbol in [
        "nvmlDeviceGetTemperature",
        "nvmlDeviceGetMemoryInfo_v2",
        "nvmlDeviceGetName",
        "nvmlDeviceGetPciInfo_v3",
        "nvmlDeviceGetMigMode",
        "nvmlDeviceGetUtilizationRates",
        "nvmlSystemGetDriverVersion",
        "nvmlShutdown",
    ] {
        let driver = Driver::with(cards(&["A"])).lacking(symbol);
        let mut inventory = driver.inventory();
        assert_eq!(marks(&inventory.refresh().await), "A", "without {symbol}");
        assert_eq!(inventory.readings().await.len(), 2, "without {symbol}");
    }
    let driver = Driver::with(cards(&["A"])).lacking("nvmlDeviceGetTemperature");
    let mut inventory = driver.inventory();
    inventory.refresh().await;
    let readings = inventory.readings().await;
    let reading = readings.iter().find(|r| r.uuid.0 == "A").expect("a reading");
    assert_eq!((reading.temperature_c, reading.busy_permille), (None, Some(70)));
}

#[tokio::test]
async fn a_card_without_a_name_for_itself_is_not_offered() {
    let driver = Driver::with(cards(&["A"])).lacking("nvmlDeviceGetUUID");
    let mut inventory = driver.inventory();
    assert_eq!(marks(&inventory.refresh().await), "");
    assert!(inventory.notes().iter().any(|n| n.contains("uuid")), "{:?}", inventory.notes());
}

/// Whole processes are scripted by the environment. The test starts itself again with it, and the child looks.
#[tokio::test]
async fn the_environment_names_the_script_of_a_whole_process() {
    const CHILD: &str = "ROTA_TEST_CHILD_LIBRARY";
    if let Some(library) = std::env::var_os(CHILD) {
        let found = NvmlProvider::new(library, "/".into()).discover().expect("the child's library works");
        let names: Vec<String> = found.devices.into_iter().map(|d| d.uuid.0).collect();
        println!("child sees {names:?}");
        return;
    }
    let driver = Driver::with(cards(&["beside"]));
    let script = driver.dir.path().join("elsewhere.state");
    Script::of(cards(&["A", "B"])).write(&script).expect("writable");
    let output = std::process::Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", "the_environment_names_the_script_of_a_whole_process", "--nocapture"])
        .env(CHILD, driver.library())
        .env("FAKE_NVML_STATE", &script)
        .output()
        .expect("startable");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("child sees [\"A\", \"B\"]"), "{said}");
}
