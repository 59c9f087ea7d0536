//! What a task needs, key by key, and the other needs that would do as well: `or = "gpus=0 cpus=16"` takes over from
//! the main ask whatever it does not name.
//!
//! A word about the card (its model, memory, capability) asks for one card where no number of cards is given.

use super::amount;
use super::amount::quoted;
use super::draft::{once, scalars, twice};
use super::key::{Key, Scalar, Value};
use super::pieces::models;
use super::script::words;
use super::share::{self, Isolate, ShareMode};
use super::word;
use rota_core::fit::{DEVICE_KINDS, device_kind};
use rota_protocol::PublicError;
use rota_protocol::ask::{Ask, CARD_MILLI};
use rota_protocol::limits::HOST_DEVICES_MAX;
use std::collections::BTreeMap;

/// CPU of a task that asks for none: one core, in thousandths.
pub const CPUS_MILLI_DEFAULT: u32 = 1_000;
/// Most devices of one kind of one task; a host has no more.
const DEVICES_MAX: u32 = HOST_DEVICES_MAX as u32;
/// An alternative that is always well formed.
const OR_EXAMPLE: &str = "gpus=0 cpus=16";

/// Needs of which some have been said.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Needs {
    gpu_milli: Option<u32>,
    /// By which key that was said.
    gpus_by: Option<Key>,
    gpu_models: Option<Vec<String>>,
    preferred: Option<Vec<String>>,
    vram_mib: Option<u64>,
    compute_cap: Option<u16>,
    cpus_milli: Option<u32>,
    mem_mib: Option<u64>,
    /// By kind; 0 takes a kind back that a draft below asks for.
    devices: BTreeMap<String, u32>,
    labels: BTreeMap<String, String>,
    share_mode: Option<ShareMode>,
    isolate: Option<Isolate>,
}

impl Needs {
    /// Reads one value; false if the key is none of these.
    pub(super) fn set(&mut self, key: Key, value: &Value) -> Result<bool, PublicError> {
        let field = key.name();
        match key {
            Key::Gpus => {
                let milli = amount::gpu_milli(field, value.amount(key)?)?;
                self.set_gpus(key, milli)
            }
            Key::GpuShare => {
                let milli = amount::share_milli(field, value.amount(key)?)?;
                self.set_gpus(key, milli)
            }
            Key::GpuModel => {
                let mut accepted = models(key, value)?;
                accepted.sort();
                accepted.dedup();
                once(key, &mut self.gpu_models, accepted)
            }
            Key::Prefer => {
                let mut seen = Vec::new();
                for model in models(key, value)? {
                    if !seen.contains(&model) {
                        seen.push(model);
                    }
                }
                once(key, &mut self.preferred, seen)
            }
            Key::Vram => once(key, &mut self.vram_mib, amount::memory_mib(field, value.amount(key)?)?),
            Key::ComputeCap => {
                once(key, &mut self.compute_cap, amount::compute_cap(field, value.amount(key)?)?)
            }
            Key::Cpus => once(key, &mut self.cpus_milli, amount::cpus_milli(field, value.amount(key)?)?),
            Key::Mem => once(key, &mut self.mem_mib, amount::memory_mib(field, value.amount(key)?)?),
            Key::Fpga => {
                let count = amount::count(field, value.amount(key)?, 0, DEVICES_MAX)?;
                self.add_device(field, "fpga".to_owned(), count)
            }
            Key::Device => self.set_devices(value),
            Key::Label => self.set_label(value),
            Key::ShareMode => {
                once(key, &mut self.share_mode, share::mode(field, value.one(key)?.text(field)?)?)
            }
            Key::Isolate => {
                once(key, &mut self.isolate, share::isolate(field, value.one(key)?.text(field)?)?)
            }
            _ => return Ok(false),
        }?;
        Ok(true)
    }

    /// Lays these needs over others.
    pub(super) fn over(self, base: Self) -> Self {
        Self {
            gpu_milli: self.gpu_milli.or(base.gpu_milli),
            gpus_by: self.gpus_by.or(base.gpus_by),
            gpu_models: self.gpu_models.or(base.gpu_models),
            preferred: self.preferred.or(base.preferred),
            vram_mib: self.vram_mib.or(base.vram_mib),
            compute_cap: self.compute_cap.or(base.compute_cap),
            cpus_milli: self.cpus_milli.or(base.cpus_milli),
            mem_mib: self.mem_mib.or(base.mem_mib),
            devices: base.devices.into_iter().chain(self.devices).collect(),
            labels: base.labels.into_iter().chain(self.labels).collect(),
            share_mode: self.share_mode.or(base.share_mode),
            isolate: self.isolate.or(base.isolate),
        }
    }

    /// What these needs are as an alternative to others: without cards, nothing said of cards is taken over.
    pub(super) fn instead_of(self, base: Self) -> Self {
        let base = match self.gpu_milli {
            Some(0) => Self {
                gpu_models: None,
                preferred: None,
                vram_mib: None,
                compute_cap: None,
                share_mode: None,
                isolate: None,
                ..base
            },
            _ => base,
        };
        self.over(base)
    }

