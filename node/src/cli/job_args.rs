//! What flags, a spec file or a script say of a job, put together by the one parser.

use super::context::tell;
use super::failure::Failure;
use crate::parse::script::has_asks;
use crate::parse::{Defaults, JobDraft, Key, Scalar, Value, draft_from_toml, read_script};
use clap::Args;
use rota_protocol::PublicError;
use rota_protocol::job::JobSpec;
use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Variables that a job gets from its submitter's environment without being asked; everything else, secrets above
/// all, only by `--env`.
const INHERITED: [&str; 8] = ["PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "TZ"];
/// Longest file that is read as a script or spec, in bytes; the parser has tighter limits and says which.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// What a job needs and is.
#[derive(Debug, Args, Default)]
pub struct JobArgs {
    /// Whole GPUs of each task
    #[arg(long, help_heading = "Needs")]
    pub gpus: Option<String>,
    /// Accepted GPU models, such as H100 or H100,A100; may be repeated
    #[arg(long, value_name = "MODEL", help_heading = "Needs")]
    pub gpu_model: Vec<String>,
    /// Least memory of each GPU: 80G, 512M; a bare number is MiB
    #[arg(long, value_name = "SIZE", help_heading = "Needs")]
    pub vram: Option<String>,
    /// CPU cores of each task, such as 4 or 0.5 [default: 1]
    #[arg(long, help_heading = "Needs")]
    pub cpus: Option<String>,
    /// Memory of each task: 16G, 1.5G, 512M (powers of 1024); a bare number is MiB
    #[arg(long, value_name = "SIZE", help_heading = "Needs")]
    pub mem: Option<String>,
    /// FPGAs of each task
    #[arg(long, help_heading = "Needs")]
    pub fpga: Option<String>,
    /// Only hosts with this label; may be repeated
    #[arg(long, value_name = "KEY=VALUE", help_heading = "Needs")]
    pub label: Vec<String>,
    /// Longest run: 90s, 30m, 1h30m, HH:MM:SS, D-HH:MM:SS; a bare number is seconds
    #[arg(long, value_name = "TIME", help_heading = "Terms")]
    pub time: Option<String>,
    /// Time between TERM and KILL when it is ended
    #[arg(long, value_name = "TIME", help_heading = "Terms")]
    pub grace: Option<String>,
    /// 0 (last) to 100 (first) [default: 50]
    #[arg(long, help_heading = "Terms")]
    pub priority: Option<String>,
    /// How often a failed task may run again [default: 0]
    #[arg(long, value_name = "COUNT", help_heading = "Terms")]
    pub retries: Option<String>,
    /// A name for people [default: the program's]
    #[arg(long, help_heading = "Terms")]
    pub name: Option<String>,
    /// An environment variable, or the name of one of this shell's; may be repeated
    #[arg(long, value_name = "NAME[=VALUE]", help_heading = "Terms")]
    pub env: Vec<OsString>,
    /// Working directory on the host that runs it [default: this one]
    #[arg(long, value_name = "DIR", help_heading = "Terms")]
    pub workdir: Option<OsString>,
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
}

impl Here {
    /// This process.
    ///
    /// # Errors
    /// The current directory is gone.
    pub fn now() -> Result<Self, Failure> {
        let workdir = std::env::current_dir()
            .map_err(|error| Failure::other(format!("the current directory: {error}")))?;
        Ok(Self { workdir, env: std::env::vars_os().collect() })
    }

    fn var(&self, name: &[u8]) -> Option<&OsStr> {
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
        let flags = self.flags(array, here)?;
        let mut draft = flags.over(self.base(here)?);
        let inherited = INHERITED.iter().filter_map(|name| {
            let value = here.var(name.as_bytes())?;
            Some((name.as_bytes().to_vec(), value.as_bytes().to_vec()))
        });
        draft.inherit_env(inherited);
        let workdir = here.workdir.clone();
        Ok(draft.build(&Defaults { workdir })?)
    }

    /// What the flags say, without the command.
    fn flags(&self, array: Option<&str>, here: &Here) -> Result<JobDraft, PublicError> {
        let mut draft = JobDraft::default();
        let single = [
            (Key::Gpus, self.gpus.as_deref()),
            (Key::Vram, self.vram.as_deref()),
            (Key::Cpus, self.cpus.as_deref()),
            (Key::Mem, self.mem.as_deref()),
            (Key::Fpga, self.fpga.as_deref()),
            (Key::Time, self.time.as_deref()),
            (Key::Grace, self.grace.as_deref()),
            (Key::Priority, self.priority.as_deref()),
            (Key::Retries, self.retries.as_deref()),
            (Key::Name, self.name.as_deref()),
            (Key::Array, array),
        ];
        for (key, text) in single {
            if let Some(text) = text {
                draft.set(key, &Value::text(text))?;
            }
        }
        if let Some(workdir) = &self.workdir {
            draft.set(Key::Workdir, &Value::text(workdir.as_bytes()))?;
        }
        for (key, texts) in [(Key::GpuModel, &self.gpu_model), (Key::Label, &self.label)] {
            if !texts.is_empty() {
                let list = texts.iter().map(|text| Scalar::Text(text.clone().into_bytes()));
                draft.set(key, &Value::List(list.collect()))?;
            }
        }
        for pair in &self.env {
            let mut pair = pair.as_bytes().to_vec();
            if !pair.contains(&b'=') {
                let value = here.var(&pair).ok_or_else(|| {
                    let name = String::from_utf8_lossy(&pair);
                    PublicError::invalid("env", format!("{name:?} is not set in this environment"), "SEED=7")
                })?;
                pair.push(b'=');
                pair.extend_from_slice(value.as_bytes());
            }
            draft.set(Key::Env, &Value::text(pair))?;
        }
        Ok(draft)
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
        Ok(command(words)?)
    }
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
    let mut text = Vec::new();
    let read = if path.as_os_str() == "-" {
        std::io::stdin().lock().take(FILE_BYTES_MAX).read_to_end(&mut text)
    } else {
        std::fs::File::open(path).and_then(|file| file.take(FILE_BYTES_MAX).read_to_end(&mut text))
    };
    read.map_err(|error| Failure::other(format!("cannot read {}: {error}", path.display())))?;
    Ok(text)
}

/// A spec as people check it: what was understood, in the parser's own units.
#[must_use]
pub fn echo(spec: &JobSpec) -> String {
    use crate::parse::{amount, time, word};
    let mut lines = vec![
        format!("name      {}", spec.name),
        format!("command   {}", shell_words(&spec.argv)),
        format!("workdir   {}", OsString::from_vec(spec.workdir.clone()).to_string_lossy()),
        format!("gpus      {}", spec.ask.gpus()),
        format!("cpus      {}", amount::milli_text(spec.ask.cpus_milli)),
    ];
    if !spec.ask.gpu_models.is_empty() {
        lines.push(format!("gpu-model {}", spec.ask.gpu_models.join(",")));
    }
    for (name, mib) in [("vram", spec.ask.vram_mib), ("mem", spec.ask.mem_mib)] {
        if mib > 0 {
            lines.push(format!("{name:<9} {}", amount::memory_text(mib)));
        }
    }
    for (kind, count) in &spec.ask.devices {
        lines.push(format!("{kind:<9} {count}"));
    }
    for (key, value) in &spec.ask.labels {
        lines.push(format!("label     {key}={value}"));
    }
    if let Some(array) = &spec.array {
        lines.push(format!("array     {} ({} tasks)", word::array_text(array), array.count()));
    }
    let limit = spec.time_limit_ms.map_or("unlimited".to_owned(), time::duration_text);
    lines.push(format!("time      {limit}"));
    if let Some(ms) = spec.grace_ms {
        lines.push(format!("grace     {}", time::duration_text(ms.into())));
    }
    lines.push(format!("priority  {}", spec.priority));
    lines.push(format!("retries   {}", spec.retries));
    lines.push(format!("env       {} variables", spec.env.len()));
    let cleaned: Vec<_> = lines.iter().map(|line| crate::table::clean(line)).collect();
    cleaned.join("\n")
}

/// Arguments on one line, quoted where a shell would need it.
#[must_use]
pub fn shell_words(argv: &[Vec<u8>]) -> String {
    let words = argv.iter().map(|word| {
        let word = String::from_utf8_lossy(word);
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c);
        if !word.is_empty() && word.chars().all(plain) {
            word.into_owned()
        } else {
            format!("'{}'", word.replace('\'', "'\\''"))
        }
    });
    words.collect::<Vec<_>>().join(" ")
}
