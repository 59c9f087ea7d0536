//! Damage, crashes and failing disks, on real files.

use super::header::Owner;
use super::record::RECORD_HEADER;
use super::store::LogStore;
use super::{LogConfig, LogError, marker_path, open, segment};
use crate::config::{EntryPayload, LogEntry, Payload, Rota, Vote, log_id};
use crate::disk::{self, Disk, SyncsBy};
use openraft::storage::{IOFlushed, RaftLogReader, RaftLogStorage};
use openraft::type_config::TypeConfigExt;
use rota_protocol::ids::{ClusterId, HostId};
use std::fs::{File, Permissions};
use std::io;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use tempfile::TempDir;

const OWNER: Owner = Owner { cluster: ClusterId(0xc1), host: HostId(1) };
const SEGMENT: u64 = 16 << 10;

struct Bench {
    _keep: TempDir,
    dir: PathBuf,
}

impl Bench {
    fn new() -> Self {
        let keep = tempfile::tempdir().expect("a directory");
        let dir = keep.path().join("raft");
        Self { _keep: keep, dir }
    }

    fn open_as(&self, owner: Owner, disk: Arc<dyn Disk>) -> Result<LogStore, LogError> {
        open(LogConfig {
            dir: self.dir.clone(),
            owner,
            segment_bytes: SEGMENT,
            disk,
            on_failure: Box::new(|_| {}),
        })
    }

    fn open(&self) -> Result<LogStore, LogError> {
        self.open_as(OWNER, disk::real())
    }

    fn last_segment(&self) -> PathBuf {
        segment::list(&self.dir).expect("lists").pop().expect("one").1
    }
}

fn entry(term: u64, index: u64, bytes: usize) -> LogEntry {
    let body: Vec<u8> = (0..bytes).map(|n| (n as u64 ^ index) as u8 | 1).collect();
    LogEntry { log_id: log_id(term, index), payload: EntryPayload::Normal(Payload(body.into())) }
}

async fn append(log: &mut LogStore, entries: Vec<LogEntry>) -> io::Result<()> {
    let (done, durable) = Rota::oneshot();
    log.append(entries, IOFlushed::signal(done)).await?;
    durable.await.expect("answered")
}

async fn entries(log: &mut LogStore) -> Vec<LogEntry> {
    log.try_get_log_entries(..).await.expect("reads")
}

fn close(log: LogStore) {
    log.0.close();
}

/// Offset of the first byte behind the last record: the last byte that is not zero, rounded up.
fn end_of(path: &Path) -> usize {
    let bytes = std::fs::read(path).expect("reads");
    (bytes.iter().rposition(|b| *b != 0).expect("not empty") + 1).next_multiple_of(8)
}

fn damage(path: &Path, offset: usize, with: &[u8]) {
    let file = File::options().write(true).open(path).expect("opens");
    file.write_all_at(with, offset as u64).expect("writes");
}

#[tokio::test]
async fn what_was_written_is_there_after_a_restart() {
    let bench = Bench::new();
    let mut log = bench.open().expect("opens");
    log.save_vote(&Vote::new(3, 2)).await.expect("durable");
    append(&mut log, (0..10).map(|n| entry(3, n, 100)).collect()).await.expect("durable");
    log.truncate_after(Some(log_id(3, 6))).await.expect("taken");
    append(&mut log, vec![entry(4, 7, 0)]).await.expect("durable");
    log.save_committed(Some(log_id(4, 7))).await.expect("taken");
    log.purge(log_id(3, 1)).await.expect("taken");
    let before = entries(&mut log).await;
    close(log);

    let mut log = bench.open().expect("opens again");
    assert_eq!(entries(&mut log).await, before);
    assert_eq!(log.read_vote().await.expect("reads"), Some(Vote::new(3, 2)));
    assert_eq!(log.read_committed().await.expect("reads"), Some(log_id(4, 7)));
    let state = log.get_log_state().await.expect("reads");
    assert_eq!(state.last_purged_log_id, Some(log_id(3, 1)));
    assert_eq!(state.last_log_id, Some(log_id(4, 7)));
    close(log);
}