    /// The ask, with defaults.
    ///
    /// # Errors
    /// Something is said of cards, and none are asked.
    pub(super) fn build(self) -> Result<Ask, PublicError> {
        let of_cards = [
            (Key::Vram, self.vram_mib.is_some()),
            (Key::GpuModel, self.gpu_models.is_some()),
            (Key::Prefer, self.preferred.is_some()),
            (Key::ComputeCap, self.compute_cap.is_some()),
        ];
        let said = of_cards.iter().find(|(_, said)| *said).map(|(key, _)| *key);
        let gpu_milli = match (self.gpu_milli, said) {
            (Some(0), Some(key)) => {
                let message = "is asked of each GPU, but 0 GPUs are asked for";
                return Err(PublicError::invalid(key.name(), message, "--gpus 1"));
            }
            (Some(milli), _) => milli,
            (None, Some(_)) => CARD_MILLI,
            (None, None) => 0,
        };
        let mut labels = self.labels;
        labels.extend(share::label(gpu_milli, self.share_mode, self.isolate)?);
        Ok(Ask {
            gpu_milli,
            gpu_models: self.gpu_models.unwrap_or_default(),
            gpu_models_preferred: self.preferred.unwrap_or_default(),
            vram_mib: self.vram_mib.unwrap_or(0),
            compute_cap_min: self.compute_cap.unwrap_or(0),
            cpus_milli: self.cpus_milli.unwrap_or(CPUS_MILLI_DEFAULT),
            mem_mib: self.mem_mib.unwrap_or(0),
            devices: self.devices.into_iter().filter(|(_, count)| *count > 0).collect(),
            labels,
        })
    }

    fn set_gpus(&mut self, key: Key, milli: u32) -> Result<(), PublicError> {
        let before = self.gpus_by.replace(key);
        if before == Some(key) {
            return Err(twice(key.name()));
        }
        if self.gpu_milli.replace(milli).is_some() {
            let message = "is given twice: gpus and gpu-share say the same in two ways";
            return Err(PublicError { example: None, ..PublicError::invalid(key.name(), message, "") });
        }
        Ok(())
    }

    fn set_devices(&mut self, value: &Value) -> Result<(), PublicError> {
        let field = Key::Device.name();
        if let Value::Map(pairs) = value {
            return pairs.iter().try_for_each(|(kind, count)| {
                let count = Value::One(count.clone());
                self.add_device(field, kind_name(kind)?, device_count(count.amount(Key::Device)?)?)
            });
        }
        for scalar in scalars(value) {
            for text in scalar.text(field)?.split(',') {
                let (kind, count) = match text.split_once('=') {
                    Some((kind, count)) => (kind, device_count(count)?),
                    None => (text, 1),
                };
                self.add_device(field, kind_name(kind)?, count)?;
            }
        }
        Ok(())
    }

    fn add_device(&mut self, field: &str, kind: String, count: u32) -> Result<(), PublicError> {
        match self.devices.insert(kind, count) {
            Some(_) => Err(twice(field)),
            None => Ok(()),
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

/// Alternatives as a text `gpus=0 cpus=16`, a list of such texts, or one table.
///
/// # Errors
/// A word without `=`, a key that is no need, or a value that its key refuses.
pub(super) fn alternatives(value: &Value) -> Result<Vec<Needs>, PublicError> {
    if let Value::Map(pairs) = value {
        return Ok(vec![alternative(pairs.iter().map(|(key, value)| (key.as_str(), value.clone())))?]);
    }
    let field = Key::Or.name();
    let mut all = Vec::new();
    for scalar in scalars(value) {
        let text = scalar.text(field)?;
        let mut pairs = Vec::new();
        for word in &words(text).map_err(within)? {
            let Some((key, value)) = word.split_once('=') else {
                let message = format!("{} has no =", quoted(word));
                return Err(PublicError::invalid(field, message, OR_EXAMPLE));
            };
            pairs.push((key.to_owned(), Scalar::Text(value.into())));
        }
        all.push(alternative(pairs.iter().map(|(key, value)| (key.as_str(), value.clone())))?);
    }
    Ok(all)
}

fn alternative<'a>(pairs: impl Iterator<Item = (&'a str, Scalar)>) -> Result<Needs, PublicError> {
    let mut needs = Needs::default();
    let mut said = false;
    for (name, value) in pairs {
        let key = Key::parse(name).map_err(within)?;
        if !needs.set(key, &Value::One(value)).map_err(within)? {
            let message = format!("{name} is no need of a task, and the same whichever ask is met");
            return Err(PublicError::invalid(Key::Or.name(), message, OR_EXAMPLE));
        }
        said = true;
    }
    if !said {
        return Err(PublicError::invalid(Key::Or.name(), "names nothing", OR_EXAMPLE));
    }
    Ok(needs)
}

/// A fault inside an alternative, as a fault of it.
fn within(error: PublicError) -> PublicError {
    let field = error.field.as_deref().unwrap_or_default();
    PublicError::invalid(Key::Or.name(), format!("{field}: {}", error.message), OR_EXAMPLE)
}

fn kind_name(text: &str) -> Result<String, PublicError> {
    let field = Key::Device.name();
    let name =
        word::name(field, text).map_err(|error| PublicError { example: Some("fpga=1".into()), ..error })?;
    let (kind, model) = match name.split_once(':') {
        Some((kind, model)) => (kind.to_ascii_lowercase(), Some(model)),
        None => (name.to_ascii_lowercase(), None),
    };
    if kind == "gpu" || kind == "gpus" {
        return Err(PublicError::invalid(field, "GPUs have a field of their own, gpus", "fpga=1"));
    }
    if device_kind(&kind).is_none() {
        let known = DEVICE_KINDS.iter().map(|(name, _)| *name);
        return Err(PublicError {
            example: Some("fpga=1".into()),
            ..word::unknown(field, "kind of device", &kind, known)
        });
    }
    match model {
        None => Ok(kind),
        Some(model) if model.trim().is_empty() => {
            let message = format!("{} names no model after the colon", quoted(text));
            Err(PublicError::invalid(field, message, "mig:1g.10gb=2"))
        }
        Some(model) => Ok(format!("{kind}:{model}")),
    }
}

fn device_count(text: &str) -> Result<u32, PublicError> {
    amount::count(Key::Device.name(), text, 0, DEVICES_MAX)
        .map_err(|error| PublicError { example: Some("fpga=1".into()), ..error })
}
