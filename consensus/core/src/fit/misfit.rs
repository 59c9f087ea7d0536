//! The first thing that keeps an ask off a host, with its numbers, and how amounts are written for people.

use std::fmt;

/// The first thing that keeps an ask off a host. `asks` and `has` are in the unit of the field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Misfit {
    /// The host has never registered: nothing is known of it.
    Joining,
    /// A label is absent or has another value.
    Label {
        /// The label as asked, `key=value`.
        asks: String,
    },
    /// Fewer GPUs than asked, whatever they are.
    GpuCount {
        /// Cards asked.
        asks: u32,
        /// Cards there.
        has: u32,
    },
    /// Enough GPUs, too few of an accepted model.
    GpuModel {
        /// Cards asked.
        asks: u32,
        /// Cards of an accepted model.
        has: u32,
    },
    /// Enough GPUs of an accepted model, too few with the memory asked.
    Vram {
        /// MiB asked of each card.
        asks: u64,
        /// The largest card of an accepted model, in MiB; 0 if none says.
        has: u64,
    },
    /// Enough GPUs of an accepted model, too few of the compute capability asked, in tenths.
    ComputeCap {
        /// Asked.
        asks: u16,
        /// The highest of an accepted model; 0 if none says.
        has: u16,
    },
    /// Fewer devices of another kind than asked.
    DeviceCount {
        /// Which kind.
        kind: String,
        /// Devices asked.
        asks: u32,
        /// Devices there.
        has: u32,
    },
    /// Less CPU than asked, in thousandths.
    Cpus {
        /// Asked.
        asks: u64,
        /// There.
        has: u64,
    },
    /// Less memory than asked, in MiB.
    Mem {
        /// Asked.
        asks: u64,
        /// There.
        has: u64,
    },
    /// Its lease expired.
    Lost,
    /// Drained by an operator.
    Draining,
    /// Launches fail there.
    Suspended,
    /// A fault of the host itself keeps work off it.
    Faulty,
    /// Jobs fail there that run well elsewhere.
    Shunned,
    /// Launches failed there and the one on trial has not started yet.
    Probation,
    /// Enough matching GPUs, too few of them healthy.
    GpusUnhealthy {
        /// Cards asked.
        asks: u32,
        /// Healthy cards that match.
        has: u32,
    },
    /// Enough healthy matching GPUs, but too few of them are fit for work over several cards.
    GpusDegraded {
        /// Cards asked.
        asks: u32,
        /// Cards that match and are fit for it.
        has: u32,
    },
    /// Enough healthy matching GPUs, too few of them free.
    GpusBusy {
        /// Cards asked.
        asks: u32,
        /// Free cards that match.
        has: u32,
    },
    /// No healthy matching card has the asked share free for this tenant, in thousandths.
    ShareBusy {
        /// Asked.
        asks: u32,
        /// The most that a card shared by this tenant has left.
        has: u32,
    },
    /// A card has the share free, but not the memory beside it.
    ShareVram,
    /// Enough devices of a kind, too few healthy and free.
    DevicesBusy {
        /// Which kind.
        kind: String,
        /// Devices asked.
        asks: u32,
        /// Healthy and free devices.
        has: u32,
    },
    /// Enough CPU, too little free, in thousandths.
    CpusBusy {
        /// Asked.
        asks: u64,
        /// Free.
        has: u64,
    },
    /// Enough memory, too little free, in MiB.
    MemBusy {
        /// Asked.
        asks: u64,
        /// Free.
        has: u64,
    },
    /// The devices named are not what the ask may take there.
    WrongDevices,
}

