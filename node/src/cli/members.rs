//! `rota cluster remove`, `promote`, `address`: who belongs to the cluster, and who votes.

use super::context::{Context, document, say, tell};
use super::failure::Failure;
use crate::client::{fresh_request, unexpected};
use clap::Args;
use rota_protocol::api::{ApiReply, ApiRequest};
use rota_protocol::follow::FollowView;
use rota_protocol::members::{MembersAnswer, MembersAsk, MembersView};
use serde_json::json;
use std::io::{BufRead, IsTerminal, Read};

/// Longest answer that is read from a terminal.
const ANSWER_BYTES_MAX: u64 = 256;

/// Take a host out of the cluster for good.
#[derive(Debug, Args)]
pub struct RemoveArgs {
    /// Its name or number
    pub host: String,
    /// Why, for people
    #[arg(long, default_value = "removed by an operator")]
    pub reason: String,
    /// Do not ask
    #[arg(long)]
    pub yes: bool,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

/// Let a host vote, before others.
#[derive(Debug, Args)]
pub struct PromoteArgs {
    /// Its name or number
    pub host: String,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

/// Tell this host where another one is now.
#[derive(Debug, Args)]
pub struct AddressArgs {
    /// The other's name or number
    pub host: String,
    /// Where it can be dialled
    #[arg(value_name = "HOST:PORT")]
    pub address: String,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

/// `rota cluster remove`
///
/// # Errors
/// It would lose the majority, or nobody confirmed it.
pub async fn remove(context: &Context, args: &RemoveArgs) -> Result<u8, Failure> {
    let ask = |only_look| MembersAsk::Remove {
        request: fresh_request(),
        host: args.host.clone(),
        reason: args.reason.clone(),
        only_look,
    };
    if !args.yes {
        for line in told(context, ask(true)).await? {
            tell(&line);
        }
        if !confirmed(&args.host)? {
            return Err(Failure::other(format!(
                "nothing was done; `rota cluster remove {} --yes` removes it",
                args.host
            )));
        }
    }
    print(&told(context, ask(false)).await?, args.json)
}

/// `rota cluster promote`
///
/// # Errors
/// There is no such host, or it is not up.
pub async fn promote(context: &Context, args: &PromoteArgs) -> Result<u8, Failure> {
    let ask = MembersAsk::Promote { request: fresh_request(), host: args.host.clone() };
    print(&told(context, ask).await?, args.json)
}

/// `rota cluster address`
///
/// # Errors
/// There is no such host, or that is no address.
pub async fn address(context: &Context, args: &AddressArgs) -> Result<u8, Failure> {
    let ask = MembersAsk::Address { host: args.host.clone(), addr: args.address.clone() };
    print(&told(context, ask).await?, args.json)
}

async fn told(context: &Context, ask: MembersAsk) -> Result<Vec<String>, Failure> {
    match context.client.call(ApiRequest::Members(ask)).await? {
        ApiReply::Members(MembersAnswer::Told(lines)) => Ok(lines),
        other => Err(unexpected(&other).into()),
    }
}

fn print(lines: &[String], as_json: bool) -> Result<u8, Failure> {
    if as_json {
        document(&json!({ "told": lines }))?;
    } else {
        for line in lines {
            say(&format!("{}\n", crate::table::clean(line)))?;
        }
    }
    Ok(0)
}

/// Whether a person typed this word at the terminal; without one nobody can.
///
/// # Errors
/// The terminal cannot be read.
pub fn confirmed(word: &str) -> Result<bool, Failure> {
    let stdin = std::io::stdin();
    if !stdin.is_terminal() {
        return Ok(false);
    }
    tell(&format!("type {word} to go on"));
    let mut answer = String::new();
    stdin.lock().take(ANSWER_BYTES_MAX).read_line(&mut answer).map_err(Failure::other)?;
    Ok(answer.trim() == word)
}

/// How hosts that are no members get the log.
fn follow_line(view: &FollowView) -> Option<String> {
    let here = view.parent.map(|parent| {
        format!("; this host asks host {parent} for the log, {} steps from the leader", view.depth)
    });
    (view.followers > 0 || here.is_some()).then(|| {
        format!(
            "members  up to {}; {} others follow their peers{}",
            view.members_max,
            view.followers,
            here.unwrap_or_default()
        )
    })
}

/// Lines of `rota cluster status`.
#[must_use]
pub fn status_lines(view: &MembersView, voters: usize) -> Vec<String> {
    let mut lines = vec![format!(
        "voters   {voters} of {} wanted, {} more may be lost{}",
        view.wanted,
        view.tolerates,
        if view.epoch == 0 { String::new() } else { format!(" (epoch {})", view.epoch) }
    )];
    lines.extend(follow_line(&view.follow));
    if !view.next.is_empty() {
        lines.push(format!("waits    {}", view.next));
    }
    lines.extend(view.advice.iter().map(|advice| format!("advice   {advice}")));
    if let Some(note) = view.notes.last() {
        lines.push(format!("last     {}", note.text));
    }
    lines
}
