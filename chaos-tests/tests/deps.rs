//! The arrows between the crates and the rules for what they rest on, read from the manifests and the lock file. Each
//! rule is a function over texts, and is shown a text that breaks it.
//!
//! `protocol <- consensus/core <- consensus <- node <- chaos-tests`; see "The layout and its arrows" in ARCHITECTURE.md.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use toml::{Table, Value};

/// Our crates, lowest first: an arrow only points to a lower rank, for tests as well.
const RANKS: [(&str, &str); 6] = [
    ("rota-protocol", "protocol"),
    ("rota-core", "consensus/core"),
    ("rota-consensus", "consensus"),
    ("rota-sim", "node/sim"),
    ("rota-node", "node"),
    ("rota-chaos", "chaos-tests"),
];
/// A stand-in library for tests: nothing of ours is below it, only `rota-chaos` above, whose program writes its script too.
const FAKE: (&str, &str) = ("fake-nvml", "chaos-tests/fake-nvml");

/// All that these crates may use outside their tests. An addition is a decision about the design.
const EXACT: [(&str, &[&str]); 4] = [
    ("rota-protocol", &["bincode", "serde", "thiserror"]),
    ("rota-core", &["rota-protocol", "serde", "thiserror"]),
    ("rota-sim", &["rota-core", "rota-protocol", "serde", "serde_json", "thiserror"]),
    ("fake-nvml", &[]),
];

/// What a crate must never use, and why.
const NEVER: [(&str, &[&str], &str); 3] = [
    (
        "rota-consensus",
        &["ractor", "quinn", "rustls", "nvml-wrapper", "foca", "axum"],
        "the network is the trait PeerLink, and there are no actors or devices in it",
    ),
    (
        "rota-node",
        &["openraft", "bincode"],
        "agreement is behind rota-consensus and the wire format behind rota-protocol",
    ),
    ("rota-chaos", &["bincode"], "the wire format is behind rota-protocol"),
];

/// Least versions, because of faults in older ones (fault S20).
const LEAST: [(&str, &str); 4] = [
    ("quinn-proto", "0.11.14"),
    ("rustls", "0.23.18"),
    ("rustls-webpki", "0.103.13"),
    ("openraft", "0.10.0-alpha.37"),
];

/// Never in the lock file, at whatever depth.
const BANNED: [(&str, &str); 4] = [
    ("openssl", "rustls is the one TLS"),
    ("openssl-sys", "rustls is the one TLS"),
    ("native-tls", "rustls is the one TLS"),
    ("aws-lc-rs", "ring is the one crypto provider"),
];

/// Pinned to one version, because a newer one may change bytes on a wire or a disk.
const PINNED: [&str; 2] = ["bincode", "openraft"];

const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: &str) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn table(text: &str) -> Table {
    text.parse().unwrap_or_else(|error| panic!("not TOML: {error}"))
}

fn members() -> impl Iterator<Item = (&'static str, &'static str)> {
    RANKS.into_iter().chain([FAKE])
}

/// Names in the dependency tables of a manifest: those of the build itself, or those of tests.
fn names(manifest: &Table, for_tests: bool) -> BTreeSet<String> {
    let wanted: &[&str] =
        if for_tests { &["dev-dependencies"] } else { &["dependencies", "build-dependencies"] };
    let per_target = manifest.get("target").and_then(Value::as_table).into_iter().flat_map(|t| t.values());
    let tables = std::iter::once(manifest).chain(per_target.filter_map(Value::as_table));
    tables
        .flat_map(|table| wanted.iter().filter_map(|key| table.get(*key)?.as_table()))
        .flat_map(|table| table.iter())
        // A renamed dependency counts by its real name.
        .map(|(key, value)| value.get("package").and_then(Value::as_str).unwrap_or(key).to_owned())
        .collect()
}

/// Every rule about one crate's manifest.
fn manifest_faults(krate: &str, text: &str) -> Vec<String> {
    let manifest = table(text);
    let (build, tests) = (names(&manifest, false), names(&manifest, true));
    let mut faults = Vec::new();
    let rank = |name: &str| RANKS.iter().position(|(known, _)| *known == name);
    for used in build.union(&tests) {
        let upward = match (rank(krate), rank(used)) {
            (Some(own), Some(other)) => other >= own,
            (None, Some(_)) => true,
            _ => used == FAKE.0 && krate != "rota-chaos",
        };
        if upward {
            faults.push(format!("{krate} uses {used}: the arrow points the wrong way"));
        }
    }
    if let Some((_, allowed)) = EXACT.iter().find(|(name, _)| *name == krate) {
        let allowed: BTreeSet<String> = allowed.iter().map(|name| (*name).to_owned()).collect();
        for extra in build.difference(&allowed) {
            faults.push(format!("{krate} uses {extra}, which is not on its list: keep it out, or change EXACT and say why in ARCHITECTURE.md"));
        }
        for gone in allowed.difference(&build) {
            faults.push(format!("{krate} no longer uses {gone}: take it off its list in EXACT"));
        }
    }
    for (_, never, why) in NEVER.iter().filter(|(name, _, _)| *name == krate) {
        for used in never.iter().filter(|name| build.contains(**name)) {
            faults.push(format!("{krate} uses {used}: {why}"));
        }
    }
    faults.extend(inheritance_faults(krate, &manifest));
    faults
}

