//! What a card says of its wellbeing, as the script has it.

/// Counts of memory errors.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ecc {
    /// Corrected since the driver was loaded.
    pub volatile_corrected: u64,
    /// Not corrected since the driver was loaded.
    pub volatile_uncorrected: u64,
    /// Corrected in the card's life.
    pub aggregate_corrected: u64,
    /// Not corrected in the card's life.
    pub aggregate_uncorrected: u64,
}

/// A card's NVLinks, those that are up first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Links {
    /// How many it has.
    pub count: u32,
    /// How many of them are up.
    pub up: u32,
    /// Errors of each kind on each that is up.
    pub errors: u64,
}

/// How counts of memory errors grow by themselves.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ramp {
    /// Corrected errors a second.
    pub corrected_per_s: u64,
    /// Uncorrected errors a second.
    pub uncorrected_per_s: u64,
    /// Since this wall time, in ms.
    pub since_ms: u64,
}

/// Remapped rows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Remap {
    /// Rows remapped after corrected errors.
    pub corrected: u32,
    /// Rows remapped after uncorrected errors.
    pub uncorrected: u32,
    /// One waits for a reset.
    pub pending: bool,
    /// One could not be remapped.
    pub failed: bool,
}
