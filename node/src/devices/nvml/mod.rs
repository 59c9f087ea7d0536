//! NVIDIA cards and MIG slices through `libnvidia-ml`, loaded at run time: a host without the library simply has no
//! such devices. Each symbol is resolved when it is called, so that an old driver lacks a feature, not its cards.
//! Any call but the UUID's may fail. Every call may hang: see [`super::probe`].
//!
//! `library`: where it is and whether it starts; `card`: facts and values; `mig`: slices; `links`: which cards are
//! joined; `signs`: wellbeing; `events`: Xids.

mod card;
mod events;
mod library;
mod links;
mod mig;
mod signs;

pub use library::{
    LIBRARY_DEFAULT, LIBRARY_ENV, LibraryFacts, inspect, library_path, library_version, module_version,
};

use super::signs::Signs;
use super::{DeviceError, DeviceProvider, Found, Progress};
use events::{Heard, Listener};
use library::{failed, retire, start};
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};
use rota_protocol::device::{DeviceFacts, DeviceKind, DeviceReading};
use rota_protocol::ids::DeviceUuid;
use rota_protocol::limits::HOST_DEVICES_MAX;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::mem;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// After this many looks the library is started anew even if all is well: a driver shows cards that were added
/// later only to a new start.
const RESTART_LOOKS: u32 = 6;

/// Cards of one NVML library.
pub struct NvmlProvider {
    library: OsString,
    root: PathBuf,
    open: Option<Open>,
    looks: u32,
    well: bool,
    progress: Arc<Progress>,
}

/// The started library, and who listens to its events.
struct Open {
    nvml: Arc<Nvml>,
    listener: Option<Listener>,
    /// Islands by card, of the cards that they were asked of.
    islands: Option<(Vec<DeviceUuid>, BTreeMap<DeviceUuid, u32>)>,
}

impl Open {
    /// Xids that were heard since the last time.
    fn xids(&self) -> Heard {
        self.listener.as_ref().map(Listener::take).unwrap_or_default()
    }

    /// Lets the library go; gives what was heard until now.
    fn close(self) -> Heard {
        let (heard, ended) = self.listener.map_or_else(|| (Heard::new(), true), Listener::end);
        match Arc::try_unwrap(self.nvml) {
            Ok(nvml) if ended => retire(nvml),
            // A listener hangs in it.
            Ok(nvml) => mem::forget(nvml),
            Err(shared) => drop(shared),
        }
        heard
    }
}

impl NvmlProvider {
    /// Cards of this library, with the kernel's word on them below `root`. Does not touch the library yet.
    #[must_use]
    pub fn new(library: OsString, root: PathBuf) -> Self {
        Self { library, root, open: None, looks: 0, well: false, progress: Arc::default() }
    }
}

impl Drop for NvmlProvider {
    fn drop(&mut self) {
        if let Some(open) = self.open.take() {
            open.close();
        }
    }
}

impl DeviceProvider for NvmlProvider {
    fn name(&self) -> &str {
        "nvml"
    }

    fn discover(&mut self) -> Result<Found, DeviceError> {
        self.looks += 1;
        // After trouble the driver shows a card's return, or a first card, to a new start alone.
        let mut xids = if self.well && self.looks <= RESTART_LOOKS {
            self.open.as_ref().map(Open::xids).unwrap_or_default()
        } else {
            self.looks = 0;
            self.open.take().map(Open::close).unwrap_or_default()
        };
        self.well = false;
        let mut open = match self.open.take() {
            Some(open) => open,
            None => match start(&self.library, &self.root)? {
                Some(nvml) => {
                    let nvml = Arc::new(nvml);
                    let listener = Listener::begin(&nvml, names(&nvml, &self.progress));
                    Open { nvml, listener, islands: None }
                }
                None => {
                    // No doubt where no card is known; where one is, nobody can tell what became of it.
                    let doubt = Some(format!("no library {}", self.library.to_string_lossy()));
                    return Ok(Found { doubt, ..Found::default() });
                }
            },
        };
        let mut found = cards(&open.nvml, &Asks { progress: &self.progress, root: &self.root }, &mut xids);
        if let Ok(found) = &mut found {
            add_islands(&mut open, &self.progress, found);
        }
        // Kept open also after trouble, until the next look: somebody must listen to the events.
        self.open = Some(open);
        let found = found?;
        self.well = found.doubt.is_none()
            && found.notes.is_empty()
            && !found.devices.is_empty()
            && found.devices.iter().all(|d| d.health.is_healthy());
        Ok(found)
    }

    fn read(&mut self) -> Vec<DeviceReading> {
        // A failure to start shows in the next look; readings only inform.
        self.open.as_ref().map(|open| readings(&open.nvml, &self.progress)).unwrap_or_default()
    }

    fn attend(&mut self, progress: Arc<Progress>) {
        self.progress = progress;
    }
}

/// Places of the driver's list that are looked at: a count that no host reaches is not believed.
fn places(nvml: &Nvml) -> Result<u32, NvmlError> {
    Ok(nvml.device_count()?.min(HOST_DEVICES_MAX as u32))
}

fn names(nvml: &Nvml, progress: &Progress) -> Vec<DeviceUuid> {
    let devices = (0..places(nvml).unwrap_or(0)).filter_map(|index| nvml.device_by_index(index).ok());
    devices.filter_map(|device| card::name_of(&device).ok()).filter(|uuid| !progress.skips(uuid)).collect()
}

