//! Which container runtime this host has: the one that its settings name, or the first that is found.
//!
//! Only folders that belong to the system are searched: what lies in a folder of somebody's `PATH` is not run.

use crate::logic::container::{Executor, Runtime};
use rota_protocol::container::{CONTAINERS_LABEL, CONTAINERS_YES};
use serde::{Deserialize, Serialize};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Where runtimes are looked for.
const FOLDERS: [&str; 3] = ["/usr/local/bin", "/usr/bin", "/bin"];
/// Label that names the runtime.
const RUNTIME_LABEL: &str = "container-runtime";
/// The word for no containers.
const OFF: &str = "off";

/// What an operator may set of containers.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ContainersConfig {
    /// `podman`, `apptainer`, `enroot`, `docker`, the path of one of them, or `off`; the first that is found if unset.
    pub runtime: Option<String>,
}

impl ContainersConfig {
    /// Checks what the type cannot.
    ///
    /// # Errors
    /// Names the key, the value and what would be accepted.
    pub fn check(&self) -> Result<(), String> {
        let Some(text) = self.runtime.as_deref().filter(|text| *text != OFF) else { return Ok(()) };
        if kind(text).is_some() && (text.starts_with('/') || !text.contains('/')) {
            return Ok(());
        }
        let known = Runtime::ALL.map(Runtime::name).join(", ");
        Err(format!(
            "containers.runtime: {text:?} is none of {known} and no path that ends so, such as /usr/bin/podman; \
             \"off\" offers no containers"
        ))
    }
}

fn kind(text: &str) -> Option<Runtime> {
    let name = Path::new(text).file_name()?.to_str()?;
    Runtime::ALL.into_iter().find(|runtime| runtime.name() == name)
}

/// The runtime of this host, if it offers containers.
#[must_use]
pub fn find(config: &ContainersConfig) -> Option<Executor> {
    let executor = |runtime, path: PathBuf| Executor { runtime, program: path.into_os_string().into_vec() };
    match config.runtime.as_deref() {
        Some(OFF) => None,
        Some(path) if path.starts_with('/') => {
            Some(executor(kind(path)?, Some(PathBuf::from(path)).filter(|path| runs(path))?))
        }
        Some(name) => Some(executor(kind(name)?, search(kind(name)?)?)),
        None => Runtime::ALL.into_iter().find_map(|runtime| Some(executor(runtime, search(runtime)?))),
    }
}

/// The labels by which the planner knows such a host.
#[must_use]
pub fn labels(config: &ContainersConfig) -> Vec<(String, String)> {
    let Some(found) = find(config) else { return Vec::new() };
    let text = str::to_owned;
    vec![(text(CONTAINERS_LABEL), text(CONTAINERS_YES)), (text(RUNTIME_LABEL), text(found.runtime.name()))]
}

fn search(runtime: Runtime) -> Option<PathBuf> {
    FOLDERS.iter().map(|folder| Path::new(folder).join(runtime.name())).find(|path| runs(path))
}

fn runs(path: &Path) -> bool {
    path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(runtime: &str) -> ContainersConfig {
        ContainersConfig { runtime: Some(runtime.to_owned()) }
    }

    #[test]
    fn a_runtime_is_named_or_off() {
        for good in ["podman", "docker", "apptainer", "enroot", "off", "/opt/bin/podman"] {
            assert_eq!(config(good).check(), Ok(()), "{good}");
        }
        for bad in ["", "runc", "/usr/bin/runc", "bin/podman", "podman ", "/"] {
            let error = config(bad).check().unwrap_err();
            assert!(error.contains("containers.runtime") && error.contains("/usr/bin/podman"), "{error}");
        }
        assert_eq!(find(&config("off")), None);
        assert_eq!(labels(&config("off")), []);
    }

    #[test]
    fn only_a_program_that_can_be_run_is_a_runtime() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("docker");
        let text = path.to_str().unwrap();
        assert_eq!(find(&config(text)), None);
        std::fs::write(&path, "").unwrap();
        assert_eq!(find(&config(text)), None, "it cannot be run");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
        let found = Executor { runtime: Runtime::Docker, program: text.as_bytes().to_vec() };
        assert_eq!(find(&config(text)), Some(found));
        let yes = (CONTAINERS_LABEL.to_owned(), CONTAINERS_YES.to_owned());
        assert_eq!(labels(&config(text))[0], yes);
    }
}
