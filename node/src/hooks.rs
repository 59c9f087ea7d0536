//! The settings `[hooks]` and `[sessions]`: the host's own programs around attempts, and how long a terminal may be idle.
//!
//! A hook runs as the agent's user, often root: a file that others may write would make them root. So it is refused at
//! the agent's start, and looked at again before each run.

use crate::config::AgentConfig;
use crate::parse::time::duration_ms;
use rota_protocol::PublicError;
use rota_protocol::session::{HookOrder, LifeOrder, SessionSpec};
use serde::{Deserialize, Serialize};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// How long a hook may take when nothing is said.
const TIMEOUT_MS_DEFAULT: u32 = 60_000;
/// Longest time-out: a host that needs longer to prepare is broken.
const TIMEOUT_MS_MAX: u64 = 3_600_000;

/// `[hooks]`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HooksConfig {
    /// A program that is run before each task.
    pub prolog: Option<PathBuf>,
    /// A program that is run after the last process of each task is gone.
    pub epilog: Option<PathBuf>,
    /// How long each may take, such as `30s`.
    pub timeout: Option<String>,
}

/// `[sessions]`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SessionsConfig {
    /// A task with a terminal that neither reads nor writes for this long is warned, then ended, such as `2h`.
    pub idle_timeout: Option<String>,
}

impl HooksConfig {
    /// Checks the files and the time.
    ///
    /// # Errors
    /// Names the key, the file and what is wrong with it.
    pub fn check(&self) -> Result<(), PublicError> {
        self.timeout_ms()?;
        for (name, path) in [("prolog", &self.prolog), ("epilog", &self.epilog)] {
            if let Some(path) = path {
                check_file(name, path)?;
            }
        }
        Ok(())
    }

    /// As an order says it. Checked at the start.
    #[must_use]
    pub fn order(&self) -> HookOrder {
        let bytes = |path: &Option<PathBuf>| path.as_ref().map(|p| p.as_os_str().as_bytes().to_vec());
        HookOrder {
            prolog: bytes(&self.prolog).unwrap_or_default(),
            epilog: bytes(&self.epilog).unwrap_or_default(),
            timeout_ms: self.timeout_ms().unwrap_or(TIMEOUT_MS_DEFAULT),
        }
    }

    fn timeout_ms(&self) -> Result<u32, PublicError> {
        let Some(text) = &self.timeout else { return Ok(TIMEOUT_MS_DEFAULT) };
        let ms = duration_ms("hooks.timeout", text)?;
        match u32::try_from(ms) {
            Ok(short) if ms <= TIMEOUT_MS_MAX => Ok(short),
            _ => Err(PublicError::invalid("hooks.timeout", format!("{text} is above one hour"), "30s")),
        }
    }
}

impl SessionsConfig {
    /// The idle time, in ms.
    ///
    /// # Errors
    /// It is no length of time.
    pub fn idle_ms(&self) -> Result<Option<u64>, PublicError> {
        self.idle_timeout.as_deref().map(|text| duration_ms("sessions.idle_timeout", text)).transpose()
    }
}

impl AgentConfig {
    /// What a shim is told of everything around its task.
    pub(crate) fn life_order(&self, user: String, session: Option<SessionSpec>) -> LifeOrder {
        // Both were checked at the start.
        let idle_ms = self.sessions.idle_ms().unwrap_or_default();
        LifeOrder { user, hooks: self.hooks.order(), session, idle_ms }
    }
}

/// Whether a file may be run as a hook: a program by an absolute path that only root, or the agent's own user, may write,
/// in a folder of which the same is true.
///
/// # Errors
/// Names the hook, the file and what to change.
pub fn check_file(name: &str, path: &Path) -> Result<(), PublicError> {
    const WRITABLE_BY_OTHERS: u32 = 0o022;
    const STICKY: u32 = 0o1000;
    let field = format!("hooks.{name}");
    let refuse = |what: String| PublicError::invalid(&field, what, &format!("/etc/rota/{name}"));
    let shown = path.display();
    if !path.is_absolute() {
        return Err(refuse(format!("{shown} is no absolute path")));
    }
    let meta = std::fs::metadata(path).map_err(|error| refuse(format!("{shown}: {error}")))?;
    if !meta.is_file() || meta.mode() & 0o111 == 0 {
        return Err(refuse(format!("{shown} is not a program: chmod 0755 {shown}")));
    }
    let own = rustix::process::geteuid().as_raw();
    let is_ours = |uid: u32| uid == 0 || uid == own;
    if !is_ours(meta.uid()) || meta.mode() & WRITABLE_BY_OTHERS != 0 {
        return Err(refuse(format!(
            "{shown} can be written by others: chown root {shown}; chmod 0755 {shown}"
        )));
    }
    let folder = path.parent().unwrap_or(Path::new("/"));
    let folder_meta =
        std::fs::metadata(folder).map_err(|error| refuse(format!("{}: {error}", folder.display())))?;
    let open = folder_meta.mode() & WRITABLE_BY_OTHERS != 0 && folder_meta.mode() & STICKY == 0;
    if !is_ours(folder_meta.uid()) || open {
        let folder = folder.display();
        return Err(refuse(format!("its folder {folder} can be written by others: chmod 0755 {folder}")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn file(dir: &Path, mode: u32) -> PathBuf {
        let path = dir.join(format!("hook-{mode:o}"));
        std::fs::write(&path, "#!/bin/sh\n").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    #[test]
    fn a_hook_that_others_may_write_is_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        check_file("prolog", &file(dir.path(), 0o755)).unwrap();
        for (mode, part) in [(0o777, "by others"), (0o775, "by others"), (0o644, "not a program")] {
            let error = check_file("prolog", &file(dir.path(), mode)).unwrap_err();
            assert_eq!(error.field.as_deref(), Some("hooks.prolog"));
            assert!(error.message.contains(part), "{mode:o}: {error}");
        }
        let open = dir.path().join("open");
        std::fs::create_dir(&open).unwrap();
        std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o777)).unwrap();
        let error = check_file("epilog", &file(&open, 0o755)).unwrap_err();
        assert!(error.message.contains("its folder"), "{error}");
        let error = check_file("epilog", Path::new("epilog.sh")).unwrap_err();
        assert!(error.message.contains("no absolute path"), "{error}");
        let missing = check_file("epilog", Path::new("/no/such/hook")).unwrap_err();
        assert!(missing.message.contains("/no/such/hook"), "{missing}");
    }

    #[test]
    fn times_are_checked_and_have_defaults() {
        let with = |timeout: Option<&str>| HooksConfig {
            timeout: timeout.map(str::to_owned),
            ..HooksConfig::default()
        };
        assert_eq!(with(None).order().timeout_ms, TIMEOUT_MS_DEFAULT);
        assert_eq!(with(Some("1500ms")).order().timeout_ms, 1_500);
        for bad in ["2h", "0", "soon"] {
            let error = with(Some(bad)).check().unwrap_err();
            assert_eq!(error.field.as_deref(), Some("hooks.timeout"), "{bad}");
        }
        let idle = |text: &str| SessionsConfig { idle_timeout: Some(text.into()) }.idle_ms();
        assert_eq!(idle("2h"), Ok(Some(7_200_000)));
        assert!(idle("never").is_err());
        assert_eq!(SessionsConfig::default().idle_ms(), Ok(None));
    }
}
