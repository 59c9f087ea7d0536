//! What one shim holds open of its spare groups from one attempt to the next: their folders and files. To find a file by
//! its path, and to open and close it, costs several times what is then read or written.
//!
//! Only one shim at a time has a number (`pool`), so a spare group that bears it, and that is found by its name when it is
//! claimed, is the one that this shim left. Whatever else happens to a group, what was open of it is let go.

use super::pool::Spare;
use rota_protocol::cage::Controller;
use rustix::fd::{AsRawFd, OwnedFd, RawFd};
use rustix::fs::{Mode, OFlags, openat};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Longest content that is read: figures, and lists of which only the beginning matters.
const READ_BYTES: usize = 512;
/// Where a single thread joins a group of version 1.
pub(super) const JOIN: &str = "tasks";

/// Folders and files of one shim's spare groups.
#[derive(Debug, Default)]
pub(crate) struct Held {
    /// There may be a next attempt.
    keeps: bool,
    own: bool,
    groups: Vec<(Controller, Open)>,
    /// The group of all attempts without a device.
    shared: Option<(PathBuf, File)>,
}

#[derive(Debug)]
struct Open {
    /// The folder in which it is renamed.
    base: OwnedFd,
    folder: OwnedFd,
    files: Vec<(&'static str, File)>,
}

impl Held {
    /// For a shim that may serve again, or not.
    pub(crate) fn new(keeps: bool) -> Self {
        Self { keeps, ..Self::default() }
    }

    /// The spare groups that are used from here on.
    pub(super) fn turn_to(&mut self, spare: Spare) {
        if self.own != spare.own {
            self.groups.clear();
        }
        self.own = spare.own;
    }

    /// Gives a group another name beside its own.
    pub(super) fn rename(&mut self, controller: Controller, from: &Path, to: &Path) -> bool {
        let names = from.file_name().zip(to.file_name());
        let renamed = match (self.find(controller), names) {
            (Some(open), Some((from, to))) => rustix::fs::renameat(&open.base, from, &open.base, to).is_ok(),
            _ => fs::rename(from, to).is_ok(),
        };
        if !renamed {
            self.forget(controller);
        }
        renamed
    }

    /// What is open of this group is of no use any more.
    pub(super) fn forget(&mut self, controller: Controller) {
        self.groups.retain(|(held, _)| *held != controller);
    }

    /// Opens a group's folder, if that may be of use again.
    pub(super) fn open(&mut self, controller: Controller, path: &Path) {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        if !self.keeps || self.find(controller).is_some() {
            return;
        }
        let open = |path: &Path| rustix::fs::open(path, flags, Mode::empty()).ok();
        if let Some((base, folder)) = path.parent().and_then(open).zip(open(path)) {
            self.groups.push((controller, Open { base, folder, files: Vec::new() }));
        }
    }

    /// Writes one of a group's files.
    pub(super) fn write(
        &mut self,
        controller: Controller,
        path: &Path,
        name: &'static str,
        text: impl AsRef<[u8]>,
    ) -> io::Result<()> {
        match self.file(controller, name)? {
            Some(file) => file.write_all_at(text.as_ref(), 0),
            None => {
                io::Write::write_all(&mut File::options().write(true).open(path.join(name))?, text.as_ref())
            }
        }
    }

    /// Reads one of a group's figures.
    pub(super) fn read(
        &mut self,
        controller: Controller,
        path: &Path,
        name: &'static str,
    ) -> io::Result<String> {
        let mut bytes = [0; READ_BYTES];
        let len = match self.file(controller, name)? {
            Some(file) => file.read_at(&mut bytes, 0)?,
            None => File::open(path.join(name))?.read(&mut bytes)?,
        };
        Ok(String::from_utf8_lossy(&bytes[..len]).into_owned())
    }

    /// No process is in it. Its list is opened each time: the kernel shows one that is read again as it was before.
    pub(super) fn is_empty(&mut self, controller: Controller, path: &Path) -> io::Result<bool> {
        const LIST: &str = "cgroup.procs";
        let mut list = match self.find(controller) {
            Some(open) => {
                File::from(openat(&open.folder, LIST, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
            }
            None => File::open(path.join(LIST))?,
        };
        Ok(list.read(&mut [0; 1])? == 0)
    }

    /// Links of its folder: those of folders below, too.
    pub(super) fn links(&mut self, controller: Controller, path: &Path) -> io::Result<u64> {
        match self.find(controller) {
            Some(open) => Ok(rustix::fs::fstat(&open.folder)?.st_nlink),
            None => Ok(fs::symlink_metadata(path)?.nlink()),
        }
    }

    /// Where a task joins a group, already open; none where it is to be looked for. Open for as long as this lives.
    pub(super) fn join(&self, controller: Controller) -> Option<RawFd> {
        let (_, open) = self.groups.iter().find(|(held, _)| *held == controller)?;
        let (_, file) = open.files.iter().find(|(name, _)| *name == JOIN)?;
        Some(file.as_raw_fd())
    }

    /// The same for the group of all attempts without a device.
    pub(super) fn join_shared(&self, path: &Path) -> Option<RawFd> {
        self.shared.as_ref().filter(|(held, _)| held == path).map(|(_, file)| file.as_raw_fd())
    }

    /// Opens what a task joins by.
    pub(super) fn open_join(&mut self, controller: Controller) {
        // Without it the task looks for it.
        let _ = self.file(controller, JOIN);
    }

    /// The same for the group of all attempts without a device.
    pub(super) fn open_shared(&mut self, path: &Path) {
        if self.keeps && self.join_shared(path).is_none() {
            let file = File::options().write(true).open(path.join(JOIN));
            self.shared = file.ok().map(|file| (path.to_owned(), file));
        }
    }

    fn find(&mut self, controller: Controller) -> Option<&mut Open> {
        self.groups.iter_mut().find(|(held, _)| *held == controller).map(|(_, open)| open)
    }

    /// A file of a group of which something is open; opened now if it was not before.
    fn file(&mut self, controller: Controller, name: &'static str) -> io::Result<Option<&mut File>> {
        let Some(open) = self.find(controller) else { return Ok(None) };
        let at = open.files.iter().position(|(held, _)| *held == name);
        let at = match at {
            Some(at) => at,
            None => {
                let either = |flags| openat(&open.folder, name, flags | OFlags::CLOEXEC, Mode::empty());
                // Some can only be read; those that can be written are mostly only written.
                let file = either(OFlags::RDWR).or_else(|_| either(OFlags::RDONLY))?;
                open.files.push((name, file.into()));
                open.files.len() - 1
            }
        };
        Ok(open.files.get_mut(at).map(|(_, file)| file))
    }
}
