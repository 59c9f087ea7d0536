//! `rota queue`, `rota show`.

use super::context::{Context, ReadArgs, document, say};
use super::echo::echo;
use super::ends::ended_text;
use super::failure::Failure;
use super::times::{age, stamp, wall_ms};
use crate::client::unexpected;
use crate::parse::time::duration_text;
use crate::parse::word;
use crate::table::{Table, clean, cut};
use clap::Args;
use rota_protocol::api::{ApiReply, ApiRequest, QueueFilter};
use rota_protocol::cage::Used;
use rota_protocol::device::DeviceFacts;
use rota_protocol::job::{JobSpec, JobState};
use rota_protocol::view::{AttemptRow, JobRow, JobView};
use serde_json::json;
use std::io::IsTerminal;
use std::time::Duration;

/// Longest name shown in a list, in characters; `rota show` has the whole.
const NAME_CHARS_MAX: usize = 32;
/// The place of a job that waits until it is released.
const HELD: &str = "(held)";
/// Time between two looks of a watch.
const WATCH_PERIOD: Duration = Duration::from_secs(1);

/// List jobs, those that are not over unless told otherwise.
#[derive(Debug, Args)]
pub struct QueueArgs {
    /// How to read.
    #[command(flatten)]
    pub read: ReadArgs,
    /// Only my own
    #[arg(long)]
    pub me: bool,
    /// Only those of this user
    #[arg(long, conflicts_with = "me")]
    pub user: Option<String>,
    /// Also those that are over
    #[arg(long, short)]
    pub all: bool,
    /// Only those in these states, such as PD,R,TO or failed
    #[arg(long, value_name = "STATE,..")]
    pub state: Option<String>,
    /// At most this many
    #[arg(long, value_name = "COUNT")]
    pub limit: Option<u32>,
    /// Look again each second until interrupted
    #[arg(long, short)]
    pub watch: bool,
}

/// Runs `rota queue`.
///
/// # Errors
/// Refused, or no cluster.
pub async fn queue(context: &Context, args: &QueueArgs) -> Result<u8, Failure> {
    let mut filter = QueueFilter { user: args.user.clone(), all: args.all, ..QueueFilter::default() };
    if let Some(text) = &args.state {
        filter.states = word::states("state", text)?;
        filter.all = true;
    }
    if args.me {
        filter.user = Some(context.me().await?.0.user);
    }
    loop {
        let (index, rows) = rows(context, &filter, args).await?;
        if args.read.json {
            document(&json!({ "index": index, "jobs": rows }))?;
        } else {
            if args.watch && std::io::stdout().is_terminal() {
                say("\u{1b}[H\u{1b}[2J")?;
            }
            say(&queue_table(&rows, wall_ms()).to_string())?;
        }
        if !args.watch {
            return Ok(0);
        }
        tokio::time::sleep(WATCH_PERIOD).await;
    }
}

/// All pages of a list.
async fn rows(
    context: &Context,
    filter: &QueueFilter,
    args: &QueueArgs,
) -> Result<(u64, Vec<JobRow>), Failure> {
    let mut filter = filter.clone();
    let mut all = Vec::new();
    let wanted = args.limit.map_or(usize::MAX, |limit| limit as usize);
    loop {
        let left = wanted - all.len();
        filter.limit = args.limit.map(|_| u32::try_from(left).unwrap_or(u32::MAX));
        let request = ApiRequest::Queue { filter: filter.clone(), freshness: args.read.freshness() };
        match context.client.call(request).await? {
            ApiReply::Queue { index, rows, next } => {
                all.extend(rows);
                all.truncate(wanted);
                if next.is_none() || all.len() == wanted {
                    return Ok((index, all));
                }
                filter.after = next;
            }
            other => return Err(unexpected(&other).into()),
        }
    }
}

fn queue_table(rows: &[JobRow], now_ms: u64) -> Table {
    let mut table =
        Table::new(&["JOB>", "NAME", "USER", "ST", "PRIO>", "TIME>", "TASKS>", "ASK", "HOSTS(REASON)"]);
    for row in rows {
        let total = row.tasks.total();
        let done = row.tasks.succeeded + row.tasks.failed + row.tasks.cancelled;
        table.row([
            row.job.to_string(),
            cut(&clean(&row.name), NAME_CHARS_MAX),
            row.user.clone(),
            row.state.code().to_owned(),
            row.priority.to_string(),
            ran(row, now_ms),
            if total == 1 { String::new() } else { format!("{done}/{total}") },
            row.ask.clone(),
            row.place.clone(),
        ]);
    }
    table
}

/// How long a job runs or ran, from its first start. One that waits again does not run.
fn ran(row: &JobRow, now_ms: u64) -> String {
    match row.started_ms.filter(|_| row.state != JobState::Pending) {
        Some(started) => age(row.ended_ms.unwrap_or(now_ms).saturating_sub(started)),
        None => "0:00".to_owned(),
    }
}

/// All about one job.
#[derive(Debug, Args)]
pub struct ShowArgs {
    /// 123, or last
    pub job: String,
    /// How to read.
    #[command(flatten)]
    pub read: ReadArgs,
}

/// Runs `rota show`.
///
/// # Errors
/// No such job, or no cluster.
pub async fn show(context: &Context, args: &ShowArgs) -> Result<u8, Failure> {
    let (job, index) = context.job(&args.job).await?;
    let freshness = args.read.freshness();
    match context.client.call(ApiRequest::Show { job, freshness }).await? {
        ApiReply::Job(mut view) => {
            if let Some(index) = index {
                view.attempts.retain(|attempt| attempt.task.index == index);
            }
            if args.read.json {
                document(&view)?;
            } else {
                say(&show_text(&view, wall_ms()))?;
            }
            Ok(0)
        }
        other => Err(unexpected(&other).into()),
    }
}

