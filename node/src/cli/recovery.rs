//! `rota cluster backup`, `restore`, `recover`: the state as a file, and clusters that begin anew.

use super::context::{Context, document, say, tell};
use super::failure::Failure;
use super::members::confirmed;
use crate::client::target::SYSTEM_DATA_DIR;
use crate::client::unexpected;
use crate::io::durable::write_atomic;
use crate::recovery::{Survivor, open_backup, restore as restore_to};
use clap::Args;
use rota_consensus::offline;
use rota_protocol::api::{ApiReply, ApiRequest};
use rota_protocol::limits::SNAPSHOT_BYTES_MAX;
use rota_protocol::members::{MembersAnswer, MembersAsk};
use serde_json::json;
use std::path::{Path, PathBuf};

/// Save the whole state of the cluster to a file.
#[derive(Debug, Args)]
pub struct BackupArgs {
    /// Where it goes
    pub file: PathBuf,
    /// Take what the asked host knows, even without a quorum
    #[arg(long)]
    pub stale: bool,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

/// Begin a new cluster on this host from a backup.
#[derive(Debug, Args)]
pub struct RestoreArgs {
    /// The backup
    pub file: PathBuf,
    /// Where this host keeps its identity, log and attempts; must not belong to a cluster yet
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// This host's name [default: its host name]
    #[arg(long)]
    pub name: Option<String>,
    /// UDP address for peers, joins and remote clients [default: 0.0.0.0:7420]
    #[arg(long, value_name = "ADDR:PORT")]
    pub listen: Option<String>,
    /// What other hosts dial: an interface, a network or an address [default: chosen, and told]
    #[arg(long, value_name = "WHERE")]
    pub advertise: Option<String>,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

/// Go on from this host alone after the majority of the voters is lost for good.
#[derive(Debug, Args)]
pub struct RecoverArgs {
    /// The data of the host that survived; its agent must not run
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// The cluster's name, typed out: nobody is asked then
    #[arg(long, value_name = "NAME")]
    pub confirm: Option<String>,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

/// `rota cluster backup`
///
/// # Errors
/// Too few rights, no quorum, or the file cannot be written.
pub async fn backup(context: &Context, args: &BackupArgs) -> Result<u8, Failure> {
    let ask = ApiRequest::Members(MembersAsk::Backup { stale: args.stale });
    let mut streams = context.client.streams(&[ask]).await?;
    let mut replies = streams.pop().ok_or_else(|| Failure::other("no answer"))?;
    let mut bytes = Vec::new();
    let mut size = 0;
    while let Some(reply) = replies.next().await {
        match reply? {
            ApiReply::Members(MembersAnswer::Backup { total, piece, .. }) => {
                if total > SNAPSHOT_BYTES_MAX as u64 || bytes.len() + piece.len() > SNAPSHOT_BYTES_MAX {
                    return Err(Failure::other("the backup is larger than any"));
                }
                size = total;
                bytes.extend_from_slice(&piece);
            }
            other => return Err(unexpected(&other).into()),
        }
    }
    if bytes.is_empty() || bytes.len() as u64 != size {
        return Err(Failure::other("the connection broke before the backup was whole; nothing was written"));
    }
    // Read as a restore would read it, before anybody relies on it. It holds what users submitted.
    let whole = offline::read_backup(&bytes).map_err(Failure::other)?;
    write_atomic(&args.file, &bytes, 0o600).map_err(Failure::other)?;
    let (cluster, index, jobs) = (whole.cluster, whole.state.applied_index(), whole.state.jobs().count());
    if args.json {
        document(&json!({ "cluster": cluster, "index": index, "jobs": jobs, "bytes": size }))?;
    } else {
        let file = args.file.display();
        say(&format!("{file}: {size} bytes, {jobs} jobs as of entry {index} of cluster {cluster}\n"))?;
    }
    Ok(0)
}

/// `rota cluster restore`
///
/// # Errors
/// The file is no backup, or the data directory belongs to a cluster.
pub async fn restore(args: &RestoreArgs) -> Result<u8, Failure> {
    let data_dir = data_dir(args.data_dir.as_deref())?;
    let backup = open_backup(&args.file)?;
    let name = args.name.clone().unwrap_or_else(crate::ops::host_name);
    let place = crate::own_address::first(args.listen.as_deref(), args.advertise.as_deref(), None)?;
    let mut told = restore_to(&backup, &data_dir, &name, &place.advertised.addr).await?;
    told.extend(place.told.iter().cloned());
    place.remember(&data_dir)?;
    print(&told, args.json)
}

/// `rota cluster recover`
///
/// # Errors
/// An agent runs, the files are damaged, or nobody confirmed it.
pub async fn recover(args: &RecoverArgs) -> Result<u8, Failure> {
    let survivor = Survivor::open(&data_dir(args.data_dir.as_deref())?)?;
    for line in survivor.tells() {
        tell(&line);
    }
    let name = survivor.cluster_name().to_owned();
    let sure = match &args.confirm {
        Some(typed) => *typed == name,
        None => confirmed(&name)?,
    };
    if !sure {
        return Err(Failure::other(format!(
            "nothing was done: the cluster's name has to be typed, or given as --confirm {name}"
        )));
    }
    print(&survivor.recover().await?, args.json)
}

fn data_dir(given: Option<&Path>) -> Result<PathBuf, Failure> {
    let dir = given
        .map(Path::to_owned)
        .or_else(|| std::env::var_os("ROTA_DATA_DIR").map(PathBuf::from))
        .unwrap_or_else(|| SYSTEM_DATA_DIR.into());
    std::path::absolute(dir).map_err(Failure::other)
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
