//! The gap that plain clients see when the lead is moved by plan: two of them at work (`pulse`), the leader told to hand
//! over again and again, every other time while tasks are handed out, every other while they end.

use super::BenchLab;
use super::failover::{FailoverPlan, Found};
use super::figures::{Figures, percentile_ms};
use super::pulse::{Span, pair};
use crate::cli::ops::BenchFailoverArgs;
use crate::lab::{Lab, LabError};
use crate::lab_work::{Stubborn, Witness, as_array, shell_job};
use rota_protocol::api::{ApiReply, ApiRequest};
use rota_protocol::error::{ErrorCode, PublicError};
use rota_protocol::lead::LeadMoved;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long is looked on after a move, to feel what comes late.
const AFTER: Duration = Duration::from_millis(300);
/// Tasks that are handed out, or end, at each move: moves follow each other closely, and a job that waits for room would
/// tell nothing of the lead.
const TASKS_AT_MOVE: u32 = 20;
/// Answers of each client before the first move.
const WARM: usize = 5;

/// What came of it.
#[derive(Debug, Clone, Default)]
pub struct Moves {
    /// As for kills; the gaps are those between two acknowledged submits.
    pub found: Found,
    /// Between two jobs that were submitted and done, one for each move, in ms.
    pub work_gaps_ms: Vec<u64>,
    /// What the leaders themselves say that it took, in ms.
    pub took_ms: Vec<u64>,
}

/// Moves the lead of a cluster of its own and tells the figures.
///
/// # Errors
/// The cluster does not start, or nobody takes over.
pub async fn run(args: &BenchFailoverArgs) -> Result<Figures, LabError> {
    let profile = args.profile.clone();
    let mut bench = BenchLab::start(args.peers, |options| {
        options.cpus = Some("64".into());
        options.profile = profile;
    })
    .await?;
    let dir = bench.dir.clone();
    let plan = FailoverPlan { kills: args.kills, tasks_at_kill: TASKS_AT_MOVE };
    let moves = move_leaders(bench.lab(), &dir, &plan).await?;
    let mut figures = Figures::default();
    figures.count("moves", args.kills as u64);
    let all = [("gap", &moves.found.gaps_ms), ("work_gap", &moves.work_gaps_ms), ("took", &moves.took_ms)];
    for (name, times) in all {
        let mut times: Vec<_> = times.iter().copied().map(Duration::from_millis).collect();
        times.sort_unstable();
        for (figure, permille) in [("median_ms", 500), ("p99_ms", 990), ("max_ms", 1_000)] {
            figures.value(&format!("{name}_{figure}"), percentile_ms(&times, permille));
        }
    }
    moves.found.tell(&mut figures);
    Ok(figures)
}

/// Moves the lead of a running cluster as often as the plan says, then waits for everything to end.
///
/// # Errors
/// The cluster stops answering, or nobody takes over.
pub async fn move_leaders(lab: &Lab, dir: &Path, plan: &FailoverPlan) -> Result<Moves, LabError> {
    let witness = Witness::new(dir);
    let mut client = Stubborn::new(lab, 0);
    let (submits, runs) = pair(lab, &witness.script("true"), lab.peers.len() - 1);
    submits.warm(WARM).await;
    runs.warm(WARM).await;
    let (mut jobs, mut moves) = (Vec::new(), Moves::default());
    for number in 0..plan.kills {
        let body = if number % 2 == 0 { "sleep 1" } else { "sleep 0.3" };
        let spec = as_array(shell_job("at the move", &witness.script(body)), plan.tasks_at_kill);
        jobs.push(client.submit(spec).await?);
        if number % 2 == 1 {
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
        let began = Instant::now();
        let moved = order(&mut client).await?;
        tokio::time::sleep(AFTER).await;
        let span = Span::since(began);
        let ms = |gap: Duration| u64::try_from(gap.as_millis()).unwrap_or(u64::MAX);
        moves.found.gaps_ms.push(ms(submits.gap(span)));
        moves.work_gaps_ms.push(ms(runs.gap(span)));
        moves.took_ms.push(moved.took_ms);
    }
    jobs.extend(submits.finish().await?);
    jobs.extend(runs.finish().await?);
    moves.found.judge(lab, &mut client, &witness, &jobs).await?;
    Ok(moves)
}

/// Tells the leader to hand over to whomever it likes.
///
/// # Errors
/// Nobody takes over.
pub async fn order(client: &mut Stubborn) -> Result<LeadMoved, LabError> {
    let started = Instant::now();
    loop {
        match client.ask(ApiRequest::MoveLead { to: None }, Duration::from_secs(10)).await {
            Ok(ApiReply::LeadMoved(moved)) => return Ok(moved),
            Ok(other) => {
                let message = format!("unexpected reply {other:?}");
                return Err(PublicError::new(ErrorCode::Internal, message).into());
            }
            // All others may be slow just now, or lag: so does this machine.
            Err(error)
                if error.code == ErrorCode::Conflict && started.elapsed() < Duration::from_secs(20) =>
            {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            Err(error) => return Err(error.into()),
        }
    }
}
