//! All metrics of the agent: names, units, meaning, buckets, and the Prometheus text. What is not in [`ALL`] is not
//! measured. Label values are words from fixed sets, device UUIDs and host names, never job ids or user texts: the
//! number of series is bounded by the hardware (fault S25).

use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};
use metrics_exporter_prometheus::{
    BuildError, Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder,
};
use rota_protocol::device::{DeviceFacts, DeviceHealth, DeviceReading};
use rota_protocol::ids::DeviceUuid;
use std::sync::OnceLock;
use std::time::Duration;

/// Jobs by state. Label `state`.
pub const JOBS: &str = "rota_jobs";
/// This host's devices. Label `health`: `healthy`, `unknown`, `dirty`, `lost`, `degraded`, `quarantined`.
pub const DEVICES: &str = "rota_devices";
/// Live attempts on this host.
pub const ATTEMPTS_LIVE: &str = "rota_attempts_live";
/// Attempts that ended on this host. Label `end`: `succeeded`, `failed`, `cancelled`, ...
pub const ATTEMPTS_ENDED: &str = "rota_attempts_ended_total";

/// 1 while this peer leads.
pub const RAFT_LEADING: &str = "rota_raft_leading";
/// The raft term.
pub const RAFT_TERM: &str = "rota_raft_term";
/// Last log index applied here.
pub const RAFT_APPLIED: &str = "rota_raft_applied_index";
/// Times that this peer saw the leader change.
pub const LEADER_CHANGES: &str = "rota_leader_changes_total";
/// One planner round on the leader.
pub const PLAN_SECONDS: &str = "rota_plan_seconds";
/// Moves that plans proposed.
pub const PLAN_MOVES: &str = "rota_plan_moves_total";

/// Lease renewals of this host. Label `result`: `ok`, `failed`.
pub const LEASE_RENEWALS: &str = "rota_lease_renewals_total";
/// Time until this host's lease ends.
pub const LEASE_REMAINING_SECONDS: &str = "rota_lease_remaining_seconds";
/// Members seen by gossip. Label `state`: `alive`, `suspect`, `down`.
pub const GOSSIP_MEMBERS: &str = "rota_gossip_members";
/// Requests of clients, streams aside. Labels `kind`: `read`, `write`; `result`: `ok`, `refused`.
pub const API_SECONDS: &str = "rota_api_request_seconds";

/// Busy share of a device's compute units, 0 to 1. Label `uuid`.
pub const DEVICE_BUSY: &str = "rota_device_busy_ratio";
/// Memory in use on a device. Label `uuid`.
pub const DEVICE_MEMORY_USED: &str = "rota_device_memory_used_bytes";
/// A device's temperature. Label `uuid`.
pub const DEVICE_TEMPERATURE: &str = "rota_device_temperature_celsius";
/// A device's power draw. Label `uuid`.
pub const DEVICE_POWER: &str = "rota_device_power_watts";
/// Threads that hang in device drivers.
pub const PROBES_STUCK: &str = "rota_device_probes_stuck";

