//! Who votes: the leader's decisions. One, three or five hosts vote, as far apart as their labels say, and one that is lost
//! is replaced by one that is caught up. Who is a member at all is `standby.rs`'s to say.
//!
//! Pure: a look at the cluster goes in, at most one change and the reason for it come out. The laws: one change at a
//! time, with a pause behind it; an odd number of voters; never a set of voters without a living majority; nobody votes
//! who is behind; the leader stays among the voters unless it was removed itself.

mod advice;
mod spread;
mod standby;

pub use advice::{advice, refusal, tolerates};
pub use standby::MEMBERS_MAX;

use rota_protocol::HostId;
use std::collections::BTreeSet;

/// Entries that a host may be behind and still be made a voter: one heartbeat's worth under load.
pub const PROMOTE_LAG_MAX: u64 = 256;
/// Pause between two changes of the membership, in ms.
pub const PAUSE_MS: u64 = 250;
/// Voters that one change adds at most.
const PAIR: usize = 2;
/// Labels by which hosts say where they stand: what fails together, the widest first.
pub const DOMAINS: [&str; 2] = ["zone", "rack"];

/// One host as the leader sees it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Peer {
    /// Its number.
    pub id: HostId,
    /// Its name.
    pub name: String,
    /// Its lease holds.
    pub up: bool,
    /// Its lease ran out. A host that never registered is neither up nor lost.
    pub lost: bool,
    /// It was removed from the cluster.
    pub removed: bool,
    /// The leader feeds it; others follow their peers.
    pub member: bool,
    /// It votes.
    pub voter: bool,
    /// How many entries it is behind, if it ever answered.
    pub lag: Option<u64>,
    /// Where it stands, by [`DOMAINS`].
    pub site: [Option<String>; 2],
    /// An operator wants it to vote.
    pub wished: bool,
}

impl Peer {
    /// It may be made a voter.
    fn is_ready(&self) -> bool {
        self.up
            && self.member
            && !self.removed
            && !self.voter
            && self.lag.is_some_and(|lag| lag <= PROMOTE_LAG_MAX)
    }
}

/// The cluster as the leader sees it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Look {
    /// The leader.
    pub me: HostId,
    /// All hosts that are or were part of the cluster, by number.
    pub peers: Vec<Peer>,
    /// Up to so many hosts are members; those of a smaller cluster all are.
    pub members_max: usize,
}

/// One change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Let these follow the log.
    Follow(BTreeSet<HostId>),
    /// Let these vote, and nobody else.
    Vote(BTreeSet<HostId>),
    /// Let these, which were removed, follow no more.
    Forget(BTreeSet<HostId>),
    /// Let these follow their peers instead of the leader.
    Release(BTreeSet<HostId>),
    /// Let another voter lead: this host was removed.
    HandOver,
}

/// What is to be done, and why. Without a change, why nothing is done though something is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Decision {
    /// At most one change.
    pub change: Option<Change>,
    /// For people; empty if all is well.
    pub why: String,
}

impl Decision {
    fn change(change: Change, why: impl Into<String>) -> Self {
        Self { change: Some(change), why: why.into() }
    }

    fn waits(why: impl Into<String>) -> Self {
        Self { change: None, why: why.into() }
    }
}

/// How many of so many hosts vote.
#[must_use]
pub fn voters_wanted(hosts: usize) -> usize {
    match hosts {
        0..=2 => 1,
        3..=4 => 3,
        _ => 5,
    }
}

impl Look {
    fn peer(&self, id: HostId) -> Option<&Peer> {
        self.peers.binary_search_by_key(&id, |peer| peer.id).ok().map(|at| &self.peers[at])
    }

    fn name(&self, id: HostId) -> String {
        self.peer(id).map_or_else(|| format!("host {id}"), |peer| peer.name.clone())
    }

