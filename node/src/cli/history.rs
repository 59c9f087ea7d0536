//! `rota history`: what became of all jobs that the caller may see and the cluster still knows. With `--json` it is the
//! file that `rota sim replay` takes: hosts, queues, and what each job asked, when it came, started and ended; no commands, no
//! environments.

use super::context::{Context, ReadArgs, say, tell};
use super::failure::Failure;
use super::times::{age, wall_ms};
use crate::client::unexpected;
use crate::table::Table;
use clap::Args;
use futures_util::StreamExt as _;
use rota_protocol::api::{ApiReply, ApiRequest, Freshness, QueueFilter};
use rota_protocol::device::DeviceFacts;
use rota_protocol::job::AttemptEnd;
use rota_protocol::queue::QueueSpec;
use rota_protocol::view::{AttemptRow, HostRow, HostState, JobView};
use rota_protocol::{ErrorCode, HostId, JobId};
use rota_sim::replay::History;
use rota_sim::replay::history::{FORMAT, HistoryHost, HistoryJob, VERSION};
use std::collections::BTreeMap;

/// Questions under way at once: enough to hide the way there and back, few enough to leave room for others.
const ASKED_AT_ONCE: usize = 32;

/// What became of all jobs.
#[derive(Debug, Args)]
pub struct HistoryArgs {
    /// How to read.
    #[command(flatten)]
    pub read: ReadArgs,
    /// Only jobs of this user
    #[arg(long)]
    pub user: Option<String>,
}

/// Runs `rota history`.
///
/// # Errors
/// No cluster.
pub async fn history(context: &Context, args: &HistoryArgs) -> Result<u8, Failure> {
    let history = gather(context, args).await?;
    if args.read.json {
        say(&history.text().map_err(Failure::other)?)?;
    } else {
        say(&user_table(&history).to_string())?;
    }
    Ok(0)
}

async fn gather(context: &Context, args: &HistoryArgs) -> Result<History, Failure> {
    let exported_ms = wall_ms();
    let numbers = numbers(context, args).await?;
    let hosts = hosts(context, args.read.freshness()).await?;
    let queues = queues(context, args.read.freshness()).await?;
    // The list was as fresh as was asked for; single jobs may come from what the same host knows by now.
    let asked = numbers
        .iter()
        .map(|job| context.client.call(ApiRequest::Show { job: *job, freshness: Freshness::Stale }));
    let mut answers = futures_util::stream::iter(asked).buffered(ASKED_AT_ONCE);
    let (mut jobs, mut gone) = (Vec::with_capacity(numbers.len()), 0_u64);
    while let Some(answer) = answers.next().await {
        match answer {
            Ok(ApiReply::Job(view)) => jobs.push(job(*view, exported_ms)),
            Ok(other) => return Err(unexpected(&other).into()),
            Err(error) if error.code == ErrorCode::NotFound => gone += 1,
            Err(error) => return Err(error.into()),
        }
    }
    if gone > 0 {
        tell(&format!("{gone} jobs were forgotten meanwhile and are left out"));
    }
    let format = FORMAT.to_owned();
    Ok(History { format, version: VERSION, exported_ms, hosts, queues, jobs })
}

/// All jobs that are still known, by number.
async fn numbers(context: &Context, args: &HistoryArgs) -> Result<Vec<JobId>, Failure> {
    let mut filter = QueueFilter { user: args.user.clone(), all: true, ..QueueFilter::default() };
    let mut numbers = Vec::new();
    loop {
        let request = ApiRequest::Queue { filter: filter.clone(), freshness: args.read.freshness() };
        match context.client.call(request).await? {
            ApiReply::Queue { rows, next, .. } => {
                numbers.extend(rows.iter().map(|row| row.job));
                if next.is_none() {
                    return Ok(numbers);
                }
                filter.after = next;
            }
            other => return Err(unexpected(&other).into()),
        }
    }
}

/// Rules of the queues that the caller may see.
async fn queues(context: &Context, freshness: Freshness) -> Result<Vec<QueueSpec>, Failure> {
    match context.client.call(ApiRequest::Queues { freshness }).await? {
        ApiReply::Queues { rows, .. } => Ok(rows.into_iter().map(|row| row.spec).collect()),
        other => Err(unexpected(&other).into()),
    }
}

/// Hosts that have registered, with their devices.
async fn hosts(context: &Context, freshness: Freshness) -> Result<Vec<HistoryHost>, Failure> {
    let rows = match context.client.call(ApiRequest::Hosts { freshness }).await? {
        ApiReply::Hosts { rows, .. } => rows,
        other => return Err(unexpected(&other).into()),
    };
    let mut devices: BTreeMap<HostId, Vec<DeviceFacts>> = BTreeMap::new();
    match context.client.call(ApiRequest::Devices { freshness }).await? {
        ApiReply::Devices { rows, .. } => {
            for row in rows {
                devices.entry(row.host).or_default().push(row.facts);
            }
        }
        other => return Err(unexpected(&other).into()),
    }
    let host = |row: HostRow| HistoryHost {
        name: row.name,
        cpus_milli: row.cpus_milli,
        mem_mib: row.mem_mib,
        labels: row.labels,
        devices: devices.remove(&row.host).unwrap_or_default(),
    };
    Ok(rows.into_iter().filter(|row| row.state != HostState::Joining).map(host).collect())
}

