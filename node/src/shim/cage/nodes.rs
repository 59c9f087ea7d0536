//! Which device nodes belong to what a task was granted: pure maps from what a driver says to paths, and the nodes that
//! everybody may open.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Kind of a device node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Block,
    Character,
}

/// A device node, or all of one major number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) kind: Kind,
    pub(super) major: u32,
    /// None for all.
    pub(super) minor: Option<u32>,
}

const fn character(major: u32, minor: Option<u32>) -> Node {
    Node { kind: Kind::Character, major, minor }
}

/// null, zero, full, random, urandom, tty, ptmx, and pseudo terminals.
pub(super) const COMMON: [Node; 8] = [
    character(1, Some(3)),
    character(1, Some(5)),
    character(1, Some(7)),
    character(1, Some(8)),
    character(1, Some(9)),
    character(5, Some(0)),
    character(5, Some(2)),
    character(136, None),
];
/// The same by name, for a `/dev` that holds nothing else.
pub(super) const COMMON_NAMES: [&str; 6] = ["null", "zero", "full", "random", "urandom", "tty"];

impl Node {
    /// The rule as the devices controller of version 1 reads it: may be read and written, not made.
    pub(super) fn rule(self) -> String {
        let kind = match self.kind {
            Kind::Block => 'b',
            Kind::Character => 'c',
        };
        match self.minor {
            Some(minor) => format!("{kind} {}:{minor} rw", self.major),
            None => format!("{kind} {}:* rw", self.major),
        }
    }

    /// What a path names; none if it is no device node.
    pub(super) fn of(path: &Path) -> Option<Self> {
        use std::os::unix::fs::{FileTypeExt, MetadataExt};
        let metadata = std::fs::metadata(path).ok()?;
        let kind = match metadata.file_type() {
            kind if kind.is_char_device() => Kind::Character,
            kind if kind.is_block_device() => Kind::Block,
            _ => return None,
        };
        let number = metadata.rdev();
        let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
        Some(Self { kind, major, minor: Some(minor) })
    }
}

/// The nodes behind these paths; what is not there is left out.
pub(super) fn nodes_at(paths: &[Vec<u8>]) -> Vec<Node> {
    let at = |path: &Vec<u8>| Node::of(Path::new(OsStr::from_bytes(path)));
    paths.iter().filter_map(at).collect()
}

/// A granted device as its driver names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Granted<'a> {
    /// A card by the driver's minor number, which is not its index.
    Card {
        /// The number.
        minor: u32,
    },
    /// A slice of a card: what it is reached by lies beside the card itself.
    Slice {
        /// The card's number.
        minor: u32,
        /// Capability nodes of the GPU instance and the compute instance.
        caps: [u32; 2],
    },
    /// Anything else, by the path that the operator described.
    Described(&'a Path),
}

/// The nodes to open for these devices; what all cards share is added once. `folder` is `/dev`.
#[must_use]
pub fn of_grant(folder: &Path, granted: &[Granted<'_>]) -> Vec<PathBuf> {
    let mut nodes = Vec::new();
    let mut cards = false;
    for device in granted {
        match device {
            Granted::Card { minor } => {
                cards = true;
                nodes.push(folder.join(format!("nvidia{minor}")));
            }
            Granted::Slice { minor, caps } => {
                cards = true;
                nodes.push(folder.join(format!("nvidia{minor}")));
                nodes.extend(caps.iter().map(|cap| folder.join(format!("nvidia-caps/nvidia-cap{cap}"))));
            }
            Granted::Described(path) => nodes.push((*path).to_owned()),
        }
    }
    if cards {
        nodes.extend(["nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"].map(|name| folder.join(name)));
    }
    nodes.sort();
    nodes.dedup();
    nodes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(granted: &[Granted<'_>]) -> Vec<String> {
        of_grant(Path::new("/dev"), granted).iter().map(|path| path.display().to_string()).collect()
    }

    #[test]
    fn nothing_granted_opens_nothing_and_cards_bring_what_they_share() {
        assert!(names(&[]).is_empty());
        let shared =
            ["/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia1", "/dev/nvidia7", "/dev/nvidiactl"];
        assert_eq!(names(&[Granted::Card { minor: 7 }, Granted::Card { minor: 1 }]), shared);
        let slice = names(&[Granted::Slice { minor: 0, caps: [12, 13] }]);
        assert!(slice.contains(&"/dev/nvidia-caps/nvidia-cap12".to_owned()), "{slice:?}");
        assert!(slice.contains(&"/dev/nvidia0".to_owned()) && slice.len() == 6, "{slice:?}");
        let fpga = Path::new("/dev/xclmgmt0");
        assert_eq!(names(&[Granted::Described(fpga), Granted::Described(fpga)]), ["/dev/xclmgmt0"]);
    }

    #[test]
    fn rules_name_kind_and_number_and_files_are_no_devices() {
        assert_eq!(Node::of(Path::new("/dev/null")), Some(COMMON[0]));
        assert_eq!(COMMON[0].rule(), "c 1:3 rw");
        assert_eq!(COMMON[7].rule(), "c 136:* rw");
        assert_eq!(Node::of(Path::new("/proc/self/stat")), None);
    }
}
