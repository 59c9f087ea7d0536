//! What many hosts cost the leader: three real voters, and so many hosts beside them that are no members. Each of those is a
//! host of the cluster with a certificate, a UDP port and a lease of its own; it follows the log through real connections
//! from the peer that the tree says, serves its own children, and renews its lease the same way. What it has not is a
//! state: it checks that its log has no gap and is everybody's, and applies nothing. All live in this one process.
//!
//! | file | what |
//! | --- | --- |
//! | `mod.rs` | the run and its figures |
//! | `host.rs` | one such host |
//! | `arrivals.rs` | when entries came to whom |

mod arrivals;
mod host;

use super::BenchLab;
use super::figures::{Figures, percentile_ms};
use super::submit::queued_job;
use super::usage::view;
use crate::io::usage::{cpu_ms, rss_kib};
use crate::lab::{Lab, LabError, Peer, new_request, wait_for};
use crate::lab_work::Stubborn;
use crate::logic::lease::LeaseParams;
use clap::Args;
use host::{Counts, SimHost, Site};
use rota_protocol::api::{ApiReply, ApiRequest};
use rota_protocol::error::{ErrorCode, PublicError};
use rota_protocol::ids::{HostId, RequestId};
use rota_protocol::view::HostState;
use rustix::process::{Pid, getpriority_process, setpriority_process};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Voters.
const VOTERS: usize = 3;
/// No other host is a member.
const CONFIG: &str = "[membership]\nmembers_max = 3\n";
/// Hosts that join through one voter in a second: it takes no more.
const JOIN_PAUSE: Duration = Duration::from_millis(55);
/// How long all may take to be fed, and the last entry to be everywhere.
const LIMIT: Duration = Duration::from_secs(120);
/// After the last host came, before anything counts: connections that were only needed to join are gone by then.
const SETTLE: Duration = Duration::from_secs(8);
/// How much the followers stand back behind the voters, whose machine they share.
const STAND_BACK: i32 = 5;

/// `rota bench followers`
#[derive(Debug, Args)]
pub struct FollowersArgs {
    /// Hosts that follow; several numbers are measured one after the other, ascending
    #[arg(long, value_delimiter = ',', default_values_t = [10, 1_000])]
    pub followers: Vec<usize>,
    /// How long each is measured, in seconds
    #[arg(long, default_value_t = 15)]
    pub seconds: u64,
    /// Submits a second
    #[arg(long, default_value_t = 10)]
    pub rate: u64,
    /// Time bounds: production or chaos
    #[arg(long, default_value = "production")]
    pub profile: String,
    /// Figures as one JSON document
    #[arg(long)]
    pub json: bool,
}

/// What the leader used in one window.
#[derive(Debug, Clone, Copy)]
struct Cost {
    cpu_permille: f64,
    sent_bytes_per_s: f64,
}

/// Measures each number of followers on one cluster that grows.
///
/// # Errors
/// The cluster does not start, or a host is not admitted or fed.
pub async fn run(args: &FollowersArgs) -> Result<Figures, LabError> {
    let mut counts = args.followers.clone();
    counts.sort_unstable();
    counts.dedup();
    let profile = args.profile.clone();
    let mut bench = BenchLab::start(VOTERS, |options| {
        options.profile = profile;
        options.config = Some(CONFIG.to_owned());
    })
    .await?;
    let lab = bench.lab();
    stand_back();
    let lease = if args.profile == "chaos" { LeaseParams::CHAOS } else { LeaseParams::PRODUCTION };
    let site = Arc::new(Site::new(lab.peers.iter().map(|peer| (peer.host, address(peer))), lease.renew_ms));
    let (mut hosts, mut figures, mut costs) = (Vec::new(), Figures::default(), Vec::new());
    let term = lab.cluster().await?.term;
    for count in counts {
        grow(lab, &site, &mut hosts, count).await?;
        let cost = measure(lab, args, &site, &hosts, &mut figures).await?;
        costs.push(cost);
    }
    if let [first, .., last] = &costs[..] {
        figures.value("leader_cpu_ratio", last.cpu_permille / first.cpu_permille.max(0.1));
        figures.value("leader_sent_ratio", last.sent_bytes_per_s / first.sent_bytes_per_s.max(1.0));
    }
    figures.count("elections", lab.cluster().await?.term - term);
    figures.value("followers_rss_mib", rss_kib(std::process::id()).unwrap_or(0) as f64 / 1_024.0);
    figures.value("leader_rss_mib", leader_rss(lab).await?);
    Ok(figures)
}

/// Lets this process wait for the voters, thread by thread, as the kernel has it. Where that cannot be, the figures are
/// only worse for it.
fn stand_back() {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    for thread in tasks.filter_map(|task| task.file_name().to_str()?.parse().ok()) {
        let Some(thread) = Pid::from_raw(thread) else { continue };
        if let Ok(now) = getpriority_process(Some(thread)) {
            let _ = setpriority_process(Some(thread), now + STAND_BACK);
        }
    }
}

fn address(peer: &Peer) -> String {
    format!("127.0.0.1:{}", peer.advertise)
}

async fn leader_rss(lab: &Lab) -> Result<f64, LabError> {
    let leader = lab.leader().await?;
    Ok(lab.peers[leader].pid().and_then(rss_kib).unwrap_or(0) as f64 / 1_024.0)
}

