//! What goes wrong, when, and when it is over.

use super::params::Profile;
use super::queue::{Ev, Machine, Outside};
use super::sim::World;
use rota_protocol::HostId;
use std::collections::{BTreeMap, BTreeSet};

/// In quiet runs a control plane is away no longer than this: with an election and a registration on top it stays
/// below what a lease survives.
const QUIET_DOWN_MS_MAX: u64 = 1_000;
/// A machine needs at least this long to come back.
const REBOOT_MS: (u64, u64) = (1_000, 9_000);

/// How long a slow host is cut off then: longer than its lease.
const CUT_AFTER_SLOW_MS: u64 = 7_000;

/// A fault that lasts.
#[derive(Debug, Clone)]
pub enum Fault {
    /// Links that are cut, by direction.
    Cut(BTreeSet<(HostId, HostId)>),
    /// The agent's process is stopped.
    Frozen(HostId),
    /// Messages are lost, per mille.
    Storm(u64),
    /// All messages take longer, in ms.
    Lag(u64),
    /// What goes to one host takes longer, in ms; then it is cut off.
    Slow(HostId, u64),
    /// Log writes take longer, in ms.
    Disk(u64),
    /// One replica applies slowly, in ms.
    Apply(HostId, u64),
}

/// The faults that last.
#[derive(Debug, Default)]
pub struct Nemesis {
    active: BTreeMap<u64, Fault>,
    next: u64,
}

impl World {
    /// Something breaks.
    pub(super) fn fault(&mut self) {
        if self.healed {
            return;
        }
        let gap = self.params.fault_gap_ms;
        let quiet = self.params.profile == Profile::Quiet;
        let next = self.now + if quiet { gap } else { self.rng.range(1, 2 * gap) };
        self.queue.push(next, Ev::Outside(Outside::Fault));
        // crash, freeze, reboot, isolate, one way, leader and host, split, transfer, storm, lag, disk, apply, all,
        // wall clock, slow then cut off
        let weights: [u64; 15] = match self.params.profile {
            Profile::Storm => [12, 10, 6, 10, 6, 8, 6, 8, 6, 4, 5, 6, 3, 4, 8],
            Profile::Partitions => [2, 4, 1, 20, 12, 25, 12, 6, 6, 4, 2, 2, 1, 2, 15],
            Profile::Crashes => [25, 20, 15, 2, 1, 2, 1, 6, 2, 2, 6, 6, 6, 2, 2],
            Profile::Quiet => [40, 0, 0, 0, 0, 0, 0, 20, 0, 0, 0, 0, 20, 0, 0],
        };
        let host = HostId(self.rng.range(1, self.hosts.len() as u64));
        // Mostly longer than a moment, now and then longer than a lease.
        let long =
            if self.rng.chance(300) { self.rng.range(4_000, 12_000) } else { self.rng.range(100, 4_000) };
        match self.rng.weighted(&weights) {
            0 => self.crash(host, if quiet { long % QUIET_DOWN_MS_MAX } else { long }),
            1 => self.freeze(host, long),
            2 => self.reboot(host),
            3 => {
                let cuts = self.cut_off(&BTreeSet::from([host]));
                self.lasting(Fault::Cut(cuts), long);
            }
            4 => self.one_way(host, long),
            5 => self.leader_and_host(host, long),
            6 => self.split(long),
            7 => self.log.transfer = true,
            8 => {
                let permille = self.rng.range(50, 500);
                self.lasting(Fault::Storm(permille), long);
            }
            9 => {
                let lag = self.rng.range(10, 400);
                self.lasting(Fault::Lag(lag), long);
            }
            10 => {
                let lag = self.rng.range(50, 2_000);
                self.lasting(Fault::Disk(lag), long);
            }
            11 => {
                let lag = self.rng.range(50, 3_000);
                self.lasting(Fault::Apply(host, lag), long);
            }
            12 => self.restart_all(if quiet { long % QUIET_DOWN_MS_MAX } else { long }),
            13 => self.host_mut(host).wall_off_ms = self.rng.range(0, 3_000),
            _ => {
                let host = self.busy_host(host);
                let lag = self.rng.range(500, 2_500);
                self.lasting(Fault::Slow(host, lag), 2 * lag);
            }
        }
    }

    /// A host on which something runs, if there is one: there a fault does more harm.
    fn busy_host(&mut self, otherwise: HostId) -> HostId {
        let busy: Vec<HostId> =
            self.ids().filter(|id| self.host(*id).shims.values().any(super::shim::Shim::is_live)).collect();
        self.rng.pick(&busy).unwrap_or(otherwise)
    }

    fn crash(&mut self, host: HostId, down_ms: u64) {
        self.kill_agent(host);
        if self.host(host).up {
            self.machine_after(host, down_ms, Machine::StartAgent);
        }
    }

    fn freeze(&mut self, host: HostId, for_ms: u64) {
        if !self.answers(host) {
            return;
        }
        // The leader is the more interesting one.
        let host = self.log.leader.filter(|l| self.answers(*l) && self.rng.chance(400)).unwrap_or(host);
        self.host_mut(host).frozen = true;
        self.reach.hit("agent frozen");
        self.note(|| format!("the agent of host {host} is stopped for {for_ms} ms"));
        self.lasting(Fault::Frozen(host), for_ms);
    }

