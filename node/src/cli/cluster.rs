//! `rota cluster status`, `rota cluster token`, `rota doctor`.

use super::context::{Context, ReadArgs, document, say, tell};
use super::device::{self, BreakerArgs, breaker_text};
use super::failure::{Failure, STATUS_FAILED};
use super::lead::{self, TransferArgs};
use super::members::{self, AddressArgs, PromoteArgs, RemoveArgs};
use super::recovery::{self, BackupArgs, RecoverArgs, RestoreArgs};
use super::trust::{self, CaArgs, CaCommand, RevokeArgs, TokensArgs, VersionArgs};
use crate::client::target::SYSTEM_DATA_DIR;
use crate::client::{fresh_request, unexpected};
use crate::doctor::{DoctorInput, examine, isolation};
use crate::parse::{time, word};
use crate::shim::cage::{CageSettings, Place};
use crate::table::Table;
use clap::{Args, Subcommand, ValueEnum};
use rota_protocol::api::{ApiReply, ApiRequest};
use rota_protocol::command::TokenUse;
use rota_protocol::job::{Actor, Role};
use rota_protocol::view::{ClusterView, DoctorRow};
use rota_protocol::{ErrorCode, PublicError};
use serde_json::json;
use std::path::PathBuf;
use std::time::Duration;

/// The agent's own checks may take this long.
const AGENT_PATIENCE: Duration = Duration::from_secs(5);

/// The cluster itself.
#[derive(Debug, Args)]
pub struct ClusterArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: ClusterCommand,
}

/// What can be done with the cluster.
#[derive(Debug, Subcommand)]
pub enum ClusterCommand {
    /// Its hosts, its leader, and whether it has a quorum
    Status(ReadArgs),
    /// Make a token: for a host that joins, or for a user
    Token(TokenArgs),
    /// How many hosts may be taken out by their own faults
    Breaker(BreakerArgs),
    /// Let another host lead: this one, or whichever is best; nothing is interrupted
    Transfer(TransferArgs),
    /// Which version of Rota's words it speaks, and which its hosts read
    Version(VersionArgs),
    /// Trust a host no more: cut its connections, and never let it back under this number
    Revoke(RevokeArgs),
    /// Its certificate authority: which, until when; replace it
    Ca(CaArgs),
    /// Tokens that live; make one worthless
    Tokens(TokensArgs),
    /// What operators and administrators did
    Audit(ReadArgs),
    /// Take a host out of the cluster for good
    Remove(RemoveArgs),
    /// Let a host vote, before others
    Promote(PromoteArgs),
    /// Tell this host where another one is now
    Address(AddressArgs),
    /// Save the whole state of the cluster to a file
    Backup(BackupArgs),
    /// Begin a new cluster on this host from a backup
    Restore(RestoreArgs),
    /// Go on from this host alone after the majority is lost for good
    Recover(RecoverArgs),
}

/// What a token is for.
#[derive(Debug, Args)]
pub struct TokenArgs {
    /// Let one host join, once
    #[arg(long, required_unless_present = "user", conflicts_with = "user")]
    pub join: bool,
    /// Only a host of this name may join with it, or one of a pool of names, such as `gpu-*`
    #[arg(long, requires = "join")]
    pub host_name: Option<String>,
    /// Let this user in over the network
    #[arg(long)]
    pub user: Option<String>,
    /// Who pays for the user's jobs [default: the user]
    #[arg(long, conflicts_with = "join")]
    pub tenant: Option<String>,
    /// What the user may do [default: submitter]
    #[arg(long, conflicts_with = "join")]
    pub role: Option<RoleArg>,
    /// How long it lives [default: 1h to join, 30d for a user]
    #[arg(long, value_name = "TIME")]
    pub ttl: Option<String>,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

/// Rights, each including those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum RoleArg {
    /// Looks only
    Viewer,
    /// Submits, and ends its own jobs
    Submitter,
    /// Ends any job, drains hosts
    Operator,
    /// Everything
    Admin,
}

