//! Amounts: memory, CPUs, counts. Exact integer arithmetic, rounded up to the smallest step, never to zero.
//!
//! Memory: `16G`, `16GiB`, `16gb`, `16 G` all mean 16 * 2^30 bytes, a bare number means MiB, decimals are allowed.

use rota_protocol::PublicError;
use rota_protocol::limits::GPUS_PER_TASK_MAX;

/// Largest memory that can be asked, in MiB: 1 PiB, more than any host has; more is a typing error.
pub const MEM_MIB_MAX: u64 = 1 << 30;
/// Largest CPU ask, in thousandths: a million cores; more is a typing error.
pub const CPUS_MILLI_MAX: u32 = 1_000_000_000;

/// Most digits read of one number; more cannot be meant.
const DIGITS_MAX: usize = 18;

/// A decimal number, exactly: `mantissa / scale`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Decimal {
    mantissa: u128,
    scale: u128,
}

impl Decimal {
    /// `self * factor / divisor`, rounded up; none when it overflows.
    pub(super) fn times_ceil(self, factor: u64, divisor: u64) -> Option<u64> {
        let over = self.mantissa.checked_mul(u128::from(factor))?;
        let under = self.scale.checked_mul(u128::from(divisor))?;
        u64::try_from(over.div_ceil(under)).ok()
    }

    /// `self * factor` if that is a whole number.
    pub(super) fn times_exact(self, factor: u64) -> Option<u64> {
        let over = self.mantissa.checked_mul(u128::from(factor))?;
        if over % self.scale != 0 {
            return None;
        }
        u64::try_from(over / self.scale).ok()
    }

    /// `self * factor`, rounded down; the largest number when it overflows.
    pub(super) fn times_floor(self, factor: u64) -> u64 {
        let over = self.mantissa.saturating_mul(u128::from(factor));
        u64::try_from(over / self.scale).unwrap_or(u64::MAX)
    }

    pub(super) fn is_zero(self) -> bool {
        self.mantissa == 0
    }
}

/// Why the front of a text is not a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NotDecimal {
    /// No digit where one was due.
    NoDigits,
    /// A minus sign.
    Negative,
    /// More digits than can be meant.
    TooLong,
}

impl NotDecimal {
    pub(super) fn error(self, field: &str, text: &str, example: &str) -> PublicError {
        let why = match self {
            Self::NoDigits => "is not a number",
            Self::Negative => "is negative",
            Self::TooLong => {
                let message = format!("{} has more than {DIGITS_MAX} digits", quoted(text));
                return PublicError::invalid(field, message, example);
            }
        };
        PublicError::invalid(field, format!("{} {why}", quoted(text)), example)
    }
}

/// Splits a decimal number off the front of a text.
pub(super) fn decimal(text: &str) -> Result<(Decimal, &str), NotDecimal> {
    if text.starts_with('-') {
        return Err(NotDecimal::Negative);
    }
    let (whole, rest) = digits(text);
    let (fraction, rest) = match rest.strip_prefix('.') {
        Some(after) => {
            let (fraction, rest) = digits(after);
            if fraction.is_empty() {
                return Err(NotDecimal::NoDigits);
            }
            (fraction, rest)
        }
        None => ("", rest),
    };
    if whole.is_empty() {
        return Err(NotDecimal::NoDigits);
    }
    if whole.len() + fraction.len() > DIGITS_MAX {
        return Err(NotDecimal::TooLong);
    }
    let (mut mantissa, mut scale) = (0_u128, 1_u128);
    for digit in whole.bytes() {
        mantissa = mantissa * 10 + u128::from(digit - b'0');
    }
    for digit in fraction.bytes() {
        mantissa = mantissa * 10 + u128::from(digit - b'0');
        scale *= 10;
    }
    Ok((Decimal { mantissa, scale }, rest))
}

fn digits(text: &str) -> (&str, &str) {
    let end = text.bytes().position(|b| !b.is_ascii_digit()).unwrap_or(text.len());
    text.split_at(end)
}

/// Memory as text to MiB, rounded up; never 0.
///
/// # Errors
/// Empty, zero, negative, not a number, an unknown unit, or more than [`MEM_MIB_MAX`].
pub fn memory_mib(field: &str, text: &str) -> Result<u64, PublicError> {
    memory_mib_to(field, text, MEM_MIB_MAX)
}