    fn reboot(&mut self, host: HostId) {
        if !self.host(host).up {
            return;
        }
        self.power_off(host);
        self.host_mut(host).boots += 1;
        self.reach.hit("host restarted");
        let after = self.rng.range(REBOOT_MS.0, REBOOT_MS.1);
        self.machine_after(host, after, Machine::Boot);
    }

    /// Power is back: another boot, another clock, no process.
    pub(super) fn boot(&mut self, host: HostId) {
        let (now, origin) = (self.now, self.rng.range(1_000, 1_000_000));
        let host = self.host_mut(host);
        host.up = true;
        host.clock.since_ms = now;
        host.clock.origin_ms = origin;
        let id = host.id;
        self.start_agent(id);
    }

    fn restart_all(&mut self, down_ms: u64) {
        self.reach.hit("whole cluster restarted");
        for host in self.ids() {
            let after = if down_ms == 0 { 0 } else { self.rng.range(down_ms / 2, down_ms) };
            self.crash(host, after);
        }
    }

    /// Everything between a group and the rest is cut.
    fn cut_off(&self, group: &BTreeSet<HostId>) -> BTreeSet<(HostId, HostId)> {
        let pairs = self.ids().flat_map(|a| self.ids().map(move |b| (a, b)));
        pairs.filter(|(a, b)| group.contains(a) != group.contains(b)).collect()
    }

    fn one_way(&mut self, host: HostId, for_ms: u64) {
        let out = self.rng.chance(500);
        let cuts = self.cut_off(&BTreeSet::from([host]));
        let cuts = cuts.into_iter().filter(|(from, _)| (*from == host) == out).collect();
        self.lasting(Fault::Cut(cuts), for_ms);
    }

    /// A leader that is cut off together with a host, which goes on hearing it (fault N4, N2).
    fn leader_and_host(&mut self, host: HostId, for_ms: u64) {
        let Some(leader) = self.log.leader else { return };
        let host = self.busy_host(host);
        let group = BTreeSet::from([leader, host]);
        if group.len() * 2 > self.hosts.len() {
            return;
        }
        self.reach.hit("leader cut off with a host");
        let for_ms = for_ms.max(7_000);
        let cuts = self.cut_off(&group);
        self.lasting(Fault::Cut(cuts), for_ms);
    }

    fn split(&mut self, for_ms: u64) {
        let group = self.ids().filter(|_| self.rng.chance(500)).collect();
        let cuts = self.cut_off(&group);
        self.lasting(Fault::Cut(cuts), for_ms);
    }

    fn lasting(&mut self, fault: Fault, for_ms: u64) {
        self.note(|| format!("for {for_ms} ms: {fault:?}"));
        let number = self.nemesis.next;
        self.nemesis.next += 1;
        self.nemesis.active.insert(number, fault);
        self.queue.push(self.now + for_ms, Ev::Outside(Outside::Undo(number)));
        self.refresh();
    }

    /// A fault is over.
    pub(super) fn undo(&mut self, number: u64) {
        if let Some(fault) = self.nemesis.active.remove(&number) {
            self.note(|| format!("over: {fault:?}"));
            match fault {
                Fault::Frozen(host) => self.thaw(host),
                Fault::Slow(host, _) if !self.healed => {
                    let cuts = self.cut_off(&BTreeSet::from([host]));
                    self.lasting(Fault::Cut(cuts), CUT_AFTER_SLOW_MS);
                }
                _ => {}
            }
            self.refresh();
        }
    }

    /// The process goes on: what reached it meanwhile happens now, in order.
    fn thaw(&mut self, host: HostId) {
        let still = |f: &Fault| matches!(f, Fault::Frozen(other) if *other == host);
        if self.nemesis.active.values().any(still) {
            return;
        }
        let now = self.now;
        let machine = self.host_mut(host);
        machine.frozen = false;
        for event in std::mem::take(&mut machine.held) {
            self.queue.push(now, event);
        }
    }

    /// What lasts, added up.
    fn refresh(&mut self) {
        let mut cuts = BTreeSet::new();
        let (mut storm, mut lag, mut disk) = (0, 0, 0);
        let (mut apply, mut slow) = (BTreeMap::new(), BTreeMap::new());
        for fault in self.nemesis.active.values() {
            match fault {
                Fault::Cut(links) => cuts.extend(links.iter().copied()),
                Fault::Frozen(_) => {}
                Fault::Storm(permille) => storm = storm.max(*permille),
                Fault::Lag(ms) => lag = lag.max(*ms),
                Fault::Disk(ms) => disk = disk.max(*ms),
                Fault::Slow(host, ms) => {
                    slow.insert(*host, *ms);
                }
                Fault::Apply(host, ms) => {
                    apply.insert(*host, *ms);
                }
            }
        }
        self.net.set_cuts(cuts);
        self.net.slow_to = slow;
        (self.net.storm_permille, self.net.lag_ms, self.disk_lag_ms) = (storm, lag, disk);
        for host in self.ids() {
            self.host_mut(host).apply_lag_ms = apply.get(&host).copied().unwrap_or(0);
        }
    }

    /// All faults stop; what is down comes up.
    pub(super) fn heal(&mut self) {
        self.healed = true;
        self.note(|| "all faults stop".to_owned());
        let active: Vec<u64> = self.nemesis.active.keys().copied().collect();
        for number in active {
            self.undo(number);
        }
        self.params.loss_permille = 0;
        for host in self.ids() {
            if self.host(host).up {
                self.start_agent(host);
            } else {
                self.boot(host);
            }
        }
        self.begin_settling();
    }
}
