//! NVIDIA cards and MIG slices through `libnvidia-ml`, loaded at run time: a host without the library simply has no
//! such devices. Each symbol is resolved when it is called, so that an old driver lacks a feature, not its cards.
//! Any call but the UUID's may fail. Every call may hang: see [`super::probe`].
//!
//! `library`: where it is and whether it starts; `card`: facts and values; `signs`: wellbeing; `events`: Xids.

mod card;
mod events;
mod library;
mod signs;

pub use library::{LIBRARY_DEFAULT, LIBRARY_ENV, LibraryFacts, inspect, library_path, module_version};

use super::signs::Signs;
use super::{DeviceError, DeviceProvider, Found, Progress};
use events::{Heard, Listener};
use library::{failed, retire, start};
use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;
use rota_protocol::device::DeviceReading;
use rota_protocol::ids::DeviceUuid;
use rota_protocol::limits::HOST_DEVICES_MAX;
use std::ffi::OsString;
use std::mem;
use std::sync::Arc;

/// After this many looks the library is started anew even if all is well: a driver shows cards that were added
/// later only to a new start.
const RESTART_LOOKS: u32 = 6;

/// Cards of one NVML library.
pub struct NvmlProvider {
    library: OsString,
    open: Option<Open>,
    looks: u32,
    well: bool,
    progress: Arc<Progress>,
}

/// The started library, and who listens to its events.
struct Open {
    nvml: Arc<Nvml>,
    listener: Option<Listener>,
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
    /// Does not touch the library yet.
    #[must_use]
    pub fn new(library: OsString) -> Self {
        Self { library, open: None, looks: 0, well: false, progress: Arc::default() }
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
        let open = match self.open.take() {
            Some(open) => open,
            None => match start(&self.library)? {
                Some(nvml) => {
                    let nvml = Arc::new(nvml);
                    let listener = Listener::begin(&nvml, names(&nvml, &self.progress));
                    Open { nvml, listener }
                }
                None => {
                    let note = format!("nvml: no library {}", self.library.to_string_lossy());
                    return Ok(Found { notes: vec![note], ..Found::default() });
                }
            },
        };
        let found = cards(&open.nvml, &self.progress, &mut xids);
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
        if progress.skips(&uuid) {
            continue;
        }
        progress.asking(&uuid);
        match card::slices(&device, &mut card::Asked::default()) {
            Some(slices) => all.extend(slices.iter().filter_map(card::reading)),
            None => all.extend(card::reading(&device)),
        }
        progress.answered(&Found::default());
    }
    all
}

fn cards(nvml: &Nvml, progress: &Progress, xids: &mut Heard) -> Result<Found, DeviceError> {
    let count = places(nvml).map_err(|error| failed("nvmlDeviceGetCount", &error))?;
    let mut found = Found::default();
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
            Ok(uuid) => {
                progress.asking(&uuid);
                let mut part = card::card(&device, &uuid, index);
                if let (Some(signs), Some(heard)) = (part.signs.get_mut(&uuid), xids.remove(&uuid)) {
                    signs.xids = heard;
                }
                progress.answered(&part);
                found.add(part);
            }
        }
    }
    add_unheard(&mut found.signs, xids);
    found.devices.sort_by(|a, b| a.uuid.cmp(&b.uuid));
    Ok(found)
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
            let found = NvmlProvider::new(absent.into()).discover().expect("not an error");
            assert!(found.devices.is_empty());
            assert!(found.notes[0].contains(absent), "{:?}", found.notes);
            assert_eq!(inspect(absent.as_ref()), Ok(None));
        }
    }

    #[test]
    fn a_file_that_is_no_library_is_an_error_and_not_an_empty_host() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("libnvidia-ml.so.1");
        fs::write(&path, "not an object file").expect("writable");
        let error = NvmlProvider::new(path.clone().into()).discover().expect_err("broken driver");
        assert!(error.to_string().contains(&path.display().to_string()), "{error}");
    }
}