fn readings(nvml: &Nvml, progress: &Progress) -> Vec<DeviceReading> {
    let mut all = Vec::new();
    for device in (0..places(nvml).unwrap_or(0)).filter_map(|index| nvml.device_by_index(index).ok()) {
        let Ok(uuid) = card::name_of(&device) else { continue };
        // Values only inform: a device that hung is asked for them again when it has told its facts.
        if progress.skips(&uuid) || progress.is_last(&uuid) {
            continue;
        }
        progress.asking(&uuid);
        match mig::slices(&device, &mut card::Asked::default()) {
            Some(slices) => all.extend(slices.iter().filter_map(card::reading)),
            None => all.extend(card::reading(&device)),
        }
        progress.answered(&Found::default());
    }
    all
}

/// What goes along with each question of a look.
struct Asks<'a> {
    progress: &'a Progress,
    root: &'a Path,
}

fn cards(nvml: &Nvml, asks: &Asks<'_>, xids: &mut Heard) -> Result<Found, DeviceError> {
    let progress = asks.progress;
    let count = places(nvml).map_err(|error| failed("nvmlDeviceGetCount", &error))?;
    let mut found = Found::default();
    let mut last = Vec::new();
    for index in 0..count {
        let device = match nvml.device_by_index(index) {
            Ok(device) => device,
            // A card that fell off the bus has no UUID to ask; the inventory misses it by name.
            Err(error) => {
                let note = format!("nvml: card {index} does not open: {error}");
                if !matches!(error, NvmlError::GpuLost | NvmlError::InvalidArg) {
                    found.doubt = Some(note.clone());
                }
                found.notes.push(note);
                continue;
            }
        };
        match card::name_of(&device) {
            Err(error) => {
                let note = format!("nvml: card {index} {error}");
                found.notes.push(note);
            }
            Ok(uuid) if progress.skips(&uuid) => {
                found.doubt = Some(format!("an earlier call about {uuid} has not returned"));
            }
            Ok(uuid) if progress.is_last(&uuid) => last.push((device, uuid, index)),
            Ok(uuid) => add_card(&device, &uuid, index, asks, xids, &mut found),
        }
    }
    for (device, uuid, index) in last {
        add_card(&device, &uuid, index, asks, xids, &mut found);
    }
    add_unheard(&mut found.signs, xids);
    found.devices.sort_by(|a, b| a.uuid.cmp(&b.uuid));
    Ok(found)
}

/// Links last as long as the cards do: they are asked again when other cards answer, or the library was started anew.
fn add_islands(open: &mut Open, progress: &Progress, found: &mut Found) {
    let whole = |d: &&mut DeviceFacts| d.kind == DeviceKind::Gpu && d.health.is_healthy();
    let names: Vec<DeviceUuid> = found.devices.iter_mut().filter(whole).map(|d| d.uuid.clone()).collect();
    let islands = match open.islands.take() {
        Some((of, islands)) if of == names => islands,
        _ => {
            let by_name =
                |uuid: &DeviceUuid| Some((open.nvml.device_by_uuid(uuid.0.as_str()).ok()?, uuid.clone()));
            let cards: Vec<(Device<'_>, DeviceUuid)> = names.iter().filter_map(by_name).collect();
            links::islands(&cards, progress)
        }
    };
    for device in &mut found.devices {
        device.island = islands.get(&device.uuid).copied();
    }
    open.islands = Some((names, islands));
}

fn add_card(
    device: &Device<'_>,
    uuid: &DeviceUuid,
    index: u32,
    asks: &Asks<'_>,
    xids: &mut Heard,
    found: &mut Found,
) {
    let progress = asks.progress;
    progress.asking(uuid);
    let mut part = card::card(device, uuid, index, asks.root);
    if let (Some(signs), Some(heard)) = (part.signs.get_mut(uuid), xids.remove(uuid)) {
        signs.xids = heard;
    }
    progress.answered(&part);
    found.add(part);
}

/// A card may say by an event that it fails, and then answer no more.
fn add_unheard(signs: &mut Signs, xids: &mut Heard) {
    for (uuid, heard) in mem::take(xids) {
        signs.entry(uuid).or_default().xids = heard;
    }
}

#[cfg(test)]
mod tests {
    //! The real wrapper against a scripted library is tested in `chaos-tests/tests/nvml.rs`.
    use super::*;
    use std::fs;

    #[test]
    fn a_host_without_the_library_has_no_devices_and_says_so() {
        for absent in ["libnvidia-ml-not-here.so.1", "/nonexistent/libnvidia-ml.so.1"] {
            let found = NvmlProvider::new(absent.into(), "/".into()).discover().expect("not an error");
            assert!(found.devices.is_empty() && found.notes.is_empty());
            assert!(found.doubt.is_some_and(|doubt| doubt.contains(absent)));
            assert_eq!(inspect(absent.as_ref(), Path::new("/")), Ok(None));
        }
    }

    #[test]
    fn a_file_that_is_no_library_is_an_error_and_not_an_empty_host() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("libnvidia-ml.so.1");
        fs::write(&path, "not an object file").expect("writable");
        let error = NvmlProvider::new(path.clone().into(), "/".into()).discover().expect_err("broken driver");
        assert!(error.to_string().contains(&path.display().to_string()), "{error}");
    }
}
