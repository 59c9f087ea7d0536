//! Shares of cards and slices: a card is never more than full in cores or memory, never lent to two tenants at once
//! (S14), whole or shared but not both, and comes back exactly; slices are asked by profile.

use crate::lab::{Lab, exit, host_facts, user};
use proptest::prelude::*;
use rota_core::invariant;
use rota_protocol::device::DeviceHealth;
use rota_protocol::job::{Actor, AttemptEnd, EndReason};
use rota_protocol::plan::Refusal;
use rota_protocol::{DeviceUuid, HostId, JobId, Token};

fn other() -> Actor {
    user("other")
}

/// What is held of a card: thousandths and MiB.
fn held(lab: &Lab, uuid: &str) -> Option<(u32, u64)> {
    let host = lab.state.hosts().find(|h| h.device(&DeviceUuid(uuid.into())).is_some())?;
    let held = host.used.devices.get(&DeviceUuid(uuid.into()))?;
    Some((held.milli(), held.vram_mib()))
}

#[test]
fn cores_and_memory_of_a_card_are_never_overfull() {
    let mut lab = Lab::with(&["h1 gpus=2xA100:80GiB cpus=64"]);
    // By cores: 0.4 + 0.4 leave 0.2.
    lab.run("gpu_milli=400 vram=10GiB", "0@h1:0");
    lab.run("gpu_milli=400 vram=10GiB", "0@h1:0");
    let third = lab.submit("gpu_milli=400 vram=10GiB");
    assert_eq!(lab.begin(third, "0@h1:0"), Err(Refusal::DoesNotFit));
    assert_eq!(held(&lab, "GPU-h1-0"), Some((800, 20 << 10)));
    let small = lab.submit("gpu_milli=200 vram=60GiB");
    assert_eq!(lab.begin(small, "0@h1:0"), Ok(()), "exactly full in both");
    let least = lab.submit("gpu_milli=1 vram=1MiB");
    assert_eq!(lab.begin(least, "0@h1:0"), Err(Refusal::DoesNotFit));
    // By memory: two shares of a tenth that hold 50 GiB each do not go together.
    lab.run("gpu_milli=100 vram=50GiB", "0@h1:1");
    let fat = lab.submit("gpu_milli=100 vram=50GiB");
    assert_eq!(lab.begin(fat, "0@h1:1"), Err(Refusal::DoesNotFit));
    // A share that names no memory holds its part, rounded up.
    let plain = lab.submit("gpu_milli=333");
    assert_eq!(lab.begin(plain, "0@h1:1"), Ok(()));
    assert_eq!(
        held(&lab, "GPU-h1-1"),
        Some((433, (50 << 10) + (80_u64 << 10).saturating_mul(333).div_ceil(1_000)))
    );
    // One task never takes two shares, nor the same card twice.
    for parts in ["0@h1:0,1", "0@h1:1,1", "0@h1"] {
        assert_eq!(lab.begin(third, parts), Err(Refusal::DoesNotFit), "{parts}");
    }
    lab.check_copies();
}

#[test]
fn whole_and_shared_exclude_each_other() {
    let mut lab = Lab::with(&["h1 gpus=2xA100:80GiB cpus=64"]);
    let share = lab.run("gpu_milli=500", "0@h1:0");
    let whole = lab.submit("gpus=1");
    assert_eq!(lab.begin(whole, "0@h1:0"), Err(Refusal::DoesNotFit));
    assert_eq!(lab.begin(whole, "0@h1:1"), Ok(()));
    let half = lab.submit("gpu_milli=500");
    assert_eq!(lab.begin(half, "0@h1:1"), Err(Refusal::DoesNotFit));
    let pair = lab.submit("gpus=2");
    assert_eq!(lab.begin(pair, "0@h1:0,1"), Err(Refusal::DoesNotFit));
    // Exactly what was held comes back, whoever ends first.
    assert_eq!(lab.begin(half, "0@h1:0"), Ok(()));
    let token = lab.token(share);
    lab.end(token, exit(0));
    assert_eq!(held(&lab, "GPU-h1-0"), Some((500, 40 << 10)));
    let token = lab.token(half);
    lab.end(token, AttemptEnd::Fenced);
    assert_eq!(held(&lab, "GPU-h1-0"), None);
    let token = lab.token(whole);
    lab.end(token, exit(0));
    assert_eq!(lab.begin(pair, "0@h1:0,1"), Ok(()));
    // A card of which a share is ending is not free.
    let mut lab = Lab::with(&["h1 gpus=1xA100:80GiB"]);
    let share = lab.run("gpu_milli=1", "0@h1:0");
    lab.cancel(share);
    let whole = lab.submit("gpus=1");
    assert_eq!(lab.begin(whole, "0@h1:0"), Err(Refusal::DoesNotFit));
}