/// 1 while a device may be granted. Label `uuid`.
pub const DEVICE_HEALTHY: &str = "rota_device_healthy";
/// Actors of this process that died. Label `actor`.
pub const ACTOR_DEATHS: &str = "rota_actor_deaths_total";
/// Leases that this peer let run out as leader.
pub const LEASES_EXPIRED: &str = "rota_leases_expired_total";
/// Launches that this host could not carry out.
pub const LAUNCHES_FAILED: &str = "rota_launches_failed_total";
/// Bytes of tasks' output that were not kept: over a limit or a rate, or refused by the disk.
pub const OUTPUT_DROPPED_BYTES: &str = "rota_output_dropped_bytes_total";
/// Attempts of which processes were left although they were killed.
pub const ATTEMPTS_STUCK: &str = "rota_attempts_stuck_total";
/// Epilogs of this host that failed or took too long.
pub const EPILOGS_FAILED: &str = "rota_epilogs_failed_total";
/// Devices that are well and kept out: processes that cannot be ended, failed epilogs.
pub const DEVICES_DIRTY: &str = "rota_devices_dirty";
/// Time from an attempt's last process to its cards proven clean, or declared dirty.
pub const RELEASE_SECONDS: &str = "rota_card_release_seconds";
/// Memory of a job's own processes on a card; rendered by `warden::series`. Labels `job`, `task`, `uuid`: there while
/// the attempt holds the card, so bounded by the hardware.
pub const JOB_MEMORY_USED: &str = "rota_job_device_memory_used_bytes";
/// 1 while a job has more of a shared card than it asked for; likewise.
pub const JOB_OVER: &str = "rota_job_device_memory_over";
/// Grants that this host could not carry out although the leader found that they fit: a bug, must stay 0.
pub const GRANTS_BOUNCED: &str = "rota_grants_bounced_total";
/// Card time of this host since its agent started. Label `standing`: `granted`, `idle`, `dirty`, `down`; together the wall
/// time of all cards.
pub const CARD_SECONDS: &str = "rota_card_seconds_total";
/// What differs now between the log, this host and its cards; what is on its way included. Label `kind`.
pub const DRIFT: &str = "rota_host_drift";
/// Laws of the replicated state, or of this host against it, found broken; must stay 0. Label `law`.
pub const VIOLATIONS: &str = "rota_invariant_violations_total";
/// By how much this host's clock is at least faster than those of most voters, in millionths; 0 if nothing shows.
pub const CLOCK_DRIFT: &str = "rota_clock_drift_ppm";
/// Xids that the driver told. Label `class`: the classes of the table.
pub const XIDS: &str = "rota_xids_total";
/// What this host found about its devices. Label `cause`: a word from a fixed set.
pub const FINDINGS: &str = "rota_device_findings_total";
/// Times that lines of the kernel's log were lost unread.
pub const KMSG_OVERRUNS: &str = "rota_kmsg_overruns_total";
/// 1 while faults of hosts only alert, because too many hosts had one.
pub const BREAKER_OPEN: &str = "rota_breaker_open";
/// How far tasks are kept apart on this host: 0 not, 1 by groups, 2 fully.
pub const ISOLATION: &str = "rota_isolation_level";
/// Processes of tasks that the kernel killed for memory.
pub const OOM_KILLS: &str = "rota_task_oom_kills_total";
/// Renewals of this host's certificate. Label `result`: `ok`, `failed`.
pub const CERTIFICATE_RENEWALS: &str = "rota_certificate_renewals_total";
/// What this host's certificate has left; it is renewed at a third.
pub const CERTIFICATE_SECONDS_LEFT: &str = "rota_certificate_remaining_seconds";
/// What the cluster's authority has left.
pub const AUTHORITY_SECONDS_LEFT: &str = "rota_authority_remaining_seconds";
/// Bytes of blobs on this host, those on their way included.
pub const INPUTS_BYTES: &str = "rota_inputs_cached_bytes";
/// Inputs of attempts that were on this host.
pub const INPUTS_HITS: &str = "rota_inputs_hits_total";
/// Inputs of attempts that were not.
pub const INPUTS_MISSES: &str = "rota_inputs_misses_total";
/// Bytes of blobs fetched from other hosts.
pub const INPUTS_FETCHED_BYTES: &str = "rota_inputs_fetched_bytes_total";
/// Blobs thrown away because their bytes had another hash than their name.
pub const INPUTS_REFUSED: &str = "rota_inputs_refused_total";
/// This build. Label `version`; always 1.
pub const BUILD_INFO: &str = "rota_build_info";

/// What a metric is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Only grows.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counts by buckets.
    Histogram,
}

/// One metric.
#[derive(Debug, Clone, Copy)]
pub struct Metric {
    /// Its name.
    pub name: &'static str,
    /// What it is.
    pub kind: Kind,
    /// Its unit.
    pub unit: Unit,
    /// One sentence for a person.
    pub help: &'static str,
}

const fn metric(name: &'static str, kind: Kind, unit: Unit, help: &'static str) -> Metric {
    Metric { name, kind, unit, help }
}

