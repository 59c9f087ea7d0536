//! The device inventory over the real NVML wrapper and a scripted library (faults G2, G3, G4, G15; R014, R098). Each
//! test loads its own copy of the library, so that each has its own cards.

use fake_nvml::script::{Card, Script, code};
use rota_node::devices::inventory::PROBATION_LOOKS;
use rota_node::devices::nvml::{self, NvmlProvider};
use rota_node::devices::probe::STUCK_MAX;
use rota_node::devices::sim::SimProvider;
use rota_node::devices::{DeviceConfig, DeviceError, DeviceProvider, Inventory, Probe};
use rota_protocol::device::{DeviceFacts, DeviceHealth, DeviceKind, HostFacts};
use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;
use tempfile::TempDir;

/// Deadline of tests in which something hangs: long for a healthy call, short to wait for.
const HANG_DEADLINE: Duration = Duration::from_millis(1_000);

/// One copy of the library and its script.
struct Driver {
    dir: TempDir,
}

impl Driver {
    fn with(cards: Vec<Card>) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let built = fake_nvml::library().expect("built as a dependency of this test");
        fs::copy(built, dir.path().join("libnvidia-ml.so.1")).expect("a copy");
        let driver = Self { dir };
        driver.shows(cards);
        driver
    }

    /// The same driver without one of its functions: the name is overwritten in the copy.
    fn lacking(self, symbol: &str) -> Self {
        let path = self.library();
        let mut bytes = fs::read(&path).expect("the copy");
        let name = format!("\0{symbol}\0").into_bytes();
        let places: Vec<usize> =
            (0..bytes.len() - name.len()).filter(|at| bytes[*at..].starts_with(&name)).collect();
        assert!(!places.is_empty(), "{symbol} is exported");
        for at in places {
            bytes[at + 1] = b'x';
        }
        fs::remove_file(&path).expect("replaceable");
        fs::write(&path, bytes).expect("the copy");
        self
    }

    fn shows(&self, cards: Vec<Card>) {
        self.says(&Script::of(cards));
    }

    fn says(&self, script: &Script) {
        script.write(&self.dir.path().join("fake-nvml.state")).expect("writable");
    }

    fn library(&self) -> PathBuf {
        self.dir.path().join("libnvidia-ml.so.1")
    }

    fn inventory(&self) -> Inventory {
        // Nothing hangs here, so that only a very slow machine would notice the deadline.
        self.inventory_within(Duration::from_secs(60))
    }

    fn inventory_within(&self, deadline: Duration) -> Inventory {
        let library: OsString = self.library().into();
        let make = move || -> Box<dyn DeviceProvider> { Box::new(NvmlProvider::new(library.clone())) };
        let nvml = Probe::guarded("nvml", deadline, Box::new(make));
        let sim = Box::new(SimProvider::new("1xfpga", "h").expect("fair"));
        Inventory::of(vec![nvml, Probe::direct(sim)], &DeviceConfig::default())
    }
}

fn cards(names: &[&str]) -> Vec<Card> {
    names.iter().map(|name| Card::new(name)).collect()
}

fn gpus(facts: &HostFacts) -> Vec<DeviceFacts> {
    facts.devices.iter().filter(|d| d.kind != DeviceKind::Fpga).cloned().collect()
}

