//! What no host of the cluster has: the failing part of an ask with the largest offer, or the failing combination.

use super::capacity::lack_of_room;
use crate::fit::{self, mib, milli, tenths};
use crate::state::State;
use crate::state::host::{Host, HostLife};
use crate::view::ask_text;
use rota_protocol::ask::Ask;
use rota_protocol::job::JobSpec;
use std::cmp::Reverse;
use std::collections::BTreeSet;

/// Values shown in a list before it is cut.
const SHOWN_MAX: usize = 6;
/// What a job asks that shares its card through the driver's service, as hosts with that service are labelled.
const MPS_LABEL: (&str, &str) = ("rota.share", "mps");

/// What no registered host has.
pub(super) struct Lack {
    pub(super) field: &'static str,
    pub(super) message: String,
    /// An ask that would be accepted.
    pub(super) example: String,
    /// The largest that any host offers of the failing part.
    pub(super) offer: Option<String>,
}

/// One part of an ask, alone.
struct Part {
    field: &'static str,
    ask: Ask,
}

/// None if the hosts could run the job with one of its asks, or if no host has registered. Of several asks that
/// nobody meets the first one speaks.
pub(super) fn lack(state: &State, spec: &JobSpec) -> Option<Lack> {
    lack_among(&registered(state), spec)
}

/// The hosts of which it is known what they have.
pub(super) fn registered(state: &State) -> Vec<&Host> {
    state.hosts().filter(|h| h.life != HostLife::Joining).collect()
}

/// The same for several jobs in turn.
pub(super) fn lack_among(known: &[&Host], spec: &JobSpec) -> Option<Lack> {
    if known.is_empty() {
        return None;
    }
    let mut first = None;
    for ask in spec.asks() {
        let lack = lack_of_ask(known, ask).or_else(|| lack_of_room(known, spec, ask))?;
        first = first.or(Some(lack));
    }
    let mut first = first?;
    if first.field == "ask.gpus"
        && spec.gang.is_none()
        && let Some(gang) = as_gang(known, &spec.ask)
    {
        first.example.push_str(&format!(", or {gang}"));
    }
    match spec.alternatives.len() {
        0 => {}
        1 => first.message.push_str(", and its alternative is not met either"),
        n => first.message.push_str(&format!(", and none of its {n} alternatives is met either")),
    }
    Some(first)
}

/// The same cards over several hosts, if there are so many.
fn as_gang(known: &[&Host], ask: &Ask) -> Option<String> {
    let cards = |host: &&Host| host.facts.devices.iter().filter(|d| fit::gpu_matches(d, ask)).count();
    let most = known.iter().map(cards).max()?;
    let asked = ask.gpus() as usize;
    let parts = (2..=asked).find(|parts| asked.is_multiple_of(*parts) && asked / parts <= most)?;
    let each = asked / parts;
    let room: usize = known.iter().map(|host| cards(host) / each).sum();
    (room >= parts).then(|| format!("--gang {parts} --gpus {each}"))
}

