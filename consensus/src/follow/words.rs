//! What followers and their parents say, as the opaque bytes of a raft call. Decoding is bounded by a frame.

use crate::wire::{Chunk, WireAppend, WireId};
use serde::{Deserialize, Serialize};

/// What a follower asks.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Ask {
    /// What was committed behind this entry.
    Entries {
        /// The last one that the child has applied.
        after: Option<WireId>,
        /// The term of the newest leader that it knows.
        term: u64,
        /// How long to wait for something new, in ms.
        wait_ms: u32,
    },
    /// A piece of the newest snapshot.
    Piece {
        /// The last entry in the snapshot that was begun; none at the beginning.
        of: Option<WireId>,
        /// Where it begins.
        offset: u64,
    },
}

/// How the parent stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Standing {
    /// Steps from the leader.
    pub(crate) depth: u8,
    /// How long it has heard nothing from above, in ms.
    pub(crate) silent_ms: u64,
}

/// The state's rolling hash after the entry of an index: at equal indices all copies have the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Mark {
    pub(crate) index: u64,
    pub(crate) hash: u64,
}

/// What a parent answers.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Answer {
    /// Committed entries, or word of another leader.
    Entries {
        /// As the leader would have sent them.
        append: WireAppend,
        /// What the copy should be after the last of them.
        mark: Option<Mark>,
        /// Of the parent.
        standing: Standing,
    },
    /// Nothing new.
    Nothing(Standing),
    /// What comes next was cut away: the snapshot has it.
    Gap(Standing),
    /// The parent has not got so far itself.
    Behind(Standing),
    /// It has children enough.
    Full,
    /// A piece of the snapshot whose last entry is named.
    Piece {
        /// Of another snapshot than was asked for: begin anew.
        of: WireId,
        /// The piece.
        chunk: Chunk,
        /// Of the parent.
        standing: Standing,
    },
}
