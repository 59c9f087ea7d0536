//! The `[sharing]` table of the configuration: what the site says of strangers, of scrubbing, and of sharing cards.

use crate::parse::time;
use rota_protocol::PublicError;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

/// What becomes of a card that somebody uses outside of Rota.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outside {
    /// It is not granted until they are gone.
    #[default]
    Block,
    /// It is granted all the same.
    Allow,
}

/// What becomes of a task that uses more of a shared card's memory than it asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OverVram {
    /// Its owner is told.
    Warn,
    /// It is ended, and its neighbours run on.
    #[default]
    End,
}

/// The table; every field has a working default.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SharingSettings {
    /// Whether a card that is used outside may be granted.
    pub outside: Outside,
    /// Names of programs that may be on a card or have its node open without being anybody's job: daemons and monitors.
    pub watchers: Vec<String>,
    /// Command that scrubs the cards named in `ROTA_DEVICES` when their tenant has left; none for no scrub.
    pub scrub: Vec<String>,
    /// How long it may take.
    pub scrub_deadline: String,
    /// What happens above the memory asked of a shared card.
    pub over_vram: OverVram,
    /// How far above is not counted, in MiB: a context of the driver itself takes some hundred.
    pub vram_slack_mib: u64,
    /// Offer cards that are shared through MPS.
    pub mps: bool,
    /// The MPS control program.
    pub mps_control: PathBuf,
    /// The program by which slices are made.
    pub nvidia_smi: PathBuf,
    /// Slices that a card is to have, by its PCI address: `"0000:3b:00.0" = ["3g.40gb", "1g.10gb"]`.
    pub mig: BTreeMap<String, Vec<String>>,
}

/// Programs that look at cards on most hosts, by the names that the kernel keeps (15 bytes).
const WATCHERS: [&str; 12] = [
    "nvidia-persiste",
    "nv-hostengine",
    "dcgm-exporter",
    "dcgmi",
    "nvidia-smi",
    "nvtop",
    "nvitop",
    "gpustat",
    "nvidia-cuda-mps",
    "Xorg",
    "gnome-shell",
    "gpud",
];
/// Most slices declared of one card: the hardware's own limit.
const SLICES_MAX: usize = 7;

impl Default for SharingSettings {
    fn default() -> Self {
        Self {
            outside: Outside::Block,
            watchers: WATCHERS.iter().map(|name| (*name).to_owned()).collect(),
            scrub: Vec::new(),
            scrub_deadline: "60s".to_owned(),
            over_vram: OverVram::End,
            vram_slack_mib: 512,
            mps: false,
            mps_control: "nvidia-cuda-mps-control".into(),
            nvidia_smi: "nvidia-smi".into(),
            mig: BTreeMap::new(),
        }
    }
}

impl SharingSettings {
    /// Checks what the types cannot.
    ///
    /// # Errors
    /// Names the key, the value and a valid example.
    pub fn check(&self) -> Result<(), PublicError> {
        self.scrub_deadline()?;
        for (card, slices) in &self.mig {
            if !is_bus(card) {
                let message = format!("{card:?} is no PCI address");
                return Err(PublicError::invalid("sharing.mig", message, "0000:3b:00.0"));
            }
            let bad = slices.iter().find(|profile| !is_profile(profile));
            if let Some(bad) = bad {
                let message = format!("{bad:?} of {card} is no profile");
                return Err(PublicError::invalid("sharing.mig", message, "1g.10gb"));
            }
            if slices.is_empty() || slices.len() > SLICES_MAX {
                let message = format!("{card} has {} slices", slices.len());
                return Err(PublicError::invalid("sharing.mig", message, "1 to 7 slices"));
            }
        }
        Ok(())
    }

    /// How long a scrub may take.
    ///
    /// # Errors
    /// It is no time.
    pub fn scrub_deadline(&self) -> Result<Duration, PublicError> {
        time::duration_ms("sharing.scrub_deadline", &self.scrub_deadline).map(Duration::from_millis)
    }

    /// Whether a program of this name may be on any card.
    #[must_use]
    pub fn is_watcher(&self, name: &str) -> bool {
        self.watchers.iter().any(|known| known == name)
    }
}

fn is_bus(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_hexdigit() || matches!(c, ':' | '.');
    text.len() <= 16 && text.matches(':').count() == 2 && text.chars().all(plain)
}

/// `3g.40gb`, `1g.10gb+me`: letters that a shell and a driver take as one word.
fn is_profile(text: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '+');
    text.split_once("g.").is_some_and(|(slices, _)| slices.parse::<u8>().is_ok_and(|n| (1..=7).contains(&n)))
        && text.len() <= 32
        && text.chars().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_read_and_nonsense_is_named() {
        let text = "outside = \"allow\"\nover_vram = \"warn\"\n[mig]\n\"0000:3b:00.0\" = [\"3g.40gb\", \"1g.10gb+me\"]";
        let settings: SharingSettings = toml::from_str(text).expect("fair");
        assert_eq!((settings.outside, settings.over_vram), (Outside::Allow, OverVram::Warn));
        assert_eq!(settings.check(), Ok(()));
        assert!(settings.is_watcher("nvidia-smi") && !settings.is_watcher("python"));
        for (key, bad) in [
            ("scrub_deadline", "scrub_deadline = \"soon\""),
            ("mig", "[mig]\n\"0000:3b:00.0\" = [\"9g.1gb\"]"),
            ("mig", "[mig]\n\"0000:3b:00.0\" = [\"1g.10gb; rm\"]"),
            ("mig", "[mig]\n\"0000:3b:00.0\" = []"),
            ("mig", "[mig]\n\"GPU-a\" = [\"1g.10gb\"]"),
        ] {
            let settings: SharingSettings = toml::from_str(bad).expect("of the right types");
            let field = settings.check().expect_err(bad).field.unwrap_or_default();
            assert!(field.ends_with(key), "{field}: {bad}");
        }
        assert!(toml::from_str::<SharingSettings>("scrubs = 1").is_err());
    }
}