/// `A B- C?`: healthy, lost, unknown.
fn marks(facts: &HostFacts) -> String {
    let marks: Vec<String> = gpus(facts)
        .iter()
        .map(|d| match d.health {
            DeviceHealth::Healthy => d.uuid.0.clone(),
            DeviceHealth::Lost { .. } => format!("{}-", d.uuid),
            DeviceHealth::Unknown { .. } | DeviceHealth::Dirty { .. } => format!("{}?", d.uuid),
        })
        .collect();
    marks.join(" ")
}

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
    let library = nvml::inspect(driver.library().as_os_str()).expect("it works");
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
async fn a_card_that_needs_a_reset_is_not_offered_and_one_in_doubt_is_unknown() {
    let driver = Driver::with(vec![
        Card::new("A").failing("memory", code::RESET_REQUIRED),
        Card::new("B").failing("memory", code::UNKNOWN),
        Card::new("C").failing("memory", code::NOT_SUPPORTED),
    ]);
    let facts = driver.inventory().refresh().await;
    assert_eq!(marks(&facts), "A- B? C");
    assert_eq!(gpus(&facts)[2].vram_mib, None, "not told is not zero");
    let reason = gpus(&facts)[1].health.reason().map(str::to_owned);
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
    driver.says(&Script { init: code::DRIVER_NOT_LOADED, ..Script::default() });
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

#[tokio::test]
async fn a_call_that_never_returns_costs_its_own_card_alone() {
    let driver = Driver::with(cards(&["A", "B", "C", "D"]));
    let mut inventory = driver.inventory_within(HANG_DEADLINE);
    until(&mut inventory, "A B C D").await;
    let hanging = |names: &[&str]| {
        let card = |name: &&str| {
            let card = Card::new(name);
            if names.contains(name) { card.hanging("temperature") } else { card }
        };
        driver.shows(["A", "B", "C", "D"].iter().map(card).collect());
    };
    hanging(&["B"]);
    let facts = inventory.refresh().await;
    assert_eq!(marks(&facts), "A B? C? D?", "A had answered; those behind B could not be asked");
    assert_eq!(facts.devices.len(), 5, "and devices of other providers are there");
    until(&mut inventory, "A B? C D").await;
    for _ in 0..5 {
        assert_eq!(marks(&inventory.refresh().await), "A B? C D");
        assert_eq!(inventory.stuck(), 1, "what hangs is not asked again");
        assert_eq!(inventory.readings().await.len(), 4, "three cards and the simulated one");
    }
    assert!(inventory.notes().iter().any(|n| n.contains("call about B")), "{:?}", inventory.notes());
    hanging(&["B", "C"]);
    until(&mut inventory, "A? B? C? D?").await;
    assert_eq!(inventory.stuck(), STUCK_MAX, "with two threads lost, none is risked any more");
    let refused = DeviceError::Stuck { stuck: STUCK_MAX }.to_string();
    while !inventory.notes().iter().any(|n| n.contains(&refused)) {
        inventory.refresh().await;
    }
    hanging(&[]);
    until(&mut inventory, "A B C D").await;
}

/// A call that hangs before the card has told its name: nobody can tell which one to leave alone.
#[tokio::test]
async fn a_card_that_hangs_before_it_has_a_name_is_not_asked_for_ever() {
    let driver = Driver::with(cards(&["A", "B"]));
    let mut inventory = driver.inventory_within(HANG_DEADLINE);
    until(&mut inventory, "A B").await;
    driver.shows(vec![Card::new("A").hanging("uuid"), Card::new("B")]);
    for _ in 0..5 {
        assert_eq!(marks(&inventory.refresh().await), "A? B?");
        assert!(inventory.stuck() <= STUCK_MAX);
    }
    driver.shows(cards(&["A", "B"]));
    until(&mut inventory, "A B").await;
}

/// Looks until the cards are so. On a busy machine a healthy driver may miss a short deadline now and then.
async fn until(inventory: &mut Inventory, expected: &str) {
    for _ in 0..200 {
        if marks(&inventory.refresh().await) == expected {
            return;
        }
        tokio::time::sleep(HANG_DEADLINE / 20).await;
    }
    panic!("never `{expected}`: {:?} {:?}", marks(&inventory.refresh().await), inventory.notes());
}

#[tokio::test]
async fn weird_values_are_absent_and_never_capacity() {
    let weird = Card {
        name: b"N/A".to_vec(),
        bus: Vec::new(),
        total: u64::MAX,
        used: u64::MAX,
        busy: u32::MAX,
        temperature: u32::MAX,
        power: u32::MAX,
        capability: u32::MAX,
        ..Card::new("A")
    };
    let zero = Card { name: Vec::new(), total: 0, used: 5, busy: 0, ..Card::new("B") };
    let not_text = Card { name: vec![0xff, 0xfe], ..Card::new("C") }.failing("capability", code::UNKNOWN);
    let long = Card { name: vec![b'x'; 10_000], ..Card::new("D") };
    let nameless = Card { uuid: Vec::new(), ..Card::new("") };
    let comma = Card { uuid: b"E,F".to_vec(), ..Card::new("") };
    let driver = Driver::with(vec![weird, zero, not_text, long, nameless, comma]);
    let mut inventory = driver.inventory();
    let facts = inventory.refresh().await;
    assert_eq!(marks(&facts), "A B C D", "an odd text closes no card");
    assert!(gpus(&facts).iter().all(|d| d.model.is_empty()));
    assert_eq!((gpus(&facts)[0].vram_mib, gpus(&facts)[1].vram_mib), (None, None));
    assert_eq!(gpus(&facts)[0].bus, None);
    let caps: Vec<_> = gpus(&facts).iter().map(|d| d.compute_cap).collect();
    assert_eq!(caps, [None, Some(90), None, Some(90)], "a call that fails leaves the card as it is");
    assert_eq!(inventory.notes().iter().filter(|n| n.contains("uuid")).count(), 2);
    let readings = inventory.readings().await;
    let of_a = readings.iter().find(|r| r.uuid.0 == "A").expect("a reading");
    assert_eq!(of_a.busy_permille, None);
    assert_eq!(of_a.vram_used_mib, None);
    assert_eq!(of_a.temperature_c, None);
    assert_eq!(of_a.power_mw, None);
}

#[tokio::test]
async fn a_cut_card_offers_its_slices_and_not_itself() {
    let mut cut = Card::new("GPU-a");
    cut.slices = vec![(b"MIG-2".to_vec(), 20 << 30), (b"MIG-1".to_vec(), 10 << 30)];
    let driver = Driver::with(vec![cut, Card::new("GPU-b")]);
    let mut inventory = driver.inventory();
    let facts = inventory.refresh().await;
    assert_eq!(marks(&facts), "GPU-b MIG-1 MIG-2");
    let slice = &gpus(&facts)[1];
    assert_eq!((slice.kind, slice.vram_mib, slice.index), (DeviceKind::Mig, Some(10 << 10), None));
    let read: Vec<String> = inventory.readings().await.into_iter().map(|r| r.uuid.0).collect();
    assert!(read.contains(&"MIG-1".to_owned()) && !read.contains(&"GPU-a".to_owned()), "{read:?}");
}

/// Whole processes are scripted by the environment. The test starts itself again with it, and the child looks.
#[tokio::test]
async fn the_environment_names_the_script_of_a_whole_process() {
    const CHILD: &str = "ROTA_TEST_CHILD_LIBRARY";
    if let Some(library) = std::env::var_os(CHILD) {
        let found = NvmlProvider::new(library).discover().expect("the child's library works");
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
