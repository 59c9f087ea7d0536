//! `rota queues`: the tree of queues, and its rules.

use super::context::{Context, ReadArgs, document, say, tell};
use super::failure::Failure;
use super::usage::hours;
use crate::client::{fresh_request, unexpected};
use crate::parse::{pace, rules, time, word};
use crate::table::{Table, clean};
use clap::{Args, Subcommand};
use rota_protocol::PublicError;
use rota_protocol::api::{ApiReply, ApiRequest, Freshness};
use rota_protocol::queue::{Amounts, QueueSpec};
use rota_protocol::view::{HostRow, HostState, QueueRow};
use serde_json::json;

/// List queues, make them, change their rules.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct QueuesArgs {
    /// What to do; without it they are listed.
    #[command(subcommand)]
    pub command: Option<QueuesCommand>,
    /// How to read.
    #[command(flatten)]
    pub read: ReadArgs,
}

/// What can be done with queues.
#[derive(Debug, Subcommand)]
pub enum QueuesCommand {
    /// Make a queue, or change those of its rules that are named
    Set(Box<QueueSetArgs>),
    /// Remove a queue without open jobs and children
    Remove(QueueRemoveArgs),
}

/// Make a queue, or change those of its rules that are named.
#[derive(Debug, Args, Default)]
pub struct QueueSetArgs {
    /// Its path, such as research/vision
    pub path: String,
    /// Its part against its siblings, 1 or more
    #[arg(long)]
    pub weight: Option<u32>,
    /// What it gets back from borrowers: gpus=4,cpus=64,mem=512G,vram=320G, or none
    #[arg(long, value_name = "AMOUNTS")]
    pub guarantee: Option<String>,
    /// What it never exceeds, or none
    #[arg(long, value_name = "AMOUNTS")]
    pub ceiling: Option<String>,
    /// What no single user of it exceeds, or none
    #[arg(long, value_name = "AMOUNTS")]
    pub user_ceiling: Option<String>,
    /// It may use what others leave idle
    #[arg(long, conflicts_with = "no_borrow")]
    pub borrow: bool,
    /// Its guarantee is its ceiling
    #[arg(long)]
    pub no_borrow: bool,
    /// Tenants that may enter it [default: the one of its first path element]
    #[arg(long, value_name = "TENANT,..")]
    pub tenants: Option<String>,
    /// Time limit of jobs that name none themselves, or none; a job may name a longer one
    #[arg(long, value_name = "TIME")]
    pub time_limit: Option<String>,
    /// Work above a lowered ceiling: let-end or requeue-youngest
    #[arg(long, value_name = "RULE")]
    pub excess: Option<String>,
    /// Work that holds cards and does nothing with them: report, warn or end
    #[arg(long, value_name = "RULE")]
    pub idle: Option<String>,
    /// How long nothing must have happened for that
    #[arg(long, value_name = "TIME")]
    pub idle_window: Option<String>,
    /// Warnings before it is ended, one in each window
    #[arg(long, value_name = "COUNT")]
    pub idle_warnings: Option<u8>,
    /// Jobs that resume take turns: auto, unlike (only among GPU models of unlike speed) or off
    #[arg(long, value_name = "RULE")]
    pub turns: Option<String>,
    /// The highest priority that submitters may ask in it and below it, or none: as in the queue above, 50 at the top
    #[arg(long, value_name = "PRIORITY")]
    pub priority_max: Option<String>,
    /// How long its attempts run before they may be ended to make room for others, or none: as in the queue above
    #[arg(long, value_name = "TIME")]
    pub min_runtime: Option<String>,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

/// Remove a queue.
#[derive(Debug, Args)]
pub struct QueueRemoveArgs {
    /// Its path
    pub path: String,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

/// Whether results and errors are JSON.
pub fn wants_json(args: &QueuesArgs) -> bool {
    match &args.command {
        Some(QueuesCommand::Set(args)) => args.json,
        Some(QueuesCommand::Remove(args)) => args.json,
        None => args.read.json,
    }
}

/// Runs the command.
///
/// # Errors
/// A rule that cannot be read, too few rights, or no cluster.
pub async fn queues(context: &Context, args: &QueuesArgs) -> Result<u8, Failure> {
    match &args.command {
        Some(QueuesCommand::Set(args)) => set(context, args).await,
        Some(QueuesCommand::Remove(args)) => remove(context, args).await,
        None => list(context, args.read).await,
    }
}

async fn list(context: &Context, read: ReadArgs) -> Result<u8, Failure> {
    let (index, rows) = rows(context, read.freshness()).await?;
    if read.json {
        document(&json!({ "index": index, "queues": rows }))?;
    } else {
        say(&queue_table(&rows).to_string())?;
    }
    Ok(0)
}

async fn rows(context: &Context, freshness: Freshness) -> Result<(u64, Vec<QueueRow>), PublicError> {
    match context.client.call(ApiRequest::Queues { freshness }).await? {
        ApiReply::Queues { index, rows } => Ok((index, rows)),
        other => Err(unexpected(&other)),
    }
}

fn queue_table(rows: &[QueueRow]) -> Table {
    let mut table = Table::new(&[
        "QUEUE",
        "WEIGHT>",
        "GUARANTEE",
        "CEILING",
        "HELD",
        "SHARE>",
        "WAITING>",
        "RUNNING>",
        "GPU-HOURS>",
        "RULES",
    ]);
    let or_dash = |text: String| if text == "none" { "-".to_owned() } else { text };
    for row in rows {
        table.row([
            row.spec.name.clone(),
            row.spec.weight.to_string(),
            or_dash(rules::amounts_text(&row.spec.guarantee)),
            or_dash(rules::ceiling_text(&row.spec.ceiling)),
            or_dash(rules::amounts_text(&row.held)),
            format!("{}.{}%", row.share_permille / 10, row.share_permille % 10),
            row.tasks_waiting.to_string(),
            row.tasks_running.to_string(),
            hours(row.used_gpu_ms),
            rules_text(&row.spec),
        ]);
    }
    table
}

/// Rules that are not as they are for a queue that nobody set.
fn rules_text(spec: &QueueSpec) -> String {
    let open = QueueSpec::open(&spec.name);
    let mut parts = Vec::new();
    if spec.user_ceiling != open.user_ceiling {
        parts.push(format!("user {}", rules::ceiling_text(&spec.user_ceiling)));
    }
    if !spec.borrows {
        parts.push("no-borrow".to_owned());
    }
    if !spec.tenants.is_empty() {
        parts.push(format!("tenants {}", spec.tenants.join(",")));
    }
    if let Some(ms) = spec.time_limit_default_ms {
        parts.push(format!("time {}", time::duration_text(ms)));
    }
    if spec.excess != open.excess {
        parts.push(rules::excess_text(spec.excess).to_owned());
    }
    if let Some(most) = spec.priority_max {
        parts.push(format!("priority up to {most}"));
    }
    if let Some(ms) = spec.min_runtime_ms {
        parts.push(format!("runs {} at least", time::duration_text(ms)));
    }
    if spec.turns != open.turns {
        parts.push(pace::turns_text(spec.turns).to_owned());
    }
    if spec.idle != open.idle {
        parts.push(rules::idle_text(&spec.idle));
    }
    parts.join("; ")
}

async fn set(context: &Context, args: &QueueSetArgs) -> Result<u8, Failure> {
    let path = word::queue("queue", &args.path)?;
    // What is malformed is refused before anybody is asked.
    args.rules_over(QueueSpec::open(&path))?;
    let (_, rows) = rows(context, Freshness::Linearizable).await?;
    let known = rows.into_iter().find(|row| row.spec.name == path);
    let is_new = known.is_none();
    let queue = args.rules_over(known.map_or_else(|| QueueSpec::open(&path), |row| row.spec))?;
    let request = ApiRequest::SetQueue { request: fresh_request(), queue: queue.clone() };
    let done = context.client.call(request).await?;
    let note = beyond_the_hosts(context, &queue.guarantee).await;
    match done {
        ApiReply::Done if args.json => document(&json!({ "queue": queue, "new": is_new, "note": note }))?,
        ApiReply::Done => {
            let what = if is_new { "made" } else { "changed" };
            let (guarantee, ceiling) =
                (rules::amounts_text(&queue.guarantee), rules::ceiling_text(&queue.ceiling));
            let rules = rules_text(&queue);
            let rules = if rules.is_empty() { rules } else { format!("; {rules}") };
            let line = format!(
                "queue {path}: {what}; weight {}; guarantee {guarantee}; ceiling {ceiling}{rules}",
                queue.weight
            );
            say(&format!("{}\n", clean(&line)))?;
            if let Some(note) = note {
                tell(&format!("note: {note}"));
            }
        }
        other => return Err(unexpected(&other).into()),
    }
    Ok(0)
}

/// What is guaranteed and not there: hosts may come, so it is told and not refused.
async fn beyond_the_hosts(context: &Context, guarantee: &Amounts) -> Option<String> {
    if *guarantee == Amounts::default() {
        return None;
    }
    match context.client.call(ApiRequest::Hosts { freshness: Freshness::Stale }).await {
        Ok(ApiReply::Hosts { rows, .. }) => beyond(guarantee, &offered(&rows)),
        // The rule is set; that nobody could be asked about hosts takes nothing from it.
        _ => None,
    }
}

/// What these hosts have, but for the memory of their cards, by which rows do not tell them apart.
fn offered(hosts: &[HostRow]) -> Amounts {
    let there = hosts.iter().filter(|host| host.state != HostState::Removed);
    there.fold(Amounts::default(), |sum, host| {
        let gpu_milli = u64::from(host.gpus) * 1_000;
        let (cpus_milli, mem_mib) = (u64::from(host.cpus_milli), host.mem_mib);
        sum.plus(&Amounts { gpu_milli, cpus_milli, mem_mib, vram_mib: 0 })
    })
}

fn beyond(guarantee: &Amounts, there: &Amounts) -> Option<String> {
    let told = Amounts { vram_mib: 0, ..*guarantee };
    (!told.within(there)).then(|| {
        format!(
            "guaranteed is {}, and all hosts together have {}: until more come, it is not kept",
            rules::amounts_text(&told),
            rules::amounts_text(there)
        )
    })
}

impl QueueSetArgs {
    /// The rules named, over those that hold.
    fn rules_over(&self, mut spec: QueueSpec) -> Result<QueueSpec, PublicError> {
        if let Some(weight) = self.weight {
            spec.weight = weight;
        }
        if let Some(text) = &self.guarantee {
            spec.guarantee = rules::guarantee("guarantee", text)?;
        }
        if let Some(text) = &self.ceiling {
            spec.ceiling = rules::ceiling("ceiling", text)?;
        }
        if let Some(text) = &self.user_ceiling {
            spec.user_ceiling = rules::ceiling("user-ceiling", text)?;
        }
        if self.borrow || self.no_borrow {
            spec.borrows = self.borrow;
        }
        if let Some(text) = &self.tenants {
            let names = text.split(',').filter(|name| !name.trim().is_empty());
            let names = names.map(|name| word::name("tenants", name)).collect::<Result<_, _>>()?;
            spec.tenants = word::once_each("tenants", names)?;
        }
        if let Some(text) = &self.time_limit {
            spec.time_limit_default_ms = rules::time_or_none("time-limit", text)?;
        }
        if let Some(text) = &self.idle {
            spec.idle.mode = rules::idle_mode("idle", text)?;
        }
        if let Some(text) = &self.idle_window {
            spec.idle.window_ms = time::duration_ms("idle-window", text)?;
        }
        if let Some(warnings) = self.idle_warnings {
            spec.idle.warnings = warnings;
        }
        if let Some(text) = &self.turns {
            spec.turns = pace::turns("turns", text)?;
        }
        if let Some(text) = &self.priority_max {
            spec.priority_max = rules::priority_max("priority-max", text)?;
        }
        if let Some(text) = &self.min_runtime {
            spec.min_runtime_ms = rules::time_or_none("min-runtime", text)?;
        }
        if let Some(text) = &self.excess {
            spec.excess = rules::excess("excess", text)?;
        }
        Ok(spec)
    }
}

async fn remove(context: &Context, args: &QueueRemoveArgs) -> Result<u8, Failure> {
    let name = word::queue("queue", &args.path)?;
    let request = ApiRequest::RemoveQueue { request: fresh_request(), name: name.clone() };
    match context.client.call(request).await? {
        ApiReply::Done if args.json => document(&json!({ "queue": name, "now": "removed" }))?,
        ApiReply::Done => say(&format!("queue {name}: removed\n"))?,
        other => return Err(unexpected(&other).into()),
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_that_are_not_named_stay() {
        let first = QueueSetArgs {
            path: "lab".into(),
            guarantee: Some("gpus=4".into()),
            ceiling: Some("gpus=8,cpus=64".into()),
            no_borrow: true,
            tenants: Some("a, b".into()),
            time_limit: Some("1h".into()),
            ..QueueSetArgs::default()
        };
        let spec = first.rules_over(QueueSpec::open("lab")).unwrap();
        assert_eq!(spec.guarantee.gpu_milli, 4_000);
        assert_eq!((spec.ceiling.gpu_milli, spec.ceiling.cpus_milli), (Some(8_000), Some(64_000)));
        assert_eq!(spec.tenants, ["a", "b"]);
        let second = QueueSetArgs {
            path: "lab".into(),
            weight: Some(3),
            borrow: true,
            time_limit: Some("none".into()),
            idle: Some("end".into()),
            idle_window: Some("30m".into()),
            idle_warnings: Some(3),
            ..QueueSetArgs::default()
        };
        let changed = second.rules_over(spec.clone()).unwrap();
        assert_eq!((changed.weight, changed.borrows, changed.time_limit_default_ms), (3, true, None));
        assert_eq!((changed.guarantee, changed.ceiling), (spec.guarantee, spec.ceiling));
        assert_eq!(rules_text(&changed), "tenants a,b; idle: end after 3 warnings, one each 30m");
        let most = |text: &str| QueueSetArgs { priority_max: Some(text.into()), ..QueueSetArgs::default() };
        let raised = most("80").rules_over(changed.clone()).unwrap();
        assert_eq!(raised.priority_max, Some(80));
        assert!(rules_text(&raised).contains("priority up to 80"));
        assert_eq!(most("none").rules_over(raised).unwrap(), changed);
        for bad in ["49", "101", "high"] {
            let error = most(bad).rules_over(spec.clone()).unwrap_err();
            assert_eq!(error.field.as_deref(), Some("priority-max"), "{error}");
        }
        let bad = QueueSetArgs { tenants: Some("x,y,x".into()), ..QueueSetArgs::default() };
        let error = bad.rules_over(spec.clone()).unwrap_err();
        assert_eq!(
            (error.field.as_deref(), error.message.contains("twice")),
            (Some("tenants"), true),
            "{error}"
        );
        let bad = QueueSetArgs { idle: Some("kill".into()), ..QueueSetArgs::default() };
        assert_eq!(bad.rules_over(spec.clone()).unwrap_err().field.as_deref(), Some("idle"));
        let bad = QueueSetArgs { excess: Some("kill".into()), ..QueueSetArgs::default() };
        assert_eq!(bad.rules_over(spec).unwrap_err().field.as_deref(), Some("excess"));
    }

    /// What all hosts together do not have is told, card by card and core by core.
    #[test]
    fn a_guarantee_beyond_the_hosts_is_told() {
        let guarantee = |text: &str| rules::guarantee("guarantee", text).unwrap();
        let there = Amounts { gpu_milli: 16_000, cpus_milli: 64_000, mem_mib: 2 << 10, vram_mib: 0 };
        assert_eq!(beyond(&guarantee("gpus=16,cpus=64,mem=2G,vram=999G"), &there), None);
        let note = beyond(&guarantee("gpus=1000"), &there).unwrap();
        assert!(note.contains("gpus=1000") && note.contains("gpus=16,cpus=64,mem=2G"), "{note}");
        assert!(beyond(&guarantee("cpus=65"), &there).is_some());
        assert!(beyond(&guarantee("gpus=1"), &Amounts::default()).unwrap().contains("none"));
    }
}