/// Whether a command prints JSON.
#[must_use]
pub fn wants_json(args: &ClusterArgs) -> bool {
    match &args.command {
        ClusterCommand::Status(read) => read.json,
        ClusterCommand::Token(token) => token.json,
        ClusterCommand::Breaker(breaker) => breaker.json,
        ClusterCommand::Transfer(transfer) => transfer.json,
        ClusterCommand::Version(version) => version.read.json,
        ClusterCommand::Revoke(_) => false,
        ClusterCommand::Ca(CaArgs { command: CaCommand::Status(read) | CaCommand::Rotate(read) }) => {
            read.json
        }
        ClusterCommand::Tokens(tokens) => tokens.read.json,
        ClusterCommand::Audit(read) => read.json,
        ClusterCommand::Remove(args) => args.json,
        ClusterCommand::Promote(args) => args.json,
        ClusterCommand::Address(args) => args.json,
        ClusterCommand::Backup(args) => args.json,
        ClusterCommand::Restore(args) => args.json,
        ClusterCommand::Recover(args) => args.json,
    }
}

/// Runs `rota cluster`.
///
/// # Errors
/// Too few rights, or no cluster.
pub async fn cluster(context: &Context, args: &ClusterArgs) -> Result<u8, Failure> {
    match &args.command {
        ClusterCommand::Status(read) => status(context, *read).await,
        ClusterCommand::Token(args) => token(context, args).await,
        ClusterCommand::Breaker(args) => device::breaker(context, args).await,
        ClusterCommand::Transfer(args) => lead::transfer(context, args).await,
        ClusterCommand::Version(args) => trust::version(context, args).await,
        ClusterCommand::Revoke(args) => trust::revoke(context, args).await,
        ClusterCommand::Ca(args) => trust::ca(context, args).await,
        ClusterCommand::Tokens(args) => trust::tokens(context, args).await,
        ClusterCommand::Audit(read) => trust::audit(context, *read).await,
        ClusterCommand::Remove(args) => members::remove(context, args).await,
        ClusterCommand::Promote(args) => members::promote(context, args).await,
        ClusterCommand::Address(args) => members::address(context, args).await,
        ClusterCommand::Backup(args) => recovery::backup(context, args).await,
        ClusterCommand::Restore(args) => recovery::restore(args).await,
        ClusterCommand::Recover(args) => recovery::recover(args).await,
    }
}

async fn status(context: &Context, read: ReadArgs) -> Result<u8, Failure> {
    let freshness = read.freshness();
    match context.client.call(ApiRequest::Cluster { freshness }).await? {
        ApiReply::Cluster(view) => {
            if read.json {
                document(&view)?;
            } else {
                say(&status_text(&view, &context.place))?;
            }
            // Asked for the confirmed state, an unconfirmed one is shown but is no success.
            Ok(if view.linearizable || read.stale || read.max_age.is_some() { 0 } else { STATUS_FAILED })
        }
        other => Err(unexpected(&other).into()),
    }
}

fn status_text(view: &ClusterView, place: &str) -> String {
    let name_of = |host| {
        let peer = view.peers.iter().find(|peer| peer.host == host);
        peer.map_or(host.to_string(), |peer| peer.name.clone())
    };
    let quorum = if view.linearizable { "yes" } else { "not confirmed: this is what one host knows" };
    let jobs: Vec<String> = view.jobs.iter().map(|(state, count)| format!("{count} {state}")).collect();
    let lines = [
        format!("cluster  {} ({})", view.name, view.cluster),
        format!("asked    {} at {place}", name_of(view.answered_by)),
        format!("leader   {}", view.leader.map_or("none known".to_owned(), name_of)),
        format!("quorum   {quorum}"),
        format!("applied  {} (term {}, state {:016x})", view.applied, view.term, view.state_hash),
        format!("jobs     {}", if jobs.is_empty() { "none".to_owned() } else { jobs.join(", ") }),
        format!("breaker  {}", breaker_text(&view.breaker)),
    ];
    let voters = view.peers.iter().filter(|peer| peer.votes()).count();
    let mut text = String::new();
    for line in lines.iter().chain(&members::status_lines(&view.members, voters)) {
        text.push_str(&crate::table::clean(line));
        text.push('\n');
    }
    let mut table = Table::new(&["HOST", "ID>", "ROLE", "SEEN", "ADDRESS"]);
    for peer in &view.peers {
        table.row([
            peer.name.clone(),
            peer.host.to_string(),
            peer.role.clone(),
            peer.seen.clone(),
            peer.addr.clone(),
        ]);
    }
    format!("{text}\n{table}")
}

