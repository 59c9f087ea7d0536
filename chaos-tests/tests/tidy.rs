//! House rules that a machine can check, so that `cargo test` is the whole gate. Each rule is a function over sources
//! that gives one line per finding, `path:line: what, and what to do`, and is shown a source that breaks it.

#[path = "tidy/source.rs"]
mod source;

use source::{Source, has_word};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Where `unsafe` may stand.
const UNSAFE_ALLOWED: [&str; 13] = [
    "node/src/io/ffi/allocator.rs",
    "node/src/io/ffi.rs",
    "node/src/io/ffi/cage.rs",
    "node/src/io/ffi/devices.rs",
    "node/src/io/ffi/signals.rs",
    "chaos-tests/fake-nvml/src/abi/mod.rs",
    "chaos-tests/fake-nvml/src/abi/events.rs",
    "chaos-tests/fake-nvml/src/abi/facts.rs",
    "chaos-tests/fake-nvml/src/abi/live.rs",
    "chaos-tests/fake-nvml/src/abi/mig.rs",
    "chaos-tests/fake-nvml/src/abi/signs.rs",
    "chaos-tests/fake-nvml/src/abi/system.rs",
    "chaos-tests/fake-nvml/src/place.rs",
];
/// The one file that names the wire format's crate.
const CODEC: &str = "protocol/src/codec.rs";
/// The one definition of what fits where.
const FIT: &str = "consensus/core/src/fit/mod.rs";
/// The names of all metrics.
const METERS: &str = "node/src/meters.rs";
/// Where sans-io deciders live.
const LOGIC: &str = "node/src/logic";
/// Where the pure core lives.
const CORE: &str = "consensus/core/src";

/// Most lines of shipped code in a file, tests not counted.
const FILE_LINES_MAX: usize = 400;
/// Most lines in a file of tests.
const TEST_FILE_LINES_MAX: usize = 800;
/// Most lines of a function.
const FUNCTION_LINES_MAX: usize = 70;
/// Most lines of one in a test, which tells a story from start to end.
const TEST_FUNCTION_LINES_MAX: usize = 120;

/// Files over the limit, with their limit. This list may only shrink.
const LONG_FILES: [(&str, usize); 0] = [];
/// Functions over the limit, with their limit. This list may only shrink.
const LONG_FUNCTIONS: [(&str, &str, usize); 0] = [];

type Rule = fn(&[Source]) -> Vec<String>;

