//! Islands of cards that are joined by fast links.

use crate::driver::{Driver, gpus};
use fake_nvml::script::{Card, code};

fn card(name: &str, nvlink: Option<u32>, switch: Option<u32>) -> Card {
    Card { nvlink, switch, ..Card::new(name) }
}

async fn islands(cards: Vec<Card>) -> Vec<Option<u32>> {
    let driver = Driver::with(cards);
    let facts = driver.inventory().refresh().await;
    gpus(&facts).iter().map(|card| card.island).collect()
}

#[tokio::test]
async fn nvlink_makes_islands_and_pcie_only_where_there_is_none() {
    let pairs = vec![
        card("A", Some(7), Some(1)),
        card("B", Some(3), Some(1)),
        card("C", Some(7), Some(1)),
        card("D", Some(3), Some(1)),
        card("E", None, Some(1)),
    ];
    assert_eq!(islands(pairs).await, [Some(0), Some(1), Some(0), Some(1), None]);
    let switches = vec![
        card("A", None, Some(1)),
        card("B", None, Some(2)),
        card("C", None, Some(1)),
        card("D", None, None),
    ];
    assert_eq!(islands(switches).await, [Some(0), None, Some(0), None]);
}

#[tokio::test]
async fn a_pair_that_does_not_tell_joins_nothing() {
    for broken in [code::UNKNOWN, code::NOT_SUPPORTED, code::GPU_IS_LOST, code::INVALID_ARGUMENT] {
        let all = vec![
            card("A", Some(0), None),
            card("B", Some(0), None).failing("p2p", broken),
            card("C", Some(0), None),
        ];
        assert_eq!(islands(all).await, [Some(0), None, Some(0)], "{broken}");
    }
    let switches = vec![
        card("A", None, Some(1)).failing("topology", code::UNKNOWN),
        card("B", None, Some(1)),
        card("C", None, Some(1)),
    ];
    assert_eq!(islands(switches).await, [None, Some(0), Some(0)]);
}
