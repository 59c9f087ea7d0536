//! Hosts on which jobs fail that run well elsewhere (fault G14).

use super::site::{PATIENCE, sleeper};
use super::{Bench, io, ms};
use crate::real::row::Row;
use rota_node::lab::{Lab, LabError, LabOptions, new_request, wait_for};
use rota_node::lab_work::{Stubborn, shell_job, with_gpus};
use rota_protocol::api::{ApiReply, ApiRequest, Freshness};
use rota_protocol::job::{AttemptState, JobSpec};
use rota_protocol::view::HostState;
use rota_protocol::{HostId, JobId};
use std::time::{Duration, Instant};

/// So many jobs must have failed, and no more.
const JOBS: u32 = 3;

/// G14: three jobs that fail on one host and run well on another keep work off it; an operator's word lets it work again.
pub(in crate::real) async fn shunned(bench: &Bench) -> Result<Row, LabError> {
    let what =
        "a host on which three jobs failed that ran well elsewhere: from the third to no more work there";
    let mut row = Row::new("G14", what, None);
    let bad_file = bench.dir.join("G14-bad");
    let one_card = |options: &mut LabOptions| options.sim_gpus = Some("1xH100:80GiB".into());
    let lab = bench.lab("G14", 3, one_card).await?;
    let mut client = Stubborn::new(&lab, 0);
    // Two of three hosts are full: the third is the one on which jobs will fail.
    let (first, second) = (start(&lab, &mut client, 50).await?, start(&lab, &mut client, 50).await?);
    let other = lab.peers.iter().map(|peer| peer.host).find(|host| ![first.1, second.1].contains(host));
    let bad = other.unwrap_or(lab.peers[0].host);
    std::fs::write(&bad_file, bad.to_string()).map_err(io("a file"))?;
    // It fails when it is told to: what is to take its card waits by then.
    let fail_file = bench.dir.join("G14-fail");
    let script = format!(
        "test \"$ROTA_HOST\" != \"$(cat {})\" || {{ until [ -e {} ]; do sleep 0.1; done; exit 1; }}",
        bad_file.display(),
        fail_file.display()
    );
    let picky = JobSpec { retries: 1, preemptible: false, ..with_gpus(shell_job("picky", &script), 1) };
    let mut good = first.0;
    for time in 1..=JOBS {
        let job = client.submit(picky.clone()).await?;
        until_on(&lab, job, Some(bad)).await?;
        // What is more urgent takes the bad host's card when it has failed; then a good host's card is freed.
        let urgent = client.submit(JobSpec { priority: 90, ..sleeper() }).await?;
        std::fs::write(&fail_file, "").map_err(io("a file"))?;
        until_on(&lab, urgent, Some(bad)).await?;
        cancel(&mut client, good).await?;
        client.until_done(&[job], PATIENCE, |_, _| {}).await?;
        let ended = Instant::now();
        let counted = wait_for("the count of failed jobs", PATIENCE, async || {
            let row = lab.hosts().await.ok()?.into_iter().find(|row| row.host == bad);
            row.filter(|row| row.care.failed_jobs == time)
        });
        let counted = counted.await?;
        if time == JOBS {
            row.ran(ms(ended));
        }
        row.must((counted.state == HostState::Shunned) == (time == JOBS), || {
            format!("after {time} jobs the host is {:?}", counted.state)
        });
        std::fs::remove_file(&fail_file).map_err(io("a file"))?;
        good = start(&lab, &mut client, 50).await?.0;
        cancel(&mut client, urgent).await?;
    }
    row.also("jobs_until_shunned", JOBS.into(), Some(3));
    let waits = client.submit(sleeper()).await?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let why = client.ask(ApiRequest::Why { job: waits }, PATIENCE).await?;
    let told = matches!(&why, ApiReply::Why(why) if why.by_reason.iter().any(|reason| {
        reason.kind == "shunned" && reason.detail.contains("3 jobs failed here")
    }));
    row.must(told, || format!("a waiting job is told {why:?}"));
    client.ask(ApiRequest::Undrain { request: new_request(), host: bad.to_string() }, PATIENCE).await?;
    until_on(&lab, waits, Some(bad)).await?;
    Ok(row)
}

/// A sleeper that runs, and where.
async fn start(lab: &Lab, client: &mut Stubborn, priority: u16) -> Result<(JobId, HostId), LabError> {
    let job = client.submit(JobSpec { priority, ..sleeper() }).await?;
    Ok((job, until_on(lab, job, None).await?))
}

/// Waits until a job runs, on this host if one is named; gives where.
async fn until_on(lab: &Lab, job: JobId, wanted: Option<HostId>) -> Result<HostId, LabError> {
    wait_for("a start", PATIENCE, async || {
        let show = ApiRequest::Show { job, freshness: Freshness::Linearizable };
        let ApiReply::Job(view) = lab.ask(show).await.ok()? else { return None };
        let live = view.attempts.iter().find(|a| a.state == Some(AttemptState::Running))?;
        wanted.is_none_or(|host| host == live.host).then_some(live.host)
    })
    .await
}

async fn cancel(client: &mut Stubborn, job: JobId) -> Result<(), LabError> {
    client.ask(ApiRequest::Cancel { request: new_request(), job, index: None }, PATIENCE).await?;
    Ok(())
}
