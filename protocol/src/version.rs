//! The version of a cluster: the newest words that its log may hold. It is replicated, starts at [`FIRST`], and is raised
//! only when every host reads the next one; until then nothing that the older builds could not read is written.
//!
//! Checklist for a new kind of command after a release: append it to [`Command`], raise [`NEWEST`], name it in
//! [`needs`], write a golden file of the new format, and say in the changelog what the version brings.

use crate::command::{Command, LOG_FORMAT};

/// Where every cluster begins, and what hosts read that do not say.
pub const FIRST: u16 = LOG_FORMAT;
/// The newest that this build reads. It reads all before it.
pub const NEWEST: u16 = 3;

/// The version that brought a command: the format of the entry that carries it.
#[must_use]
pub fn needs(command: &Command) -> u16 {
    match command {
        Command::Trust { .. } => 3,
        _ => FIRST,
    }
}

/// What to do about a build that is too old, for the end of a message.
pub const OLDER_BUILD: &str = "this host's rota is older than its cluster: install the version that the other hosts run and start it again; nothing here was changed";
