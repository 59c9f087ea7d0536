//! `rota why`: the whole answer on one screen.

use super::context::{Context, document, say, tell};
use super::ends::end_text;
use super::failure::Failure;
use super::times::{stamp, wall_ms};
use crate::client::unexpected;
use crate::parse::time::duration_text;
use crate::table::{Table, clean};
use clap::Args;
use rota_core::fit::{mib, milli};
use rota_protocol::JobId;
use rota_protocol::api::{ApiReply, ApiRequest, Freshness};
use rota_protocol::plan::PromiseBreak;
use rota_protocol::why::{StartBasis, WhyAccount, WhyPromise, WhyStart, WhyView};
use rota_protocol::why_more::{WhyHolder, WhyShare};

/// Why a job waits.
#[derive(Debug, Args)]
pub struct WhyArgs {
    /// 123, or last
    pub job: String,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

/// Runs `rota why`.
///
/// # Errors
/// No such job, or no cluster.
pub async fn why(context: &Context, args: &WhyArgs) -> Result<u8, Failure> {
    let (job, index) = context.job(&args.job).await?;
    if let Some(index) = index {
        let (told, over) = one_task(context, job, index).await?;
        if over && !args.json {
            say(&format!("{told}\n"))?;
            return Ok(0);
        }
        tell(&told);
    }
    match context.client.call(ApiRequest::Why { job }).await? {
        ApiReply::Why(view) if args.json => document(&view)?,
        ApiReply::Why(view) => say(&text(&view, wall_ms()))?,
        other => return Err(unexpected(&other).into()),
    }
    Ok(0)
}

/// What is to be said of one task of a job, and whether that is all: one that has started waits for nothing. All that
/// wait do so for the same reasons.
async fn one_task(context: &Context, job: JobId, index: u32) -> Result<(String, bool), Failure> {
    let request = ApiRequest::Show { job, freshness: Freshness::Linearizable };
    let view = match context.client.call(request).await? {
        ApiReply::Job(view) => view,
        other => return Err(unexpected(&other).into()),
    };
    let newest = view.attempts.iter().find(|attempt| attempt.task.index == index);
    Ok(match newest {
        Some(attempt) if attempt.state.is_some() => {
            (format!("task {job}_{index}: runs on {}, waits for nothing", attempt.host_name), true)
        }
        Some(attempt) => {
            let end =
                attempt.end.as_ref().map_or_else(|| "ended".to_owned(), |end| end_text(end, &view.spec));
            let waits = view.row.tasks.pending > 0;
            let rest = if waits { "; if it waits again, then as below for all waiting tasks" } else { "" };
            (format!("task {job}_{index}: its newest attempt ended: {end}{rest}"), !waits)
        }
        None => (
            format!(
                "task {job}_{index} has not started: the answer is that of all waiting tasks of job {job}"
            ),
            false,
        ),
    })
}

fn text(view: &WhyView, now_ms: u64) -> String {
    let waits = view.cause != "none";
    let mut lines = vec![format!("job {}: {}", view.job, view.verdict)];
    let mut line = |name: &str, text: String| lines.push(format!("{name:<9} {text}"));
    line("asks", view.ask.clone());
    line(if waits { "waits" } else { "waited" }, waited(view));
    if let Some(start) = &view.expected {
        line("starts", expected(start, view.more.reservation.as_deref(), now_ms));
    }
    if let Some(promise) = &view.promise {
        line("promise", promised(promise, view.expected.as_ref(), now_ms));
    }
    if let Some(told) = &view.more.evicted {
        line("was", told.clone());
    }
    if let Some(parts) = view.parts.filter(|parts| parts.needed > 1) {
        line("parts", format!("{} of {} find room together now", parts.fit, parts.needed));
    }
    if waits {
        line(
            "ahead",
            format!("{} asking {}", count(view.ahead_tasks, "task"), count(view.ahead_gpus, "GPU")),
        );
    }
    for (at, text) in holders(view, now_ms).into_iter().enumerate() {
        line(if at == 0 { "held by" } else { "" }, text);
    }
    for (at, row) in view.more.shares.iter().filter(|_| waits).enumerate() {
        line(if at == 0 { "share" } else { "" }, share(row));
    }
    for (at, row) in view.account.iter().enumerate() {
        line(if at == 0 { "account" } else { "" }, account(row));
    }
    for (at, parent) in view.dependencies.iter().enumerate() {
        let each = if parent.each { ", task by task" } else { "" };
        let text = format!("job {} ({}{each}), which is {}", parent.job, parent.relation, parent.state);
        line(if at == 0 { "after" } else { "" }, text);
    }
    for (name, at_ms) in
        [("begin", view.begin_ms), ("deadline", view.deadline_ms), ("paused", view.paused_until_ms)]
    {
        if let Some(at_ms) = at_ms {
            line(name, moment(at_ms, now_ms));
        }
    }
    if view.held {
        line("held", "until it is released".to_owned());
    }
    if let Some(most) = view.parallel_max {
        line("at once", format!("{most} of its tasks at the most"));
    }
    for one in &view.more.staging {
        line("inputs", format!("attempt {} on {}: {}", one.attempt, one.host, one.waits_for));
    }
    let options = [("largest", &view.largest_offer), ("would do", &view.smaller_ask), ("try", &view.hint)];
    for (name, option) in options {
        if let Some(option) = option {
            line(name, option.clone());
        }
    }
    let mut text: String = lines.iter().map(|line| format!("{}\n", clean(line.trim_end()))).collect();
    if waits && !view.by_reason.is_empty() {
        let mut table = Table::new(&["HOSTS>", "KEPT OFF BY", "DETAIL"]);
        for reason in &view.by_reason {
            table.row([reason.hosts.to_string(), reason.kind.clone(), reason.detail.clone()]);
        }
        text.push_str(&format!("\n{table}of {}\n", count(view.hosts.into(), "host")));
    }
    text
}

/// The whole wait, then what it came from.
fn waited(view: &WhyView) -> String {
    // While some tasks of an array run, others wait.
    let partly = view.more.partly;
    let word =
        |cause: &str| if cause == "runs" { "beside its own tasks".to_owned() } else { cause.to_owned() };
    let causes: Vec<String> = view
        .waits
        .iter()
        .filter(|wait| partly || wait.cause != "runs")
        .map(|wait| format!("{} {}", word(&wait.cause), duration_text(whole_seconds(wait.ms))))
        .collect();
    let total = duration_text(whole_seconds(view.waited_ms));
    if causes.is_empty() { total } else { format!("{total} ({})", causes.join(", ")) }
}

fn expected(start: &WhyStart, reservation: Option<&str>, now_ms: u64) -> String {
    let on = if start.hosts.is_empty() { String::new() } else { format!(" on {}", start.hosts.join(", ")) };
    if let Some(name) = reservation {
        return format!("{}{on}: when reservation {name} ends", moment(start.at_ms, now_ms));
    }
    let basis = match start.basis {
        StartBasis::Now => return format!("now{on}, in the next round"),
        StartBasis::Begin => "when it may begin",
        StartBasis::Promise => "promised",
        StartBasis::Victims => "as soon as those are gone that make room for it",
        StartBasis::Account => {
            "when work of its account reaches its limits; whether hosts have room then is open"
        }
        StartBasis::Limits => "by the limits of what runs, if nothing before it takes the room",
        StartBasis::AssumedLimits => {
            "if what runs without a limit ends within a day, and nothing before it takes the room"
        }
        StartBasis::Eviction => {
            "once others may be ended for it and are gone, if nothing before it takes the room"
        }
    };
    format!("{}{on}: {basis}", moment(start.at_ms, now_ms))
}

fn promised(promise: &WhyPromise, start: Option<&WhyStart>, now_ms: u64) -> String {
    let mut text = format!(
        "no later than {} on {}, made {}",
        moment(promise.at_ms, now_ms),
        promise.hosts.join(", "),
        stamp(promise.made_ms)
    );
    let elsewhere = |start: &&WhyStart| {
        start.at_ms < promise.at_ms && !start.hosts.is_empty() && start.hosts != promise.hosts
    };
    if start.filter(elsewhere).is_some() {
        text.push_str("; the start above is another place that may be free sooner");
    }
    if let Some(why) = promise.broken_by {
        text.push_str(&format!("; an earlier one did not hold: {}", broken(why)));
    }
    if let Some(why) = promise.broken_now {
        text.push_str(&format!("; it cannot be kept: {}", broken(why)));
    }
    text
}

fn broken(why: PromiseBreak) -> &'static str {
    match why {
        PromiseBreak::HostGone => "a host or a device of it is gone or closed",
        PromiseBreak::Outranked => "a job of higher standing came before it",
        PromiseBreak::Overrun => "what it waited for ran on past its limit",
        PromiseBreak::Reserved => "a host of it was reserved for others since",
    }
}

