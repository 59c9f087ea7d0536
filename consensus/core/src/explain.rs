//! Why does it wait? Answered by the planner's own filters over one consistent copy, never by a second opinion.
//!
//! Each host is counted once, under the first obstacle that `fit` names (or the job's own back-off, or a host held
//! for another job), so the numbers add up to the number of hosts.

use crate::fit::{self, Misfit, mib, milli};
use crate::placement::{PlanConfig, View, held};
use crate::state::State;
use crate::state::host::{Host, HostLife};
use crate::state::job::Job;
use crate::view::ask_text;
use rota_protocol::ask::Ask;
use rota_protocol::job::JobState;
use rota_protocol::view::{WhyReason, WhyView};
use rota_protocol::{JobId, PublicError};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// Kinds of obstacles that no waiting removes: `Misfit::is_lasting`.
const LASTING: [&str; 7] = [
    "label",
    "gpu_count",
    "gpu_model",
    "vram",
    "device_count",
    "cpus",
    "mem",
];
/// Values shown in a list before it is cut.
const SHOWN_MAX: usize = 6;

/// Whether a job can start, and if not, why. None for an unknown job.
#[must_use]
pub fn why(state: &State, id: JobId, now_ms: u64) -> Option<WhyView> {
    let job = state.job(id)?;
    let ask = &job.spec.ask;
    let waits = job.state == JobState::Pending
        || (job.state == JobState::Running && !job.pending.is_empty());
    let lack = if waits { lack(state, ask) } else { None };
    let tally = if waits {
        tally(state, job, now_ms)
    } else {
        settled(state, job)
    };
    let (ahead_tasks, ahead_gpus) = if waits { ahead(state, job) } else { (0, 0) };
    let verdict = match (&lack, waits) {
        (Some(lack), _) => format!("cannot run on this cluster: {}", lack.message),
        (None, true) => waiting_verdict(job, &tally, ahead_tasks),
        (None, false) => settled_verdict(job),
    };
    let hint = match &lack {
        Some(lack) => Some(format!(
            "ask for {}, or add a host that has it",
            lack.example
        )),
        None if waits => tally.hint(job),
        None => None,
    };
    Some(WhyView {
        index: state.applied_index(),
        job: id,
        state: job.state,
        verdict,
        impossible: lack.is_some(),
        ask: ask_text(ask),
        hosts: u32::try_from(state.hosts.len()).unwrap_or(u32::MAX),
        by_reason: tally.into_rows(),
        ahead_tasks,
        ahead_gpus,
        largest_offer: lack.and_then(|lack| lack.offer),
        hint,
        waited_ms: waited_ms(job, now_ms),
    })
}

/// Could any registered host run this ask, even if it were empty, undrained and up? Yes while no host has
/// registered: nothing is known yet.
///
/// # Errors
/// Names the field that no host meets and the largest offer, or the fields that no host meets together.
pub fn feasible(state: &State, ask: &Ask) -> Result<(), PublicError> {
    match lack(state, ask) {
        None => Ok(()),
        Some(lack) => {
            let message = format!("cannot run on this cluster: {}", lack.message);
            Err(PublicError::invalid(lack.field, message, &lack.example))
        }
    }
}

/// One word for a queue's row: the commonest reason among the hosts that could run it.
pub(crate) fn short(state: &State, ask: &Ask, now_ms: u64) -> &'static str {
    let mut counts: BTreeMap<&'static str, u32> = BTreeMap::new();
    let mut lasting = true;
    for host in state.hosts() {
        match fit::fits(host, &host.used, ask, now_ms) {
            Ok(_) => return "next",
            Err(misfit) => {
                lasting &= misfit.is_lasting();
                if !misfit.is_lasting() {
                    *counts.entry(misfit.kind()).or_default() += 1;
                }
            }
        }
    }
    if lasting && state.hosts.len() > 0 {
        return "impossible";
    }
    let commonest = counts
        .into_iter()
        .max_by_key(|(kind, n)| (*n, Reverse(*kind)));
    commonest.map_or("no_hosts", |(kind, _)| kind)
}

