//! Any single call may fail in any way (R024): only a card that has no name, or says that it is lost or must be reset, is not
//! granted. Each card of a script has one fault of its own, so that all cards are asked at once.

use crate::driver::{Driver, gpus};
use fake_nvml::script::{CALLS, Card, code};
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rota_chaos::report::row;
use std::collections::BTreeSet;

/// Cards of one script: below what one host may have.
const CARDS: usize = 100;
/// All return codes that are not success, and some that no header knows.
const CODES: [u32; 27] = [
    1,
    2,
    3,
    4,
    5,
    6,
    7,
    8,
    9,
    10,
    11,
    12,
    13,
    14,
    15,
    16,
    17,
    18,
    19,
    20,
    21,
    22,
    25,
    27,
    77,
    999,
    u32::MAX,
];

fn random_card(name: &str, rng: &mut SmallRng) -> Card {
    let models = ["NVIDIA A100-SXM4-80GB", "Tesla T4", "NVIDIA H200", "", "N/A", "NVIDIA GB10"];
    let mut card = Card::new(name);
    card.name = models[rng.random_range(0..models.len())].into();
    card.total = rng.random_range(1..200u64) << 30;
    card.minor = rng.random::<bool>().then(|| rng.random_range(0..64));
    card.nvlink = rng.random::<bool>().then(|| rng.random_range(0..3));
    card.switch = rng.random::<bool>().then(|| rng.random_range(0..3));
    if rng.random_ratio(1, 4) {
        (card.ecc, card.remap, card.recovery) = (None, None, None);
    }
    card
}

#[tokio::test]
async fn each_error_in_each_call_costs_no_card_that_can_work() {
    let mut rng = SmallRng::seed_from_u64(24);
    let mut faults: Vec<(&str, u32)> =
        CALLS.iter().flat_map(|call| CODES.iter().map(move |code| (*call, *code))).collect();
    faults.shuffle(&mut rng);
    let (mut asked, mut grantable) = (0, 0);
    for batch in faults.chunks(CARDS) {
        let names: Vec<String> = (0..batch.len()).map(|at| format!("GPU-{at:03}")).collect();
        let well: Vec<Card> = names.iter().map(|name| random_card(name, &mut rng)).collect();
        let driver = Driver::with(well.clone());
        let mut inventory = driver.inventory();
        assert_eq!(gpus(&inventory.refresh().await).len(), batch.len());
        let ill = well.into_iter().zip(batch).map(|(card, (call, code))| card.failing(call, *code)).collect();
        driver.shows(ill);
        let facts = inventory.refresh().await;
        let granted: BTreeSet<String> =
            gpus(&facts).into_iter().filter(|d| d.health.is_healthy()).map(|d| d.uuid.0).collect();
        for (name, (call, code)) in names.iter().zip(batch) {
            let nameless = matches!(*call, "uuid" | "handle");
            let lost = matches!(*code, code::GPU_IS_LOST | code::RESET_REQUIRED);
            asked += 1;
            grantable += usize::from(granted.contains(name));
            if nameless {
                assert!(!granted.contains(name), "{name}: {call} answers {code}");
            } else if !lost {
                assert!(granted.contains(name), "{name}: {call} answers {code}");
            }
        }
        assert_eq!(inventory.readings().await.len(), readable(batch) + 1, "and the simulated one");
    }
    assert!(asked >= 200);
    println!(
        "{}",
        row("R024", "only nameless and lost cards closed", format!("{grantable} of {asked} grantable"))
    );
}

/// Cards that have a name can be read, whatever else fails.
fn readable(batch: &[(&str, u32)]) -> usize {
    batch.iter().filter(|(call, _)| !matches!(*call, "uuid" | "handle")).count()
}
