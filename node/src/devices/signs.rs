//! What cards say of their own wellbeing, as raw facts: memory errors, remapped rows, slowed clocks, the driver's advice,
//! Xids, processes. What follows from them for placement is decided elsewhere.

use rota_protocol::ids::DeviceUuid;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Most Xids kept of one card between two looks: a card that floods says the same again and again.
pub const XIDS_MAX: usize = 64;
/// Most processes told of one card.
pub const PROCESSES_MAX: usize = 1_024;

/// Signs of the physical cards, by their UUIDs: slices share those of their card.
pub type Signs = BTreeMap<DeviceUuid, DeviceSigns>;

/// What one card says of itself at one look. What it does not tell is absent, never zero.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceSigns {
    /// Counts of memory errors.
    pub ecc: EccCounts,
    /// Rows of memory that were, or are to be, replaced by spare ones.
    pub remap: RowRemap,
    /// Why it is slower than it could be.
    pub throttle: Option<Throttle>,
    /// Clock of the multiprocessors and the most it can be, in MHz.
    pub clock_mhz: Option<(u32, u32)>,
    /// What the driver advises.
    pub recovery: Option<Recovery>,
    /// Xids since the last look, oldest first, as the library's events told them. The library may tell the newest one
    /// several times instead of each one; the kernel's messages are the fuller source.
    pub xids: Vec<u32>,
    /// A call said that the card must be reset.
    pub reset_required: bool,
    /// A call said that the card fell off the bus.
    pub lost: bool,
    /// Who uses it; absent when the driver does not tell.
    pub processes: Option<Vec<CardProcess>>,
    /// Busy share of the compute units.
    pub busy_permille: Option<u16>,
    /// Fast links to other cards.
    pub links: LinkSigns,
}

/// A card's fast links.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkSigns {
    /// How many are up; absent where it has none, or does not tell.
    pub up: Option<u32>,
    /// Errors that made a link start anew or send again, over all that are up. May go backwards: a reset, or a link less.
    pub errors: Option<u64>,
}

/// Counts of memory errors. They may go backwards: a volatile count begins anew with the driver, either at a reset.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EccCounts {
    /// Corrected since the driver was loaded.
    pub volatile_corrected: Option<u64>,
    /// Not corrected since the driver was loaded.
    pub volatile_uncorrected: Option<u64>,
    /// Corrected in the card's life.
    pub aggregate_corrected: Option<u64>,
    /// Not corrected in the card's life.
    pub aggregate_uncorrected: Option<u64>,
}

impl EccCounts {
    /// How much each count grew since an earlier look. One that is less than before was reset, which is no error: it
    /// grew by nothing. One that either look did not have is absent.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let grown = |now: Option<u64>, before: Option<u64>| Some(now?.saturating_sub(before?));
        Self {
            volatile_corrected: grown(self.volatile_corrected, earlier.volatile_corrected),
            volatile_uncorrected: grown(self.volatile_uncorrected, earlier.volatile_uncorrected),
            aggregate_corrected: grown(self.aggregate_corrected, earlier.aggregate_corrected),
            aggregate_uncorrected: grown(self.aggregate_uncorrected, earlier.aggregate_uncorrected),
        }
    }
}

/// Remapped rows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowRemap {
    /// Rows replaced after corrected errors.
    pub corrected: Option<u32>,
    /// Rows replaced after uncorrected errors.
    pub uncorrected: Option<u32>,
    /// A row is to be replaced at the next reset. The card works until then.
    pub pending: Option<bool>,
    /// A row could not be replaced: the card is worn out.
    pub failed: Option<bool>,
}

/// Why a card is slower than it could be: the driver's bits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Throttle(pub u64);

impl Throttle {
    /// The hardware slows down, for whatever reason.
    #[must_use]
    pub fn hw_slowdown(self) -> bool {
        self.0 & 0x8 != 0
    }

    /// It is hot, say the hardware or the driver.
    #[must_use]
    pub fn thermal(self) -> bool {
        self.0 & (0x20 | 0x40) != 0
    }

    /// The power supply asks to slow down.
    #[must_use]
    pub fn power_brake(self) -> bool {
        self.0 & 0x80 != 0
    }

    /// The power cap holds it back.
    #[must_use]
    pub fn power_cap(self) -> bool {
        self.0 & 0x4 != 0
    }

    /// There is any reason: also idling, an operator's clocks, a power cap, cards that are kept in step.
    #[must_use]
    pub fn is_explained(self) -> bool {
        self.0 != 0
    }

    /// Any of the reasons that say that something is wrong; idle clocks and power caps do not.
    #[must_use]
    pub fn is_trouble(self) -> bool {
        self.hw_slowdown() || self.thermal() || self.power_brake()
    }
}

/// What the driver advises (its field 230).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Recovery {
    /// Nothing.
    None,
    /// Reset the card.
    Reset,
    /// Reboot the host.
    Reboot,
    /// End what talks to other cards, then look again.
    DrainP2p,
    /// End all work on the card, then reset it.
    DrainAndReset,
    /// Something that a newer driver knows.
    Other(u32),
}

impl Recovery {
    /// From the driver's number.
    #[must_use]
    pub fn of(number: u32) -> Self {
        match number {
            0 => Self::None,
            1 => Self::Reset,
            2 => Self::Reboot,
            3 => Self::DrainP2p,
            4 => Self::DrainAndReset,
            other => Self::Other(other),
        }
    }
}

/// A process on a card.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct CardProcess {
    /// Its number in the host's namespace.
    pub pid: u32,
    /// Memory it holds on the card, in MiB, rounded up; absent when the driver does not tell.
    pub vram_mib: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_that_went_backwards_was_reset_and_is_no_error() {
        let counts = |volatile, aggregate| EccCounts {
            volatile_uncorrected: volatile,
            aggregate_uncorrected: aggregate,
            ..EccCounts::default()
        };
        let grown = counts(Some(3), Some(12)).since(&counts(Some(9), Some(10)));
        assert_eq!(grown, counts(Some(0), Some(2)));
        assert_eq!(counts(Some(3), None).since(&counts(None, Some(1))), EccCounts::default());
    }

    #[test]
    fn heat_and_brakes_are_trouble_and_idling_is_not() {
        let trouble = [0x8, 0x20, 0x40, 0x80, 0x48].map(|bits| Throttle(bits).is_trouble());
        assert_eq!(trouble, [true; 5]);
        assert!(!Throttle(0x1 | 0x2 | 0x4 | 0x10 | 0x100).is_trouble());
        assert_eq!((Recovery::of(4), Recovery::of(9)), (Recovery::DrainAndReset, Recovery::Other(9)));
    }
}
