//! What a task needs. Every field is a hard condition; zero or empty means "not asked".

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The needs of one task, all on one host.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Ask {
    /// GPUs in thousandths of a card. Whole cards only for now: a multiple of 1,000.
    pub gpu_milli: u32,
    /// Accepted models; a card fits when its model contains one of them, letter case aside. Empty: any.
    pub gpu_models: Vec<String>,
    /// Least memory of each card, in MiB.
    pub vram_mib: u64,
    /// CPU in thousandths of a core.
    pub cpus_milli: u32,
    /// Memory in MiB.
    pub mem_mib: u64,
    /// Other devices by kind and count, such as `fpga: 1`.
    pub devices: BTreeMap<String, u32>,
    /// Host labels that must have exactly these values.
    pub labels: BTreeMap<String, String>,
}

impl Ask {
    /// Whole GPUs asked.
    #[must_use]
    pub fn gpus(&self) -> u32 {
        self.gpu_milli / 1_000
    }
}
