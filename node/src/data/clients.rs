//! What clients ask of this host's blobs: to take one in, in pieces over their connection, to list what there is, to let
//! one go. A tenant sees, and gives up, what is its own.

use super::store::{Incoming, KeepError};
use super::{Claim, Data, Failure, in_background, lock, on_disk};
use crate::api::caller::Caller;
use crate::api::not_found;
use crate::io::clock;
use crate::logic::shelf::{Kept, NoRoom};
use crate::node::Node;
use rota_protocol::api::ApiReply;
use rota_protocol::data::{BlobId, BlobRow, CacheView, DataAsk, DataNews};
use rota_protocol::error::{ErrorCode, PublicError};
use rota_protocol::job::{Actor, Role};
use rota_protocol::limits::{BLOB_PIECE_BYTES_MAX, NAME_BYTES_MAX};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::Instant;

/// Uploads that are open at once.
const OPEN_MAX: usize = 16;
/// How long one may say nothing.
const SILENCE: Duration = Duration::from_secs(60);

/// Uploads under way, by number. One is absent while a piece of it is written.
#[derive(Default)]
pub(super) struct Uploads(Mutex<BTreeMap<u64, Upload>>);

struct Upload {
    incoming: Incoming,
    claim: Claim,
    actor: Actor,
    name: String,
    public: bool,
    heard: Instant,
}

pub(crate) async fn answer(node: &Node, caller: &Caller, ask: DataAsk) -> Result<ApiReply, PublicError> {
    let data = &node.data;
    let news = match ask {
        DataAsk::List => DataNews::Cache(Box::new(data.view(node, caller))),
        DataAsk::Begin { bytes, name, public } => {
            caller.at_least(Role::Submitter)?;
            data.begin(&caller.actor, bytes, name, public).await?
        }
        DataAsk::Piece { upload, offset, bytes } => {
            data.more(&caller.actor, upload, offset, bytes).await?;
            DataNews::Taken
        }
        DataAsk::Commit { upload, blob } => {
            data.commit(&caller.actor, upload, blob).await?;
            data.row_for(&blob, caller).map(DataNews::Added).ok_or_else(|| no_blob(&blob))?
        }
        DataAsk::Remove { blob } => {
            caller.at_least(Role::Submitter)?;
            DataNews::Removed { gone: data.disown(&caller.actor, &blob)? }
        }
    };
    Ok(ApiReply::Data(news))
}

fn no_blob(blob: &BlobId) -> PublicError {
    not_found("blob", &blob.to_string())
}

fn disk(error: std::io::Error) -> PublicError {
    let full = error.kind() == std::io::ErrorKind::StorageFull;
    let code = if full { ErrorCode::TooLarge } else { ErrorCode::Internal };
    PublicError::new(code, Failure::here(format!("this host's cache cannot be written: {error}")).reason)
}

impl Data {
    async fn begin(
        self: &Arc<Self>,
        actor: &Actor,
        bytes: u64,
        name: String,
        public: bool,
    ) -> Result<DataNews, PublicError> {
        if name.len() > NAME_BYTES_MAX || name.chars().any(char::is_control) {
            let message = format!("is longer than {NAME_BYTES_MAX} bytes, or has a control character");
            return Err(PublicError::invalid("name", message, "train.bin"));
        }
        if lock(&self.uploads.0).len() >= OPEN_MAX {
            let message = format!("{OPEN_MAX} uploads are open on this host");
            return Err(PublicError::new(ErrorCode::Busy, message).retry_after(500));
        }
        let claim = Claim::take(self, bytes).map_err(|no_room| self.no_room(bytes, no_room))?;
        let store = self.store.clone();
        let incoming = on_disk(move || store.begin()).await.map_err(disk)?;
        let upload = rand::random::<u64>();
        let (actor, heard) = (actor.clone(), Instant::now());
        lock(&self.uploads.0).insert(upload, Upload { incoming, claim, actor, name, public, heard });
        Ok(DataNews::Upload { upload })
    }

    fn no_room(&self, bytes: u64, no_room: NoRoom) -> PublicError {
        let (most, free) = (lock(&self.shelf).bytes_max(), no_room.bytes_free);
        let message = format!(
            "{bytes} bytes do not fit: of this host's cache of {most} bytes all but {free} are pinned or held by tasks; \
             `rota data list` and `rota data remove`, or a larger `[inputs] cache` in its settings"
        );
        PublicError { field: Some("file".into()), ..PublicError::new(ErrorCode::TooLarge, message) }
    }

    /// Uploads whose client says nothing any more give their room back.
    pub(super) fn give_up_silent(&self) {
        let gone: Vec<Upload> = {
            let mut open = lock(&self.uploads.0);
            let silent = |upload: &Upload| upload.heard.elapsed() >= SILENCE;
            let numbers: Vec<u64> = open.iter().filter(|(_, one)| silent(one)).map(|(n, _)| *n).collect();
            numbers.iter().filter_map(|number| open.remove(number)).collect()
        };
        // Their files and their room go when that lock is not held.
        drop(gone);
    }

