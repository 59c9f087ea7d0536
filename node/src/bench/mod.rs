//! `rota bench ...`: each bench starts its own cluster of real processes in a temporary folder (those of the planner:
//! one in memory), measures, prints a table and, with `--json`, one flat object of named figures.
//!
//! Figures are told beside a floor or a peer measured in the same run, because a time alone says more about the
//! machine than about Rota.

pub mod attempts;
pub mod burst;
mod etcd;
pub mod failover;
pub mod figures;
pub mod flood;
pub mod followers;
pub mod idle;
pub mod keep;
pub mod launch;
mod load;
pub mod planned;
pub mod planner;
pub mod pulse;
pub mod rolling;
pub mod soak;
pub mod submit;
mod usage;

use crate::cli::ops::{BenchArgs, BenchKind};
use crate::lab::{Lab, LabError, LabOptions};
use std::path::PathBuf;

/// Runs one bench and prints what it found.
///
/// # Errors
/// The cluster cannot be started or stops answering.
pub async fn run(args: BenchArgs) -> Result<(), LabError> {
    let (json, figures) = match args.kind {
        BenchKind::Submit(args) => (args.json, submit::run(&args).await?),
        BenchKind::Launch(args) => (args.json, launch::run(&args).await?),
        BenchKind::Burst(args) => (args.json, burst::run(&args).await?),
        BenchKind::Attempts(args) => (args.json, attempts::run(&args).await?),
        BenchKind::Failover(args) => (args.json, failover::run(&args).await?),
        BenchKind::Rolling(args) => (args.json, rolling::run(&args).await?),
        BenchKind::Idle(args) => (args.json, idle::run(&args).await?),
        BenchKind::Keep(args) => (args.json, keep::run(&args).await?),
        BenchKind::Soak(args) => (args.json, soak::run(&args).await?),
        BenchKind::Flood(args) => (args.json, flood::run(&args).await?),
        BenchKind::Followers(args) => (args.json, followers::run(&args).await?),
        BenchKind::Plan(args) => (args.json, planner::plan(&args)?),
        BenchKind::Reclaim(args) => (args.json, planner::reclaim(&args)?),
        BenchKind::Admit(args) => (args.json, planner::admit(&args)?),
        BenchKind::Replicas(args) => (args.json, planner::replicas(&args)?),
    };
    figures.print(json);
    Ok(())
}

/// A lab in a folder of its own that goes when the bench ends.
pub(crate) struct BenchLab {
    /// The cluster.
    pub(crate) lab: Option<Lab>,
    /// Its folder.
    pub(crate) dir: PathBuf,
}

impl BenchLab {
    pub(crate) async fn start(peers: usize, change: impl FnOnce(&mut LabOptions)) -> Result<Self, LabError> {
        let dir = std::env::temp_dir().join(format!("rota-bench-{}", std::process::id()));
        let mut options = LabOptions::new(peers, &dir).map_err(|e| LabError::Io("no program".into(), e))?;
        change(&mut options);
        let lab = Lab::start(options).await?;
        Ok(Self { lab: Some(lab), dir })
    }

    pub(crate) fn lab(&mut self) -> &mut Lab {
        // Taken only by `drop`.
        self.lab.as_mut().expect("the lab lives as long as its folder")
    }
}

impl Drop for BenchLab {
    fn drop(&mut self) {
        self.lab = None;
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}
