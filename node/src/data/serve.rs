//! What a peer asks about blobs. It names the job that needs one: this host looks up in its own copy of the state which
//! tenant's job that is and whether it names the blob, so that neither knowing a hash nor claiming a tenant is enough. What
//! is here for others only is answered as what is not here, and as fast.

use super::{Data, lock, on_disk};
use crate::node::Node;
use rota_protocol::data::{BlobAsk, BlobId, BlobNews};
use rota_protocol::error::{ErrorCode, PublicError};
use rota_protocol::ids::JobId;
use rota_protocol::limits::BLOB_PIECE_BYTES_MAX;
use std::sync::Arc;

pub(crate) async fn answer(node: &Arc<Node>, ask: BlobAsk) -> Result<BlobNews, PublicError> {
    let data = &node.data;
    match ask {
        BlobAsk::Standing { attempt } => Ok(BlobNews::Standing(data.standing(attempt))),
        BlobAsk::Have { blob, job } => Ok(match tenant_of(node, job, &blob) {
            Some(tenant) => data.have(&blob, &tenant),
            None => BlobNews::Absent,
        }),
        BlobAsk::Read { bytes, .. } if bytes as usize > BLOB_PIECE_BYTES_MAX => {
            let message = format!("{bytes} bytes in one piece, at most {BLOB_PIECE_BYTES_MAX}");
            Err(PublicError::new(ErrorCode::TooLarge, message))
        }
        BlobAsk::Read { blob, job, offset, bytes } => match tenant_of(node, job, &blob) {
            Some(tenant) => data.piece(blob, &tenant, offset, bytes as usize).await,
            None => Ok(BlobNews::Absent),
        },
        BlobAsk::Doubt { blob, job } => {
            let known = tenant_of(node, job, &blob).is_some_and(|tenant| data.is_here(&blob, &tenant));
            if known {
                let data = Arc::clone(data);
                tokio::spawn(async move { data.look_closely(blob).await });
            }
            Ok(BlobNews::Noted)
        }
    }
}

/// Whose job that is, if it names the blob.
fn tenant_of(node: &Node, job: JobId, blob: &BlobId) -> Option<String> {
    node.consensus.read(|state| {
        let job = state.job(job)?;
        let names = job.spec.inputs.iter().any(|input| input.blob == *blob);
        names.then(|| job.tenant.clone())
    })
}

impl Data {
    pub(super) fn is_here(&self, blob: &BlobId, tenant: &str) -> bool {
        lock(&self.shelf).kept_for(blob, tenant).is_some()
    }

    pub(super) fn have(&self, blob: &BlobId, tenant: &str) -> BlobNews {
        if !self.is_here(blob, tenant) {
            return BlobNews::Absent;
        }
        self.look(blob);
        let shelf = lock(&self.shelf);
        let here = shelf.kept_for(blob, tenant);
        here.map_or(BlobNews::Absent, |kept| BlobNews::Here { bytes: kept.bytes, public: kept.public })
    }

    pub(super) async fn piece(
        &self,
        blob: BlobId,
        tenant: &str,
        offset: u64,
        bytes: usize,
    ) -> Result<BlobNews, PublicError> {
        if !self.is_here(&blob, tenant) {
            return Ok(BlobNews::Absent);
        }
        let store = self.store.clone();
        match on_disk(move || store.read(&blob, offset, bytes)).await {
            Ok(bytes) => Ok(BlobNews::Piece { bytes }),
            // It had to go meanwhile.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(BlobNews::Absent),
            Err(error) => {
                Err(PublicError::new(ErrorCode::Internal, format!("{blob} cannot be read: {error}")))
            }
        }
    }

    /// Somebody got other bytes from here than the name says: the whole file is hashed, one at a time.
    async fn look_closely(self: Arc<Self>, blob: BlobId) {
        let Ok(_one) = self.looking.try_lock() else { return };
        let store = self.store.clone();
        match on_disk(move || store.is_right(&blob)).await {
            Ok(true) => tracing::warn!(%blob, "doubted by another host, and found right here"),
            Ok(false) => self.quarantine(&blob),
            Err(error) => tracing::warn!(%blob, %error, "doubted by another host, and cannot be read"),
        }
    }
}
