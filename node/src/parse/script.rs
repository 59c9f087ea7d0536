//! Job scripts: `#ROTA --gpus 2` lines in the head say what flags would say, and the text itself travels with the
//! job, so that every attempt on every host runs the same copy.
//!
//! The head ends at the first line that is neither empty nor a comment. A script with Windows line ends is stored
//! without them, and the caller is told; a lone CR inside a script with Unix line ends is left alone.

use super::amount::quoted;
use super::draft::JobDraft;
use super::key::{Key, Scalar, Value};
use rota_protocol::limits::ARG_BYTES_MAX;
use rota_protocol::{ErrorCode, PublicError};

/// What begins a line of asks.
const MARK: &str = "#ROTA";
/// What begins a line of asks for another scheduler; passing over one would run the job without what it asks.
const FOREIGN_MARK: &str = "#SBATCH";

/// A script that was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Script {
    /// What its head asks; the command is the script itself.
    pub draft: JobDraft,
    /// What the caller should be told once.
    pub notes: Vec<String>,
}

/// Whether a text has lines of asks, wherever they stand.
#[must_use]
pub fn has_asks(text: &[u8]) -> bool {
    text.split(|b| *b == b'\n').any(|line| {
        line.strip_prefix(MARK.as_bytes())
            .is_some_and(|rest| rest.first().is_none_or(u8::is_ascii_whitespace))
    })
}

/// Reads a script: `name` is what it will see as `$0`, `args` what follows.
///
/// # Errors
/// Empty, too long, not text, an unknown interpreter, a line of asks that is malformed or stands after the head.
pub fn read_script(text: &[u8], name: &[u8], args: &[Vec<u8>]) -> Result<Script, PublicError> {
    let mut notes = Vec::new();
    let text = clean(text, &mut notes)?;
    let mut draft = head(text.as_str())?;
    let (mut argv, family) = interpreter(&text)?;
    argv.push(text.into_bytes());
    match family {
        Family::Shell => argv.push(name.to_vec()),
        Family::Python => {}
        Family::Dashes => argv.push(b"--".to_vec()),
    }
    argv.extend(args.iter().cloned());
    let words = argv.into_iter().map(Scalar::Text).collect();
    draft.set(Key::Command, &Value::List(words))?;
    Ok(Script { draft, notes })
}

fn refuse(message: impl Into<String>) -> PublicError {
    PublicError::invalid("script", message, "#!/bin/sh")
}

/// Without byte-order mark and Windows line ends.
fn clean(text: &[u8], notes: &mut Vec<String>) -> Result<String, PublicError> {
    if text.len() > ARG_BYTES_MAX {
        return Err(PublicError {
            field: Some("script".to_owned()),
            ..PublicError::new(
                ErrorCode::TooLarge,
                format!("{} bytes exceed the limit of {ARG_BYTES_MAX}", text.len()),
            )
        });
    }
    let mut text = std::str::from_utf8(text)
        .map_err(|error| refuse(format!("byte {} is not UTF-8", error.valid_up_to() + 1)))?;
    if text.contains('\0') {
        return Err(refuse("has a NUL byte"));
    }
    if let Some(rest) = text.strip_prefix('\u{feff}') {
        text = rest;
        notes.push("the byte-order mark before the script's first line was removed".to_owned());
    }
    if text.trim().is_empty() {
        return Err(refuse("is empty"));
    }
    let ends = text.matches('\n').count();
    let windows_ends = text.matches("\r\n").count();
    if ends > 0 && ends == windows_ends {
        notes.push(format!("Windows line ends were removed from {ends} lines of the script"));
        return Ok(text.replace("\r\n", "\n"));
    }
    let first = text.split('\n').next().unwrap_or("");
    if first.ends_with('\r') {
        return Err(refuse("line 1 has a Windows line end, but not all lines have"));
    }
    Ok(text.to_owned())
}

/// The lines of asks.
fn head(text: &str) -> Result<JobDraft, PublicError> {
    let mut draft = JobDraft::default();
    let mut in_head = true;
    for (number, line) in text.lines().enumerate().map(|(at, line)| (at + 1, line)) {
        let is_comment = line.trim_start().starts_with('#');
        in_head &= is_comment || line.trim().is_empty();
        if in_head && line.starts_with(FOREIGN_MARK) {
            return Err(refuse(format!(
                "line {number}: {FOREIGN_MARK} lines are not read; write them as {MARK} lines"
            )));
        }
        let Some(rest) =
            line.strip_prefix(MARK).filter(|rest| rest.is_empty() || rest.starts_with([' ', '\t']))
        else {
            continue;
        };
        if !in_head {
            return Err(refuse(format!(
                "line {number}: a {MARK} line stands after the first command and would not count"
            )));
        }
        ask_line(&mut draft, rest)
            .map_err(|error| PublicError { message: format!("line {number}: {}", error.message), ..error })?;
    }
    Ok(draft)
}