/// A line for each that has what a waiting job waits for.
fn holders(view: &WhyView, now_ms: u64) -> Vec<String> {
    let rows = view.more.holders.iter().map(|row| holder(row, now_ms));
    let more = Some(view.more.more_holders).filter(|more| *more > 0);
    rows.chain(more.map(|more| format!("and by {}", count(more.into(), "more job")))).collect()
}

/// Who has what is waited for, and until when at the latest.
fn holder(row: &WhyHolder, now_ms: u64) -> String {
    let what = match row.gpu_milli {
        0 => String::new(),
        gpus => format!(": {} GPUs", milli(gpus)),
    };
    let until = match row.until_ms {
        _ if row.ending => "asked to end, to make room".to_owned(),
        Some(at_ms) => format!("until {} at the latest", moment(at_ms, now_ms)),
        None => "it has no time limit".to_owned(),
    };
    let stays = if row.preemptible || row.ending { "" } else { "; no priority ends it (not preemptible)" };
    format!("job {} on {}{what}, {until}{stays}", row.job, row.host)
}

/// What a queue holds, and what is its part by weight.
fn share(row: &WhyShare) -> String {
    let of = |milli_of: u64| milli(milli_of);
    let WhyShare { queue, part, weight, weights, users, .. } = row;
    let mut text = format!("queue {queue}: holds {} of {} {part}", of(row.held), of(row.whole));
    if *weights > u64::from(*weight) {
        text.push_str(&format!(", its part by weight {weight} of {weights}"));
    }
    if *users > 1 || row.held_by_user < row.held {
        text.push_str(&format!(
            "; you hold {} of it, {} hold some",
            of(row.held_by_user),
            count((*users).into(), "user")
        ));
    }
    text
}