/// Segments are left behind, purged and used again, and the log stays whole through restarts.
#[tokio::test]
async fn segments_are_recycled() {
    let bench = Bench::new();
    let mut next = 0;
    for _ in 0..3 {
        let mut log = bench.open().expect("opens");
        log.save_vote(&Vote::new_committed(2, 1)).await.expect("durable");
        for _ in 0..60 {
            append(&mut log, vec![entry(2, next, 1_000)]).await.expect("durable");
            next += 1;
            if next % 20 == 0 {
                log.purge(log_id(2, next - 5)).await.expect("taken");
            }
        }
        close(log);
        let files = segment::list(&bench.dir).expect("lists");
        assert!(files.len() <= 3, "purged segments stay: {files:?}");
    }
    let mut log = bench.open().expect("opens");
    let held = entries(&mut log).await;
    assert_eq!(held, (next - 4..next).map(|n| entry(2, n, 1_000)).collect::<Vec<_>>());
    assert_eq!(log.read_vote().await.expect("reads"), Some(Vote::new_committed(2, 1)));
    close(log);
}

/// Fault D1: a last record that is torn at any byte is cut, and nothing before it is lost.
#[tokio::test]
async fn a_torn_last_record_is_cut_at_every_byte() {
    let bench = Bench::new();
    let mut log = bench.open().expect("opens");
    append(&mut log, vec![entry(1, 0, 40), entry(1, 1, 40)]).await.expect("durable");
    close(log);
    let file = bench.last_segment();
    let whole = std::fs::read(&file).expect("reads");
    let start = end_of(&file);
    let mut log = bench.open().expect("opens");
    append(&mut log, vec![entry(1, 2, 50)]).await.expect("durable");
    close(log);
    let full = std::fs::read(&file).expect("reads");
    let end = end_of(&file);
    assert!(end > start + 50);

    for torn in start..end {
        let mut bytes = whole.clone();
        bytes[start..torn].copy_from_slice(&full[start..torn]);
        std::fs::write(&file, &bytes).expect("writes");
        let mut log = bench.open().unwrap_or_else(|e| panic!("torn at {torn}: {e}"));
        let kept = entries(&mut log).await.len();
        // The record's own bytes end before the zeros that fill it up.
        let complete = torn >= start + RECORD_HEADER + 17 + 50;
        assert_eq!(kept, if complete { 3 } else { 2 }, "torn at {torn}");
        // What is written next must not be followed by what was cut.
        let next = kept as u64;
        append(&mut log, vec![entry(1, next, 8)]).await.expect("durable");
        close(log);
        let mut log = bench.open().expect("opens");
        assert_eq!(entries(&mut log).await.len(), kept + 1, "torn at {torn}");
        close(log);
    }
}

/// Fault D2: a flipped bit before other records is damage, and the peer must not start on a guess.
#[tokio::test]
async fn a_flipped_bit_in_the_middle_is_refused() {
    let bench = Bench::new();
    let mut log = bench.open().expect("opens");
    log.save_vote(&Vote::new(1, 1)).await.expect("durable");
    for n in 0..3 {
        append(&mut log, vec![entry(1, n, 64)]).await.expect("durable");
    }
    close(log);
    let file = bench.last_segment();
    let whole = std::fs::read(&file).expect("reads");
    let last = end_of(&file) - super::record::record_bytes(17 + 64);
    for at in super::SEGMENT_HEADER..last {
        if whole[at] == 0 {
            // Zeros between records carry nothing; the others are covered by their neighbours.
            continue;
        }
        damage(&file, at, &[whole[at] ^ 0x20]);
        match bench.open() {
            Err(LogError::Damaged { .. }) => {}
            Err(other) => panic!("byte {at}: {other}"),
            Ok(_) => panic!("byte {at}: opened"),
        }
        damage(&file, at, &whole[at..=at]);
    }
    close(bench.open().expect("whole again"));
}

