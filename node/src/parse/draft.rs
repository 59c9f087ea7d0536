//! A job being put together: each entry fills a draft key by key, drafts are laid over one another (flags over a
//! script's header), and the whole becomes a [`JobSpec`] with its defaults.

use super::image::Image;
use super::inputs::Inputs;
use super::key::{Key, Scalar, Value};
use super::needs::{Needs, alternatives};
use super::pace::Pace;
use super::pieces::{check_argv, command, env_fault, name_of, too_large, workdir};
use super::streams::Streams;
use super::terms::Terms;
use super::{amount, word};
use rota_protocol::codec;
use rota_protocol::job::JobSpec;
use rota_protocol::limits::{ALTERNATIVES_MAX, ARGS_MAX, SPEC_BYTES_MAX};
use rota_protocol::{ErrorCode, PublicError};
use std::collections::BTreeMap;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

pub use super::needs::CPUS_MILLI_DEFAULT;

/// What a job gets that does not say it.
#[derive(Debug, Clone)]
pub struct Defaults {
    /// Working directory, absolute; a relative `workdir` starts here.
    pub workdir: PathBuf,
    /// What `now` means, ms since the epoch.
    pub now_ms: u64,
}

/// A job of which some things have been said. Every value in it has been read and is good by itself.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct JobDraft {
    name: Option<String>,
    command: Option<Vec<Vec<u8>>>,
    env: BTreeMap<Vec<u8>, Vec<u8>>,
    workdir: Option<PathBuf>,
    needs: Needs,
    alternatives: Vec<Needs>,
    terms: Terms,
    streams: Streams,
    image: Image,
    pace: Pace,
    inputs: Inputs,
}

impl JobDraft {
    /// Reads one value. `Env`, `Label`, `Device`, `After`, `Mount`, `Input` and `Or` may be given piece by piece, all else once.
    ///
    /// # Errors
    /// The value is malformed, of the wrong type, or the key was given before.
    pub fn set(&mut self, key: Key, value: &Value) -> Result<(), PublicError> {
        let field = key.name();
        match key {
            Key::Name => {
                let name = word::name(field, value.one(key)?.text(field)?)?;
                once(key, &mut self.name, name)
            }
            Key::Command => once(key, &mut self.command, command(value)?),
            Key::Env => self.set_env(value),
            Key::Workdir => {
                let bytes = value.one(key)?.bytes(field)?;
                once(key, &mut self.workdir, workdir(bytes)?)
            }
            Key::Or => {
                self.alternatives.extend(alternatives(value)?);
                Ok(())
            }
            _ if self.streams.set(key, value)? => Ok(()),
            _ if self.needs.set(key, value)?
                || self.terms.set(key, value)?
                || self.image.set(key, value)?
                || self.pace.set(key, value)?
                || self.inputs.set(key, value)? =>
            {
                Ok(())
            }
            _ => Err(PublicError::new(ErrorCode::Internal, format!("{field} has no reader"))),
        }
    }

    /// Whether a command was said.
    #[must_use]
    pub fn has_command(&self) -> bool {
        self.command.is_some()
    }

    /// Lays this draft over another: what this one says wins, single variables, labels and devices included.
    #[must_use]
    pub fn over(self, base: Self) -> Self {
        Self {
            name: self.name.or(base.name),
            command: self.command.or(base.command),
            env: base.env.into_iter().chain(self.env).collect(),
            workdir: self.workdir.or(base.workdir),
            needs: self.needs.over(base.needs),
            alternatives: if self.alternatives.is_empty() { base.alternatives } else { self.alternatives },
            terms: self.terms.over(base.terms),
            streams: self.streams.over(base.streams),
            image: self.image.over(base.image),
            pace: self.pace.over(base.pace),
            inputs: self.inputs.over(base.inputs),
        }
    }

    /// The finished spec, with defaults: 1 CPU, no GPU, no memory asked, priority 50, no limit, no retries.
    ///
    /// # Errors
    /// No command, a contradiction between fields, or a whole that is too large.
    pub fn build(self, defaults: &Defaults) -> Result<JobSpec, PublicError> {
        let argv = self.command.unwrap_or_default();
        check_argv(&argv)?;
        if self.env.len() > ARGS_MAX {
            return Err(too_large("env", format!("{} variables", self.env.len()), ARGS_MAX));
        }
        let workdir = match self.workdir {
            Some(workdir) => defaults.workdir.join(workdir),
            None => defaults.workdir.clone(),
        };
        let mut spec = JobSpec {
            name: self.name.unwrap_or_else(|| name_of(&argv)),
            argv,
            env: self.env.into_iter().collect(),
            workdir: workdir.into_os_string().into_vec(),
            ask: self.needs.clone().build()?,
            output: self.streams.build()?.held(),
            ..JobSpec::default()
        };
        add_alternatives(&mut spec, &self.needs, self.alternatives)?;
        self.terms.fill(&mut spec, defaults.now_ms)?;
        self.image.fill(&mut spec)?;
        self.pace.fill(&mut spec);
        self.inputs.fill(&mut spec);
        let bytes = codec::encode(&spec).map_or(usize::MAX, |bytes| bytes.len());
        if bytes > SPEC_BYTES_MAX {
            return Err(too_large("command", format!("the whole job of {bytes} bytes"), SPEC_BYTES_MAX));
        }
        // What apply will check is checked here too, so that a refusal costs no round trip.
        rota_core::spec::validate(&spec).map_err(by_key)?;
        Ok(spec)
    }

