//! `rota demo`: three equal peers on loopback run real jobs, lose their leader half-way, and account for everything.
//!
//! Nothing is simulated but the cards (and those only where the machine has none): processes, QUIC, the log on disk,
//! the SIGKILL are real. Exit 0 only if nothing accepted was lost, nothing ran twice and all peers agree.

use crate::cli::ops::DemoArgs;
use crate::lab::{Lab, LabError, LabOptions, new_request};
use crate::lab_work::{Stubborn, Witness, as_array, shell_job, with_gpus};
use rota_protocol::api::ApiRequest;
use rota_protocol::ids::{HostId, JobId};
use rota_protocol::job::JobState;
use rustix::process::Signal;
use serde::Serialize;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// How long all jobs may take after the last submit.
const DONE_LIMIT: Duration = Duration::from_secs(40);
/// Jobs submitted while the leader is dead, to see the gap as a client does.
const STREAM_JOBS: usize = 12;

/// What the demo found.
#[derive(Debug, Serialize)]
pub struct DemoReport {
    /// Jobs whose acceptance was acknowledged.
    pub accepted: usize,
    /// Of those, how many reached a terminal state, or wait for a reason that was foretold.
    pub finished: usize,
    /// Accepted, then gone or stuck.
    pub lost: usize,
    /// Tasks that started more than once.
    pub run_twice: u64,
    /// Time between the last acknowledged submit before the kill and the first after it.
    pub failover_gap_ms: u64,
    /// Rolling and full hash of each peer's state at one log index.
    pub state_hashes: Vec<(HostId, u64, String, String)>,
    /// Whether they are equal.
    pub hashes_agree: bool,
    /// How long it all took.
    pub took_ms: u64,
}

impl DemoReport {
    /// Nothing lost, nothing doubled, all agree.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.lost == 0 && self.run_twice == 0 && self.hashes_agree && self.accepted == self.finished
    }
}

/// Runs the demo and prints its table.
///
/// # Errors
/// The cluster cannot be started or stops answering.
pub async fn run(args: &DemoArgs) -> Result<DemoReport, LabError> {
    let started = Instant::now();
    let dir = std::env::temp_dir().join(format!("rota-demo-{}", std::process::id()));
    let mut show = Progress { quiet: args.json, started, live: std::io::stdout().is_terminal() };
    show.line(&format!("starting three peers under {}", dir.display()));
    let mut options = LabOptions::new(3, &dir).map_err(|e| LabError::Io("no program".into(), e))?;
    if crate::ops::has_real_gpus() {
        // Three hosts on one machine must not offer one card three times: the first owns the real ones.
        show.line("real cards found: the first peer offers them, the other two simulated ones");
        options.first_has_real_gpus = true;
    }
    options.cpus = Some("16".into());
    options.mem = Some("64GiB".into());
    let mut lab = Lab::start(options).await?;
    let outcome = story(&mut lab, &dir, &mut show).await;
    drop(lab);
    if !args.keep {
        let _ = std::fs::remove_dir_all(&dir);
    }
    let mut report = outcome?;
    report.took_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
    Ok(report)
}

async fn story(lab: &mut Lab, dir: &std::path::Path, show: &mut Progress) -> Result<DemoReport, LabError> {
    for host in lab.hosts().await? {
        show.line(&format!("  {} up: {} GPUs, {} CPUs", host.name, host.gpus, host.cpus_milli / 1_000));
    }
    let witness = Witness::new(dir);
    let mut client = Stubborn::new(lab, 0);
    let Mix { mut jobs, doomed, impossible } = submit_mix(&mut client, &witness).await?;
    show.line(&format!(
        "accepted {} jobs; the last asks 64 GPUs of one host: {}",
        jobs.len(),
        why(&mut client, impossible).await?
    ));
    tokio::time::sleep(Duration::from_millis(400)).await;

    let leader = lab.leader().await?;
    let name = lab.peers[leader].name.clone();
    let gap_ms = kill_leader_under_submits(lab, leader, &mut client, &witness, &mut jobs).await?;
    show.line(&format!("killed the leader {name} (SIGKILL); next submit acknowledged after {gap_ms} ms"));
    client
        .ask(ApiRequest::Cancel { request: new_request(), job: doomed, index: None }, Duration::from_secs(10))
        .await?;
    show.line("cancelled one running job; starting the old leader again");
    lab.spawn(leader)?;
    lab.until_up(lab.peers.len()).await?;
    show.line(&format!("{name} is back as a follower"));

    let to_finish: Vec<JobId> = jobs.iter().map(|(_, job)| *job).filter(|job| *job != impossible).collect();
    let total = to_finish.len();
    let rows = client
        .until_done(&to_finish, DONE_LIMIT, |done, _| show.live(&format!("{done} of {total} jobs done")))
        .await?;
    show.line(&format!("{} of {total} jobs done", rows.iter().filter(|row| row.state.is_terminal()).count()));
    let digests = lab.digests().await?;
    let mut finished = 0;
    for (kind, job) in &jobs {
        let state = rows.iter().find(|row| row.job == *job).map(|row| row.state);
        if as_foretold(kind, state) {
            finished += 1;
        } else {
            show.line(&format!("job {job} ({kind}) is {state:?}"));
        }
    }
    let agree = digests.windows(2).all(|pair| (pair[0].2, pair[0].3) == (pair[1].2, pair[1].3));
    Ok(DemoReport {
        accepted: jobs.len(),
        finished,
        lost: jobs.len() - finished,
        run_twice: witness.run_twice(),
        failover_gap_ms: gap_ms,
        hashes_agree: agree && digests.len() == lab.peers.len(),
        state_hashes: digests
            .into_iter()
            .map(|(host, index, rolling, full)| {
                (host, index, format!("{rolling:016x}"), format!("{full:016x}"))
            })
            .collect(),
        took_ms: 0,
    })
}

