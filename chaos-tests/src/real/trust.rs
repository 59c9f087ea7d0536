//! Certificates that live for seconds, hosts that are revoked, an authority that is changed, all under load (fault O3; report
//! R078): nothing that was asked is dropped, and who is trusted no more is cut within a second.

use super::load::{Load, Loaded};
use super::report::Report;
use super::traffic::waits;
use super::{Bench, said};
use rota_node::client::Client;
use rota_node::lab::{Lab, LabError, wait_for};
use rota_node::lab_work::{Stubborn, Witness, shell_job};
use rota_protocol::api::{ApiReply, ApiRequest, Freshness};
use rota_protocol::job::JobState;
use rota_protocol::trust::{CaStage, HostTrust, TrustView};
use rustix::process::Signal;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The life of a certificate here; it is renewed after two thirds of it.
const LIFE: Duration = Duration::from_secs(12);
/// How long a revoked host may still be heard, in ms (O3).
const CUT_MS_MAX: u64 = 1_000;
/// The longest gap of a failover in the chaos profile, in ms: a renewal or a change of authorities needs none.
const WAIT_MS_MAX: u64 = 2_500;
/// Until hosts whose certificates have all run out serve again, in ms.
const BACK_MS_MAX: u64 = 10_000;

fn config() -> String {
    format!("[certificates]\nlife = \"{}s\"\n", LIFE.as_secs())
}

async fn trust(lab: &Lab, peer: usize) -> Result<TrustView, LabError> {
    match lab.peers[peer].client().await?.call(ApiRequest::Trust(Freshness::Stale)).await? {
        ApiReply::Trust(view) => Ok(*view),
        other => Err(LabError::Late(format!("a view of trust, not {other:?}"), 0)),
    }
}

/// Renewals that an agent has told of in its log.
fn renewals(lab: &Lab, peer: usize) -> u64 {
    let log = std::fs::read_to_string(lab.peers[peer].dir.join("agent.log")).unwrap_or_default();
    log.matches("renewed the certificate").count() as u64
}

fn judge(loaded: &Loaded, violations: &mut Vec<String>) {
    if let Some(first) = loaded.dropped.first() {
        violations.push(format!("{} submits were dropped, the first: {first}", loaded.dropped.len()));
    }
    if loaded.acked.is_empty() {
        violations.push("nothing was acknowledged: not exercised".into());
    }
}

/// What is there of what was acknowledged.
async fn lost(client: &mut Stubborn, loaded: &Loaded) -> Result<usize, LabError> {
    let rows = client.all_jobs().await?;
    Ok(loaded.acked.iter().filter(|job| !rows.iter().any(|row| row.job == **job)).count())
}

/// O3: certificates of twelve seconds, through several renewals of each host under load; then all hosts are off until all
/// certificates have run out, and come back by themselves (R078).
pub(super) async fn renewed_under_load(bench: &Bench) -> Result<Report, LabError> {
    let mut lab = bench.lab("O3", 3, |options| options.config = Some(config())).await?;
    let witness = Witness::new(&bench.dir.join("O3"));
    let mut client = Stubborn::new(&lab, 0);
    let runs = client.submit(shell_job("through it all", &witness.script("sleep 20; exit 7"))).await?;
    let before: Vec<u64> = (0..3).map(|peer| renewals(&lab, peer)).collect();
    let load = Load::begin(&lab, &[0, 1, 2], &waits("load"));
    tokio::time::sleep(LIFE * 3 * bench.rounds as u32).await;
    let loaded = load.end().await;
    let made: Vec<u64> = (0..3).map(|peer| renewals(&lab, peer) - before[peer]).collect();
    let mut violations = Vec::new();
    judge(&loaded, &mut violations);
    if made.iter().any(|made| *made < 3) {
        violations.push(format!("certificates were renewed {made:?} times, fewer than three in three lives"));
    }
    let rows = client.until_done(&[runs], Duration::from_secs(30), |_, _| {}).await?;
    if rows.iter().find(|row| row.job == runs).map(|row| row.state) != Some(JobState::Failed)
        || witness.run_twice() > 0
    {
        violations.push("a task noticed the renewals".into());
    }
    for peer in 0..3 {
        lab.signal(peer, Signal::KILL)?;
    }
    tokio::time::sleep(LIFE + Duration::from_secs(2)).await;
    let started = Instant::now();
    for peer in 0..3 {
        lab.spawn(peer)?;
    }
    lab.until_up(3).await?;
    let back_ms = started.elapsed().as_millis() as u64;
    for peer in 0..3 {
        let log = std::fs::read_to_string(lab.peers[peer].dir.join("agent.log")).unwrap_or_default();
        if !log.contains("the certificate had run out") {
            violations.push(format!("n{} did not come back with a certificate that had run out", peer + 1));
        }
    }
    match lost(&mut client, &loaded).await? {
        0 => {}
        lost => violations.push(format!("{lost} acknowledged jobs are not there")),
    }
    Ok(Report::of("O3", bench.rounds, &violations)
        .figure("renewals", made.iter().sum(), None)
        .figure("acknowledged", loaded.acked.len() as u64, None)
        .figure("dropped", loaded.dropped.len() as u64, Some(0))
        .figure("wait_max_ms", loaded.wait_max_ms, Some(WAIT_MS_MAX))
        .figure("back_after_expiry_ms", back_ms, Some(BACK_MS_MAX)))
}

