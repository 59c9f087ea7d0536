//! What an operator may set about cages: `isolation`, and the rest under `[tasks]`, of `rota.toml`.

use rota_protocol::cage::Isolation;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Settings. Every one has a working default.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CageSettings {
    /// How far tasks are kept apart. A key of its own, `isolation`: `full`, `basic` or `none`.
    #[serde(skip)]
    pub isolation: Isolation,
    /// Tasks get no more processor time than they asked for, even if the host is idle.
    pub cpus_hard: bool,
    /// Most processes and threads of one attempt; 0 for no limit.
    pub pids_max: u32,
    /// Most open files of a process; 0 for what the agent has.
    pub nofile: u64,
    /// Most processes of one user; 0 for what the agent has.
    pub nproc: u64,
    /// Tasks of administrators, which run as root, keep its capabilities.
    pub root_capabilities: bool,
    /// First and last user number for users that no host knows.
    pub dynamic_uids: (u32, u32),
    /// Where device nodes lie.
    pub device_dir: PathBuf,
    /// Nodes by the UUID of their device, for devices whose driver does not tell: FPGAs, simulated ones.
    pub device_nodes: BTreeMap<String, Vec<PathBuf>>,
    /// Never use these, as if the host did not have them. For trials of the fallbacks.
    pub without: Vec<Means>,
}

/// Something of the kernel's that may be missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Means {
    /// Control groups of any kind.
    Groups,
    /// Groups of version 2.
    Unified,
    /// The freezer of version 1.
    Freezer,
    /// The devices controller of version 1.
    DevicesGroup,
    /// The device program of version 2.
    DevicesProgram,
    /// Namespaces.
    Namespaces,
}

/// Threads of large training jobs go into the thousands; a bomb must end long before the host's limit.
const PIDS_MAX_DEFAULT: u32 = 16_384;
/// Above what distributions and containers give away, below what the kernel refuses.
const DYNAMIC_UIDS_DEFAULT: (u32, u32) = (1_900_000_000, 1_999_999_999);

impl Default for CageSettings {
    fn default() -> Self {
        Self {
            isolation: Isolation::Full,
            cpus_hard: false,
            pids_max: PIDS_MAX_DEFAULT,
            nofile: 0,
            nproc: 0,
            root_capabilities: false,
            dynamic_uids: DYNAMIC_UIDS_DEFAULT,
            device_dir: "/dev".into(),
            device_nodes: BTreeMap::new(),
            without: Vec::new(),
        }
    }
}

impl CageSettings {
    /// Checks what the types cannot.
    ///
    /// # Errors
    /// Names the key, the value and a good one.
    pub fn check(&self) -> Result<(), String> {
        let (first, last) = self.dynamic_uids;
        if first == 0 || first > last || last == u32::MAX {
            return Err(format!(
                "tasks.dynamic_uids = [{first}, {last}]: give the first and the last of a range above 0, such as \
                 [1900000000, 1999999999]"
            ));
        }
        if !self.device_dir.is_absolute() {
            return Err(format!(
                "tasks.device_dir = {}: give an absolute path, such as /dev",
                self.device_dir.display()
            ));
        }
        Ok(())
    }

    /// The user number of somebody whom no host knows: always the same, on every host with this range.
    #[must_use]
    pub fn dynamic_uid(&self, user: &str) -> u32 {
        let (first, last) = self.dynamic_uids;
        let digest = ring::digest::digest(&ring::digest::SHA256, user.as_bytes());
        let word = digest.as_ref().first_chunk::<8>().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        let size = u64::from(last - first) + 1;
        // Below the range's size, which fits.
        first + u32::try_from(word % size).unwrap_or(0)
    }

    /// A number of that range.
    #[must_use]
    pub fn is_dynamic(&self, uid: u32) -> bool {
        (self.dynamic_uids.0..=self.dynamic_uids.1).contains(&uid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_word_is_answered_with_the_right_ones() {
        let error = toml::from_str::<CageSettings>("without = [\"group\"]").unwrap_err().to_string();
        assert!(
            error.contains("`group`") && error.contains("`groups`") && error.contains("`freezer`"),
            "{error}"
        );
        let settings: CageSettings = toml::from_str("cpus_hard = true\nwithout = [\"groups\"]").unwrap();
        assert_eq!((settings.cpus_hard, settings.without), (true, vec![Means::Groups]));
        assert!(toml::from_str::<CageSettings>("pids = 5").is_err());
    }

    #[test]
    fn a_user_keeps_its_number_and_ranges_are_checked() {
        let settings = CageSettings::default();
        settings.check().unwrap();
        let uid = settings.dynamic_uid("ci-bot");
        assert_eq!(uid, settings.dynamic_uid("ci-bot"));
        assert_ne!(uid, settings.dynamic_uid("ci-bot2"));
        assert!(settings.is_dynamic(uid) && !settings.is_dynamic(0) && !settings.is_dynamic(1_000));
        let one = CageSettings { dynamic_uids: (7, 7), ..CageSettings::default() };
        assert_eq!(one.dynamic_uid("x"), 7);
        for range in [(0, 5), (6, 5), (1, u32::MAX)] {
            let error = CageSettings { dynamic_uids: range, ..CageSettings::default() }.check().unwrap_err();
            assert!(error.contains("dynamic_uids") && error.contains("1900000000"), "{error}");
        }
    }
}
