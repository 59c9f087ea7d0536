//! A simulated network for gossip: a virtual clock, seeded delays and losses, no sockets.

use super::*;
use rota_protocol::device::DeviceReading;
use rota_protocol::{BootId, DeviceUuid};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

pub(super) const HOSTS: u64 = 16;

/// What is to happen, in order of time, then of creation.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Event {
    Packet { from: u64, to: u64, bytes: Vec<u8> },
    Timer { life: u64, host: u64, timer: GossipTimer },
    Status { life: u64, host: u64 },
}

pub(super) struct Host {
    pub(super) gossip: Gossip,
    pub(super) life: u64,
    pub(super) applied: u64,
}

pub(super) struct Sim {
    pub(super) now: Duration,
    pub(super) queue: BinaryHeap<Reverse<(Duration, u64, Event)>>,
    pub(super) count: u64,
    pub(super) hosts: BTreeMap<u64, Host>,
    pub(super) cut: BTreeSet<u64>,
    pub(super) rng: u64,
    pub(super) loss_percent: u64,
    pub(super) packets: u64,
    pub(super) bytes: u64,
    /// Told by anybody of anybody.
    pub(super) ups: Vec<(u64, u64)>,
    pub(super) downs: Vec<(Duration, u64, u64)>,
    pub(super) lives: u64,
}

impl Sim {
    pub(super) fn new(hosts: u64, seed: u64) -> Self {
        let mut sim = Self {
            now: Duration::ZERO,
            queue: BinaryHeap::new(),
            count: 0,
            hosts: BTreeMap::new(),
            cut: BTreeSet::new(),
            rng: seed.wrapping_mul(2).wrapping_add(1),
            loss_percent: 0,
            packets: 0,
            bytes: 0,
            ups: Vec::new(),
            downs: Vec::new(),
            lives: 0,
        };
        for host in 1..=hosts {
            sim.start(host, 1_000 + host);
        }
        sim
    }

    /// Every host knows only the first one, as after a join.
    pub(super) fn start(&mut self, host: u64, incarnation: u64) {
        self.lives += 1;
        let life = self.lives;
        let seed = self.random(u64::MAX);
        let mut gossip = Gossip::new(member(host, incarnation), seed);
        let seeds = vec![(HostId(1), addr(1)), (HostId(2), addr(2))];
        let actions = gossip.start(self.now, seeds);
        let state = Host { gossip, life, applied: 0 };
        self.hosts.insert(host, state);
        self.perform(host, actions);
        self.push(Duration::ZERO, Event::Status { life, host });
    }

    pub(super) fn run(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(Reverse((at, _, _))) = self.queue.peek() {
            if *at > end {
                break;
            }
            let Some(Reverse((at, _, event))) = self.queue.pop() else {
                break;
            };
            self.now = at;
            self.step(event);
        }
        self.now = end;
    }

    pub(super) fn step(&mut self, event: Event) {
        let now = self.now;
        let (host, actions) = match event {
            Event::Packet { from, to, bytes } => {
                if self.cut.contains(&from) != self.cut.contains(&to) {
                    return;
                }
                let Some(state) = self.hosts.get_mut(&to) else {
                    return;
                };
                (to, state.gossip.handle_datagram(now, HostId(from), &bytes))
            }
            Event::Timer { life, host, timer } => match self.hosts.get_mut(&host) {
                Some(state) if state.life == life => (host, state.gossip.handle_timer(now, timer)),
                _ => return,
            },
            Event::Status { life, host } => match self.hosts.get_mut(&host) {
                Some(state) if state.life == life => {
                    state.applied += 1;
                    let applied = state.applied;
                    state.gossip.set_status(now, digest(host, applied, 8));
                    let period = state.gossip.status_period();
                    self.push(period, Event::Status { life, host });
                    return;
                }
                _ => return,
            },
        };
        self.perform(host, actions);
    }

    pub(super) fn perform(&mut self, host: u64, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Send { to, bytes } => {
                    assert!(bytes.len() <= GOSSIP_BYTES_MAX);
                    self.packets += 1;
                    self.bytes += bytes.len() as u64;
                    if self.random(100) < self.loss_percent {
                        continue;
                    }
                    let delay = Duration::from_micros(200 + self.random(800));
                    let (from, to) = (host, to.host.0);
                    self.push(delay, Event::Packet { from, to, bytes });
                }
                Action::Schedule { after, timer } => {
                    let life = self.hosts[&host].life;
                    self.push(after, Event::Timer { life, host, timer });
                }
                Action::MemberUp(member) => self.ups.push((host, member.host.0)),
                Action::MemberDown(member) => {
                    self.downs.push((self.now, host, member.host.0));
                }
            }
        }
    }

    pub(super) fn push(&mut self, after: Duration, event: Event) {
        self.count += 1;
        self.queue.push(Reverse((self.now + after, self.count, event)));
    }

    /// splitmix64.
    pub(super) fn random(&mut self, below: u64) -> u64 {
        self.rng = self.rng.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.rng;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % below
    }

    pub(super) fn gossip(&self, host: u64) -> &Gossip {
        &self.hosts[&host].gossip
    }

    pub(super) fn all_know_all(&self) -> bool {
        self.hosts.iter().all(|(own, state)| {
            let known: BTreeSet<u64> = state.gossip.members().map(|m| m.host.0).collect();
            self.hosts.keys().filter(|host| *host != own).eq(&known)
        })
    }
}

pub(super) fn addr(host: u64) -> String {
    format!("10.0.0.{host}:7600")
}

pub(super) fn member(host: u64, incarnation: u64) -> GossipMember {
    GossipMember { host: HostId(host), incarnation, addr: addr(host) }
}

pub(super) fn digest(host: u64, applied: u64, devices: u64) -> StatusDigest {
    StatusDigest {
        host: HostId(host),
        incarnation: 0,
        version: 0,
        boot: BootId(host.into()),
        at_ms: 1_700_000_000_000,
        addr: addr(host),
        applied,
        attempts: 2,
        load_milli: 1_500,
        devices: (0..devices)
            .map(|i| DeviceReading {
                uuid: DeviceUuid(format!("GPU-00000000-0000-0000-0000-{host:06}{i:06}")),
                busy_permille: Some(990),
                vram_used_mib: Some(70_000),
                temperature_c: Some(65),
                power_mw: Some(600_000),
                clock_permille: Some(990),
            })
            .collect(),
    }
}

pub(super) const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}