    /// The file that is to become standard input and was not read yet; `-` for the caller's own.
    #[must_use]
    pub fn stdin_file(&self) -> Option<&[u8]> {
        self.streams.stdin_file()
    }

    /// What was in that file.
    pub fn give_stdin(&mut self, bytes: Vec<u8>) {
        self.streams.give_stdin(bytes);
    }

    /// Takes variables of the caller's environment that the draft does not set itself.
    pub fn inherit_env(&mut self, variables: impl IntoIterator<Item = (Vec<u8>, Vec<u8>)>) {
        for (name, value) in variables {
            if env_fault(&name, &value).is_none() {
                self.env.entry(name).or_insert(value);
            }
        }
    }

    fn set_env(&mut self, value: &Value) -> Result<(), PublicError> {
        let mut add = |name: &[u8], value: &[u8]| {
            let field = format!("env.{}", String::from_utf8_lossy(name));
            if let Some(why) = env_fault(name, value) {
                return Err(PublicError::invalid(&field, why, "SEED=7"));
            }
            if self.env.insert(name.to_vec(), value.to_vec()).is_some() {
                return Err(twice(&field));
            }
            Ok(())
        };
        match value {
            Value::Map(pairs) => {
                pairs.iter().try_for_each(|(name, value)| add(name.as_bytes(), value.bytes("env")?))
            }
            _ => scalars(value).iter().try_for_each(|pair| {
                let pair = pair.bytes("env")?;
                let at = pair.iter().position(|b| *b == b'=').ok_or_else(|| {
                    let shown = amount::quoted(&String::from_utf8_lossy(pair));
                    PublicError::invalid("env", format!("{shown} has no ="), "SEED=7")
                })?;
                add(&pair[..at], &pair[at + 1..])
            }),
        }
    }
}

/// A fault that names a field of the stored spec, with the key by which the user wrote it.
fn by_key(error: PublicError) -> PublicError {
    let field = error.field.map(|field| {
        let name = field.strip_prefix("ask.").unwrap_or(&field);
        let key = match name {
            "alternatives" => Key::Or.name(),
            "argv" => Key::Command.name(),
            "devices" => Key::Device.name(),
            "labels" => Key::Label.name(),
            other => return Key::parse(other).map_or_else(|_| other.to_owned(), |key| key.name().to_owned()),
        };
        key.to_owned()
    });
    PublicError { field, ..error }
}

/// Each alternative takes over what it does not name. One that comes to an ask already there is a mistake.
fn add_alternatives(spec: &mut JobSpec, main: &Needs, all: Vec<Needs>) -> Result<(), PublicError> {
    const EXAMPLE: &str = "gpus=0 cpus=16";
    let field = Key::Or.name();
    if all.len() > ALTERNATIVES_MAX {
        return Err(too_large(field, format!("{} alternatives", all.len()), ALTERNATIVES_MAX));
    }
    for needs in all {
        let ask = needs.instead_of(main.clone()).build().map_err(|error| {
            let about = error.field.unwrap_or_default();
            PublicError::invalid(field, format!("{about}: {}", error.message), EXAMPLE)
        })?;
        if spec.asks().any(|known| *known == ask) {
            return Err(PublicError::invalid(field, "asks the same as what is asked already", EXAMPLE));
        }
        spec.alternatives.push(ask);
    }
    Ok(())
}

/// A list's values, or the one value.
pub(super) fn scalars(value: &Value) -> &[Scalar] {
    match value {
        Value::One(scalar) => std::slice::from_ref(scalar),
        Value::List(list) => list,
        Value::Map(_) => &[],
    }
}

pub(super) fn once<T>(key: Key, slot: &mut Option<T>, value: T) -> Result<(), PublicError> {
    if slot.replace(value).is_some() {
        return Err(twice(key.name()));
    }
    Ok(())
}

pub(super) fn twice(field: &str) -> PublicError {
    PublicError { field: Some(field.to_owned()), ..PublicError::new(ErrorCode::Invalid, "is given twice") }
}

/// A count that was checked against a limit of 16 bits.
pub(super) fn narrow(count: u32) -> u16 {
    u16::try_from(count).unwrap_or(u16::MAX)
}
