//! The `[devices]` table of the configuration.

use crate::logic::health::TRIAL_MS;
use crate::logic::health::xid::XidTable;
use crate::parse::time;
use rota_protocol::PublicError;
use rota_protocol::health::TRIAL_MS_MAX;
use rota_protocol::ids::DeviceUuid;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Where the kernel's messages are read unless told otherwise.
pub const KMSG_DEFAULT: &str = "/dev/kmsg";

/// What an operator may say of this host's devices beyond the common keys; every field has a working default.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DeviceSettings {
    /// Where the kernel's messages are read, for Xids; `/dev/kmsg` if not said.
    pub kmsg_path: Option<PathBuf>,
    /// A file with lines such as `79 node fallen off the bus`, which go before those that this build brings.
    pub xid_table: Option<PathBuf>,
    /// How long a device must be well before it is granted again, such as `10m`.
    pub probation: Option<String>,
    /// The command that resets a device, such as `["nvidia-smi", "--gpu-reset", "-i", "{uuid}"]`: that, where it is
    /// installed, if not said; an empty list for none.
    pub reset_command: Option<Vec<String>>,
    /// UUIDs of the devices that may be offered; all if not said.
    pub allow: Option<Vec<String>>,
    /// A file that describes FPGAs and other devices; none if not said.
    pub described: Option<PathBuf>,
    /// A file with faults of simulated devices, for tests.
    pub sim_script: Option<PathBuf>,
    /// Below which the kernel tells of devices (`sys`, `proc`, `dev`); `/` if not said. For tests.
    pub root: Option<PathBuf>,
}

impl DeviceSettings {
    /// What Xids mean on this host.
    ///
    /// # Errors
    /// The file cannot be read, or a line of it is none.
    pub fn xid_table(&self) -> Result<XidTable, PublicError> {
        let Some(path) = &self.xid_table else { return Ok(XidTable::built_in()) };
        let wrong = |what: String| {
            let message = format!("{}: {what}", path.display());
            PublicError::invalid("devices.xid_table", message, "/etc/rota/xids.txt")
        };
        let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
        XidTable::with(&text).map_err(|error| wrong(error.to_string()))
    }

    /// How long a time of trial is, in ms.
    ///
    /// # Errors
    /// It is no time, or longer than a week.
    pub fn trial_ms(&self) -> Result<u64, PublicError> {
        let Some(text) = &self.probation else { return Ok(TRIAL_MS) };
        match time::duration_or_zero_ms("devices.probation", text)? {
            ms if ms <= TRIAL_MS_MAX => Ok(ms),
            _ => Err(PublicError::invalid("devices.probation", format!("{text} is above a week"), "10m")),
        }
    }

    /// The command that resets this device; none if there is none.
    #[must_use]
    pub fn reset_of(&self, uuid: &DeviceUuid) -> Option<tokio::process::Command> {
        let words = match &self.reset_command {
            Some(words) => words.clone(),
            None => ["nvidia-smi", "--gpu-reset", "-i", "{uuid}"].map(str::to_owned).to_vec(),
        };
        let (program, rest) = words.split_first()?;
        if self.reset_command.is_none() && !is_installed(program) {
            return None;
        }
        let mut command = tokio::process::Command::new(program);
        command.args(rest.iter().map(|word| word.replace("{uuid}", &uuid.0)));
        Some(command)
    }
}

fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_checked_by_name() {
        let mut settings = DeviceSettings::default();
        assert_eq!(settings.trial_ms(), Ok(600_000));
        settings.probation = Some("90s".into());
        assert_eq!(settings.trial_ms(), Ok(90_000));
        for text in ["soon", "8d"] {
            settings.probation = Some(text.into());
            let error = settings.trial_ms().expect_err(text);
            assert_eq!(error.field.as_deref(), Some("devices.probation"));
        }
        settings.xid_table = Some("/nowhere/xids".into());
        let error = settings.xid_table().expect_err("no file").to_string();
        assert!(error.contains("/nowhere/xids"), "{error}");
    }

    #[test]
    fn a_reset_names_the_device() {
        let uuid = DeviceUuid("GPU-a".into());
        let with = |words: &[&str]| DeviceSettings {
            reset_command: Some(words.iter().map(|word| (*word).to_owned()).collect()),
            ..DeviceSettings::default()
        };
        let command = with(&["/bin/reset", "-i", "{uuid}"]).reset_of(&uuid).expect("a command");
        let args: Vec<_> = command.as_std().get_args().collect();
        assert_eq!(args, ["-i", "GPU-a"]);
        assert!(with(&[]).reset_of(&uuid).is_none());
    }
}