/// `--gpus 2 --mem=16G --hold -N 4`
fn ask_line(draft: &mut JobDraft, line: &str) -> Result<(), PublicError> {
    let words = words(line)?;
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let (key, value) = flag(word)?;
        let value = match value {
            Some(value) => Some(value),
            None if key.is_switch() => None,
            None => {
                let missing = || PublicError { field: Some(key.name().to_owned()), ..refuse("has no value") };
                Some(words.next().ok_or_else(missing)?.as_str())
            }
        };
        if key == Key::Command {
            return Err(refuse("the command of a script is the script"));
        }
        draft.set(key, &value.map_or(Value::One(Scalar::Flag(true)), Value::text))?;
    }
    Ok(())
}

/// The key of a flag, and its value if that stands in the same word: `--name=x`, `-N4`, `-N`.
fn flag(word: &str) -> Result<(Key, Option<&str>), PublicError> {
    if let Some(flag) = word.strip_prefix("--") {
        return Ok(match flag.split_once('=') {
            Some((name, value)) => (Key::parse(name)?, Some(value)),
            None => (Key::parse(flag)?, None),
        });
    }
    let mut letters = word.strip_prefix('-').unwrap_or_default().chars();
    let key = letters.next().and_then(Key::of_letter);
    let key = key.ok_or_else(|| refuse(format!("{} is no flag", quoted(word))))?;
    let rest = letters.as_str();
    Ok((key, Some(rest.strip_prefix('=').unwrap_or(rest)).filter(|value| !value.is_empty())))
}

/// Splits at blanks; quotes of either kind keep a word together; ` #` begins a comment.
pub(super) fn words(line: &str) -> Result<Vec<String>, PublicError> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote: Option<char> = None;
    for c in line.chars() {
        match quote {
            Some(open) if c == open => quote = None,
            Some(_) => word.get_or_insert_default().push(c),
            None if c == '"' || c == '\'' => {
                word.get_or_insert_default();
                quote = Some(c);
            }
            None if c.is_whitespace() => words.extend(word.take()),
            None if c == '#' && word.is_none() => break,
            None => word.get_or_insert_default().push(c),
        }
    }
    if quote.is_some() {
        return Err(refuse("a quote is not closed"));
    }
    words.extend(word);
    Ok(words)
}

/// How an interpreter takes what follows its script's text.
enum Family {
    /// `-c text name args`
    Shell,
    /// `-c text args`
    Python,
    /// `-e text -- args`
    Dashes,
}

/// Program and arguments before the script's text, by its first line; `/bin/sh` without one.
fn interpreter(text: &str) -> Result<(Vec<Vec<u8>>, Family), PublicError> {
    let first = text.lines().next().unwrap_or("");
    let Some(line) = first.strip_prefix("#!") else {
        let argv = vec![b"/bin/sh".to_vec(), b"-c".to_vec()];
        return Ok((argv, Family::Shell));
    };
    let (program, rest) = match line.trim().split_once(char::is_whitespace) {
        Some((program, rest)) => (program, rest.trim()),
        None => (line.trim(), ""),
    };
    // The kernel hands everything after the program over as one argument.
    let mut argv = vec![program.as_bytes().to_vec()];
    if !rest.is_empty() {
        argv.push(rest.as_bytes().to_vec());
    }
    let program = base_name(program);
    let name = match program {
        "env" => rest
            .split_whitespace()
            .find(|word| !word.starts_with('-') && !word.contains('='))
            .map_or("", base_name),
        other => other,
    };
    let (flag, family) = match name.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.') {
        "sh" | "bash" | "dash" | "zsh" | "ksh" => ("-c", Family::Shell),
        "python" => ("-c", Family::Python),
        "perl" | "ruby" | "node" => ("-e", Family::Dashes),
        _ => {
            return Err(refuse(format!(
                "line 1: {} is no interpreter that takes its script as an argument; give the file as a command instead",
                quoted(name)
            )));
        }
    };
    argv.push(flag.as_bytes().to_vec());
    Ok((argv, family))
}

fn base_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}