async fn token(context: &Context, args: &TokenArgs) -> Result<u8, Failure> {
    let (usage, ttl_default) = match &args.user {
        Some(user) => {
            let user = word::name("user", user)?;
            let tenant = match &args.tenant {
                Some(tenant) => word::name("tenant", tenant)?,
                None => user.clone(),
            };
            let role = role(args.role.unwrap_or(RoleArg::Submitter));
            (TokenUse::User { actor: Actor { tenant, user, role } }, "30d")
        }
        None => {
            let host_name = match &args.host_name {
                Some(name) => Some(host_or_pool(name)?),
                None => None,
            };
            (TokenUse::Join { host_name }, "1h")
        }
    };
    let ttl_ms = time::duration_ms("ttl", args.ttl.as_deref().unwrap_or(ttl_default))?;
    let request = ApiRequest::MintToken { request: fresh_request(), usage, ttl_ms };
    match context.client.call(request).await? {
        ApiReply::Token { secret } if args.json => {
            document(&json!({ "token": secret, "ttl_ms": ttl_ms }))?;
        }
        ApiReply::Token { secret } => say(&format!("{}\n", secret.0))?,
        other => return Err(unexpected(&other).into()),
    }
    Ok(0)
}

/// A host's name, or the beginning of several and a star.
fn host_or_pool(text: &str) -> Result<String, PublicError> {
    match text.strip_suffix('*') {
        Some(pool) if !pool.is_empty() => Ok(word::name("host-name", pool)? + "*"),
        _ => word::name("host-name", text),
    }
}

fn role(arg: RoleArg) -> Role {
    match arg {
        RoleArg::Viewer => Role::Viewer,
        RoleArg::Submitter => Role::Submitter,
        RoleArg::Operator => Role::Operator,
        RoleArg::Admin => Role::Admin,
    }
}

/// Is this host fit, and if not, what is the next step? Needs no agent.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// The agent's data [default: ROTA_DATA_DIR, or /var/lib/rota]
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

/// Runs `rota doctor`: the checks of the agent if it answers, since it knows its own settings, else those of this
/// process.
///
/// # Errors
/// Standard output is closed.
pub async fn doctor(context: &Context, args: &DoctorArgs) -> Result<u8, Failure> {
    let asked = tokio::time::timeout(AGENT_PATIENCE, context.client.call(ApiRequest::Doctor)).await;
    let (by, rows) = match asked {
        Ok(Ok(ApiReply::Doctor(rows))) => ("agent", rows),
        Ok(Ok(other)) => return Err(unexpected(&other).into()),
        Ok(Err(error)) => ("this process", local(context, args, Some(error)).await),
        Err(_) => ("this process", local(context, args, None).await),
    };
    if args.json {
        document(&json!({ "by": by, "checks": rows }))?;
    } else {
        let mut table = Table::new(&["CHECK", "VERDICT", "FOUND", "NEXT"]);
        for row in &rows {
            table.row([
                row.check.clone(),
                row.verdict.clone(),
                row.found.clone(),
                row.next.clone().unwrap_or_default(),
            ]);
        }
        say(&table.to_string())?;
    }
    let failed = rows.iter().any(|row| row.verdict == "fail");
    Ok(if failed { STATUS_FAILED } else { 0 })
}

async fn local(context: &Context, args: &DoctorArgs, error: Option<PublicError>) -> Vec<DoctorRow> {
    match error {
        Some(error) if error.code == ErrorCode::Forbidden => {
            tell("the agent shows its own checks to operators only; these are this process's");
        }
        Some(error) => tell(&format!("no answer of an agent: {error}")),
        None => tell(&format!("the agent at {} does not answer in time", context.place)),
    }
    let data_dir = args
        .data_dir
        .clone()
        .or_else(|| std::env::var_os("ROTA_DATA_DIR").map(PathBuf::from))
        .unwrap_or_else(|| SYSTEM_DATA_DIR.into());
    let mut rows = examine(&DoctorInput::new(&data_dir)).await;
    rows.push(isolation(&Place::survey(&CageSettings::default())));
    rows
}