/// Every metric.
pub const ALL: [Metric; 49] = [
    metric(INPUTS_BYTES, Kind::Gauge, Unit::Bytes, "Blobs on this host"),
    metric(INPUTS_HITS, Kind::Counter, Unit::Count, "Inputs of attempts that were here"),
    metric(INPUTS_MISSES, Kind::Counter, Unit::Count, "Inputs of attempts that were not here"),
    metric(INPUTS_FETCHED_BYTES, Kind::Counter, Unit::Bytes, "Blobs fetched from other hosts"),
    metric(INPUTS_REFUSED, Kind::Counter, Unit::Count, "Blobs whose bytes had another hash"),
    metric(CERTIFICATE_RENEWALS, Kind::Counter, Unit::Count, "Renewals of this host's certificate"),
    metric(CERTIFICATE_SECONDS_LEFT, Kind::Gauge, Unit::Seconds, "Until this host's certificate ends"),
    metric(AUTHORITY_SECONDS_LEFT, Kind::Gauge, Unit::Seconds, "Until the cluster's authority ends"),
    metric(XIDS, Kind::Counter, Unit::Count, "Xids by class"),
    metric(FINDINGS, Kind::Counter, Unit::Count, "Findings about devices by cause"),
    metric(KMSG_OVERRUNS, Kind::Counter, Unit::Count, "Times that the kernel's log was lost unread"),
    metric(BREAKER_OPEN, Kind::Gauge, Unit::Count, "1 while faults of hosts only alert"),
    metric(JOBS, Kind::Gauge, Unit::Count, "Jobs by state"),
    metric(DEVICES, Kind::Gauge, Unit::Count, "Devices of this host by health"),
    metric(ATTEMPTS_LIVE, Kind::Gauge, Unit::Count, "Live attempts on this host"),
    metric(ATTEMPTS_ENDED, Kind::Counter, Unit::Count, "Attempts that ended on this host"),
    metric(RAFT_LEADING, Kind::Gauge, Unit::Count, "1 while this peer leads"),
    metric(RAFT_TERM, Kind::Gauge, Unit::Count, "The raft term"),
    metric(RAFT_APPLIED, Kind::Gauge, Unit::Count, "Last log index applied here"),
    metric(LEADER_CHANGES, Kind::Counter, Unit::Count, "Changes of the leader seen here"),
    metric(PLAN_SECONDS, Kind::Histogram, Unit::Seconds, "One planner round"),
    metric(PLAN_MOVES, Kind::Counter, Unit::Count, "Moves that plans proposed"),
    metric(LEASE_RENEWALS, Kind::Counter, Unit::Count, "Lease renewals by result"),
    metric(LEASE_REMAINING_SECONDS, Kind::Gauge, Unit::Seconds, "Time until the lease ends"),
    metric(GOSSIP_MEMBERS, Kind::Gauge, Unit::Count, "Members seen by gossip"),
    metric(API_SECONDS, Kind::Histogram, Unit::Seconds, "Requests of clients"),
    metric(DEVICE_BUSY, Kind::Gauge, Unit::Count, "Busy share of a device, 0 to 1"),
    metric(DEVICE_MEMORY_USED, Kind::Gauge, Unit::Bytes, "Memory in use on a device"),
    metric(DEVICE_TEMPERATURE, Kind::Gauge, Unit::Count, "Temperature of a device in Celsius"),
    metric(DEVICE_POWER, Kind::Gauge, Unit::Count, "Power draw of a device in watts"),
    metric(PROBES_STUCK, Kind::Gauge, Unit::Count, "Threads that hang in device drivers"),
    metric(DEVICE_HEALTHY, Kind::Gauge, Unit::Count, "1 while a device may be granted"),
    metric(ACTOR_DEATHS, Kind::Counter, Unit::Count, "Actors that died"),
    metric(LEASES_EXPIRED, Kind::Counter, Unit::Count, "Leases that ran out"),
    metric(LAUNCHES_FAILED, Kind::Counter, Unit::Count, "Launches that failed on this host"),
    metric(OUTPUT_DROPPED_BYTES, Kind::Counter, Unit::Bytes, "Bytes of tasks' output that were not kept"),
    metric(ATTEMPTS_STUCK, Kind::Counter, Unit::Count, "Attempts with processes that cannot be ended"),
    metric(EPILOGS_FAILED, Kind::Counter, Unit::Count, "Epilogs that did not do their work"),
    metric(DEVICES_DIRTY, Kind::Gauge, Unit::Count, "Devices kept out although they are well"),
    metric(RELEASE_SECONDS, Kind::Histogram, Unit::Seconds, "From the last process to clean cards"),
    metric(GRANTS_BOUNCED, Kind::Counter, Unit::Count, "Grants that did not fit here; must stay 0"),
    metric(CARD_SECONDS, Kind::Counter, Unit::Seconds, "Card time by standing"),
    metric(DRIFT, Kind::Gauge, Unit::Count, "What differs between log, host and cards now"),
    metric(
        CLOCK_DRIFT,
        Kind::Gauge,
        Unit::Count,
        "Least drift of this host's clock against most voters, in ppm",
    ),
    metric(VIOLATIONS, Kind::Counter, Unit::Count, "Broken laws of the state; must stay 0"),
    metric(ISOLATION, Kind::Gauge, Unit::Count, "How far tasks are kept apart: 0 not, 1 by groups, 2 fully"),
    metric(OOM_KILLS, Kind::Counter, Unit::Count, "Processes of tasks killed for memory"),
    metric(BUILD_INFO, Kind::Gauge, Unit::Count, "This build; always 1"),
    metric(crate::http::REQUESTS, Kind::Counter, Unit::Count, "HTTP requests by route and status"),
];