    fn names<'a>(&self, ids: impl IntoIterator<Item = &'a HostId>) -> String {
        let names: Vec<String> = ids.into_iter().map(|id| self.name(*id)).collect();
        names.join(", ")
    }

    fn ids(&self, is: impl Fn(&Peer) -> bool) -> BTreeSet<HostId> {
        self.peers.iter().filter(|peer| is(peer)).map(|peer| peer.id).collect()
    }

    /// Hosts that vote.
    #[must_use]
    pub fn voters(&self) -> BTreeSet<HostId> {
        self.ids(|peer| peer.voter)
    }

    /// How many hosts should vote.
    #[must_use]
    pub fn wanted(&self) -> usize {
        let hosts = self.peers.iter().filter(|peer| !peer.removed).count();
        // Of so few members an odd number.
        voters_wanted(hosts).min(self.members_max.saturating_sub(1) / 2 * 2 + 1)
    }

    fn is_up(&self, id: HostId) -> bool {
        self.peer(id).is_some_and(|peer| peer.up)
    }

    /// Of these voters more than half live.
    fn has_majority(&self, voters: &BTreeSet<HostId>) -> bool {
        voters.iter().filter(|id| self.is_up(**id) || **id == self.me).count() * 2 > voters.len()
    }
}

/// The next step of a leader that looks at a cluster in which no change is under way.
#[must_use]
pub fn decide(look: &Look) -> Decision {
    if look.is_small()
        && let Some(drafted) = standby::draft(look)
    {
        return drafted;
    }
    let decision = voters(look);
    if let Decision { change: Some(Change::Vote(next)), .. } = &decision
        && (next.len().is_multiple_of(2) || !look.has_majority(next) || !look.has_majority(&look.voters()))
    {
        return Decision::waits(format!("too few voters live for a change: {}", decision.why));
    }
    if decision.change.is_some() {
        return decision;
    }
    if let Some(drafted) = standby::draft(look) {
        return drafted;
    }
    // A host that was removed goes on following until its lease is over: it is to hear that its work must end.
    let gone = look.ids(|peer| peer.removed && peer.member && !peer.voter && !peer.up);
    if gone.is_empty() {
        return standby::release(look).unwrap_or(decision);
    }
    let why = format!("{} was removed and follows no more", look.names(&gone));
    Decision::change(Change::Forget(gone), why)
}

/// Changes of the voters, the most urgent first.
fn voters(look: &Look) -> Decision {
    let voters = look.voters();
    let removed: BTreeSet<HostId> =
        voters.iter().copied().filter(|id| look.peer(*id).is_some_and(|peer| peer.removed)).collect();
    if !removed.is_empty() {
        return without(look, &voters, &removed);
    }
    let wanted = look.wanted();
    let ready = look.ids(Peer::is_ready);
    let lost: Vec<HostId> =
        voters.iter().copied().filter(|id| look.peer(*id).is_some_and(|peer| peer.lost)).collect();
    if let (Some(out), false) = (lost.first(), ready.is_empty()) {
        let base: BTreeSet<HostId> = voters.iter().copied().filter(|id| id != out).collect();
        if let Some(new) = spread::best(look, &base, &ready) {
            let next = base.iter().copied().chain([new]).collect();
            let why = format!(
                "{} votes instead of {}, which is lost{}",
                look.name(new),
                look.name(*out),
                at(look, new)
            );
            return Decision::change(Change::Vote(next), why);
        }
    }
    if voters.len() < wanted {
        return grow(look, voters, wanted, &ready);
    }
    if voters.len() > wanted {
        let next = spread::keep(look, &voters, wanted);
        let out: Vec<HostId> = voters.difference(&next).copied().collect();
        let why = format!("{wanted} of so many hosts are enough: {} votes no more", look.names(&out));
        return Decision::change(Change::Vote(next), why);
    }
    if let Some(out) = lost.first() {
        return Decision::waits(format!(
            "{} votes and is lost, and no host that is caught up can take its place",
            look.name(*out)
        ));
    }
    spread::swap(look, &voters, &ready)
        .map_or_else(Decision::default, |(next, why)| Decision::change(Change::Vote(next), why))
}

