//! Who shares a fetch, what goes for room, and that nothing of it is lost.

use super::*;
use proptest::prelude::*;

fn blob(n: u8) -> BlobId {
    BlobId([n; 32])
}

fn of(tenant: &str, n: u8) -> Wanted {
    (blob(n), tenant.to_owned())
}

fn kept(tenant: &str, bytes: u64, pinned: bool, used_ms: u64) -> Kept {
    Kept { bytes, owners: BTreeMap::from([(tenant.to_owned(), pinned)]), used_ms, ..Kept::default() }
}

/// One that was fetched: claimed, then put.
fn fetch(shelf: &mut Shelf, tenant: &str, n: u8, bytes: u64, used_ms: u64) {
    assert_eq!(shelf.claim(bytes), Ok(Vec::new()));
    shelf.unclaim(bytes);
    shelf.put(blob(n), kept(tenant, bytes, false, used_ms));
}

#[test]
fn two_that_need_the_same_share_one_fetch_and_hold_it_both() {
    let mut shelf = Shelf::new(100);
    assert_eq!(shelf.want(Token(1), &of("a", 1), 5), Want::Fetch);
    assert_eq!(shelf.want(Token(1), &of("a", 1), 5), Want::UnderWay);
    assert_eq!(shelf.want(Token(2), &of("a", 1), 6), Want::UnderWay);
    fetch(&mut shelf, "a", 1, 40, 7);
    assert_eq!(shelf.kept(&blob(1)).unwrap().holders, BTreeSet::from([Token(1), Token(2)]));
    assert_eq!(shelf.want(Token(1), &of("a", 1), 8), Want::Here);
    // Held by one is held.
    assert_eq!(shelf.let_go(Token(1)), (vec![], vec![]));
    assert_eq!(shelf.claim(70), Err(NoRoom { bytes_free: 60, never: false }));
    assert_eq!(shelf.let_go(Token(2)), (vec![], vec![]));
    assert_eq!((shelf.claim(70), shelf.tokens().len(), shelf.bytes_used()), (Ok(vec![blob(1)]), 0, 70));
}

#[test]
fn another_tenant_finds_nothing_and_waits_for_a_fetch_of_its_own() {
    let mut shelf = Shelf::new(100);
    fetch(&mut shelf, "a", 1, 40, 1);
    assert!(shelf.kept_for(&blob(1), "b").is_none());
    assert_eq!(shelf.want(Token(3), &of("b", 1), 2), Want::Fetch);
    assert_eq!(shelf.want(Token(4), &of("a", 1), 2), Want::Here);
    // Its own fetch proved that it may: one file, for both.
    fetch(&mut shelf, "b", 1, 40, 3);
    assert_eq!(shelf.kept(&blob(1)).unwrap().holders, BTreeSet::from([Token(3), Token(4)]));
    assert_eq!(shelf.bytes_used(), 40);
    // What one tenant takes back, the other keeps.
    assert_eq!(shelf.disown(&blob(1), Some("c")), None);
    assert_eq!(shelf.disown(&blob(1), Some("a")), Some(false));
    assert!(shelf.kept_for(&blob(1), "a").is_none() && shelf.kept_for(&blob(1), "b").is_some());
    shelf.put(blob(2), Kept { public: true, bytes: 1, ..kept("a", 1, true, 1) });
    assert_eq!(shelf.want(Token(5), &of("b", 2), 2), Want::Here);
    assert_eq!(shelf.disown(&blob(2), Some("b")), None);
}

#[test]
fn the_longest_unused_goes_first_and_what_is_held_or_pinned_never() {
    let mut shelf = Shelf::new(100);
    for (n, used_ms) in [(1, 30), (2, 10), (3, 20)] {
        fetch(&mut shelf, "a", n, 20, used_ms);
    }
    shelf.put(blob(4), kept("a", 20, true, 1));
    assert_eq!(shelf.want(Token(1), &of("a", 2), 5), Want::Here);
    assert_eq!(shelf.claim(61), Err(NoRoom { bytes_free: 60, never: false }));
    assert_eq!(shelf.claim(101), Err(NoRoom { bytes_free: 60, never: true }));
    assert_eq!(shelf.claim(25), Ok(vec![blob(3)]));
    assert_eq!(shelf.bytes_used(), 85);
    assert_eq!(shelf.claim(35), Ok(vec![blob(1)]));
    assert_eq!(shelf.disown(&blob(4), Some("a")), Some(true));
    // Held: its bytes go with the last who holds them.
    assert_eq!(shelf.disown(&blob(2), None), Some(false));
    assert_eq!(shelf.let_go(Token(1)), (vec![], vec![blob(2)]));
    assert_eq!((shelf.blobs().count(), shelf.bytes_used()), (0, 60));
}

