//! Bounds of queues as text: `gpus=4,cpus=64,mem=2T`. A part that is not named has no bound; `none` names none.

use super::amount::{self, quoted};
use super::draft::once;
use super::key::Key;
use super::{time, word};
use rota_protocol::PublicError;
use rota_protocol::care::{IdleMode, IdleRule};
use rota_protocol::limits::{PRIORITY_DEFAULT, PRIORITY_MAX};
use rota_protocol::queue::{Amounts, Ceiling, Excess};

/// Largest sum of memory, in MiB: a million hosts of 1 TiB.
const MEM_MIB_MAX: u64 = 1 << 40;
/// Most cards or cores of a queue.
const COUNT_MAX: u64 = 1_000_000_000;
const EXAMPLE: &str = "gpus=4,cpus=64,mem=512G";

/// The most of each part.
///
/// # Errors
/// A part that is unknown, named twice, or whose amount cannot be read.
pub fn ceiling(field: &str, text: &str) -> Result<Ceiling, PublicError> {
    let mut ceiling = Ceiling::default();
    if text.trim() == "none" {
        return Ok(ceiling);
    }
    for part in text.split(',') {
        let Some((name, amount)) = part.split_once('=') else {
            return Err(PublicError::invalid(field, format!("{} has no =", quoted(part)), EXAMPLE));
        };
        let key = Key::parse(name.trim()).ok();
        let said = match key {
            Some(key @ Key::Gpus) => once(key, &mut ceiling.gpu_milli, thousandths(field, amount)?),
            Some(key @ Key::Cpus) => once(key, &mut ceiling.cpus_milli, thousandths(field, amount)?),
            Some(key @ Key::Mem) => once(key, &mut ceiling.mem_mib, memory(field, amount)?),
            Some(key @ Key::Vram) => once(key, &mut ceiling.vram_mib, memory(field, amount)?),
            _ => {
                let known = ["gpus", "cpus", "mem", "vram"].into_iter();
                let error = super::word::unknown(field, "amount", name.trim(), known);
                return Err(PublicError { example: Some(EXAMPLE.to_owned()), ..error });
            }
        };
        said.map_err(|error| {
            PublicError::invalid(field, format!("{} {}", name.trim(), error.message), EXAMPLE)
        })?;
    }
    Ok(ceiling)
}

/// What is guaranteed of each part; what is not named is not guaranteed.
///
/// # Errors
/// As for [`ceiling`].
pub fn guarantee(field: &str, text: &str) -> Result<Amounts, PublicError> {
    let named = ceiling(field, text)?;
    Ok(Amounts {
        gpu_milli: named.gpu_milli.unwrap_or(0),
        cpus_milli: named.cpus_milli.unwrap_or(0),
        mem_mib: named.mem_mib.unwrap_or(0),
        vram_mib: named.vram_mib.unwrap_or(0),
    })
}

/// A ceiling as text that [`ceiling`] reads back; `none` without bounds.
#[must_use]
pub fn ceiling_text(ceiling: &Ceiling) -> String {
    let parts = [
        ceiling.gpu_milli.map(|milli| format!("gpus={}", amount::milli_text(milli))),
        ceiling.cpus_milli.map(|milli| format!("cpus={}", amount::milli_text(milli))),
        ceiling.mem_mib.map(|mib| format!("mem={}", memory_text(mib))),
        ceiling.vram_mib.map(|mib| format!("vram={}", memory_text(mib))),
    ];
    let named: Vec<String> = parts.into_iter().flatten().collect();
    if named.is_empty() { "none".to_owned() } else { named.join(",") }
}

/// Amounts as text that [`guarantee`] reads back; parts of which there is nothing are left out.
#[must_use]
pub fn amounts_text(amounts: &Amounts) -> String {
    let some = |amount: u64| Some(amount).filter(|amount| *amount > 0);
    ceiling_text(&Ceiling {
        gpu_milli: some(amounts.gpu_milli),
        cpus_milli: some(amounts.cpus_milli),
        mem_mib: some(amounts.mem_mib),
        vram_mib: some(amounts.vram_mib),
    })
}

/// What happens to work above a lowered ceiling.
///
/// # Errors
/// Another word.
pub fn excess(field: &str, text: &str) -> Result<Excess, PublicError> {
    match text.trim().replace('_', "-").as_str() {
        "let-end" => Ok(Excess::LetEnd),
        "requeue-youngest" => Ok(Excess::RequeueYoungest),
        _ => Err(super::word::unknown(field, "rule", text, ["let-end", "requeue-youngest"].into_iter())),
    }
}