/// Voters grow by pairs: an even number tolerates no more than the odd one below it, and is lost sooner.
fn grow(look: &Look, voters: BTreeSet<HostId>, wanted: usize, ready: &BTreeSet<HostId>) -> Decision {
    let mut next = voters.clone();
    while next.len() < wanted.min(voters.len() + PAIR) {
        let left: BTreeSet<HostId> = ready.difference(&next).copied().collect();
        let Some(new) = spread::best(look, &next, &left) else { break };
        next.insert(new);
    }
    if next.len().is_multiple_of(2)
        && let Some(id) = next.difference(&voters).last().copied()
    {
        next.remove(&id);
    }
    let new: Vec<HostId> = next.difference(&voters).copied().collect();
    if new.is_empty() {
        let lag = |peer: &Peer| peer.member && !peer.voter && !peer.removed && !peer.is_ready();
        let late = look.ids(lag);
        let why = if late.is_empty() {
            "no other host is there".to_owned()
        } else {
            look.names(&late) + " is not caught up"
        };
        return Decision::waits(format!("{wanted} are to vote, {} do: {why}", voters.len()));
    }
    let why = format!("{wanted} of so many hosts are to vote: {} votes as well", look.names(&new));
    Decision::change(Change::Vote(next), why)
}

/// Voters that were removed go first. Whoever can takes their place; if nobody can, fewer vote, still an odd number.
fn without(look: &Look, voters: &BTreeSet<HostId>, removed: &BTreeSet<HostId>) -> Decision {
    let kept: BTreeSet<HostId> = voters.difference(removed).copied().collect();
    if removed.contains(&look.me) && kept.iter().any(|id| look.is_up(*id)) {
        return Decision::change(Change::HandOver, format!("{} leads and was removed", look.name(look.me)));
    }
    let wanted = look.wanted();
    let ready = look.ids(Peer::is_ready);
    let mut next = kept.clone();
    while next.len() < wanted.min(voters.len() + PAIR) {
        let left: BTreeSet<HostId> = ready.difference(&next).copied().collect();
        let Some(new) = spread::best(look, &next, &left) else { break };
        next.insert(new);
    }
    let size = if next.len().is_multiple_of(2) { next.len().saturating_sub(1) } else { next.len() };
    let next = spread::keep(look, &next, size.min(wanted.max(1)));
    if next.is_empty() {
        return Decision::waits(format!("{} was removed, but nobody else could vote", look.names(removed)));
    }
    let new: Vec<HostId> = next.difference(voters).copied().collect();
    let instead =
        if new.is_empty() { String::new() } else { format!(", {} votes instead", look.names(&new)) };
    Decision::change(Change::Vote(next), format!("{} was removed{instead}", look.names(removed)))
}

/// Where a host stands, for a reason.
fn at(look: &Look, id: HostId) -> String {
    let site = look.peer(id).map(|peer| &peer.site);
    let words: Vec<String> = DOMAINS
        .iter()
        .zip(site.into_iter().flatten())
        .filter_map(|(label, value)| Some(format!("{label} {}", value.as_ref()?)))
        .collect();
    if words.is_empty() { String::new() } else { format!(" ({})", words.join(", ")) }
}

/// The leader's memory between looks: nothing but when the last change was made.
#[derive(Debug, Default)]
pub struct Autopilot {
    changed_ms: Option<u64>,
}

impl Autopilot {
    /// The next step at `now_ms`; none while the last change is fresh.
    #[must_use]
    pub fn next(&self, look: &Look, now_ms: u64) -> Decision {
        let fresh = self.changed_ms.is_some_and(|at| now_ms < at.saturating_add(PAUSE_MS));
        if fresh { Decision::default() } else { decide(look) }
    }

    /// A change was made.
    pub fn changed(&mut self, now_ms: u64) {
        self.changed_ms = Some(now_ms);
    }
}

#[cfg(test)]
#[path = "../autopilot_tests.rs"]
mod tests;