/// S14: not even a free half of a card goes to another tenant, until the last of the first one's shares is gone.
#[test]
fn a_card_is_lent_to_one_tenant() {
    let mut lab = Lab::with(&["h1 gpus=1xA100:80GiB cpus=64 mig=2x1g.10gb:10GiB"]);
    let ours = [lab.run("gpu_milli=250", "0@h1:0"), lab.run("gpu_milli=250", "0@h1:0")];
    let theirs = lab.try_submit(other(), "gpu_milli=250").expect("accepted");
    assert_eq!(lab.begin(theirs, "0@h1:0"), Err(Refusal::DoesNotFit));
    for job in ours {
        assert_eq!(lab.begin(theirs, "0@h1:0"), Err(Refusal::DoesNotFit));
        let token = lab.token(job);
        lab.end(token, exit(0));
    }
    assert_eq!(lab.begin(theirs, "0@h1:0"), Ok(()));
    let again = lab.submit("gpu_milli=250");
    assert_eq!(lab.begin(again, "0@h1:0"), Err(Refusal::DoesNotFit));
    // Slices are apart in hardware: each is a device of its own.
    lab.run("mig=1", "0@h1:MIG-h1-0");
    lab.run_as(other(), "mig=1", "0@h1:MIG-h1-1");
    // A gang of shares of one tenant lies on one card; its parts count beside each other.
    let mut lab = Lab::with(&["h1 gpus=1xA100:80GiB cpus=64"]);
    let gang = lab.submit("gpu_milli=400 gang=3");
    assert_eq!(lab.begin(gang, "0@h1:0 1@h1:0 2@h1:0"), Err(Refusal::DoesNotFit));
    let gang = lab.submit("gpu_milli=300 gang=3");
    assert_eq!(lab.begin(gang, "0@h1:0 1@h1:0 2@h1:0"), Ok(()));
    assert_eq!(held(&lab, "GPU-h1-0"), Some((900, 3 * 24 * 1_024)));
    lab.check_copies();
}

/// An eviction may empty a card for another tenant only if it empties it whole.
#[test]
fn evictions_empty_a_shared_card_whole() {
    let mut lab = Lab::with(&["h1 gpus=1xA100:80GiB cpus=64"]);
    let ours: Vec<JobId> = (0..2).map(|_| lab.run("gpu_milli=250 prio=10", "0@h1:0")).collect();
    let victims: Vec<Token> = ours.iter().map(|job| lab.token(*job)).collect();
    let theirs = lab.try_submit(other(), "gpu_milli=500 prio=90").expect("accepted");
    let half = lab.evict(Some(theirs), EndReason::Preempt, &victims[..1], "h1:0");
    assert_eq!(half, Err(Refusal::DoesNotFit));
    assert_eq!(lab.evict(Some(theirs), EndReason::Preempt, &victims, "h1:0"), Ok(()));
    for token in victims {
        assert_eq!(lab.begin(theirs, "0@h1:0"), Err(Refusal::DoesNotFit));
        lab.end(token, exit(143));
    }
    assert_eq!(lab.begin(theirs, "0@h1:0"), Ok(()));
}

#[test]
fn slices_are_asked_by_profile() {
    let mut lab = Lab::with(&["h1 cpus=64 mig=2x1g.10gb:10GiB+1x3g.40gb:40GiB"]);
    let two = lab.submit("mig:1g.10gb=2");
    for parts in [
        "0@h1:MIG-h1-0",
        "0@h1:MIG-h1-0,MIG-h1-2",
        "0@h1:MIG-h1-0,MIG-h1-0",
        "0@h1:MIG-h1-0,MIG-h1-1,MIG-h1-2",
    ] {
        assert_eq!(lab.begin(two, parts), Err(Refusal::DoesNotFit), "{parts}");
    }
    assert_eq!(lab.begin(two, "0@h1:MIG-h1-0,MIG-h1-1"), Ok(()));
    // Slices count by their part of a card: two of seven.
    let amounts = lab.state.attempt(lab.token(two)).expect("live").amounts();
    assert_eq!((amounts.gpu_milli, amounts.vram_mib), (2 * 142, 20 << 10));
    let token = lab.token(two);
    lab.end(token, exit(0));
    // Kinds that overlap: any slice and one of a profile are two devices, never one that serves both.
    let both = lab.submit("mig=2 mig:1g.10gb=1");
    assert_eq!(lab.begin(both, "0@h1:MIG-h1-0,MIG-h1-2"), Err(Refusal::DoesNotFit));
    assert_eq!(lab.begin(both, "0@h1:MIG-h1-0,MIG-h1-1,MIG-h1-2"), Ok(()));
    let token = lab.token(both);
    lab.end(token, exit(0));
    // The profile of three is wanted twice and is there once, however many others are free.
    let large = lab.submit("mig:3g=1 mig:40gb=1");
    assert_eq!(lab.begin(large, "0@h1:MIG-h1-2,MIG-h1-0"), Err(Refusal::DoesNotFit));
    assert_eq!(lab.begin(large, "0@h1:MIG-h1-2"), Err(Refusal::DoesNotFit));
    let crossed = lab.submit("mig:10gb=1 mig:g=2");
    assert_eq!(lab.begin(crossed, "0@h1:MIG-h1-0,MIG-h1-1,MIG-h1-2"), Ok(()));
    lab.check_copies();
}

