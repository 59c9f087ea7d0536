//! Which of the devices that are there this agent may offer (R015): an operator may list them, and an agent that was itself
//! given only some of the cards offers no others. The rest is set aside, with the reason.

use super::clean;
use rota_protocol::device::{DeviceFacts, DeviceHealth, DeviceKind};
use rota_protocol::ids::DeviceUuid;
use std::collections::BTreeMap;

/// Variables by which a process is given cards, in the vendor's own forms.
const VISIBLE: [&str; 2] = ["CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"];
/// Most entries of a list that are read.
const ENTRIES_MAX: usize = 1_024;

/// One list of devices that may be offered; nothing outside it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limit {
    /// Who says so, for people.
    pub source: String,
    /// UUIDs, or places in the driver's list.
    pub entries: Vec<String>,
    /// It is about cards and slices alone.
    pub only_gpus: bool,
}

impl Limit {
    /// The operator's list, if there is one.
    #[must_use]
    pub fn configured(allow: Option<&[String]>) -> Option<Self> {
        let entries = allow?.iter().take(ENTRIES_MAX).cloned().collect();
        Some(Self { source: "devices.allow".to_owned(), entries, only_gpus: false })
    }

    /// The lists of this process's own environment.
    #[must_use]
    pub fn of_environment() -> Vec<Self> {
        let told = |name: &str| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
        VISIBLE.iter().filter_map(|name| Self::visible(name, &told(name)?)).collect()
    }

    /// A list in the vendor's form: places or UUIDs between commas; empty is none, `all` is no limit.
    #[must_use]
    pub fn visible(name: &str, value: &str) -> Option<Self> {
        let value = value.trim();
        if value.eq_ignore_ascii_case("all") {
            return None;
        }
        let none = ["none", "void"].iter().any(|word| value.eq_ignore_ascii_case(word));
        let entries = value.split(',').map(str::trim).filter(|entry| !entry.is_empty() && !none);
        let entries = entries.take(ENTRIES_MAX).map(str::to_owned).collect();
        Some(Self { source: name.to_owned(), entries, only_gpus: true })
    }

    fn concerns(&self, device: &DeviceFacts) -> bool {
        !self.only_gpus || matches!(device.kind, DeviceKind::Gpu | DeviceKind::Mig)
    }

    fn names(&self, device: &DeviceFacts) -> bool {
        self.entries.iter().any(|entry| is_meant(entry, device))
    }
}

/// An entry that is a number is a place in the driver's list; anything else a UUID, whole or its beginning.
fn is_meant(entry: &str, device: &DeviceFacts) -> bool {
    match entry.parse::<u32>() {
        Ok(place) => device.index == Some(place),
        Err(_) => device.uuid.0 == entry || entry.len() > UUID_PREFIX && device.uuid.0.starts_with(entry),
    }
}

/// `GPU-` alone would mean every card.
const UUID_PREFIX: usize = "GPU-0000".len();

/// Moves what no list names from `offered` to `aside`. Gives a complaint for each entry that names nothing. A slice is
/// named by its card as well.
pub fn apply(
    limits: &[Limit],
    offered: &mut BTreeMap<DeviceUuid, DeviceFacts>,
    aside: &mut BTreeMap<DeviceUuid, DeviceFacts>,
) -> Vec<String> {
    let mut complaints = Vec::new();
    for limit in limits {
        for entry in &limit.entries {
            if !offered.values().chain(aside.values()).any(|device| is_meant(entry, device)) {
                let shown = clean::text(entry).unwrap_or_default();
                complaints
                    .push(format!("{} names {shown}, which is not here; it is passed over", limit.source));
            }
        }
        let parents: Vec<DeviceUuid> = offered
            .values()
            .chain(aside.values())
            .filter(|d| limit.names(d))
            .map(|d| d.uuid.clone())
            .collect();
        let by_parent = |d: &DeviceFacts| d.detail.parent.as_ref().is_some_and(|p| parents.contains(p));
        let denied = |d: &DeviceFacts| limit.concerns(d) && !limit.names(d) && !by_parent(d);
        let gone: Vec<DeviceUuid> = offered.values().filter(|d| denied(d)).map(|d| d.uuid.clone()).collect();
        for uuid in gone {
            if let Some(mut device) = offered.remove(&uuid) {
                let reason = format!("not managed: {} does not name it", limit.source);
                device.health = DeviceHealth::Unknown { reason };
                aside.insert(uuid, device);
            }
        }
    }
    complaints
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devices::sim::SimProvider;
    use crate::devices::{DeviceProvider, Known};

    fn devices() -> BTreeMap<DeviceUuid, DeviceFacts> {
        let mut known = Known::default();
        let found = SimProvider::new("4xH100,1xfpga", "h")
            .map(|mut sim| sim.discover().expect("simulated devices always answer"));
        known.merge(Ok(found.expect("fair")));
        known.devices().map(|d| (d.uuid.clone(), d)).collect()
    }

    fn offered(limits: &[Limit]) -> (Vec<u32>, usize, Vec<String>) {
        let (mut offered, mut aside) = (devices(), BTreeMap::new());
        let complaints = apply(limits, &mut offered, &mut aside);
        assert_eq!(offered.len() + aside.len(), 5, "nothing is lost");
        assert!(aside.values().all(|d| d.health.reason().is_some_and(|r| r.starts_with("not managed"))));
        let gpus = offered.values().filter(|d| d.kind == DeviceKind::Gpu).filter_map(|d| d.index).collect();
        (gpus, offered.values().filter(|d| d.kind == DeviceKind::Fpga).count(), complaints)
    }

    #[test]
    fn each_form_of_a_list_limits_to_exactly_what_it_names() {
        let cuda =
            |value: &str| Limit::visible("CUDA_VISIBLE_DEVICES", value).into_iter().collect::<Vec<_>>();
        let uuid = |place: u32| {
            devices()
                .into_values()
                .find(|d| d.kind == DeviceKind::Gpu && d.index == Some(place))
                .expect("there")
                .uuid
                .0
        };
        assert_eq!(offered(&[]).0, [0, 1, 2, 3]);
        assert_eq!(offered(&cuda("1,3")).0, [1, 3]);
        assert_eq!(offered(&cuda(&format!("{}, {}", uuid(2), uuid(0)))).0, [0, 2]);
        assert_eq!(offered(&cuda("")), (vec![], 1, vec![]), "empty is none, and is about cards alone");
        assert_eq!((cuda("all"), offered(&cuda("none")).0), (vec![], vec![]));
        let (gpus, _, complaints) = offered(&cuda("GPU-does-not-exist,1"));
        assert_eq!((gpus, complaints.len()), (vec![1], 1));
        assert!(complaints[0].contains("GPU-does-not-exist"), "{complaints:?}");
        let allow = Limit::configured(Some(&[uuid(0), uuid(2)])).expect("given");
        assert_eq!(
            offered(std::slice::from_ref(&allow)),
            (vec![0, 2], 0, vec![]),
            "the operator's list is about all"
        );
        let both = [vec![allow], cuda("2,3")].concat();
        assert_eq!(offered(&both).0, [2], "only what all lists name");
        assert_eq!(Limit::configured(None), None);
    }
}
