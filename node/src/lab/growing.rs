//! How a lab's cluster grows: hosts that join, and machines that join again as other hosts.

use super::{Lab, LabError, Peer, free_port, new_request, wait_for};
use rota_protocol::api::{ApiReply, ApiRequest};
use rota_protocol::error::{ErrorCode, PublicError};
use rota_protocol::ids::HostId;
use rota_protocol::view::HostState;
use std::time::Duration;

impl Lab {
    pub(super) async fn join(&mut self, number: usize) -> Result<(), LabError> {
        self.admit(number, 0, false).await?;
        self.spawn(number)
    }

    /// A place for a host that does not join: its agent may be started once it has data.
    ///
    /// # Errors
    /// There is no free port.
    pub fn place(&mut self) -> Result<usize, LabError> {
        let number = self.peers.len();
        let (name, port) = (format!("n{}", number + 1), free_port()?);
        let dir = self.options.dir.join(&name);
        self.peers.push(Peer { name, dir, port, advertise: port, host: HostId(0), child: None });
        Ok(number)
    }

    /// Adds a host, which joins through the one at `via`; its agent need not be up when this returns. Gives its place.
    ///
    /// # Errors
    /// It is not admitted.
    pub async fn grow(&mut self, via: usize) -> Result<usize, LabError> {
        let number = self.place()?;
        self.admit(number, via, false).await?;
        Ok(number)
    }

    /// Lets a host join as a new one through another: what it was before is set aside.
    ///
    /// # Errors
    /// It is not admitted.
    pub async fn join_again(&mut self, number: usize, via: usize) -> Result<(), LabError> {
        // Its name is free once the lease of what it was is over.
        let old = self.peers[number].host;
        wait_for("the end of an old lease", Duration::from_secs(30), async || {
            let rows = self.hosts().await.ok()?;
            let free = |state| matches!(state, HostState::Lost | HostState::Removed);
            rows.iter().all(|row| row.host != old || free(row.state)).then_some(())
        })
        .await?;
        self.admit(number, via, true).await
    }

    async fn admit(&mut self, number: usize, via: usize, replace: bool) -> Result<(), LabError> {
        let secret = self.join_token().await?;
        let (dir, listen) = (self.peers[number].dir.display().to_string(), self.listen(number));
        let (name, first) = (self.peers[number].name.clone(), self.advertise(via));
        let advertise = self.advertise(number);
        let mut join = vec!["join", &first, "--token", &secret, "--data-dir", &dir, "--name", &name];
        join.extend(["--listen", &listen, "--advertise", &advertise]);
        join.extend(replace.then_some("--replace"));
        let said = self.rota_at(number, &join).await?;
        let id = said.split("as host ").nth(1).and_then(|rest| rest.split(' ').next());
        self.peers[number].host = HostId(id.and_then(|id| id.parse().ok()).unwrap_or(0));
        Ok(())
    }

    /// An agent that ended by itself is no agent any more.
    pub fn forget(&mut self, number: usize) {
        self.peers[number].child = None;
    }

    /// A fresh join token.
    ///
    /// # Errors
    /// No peer answers.
    pub async fn join_token(&self) -> Result<String, LabError> {
        let usage = rota_protocol::command::TokenUse::Join { host_name: None };
        let request = ApiRequest::MintToken { request: new_request(), usage, ttl_ms: 600_000 };
        match self.ask(request).await? {
            ApiReply::Token { secret } => Ok(secret.0),
            other => Err(PublicError::new(ErrorCode::Internal, format!("unexpected reply {other:?}")).into()),
        }
    }
}
