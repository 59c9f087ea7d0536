//! Gossip in a simulated network ([`super::sim`]): sixteen hosts unless said otherwise, several seeds.

use super::sim::*;
use super::*;

#[test]
fn sixteen_hosts_find_each_other_and_nobody_is_falsely_declared_down() {
    for seed in 0..3 {
        let mut sim = Sim::new(HOSTS, seed);
        sim.run(secs(5));
        assert!(sim.all_know_all(), "seed {seed}: not all know all after 5 s");
        sim.run(secs(60));
        assert!(sim.all_know_all(), "seed {seed}");
        assert_eq!(sim.downs, [], "seed {seed}: false downs");
        let per_host_second = sim.packets / HOSTS / 65;
        assert!(per_host_second < 60, "{per_host_second} packets per host and second");
    }
}

#[test]
fn a_dead_host_is_found_by_all_and_only_that_one_is_declared_down() {
    for seed in 0..3 {
        let mut sim = Sim::new(HOSTS, seed);
        sim.run(secs(5));
        sim.hosts.remove(&9);
        sim.run(secs(15));
        for (host, state) in &sim.hosts {
            assert_eq!(state.gossip.seen(HostId(9)), Seen::Down, "seed {seed} host {host}");
        }
        assert!(sim.downs.iter().all(|(_, _, whom)| *whom == 9), "seed {seed}");
        let last = sim.downs.iter().map(|(at, _, _)| *at).max().unwrap();
        assert!(last < secs(5 + 12), "seed {seed}: known to all only at {last:?}");
    }
}

#[test]
fn a_host_that_restarts_is_back_under_its_new_life_even_with_its_clock_set_back() {
    for (seed, incarnation) in [(1, 5_000), (2, 6_000), (3, 1), (4, 2)] {
        let mut sim = Sim::new(HOSTS, seed);
        sim.run(secs(5));
        sim.hosts.remove(&9);
        // Both before and after its death was noticed.
        sim.run(secs(if seed % 2 == 0 { 12 } else { 0 }));
        sim.start(9, incarnation);
        sim.run(secs(15));
        assert!(sim.all_know_all(), "seed {seed}");
        for (host, state) in &sim.hosts {
            let status = state.gossip.status(sim.now, HostId(9));
            let status = status.unwrap_or_else(|| panic!("seed {seed} host {host}"));
            assert!(status.digest.applied <= sim.hosts[&9].applied, "the status of the old life");
        }
    }
}

#[test]
fn status_spreads_and_readings_that_take_turns_all_arrive() {
    let mut sim = Sim::new(HOSTS, 7);
    sim.run(secs(20));
    for host in sim.hosts.keys() {
        for other in sim.hosts.keys() {
            let status = sim.gossip(*host).status(sim.now, HostId(*other)).unwrap();
            assert_eq!(status.digest.host, HostId(*other));
            assert_eq!(status.digest.devices.len(), 8, "host {host} of {other}");
            let behind = sim.hosts[other].applied - status.digest.applied;
            assert!(behind <= u64::from(status::STALE_PERIODS), "host {host} is {behind} behind {other}");
            assert!(status.heard_ago < secs(6));
        }
    }
}

#[test]
fn fault_n12_the_status_of_a_silent_host_becomes_unknown_after_three_periods() {
    let mut sim = Sim::new(HOSTS, 8);
    sim.run(secs(10));
    sim.hosts.remove(&9);
    sim.run(secs(1));
    assert!(sim.gossip(3).status(sim.now, HostId(9)).is_some());
    sim.run(STATUS_PERIOD * (status::STALE_PERIODS + 1));
    assert_eq!(sim.gossip(3).status(sim.now, HostId(9)), None);
    assert!(sim.gossip(3).status(sim.now, HostId(4)).is_some());
}

#[test]
fn lost_announcements_are_repeated_and_five_percent_loss_downs_nobody() {
    for seed in 0..2 {
        let mut sim = Sim::new(HOSTS, seed);
        sim.loss_percent = 5;
        sim.run(secs(60));
        assert!(sim.all_know_all(), "seed {seed}");
        assert_eq!(sim.downs, [], "seed {seed}");
    }
}