fn account(row: &WhyAccount) -> String {
    let amount = |figure: u64| match row.part.as_str() {
        "gpus" | "cpus" => milli(figure),
        _ => mib(figure),
    };
    let whose = if row.of_user { "you in queue" } else { "queue" };
    let most =
        row.ceiling.map_or_else(|| "no ceiling".to_owned(), |most| format!("at most {}", amount(most)));
    let own =
        if row.guarantee > 0 { format!(", {} guaranteed", amount(row.guarantee)) } else { String::new() };
    let full = if row.full { "  <- full" } else { "" };
    format!("{whose} {}: {} {} held, {most}{own}{full}", row.queue, amount(row.held), row.part)
}

/// A point in time, and how far it is.
fn moment(at_ms: u64, now_ms: u64) -> String {
    match at_ms.checked_sub(now_ms) {
        Some(left_ms) if left_ms >= 1_000 => {
            format!("{} (in {})", stamp(at_ms), duration_text(whole_seconds(left_ms)))
        }
        _ => stamp(at_ms),
    }
}

fn count(n: u64, noun: &str) -> String {
    if n == 1 { format!("1 {noun}") } else { format!("{n} {noun}s") }
}

/// Waits of a second and more are told in whole seconds.
fn whole_seconds(ms: u64) -> u64 {
    if ms < 1_000 { ms } else { ms / 1_000 * 1_000 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rota_protocol::job::JobState;
    use rota_protocol::why::{WhyDependency, WhyParts, WhyReason, WhyWait};
    use rota_protocol::why_more::WhyMore;
    use rota_protocol::work::Relation;

    const NOW_MS: u64 = 1_800_000_000_000;

    fn bare() -> WhyView {
        WhyView {
            index: 9,
            job: JobId(7),
            state: JobState::Succeeded,
            verdict: "is over: succeeded".into(),
            impossible: false,
            ask: "1 gpu".into(),
            hosts: 3,
            by_reason: vec![WhyReason {
                kind: "not_waiting".into(),
                hosts: 3,
                detail: "the job is succeeded".into(),
            }],
            ahead_tasks: 0,
            ahead_gpus: 0,
            largest_offer: None,
            hint: None,
            waited_ms: 90_500,
            cause: "none".into(),
            expected: None,
            promise: None,
            victims: 0,
            account: Vec::new(),
            dependencies: Vec::new(),
            held: false,
            begin_ms: None,
            deadline_ms: None,
            paused_until_ms: None,
            parallel_max: None,
            parts: None,
            smaller_ask: None,
            shorter_limit_ms: None,
            waits: vec![wait("runs", 5_000), wait("room", 90_500)],
            more: WhyMore::default(),
        }
    }

    #[test]
    fn who_holds_it_is_named_with_the_end_at_the_latest() {
        let row = |job, until_ms, preemptible, ending| WhyHolder {
            job: JobId(job),
            host: "n1".into(),
            until_ms,
            gpu_milli: 4_000,
            preemptible,
            ending,
        };
        let holders = vec![
            row(90, None, true, true),
            row(71, Some(NOW_MS + 40_000), false, false),
            row(72, None, true, false),
        ];
        let more = WhyMore { holders, more_holders: 2, ..WhyMore::default() };
        let view = WhyView { state: JobState::Pending, cause: "gpus_busy".into(), more, ..bare() };
        let text = text(&view, NOW_MS);
        let expected = "\
held by   job 90 on n1: 4 GPUs, asked to end, to make room
          job 71 on n1: 4 GPUs, until 2027-01-15 08:00:40Z (in 40s) at the latest; no priority ends it (not preemptible)
          job 72 on n1: 4 GPUs, it has no time limit
          and by 2 more jobs
";
        assert!(text.contains(expected), "{text}");
    }

    fn wait(cause: &str, ms: u64) -> WhyWait {
        WhyWait { cause: cause.into(), ms }
    }

    #[test]
    fn what_is_over_says_how_long_it_waited_and_for_what() {
        assert_eq!(
            text(&bare(), NOW_MS),
            "job 7: is over: succeeded\nasks      1 gpu\nwaited    1m30s (room 1m30s)\n"
        );
    }

    /// All at once, which no job is: every line has its place, and the whole fits a screen of 27 lines.
    #[test]
    fn the_whole_answer_is_one_screen() {
        let row = |of_user, ceiling, full| WhyAccount {
            queue: "lab".into(),
            of_user,
            part: "gpus".into(),
            held: 3_500,
            ceiling,
            guarantee: 1_000,
            full,
        };
        let hosts = vec!["n1".to_owned(), "n2".to_owned()];
        let view = WhyView {
            state: JobState::Pending,
            cause: "some_parts".into(),
            verdict: "waits for room\u{1b}".into(),
            ahead_tasks: 1,
            ahead_gpus: 4,
            largest_offer: Some("4 parts".into()),
            hint: Some("ask for less".into()),
            expected: Some(WhyStart {
                at_ms: NOW_MS + 60_000,
                basis: StartBasis::Limits,
                hosts: hosts.clone(),
            }),
            promise: Some(WhyPromise {
                at_ms: NOW_MS + 120_000,
                made_ms: NOW_MS - 1_000,
                broken_by: Some(PromiseBreak::Overrun),
                broken_now: Some(PromiseBreak::HostGone),
                hosts,
            }),
            account: vec![row(false, None, false), row(true, Some(4_000), true)],
            dependencies: vec![WhyDependency {
                job: JobId(5),
                relation: Relation::Ok,
                each: true,
                state: JobState::Running,
            }],
            held: true,
            begin_ms: Some(NOW_MS + 1_000),
            deadline_ms: Some(NOW_MS - 1),
            parallel_max: Some(2),
            parts: Some(WhyParts { needed: 4, fit: 3 }),
            smaller_ask: Some("3 parts of 1 gpu".into()),
            more: WhyMore {
                evicted: Some("asked to end: to make room for job 9 (priority 90, queue lab)".into()),
                shares: vec![WhyShare {
                    queue: "lab".into(),
                    part: "gpus".into(),
                    held: 3_000,
                    held_by_user: 2_000,
                    whole: 12_000,
                    weight: 1,
                    weights: 4,
                    users: 2,
                }],
                ..WhyMore::default()
            },
            ..bare()
        };
        let text = text(&view, NOW_MS);
        let expected = "\
job 7: waits for room\\u{1b}
asks      1 gpu
waits     1m30s (room 1m30s)
starts    2027-01-15 08:01:00Z (in 1m) on n1, n2: by the limits of what runs, if nothing before it takes the room
promise   no later than 2027-01-15 08:02:00Z (in 2m) on n1, n2, made 2027-01-15 07:59:59Z; an earlier one did not \
hold: what it waited for ran on past its limit; it cannot be kept: a host or a device of it is gone or closed
was       asked to end: to make room for job 9 (priority 90, queue lab)
parts     3 of 4 find room together now
ahead     1 task asking 4 GPUs
share     queue lab: holds 3 of 12 gpus, its part by weight 1 of 4; you hold 2 of it, 2 users hold some
account   queue lab: 3.5 gpus held, no ceiling, 1 guaranteed
          you in queue lab: 3.5 gpus held, at most 4, 1 guaranteed  <- full
after     job 5 (ok, task by task), which is running
begin     2027-01-15 08:00:01Z (in 1s)
deadline  2027-01-15 07:59:59Z
held      until it is released
at once   2 of its tasks at the most
largest   4 parts
would do  3 parts of 1 gpu
try       ask for less

HOSTS  KEPT OFF BY  DETAIL
    3  not_waiting  the job is succeeded
of 3 hosts
";
        assert_eq!(text, expected);
        assert!(text.lines().count() <= 27);
    }
}
