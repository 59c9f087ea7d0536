//! What `rota doctor` says of isolation where no agent runs: what there is, without making or trying anything.

use super::hierarchy;
use super::place::Place;
use super::settings::{CageSettings, Means};
use rota_protocol::cage::{Controller, DeviceRule, Isolation};
use std::path::Path;

impl Place {
    /// What an agent of this user and with these settings would most likely use.
    #[must_use]
    pub fn survey(settings: &CageSettings) -> Self {
        let mut place = Self::bare(settings.clone(), Path::new("/"));
        if settings.isolation == Isolation::None {
            return place;
        }
        let is_root = rustix::process::geteuid().is_root();
        place.namespaces = settings.isolation == Isolation::Full && is_root && place.may(Means::Namespaces);
        for (controller, folder) in hierarchy::best_first(hierarchy::own().unwrap_or_default()) {
            let wanted = place.may(Means::Groups) && !place.leaves_out(controller);
            let writable = rustix::fs::access(&folder, rustix::fs::Access::WRITE_OK).is_ok();
            match (wanted, writable) {
                (true, true) => {
                    place.bases.insert(controller, folder);
                }
                (true, false) => place.notes.push(format!("{} cannot be written", folder.display())),
                (false, _) => {}
            }
        }
        place.devices = if place.bases.contains_key(&Controller::Devices) {
            DeviceRule::Group
        } else if place.bases.contains_key(&Controller::Unified) && is_root {
            DeviceRule::Program
        } else if place.namespaces {
            DeviceRule::Folder
        } else {
            DeviceRule::None
        };
        if !is_root {
            place.notes.push("the agent is not root".to_owned());
        }
        place
    }
}
