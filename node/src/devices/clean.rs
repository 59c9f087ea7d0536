//! Vendor libraries answer with "N/A", empty strings, `u64::MAX` and worse (fault G15). What is not plausible is
//! absent: never zero, and never free capacity.

use rota_protocol::limits::{NAME_BYTES_MAX, REASON_BYTES_MAX};

/// More memory than any one card has, in MiB (16 TiB): such an answer is a sentinel.
const VRAM_MIB_MAX: u64 = 16 << 20;
/// Hotter than silicon survives, in degrees Celsius.
const TEMPERATURE_C_MAX: u32 = 150;
/// More than any one card draws, in mW (10 kW).
const POWER_MW_MAX: u32 = 10_000_000;

const MIB: u64 = 1 << 20;

/// A name without control characters, trimmed and cut to the limit for names. `None` when nothing is left or the
/// text only says that there is none.
#[must_use]
pub fn text(raw: &str) -> Option<String> {
    let mut kept: String = raw.chars().filter(|c| !c.is_control()).collect();
    while kept.len() > NAME_BYTES_MAX {
        kept.pop();
    }
    let kept = kept.trim();
    let says_none = ["n/a", "[n/a]", "unknown", "none"].iter().any(|word| kept.eq_ignore_ascii_case(word));
    (!kept.is_empty() && !says_none).then(|| kept.to_owned())
}

/// A reason or warning, cut to the limit for them.
#[must_use]
pub fn reason(text: &str) -> String {
    let mut kept: String = text.chars().filter(|c| !c.is_control()).collect();
    while kept.len() > REASON_BYTES_MAX {
        kept.pop();
    }
    kept
}

/// A device's name. Unlike other texts it is never cut or changed: two cut names could meet, and a task is handed
/// this very text. `None` when it is empty, too long or holds anything but visible ASCII, a comma included.
#[must_use]
pub fn uuid(raw: &str) -> Option<String> {
    let fits = !raw.is_empty()
        && raw.len() <= NAME_BYTES_MAX
        && raw.bytes().all(|b| b.is_ascii_graphic() && b != b',');
    fits.then(|| raw.to_owned())
}

/// Total memory from bytes, in MiB.
#[must_use]
pub fn vram_mib(bytes: u64) -> Option<u64> {
    let mib = bytes / MIB;
    (mib > 0 && mib <= VRAM_MIB_MAX).then_some(mib)
}

/// Memory in use from bytes, in MiB, rounded up; nothing when it exceeds the total.
#[must_use]
pub fn vram_used_mib(bytes: u64, total_bytes: u64) -> Option<u64> {
    vram_mib(total_bytes)?;
    (bytes <= total_bytes).then(|| bytes.div_ceil(MIB))
}

/// A share from percent, in permille.
#[must_use]
pub fn permille(percent: u32) -> Option<u16> {
    u16::try_from(percent).ok().filter(|p| *p <= 100).map(|p| p * 10)
}

/// A compute capability in tenths: 90 for 9.0.
#[must_use]
pub fn compute_cap(major: i32, minor: i32) -> Option<u16> {
    let fair = (1..=99).contains(&major) && (0..=9).contains(&minor);
    if fair { u16::try_from(major * 10 + minor).ok() } else { None }
}

/// A temperature, in degrees Celsius.
#[must_use]
pub fn temperature_c(degrees: u32) -> Option<u16> {
    (1..=TEMPERATURE_C_MAX).contains(&degrees).then(|| u16::try_from(degrees).ok())?
}

/// A power draw, in mW.
#[must_use]
pub fn power_mw(milliwatts: u32) -> Option<u32> {
    (1..=POWER_MW_MAX).contains(&milliwatts).then_some(milliwatts)
}

/// A clock beside the most it can be, in permille.
#[must_use]
pub fn clock_permille((now, most): (u32, u32)) -> Option<u16> {
    let share = u64::from(now) * 1_000 / u64::from(most).max(1);
    u16::try_from(share).ok().filter(|permille| *permille <= 1_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentinels_are_absent() {
        for nothing in ["", "   ", "N/A", "[N/A]", "Unknown", "\0\n"] {
            assert_eq!(text(nothing), None, "{nothing:?}");
        }
        assert_eq!(vram_mib(0), None);
        assert_eq!(vram_mib(u64::MAX), None);
        assert_eq!(vram_mib(80 << 30), Some(80 << 10));
        assert_eq!(vram_used_mib(u64::MAX, 80 << 30), None);
        assert_eq!(vram_used_mib(1, 80 << 30), Some(1), "one byte in use is not zero in use");
        assert_eq!(permille(u32::MAX), None);
        assert_eq!(permille(100), Some(1_000));
        assert_eq!(temperature_c(u32::MAX), None);
        assert_eq!(temperature_c(0), None);
        assert_eq!(power_mw(u32::MAX), None);
        assert_eq!((compute_cap(9, 0), compute_cap(12, 1)), (Some(90), Some(121)));
        assert_eq!((compute_cap(0, 0), compute_cap(-1, 5), compute_cap(9, 10)), (None, None, None));
    }

    #[test]
    fn long_names_are_cut_at_a_character() {
        let long = "é".repeat(10_000);
        let kept = text(&long).expect("something is left");
        assert_eq!(kept.len(), NAME_BYTES_MAX);
        assert!(kept.chars().all(|c| c == 'é'));
    }

    #[test]
    fn a_uuid_is_taken_whole_or_not_at_all() {
        assert_eq!(uuid("GPU-1"), Some("GPU-1".into()));
        let long = "G".repeat(NAME_BYTES_MAX + 1);
        for bad in ["", "GPU 1", "GPU-1,GPU-2", "GPU\n1", long.as_str()] {
            assert_eq!(uuid(bad), None, "{bad:?}");
        }
    }
}
