//! What goes wrong in a soak: agents killed, stopped and frozen, links cut, lossy and slow, disks full and slow. Each has a
//! time of its own, and up to three overlap. All of it ends with its leg.

use super::Voice;
use crate::real::mounts::Mounted;
use crate::real::proxy::{Fault, Wires};
use crate::real::slow_disk::Throttle;
use crate::world::rng::Rng;
use rota_node::lab::{Lab, LabError};
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// What a soak of ten minutes or more must have met.
pub(super) const MUST: [&str; 15] = [
    "leader_killed_count",
    "agent_killed_count",
    "all_killed_count",
    "agent_stopped_count",
    "agent_frozen_count",
    "host_cut_off_count",
    "one_way_cut_count",
    "link_cut_count",
    "lossy_count",
    "disordered_count",
    "slow_links_count",
    "leader_changes_count",
    "leases_expired_count",
    "attempts_repeated_count",
    "asked_twice_count",
];
/// Faults that overlap at most.
const AT_ONCE_MAX: usize = 3;
/// Between the beginnings of two faults, in ms.
const GAP_MS: (u64, u64) = (500, 5_000);
/// How often it is looked at what is over.
const LOOK: Duration = Duration::from_millis(50);
/// Operations a second of a disk that is slow.
const SLOW_OPERATIONS: u32 = 3;

/// A kind of fault, with how often it comes compared with the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    KillLeader,
    Kill,
    KillAll,
    Stop,
    Freeze,
    CutOff,
    OneWay,
    CutLink,
    Lossy,
    Disordered,
    Slow,
    Full,
    SlowDisk,
}

const KINDS: [(Kind, u64); 13] = [
    (Kind::KillLeader, 5),
    (Kind::Kill, 4),
    (Kind::KillAll, 1),
    (Kind::Stop, 3),
    (Kind::Freeze, 4),
    (Kind::CutOff, 4),
    (Kind::OneWay, 2),
    (Kind::CutLink, 2),
    (Kind::Lossy, 2),
    (Kind::Disordered, 2),
    (Kind::Slow, 2),
    (Kind::Full, 2),
    (Kind::SlowDisk, 1),
];

/// How a fault ends.
#[derive(Debug)]
enum End {
    /// These agents are started.
    Start(Vec<usize>),
    /// This one wakes.
    Wake(usize),
    /// The network is as it was.
    Heal,
    /// There is room again.
    Empty(usize, PathBuf),
    /// The disk is as it was.
    Quick(usize, Throttle),
}

#[derive(Debug)]
struct Ongoing {
    until: Instant,
    end: End,
}

/// A leg's faults.
pub(super) struct Trouble<'a> {
    lab: &'a mut Lab,
    wires: &'a Wires,
    mounts: &'a [Mounted],
    dir: &'a Path,
    voice: Voice,
    met: &'a mut BTreeMap<String, u64>,
    ongoing: Vec<Ongoing>,
}