    /// Takes an upload out, if it is this user's.
    fn taken(&self, actor: &Actor, upload: u64) -> Result<Upload, PublicError> {
        let mut open = lock(&self.uploads.0);
        let known = open.get(&upload).is_some_and(|known| known.actor == *actor);
        let taken = if known { open.remove(&upload) } else { None };
        taken.ok_or_else(|| not_found("upload", &upload.to_string()))
    }

    async fn more(&self, actor: &Actor, upload: u64, offset: u64, bytes: Vec<u8>) -> Result<(), PublicError> {
        let Upload { mut incoming, claim, actor, name, public, .. } = self.taken(actor, upload)?;
        let at = incoming.bytes();
        if bytes.len() > BLOB_PIECE_BYTES_MAX || offset != at || at + bytes.len() as u64 > claim.bytes {
            let message =
                format!("{} bytes at {offset} do not follow {at} of {} bytes", bytes.len(), claim.bytes);
            return Err(PublicError::new(ErrorCode::Conflict, message));
        }
        incoming = on_disk(move || incoming.write(&bytes).map(|()| incoming)).await.map_err(disk)?;
        let heard = Instant::now();
        lock(&self.uploads.0).insert(upload, Upload { incoming, claim, actor, name, public, heard });
        Ok(())
    }

    async fn commit(&self, actor: &Actor, upload: u64, blob: BlobId) -> Result<(), PublicError> {
        let Upload { incoming, claim, actor, name, public, .. } = self.taken(actor, upload)?;
        if incoming.bytes() != claim.bytes {
            let message = format!("{} of {} bytes came", incoming.bytes(), claim.bytes);
            return Err(PublicError::new(ErrorCode::Conflict, message));
        }
        let owners = BTreeMap::from([(actor.tenant, true)]);
        let used_ms = clock::wall_ms();
        let kept = Kept { bytes: claim.bytes, owners, public, name, used_ms, ..Kept::default() };
        let store = self.store.clone();
        let done = tokio::task::spawn_blocking(move || {
            let ready = store.ready(incoming, blob, kept)?;
            claim.fulfil(ready).map_err(KeepError::Io)
        });
        match done.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(KeepError::Io(error))) => Err(disk(error)),
            Ok(Err(error @ KeepError::OtherHash(_))) => {
                self.refused();
                let message = format!("what came is not what was read: {error}");
                Err(PublicError::new(ErrorCode::Conflict, message))
            }
            Err(error) => Err(PublicError::new(ErrorCode::Internal, error.to_string())),
        }
    }

    /// A tenant gives it up; of an operator everybody does.
    fn disown(&self, actor: &Actor, blob: &BlobId) -> Result<bool, PublicError> {
        let everybody = actor.role >= Role::Operator;
        let tenant = (!everybody).then_some(actor.tenant.as_str());
        let aside = {
            let mut shelf = lock(&self.shelf);
            let gone = shelf.disown(blob, tenant).ok_or_else(|| no_blob(blob))?;
            self.gauge(&shelf);
            match (gone, shelf.kept(blob)) {
                (false, Some(kept)) => {
                    self.store.note(blob, kept).map_err(disk)?;
                    Vec::new()
                }
                _ => self.set_aside(&[*blob]),
            }
        };
        self.changed.notify_waiters();
        let gone = !aside.is_empty();
        in_background(move || super::discard(&aside));
        Ok(gone)
    }

    fn view(&self, node: &Node, caller: &Caller) -> CacheView {
        let shelf = lock(&self.shelf);
        CacheView {
            host: node.host,
            rows: shelf.blobs().filter_map(|(blob, kept)| row(blob, kept, caller)).collect(),
            bytes_used: shelf.bytes_used(),
            bytes_max: shelf.bytes_max(),
            counts: *lock(&self.counts),
        }
    }

    fn row_for(&self, blob: &BlobId, caller: &Caller) -> Option<BlobRow> {
        let shelf = lock(&self.shelf);
        shelf.kept(blob).and_then(|kept| row(blob, kept, caller))
    }
}

/// A blob as far as the caller may know of it: nothing of other tenants.
fn row(blob: &BlobId, kept: &Kept, caller: &Caller) -> Option<BlobRow> {
    let mine = |tenant: &String| caller.sees(tenant);
    let tenants: Vec<String> = kept.owners.keys().filter(|tenant| mine(tenant)).cloned().collect();
    if tenants.is_empty() && !kept.public && caller.actor.role < Role::Operator {
        return None;
    }
    let operates = caller.actor.role >= Role::Operator;
    let alone = operates || kept.owners.len() == tenants.len();
    Some(BlobRow {
        blob: blob.to_string(),
        bytes: kept.bytes,
        name: kept.name.clone(),
        tenants,
        public: kept.public,
        pinned: kept.owners.iter().any(|(tenant, pinned)| *pinned && (operates || mine(tenant))),
        // Whose attempts they are is not known here: where others use it, too, they are not told.
        holders: if alone { kept.holders.iter().copied().collect() } else { Vec::new() },
        used_ms: kept.used_ms,
    })
}