/// Every rule with its name and a source that breaks it: path and text.
const RULES: [(&str, Rule, &str, &str); 15] = [
    ("header", header, "node/src/x.rs", "use std::fs;\n"),
    ("unsafe", no_unsafe, "node/src/x.rs", "//! x\nfn f() { unsafe { g() } }\n"),
    ("logic", pure_logic, "node/src/logic/x.rs", "//! x\nuse std::time::{Duration, Instant};\n"),
    ("core", pure_core, "consensus/core/src/x.rs", "//! x\nuse std::{collections::BTreeMap, fs};\n"),
    ("floats", no_floats, "consensus/core/src/apply/x.rs", "//! x\nfn f(a: f64) {}\n"),
    ("fits", one_fit, "node/src/x.rs", "//! x\nfn fits() {}\n"),
    ("codec", one_codec, "node/src/x.rs", "//! x\nuse bincode::serde;\n"),
    ("files", short_files, "node/src/x.rs", ""),
    ("functions", short_functions, "node/src/x.rs", ""),
    ("unwrap", no_unwrap, "node/src/x.rs", "//! x\nfn f() { g().unwrap() }\n"),
    ("expect", proven_expect, "node/src/x.rs", "//! x\n\n\n\nfn f() { g().expect(\"it works\") }\n"),
    ("leftovers", no_leftovers, "node/src/x.rs", "//! x\nfn f() { todo!() }\n"),
    ("channels", bounded_channels, "node/src/x.rs", "//! x\nlet c = unbounded_channel();\n"),
    ("meters", recorded_meters, METERS, "//! x\npub const LOST: &str = \"rota_lost_total\";\n"),
    ("allows", reasoned_allows, "node/src/x.rs", "//! x\n\n#[allow(dead_code)]\nfn f() {}\n"),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

#[test]
fn every_rule_holds() {
    let sources = source::all(&root());
    let mut findings = Vec::new();
    for (name, rule, _, _) in RULES {
        findings.extend(rule(&sources).into_iter().map(|finding| format!("[{name}] {finding}")));
    }
    assert!(findings.is_empty(), "{} findings:\n  {}\n", findings.len(), findings.join("\n  "));
}

#[test]
fn every_rule_can_find_something() {
    for (name, rule, path, text) in RULES {
        let text = match name {
            "files" => "//! x\n".to_owned() + &"fn f() {}\n".repeat(FILE_LINES_MAX),
            "functions" => format!("//! x\nfn f() {{\n{}}}\n", "    g();\n".repeat(FUNCTION_LINES_MAX)),
            _ => text.to_owned(),
        };
        let found = rule(&[Source::new(path, &text)]);
        let named = found.iter().any(|finding| finding.contains(path));
        assert!(named, "the rule `{name}` passes over\n{text}\nand says {found:?}");
    }
}

/// One finding for each shipped line that `wrong` gives a message for.
fn shipped_lines(
    sources: &[Source],
    applies: impl Fn(&str) -> bool,
    wrong: impl Fn(&str) -> Option<String>,
) -> Vec<String> {
    let mut findings = Vec::new();
    for source in sources.iter().filter(|source| applies(&source.path)) {
        for (number, line) in source.shipped() {
            if let Some(what) = wrong(line) {
                findings.push(format!("{}:{number}: {what}", source.path));
            }
        }
    }
    findings
}

fn header(sources: &[Source]) -> Vec<String> {
    sources
        .iter()
        .filter(|source| !source.text.starts_with("//!"))
        .map(|source| {
            format!("{}:1: starts without `//!`: say what the file is and what it is not", source.path)
        })
        .collect()
}

fn no_unsafe(sources: &[Source]) -> Vec<String> {
    let mut findings = Vec::new();
    for source in sources.iter().filter(|source| !UNSAFE_ALLOWED.contains(&source.path.as_str())) {
        for (number, _) in source.lines().filter(|(_, line)| has_word(line, "unsafe")) {
            findings
                .push(format!("{}:{number}: `unsafe` belongs into {} alone", source.path, UNSAFE_ALLOWED[0]));
        }
    }
    findings
}

fn pure_logic(sources: &[Source]) -> Vec<String> {
    shipped_lines(
        sources,
        |path| path.starts_with(LOGIC),
        |line| {
            let found = ["tokio", "ractor", "Instant", "SystemTime", "io"]
                .into_iter()
                .find(|word| has_word(line, word))?;
            Some(format!(
                "deciders are sans-io: `{found}` belongs to their callers; take `now` and facts as arguments"
            ))
        },
    )
}

fn pure_core(sources: &[Source]) -> Vec<String> {
    shipped_lines(
        sources,
        |path| path.starts_with(CORE),
        |line| {
            let modules = ["time", "thread", "fs", "net", "env", "process"];
            let of_std = modules.into_iter().find(|module| {
                line.contains(&format!("std::{module}"))
                    || (line.contains("std::{") && has_word(line, module))
            });
            let unordered =
                ["HashMap", "HashSet", "RandomState", "rand"].into_iter().find(|word| has_word(line, word));
            let found = of_std.or(unordered)?;
            Some(format!(
                "the core has no `{found}`: time, chance and facts enter as data, and tables are ordered"
            ))
        },
    )
}

fn no_floats(sources: &[Source]) -> Vec<String> {
    shipped_lines(
        sources,
        |path| ["state", "apply"].iter().any(|part| path.starts_with(&format!("{CORE}/{part}"))),
        |line| {
            let found = ["f32", "f64"].into_iter().find(|word| has_word(line, word))?;
            Some(format!(
                "`{found}` in replicated state: use integers in named units, so that all replicas agree"
            ))
        },
    )
}

fn one_fit(sources: &[Source]) -> Vec<String> {
    shipped_lines(
        sources,
        |path| path != FIT,
        |line| {
            has_word(line, "fn fits")
                .then(|| format!("a second `fn fits`: planner and apply share the one in {FIT}"))
        },
    )
}

fn one_codec(sources: &[Source]) -> Vec<String> {
    let mut findings = Vec::new();
    for source in sources.iter().filter(|source| source.path != CODEC) {
        for (number, _) in source.lines().filter(|(_, line)| has_word(line, "bincode")) {
            findings.push(format!(
                "{}:{number}: bytes are made and read in {CODEC} alone, with limits",
                source.path
            ));
        }
    }
    findings
}

fn short_files(sources: &[Source]) -> Vec<String> {
    let listed: BTreeMap<&str, usize> = LONG_FILES.into_iter().collect();
    let mut findings = Vec::new();
    for source in sources {
        let shipped = source.shipped().count();
        let (lines, most) = if shipped == 0 {
            (source.lines().count(), TEST_FILE_LINES_MAX)
        } else {
            (shipped, FILE_LINES_MAX)
        };
        match listed.get(source.path.as_str()) {
            None if lines > most => {
                findings
                    .push(format!("{}:1: {lines} lines, {most} at most: split it by concern", source.path));
            }
            Some(allowed) if lines > *allowed => {
                findings.push(format!(
                    "{}:1: {lines} lines, and its exception says {allowed}: exceptions only shrink",
                    source.path
                ));
            }
            Some(_) if lines <= most => {
                findings.push(format!("{}:1: short enough now: take it off LONG_FILES", source.path));
            }
            _ => {}
        }
    }
    findings
}

fn short_functions(sources: &[Source]) -> Vec<String> {
    let mut findings = Vec::new();
    for source in sources {
        for (name, number, lines) in source.functions() {
            let most = if source.is_test_line(number) { TEST_FUNCTION_LINES_MAX } else { FUNCTION_LINES_MAX };
            let allowed = LONG_FUNCTIONS
                .iter()
                .find(|(path, function, _)| *path == source.path && *function == name)
                .map_or(most, |(_, _, allowed)| *allowed);
            if lines > allowed {
                findings.push(format!(
                    "{}:{number}: `{name}` has {lines} lines, {allowed} at most: split it",
                    source.path
                ));
            }
        }
    }
    findings
}

fn no_unwrap(sources: &[Source]) -> Vec<String> {
    shipped_lines(
        sources,
        |_| true,
        |line| {
            line.contains(".unwrap()")
                .then(|| "`unwrap()`: return the error, or prove the invariant with `expect`".to_owned())
        },
    )
}

/// An `expect` in shipped code has its proof in a comment on its own line or on one of the three before.
fn proven_expect(sources: &[Source]) -> Vec<String> {
    let mut findings = Vec::new();
    for source in sources {
        let text: Vec<&str> = source.text.lines().collect();
        for (number, _) in source.shipped().filter(|(_, line)| line.contains(".expect(")) {
            let near = &text[number.saturating_sub(4)..number];
            if !near.iter().any(|line| line.contains("//")) {
                findings.push(format!(
                    "{}:{number}: `expect` without a proof beside it: say why it cannot fail",
                    source.path
                ));
            }
        }
    }
    findings
}

fn no_leftovers(sources: &[Source]) -> Vec<String> {
    let leftovers = ["todo!", "unimplemented!", "dbg!", "#[ignore"];
    let mut findings = Vec::new();
    for source in sources {
        for (number, line) in source.lines() {
            if let Some(found) = leftovers.into_iter().find(|word| line.contains(word)) {
                findings.push(format!(
                    "{}:{number}: `{found}`: finish it, or leave it out and say so",
                    source.path
                ));
            }
        }
    }
    findings
}

fn bounded_channels(sources: &[Source]) -> Vec<String> {
    shipped_lines(
        sources,
        |_| true,
        |line| {
            let found = ["unbounded_channel", "UnboundedSender", "unbounded", "mpsc::channel()"]
                .into_iter()
                .find(|word| if word.ends_with(')') { line.contains(word) } else { has_word(line, word) })?;
            Some(format!("`{found}`: every queue has a limit, and the limit a why"))
        },
    )
}

/// A metric that nobody records shows operators a calm that nobody measured.
fn recorded_meters(sources: &[Source]) -> Vec<String> {
    let recorded = |name: &str| {
        sources.iter().any(|source| {
            let own = source.path == METERS;
            // In the file of names a name stands twice, where it is made and where it is described.
            let uses = source.shipped().filter(|(_, line)| has_word(line, name)).count();
            if own { uses > 2 } else { source.code.contains("meters") && uses > 0 }
        })
    };
    let mut findings = Vec::new();
    for source in sources.iter().filter(|source| source.path == METERS) {
        for (number, line) in source.shipped() {
            let name = line
                .strip_prefix("pub const ")
                .and_then(|rest| rest.split_once(": &str ="))
                .map(|(name, _)| name);
            if let Some(name) = name.filter(|name| !recorded(name)) {
                findings.push(format!(
                    "{METERS}:{number}: `{name}` is recorded nowhere: record it, or take it out"
                ));
            }
        }
    }
    findings
}

/// `#[allow(..)]` and `#[expect(..)]` say why: by `reason`, or in a comment on their line or the one before.
fn reasoned_allows(sources: &[Source]) -> Vec<String> {
    let mut findings = Vec::new();
    for source in sources {
        let text: Vec<&str> = source.text.lines().collect();
        for (number, line) in source.lines() {
            let allows =
                ["#[allow(", "#![allow(", "#[expect(", "#![expect("].iter().any(|mark| line.contains(mark));
            let near = &text[number.saturating_sub(2)..number];
            let reason = near.iter().any(|line| line.contains("//"))
                || text[number - 1..].iter().take(6).any(|line| line.contains("reason"));
            if allows && !reason {
                findings.push(format!("{}:{number}: a lint is allowed without a reason", source.path));
            }
        }
    }
    findings
}

#[test]
fn exceptions_name_files_that_exist() {
    let paths: BTreeSet<String> = source::files(&root()).into_iter().collect();
    for path in LONG_FILES.iter().map(|(path, _)| path).chain(LONG_FUNCTIONS.iter().map(|(path, _, _)| path))
    {
        assert!(paths.contains(*path), "{path} is gone: take it off the list of exceptions");
    }
    for path in UNSAFE_ALLOWED.into_iter().chain([CODEC, FIT]) {
        assert!(paths.contains(path), "{path} is gone: correct the rule that names it");
    }
}

#[test]
fn the_map_names_every_crate_and_folder() {
    let map = fs::read_to_string(root().join("ARCHITECTURE.md"))
        .expect("ARCHITECTURE.md is the map of this repository");
    let mut missing = Vec::new();
    let files = source::files(&root());
    let folders: BTreeSet<&str> =
        files.iter().filter_map(|path| path.split_once('/')).map(|(top, _)| top).collect();
    let crates = files.iter().filter_map(|path| path.strip_suffix("/Cargo.toml"));
    let modules = files.iter().filter_map(|path| {
        let (krate, rest) = path.split_once("/src/")?;
        let (folder, _) = rest.split_once('/')?;
        // Folders that only hold the parts of one file are that file's business.
        let is_part = files.contains(&format!("{krate}/src/{folder}.rs"));
        (!is_part && !path.contains("/tests/")).then_some(folder)
    });
    for name in folders.into_iter().chain(crates).chain(modules).collect::<BTreeSet<_>>() {
        if !map.contains(&format!("{name}/")) && !map.contains(&format!("`{name}`")) {
            missing.push(name);
        }
    }
    assert!(
        missing.is_empty(),
        "ARCHITECTURE.md does not name {missing:?}: one line each, as `name/` or `name` in backticks"
    );
}

/// The repository speaks of Rota alone: nothing of the machine it was built on.
#[test]
fn nothing_names_a_build_machine() {
    // Put together here, so that this file does not find itself.
    let words = [
        ["/wo", "rk/"].concat(),
        ["/ro", "ot/"].concat(),
        [".cargo/", "registry"].concat(),
        ["/tmp/", "bash"].concat(),
    ];
    let mut findings = Vec::new();
    for path in source::files(&root()) {
        // What is no text is looked at by nobody.
        let Ok(text) = fs::read_to_string(root().join(&path)) else { continue };
        for (number, line) in (1..).zip(text.lines()) {
            if let Some(word) = words.iter().find(|word| names_path(line, word)) {
                findings.push(format!("{path}:{number}: names `{word}`"));
            }
        }
    }
    assert!(findings.is_empty(), "\n  {}\n", findings.join("\n  "));
}

/// The word at the start of a path, not inside a longer one.
fn names_path(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        word.starts_with('.')
            || !before.is_some_and(|c| c.is_alphanumeric() || matches!(c, '.' | '-' | '_' | '}' | '>' | '~'))
    })
}

#[test]
fn the_gate_is_what_the_readme_says() {
    let command = "cargo test --workspace";
    for path in ["README.md", ".ci/run"] {
        let text = fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
        assert!(text.contains(command), "{path} does not say `{command}`");
    }
    for path in ["LICENSE-APACHE", "LICENSE-MIT", "CHANGELOG.md", "deny.toml"] {
        assert!(root().join(path).is_file(), "{path} is missing");
    }
}