/// O3: a voter is revoked under load. It is cut, does not vote, and does not come back under its number.
pub(super) async fn revoked_live(bench: &Bench) -> Result<Report, LabError> {
    let (mut violations, mut cut_max_ms, mut acked, mut wait_max_ms) = (Vec::new(), 0, 0, 0);
    for round in 0..bench.rounds {
        let mut lab = bench.lab("O3-revoke", 3, |_| {}).await?;
        let leader = lab.leader().await?;
        // A follower in the first round, the leader itself in the next.
        let out = if round % 2 == 0 { (leader + 1) % 3 } else { leader };
        let rest: Vec<usize> = (0..3).filter(|peer| *peer != out).collect();
        let ears = tokio::spawn(last_confirmed(lab.peers[out].socket()));
        // Load at the followers that stay: when the leader goes, a failover is allowed to cost them a wait, not a loss.
        let load = Load::begin(&lab, &rest, &waits("load"));
        tokio::time::sleep(Duration::from_millis(700)).await;
        let name = lab.peers[out].name.clone();
        let revoke = said(&mut bench.rota(&lab, rest[0], &["cluster", "revoke", &name, "stolen"])).await?;
        let done = Instant::now();
        if revoke.status != 0 {
            violations.push(format!("revoke failed: {}", revoke.err));
        }
        let last = ears.await.map_err(|e| LabError::Io("the ears".into(), std::io::Error::other(e)))?;
        cut_max_ms = cut_max_ms.max(last.saturating_duration_since(done).as_millis() as u64);
        let loaded = load.end().await;
        judge(&loaded, &mut violations);
        (acked, wait_max_ms) = (acked + loaded.acked.len() as u64, wait_max_ms.max(loaded.wait_max_ms));
        let term = lab.peers[rest[0]].client().await?;
        let term_before = term_of(term).await?;
        // It ends by itself once it knows, and is started again: it gets no vote, and no term grows by it.
        if lab.exited(out).is_none() {
            lab.signal(out, Signal::KILL)?;
        }
        lab.spawn(out)?;
        tokio::time::sleep(Duration::from_secs(3)).await;
        let term_after = term_of(lab.peers[rest[0]].client().await?).await?;
        if term_after != term_before {
            violations.push(format!("the term grew from {term_before} to {term_after} by a revoked host"));
        }
        let mut client = Stubborn::without(&lab, out);
        match lost(&mut client, &loaded).await? {
            0 => {}
            lost => violations.push(format!("{lost} acknowledged jobs are not there")),
        }
        let view = trust(&lab, rest[0]).await?;
        if !view.hosts.iter().any(|host| host.name == name && host.revoked.as_deref() == Some("stolen")) {
            violations.push(format!("{name} is not told as revoked: {view:?}"));
        }
        // A second one would leave no majority of the voters: refused with the reason.
        let other = lab.peers[rest[1]].name.clone();
        let second = said(&mut bench.rota(&lab, rest[0], &["cluster", "revoke", &other])).await?;
        if second.status == 0 || !second.err.contains("no majority") {
            violations.push(format!("a revocation without a majority left came back as {}", second.err));
        }
    }
    Ok(Report::of("O3-revoke", bench.rounds, &violations)
        .figure("cut_ms_max", cut_max_ms, Some(CUT_MS_MAX))
        .figure("acknowledged", acked, None)
        .figure("wait_max_ms", wait_max_ms, Some(WAIT_MS_MAX)))
}

async fn term_of(client: Client) -> Result<u64, LabError> {
    match client.call(ApiRequest::Cluster { freshness: Freshness::Stale }).await? {
        ApiReply::Cluster(view) => Ok(view.term),
        other => Err(LabError::Late(format!("a view of the cluster, not {other:?}"), 0)),
    }
}