/// The jobs of the demo, by what is foretold of them.
struct Mix {
    jobs: Vec<(&'static str, JobId)>,
    doomed: JobId,
    impossible: JobId,
}

async fn submit_mix(client: &mut Stubborn, witness: &Witness) -> Result<Mix, LabError> {
    let mut jobs = Vec::new();
    let short = shell_job("array of 60 short tasks", &witness.script("sleep 0.2"));
    jobs.push(("array", client.submit(as_array(short, 60)).await?));
    for gpus in [2, 4, 1] {
        let spec = shell_job(&format!("{gpus} GPUs"), &witness.script("sleep 1; echo $CUDA_VISIBLE_DEVICES"));
        jobs.push(("multi-GPU", client.submit(with_gpus(spec, gpus)).await?));
    }
    jobs.push(("fails", client.submit(shell_job("exits with 3", &witness.script("exit 3"))).await?));
    let doomed =
        client.submit(with_gpus(shell_job("to be cancelled", &witness.script("sleep 600")), 1)).await?;
    jobs.push(("cancelled", doomed));
    let long =
        client.submit(with_gpus(shell_job("spans the failover", &witness.script("sleep 3")), 1)).await?;
    jobs.push(("long", long));
    let impossible = client.submit(with_gpus(shell_job("asks 64 GPUs", "true"), 64)).await?;
    jobs.push(("impossible", impossible));
    Ok(Mix { jobs, doomed, impossible })
}

/// Whether a job came out as its kind foretells.
fn as_foretold(kind: &str, state: Option<JobState>) -> bool {
    state
        == Some(match kind {
            "fails" => JobState::Failed,
            "cancelled" => JobState::Cancelled,
            "impossible" => JobState::Pending,
            _ => JobState::Succeeded,
        })
}

async fn why(client: &mut Stubborn, job: JobId) -> Result<String, LabError> {
    match client.ask(ApiRequest::Why { job }, Duration::from_secs(10)).await? {
        rota_protocol::api::ApiReply::Why(why) => Ok(why.verdict),
        other => Ok(format!("{other:?}")),
    }
}

/// Submits steadily while the leader is killed; the gap is the longest time between two acknowledgements.
async fn kill_leader_under_submits(
    lab: &mut Lab,
    leader: usize,
    client: &mut Stubborn,
    witness: &Witness,
    jobs: &mut Vec<(&str, JobId)>,
) -> Result<u64, LabError> {
    let mut acknowledged = Instant::now();
    let mut gap = Duration::ZERO;
    for number in 0..STREAM_JOBS {
        if number == STREAM_JOBS / 2 {
            lab.signal(leader, Signal::KILL)?;
        }
        let spec = shell_job("submitted through the failover", &witness.script("sleep 0.05"));
        jobs.push(("stream", client.submit(spec).await?));
        gap = gap.max(acknowledged.elapsed());
        acknowledged = Instant::now();
    }
    Ok(u64::try_from(gap.as_millis()).unwrap_or(u64::MAX))
}

/// Prints the table.
pub fn print(report: &DemoReport) {
    println!();
    println!("  accepted           {:>6}", report.accepted);
    println!("  ended as foretold  {:>6}", report.finished);
    println!("  lost               {:>6}", report.lost);
    println!("  run twice          {:>6}", report.run_twice);
    println!("  failover gap       {:>6} ms", report.failover_gap_ms);
    for (host, index, rolling, full) in &report.state_hashes {
        println!("  state of host {host} at log index {index}: {rolling} {full}");
    }
    println!("  state hashes       {}", if report.hashes_agree { "agree" } else { "DIFFER" });
    println!("  took               {:>6} ms", report.took_ms);
    println!(
        "{}",
        if report.is_good() { "nothing was lost, nothing ran twice" } else { "NOT as it should be" }
    );
}

struct Progress {
    quiet: bool,
    started: Instant,
    live: bool,
}

impl Progress {
    fn line(&mut self, text: &str) {
        if !self.quiet {
            println!(
                "{}[{:6.2} s] {text}",
                if self.live { "\r\x1b[K" } else { "" },
                self.started.elapsed().as_secs_f32()
            );
        }
    }

    fn live(&mut self, text: &str) {
        if !self.quiet && self.live {
            print!("\r\x1b[K[{:6.2} s] {text}", self.started.elapsed().as_secs_f32());
            let _ = std::io::stdout().flush();
        }
    }
}
