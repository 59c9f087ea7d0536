//! Values that no card has (fault G15): clamped or absent, never capacity.

use super::driver::{Driver, gpus, marks};
use super::{Bench, io, ms};
use crate::real::row::Row;
use fake_nvml::script::{Card, Script, Slice, code};
use rota_node::lab::LabError;
use std::time::Instant;

/// What counts that no host reaches may cost.
const ABSURD_MS_MAX: u64 = 10_000;

/// G15: odd texts and numbers close no card and are absent; absurd counts cost neither memory nor time.
pub(in crate::real) async fn values(bench: &Bench) -> Result<Row, LabError> {
    let what = "odd values of a driver: absent, never capacity; a look at 4294967295 cards said";
    let mut row = Row::new("G15", what, Some(ABSURD_MS_MAX));
    let driver = Driver::new(bench, "G15", odd_cards())?;
    let mut inventory = driver.inventory();
    let facts = inventory.refresh().await;
    let cards = gpus(&facts);
    row.must(marks(&facts) == "A B C D", || format!("an odd text closed a card: {}", marks(&facts)));
    row.must(cards.iter().all(|d| d.model.is_empty()), || format!("models: {cards:?}"));
    row.must(cards.iter().take(2).all(|d| d.vram_mib.is_none()), || format!("memory: {cards:?}"));
    row.must(cards.first().is_some_and(|d| d.bus.is_none()), || format!("address: {cards:?}"));
    let caps: Vec<_> = cards.iter().map(|d| d.compute_cap).collect();
    row.must(caps == [None, Some(90), None, Some(90)], || format!("capabilities: {caps:?}"));
    let nameless = inventory.notes().iter().filter(|note| note.contains("uuid")).count();
    row.must(nameless == 2, || format!("{nameless} cards without a name are told"));
    let readings = inventory.readings().await;
    let of_a = readings.iter().find(|reading| reading.uuid.0 == "A");
    let absent = of_a.is_some_and(|a| {
        a.busy_permille.is_none()
            && a.vram_used_mib.is_none()
            && a.temperature_c.is_none()
            && a.power_mw.is_none()
    });
    row.must(absent, || format!("a reading of it: {of_a:?}"));
    for _ in 0..bench.rounds {
        absurd_counts(bench, &mut row).await?;
    }
    Ok(row)
}

fn odd_cards() -> Vec<Card> {
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
    vec![weird, zero, not_text, long, nameless, comma]
}

/// Counts that no host reaches are not believed: nothing is allocated for them, nothing is asked so often.
async fn absurd_counts(bench: &Bench, row: &mut Row) -> Result<(), LabError> {
    let mut card = Card { processes_said: Some(u32::MAX), slots: Some(u32::MAX), ..Card::new("A") };
    card.slices = vec![Slice::new("MIG-1", "1g.10gb")];
    let driver = Driver::new(bench, "G15-counts", Vec::new())?;
    let said = Script { count: Some(u32::MAX), ..Script::of(vec![card, Card::new("B")]) };
    driver.stage.says(&said).map_err(io("the script"))?;
    let mut inventory = driver.inventory();
    let began = Instant::now();
    let now = marks(&inventory.refresh().await);
    row.ran(ms(began));
    row.must(now == "B MIG-1", || now.clone());
    row.must(inventory.notes().len() < 200, || format!("{} notes", inventory.notes().len()));
    Ok(())
}
