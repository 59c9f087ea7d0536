//! `rota usage`: what users held of GPUs and CPUs, as it is to be paid for; with `--idle`, what of it they did not use.

use super::context::{Context, ReadArgs, document, say};
use super::failure::Failure;
use crate::client::unexpected;
use crate::table::Table;
use clap::Args;
use rota_protocol::api::{ApiReply, ApiRequest};
use rota_protocol::view::IdleRow;
use rota_protocol::why_more::UsageRow;
use serde_json::json;

const HOUR_MS: u64 = 3_600_000;
/// Milliseconds of a tenth of an hour.
const TENTH_HOUR_MS: u64 = HOUR_MS / 10;

/// GPU-hours and CPU-hours held by tenant, user and queue since the cluster began, from grant to release.
#[derive(Debug, Args)]
pub struct UsageArgs {
    /// Instead, card time that was held and not used, by user
    #[arg(long)]
    pub idle: bool,
    /// How to read.
    #[command(flatten)]
    pub read: ReadArgs,
}

/// Runs `rota usage`.
///
/// # Errors
/// No cluster.
pub async fn usage(context: &Context, args: &UsageArgs) -> Result<u8, Failure> {
    let freshness = args.read.freshness();
    let request = if args.idle { ApiRequest::Idle(freshness) } else { ApiRequest::Usage(freshness) };
    match context.client.call(request).await? {
        ApiReply::Idle(rows) if args.read.json => document(&json!({ "idle": rows }))?,
        ApiReply::Idle(rows) => say(&idle_table(&rows).to_string())?,
        ApiReply::Usage(rows) if args.read.json => document(&json!({ "usage": rows }))?,
        ApiReply::Usage(rows) => say(&usage_table(&rows).to_string())?,
        other => return Err(unexpected(&other).into()),
    }
    Ok(0)
}

/// Hours with two decimals: of a minute something is left.
#[must_use]
pub fn hours(ms: u64) -> String {
    let hundredths = ms / (HOUR_MS / 100);
    format!("{}.{:02}", hundredths / 100, hundredths % 100)
}

fn usage_table(rows: &[UsageRow]) -> Table {
    let mut table =
        Table::new(&["TENANT", "USER", "QUEUE", "GPU-HOURS>", "CPU-HOURS>", "ATTEMPTS>", "JOBS NOW>"]);
    let mut line = |words: [&str; 3], figures: [u64; 4]| {
        let [gpu_ms, cpu_ms, attempts, live] = figures;
        let [tenant, user, queue] = words.map(str::to_owned);
        table.row([
            tenant,
            user,
            queue,
            hours(gpu_ms),
            hours(cpu_ms),
            attempts.to_string(),
            live.to_string(),
        ]);
    };
    let mut sum = [0_u64; 4];
    for row in rows {
        let figures = [row.gpu_ms, row.cpu_ms, row.attempts, row.live.len() as u64];
        for (sum, figure) in sum.iter_mut().zip(figures) {
            *sum = sum.saturating_add(figure);
        }
        line([&row.tenant, &row.user, &row.queue], figures);
    }
    if rows.len() > 1 {
        line(["all", "", ""], sum);
    }
    table
}

fn idle_table(rows: &[IdleRow]) -> Table {
    let mut table = Table::new(&["TENANT", "USER", "IDLE GPU-HOURS>", "NOW"]);
    for row in rows {
        let tenths = row.gpu_ms / TENTH_HOUR_MS;
        let now: Vec<String> = row.now.iter().map(ToString::to_string).collect();
        let hours = format!("{}.{}", tenths / 10, tenths % 10);
        table.row([row.tenant.clone(), row.user.clone(), hours, now.join(",")]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use rota_protocol::{JobId, TaskId};

    #[test]
    fn hours_have_a_tenth_and_tasks_their_number() {
        let now = vec![TaskId { job: JobId(7), index: 0 }];
        let row = IdleRow { tenant: "t".into(), user: "u".into(), gpu_ms: 9_000_000, now };
        let text = idle_table(&[row]).to_string();
        assert!(text.contains("2.5") && text.contains('7'), "{text}");
    }

    #[test]
    fn what_is_to_be_paid_is_summed() {
        let row = |user: &str, gpu_ms| UsageRow {
            tenant: "lab".into(),
            user: user.into(),
            queue: "lab".into(),
            gpu_ms,
            cpu_ms: 90_000,
            attempts: 2,
            live: vec![JobId(3)],
        };
        let text = usage_table(&[row("ann", 5_400_000), row("bob", 36_000)]).to_string();
        assert!(text.contains("1.50") && text.contains("0.01") && text.contains("0.02"), "{text}");
        assert!(
            text.lines().last().is_some_and(|line| line.starts_with("all") && line.contains("1.51")),
            "{text}"
        );
    }
}
