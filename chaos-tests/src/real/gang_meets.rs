//! Where gangs meet (field report R039): each at ports of its own, at an address that all reach, in an order that a
//! restart does not change. The programs are real ones: a ring all-reduce over plain sockets.

use super::Bench;
use super::gang_loss::show;
use super::report::Report;
use super::spaces::Spaces;
use rota_core::state::attempt::{GANG_PORT_BLOCKS, GANG_PORT_FIRST, PORTS_OF_A_GANG};
use rota_node::lab::{Lab, LabError};
use rota_node::lab_work::{Stubborn, shell_job, with_gpus};
use rota_protocol::ids::JobId;
use rota_protocol::job::{AttemptEnd, JobSpec, JobState};
use rota_protocol::work::{GangSpec, Layout};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::net::{Ipv6Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The program of the tour.
const ALL_REDUCE: &str = include_str!("../../../deploy/tour/allreduce.py");
/// Blocks that a stranger listens in: the next grant gets one of them.
const STRANGERS: u64 = 5;
/// Longest time between the starts of two parts: no part waits for another, but a host that does not start what it was
/// granted says so or loses its lease, and then the gang ends.
const SKEW_MS: u64 = 5_000;
const PARTS: u32 = 3;
const LIMIT: Duration = Duration::from_secs(60);

/// What one part was told.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Told {
    rank: u32,
    index: u32,
    world: String,
    addr: String,
    port: u16,
    hosts: String,
    at_ms: u64,
}

struct Scene {
    told: PathBuf,
    script: String,
}

impl Scene {
    fn new(dir: &Path) -> Result<Self, LabError> {
        let program = dir.join("allreduce.py");
        std::fs::write(&program, ALL_REDUCE)
            .map_err(|e| LabError::Io("cannot write the program".into(), e))?;
        let told = dir.join("told");
        let script = format!(
            "echo \"$ROTA_JOB_ID $RANK $ROTA_TASK_INDEX $WORLD_SIZE/$NNODES $MASTER_ADDR $MASTER_PORT $ROTA_GANG_HOSTS $(date +%s%N)\" \
             >> {}; python3 {} || exit 1; sleep 1; ",
            told.display(),
            program.display()
        );
        Ok(Self { told, script })
    }

    fn gang(&self, name: &str, then: &str) -> JobSpec {
        let spec = with_gpus(shell_job(name, &format!("{}{then}", self.script)), 1);
        let gang = Some(GangSpec { min: PARTS, max: PARTS });
        JobSpec { gang, layout: Layout::Spread, requeue_status: Some(75), ..spec }
    }

    /// By start: parts that began together were told the same.
    fn of(&self, job: JobId) -> BTreeMap<u16, Vec<Told>> {
        let mut starts: BTreeMap<u16, Vec<Told>> = BTreeMap::new();
        for line in std::fs::read_to_string(&self.told).unwrap_or_default().lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let [of, rank, index, world, addr, port, hosts, at_ns] = words[..] else { continue };
            let (Ok(rank), Ok(index), Ok(port)) = (rank.parse(), index.parse(), port.parse()) else {
                continue;
            };
            let at_ms = at_ns.parse::<u64>().unwrap_or(0) / 1_000_000;
            if of == job.to_string() {
                let (world, addr, hosts) = (world.to_owned(), addr.to_owned(), hosts.to_owned());
                starts.entry(port).or_default().push(Told { rank, index, world, addr, port, hosts, at_ms });
            }
        }
        starts
    }
}

/// Every part of every start was told the same (after a failed start that may be fewer hosts than before), each its own rank by its index, and an address of this family.
fn agreed(starts: &BTreeMap<u16, Vec<Told>>, job: JobId, addr: &str) -> Vec<String> {
    let mut violations = Vec::new();
    for (port, parts) in starts {
        let ranks: BTreeSet<u32> = parts.iter().map(|part| part.rank).collect();
        let all = parts.len() == PARTS as usize && ranks.len() == PARTS as usize;
        let same = parts.iter().all(|part| {
            let hosts = [addr; PARTS as usize].join(",");
            part.rank == part.index
                && part.world == parts[0].world
                && part.world.starts_with("3/")
                && part.addr == addr
                && part.hosts == hosts
        });
        if !all || !same {
            violations.push(format!("job {job} at port {port} was told {parts:?}"));
        }
    }
    violations
}

/// Between the first and the last part of one start.
fn skew_ms(parts: &[Told]) -> u64 {
    let at = || parts.iter().map(|part| part.at_ms);
    at().max().unwrap_or(0) - at().min().unwrap_or(0)
}

async fn state_of(client: &mut Stubborn, jobs: &[JobId]) -> Result<Vec<String>, LabError> {
    let rows = client.until_done(jobs, LIMIT, |_, _| {}).await?;
    let bad = rows.iter().filter(|row| jobs.contains(&row.job) && row.state != JobState::Succeeded);
    Ok(bad.map(|row| format!("job {} is {}", row.job, row.state)).collect())
}