/// A card whose driver reports nonsense for its memory is a card of unknown memory (G15), and no sum overflows.
#[test]
fn absurd_memory_is_unknown() {
    let mut lab = Lab::with(&["h1 gpus=2xA100:80GiB cpus=64"]);
    let mut facts = lab.facts(HostId(2));
    for device in &mut facts.devices {
        device.vram_mib = Some(u64::MAX);
    }
    lab.register(HostId(2), facts, true);
    let job = lab.submit("gpus=2 vram=1GiB");
    assert_eq!(lab.begin(job, "0@h1:0,1"), Err(Refusal::DoesNotFit));
    let job = lab.submit("gpu_milli=999");
    assert_eq!(lab.begin(job, "0@h1:1"), Ok(()));
    let job = lab.submit("gpus=1");
    assert_eq!(lab.begin(job, "0@h1:0"), Ok(()));
    assert_eq!(lab.state.attempts().map(|a| a.vram_mib).sum::<u64>(), 0);
}

/// A shared card whose host no longer lists it is accounted for until the last share is gone.
#[test]
fn a_shared_card_that_vanished() {
    let mut lab = Lab::with(&["h1 gpus=1xA100:80GiB cpus=64"]);
    let jobs = [lab.run("gpu_milli=500", "0@h1:0"), lab.run("gpu_milli=300", "0@h1:0")];
    lab.register(HostId(2), host_facts("h1 cpus=64").1, false);
    let late = lab.submit("gpu_milli=100");
    assert_eq!(lab.begin(late, "0@h1:0"), Err(Refusal::DoesNotFit));
    let token = lab.token(jobs[0]);
    lab.end(token, exit(0));
    assert_eq!(held(&lab, "GPU-h1-0"), Some((300, 24 << 10)));
    let mut facts = host_facts("h1 gpus=1xA100:80GiB cpus=64").1;
    facts.devices[0].health = DeviceHealth::Dirty { reason: "memory is held".into() };
    lab.register(HostId(2), facts, false);
    assert_eq!(lab.begin(late, "0@h1:0"), Err(Refusal::DoesNotFit), "not healthy");
    lab.register(HostId(2), host_facts("h1 gpus=1xA100:80GiB cpus=64").1, false);
    assert_eq!(lab.begin(late, "0@h1:0"), Ok(()));
    assert_eq!(held(&lab, "GPU-h1-0"), Some((400, (24 << 10) + (8 << 10))));
    lab.check_copies();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// Any mix of shares, whole cards and tenants, started anywhere and ended in any order: what a card lends is the sum
    /// of what was asked, counted here beside the state.
    #[test]
    fn any_mix_of_shares(dice in prop::collection::vec(any::<(u8, u8, u8)>(), 1..80)) {
        let mut lab = Lab::with(&["h1 gpus=3xA100:80GiB cpus=400"]);
        let mut model: Vec<(Token, usize, String, u32, u64)> = Vec::new();
        for (kind, a, b) in dice {
            if kind % 3 == 0 && !model.is_empty() {
                let (token, ..) = model.swap_remove(a as usize % model.len());
                lab.end(token, exit(b));
                continue;
            }
            let milli = [100, 250, 333, 500, 999, 1_000][a as usize % 6];
            let gib = [0, 1, 30][b as usize % 3];
            let tenant = if kind % 5 == 0 { "other" } else { "t" };
            let card = (a ^ b) as usize % 3;
            let job = lab.try_submit(user(tenant), &format!("gpu_milli={milli} vram={gib}GiB")).expect("accepted");
            let mib = match (milli, gib) {
                // All of it, whatever it is.
                (1_000, _) => 0,
                (_, 0) => ((80_u64 << 10) * u64::from(milli)).div_ceil(1_000),
                _ => gib << 10,
            };
            let there = || model.iter().filter(|row| row.1 == card);
            let fits = there().map(|row| row.3).sum::<u32>() + milli <= 1_000
                && there().map(|row| row.4).sum::<u64>() + mib <= 80 << 10
                && there().all(|row| row.2 == tenant);
            prop_assert_eq!(lab.begin(job, &format!("0@h1:{card}")).is_ok(), fits);
            if fits {
                model.push((lab.token(job), card, tenant.to_owned(), milli, mib));
            }
        }
        for card in 0..3 {
            let rows = || model.iter().filter(|row| row.1 == card);
            let sum = (rows().map(|row| row.3).sum::<u32>(), rows().map(|row| row.4).sum::<u64>());
            prop_assert_eq!(held(&lab, &format!("GPU-h1-{card}")).unwrap_or_default(), sum);
        }
        prop_assert_eq!(invariant::check(&lab.state), Vec::new());
        lab.check_copies();
    }
}
