//! Cards in MIG mode (R030).

use crate::driver::{Driver, gpus, marks};
use fake_nvml::script::Card;
use rota_protocol::device::DeviceKind;

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
