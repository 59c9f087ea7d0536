//! `rota sim ...`: traces and a cluster's own history, replayed on the scheduler in virtual time, in this process: no
//! cluster is asked. The work is done by `rota_sim`; here are the arguments, the tables and the charts.

mod args;
mod openb;
mod replay;
mod show;
mod traces;

pub use args::{GavelArgs, OpenbArgs, ReplayArgs, ShockwaveArgs, ShowArgs, SwfArgs};

use super::failure::Failure;
use clap::{Args, Subcommand};
use rota_protocol::{ErrorCode, PublicError};
use std::fmt::Display;

/// Replay a trace on the scheduler in virtual time, and ask what if.
#[derive(Debug, Args)]
pub struct SimArgs {
    /// What.
    #[command(subcommand)]
    pub kind: SimKind,
}

/// What is replayed.
#[derive(Debug, Subcommand)]
pub enum SimKind {
    /// Pods that arrive and never leave (Weng et al. 2023): how much of the GPUs can be allocated
    Openb(OpenbArgs),
    /// A log of a batch machine in the Standard Workload Format: what waiting costs users
    Swf(SwfArgs),
    /// Jobs on unlike GPU models (Narayanan et al. 2020): time from arrival to end
    Gavel(GavelArgs),
    /// Jobs that change their batch size (Zheng et al. 2023): makespan and fairness
    Shockwave(ShockwaveArgs),
    /// A cluster's own history, as it was and with what might be changed
    Replay(ReplayArgs),
}

impl SimArgs {
    /// Whether results and errors are JSON.
    #[must_use]
    pub fn json(&self) -> bool {
        match &self.kind {
            SimKind::Openb(args) => args.show.json,
            SimKind::Swf(args) => args.show.json,
            SimKind::Gavel(args) => args.show.json,
            SimKind::Shockwave(args) => args.show.json,
            SimKind::Replay(args) => args.show.json,
        }
    }
}

/// Runs `rota sim`.
///
/// # Errors
/// A file cannot be used, the picture cannot be written, or standard output is closed.
pub fn sim(args: &SimArgs) -> Result<u8, Failure> {
    match &args.kind {
        SimKind::Openb(args) => openb::run(args)?.print(&args.show),
        SimKind::Swf(args) => traces::swf(args)?.print(&args.show),
        SimKind::Gavel(args) => traces::gavel(args)?.print(&args.show),
        SimKind::Shockwave(args) => traces::shockwave(args)?.print(&args.show),
        SimKind::Replay(args) => replay::replay(args)?.print(&args.show),
    }
}

/// A file that cannot be used: the same command will never succeed.
fn unusable(error: impl Display) -> Failure {
    Failure::Refused(PublicError::new(ErrorCode::Invalid, error.to_string()))
}
