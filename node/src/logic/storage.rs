//! When a host whose disk runs full takes nothing new, and when it does again. What runs is never ended for it: its
//! output is bounded, and what the disk refuses is counted.

use super::own_drain::Change;

/// How a drain of this decider's own begins; one that says anything else is somebody else's, and is left alone.
pub const REASON: &str = "storage_low";

/// Looks at the free space, and at why the host is drained, if it is. Between the floor and a quarter above it nothing
/// changes, so that a host on the edge does not flap.
#[must_use]
pub fn decide(free_bytes: u64, floor_bytes: u64, drained: Option<&str>) -> Option<Change> {
    let is_own = drained.is_some_and(|reason| reason.starts_with(REASON));
    if free_bytes < floor_bytes && drained.is_none() {
        let (free, floor) = (free_bytes >> 20, floor_bytes >> 20);
        return Some(Change::Drain(format!("{REASON}: {free} MiB free, {floor} MiB wanted")));
    }
    (is_own && free_bytes >= floor_bytes.saturating_add(floor_bytes / 4)).then_some(Change::Undrain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_drains_its_host_and_no_one_elses_drain_is_touched() {
        let reason = "storage_low: 99 MiB free, 100 MiB wanted";
        let mib = |mib: u64| mib << 20;
        assert_eq!(decide(mib(100), mib(100), None), None);
        assert_eq!(decide(mib(99), mib(100), None), Some(Change::Drain(reason.into())));
        assert_eq!(decide(mib(1), mib(100), Some(reason)), None);
        assert_eq!(decide(mib(124), mib(100), Some(reason)), None, "not at once");
        assert_eq!(decide(mib(125), mib(100), Some(reason)), Some(Change::Undrain));
        for free in [1, 99, 500] {
            assert_eq!(decide(mib(free), mib(100), Some("new fans")), None);
        }
    }
}
