//! Rung 3: real `rota` processes on loopback, killed, frozen, restarted and cut off. What happened is judged by witness files
//! that the tasks themselves write, so a double run is seen even if Rota lies.

pub mod actor_death;
pub mod agent_death;
pub mod beats;
pub mod black_hole;
pub mod blip;
pub mod failover;
pub mod freeze;
pub mod gang_loss;
pub mod gang_meets;
pub mod gang_size;
pub mod lost_answer;
pub mod noise;
pub mod partition;
pub mod proxy;
pub mod report;
mod traffic;

use report::{Report, Verdict};
use rota_node::lab::{Lab, LabError, LabOptions};
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

/// Names of all scenarios, by fault id, in the order in which they run.
pub const SCENARIOS: [&str; 21] = [
    "P1", "P2", "P3", "P4", "P6", "P7", "P8", "P11", "R9", "R054", "N1", "N3", "N5", "N7", "N11", "R064",
    "T3", "T4", "R039", "R039-6", "R041",
];

/// Runs one scenario.
///
/// # Errors
/// The lab itself failed: that is neither pass nor fail, and counts as fail.
pub async fn run(name: &str, bench: &Bench) -> Result<Report, LabError> {
    match name {
        "P1" => failover::leader_killed(bench).await,
        "P2" => failover::all_killed(bench).await,
        "P3" => freeze::leader_frozen(bench).await,
        "P4" => freeze::agent_frozen_past_its_lease(bench).await,
        "P6" => agent_death::restarted(bench).await,
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
        "T3" => gang_loss::one_part_lost(bench).await,
        "T4" => gang_loss::leader_killed_at_the_start(bench).await,
        "R039" => gang_meets::at_a_port_of_its_own(bench, false).await,
        "R039-6" => gang_meets::at_a_port_of_its_own(bench, true).await,
        "R041" => gang_size::shrinks_and_grows(bench).await,
        other => Ok(Report::new(other, Verdict::Fail(format!("no such scenario; there are {SCENARIOS:?}")))),
    }
}
