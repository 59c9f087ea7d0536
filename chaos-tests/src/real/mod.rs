//! Rung 3: real `rota` processes on loopback, killed, frozen, restarted and cut off. What happened is judged by witness files
//! that the tasks themselves write, so a double run is seen even if Rota lies.

pub mod actor_death;
pub mod again;
pub mod agent_death;
pub mod any_host;
pub mod beats;
pub mod black_hole;
pub mod blip;
mod booted;
pub mod cards;
pub mod drained;
pub mod ends;
pub mod failover;
pub mod flood;
pub mod follow;
pub mod freeze;
pub mod frozen_host;
pub mod full_disk;
pub mod gang_loss;
pub mod gang_meets;
pub mod gang_size;
pub mod hands;
pub mod hooks;
mod host_files;
mod inputs;
mod inside;
pub mod lead;
mod load;
pub mod lost_answer;
pub mod members;
mod memory;
mod mounts;
pub mod noise;
pub mod output;
pub mod partition;
pub mod proxy;
pub mod reboot;
pub mod report;
pub mod row;
pub mod sessions;
pub mod slow_disk;
pub mod slow_start;
pub mod soak;
mod spaces;
mod starts;
mod starved;
mod stood;
mod traffic;
pub mod trust;
mod tty;
pub mod unkillable;
pub mod upgrade;
pub mod wrong_settings;

use report::{Report, Verdict};
use rota_node::lab::{Lab, LabError, LabOptions, violations};
use std::path::PathBuf;

/// What every scenario needs to start clusters.
#[derive(Debug, Clone)]
pub struct Bench {
    /// The program, and the arguments that make it `rota`.
    pub exe: PathBuf,
    /// Arguments before the subcommand.
    pub exe_args: Vec<String>,
    /// Where scenarios put their folders.
    pub dir: PathBuf,
    /// How often each scenario is repeated.
    pub rounds: usize,
    /// The scripted driver library; none for the one beside this program.
    pub nvml: Option<PathBuf>,
}

impl Bench {
    /// A cluster of `peers` in a folder named after the scenario.
    ///
    /// # Errors
    /// It does not start.
    pub async fn lab(
        &self,
        scenario: &str,
        peers: usize,
        change: impl FnOnce(&mut LabOptions),
    ) -> Result<Lab, LabError> {
        let dir = self.dir.join(scenario);
        let _ = std::fs::remove_dir_all(&dir);
        let mut options = LabOptions::new(peers, &dir).map_err(|e| LabError::Io("no program".into(), e))?;
        options.exe.clone_from(&self.exe);
        options.exe_args.clone_from(&self.exe_args);
        options.profile = "chaos".into();
        options.cpus = Some("16".into());
        options.mem = Some("64GiB".into());
        change(&mut options);
        Lab::start(options).await
    }
}

impl Bench {
    /// A `rota` command at a peer's socket.
    #[must_use]
    pub fn rota(&self, lab: &Lab, peer: usize, args: &[&str]) -> tokio::process::Command {
        let mut command = tokio::process::Command::new(&self.exe);
        command.args(&self.exe_args).args(args).env("ROTA_SOCKET", lab.peers[peer].socket());
        command.stdin(std::process::Stdio::null()).kill_on_drop(true);
        command
    }
}

/// Does something with a bench of this very program: in this folder, or in one that goes when it is done.
///
/// # Errors
/// The folder, the program or the runtime is not to be had, or what was done fails.
pub fn with_runtime<T>(
    dir: Option<&std::path::Path>,
    rounds: usize,
    act: impl AsyncFnOnce(Bench) -> Result<T, LabError>,
) -> Result<T, LabError> {
    let io = |e| LabError::Io("the lab cannot be set up".into(), e);
    let (kept, temporary) = match dir {
        Some(dir) => (Some(dir.to_owned()), None),
        None => (None, Some(tempfile::tempdir().map_err(io)?)),
    };
    let dir = kept.or_else(|| temporary.as_ref().map(|dir| dir.path().to_owned())).unwrap_or_default();
    let exe = std::env::current_exe().map_err(io)?;
    let bench = Bench { exe, exe_args: vec!["rota".into()], dir, rounds, nvml: None };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(io)?;
    runtime.block_on(act(bench))
}

/// What a command printed, and its status.
struct Said {
    status: i32,
    out: Vec<u8>,
    err: String,
}