#[test]
fn who_gives_up_leaves_no_fetch_and_no_hold_behind() {
    let mut shelf = Shelf::new(100);
    shelf.want(Token(1), &of("a", 1), 1);
    shelf.want(Token(2), &of("a", 1), 1);
    assert_eq!(shelf.let_go(Token(1)), (vec![], vec![]));
    assert!(shelf.is_fetched(&of("a", 1)));
    assert_eq!(shelf.let_go(Token(2)), (vec![of("a", 1)], vec![]));
    assert_eq!(shelf.fetch_over(&of("a", 1)), BTreeSet::new());
    assert_eq!(shelf.want(Token(3), &of("a", 1), 2), Want::Fetch);
    // Ahead of anybody, and then somebody comes.
    assert!(shelf.want_ahead(&of("a", 2)) && !shelf.want_ahead(&of("a", 2)));
    assert_eq!(shelf.want(Token(4), &of("a", 2), 2), Want::UnderWay);
    shelf.put(blob(2), kept("a", 9, false, 3));
    assert_eq!(shelf.kept(&blob(2)).unwrap().holders, BTreeSet::from([Token(4)]));
    assert!(!shelf.want_ahead(&of("a", 2)));
}

#[derive(Debug, Clone)]
enum Act {
    Want(u64, u8, bool),
    LetGo(u64),
    Fetched(u8, bool, u64),
    Disown(u8, bool),
    Pin(u8),
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        (0..4_u64, 0..4_u8, any::<bool>()).prop_map(|(t, n, a)| Act::Want(t, n, a)),
        (0..4_u64).prop_map(Act::LetGo),
        (0..4_u8, any::<bool>(), 1..60_u64).prop_map(|(n, a, bytes)| Act::Fetched(n, a, bytes)),
        (0..4_u8, any::<bool>()).prop_map(|(n, a)| Act::Disown(n, a)),
        (0..4_u8).prop_map(Act::Pin),
    ];
    proptest::collection::vec(act, 0..60)
}

proptest! {
    #[test]
    fn the_limit_holds_no_held_blob_goes_and_all_is_let_go(acts in acts()) {
        let mut shelf = Shelf::new(100);
        let name = |a: bool| if a { "a" } else { "b" };
        for (now_ms, act) in (0..).zip(acts) {
            let held: Vec<BlobId> =
                shelf.blobs().filter(|(_, kept)| !kept.holders.is_empty()).map(|(blob, _)| *blob).collect();
            let let_go = matches!(act, Act::LetGo(_));
            match act {
                Act::Want(token, n, a) => {
                    let want = shelf.want(Token(token), &of(name(a), n), now_ms);
                    prop_assert_eq!(want == Want::Here, shelf.kept_for(&blob(n), name(a)).is_some());
                }
                Act::LetGo(token) => {
                    shelf.let_go(Token(token));
                }
                Act::Fetched(n, a, bytes) => {
                    let bytes = shelf.kept(&blob(n)).map_or(bytes, |kept| kept.bytes);
                    if shelf.claim(bytes).is_ok() {
                        shelf.unclaim(bytes);
                        shelf.put(blob(n), kept(name(a), bytes, false, now_ms));
                    } else {
                        shelf.fetch_over(&of(name(a), n));
                    }
                }
                Act::Disown(n, a) => {
                    shelf.disown(&blob(n), Some(name(a)));
                }
                Act::Pin(n) => {
                    if let Some(bytes) = shelf.kept(&blob(n)).map(|kept| kept.bytes) {
                        shelf.put(blob(n), kept("a", bytes, true, now_ms));
                    }
                }
            }
            let kept: u64 = shelf.blobs().map(|(_, kept)| kept.bytes).sum();
            prop_assert!(kept <= 100 && kept == shelf.bytes_used(), "{} of {}", kept, shelf.bytes_used());
            prop_assert!(let_go || held.iter().all(|blob| shelf.kept(blob).is_some()));
        }
        for token in 0..4 {
            shelf.let_go(Token(token));
        }
        prop_assert_eq!(shelf.tokens().len(), 0);
        prop_assert!(shelf.blobs().all(|(_, kept)| kept.holders.is_empty()));
        prop_assert!(shelf.blobs().all(|(_, kept)| !kept.owners.is_empty() || kept.public));
    }
}