/// None if some host could run a task of the ask.
fn lack_of_ask(known: &[&Host], ask: &Ask) -> Option<Lack> {
    if someone(known, ask) {
        return None;
    }
    let parts = parts(ask);
    if let Some(part) = parts.iter().find(|part| !someone(known, &part.ask)) {
        return Some(lack_of_part(known, part));
    }
    // Each part alone exists: name the first two that do not go together, or else the whole ask.
    let pairs = parts.iter().enumerate().flat_map(|(at, a)| parts[at + 1..].iter().map(move |b| (a, b)));
    let mut pairs = pairs.map(|(a, b)| (a.field, joined(&a.ask, &b.ask)));
    let clash = pairs.find(|(_, both)| !someone(known, both));
    let (field, together) = clash.unwrap_or_else(|| ("ask", ask.clone()));
    let alone: Vec<String> = parts.iter().map(|part| ask_text(&part.ask)).collect();
    Some(Lack {
        field,
        message: format!("no host has {} together", ask_text(&together)),
        example: alone.first().cloned().unwrap_or_default(),
        offer: Some(format!("each alone: {}", alone.join("; "))),
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
        part("ask.gpus", Ask { gpu_milli: ask.gpu_milli, ..none() });
    }
    // One card is the least that a model or a card's memory can be asked of.
    if !ask.gpu_models.is_empty() {
        part("ask.model", Ask { gpu_milli: 1_000, gpu_models: ask.gpu_models.clone(), ..none() });
    }
    if ask.vram_mib > 0 {
        part("ask.vram", Ask { gpu_milli: 1_000, vram_mib: ask.vram_mib, ..none() });
    }
    if ask.compute_cap_min > 0 {
        let compute_cap_min = ask.compute_cap_min;
        part("ask.compute_cap", Ask { gpu_milli: 1_000, compute_cap_min, ..none() });
    }
    for (kind, count) in &ask.devices {
        part("ask.devices", Ask { devices: [(kind.clone(), *count)].into(), ..none() });
    }
    if ask.cpus_milli > 0 {
        part("ask.cpus", Ask { cpus_milli: ask.cpus_milli, ..none() });
    }
    if ask.mem_mib > 0 {
        part("ask.mem", Ask { mem_mib: ask.mem_mib, ..none() });
    }
    for (key, value) in &ask.labels {
        part("ask.labels", Ask { labels: [(key.clone(), value.clone())].into(), ..none() });
    }
    parts
}

fn joined(a: &Ask, b: &Ask) -> Ask {
    let mut both = a.clone();
    both.gpu_milli = a.gpu_milli.max(b.gpu_milli);
    both.vram_mib = a.vram_mib.max(b.vram_mib);
    both.compute_cap_min = a.compute_cap_min.max(b.compute_cap_min);
    both.cpus_milli = a.cpus_milli.max(b.cpus_milli);
    both.mem_mib = a.mem_mib.max(b.mem_mib);
    both.gpu_models.extend(b.gpu_models.iter().cloned());
    both.devices.extend(b.devices.clone());
    both.labels.extend(b.labels.clone());
    both
}

fn lack_of_part(known: &[&Host], part: &Part) -> Lack {
    let ask = &part.ask;
    let gpus =
        |h: &Host| h.facts.devices.iter().filter(|d| fit::gpu_matches(d, &Ask::default())).count() as u64;
    match part.field {
        "ask.gpus" => {
            let asks = format!("{} on one host", fit::gpus(u64::from(ask.gpus())));
            amount(part, &asks, largest(known, gpus), fit::gpus, "gpus")
        }
        "ask.vram" => {
            let vram = |h: &Host| h.facts.devices.iter().filter_map(|d| d.vram_mib).max().unwrap_or(0);
            let asks = format!("{} on one GPU", mib(ask.vram_mib));
            amount(part, &asks, largest(known, vram), |n| format!("{} on one GPU", mib(n)), "vram")
        }
        "ask.cpus" => {
            let cpus = |h: &Host| u64::from(h.facts.cpus_milli);
            let asks = format!("{} CPUs", milli(u64::from(ask.cpus_milli)));
            amount(part, &asks, largest(known, cpus), |n| format!("{} CPUs", milli(n)), "cpus")
        }
        "ask.mem" => {
            let asks = format!("{} memory", mib(ask.mem_mib));
            let mem = largest(known, |h| h.facts.mem_mib);
            amount(part, &asks, mem, |n| format!("{} memory", mib(n)), "mem")
        }
        "ask.compute_cap" => {
            let cap =
                |h: &Host| h.facts.devices.iter().filter_map(|d| d.compute_cap).max().unwrap_or(0).into();
            let asks = format!("compute capability {}", tenths(ask.compute_cap_min));
            let text =
                |n: u64| format!("compute capability {}", tenths(u16::try_from(n).unwrap_or(u16::MAX)));
            amount(part, &asks, largest(known, cap), text, "compute capability")
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
    let (key, value) = part.ask.labels.first_key_value().map_or(("", ""), |(k, v)| (k, v));
    let values: BTreeSet<&str> =
        known.iter().filter_map(|h| h.facts.labels.get(key)).map(String::as_str).collect();
    if (key, value) == MPS_LABEL {
        return Lack {
            field: part.field,
            message: "no host offers mps".into(),
            example: "--share-mode time-slice; hosts offer mps by [sharing] mps = true in rota.toml".into(),
            offer: Some("time-slice".into()),
        };
    }
    let mut lack = lack_of_choice(part, &format!("{key}={value}"), "no host has the label", &values);
    lack.example = match values.first() {
        Some(first) => format!("--label {key}={first}"),
        None => format!("no label {key}"),
    };
    lack
}

fn lack_of_choice(part: &Part, asked: &str, what: &str, there: &BTreeSet<&str>) -> Lack {
    let mut shown: Vec<&str> = there.iter().copied().take(SHOWN_MAX).collect();
    if there.len() > SHOWN_MAX {
        shown.push("..");
    }
    let offer = if shown.is_empty() { "none".to_owned() } else { shown.join(", ") };
    Lack {
        field: part.field,
        message: format!("{what} {asked}, there is: {offer}"),
        example: there.first().map_or_else(|| "no model".to_owned(), |first| (*first).to_owned()),
        offer: Some(offer),
    }
}

fn lack_of_kind(known: &[&Host], part: &Part) -> Lack {
    let (kind, asked) = part.ask.devices.first_key_value().map_or(("", 0), |(k, n)| (k, *n));
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
    amount(part, &format!("{asked} {kind} on one host"), best, |n| format!("{n} {kind}"), kind)
}

/// The largest figure and the name of the first host that has it.
fn largest(known: &[&Host], figure: impl Fn(&Host) -> u64) -> Option<(u64, String)> {
    let best = known.iter().max_by_key(|h| (figure(h), Reverse(h.id)))?;
    Some((figure(best), best.name.clone()))
}