fn job(view: JobView, now_ms: u64) -> HistoryJob {
    let ran_ms = ran_ms(&view.attempts, now_ms);
    let (row, spec) = (view.row, view.spec);
    HistoryJob {
        job: row.job,
        name: row.name,
        tenant: row.tenant,
        user: row.user,
        queue: spec.queue,
        priority: row.priority,
        state: row.state,
        submitted_ms: row.submitted_ms,
        started_ms: row.started_ms,
        ended_ms: row.ended_ms,
        ask: spec.ask,
        alternatives: spec.alternatives,
        array: spec.array,
        gang: spec.gang,
        layout: spec.layout,
        time_limit_ms: spec.time_limit_ms,
        after: spec.after,
        begin_ms: spec.begin_ms,
        deadline_ms: spec.deadline_ms,
        hold: spec.hold,
        preemptible: spec.preemptible,
        requeue: spec.requeue,
        ran_ms,
    }
}

/// How long each task ran in its last attempt, by index. Attempts that were cut short so that the task runs again tell
/// nothing; one that still runs has run until now.
fn ran_ms(attempts: &[AttemptRow], now_ms: u64) -> Vec<u64> {
    let mut last: BTreeMap<u32, (rota_protocol::Token, u64)> = BTreeMap::new();
    for attempt in attempts {
        let tells = match &attempt.end {
            Some(end) => end.is_users() || matches!(end, AttemptEnd::Cancelled),
            None => true,
        };
        let Some(started_ms) = attempt.started_ms.filter(|_| tells) else {
            continue;
        };
        let ran_ms = attempt.ended_ms.unwrap_or(now_ms).saturating_sub(started_ms);
        let entry = last.entry(attempt.task.index).or_insert((attempt.token, ran_ms));
        if attempt.token > entry.0 {
            *entry = (attempt.token, ran_ms);
        }
    }
    last.into_values().map(|(_, ran_ms)| ran_ms).collect()
}

/// Users with what they had.
fn user_table(history: &History) -> Table {
    let mut users: BTreeMap<(&str, &str), Vec<&HistoryJob>> = BTreeMap::new();
    for job in &history.jobs {
        users.entry((&job.tenant, &job.user)).or_default().push(job);
    }
    let mut table =
        Table::new(&["TENANT", "USER", "JOBS>", "STARTED>", "MEAN WAIT>", "LONGEST WAIT>", "GPU HOURS>"]);
    for ((tenant, user), jobs) in users {
        let waits: Vec<u64> =
            jobs.iter().filter_map(|job| Some(job.started_ms?.saturating_sub(job.submitted_ms))).collect();
        let mean = waits.iter().sum::<u64>().checked_div(waits.len() as u64);
        table.row([
            tenant.to_owned(),
            user.to_owned(),
            jobs.len().to_string(),
            waits.len().to_string(),
            mean.map_or("-".to_owned(), age),
            waits.iter().max().copied().map_or("-".to_owned(), age),
            format!("{:.2}", jobs.iter().map(|job| job.gpu_hours()).sum::<f64>()),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use rota_protocol::{TaskId, Token};

    fn attempt(token: u64, index: u32, ran_ms: u64, end: Option<AttemptEnd>) -> AttemptRow {
        AttemptRow {
            token: Token(token),
            task: TaskId { job: JobId(1), index },
            host: HostId(1),
            host_name: "n1".into(),
            devices: Vec::new(),
            state: None,
            granted_ms: 900,
            started_ms: Some(1_000),
            ended_ms: end.as_ref().map(|_| 1_000 + ran_ms),
            end,
            pid: None,
            used: rota_protocol::cage::Used::default(),
            care: None,
        }
    }

    #[test]
    fn the_last_full_attempt_of_each_task_counts() {
        let attempts = [
            attempt(9, 1, 0, None),
            attempt(7, 0, 70, Some(AttemptEnd::Exited { code: 0 })),
            attempt(5, 0, 50, Some(AttemptEnd::Exited { code: 1 })),
            attempt(8, 2, 10, Some(AttemptEnd::Preempted)),
            attempt(4, 2, 40, Some(AttemptEnd::TimeLimit)),
            attempt(3, 3, 30, Some(AttemptEnd::Lost)),
        ];
        assert_eq!(ran_ms(&attempts, 1_500), [70, 500, 40]);
    }
}
