//! `rota hosts`, `rota devices`, `rota drain`, `rota undrain`.

use super::context::{Context, ReadArgs, document, say};
use super::failure::Failure;
use super::times::stamp;
use crate::client::{fresh_request, unexpected};
use crate::parse::amount::{memory_text, milli_text};
use crate::parse::time;
use crate::table::Table;
use clap::Args;
use rota_protocol::api::{ApiReply, ApiRequest};
use rota_protocol::device::{DeviceFacts, DeviceHealth};
use rota_protocol::health::{MarkView, Stage};
use rota_protocol::reservation::ReservedFor;
use rota_protocol::view::{DeviceHold, DeviceRow, HostRow, ReservationRow};
use serde_json::json;

/// List hosts.
#[derive(Debug, Args)]
pub struct HostsArgs {
    /// How to read.
    #[command(flatten)]
    pub read: ReadArgs,
}

/// Runs `rota hosts`.
///
/// # Errors
/// No cluster.
pub async fn hosts(context: &Context, args: &HostsArgs) -> Result<u8, Failure> {
    let freshness = args.read.freshness();
    match context.client.call(ApiRequest::Hosts { freshness }).await? {
        ApiReply::Hosts { index, rows } if args.read.json => {
            document(&json!({ "index": index, "hosts": rows }))?;
        }
        ApiReply::Hosts { rows, .. } => {
            // Beside what the hosts say: of an agent that does not tell, nothing is shown.
            let kept = match context.client.call(ApiRequest::Reservations { freshness }).await {
                Ok(ApiReply::Reservations { rows, .. }) => rows,
                _ => Vec::new(),
            };
            say(&format!("{}{}", host_table(&rows, &kept), warnings(&rows)))?;
        }
        other => return Err(unexpected(&other).into()),
    }
    Ok(0)
}

fn host_table(rows: &[HostRow], kept: &[ReservationRow]) -> Table {
    let mut table = Table::new(&[
        "HOST", "ID>", "STATE", "GPUS>", "CPUS>", "MEM>", "TASKS>", "LABELS", "ADDRESS", "REASON",
    ]);
    for row in rows {
        let labels: Vec<String> = row.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        table.row([
            row.name.clone(),
            row.host.to_string(),
            format!("{:?}", row.state).to_lowercase(),
            format!("{}/{}", row.gpus_used, row.gpus),
            format!("{}/{}", milli_text(row.cpus_milli_used), milli_text(row.cpus_milli)),
            format!("{}/{}", gib(row.mem_mib_used), memory_text_short(row.mem_mib)),
            row.attempts.to_string(),
            labels.join(","),
            row.addr.clone(),
            row.reason.clone().or_else(|| kept_for(row, kept)).or_else(|| blame(row)).unwrap_or_default(),
        ]);
    }
    table
}

/// The reservation that keeps the host just now.
fn kept_for(host: &HostRow, kept: &[ReservationRow]) -> Option<String> {
    let row = kept.iter().find(|row| row.active && row.host_names.contains(&host.name))?;
    let until = stamp(row.spec.end_ms);
    let why = if row.spec.reason.is_empty() { String::new() } else { format!(": {}", row.spec.reason) };
    Some(match &row.spec.kept_for {
        ReservedFor::Nobody => format!("maintenance '{}' until {until}{why}", row.spec.name),
        ReservedFor::Queues(paths) => {
            format!("reserved by '{}' for {} until {until}{why}", row.spec.name, paths.join(","))
        }
    })
}

/// Jobs that failed on a host and ran well elsewhere, while they are too few to keep work off it.
fn blame(row: &HostRow) -> Option<String> {
    let jobs = row.care.failed_jobs;
    (jobs > 0).then(|| format!("{jobs} of late failed here that ran well elsewhere"))
}

/// What is not as it should be, a line each, below the table.
fn warnings(rows: &[HostRow]) -> String {
    let of = |row: &HostRow| row.warnings.iter().map(|w| format!("{}: {w}\n", row.name)).collect::<String>();
    rows.iter().map(of).collect()
}

/// MiB in whole and tenths of GiB.
fn gib(mib: u64) -> String {
    match mib * 10 / 1_024 {
        tenths if tenths % 10 == 0 => (tenths / 10).to_string(),
        tenths => format!("{}.{}", tenths / 10, tenths % 10),
    }
}

fn memory_text_short(mib: u64) -> String {
    format!("{}G", gib(mib))
}

/// List devices.
#[derive(Debug, Args)]
pub struct DevicesArgs {
    /// Only those of this host
    pub host: Option<String>,
    /// How to read.
    #[command(flatten)]
    pub read: ReadArgs,
}

/// Runs `rota devices`.
///
/// # Errors
/// No cluster.
pub async fn devices(context: &Context, args: &DevicesArgs) -> Result<u8, Failure> {
    let freshness = args.read.freshness();
    match context.client.call(ApiRequest::Devices { freshness }).await? {
        ApiReply::Devices { index, mut rows } => {
            if let Some(host) = &args.host {
                rows.retain(|row| row.host_name == *host || row.host.to_string() == *host);
            }
            if args.read.json {
                document(&json!({ "index": index, "devices": rows }))?;
            } else {
                say(&device_table(&rows).to_string())?;
            }
        }
        other => return Err(unexpected(&other).into()),
    }
    Ok(0)
}

