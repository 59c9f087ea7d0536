//! One tenant floods while another submits now and then and many ask for the cluster's status: what the other feels,
//! whether the flood is turned away in words, and whether anybody lost its leader over it.

use super::BenchLab;
use super::figures::{Figures, percentile_ms};
use super::load::{self, Load};
use super::submit::queued_job;
use super::usage::view;
use crate::cli::ops::BenchFloodArgs;
use crate::client::Client;
use crate::lab::{Lab, LabError, Peer, new_request};
use rota_protocol::api::{ApiReply, ApiRequest, Freshness};
use rota_protocol::command::TokenUse;
use rota_protocol::error::{ErrorCode, PublicError};
use rota_protocol::job::{Actor, Role};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Between two submits of the tenant that does not flood.
const CALM_PAUSE: Duration = Duration::from_millis(20);

/// Floods for `seconds`.
///
/// # Errors
/// The cluster does not start, or refuses what is no flood.
pub async fn run(args: &BenchFloodArgs) -> Result<Figures, LabError> {
    let mut bench = BenchLab::start(args.peers, |_| {}).await?;
    let lab = bench.lab();
    let (calm, flood) = (token(lab, "calm").await?, token(lab, "flood").await?);
    let sockets: Vec<PathBuf> = lab.peers.iter().map(Peer::socket).collect();
    let term = lab.cluster().await?.term;
    let time = Duration::from_secs(args.seconds);
    let mut alone = submits(&lab.peers[0], &calm, time / 2).await?;

    let (stop, polled) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut pollers = tokio::task::JoinSet::new();
    for number in 0..args.pollers {
        let client = lab.peers[number % lab.peers.len()].client().await?;
        let (stop, polled) = (Arc::clone(&stop), Arc::clone(&polled));
        pollers.spawn(async move {
            while !stop.load(Ordering::Relaxed)
                && client.call(ApiRequest::Cluster { freshness: Freshness::Stale }).await.is_ok()
            {
                polled.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    let load = Load {
        clients: args.clients,
        per_connection: 32,
        batch: 1,
        time,
        job: queued_job(),
        token: Some(flood),
    };
    let flooding = tokio::spawn(async move { load::run(&sockets, &load).await });
    let mut beside = submits(&lab.peers[0], &calm, time).await?;
    let flooded = flooding.await.map_err(|e| PublicError::new(ErrorCode::Internal, e.to_string()))??;
    stop.store(true, Ordering::Relaxed);
    while pollers.join_next().await.is_some() {}

    alone.sort_unstable();
    beside.sort_unstable();
    let (p99_alone, p99_beside) = (percentile_ms(&alone, 990), percentile_ms(&beside, 990));
    let mut figures = Figures::default();
    figures.value("flood_jobs_per_s", flooded.accepted as f64 / time.as_secs_f64());
    figures.count("flood_busy", flooded.busy);
    figures.value("polls_per_s", polled.load(Ordering::Relaxed) as f64 / time.as_secs_f64());
    figures.value("alone_p50_ms", percentile_ms(&alone, 500));
    figures.value("alone_p99_ms", p99_alone);
    figures.value("beside_p50_ms", percentile_ms(&beside, 500));
    figures.value("beside_p99_ms", p99_beside);
    figures.value("p99_ratio", p99_beside / p99_alone.max(0.001));
    figures.count("elections", lab.cluster().await?.term - term);
    for (number, peer) in lab.peers.iter().enumerate() {
        figures.value(&format!("n{}_log_mib", number + 1), view(peer).await?.log.written_bytes as f64 / 1e6);
    }
    Ok(figures)
}

/// A token of a tenant of its own.
async fn token(lab: &Lab, tenant: &str) -> Result<String, LabError> {
    let actor = Actor { user: tenant.into(), tenant: tenant.into(), role: Role::Submitter };
    let usage = TokenUse::User { actor };
    let request = ApiRequest::MintToken { request: new_request(), usage, ttl_ms: 3_600_000 };
    match lab.peers[0].client().await?.call(request).await? {
        ApiReply::Token { secret } => Ok(secret.0),
        other => Err(PublicError::new(ErrorCode::Internal, format!("unexpected {other:?}")).into()),
    }
}

/// One job after the other, with pauses; how long each took.
async fn submits(peer: &Peer, token: &str, time: Duration) -> Result<Vec<Duration>, LabError> {
    let client: Client = peer.client().await?;
    client.call(ApiRequest::Authenticate { token: token.to_owned().into() }).await?;
    let deadline = Instant::now() + time;
    let mut times = Vec::new();
    while Instant::now() < deadline {
        let asked = Instant::now();
        let jobs = vec![(new_request(), queued_job())];
        // To be told to come back is an answer too, and as late as any other.
        match client.call(ApiRequest::Submit { jobs }).await {
            Err(error) if error.code != ErrorCode::Busy => return Err(error.into()),
            _ => times.push(asked.elapsed()),
        }
        tokio::time::sleep(CALM_PAUSE).await;
    }
    Ok(times)
}
