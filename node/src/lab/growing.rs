//! How a lab's cluster grows: hosts that join, and machines that join again as other hosts.

use super::{Lab, LabError, Peer, free_port, new_request, wait_for};
use rota_protocol::api::{ApiReply, ApiRequest};
use rota_protocol::error::{ErrorCode, PublicError};
use rota_protocol::ids::HostId;
use rota_protocol::view::HostState;
use std::time::Duration;

/// Ports that are tried for one host: between the choice and the use of one anybody may take it.
const PORT_TRIES: u32 = 4;
/// What `rota` says then.
const TAKEN: &str = "cannot listen on";

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
        self.enter(number, via).await?;
        Ok(number)
    }

    /// The host of a place joins through the one at `via`.
    ///
    /// # Errors
    /// It is not admitted.
    pub async fn enter(&mut self, number: usize, via: usize) -> Result<(), LabError> {
        self.admit(number, via, false).await
    }

    /// Waits until an agent that was just started has its port; where somebody took it meanwhile, the agent is started
    /// again at another. One that ends for any other reason is for those to tell who wait for what it should do.
    ///
    /// # Errors
    /// No port stays free, or the agent neither listens nor ends.
    pub async fn until_listens(&mut self, number: usize) -> Result<(), LabError> {
        let mut tries = 1;
        loop {
            let listens = wait_for("an agent that listens", Duration::from_secs(20), async || {
                match self.exited(number) {
                    Some(_) => Some(false),
                    None => self.peers[number].client().await.is_ok().then_some(true),
                }
            });
            if listens.await? {
                return Ok(());
            }
            let log = std::fs::read_to_string(self.peers[number].dir.join("agent.log")).unwrap_or_default();
            let last = log.lines().last().unwrap_or_default();
            if tries == PORT_TRIES || !last.contains(TAKEN) || !self.take_another_port(number)? {
                return Ok(());
            }
            tries += 1;
            self.spawn(number)?;
        }
    }

    /// False: something else knows the port that it has.
    fn take_another_port(&mut self, number: usize) -> Result<bool, LabError> {
        if self.options.ports.get(number).is_some() {
            return Ok(false);
        }
        let port = free_port()?;
        let peer = &mut self.peers[number];
        (peer.port, peer.advertise) = (port, port);
        Ok(true)
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
        let mut tries = 1;
        loop {
            match self.admit_once(number, via, replace).await {
                Err(LabError::Command { output, .. })
                    if tries < PORT_TRIES && output.contains(TAKEN) && self.take_another_port(number)? =>
                {
                    tries += 1;
                }
                other => return other,
            }
        }
    }

    async fn admit_once(&mut self, number: usize, via: usize, replace: bool) -> Result<(), LabError> {
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
