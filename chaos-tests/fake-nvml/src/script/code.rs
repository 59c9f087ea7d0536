//! Return codes of the C interface that scripts use.

/// Success.
pub const SUCCESS: u32 = 0;
/// The library was not started.
pub const UNINITIALIZED: u32 = 1;
/// The argument names nothing.
pub const INVALID_ARGUMENT: u32 = 2;
/// The card cannot do this.
pub const NOT_SUPPORTED: u32 = 3;
/// The caller may not.
pub const NO_PERMISSION: u32 = 4;
/// Nothing of this name.
pub const NOT_FOUND: u32 = 6;
/// The caller's buffer is too small.
pub const INSUFFICIENT_SIZE: u32 = 7;
/// The card's power cable is missing.
pub const INSUFFICIENT_POWER: u32 = 8;
/// The kernel module is not loaded.
pub const DRIVER_NOT_LOADED: u32 = 9;
/// Nothing came in time.
pub const TIMEOUT: u32 = 10;
/// Interrupts do not arrive.
pub const IRQ_ISSUE: u32 = 11;
/// The driver does not know the function.
pub const FUNCTION_NOT_FOUND: u32 = 13;
/// What is stored on the card is damaged.
pub const CORRUPTED_INFOROM: u32 = 14;
/// The card fell off the bus.
pub const GPU_IS_LOST: u32 = 15;
/// The card must be reset.
pub const RESET_REQUIRED: u32 = 16;
/// The operating system is in the way.
pub const OPERATING_SYSTEM: u32 = 17;
/// Kernel module and library differ.
pub const LIB_RM_VERSION_MISMATCH: u32 = 18;
/// Somebody uses it.
pub const IN_USE: u32 = 19;
/// No memory.
pub const MEMORY: u32 = 20;
/// Nothing to tell.
pub const NO_DATA: u32 = 21;
/// Anything.
pub const UNKNOWN: u32 = 999;