impl Misfit {
    /// Machine-readable name.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Joining => "joining",
            Self::Label { .. } => "label",
            Self::GpuCount { .. } => "gpu_count",
            Self::GpuModel { .. } => "gpu_model",
            Self::Vram { .. } => "vram",
            Self::ComputeCap { .. } => "compute_cap",
            Self::ShareBusy { .. } => "share_busy",
            Self::ShareVram => "share_vram",
            Self::DeviceCount { .. } => "device_count",
            Self::Cpus { .. } => "cpus",
            Self::Mem { .. } => "mem",
            Self::Lost => "lost",
            Self::Draining => "draining",
            Self::Suspended => "suspended",
            Self::Probation => "probation",
            Self::Faulty => "faulty",
            Self::Shunned => "shunned",
            Self::GpusDegraded { .. } => "gpus_degraded",
            Self::GpusUnhealthy { .. } => "gpus_unhealthy",
            Self::GpusBusy { .. } => "gpus_busy",
            Self::DevicesBusy { .. } => "devices_busy",
            Self::CpusBusy { .. } => "cpus_busy",
            Self::MemBusy { .. } => "mem_busy",
            Self::WrongDevices => "wrong_devices",
        }
    }

    /// What is asked and what is there, for those that count.
    #[must_use]
    pub fn numbers(&self) -> Option<(u64, u64)> {
        match self {
            Self::GpuCount { asks, has }
            | Self::GpuModel { asks, has }
            | Self::DeviceCount { asks, has, .. }
            | Self::GpusUnhealthy { asks, has }
            | Self::GpusDegraded { asks, has }
            | Self::GpusBusy { asks, has }
            | Self::ShareBusy { asks, has }
            | Self::DevicesBusy { asks, has, .. } => Some((u64::from(*asks), u64::from(*has))),
            Self::ComputeCap { asks, has } => Some((u64::from(*asks), u64::from(*has))),
            Self::Vram { asks, has }
            | Self::Cpus { asks, has }
            | Self::Mem { asks, has }
            | Self::CpusBusy { asks, has }
            | Self::MemBusy { asks, has } => Some((*asks, *has)),
            _ => None,
        }
    }

    /// No waiting helps: the host itself does not have it.
    #[must_use]
    pub fn is_lasting(&self) -> bool {
        matches!(
            self,
            Self::Label { .. }
                | Self::GpuCount { .. }
                | Self::GpuModel { .. }
                | Self::Vram { .. }
                | Self::ComputeCap { .. }
                | Self::DeviceCount { .. }
                | Self::Cpus { .. }
                | Self::Mem { .. }
        )
    }
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Joining => f.write_str("has not registered yet"),
            Self::Label { asks } => write!(f, "asks label {asks}"),
            Self::GpuCount { asks, has } => write!(f, "asks {}, has {has}", gpus(u64::from(*asks))),
            Self::GpuModel { asks, has } => {
                write!(f, "asks {} of the model, has {has}", gpus(u64::from(*asks)))
            }
            Self::Vram { asks, has } => {
                write!(f, "asks {} on each GPU, the largest has {}", mib(*asks), mib(*has))
            }
            Self::ComputeCap { asks, has } => {
                write!(f, "asks compute capability {}, the highest has {}", tenths(*asks), tenths(*has))
            }
            Self::ShareBusy { asks, has } => {
                write!(f, "asks {} of a card, {} free", milli(u64::from(*asks)), milli(u64::from(*has)))
            }
            Self::ShareVram => f.write_str("no shared card has the memory free beside the share"),
            Self::DeviceCount { kind, asks, has } => write!(f, "asks {asks} {kind}, has {has}"),
            Self::Cpus { asks, has } => {
                write!(f, "asks {} CPUs, has {}", milli(*asks), milli(*has))
            }
            Self::Mem { asks, has } => write!(f, "asks {} memory, has {}", mib(*asks), mib(*has)),
            Self::Lost => f.write_str("its lease expired"),
            Self::Draining => f.write_str("drained by an operator"),
            Self::Suspended => f.write_str("suspended because launches fail there"),
            Self::Faulty => f.write_str("taken out by a fault of the host"),
            Self::Shunned => f.write_str("shunned because jobs fail there that run well elsewhere"),
            Self::Probation => f.write_str("one launch at a time after failed launches"),
            Self::GpusUnhealthy { asks, has } => {
                write!(f, "asks {}, of those that match {has} healthy", gpus(u64::from(*asks)))
            }
            Self::GpusDegraded { asks, has } => {
                write!(f, "asks {} for work over several cards, {has} fit for that", gpus(u64::from(*asks)))
            }
            Self::GpusBusy { asks, has } => {
                write!(f, "asks {}, {has} free", gpus(u64::from(*asks)))
            }
            Self::DevicesBusy { kind, asks, has } => {
                write!(f, "asks {asks} {kind}, {has} free")
            }
            Self::CpusBusy { asks, has } => {
                write!(f, "asks {} CPUs, {} free", milli(*asks), milli(*has))
            }
            Self::MemBusy { asks, has } => {
                write!(f, "asks {} memory, {} free", mib(*asks), mib(*has))
            }
            Self::WrongDevices => f.write_str("the devices named are not free matching ones"),
        }
    }
}

/// Tenths for people: `8.0`.
#[must_use]
pub fn tenths(amount: u16) -> String {
    format!("{}.{}", amount / 10, amount % 10)
}

/// Cards for people: `1 GPU`, `2 GPUs`.
#[must_use]
pub fn gpus(count: u64) -> String {
    if count == 1 { "1 GPU".into() } else { format!("{count} GPUs") }
}

/// Memory for people: whole GiB where it is, MiB elsewhere.
#[must_use]
pub fn mib(amount: u64) -> String {
    if amount > 0 && amount.is_multiple_of(1_024) {
        format!("{} GiB", amount / 1_024)
    } else {
        format!("{amount} MiB")
    }
}

/// Thousandths for people: `4`, `0.5`.
#[must_use]
pub fn milli(amount: u64) -> String {
    let (whole, rest) = (amount / 1_000, amount % 1_000);
    if rest == 0 {
        return whole.to_string();
    }
    format!("{whole}.{rest:03}").trim_end_matches('0').to_owned()
}
