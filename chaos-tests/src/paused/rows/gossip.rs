//! The rows in which gossip and agreement go apart: N12. Both are the product's own, over QUIC; what does not hear is the
//! desk behind them, so that connections stay as they are.

use super::super::lab::{Failure, Lab};
use super::super::linear::{Ask, Got};
use super::super::peer::Way;
use super::Attempt;
use super::net::{at_work, until_written};
use rota_node::net::gossip::{Gossip, GossipHandle, Seen, driver};
use rota_protocol::gossip::{GossipMember, StatusDigest};
use rota_protocol::{BootId, HostId};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::sleep;

const PATIENCE: Duration = Duration::from_secs(20);
/// Longest gap of writes while only gossip is cut, in ms.
const GAP_MS_MAX: u64 = 200;

/// Gossip of all hosts.
struct Talk {
    handles: BTreeMap<HostId, GossipHandle>,
    tasks: Vec<JoinHandle<()>>,
}

fn place(host: HostId) -> String {
    super::super::socket::address(host).to_string()
}

fn news(host: HostId) -> StatusDigest {
    StatusDigest {
        host,
        incarnation: 1,
        version: 0,
        boot: BootId(u128::from(host.0)),
        at_ms: 0,
        addr: place(host),
        applied: 0,
        attempts: 0,
        load_milli: 0,
        devices: Vec::new(),
    }
}

impl Talk {
    async fn begin(lab: &Lab) -> Result<Self, Failure> {
        let mut talk = Self { handles: BTreeMap::new(), tasks: Vec::new() };
        for (host, peer) in &lab.peers {
            let (net, desk) = (peer.net().cloned(), peer.desk().cloned());
            let (Some(net), Some(desk)) = (net, desk) else { return Err("no network".into()) };
            let own = GossipMember { host: *host, incarnation: 1, addr: place(*host) };
            let (handle, task) = driver(Gossip::new(own, lab.ground.seed ^ host.0));
            handle.set_seeds(lab.others(*host).into_iter().map(|other| (other, place(other))).collect());
            desk.open_gossip(handle.clone());
            talk.tasks.push(tokio::spawn(task.run(net)));
            let (teller, host) = (handle.clone(), *host);
            talk.tasks.push(tokio::spawn(async move {
                loop {
                    teller.set_status(news(host));
                    sleep(teller.status_period()).await;
                }
            }));
            talk.handles.insert(host, handle);
        }
        lab.until(PATIENCE, "news of all", || (talk.known() == talk.pairs()).then_some(())).await?;
        Ok(talk)
    }

    fn pairs(&self) -> usize {
        self.handles.len() * (self.handles.len() - 1)
    }

    fn each(&self) -> impl Iterator<Item = (&GossipHandle, HostId)> {
        let others = |host| self.handles.keys().copied().filter(move |other| *other != host);
        self.handles.iter().flat_map(move |(host, handle)| others(*host).map(move |other| (handle, other)))
    }

    /// Of how many others is the news fresh, over all hosts.
    fn known(&self) -> usize {
        self.each().filter(|(handle, other)| handle.status(*other).is_some()).count()
    }

    fn alive(&self) -> usize {
        self.each().filter(|(handle, other)| handle.seen(*other) == Seen::Alive).count()
    }

    fn end(self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// Which of the two nobody hears.
fn deafen(lab: &Lab, agreement: bool, gossip: bool) {
    for desk in lab.peers.values().filter_map(|peer| peer.desk()) {
        desk.deaf.0.store(agreement, Ordering::Relaxed);
        desk.deaf.1.store(gossip, Ordering::Relaxed);
    }
}

pub(super) async fn alone(attempt: &mut Attempt) -> Result<(), Failure> {
    attempt.way = Way::Quic;
    let (lab, leader) = at_work(attempt, 3, 3).await?;
    let talk = Talk::begin(&lab).await?;
    let term = lab.door(leader)?.peer.status().term;
    deafen(&lab, false, true);
    let began = lab.now_ms();
    lab.until(PATIENCE, "end of all news", || (talk.known() == 0).then_some(())).await?;
    attempt.took(lab.now_ms() - began);
    sleep(Duration::from_secs(5)).await;
    let gap = lab.clients.history.longest_gap(began, lab.now_ms());
    attempt.must(gap <= GAP_MS_MAX, || format!("N12: a gap of writes of {gap} ms while only gossip was cut"));
    let now = lab.door(leader)?.peer.status().term;
    attempt.must(now == term, || format!("N12: term {term} became {now} while only gossip was cut"));
    let known = lab.door(leader)?.peer.read(|state| state.hosts().count());
    attempt.must(known == 3, || format!("N12: the log knows {known} hosts without gossip"));
    deafen(&lab, false, false);
    lab.until(PATIENCE, "news again", || (talk.known() == talk.pairs()).then_some(())).await?;
    talk.end();
    attempt.close(lab).await.map(|_| ())
}

pub(super) async fn only(attempt: &mut Attempt) -> Result<(), Failure> {
    attempt.way = Way::Quic;
    let (lab, _) = at_work(attempt, 3, 2).await?;
    let talk = Talk::begin(&lab).await?;
    deafen(&lab, true, false);
    // A leader's lease, and what is on its way.
    sleep(Duration::from_secs(2)).await;
    for host in lab.ids() {
        let door = lab.door(host)?;
        let leads = door.peer.leadership().borrow().leading;
        attempt.must(!leads, || format!("N12: host {host} leads by gossip alone"));
        let confirmed = door.chance.scope(door.peer.confirm_quorum()).await.is_ok();
        attempt.must(!confirmed, || format!("N12: host {host} confirmed a quorum by gossip alone"));
        let write = lab.clients.once(&door, 8_000_000 + host.0, Ask::Submit).await;
        attempt
            .must(!matches!(write, Some(Got::Job(_))), || format!("I3: host {host} acknowledged {write:?}"));
    }
    let (known, alive) = (talk.known(), talk.alive());
    attempt.must(known == talk.pairs() && alive == talk.pairs(), || {
        format!("not exercised: of {} hosts {known} told their news, {alive} were alive", talk.pairs())
    });
    deafen(&lab, false, false);
    let took = until_written(&lab, &lab.ids()).await?;
    attempt.took(took);
    talk.end();
    attempt.close(lab).await.map(|_| ())
}
