//! Role: lets local clients in through the unix socket. Supervisor: root, which restarts it (the socket is made anew).

use crate::api::caller::Caller;
use crate::api::session;
use crate::node::Node;
use ractor::{Actor, ActorProcessingErr, ActorRef};
use rota_protocol::error::{ErrorCode, PublicError};
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::UnixListener;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

/// Clients connected at once; further ones are told so.
const CLIENTS_MAX: usize = 4_096;
/// File descriptors that clients never get: the log, peers, shims and probes need them (fault P10).
const FILES_KEPT: u64 = 48;
/// Fewest clients, however few descriptors there are.
const CLIENTS_MIN: usize = 4;
/// Clients that are told at once that there is no room; further ones wait in the kernel's queue.
const REFUSALS_MAX: usize = 4;
/// Pause after a failed accept (no file descriptors left), so that the loop does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// It takes no messages: connections come through the socket.
pub enum Msg {}

/// The API actor.
pub struct Api;

/// Its accept loop.
pub struct State {
    accepting: JoinHandle<()>,
}

impl Actor for Api {
    type Msg = Msg;
    type State = State;
    type Arguments = Arc<Node>;

    async fn pre_start(&self, myself: ActorRef<Msg>, node: Arc<Node>) -> Result<State, ActorProcessingErr> {
        let path = node.config.socket_path();
        // The data directory is locked by this process, so a socket that lies there is a dead one.
        let _ = std::fs::remove_file(&path);
        let listener =
            UnixListener::bind(&path).map_err(|e| format!("cannot listen on {}: {e}", path.display()))?;
        // Everybody may connect: the kernel says who it is, and each call is checked.
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666))?;
        let accepting = tokio::spawn(async move {
            accept(listener, node).await;
            myself.stop(Some("the accept loop ended".into()));
        });
        Ok(State { accepting })
    }

    async fn post_stop(&self, _: ActorRef<Msg>, state: &mut State) -> Result<(), ActorProcessingErr> {
        state.accepting.abort();
        Ok(())
    }
}

async fn accept(listener: UnixListener, node: Arc<Node>) {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let room = room(limit);
    let (clients, refusals) = (Arc::new(Semaphore::new(room)), Arc::new(Semaphore::new(REFUSALS_MAX)));
    while let Ok(refusal) = Arc::clone(&refusals).acquire_owned().await {
        match listener.accept().await {
            Ok((stream, _)) => {
                let caller = match Caller::of_socket(&stream) {
                    Ok(caller) => caller,
                    Err(error) => {
                        tracing::warn!(%error, "a client without credentials");
                        continue;
                    }
                };
                // Its cage covers the socket already: a task without a user of its own has no business here.
                if caller.uid_gid.is_some_and(|(uid, _)| node.config.tasks.is_dynamic(uid)) {
                    continue;
                }
                let node = Arc::clone(&node);
                let Ok(permit) = Arc::clone(&clients).try_acquire_owned() else {
                    let message = format!("this host has room for {room} clients, and so many are connected");
                    let why = PublicError::new(ErrorCode::Busy, message);
                    tokio::spawn(async move {
                        let _ = session::refuse(node, stream, why).await;
                        drop(refusal);
                    });
                    continue;
                };
                tokio::spawn(async move {
                    if let Err(error) = session::serve(node, stream, Some(caller)).await {
                        tracing::debug!(%error, "a client's connection ended");
                    }
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a client");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Clients for whom there is room under a limit of file descriptors.
fn room(files: Option<u64>) -> usize {
    let left = files.map_or(CLIENTS_MAX as u64, |files| files.saturating_sub(FILES_KEPT));
    usize::try_from(left).unwrap_or(CLIENTS_MAX).clamp(CLIENTS_MIN, CLIENTS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_leave_descriptors_for_all_else() {
        let rooms = [None, Some(65_536), Some(1_024), Some(64), Some(0)].map(room);
        assert_eq!(rooms, [CLIENTS_MAX, CLIENTS_MAX, 976, 16, CLIENTS_MIN]);
    }
}
