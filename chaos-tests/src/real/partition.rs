//! Links cut (faults N1, N3): a leader that nobody hears acknowledges nothing and tells nothing, the others go on
//! without it, and it follows once it is back.

use super::Bench;
use super::proxy::{Fault, Wires};
use super::report::Report;
use super::traffic::{Traffic, waits};
use rota_node::client::Client;
use rota_node::lab::{Lab, LabError, Peer, new_request, wait_for};
use rota_node::lab_work::Stubborn;
use rota_protocol::api::{ApiReply, ApiRequest, Freshness};
use rota_protocol::error::{ErrorCode, PublicError};
use rota_protocol::ids::{JobId, RequestId};
use rota_protocol::view::ClusterView;
use std::path::Path;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// How long a leader is cut off (N1): longer than the 4 s after which a peer without a quorum gives up on a request.
const CUT: Duration = Duration::from_secs(5);
/// How long each direction is cut (N3).
const ONE_WAY: Duration = Duration::from_secs(10);
/// When the old leader is asked, in ms after the cut: not sooner than packets that were under way may have brought an
/// answer, while it still takes itself for the leader, and when it knows better.
const ASKED_MS: [u64; 6] = [100, 200, 400, 800, 1_500, 3_000];
/// Longest time until a client of the other peers is served, in ms (N1, and N3 when the leader is not heard).
const GAP_MS_MAX: u64 = 2_500;
/// The same when the leader does not hear: the others hear it until its connections have been silent for 1,500 ms.
const GAP_DEAF_MS_MAX: u64 = 4_000;
/// Longest time until a peer without a quorum refuses, in ms: the 4,000 of a request, and a busy machine.
const REFUSES_MS_MAX: u64 = 4_500;
/// Longest time from the healing until the old leader follows, in ms: 1,000 (N1), and as much again for a dial that
/// was under way into the cut.
const FOLLOWS_MS_MAX: u64 = 2_000;
/// Most new terms in ten seconds of a one-way cut (N3).
const TERMS_MAX: u64 = 3;
/// How long a client of the others waits for one peer.
const PATIENCE: Duration = Duration::from_millis(1_000);

/// N1: the leader is cut off from everybody while clients ask it and the others.
pub(super) async fn leader_cut_off(bench: &Bench) -> Result<Report, LabError> {
    let wires = Wires::new(3)?;
    let lab = bench.lab("N1", 3, |options| options.ports = wires.ports()).await?;
    let (mut traffic, mut violations) = (Traffic::default(), Vec::new());
    let (mut follows_max, mut refused, mut refuses_max) = (0, 0, 0);
    for round in 0..bench.rounds {
        let leader = lab.leader().await?;
        let mut client = Stubborn::without(&lab, leader);
        client.patience = PATIENCE;
        let known = client.submit(waits(&format!("known-{round}"))).await?;
        wires.set_around(leader, Fault::CUT);
        let until = Instant::now() + CUT;
        let (others, mut asked) = tokio::join!(
            traffic.run(&mut client, until, waits),
            ask_old_leader(&lab.peers[leader], round, known, until),
        );
        others?;
        wires.heal();
        let healed = Instant::now();
        wait_for("the old leader following", Duration::from_secs(20), async || {
            let view = view(&lab.peers[leader], Freshness::Linearizable).await?;
            let follows = view.leader.is_some_and(|now| now != lab.peers[leader].host);
            (view.linearizable && follows).then_some(())
        })
        .await?;
        follows_max = follows_max.max(healed.elapsed().as_millis() as u64);
        violations.append(&mut asked.wrong);
        refused += asked.refused;
        refuses_max = refuses_max.max(asked.slowest_ms);
        // What became of the writes that were refused or not answered is open, but each is one job when asked again.
        for (name, request) in asked.requests {
            let job = client.submit_as(request, waits(&name), Duration::from_secs(20)).await?;
            traffic.note(name, job);
        }
        lab.until_up(3).await?;
    }
    violations.extend(traffic.judge(&lab, &mut Stubborn::new(&lab, 0)).await?);
    if wires.counts().dropped == 0 || refused == 0 {
        violations.push("not exercised: nothing was cut or refused".into());
    }
    Ok(Report::of("N1", bench.rounds, &violations)
        .figure("acked", traffic.acked(), None)
        .figure("gap_max_ms", traffic.gap_max_ms, Some(GAP_MS_MAX))
        .figure("refused_by_old_leader", refused, None)
        .figure("refused_within_ms", refuses_max, Some(REFUSES_MS_MAX))
        .figure("follows_after_ms", follows_max, Some(FOLLOWS_MS_MAX)))
}

/// What the old leader answered while it was cut off.
#[derive(Debug, Default)]
struct Asked {
    requests: Vec<(String, RequestId)>,
    refused: u64,
    slowest_ms: u64,
    wrong: Vec<String>,
}

