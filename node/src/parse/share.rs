//! How a card is shared, and what must be kept apart on it.
//!
//! | mode | memory | faults | compute | who shares |
//! |---|---|---|---|---|
//! | whole card, MIG slice | apart | apart | apart | anybody beside anybody |
//! | time-slice | watched: who takes more than it asked is ended | apart | in turns | one tenant |
//! | mps | bounded by the driver | a fault of one ends all on the card | bounded by the driver | one tenant |

use super::word;
use crate::warden::mps::LABEL;
use rota_protocol::PublicError;
use rota_protocol::ask::CARD_MILLI;

/// How a shared card is shared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ShareMode {
    /// In turns; the default.
    TimeSlice,
    /// Through the driver's sharing service.
    Mps,
}

/// What must be kept apart from others on the card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Isolate {
    /// Its memory.
    Memory,
    /// Its faults.
    Faults,
    /// Everything.
    All,
}

pub(super) fn mode(field: &str, text: &str) -> Result<ShareMode, PublicError> {
    match text {
        "time-slice" => Ok(ShareMode::TimeSlice),
        "mps" => Ok(ShareMode::Mps),
        other => Err(word::unknown(field, "mode", other, ["time-slice", "mps"].into_iter())),
    }
}

pub(super) fn isolate(field: &str, text: &str) -> Result<Isolate, PublicError> {
    match text {
        "memory" => Ok(Isolate::Memory),
        "faults" => Ok(Isolate::Faults),
        "all" => Ok(Isolate::All),
        other => Err(word::unknown(field, "level", other, ["memory", "faults", "all"].into_iter())),
    }
}

/// The host label that an ask of so much of a card needs, if it needs one.
///
/// # Errors
/// A mode for what is not shared, or a level that the mode does not give.
pub(super) fn label(
    gpu_milli: u32,
    mode: Option<ShareMode>,
    isolate: Option<Isolate>,
) -> Result<Option<(String, String)>, PublicError> {
    let is_share = (1..CARD_MILLI).contains(&gpu_milli);
    if !is_share {
        return match mode {
            Some(_) => {
                let message = "is said of a shared card, and none is asked for";
                Err(PublicError::invalid("share-mode", message, "--gpu-share 50% --share-mode mps"))
            }
            // A whole card, or a slice, is apart in everything.
            None => Ok(None),
        };
    }
    let refuse = |message: &str, example| Err(PublicError::invalid("isolate", message, example));
    let mode = match (mode, isolate) {
        (_, Some(Isolate::All)) => {
            return refuse("no mode keeps all apart on a shared card", "--device mig:1g.10gb");
        }
        (Some(ShareMode::Mps), Some(Isolate::Faults)) => {
            return refuse("mps lets a fault of one job end all on the card", "--share-mode time-slice");
        }
        (Some(ShareMode::TimeSlice), Some(Isolate::Memory)) => {
            return refuse("time-slice only watches memory, and ends who takes too much", "--share-mode mps");
        }
        (None, Some(Isolate::Memory)) => ShareMode::Mps,
        (mode, _) => mode.unwrap_or(ShareMode::TimeSlice),
    };
    Ok((mode == ShareMode::Mps).then(|| (LABEL.0.to_owned(), LABEL.1.to_owned())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_chooses_a_mode_or_is_refused_with_what_would_do() {
        let mps = Some((LABEL.0.to_owned(), LABEL.1.to_owned()));
        assert_eq!(label(500, None, None), Ok(None));
        assert_eq!(label(500, Some(ShareMode::Mps), None), Ok(mps.clone()));
        assert_eq!(label(500, None, Some(Isolate::Memory)), Ok(mps));
        assert_eq!(label(500, None, Some(Isolate::Faults)), Ok(None));
        for gpu_milli in [0, 1_000, 4_000] {
            assert_eq!(label(gpu_milli, None, Some(Isolate::All)), Ok(None));
            assert!(label(gpu_milli, Some(ShareMode::Mps), None).is_err());
        }
        for (mode, isolate, example) in [
            (None, Isolate::All, "mig"),
            (Some(ShareMode::Mps), Isolate::Faults, "time-slice"),
            (Some(ShareMode::TimeSlice), Isolate::Memory, "mps"),
        ] {
            let refused = label(500, mode, Some(isolate)).expect_err("contradicts");
            assert!(refused.example.is_some_and(|text| text.contains(example)));
        }
        assert!(mode_error("mig") && isolate("isolate", "none").is_err());
    }

    fn mode_error(text: &str) -> bool {
        mode("share-mode", text).is_err()
    }
}
