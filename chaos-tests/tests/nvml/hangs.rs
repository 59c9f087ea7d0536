//! Calls that never return (fault G2).

use crate::driver::{Driver, HANG_DEADLINE, cards, marks, until};
use fake_nvml::script::Card;
use rota_node::devices::DeviceError;
use rota_node::devices::probe::STUCK_MAX;

#[tokio::test]
async fn a_call_that_never_returns_costs_its_own_card_alone() {
    let driver = Driver::with(cards(&["A", "B", "C", "D"]));
    let mut inventory = driver.inventory_by_threads(HANG_DEADLINE);
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
