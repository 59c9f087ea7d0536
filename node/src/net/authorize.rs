//! What a peer may ask, given who its certificate says it is. Pure; applied to every request before its handler.
//!
//! Hosts are equal, so any of them may forward what users ask of it (`Submit`, `Cancel`, drains, tokens), and may
//! propose what a leader proposes (`CommitPlan`, `Expire`, `AdmitHost`): it may lead tomorrow, and apply re-checks
//! each. What a host says of *itself* is another matter: only it may renew its own lease, register itself and report
//! its own attempts (fault S5). Leases relayed by fellow peers are the one exception, because a host that is cut off
//! from the leader must be able to renew through others; a relay can keep a dead host's lease alive no longer than
//! it goes on doing so, and it can grant that host nothing.

use rota_protocol::command::Command;
use rota_protocol::members::MemberChange;
use rota_protocol::peer::PeerRequest;
use rota_protocol::trust::TrustChange;
use rota_protocol::{ErrorCode, HostId, PublicError};

/// Whether `from` may ask this.
///
/// # Errors
/// `Forbidden`, naming what and whose.
pub fn authorize(from: HostId, request: &PeerRequest) -> Result<(), PublicError> {
    match request {
        PeerRequest::Renew { host, relayed: false, .. } if *host != from => {
            Err(forbidden(from, "renew the lease of", *host))
        }
        PeerRequest::Propose { proposals } => {
            proposals.iter().try_for_each(|proposal| may_propose(from, &proposal.command))
        }
        PeerRequest::Renew { .. }
        | PeerRequest::Renewals { .. }
        | PeerRequest::Raft { .. }
        | PeerRequest::ReadIndex
        | PeerRequest::ReadLog { .. }
        | PeerRequest::FindLog { .. }
        | PeerRequest::FindTask { .. }
        | PeerRequest::Session { .. }
        | PeerRequest::Lead(_)
        | PeerRequest::Authority { .. }
        | PeerRequest::Hail(_)
        | PeerRequest::Clock
        | PeerRequest::Data(_)
        | PeerRequest::Signal { .. } => Ok(()),
    }
}

fn may_propose(from: HostId, command: &Command) -> Result<(), PublicError> {
    match command {
        Command::RegisterHost { host, .. } if *host != from => Err(forbidden(from, "register", *host)),
        Command::Report { host, .. } if *host != from => Err(forbidden(from, "report attempts of", *host)),
        Command::Health { host, .. } if *host != from => Err(forbidden(from, "judge the health of", *host)),
        Command::EndOwn { host, .. } if *host != from => Err(forbidden(from, "end attempts of", *host)),
        Command::Trust { change: TrustChange::TookCa { host, .. } | TrustChange::Seen { host, .. } }
            if *host != from =>
        {
            Err(forbidden(from, "speak for", *host))
        }
        Command::Members(MemberChange::Started { host, .. }) if *host != from => {
            Err(forbidden(from, "speak of the start of", *host))
        }
        // The first entry is written by the founder itself, never by request.
        Command::CreateCluster { .. } => {
            Err(PublicError::new(ErrorCode::Forbidden, "a cluster is created on its first host only"))
        }
        Command::RegisterHost { .. }
        | Command::Report { .. }
        | Command::EndOwn { .. }
        | Command::AdmitHost { .. }
        | Command::DrainHost { .. }
        | Command::UndrainHost { .. }
        | Command::MintToken { .. }
        | Command::Submit { .. }
        | Command::Cancel { .. }
        | Command::SetQueue { .. }
        | Command::RemoveQueue { .. }
        | Command::Adjust { .. }
        | Command::Reserve { .. }
        | Command::Unreserve { .. }
        | Command::DrainWith { .. }
        | Command::Health { .. }
        | Command::Tend { .. }
        | Command::Members(_)
        | Command::CommitPlan { .. }
        | Command::RaiseVersion { .. }
        | Command::Trust { .. }
        | Command::Expire { .. } => Ok(()),
    }
}

fn forbidden(from: HostId, what: &str, whose: HostId) -> PublicError {
    PublicError::new(ErrorCode::Forbidden, format!("host {from} may not {what} host {whose}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rota_protocol::command::Proposal;
    use rota_protocol::device::{HostFacts, HostRegistration};
    use rota_protocol::health::HealthReport;
    use rota_protocol::job::Actor;
    use rota_protocol::{BootId, ClusterId, LeaseEpoch, RequestId};

    const ME: HostId = HostId(3);
    const OTHER: HostId = HostId(4);

    fn propose(commands: Vec<Command>) -> PeerRequest {
        let proposals = commands
            .into_iter()
            .map(|command| Proposal { request: RequestId::NONE, actor: Actor::system(), command })
            .collect();
        PeerRequest::Propose { proposals }
    }

    fn register(host: HostId) -> Command {
        Command::RegisterHost {
            host,
            registration: HostRegistration {
                boot: BootId(1),
                addr: String::new(),
                facts: HostFacts {
                    cpus_milli: 0,
                    mem_mib: 0,
                    devices: Vec::new(),
                    labels: Default::default(),
                    version: String::new(),
                    notes: Default::default(),
                },
            },
        }
    }

    fn report(host: HostId) -> Command {
        Command::Report { host, reports: Vec::new() }
    }

    fn health(host: HostId) -> Command {
        let report = HealthReport { findings: Vec::new(), stopping: true };
        Command::Health { host, report }
    }

    fn renew(host: HostId, relayed: bool) -> PeerRequest {
        PeerRequest::Renew { host, epoch: LeaseEpoch(1), relayed }
    }

    #[test]
    fn fault_s5_a_host_speaks_only_for_itself() {
        for request in [
            propose(vec![register(OTHER)]),
            propose(vec![report(OTHER)]),
            propose(vec![report(ME), register(ME), report(OTHER)]),
            propose(vec![health(ME), health(OTHER)]),
            renew(OTHER, false),
        ] {
            let error = authorize(ME, &request).unwrap_err();
            assert_eq!(error.code, ErrorCode::Forbidden, "{request:?}");
            assert!(error.message.contains("host 3 may not"), "{error}");
        }
        for request in
            [propose(vec![register(ME), report(ME), health(ME)]), renew(ME, false), renew(OTHER, true)]
        {
            assert_eq!(authorize(ME, &request), Ok(()), "{request:?}");
        }
    }

    #[test]
    fn any_host_forwards_users_and_leaders_but_creates_no_cluster() {
        let cancel = Command::Cancel { job: rota_protocol::JobId(1), index: None };
        let expire = Command::Expire { host: OTHER, epoch: LeaseEpoch(1) };
        assert_eq!(authorize(ME, &propose(vec![cancel, expire])), Ok(()));
        let create = Command::CreateCluster {
            cluster: ClusterId(1),
            name: "c".into(),
            host_name: "h".into(),
            addr: "127.0.0.1:1".into(),
        };
        assert!(authorize(ME, &propose(vec![create])).is_err());
    }
}
