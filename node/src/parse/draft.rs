//! A job being put together: each entry fills a draft key by key, drafts are laid over one another (flags over a
//! script's header), and the whole becomes a [`JobSpec`] with its defaults.

use super::key::{Key, Scalar, Value};
use super::pieces::{check_argv, command, env_fault, grace_ms, models, name_of, too_large, workdir};
use super::{amount, time, word};
use rota_protocol::ask::Ask;
use rota_protocol::codec;
use rota_protocol::job::{ArraySpec, JobSpec};
use rota_protocol::limits::{ARGS_MAX, PRIORITY_DEFAULT, PRIORITY_MAX, RETRIES_MAX, SPEC_BYTES_MAX};
use rota_protocol::{ErrorCode, PublicError};
use std::collections::BTreeMap;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// CPU of a task that asks for none: one core, in thousandths.
pub const CPUS_MILLI_DEFAULT: u32 = 1_000;
/// Most FPGAs of one task; a host has no more devices than this.
const FPGAS_MAX: u32 = 128;

/// What a job gets that does not say it.
#[derive(Debug, Clone)]
pub struct Defaults {
    /// Working directory, absolute; a relative `workdir` starts here.
    pub workdir: PathBuf,
}

/// A job of which some things have been said. Every value in it has been read and is good by itself.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct JobDraft {
    name: Option<String>,
    command: Option<Vec<Vec<u8>>>,
    env: BTreeMap<Vec<u8>, Vec<u8>>,
    workdir: Option<PathBuf>,
    gpu_milli: Option<u32>,
    gpu_models: Option<Vec<String>>,
    vram_mib: Option<u64>,
    cpus_milli: Option<u32>,
    mem_mib: Option<u64>,
    fpgas: Option<u32>,
    labels: BTreeMap<String, String>,
    array: Option<ArraySpec>,
    priority: Option<u16>,
    time_limit_ms: Option<u64>,
    grace_ms: Option<u32>,
    retries: Option<u16>,
}

