//! What is said of a job's container: image, mounts, folder inside, entry point.

use super::draft::{once, scalars};
use super::key::{Key, Value};
use rota_protocol::PublicError;
use rota_protocol::container::{CONTAINERS_LABEL, CONTAINERS_YES, ContainerSpec, Mount};
use rota_protocol::job::JobSpec;

const MOUNT_EXAMPLE: &str = "/data:/data:ro";

/// A container of which some things have been said.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Image {
    image: Option<String>,
    mounts: Option<Vec<Mount>>,
    workdir: Option<String>,
    entrypoint: Option<bool>,
    read_only: Option<bool>,
}

impl Image {
    /// Reads one value; false if the key is none of these.
    pub(super) fn set(&mut self, key: Key, value: &Value) -> Result<bool, PublicError> {
        let field = key.name();
        let text = || Ok::<_, PublicError>(value.one(key)?.text(field)?.to_owned());
        match key {
            Key::Image => once(key, &mut self.image, text()?),
            Key::ContainerWorkdir => once(key, &mut self.workdir, text()?),
            Key::Entrypoint => once(key, &mut self.entrypoint, value.yes(key)?),
            Key::ReadOnly => once(key, &mut self.read_only, value.yes(key)?),
            Key::Mount => {
                if let Value::Map(_) = value {
                    return value.one(key).map(|_| true);
                }
                let mounts = scalars(value).iter().map(|scalar| mount(scalar.text(field)?));
                let mounts: Vec<Mount> = mounts.collect::<Result<_, _>>()?;
                self.mounts.get_or_insert_default().extend(mounts);
                Ok(())
            }
            _ => return Ok(false),
        }?;
        Ok(true)
    }

    /// Lays this over another.
    pub(super) fn over(self, base: Self) -> Self {
        Self {
            image: self.image.or(base.image),
            mounts: self.mounts.or(base.mounts),
            workdir: self.workdir.or(base.workdir),
            entrypoint: self.entrypoint.or(base.entrypoint),
            read_only: self.read_only.or(base.read_only),
        }
    }

    /// Writes what was said into a spec whose asks are there, and asks for hosts that run containers.
    ///
    /// # Errors
    /// Something is said of a container, but no image is named.
    pub(super) fn fill(self, spec: &mut JobSpec) -> Result<(), PublicError> {
        let Some(image) = self.image else {
            let said = [
                (Key::Mount, self.mounts.is_some()),
                (Key::ContainerWorkdir, self.workdir.is_some()),
                (Key::Entrypoint, self.entrypoint.is_some()),
                (Key::ReadOnly, self.read_only.is_some()),
            ];
            return match said.iter().find(|(_, said)| *said) {
                Some((key, _)) => {
                    let message = "is said of a container, but no image is named";
                    Err(PublicError::invalid(key.name(), message, "--image docker.io/library/busybox"))
                }
                None => Ok(()),
            };
        };
        for ask in std::iter::once(&mut spec.ask).chain(&mut spec.alternatives) {
            ask.labels.insert(CONTAINERS_LABEL.to_owned(), CONTAINERS_YES.to_owned());
        }
        spec.container = Some(Box::new(ContainerSpec {
            image,
            mounts: self.mounts.unwrap_or_default(),
            workdir: self.workdir,
            entrypoint: self.entrypoint.unwrap_or(false),
            read_only: self.read_only.unwrap_or(false),
        }));
        Ok(())
    }
}

/// `/path`, `/on/host:/inside`, each with `:ro` behind it or not.
fn mount(text: &str) -> Result<Mount, PublicError> {
    let bad =
        |what: &str| Err(PublicError::invalid(Key::Mount.name(), format!("{text:?} {what}"), MOUNT_EXAMPLE));
    let (paths, read_only) = match text.strip_suffix(":ro") {
        Some(paths) => (paths, true),
        None => (text.strip_suffix(":rw").unwrap_or(text), false),
    };
    let (source, target) = paths.split_once(':').unwrap_or((paths, paths));
    if target.contains(':') {
        return bad("has more than two paths");
    }
    if !source.starts_with('/') || !target.starts_with('/') {
        return bad("is not one or two absolute paths");
    }
    Ok(Mount { source: source.to_owned(), target: target.to_owned(), read_only })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_read_as_they_are_written() {
        let of = |text: &str| mount(text).map(|m| (m.source, m.target, m.read_only));
        let good = |a: &str, b: &str, ro| Ok((a.to_owned(), b.to_owned(), ro));
        assert_eq!(of("/a"), good("/a", "/a", false));
        assert_eq!(of("/a:ro"), good("/a", "/a", true));
        assert_eq!(of("/a:/b"), good("/a", "/b", false));
        assert_eq!(of("/a:/b:ro"), good("/a", "/b", true));
        for bad in ["a", "/a:b", "/a:/b:/c", "", "/a:/b:rx"] {
            let error = mount(bad).unwrap_err();
            assert_eq!(
                (error.field.as_deref(), error.example.as_deref()),
                (Some("mount"), Some(MOUNT_EXAMPLE))
            );
        }
    }
}
