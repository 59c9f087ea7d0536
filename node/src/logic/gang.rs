//! Who meets whom: the parts of a gang in the order of their ranks, and where they meet. One pure function of the
//! replicated state, so that all hosts of a gang tell their parts the same.
//!
//! The parts that started together are those whose grants stand in one log entry. They are ranked by their index, so
//! that the order is the same after a restart; the first of them got the gang's ports. A part that joins an elastic
//! gang later is told the parts that were there when it joined, itself included: first whichever holds the ports now,
//! then the others by their index. Their present list, in that order too, is in the gang's file (`roster`), which the
//! agent keeps up to date.

use rota_core::state::attempt::PORTS_OF_A_GANG;
use rota_core::{Attempt, Job, State};
use rota_protocol::job::AttemptState;
use rota_protocol::{HostId, JobId, Token};
use std::collections::BTreeMap;
use std::fmt::Write;

/// Longest list of hosts that goes into one variable, in bytes: the kernel takes no string above 128 KiB. Larger gangs
/// read the list from the file.
const HOSTS_BYTES_MAX: usize = 64 << 10;

/// One part of a gang.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seat {
    /// Its index in the job.
    pub index: u32,
    /// Its attempt.
    pub token: Token,
    /// Where it runs.
    pub host: HostId,
    /// The host's name.
    pub name: String,
    /// The address at which the other hosts reach that host, without port and brackets.
    pub addr: String,
}

/// A gang as one of its parts sees it at its start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Meeting {
    /// Its parts in the order of their ranks.
    pub seats: Vec<Seat>,
    /// The rank of the part that looks.
    pub rank: usize,
    /// The first of the gang's ports on the host of rank 0. None when the part that held them is gone.
    pub port: Option<u16>,
}

/// What a part is to know of its gang when it starts. None for an attempt that is not live or no part of a gang.
#[must_use]
pub fn meeting(state: &State, token: Token) -> Option<Meeting> {
    let own = state.attempt(token)?;
    let job = state.job(own.task.job).filter(|job| job.spec.gang.is_some())?;
    let entry = token.log_index();
    let joins = state.attempts_of(job.id).any(|part| part.token.log_index() < entry);
    let seats = if joins {
        let there = |part: &&Attempt| part.token.log_index() <= entry && part.state != AttemptState::Ending;
        let live = state.attempts_of(job.id).filter(|part| there(part) || part.token == token);
        live.map(|part| seat(state, part.task.index, part.token, part.host)).collect()
    } else {
        started_together(state, job, entry)
    };
    let (seats, port) = if joins { holder_first(state, seats) } else { by_index(state, seats) };
    let rank = seats.iter().position(|seat| seat.token == token)?;
    Some(Meeting { seats, rank, port })
}

/// Those that are over by now count: a host that comes to its launch later must not tell another size.
fn started_together(state: &State, job: &Job, entry: u64) -> Vec<Seat> {
    let live = state.attempts_of(job.id).map(|part| (part.token, part.task.index, part.host));
    let ended = job.ended.iter().map(|part| (part.token, part.index, part.host));
    // One entry may hold two starts, with the end of the first between them: the newest grant of an index counts.
    let mut newest: BTreeMap<u32, (Token, HostId)> = BTreeMap::new();
    for (token, index, host) in live.chain(ended).filter(|(token, ..)| token.log_index() == entry) {
        let known = newest.entry(index).or_insert((token, host));
        *known = (token, host).max(*known);
    }
    newest.into_iter().map(|(index, (token, host))| seat(state, index, token, host)).collect()
}

fn seat(state: &State, index: u32, token: Token, host: HostId) -> Seat {
    let known = state.host(host);
    let name = known.map_or_else(|| host.to_string(), |host| host.name.clone());
    let addr = known.map_or("", |host| bare_host(&host.addr)).to_owned();
    Seat { index, token, host, name, addr }
}

/// Parts that started together. State gives the ports to the one of lowest index, wherever its grant stands in the
/// entry; it keeps its rank when it is over, and nobody takes its ports in its name.
fn by_index(state: &State, mut seats: Vec<Seat>) -> (Vec<Seat>, Option<u16>) {
    seats.sort_by_key(|seat| seat.index);
    let port = seats.first().and_then(|first| port_of(state, first));
    (seats, port)
}

/// Parts that came at different times. A holder that is gone is replaced by one that came later, which may have any
/// index; until then there are no ports.
fn holder_first(state: &State, mut seats: Vec<Seat>) -> (Vec<Seat>, Option<u16>) {
    seats.sort_by_key(|seat| (port_of(state, seat).is_none(), seat.index));
    let port = seats.first().and_then(|first| port_of(state, first));
    (seats, port)
}

fn port_of(state: &State, seat: &Seat) -> Option<u16> {
    state.attempt(seat.token)?.port
}

