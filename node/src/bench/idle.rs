//! What an idle cluster costs: resident memory and CPU of each agent over some seconds.

use super::BenchLab;
use super::figures::Figures;
use crate::cli::ops::BenchIdleArgs;
use crate::io::usage::{cpu_ms, rss_kib};
use crate::lab::LabError;
use std::time::Duration;

/// Lets a cluster idle for `seconds`.
///
/// # Errors
/// The cluster does not start.
pub async fn run(args: &BenchIdleArgs) -> Result<Figures, LabError> {
    let mut bench = BenchLab::start(args.peers, |_| {}).await?;
    let pids: Vec<_> = bench.lab().peers.iter().filter_map(crate::lab::Peer::pid).collect();
    // Joining is over when the hosts are up, its memory and timers a little later.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let before: Vec<_> = pids.iter().map(|pid| cpu_ms(*pid).unwrap_or(0)).collect();
    tokio::time::sleep(Duration::from_secs(args.seconds)).await;
    let mut figures = Figures::default();
    let mut rss = 0;
    for (pid, before) in pids.iter().zip(before) {
        let spent = cpu_ms(*pid).unwrap_or(0).saturating_sub(before);
        let number = pids.iter().position(|other| other == pid).unwrap_or(0) + 1;
        figures.value(&format!("cpu_percent_n{number}"), spent as f64 / (args.seconds.max(1) as f64 * 10.0));
        let kib = rss_kib(*pid).unwrap_or(0);
        figures.value(&format!("rss_mib_n{number}"), kib as f64 / 1_024.0);
        rss = rss.max(kib);
    }
    figures.value("rss_mib_max", rss as f64 / 1_024.0);
    Ok(figures)
}
