//! Answers lost on the way (fault R9): the client asks again with the same request id, at another peer, over a
//! leader's death, and there is one job.

use super::Bench;
use super::report::Report;
use rota_node::lab::{LabError, new_request};
use rota_node::lab_work::{Stubborn, Witness, shell_job};
use rota_protocol::api::ApiRequest;
use rustix::process::Signal;
use std::time::Duration;

/// R9: the connection is dropped with the answer still on its way; then the leader dies; then the same is asked again.
pub(super) async fn retried(bench: &Bench) -> Result<Report, LabError> {
    let mut lab = bench.lab("R9", 3, |_| {}).await?;
    let witness = Witness::new(&bench.dir.join("R9"));
    let mut violations = Vec::new();
    for round in 0..bench.rounds {
        let request = new_request();
        let spec = shell_job("once", &witness.script("true"));
        let first = round % lab.peers.len();
        let client = lab.peers[first].client().await?;
        // Nobody waits for this answer: the future is dropped as soon as the request is surely under way.
        let asked = client.call(ApiRequest::Submit { jobs: vec![(request, spec.clone())] });
        let _ = tokio::time::timeout(Duration::from_micros(300 * (round as u64 % 8)), asked).await;
        drop(client);
        let leader = lab.leader().await?;
        if round % 2 == 1 {
            lab.signal(leader, Signal::KILL)?;
        }
        let mut stubborn = Stubborn::new(&lab, first);
        let limit = Duration::from_secs(20);
        let job = stubborn.submit_as(request, spec.clone(), limit).await?;
        let again = stubborn.submit_as(request, spec, limit).await?;
        if job != again {
            violations.push(format!("round {round}: request {request} became jobs {job} and {again}"));
        }
        if round % 2 == 1 {
            lab.spawn(leader)?;
            // The next round may begin at this very peer.
            lab.until_answers(leader).await?;
            lab.until_up(3).await?;
        }
        stubborn.until_done(&[job], Duration::from_secs(20), |_, _| {}).await?;
    }
    let mut client = Stubborn::new(&lab, 0);
    let jobs = client.all_jobs().await?;
    if jobs.len() != bench.rounds {
        violations.push(format!("{} requests became {} jobs", bench.rounds, jobs.len()));
    }
    if witness.run_twice() > 0 {
        violations.push(format!("{} tasks ran twice", witness.run_twice()));
    }
    Ok(Report::of("R9", bench.rounds, &violations))
}
