//! Every host once, under the first thing that keeps a job off it. What is said of the numbers is in `cause.rs`.

use super::ends;
use super::text::{count, span};
use crate::fit::Misfit;
use crate::placement::{Look, Verdict};
use crate::state::State;
use crate::state::host::Host;
use crate::state::job::Job;
use rota_protocol::why::WhyReason;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Kinds of hosts that have room now, but not for this job.
const HAVE_ROOM: [&str; 7] = ["ahead", "held", "layout", "others_turn", "ports", "reserved", "some_parts"];

/// Hosts by their first obstacle.
#[derive(Default)]
pub(super) struct Tally {
    by_kind: BTreeMap<&'static str, Group>,
}

/// Hosts with one obstacle; the nearest of them speaks.
#[derive(Default)]
pub(super) struct Group {
    pub(super) hosts: u32,
    /// No waiting removes it.
    lasting: bool,
    best: u64,
    pub(super) detail: String,
    pub(super) example: String,
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
        // Of equally common ones a host that has room is nearer than a full one.
        let has_room = |kind: &str| HAVE_ROOM.contains(&kind);
        let rank = |kind: &str, group: &Group| {
            (kind != "joining", group.hosts, has_room(kind), Reverse(kind.to_owned()))
        };
        let main = passing.max_by_key(|(kind, group)| rank(kind, group))?;
        Some((main.0, main.1))
    }

    /// Hosts that could run it if they were empty and open.
    pub(super) fn able(&self) -> u32 {
        let able = self.by_kind.iter().filter(|(kind, group)| !group.lasting && **kind != "joining");
        able.map(|(_, group)| group.hosts).sum()
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
pub(super) fn tally(state: &State, job: &Job, look: &Look, now_ms: u64) -> Tally {
    let mut tally = Tally::default();
    for (host, (_, verdict)) in state.hosts().zip(&look.hosts) {
        add(&mut tally, job, host, verdict, look, now_ms);
    }
    tally
}

/// For a job that waits for nothing: every host under one heading.
pub(super) fn settled(state: &State, job: &Job) -> Tally {
    let mut tally = Tally::default();
    for host in state.hosts() {
        tally.add(host, "not_waiting", 0, format!("the job is {}", job.state));
    }
    tally
}

fn add(tally: &mut Tally, job: &Job, host: &Host, verdict: &Verdict, look: &Look, now_ms: u64) {
    let in_ms = |at_ms: u64| span(at_ms.saturating_sub(now_ms));
    match verdict {
        Verdict::Misfit(misfit) => {
            let figure = misfit.numbers().map_or(0, |(_, has)| has);
            let group = tally.add(host, misfit.kind(), figure, detail(host, misfit, now_ms));
            group.lasting = misfit.is_lasting();
        }
        Verdict::Ahead(misfit) => {
            let detail = format!("has room, but jobs before it take it now; then it {misfit}");
            tally.add(host, "ahead", 0, detail);
        }
        Verdict::BacksOff { until_ms, failures } => {
            let said = ends::words(job, host.id).map_or_else(String::new, |words| format!(": {words}"));
            let detail = format!(
                "{} could not start it{said}; tried again in {} (back-off {failures})",
                host.name,
                in_ms(*until_ms)
            );
            tally.add(host, "avoided", 0, detail);
        }
        Verdict::Promised { job: other, at_ms } => {
            let detail =
                format!("kept for job {other}, which is before it and starts within {}", in_ms(*at_ms));
            tally.add(host, "held", 0, detail);
        }
        Verdict::Reserved { name, start_ms, end_ms } => {
            let when = if *start_ms > now_ms {
                format!("from {} from now for {}", in_ms(*start_ms), span(end_ms - start_ms))
            } else {
                format!("for another {}", in_ms(*end_ms))
            };
            tally.add(host, "reserved", 0, format!("reserved by '{name}' {when}"));
        }
        Verdict::Silent => {
            tally.add(host, "silent", 0, format!("{} does not answer just now", host.name));
        }
        Verdict::Layout => {
            tally.add(
                host,
                "layout",
                0,
                "has room, but not as the job wants its tasks or cards to lie".into(),
            );
        }
        Verdict::Ports => {
            let detail = format!("{} has room, but all its ports for gangs to meet at are in use", host.name);
            tally.add(host, "ports", 0, detail);
        }
        Verdict::OthersTurn => {
            let detail = "has room, which others have in this turn, or it has its turn on another model";
            tally.add(host, "others_turn", 0, detail.into());
        }
        Verdict::Fits => fitting(tally, job, host, look),
    }
}

/// A task fits; yet it is not only the host that decides.
fn fitting(tally: &mut Tally, job: &Job, host: &Host, look: &Look) {
    if job.parallel_room() == 0 {
        let detail = "fits, but the job's own cap on parallel tasks is reached".into();
        tally.add(host, "parallel_cap", 0, detail);
        return;
    }
    match look.parts {
        Some((needed, fit)) if fit < needed => {
            let parts = count(u64::from(needed), "part");
            tally.add(host, "some_parts", 0, format!("takes some: {fit} of {parts} find room together now"));
        }
        _ => {
            tally.add(host, "fits", 0, "fits now".into());
        }
    }
}

fn detail(host: &Host, misfit: &Misfit, now_ms: u64) -> String {
    match misfit {
        Misfit::Draining => {
            format!("{} is draining: {}", host.name, host.reason(now_ms).unwrap_or_default())
        }
        Misfit::Suspended | Misfit::Faulty | Misfit::Shunned => {
            format!("{}: {}", host.name, host.reason(now_ms).unwrap_or_default())
        }
        Misfit::GpusUnhealthy { .. } | Misfit::GpusDegraded { .. } => match sick(host) {
            Some(device) => format!("{misfit}; {}: {device}", host.name),
            None => misfit.to_string(),
        },
        Misfit::Lost | Misfit::Joining => format!("{}: {misfit}", host.name),
        other => other.to_string(),
    }
}

/// The first device of a host that is not as it should be, with the reason.
fn sick(host: &Host) -> Option<String> {
    host.facts.devices.iter().find_map(|d| Some(format!("{} is {}", d.uuid, d.health.reason()?)))
}