/// A crash may keep a later piece of one write and lose an earlier one. None of it was durable, so it is cut.
#[tokio::test]
async fn a_write_that_was_torn_in_its_middle_is_cut() {
    let bench = Bench::new();
    let mut log = bench.open().expect("opens");
    append(&mut log, vec![entry(1, 0, 64)]).await.expect("durable");
    let start = end_of(&bench.last_segment());
    append(&mut log, (1..5).map(|n| entry(1, n, 64)).collect()).await.expect("durable");
    close(log);
    damage(&bench.last_segment(), start + 20, &[0; 30]);
    let mut log = bench.open().expect("cut");
    assert_eq!(entries(&mut log).await, vec![entry(1, 0, 64)]);
    append(&mut log, vec![entry(2, 1, 64)]).await.expect("durable");
    close(log);
    let mut log = bench.open().expect("opens");
    assert_eq!(entries(&mut log).await, vec![entry(1, 0, 64), entry(2, 1, 64)]);
    close(log);
}

/// Faults D2, D13: damaged, foreign and newer headers, a missing segment.
#[tokio::test]
async fn wrong_files_are_refused_by_name() {
    let bench = Bench::new();
    let mut log = bench.open().expect("opens");
    for n in 0..40 {
        append(&mut log, vec![entry(1, n, 1_000)]).await.expect("durable");
    }
    close(log);
    let stranger = Owner { host: HostId(2), ..OWNER };
    assert!(matches!(bench.open_as(stranger, disk::real()), Err(LogError::Foreign { host: HostId(1), .. })));
    let elsewhere = Owner { cluster: ClusterId(0xc2), ..OWNER };
    assert!(matches!(bench.open_as(elsewhere, disk::real()), Err(LogError::Foreign { .. })));

    let files = segment::list(&bench.dir).expect("lists");
    assert!(files.len() >= 3);
    let (_, first) = &files[0];
    let (_, second) = &files[1];
    let bytes = std::fs::read(first).expect("reads");
    damage(first, 20, &[0xff]);
    assert!(matches!(bench.open(), Err(LogError::Damaged { .. })));
    damage(first, 20, &bytes[20..21]);

    let moved = bench.dir.join("elsewhere");
    std::fs::rename(second, &moved).expect("moves");
    assert!(matches!(bench.open(), Err(LogError::Damaged { .. })));
    std::fs::rename(&moved, second).expect("moves");

    // A torn end is only believed of the last segment.
    let at = end_of(first) - 8;
    damage(first, at - 8, &[0; 16]);
    assert!(matches!(bench.open(), Err(LogError::Damaged { .. })));
}

/// Fault S24: nobody else on the host reads what others' jobs were given, also where an older version made the folder.
#[test]
fn the_log_is_its_owners_alone() {
    let bench = Bench::new();
    std::fs::create_dir(&bench.dir).expect("a folder");
    std::fs::set_permissions(&bench.dir, Permissions::from_mode(0o755)).expect("its own");
    close(bench.open().expect("opens"));
    let mode = std::fs::metadata(&bench.dir).expect("there").permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
}

/// Fault D12: a host that voted does not begin again as if it never had.
#[tokio::test]
async fn a_wiped_log_is_refused() {
    let bench = Bench::new();
    close(bench.open().expect("opens"));
    std::fs::remove_dir_all(&bench.dir).expect("wiped");
    let mut log = bench.open().expect("it had not voted yet");
    log.save_vote(&Vote::new(1, 1)).await.expect("durable");
    close(log);
    assert!(marker_path(&bench.dir).exists());
    std::fs::remove_dir_all(&bench.dir).expect("wiped");
    assert!(matches!(bench.open(), Err(LogError::Wiped { .. })));
}