/// R039: two gangs share all hosts at once; one is started again; one finds its port taken.
pub(super) async fn at_a_port_of_its_own(bench: &Bench, ipv6: bool) -> Result<Report, LabError> {
    let (name, addr) = if ipv6 { ("R039-6", "::1") } else { ("R039", "127.0.0.1") };
    if ipv6 && TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_err() {
        return Ok(skipped(name, "this machine has no IPv6"));
    }
    let lab = bench.lab(name, 3, |options| options.ipv6 = ipv6).await?;
    let scene = Scene::new(&bench.dir.join(name))?;
    let mut violations = Vec::new();
    let (mut hits, mut skew) = (0, 0);
    for round in 0..bench.rounds {
        let mut client = Stubborn::new(&lab, 0);
        let jobs = [client.submit(scene.gang("one", "")).await?, client.submit(scene.gang("two", "")).await?];
        let mark = bench.dir.join(name).join(format!("again-{round}"));
        // The last rank asks for another run, once.
        let again =
            format!("[ $RANK != 2 ] || [ -e {0} ] || {{ : > {0}; exit 75; }}; sleep 1", mark.display());
        let restarted = client.submit(scene.gang("again", &again)).await?;
        let all = [jobs[0], jobs[1], restarted];
        violations.extend(state_of(&mut client, &all).await?);
        let mut held = Vec::new();
        for job in all {
            let starts = scene.of(job);
            let expected = if job == restarted { 2 } else { 1 };
            if starts.len() != expected {
                violations.push(format!("job {job} met {} times, not {expected}", starts.len()));
            }
            violations.extend(agreed(&starts, job, addr));
            skew = skew.max(starts.values().map(|parts| skew_ms(parts)).max().unwrap_or(0));
            held.extend(starts.into_keys());
        }
        held.sort_unstable();
        if held.windows(2).any(|pair| pair[1] - pair[0] < PORTS_OF_A_GANG) {
            violations.push(format!("gangs shared a block of ports: {held:?}"));
        }
        let (found, failed) = taken(&lab, &scene, &mut client, addr).await?;
        violations.extend(found);
        hits += failed;
    }
    if hits == 0 {
        violations.push("not exercised: no gang found its port taken".into());
    }
    Ok(Report::of(name, bench.rounds, &violations).figure("start_skew_ms", skew, Some(SKEW_MS)).figure(
        "starts_at_taken_ports",
        hits,
        None,
    ))
}

/// A stranger listens in the blocks that the next grants get: the launch fails as the host's, and another block is
/// tried.
async fn taken(
    lab: &Lab,
    scene: &Scene,
    client: &mut Stubborn,
    addr: &str,
) -> Result<(Vec<String>, u64), LabError> {
    let applied = lab.cluster().await?.applied;
    // The submit is the next entry, the start the one behind it.
    let ports = (applied + 2..applied + 2 + STRANGERS).map(|index| {
        let block = u16::try_from(index % u64::from(GANG_PORT_BLOCKS)).unwrap_or(0);
        GANG_PORT_FIRST + block * PORTS_OF_A_GANG + 3
    });
    let strangers: Vec<TcpListener> =
        ports.filter_map(|port| TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).ok()).collect();
    let job = client.submit(scene.gang("taken", "")).await?;
    let mut violations = state_of(client, &[job]).await?;
    let view = show(client, job).await?;
    let reason = |end: &Option<AttemptEnd>| match end {
        Some(AttemptEnd::LaunchFailed { reason }) => reason.contains("port"),
        _ => false,
    };
    let failed = view.attempts.iter().filter(|attempt| reason(&attempt.end)).count() as u64;
    let starts = scene.of(job);
    let occupied: Vec<u16> =
        strangers.iter().filter_map(|held| held.local_addr().ok()).map(|at| at.port() - 3).collect();
    // The part of rank 0 never runs where a port is taken; others may have begun and were ended.
    let last = view.attempts.iter().filter(|a| a.end == Some(AttemptEnd::Exited { code: 0 })).count();
    if last != PARTS as usize {
        violations.push(format!("{last} parts of job {job} ended well"));
    }
    let good: BTreeMap<u16, Vec<Told>> =
        starts.into_iter().filter(|(port, _)| !occupied.contains(port)).collect();
    if good.len() != 1 {
        violations.push(format!("job {job} met {} times at free ports", good.len()));
    }
    violations.extend(agreed(&good, job, addr));
    Ok((violations, failed))
}

/// R039: hosts that have a bridge before the interface at which the others reach them, with the same address on all.
pub(super) async fn behind_a_bridge(bench: &Bench) -> Result<Report, LabError> {
    const NAME: &str = "R039-bridge";
    let spaces = match Spaces::new(PARTS as usize) {
        Ok(spaces) => spaces,
        Err(why) => return Ok(skipped(NAME, &why)),
    };
    let lab = bench.lab(NAME, PARTS as usize, |options| options.spaces = spaces.all()).await?;
    let scene = Scene::new(&bench.dir.join(NAME))?;
    let mut violations = Vec::new();
    let mut reached = BTreeSet::new();
    for _ in 0..bench.rounds {
        let mut client = Stubborn::new(&lab, 0);
        let job = client.submit(scene.gang("bridged", "")).await?;
        violations.extend(state_of(&mut client, &[job]).await?);
        let starts = scene.of(job);
        let parts: Vec<&Told> = starts.values().flatten().collect();
        let mut hosts: Vec<&str> = parts.first().map_or(Vec::new(), |part| part.hosts.split(',').collect());
        let same =
            parts.iter().all(|part| part.hosts == parts[0].hosts && Some(&&*part.addr) == hosts.first());
        reached.extend(hosts.iter().map(|host| (*host).to_owned()));
        hosts.sort_unstable();
        let expected: Vec<String> = spaces.all().into_iter().map(|space| space.addr).collect();
        if starts.len() != 1 || parts.len() != PARTS as usize || !same || hosts != expected {
            violations.push(format!("job {job} was told {parts:?}"));
        }
    }
    Ok(Report::of(NAME, bench.rounds, &violations).figure("hosts_reached", reached.len() as u64, None))
}

/// Past the capture of the harness, behind what is there: it must be seen that nothing was checked.
fn skipped(name: &str, why: &str) -> Report {
    let stderr = std::fs::OpenOptions::new().append(true).open("/dev/stderr");
    let _ = stderr.and_then(|mut stderr| writeln!(stderr, "SKIPPED: {name}: {why}"));
    Report::of(name, 0, &[])
}
