//! What makes files durable: the kernel in the product, and in tests a disk that is slow, full, failing or forgetful.
//!
//! What this is not: a file system. Bytes go to real files at once; this is asked before each step that changes them,
//! and told when something must survive a crash.

use futures_util::future::BoxFuture;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// A step that changes files. Between any two of them a process may die.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Step {
    /// A vote goes into the log.
    Vote,
    /// An entry goes into the log.
    Append,
    /// Entries of the log are void.
    Truncate,
    /// Entries of the log are given up.
    Purge,
    /// A file for a further segment is filled with zeros.
    Spare,
    /// A spare becomes the next segment.
    Activate,
    /// A segment becomes a spare.
    Recycle,
    /// The mark is made that this host has voted.
    Mark,
    /// A snapshot of this peer is written.
    Export,
    /// A piece of another peer's snapshot is written.
    Import,
    /// A snapshot takes the place of the one that counts.
    Promote,
    /// A file is read, at start.
    Read,
}

/// A disk.
pub trait Disk: Send + Sync + 'static {
    /// Asked before a step.
    ///
    /// # Errors
    /// What the disk answers to the step.
    fn before(&self, step: Step, path: &Path) -> io::Result<()> {
        let _ = (step, path);
        Ok(())
    }

    /// Makes the bytes of a file durable.
    ///
    /// # Errors
    /// They may not be; it must not be tried again.
    fn sync(&self, file: &File) -> io::Result<()>;

    /// Makes the names in a directory durable.
    ///
    /// # Errors
    /// They may not be.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;

    /// `None` for a disk whose log is written by a thread of its own. Otherwise the log is written by a task, and what it
    /// synced counts as durable when the future has ended: that is how a simulated disk takes its time.
    fn settled(&self) -> Option<BoxFuture<'static, io::Result<()>>> {
        None
    }
}

/// The real one.
#[derive(Debug, Clone, Copy, Default)]
pub struct RealDisk;

impl Disk for RealDisk {
    fn sync(&self, file: &File) -> io::Result<()> {
        file.sync_data()
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        File::open(dir)?.sync_all()
    }
}

/// The real one, to be shared.
#[must_use]
pub fn real() -> Arc<dyn Disk> {
    Arc::new(RealDisk)
}

/// A disk whose syncs are a closure.
#[cfg(test)]
pub(crate) struct SyncsBy<F>(pub(crate) F);

#[cfg(test)]
impl<F: Fn(&File) -> io::Result<()> + Send + Sync + 'static> Disk for SyncsBy<F> {
    fn sync(&self, file: &File) -> io::Result<()> {
        self.0(file)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        RealDisk.sync_dir(dir)
    }
}
