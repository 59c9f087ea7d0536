//! `rota device cordon`, `rota device clear`, `rota cluster breaker`: an operator's word about health.

use super::context::{Context, document, say};
use super::failure::Failure;
use crate::client::{fresh_request, unexpected};
use crate::parse::time;
use clap::{Args, Subcommand};
use rota_protocol::DeviceUuid;
use rota_protocol::api::{ApiReply, ApiRequest};
use rota_protocol::health::{BreakerView, Tending};
use serde_json::json;

/// One device.
#[derive(Debug, Args)]
pub struct DeviceArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: DeviceCommand,
}

/// What can be done about a device.
#[derive(Debug, Subcommand)]
pub enum DeviceCommand {
    /// Keep new work off a device; what runs goes on
    Cordon(CordonArgs),
    /// Lift a cordon and forget everything that is held against a device
    Clear(ClearArgs),
}

/// Keep new work off a device.
#[derive(Debug, Args)]
pub struct CordonArgs {
    /// Its UUID, or enough of its beginning
    pub uuid: String,
    /// For others to read
    #[arg(value_name = "REASON")]
    pub words: Vec<String>,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

/// Forget what is held against a device.
#[derive(Debug, Args)]
pub struct ClearArgs {
    /// Its UUID, or enough of its beginning
    pub uuid: String,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

/// The breaker of mass alarms: how many hosts may be taken out by their own faults in ten minutes.
#[derive(Debug, Args)]
pub struct BreakerArgs {
    /// So many, instead of a tenth of the hosts
    #[arg(long, value_name = "HOSTS", conflicts_with_all = ["rule", "reset"])]
    pub cap: Option<u32>,
    /// A tenth of the hosts, and at least one, again
    #[arg(long, conflicts_with = "reset")]
    pub rule: bool,
    /// Forget which hosts were taken out lately
    #[arg(long)]
    pub reset: bool,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

/// Whether a command prints JSON.
#[must_use]
pub fn wants_json(args: &DeviceArgs) -> bool {
    match &args.command {
        DeviceCommand::Cordon(args) => args.json,
        DeviceCommand::Clear(args) => args.json,
    }
}

/// Runs `rota device`.
///
/// # Errors
/// No such device, too few rights, or no cluster.
pub async fn device(context: &Context, args: &DeviceArgs) -> Result<u8, Failure> {
    match &args.command {
        DeviceCommand::Cordon(CordonArgs { uuid, words, json }) => {
            let reason = if words.is_empty() { "no reason given".to_owned() } else { words.join(" ") };
            let tending = Tending::Cordon { uuid: DeviceUuid(uuid.clone()), reason };
            tend(context, tending, &format!("device {uuid}"), "gets no new work", *json).await
        }
        DeviceCommand::Clear(ClearArgs { uuid, json }) => {
            let tending = Tending::Clear { uuid: DeviceUuid(uuid.clone()) };
            tend(context, tending, &format!("device {uuid}"), "nothing is held against it", *json).await
        }
    }
}

/// Runs `rota cluster breaker`.
///
/// # Errors
/// Too few rights, or no cluster.
pub async fn breaker(context: &Context, args: &BreakerArgs) -> Result<u8, Failure> {
    let tending = match (args.cap, args.rule, args.reset) {
        (Some(hosts), ..) => Tending::BreakerCap { hosts: Some(hosts) },
        (None, true, _) => Tending::BreakerCap { hosts: None },
        (None, false, true) => Tending::BreakerReset,
        (None, false, false) => return show(context, args.json).await,
    };
    tend(context, tending, "the breaker", "set", args.json).await
}

async fn show(context: &Context, as_json: bool) -> Result<u8, Failure> {
    let freshness = rota_protocol::api::Freshness::Linearizable;
    match context.client.call(ApiRequest::Cluster { freshness }).await? {
        ApiReply::Cluster(view) if as_json => document(&view.breaker)?,
        ApiReply::Cluster(view) => say(&format!("{}\n", breaker_text(&view.breaker)))?,
        other => return Err(unexpected(&other).into()),
    }
    Ok(0)
}

/// One line: what the breaker has done, and what it does.
#[must_use]
pub fn breaker_text(breaker: &BreakerView) -> String {
    let BreakerView { taken_out, cap, open_since_ms, alerts } = breaker;
    let lately = format!("{} of at most {cap} hosts taken out in ten minutes", taken_out.len());
    match open_since_ms {
        Some(since_ms) => {
            let since = time::duration_text(crate::io::clock::wall_ms().saturating_sub(*since_ms));
            format!("open for {since}: {lately}, further faults only alert ({alerts} so far)")
        }
        None => format!("closed: {lately}"),
    }
}

async fn tend(
    context: &Context,
    tending: Tending,
    what: &str,
    now: &str,
    as_json: bool,
) -> Result<u8, Failure> {
    let request = ApiRequest::Tend { request: fresh_request(), tending };
    match context.client.call(request).await? {
        ApiReply::Done if as_json => document(&json!({ "what": what, "now": now }))?,
        ApiReply::Done => say(&format!("{}: {now}\n", crate::table::clean(what)))?,
        other => return Err(unexpected(&other).into()),
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_breaker_says_what_it_holds_back() {
        let closed = BreakerView { cap: 2, ..BreakerView::default() };
        assert_eq!(breaker_text(&closed), "closed: 0 of at most 2 hosts taken out in ten minutes");
        let hosts = vec![rota_protocol::HostId(2), rota_protocol::HostId(3)];
        let open = BreakerView { taken_out: hosts, open_since_ms: Some(0), alerts: 7, ..closed };
        let text = breaker_text(&open);
        assert!(text.contains("2 of at most 2 hosts") && text.contains("only alert (7 so far)"), "{text}");
    }
}
