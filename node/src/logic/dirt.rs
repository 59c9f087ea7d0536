//! Why devices of this host must not be granted although the hardware is well: processes on them that cannot be killed
//! (fault T2), and epilogs that did not do their work. What the inventory says of the devices is painted over with it.
//!
//! Dirt of processes goes with the last of them, by itself. Dirt of an epilog stays until an operator lets the host take
//! work again (`rota undrain`), or the agent starts anew: nobody else knows whether the device was cleaned.

use rota_protocol::device::{DeviceFacts, DeviceHealth};
use rota_protocol::limits::REASON_BYTES_MAX;
use rota_protocol::{DeviceUuid, Token};
use std::collections::BTreeMap;

/// Most epilogs whose failures are remembered: each can name every device of the host.
const EPILOGS_MAX: usize = 256;

/// Devices that are dirty, by whom.
#[derive(Debug, Clone, Default)]
pub struct Dirt {
    stuck: BTreeMap<Token, (Vec<DeviceUuid>, String)>,
    epilogs: BTreeMap<Token, (Vec<DeviceUuid>, String)>,
}

impl Dirt {
    /// Processes of an attempt are left although they were killed. True if that is news.
    pub fn stuck(&mut self, token: Token, devices: Vec<DeviceUuid>, left: u32) -> bool {
        let reason = format!("{left} processes of attempt {token} cannot be ended");
        self.stuck.insert(token, (devices, reason)).is_none()
    }

    /// Every process of an attempt is gone. True if that is news.
    pub fn gone(&mut self, token: Token) -> bool {
        self.stuck.remove(&token).is_some()
    }

    /// The host's epilog failed after an attempt. True if that is news.
    pub fn epilog_failed(&mut self, token: Token, devices: Vec<DeviceUuid>, reason: &str) -> bool {
        if devices.is_empty() || self.epilogs.len() >= EPILOGS_MAX {
            return false;
        }
        self.epilogs.insert(token, (devices, format!("attempt {token}: {reason}"))).is_none()
    }

    /// An operator says that the host is well. True if anything was remembered.
    pub fn cleared(&mut self) -> bool {
        !std::mem::take(&mut self.epilogs).is_empty()
    }

    /// How many devices are kept out.
    #[must_use]
    pub fn count(&self) -> usize {
        let all = self.stuck.values().chain(self.epilogs.values()).flat_map(|(devices, _)| devices);
        all.collect::<std::collections::BTreeSet<_>>().len()
    }

    /// Devices as they may be offered. What is broken anyway keeps its own reason.
    pub fn paint(&self, devices: &mut [DeviceFacts]) {
        for (held, reason) in self.stuck.values().chain(self.epilogs.values()) {
            for device in devices.iter_mut().filter(|d| d.health.is_healthy() && held.contains(&d.uuid)) {
                let mut reason = reason.clone();
                let mut end = reason.len().min(REASON_BYTES_MAX);
                while !reason.is_char_boundary(end) {
                    end -= 1;
                }
                reason.truncate(end);
                device.health = DeviceHealth::Dirty { reason };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rota_protocol::device::DeviceKind;

    fn cards(names: &[&str]) -> Vec<DeviceFacts> {
        let card = |name: &&str| DeviceFacts {
            uuid: DeviceUuid((*name).to_owned()),
            kind: DeviceKind::Gpu,
            model: "H100".into(),
            vram_mib: None,
            bus: None,
            index: None,
            numa: None,
            compute_cap: None,
            island: None,
            detail: rota_protocol::device::DeviceDetail::default(),
            health: DeviceHealth::Healthy,
        };
        names.iter().map(card).collect()
    }

    fn healthy(dirt: &Dirt) -> Vec<bool> {
        let mut devices = cards(&["a", "b", "c"]);
        dirt.paint(&mut devices);
        devices.iter().map(|device| device.health.is_healthy()).collect()
    }

    fn uuids(names: &[&str]) -> Vec<DeviceUuid> {
        names.iter().map(|name| DeviceUuid((*name).to_owned())).collect()
    }

    #[test]
    fn only_the_devices_under_what_cannot_be_killed_are_kept_out_and_they_come_back_by_themselves() {
        let mut dirt = Dirt::default();
        assert!(dirt.stuck(Token(1), uuids(&["a"]), 2));
        assert!(!dirt.stuck(Token(1), uuids(&["a"]), 1), "told once");
        assert_eq!(healthy(&dirt), [false, true, true]);
        assert!(dirt.stuck(Token(2), uuids(&["a", "b"]), 1));
        assert_eq!((healthy(&dirt), dirt.count()), (vec![false, false, true], 2));
        assert!(dirt.gone(Token(2)));
        assert_eq!(healthy(&dirt), [false, true, true]);
        assert!(dirt.gone(Token(1)) && !dirt.gone(Token(1)));
        assert_eq!(healthy(&dirt), [true; 3]);
    }

    #[test]
    fn what_an_epilog_left_stays_until_somebody_says_it_is_well() {
        let mut dirt = Dirt::default();
        assert!(dirt.epilog_failed(Token(1), uuids(&["b"]), "epilog: exit 3"));
        assert!(!dirt.gone(Token(1)));
        let mut devices = cards(&["b"]);
        dirt.paint(&mut devices);
        let reason = devices[0].health.reason().unwrap_or_default().to_owned();
        assert!(reason.contains("attempt 1: epilog: exit 3"), "{reason}");
        assert!(dirt.cleared() && !dirt.cleared());
        assert_eq!(healthy(&dirt), [true; 3]);
        assert!(!dirt.epilog_failed(Token(2), Vec::new(), "x"), "no device, nothing to keep out");
    }

    #[test]
    fn a_broken_card_keeps_its_own_reason() {
        let mut dirt = Dirt::default();
        dirt.stuck(Token(1), uuids(&["a"]), 1);
        let mut devices = cards(&["a"]);
        devices[0].health = DeviceHealth::Lost { reason: "Xid 79".into() };
        dirt.paint(&mut devices);
        assert_eq!(devices[0].health.reason(), Some("Xid 79"));
    }
}
