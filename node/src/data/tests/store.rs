//! What is under a name has its hash, whatever came between; what is on its way is gone after a restart.

use super::*;
use ring::digest::digest;

fn name_of(bytes: &[u8]) -> BlobId {
    BlobId(digest(&SHA256, bytes).as_ref().try_into().unwrap())
}

fn kept(bytes: &[u8]) -> Kept {
    let owners = BTreeMap::from([("a".to_owned(), true)]);
    Kept { bytes: bytes.len() as u64, owners, name: "x".into(), used_ms: 77_000, ..Kept::default() }
}

fn add(store: &Store, bytes: &[u8]) -> BlobId {
    let mut incoming = store.begin().unwrap();
    bytes.chunks(3).for_each(|piece| incoming.write(piece).unwrap());
    let ready = store.ready(incoming, name_of(bytes), kept(bytes)).unwrap();
    let (blob, _) = store.put(ready, None).unwrap();
    store.sync().unwrap();
    blob
}

fn files(store: &Store, folder: &str) -> usize {
    fs::read_dir(store.dir.join(folder)).unwrap().count()
}

#[test]
fn what_is_kept_is_there_after_a_restart_and_nobody_can_write_it() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::of(dir.path());
    assert!(store.load().unwrap().is_empty() && !dir.path().join("cache").exists());
    let blob = add(&store, b"some bytes");
    assert_eq!(store.path(&blob).metadata().unwrap().permissions().mode() & 0o7777, BLOB_MODE);
    assert_eq!(dir.path().join("cache").metadata().unwrap().permissions().mode() & 0o7777, 0o700);
    assert_eq!(store.load().unwrap(), [(blob, kept(b"some bytes"))]);
    assert_eq!(
        (store.read(&blob, 5, 99).unwrap(), store.is_right(&blob).unwrap()),
        (b"bytes".to_vec(), true)
    );
    store.used(&blob, 99_000).unwrap();
    assert_eq!(store.load().unwrap()[0].1.used_ms, 99_000);
    // Added by another: one file, both owners.
    let mut again = store.begin().unwrap();
    again.write(b"some bytes").unwrap();
    let owners = BTreeMap::from([("b".to_owned(), false)]);
    let ready = store.ready(again, blob, Kept { owners, ..kept(b"some bytes") }).unwrap();
    store.put(ready, Some(&kept(b"some bytes"))).unwrap();
    let all = store.load().unwrap();
    assert_eq!(all[0].1.owners, BTreeMap::from([("a".to_owned(), true), ("b".to_owned(), false)]));
    assert_eq!((files(&store, "blobs"), files(&store, "partial")), (1, 0));
}

#[test]
fn bytes_with_another_hash_never_come_under_the_name() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::of(dir.path());
    let wanted = name_of(b"what was wanted");
    let mut incoming = store.begin().unwrap();
    incoming.write(b"what came").unwrap();
    let refused = store.ready(incoming, wanted, kept(b"what came"));
    assert!(matches!(refused, Err(KeepError::OtherHash(found)) if found == name_of(b"what came")));
    // One that broke off.
    let mut half = store.begin().unwrap();
    half.write(b"what was").unwrap();
    assert_eq!(half.bytes(), 8);
    std::mem::forget(half);
    assert_eq!((files(&store, "blobs"), files(&store, "records"), files(&store, "partial")), (0, 0, 1));
    assert!(store.load().unwrap().is_empty());
    assert_eq!(files(&store, "partial"), 0);
}

#[test]
fn a_file_that_was_altered_is_not_believed() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::of(dir.path());
    let (longer, touched, orphan) = (add(&store, b"longer"), add(&store, b"touched"), add(&store, b"orphan"));
    let write = |blob: &BlobId, bytes: &[u8]| {
        fs::set_permissions(store.path(blob), Permissions::from_mode(0o600)).unwrap();
        fs::write(store.path(blob), bytes).unwrap();
    };
    write(&longer, b"longer than it was");
    let before = store.path(&touched).metadata().unwrap().modified().unwrap();
    write(&touched, b"TOUCHED");
    fs::remove_file(store.record(&orphan)).unwrap();
    for blob in [&longer, &touched, &orphan] {
        assert_eq!(store.believed(blob), None);
    }
    // Whoever also puts the time back is found by the hash alone.
    File::options().write(true).open(store.path(&touched)).unwrap().set_modified(before).unwrap();
    assert!(store.believed(&touched).is_some() && !store.is_right(&touched).unwrap());
    store.set_apart(&touched);
    assert_eq!((store.believed(&touched), files(&store, "bad")), (None, 1));
    assert!(store.load().unwrap().is_empty());
    assert_eq!((files(&store, "blobs"), files(&store, "records"), files(&store, "bad")), (0, 0, 0));
}

#[test]
fn what_attempts_hold_is_written_down() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::of(dir.path());
    assert!(store.held().unwrap().is_empty());
    let blob = add(&store, b"held");
    let wanted = vec![(blob, "a tenant".to_owned())];
    store.hold(Token(7), &wanted).unwrap();
    assert_eq!(store.held().unwrap(), [(Token(7), wanted)]);
    store.let_go(Token(7));
    assert!(store.held().unwrap().is_empty());
    let aside = store.set_aside(&blob);
    assert!(aside.exists() && store.believed(&blob).is_none());
    Store::discard(&aside);
    assert_eq!((files(&store, "partial"), files(&store, "records")), (0, 0));
}
