//! Hosts that lack what an agent needs (fault P10): file descriptors, processes, memory. New work is refused with a typed
//! error or runs elsewhere, agreement goes on, and an agent that the kernel killed comes back to its tasks.

use super::Bench;
use super::agent_death::show;
use super::ends::{cancel, until};
use super::freeze::position;
use super::row::Row;
use rota_node::client::Client;
use rota_node::io::proc;
use rota_node::lab::{Lab, LabError, io, wait_for};
use rota_node::lab_work::{Stubborn, shell_job, true_job, with_gpus};
use rota_protocol::api::{ApiReply, ApiRequest, Freshness};
use rota_protocol::error::ErrorCode;
use rota_protocol::ids::JobId;
use rota_protocol::job::{AttemptEnd, JobSpec, JobState};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// From the start of an agent that the kernel killed to its tasks taken over, in ms (P6).
const ADOPTED_MS_MAX: u64 = 1_000;
/// File descriptors of an agent.
const FILES: u64 = 64;
/// What an agent without clients may hold of them, so that clients leave enough for the rest.
const FILES_AT_REST_MAX: u64 = 48;
/// Memory that an agent may take beyond what it has, in bytes.
const MEMORY: u64 = 24 << 20;
/// Variables of one job that takes memory, and their length in bytes.
const FAT: (usize, usize) = (3, 60 << 10);
const LIMIT: Duration = Duration::from_secs(60);

/// P10: descriptors, processes, memory.
pub(super) async fn of_everything(bench: &Bench) -> Result<Row, LabError> {
    let what = "an agent killed for memory: from its start to its tasks taken over; too few descriptors, no more processes";
    let mut row = Row::new("P10", what, Some(ADOPTED_MS_MAX));
    of_files(bench, &mut row).await?;
    let lacking = [of_processes(bench, &mut row).await?, of_memory(bench, &mut row).await?];
    Ok(match lacking.into_iter().flatten().next() {
        Some(why) => row.skip(&why),
        None => row,
    })
}

/// All agents have 64 file descriptors, and one has more clients than it has room for.
async fn of_files(bench: &Bench, row: &mut Row) -> Result<(), LabError> {
    let script = bench.dir.join("few-files.sh");
    super::host_files::program(&script, &format!("ulimit -n {FILES}; exec {} \"$@\"", bench.exe.display()))?;
    let few = Bench { exe: script, ..bench.clone() };
    let lab = few.lab("P10", 3, |_| {}).await?;
    let own = lab.peers[0].pid().unwrap_or_default();
    let files = || std::fs::read_dir(format!("/proc/{own}/fd")).map_or(0, |files| files.count() as u64);
    row.also("files_at_rest", files(), Some(FILES_AT_REST_MAX));
    let mut held: Vec<Client> = Vec::new();
    let (mut served, mut refused) = (0_u64, 0_u64);
    for _ in 0..FILES {
        let answer = match lab.peers[0].client().await {
            Ok(client) => {
                let answer = client.call(ApiRequest::Cluster { freshness: Freshness::Stale }).await;
                held.push(client);
                answer
            }
            Err(error) => Err(error),
        };
        match answer {
            Ok(_) => served += 1,
            Err(error) if error.code == ErrorCode::Busy => refused += 1,
            Err(error) => row.wrong(format!("a client too many is told {error:?}")),
        }
    }
    row.also("clients_served", served, None);
    row.also("clients_told_that_there_is_no_room", refused, None);
    row.must(refused > 0 && served > 0, || format!("not exercised: {served} served, {refused} refused"));
    // Agreement, and launches on that host, go on beside them.
    let mut client = Stubborn::new(&lab, 0);
    let mut jobs = Vec::new();
    for _ in 0..12 {
        jobs.push(client.submit(with_gpus(true_job("beside"), 1)).await?);
    }
    let rows = client.until_done(&jobs, LIMIT, |_, _| {}).await?;
    let well = rows.iter().filter(|row| jobs.contains(&row.job) && row.state == JobState::Succeeded).count();
    row.must(well == jobs.len(), || format!("beside too many clients {well} of {} jobs ran", jobs.len()));
    drop(held);
    wait_for("an answer once there is room", LIMIT, async || {
        let client = lab.peers[0].client().await.ok()?;
        client.call(ApiRequest::Cluster { freshness: Freshness::Stale }).await.ok()
    })
    .await?;
    let hashes = lab.digests().await?;
    row.must(hashes.len() == 3, || format!("{} peers answer", hashes.len()));
    Ok(())
}

