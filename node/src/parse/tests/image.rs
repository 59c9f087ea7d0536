//! What may be said of a container, in flags, files and heads of scripts alike.

use super::{by_all, defaults};
use crate::parse::*;
use rota_protocol::container::{ContainerSpec, Mount};
use rota_protocol::job::JobSpec;

fn job(text: &str) -> Result<JobSpec, rota_protocol::PublicError> {
    draft_from_toml(format!("command = [\"true\"]\n{text}").as_bytes())?.build(&defaults())
}

#[test]
fn an_image_makes_every_ask_one_for_hosts_that_run_containers() {
    let spec = job(
        "image = \"docker.io/a/b:1\"\nmount = [\"/data:/in:ro\", \"/out\"]\ncontainer-workdir = \"/w\"\n\
         entrypoint = true\nread-only = true\ngpus = 1\nor = \"gpus=0 cpus=16\"",
    )
    .unwrap();
    let mount = |source: &str, target: &str, read_only| Mount {
        source: source.into(),
        target: target.into(),
        read_only,
    };
    let wanted = ContainerSpec {
        image: "docker.io/a/b:1".into(),
        mounts: vec![mount("/data", "/in", true), mount("/out", "/out", false)],
        workdir: Some("/w".into()),
        entrypoint: true,
        read_only: true,
    };
    assert_eq!(spec.container.as_deref(), Some(&wanted));
    assert_eq!(spec.asks().count(), 2);
    assert!(spec.asks().all(|ask| ask.labels.get("containers").is_some_and(|value| value == "yes")));
    for result in by_all(Key::Image, "busybox") {
        let spec = result.unwrap();
        assert_eq!(spec.container.map(|container| container.image), Some("busybox".into()));
    }
    assert_eq!(job("").unwrap().container, None);
}

#[test]
fn what_is_wrong_is_named_with_an_example() {
    for (text, field) in [
        ("image = \"-x\"", "image"),
        ("image = \"a b\"", "image"),
        ("image = \"\"", "image"),
        ("image = \"a\"\nmount = \"b\"", "mount"),
        ("image = \"a\"\nmount = \"/a,b:/c\"", "mount"),
        ("image = \"a\"\nmount = \"/a:/..\"", "mount"),
        ("image = \"a\"\ncontainer-workdir = \"w\"", "container-workdir"),
        ("mount = \"/a\"", "mount"),
        ("entrypoint = true", "entrypoint"),
        ("read-only = true", "read-only"),
        ("container-workdir = \"/w\"", "container-workdir"),
    ] {
        let error = job(text).unwrap_err();
        assert_eq!(error.field.as_deref(), Some(field), "{text}: {error}");
        assert!(error.example.is_some(), "{text}: {error}");
    }
}