/// The gang's file: its present parts, lines of `name=value`. None for a job that is no gang.
#[must_use]
pub fn roster(state: &State, job: JobId) -> Option<String> {
    let spec = state.job(job)?.spec.gang?;
    let here = state.attempts_of(job).filter(|part| part.state != AttemptState::Ending);
    let seats = here.map(|part| seat(state, part.task.index, part.token, part.host)).collect();
    let (seats, port) = holder_first(state, seats);
    let indices: Vec<String> = seats.iter().map(|seat| seat.index.to_string()).collect();
    let mut text = format!("size={}\nmin={}\nmax={}\n", seats.len(), spec.min, spec.max);
    // Writing to a string cannot fail.
    let _ = writeln!(text, "indices={}", indices.join(","));
    let _ = writeln!(text, "hosts={}", join(&seats, |seat| &seat.addr));
    let _ = writeln!(text, "names={}", join(&seats, |seat| &seat.name));
    if let (Some(first), Some(port)) = (seats.first(), port) {
        let _ = writeln!(text, "master_addr={}\nmaster_port={port}", first.addr);
    }
    Some(text)
}

impl Meeting {
    /// The variables that every part gets, under the names that frameworks read and under Rota's own.
    ///
    /// Deliberately without `SLURM_NTASKS` and `SLURM_JOB_ID`: libraries take them for proof of a Slurm whose commands
    /// they may call, and there are none.
    #[must_use]
    pub fn env(&self) -> Vec<(&'static str, String)> {
        let Some(own) = self.seats.get(self.rank) else { return Vec::new() };
        let before = || self.seats.iter().take(self.rank);
        let beside = self.seats.iter().filter(|seat| seat.host == own.host).count();
        let local = before().filter(|seat| seat.host == own.host).count();
        let nodes = self.nodes();
        let node = nodes.get(&own.host).copied().unwrap_or(0);
        let mut env = Vec::new();
        for (ours, usual, value) in [
            ("ROTA_RANK", "RANK", self.rank),
            ("ROTA_WORLD_SIZE", "WORLD_SIZE", self.seats.len()),
            ("ROTA_LOCAL_RANK", "LOCAL_RANK", local),
            ("ROTA_LOCAL_WORLD_SIZE", "LOCAL_WORLD_SIZE", beside),
            ("ROTA_NODE_RANK", "NODE_RANK", node),
        ] {
            env.push((ours, value.to_string()));
            env.push((usual, value.to_string()));
        }
        env.push(("ROTA_NODES", nodes.len().to_string()));
        env.push(("SLURM_PROCID", self.rank.to_string()));
        env.push(("SLURM_LOCALID", local.to_string()));
        env.push(("SLURM_NODEID", node.to_string()));
        let hosts = join(&self.seats, |seat| &seat.addr);
        if hosts.len() <= HOSTS_BYTES_MAX {
            env.push(("ROTA_GANG_HOSTS", hosts));
        }
        let names = self.node_names(&nodes);
        if names.len() <= HOSTS_BYTES_MAX {
            env.push(("SLURM_NODELIST", names));
        }
        if let (Some(first), Some(port)) = (self.seats.first(), self.port) {
            env.push(("MASTER_ADDR", first.addr.clone()));
            env.push(("MASTER_PORT", port.to_string()));
            env.push(("ROTA_PORT_FIRST", port.to_string()));
            env.push(("ROTA_PORT_COUNT", PORTS_OF_A_GANG.to_string()));
        }
        env
    }

    /// Hosts, each with its position in the order in which ranks come to them.
    fn nodes(&self) -> BTreeMap<HostId, usize> {
        let mut nodes = BTreeMap::new();
        for seat in &self.seats {
            let next = nodes.len();
            nodes.entry(seat.host).or_insert(next);
        }
        nodes
    }

    fn node_names(&self, nodes: &BTreeMap<HostId, usize>) -> String {
        let mut names = vec![""; nodes.len()];
        for seat in &self.seats {
            if let Some(name) = nodes.get(&seat.host).and_then(|at| names.get_mut(*at)) {
                *name = &seat.name;
            }
        }
        names.join(",")
    }
}

fn join(seats: &[Seat], part: impl Fn(&Seat) -> &str) -> String {
    seats.iter().map(part).collect::<Vec<_>>().join(",")
}

/// The host in `host:port`: names and IPv4 as they are, IPv6 without its brackets. An address without a port stays.
#[must_use]
pub fn bare_host(addr: &str) -> &str {
    if let Some((host, _)) = addr.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        return host;
    }
    match addr.rsplit_once(':') {
        // More than one colon and no brackets: an IPv6 address alone.
        Some((host, _)) if !host.contains(':') => host,
        _ => addr,
    }
}

#[cfg(test)]
#[path = "gang_tests.rs"]
mod tests;