/// A control group of this scenario; removed when dropped.
struct Group(PathBuf);

impl Group {
    /// In the first of these folders that has the file.
    fn new(folders: &[&str], file: &str) -> Option<Self> {
        folders.iter().find_map(|folder| {
            let path = Path::new(folder).join(format!("rota-p10-{}", std::process::id()));
            std::fs::create_dir(&path).ok()?;
            let group = Self(path);
            group.0.join(file).exists().then_some(group)
        })
    }

    fn set(&self, file: &str, value: impl ToString) -> Result<(), LabError> {
        std::fs::write(self.0.join(file), value.to_string()).map_err(io("a control group"))
    }

    fn read(&self, file: &str) -> String {
        std::fs::read_to_string(self.0.join(file)).unwrap_or_default()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let root = self.0.parent().map(|root| root.join("cgroup.procs")).unwrap_or_default();
        for _ in 0..100 {
            for pid in self.read("cgroup.procs").lines() {
                let _ = std::fs::write(&root, pid);
            }
            if std::fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// The fork server of one host can make no more processes: its launches fail as the host's fault, and all jobs run
/// elsewhere.
async fn of_processes(bench: &Bench, row: &mut Row) -> Result<Option<String>, LabError> {
    let Some(group) = Group::new(&["/sys/fs/cgroup/pids", "/sys/fs/cgroup"], "pids.max") else {
        return Ok(Some("no control groups that bound processes and that this user may make".into()));
    };
    let lab = bench.lab("P10-processes", 3, |_| {}).await?;
    let victim = 1;
    let agent = i32::try_from(lab.peers[victim].pid().unwrap_or_default()).unwrap_or_default();
    let is_server = |pid: &i32| {
        let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        words.split(|byte| *byte == 0).any(|word| word == rota_node::shim::SERVER_ARG.as_bytes())
    };
    let server = proc::descendants(agent).unwrap_or_default().into_iter().find(is_server);
    let Some(server) = server else { return Ok(Some("the fork server was not found".into())) };
    group.set("cgroup.procs", server)?;
    group.set("pids.max", group.read("pids.current").trim())?;
    let mut client = Stubborn::without(&lab, victim);
    let mut jobs = Vec::new();
    // More than the two others hold at once.
    for _ in 0..10 {
        jobs.push(client.submit(with_gpus(shell_job("short", "sleep 1"), 1)).await?);
    }
    client.until_done(&jobs, LIMIT, |_, _| {}).await?;
    let mut failed = 0_u64;
    for job in jobs {
        let view = show(&mut client, job).await?;
        row.must(view.row.state == JobState::Succeeded, || {
            format!("without processes job {job} is {}", view.row.state)
        });
        let own = view.attempts.iter().filter(|attempt| position(&lab, attempt.host) == victim);
        failed +=
            own.filter(|attempt| matches!(attempt.end, Some(AttemptEnd::LaunchFailed { .. }))).count() as u64;
    }
    row.must(failed > 0, || "not exercised: no launch failed for want of a process".into());
    row.also("launches_refused_without_processes", failed, None);
    group.set("pids.max", "max")?;
    Ok(None)
}

/// A job that is kept and takes memory.
fn fat(number: usize) -> JobSpec {
    let mut spec = shell_job("fat", "true");
    spec.hold = true;
    let variable = |at: usize| (format!("FAT{number}_{at}").into_bytes(), vec![b'x'; FAT.1]);
    spec.env = (0..FAT.0).map(variable).collect();
    spec
}

/// The agent of a host may take no more memory, and is given work that takes it: the kernel kills it. What was accepted
/// is there, and what ran runs on.
async fn of_memory(bench: &Bench, row: &mut Row) -> Result<Option<String>, LabError> {
    let (old, new) = ("memory.limit_in_bytes", "memory.max");
    let found = Group::new(&["/sys/fs/cgroup/memory"], old).map(|group| (group, old));
    let found = found.or_else(|| Group::new(&["/sys/fs/cgroup"], new).map(|group| (group, new)));
    let Some((group, file)) = found else {
        return Ok(Some("no control groups that bound memory and that this user may make".into()));
    };
    group.set(file, MEMORY)?;
    let mut lab = bench.lab("P10-memory", 1, |_| {}).await?;
    for round in 0..bench.rounds.min(3) {
        let mut client = Stubborn::new(&lab, 0);
        let runs = client.submit(with_gpus(shell_job("runs", "exec sleep 600"), 1)).await?;
        let started = |view: &rota_protocol::view::JobView| view.attempts.iter().any(|a| a.pid.is_some());
        let before = until(&mut client, runs, "a run", started).await?;
        group.set("cgroup.procs", lab.peers[0].pid().unwrap_or_default())?;
        let accepted = fill(&mut lab, row).await?;
        let Some(status) = lab.exited(0) else {
            row.wrong(format!("round {round}: not exercised: {} fat jobs did not fill it", accepted.len()));
            return Ok(None);
        };
        row.must(status.signal() == Some(9), || format!("round {round}: the agent ended with {status}"));
        lab.spawn(0)?;
        let began = Instant::now();
        lab.until_answers(0).await?;
        row.ran(u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX));
        let mut client = Stubborn::new(&lab, 0);
        let after = show(&mut client, runs).await?;
        let process = |view: &rota_protocol::view::JobView| -> Vec<_> {
            view.attempts.iter().map(|a| (a.token, a.pid, a.end.is_some())).collect()
        };
        row.must(process(&before) == process(&after), || {
            format!("round {round}: {:?} became {:?}", process(&before), process(&after))
        });
        for job in &accepted {
            let known = show(&mut client, *job).await;
            row.must(known.is_ok(), || format!("round {round}: accepted job {job} is lost: {known:?}"));
        }
        row.also("jobs_accepted_until_killed", accepted.len() as u64, None);
        for job in accepted.into_iter().chain([runs]) {
            cancel(&mut client, job).await?;
        }
    }
    Ok(None)
}

/// Submits until the agent is gone; what was accepted.
async fn fill(lab: &mut Lab, row: &mut Row) -> Result<Vec<JobId>, LabError> {
    let mut accepted = Vec::new();
    for number in 0..400 {
        let client = match lab.peers[0].client().await {
            Ok(client) => client,
            Err(_) => break,
        };
        let jobs = vec![(rota_node::lab::new_request(), fat(number))];
        let answer = tokio::time::timeout(LIMIT, client.call(ApiRequest::Submit { jobs })).await;
        match answer {
            Ok(Ok(ApiReply::Submitted(results))) => {
                for result in results {
                    match result {
                        Ok(job) => accepted.push(job),
                        Err(error) if error.code == ErrorCode::Unknown => {}
                        Err(error) => {
                            row.wrong(format!("a fat job is refused: {error}"));
                            return Ok(accepted);
                        }
                    }
                }
            }
            // Nobody can tell whether that one was accepted, and the client says so.
            Ok(Err(error)) if error.code == ErrorCode::Unknown => break,
            Ok(other) => row.wrong(format!("a submit to an agent without memory is told {other:?}")),
            Err(_) => row.wrong("a submit to an agent without memory is told nothing"),
        }
        if lab.exited(0).is_some() {
            break;
        }
    }
    let gone = wait_for("the end of the agent", Duration::from_secs(5), async || lab.exited(0));
    let _ = gone.await;
    Ok(accepted)
}
