//! What a process has used so far, read from `/proc`: for benches and status pages, never for decisions.

use std::fs;

/// Clock ticks per second in `/proc`: fixed at 100 by the kernel's interface on every architecture that we build for.
const TICKS_PER_S: u64 = 100;

/// CPU time that a process itself used, all threads, in ms.
#[must_use]
pub fn cpu_ms(pid: u32) -> Option<u64> {
    let stat = super::proc::stat(i32::try_from(pid).ok()?).ok()?;
    Some(stat.cpu_ticks * 1_000 / TICKS_PER_S)
}

/// Resident memory of a process, in KiB.
#[must_use]
pub fn rss_kib(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}

/// Memory that a process shares with no other, in KiB.
#[must_use]
pub fn private_kib(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let kib = |line: &str| line.split_ascii_whitespace().nth(1)?.parse::<u64>().ok();
    let private = text.lines().filter(|line| line.starts_with("Private_"));
    Some(private.filter_map(kib).sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_uses_memory_and_a_missing_one_nothing() {
        assert!(rss_kib(std::process::id()).is_some_and(|kib| kib > 100));
        assert!(cpu_ms(std::process::id()).is_some());
        assert!(private_kib(std::process::id()).is_some_and(|kib| kib > 100));
        assert_eq!(cpu_ms(u32::MAX), None);
        assert_eq!(private_kib(u32::MAX), None);
    }
}