/// Versions, lints and package data are said once, in the workspace.
fn inheritance_faults(krate: &str, manifest: &Table) -> Vec<String> {
    let inherits =
        |value: Option<&Value>| value.and_then(|v| v.get("workspace")).and_then(Value::as_bool) == Some(true);
    let mut faults = Vec::new();
    for kind in ["dependencies", "dev-dependencies", "build-dependencies"] {
        for (name, value) in manifest.get(kind).and_then(Value::as_table).into_iter().flatten() {
            if !inherits(Some(value)) {
                faults.push(format!(
                    "{krate}: {kind}.{name} has its own version: put it into [workspace.dependencies]"
                ));
            }
        }
    }
    for key in ["version", "edition", "rust-version", "license", "publish"] {
        if !inherits(manifest.get("package").and_then(|p| p.get(key))) {
            faults.push(format!("{krate}: package.{key} is not the workspace's"));
        }
    }
    // The fake library is a C interface; it says so beside its own lints.
    if krate != FAKE.0 && !inherits(manifest.get("lints")) {
        faults.push(format!("{krate}: [lints] workspace = true is missing"));
    }
    faults
}

/// Every rule about the workspace's manifest.
fn workspace_faults(text: &str) -> Vec<String> {
    let manifest = table(text);
    let mut faults = Vec::new();
    let workspace = manifest.get("workspace");
    let listed: BTreeSet<&str> = workspace
        .and_then(|w| w.get("members"))
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let known: BTreeSet<&str> = members().map(|(_, path)| path).collect();
    for path in listed.symmetric_difference(&known) {
        faults.push(format!(
            "{path} is in only one of the workspace's members and RANKS: give every crate its rank"
        ));
    }
    for name in PINNED {
        let version = workspace
            .and_then(|w| w.get("dependencies"))
            .and_then(|d| d.get(name))
            .and_then(|d| d.get("version"))
            .and_then(Value::as_str);
        if !version.is_some_and(|version| version.starts_with('=')) {
            faults.push(format!("{name} is not pinned with `=`: {version:?}"));
        }
    }
    for (name, profile) in manifest.get("profile").and_then(Value::as_table).into_iter().flatten() {
        if profile.get("panic").is_some() {
            faults.push(format!("profile {name} sets `panic`: supervision rests on unwinding"));
        }
    }
    faults
}

/// Every rule about the lock file.
fn lock_faults(text: &str) -> Vec<String> {
    let lock = table(text);
    let empty = Vec::new();
    let packages = lock.get("package").and_then(Value::as_array).unwrap_or(&empty);
    let ours: BTreeSet<&str> = members().map(|(name, _)| name).collect();
    let mut faults = Vec::new();
    let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for package in packages {
        let said = |key: &str| package.get(key).and_then(Value::as_str).unwrap_or_default();
        let (name, source) = (said("name"), said("source"));
        versions.entry(name).or_default().push(said("version"));
        if !ours.contains(name) && source != CRATES_IO {
            faults.push(format!("{name} comes from `{source}`: only crates.io is a source"));
        }
        if source == CRATES_IO && said("checksum").is_empty() {
            faults.push(format!("{name} has no checksum"));
        }
    }
    for (name, least) in LEAST {
        match versions.get(name) {
            None => faults
                .push(format!("{name} is not in the lock file: take it off LEAST if it is no longer used")),
            Some(found) => {
                for version in found.iter().filter(|version| order(version) < order(least)) {
                    faults.push(format!(
                        "{name} {version} has known faults: at least {least} (cargo update -p {name})"
                    ));
                }
            }
        }
    }
    for (name, why) in BANNED.iter().filter(|(name, _)| versions.contains_key(name)) {
        faults.push(format!("{name} is in the lock file: {why}; `cargo tree -i {name}` tells who brings it"));
    }
    faults
}

/// Numbers of a version, and its pre-release, which comes before the release itself.
fn order(version: &str) -> (Vec<u64>, bool, Vec<u64>) {
    let bare = version.split('+').next().unwrap_or(version);
    let numbers = |text: &str| text.split('.').filter_map(|part| part.parse().ok()).collect();
    match bare.split_once('-') {
        None => (numbers(bare), true, Vec::new()),
        Some((release, pre)) => (numbers(release), false, numbers(pre)),
    }
}

fn assert_none(faults: &[String]) {
    assert!(faults.is_empty(), "\n  {}\n", faults.join("\n  "));
}

#[test]
fn arrows_point_down_and_lists_hold() {
    let faults: Vec<String> = members()
        .flat_map(|(krate, path)| manifest_faults(krate, &read(&format!("{path}/Cargo.toml"))))
        .collect();
    assert_none(&faults);
}

