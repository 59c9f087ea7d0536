//! Slices that the site declares (`[sharing.mig]`): after a reboot a card in MIG mode has none (report R029). They are made
//! again by the site's `nvidia-smi` before the card is offered; until then the host shows what is missing, as devices
//! that are lost, so that jobs wait with that reason instead of being told that no host will ever have them.

use super::settings::SharingSettings;
use rota_protocol::DeviceUuid;
use rota_protocol::device::{DeviceDetail, DeviceFacts, DeviceHealth, DeviceKind};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use tokio::process::Command;

/// How long making slices may take.
const MAKE_MAX: Duration = Duration::from_secs(60);
/// Pause before it is tried again, in ms.
pub const RETRY_MS: u64 = 60_000;

/// A card whose slices are not those declared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lack {
    /// Its PCI address, as declared.
    pub bus: String,
    /// Profiles that are not there.
    pub missing: Vec<String>,
    /// How many are declared.
    pub declared: usize,
    /// How many of those are there.
    pub found: usize,
    /// Slices that nobody declared.
    pub surplus: Vec<DeviceUuid>,
}

impl Lack {
    /// For people: `slices missing: declared 7, found 0`.
    #[must_use]
    pub fn words(&self) -> String {
        format!("slices missing: declared {}, found {}", self.declared, self.found)
    }

    /// What stands for the missing slices among the host's devices.
    pub fn stand_ins(&self) -> impl Iterator<Item = DeviceFacts> {
        self.missing.iter().enumerate().map(|(at, profile)| DeviceFacts {
            uuid: DeviceUuid(format!("MIG-missing-{}-{at}", self.bus)),
            kind: DeviceKind::Mig,
            model: format!("MIG {profile}"),
            vram_mib: None,
            bus: Some(self.bus.clone()),
            index: None,
            numa: None,
            compute_cap: None,
            island: None,
            detail: DeviceDetail::default(),
            health: DeviceHealth::Lost { reason: self.words() },
        })
    }
}

/// Cards whose slices are not those declared. Slices are known by the address of their card and by the profile in their
/// model.
#[must_use]
pub fn lacking(settings: &SharingSettings, devices: &[DeviceFacts]) -> Vec<Lack> {
    let lack = |(bus, declared): (&String, &Vec<String>)| {
        let mut missing: BTreeMap<&str, usize> = BTreeMap::new();
        for profile in declared {
            *missing.entry(profile).or_default() += 1;
        }
        let there = devices.iter().filter(|d| d.kind == DeviceKind::Mig);
        let mut surplus = Vec::new();
        for slice in there.filter(|d| d.bus.as_deref().is_some_and(|at| same_bus(at, bus))) {
            let profile = slice.model.rsplit(' ').next().unwrap_or_default();
            match missing.get_mut(profile).filter(|left| **left > 0) {
                Some(left) => *left -= 1,
                None => surplus.push(slice.uuid.clone()),
            }
        }
        let missing: Vec<String> = missing
            .into_iter()
            .flat_map(|(profile, left)| std::iter::repeat_n(profile.to_owned(), left))
            .collect();
        let (declared, found) = (declared.len(), declared.len() - missing.len());
        Lack { bus: bus.clone(), missing, declared, found, surplus }
    };
    let all = settings.mig.iter().map(lack);
    all.filter(|lack| !lack.missing.is_empty() || !lack.surplus.is_empty()).collect()
}

/// `00000000:3B:00.0` and `0000:3b:00.0` are one address.
#[must_use]
pub fn same_bus(a: &str, b: &str) -> bool {
    let key = |text: &str| {
        let (domain, rest) = text.split_once(':')?;
        Some((u32::from_str_radix(domain, 16).ok()?, rest.to_ascii_lowercase()))
    };
    key(a).is_some_and(|a| key(b) == Some(a))
}

/// Makes the missing slices of a card on which nothing runs; slices that nobody declared go first.
///
/// # Errors
/// What the program said.
pub async fn make(nvidia_smi: &Path, lack: &Lack) -> Result<(), String> {
    if !lack.surplus.is_empty() {
        for what in ["-dci", "-dgi"] {
            call(nvidia_smi, &["mig", "-i", &lack.bus, what]).await?;
        }
    }
    if lack.missing.is_empty() {
        return Ok(());
    }
    call(nvidia_smi, &["mig", "-i", &lack.bus, "-cgi", &lack.missing.join(","), "-C"]).await
}

