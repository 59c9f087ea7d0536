//! What is measured of jobs on cards. The names say `job`; what a card as a whole shows is named `device` (report R095).
//! A series is there while its attempt is on the card, so their number is bounded by cards and their shares; labels are
//! the job's number, the task's index and the card, never a user's text.
//!
//! No share of a card's compute is told for jobs that share one: no driver measures it.

use crate::meters::{JOB_MEMORY_USED, JOB_OVER};
use rota_protocol::{DeviceUuid, TaskId};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// One job on one card.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct JobUse {
    /// Memory of its own processes there, in MiB.
    pub used_mib: u64,
    /// It has more of a shared card than it asked for.
    pub over: bool,
}

/// All of them, by card: what the last look saw.
#[derive(Debug, Clone, Default)]
pub struct JobSeries {
    rows: BTreeMap<(DeviceUuid, TaskId), JobUse>,
}

impl JobSeries {
    /// Takes the rows of one look in the place of the last one's. `device_mib` is what each card as a whole has in use:
    /// processes are asked for a moment later, and their sum must not be more.
    #[must_use]
    pub fn new(rows: BTreeMap<(DeviceUuid, TaskId), JobUse>, device_mib: &BTreeMap<DeviceUuid, u64>) -> Self {
        let mut left = device_mib.clone();
        let bounded = rows.into_iter().map(|((uuid, task), mut one)| {
            if let Some(left) = left.get_mut(&uuid) {
                one.used_mib = one.used_mib.min(*left);
                *left -= one.used_mib;
            }
            ((uuid, task), one)
        });
        Self { rows: bounded.collect() }
    }

    /// Prometheus' text format.
    #[must_use]
    pub fn render(&self) -> String {
        let mut text = String::new();
        if self.rows.is_empty() {
            return text;
        }
        let mut all = |metric: &str, help: &str, value: fn(&JobUse) -> u64| {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "# HELP {metric} {help}\n# TYPE {metric} gauge");
            for ((uuid, task), one) in &self.rows {
                let uuid = uuid.0.replace('\\', "\\\\").replace('"', "\\\"");
                let labels = format!("job=\"{}\",task=\"{}\",uuid=\"{uuid}\"", task.job, task.index);
                let _ = writeln!(text, "{metric}{{{labels}}} {}", value(one));
            }
        };
        all(JOB_MEMORY_USED, "Memory of a job's own processes on a card", |one| one.used_mib << 20);
        all(JOB_OVER, "1 while a job has more of a shared card than it asked for", |one| one.over.into());
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rota_protocol::JobId;

    fn key(card: &str, job: u64) -> (DeviceUuid, TaskId) {
        (DeviceUuid(card.into()), TaskId { job: JobId(job), index: 0 })
    }

    #[test]
    fn jobs_of_one_card_come_to_no_more_than_the_card() {
        let gib = |n: u64| JobUse { used_mib: n << 10, over: false };
        let rows = BTreeMap::from([(key("GPU-a", 1), gib(10)), (key("GPU-a", 2), gib(30))]);
        let series =
            |used: u64| JobSeries::new(rows.clone(), &BTreeMap::from([(key("GPU-a", 0).0, used << 10)]));
        let text = series(41).render();
        for line in [
            "rota_job_device_memory_used_bytes{job=\"1\",task=\"0\",uuid=\"GPU-a\"} 10737418240",
            "rota_job_device_memory_used_bytes{job=\"2\",task=\"0\",uuid=\"GPU-a\"} 32212254720",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        for used in 0..50 {
            let sum: u64 = series(used).rows.values().map(|one| one.used_mib).sum();
            assert_eq!(sum, used.min(40) << 10);
        }
        assert_eq!(JobSeries::default().render(), "", "what has ended leaves nothing");
    }
}
