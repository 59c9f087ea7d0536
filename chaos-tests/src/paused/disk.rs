//! One life's disk: real files on memory, of which only what was synced survives a crash, and which may be slow, full,
//! failing, lying, or the last thing that a process touched.

use super::air::Air;
use super::trace::Trace;
use crate::world::rng::Rng;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use rota_consensus::disk::{Disk, Step};
use rota_protocol::HostId;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// What is wrong with a disk.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Ills {
    /// A sync takes so long, in us; none stands for a good disk's.
    pub(super) sync_us: Option<(u64, u64)>,
    /// The next sync fails.
    pub(super) sync_fails: bool,
    /// There is no room for new files.
    pub(super) full: bool,
    /// Nothing can be written (read-only).
    pub(super) read_only: bool,
    /// The process dies before the step, when it is met for the n-th time.
    pub(super) dies_at: Option<(Step, u32)>,
    /// Votes are not made durable: a planted defect.
    pub(super) forgets_votes: bool,
}

/// A good disk's sync, in us.
const SYNC_US: (u64, u64) = (100, 900);

struct Inner {
    rng: Rng,
    ills: Ills,
    stalled_until: Option<Instant>,
    /// What survives, by inode.
    durable: BTreeMap<u64, Vec<u8>>,
    /// Names that survive.
    names: BTreeMap<PathBuf, u64>,
    /// Synced by the log's writer, not settled yet.
    pending: Vec<(u64, Vec<u8>)>,
    /// The next sync belongs to a segment that is being opened: the writer waits for it.
    opening: bool,
    /// Since the last sync there came a vote, and something else.
    voting: bool,
    writing: bool,
    dead: bool,
    met: BTreeMap<Step, u64>,
    pub(super) syncs: u64,
}

/// A disk of a life.
pub(super) struct FaultDisk {
    root: PathBuf,
    host: HostId,
    air: Air,
    trace: Trace,
    inner: Mutex<Inner>,
}

impl FaultDisk {
    /// The disk of a life whose files lie below `root`; all that is there is durable.
    pub(super) fn new(root: &Path, host: HostId, seed: u64, air: Air, trace: Trace) -> io::Result<Arc<Self>> {
        let mut inner = Inner {
            rng: Rng::new(seed),
            ills: Ills::default(),
            stalled_until: None,
            durable: BTreeMap::new(),
            names: BTreeMap::new(),
            pending: Vec::new(),
            opening: true,
            voting: false,
            writing: false,
            dead: false,
            met: BTreeMap::new(),
            syncs: 0,
        };
        for (path, ino) in files_below(root)? {
            inner.durable.insert(ino, std::fs::read(&path)?);
            inner.names.insert(path, ino);
        }
        Ok(Arc::new(Self { root: root.to_owned(), host, air, trace, inner: Mutex::new(inner) }))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes what is wrong with it.
    pub(super) fn ail(&self, change: impl FnOnce(&mut Ills)) {
        change(&mut self.lock().ills);
    }

    /// Syncs take until then.
    pub(super) fn stall(&self, time: Duration) {
        self.lock().stalled_until = Some(Instant::now() + time);
    }

    /// The process died at a step.
    pub(super) fn died(&self) -> bool {
        self.lock().dead
    }

    /// Steps that were met.
    pub(super) fn met(&self) -> BTreeMap<Step, u64> {
        self.lock().met.clone()
    }

    /// Nothing changes any more.
    pub(super) fn kill(&self) {
        self.lock().dead = true;
        self.air.off(self.host, true);
    }

    /// Writes what survived to `next`. What was not synced may survive in part, torn at any byte.
    pub(super) fn survive(&self, next: &Path) -> io::Result<&'static str> {
        let mut inner = self.lock();
        inner.dead = true;
        let now: BTreeMap<PathBuf, u64> = files_below(&self.root)?.into_iter().collect();
        let by_luck = inner.rng.chance(500);
        let names = if by_luck { now.clone() } else { inner.names.clone() };
        let places: BTreeMap<u64, PathBuf> = now.into_iter().map(|(path, ino)| (ino, path)).collect();
        let mut torn = "nothing was lost";
        std::fs::create_dir_all(next)?;
        for (name, ino) in names {
            let Ok(below) = name.strip_prefix(&self.root) else { continue };
            let current = places.get(&ino).map(std::fs::read).transpose()?;
            let kept = inner.durable.get(&ino).cloned();
            let bytes = match (kept, current) {
                (Some(kept), Some(current)) if kept != current => {
                    torn = "what was not synced was lost or torn";
                    tear(&mut inner.rng, kept, &current)
                }
                (Some(kept), _) => kept,
                (None, Some(current)) => tear(&mut inner.rng, Vec::new(), &current),
                (None, None) => continue,
            };
            let place = next.join(below);
            if let Some(parent) = place.parent() {
                std::fs::create_dir_all(parent)?;
            }
            std::fs::write(place, bytes)?;
        }
        Ok(torn)
    }
}

/// A file of which `kept` is durable and `current` was written.
fn tear(rng: &mut Rng, mut kept: Vec<u8>, current: &[u8]) -> Vec<u8> {
    kept.resize(current.len(), 0);
    let differs = |at: &usize| kept[*at] != current[*at];
    let Some(first) = (0..current.len()).find(differs) else { return kept };
    let last = (first..current.len()).rev().find(differs).unwrap_or(first);
    match rng.below(4) {
        0 => {}
        1 => kept.copy_from_slice(current),
        2 => {
            let cut = first + rng.below((last - first + 1) as u64) as usize;
            kept[first..cut].copy_from_slice(&current[first..cut]);
        }
        _ => {
            // Sectors reach the disk in any order.
            for sector in (first / 512)..=(last / 512) {
                let part = sector * 512..((sector + 1) * 512).min(current.len());
                if rng.chance(500) {
                    kept[part.clone()].copy_from_slice(&current[part]);
                }
            }
        }
    }
    kept
}