/// The same up to another limit, a whole number of TiB in MiB.
pub(super) fn memory_mib_to(field: &str, text: &str, most_mib: u64) -> Result<u64, PublicError> {
    memory(field, text, most_mib, 1 << 20)
}

/// An amount of memory or disk as text to bytes, in the same words; never 0.
///
/// # Errors
/// As for [`memory_mib`].
pub fn bytes(field: &str, text: &str) -> Result<u64, PublicError> {
    memory(field, text, MEM_MIB_MAX, 1)
}

/// In pieces of `piece` bytes, rounded up.
fn memory(field: &str, text: &str, most_mib: u64, piece: u64) -> Result<u64, PublicError> {
    const EXAMPLE: &str = "16G";
    let trimmed = text.trim();
    let (number, unit) = decimal(trimmed).map_err(|why| why.error(field, text, EXAMPLE))?;
    let unit_bytes: u64 = match unit.trim_start().to_ascii_lowercase().as_str() {
        "k" | "kb" | "ki" | "kib" => 1 << 10,
        "" | "m" | "mb" | "mi" | "mib" => 1 << 20,
        "g" | "gb" | "gi" | "gib" => 1 << 30,
        "t" | "tb" | "ti" | "tib" => 1 << 40,
        _ => {
            return Err(PublicError::invalid(
                field,
                format!(
                    "{} has an unknown unit; units are K, M, G, T (powers of 1024), a bare number is MiB",
                    quoted(text)
                ),
                EXAMPLE,
            ));
        }
    };
    if number.is_zero() {
        return Err(PublicError::invalid(
            field,
            format!("{} is zero; leave the field out to ask for none", quoted(text)),
            EXAMPLE,
        ));
    }
    let most = most_mib.saturating_mul((1 << 20) / piece);
    number.times_ceil(unit_bytes, piece).filter(|pieces| *pieces <= most).ok_or_else(|| {
        let most = most_mib >> 20;
        PublicError::invalid(field, format!("{} is more than {most}T", quoted(text)), EXAMPLE)
    })
}

/// CPUs as text (`4`, `0.5`) to thousandths of a core, rounded up; never 0.
///
/// # Errors
/// Empty, zero, negative, not a number, anything after it, or more than a million cores.
pub fn cpus_milli(field: &str, text: &str) -> Result<u32, PublicError> {
    const EXAMPLE: &str = "0.5";
    let (number, rest) = decimal(text.trim()).map_err(|why| why.error(field, text, EXAMPLE))?;
    if !rest.is_empty() {
        return Err(PublicError::invalid(
            field,
            format!("{} is not a number of CPU cores", quoted(text)),
            EXAMPLE,
        ));
    }
    if number.is_zero() {
        return Err(PublicError::invalid(
            field,
            format!("{} is zero; a task needs some CPU", quoted(text)),
            EXAMPLE,
        ));
    }
    number
        .times_ceil(1_000, 1)
        .and_then(|milli| u32::try_from(milli).ok())
        .filter(|milli| *milli <= CPUS_MILLI_MAX)
        .ok_or_else(|| {
            PublicError::invalid(field, format!("{} is more than a million cores", quoted(text)), EXAMPLE)
        })
}

/// GPUs as text to thousandths of a card: whole cards (`2`), or a share of the cores of one (`0.5`, rounded up). 0
/// asks for none.
///
/// # Errors
/// Not a number, a part beside whole cards, or more than can be counted.
pub fn gpu_milli(field: &str, text: &str) -> Result<u32, PublicError> {
    const EXAMPLE: &str = "2";
    let trimmed = text.trim();
    let too_many = || {
        let message = format!("{} is above {GPUS_PER_TASK_MAX}, the most cards of one task", quoted(text));
        PublicError::invalid(field, message, EXAMPLE)
    };
    let (number, rest) = decimal(trimmed).map_err(|why| match why {
        NotDecimal::TooLong if !trimmed.contains('.') => too_many(),
        why => why.error(field, text, EXAMPLE),
    })?;
    if !rest.is_empty() {
        return Err(PublicError::invalid(
            field,
            format!("{} is not a number of cards; the model has its own field, gpu-model", quoted(text)),
            EXAMPLE,
        ));
    }
    let milli =
        number.times_ceil(1_000, 1).and_then(|milli| u32::try_from(milli).ok()).ok_or_else(too_many)?;
    if !number.is_zero() && number.times_floor(1_000) == 0 {
        return Err(below_smallest(field, text));
    }
    if number.times_exact(1).is_none() && milli >= 1_000 {
        return Err(PublicError::invalid(
            field,
            format!("{} is neither whole cards nor a share of one card", quoted(text)),
            "0.5",
        ));
    }
    Ok(milli)
}

