//! Any one of three hosts goes away (field report R065): whoever knows one living peer goes on. Each host in turn is killed,
//! and everything that clients do is done through one of the others.

use super::Bench;
use super::agent_death::{output, show};
use super::freeze::{position, running_on};
use super::host_files::program;
use super::report::Report;
use rota_node::lab::{Lab, LabError, free_port, io, new_request, wait_for};
use rota_node::lab_work::{Stubborn, shell_job, true_job, with_gpus};
use rota_protocol::api::{ApiReply, ApiRequest, Freshness, QueueFilter};
use rota_protocol::ids::JobId;
use rota_protocol::job::JobState;
use rustix::process::Signal;
use std::path::Path;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Until all of it works again, in ms.
const AGAIN_MS_MAX: u64 = 10_000;
const LIMIT: Duration = Duration::from_secs(30);
/// Jobs that are in flux when a host goes.
const FLUX: usize = 30;

/// A lab whose agents serve HTTP, each at a port of its own, which are returned.
async fn with_http(bench: &Bench, name: &str) -> Result<(Lab, Vec<u16>), LabError> {
    let ports = (0..3).map(|_| free_port()).collect::<Result<Vec<_>, _>>()?;
    let mut written = Ok(());
    let lab = bench.lab(name, 3, |options| {
        let script = options.dir.join("rota.sh");
        let text = format!(
            "last=; data=; for word in \"$@\"; do [ \"$last\" = --data-dir ] && data=$word; last=$word; done\n\
             for word in \"$@\"; do shift; [ \"$last\" = --http-listen ] && word=$(cat \"$data.http\"); last=$word; \
             set -- \"$@\" \"$word\"; done\nexec {} \"$@\"",
            bench.exe.display()
        );
        written = std::fs::create_dir_all(&options.dir).map_err(io("the lab's folder")).and_then(|()| {
            for (number, port) in ports.iter().enumerate() {
                let file = options.dir.join(format!("n{}.http", number + 1));
                std::fs::write(file, format!("127.0.0.1:{port}")).map_err(io("a port"))?;
            }
            program(&script, &text)
        });
        options.exe = script;
    });
    let lab = lab.await;
    written?;
    Ok((lab?, ports))
}

/// One page of a peer, whole.
async fn page(port: u16, path: &str, dir: &Path) -> Option<String> {
    let token = std::fs::read_to_string(dir.join("metrics-token")).ok()?;
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.ok()?;
    let ask = format!(
        "GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {}\r\nConnection: close\r\n\r\n",
        token.trim()
    );
    stream.write_all(ask.as_bytes()).await.ok()?;
    let mut answer = String::new();
    let read = tokio::time::timeout(Duration::from_secs(3), stream.read_to_string(&mut answer));
    read.await.ok()?.ok()?;
    answer.starts_with("HTTP/1.1 200").then_some(answer)
}

/// What was there before a host went.
struct Before {
    finished: JobId,
    lasting: Vec<(JobId, usize, Vec<Option<u32>>)>,
    flux: Vec<JobId>,
}

impl Before {
    async fn make(lab: &Lab) -> Result<Self, LabError> {
        let mut client = Stubborn::new(lab, 0);
        let finished = client.submit(true_job("finished")).await?;
        client.until_done(&[finished], LIMIT, |_, _| {}).await?;
        let mut lasting = Vec::new();
        for number in 0..3 {
            // By their cards, one on each host.
            let script = format!("echo line-{number}; exec sleep 600");
            let job = client.submit(with_gpus(shell_job("lasts", &script), 3)).await?;
            let at = position(lab, running_on(&mut client, job).await?);
            let pids = show(&mut client, job).await?.attempts.iter().map(|attempt| attempt.pid).collect();
            lasting.push((job, at, pids));
        }
        let mut flux = Vec::new();
        for _ in 0..FLUX {
            flux.push(client.submit(shell_job("flux", "sleep 0.3")).await?);
        }
        Ok(Self { finished, lasting, flux })
    }

    /// Everything that clients do, at one peer alone; what did not work is retried until the time is over.
    async fn goes_on(
        &self,
        lab: &Lab,
        (gone, at): (usize, usize),
        port: u16,
    ) -> Result<Vec<String>, LabError> {
        let mut wrong = Vec::new();
        let mut client = Stubborn::only(lab, at);
        let job = client.submit(with_gpus(shell_job("new", "true"), 5)).await?;
        let cancel = ApiRequest::Cancel { request: new_request(), job, index: None };
        client.ask(cancel, LIMIT).await?;
        let freshness = Freshness::Linearizable;
        let listed =
            client.ask(ApiRequest::Queue { filter: QueueFilter::default(), freshness }, LIMIT).await?;
        if !matches!(&listed, ApiReply::Queue { rows, .. } if !rows.is_empty()) {
            wrong.push(format!("the list is {listed:?}"));
        }
        let finished = show(&mut client, self.finished).await?.row.state;
        if finished != JobState::Succeeded {
            wrong.push(format!("what had finished is {finished}"));
        }
        for (number, (job, host, pids)) in
            self.lasting.iter().enumerate().filter(|(_, (_, host, _))| *host != gone)
        {
            let text = output(lab, at, *job, false).await?;
            if text != format!("line-{number}\n") {
                wrong.push(format!("the output of job {job} on n{} is {text:?}", host + 1));
            }
            let now: Vec<_> =
                show(&mut client, *job).await?.attempts.iter().map(|attempt| attempt.pid).collect();
            if now != *pids {
                wrong.push(format!("job {job} on n{}, which lives, was {pids:?} and is {now:?}", host + 1));
            }
        }
        for (path, holds) in [("/healthz", ""), ("/metrics", "rota_")] {
            let dir = &lab.peers[at].dir;
            let served = wait_for("a page", LIMIT, async || page(port, path, dir).await).await?;
            if !served.contains(holds) {
                wrong.push(format!("{path} says {served:?}"));
            }
        }
        Ok(wrong)
    }
}

/// R065: the leader, and the two others.
pub(super) async fn goes_away(bench: &Bench) -> Result<Report, LabError> {
    let (mut violations, mut slowest) = (Vec::new(), 0);
    for round in 0..bench.rounds {
        let (mut lab, ports) = with_http(bench, "R065").await?;
        let before = Before::make(&lab).await?;
        let gone = (lab.leader().await? + round) % 3;
        let at = (gone + 1) % 3;
        lab.signal(gone, Signal::KILL)?;
        let began = Instant::now();
        let wrong = before.goes_on(&lab, (gone, at), ports[at]).await?;
        slowest = slowest.max(began.elapsed().as_millis() as u64);
        violations.extend(wrong.into_iter().map(|what| format!("round {round}: {what}")));
        // The jobs in flux end well, each once, also those that the host took with it.
        let mut client = Stubborn::only(&lab, at);
        let rows = client.until_done(&before.flux, LIMIT, |_, _| {}).await?;
        let named = rows.iter().filter(|row| row.name == "flux").count();
        let well = rows.iter().filter(|row| row.name == "flux" && row.state == JobState::Succeeded).count();
        if (named, well) != (FLUX, FLUX) {
            violations.push(format!("round {round}: of {FLUX} jobs {named} are there and {well} ended well"));
        }
        let age = ApiRequest::Cluster { freshness: Freshness::Stale };
        if !matches!(client.ask(age, LIMIT).await?, ApiReply::Cluster(_)) {
            violations.push(format!("round {round}: no word of the cluster"));
        }
    }
    Ok(Report::of("R065", bench.rounds, &violations).figure("all_again_ms", slowest, Some(AGAIN_MS_MAX)))
}
