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
use rota_core::fit::card_amounts;
use rota_protocol::api::{ApiReply, ApiRequest, Freshness, QueueFilter};
use rota_protocol::ask::CARD_MILLI;
use rota_protocol::device::{DeviceFacts, DeviceKind};
use rota_protocol::job::{AttemptEnd, JobSpec};
use rota_protocol::queue::QueueSpec;
use rota_protocol::view::{AttemptRow, HostRow, HostState, JobView};
use rota_protocol::{ErrorCode, HostId, JobId};
use rota_sim::replay::History;
use rota_sim::replay::history::{FORMAT, Held, HistoryHost, HistoryJob, VERSION};
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
    let (history, reckoned) = gather(context, args).await?;
    if !args.read.json && reckoned > 0 {
        tell(&format!(
            "{reckoned} attempts are known by their number alone; their GPU time is reckoned by the others"
        ));
    }
    if args.read.json {
        say(&history.text().map_err(Failure::other)?)?;
    } else {
        say(&user_table(&history).to_string())?;
    }
    Ok(0)
}

/// The history, and how many attempts it knows by their number alone.
async fn gather(context: &Context, args: &HistoryArgs) -> Result<(History, u64), Failure> {
    let exported_ms = wall_ms();
    let numbers = numbers(context, args).await?;
    let hosts = hosts(context, args.read.freshness()).await?;
    let queues = queues(context, args.read.freshness()).await?;
    // The list was as fresh as was asked for; single jobs may come from what the same host knows by now.
    let asked = numbers
        .iter()
        .map(|job| context.client.call(ApiRequest::Show { job: *job, freshness: Freshness::Stale }));
    let mut answers = futures_util::stream::iter(asked).buffered(ASKED_AT_ONCE);
    let (mut jobs, mut gone, mut reckoned) = (Vec::with_capacity(numbers.len()), 0_u64, 0_u64);
    while let Some(answer) = answers.next().await {
        match answer {
            Ok(ApiReply::Job(view)) => {
                reckoned = reckoned.saturating_add(view.attempts_forgotten);
                jobs.push(job(*view, exported_ms));
            }
            Ok(other) => return Err(unexpected(&other).into()),
            Err(error) if error.code == ErrorCode::NotFound => gone += 1,
            Err(error) => return Err(error.into()),
        }
    }
    if gone > 0 {
        tell(&format!("{gone} jobs were forgotten meanwhile and are left out"));
    }
    let format = FORMAT.to_owned();
    Ok((History { format, version: VERSION, exported_ms, hosts, queues, jobs }, reckoned))
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
    let held = Some(held(&view, now_ms));
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
        held,
    }
}

/// What all attempts held, from grant to end, as the cluster meters it; those that are known by their number alone like
/// the others that have ended.
fn held(view: &JobView, now_ms: u64) -> Held {
    let (mut ended, mut ended_count, mut live) = (Held::default(), 0, Held::default());
    for attempt in &view.attempts {
        let ms = attempt.ended_ms.unwrap_or(now_ms).saturating_sub(attempt.granted_ms);
        let sum = match attempt.end {
            Some(_) => &mut ended,
            None => &mut live,
        };
        ended_count += u128::from(attempt.end.is_some());
        sum.ms += ms;
        sum.gpu_ms += ms.saturating_mul(gpu_milli(&view.spec, &attempt.devices)) / u64::from(CARD_MILLI);
        sum.evictions += u64::from(attempt.end == Some(AttemptEnd::Preempted));
    }
    let all = |known: u64| {
        let more = u128::from(known) * u128::from(view.attempts_forgotten) / ended_count.max(1);
        known.saturating_add(u64::try_from(more).unwrap_or(u64::MAX))
    };
    Held {
        ms: all(ended.ms).saturating_add(live.ms),
        gpu_ms: all(ended.gpu_ms).saturating_add(live.gpu_ms),
        evictions: all(ended.evictions),
    }
}

