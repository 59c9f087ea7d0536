//! Cards that tell no memory (R022).

use crate::driver::{Driver, gpus, marks};
use fake_nvml::script::{Card, code};

#[tokio::test]
async fn a_known_chip_shares_the_hosts_memory_and_an_ordinary_card_is_only_warned_of() {
    let named = |uuid: &str, name: &str| Card { name: name.into(), ..Card::new(uuid) };
    let driver = Driver::with(vec![
        named("A", "NVIDIA GB10").failing("memory", code::NOT_SUPPORTED),
        named("B", "NVIDIA A100-SXM4-80GB").failing("memory", code::NOT_SUPPORTED),
    ]);
    let facts = driver.inventory().refresh().await;
    assert_eq!(marks(&facts), "A B");
    let (chip, card) = (&gpus(&facts)[0], &gpus(&facts)[1]);
    assert!(chip.detail.unified && !card.detail.unified);
    assert_eq!((chip.vram_mib, card.vram_mib), (Some(facts.mem_mib), None));
    let warnings = &facts.notes.warnings;
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("B does not tell its memory"), "{warnings:?}");
}

#[tokio::test]
async fn further_facts_arrive_and_a_moment_of_silence_takes_none_away() {
    let known = Card { minor: Some(3), power_limit: Some(350_000), ..Card::new("A") };
    let driver = Driver::with(vec![known.clone()]);
    let mut inventory = driver.inventory();
    let before = gpus(&inventory.refresh().await);
    assert_eq!((before[0].detail.minor, before[0].detail.power_limit_mw), (Some(3), Some(350_000)));
    let calls = ["minor", "power_limit", "memory", "name", "bus", "capability"];
    driver.shows(vec![calls.iter().fold(known, |card, call| card.failing(call, code::UNKNOWN))]);
    assert_eq!(gpus(&inventory.refresh().await), before);
}
