//! Thin layers over the kernel: clocks, `/proc`, durable files, and the few calls that have no safe wrapper.

pub mod clock;
pub mod durable;
pub mod ffi;
pub mod interfaces;
pub mod kmsg;
pub mod lock;
pub mod proc;
pub mod tell;
pub mod usage;
