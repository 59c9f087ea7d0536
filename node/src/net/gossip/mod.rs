//! Who is there, and how they do: membership by SWIM (foca) with each host's status on top. Sans-io: no sockets, no
//! clock, no threads; time and randomness enter as data, packets and timers leave as [`Action`]s. `driver` gives it
//! a clock and the network.
//!
//! Architecture Invariant: gossip informs. It never decides an allocation and never fences a task.
//!
//! A packet is believed only from the host that its certificate names; what it says about third hosts is hearsay.

mod codec;
mod driver;
mod status;

#[cfg(test)]
mod sim;
#[cfg(test)]
mod tests;

pub use driver::{Change, GossipDriver, GossipHandle, driver};
pub use status::HostStatus;

use codec::{Codec, Member};
use foca::{AccumulatingRuntime, Foca, OwnedNotification, PeriodicParams};
use foca_rand::SeedableRng as _;
use foca_rand::rngs::SmallRng;
use rota_protocol::HostId;
use rota_protocol::gossip::{GossipMember, StatusDigest};
use rota_protocol::limits::GOSSIP_BYTES_MAX;
use std::collections::BTreeMap;
use std::num::{NonZeroU8, NonZeroUsize};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Most hosts that are remembered: ten times the largest cluster that is aimed at.
const GOSSIP_HOSTS_MAX: usize = 10_000;
/// One random member is probed at this interval.
const PROBE_PERIOD: Duration = Duration::from_millis(500);
/// It must answer within this, or others are asked to probe it.
const PROBE_RTT: Duration = Duration::from_millis(200);
/// A suspect has this long to contradict.
const SUSPECT_TIME: Duration = Duration::from_millis(2_500);
/// News go to a few random members at this interval.
const GOSSIP_PERIOD: Duration = Duration::from_millis(200);
/// The list of members is asked of a random one at this interval.
const ANNOUNCE_PERIOD: Duration = Duration::from_secs(10);
/// Members that are down are tried at this interval, so that two halves find each other again.
const DOWN_ANNOUNCE_PERIOD: Duration = Duration::from_secs(5);
/// The dead are forgotten after this long.
const FORGET_TIME: Duration = Duration::from_secs(24 * 3_600);
/// An announcement is one packet that nobody confirms: repeated until somebody knows us.
const JOIN_RETRY: Duration = Duration::from_millis(500);
/// Seeds that are asked at each try.
const SEEDS_PER_TRY: usize = 3;
/// Status goes out at this interval in a small cluster ..
const STATUS_PERIOD: Duration = Duration::from_secs(2);
/// .. and at this much per member in a large one: packets carry a bounded number of digests.
const STATUS_PERIOD_PER_MEMBER: Duration = Duration::from_millis(30);
/// Each news is sent on this often at least.
const TRANSMISSIONS_MIN: u8 = 10;

/// A timer of the protocol; give it back when its time has come. Timers that are due together go in this order.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct GossipTimer(Timer);

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    Protocol(foca::Timer<Member>),
    Join,
}

/// What is to be done after a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Send a packet; it may be lost.
    Send {
        /// To whom, with the address that it gives.
        to: GossipMember,
        /// At most [`GOSSIP_BYTES_MAX`].
        bytes: Vec<u8>,
    },
    /// Call [`Gossip::handle_timer`] after this long.
    Schedule {
        /// From now.
        after: Duration,
        /// With this.
        timer: GossipTimer,
    },
    /// A host is there, or has begun another life.
    MemberUp(GossipMember),
    /// A host does not answer any more.
    MemberDown(GossipMember),
}

/// How gossip sees a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seen {
    /// Answers.
    Alive,
    /// Did not answer; has time to contradict.
    Suspect,
    /// Declared gone.
    Down,
    /// Never heard of.
    Unknown,
}

impl Seen {
    /// The word that views use.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Alive => "alive",
            Self::Suspect => "suspect",
            Self::Down => "down",
            Self::Unknown => "unknown",
        }
    }
}

/// The gossip of one host. All `now`s are time since any fixed moment, the same for every call.
pub struct Gossip {
    foca: Foca<Member, Codec, SmallRng, status::Shared>,
    status: status::Shared,
    out: AccumulatingRuntime<Member>,
    seeds: Vec<(HostId, String)>,
    seed_turn: usize,
    /// Somebody knows us.
    active: bool,
    version: u64,
    device_turn: usize,
    transmissions: u8,
    own: HostId,
    /// The newest life of this host that anybody spoke of.
    own_seen: Arc<AtomicU64>,
}

