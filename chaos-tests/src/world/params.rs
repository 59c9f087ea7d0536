//! What a seed decides before the first step: the size of the cluster, its clocks, its network, what goes wrong.

use super::plant::Plant;
use super::rng::Rng;
use rota_node::logic::lease::LeaseParams;

/// What kind of trouble a run is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Profile {
    /// Everything.
    Storm,
    /// Mostly partitions.
    Partitions,
    /// Mostly crashes, freezes and reboots.
    Crashes,
    /// Only short restarts and changes of leaders, which must not end any task (fault I12).
    Quiet,
}

/// The figures of one run. Times are true ms.
#[derive(Debug, Clone)]
pub struct Params {
    /// What is broken on purpose.
    pub plant: Option<Plant>,
    /// What goes wrong.
    pub profile: Profile,
    /// GPUs of each host.
    pub gpus: Vec<u32>,
    /// Clock rate of each host, per 10,000.
    pub rates: Vec<u64>,
    /// The lease rule.
    pub lease: LeaseParams,
    /// Length of the phase with faults.
    pub faults_ms: u64,
    /// Mean time between a client's actions.
    pub client_gap_ms: u64,
    /// Mean time between faults.
    pub fault_gap_ms: u64,
    /// Delay of a message.
    pub delay_ms: (u64, u64),
    /// Messages lost, before any storm.
    pub loss_permille: u64,
    /// Messages delivered twice.
    pub twice_permille: u64,
    /// Time of a log write.
    pub disk_ms: (u64, u64),
    /// Longest run of a task by its own will.
    pub run_ms_max: u64,
    /// Launches that fail.
    pub launch_fails_permille: u64,
    /// A leader that cannot confirm its quorum goes on believing.
    pub stubborn: bool,
}

impl Params {
    /// Draws them.
    #[must_use]
    pub fn draw(rng: &mut Rng, plant: Option<Plant>) -> Self {
        let hosts = [3, 3, 4, 5, 5, 5][usize::try_from(rng.below(6)).unwrap_or(0)];
        let profile = match rng.below(8) {
            0 => Profile::Quiet,
            1 | 2 => Profile::Partitions,
            3 | 4 => Profile::Crashes,
            _ => Profile::Storm,
        };
        let quiet = profile == Profile::Quiet;
        let delay_max = [2, 10, 40][usize::try_from(rng.below(3)).unwrap_or(0)];
        let lease = LeaseParams::CHAOS;
        let rho = lease.drift_permille * 10;
        let rate = |rng: &mut Rng| match rng.below(4) {
            0 => 10_000 - rho,
            1 => 10_000 + rho,
            _ => rng.range(10_000 - rho, 10_000 + rho),
        };
        Self {
            plant,
            profile,
            gpus: (0..hosts).map(|_| u32::try_from(rng.range(1, 4)).unwrap_or(1)).collect(),
            rates: (0..hosts).map(|_| rate(rng)).collect(),
            lease,
            faults_ms: rng.range(20_000, 40_000),
            client_gap_ms: rng.range(200, 1_200),
            fault_gap_ms: if quiet { 5_000 } else { rng.range(800, 4_000) },
            delay_ms: (1, delay_max),
            loss_permille: if quiet { 0 } else { [0, 5, 50][usize::try_from(rng.below(3)).unwrap_or(0)] },
            twice_permille: [0, 20, 200][usize::try_from(rng.below(3)).unwrap_or(0)],
            disk_ms: (1, rng.range(2, 20)),
            run_ms_max: rng.range(2_000, 12_000),
            launch_fails_permille: if rng.chance(300) { 60 } else { 0 },
            stubborn: rng.chance(600),
        }
    }
}