fn show_text(view: &JobView, now_ms: u64) -> String {
    let row = &view.row;
    let mut lines = vec![
        format!("job       {}", row.job),
        format!("state     {}{}", row.state, exit_of(view)),
        format!("where     {}", row.place),
        format!("user      {} (tenant {})", row.user, row.tenant),
        format!("submitted {}", stamp(row.submitted_ms)),
    ];
    if let Some(ms) = row.started_ms {
        lines.push(format!("started   {}", stamp(ms)));
    }
    if let Some(ms) = row.ended_ms {
        lines.push(format!("ended     {} (ran {})", stamp(ms), ran(row, now_ms)));
    }
    if let Some(paused) = view.paused {
        let left = paused.until_ms.saturating_sub(now_ms).div_ceil(1_000) * 1_000;
        let tasks =
            if row.tasks.total() > 1 { format!("{} tasks, the first ", paused.tasks) } else { String::new() };
        let until = stamp(paused.until_ms);
        lines.push(format!(
            "paused    {tasks}until {until} (in {}), before it is tried again",
            duration_text(left)
        ));
    }
    if view.host_deaths > 0 {
        lines
            .push(format!("lost      {} hosts were lost under it; a release forgets them", view.host_deaths));
    }
    lines.extend(sick_devices(&view.attempts));
    let tasks = row.tasks;
    if tasks.total() > 1 {
        lines.push(format!(
            "tasks     {} waiting, {} live, {} succeeded, {} failed, {} cancelled",
            tasks.pending, tasks.live, tasks.succeeded, tasks.failed, tasks.cancelled
        ));
    }
    let mut text = String::new();
    for line in &lines {
        text.push_str(&clean(line));
        text.push('\n');
    }
    // As the job stands now: it may have been released, or given another priority.
    let held = row.place == HELD || view.held_for_deaths;
    let spec = JobSpec { priority: row.priority, hold: held, ..view.spec.clone() };
    text.push_str(&echo(&spec));
    text.push('\n');
    if !view.attempts.is_empty() {
        text.push('\n');
        text.push_str(&attempt_table(view).to_string());
    }
    for attempt in &view.attempts {
        for line in care_lines(attempt) {
            text.push_str(&clean(&format!("task {} attempt {}: {line}", attempt.task, name_of(attempt))));
            text.push('\n');
        }
    }
    if view.attempts_forgotten > 0 {
        text.push_str(&format!("and {} older attempts\n", view.attempts_forgotten));
    }
    text
}

/// What the owner of a live attempt should know of the cards that it runs on.
fn sick_devices(attempts: &[AttemptRow]) -> impl Iterator<Item = String> {
    let live = attempts.iter().filter(|attempt| attempt.state.is_some());
    let devices = live.flat_map(|attempt| attempt.devices.iter().map(move |device| (attempt.task, device)));
    devices.filter_map(|(task, device)| {
        Some(format!("notice    task {task} runs on {}: {}", device.uuid, device.health.reason()?))
    })
}

/// The name of a device, with where it is for people.
fn device_text(device: &DeviceFacts) -> String {
    let index = device.index.map(|index| format!("index {index}"));
    let place: Vec<String> = index.into_iter().chain(device.bus.clone()).collect();
    if place.is_empty() { device.uuid.0.clone() } else { format!("{} ({})", device.uuid, place.join(", ")) }
}

fn exit_of(view: &JobView) -> String {
    match view.exit_status {
        Some(status) if view.row.state.is_terminal() => format!(" (exit {status})"),
        _ => String::new(),
    }
}

/// The greatest use of memory beside its limit, and what the kernel had to do about it.
fn memory_of(used: Used) -> String {
    let killed = if used.oom_kills > 0 { " (killed)" } else { "" };
    match (used.peak_mib, used.limit_mib) {
        (0, _) => "-".to_owned(),
        (peak, 0) => format!("{peak} MiB{killed}"),
        (peak, limit) => format!("{peak} of {limit} MiB{killed}"),
    }
}

/// What its host told of an attempt, and how its cards were given back.
fn care_lines(attempt: &AttemptRow) -> Vec<String> {
    let Some(care) = &attempt.care else { return Vec::new() };
    let mut lines = care.notes.clone();
    if let Some(release) = &care.release {
        let steps: Vec<String> = release.steps.iter().map(ToString::to_string).collect();
        let words = match &release.dirty {
            None => format!("cards given back in {} ms: {}", release.took_ms, steps.join(", ")),
            Some(why) => format!("cards not given back: {why}"),
        };
        lines.push(words);
    }
    lines
}

/// Its number, by which `rota logs --attempt` knows it; its token where an older agent answers.
fn name_of(attempt: &AttemptRow) -> String {
    if attempt.number > 0 { attempt.number.to_string() } else { attempt.token.to_string() }
}

fn attempt_table(view: &JobView) -> Table {
    let mut table = Table::new(&["TASK", "ATTEMPT>", "HOST", "STATE", "STARTED", "MEMORY", "DEVICES"]);
    for attempt in &view.attempts {
        let state = match (&attempt.end, attempt.state) {
            (Some(end), _) => ended_text(end, attempt.asked, &view.spec),
            (None, Some(state)) => format!("{state:?}").to_lowercase(),
            (None, None) => "-".to_owned(),
        };
        let devices: Vec<String> = attempt.devices.iter().map(device_text).collect();
        table.row([
            attempt.task.to_string(),
            name_of(attempt),
            attempt.host_name.clone(),
            state,
            attempt.started_ms.map_or("-".to_owned(), stamp),
            memory_of(attempt.used),
            devices.join(" "),
        ]);
    }
    table
}
