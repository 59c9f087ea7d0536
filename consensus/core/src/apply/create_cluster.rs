//! CreateCluster: the first command of a cluster, refused ever after. The founder becomes host 1.

use super::{Answer, Event, Step, check_addr, check_host_name};
use crate::state::State;
use crate::state::host::Host;
use crate::state::meta::ClusterMeta;
use rota_protocol::command::Outcome;
use rota_protocol::{ClusterId, ErrorCode, HostId, PublicError};

pub(super) fn apply(
    state: &mut State,
    step: &mut Step,
    cluster: ClusterId,
    name: &str,
    host_name: &str,
    addr: &str,
) -> Answer {
    if let Some(known) = state.cluster() {
        let message = format!("the cluster {} exists already", known.id);
        return Err(PublicError::new(ErrorCode::Conflict, message));
    }
    crate::spec::check_name("name", name)?;
    check_host_name(host_name)?;
    check_addr(addr)?;
    state.meta.cluster = Some(ClusterMeta { id: cluster, name: name.to_owned() });
    let host = admit(state, step, host_name, addr);
    Ok(Outcome::HostAdmitted { host })
}

/// Gives a host its number.
pub(super) fn admit(state: &mut State, step: &mut Step, name: &str, addr: &str) -> HostId {
    let id = HostId(state.meta.next_host);
    state.meta.next_host += 1;
    state.hosts.insert(Host::new(id, name.to_owned(), addr.to_owned()));
    step.note(Event::HostChanged(id));
    id
}
