//! Groups that are used again. Making and removing one costs the kernel more than all else that it does for a short
//! task, and each that was removed is cleared away by its workers later.
//!
//! Version 1 lets a group be renamed: the name is the claim. A spare group bears a number that the fork server lends to
//! one shim at a time; who succeeds in giving it the name of its attempt has it alone, and it bears no other name until its
//! attempt is over. So whoever looks for an attempt's groups, or for what a dead shim left, finds them as ever, and no
//! death in between leaves two with one group: what bears an attempt's name is ended and removed, what bears a number is
//! empty.
//!
//! A group is kept only when nothing of its attempt can be seen in it by the next: no process, no group below, next to no
//! memory, nothing counted that cannot be counted anew, and no task that could have written to its files. Limits are
//! written anew at each use. Tasks that own those files, as the agent's user does, have groups that only they use. All
//! else is removed, as are all spare groups when an agent starts, and the last with its agent.

use super::group::count;
use super::held::Held;
use rota_protocol::cage::Controller;
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// A spare group's name before its number.
pub(crate) const SPARE: &str = "spare-";
/// Most spare groups of a hierarchy: what runs beyond that many at once makes and removes its own.
const SPARES_MAX: u32 = 64;
/// Most spare groups of one agent: one of each number in each hierarchy in which they are kept, once for the agent's own
/// user and once for all others.
pub(crate) const SPARES_OF_AGENT_MAX: u64 = 2 * KEPT.len() as u64 * SPARES_MAX as u64;
/// Those hierarchies in which groups can be renamed and everything that is counted can be counted anew.
const KEPT: [Controller; 3] = [Controller::Memory, Controller::Pids, Controller::Cpu];
/// Memory that may still be counted in a spare group, in bytes: what the kernel holds ready for each processor. More
/// would be file caches of the attempt before.
const LEFT_BYTES_MAX: u64 = 1 << 20;
/// Links of a folder without folders.
const LINKS: u64 = 2;

/// Which spare groups are one attempt's to take and to leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Spare {
    /// Lent by the fork server.
    pub(crate) number: u32,
    /// The task runs as the agent's own user.
    pub(crate) own: bool,
}

impl Spare {
    /// Beside the attempt's own.
    fn path(self, group: &Path) -> Option<PathBuf> {
        let Self { number, own } = self;
        let own = if own { "own-" } else { "" };
        Some(group.parent()?.join(format!("{SPARE}{own}{number}")))
    }
}

/// Numbers of spare groups, each lent to one shim at a time.
#[derive(Debug, Default)]
pub(crate) struct Numbers {
    free: BTreeSet<u32>,
    next: u32,
}

impl Numbers {
    /// The lowest that is free; none when more shims live than spare groups are kept.
    pub(crate) fn lend(&mut self) -> Option<u32> {
        if let Some(number) = self.free.pop_first() {
            return Some(number);
        }
        let number = self.next;
        (number < SPARES_MAX).then(|| {
            self.next += 1;
            number
        })
    }

    /// The shim is gone.
    pub(crate) fn take_back(&mut self, number: Option<u32>) {
        self.free.extend(number);
    }
}

/// Groups of this hierarchy are used again.
pub(super) fn is_kept(controller: Controller) -> bool {
    KEPT.contains(&controller)
}

/// Gives a spare group the attempt's name. False if there is none of that number.
pub(super) fn claim(held: &mut Held, controller: Controller, path: &Path, spare: Spare) -> bool {
    spare.path(path).is_some_and(|spare| held.rename(controller, &spare, path))
}

/// What became of a group that its attempt is done with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kept {
    /// It is spare.
    Yes,
    /// It may be removed.
    No,
    /// A process is in it.
    Busy,
}

/// Makes a group spare, if it is as good as new.
pub(super) fn keep(held: &mut Held, controller: Controller, path: &Path, spare: Spare) -> Kept {
    match held.is_empty(controller, path) {
        Ok(true) => {}
        Ok(false) => return Kept::Busy,
        Err(_) => return Kept::No,
    }
    let flat = held.links(controller, path).is_ok_and(|links| links == LINKS);
    let counted = controller == Controller::Memory && !is_unmarked(held, path);
    let spare = spare.path(path).filter(|_| flat && !counted);
    if spare.is_some_and(|spare| held.rename(controller, path, &spare)) { Kept::Yes } else { Kept::No }
}

/// Nothing is counted in it that would be the next attempt's.
fn is_unmarked(held: &mut Held, path: &Path) -> bool {
    let mut read = |name| held.read(Controller::Memory, path, name);
    let used = read("memory.usage_in_bytes").ok().and_then(|text| text.trim().parse::<u64>().ok());
    let killed = read("memory.oom_control").map(|text| count(&text, "oom_kill"));
    used.is_some_and(|bytes| bytes <= LEFT_BYTES_MAX) && killed.is_ok_and(|killed| killed == 0)
}

/// Counts anew from here.
pub(super) fn begin_count(held: &mut Held, path: &Path) -> io::Result<()> {
    held.write(Controller::Memory, path, "memory.max_usage_in_bytes", "0")
}

/// Removes all spare groups of a folder.
pub(super) fn remove_spares(base: &Path) {
    for entry in fs::read_dir(base).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(SPARE) {
            // One that was claimed meanwhile bears another name.
            let _ = fs::remove_dir(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_lent_once_and_there_are_not_many() {
        let mut numbers = Numbers::default();
        let lent: Vec<_> = (0..SPARES_MAX).filter_map(|_| numbers.lend()).collect();
        assert_eq!(lent, (0..SPARES_MAX).collect::<Vec<_>>());
        assert_eq!(numbers.lend(), None);
        numbers.take_back(None);
        numbers.take_back(Some(9));
        numbers.take_back(Some(4));
        assert_eq!([numbers.lend(), numbers.lend(), numbers.lend()], [Some(4), Some(9), None]);
    }
}
