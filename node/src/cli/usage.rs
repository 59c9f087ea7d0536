//! `rota usage`: card time that users held and did not use.

use super::context::{Context, ReadArgs, document, say};
use super::failure::Failure;
use crate::client::unexpected;
use crate::table::Table;
use clap::Args;
use rota_protocol::api::{ApiReply, ApiRequest};
use rota_protocol::view::IdleRow;
use serde_json::json;

/// Milliseconds of a tenth of an hour.
const TENTH_HOUR_MS: u64 = 360_000;

/// What was held, and what of it was not used.
#[derive(Debug, Args)]
pub struct UsageArgs {
    /// Only what was held idle, by user
    #[arg(long, required = true)]
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
    match context.client.call(ApiRequest::Idle(freshness)).await? {
        ApiReply::Idle(rows) if args.read.json => document(&json!({ "idle": rows }))?,
        ApiReply::Idle(rows) => say(&idle_table(&rows).to_string())?,
        other => return Err(unexpected(&other).into()),
    }
    Ok(0)
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
}