impl JobDraft {
    /// Reads one value. `Env` and `Label` may be given piece by piece, everything else once.
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
            Key::Gpus => {
                let milli = amount::gpu_milli(field, value.amount(key)?)?;
                once(key, &mut self.gpu_milli, milli)
            }
            Key::GpuModel => once(key, &mut self.gpu_models, models(value)?),
            Key::Vram => {
                let mib = amount::memory_mib(field, value.amount(key)?)?;
                once(key, &mut self.vram_mib, mib)
            }
            Key::Cpus => {
                let milli = amount::cpus_milli(field, value.amount(key)?)?;
                once(key, &mut self.cpus_milli, milli)
            }
            Key::Mem => {
                let mib = amount::memory_mib(field, value.amount(key)?)?;
                once(key, &mut self.mem_mib, mib)
            }
            Key::Fpga => {
                let count = amount::count(field, value.amount(key)?, 0, FPGAS_MAX)?;
                once(key, &mut self.fpgas, count)
            }
            Key::Label => self.set_label(value),
            Key::Array => once(key, &mut self.array, word::array(field, value.amount(key)?)?),
            Key::Priority => {
                let most = u32::from(PRIORITY_MAX);
                let priority = amount::count(field, value.amount(key)?, 0, most)?;
                once(key, &mut self.priority, narrow(priority))
            }
            Key::Time => {
                let ms = time::duration_ms(field, value.amount(key)?)?;
                once(key, &mut self.time_limit_ms, ms)
            }
            Key::Grace => once(key, &mut self.grace_ms, grace_ms(value.amount(key)?)?),
            Key::Retries => {
                let most = u32::from(RETRIES_MAX);
                let retries = amount::count(field, value.amount(key)?, 0, most)?;
                once(key, &mut self.retries, narrow(retries))
            }
        }
    }

    /// Whether a command was said.
    #[must_use]
    pub fn has_command(&self) -> bool {
        self.command.is_some()
    }

    /// Lays this draft over another: what this one says wins, single variables and labels included.
    #[must_use]
    pub fn over(self, base: Self) -> Self {
        let Self {
            name,
            command,
            env,
            workdir,
            gpu_milli,
            gpu_models,
            vram_mib,
            cpus_milli,
            mem_mib,
            fpgas,
            labels,
            array,
            priority,
            time_limit_ms,
            grace_ms,
            retries,
        } = self;
        Self {
            name: name.or(base.name),
            command: command.or(base.command),
            env: base.env.into_iter().chain(env).collect(),
            workdir: workdir.or(base.workdir),
            gpu_milli: gpu_milli.or(base.gpu_milli),
            gpu_models: gpu_models.or(base.gpu_models),
            vram_mib: vram_mib.or(base.vram_mib),
            cpus_milli: cpus_milli.or(base.cpus_milli),
            mem_mib: mem_mib.or(base.mem_mib),
            fpgas: fpgas.or(base.fpgas),
            labels: base.labels.into_iter().chain(labels).collect(),
            array: array.or(base.array),
            priority: priority.or(base.priority),
            time_limit_ms: time_limit_ms.or(base.time_limit_ms),
            grace_ms: grace_ms.or(base.grace_ms),
            retries: retries.or(base.retries),
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
        let gpu_milli = self.gpu_milli.unwrap_or(0);
        let gpu_models = self.gpu_models.unwrap_or_default();
        for (key, said) in [(Key::Vram, self.vram_mib.is_some()), (Key::GpuModel, !gpu_models.is_empty())] {
            if said && gpu_milli == 0 {
                return Err(PublicError {
                    field: Some(key.name().to_owned()),
                    ..PublicError::invalid("", "is asked of each GPU, but no GPU is asked for", "--gpus 1")
                });
            }
        }
        let devices = self.fpgas.filter(|count| *count > 0);
        let workdir = match self.workdir {
            Some(workdir) => defaults.workdir.join(workdir),
            None => defaults.workdir.clone(),
        };
        let spec = JobSpec {
            name: self.name.unwrap_or_else(|| name_of(&argv)),
            argv,
            env: self.env.into_iter().collect(),
            workdir: workdir.into_os_string().into_vec(),
            ask: Ask {
                gpu_milli,
                gpu_models,
                vram_mib: self.vram_mib.unwrap_or(0),
                cpus_milli: self.cpus_milli.unwrap_or(CPUS_MILLI_DEFAULT),
                mem_mib: self.mem_mib.unwrap_or(0),
                devices: devices.map(|count| ("fpga".to_owned(), count)).into_iter().collect(),
                labels: self.labels,
                ..Ask::default()
            },
            array: self.array,
            priority: self.priority.unwrap_or(PRIORITY_DEFAULT),
            time_limit_ms: self.time_limit_ms,
            grace_ms: self.grace_ms,
            retries: self.retries.unwrap_or(0),
            ..JobSpec::default()
        };
        let bytes = codec::encode(&spec).map_or(usize::MAX, |bytes| bytes.len());
        if bytes > SPEC_BYTES_MAX {
            return Err(too_large("command", format!("the whole job of {bytes} bytes"), SPEC_BYTES_MAX));
        }
        // What apply will check is checked here too, so that a refusal costs no round trip.
        rota_core::spec::validate(&spec)?;
        Ok(spec)
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

    fn set_label(&mut self, value: &Value) -> Result<(), PublicError> {
        let field = Key::Label.name();
        let mut add = |(key, value): (String, String)| match self.labels.insert(key.clone(), value) {
            Some(_) => Err(twice(&format!("{field}.{key}"))),
            None => Ok(()),
        };
        match value {
            Value::Map(pairs) => pairs.iter().try_for_each(|(key, value)| {
                add((word::name(field, key)?, word::name(field, value.text(field)?)?))
            }),
            _ => scalars(value).iter().try_for_each(|pair| add(word::label(field, pair.text(field)?)?)),
        }
    }
}

/// A list's values, or the one value.
pub(super) fn scalars(value: &Value) -> &[Scalar] {
    match value {
        Value::One(scalar) => std::slice::from_ref(scalar),
        Value::List(list) => list,
        Value::Map(_) => &[],
    }
}

fn once<T>(key: Key, slot: &mut Option<T>, value: T) -> Result<(), PublicError> {
    if slot.replace(value).is_some() {
        return Err(twice(key.name()));
    }
    Ok(())
}

fn twice(field: &str) -> PublicError {
    PublicError { field: Some(field.to_owned()), ..PublicError::new(ErrorCode::Invalid, "is given twice") }
}

/// A count that was checked against a limit of 16 bits.
fn narrow(count: u32) -> u16 {
    u16::try_from(count).unwrap_or(u16::MAX)
}
