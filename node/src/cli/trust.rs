//! `rota cluster version`, `revoke`, `ca`, `tokens`, `audit`: whom the cluster trusts.

use super::context::{Context, ReadArgs, document, say};
use super::failure::{Failure, STATUS_FAILED};
use super::times::stamp;
use crate::client::{fresh_request, unexpected};
use crate::table::{Table, clean};
use clap::{Args, Subcommand};
use rota_protocol::api::{ApiReply, ApiRequest};
use rota_protocol::trust::{CaStage, HostTrust, Print, TrustAsk, TrustView};
use rota_protocol::version::NEWEST;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// How long `rotate` stays to watch; the cluster goes on by itself.
const WATCH_TIME: Duration = Duration::from_secs(60);
const WATCH_PAUSE: Duration = Duration::from_millis(200);
/// Bytes of a fingerprint that are shown where the whole one is no help.
const PRINT_SHOWN: usize = 8;

/// Which version the cluster speaks, and what its hosts read.
#[derive(Debug, Args)]
pub struct VersionArgs {
    /// Raise it, to the newest that all hosts read if no number is given. There is no way back: after this, hosts with an
    /// older program are refused
    #[arg(long, value_name = "VERSION", num_args = 0..=1)]
    pub raise: Option<Option<u16>>,
    /// How to read
    #[command(flatten)]
    pub read: ReadArgs,
}

/// Trust a host no more.
#[derive(Debug, Args)]
pub struct RevokeArgs {
    /// Its name or number
    pub host: String,
    /// For people
    #[arg(default_value = "no reason given")]
    pub reason: String,
}

/// The cluster's certificate authority.
#[derive(Debug, Args)]
pub struct CaArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: CaCommand,
}

/// What can be done with the authority.
#[derive(Debug, Subcommand)]
pub enum CaCommand {
    /// Which one signs, until when, and where a change stands
    Status(ReadArgs),
    /// Replace it: the new one is trusted beside the old, every host gets a certificate of it, then the old one is dropped.
    /// Repeat it to watch a change that is under way
    Rotate(ReadArgs),
}

/// Tokens that live.
#[derive(Debug, Args)]
pub struct TokensArgs {
    /// Make this one worthless, by the beginning of its id
    #[arg(long, value_name = "ID")]
    pub revoke: Option<String>,
    /// How to read
    #[command(flatten)]
    pub read: ReadArgs,
}

pub(super) async fn version(context: &Context, args: &VersionArgs) -> Result<u8, Failure> {
    if let Some(to) = args.raise {
        ask(context, TrustAsk::RaiseVersion { to }).await?;
    }
    let view = look(context, args.read).await?;
    if args.read.json {
        document(&view)?;
        return Ok(0);
    }
    let behind =
        |to: u16| view.hosts.iter().any(|host| is_counted(host) && host.reads.is_some_and(|n| n < to));
    let next = (view.version + 1..=NEWEST).rev().find(|to| !behind(*to));
    let mut text = format!("version  {}\n", view.version);
    if let Some(next) = next {
        text += &format!(
            "next     {next}: all hosts read it; `rota cluster version --raise` begins it, after which no older program \
             can come back\n"
        );
    } else if view.version < NEWEST {
        text += "next     none yet: a host does not read it\n";
    }
    let mut table = Table::new(&["HOST", "ID>", "READS>", "BUILD"]);
    for host in view.hosts.iter().filter(|host| is_counted(host)) {
        let reads = host.reads.map_or("-".into(), |reads| reads.to_string());
        table.row([host.name.clone(), host.host.to_string(), reads, host.build.clone()]);
    }
    say(&format!("{text}\n{table}"))?;
    Ok(0)
}

pub(super) async fn revoke(context: &Context, args: &RevokeArgs) -> Result<u8, Failure> {
    let (host, reason) = (args.host.clone(), args.reason.clone());
    ask(context, TrustAsk::Revoke { host, reason }).await?;
    say(&clean(&format!(
        "{} is trusted no more: its connections are cut, its tasks end with its lease",
        args.host
    )))?;
    say(
        "\nif its disk may be in foreign hands, go on with `rota cluster ca rotate`: it held the authority's key\n",
    )?;
    Ok(0)
}

pub(super) async fn ca(context: &Context, args: &CaArgs) -> Result<u8, Failure> {
    match &args.command {
        CaCommand::Status(read) => {
            let view = look(context, *read).await?;
            if read.json {
                document(&view)?;
            } else {
                say(&ca_text(&view))?;
            }
            Ok(0)
        }
        CaCommand::Rotate(read) => rotate(context, *read).await,
    }
}