fn device_table(rows: &[DeviceRow]) -> Table {
    let mut table = Table::new(&[
        "HOST", "INDEX>", "BUS", "UUID", "KIND", "MODEL", "VRAM>", "BUSY>", "USED>", "HELD BY", "HEALTH",
    ]);
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    for row in rows {
        let (facts, reading) = (&row.facts, row.reading.as_ref());
        let health = match &facts.health {
            health if !row.offered => format!("not offered: {}", health.reason().unwrap_or("no reason")),
            DeviceHealth::Healthy => match row.mark.as_ref().and_then(|mark| mark.reasons.last()) {
                Some(note) => format!("healthy; {} ({})", note.text, stamp(note.at_ms)),
                None => "healthy".to_owned(),
            },
            DeviceHealth::Unknown { reason } => format!("unknown: {reason}"),
            DeviceHealth::Dirty { reason } => format!("dirty: {reason}"),
            DeviceHealth::Lost { reason } => format!("lost: {reason}"),
            // The state has put the word before the reason.
            DeviceHealth::Degraded { reason } | DeviceHealth::Quarantined { reason } => reason.clone(),
        };
        let health = match row.mark.as_ref().and_then(since_ms) {
            Some(since_ms) => format!("{health} (since {})", stamp(since_ms)),
            None => health,
        };
        let busy = reading.and_then(|r| r.busy_permille).map(|p| format!("{}%", p / 10));
        let used = reading.and_then(|r| r.vram_used_mib).map(memory_text_short);
        table.row([
            row.host_name.clone(),
            or_dash(facts.index.map(|index| index.to_string())),
            or_dash(facts.bus.clone()),
            facts.uuid.to_string(),
            format!("{:?}", facts.kind).to_lowercase(),
            facts.model.clone(),
            vram_text(facts),
            or_dash(busy),
            or_dash(used),
            or_dash(holders_text(&row.held_by)),
            health,
        ]);
    }
    table
}

/// Since when something is held against a device.
fn since_ms(mark: &MarkView) -> Option<u64> {
    mark.cordon.as_ref().map(|cordon| cordon.at_ms).or((mark.stage != Stage::Well).then_some(mark.since_ms))
}

/// The memory, marked where it is the host's own.
fn vram_text(facts: &DeviceFacts) -> String {
    match (facts.vram_mib, facts.detail.unified) {
        (None, _) => "-".to_owned(),
        (Some(mib), false) => memory_text(mib),
        (Some(mib), true) => format!("{} unified", memory_text(mib)),
    }
}

/// Place nothing new on a host. What runs there runs on, unless a time is given.
#[derive(Debug, Args)]
pub struct DrainArgs {
    /// Its name or number
    pub host: String,
    /// For others to read
    #[arg(value_name = "REASON", conflicts_with = "reason")]
    pub words: Vec<String>,
    /// The same as a flag
    #[arg(long)]
    pub reason: Option<String>,
    /// What runs there is ended after this time and queued again elsewhere
    #[arg(long, value_name = "TIME", conflicts_with = "now")]
    pub deadline: Option<String>,
    /// What runs there is ended at once and queued again elsewhere
    #[arg(long)]
    pub now: bool,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

/// End a drain, a suspension, and whatever else keeps work off the host itself.
#[derive(Debug, Args)]
pub struct UndrainArgs {
    /// Its name or number
    pub host: String,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

/// Runs `rota drain`.
///
/// # Errors
/// No such host, too few rights, or no cluster.
pub async fn drain(context: &Context, args: &DrainArgs) -> Result<u8, Failure> {
    let evict_in_ms = match &args.deadline {
        Some(text) => Some(time::duration_or_zero_ms("deadline", text)?),
        None => args.now.then_some(0),
    };
    let reason = match &args.reason {
        Some(reason) => reason.clone(),
        None if args.words.is_empty() => "drained by an operator".to_owned(),
        None => args.words.join(" "),
    };
    let (request, host) = (fresh_request(), args.host.clone());
    let what = match evict_in_ms {
        None => "draining".to_owned(),
        Some(0) => "draining, what runs is ended now".to_owned(),
        Some(ms) => format!("draining, what runs is ended in {}", time::duration_text(ms)),
    };
    let request = match evict_in_ms {
        None => ApiRequest::Drain { request, host, reason },
        Some(_) => ApiRequest::DrainWith { request, host, reason, evict_in_ms },
    };
    changed(context, request, &args.host, &what, args.json).await
}

/// Runs `rota undrain`.
///
/// # Errors
/// No such host, too few rights, or no cluster.
pub async fn undrain(context: &Context, args: &UndrainArgs) -> Result<u8, Failure> {
    let request = ApiRequest::Undrain { request: fresh_request(), host: args.host.clone() };
    changed(context, request, &args.host, "takes work", args.json).await
}

async fn changed(
    context: &Context,
    request: ApiRequest,
    host: &str,
    what: &str,
    as_json: bool,
) -> Result<u8, Failure> {
    match context.client.call(request).await? {
        ApiReply::Done if as_json => document(&json!({ "host": host, "now": what }))?,
        ApiReply::Done => say(&format!("host {}: {what}\n", crate::table::clean(host)))?,
        other => return Err(unexpected(&other).into()),
    }
    Ok(0)
}

/// Tasks that hold a device; a share with its part of the card.
fn holders_text(held: &[DeviceHold]) -> Option<String> {
    let one = |hold: &DeviceHold| match hold.milli {
        1_000 => hold.task.to_string(),
        part => format!("{} ({}%)", hold.task, part / 10),
    };
    (!held.is_empty()).then(|| held.iter().map(one).collect::<Vec<_>>().join(","))
}