#[test]
fn two_halves_find_each_other_again() {
    let mut sim = Sim::new(HOSTS, 3);
    sim.run(secs(5));
    sim.cut = (1..=8).collect();
    sim.run(secs(30));
    assert_eq!(sim.gossip(1).seen(HostId(16)), Seen::Down);
    assert_eq!(sim.gossip(1).members().count(), 7);
    sim.cut.clear();
    sim.run(secs(40));
    assert!(sim.all_know_all());
}

#[test]
fn a_host_that_leaves_is_down_at_once() {
    let mut sim = Sim::new(HOSTS, 4);
    sim.run(secs(5));
    let now = sim.now;
    let actions = sim.hosts.get_mut(&9).unwrap().gossip.leave(now);
    sim.perform(9, actions);
    sim.hosts.remove(&9);
    sim.run(secs(2));
    let told = sim.downs.iter().filter(|(_, _, whom)| *whom == 9).count();
    assert_eq!(told, 15);
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let trace = |seed| {
        let mut sim = Sim::new(HOSTS, seed);
        sim.run(secs(10));
        (sim.packets, sim.bytes, sim.count)
    };
    assert_eq!(trace(1), trace(1));
    assert_ne!(trace(1), trace(2));
}

#[test]
fn fifty_hosts_know_each_other_and_a_dead_one_is_found() {
    let mut sim = Sim::new(50, 1);
    sim.run(secs(12));
    assert!(sim.all_know_all());
    sim.hosts.remove(&25);
    sim.run(secs(10));
    let down = |state: &Host| state.gossip.seen(HostId(25)) == Seen::Down;
    assert!(sim.hosts.values().all(down));
    assert!(sim.downs.iter().all(|(_, _, whom)| *whom == 25));
}

#[test]
fn packets_in_another_hosts_name_and_garbage_change_nothing() {
    let mut sim = Sim::new(3, 1);
    sim.run(secs(5));
    let now = sim.now;
    // A packet of host 2 that host 3 delivers.
    let packet = {
        let host = sim.hosts.get_mut(&2).unwrap();
        let target = Member(member(1, 0));
        host.gossip.foca.announce(target, &mut host.gossip.out).unwrap();
        host.gossip.out.to_send().unwrap().1
    };
    let first = &mut sim.hosts.get_mut(&1).unwrap().gossip;
    assert_eq!(first.handle_datagram(now, HostId(3), &packet), []);
    assert_ne!(first.handle_datagram(now, HostId(2), &packet), []);
    for end in 0..packet.len() {
        first.handle_datagram(now, HostId(2), &packet[..end]);
    }
    for byte in 0..packet.len() {
        for bit in 0..8 {
            let mut flipped = packet.to_vec();
            flipped[byte] ^= 1 << bit;
            first.handle_datagram(now, HostId(2), &flipped);
        }
    }
    assert_eq!(first.handle_datagram(now, HostId(2), &[0xff; 1_100]), []);
    assert_eq!(first.handle_datagram(now, HostId(2), &[0; 2_000]), []);
}

#[test]
fn lies_about_a_host_are_outbid_by_it() {
    let mut sim = Sim::new(4, 1);
    sim.run(secs(5));
    // Host 2 tells host 3 that host 4 lives elsewhere under a far newer life, and what its status is.
    let now = sim.now;
    let lie = foca::Member::new(
        Member(GossipMember { addr: "10.9.9.9:1".into(), ..member(4, 1 << 50) }),
        0,
        foca::State::Alive,
    );
    let host = &mut sim.hosts.get_mut(&2).unwrap().gossip;
    host.foca.apply_many([lie].into_iter(), true, &mut host.out).unwrap();
    let mut forged = digest(4, 999, 0);
    (forged.incarnation, forged.version) = (1 << 50, 1 << 40);
    let forged = rota_protocol::codec::encode(&forged).unwrap();
    host.foca.add_broadcast(&forged).unwrap();
    let actions = host.finish(now, "lie", Ok(()));
    sim.perform(2, actions);
    sim.run(secs(20));
    assert!(sim.all_know_all());
    for host in 1..=3 {
        let four = sim.gossip(host).members().find(|m| m.host == HostId(4)).unwrap();
        assert_eq!(four.addr, addr(4), "host {host}");
        let status = sim.gossip(host).status(sim.now, HostId(4)).unwrap();
        assert_ne!(status.digest.applied, 999, "host {host}");
    }
}

