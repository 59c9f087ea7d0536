//! What a person should know of the membership, and what is refused so that nobody removes the last majority.

use super::{Look, Peer};
use rota_protocol::HostId;

/// How many more voters may be lost before nothing can be decided.
#[must_use]
pub fn tolerates(look: &Look) -> usize {
    let voters = look.voters();
    let live = voters.iter().filter(|id| look.is_up(**id)).count();
    live.saturating_sub(voters.len() / 2 + 1)
}

/// What should be done by a person, one line each.
#[must_use]
pub fn advice(look: &Look) -> Vec<String> {
    let mut lines = Vec::new();
    for peer in look.peers.iter().filter(|peer| !peer.removed) {
        let (id, name) = (peer.id, &peer.name);
        if peer.lost {
            lines.push(format!(
                "{name} is lost: start it again, or, if it is gone for good, `rota cluster remove {id}`"
            ));
        } else if !peer.up {
            lines.push(format!(
                "{name} joined and never started: start its agent, or `rota cluster remove {id}`"
            ));
        }
    }
    let voters = look.voters();
    if voters.len() > 1 && tolerates(look) == 0 {
        lines.push(format!(
            "no further voter may be lost ({} of {} live)",
            voters.iter().filter(|id| look.is_up(**id)).count(),
            voters.len()
        ));
    }
    lines
}

/// Whether a host may be removed now.
///
/// # Errors
/// Why not, and what to do instead.
pub fn refusal(look: &Look, target: HostId) -> Result<(), String> {
    let Some(peer) = look.peer(target) else {
        return Err(format!("no host {target}"));
    };
    let others = |is: &dyn Fn(&Peer) -> bool| {
        look.peers.iter().filter(|other| other.id != target && !other.removed && is(other)).count()
    };
    if others(&|_| true) == 0 {
        return Err(format!("{} is the cluster's last host; stop its agent instead", peer.name));
    }
    if !peer.voter {
        return Ok(());
    }
    let voters = look.voters();
    if voters.len() == 1 {
        return if others(&|other| other.up && other.member) > 0 {
            Ok(())
        } else {
            Err(format!(
                "{} alone votes, and no other host lives that could: start or join another host first",
                peer.name
            ))
        };
    }
    let live = voters.iter().filter(|id| **id != target && look.is_up(**id)).count();
    if live * 2 > voters.len() {
        return Ok(());
    }
    let dead: Vec<HostId> = voters.iter().copied().filter(|id| *id != target && !look.is_up(*id)).collect();
    Err(format!(
        "without {} only {live} of {} voters live, which is no majority: first bring back or remove {}",
        peer.name,
        voters.len(),
        look.names(&dead)
    ))
}