impl<'a> Trouble<'a> {
    pub(super) fn new(
        lab: &'a mut Lab,
        wires: &'a Wires,
        mounts: &'a [Mounted],
        (dir, voice): (&'a Path, Voice),
        met: &'a mut BTreeMap<String, u64>,
    ) -> Self {
        Self { lab, wires, mounts, dir, voice, met, ongoing: Vec::new() }
    }

    /// Does harm for so long, then mends everything.
    pub(super) async fn leg(&mut self, time: Duration, rng: &mut Rng) -> Result<(), LabError> {
        let over = Instant::now() + time;
        let mut next = Instant::now();
        while Instant::now() < over {
            self.end_due(Instant::now())?;
            self.start_ended()?;
            if Instant::now() >= next && self.ongoing.len() < AT_ONCE_MAX {
                // Drawn whether or not it can be done, so that a seed means the same sequence.
                let kind = KINDS[rng.weighted(&KINDS.map(|(_, weight)| weight))].0;
                self.begin(kind, rng).await?;
                next = Instant::now() + Duration::from_millis(rng.range(GAP_MS.0, GAP_MS.1));
            }
            tokio::time::sleep(LOOK).await;
        }
        for ongoing in std::mem::take(&mut self.ongoing) {
            self.end(ongoing.end)?;
        }
        self.wires.heal();
        self.start_ended()
    }

    /// An agent that ended by itself is started again, as its service would do.
    fn start_ended(&mut self) -> Result<(), LabError> {
        for number in 0..self.lab.peers.len() {
            if let Some(status) = self.lab.exited(number) {
                self.voice.say(&format!("n{} ended by itself: {status}", number + 1));
                *self.met.entry("agent_ended_by_itself_count".into()).or_default() += 1;
                self.lab.forget(number);
                self.lab.spawn(number)?;
            }
        }
        Ok(())
    }

    fn end_due(&mut self, now: Instant) -> Result<(), LabError> {
        let all = std::mem::take(&mut self.ongoing);
        let (due, rest) = all.into_iter().partition(|one| one.until <= now);
        self.ongoing = rest;
        let due: Vec<Ongoing> = due;
        due.into_iter().try_for_each(|one| self.end(one.end))
    }

    fn end(&mut self, end: End) -> Result<(), LabError> {
        match end {
            End::Start(numbers) => {
                for number in numbers {
                    self.lab.spawn(number)?;
                }
            }
            End::Wake(number) => self.lab.signal(number, Signal::CONT)?,
            End::Heal => self.wires.heal(),
            End::Empty(_, filler) => {
                std::fs::remove_file(filler).map_err(|e| LabError::Io("cannot empty a disk".into(), e))?;
            }
            End::Quick(_, throttle) => drop(throttle),
        }
        Ok(())
    }

    /// Nothing else is wrong with this agent's process or disk.
    fn is_whole(&self, number: usize) -> bool {
        let touched = |one: &Ongoing| match &one.end {
            End::Start(numbers) => numbers.contains(&number),
            End::Wake(other) | End::Empty(other, _) | End::Quick(other, _) => *other == number,
            End::Heal => false,
        };
        self.lab.peers[number].pid().is_some() && !self.ongoing.iter().any(touched)
    }

    fn network_is_whole(&self) -> bool {
        !self.ongoing.iter().any(|one| matches!(one.end, End::Heal))
    }

    fn note(&mut self, what: &str, told: &str, until_ms: u64, end: End) {
        *self.met.entry(format!("{what}_count")).or_default() += 1;
        self.voice.say(&format!("{told}, for {until_ms} ms"));
        self.ongoing.push(Ongoing { until: Instant::now() + Duration::from_millis(until_ms), end });
    }

    /// Who leads, as the first says that answers soon.
    async fn leader(&self) -> Option<usize> {
        let view = tokio::time::timeout(Duration::from_millis(500), self.lab.cluster()).await.ok()?.ok()?;
        self.lab.peers.iter().position(|peer| Some(peer.host) == view.leader)
    }

    async fn begin(&mut self, kind: Kind, rng: &mut Rng) -> Result<(), LabError> {
        let drawn = usize::try_from(rng.below(self.lab.peers.len() as u64)).unwrap_or(0);
        // Mostly shorter than a lease, sometimes longer.
        let long = rng.chance(200);
        let ms = if long { rng.range(5_500, 9_000) } else { rng.range(100, 2_500) };
        let name = format!("n{}", drawn + 1);
        match kind {
            Kind::KillLeader => {
                if let Some(leader) = self.leader().await.filter(|leader| self.is_whole(*leader)) {
                    self.lab.signal(leader, Signal::KILL)?;
                    let told = format!("n{} killed, which leads", leader + 1);
                    self.note("leader_killed", &told, ms, End::Start(vec![leader]));
                }
            }
            Kind::Kill if self.is_whole(drawn) => {
                self.lab.signal(drawn, Signal::KILL)?;
                self.note("agent_killed", &format!("{name} killed"), ms, End::Start(vec![drawn]));
            }
            Kind::KillAll => {
                let all: Vec<usize> = (0..self.lab.peers.len()).filter(|at| self.is_whole(*at)).collect();
                for number in &all {
                    self.lab.signal(*number, Signal::KILL)?;
                }
                if all.len() > 2 {
                    self.note(
                        "all_killed",
                        &format!("{} agents killed at once", all.len()),
                        ms.min(1_500),
                        End::Start(all),
                    );
                } else {
                    self.end(End::Start(all))?;
                }
            }
            Kind::Stop if self.is_whole(drawn) => {
                self.lab.stop(drawn).await?;
                self.note("agent_stopped", &format!("{name} stopped in order"), ms, End::Start(vec![drawn]));
            }
            Kind::Freeze if self.is_whole(drawn) => {
                self.lab.signal(drawn, Signal::STOP)?;
                self.note("agent_frozen", &format!("{name} frozen"), ms, End::Wake(drawn));
            }
            Kind::Full if drawn < self.mounts.len() && self.is_whole(drawn) => {
                let filler = self.mounts[drawn].fill()?;
                self.note("disk_full", &format!("{name} has a full disk"), ms, End::Empty(drawn, filler));
            }
            Kind::SlowDisk if drawn >= self.mounts.len() && self.is_whole(drawn) => self.slow_disk(drawn, ms),
            Kind::CutOff | Kind::OneWay | Kind::CutLink | Kind::Lossy | Kind::Disordered | Kind::Slow
                if self.network_is_whole() =>
            {
                self.spoil(kind, drawn, ms, rng);
            }
            // Something is wrong there already.
            _ => {}
        }
        Ok(())
    }

    fn slow_disk(&mut self, number: usize, ms: u64) {
        if Throttle::missing(self.dir).is_some() {
            return;
        }
        let pid = self.lab.peers[number].pid().unwrap_or_default();
        if let Ok(throttle) = Throttle::around(pid, self.dir, SLOW_OPERATIONS) {
            self.note(
                "slow_disk",
                &format!("n{} has a slow disk", number + 1),
                ms,
                End::Quick(number, throttle),
            );
        }
    }

    fn spoil(&mut self, kind: Kind, number: usize, ms: u64, rng: &mut Rng) {
        let other = (number + 1 + usize::try_from(rng.below(3)).unwrap_or(0)) % self.lab.peers.len();
        let (a, b) = (format!("n{}", number + 1), format!("n{}", other + 1));
        let (what, told) = match kind {
            Kind::CutOff => {
                self.wires.set_around(number, Fault::CUT);
                ("host_cut_off", format!("{a} cut off"))
            }
            Kind::OneWay if rng.chance(500) => {
                self.wires.set_from(number, Fault::CUT);
                ("one_way_cut", format!("{a} not heard"))
            }
            Kind::OneWay => {
                self.wires.set_to(number, Fault::CUT);
                ("one_way_cut", format!("{a} hears nothing"))
            }
            Kind::CutLink => {
                self.wires.set(number, other, Fault::CUT);
                self.wires.set(other, number, Fault::CUT);
                ("link_cut", format!("{a} and {b} cut apart"))
            }
            Kind::Lossy => {
                let permille = [50, 200, 400][usize::try_from(rng.below(3)).unwrap_or(0)];
                self.wires.set_all(Fault { loss_permille: permille, ..Fault::default() });
                ("lossy", format!("{permille} of 1,000 packets lost everywhere"))
            }
            Kind::Disordered => {
                let fault = Fault { duplicate_permille: 500, reorder_permille: 250, ..Fault::default() };
                self.wires.set_all(fault);
                ("disordered", "packets doubled and out of order everywhere".to_owned())
            }
            _ => {
                let delay_ms = rng.range(20, 120);
                self.wires.set_all(Fault { delay_ms, ..Fault::default() });
                ("slow_links", format!("all packets {delay_ms} ms late"))
            }
        };
        self.note(what, &told, ms, End::Heal);
    }
}
