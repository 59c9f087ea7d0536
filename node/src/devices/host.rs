//! The host's own facts: CPU, memory, boot id. Read from the kernel, best effort; no devices.

use rota_protocol::ids::BootId;
use std::fs;
use std::path::Path;
use std::thread;

/// Share of the memory that is kept for the system and for Rota itself: one part in this many.
const RESERVE_PART: u64 = 16;
/// Least reserve, in MiB, as long as that leaves half of the memory.
const RESERVE_MIB_MIN: u64 = 512;
/// Largest reserve, in MiB: a larger host does not need more for itself.
const RESERVE_MIB_MAX: u64 = 8 << 10;
/// A limit of this many MiB (1 EiB) or more is cgroup v1's way to say that there is none.
const LIMIT_MIB_MAX: u64 = 1 << 40;
/// Where memory limits of a container show when the whole agent runs inside one: cgroup v2, then v1.
const CGROUP_LIMITS: [&str; 2] = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];

/// CPU that this process may use, in thousandths of a core; one core when that cannot be told.
#[must_use]
pub fn cpus_milli() -> u32 {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    u32::try_from(cores).unwrap_or(u32::MAX / 1_000).saturating_mul(1_000)
}

/// Memory to offer, in MiB: what the kernel (or the container) has, less the reserve. Zero when it cannot be told,
/// which offers nothing.
#[must_use]
pub fn mem_mib() -> u64 {
    let total = fs::read_to_string("/proc/meminfo").ok().and_then(|text| mem_total_mib(&text));
    let limit = CGROUP_LIMITS.iter().find_map(|path| cgroup_limit_mib(Path::new(path)));
    match (total, limit) {
        (Some(total), Some(limit)) => offer_mib(total.min(limit)),
        (Some(total), None) => offer_mib(total),
        (None, _) => 0,
    }
}

/// The kernel's boot id; `None` where `/proc` does not show it.
#[must_use]
pub fn boot_id() -> Option<BootId> {
    crate::io::proc::boot_id().ok()
}

/// Load average of the last minute, in thousandths; zero when it cannot be told.
#[must_use]
pub fn load_milli() -> u32 {
    fs::read_to_string("/proc/loadavg").ok().and_then(|text| parse_load_milli(&text)).unwrap_or(0)
}

fn mem_total_mib(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib >> 10)
}

/// A limit below what a machine could have; `max` and the huge v1 default are none.
fn cgroup_limit_mib(path: &Path) -> Option<u64> {
    let bytes: u64 = fs::read_to_string(path).ok()?.trim().parse().ok()?;
    let mib = bytes >> 20;
    (mib > 0 && mib < LIMIT_MIB_MAX).then_some(mib)
}

fn offer_mib(total_mib: u64) -> u64 {
    let reserve = (total_mib / RESERVE_PART).clamp(RESERVE_MIB_MIN, RESERVE_MIB_MAX);
    total_mib - reserve.min(total_mib / 2)
}

fn parse_load_milli(loadavg: &str) -> Option<u32> {
    let first = loadavg.split_whitespace().next()?;
    let (whole, cents) = first.split_once('.')?;
    let whole: u32 = whole.parse().ok()?;
    let cents: u32 = cents.get(..2)?.parse().ok()?;
    whole.checked_mul(1_000)?.checked_add(cents * 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo_is_read_in_kib() {
        let text = "MemFree:  1 kB\nMemTotal:       16314804 kB\n";
        assert_eq!(mem_total_mib(text), Some(15_932));
        for odd in ["", "MemTotal: x kB", "MemTotal: 12", "MemTotal: -1 kB"] {
            assert_eq!(mem_total_mib(odd), None, "{odd:?}");
        }
    }

    #[test]
    fn the_reserve_has_bounds() {
        assert_eq!(offer_mib(16 << 10), 15 << 10);
        assert_eq!(offer_mib(2 << 20), (2 << 20) - (8 << 10), "never more than 8 GiB");
        assert_eq!(offer_mib(4 << 10), (4 << 10) - 512, "never less than 512 MiB");
        assert_eq!(offer_mib(600), 300, "never more than half");
        assert_eq!(offer_mib(0), 0);
    }

    #[test]
    fn a_container_limit_counts_and_the_word_max_does_not() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("memory.max");
        for (text, limit) in
            [("max\n", None), ("1073741824\n", Some(1_024)), ("9223372036854771712\n", None), ("", None)]
        {
            fs::write(&path, text).expect("writable");
            assert_eq!(cgroup_limit_mib(&path), limit, "{text:?}");
        }
        assert_eq!(cgroup_limit_mib(&dir.path().join("absent")), None);
    }

    #[test]
    fn load_is_read_in_thousandths() {
        assert_eq!(parse_load_milli("0.26 0.26 0.18 1/123 456"), Some(260));
        assert_eq!(parse_load_milli("129.05 1 1"), Some(129_050));
        assert_eq!(parse_load_milli(""), None);
    }

    #[test]
    fn this_machine_has_something_to_offer() {
        assert!(cpus_milli() >= 1_000);
        assert!(mem_mib() > 0);
        assert!(boot_id().is_some_and(|boot| boot != BootId(0)));
    }
}
