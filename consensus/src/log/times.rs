//! How long the log's disk takes: the fsyncs of the last seconds, and one that is still under way. What was slow is
//! forgotten with time, and a disk that stands still is seen before it answers.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// Fsync times that are remembered: at a thousand a second, the last quarter of a second.
const TIMES: usize = 256;
/// For how long they are, at most.
const WINDOW: Duration = Duration::from_secs(10);

/// How a disk does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DiskPace {
    /// 99th percentile of the recent fsyncs; zero if there were none.
    pub p99: Duration,
    /// The longest of them, or the one under way.
    pub worst: Duration,
    /// How many took longer than the caller's measure, the one under way included.
    pub slow: usize,
    /// The disk refused room for log entries.
    pub full: bool,
}

/// The last fsync times of the log.
#[derive(Default)]
pub(crate) struct FsyncTimes(Mutex<Times>);

#[derive(Default)]
struct Times {
    /// When each ended, and how long it took.
    done: VecDeque<(Instant, Duration)>,
    begun: Option<Instant>,
}

impl FsyncTimes {
    fn lock(&self) -> MutexGuard<'_, Times> {
        // Nothing panics while it holds this lock half-way.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An fsync begins.
    pub(crate) fn begin(&self) {
        self.lock().begun = Some(Instant::now());
    }

    /// It is done.
    pub(crate) fn end(&self) {
        let mut times = self.lock();
        if let Some(begun) = times.begun.take() {
            times.add(Instant::now(), begun.elapsed());
        }
    }

    /// How the disk does, measured by what its caller calls slow.
    pub(crate) fn pace(&self, slow_above: Duration) -> DiskPace {
        self.lock().pace(Instant::now(), slow_above)
    }
}

impl Times {
    fn add(&mut self, now: Instant, time: Duration) {
        if self.done.len() == TIMES {
            self.done.pop_front();
        }
        self.done.push_back((now, time));
    }

    fn pace(&mut self, now: Instant, slow_above: Duration) -> DiskPace {
        while self.done.front().is_some_and(|(ended, _)| now.duration_since(*ended) > WINDOW) {
            self.done.pop_front();
        }
        let mut times: Vec<_> = self.done.iter().map(|(_, time)| *time).collect();
        // One that goes on is no measure yet, unless it is slow already.
        times.extend(self.begun.map(|begun| now.duration_since(begun)).filter(|time| *time > slow_above));
        times.sort_unstable();
        DiskPace {
            p99: percentile_99(&times),
            worst: times.last().copied().unwrap_or_default(),
            slow: times.iter().filter(|time| **time > slow_above).count(),
            full: false,
        }
    }
}

/// The 99th percentile of sorted times; zero if there are none.
pub(crate) fn percentile_99(sorted: &[Duration]) -> Duration {
    let position = (sorted.len() * 99).div_ceil(100).saturating_sub(1);
    sorted.get(position).copied().unwrap_or_default()
}

/// Writes that measure a disk, and how long they may take together.
const PROBES: usize = 100;
const PROBE_LIMIT: Duration = Duration::from_millis(300);

/// The 99th percentile of fsyncs of small writes in a directory, as the log makes them: over a file whose room is there
/// already. Takes up to 0.3 s, or as long as one fsync.
///
/// # Errors
/// The directory cannot be written.
pub fn fsync_pace(dir: &Path) -> io::Result<Duration> {
    std::fs::create_dir_all(dir)?;
    let path = dir.join("pace.tmp");
    let measured = probe(&path);
    let removed = std::fs::remove_file(&path);
    let times = measured?;
    removed?;
    Ok(percentile_99(&times))
}

fn probe(path: &Path) -> io::Result<Vec<Duration>> {
    let page = [0; 4_096];
    let file = File::options().create(true).truncate(true).write(true).open(path)?;
    file.write_all_at(&page, 0)?;
    file.sync_all()?;
    let begun = Instant::now();
    let mut times = Vec::with_capacity(PROBES);
    while times.len() < PROBES && (times.is_empty() || begun.elapsed() < PROBE_LIMIT) {
        file.write_all_at(&page, 0)?;
        let sync = Instant::now();
        file.sync_data()?;
        times.push(sync.elapsed());
    }
    times.sort_unstable();
    Ok(times)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_disk_is_measured_and_nothing_is_left_behind() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("raft");
        let pace = fsync_pace(&place).unwrap();
        assert!(pace > Duration::ZERO && pace < 60 * 1_000 * MS, "{pace:?}");
        assert_eq!(std::fs::read_dir(&place).unwrap().count(), 0);
        std::fs::write(dir.path().join("file"), "").unwrap();
        assert!(fsync_pace(&dir.path().join("file")).is_err());
    }

    #[test]
    fn what_was_slow_is_forgotten_and_what_stands_still_is_seen() {
        let (mut times, start) = (Times::default(), Instant::now());
        let slow_above = 150 * MS;
        assert_eq!(times.pace(start, slow_above), DiskPace::default());
        for _ in 0..99 {
            times.add(start, MS);
        }
        times.add(start, 200 * MS);
        let pace = times.pace(start, slow_above);
        assert_eq!(
            (pace.p99, pace.worst, pace.slow),
            (MS, 200 * MS, 1),
            "one in a hundred is above the 99th"
        );
        times.add(start, 300 * MS);
        let pace = times.pace(start, slow_above);
        assert_eq!((pace.p99, pace.slow), (200 * MS, 2));
        assert_eq!(times.pace(start + WINDOW + MS, slow_above), DiskPace::default());

        times.begun = Some(start);
        assert_eq!(times.pace(start + 150 * MS, slow_above).slow, 0);
        let pace = times.pace(start + 5_000 * MS, slow_above);
        assert_eq!((pace.p99, pace.slow), (5_000 * MS, 1));
    }
}
