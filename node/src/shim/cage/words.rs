//! What this host has to bound tasks with, in words: for the log, `rota doctor` and the gauge.

use super::place::Place;
use rota_protocol::cage::{Controller, DeviceRule, Isolation};
use std::fmt;

/// One line: what holds tasks, by which means.
impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let has = |controller| self.bases.contains_key(&controller);
        let effective = self.effective();
        write!(f, "{effective}")?;
        if effective < self.settings.isolation {
            write!(f, " although {} is wanted", self.settings.isolation)?;
        }
        let mut means = Vec::new();
        let limits = [(Controller::Memory, "memory"), (Controller::Pids, "pids"), (Controller::Cpu, "cpu")];
        means.extend(limits.into_iter().filter(|(controller, _)| has(*controller)).map(|(_, name)| name));
        if has(Controller::Unified) {
            means.push(if self.kills_at_once() { "cgroup.kill" } else { "version 2" });
        } else if has(Controller::Freezer) {
            means.push("freezer");
        }
        match self.devices {
            DeviceRule::None => {}
            DeviceRule::Group => means.push("devices group"),
            DeviceRule::Program => means.push("device program"),
            DeviceRule::Folder => means.push("private /dev"),
        }
        if self.namespaces {
            means.push("namespaces");
            means.push("call filter");
        }
        if self.namespaces && self.lies_in_tmp() {
            means.push("the host's /tmp, since the data directory lies below it");
        }
        if !means.is_empty() {
            write!(f, ": {}", means.join(", "))?;
        }
        for note in &self.notes {
            write!(f, "; {note}")?;
        }
        Ok(())
    }
}

impl Place {
    /// What tasks get, whatever was wanted.
    #[must_use]
    pub fn effective(&self) -> Isolation {
        match (self.settings.isolation, self.namespaces, self.bases.is_empty()) {
            (Isolation::None, ..) | (_, false, true) => Isolation::None,
            (asked, true, _) => asked,
            (_, false, false) => Isolation::Basic,
        }
    }

    /// Everything that was wanted is there.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.notes.is_empty()
    }
}