#[test]
fn the_workspace_says_everything_once() {
    assert_none(&workspace_faults(&read("Cargo.toml")));
}

#[test]
fn the_lock_file_has_no_known_fault() {
    assert_none(&lock_faults(&read("Cargo.lock")));
}

/// A manifest that is in order but for the lines given.
fn manifest(lines: &str) -> String {
    format!(
        "[package]\nversion.workspace = true\nedition.workspace = true\nrust-version.workspace = true\n\
         license.workspace = true\npublish.workspace = true\n[lints]\nworkspace = true\n{lines}"
    )
}

#[test]
fn a_manifest_that_breaks_a_rule_is_caught() {
    let core = "rota-protocol.workspace = true\nserde.workspace = true\nthiserror.workspace = true\n";
    let good = manifest(&format!("[dependencies]\n{core}"));
    assert_none(&manifest_faults("rota-core", &good));
    let cases = [
        ("rota-core", format!("[dependencies]\n{core}tokio.workspace = true"), "uses tokio"),
        (
            "rota-core",
            format!("[dependencies]\n{core}[target.'cfg(unix)'.dependencies]\nlibc.workspace = true"),
            "uses libc",
        ),
        ("rota-core", format!("[dependencies]\n{core}[build-dependencies]\ncc.workspace = true"), "uses cc"),
        (
            "rota-core",
            format!("[dependencies]\n{core}clock = {{ package = \"chrono\", workspace = true }}"),
            "uses chrono",
        ),
        (
            "rota-core",
            format!("[dependencies]\n{core}[dev-dependencies]\nrota-node.workspace = true"),
            "the wrong way",
        ),
        ("rota-core", "[dependencies]\nserde.workspace = true".to_owned(), "no longer uses thiserror"),
        ("rota-protocol", "[dependencies]\nrota-core.workspace = true".to_owned(), "the wrong way"),
        ("rota-consensus", "[dependencies]\nquinn.workspace = true".to_owned(), "PeerLink"),
        ("rota-node", "[dependencies]\nrota-chaos.workspace = true".to_owned(), "the wrong way"),
        ("rota-node", "[dev-dependencies]\nfake-nvml.workspace = true".to_owned(), "the wrong way"),
        ("rota-sim", "[dependencies]\nfake-nvml.workspace = true".to_owned(), "the wrong way"),
        ("rota-node", "[dependencies]\ntokio = \"1\"".to_owned(), "its own version"),
    ];
    for (krate, lines, expected) in cases {
        let faults = manifest_faults(krate, &manifest(&lines));
        assert!(faults.iter().any(|fault| fault.contains(expected)), "{lines}\n{faults:?}");
    }
    let bare = manifest_faults("rota-node", "[package]\nversion = \"1.0.0\"\n");
    assert!(bare.iter().any(|fault| fault.contains("[lints]")), "{bare:?}");
}

#[test]
fn a_workspace_that_breaks_a_rule_is_caught() {
    let faults = workspace_faults(
        "[workspace]\nmembers = [\"protocol\", \"extra\"]\n[workspace.dependencies]\nbincode = { version = \"2\" }\n\
         [profile.release]\npanic = \"abort\"\n",
    );
    for expected in ["extra", "node is in only one", "bincode is not pinned", "unwinding"] {
        assert!(faults.iter().any(|fault| fault.contains(expected)), "{expected}: {faults:?}");
    }
}

#[test]
fn a_lock_file_that_breaks_a_rule_is_caught() {
    let package = |name: &str, version: &str, source: &str| {
        format!(
            "[[package]]\nname = \"{name}\"\nversion = \"{version}\"\nsource = \"{source}\"\nchecksum = \"00\"\n"
        )
    };
    let text = [
        package("quinn-proto", "0.11.13", CRATES_IO),
        package("rustls", "0.23.18", CRATES_IO),
        package("openraft", "0.10.0-alpha.36", CRATES_IO),
        package("openssl-sys", "0.9.1", CRATES_IO),
        package("mine", "1.0.0", "git+https://example.invalid/mine"),
    ]
    .concat();
    let faults = lock_faults(&text);
    for expected in [
        "quinn-proto 0.11.13",
        "rustls-webpki is not",
        "openraft 0.10.0-alpha.36",
        "openssl-sys",
        "mine comes from",
    ] {
        assert!(faults.iter().any(|fault| fault.contains(expected)), "{expected}: {faults:?}");
    }
    assert!(!faults.iter().any(|fault| fault.starts_with("rustls 0.23.18")), "{faults:?}");
}

#[test]
fn versions_are_ordered_as_cargo_orders_them() {
    let sorted = ["0.10.0-alpha.9", "0.10.0-alpha.37", "0.10.0", "0.10.1", "0.11.0-alpha.1", "1.0.0+build"];
    assert!(sorted.is_sorted_by_key(|version| order(version)));
}