/// Bounds of all histograms, in seconds: from a fast disk's sync to a lease.
const BUCKETS_SECONDS: [f64; 16] = [
    0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0,
];
/// How often recorded histogram samples are folded; without it they pile up.
const UPKEEP_EVERY: Duration = Duration::from_secs(5);

/// The recorded metrics.
#[derive(Clone)]
pub struct Meters {
    handle: PrometheusHandle,
}

impl Meters {
    /// Installs the process's recorder on first use; later calls give the same one.
    ///
    /// # Errors
    /// When another recorder is already installed.
    pub fn install() -> Result<Self, BuildError> {
        static INSTALLED: OnceLock<Meters> = OnceLock::new();
        if let Some(meters) = INSTALLED.get() {
            return Ok(meters.clone());
        }
        let handle = builder()?.install_recorder()?;
        describe_all();
        Ok(INSTALLED.get_or_init(|| Self { handle }).clone())
    }

    /// A recorder of its own, not installed: for tests, with `metrics::with_local_recorder`.
    ///
    /// # Errors
    /// When the buckets are refused.
    pub fn local() -> Result<(PrometheusRecorder, Self), BuildError> {
        let recorder = builder()?.build_recorder();
        metrics::with_local_recorder(&recorder, describe_all);
        let handle = recorder.handle();
        Ok((recorder, Self { handle }))
    }

    /// Prometheus' text format.
    #[must_use]
    pub fn render(&self) -> String {
        self.handle.render()
    }

    /// Folds histogram samples now and then, for as long as it is polled.
    pub async fn upkeep(self) {
        let mut every = tokio::time::interval(UPKEEP_EVERY);
        every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            every.tick().await;
            self.handle.run_upkeep();
        }
    }
}

/// Sets the gauges of this host's devices.
pub fn record_devices(devices: &[DeviceFacts], readings: &[DeviceReading]) {
    let healths = ["healthy", "unknown", "dirty", "lost", "degraded", "quarantined"];
    let mut counts = [0u32; 6];
    for device in devices {
        let at = match device.health {
            DeviceHealth::Healthy => 0,
            DeviceHealth::Unknown { .. } => 1,
            DeviceHealth::Dirty { .. } => 2,
            DeviceHealth::Lost { .. } => 3,
            DeviceHealth::Degraded { .. } => 4,
            DeviceHealth::Quarantined { .. } => 5,
        };
        counts[at] += 1;
        let granted = if device.health.is_healthy() { 1.0 } else { 0.0 };
        metrics::gauge!(DEVICE_HEALTHY, "uuid" => device.uuid.0.clone()).set(granted);
    }
    for (health, count) in healths.into_iter().zip(counts) {
        metrics::gauge!(DEVICES, "health" => health).set(f64::from(count));
    }
    // Not told is not zero: NaN shows as a gap, and no old value stands in for it.
    let set = |name: &'static str, uuid: &DeviceUuid, value: Option<f64>| {
        metrics::gauge!(name, "uuid" => uuid.0.clone()).set(value.unwrap_or(f64::NAN));
    };
    for silent in devices.iter().map(|d| &d.uuid).filter(|uuid| readings.iter().all(|r| r.uuid != **uuid)) {
        for name in [DEVICE_BUSY, DEVICE_MEMORY_USED, DEVICE_TEMPERATURE, DEVICE_POWER] {
            set(name, silent, None);
        }
    }
    for DeviceReading { uuid, busy_permille, vram_used_mib, temperature_c, power_mw, .. } in readings {
        set(DEVICE_BUSY, uuid, busy_permille.map(|permille| f64::from(permille) / 1_000.0));
        // At most 16 TiB in MiB: exact in a float.
        set(DEVICE_MEMORY_USED, uuid, vram_used_mib.map(|mib| (mib << 20) as f64));
        set(DEVICE_TEMPERATURE, uuid, temperature_c.map(f64::from));
        set(DEVICE_POWER, uuid, power_mw.map(|mw| f64::from(mw) / 1_000.0));
    }
}

