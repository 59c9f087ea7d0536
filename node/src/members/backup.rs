//! The answering side of `rota cluster backup`: one moment of the state, sent in pieces.

use crate::api::caller::Caller;
use crate::api::session::Answers;
use crate::api::{READ_DEADLINE, WRITE_DEADLINE};
use crate::node::Node;
use rota_protocol::api::ApiReply;
use rota_protocol::error::{ErrorCode, PublicError};
use rota_protocol::job::Role;
use rota_protocol::members::MembersAnswer;

/// Bytes of one piece: well below a frame.
const PIECE_BYTES: usize = 512 << 10;

/// Sends the whole state. Without `stale` a quorum confirms first that it is the newest.
pub async fn stream(node: &Node, caller: &Caller, stale: bool, answers: Answers) {
    match whole(node, caller, stale).await {
        Ok((index, bytes)) => {
            let total = bytes.len() as u64;
            let pieces = bytes.chunks(PIECE_BYTES).count();
            for (at, piece) in bytes.chunks(PIECE_BYTES).enumerate() {
                let answer = MembersAnswer::Backup { total, index, piece: piece.to_vec() };
                if !answers.send(at + 1 < pieces, Ok(ApiReply::Members(answer))).await {
                    return;
                }
            }
        }
        Err(error) => {
            // The caller may be gone.
            answers.send(false, Err(error)).await;
        }
    }
}

async fn whole(node: &Node, caller: &Caller, stale: bool) -> Result<(u64, Vec<u8>), PublicError> {
    caller.at_least(Role::Admin)?;
    if !stale {
        node.consensus.read_barrier(READ_DEADLINE.max(WRITE_DEADLINE)).await?;
    }
    let consensus = node.consensus.clone();
    let internal = |why: String| PublicError::new(ErrorCode::Internal, why);
    tokio::task::spawn_blocking(move || consensus.backup())
        .await
        .map_err(|error| internal(error.to_string()))?
        .map_err(|fault| internal(fault.to_string()))
}