/// Asks a peer for confirmed reads until it has not had one for two seconds; tells when the last one was asked.
async fn last_confirmed(socket: PathBuf) -> Instant {
    const QUIET: Duration = Duration::from_secs(2);
    let mut last = Instant::now();
    while last.elapsed() < QUIET {
        let asked = Instant::now();
        let read = async {
            let client = Client::connect_socket(&socket).await.ok()?;
            match client.call(ApiRequest::Trust(Freshness::Linearizable)).await.ok()? {
                ApiReply::Trust(_) => Some(()),
                _ => None,
            }
        };
        if let Ok(Some(())) = tokio::time::timeout(Duration::from_millis(500), read).await {
            last = asked;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    last
}

/// The record is settled first; each host drops the old authority when it has read that.
async fn old_authority_kept(lab: &Lab) -> Option<String> {
    let kept = || {
        let kept = lab.peers.iter().filter(|peer| {
            let ca = std::fs::read_to_string(peer.dir.join("identity/ca.pem")).unwrap_or_default();
            ca.matches("BEGIN CERTIFICATE").count() != 1
        });
        kept.map(|peer| peer.name.clone()).collect::<Vec<String>>()
    };
    let dropped = async || kept().is_empty().then_some(());
    let late = wait_for("the new authority alone", Duration::from_secs(20), dropped).await.is_err();
    late.then(|| format!("{:?} keep more than the new authority", kept()))
}

/// O3: the authority is replaced under load. While a host is off the change waits for it and says so; nothing is dropped.
pub(super) async fn authority_changed(bench: &Bench) -> Result<Report, LabError> {
    let mut lab = bench.lab("O3-ca", 3, |options| options.config = Some(config())).await?;
    let mut violations = Vec::new();
    let recorded = async || Some(trust(&lab, 0).await.ok()?.authorities).filter(|known| known.len() == 1);
    let first = wait_for("the record of the first authority", Duration::from_secs(20), recorded).await?;
    let load = Load::begin(&lab, &[0, 1, 2], &waits("load"));
    let mut slowest_ms = 0;
    for round in 0..bench.rounds {
        let started = Instant::now();
        let rotate = said(&mut bench.rota(&lab, round % 3, &["cluster", "ca", "rotate"])).await?;
        slowest_ms = slowest_ms.max(started.elapsed().as_millis() as u64);
        if rotate.status != 0 {
            let out = String::from_utf8_lossy(&rotate.out);
            violations.push(format!("rotate came back with {}: {out}{}", rotate.status, rotate.err));
        }
    }
    let loaded = load.end().await;
    judge(&loaded, &mut violations);
    let second = trust(&lab, 0).await?;
    if second.authorities.len() != 1 || second.authorities == first || second.stage != CaStage::Settled {
        violations.push(format!("the authority was not replaced: {second:?}"));
    }
    // A host that is off holds the change up, and is named; when it is back the change ends by itself.
    lab.stop(2).await?;
    let client = lab.peers[0].client().await?;
    let ask = rota_protocol::trust::TrustAsk::RotateCa;
    client.call(ApiRequest::ChangeTrust(rota_node::lab::new_request(), ask)).await?;
    let waiting = async || {
        let view = trust(&lab, 1).await.ok()?;
        let behind = |host: &&HostTrust| host.reads.is_some() && !host.took_ca;
        let names: Vec<&str> = view.hosts.iter().filter(behind).map(|host| host.name.as_str()).collect();
        (view.stage == CaStage::Trusting && names == ["n3"]).then_some(())
    };
    wait_for("a change that waits for n3 alone", Duration::from_secs(30), waiting).await?;
    let status = said(&mut bench.rota(&lab, 1, &["cluster", "ca", "status"])).await?;
    let out = String::from_utf8_lossy(&status.out).into_owned();
    if !out.contains("trusting") || !out.contains("waits for n3 (host 3)\n") {
        violations.push(format!("a change that waits was told as {out}"));
    }
    // The one that made the new authority is started anew in the middle of it.
    lab.signal(0, Signal::KILL)?;
    lab.spawn(0)?;
    lab.spawn(2)?;
    let settled = async || {
        let view = trust(&lab, 1).await.ok()?;
        (view.stage == CaStage::Settled && view.authorities != second.authorities).then_some(())
    };
    wait_for("the end of the change", Duration::from_secs(60), settled).await?;
    lab.until_up(3).await?;
    violations.extend(old_authority_kept(&lab).await);
    let mut client = Stubborn::new(&lab, 0);
    match lost(&mut client, &loaded).await? {
        0 => {}
        lost => violations.push(format!("{lost} acknowledged jobs are not there")),
    }
    Ok(Report::of("O3-ca", bench.rounds, &violations)
        .figure("change_ms_max", slowest_ms, Some(60_000))
        .figure("acknowledged", loaded.acked.len() as u64, None)
        .figure("dropped", loaded.dropped.len() as u64, Some(0))
        .figure("wait_max_ms", loaded.wait_max_ms, Some(WAIT_MS_MAX)))
}
