//! The shape of work as text: gangs, layouts, dependencies, warnings; and back again for the echo. Slurm's words for
//! the same are taken too.

use super::amount::{self, quoted};
use super::{time, word};
use rota_protocol::limits::{GANG_PARTS_MAX, WARN_MS_MAX};
use rota_protocol::work::{Dependency, GangSpec, Layout, Relation, Warning};
use rota_protocol::{JobId, PublicError};

/// Warning time where none is given, in ms: as in Slurm.
const WARN_MS_DEFAULT: u32 = 60_000;
/// Signals that a process cannot take: KILL and STOP.
const UNCATCHABLE: [u8; 2] = [9, 19];

const LAYOUTS: [(&str, Layout); 6] = [
    ("any", Layout::Any),
    ("pack", Layout::Pack),
    ("spread", Layout::Spread),
    ("same-host", Layout::SameHost),
    ("same-rack", Layout::SameRack),
    ("same-island", Layout::SameIsland),
];

/// Words for how a parent must have ended, and whether each task waits only for its like: ours, then Slurm's.
const RELATIONS: [(&str, Relation, bool); 10] = [
    ("ok", Relation::Ok, false),
    ("not-ok", Relation::NotOk, false),
    ("any", Relation::Any, false),
    ("each-ok", Relation::Ok, true),
    ("each-not-ok", Relation::NotOk, true),
    ("each-any", Relation::Any, true),
    ("afterok", Relation::Ok, false),
    ("afternotok", Relation::NotOk, false),
    ("afterany", Relation::Any, false),
    ("aftercorr", Relation::Ok, true),
];

/// Parts of a gang: `4`, or `2..4` (also `2-4`) for one that may lose parts and find new ones.
///
/// # Errors
/// Another form, 0 parts, a range that runs backwards, or more than [`GANG_PARTS_MAX`].
pub fn gang(field: &str, text: &str) -> Result<GangSpec, PublicError> {
    let trimmed = text.trim();
    let range =
        trimmed.split_once("..").or_else(|| trimmed.split_once('-').filter(|(min, _)| !min.is_empty()));
    let (min, max) = range.unwrap_or((trimmed, trimmed));
    let count = |part: &str| amount::count(field, part, 1, GANG_PARTS_MAX);
    let parts = GangSpec { min: count(min)?, max: count(max)? };
    if parts.max < parts.min {
        return Err(PublicError::invalid(field, format!("{} runs backwards", quoted(text)), "2..4"));
    }
    Ok(parts)
}

/// A gang as text that [`gang`] reads back.
#[must_use]
pub fn gang_text(gang: &GangSpec) -> String {
    if gang.is_elastic() { format!("{}..{}", gang.min, gang.max) } else { gang.max.to_string() }
}

/// A layout by name.
///
/// # Errors
/// No such layout.
pub fn layout(field: &str, text: &str) -> Result<Layout, PublicError> {
    let wanted = text.trim().replace('_', "-").to_ascii_lowercase();
    let found = LAYOUTS.iter().find(|(name, _)| *name == wanted);
    found
        .map(|(_, layout)| *layout)
        .ok_or_else(|| word::unknown(field, "layout", text, LAYOUTS.iter().map(|(name, _)| *name)))
}

/// A layout's name.
#[must_use]
pub fn layout_text(layout: Layout) -> &'static str {
    LAYOUTS.iter().find(|(_, known)| *known == layout).map_or("any", |(name, _)| name)
}