impl Gossip {
    /// The gossip of `me`. `me.incarnation` must be larger at each start of the agent (the wall clock in ms will
    /// do: one that was set back is noticed and outbid). `rng_seed` makes runs repeatable.
    #[must_use]
    pub fn new(me: GossipMember, rng_seed: u64) -> Self {
        let own = me.host;
        let status = status::Shared::new(own);
        let own_seen = Arc::new(AtomicU64::new(0));
        Self {
            foca: Foca::with_custom_broadcast(
                Member(me),
                config(TRANSMISSIONS_MIN),
                SmallRng::seed_from_u64(rng_seed),
                Codec::new(own, own_seen.clone()),
                status.clone(),
            ),
            status,
            out: AccumulatingRuntime::new(),
            seeds: Vec::new(),
            seed_turn: 0,
            active: false,
            version: 0,
            device_turn: 0,
            transmissions: TRANSMISSIONS_MIN,
            own,
            own_seen,
        }
    }

    /// Begins, or begins again: looks for members among these hosts until one answers. Call it once at the start;
    /// [`Self::set_seeds`] changes the list later.
    pub fn start(&mut self, now: Duration, seeds: Vec<(HostId, String)>) -> Vec<Action> {
        self.set_seeds(seeds);
        self.handle_timer(now, GossipTimer(Timer::Join))
    }

    /// Hosts to look for while nobody answers.
    pub fn set_seeds(&mut self, mut seeds: Vec<(HostId, String)>) {
        seeds.retain(|(host, addr)| *host != self.own && super::identity::is_addr(addr));
        seeds.truncate(GOSSIP_HOSTS_MAX);
        self.seeds = seeds;
    }

    /// A packet came from the host that its certificate names.
    pub fn handle_datagram(&mut self, now: Duration, from: HostId, bytes: &[u8]) -> Vec<Action> {
        let parties = codec::parties(bytes).filter(|(src, _)| src.host == from);
        let (Some((_, to)), true) = (parties, bytes.len() <= GOSSIP_BYTES_MAX) else {
            tracing::debug!(host = %from, "malformed gossip, or in another host's name, dropped");
            return Vec::new();
        };
        if to.host == self.own {
            // Meant for a newer life of this host: see `outbid`. The protocol itself would only drop it.
            self.own_seen.fetch_max(to.incarnation, Ordering::Relaxed);
        }
        self.status.lock().now = now;
        let result = self.foca.handle_data(bytes, &mut self.out);
        self.finish(now, "packet", result)
    }

    /// The time of a timer has come.
    pub fn handle_timer(&mut self, now: Duration, timer: GossipTimer) -> Vec<Action> {
        self.status.lock().now = now;
        match timer.0 {
            Timer::Protocol(timer) => {
                let result = self.foca.handle_timer(timer, &mut self.out);
                self.finish(now, "timer", result)
            }
            Timer::Join => {
                let mut result = Ok(());
                if !self.active {
                    for _ in 0..SEEDS_PER_TRY.min(self.seeds.len()) {
                        let (host, addr) = &self.seeds[self.seed_turn % self.seeds.len()];
                        self.seed_turn = self.seed_turn.wrapping_add(1);
                        // Whoever lives there takes an announcement under any incarnation.
                        let target = Member(GossipMember { host: *host, incarnation: 0, addr: addr.clone() });
                        result = result.and(self.foca.announce(target, &mut self.out));
                    }
                }
                let mut actions = self.finish(now, "announcement", result);
                actions.push(Action::Schedule { after: JOIN_RETRY, timer: GossipTimer(Timer::Join) });
                actions
            }
        }
    }

    /// This host's own news, to be called once per [`Self::status_period`]. `host`, `incarnation` and `version` are
    /// filled in here; readings that do not fit go with the next ones.
    pub fn set_status(&mut self, now: Duration, mut digest: StatusDigest) {
        let (incarnation, version) = {
            let mut table = self.status.lock();
            table.now = now;
            table.own_seen
        };
        let me = &self.foca.identity().0;
        if incarnation >= me.incarnation {
            self.version = self.version.max(version);
        }
        self.version += 1;
        digest.host = me.host;
        digest.incarnation = me.incarnation.max(incarnation);
        digest.version = self.version;
        let (bytes, fitted) = status::encode_fitting(digest, self.device_turn);
        self.device_turn = self.device_turn.wrapping_add(fitted);
        if let Err(error) = self.foca.add_broadcast(&bytes) {
            tracing::warn!(?error, "own status not spread");
        }
        self.adapt();
    }

    /// How often status goes out: it grows with the cluster.
    #[must_use]
    pub fn status_period(&self) -> Duration {
        let members = u32::try_from(self.foca.num_members()).unwrap_or(u32::MAX);
        STATUS_PERIOD.max(STATUS_PERIOD_PER_MEMBER.saturating_mul(members))
    }

    /// Every other host that is there, suspects included.
    pub fn members(&self) -> impl Iterator<Item = &GossipMember> {
        self.foca.iter_members().map(|member| &member.id().0)
    }

    /// How a host is seen.
    #[must_use]
    pub fn seen(&self, host: HostId) -> Seen {
        if host == self.own {
            return Seen::Alive;
        }
        let mut members = self.foca.iter_membership_state();
        match members.find(|m| m.id().0.host == host).map(foca::Member::state) {
            Some(foca::State::Alive) => Seen::Alive,
            Some(foca::State::Suspect) => Seen::Suspect,
            Some(foca::State::Down) => Seen::Down,
            None => Seen::Unknown,
        }
    }