impl Asked {
    fn note(&mut self, what: &str, answer: Result<ApiReply, PublicError>, took: Duration) {
        match answer {
            Ok(reply) => self.wrong.push(format!("{what} served while cut off: {reply:?}")),
            Err(error)
                if matches!(error.code, ErrorCode::NoLeader | ErrorCode::Unknown | ErrorCode::Busy) =>
            {
                self.refused += 1;
                self.slowest_ms = self.slowest_ms.max(took.as_millis() as u64);
            }
            Err(error) => self.wrong.push(format!("{what} refused with {error}")),
        }
    }
}

/// Asks for writes and reads at several times of the cut, each on a connection of its own. Answers after `until` say
/// nothing about the cut and are not waited for.
async fn ask_old_leader(peer: &Peer, round: usize, known: JobId, until: Instant) -> Asked {
    let (mut asked, mut calls, began) = (Asked::default(), JoinSet::new(), Instant::now());
    for (number, at_ms) in ASKED_MS.into_iter().enumerate() {
        let (name, request) = (format!("cut-{round}-{number}"), new_request());
        let submit = ApiRequest::Submit { jobs: vec![(request, waits(&name))] };
        asked.requests.push((name, request));
        let show = ApiRequest::Show { job: known, freshness: Freshness::Linearizable };
        for (what, request) in [("write", submit), ("read", show)] {
            let (socket, at) = (peer.socket(), began + Duration::from_millis(at_ms));
            calls.spawn(async move {
                tokio::time::sleep_until(at.into()).await;
                let answer = call(&socket, request).await;
                (what, answer, at.elapsed())
            });
        }
    }
    while let Ok(Some(Ok((what, answer, took)))) =
        tokio::time::timeout_at(until.into(), calls.join_next()).await
    {
        asked.note(what, answer, took);
    }
    asked
}

async fn call(socket: &Path, request: ApiRequest) -> Result<ApiReply, PublicError> {
    match Client::connect_socket(socket).await?.call(request).await? {
        ApiReply::Submitted(mut results) => match results.pop() {
            Some(Ok(job)) => Ok(ApiReply::Submitted(vec![Ok(job)])),
            Some(Err(error)) => Err(error),
            None => Err(PublicError::new(ErrorCode::Internal, "no result for the job")),
        },
        reply => Ok(reply),
    }
}

async fn view(peer: &Peer, freshness: Freshness) -> Option<ClusterView> {
    match peer.client().await.ok()?.call(ApiRequest::Cluster { freshness }).await.ok()? {
        ApiReply::Cluster(view) => Some(*view),
        _ => None,
    }
}

/// The newest term that any peer knows.
async fn newest_term(lab: &Lab) -> u64 {
    let mut newest = 0;
    for peer in &lab.peers {
        newest = newest.max(view(peer, Freshness::Stale).await.map_or(0, |view| view.term));
    }
    newest
}

/// N3: the leader is not heard, then it does not hear.
pub(super) async fn one_way(bench: &Bench) -> Result<Report, LabError> {
    let wires = Wires::new(3)?;
    let lab = bench.lab("N3", 3, |options| options.ports = wires.ports()).await?;
    let mut violations = Vec::new();
    let (mut acked, mut gaps, mut terms) = (0, [0; 2], [0; 2]);
    let mut traffic = Traffic::default();
    for round in 0..bench.rounds {
        for way in 0..2 {
            let leader = lab.leader().await?;
            let mut client = Stubborn::without(&lab, leader);
            client.patience = PATIENCE;
            let before = newest_term(&lab).await;
            match way {
                0 => wires.set_from(leader, Fault::CUT),
                _ => wires.set_to(leader, Fault::CUT),
            }
            traffic.gap_max_ms = 0;
            let began = traffic.acked();
            traffic.run(&mut client, Instant::now() + ONE_WAY, waits).await?;
            let bumps = newest_term(&lab).await.saturating_sub(before);
            terms[way] = terms[way].max(bumps);
            gaps[way] = gaps[way].max(traffic.gap_max_ms);
            acked += traffic.acked() - began;
            if bumps == 0 {
                violations.push(format!("round {round}, way {way}: nobody else came to lead"));
            }
            wires.heal();
            lab.until_up(3).await?;
        }
    }
    violations.extend(traffic.judge(&lab, &mut Stubborn::new(&lab, 0)).await?);
    Ok(Report::of("N3", bench.rounds, &violations)
        .figure("acked", acked, None)
        .figure("gap_unheard_ms", gaps[0], Some(GAP_MS_MAX))
        .figure("gap_deaf_ms", gaps[1], Some(GAP_DEAF_MS_MAX))
        .figure("terms_unheard", terms[0], Some(TERMS_MAX))
        .figure("terms_deaf", terms[1], Some(TERMS_MAX)))
}