async fn call(program: &Path, args: &[&str]) -> Result<(), String> {
    let run = Command::new(program).args(args).stdin(Stdio::null()).kill_on_drop(true).output();
    let shown = || format!("{} {}", program.display(), args.join(" "));
    match tokio::time::timeout(MAKE_MAX, run).await {
        Err(_) => Err(format!("{} did not end within {} s", shown(), MAKE_MAX.as_secs())),
        Ok(Err(error)) => Err(format!("cannot run {}: {error}", shown())),
        Ok(Ok(output)) if output.status.success() => Ok(()),
        Ok(Ok(output)) => {
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            let last: String = said.lines().last().unwrap_or_default().chars().take(200).collect();
            Err(format!("{} ended with {}: {last}", shown(), output.status))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    const BUS: &str = "0000:3b:00.0";

    fn slice(name: &str, profile: &str, bus: &str) -> DeviceFacts {
        let lack = Lack {
            bus: bus.into(),
            missing: vec![profile.into()],
            declared: 1,
            found: 0,
            surplus: Vec::new(),
        };
        let facts = lack.stand_ins().next().expect("one");
        DeviceFacts { uuid: DeviceUuid(name.into()), health: DeviceHealth::Healthy, ..facts }
    }

    fn declared(profiles: &[&str]) -> SharingSettings {
        let profiles = profiles.iter().map(|p| (*p).to_owned()).collect();
        SharingSettings { mig: BTreeMap::from([(BUS.to_owned(), profiles)]), ..SharingSettings::default() }
    }

    #[test]
    fn what_is_declared_and_not_there_is_told_with_both_numbers() {
        let seven = declared(&["1g.10gb"; 7]);
        let lack = lacking(&seven, &[]).remove(0);
        assert_eq!(lack.words(), "slices missing: declared 7, found 0");
        assert_eq!(lack.stand_ins().count(), 7);
        let there: Vec<_> =
            (0..7).map(|n| slice(&format!("MIG-{n}"), "1g.10gb", "00000000:3B:00.0")).collect();
        assert_eq!(lacking(&seven, &there), []);
        assert_eq!(lacking(&seven, &there[..5])[0].words(), "slices missing: declared 7, found 5");
        // Of another card, or of another profile.
        let mixed = [slice("MIG-x", "1g.10gb", "0000:5e:00.0"), slice("MIG-y", "3g.40gb", BUS)];
        let lack = lacking(&declared(&["1g.10gb"]), &mixed).remove(0);
        assert_eq!((lack.found, lack.surplus), (0, vec![DeviceUuid("MIG-y".into())]));
    }

    #[tokio::test]
    async fn they_are_made_by_one_call_and_what_is_in_the_way_goes_first() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let program = dir.path().join("nvidia-smi");
        let script =
            "#!/bin/sh\necho \"$@\" >> \"${0%/*}/calls\"\n[ \"$5\" != bad ] || { echo no room; exit 6; }\n";
        fs::write(&program, script).expect("writable");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("our own");
        let mut lack = lacking(&declared(&["3g.40gb", "1g.10gb", "1g.10gb"]), &[]).remove(0);
        assert_eq!(make(&program, &lack).await, Ok(()));
        lack.surplus = vec![DeviceUuid("MIG-y".into())];
        lack.missing = vec!["bad".into()];
        let refused = make(&program, &lack).await.expect_err("no room");
        assert!(refused.contains("exit status: 6") && refused.ends_with("no room"), "{refused}");
        let calls = fs::read_to_string(dir.path().join("calls")).expect("called");
        let bus = BUS;
        assert_eq!(
            calls,
            format!(
                "mig -i {bus} -cgi 1g.10gb,1g.10gb,3g.40gb -C\nmig -i {bus} -dci\nmig -i {bus} -dgi\n\
                 mig -i {bus} -cgi bad -C\n"
            )
        );
    }
}