#[test]
fn implausible_members_and_digests_are_refused() {
    let seen = Arc::new(AtomicU64::new(0));
    let mut codec = Codec::new(HostId(1), seen);
    let take = |codec: &mut Codec, member: GossipMember| {
        use foca::Codec as _;
        let mut bytes = Vec::new();
        let item = foca::Member::alive(Member(member));
        codec.encode_member(&item, &mut bytes).unwrap();
        codec.decode_member(&bytes[..]).is_ok()
    };
    assert!(take(&mut codec, member(2, 5)));
    assert!(!take(&mut codec, member(2, u64::MAX)));
    let bad_addr = GossipMember { addr: "x\n".into(), ..member(2, 5) };
    assert!(!take(&mut codec, bad_addr));
    // A million members.
    let taken = (0..1_000_000 / 50).filter(|i| take(&mut codec, member(10 + i, 1))).count();
    assert!(taken < GOSSIP_HOSTS_MAX, "{taken}");
    assert!(take(&mut codec, member(2, 6)), "known hosts go on");

    let mut gossip = Gossip::new(member(1, 1), 1);
    let mut add = |change: fn(&mut StatusDigest)| {
        let mut digest = digest(2, 1, 0);
        (digest.incarnation, digest.version) = (1, 1);
        change(&mut digest);
        let bytes = rota_protocol::codec::encode(&digest).unwrap();
        gossip.foca.add_broadcast(&bytes).is_ok()
    };
    assert!(add(|_| {}));
    assert!(!add(|d| d.version = u64::MAX));
    assert!(!add(|d| d.incarnation = u64::MAX));
    assert!(!add(|d| d.addr = String::new()));
    assert!(!add(|d| d.addr = "x".repeat(5_000)));
}

#[test]
fn a_digest_carries_as_many_readings_as_fit_and_goes_round() {
    let full = digest(1, 1, 100);
    let (first, fitted) = status::encode_fitting(full.clone(), 0);
    assert!(first.len() <= status::STATUS_BYTES_MAX && fitted > 5, "{fitted}");
    let decode = |bytes: &[u8]| -> StatusDigest {
        rota_protocol::codec::decode(bytes, status::STATUS_BYTES_MAX).unwrap()
    };
    assert_eq!(decode(&first).devices, full.devices[..fitted]);
    let (second, _) = status::encode_fitting(full.clone(), fitted);
    assert_eq!(decode(&second).devices[0], full.devices[fitted]);
    let (round, _) = status::encode_fitting(full.clone(), 99);
    assert_eq!(decode(&round).devices[1], full.devices[0]);
    assert_eq!(status::encode_fitting(digest(1, 1, 0), 5).1, 0);
}

/// The membership protocol's own layout is a library's: its bytes are pinned here, so that a new version of it that
/// moves them is seen before two hosts misunderstand each other.
#[test]
fn the_bytes_of_a_packet_have_not_moved() {
    use foca::Codec as _;
    let mut codec = Codec::new(HostId(1), Arc::new(AtomicU64::new(0)));
    let hex = |bytes: &[u8]| -> String { bytes.iter().map(|b| format!("{b:02x}")).collect() };
    let mut bytes = Vec::new();
    let header = foca::Header {
        src: Member(member(1, 300)),
        src_incarnation: 2,
        dst: Member(member(2, 4)),
        message: foca::Message::PingReq { target: Member(member(3, 5)), probe_number: 6 },
    };
    codec.encode_header(&header, &mut bytes).unwrap();
    assert_eq!(hex(&bytes), HEADER_HEX);
    assert_eq!(codec.decode_header(&bytes[..]).unwrap(), header);
    let mut bytes = Vec::new();
    let item = foca::Member::new(Member(member(3, 5)), 7, foca::State::Suspect);
    codec.encode_member(&item, &mut bytes).unwrap();
    assert_eq!(hex(&bytes), MEMBER_HEX);
    assert_eq!(codec.decode_member(&bytes[..]).unwrap(), item);
    let last = [(foca::Message::TurnUndead, 10), (foca::Message::Ping(1), 0)];
    for (message, variant) in last {
        let encoded = rota_protocol::codec::encode::<foca::Message<Member>>(&message).unwrap();
        assert_eq!(encoded[0], variant);
    }
}

const HEADER_HEX: &str = "003501fb2c010d31302e302e302e313a373630300202040d31302e302e302e323a373630300203050d31302e302e302e333a3736303006";
const MEMBER_HEX: &str = "001203050d31302e302e302e333a373630300701";