/// Dependencies: `ok:12,any:13:14`, or Slurm's `afterok:12,afterany:13:14`. All must be met.
///
/// # Errors
/// An unknown relation, no job's number, one parent twice, or ends of one parent that cannot both be.
pub fn after(field: &str, text: &str) -> Result<Vec<Dependency>, PublicError> {
    const EXAMPLE: &str = "ok:12";
    let refuse =
        |what: &str, why: &str| PublicError::invalid(field, format!("{} {why}", quoted(what)), EXAMPLE);
    if text.contains('?') {
        return Err(refuse(text, "asks for one of several; here all must be met, apart by commas"));
    }
    let mut all: Vec<Dependency> = Vec::new();
    for item in text.split(',') {
        let mut parts = item.trim().split(':');
        let name = parts.next().unwrap_or_default().replace('_', "-").to_ascii_lowercase();
        match name.as_str() {
            "after" => return Err(refuse(item, "waits for a start; only ends can be waited for")),
            "singleton" => return Err(refuse(item, "names no job; name the one to wait for")),
            name if !name.is_empty() && name.bytes().all(|b| b.is_ascii_digit()) => {
                return Err(refuse(item, "does not say how the job must have ended: ok, not-ok or any"));
            }
            _ => {}
        }
        let Some((_, relation, each)) = RELATIONS.iter().find(|(known, ..)| *known == name) else {
            let known = RELATIONS.iter().map(|(known, ..)| *known);
            return Err(PublicError {
                example: Some(EXAMPLE.to_owned()),
                ..word::unknown(field, "relation", &name, known)
            });
        };
        let before = all.len();
        for number in parts {
            let digits = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
            let job = number.parse().ok().filter(|job| digits && *job > 0);
            let job = job.ok_or_else(|| refuse(item, "names no job by its number"))?;
            all.push(Dependency { job: JobId(job), relation: *relation, each: *each });
        }
        if all.len() == before {
            return Err(refuse(item, "names no job"));
        }
    }
    Ok(all)
}

/// Refuses a parent that is named twice, or that would have to end in two ways.
///
/// # Errors
/// Names the first such parent.
pub(super) fn check_after(field: &str, all: &[Dependency]) -> Result<(), PublicError> {
    for (at, one) in all.iter().enumerate() {
        for other in all[..at].iter().filter(|other| other.job == one.job && other.each == one.each) {
            let message = match (one.relation, other.relation) {
                (a, b) if a == b => format!("job {} is named twice", one.job),
                (Relation::Ok, Relation::NotOk) | (Relation::NotOk, Relation::Ok) => {
                    format!("job {} cannot end both ok and not-ok", one.job)
                }
                _ => continue,
            };
            return Err(PublicError::invalid(field, message, "ok:12"));
        }
    }
    Ok(())
}

/// Dependencies as text that [`after`] reads back.
#[must_use]
pub fn after_text(all: &[Dependency]) -> String {
    let one =
        |dep: &Dependency| format!("{}{}:{}", if dep.each { "each-" } else { "" }, dep.relation, dep.job);
    all.iter().map(one).collect::<Vec<_>>().join(",")
}

/// A warning: `USR1@60s`, `B:USR1@60` for the first process only; without a time it comes 60 s before the end.
///
/// # Errors
/// No such signal, one that cannot be caught, or a time that is none, zero, or above a day.
pub fn warning(field: &str, text: &str) -> Result<Warning, PublicError> {
    const EXAMPLE: &str = "USR1@60s";
    let trimmed = text.trim();
    let (leader_only, rest) = match trimmed.strip_prefix("B:").or_else(|| trimmed.strip_prefix("b:")) {
        Some(rest) => (true, rest),
        None => (false, trimmed),
    };
    let (name, before) = match rest.split_once('@') {
        Some((name, before)) => (name, Some(before)),
        None => (rest, None),
    };
    let example = |error: PublicError| PublicError { example: Some(EXAMPLE.to_owned()), ..error };
    let signal = word::signal(field, name).map_err(example)?;
    if UNCATCHABLE.contains(&signal) {
        let message = format!("{} cannot be caught, so it warns nobody", quoted(name));
        return Err(PublicError::invalid(field, message, EXAMPLE));
    }
    let before_ms = match before {
        None => WARN_MS_DEFAULT,
        Some(before) => {
            let ms = time::duration_ms(field, before).map_err(example)?;
            u32::try_from(ms).ok().filter(|ms| *ms <= WARN_MS_MAX).ok_or_else(|| {
                PublicError::invalid(field, format!("{} is longer than a day", quoted(before)), EXAMPLE)
            })?
        }
    };
    Ok(Warning { signal, before_ms, leader_only })
}

/// A warning as text that [`warning`] reads back.
#[must_use]
pub fn warning_text(warning: &Warning) -> String {
    let to = if warning.leader_only { "B:" } else { "" };
    let before = time::duration_text(warning.before_ms.into());
    format!("{to}{}@{before}", word::signal_text(warning.signal))
}
