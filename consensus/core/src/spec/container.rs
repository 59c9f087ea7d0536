//! The image of a job and what its container sees. The texts become arguments of a container runtime: what it could
//! take for something else is refused here.

use rota_protocol::PublicError;
use rota_protocol::container::{CONTAINERS_LABEL, CONTAINERS_YES, ContainerSpec, Mount};
use rota_protocol::job::JobSpec;

/// Longest image reference or path, in bytes.
const TEXT_BYTES_MAX: usize = 1_024;
/// Most mounts of one job.
const MOUNTS_MAX: usize = 64;
const IMAGE_EXAMPLE: &str = "docker.io/pytorch/pytorch:2.9";
const MOUNT_EXAMPLE: &str = "/data:/data:ro";

/// Checks what is said of a container.
///
/// # Errors
/// The first field at fault.
pub(super) fn check(spec: &JobSpec) -> Result<(), PublicError> {
    let Some(container) = &spec.container else { return Ok(()) };
    check_image(&container.image)?;
    check_mounts(container)?;
    if let Some(dir) = &container.workdir {
        check_path("container_workdir", dir, "/workspace")?;
    }
    let offered = |labels: &std::collections::BTreeMap<String, String>| {
        labels.get(CONTAINERS_LABEL).is_some_and(|value| value == CONTAINERS_YES)
    };
    // The planner knows hosts by their labels: without it the job could come to one that has no runtime.
    if !spec.asks().all(|ask| offered(&ask.labels)) {
        let message = "an image is named, but not every ask has the label of hosts that run containers";
        return Err(PublicError::invalid("ask.labels", message, "containers=yes"));
    }
    Ok(())
}

fn check_image(image: &str) -> Result<(), PublicError> {
    let bad = |what: &str| Err(PublicError::invalid("image", what.to_owned(), IMAGE_EXAMPLE));
    let good = |c: char| c.is_ascii_alphanumeric() || "._-/:@+".contains(c);
    if image.is_empty() {
        return bad("is empty");
    }
    if image.len() > TEXT_BYTES_MAX {
        return bad(&format!("{} bytes are above {TEXT_BYTES_MAX}", image.len()));
    }
    if let Some(c) = image.chars().find(|c| !good(*c)) {
        return bad(&format!("{c:?} is in no image's name"));
    }
    if !image.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '/') {
        return bad("begins with neither a letter, a digit nor a slash");
    }
    if image.split('/').any(|piece| piece == ".." || piece == ".") {
        return bad("has a piece of dots between its slashes");
    }
    Ok(())
}

fn check_mounts(container: &ContainerSpec) -> Result<(), PublicError> {
    if container.mounts.len() > MOUNTS_MAX {
        let message = format!("{} mounts are above {MOUNTS_MAX}", container.mounts.len());
        return Err(PublicError::invalid("mount", message, MOUNT_EXAMPLE));
    }
    for Mount { source, target, .. } in &container.mounts {
        check_path("mount", source, MOUNT_EXAMPLE)?;
        check_path("mount", target, MOUNT_EXAMPLE)?;
        if target == "/" {
            let message = "the root of the container cannot be mounted over";
            return Err(PublicError::invalid("mount", message, MOUNT_EXAMPLE));
        }
    }
    Ok(())
}

/// Runtimes take lists of `name=value,name=value` and `source:target`: a path with such a sign would say more than a
/// path.
fn check_path(field: &str, path: &str, example: &str) -> Result<(), PublicError> {
    let bad = |what: String| Err(PublicError::invalid(field, what, example));
    if !path.starts_with('/') {
        return bad(format!("{path:?} is not absolute"));
    }
    if path.len() > TEXT_BYTES_MAX {
        return bad(format!("a path of {} bytes is above {TEXT_BYTES_MAX}", path.len()));
    }
    if let Some(c) = path.chars().find(|c| c.is_control() || matches!(c, ',' | ':' | '"' | '\'' | '\\' | '$'))
    {
        return bad(format!("{c:?} cannot be in a path that a container sees"));
    }
    if path.split('/').any(|piece| piece == "..") {
        return bad(format!("{path:?} has a piece '..'"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rota_protocol::ask::Ask;

    fn spec(container: ContainerSpec) -> JobSpec {
        let labels = [(CONTAINERS_LABEL.to_owned(), CONTAINERS_YES.to_owned())].into();
        let ask = Ask { labels, ..Ask::default() };
        JobSpec { argv: vec![b"x".to_vec()], ask, container: Some(Box::new(container)), ..JobSpec::default() }
    }

    fn image(name: &str) -> ContainerSpec {
        ContainerSpec { image: name.into(), ..ContainerSpec::default() }
    }

    #[test]
    fn images_are_names_and_nothing_else() {
        for good in ["busybox", "docker.io/a/b:1.2", "a@sha256:00ff", "/images/x.sif", "docker://a/b:1"] {
            assert_eq!(check(&spec(image(good))), Ok(()), "{good}");
        }
        let long = "a".repeat(TEXT_BYTES_MAX + 1);
        for bad in [
            "",
            "-x",
            "--privileged",
            ".a",
            "a b",
            "a;b",
            "a$b",
            "a`b`",
            "a\nb",
            "a,b",
            "a'b",
            "a\"b",
            "/../x",
            "a/../b",
            "~x",
            "é",
            "a|b",
            "a&b",
            "@a",
            &long,
        ] {
            let error = check(&spec(image(bad))).unwrap_err();
            assert_eq!(
                (error.field.as_deref(), error.example.as_deref()),
                (Some("image"), Some(IMAGE_EXAMPLE))
            );
        }
    }

    #[test]
    fn mounts_are_two_plain_paths() {
        let with = |source: &str, target: &str| {
            let mount = Mount { source: source.into(), target: target.into(), read_only: false };
            check(&spec(ContainerSpec { mounts: vec![mount], ..image("a") }))
        };
        assert_eq!(with("/a b", "/c"), Ok(()));
        for (source, target) in [
            ("a", "/c"),
            ("/a", "c"),
            ("/a", "/"),
            ("/a,b", "/c"),
            ("/a:b", "/c"),
            ("/a", "/c,suid"),
            ("/a\"", "/c"),
            ("/a\n", "/c"),
            ("/a/../b", "/c"),
            ("/$HOME", "/c"),
        ] {
            assert_eq!(
                with(source, target).unwrap_err().field.as_deref(),
                Some("mount"),
                "{source} {target}"
            );
        }
        let mount = Mount { source: "/a".into(), target: "/b".into(), read_only: true };
        let many = ContainerSpec { mounts: vec![mount; MOUNTS_MAX + 1], ..image("a") };
        assert_eq!(check(&spec(many)).unwrap_err().field.as_deref(), Some("mount"));
        let inside = |dir: &str| ContainerSpec { workdir: Some(dir.into()), ..image("a") };
        assert_eq!(check(&spec(inside("/w"))), Ok(()));
        assert_eq!(check(&spec(inside("w"))).unwrap_err().field.as_deref(), Some("container_workdir"));
    }

    #[test]
    fn every_ask_is_for_hosts_that_run_containers() {
        let good = spec(image("a"));
        let none = JobSpec { ask: Ask::default(), ..good.clone() };
        assert_eq!(check(&none).unwrap_err().field.as_deref(), Some("ask.labels"));
        let other = JobSpec { alternatives: vec![Ask::default()], ..good };
        assert_eq!(check(&other).unwrap_err().field.as_deref(), Some("ask.labels"));
    }
}