/// Lets hosts join until there are so many, and waits until all of them are fed and up.
async fn grow(lab: &Lab, site: &Arc<Site>, hosts: &mut Vec<SimHost>, count: usize) -> Result<(), LabError> {
    let mut joining = tokio::task::JoinSet::new();
    for at in 0..VOTERS {
        let (site, via) = (Arc::clone(site), address(&lab.peers[at]));
        let client = lab.peers[at].client().await?;
        let numbers: Vec<usize> = (hosts.len()..count).filter(|number| number % VOTERS == at).collect();
        joining.spawn(async move {
            let mut joined = Vec::new();
            for number in numbers {
                let began = Instant::now();
                let usage = rota_protocol::command::TokenUse::Join { host_name: None };
                let mint = ApiRequest::MintToken { request: new_request(), usage, ttl_ms: 600_000 };
                let ApiReply::Token { secret } = client.call(mint).await? else {
                    return Err(PublicError::new(ErrorCode::Internal, "no token was given"));
                };
                joined.push(SimHost::join(Arc::clone(&site), number, &via, &secret.0).await?);
                tokio::time::sleep(JOIN_PAUSE.saturating_sub(began.elapsed())).await;
            }
            Ok(joined)
        });
    }
    while let Some(joined) = joining.join_next().await {
        hosts.extend(joined.map_err(|e| PublicError::new(ErrorCode::Internal, e.to_string()))??);
    }
    hosts.sort_by_key(|host| host.id);
    site.know(hosts);
    for host in hosts.iter_mut() {
        host.begin();
    }
    let up = async || {
        let rows = lab.hosts().await.ok()?;
        let up = rows.iter().filter(|row| row.state == HostState::Up).count();
        (up == VOTERS + hosts.len()).then_some(())
    };
    wait_for("all hosts up", LIMIT, up).await?;
    tokio::time::sleep(SETTLE).await;
    Ok(())
}

/// One window: jobs are submitted at a steady rate; when are they everywhere, and what does the leader use?
async fn measure(
    lab: &Lab,
    args: &FollowersArgs,
    site: &Site,
    hosts: &[SimHost],
    figures: &mut Figures,
) -> Result<Cost, LabError> {
    let leader = &lab.peers[lab.leader().await?];
    let sent = async || Ok::<u64, LabError>(view(leader).await?.members.follow.sent_bytes);
    let used = || leader.pid().and_then(cpu_ms).unwrap_or(0);
    site.arrivals.begin();
    Counts::begin_times(hosts);
    let (renewed, moves) = (Counts::of(hosts), moves(hosts));
    let (began, cpu, bytes) = (Instant::now(), used(), sent().await?);
    let accepted = submits(lab, args).await?;
    let time = began.elapsed().as_secs_f64();
    let cost = Cost {
        cpu_permille: (used() - cpu) as f64 / time,
        sent_bytes_per_s: (sent().await? - bytes) as f64 / time,
    };
    let renewed = Counts::of(hosts).since(&renewed);
    let seen = async || site.arrivals.complete(&accepted, hosts.len(), &site.log);
    let mut visible = wait_for("the last entry at every host", LIMIT, seen).await?;
    visible.sort_unstable();
    let mut acks: Vec<Duration> = accepted.iter().map(|one| one.took).collect();
    acks.sort_unstable();
    let name = |what: &str| format!("at_{}_{what}", hosts.len());
    figures.value(&name("leader_cpu_percent"), cost.cpu_permille / 10.0);
    figures.value(&name("leader_sent_kb_per_s"), cost.sent_bytes_per_s / 1_000.0);
    figures.count(&name("entries"), visible.len() as u64);
    for (what, times) in [("visible_everywhere", &visible), ("accepted", &acks)] {
        for (percentile, permille) in [("p50", 500), ("p99", 990), ("max", 1_000)] {
            figures.value(&name(&format!("{what}_{percentile}_ms")), percentile_ms(times, permille));
        }
    }
    figures.count(&name("renewals"), renewed.kept);
    figures.count(&name("renewals_failed"), renewed.failed.values().sum());
    for (why, count) in renewed.failed.iter().filter(|(_, count)| **count > 0) {
        figures.count(&name(&format!("renewals_failed_{why}")), *count);
    }
    figures.value(&name("renewal_p99_ms"), percentile_ms(&Counts::times(hosts), 990));
    let depth = hosts.iter().map(|host| host.following().depth).max().unwrap_or(0);
    figures.count(&name("steps_from_leader_max"), depth.into());
    figures.count(&name("parents_changed"), self::moves(hosts) - moves);
    figures.count(&name("faults"), hosts.iter().map(SimHost::faults).sum());
    let rows = lab.hosts().await?;
    figures.count(&name("hosts_lost"), rows.iter().filter(|row| row.state == HostState::Lost).count() as u64);
    Ok(cost)
}

fn moves(hosts: &[SimHost]) -> u64 {
    hosts.iter().map(|host| host.following().moves).sum()
}

/// One accepted job.
struct Accepted {
    request: RequestId,
    /// When its client heard of it: it was committed a moment before.
    at: Instant,
    took: Duration,
}

/// Submits jobs that no host can run, one after the other at a steady rate.
async fn submits(lab: &Lab, args: &FollowersArgs) -> Result<Vec<Accepted>, LabError> {
    let mut client = Stubborn::new(lab, 0);
    let mut every = tokio::time::interval(Duration::from_millis(1_000 / args.rate.max(1)));
    let until = Instant::now() + Duration::from_secs(args.seconds);
    let mut accepted = Vec::new();
    while Instant::now() < until {
        every.tick().await;
        let (request, began) = (new_request(), Instant::now());
        client.submit_as(request, queued_job(), LIMIT).await?;
        accepted.push(Accepted { request, at: Instant::now(), took: began.elapsed() });
    }
    Ok(accepted)
}

/// The hosts of the cluster whose numbers are these.
fn sorted(ids: impl IntoIterator<Item = HostId>) -> Arc<[HostId]> {
    let mut ids: Vec<HostId> = ids.into_iter().collect();
    ids.sort_unstable();
    ids.into()
}