/// What an attempt holds of GPUs, in thousandths of one: by the ask that it was started with, which is the one of so
/// many cards.
fn gpu_milli(spec: &JobSpec, devices: &[DeviceFacts]) -> u64 {
    let cards = devices.iter().filter(|device| device.kind == DeviceKind::Gpu).count();
    let asks = || std::iter::once(&spec.ask).chain(&spec.alternatives);
    let ask = asks().find(|ask| ask.gpus() as usize == cards).unwrap_or(&spec.ask);
    let of = |device: &DeviceFacts| match device.kind {
        DeviceKind::Gpu => u64::from(ask.card_milli()),
        _ => card_amounts(device).gpu_milli,
    };
    devices.iter().map(of).sum()
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
    use rota_protocol::ask::Ask;
    use rota_protocol::job::{ArraySpec, JobState};
    use rota_protocol::view::{JobRow, TaskCounts};
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
            asked: None,
            number: 0,
        }
    }

    fn card(kind: DeviceKind, model: &str) -> DeviceFacts {
        let text =
            format!(r#"{{"uuid": "GPU-1", "kind": "{kind:?}", "model": "{model}", "health": "Healthy"}}"#);
        serde_json::from_str(&text).unwrap()
    }

    fn view(gpu_milli: u32, attempts: Vec<AttemptRow>, attempts_forgotten: u64) -> JobView {
        let array = ArraySpec { start: 0, end: 99, step: 1, parallel_max: 0 };
        let ask = Ask { gpu_milli, ..Ask::default() };
        let two = Ask { gpu_milli: 2_000, ..Ask::default() };
        let spec = JobSpec { ask, alternatives: vec![two], array: Some(array), ..JobSpec::default() };
        JobView {
            index: 1,
            row: JobRow {
                job: JobId(1),
                name: String::new(),
                tenant: "t".into(),
                user: "u".into(),
                state: JobState::Cancelled,
                priority: 50,
                submitted_ms: 0,
                started_ms: Some(1_000),
                ended_ms: Some(9_000),
                tasks: TaskCounts::default(),
                ask: String::new(),
                place: String::new(),
            },
            spec,
            attempts,
            attempts_forgotten,
            exit_status: None,
            host_deaths: 0,
            held_for_deaths: false,
            paused: None,
        }
    }

    /// Of a hundred tasks 71 were cancelled before they started: nobody held a card for them.
    #[test]
    fn gpu_hours_are_what_attempts_held_and_no_task_that_never_ran() {
        let of = |ran_ms, devices: &[(DeviceKind, &str)], end| AttemptRow {
            devices: devices.iter().map(|(kind, model)| card(*kind, model)).collect(),
            ..attempt(1, 0, ran_ms, end)
        };
        let exit = || Some(AttemptEnd::Exited { code: 0 });
        let gpu = (DeviceKind::Gpu, "H100");
        // Granted at 900, started at 1,000: a card is held from its grant on.
        let attempts: Vec<AttemptRow> = (0..29).map(|_| of(1_900, &[gpu], exit())).collect();
        let job = job(view(1_000, attempts, 0), 50_000);
        assert_eq!(job.held, Some(Held { ms: 58_000, gpu_ms: 58_000, evictions: 0 }));
        assert_eq!(job.gpu_hours(), 58.0 / 3_600.0);

        let mixed = vec![
            of(0, &[gpu], None),
            of(900, &[gpu], Some(AttemptEnd::Preempted)),
            of(1_900, &[gpu, gpu], exit()),
            of(6_900, &[(DeviceKind::Mig, "3g.40gb")], exit()),
        ];
        // Half a card until now, half a card for a second, two cards by the alternative, three sevenths of a card.
        let known = held(&view(500, mixed.clone(), 0), 10_900);
        assert_eq!(known, Held { ms: 20_000, gpu_ms: 5_000 + 500 + 4_000 + 2_996, evictions: 1 });
        // As many again of those that ended are known by number alone.
        let with_more = held(&view(500, mixed, 3), 10_900);
        assert_eq!(with_more, Held { ms: 30_000, gpu_ms: 5_000 + 2 * 7_496, evictions: 2 });
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