/// A time in ms; none by `none`.
///
/// # Errors
/// No duration.
pub fn time_or_none(field: &str, text: &str) -> Result<Option<u64>, PublicError> {
    if text.trim() == "none" { Ok(None) } else { super::time::duration_ms(field, text).map(Some) }
}

/// The highest priority that submitters may ask: from the default on, which anybody may; none by `none`.
///
/// # Errors
/// Not a whole number, or outside that range.
pub fn priority_max(field: &str, text: &str) -> Result<Option<u16>, PublicError> {
    if text.trim() == "none" {
        return Ok(None);
    }
    let most = amount::count(field, text, u32::from(PRIORITY_DEFAULT), u32::from(PRIORITY_MAX))?;
    Ok(Some(super::draft::narrow(most)))
}

/// The word for [`excess`].
#[must_use]
pub fn excess_text(excess: Excess) -> &'static str {
    match excess {
        Excess::LetEnd => "let-end",
        Excess::RequeueYoungest => "requeue-youngest",
    }
}

fn thousandths(field: &str, text: &str) -> Result<u64, PublicError> {
    let (number, rest) = amount::decimal(text.trim()).map_err(|why| why.error(field, text, EXAMPLE))?;
    let milli = number.times_ceil(1_000, 1).filter(|milli| rest.is_empty() && *milli <= COUNT_MAX * 1_000);
    milli.ok_or_else(|| PublicError::invalid(field, format!("{} is no amount", quoted(text)), EXAMPLE))
}

fn memory(field: &str, text: &str) -> Result<u64, PublicError> {
    // Nothing at all is a bound too.
    if text.trim() == "0" {
        return Ok(0);
    }
    amount::memory_mib_to(field, text, MEM_MIB_MAX)
        .map_err(|error| PublicError { example: Some(EXAMPLE.to_owned()), ..error })
}

fn memory_text(mib: u64) -> String {
    amount::memory_text(mib).replace(' ', "")
}

/// `report`, `warn` or `end`.
///
/// # Errors
/// Another word.
pub fn idle_mode(field: &str, text: &str) -> Result<IdleMode, PublicError> {
    match text.trim() {
        "report" => Ok(IdleMode::Report),
        "warn" => Ok(IdleMode::Warn),
        "end" => Ok(IdleMode::End),
        other => Err(word::unknown(field, "rule", other, ["report", "warn", "end"].into_iter())),
    }
}

/// The rule for cards held idle, for people.
#[must_use]
pub fn idle_text(rule: &IdleRule) -> String {
    let window = time::duration_text(rule.window_ms);
    match rule.mode {
        IdleMode::Report => format!("idle: report after {window}"),
        IdleMode::Warn => format!("idle: {} warnings, one each {window}", rule.warnings),
        IdleMode::End => format!("idle: end after {} warnings, one each {window}", rule.warnings),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn bounds_are_read_and_what_is_none_is_refused_with_an_example() {
        assert_eq!(ceiling("c", "none"), Ok(Ceiling::default()));
        let wanted = Ceiling {
            gpu_milli: Some(4_500),
            cpus_milli: Some(64_000),
            mem_mib: Some(2 << 20),
            vram_mib: Some(0),
        };
        assert_eq!(ceiling("c", "gpus=4.5, cpus=64,mem=2T,vram=0"), Ok(wanted));
        assert_eq!(guarantee("g", "gpus=2").map(|amounts| amounts.parts()), Ok([2_000, 0, 0, 0]));
        for text in [
            "",
            "gpus",
            "gpus=",
            "gpus=-1",
            "gpus=NaN",
            "gpus=1,gpus=2",
            "gpuz=1",
            "disks=1",
            "mem=12X",
            "gpus=1e9",
            "gpus=9999999999999",
            "name=a",
            "gpus=1;cpus=2",
        ] {
            let error = ceiling("ceiling", text).expect_err(text);
            assert_eq!(error.field.as_deref(), Some("ceiling"), "{text:?}");
            assert!(ceiling("c", error.example.as_deref().expect("an example")).is_ok(), "{text:?}: {error}");
        }
        assert!(excess("e", "requeue_youngest").is_ok() && excess("e", "kill").is_err());
    }

    proptest! {
        #[test]
        fn bounds_as_they_are_shown_read_back(gpus in proptest::option::of(0..=COUNT_MAX), mem in proptest::option::of(0..=MEM_MIB_MAX)) {
            let bound = Ceiling { gpu_milli: gpus, mem_mib: mem, ..Ceiling::default() };
            prop_assert_eq!(ceiling("c", &ceiling_text(&bound)), Ok(bound));
        }
    }
}