/// Runs a command to its end.
async fn said(command: &mut tokio::process::Command) -> Result<Said, LabError> {
    let output = command.output().await.map_err(|e| LabError::Io("cannot run rota".into(), e))?;
    let err = String::from_utf8_lossy(&output.stderr).into_owned();
    Ok(Said { status: output.status.code().unwrap_or(-1), out: output.stdout, err })
}

/// A measure of the environment, for runs that are longer than those of the gate.
fn budget(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Names of all scenarios, by fault id, in the order in which they run.
pub const SCENARIOS: [&str; 43] = [
    "P1",
    "P2",
    "P3",
    "P4",
    "P5",
    "P6",
    "P6-slow",
    "P7",
    "P8",
    "P11",
    "R9",
    "R054",
    "N1",
    "N3",
    "N5",
    "N7",
    "N11",
    "R064",
    "T9",
    "R055",
    "R056",
    "R058",
    "R060",
    "T3",
    "T4",
    "R039",
    "R039-6",
    "R039-bridge",
    "R041",
    "P3F",
    "O1",
    "O1-hasty",
    "O4",
    "O5",
    "R065",
    "R070",
    "D6",
    "D7",
    "D8",
    "O2",
    "O3",
    "O3-revoke",
    "O3-ca",
];

/// Runs one scenario.
///
/// # Errors
/// The lab itself failed: that is neither pass nor fail, and counts as fail.
pub async fn run(name: &str, bench: &Bench) -> Result<Report, LabError> {
    let report = scenario(name, bench).await?;
    // The agents watch themselves: whatever a scenario looks at, none of them may have found a broken law.
    Ok(report.but(&violations(&bench.dir.join(name))))
}

async fn scenario(name: &str, bench: &Bench) -> Result<Report, LabError> {
    match name {
        "P1" => failover::leader_killed(bench).await,
        "P2" => failover::all_killed(bench).await,
        "P3" => freeze::leader_frozen(bench).await,
        "P4" => freeze::agent_frozen_past_its_lease(bench).await,
        "P5" => frozen_host::past_its_lease(bench).await,
        "P6" => agent_death::restarted(bench).await,
        "P6-slow" => slow_start::slower_than_its_lease(bench).await,
        "P7" => agent_death::not_restarted(bench).await,
        "P8" => actor_death::restarted_or_given_up(bench).await,
        "P11" => agent_death::started_twice(bench).await,
        "R9" => lost_answer::retried(bench).await,
        "R054" => black_hole::one_of_three(bench).await,
        "N1" => partition::leader_cut_off(bench).await,
        "N3" => partition::one_way(bench).await,
        "N5" => noise::lossy(bench).await,
        "N7" => noise::repeated(bench).await,
        "N11" => noise::flapping(bench).await,
        "R064" => blip::host_cut_off(bench).await,
        "T9" => flood::bounded(bench).await,
        "R055" => output::three_attempts(bench).await,
        "R056" => output::kept_by_rule(bench).await,
        "R058" => follow::every_byte_once(bench).await,
        "R060" => output::the_same_copy(bench).await,
        "T3" => gang_loss::one_part_lost(bench).await,
        "T4" => gang_loss::leader_killed_at_the_start(bench).await,
        "R039" => gang_meets::at_a_port_of_its_own(bench, false).await,
        "R039-6" => gang_meets::at_a_port_of_its_own(bench, true).await,
        "R039-bridge" => gang_meets::behind_a_bridge(bench).await,
        "O2" => upgrade::up_down_and_up(bench).await,
        "O3" => trust::renewed_under_load(bench).await,
        "O3-revoke" => trust::revoked_live(bench).await,
        "O3-ca" => trust::authority_changed(bench).await,
        "R041" => gang_size::shrinks_and_grows(bench).await,
        "P3F" => freeze::follower_frozen(bench).await,
        "O1" => lead::restarted_in_turn(bench).await,
        "O1-hasty" => lead::restarted_in_haste(bench).await,
        "O4" => wrong_settings::pushed(bench).await,
        "O5" => lead::host_drained(bench).await,
        "R065" => any_host::goes_away(bench).await,
        "R070" => drained::comes_back(bench).await,
        "D6" => full_disk::no_room(bench).await,
        "D7" => full_disk::read_only(bench).await,
        "D8" => slow_disk::leader_on_a_slow_disk(bench).await,
        other => Ok(Report::new(other, Verdict::Fail(format!("no such scenario; there are {SCENARIOS:?}")))),
    }
}