/// Hosts by their first obstacle.
#[derive(Default)]
struct Tally {
    /// Kind -> how many hosts, the detail of the nearest one, its figure, and its name.
    by_kind: BTreeMap<&'static str, Group>,
}

#[derive(Default)]
struct Group {
    hosts: u32,
    best: u64,
    detail: String,
    example: String,
}

impl Tally {
    fn add(&mut self, host: &Host, kind: &'static str, figure: u64, detail: String) {
        let group = self.by_kind.entry(kind).or_default();
        if group.hosts == 0 || figure > group.best {
            group.best = figure;
            group.detail = detail;
            group.example.clone_from(&host.name);
        }
        group.hosts += 1;
    }

    fn of(&self, kind: &str) -> Option<&Group> {
        self.by_kind.get(kind)
    }

    /// The commonest obstacle that waiting, or somebody, can remove. Hosts of which nothing is known yet speak only
    /// if there are no others.
    fn main(&self) -> Option<(&'static str, &Group)> {
        let passing = self
            .by_kind
            .iter()
            .filter(|(kind, _)| !LASTING.contains(kind));
        let rank =
            |kind: &str, group: &Group| (kind != "joining", group.hosts, Reverse(kind.to_owned()));
        let main = passing.max_by_key(|(kind, group)| rank(kind, group))?;
        Some((main.0, main.1))
    }

    /// Hosts that could run it if they were empty and open.
    fn able(&self) -> u32 {
        let able = self
            .by_kind
            .iter()
            .filter(|(kind, _)| !LASTING.contains(kind) && **kind != "joining");
        able.map(|(_, group)| group.hosts).sum()
    }

