//! Hosts that are no members: the one that they get the log from dies under load (R4).

use super::{equal, ms, until, until_host};
use crate::real::Bench;
use crate::real::agent_death::show;
use crate::real::row::Row;
use crate::real::starts;
use rota_node::config::Profile;
use rota_node::lab::lives::Lives;
use rota_node::lab::{Lab, LabError, wait_for};
use rota_node::lab_work::{Stubborn, Witness, shell_job, true_job, with_gpus};
use rota_protocol::api::{ApiReply, ApiRequest, Freshness};
use rota_protocol::attempt::AttemptEnd;
use rota_protocol::ids::{HostId, JobId};
use rota_protocol::view::{ClusterView, HostState};
use rustix::process::Signal;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Until all that was committed meanwhile is at every follower, in ms.
const VISIBLE_MS: u64 = 10_000;
/// Voters; nobody else is a member.
const VOTERS: usize = 3;
/// Hosts that follow.
const FOLLOWERS: usize = 3;
/// Longest that anything here may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a host itself knows, confirmed by nobody.
async fn own_view(lab: &Lab, at: usize) -> Option<ClusterView> {
    let request = ApiRequest::Cluster { freshness: Freshness::Stale };
    match lab.peers[at].client().await.ok()?.call(request).await {
        Ok(ApiReply::Cluster(view)) => Some(*view),
        _ => None,
    }
}

/// Three voters and three hosts that follow, each with one card and a task on it.
async fn grown(bench: &Bench) -> Result<Lab, LabError> {
    let change = |options: &mut rota_node::lab::LabOptions| {
        options.sim_gpus = Some("1xH100:80GiB".into());
        options.config = Some("[membership]\nmembers_max = 3\n".into());
    };
    let mut lab = bench.lab("R4", VOTERS, change).await?;
    for _ in 0..FOLLOWERS {
        let new = lab.grow(0).await?;
        lab.spawn(new)?;
        until_host(&lab, lab.peers[new].host, HostState::Up).await?;
    }
    until(&lab, "three follow", |view| {
        view.peers.iter().filter(|peer| peer.role == "follower").count() == FOLLOWERS
            && view.members.follow.followers == 3
    })
    .await?;
    Ok(lab)
}

/// The peer that a host asks for the log, once it is one that does not lead.
async fn parent(lab: &Lab, at: usize) -> Result<HostId, LabError> {
    wait_for("a parent that does not lead", PATIENCE, async || {
        let view = own_view(lab, at).await?;
        view.members.follow.parent.filter(|parent| Some(*parent) != view.leader)
    })
    .await
}

/// Attempts of these jobs that are over because the lease of this host ran out, by token.
async fn expired(client: &mut Stubborn, jobs: &[JobId], on: HostId) -> Result<BTreeSet<u64>, LabError> {
    let mut tokens = BTreeSet::new();
    for job in jobs {
        let view = show(client, *job).await?;
        let over = |end: &Option<AttemptEnd>| matches!(end, Some(AttemptEnd::Lost | AttemptEnd::Fenced));
        let lost = view.attempts.iter().filter(|one| one.host == on && over(&one.end));
        tokens.extend(lost.map(|one| one.token.0));
    }
    Ok(tokens)
}

/// R4: the parent of a follower dies while tasks run there and jobs come in.
pub(super) async fn parent_killed(bench: &Bench) -> Result<Row, LabError> {
    let what = "a follower's parent is killed under load: until all is visible at every follower";
    let mut row = Row::new("R4", what, Some(VISIBLE_MS));
    let mut lab = grown(bench).await?;
    let (dir, mut restarted) = (bench.dir.join("R4"), 0);
    let (witness, lives) = (Witness::new(&dir), Lives::new(&dir, "lives"));
    let held = witness.script(&lives.times(120));
    // Both grow over the rounds: what was excused stays so.
    let mut excused = BTreeSet::new();
    for round in 0..bench.rounds.max(1) {
        let mut client = Stubborn::new(&lab, 0);
        client.patience = Duration::from_secs(1);
        let mut jobs = Vec::new();
        for _ in 0..VOTERS + FOLLOWERS {
            jobs.push(client.submit(with_gpus(shell_job("held", &held), 1)).await?);
        }
        until(&lab, "a task on every host", |view| view.jobs.get("running").copied().unwrap_or(0) >= 6)
            .await?;
        let above = parent(&lab, VOTERS).await?;
        let victim = lab.peers.iter().position(|peer| peer.host == above).unwrap_or(0);
        lab.signal(victim, Signal::KILL)?;
        let killed = Instant::now();
        let mut client = Stubborn::without(&lab, victim);
        for _ in 0..50 {
            jobs.push(client.submit(true_job("meanwhile")).await?);
        }
        let index = lab.cluster().await?.applied;
        for at in VOTERS..VOTERS + FOLLOWERS {
            wait_for("all visible", PATIENCE, async || {
                own_view(&lab, at).await.filter(|view| view.applied >= index).map(|_| ())
            })
            .await?;
        }
        row.ran(ms(killed));
        let now = own_view(&lab, VOTERS).await.and_then(|view| view.members.follow.parent);
        // Nobody is asked by one that has become a member for the dead one.
        row.must(now != Some(above), || format!("round {round}: it still asks {above}"));
        lab.spawn(victim)?;
        lab.until_answers(victim).await?;
        let silent_ms = ms(killed);
        let rows = client.until_done(&jobs, PATIENCE, |_, _| {}).await?;
        let done = rows.iter().filter(|one| jobs.contains(&one.job) && one.state.is_terminal()).count();
        row.must(done == jobs.len(), || format!("round {round}: {done} of {} jobs ended", jobs.len()));
        // The log's word counts only for the host that really was silent for that long: nobody else's lease may expire.
        if silent_ms >= Profile::Chaos.lease().ttl_ms {
            excused.extend(expired(&mut client, &jobs, above).await?);
        }
        let found = starts::judge(&witness.text(), &lives.judge().overlaps, |token| excused.contains(&token));
        row.must(found.wrong.is_empty(), || format!("round {round}: {}", found.wrong.join("; ")));
        restarted = found.after_expiry;
        let lost: Vec<_> =
            lab.hosts().await?.into_iter().filter(|host| host.state != HostState::Up).collect();
        row.must(lost.is_empty(), || format!("round {round}: leases were lost: {lost:?}"));
        equal(&lab, &mut row).await?;
    }
    row.also("attempts_after_an_expired_lease_count", restarted, None);
    Ok(row)
}
