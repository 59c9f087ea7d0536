//! Odd values (fault G15).

use crate::driver::{Driver, gpus, marks};
use fake_nvml::script::{Card, Script, code};
use rota_chaos::report::row;
use std::time::{Duration, Instant};

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

/// Counts that no host reaches are not believed: nothing is allocated for them, nothing is asked so often.
#[tokio::test]
async fn absurd_counts_cost_neither_memory_nor_time() {
    let mut card = Card { processes_said: Some(u32::MAX), slots: Some(u32::MAX), ..Card::new("A") };
    card.slices = vec![fake_nvml::script::Slice::new("MIG-1", "1g.10gb")];
    let driver = Driver::with(Vec::new());
    driver.says(&Script { count: Some(u32::MAX), ..Script::of(vec![card, Card::new("B")]) });
    let mut inventory = driver.inventory();
    let began = Instant::now();
    assert_eq!(marks(&inventory.refresh().await), "B MIG-1");
    assert!(inventory.notes().len() < 200);
    let took = began.elapsed();
    assert!(took < Duration::from_secs(10), "{took:?}");
    println!(
        "{}",
        row(
            "G15",
            "odd values are absent, never capacity",
            format!("4294967295 cards said, {} ms", took.as_millis())
        )
    );
}