/// Fault D5: after a failed fsync nothing is acknowledged any more, and it is never tried again.
#[tokio::test]
async fn a_failed_fsync_is_final() {
    let bench = Bench::new();
    let (fails, tries) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let (failing, counting) = (fails.clone(), tries.clone());
    let disk = Arc::new(SyncsBy(move |file: &File| {
        counting.fetch_add(1, Ordering::SeqCst);
        if failing.load(Ordering::SeqCst) {
            return Err(io::Error::other("planted"));
        }
        file.sync_data()
    }));
    let told = Arc::new(Mutex::new(None));
    let telling = told.clone();
    let mut log = open(LogConfig {
        dir: bench.dir.clone(),
        owner: OWNER,
        segment_bytes: SEGMENT,
        disk,
        on_failure: Box::new(move |error| {
            *telling.lock().expect("not poisoned") = Some(error.to_string());
        }),
    })
    .expect("opens");
    append(&mut log, vec![entry(1, 0, 10)]).await.expect("durable");
    fails.store(true, Ordering::SeqCst);
    assert!(append(&mut log, vec![entry(1, 1, 10)]).await.is_err());
    let tried = tries.load(Ordering::SeqCst);
    fails.store(false, Ordering::SeqCst);
    assert!(append(&mut log, vec![entry(1, 2, 10)]).await.is_err());
    assert!(log.save_vote(&Vote::new(9, 1)).await.is_err());
    assert_eq!(tries.load(Ordering::SeqCst), tried);
    assert_eq!(told.lock().expect("not poisoned").as_deref(), Some("planted"));
    close(log);
}

/// What queues up during a disk write goes out with one fsync, and each caller still hears of its own entries.
#[tokio::test]
#[expect(clippy::await_holding_lock, reason = "it holds up the writer's thread, on which nothing here waits")]
async fn waiting_appends_share_one_fsync() {
    let bench = Bench::new();
    let (gate, tries) = (Arc::new(Mutex::new(())), Arc::new(AtomicU64::new(0)));
    let (gated, counting) = (gate.clone(), tries.clone());
    let disk = Arc::new(SyncsBy(move |file: &File| {
        drop(gated.lock().expect("not poisoned"));
        counting.fetch_add(1, Ordering::SeqCst);
        file.sync_data()
    }));
    let mut log = bench.open_as(OWNER, disk).expect("opens");
    let before = tries.load(Ordering::SeqCst);
    let mut waiting = Vec::new();
    {
        let _closed = gate.lock().expect("not poisoned");
        for n in 0..50 {
            let (done, durable) = Rota::oneshot();
            log.append(vec![entry(1, n, 10)], IOFlushed::signal(done)).await.expect("taken");
            // Readable before it is durable: replication does not wait for the local disk.
            assert_eq!(entries(&mut log).await.len() as u64, n + 1);
            waiting.push(durable);
        }
    }
    for durable in waiting {
        durable.await.expect("answered").expect("durable");
    }
    // The first may have gone out alone; all others went with at most two more.
    assert!(tries.load(Ordering::SeqCst) - before <= 3);
    close(log);
}

/// A crash between a seal and the next segment: the log goes on in a new one.
#[tokio::test]
async fn a_log_that_ends_with_its_seal_goes_on() {
    let bench = Bench::new();
    let mut log = bench.open().expect("opens");
    let mut next = 0;
    while segment::list(&bench.dir).expect("lists").len() < 2 {
        append(&mut log, vec![entry(1, next, 1_000)]).await.expect("durable");
        next += 1;
    }
    close(log);
    std::fs::remove_file(bench.last_segment()).expect("removed");
    let mut log = bench.open().expect("opens");
    let kept = entries(&mut log).await.len() as u64;
    assert!(kept < next);
    append(&mut log, vec![entry(1, kept, 10)]).await.expect("durable");
    close(log);
    let mut log = bench.open().expect("opens");
    assert_eq!(entries(&mut log).await.len() as u64, kept + 1);
    close(log);
}
