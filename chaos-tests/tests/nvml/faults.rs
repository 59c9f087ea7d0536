//! What is told of a driver that is at fault (R016, R020). The rows of the fault catalogue are in the crate's own
//! `real::cards`.

use crate::driver::{Driver, cards, gpus, marks, until};
use fake_nvml::script::{Card, Script, code};
use rota_protocol::device::DeviceHealth;
use std::fs;

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