fn builder() -> Result<PrometheusBuilder, BuildError> {
    PrometheusBuilder::new().set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &BUCKETS_SECONDS)
}

fn describe_all() {
    for Metric { name, kind, unit, help } in ALL {
        match kind {
            Kind::Counter => describe_counter!(name, unit, help),
            Kind::Gauge => describe_gauge!(name, unit, help),
            Kind::Histogram => describe_histogram!(name, unit, help),
        }
    }
    metrics::gauge!(BUILD_INFO, "version" => env!("CARGO_PKG_VERSION")).set(1.0);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_follow_prometheus_and_are_unique() {
        let names: BTreeSet<&str> = ALL.iter().map(|m| m.name).collect();
        assert_eq!(names.len(), ALL.len());
        for Metric { name, kind, .. } in ALL {
            assert!(name.starts_with("rota_"), "{name}");
            assert_eq!(name.ends_with("_total"), kind == Kind::Counter, "{name}");
            assert!(kind != Kind::Histogram || name.ends_with("_seconds"), "{name} has no buckets");
        }
    }

    #[test]
    fn what_a_device_does_not_tell_is_no_number() {
        let (recorder, meters) = Meters::local().expect("fair buckets");
        let mut host = crate::devices::sim::SimProvider::new("1xH100", "h").expect("fair");
        let devices = crate::devices::DeviceProvider::discover(&mut host).expect("simulated").devices;
        let sim = devices[0].uuid.0.clone();
        let reading = DeviceReading {
            uuid: DeviceUuid("GPU-a".into()),
            busy_permille: Some(250),
            vram_used_mib: Some(2),
            temperature_c: None,
            power_mw: Some(71_500),
            clock_permille: None,
        };
        metrics::with_local_recorder(&recorder, || record_devices(&devices, &[reading]));
        let text = meters.render();
        for line in [
            "rota_device_busy_ratio{uuid=\"GPU-a\"} 0.25",
            "rota_device_memory_used_bytes{uuid=\"GPU-a\"} 2097152",
            "rota_device_temperature_celsius{uuid=\"GPU-a\"} NaN",
            "rota_device_power_watts{uuid=\"GPU-a\"} 71.5",
            "rota_devices{health=\"lost\"} 0",
            "rota_devices{health=\"healthy\"} 1",
            &format!("rota_device_busy_ratio{{uuid=\"{sim}\"}} NaN"),
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }

    #[test]
    fn histograms_have_buckets_and_hostile_labels_stay_on_their_line() {
        let (recorder, meters) = Meters::local().expect("fair buckets");
        metrics::with_local_recorder(&recorder, || {
            metrics::histogram!(PLAN_SECONDS).record(0.003);
            metrics::gauge!(DEVICE_BUSY, "uuid" => "a\"b\nrota_fake 1").set(0.5);
        });
        let text = meters.render();
        assert!(text.contains("rota_plan_seconds_bucket{le=\"0.005\"} 1"), "{text}");
        assert!(text.contains("rota_plan_seconds_bucket{le=\"0.0025\"} 0"), "{text}");
        assert!(text.contains("# TYPE rota_plan_seconds histogram"), "{text}");
        assert!(!text.lines().any(|line| line.starts_with("rota_fake")), "{text}");
        assert!(text.contains("rota_build_info{version="), "{text}");
    }
}
