//! What flags, a spec file or a script say of a job, put together by the one parser.

use super::context::tell;
use super::failure::Failure;
use super::job_flags::JobFlags;
use super::times::wall_ms;
use crate::parse::script::has_asks;
use crate::parse::{
    Defaults, JobDraft, Key, SPEC_TEXT_BYTES_MAX, Scalar, Value, draft_from_toml, read_script,
};
use clap::Args;
use rota_protocol::job::JobSpec;
use rota_protocol::limits::STDIN_BYTES_MAX;
use rota_protocol::{ErrorCode, PublicError};
use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Variables that a job gets from its submitter's environment without being asked; everything else, secrets above
/// all, only by `--env`.
const INHERITED: [&str; 8] = ["PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "TZ"];
/// Longest file that is read as a script or spec, in bytes; the parser has tighter limits and says which.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// What a job needs and is.
#[derive(Debug, Args, Default, Clone)]
pub struct JobArgs {
    /// Needs and terms.
    #[command(flatten)]
    pub flags: JobFlags,
    /// A script with #ROTA lines in its head; - reads it from standard input
    #[arg(long, value_name = "FILE", conflicts_with = "spec")]
    pub script: Option<PathBuf>,
    /// A job in TOML; flags win over it
    #[arg(long, value_name = "FILE")]
    pub spec: Option<PathBuf>,
    /// The program and its arguments, or those of the script
    #[arg(trailing_var_arg = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// Where a job is put together.
pub struct Here {
    /// The current directory.
    pub workdir: PathBuf,
    /// This process's environment.
    pub env: Vec<(OsString, OsString)>,
    /// The wall clock, ms since the epoch.
    pub now_ms: u64,
}

impl Here {
    /// This process.
    ///
    /// # Errors
    /// The current directory is gone.
    pub fn now() -> Result<Self, Failure> {
        let workdir = std::env::current_dir()
            .map_err(|error| Failure::other(format!("the current directory: {error}")))?;
        Ok(Self { workdir, env: std::env::vars_os().collect(), now_ms: wall_ms() })
    }

    pub(super) fn var(&self, name: &[u8]) -> Option<&OsStr> {
        let found = self.env.iter().find(|(key, _)| key.as_bytes() == name);
        found.map(|(_, value)| value.as_os_str())
    }
}

impl JobArgs {
    /// The finished spec.
    ///
    /// # Errors
    /// Anything that the parser refuses, or a file that cannot be read.
    pub fn job_spec(&self, array: Option<&str>, here: &Here) -> Result<JobSpec, Failure> {
        if let Some(note) = self.flags.time.as_deref().and_then(bare_seconds) {
            tell(&note);
        }
        let flags = self.flags.draft(array, here)?;
        let mut draft = flags.over(self.base(here)?);
        let inherited = INHERITED.iter().filter_map(|name| {
            let value = here.var(name.as_bytes())?;
            Some((name.as_bytes().to_vec(), value.as_bytes().to_vec()))
        });
        draft.inherit_env(inherited);
        if let Some(path) = draft.stdin_file().map(<[u8]>::to_vec) {
            draft.give_stdin(self.input(OsStr::from_bytes(&path), here)?);
        }
        let workdir = here.workdir.clone();
        Ok(draft.build(&Defaults { workdir, now_ms: here.now_ms })?)
    }

    /// What becomes standard input. One byte more than may be is enough to be refused.
    fn input(&self, path: &OsStr, here: &Here) -> Result<Vec<u8>, Failure> {
        let takes_all = |file: &Option<PathBuf>| file.as_ref().is_some_and(|path| path.as_os_str() == "-");
        if path == "-" && (takes_all(&self.script) || takes_all(&self.spec)) {
            let message = "- is read for the job itself already";
            return Err(PublicError::invalid("stdin", message, "data.txt").into());
        }
        let path = if path == "-" { PathBuf::from("-") } else { here.workdir.join(path) };
        read_to(&path, STDIN_BYTES_MAX as u64 + 1)
    }

    /// What script, spec file or command say.
    fn base(&self, here: &Here) -> Result<JobDraft, Failure> {
        let words: Vec<Vec<u8>> = self.command.iter().map(|word| word.as_bytes().to_vec()).collect();
        if let Some(path) = &self.script {
            return script(&read(path)?, path, &words);
        }
        if let Some(path) = &self.spec {
            let spec = draft_from_toml(&read(path)?)?;
            return Ok(command(words)?.over(spec));
        }
        if let Some((path, text)) = self.command.first().and_then(|word| file_with_asks(word, here)) {
            return script(&text, &path, &words[1..]);
        }
        // `bash job.sh` runs the file where it lies, and its head is only comments to the shell.
        if let Some((path, _)) = self.command.get(1).and_then(|word| file_with_asks(word, here)) {
            let path = path.display();
            tell(&format!(
                "note: the #ROTA lines of {path} were not read; give the script itself as the command, or --script {path}"
            ));
        }
        if let Some(word) = self.command.first().filter(|word| is_lost_script(word, here)) {
            let name = word.to_string_lossy();
            let message =
                format!("{name} is a file here and no program that PATH has: --script {name} submits it");
            return Err(PublicError::invalid("command", message, &format!("./{name}")).into());
        }
        Ok(command(words)?)
    }
}

/// Times of other tools are minutes when they are bare.
fn bare_seconds(text: &str) -> Option<String> {
    let text = text.trim();
    let bare = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    bare.then(|| format!("note: --time {text} is {text} s; for minutes: --time {text}m"))
}

/// A bare word that names a file of this folder, and no program of the path: it would be found nowhere.
fn is_lost_script(word: &OsStr, here: &Here) -> bool {
    if word.as_bytes().contains(&b'/') || !here.workdir.join(word).is_file() {
        return false;
    }
    let path = here.var(b"PATH").map(OsStr::to_owned).unwrap_or_default();
    !std::env::split_paths(&path).any(|folder| folder.join(word).is_file())
}

fn command(words: Vec<Vec<u8>>) -> Result<JobDraft, PublicError> {
    let mut draft = JobDraft::default();
    if !words.is_empty() {
        let words = words.into_iter().map(Scalar::Text).collect();
        draft.set(Key::Command, &Value::List(words))?;
    }
    Ok(draft)
}

fn script(text: &[u8], path: &Path, args: &[Vec<u8>]) -> Result<JobDraft, Failure> {
    let script = read_script(text, path.as_os_str().as_bytes(), args)?;
    for note in &script.notes {
        tell(&format!("note: {note}"));
    }
    let mut named = JobDraft::default();
    if let Some(name) = path.file_name().filter(|name| *name != "-") {
        let name: String = name.to_string_lossy().chars().filter(|c| !c.is_control()).collect();
        // A file name that is no job name leaves the job with the name of its interpreter.
        let _ = named.set(Key::Name, &Value::text(name));
    }
    Ok(script.draft.over(named))
}

/// The file that a word of a command names, if it is a script with lines of asks.
fn file_with_asks(word: &OsStr, here: &Here) -> Option<(PathBuf, Vec<u8>)> {
    let path = here.workdir.join(word);
    let meta = std::fs::metadata(&path).ok()?;
    if !meta.is_file() || meta.len() > FILE_BYTES_MAX {
        return None;
    }
    let mut file = std::fs::File::open(&path).ok()?;
    // A program is told from a script by its first bytes, so that a large one is not read for nothing.
    let mut first = [0; 2];
    file.read_exact(&mut first).ok()?;
    if first != *b"#!" && first != *b"#R" && first != *b"\xef\xbb" {
        return None;
    }
    let mut text = first.to_vec();
    file.take(FILE_BYTES_MAX).read_to_end(&mut text).ok()?;
    has_asks(&text).then_some((path, text))
}

fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    let text = read_to(path, FILE_BYTES_MAX + 1)?;
    if text.len() as u64 <= FILE_BYTES_MAX {
        return Ok(text);
    }
    let file = std::fs::metadata(path).ok().filter(|meta| path.as_os_str() != "-" && meta.is_file());
    let size = file.map_or(format!("more than {FILE_BYTES_MAX}"), |meta| meta.len().to_string());
    let message =
        format!("{} has {size} bytes; a script or spec has at most {SPEC_TEXT_BYTES_MAX}", path.display());
    Err(PublicError::new(ErrorCode::TooLarge, message).into())
}

fn read_to(path: &Path, most: u64) -> Result<Vec<u8>, Failure> {
    let mut text = Vec::new();
    let read = if path.as_os_str() == "-" {
        std::io::stdin().lock().take(most).read_to_end(&mut text)
    } else {
        std::fs::File::open(path).and_then(|file| file.take(most).read_to_end(&mut text))
    };
    read.map_err(|error| Failure::other(format!("cannot read {}: {error}", path.display())))?;
    Ok(text)
}
