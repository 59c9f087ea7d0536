//! What the tests with real processes share: the machine, one cluster at a time, and a bench to try a scenario on.

use rota_chaos::real::Bench;
use std::sync::{Mutex, PoisonError};

/// Two cores are shared with everything else: one cluster at a time.
static MACHINE: Mutex<()> = Mutex::new(());

/// Runs a scenario with so many rounds, or as many as `ROTA_REAL_ROUNDS` says, in a folder of its own.
pub(crate) fn with_bench<T>(rounds: usize, scenario: impl AsyncFnOnce(&Bench) -> T) -> T {
    let _alone = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().unwrap();
    let rounds = std::env::var("ROTA_REAL_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(rounds);
    let bench = Bench {
        exe: env!("CARGO_BIN_EXE_rota-chaos").into(),
        exe_args: vec!["rota".into()],
        dir: dir.path().to_owned(),
        rounds,
        nvml: None,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(scenario(&bench))
}
