//! Words about the lead: who may have it, and that it moved.

use crate::ids::HostId;
use serde::{Deserialize, Serialize};

/// What one peer asks another about the lead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum LeadAsk {
    /// Would you take it just now? Refused with the reason if not.
    Fit,
    /// You lead: hand it to this host, or to whoever is best; for an operator who asked elsewhere.
    Move {
        /// Whom.
        to: Option<HostId>,
    },
}

/// What it answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum LeadNews {
    /// It would take it.
    Fit,
    /// Done.
    Moved(LeadMoved),
}

/// A lead that was handed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeadMoved {
    /// Who led.
    pub from: HostId,
    /// Who leads now; the same host if it led already.
    pub to: HostId,
    /// From the order until the old leader knew the new one, in ms.
    pub took_ms: u64,
}