    fn hint(&self, job: &Job) -> Option<String> {
        if job.parallel_room() == 0 {
            return Some("raise the array's cap on parallel tasks".into());
        }
        let (kind, group) = self.main()?;
        let text = match kind {
            "gpus_busy" if group.best > 0 => {
                format!("asking {} GPUs would fit {} now", group.best, group.example)
            }
            "gpus_busy" => {
                "every matching GPU is taken: a higher priority would bring it forward".into()
            }
            "cpus_busy" => format!(
                "asking {} CPUs would fit {} now",
                milli(group.best),
                group.example
            ),
            "mem_busy" => format!(
                "asking {} memory would fit {} now",
                mib(group.best),
                group.example
            ),
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
    fn into_rows(self) -> Vec<WhyReason> {
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

/// Every host once, under its first obstacle.
fn tally(state: &State, job: &Job, now_ms: u64) -> Tally {
    let mut tally = Tally::default();
    let avoided: BTreeMap<_, _> = job.avoided(now_ms).collect();
    let hold = held(&View::of(state), &PlanConfig::default(), now_ms, 0);
    for host in state.hosts() {
        if let Err(misfit) = fit::fits(host, &host.used, &job.spec.ask, now_ms) {
            let figure = misfit.numbers().map_or(0, |(_, has)| has);
            tally.add(host, misfit.kind(), figure, detail(host, &misfit, now_ms));
        } else if let Some(avoid) = avoided.get(&host.id) {
            let left_s = avoid.until_ms.saturating_sub(now_ms).div_ceil(1_000);
            let detail = format!(
                "could not launch it, tried again in {left_s} s (back-off {})",
                avoid.failures
            );
            tally.add(host, "avoided", 0, detail);
        } else if let Some((_, other)) =
            hold.filter(|(held, other)| *held == host.id && *other != job.id)
        {
            tally.add(
                host,
                "held",
                0,
                format!("kept free for job {other}, which has waited longer"),
            );
        } else if job.parallel_room() == 0 {
            let detail = "fits, but the job's own cap on parallel tasks is reached".into();
            tally.add(host, "parallel_cap", 0, detail);
        } else {
            tally.add(host, "fits", 0, "fits now".into());
        }
    }
    tally
}

/// For a job that waits for nothing: every host under one heading.
fn settled(state: &State, job: &Job) -> Tally {
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

/// Waiting tasks of ready jobs before it in the order, and the GPUs they ask.
fn ahead(state: &State, job: &Job) -> (u64, u64) {
    let place = (Reverse(job.spec.priority), job.id);
    let mut sums = (0_u64, 0_u64);
    for (ask, class) in state.jobs.ready() {
        let before = class.range(..place).filter_map(|(_, id)| state.job(*id));
        let tasks: u64 = before.map(|j| u64::from(j.pending.len())).sum();
        sums.0 += tasks;
        sums.1 = sums
            .1
            .saturating_add(tasks.saturating_mul(u64::from(ask.gpus())));
    }
    sums
}

fn waiting_verdict(job: &Job, tally: &Tally, ahead_tasks: u64) -> String {
    if job.parallel_room() == 0 {
        return format!("waits for its own tasks: at most {} run at once", job.live);
    }
    if let Some(group) = tally.of("fits") {
        let queue = match ahead_tasks {
            0 => "nothing is in front of it".to_owned(),
            1 => "1 task is in front of it".to_owned(),
            n => format!("{n} tasks are in front of it"),
        };
        return format!(
            "fits {} now and is placed in its turn: {queue}",
            hosts_text(group.hosts)
        );
    }
    match tally.main() {
        None => "waits: the cluster has no hosts".into(),
        Some(("joining", _)) => "waits: no host that could run it has registered yet".into(),
        Some((_, group)) => {
            let able = hosts_text(tally.able());
            format!(
                "waits: {able} could run it, {} of them: {}",
                group.hosts, group.detail
            )
        }
    }
}

fn settled_verdict(job: &Job) -> String {
    let counts = job.counts();
    match job.state {
        JobState::Running => format!("runs: {} live, nothing waits", counts.live),
        JobState::Ending => format!(
            "was cancelled: {} attempts are not yet proven gone",
            counts.live
        ),
        state => format!("is over: {state}"),
    }
}

fn hosts_text(n: u32) -> String {
    if n == 1 {
        "1 host".into()
    } else {
        format!("{n} hosts")
    }
}

fn waited_ms(job: &Job, now_ms: u64) -> u64 {
    let until_ms = job.started_ms.or(job.ended_ms).unwrap_or(now_ms);
    until_ms.saturating_sub(job.submitted_ms)
}

/// What no registered host has.
struct Lack {
    field: &'static str,
    message: String,
    /// An ask that would be accepted.
    example: String,
    /// The largest that any host offers of the failing part.
    offer: Option<String>,
}

/// One part of an ask, alone.
struct Part {
    field: &'static str,
    ask: Ask,
}

/// None if some registered host could run the ask, or if none has registered.
fn lack(state: &State, ask: &Ask) -> Option<Lack> {
    let known: Vec<&Host> = state
        .hosts()
        .filter(|h| h.life != HostLife::Joining)
        .collect();
    if known.is_empty() || someone(&known, ask) {
        return None;
    }
    let parts = parts(ask);
    if let Some(part) = parts.iter().find(|part| !someone(&known, &part.ask)) {
        return Some(lack_of_part(&known, part));
    }
    // Each part alone exists: name the first two that do not go together, or all.
    let pairs = parts
        .iter()
        .enumerate()
        .flat_map(|(at, a)| parts[at + 1..].iter().map(move |b| (a, b)));
    let clash = pairs
        .into_iter()
        .find(|(a, b)| !someone(&known, &joined(&a.ask, &b.ask)));
    let texts: Vec<String> = match clash {
        Some((a, b)) => vec![ask_text(&a.ask), ask_text(&b.ask)],
        None => parts.iter().map(|part| ask_text(&part.ask)).collect(),
    };
    Some(Lack {
        field: clash.map_or("ask", |(a, _)| a.field),
        message: format!("{} exist, but on no host together", texts.join(" and ")),
        example: texts.first().cloned().unwrap_or_default(),
        offer: Some(format!("each alone: {}", texts.join("; "))),
    })
}

fn someone(hosts: &[&Host], ask: &Ask) -> bool {
    hosts.iter().any(|host| fit::capable(host, ask).is_ok())
}

fn parts(ask: &Ask) -> Vec<Part> {
    let none = Ask::default;
    let mut parts = Vec::new();
    let mut part = |field, ask| parts.push(Part { field, ask });
    if ask.gpus() > 0 {
        part(
            "ask.gpus",
            Ask {
                gpu_milli: ask.gpu_milli,
                ..none()
            },
        );
    }
    // One card is the least that a model or a card's memory can be asked of.
    if !ask.gpu_models.is_empty() {
        part(
            "ask.model",
            Ask {
                gpu_milli: 1_000,
                gpu_models: ask.gpu_models.clone(),
                ..none()
            },
        );
    }
    if ask.vram_mib > 0 {
        part(
            "ask.vram",
            Ask {
                gpu_milli: 1_000,
                vram_mib: ask.vram_mib,
                ..none()
            },
        );
    }
    for (kind, count) in &ask.devices {
        part(
            "ask.devices",
            Ask {
                devices: [(kind.clone(), *count)].into(),
                ..none()
            },
        );
    }
    if ask.cpus_milli > 0 {
        part(
            "ask.cpus",
            Ask {
                cpus_milli: ask.cpus_milli,
                ..none()
            },
        );
    }
    if ask.mem_mib > 0 {
        part(
            "ask.mem",
            Ask {
                mem_mib: ask.mem_mib,
                ..none()
            },
        );
    }
    for (key, value) in &ask.labels {
        part(
            "ask.labels",
            Ask {
                labels: [(key.clone(), value.clone())].into(),
                ..none()
            },
        );
    }
    parts
}

fn joined(a: &Ask, b: &Ask) -> Ask {
    let mut both = a.clone();
    both.gpu_milli = a.gpu_milli.max(b.gpu_milli);
    both.vram_mib = a.vram_mib.max(b.vram_mib);
    both.cpus_milli = a.cpus_milli.max(b.cpus_milli);
    both.mem_mib = a.mem_mib.max(b.mem_mib);
    both.gpu_models.extend(b.gpu_models.iter().cloned());
    both.devices.extend(b.devices.clone());
    both.labels.extend(b.labels.clone());
    both
}

fn lack_of_part(known: &[&Host], part: &Part) -> Lack {
    let ask = &part.ask;
    let gpus = |h: &Host| {
        h.facts
            .devices
            .iter()
            .filter(|d| fit::gpu_matches(d, &Ask::default()))
            .count() as u64
    };
    match part.field {
        "ask.gpus" => {
            let asks = format!("{} on one host", fit::gpus(u64::from(ask.gpus())));
            amount(part, &asks, largest(known, gpus), |n| fit::gpus(n), "gpus")
        }
        "ask.vram" => {
            let vram = |h: &Host| {
                h.facts
                    .devices
                    .iter()
                    .filter_map(|d| d.vram_mib)
                    .max()
                    .unwrap_or(0)
            };
            let asks = format!("{} on one GPU", mib(ask.vram_mib));
            amount(
                part,
                &asks,
                largest(known, vram),
                |n| format!("{} on one GPU", mib(n)),
                "vram",
            )
        }
        "ask.cpus" => {
            let cpus = |h: &Host| u64::from(h.facts.cpus_milli);
            let asks = format!("{} CPUs", milli(u64::from(ask.cpus_milli)));
            amount(
                part,
                &asks,
                largest(known, cpus),
                |n| format!("{} CPUs", milli(n)),
                "cpus",
            )
        }
        "ask.mem" => {
            let asks = format!("{} memory", mib(ask.mem_mib));
            let mem = largest(known, |h| h.facts.mem_mib);
            amount(part, &asks, mem, |n| format!("{} memory", mib(n)), "mem")
        }
        "ask.model" => lack_of_model(known, part),
        "ask.devices" => lack_of_kind(known, part),
        _ => lack_of_label(known, part),
    }
}

fn amount(
    part: &Part,
    asks: &str,
    best: Option<(u64, String)>,
    text: impl Fn(u64) -> String,
    what: &str,
) -> Lack {
    let (figure, host) = best.unwrap_or_default();
    if figure == 0 {
        return Lack {
            field: part.field,
            message: format!("{asks} asked, no host has any"),
            example: format!("no {what}"),
            offer: Some("none".into()),
        };
    }
    let offer = format!("{} on {host}", text(figure));
    Lack {
        field: part.field,
        message: format!("{asks} asked, the largest offer is {offer}"),
        example: format!("at most {}", text(figure)),
        offer: Some(offer),
    }
}

fn lack_of_model(known: &[&Host], part: &Part) -> Lack {
    let devices = known.iter().flat_map(|h| &h.facts.devices);
    let gpus = devices.filter(|d| fit::gpu_matches(d, &Ask::default()) && !d.model.is_empty());
    let models: BTreeSet<&str> = gpus.map(|d| d.model.as_str()).collect();
    lack_of_choice(part, &part.ask.gpu_models.join("|"), "no GPU is a", &models)
}

fn lack_of_label(known: &[&Host], part: &Part) -> Lack {
    let (key, value) = part
        .ask
        .labels
        .first_key_value()
        .map_or(("", ""), |(k, v)| (k, v));
    let values: BTreeSet<&str> = known
        .iter()
        .filter_map(|h| h.facts.labels.get(key))
        .map(String::as_str)
        .collect();
    lack_of_choice(
        part,
        &format!("{key}={value}"),
        "no host has the label",
        &values,
    )
}

fn lack_of_choice(part: &Part, asked: &str, what: &str, there: &BTreeSet<&str>) -> Lack {
    let mut shown: Vec<&str> = there.iter().copied().take(SHOWN_MAX).collect();
    if there.len() > SHOWN_MAX {
        shown.push("..");
    }
    let offer = if shown.is_empty() {
        "none".to_owned()
    } else {
        shown.join(", ")
    };
    Lack {
        field: part.field,
        message: format!("{what} {asked}, there is: {offer}"),
        example: there
            .first()
            .map_or_else(|| "none".to_owned(), |first| (*first).to_owned()),
        offer: Some(offer),
    }
}

fn lack_of_kind(known: &[&Host], part: &Part) -> Lack {
    let (kind, asked) = part
        .ask
        .devices
        .first_key_value()
        .map_or(("", 0), |(k, n)| (k, *n));
    let count = |h: &Host| fit::of_kind(&h.facts, kind).count() as u64;
    let best = largest(known, count);
    if best.as_ref().is_none_or(|(figure, _)| *figure == 0) {
        return Lack {
            field: part.field,
            message: format!("{kind} is a known kind, but this cluster has none"),
            example: format!("no {kind}"),
            offer: Some("none".into()),
        };
    }
    amount(
        part,
        &format!("{asked} {kind} on one host"),
        best,
        |n| format!("{n} {kind}"),
        kind,
    )
}

/// The largest figure and the name of the first host that has it.
fn largest(known: &[&Host], figure: impl Fn(&Host) -> u64) -> Option<(u64, String)> {
    let best = known.iter().max_by_key(|h| (figure(h), Reverse(h.id)))?;
    Some((figure(best), best.name.clone()))
}
