//! What a task needs. Every field but the preferences is a hard condition; zero or empty means "not asked".

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A whole card, in thousandths.
pub const CARD_MILLI: u32 = 1_000;

/// The needs of one task, all on one host.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Ask {
    /// GPUs in thousandths of a card: a multiple of 1,000 for whole cards, or 1 to 999 for a share of the cores of
    /// one card that others of the same tenant may share.
    pub gpu_milli: u32,
    /// Accepted models; a card fits when its model contains one of them, letter case aside. Empty: any.
    pub gpu_models: Vec<String>,
    /// Models in order of preference, matched like `gpu_models`. No condition: a card of another model fits too.
    pub gpu_models_preferred: Vec<String>,
    /// Least memory of each whole card, or memory held on the shared card, in MiB. A share that names none holds its
    /// part of the card's memory.
    pub vram_mib: u64,
    /// Least compute capability in tenths, such as 80 for 8.0.
    pub compute_cap_min: u16,
    /// CPU in thousandths of a core.
    pub cpus_milli: u32,
    /// Memory in MiB.
    pub mem_mib: u64,
    /// Other devices by kind and count, such as `fpga: 1`; a kind may name a model after a colon, such as
    /// `mig:1g.10gb: 2`.
    pub devices: BTreeMap<String, u32>,
    /// Host labels that must have exactly these values.
    pub labels: BTreeMap<String, String>,
}

impl Ask {
    /// Cards that the task touches: whole ones, or the one that it shares.
    #[must_use]
    pub fn gpus(&self) -> u32 {
        self.gpu_milli.div_ceil(CARD_MILLI)
    }

    /// The asked share of one card in thousandths, if it is less than a whole card.
    #[must_use]
    pub fn share_milli(&self) -> Option<u32> {
        (1..CARD_MILLI).contains(&self.gpu_milli).then_some(self.gpu_milli)
    }

    /// What is taken of each card, in thousandths.
    #[must_use]
    pub fn card_milli(&self) -> u32 {
        self.gpu_milli.min(CARD_MILLI)
    }

    /// Memory held on a card of `card_mib`: all of a whole card; of a shared one what is asked, or else its part
    /// (rounded up). In MiB.
    #[must_use]
    pub fn vram_held_mib(&self, card_mib: u64) -> u64 {
        match self.share_milli() {
            None => card_mib,
            Some(_) if self.vram_mib > 0 => self.vram_mib,
            Some(milli) => (card_mib * u64::from(milli)).div_ceil(u64::from(CARD_MILLI)),
        }
    }
}
