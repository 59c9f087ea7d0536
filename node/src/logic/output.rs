//! From what a job says of its output to what one attempt's shim does: limits of the host, names filled in.

use super::attempts::{self, Numbered};
use rota_core::{Attempt, State};
use rota_protocol::job::JobSpec;
use rota_protocol::output::{OutputOrder, OutputSpec};

/// What the names of files may say of an attempt.
#[derive(Debug, Clone, Copy)]
struct Names<'a> {
    /// The job's number.
    job: u64,
    /// Array index, or rank.
    index: u32,
    /// The attempt's number.
    attempt: u32,
    /// The host's name.
    host: &'a str,
    /// The rank in its gang; 0 outside of one.
    rank: u32,
    /// The job's name.
    name: &'a str,
    /// The user.
    user: &'a str,
    /// Why there was another attempt before; empty for none.
    because: &'a str,
}

/// What a host allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostLimits {
    /// Bytes of each stream that are kept of a job that does not say.
    pub bytes_default: u64,
    /// The same of one that asks for more.
    pub bytes_max: u64,
    /// Bytes of each stream that are kept in a second.
    pub rate_bytes: u64,
}

/// The attempt's number among those of its task, and in a word why the one before it ended.
#[must_use]
pub fn place_of(state: &State, attempt: &Attempt) -> (u32, &'static str) {
    let all = attempts::of_task(state, attempt.task.job, attempt.task.index);
    let at = all.iter().position(|one| one.token == attempt.token);
    let before = at.and_then(|at| all.get(at.checked_sub(1)?)).map_or("", Numbered::why_again);
    (at.map_or(1, |at| all[at].number), before)
}

/// The order of one attempt.
#[must_use]
pub fn order(state: &State, attempt: &Attempt, spec: &JobSpec, host: HostLimits) -> OutputOrder {
    let (number, because) = place_of(state, attempt);
    let names = Names {
        job: attempt.task.job.0,
        index: attempt.task.index,
        attempt: number,
        host: state.host(attempt.host).map_or("", |host| &host.name),
        rank: if attempt.in_gang { attempt.task.index } else { 0 },
        name: &spec.name,
        user: &attempt.user,
        because,
    };
    filled(spec.output(), host, &spec.workdir, &names)
}

/// Relative names begin at the working directory.
fn filled(spec: &OutputSpec, host: HostLimits, workdir: &[u8], names: &Names<'_>) -> OutputOrder {
    let file = |pattern: &Option<Vec<u8>>| match pattern {
        Some(pattern) => absolute(workdir, fill(pattern, names)),
        None => Vec::new(),
    };
    let because = if names.because.is_empty() { String::new() } else { format!(" after: {}", names.because) };
    let separator = format!(
        "\n--- rota: job {}, task {}, attempt {} on {}{because}\n",
        names.job, names.index, names.attempt, names.host
    );
    let has_file = spec.stdout.is_some() || spec.stderr.is_some();
    OutputOrder {
        bytes_max: spec.bytes_max.unwrap_or(host.bytes_default).min(host.bytes_max),
        rate_bytes: host.rate_bytes,
        stdout: file(&spec.stdout),
        stderr: file(&spec.stderr),
        replace: spec.replace,
        separator: if has_file { separator.into_bytes() } else { Vec::new() },
        stdin: spec.stdin.clone().unwrap_or_default(),
    }
}

fn absolute(workdir: &[u8], path: Vec<u8>) -> Vec<u8> {
    if path.starts_with(b"/") { path } else { [workdir, b"/", &path].concat() }
}

/// A pattern with its letters filled in. What a user chose freely, the names, becomes no step into a folder.
fn fill(pattern: &[u8], names: &Names<'_>) -> Vec<u8> {
    let mut filled = Vec::with_capacity(pattern.len());
    let mut bytes = pattern.iter();
    while let Some(byte) = bytes.next() {
        if *byte != b'%' {
            filled.push(*byte);
            continue;
        }
        let text = match bytes.next() {
            Some(b'j' | b'A') => names.job.to_string(),
            Some(b'a') => names.index.to_string(),
            Some(b't') => names.attempt.to_string(),
            Some(b'h' | b'N') => names.host.replace('/', "_"),
            Some(b'r') => names.rank.to_string(),
            Some(b'x') => names.name.replace('/', "_"),
            Some(b'u') => names.user.replace('/', "_"),
            Some(b'%') => "%".to_owned(),
            // Refused at the submit; kept as it is all the same.
            Some(other) => format!("%{}", char::from(*other)),
            None => "%".to_owned(),
        };
        filled.extend_from_slice(text.as_bytes());
    }
    filled
}

#[cfg(test)]
mod tests {
    use super::*;
    use rota_protocol::output::PATTERN_LETTERS;

    const NAMES: Names<'static> = Names {
        job: 12,
        index: 3,
        attempt: 2,
        host: "n7",
        rank: 4,
        name: "a/../b",
        user: "ada",
        because: "preempt",
    };
    const HOST: HostLimits = HostLimits { bytes_default: 1 << 30, bytes_max: 4 << 30, rate_bytes: 77 };

    #[test]
    fn every_letter_means_something() {
        let filled = |pattern: &str| String::from_utf8(fill(pattern.as_bytes(), &NAMES)).unwrap();
        assert_eq!(filled("%j_%a.%t-%h.%r"), "12_3.2-n7.4");
        assert_eq!(filled("/l/%A/%x.%N.%u.%%d"), "/l/12/a_.._b.n7.ada.%d");
        for letter in PATTERN_LETTERS {
            assert_ne!(filled(&format!("%{}", char::from(*letter))), format!("%{}", char::from(*letter)));
        }
    }

    #[test]
    fn an_order_is_within_the_hosts_limits_and_its_files_are_absolute() {
        let spec = OutputSpec {
            bytes_max: Some(8 << 30),
            stdout: Some(b"logs/%j".to_vec()),
            stderr: Some(b"/tmp/e".to_vec()),
            ..OutputSpec::default()
        };
        let whole = filled(&spec, HOST, b"/home/ada", &NAMES);
        assert_eq!((whole.bytes_max, whole.rate_bytes), (4 << 30, 77));
        assert_eq!((&whole.stdout[..], &whole.stderr[..]), (&b"/home/ada/logs/12"[..], &b"/tmp/e"[..]));
        assert_eq!(whole.separator, b"\n--- rota: job 12, task 3, attempt 2 on n7 after: preempt\n");
        let plain = filled(&OutputSpec::default(), HOST, b"/", &NAMES);
        let limits = OutputOrder { bytes_max: 1 << 30, rate_bytes: 77, ..OutputOrder::default() };
        assert_eq!(plain, limits);
    }
}
