//! The rows of addresses that change hands: N14. Over QUIC: the certificate decides who answers, not the address.

use super::super::desk::Counter;
use super::super::lab::{Failure, Lab};
use super::super::peer::Way;
use super::super::plant::Plant;
use super::super::socket::address;
use super::Attempt;
use super::net::{at_work, gap_over, until_written};
use rota_node::net::{Net, NetConfig, NetTimings};
use rota_protocol::HostId;
use rota_protocol::peer::PeerRequest;
use std::sync::Arc;
use std::time::Duration;

/// An address at which no host of the rows is.
const ELSEWHERE: HostId = HostId(200);

/// One host is off, and another one answers where it was. Who is off, and who leads.
async fn reused(attempt: &mut Attempt) -> Result<(Lab, HostId, HostId, Option<Arc<Net>>), Failure> {
    attempt.way = Way::Quic;
    let (mut lab, leader) = at_work(attempt, 3, 2).await?;
    let [gone, other] = lab.others(leader)[..] else { return Err("no two others".into()) };
    lab.crash(gone)?;
    let mut place = address(other);
    let mut impostor = None;
    if attempt.plant == Some(Plant::Impostor) {
        place = address(ELSEWHERE);
        impostor = Some(impostor_of(&lab, gone, other).await?);
    }
    for (host, at) in [(leader, place), (other, address(leader))] {
        let net = lab.peers.get(&host).and_then(|peer| peer.net()).ok_or("no network")?;
        net.set_peer(gone, at.to_string());
    }
    Ok((lab, leader, gone, impostor))
}

/// Answers with the desk of one host and the certificate of another.
async fn impostor_of(lab: &Lab, gone: HostId, other: HostId) -> Result<Arc<Net>, Failure> {
    let ground = &lab.ground;
    let desk = lab.peers.get(&other).and_then(|peer| peer.desk()).cloned().ok_or("no desk")?;
    let identity = ground.family[(gone.0 - 1) as usize].clone();
    let socket = ground.sockets.bind(ELSEWHERE, ground.air.clone(), ground.trace.clone());
    let config = NetConfig {
        timings: NetTimings::fast(),
        socket: Some(socket),
        rng_seed: Some(ground.seed),
        ..NetConfig::new(identity, address(ELSEWHERE))
    };
    Net::start(config, Arc::new(Counter(desk))).await.map_err(|error| error.to_string())
}

/// Nobody takes the one for the other, whatever is asked.
async fn nobody_answers(
    attempt: &mut Attempt,
    lab: &Lab,
    leader: HostId,
    gone: HostId,
) -> Result<(), Failure> {
    let net = lab.peers.get(&leader).and_then(|peer| peer.net()).ok_or("no network")?;
    let called =
        rota_consensus::PeerLink::call(&**net, gone, PeerRequest::ReadIndex, Duration::from_secs(3)).await;
    let named = called.as_ref().err().is_some_and(|error| error.to_string().contains("is not host"));
    attempt.must(named, || format!("N14: whoever is at the address of host {gone} answered {called:?}"));
    Ok(())
}

/// The others learn where it is now.
fn known_again(lab: &Lab, gone: HostId) -> Result<(), Failure> {
    for host in lab.others(gone) {
        let net = lab.peers.get(&host).and_then(|peer| peer.net()).ok_or("no network")?;
        net.set_peer(gone, address(gone).to_string());
    }
    Ok(())
}

pub(super) async fn of_another(attempt: &mut Attempt) -> Result<(), Failure> {
    let (lab, leader, gone, _impostor) = reused(attempt).await?;
    gap_over(attempt, &lab, Duration::from_secs(4)).await;
    nobody_answers(attempt, &lab, leader, gone).await?;
    let lag = lab.door(leader)?.peer.status().lag.get(&gone).copied().unwrap_or(u64::MAX);
    attempt.must(lag > 0, || format!("N14: host {gone} is off and not behind: who took its entries?"));
    known_again(&lab, gone)?;
    attempt.close(lab).await.map(|_| ())
}

pub(super) async fn back(attempt: &mut Attempt) -> Result<(), Failure> {
    let (mut lab, leader, gone, _impostor) = reused(attempt).await?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    nobody_answers(attempt, &lab, leader, gone).await?;
    lab.start(gone).await.map_err(|error| error.to_string())?;
    known_again(&lab, gone)?;
    let took = until_written(&lab, &[gone]).await?;
    attempt.took(took);
    attempt.close(lab).await.map(|_| ())
}
