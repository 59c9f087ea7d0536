//! `rota data add`, `rota data list`, `rota data remove`: blobs of the host that is asked.

use super::context::{Context, document, say};
use super::failure::Failure;
use super::times::stamp;
use crate::client::unexpected;
use crate::parse::amount::memory_text;
use crate::table::{Table, clean};
use clap::{Args, Subcommand};
use ring::digest::{Context as Hash, SHA256};
use rota_protocol::api::{ApiReply, ApiRequest};
use rota_protocol::data::{BlobId, BlobRow, CacheView, DataAsk, DataNews};
use rota_protocol::limits::BLOB_PIECE_BYTES_MAX;
use rota_protocol::{ErrorCode, PublicError};
use serde_json::json;
use std::fs::File;
use std::io::Read;
use std::path::PathBuf;

/// Data that jobs name by its hash.
#[derive(Debug, Args)]
pub struct DataArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: DataCommand,
}

/// What can be done about data.
#[derive(Debug, Subcommand)]
pub enum DataCommand {
    /// Keep a file's bytes on the host that is asked; other hosts fetch them when a job needs them
    Add(AddArgs),
    /// List what the host that is asked keeps
    List(ListArgs),
    /// Give up what was added: it goes when no task uses it any more
    Remove(RemoveArgs),
}

/// Keep a file's bytes.
#[derive(Debug, Args)]
pub struct AddArgs {
    /// The file
    pub file: PathBuf,
    /// What it is called in the list [default: the file's name]
    #[arg(long)]
    pub name: Option<String>,
    /// Jobs of all tenants may use it, not only your own
    #[arg(long)]
    pub public: bool,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

/// List what is kept.
#[derive(Debug, Args)]
pub struct ListArgs {
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

/// Give up what was added.
#[derive(Debug, Args)]
pub struct RemoveArgs {
    /// Its hash, `sha256:` and 64 digits
    pub blob: String,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

/// Whether a command prints JSON.
#[must_use]
pub fn wants_json(args: &DataArgs) -> bool {
    match &args.command {
        DataCommand::Add(args) => args.json,
        DataCommand::List(args) => args.json,
        DataCommand::Remove(args) => args.json,
    }
}

/// Runs `rota data`.
///
/// # Errors
/// No agent, no such file, no room, or no rights.
pub async fn data(context: &Context, args: &DataArgs) -> Result<u8, Failure> {
    match &args.command {
        DataCommand::Add(args) => add(context, args).await,
        DataCommand::List(args) => list(context, args.json).await,
        DataCommand::Remove(args) => remove(context, args).await,
    }
}

async fn ask(context: &Context, ask: DataAsk) -> Result<DataNews, Failure> {
    match context.client.call(ApiRequest::Data(ask)).await? {
        ApiReply::Data(news) => Ok(news),
        other => Err(unexpected(&other).into()),
    }
}

fn odd(news: DataNews) -> Failure {
    unexpected(&ApiReply::Data(news)).into()
}

/// In pieces, one after the other: the memory of both sides does not grow with the file.
async fn add(context: &Context, args: &AddArgs) -> Result<u8, Failure> {
    let no_file = |error: std::io::Error| {
        let message = format!("{}: {error}", args.file.display());
        PublicError { field: Some("file".into()), ..PublicError::new(ErrorCode::Invalid, message) }
    };
    let mut file = File::open(&args.file).map_err(no_file)?;
    let metadata = file.metadata().map_err(no_file)?;
    if !metadata.is_file() {
        let message = format!("{} is no file", args.file.display());
        return Err(PublicError::invalid("file", message, "train.tar").into());
    }
    let bytes = metadata.len();
    let named = args.file.file_name().map(|name| name.to_string_lossy().into_owned());
    let name = args.name.clone().or(named).unwrap_or_default();
    let upload = match ask(context, DataAsk::Begin { bytes, name, public: args.public }).await? {
        DataNews::Upload { upload } => upload,
        other => return Err(odd(other)),
    };
    let (mut hash, mut offset) = (Hash::new(&SHA256), 0);
    while offset < bytes {
        let mut piece = Vec::new();
        let most = (BLOB_PIECE_BYTES_MAX as u64).min(bytes - offset);
        let read = file.by_ref().take(most).read_to_end(&mut piece).map_err(no_file)? as u64;
        if read == 0 {
            let message = format!("{} became shorter while it was read", args.file.display());
            return Err(PublicError::new(ErrorCode::Conflict, message).into());
        }
        hash.update(&piece);
        match ask(context, DataAsk::Piece { upload, offset, bytes: piece }).await? {
            DataNews::Taken => offset += read,
            other => return Err(odd(other)),
        }
    }
    let mut blob = [0; 32];
    blob.copy_from_slice(hash.finish().as_ref());
    match ask(context, DataAsk::Commit { upload, blob: BlobId(blob) }).await? {
        DataNews::Added(row) if args.json => document(&row)?,
        DataNews::Added(row) => say(&format!("{}\n{} bytes\n", row.blob, row.bytes))?,
        other => return Err(odd(other)),
    }
    Ok(0)
}

async fn list(context: &Context, as_json: bool) -> Result<u8, Failure> {
    match ask(context, DataAsk::List).await? {
        DataNews::Cache(view) if as_json => document(&view)?,
        DataNews::Cache(view) => say(&table(&view))?,
        other => return Err(odd(other)),
    }
    Ok(0)
}

fn table(view: &CacheView) -> String {
    let mut table = Table::new(&["BLOB", "BYTES>", "NAME", "FOR", "PINNED", "USERS>", "LAST USED"]);
    for row in &view.rows {
        table.row([
            row.blob.clone(),
            row.bytes.to_string(),
            row.name.clone(),
            whom(row),
            if row.pinned { "yes" } else { "no" }.to_owned(),
            row.holders.len().to_string(),
            stamp(row.used_ms),
        ]);
    }
    let mib = |bytes: u64| memory_text(bytes.div_ceil(1 << 20));
    format!("{table}{} of {} in use on host {}\n", mib(view.bytes_used), mib(view.bytes_max), view.host)
}

fn whom(row: &BlobRow) -> String {
    match row.public {
        true => "everybody".to_owned(),
        false => clean(&row.tenants.join(",")).into_owned(),
    }
}

async fn remove(context: &Context, args: &RemoveArgs) -> Result<u8, Failure> {
    let blob: BlobId = args.blob.parse().map_err(|why| {
        let example = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        PublicError::invalid("blob", format!("{:?} is {why}", args.blob), example)
    })?;
    match ask(context, DataAsk::Remove { blob }).await? {
        DataNews::Removed { gone } if args.json => {
            document(&json!({ "blob": blob.to_string(), "gone": gone }))?;
        }
        DataNews::Removed { gone: true } => say(&format!("{blob}: removed\n"))?,
        DataNews::Removed { gone: false } => {
            say(&format!("{blob}: given up; it goes when nobody uses it any more\n"))?;
        }
        other => return Err(odd(other)),
    }
    Ok(0)
}
