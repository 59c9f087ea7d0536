//! Every host once, under the first thing that keeps a job off it. What is said of the numbers is in `mod.rs`.

use crate::fit::{Misfit, mib, milli};
use crate::placement::{PlanConfig, Planner, Verdict, View};
use crate::state::State;
use crate::state::host::Host;
use crate::state::job::Job;
use rota_protocol::view::WhyReason;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Hosts by their first obstacle.
#[derive(Default)]
pub(super) struct Tally {
    /// Kind -> how many hosts, the detail of the nearest one, its figure, and its name.
    by_kind: BTreeMap<&'static str, Group>,
}

#[derive(Default)]
pub(super) struct Group {
    pub(super) hosts: u32,
    /// No waiting removes it.
    lasting: bool,
    best: u64,
    pub(super) detail: String,
    example: String,
}

impl Tally {
    fn add(&mut self, host: &Host, kind: &'static str, figure: u64, detail: String) -> &mut Group {
        let group = self.by_kind.entry(kind).or_default();
        if group.hosts == 0 || figure > group.best {
            group.best = figure;
            group.detail = detail;
            group.example.clone_from(&host.name);
        }
        group.hosts += 1;
        group
    }

    pub(super) fn of(&self, kind: &str) -> Option<&Group> {
        self.by_kind.get(kind)
    }

    /// The commonest obstacle that waiting, or somebody, can remove. Hosts of which nothing is known yet speak only
    /// if there are no others.
    pub(super) fn main(&self) -> Option<(&'static str, &Group)> {
        let passing = self.by_kind.iter().filter(|(_, group)| !group.lasting);
        let rank = |kind: &str, group: &Group| (kind != "joining", group.hosts, Reverse(kind.to_owned()));
        let main = passing.max_by_key(|(kind, group)| rank(kind, group))?;
        Some((main.0, main.1))
    }

    /// Hosts that could run it if they were empty and open.
    pub(super) fn able(&self) -> u32 {
        let able = self.by_kind.iter().filter(|(kind, group)| !group.lasting && **kind != "joining");
        able.map(|(_, group)| group.hosts).sum()
    }

    pub(super) fn hint(&self, job: &Job) -> Option<String> {
        if job.parallel_room() == 0 {
            return Some("raise the array's cap on parallel tasks".into());
        }
        let (kind, group) = self.main()?;
        let text = match kind {
            "gpus_busy" if group.best > 0 => {
                format!("asking {} GPUs would fit {} now", group.best, group.example)
            }
            "gpus_busy" => "every matching GPU is taken: a higher priority would bring it forward".into(),
            "cpus_busy" => format!("asking {} CPUs would fit {} now", milli(group.best), group.example),
            "mem_busy" => format!("asking {} memory would fit {} now", mib(group.best), group.example),
            "draining" => format!("an operator can undrain {}", group.example),
            "suspended" | "probation" => format!("see why launches fail on {}", group.example),
            "avoided" => "its launches failed: show the job to see the hosts' words".into(),
            "gpus_unhealthy" => {
                format!("list the devices of {} to see what is wrong", group.example)
            }
            "lost" | "joining" => format!("see whether the agent on {} runs", group.example),
            "held" => "asking no device would let it run beside the held host's next job".into(),
            _ => return None,
        };
        Some(text)
    }

    /// Most hosts first.
    pub(super) fn into_rows(self) -> Vec<WhyReason> {
        let rows = self.by_kind.into_iter().map(|(kind, group)| WhyReason {
            kind: kind.to_owned(),
            hosts: group.hosts,
            detail: group.detail,
        });
        let mut rows: Vec<WhyReason> = rows.collect();
        rows.sort_by(|a, b| b.hosts.cmp(&a.hosts).then_with(|| a.kind.cmp(&b.kind)));
        rows
    }
}

/// Every host once, under its first obstacle: the planner's own look.
pub(super) fn tally(state: &State, job: &Arc<Job>, now_ms: u64) -> Tally {
    let mut tally = Tally::default();
    let view = View::of(state, now_ms);
    let look = Planner::default().look(&view, &PlanConfig::default(), now_ms, job);
    for (host, verdict) in state.hosts().zip(&look.hosts) {
        let Some(verdict) = &verdict.1 else {
            continue;
        };
        add(&mut tally, job, host, verdict, now_ms);
    }
    tally
}

fn add(tally: &mut Tally, job: &Job, host: &Host, verdict: &Verdict, now_ms: u64) {
    match verdict {
        Verdict::Misfit(misfit) => {
            let figure = misfit.numbers().map_or(0, |(_, has)| has);
            let group = tally.add(host, misfit.kind(), figure, detail(host, misfit, now_ms));
            group.lasting = misfit.is_lasting();
        }
        Verdict::BacksOff { until_ms, failures } => {
            let left_s = until_ms.saturating_sub(now_ms).div_ceil(1_000);
            let detail = format!("could not launch it, tried again in {left_s} s (back-off {failures})");
            tally.add(host, "avoided", 0, detail);
        }
        Verdict::Promised { job: other, at_ms } => {
            let left_s = at_ms.saturating_sub(now_ms).div_ceil(1_000);
            let detail = format!("kept for job {other}, which is before it and starts within {left_s} s");
            tally.add(host, "held", 0, detail);
        }
        Verdict::Reserved => {
            tally.add(host, "reserved", 0, "kept by an advance reservation".into());
        }
        Verdict::Silent => {
            tally.add(host, "silent", 0, format!("{} does not answer just now", host.name));
        }
        Verdict::Layout => {
            tally.add(host, "layout", 0, "fits, but not where its tasks must lie together".into());
        }
        Verdict::Fits if job.parallel_room() == 0 => {
            let detail = "fits, but the job's own cap on parallel tasks is reached".into();
            tally.add(host, "parallel_cap", 0, detail);
        }
        Verdict::Fits => {
            tally.add(host, "fits", 0, "fits now".into());
        }
    }
}

/// For a job that waits for nothing: every host under one heading.
pub(super) fn settled(state: &State, job: &Job) -> Tally {
    let mut tally = Tally::default();
    for host in state.hosts() {
        tally.add(host, "not_waiting", 0, format!("the job is {}", job.state));
    }
    tally
}

fn detail(host: &Host, misfit: &Misfit, now_ms: u64) -> String {
    match misfit {
        Misfit::Draining | Misfit::Suspended => {
            format!("{}: {}", host.name, host.reason(now_ms).unwrap_or_default())
        }
        Misfit::Lost | Misfit::Joining => format!("{}: {misfit}", host.name),
        other => other.to_string(),
    }
}
