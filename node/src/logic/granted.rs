//! The granted devices by what reads their names: NVIDIA's runtime, AMD's, or only the program. Each finds its own in the
//! variables that it reads, and nothing else.

use rota_protocol::DeviceUuid;
use rota_protocol::device::{DeviceFacts, DeviceKind};

/// The device file that AMD's cards have in common, and no others have.
const KFD: &str = "/dev/kfd";

/// Devices of one attempt.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Granted {
    /// NVIDIA's cards and slices.
    nvidia: Vec<String>,
    /// AMD's cards.
    amd: Vec<String>,
    /// FPGAs, and what an operator described.
    other: Vec<String>,
    /// The host has cards of AMD's, granted or not.
    amd_host: bool,
}

impl Granted {
    /// No device, on a host without AMD's cards.
    pub const NONE: &'static Self =
        &Self { nvidia: Vec::new(), amd: Vec::new(), other: Vec::new(), amd_host: false };

    /// What was granted, in the order of the grant. `facts` is what the host has.
    #[must_use]
    pub fn of(granted: &[DeviceUuid], facts: &[DeviceFacts]) -> Self {
        let is_amd = |facts: &DeviceFacts| facts.detail.nodes.iter().any(|node| node == KFD);
        let mut all = Self { amd_host: facts.iter().any(is_amd), ..Self::default() };
        for uuid in granted {
            let facts = facts.iter().find(|facts| facts.uuid == *uuid);
            // One that has gone since: by the form of its name.
            let named = uuid.0.starts_with("GPU-") || uuid.0.starts_with("MIG-");
            let is_card = facts.map_or(named, |one| matches!(one.kind, DeviceKind::Gpu | DeviceKind::Mig));
            let list = match (is_card, facts.is_some_and(is_amd)) {
                (true, true) => &mut all.amd,
                (true, false) => &mut all.nvidia,
                (false, _) => &mut all.other,
            };
            list.push(uuid.0.clone());
        }
        all
    }

    /// Cards and slices.
    pub(super) fn gpus(&self) -> usize {
        self.nvidia.len() + self.amd.len()
    }

    /// The variables. NVIDIA's are always set: no ask means no card, not all of them; AMD's where the host has such
    /// cards. HIP counts among what ROCR lets it see.
    pub(super) fn env(&self) -> Vec<(&'static str, String)> {
        let nvidia = self.nvidia.join(",");
        let void = if nvidia.is_empty() { "void".to_owned() } else { nvidia.clone() };
        let mut env = vec![
            ("CUDA_VISIBLE_DEVICES", nvidia),
            ("CUDA_DEVICE_ORDER", "PCI_BUS_ID".to_owned()),
            ("NVIDIA_VISIBLE_DEVICES", void),
            ("ROTA_GPUS", self.gpus().to_string()),
            ("ROTA_OTHER_DEVICES", self.other.join(",")),
        ];
        if self.amd_host {
            let numbers: Vec<String> = (0..self.amd.len()).map(|number| number.to_string()).collect();
            env.extend([
                ("ROCR_VISIBLE_DEVICES", self.amd.join(",")),
                ("HIP_VISIBLE_DEVICES", numbers.join(",")),
            ]);
        }
        env
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rota_protocol::device::{DeviceDetail, DeviceHealth};

    fn facts(uuid: &str, kind: DeviceKind, nodes: &[&str]) -> DeviceFacts {
        let nodes = nodes.iter().map(|node| (*node).to_owned()).collect();
        DeviceFacts {
            uuid: DeviceUuid(uuid.into()),
            kind,
            model: "m".into(),
            vram_mib: None,
            bus: None,
            index: None,
            numa: None,
            compute_cap: None,
            island: None,
            health: DeviceHealth::Healthy,
            detail: DeviceDetail { nodes, ..DeviceDetail::default() },
        }
    }

    fn env(granted: &[&str], facts: &[DeviceFacts]) -> Vec<(&'static str, String)> {
        let granted: Vec<DeviceUuid> = granted.iter().map(|uuid| DeviceUuid((*uuid).into())).collect();
        let mut env = Granted::of(&granted, facts).env();
        env.retain(|(name, _)| *name != "CUDA_DEVICE_ORDER");
        env
    }

    #[test]
    fn each_runtime_sees_its_own_devices_and_no_others() {
        let host = [
            facts("GPU-a", DeviceKind::Gpu, &[]),
            facts("MIG-b", DeviceKind::Mig, &[]),
            facts("FPGA-c", DeviceKind::Fpga, &[]),
            facts("TPU-d", DeviceKind::Other, &["/dev/accel0"]),
        ];
        let all = env(&["GPU-a", "FPGA-c", "MIG-b", "TPU-d"], &host);
        let expected = [
            ("CUDA_VISIBLE_DEVICES", "GPU-a,MIG-b"),
            ("NVIDIA_VISIBLE_DEVICES", "GPU-a,MIG-b"),
            ("ROTA_GPUS", "2"),
            ("ROTA_OTHER_DEVICES", "FPGA-c,TPU-d"),
        ];
        assert_eq!(all, expected.map(|(name, value)| (name, value.to_owned())));
        // Field report: an FPGA alone was the one visible card of CUDA.
        let alone = env(&["FPGA-c"], &host);
        let expected = [
            ("CUDA_VISIBLE_DEVICES", ""),
            ("NVIDIA_VISIBLE_DEVICES", "void"),
            ("ROTA_GPUS", "0"),
            ("ROTA_OTHER_DEVICES", "FPGA-c"),
        ];
        assert_eq!(alone, expected.map(|(name, value)| (name, value.to_owned())));
        // What the host no longer tells of is known by the form of its name.
        assert_eq!(env(&["GPU-x", "XYZ-1"], &[])[0].1, "GPU-x");
    }

    #[test]
    fn cards_of_amd_are_told_to_rocm_and_kept_from_it_when_none_was_granted() {
        let nodes = &["/dev/kfd", "/dev/dri/renderD128"];
        let host = ["GPU-1", "GPU-2"].map(|uuid| facts(uuid, DeviceKind::Gpu, nodes));
        let value = |env: &[(&'static str, String)], name: &str| {
            env.iter().find(|(own, _)| *own == name).map(|(_, value)| value.clone())
        };
        let both = env(&["GPU-2", "GPU-1"], &host);
        assert_eq!(value(&both, "ROCR_VISIBLE_DEVICES").as_deref(), Some("GPU-2,GPU-1"));
        assert_eq!(value(&both, "HIP_VISIBLE_DEVICES").as_deref(), Some("0,1"));
        assert_eq!(value(&both, "CUDA_VISIBLE_DEVICES").as_deref(), Some(""));
        assert_eq!(value(&both, "ROTA_GPUS").as_deref(), Some("2"));
        assert_eq!(value(&env(&[], &host), "ROCR_VISIBLE_DEVICES").as_deref(), Some(""));
        // Elsewhere they are nobody's business: some programs take them for a mistake.
        assert_eq!(value(&env(&[], &[]), "ROCR_VISIBLE_DEVICES"), None);
    }
}
