//! Bits of the clocks' throttle reasons.

/// The hardware slows the card down, for whatever reason.
pub const HW_SLOWDOWN: u64 = 0x8;
/// The driver slows the card down because it is hot.
pub const SW_THERMAL: u64 = 0x20;
/// The hardware slows the card down because it is hot.
pub const HW_THERMAL: u64 = 0x40;
/// The power supply asks the card to slow down.
pub const POWER_BRAKE: u64 = 0x80;