async fn rotate(context: &Context, read: ReadArgs) -> Result<u8, Failure> {
    let before = look(context, read).await?;
    ask(context, TrustAsk::RotateCa).await?;
    let until = Instant::now() + WATCH_TIME;
    let mut told = String::new();
    loop {
        let view = look(context, read).await?;
        let over = view.stage == CaStage::Settled
            && (before.stage != CaStage::Settled || view.authorities != before.authorities);
        let text = if over { ca_text(&view) } else { waits_text(&view) };
        if text != told && !read.json {
            say(&text)?;
            told = text;
        }
        if over {
            if read.json {
                document(&view)?;
            } else if view.tokens.iter().any(|token| token.kind == "user") {
                say(
                    "user tokens name the authority that made them: have new ones made for those who use rota remotely\n",
                )?;
            }
            return Ok(0);
        }
        if Instant::now() > until {
            if read.json {
                document(&view)?;
            }
            say("it goes on by itself; `rota cluster ca status` shows where it stands\n")?;
            return Ok(STATUS_FAILED);
        }
        sleep(WATCH_PAUSE).await;
    }
}

pub(super) async fn tokens(context: &Context, args: &TokensArgs) -> Result<u8, Failure> {
    if let Some(id) = &args.revoke {
        ask(context, TrustAsk::RevokeToken { id: id.clone() }).await?;
    }
    let view = look(context, args.read).await?;
    if args.read.json {
        document(&view.tokens)?;
        return Ok(0);
    }
    let mut table = Table::new(&["ID", "KIND", "FOR", "ROLE", "EXPIRES", "MADE BY"]);
    for token in &view.tokens {
        table.row([
            token.id.clone(),
            token.kind.clone(),
            token.subject.clone(),
            token.role.map_or("-".into(), |role| format!("{role:?}").to_lowercase()),
            stamp(token.expires_at_ms),
            token.made.as_ref().map_or("-".into(), |(by, _)| by.clone()),
        ]);
    }
    say(&table.to_string())?;
    Ok(0)
}

pub(super) async fn audit(context: &Context, read: ReadArgs) -> Result<u8, Failure> {
    let view = look(context, read).await?;
    if read.json {
        document(&view.audit)?;
    } else {
        let mut table = Table::new(&["WHEN", "INDEX>", "WHO", "WHAT", "RESULT"]);
        for row in &view.audit {
            let (who, what, result) = (row.actor.clone(), row.what.clone(), row.result.clone());
            table.row([stamp(row.at_ms), row.index.to_string(), who, what, result]);
        }
        say(&table.to_string())?;
    }
    if view.audit_is_whole {
        return Ok(0);
    }
    say("the audit log is NOT whole: a line does not follow from the one before\n")?;
    Ok(STATUS_FAILED)
}

fn is_counted(host: &HostTrust) -> bool {
    host.revoked.is_none()
}

fn ca_text(view: &TrustView) -> String {
    let mut text = match (&view.authorities[..], view.ca_ends_ms) {
        ([signs, ..], Some(ends_ms)) => {
            format!("signs    {}\nuntil    {}\n", hex(signs, signs.len()), stamp(ends_ms))
        }
        _ => "signs    not recorded yet\n".to_owned(),
    };
    text += &waits_text(view);
    for host in view.hosts.iter().filter(|host| !is_counted(host)) {
        let why = host.revoked.as_deref().unwrap_or_default();
        text += &clean(&format!("revoked  {} (host {}): {why}", host.name, host.host));
        text.push('\n');
    }
    text
}

fn waits_text(view: &TrustView) -> String {
    if view.stage == CaStage::Settled {
        return "change   none\n".to_owned();
    }
    let behind: Vec<String> = view
        .hosts
        .iter()
        .filter(|host| is_counted(host) && host.reads.is_some() && !host.took_ca)
        .map(|host| format!("{} (host {})", host.name, host.host))
        .collect();
    let prints: Vec<String> = view.authorities.iter().map(|print| hex(print, PRINT_SHOWN)).collect();
    let waits = match behind.is_empty() {
        true => "every host has done its part".to_owned(),
        false => format!("waits for {}", behind.join(", ")),
    };
    format!("{}\n", clean(&format!("change   {} ({}): {waits}", view.stage, prints.join(", "))))
}

fn hex(print: &Print, bytes: usize) -> String {
    print.iter().take(bytes).map(|byte| format!("{byte:02x}")).collect()
}

async fn look(context: &Context, read: ReadArgs) -> Result<TrustView, Failure> {
    match context.client.call(ApiRequest::Trust(read.freshness())).await? {
        ApiReply::Trust(view) => Ok(*view),
        other => Err(unexpected(&other).into()),
    }
}

async fn ask(context: &Context, ask: TrustAsk) -> Result<(), Failure> {
    match context.client.call(ApiRequest::ChangeTrust(fresh_request(), ask)).await? {
        ApiReply::Done => Ok(()),
        other => Err(unexpected(&other).into()),
    }
}