    /// How every other host is seen that was ever heard of: one look, where one for each host would look at all of them.
    #[must_use]
    pub fn all_seen(&self) -> BTreeMap<HostId, Seen> {
        let seen = |state| match state {
            foca::State::Alive => Seen::Alive,
            foca::State::Suspect => Seen::Suspect,
            foca::State::Down => Seen::Down,
        };
        self.foca.iter_membership_state().map(|m| (m.id().0.host, seen(m.state()))).collect()
    }

    /// A host's news, its own included; none if the last are older than three periods (fault N12).
    #[must_use]
    pub fn status(&self, now: Duration, host: HostId) -> Option<HostStatus> {
        self.status.lock().status(host, now, self.status_period())
    }

    /// Says goodbye: the others need not wait for a probe to fail.
    pub fn leave(&mut self, now: Duration) -> Vec<Action> {
        let result = self.foca.leave_cluster(&mut self.out);
        self.finish(now, "leave", result)
    }

    /// Turns what the protocol left behind into actions.
    fn finish(&mut self, now: Duration, what: &str, result: Result<(), foca::Error>) -> Vec<Action> {
        if let Err(error) = result {
            tracing::debug!(what, ?error, "gossip");
        }
        let mut actions = Vec::new();
        self.drain(&mut actions);
        if let Some(outbid) = self.outbid() {
            let result = self.foca.change_identity(outbid, &mut self.out);
            if let Err(error) = result {
                tracing::debug!(what, ?error, ?now, "gossip");
            }
            self.drain(&mut actions);
        }
        actions
    }

    /// Somebody knows a newer life of this host: our clock was set back between two starts, or a lie. Outbid it.
    fn outbid(&self) -> Option<Member> {
        let seen = self.own_seen.load(Ordering::Relaxed);
        let me = self.foca.identity();
        (seen > me.0.incarnation).then(|| {
            let mut next = me.clone();
            next.0.incarnation = seen.saturating_add(1);
            next
        })
    }

    fn drain(&mut self, actions: &mut Vec<Action>) {
        while let Some((to, bytes)) = self.out.to_send() {
            actions.push(Action::Send { to: to.0, bytes: bytes.to_vec() });
        }
        while let Some((after, timer)) = self.out.to_schedule() {
            actions.push(Action::Schedule { after, timer: GossipTimer(Timer::Protocol(timer)) });
        }
        while let Some(note) = self.out.to_notify() {
            match note {
                OwnedNotification::MemberUp(Member(member)) => up(actions, member),
                OwnedNotification::MemberDown(Member(member)) => {
                    actions.push(Action::MemberDown(member));
                }
                OwnedNotification::Rename(_, Member(member)) => {
                    if self.seen(member.host) != Seen::Down {
                        up(actions, member);
                    }
                }
                OwnedNotification::Active => self.active = true,
                OwnedNotification::Idle | OwnedNotification::Defunct => self.active = false,
                OwnedNotification::Rejoin(Member(member)) => {
                    tracing::info!(incarnation = member.incarnation, "gossip took us for dead");
                }
            }
        }
    }

    /// News must be passed on more often in a larger cluster: four times the logarithm of its size.
    fn adapt(&mut self) {
        let decades = (self.foca.num_members() + 1).ilog10() + 1;
        let wanted = u8::try_from(4 * decades).unwrap_or(u8::MAX).max(TRANSMISSIONS_MIN);
        if wanted != self.transmissions && self.foca.set_config(config(wanted)).is_ok() {
            self.transmissions = wanted;
        }
    }
}

/// A new life of a host that was down is told twice by the protocol.
fn up(actions: &mut Vec<Action>, member: GossipMember) {
    let up = Action::MemberUp(member);
    if !actions.contains(&up) {
        actions.push(up);
    }
}

fn config(transmissions: u8) -> foca::Config {
    const THREE: NonZeroUsize = NonZeroUsize::MIN.saturating_add(2);
    const TWO: NonZeroUsize = NonZeroUsize::MIN.saturating_add(1);
    let every = |frequency, num_members| Some(PeriodicParams { frequency, num_members });
    foca::Config {
        probe_period: PROBE_PERIOD,
        probe_rtt: PROBE_RTT,
        num_indirect_probes: THREE,
        max_transmissions: NonZeroU8::new(transmissions).unwrap_or(NonZeroU8::MIN),
        suspect_to_down_after: SUSPECT_TIME,
        remove_down_after: Some(FORGET_TIME),
        max_packet_size: NonZeroUsize::new(GOSSIP_BYTES_MAX).unwrap_or(NonZeroUsize::MIN),
        notify_down_members: true,
        periodic_announce: every(ANNOUNCE_PERIOD, NonZeroUsize::MIN),
        periodic_announce_to_down_members: every(DOWN_ANNOUNCE_PERIOD, TWO),
        periodic_gossip: every(GOSSIP_PERIOD, THREE),
    }
}
