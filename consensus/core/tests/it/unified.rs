//! Hosts whose GPUs have the host's memory (R022): GPU memory and memory are one pool, granted once.

use crate::lab::{Lab, exit};
use proptest::prelude::*;
use rota_protocol::JobId;
use rota_protocol::device::DeviceKind;
use rota_protocol::job::AttemptState;

/// Each host's memory is at least what its attempts were granted of it, by what was asked.
fn check_pools(lab: &Lab) {
    lab.check();
    for host in lab.state.hosts() {
        let mut granted = 0;
        for attempt in lab.state.attempts_on(host.id) {
            let spec = &lab.state.job(attempt.task.job).expect("an attempt has a job").spec;
            let ask = spec.ask_at(attempt.choice).expect("it was granted");
            let devices = attempt.devices.iter().filter_map(|uuid| host.device(uuid));
            let shared = devices.filter(|d| d.kind == DeviceKind::Gpu && d.detail.unified).count() as u64;
            granted += ask.mem_mib + shared * ask.vram_mib;
        }
        assert_eq!(host.used.mem_mib, granted, "counted once, in full");
        assert!(granted <= host.facts.mem_mib, "{granted} of {} MiB", host.facts.mem_mib);
    }
}

#[test]
fn gpu_memory_and_memory_never_run_together_above_the_pool() {
    for (first, second) in [
        ("gpus=1 vram=100GiB", "mem=100GiB cpus=1"),
        ("mem=100GiB cpus=1", "gpus=1 vram=100GiB"),
        ("gpu_milli=500 vram=100GiB", "gpu_milli=500 vram=100GiB"),
        ("gpu_milli=500 vram=60GiB mem=10GiB", "gpus=1 vram=60GiB"),
    ] {
        let mut lab = Lab::with(&["h1 gpus=1xGB10:1GiB mem=128GiB unified=yes"]);
        let (one, two) = (lab.submit(first), lab.submit(second));
        while lab.round() > 0 {}
        check_pools(&lab);
        assert_eq!(lab.state.attempts().count(), 1, "{first}; {second}");
        assert_eq!(lab.state_of(two), "pending");
        let token = lab.token(one);
        lab.start(token);
        lab.end(token, exit(0));
        while lab.round() > 0 {}
        check_pools(&lab);
        assert_eq!(lab.state.attempts().count(), 1, "{second}");
    }
}

#[test]
fn what_fits_beside_each_other_runs_beside_each_other() {
    let mut lab = Lab::with(&["h1 gpus=1xGB10:1GiB mem=128GiB unified=yes"]);
    for line in ["gpus=1 vram=64GiB mem=4GiB", "mem=60GiB cpus=1"] {
        lab.submit(line);
    }
    while lab.round() > 0 {}
    check_pools(&lab);
    assert_eq!(lab.state.attempts().count(), 2);
    // A GPU alone takes no memory; more than the pool is never placed.
    let never = lab.submit("gpus=1 vram=129GiB");
    while lab.round() > 0 {}
    assert_eq!(lab.state_of(never), "pending");
    let mut alone = Lab::with(&["h1 gpus=1xGB10:1GiB mem=128GiB unified=yes"]);
    alone.submit("gpus=1");
    alone.submit("mem=128GiB cpus=1");
    while alone.round() > 0 {}
    check_pools(&alone);
    assert_eq!(alone.state.attempts().count(), 2);
}

fn job() -> impl Strategy<Value = String> {
    let gpus = prop_oneof!["cpus=1", "gpus=1", "gpus=2", "gpu_milli=300", "gpu_milli=500"];
    (gpus, 0..140_u64, 0..140_u64).prop_map(|(gpus, vram, mem)| {
        let vram = if gpus.starts_with("gpu") { format!(" vram={vram}GiB") } else { String::new() };
        format!("{gpus}{vram} mem={mem}GiB")
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever comes and goes, the sum never exceeds the pool.
    #[test]
    fn the_sum_never_exceeds_the_pool(
        jobs in prop::collection::vec((job(), any::<bool>()), 1..40),
        cards in prop_oneof![Just("1xGB10:1GiB"), Just("4xGB10:1GiB")],
        beside in any::<bool>(),
    ) {
        let mut lab = Lab::with(&[&format!("h1 gpus={cards} mem=128GiB cpus=64 unified=yes")]);
        if beside {
            lab.host("h2 gpus=2xA100:80GiB mem=64GiB");
        }
        let mut open: Vec<JobId> = Vec::new();
        for (line, end_one) in jobs {
            open.push(lab.submit(&line));
            lab.round();
            check_pools(&lab);
            if end_one {
                let live: Vec<_> = lab.state.attempts().map(|a| (a.token, a.state)).collect();
                if let Some((token, state)) = live.first() {
                    if *state == AttemptState::Granted {
                        lab.start(*token);
                    }
                    lab.end(*token, exit(0));
                    check_pools(&lab);
                }
            }
        }
        lab.check_copies();
    }
}