/// Less of a card than can be granted: it would become several times what was asked.
fn below_smallest(field: &str, text: &str) -> PublicError {
    let message = format!("{} is below 0.001 (0.1%), the smallest share of a card", quoted(text));
    PublicError::invalid(field, message, "0.5")
}

/// A share of the cores of one card as text (`0.5`, `50%`) to thousandths, rounded up; all of it is a whole card.
///
/// # Errors
/// Not a number, zero, or more than one card.
pub fn share_milli(field: &str, text: &str) -> Result<u32, PublicError> {
    const EXAMPLE: &str = "50%";
    let (number, rest) = decimal(text.trim()).map_err(|why| why.error(field, text, EXAMPLE))?;
    let refuse = |why: &str| PublicError::invalid(field, format!("{} {why}", quoted(text)), EXAMPLE);
    let factor = match rest.trim() {
        "" => 1_000,
        "%" => 10,
        _ => return Err(refuse("is not a share of a card")),
    };
    let milli = number.times_ceil(factor, 1);
    if !number.is_zero() && number.times_floor(factor) == 0 {
        return Err(below_smallest(field, text));
    }
    match milli.and_then(|milli| u32::try_from(milli).ok()) {
        Some(0) => Err(refuse("is zero; leave the field out to ask for none")),
        Some(milli @ 1..=1_000) => Ok(milli),
        _ => Err(refuse("is more than one card; whole cards have their own field, gpus")),
    }
}

/// A compute capability as text (`8.0`, `9`) to tenths.
///
/// # Errors
/// Not a number with at most one decimal, zero, or above 99.9.
pub fn compute_cap(field: &str, text: &str) -> Result<u16, PublicError> {
    const EXAMPLE: &str = "8.0";
    /// Ten times 99.9.
    const TENTHS_MAX: u64 = 999;
    let (number, rest) = decimal(text.trim()).map_err(|why| why.error(field, text, EXAMPLE))?;
    let tenths = number.times_exact(10).filter(|tenths| rest.is_empty() && (1..=TENTHS_MAX).contains(tenths));
    tenths.and_then(|tenths| u16::try_from(tenths).ok()).ok_or_else(|| {
        PublicError::invalid(field, format!("{} is no compute capability", quoted(text)), EXAMPLE)
    })
}

/// A whole number from `least` to `most`.
///
/// # Errors
/// Not a whole number, or outside the range.
pub fn count(field: &str, text: &str, least: u32, most: u32) -> Result<u32, PublicError> {
    let example = least.max(1).min(most).to_string();
    let trimmed = text.trim();
    let plain = !trimmed.is_empty() && trimmed.bytes().all(|b| b.is_ascii_digit());
    match trimmed.parse::<u32>() {
        Ok(value) if plain && (least..=most).contains(&value) => Ok(value),
        _ => Err(PublicError::invalid(
            field,
            format!("{} is not a whole number from {least} to {most}", quoted(text)),
            &example,
        )),
    }
}

/// A value as it is named in a message: in quotes, cut, and with control characters escaped.
pub(super) fn quoted(text: &str) -> String {
    /// Characters of a value shown in a message: enough to find it again.
    const SHOWN_CHARS: usize = 64;
    let mut shown: String = text.chars().take(SHOWN_CHARS).collect();
    if text.chars().nth(SHOWN_CHARS).is_some() {
        shown.push_str("..");
    }
    format!("{shown:?}")
}

/// MiB as text that [`memory_mib`] reads back to the same value.
#[must_use]
pub fn memory_text(mib: u64) -> String {
    let (mut value, mut unit) = (mib, "MiB");
    for next in ["GiB", "TiB"] {
        if value == 0 || !value.is_multiple_of(1_024) {
            break;
        }
        value /= 1_024;
        unit = next;
    }
    format!("{value} {unit}")
}

/// Thousandths as text that [`cpus_milli`] reads back to the same value.
#[must_use]
pub fn milli_text(milli: impl Into<u64>) -> String {
    let milli = milli.into();
    let (whole, part) = (milli / 1_000, milli % 1_000);
    if part == 0 {
        return whole.to_string();
    }
    let part = format!("{part:03}");
    format!("{whole}.{}", part.trim_end_matches('0'))
}