/// All files below a folder, with their inodes.
pub(super) fn files_below(root: &Path) -> io::Result<Vec<(PathBuf, u64)>> {
    let mut found = Vec::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                folders.push(entry.path());
            } else {
                found.push((entry.path(), entry.metadata()?.ino()));
            }
        }
    }
    found.sort();
    Ok(found)
}

fn off() -> io::Error {
    io::Error::other("the machine is off")
}

impl Disk for FaultDisk {
    fn before(&self, step: Step, path: &Path) -> io::Result<()> {
        let mut inner = self.lock();
        if inner.dead {
            return Err(off());
        }
        *inner.met.entry(step).or_default() += 1;
        inner.voting |= step == Step::Vote;
        inner.writing |=
            matches!(step, Step::Append | Step::Truncate | Step::Purge | Step::Activate | Step::Mark);
        match step {
            Step::Activate | Step::Recycle => {
                // A writer has waited for its earlier syncs before it opens the next segment or gives one up.
                let settled = std::mem::take(&mut inner.pending);
                inner.durable.extend(settled);
                inner.opening = step == Step::Activate;
            }
            Step::Vote | Step::Append | Step::Truncate | Step::Purge => inner.opening = false,
            _ => {}
        }
        if let Some((fatal, times)) = inner.ills.dies_at
            && fatal == step
        {
            inner.ills.dies_at = (times > 1).then_some((fatal, times - 1));
            if times <= 1 {
                inner.dead = true;
                drop(inner);
                self.trace.note(format_args!("host {} dies before {step:?}", self.host));
                self.air.off(self.host, true);
                return Err(off());
            }
        }
        let needs_room = matches!(step, Step::Spare | Step::Export | Step::Import);
        if inner.ills.full && needs_room {
            return Err(io::Error::new(
                io::ErrorKind::StorageFull,
                format!("no room for {}", path.display()),
            ));
        }
        if inner.ills.read_only && step != Step::Read {
            return Err(io::Error::new(io::ErrorKind::ReadOnlyFilesystem, "mounted read-only"));
        }
        Ok(())
    }

    fn sync(&self, file: &File) -> io::Result<()> {
        let mut inner = self.lock();
        if inner.dead {
            return Err(off());
        }
        inner.syncs += 1;
        if std::mem::take(&mut inner.ills.sync_fails) {
            return Err(io::Error::from_raw_os_error(rustix::io::Errno::IO.raw_os_error()));
        }
        let (voting, writing) = (inner.voting, inner.writing);
        (inner.voting, inner.writing) = (false, false);
        if inner.ills.forgets_votes && voting && !writing {
            return Ok(());
        }
        let meta = file.metadata()?;
        let mut bytes = vec![0; usize::try_from(meta.len()).unwrap_or(0)];
        file.read_exact_at(&mut bytes, 0).or_else(|_| reread(file, &mut bytes))?;
        let of_log = name_of(file).is_some_and(|path| path.extension().is_some_and(|end| end == "seg"));
        if of_log && !inner.opening {
            inner.pending.push((meta.ino(), bytes));
        } else {
            inner.durable.insert(meta.ino(), bytes);
        }
        Ok(())
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let mut inner = self.lock();
        if inner.dead {
            return Err(off());
        }
        inner.names.retain(|path, _| path.parent() != Some(dir));
        for entry in std::fs::read_dir(dir)? {
            let entry = entry?;
            if entry.file_type()?.is_file() {
                inner.names.insert(entry.path(), entry.metadata()?.ino());
            }
        }
        Ok(())
    }

    fn settled(&self) -> Option<BoxFuture<'static, io::Result<()>>> {
        None
    }
}

/// Files that are open for writing only are read by their name.
fn reread(file: &File, bytes: &mut Vec<u8>) -> io::Result<()> {
    *bytes = std::fs::read(name_of(file).ok_or_else(off)?)?;
    Ok(())
}

fn name_of(file: &File) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()
}

/// The disk as its owner hands it to the log: it settles in its own time.
pub(super) struct Paced(pub(super) Arc<FaultDisk>);

impl Disk for Paced {
    fn before(&self, step: Step, path: &Path) -> io::Result<()> {
        self.0.before(step, path)
    }

    fn sync(&self, file: &File) -> io::Result<()> {
        self.0.sync(file)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.0.sync_dir(dir)
    }

    fn settled(&self) -> Option<BoxFuture<'static, io::Result<()>>> {
        let disk = self.0.clone();
        let until = {
            let mut inner = disk.lock();
            let (low, high) = inner.ills.sync_us.unwrap_or(SYNC_US);
            let takes = Instant::now() + Duration::from_micros(inner.rng.range(low, high));
            inner.stalled_until.map_or(takes, |stalled| stalled.max(takes))
        };
        Some(
            async move {
                tokio::time::sleep_until(until).await;
                let dead = {
                    let mut inner = disk.lock();
                    if !inner.dead {
                        let settled = std::mem::take(&mut inner.pending);
                        inner.durable.extend(settled);
                    }
                    inner.dead
                };
                if dead {
                    // Whoever waited for it died with the machine.
                    std::future::pending::<()>().await;
                }
                Ok(())
            }
            .boxed(),
        )
    }
}
