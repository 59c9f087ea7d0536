//! What the entries of format 1 mean today, field by field: `entry_1.hex` is frozen and is never written again.

use crate::values::{ask, commands, device_facts, entry, registration, spec};
use rota_protocol::ask::Ask;
use rota_protocol::command::{Command, Entry, LOG_FORMAT};
use rota_protocol::device::{DeviceFacts, HostFacts, HostRegistration};
use rota_protocol::job::JobSpec;
use rota_protocol::work::Layout;

/// By the labels of `entry_1.hex`.
pub(crate) fn entries() -> Vec<(&'static str, Entry)> {
    let mut entries: Vec<_> =
        commands().into_iter().map(|(label, command)| (label, entry(plain(command)))).collect();
    entries.push(("empty", Entry { format: LOG_FORMAT, at_ms: 0, proposals: Vec::new() }));
    entries
}

/// The command without what format 1 could not say.
fn plain(command: Command) -> Command {
    match command {
        Command::Submit { .. } => Command::Submit { spec: plain_spec() },
        Command::RegisterHost { host, .. } => {
            Command::RegisterHost { host, registration: plain_registration() }
        }
        same => same,
    }
}

fn plain_spec() -> JobSpec {
    JobSpec {
        ask: Ask { gpu_models_preferred: Vec::new(), compute_cap_min: 0, ..ask() },
        alternatives: Vec::new(),
        gang: None,
        layout: Layout::Any,
        after: Vec::new(),
        queue: String::new(),
        begin_ms: None,
        deadline_ms: None,
        hold: false,
        service: false,
        preemptible: true,
        requeue: true,
        warning: None,
        requeue_status: None,
        output: None,
        session: None,
        container: None,
        idle_until_ms: None,
        pace: None,
        inputs: Box::default(),
        ..spec()
    }
}

fn plain_registration() -> HostRegistration {
    let registration = registration();
    assert!(registration.facts.devices.contains(&device_facts()));
    let plain = |device: DeviceFacts| DeviceFacts {
        compute_cap: None,
        island: None,
        detail: Default::default(),
        ..device
    };
    let devices = registration.facts.devices.into_iter().map(plain).collect();
    HostRegistration {
        facts: HostFacts { devices, notes: Default::default(), ..registration.facts },
        ..registration
    }
}
