//! Cards in MIG mode (R030).

use crate::driver::{Driver, gpus, marks};
use fake_nvml::script::{Card, Profile};
use rota_chaos::report::row;
use rota_protocol::device::{DeviceKind, HostFacts};

#[tokio::test]
async fn a_cut_card_offers_its_slices_and_not_itself() {
    let cut = Card::new("GPU-a").cut(&[("MIG-2", "2g.20gb"), ("MIG-1", "1g.10gb")]);
    let driver = Driver::with(vec![cut, Card::new("GPU-b")]);
    let mut inventory = driver.inventory();
    let facts = inventory.refresh().await;
    assert_eq!(marks(&facts), "GPU-b MIG-1 MIG-2");
    let slice = &gpus(&facts)[1];
    assert_eq!((slice.kind, slice.vram_mib, slice.index), (DeviceKind::Mig, Some(10 << 10), None));
    let read: Vec<String> = inventory.readings().await.into_iter().map(|r| r.uuid.0).collect();
    assert!(read.contains(&"MIG-1".to_owned()) && !read.contains(&"GPU-a".to_owned()), "{read:?}");
}

/// R030: every combination on one host, and slices made and removed at run time.
#[tokio::test]
async fn each_card_may_be_cut_in_its_own_way_and_anew_at_any_time() {
    let seven: Vec<String> = (0..7).map(|at| format!("MIG-d{at}")).collect();
    let cut = |empty: &[(&str, &str)], last: usize| {
        let whole = Card::new("GPU-a");
        let profile = |number, slices, mib| Profile { number, slices, mib, count: 7 / slices };
        let mut changing = Card::new("GPU-b").cut(empty);
        changing.profiles = vec![profile(0, 1, 9_984), profile(2, 3, 40_192), profile(4, 7, 81_000)];
        let mixed = Card::new("GPU-c").cut(&[
            ("MIG-c0", "3g.40gb"),
            ("MIG-c1", "2g.20gb"),
            ("MIG-c2", "1g.10gb"),
            ("MIG-c3", "1g.10gb"),
        ]);
        let uniform: Vec<(&str, &str)> =
            seven[..last].iter().map(|uuid| (uuid.as_str(), "1g.10gb")).collect();
        vec![whole, changing, mixed, Card::new("GPU-d").cut(&uniform)]
    };
    let driver = Driver::with(cut(&[], 7));
    let mut inventory = driver.inventory();
    let facts = inventory.refresh().await;
    let slices = |facts: &HostFacts| gpus(facts).iter().filter(|d| d.kind == DeviceKind::Mig).count();
    assert_eq!((gpus(&facts).len(), slices(&facts)), (12, 11));
    assert!(gpus(&facts).iter().all(|d| d.health.is_healthy()));
    let wide = gpus(&facts).into_iter().find(|d| d.uuid.0 == "MIG-c0").expect("offered");
    assert_eq!((wide.model.as_str(), wide.vram_mib), ("3g.40gb", Some(40 << 10)));
    assert_eq!(wide.detail.parent.map(|parent| parent.0).as_deref(), Some("GPU-c"));
    let aside: Vec<&str> = facts.notes.set_aside.iter().map(|d| d.uuid.0.as_str()).collect();
    assert_eq!(aside, ["GPU-b", "GPU-c", "GPU-d"], "no cut card is offered whole");
    let empty = &facts.notes.set_aside[0];
    assert!(empty.health.reason().is_some_and(|reason| reason.contains("no slices")), "{empty:?}");
    assert_eq!(empty.detail.profiles, ["1g.10gb", "3g.40gb", "7g.80gb"]);
    driver.shows(cut(&[("MIG-b0", "1g.10gb")], 6));
    let facts = inventory.refresh().await;
    let mark = |uuid: &str| gpus(&facts).iter().find(|d| d.uuid.0 == uuid).map(|d| d.health.is_healthy());
    assert_eq!((mark("MIG-b0"), mark("MIG-d6"), mark("MIG-d5")), (Some(true), Some(false), Some(true)));
    println!("{}", row("R030", "a new slice within 30 s", "1 look (2 s)"));
}

/// A driver that does not write the profile behind the name still tells what a slice is made of.
#[tokio::test]
async fn a_profile_is_worked_out_from_the_slices() {
    let mut card = Card::new("GPU-a").cut(&[("MIG-1", "1g.10gb"), ("MIG-2", "3g.40gb")]);
    for slice in &mut card.slices {
        slice.profile.clear();
    }
    card.slices[1].compute_slices = 1;
    let driver = Driver::with(vec![card]);
    let facts = driver.inventory().refresh().await;
    let models: Vec<String> = gpus(&facts).into_iter().map(|d| d.model).collect();
    assert_eq!(models, ["1g.10gb", "1c.3g.40gb"]);
}
