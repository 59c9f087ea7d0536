//! Who meets whom: the parts of a gang in the order of their ranks, and where they meet. One pure function of the
//! replicated state, so that all hosts of a gang tell their parts the same.
//!
//! The parts that started together are those whose grants stand in one log entry. They are ranked by their index, so
//! that the order is the same after a restart; the first of them got the gang's ports. A part that joins an elastic
//! gang later is told the parts that were there when it joined, itself included: first whichever holds the ports now,
//! then the others by their index. Their present list, in that order too, is in the gang's file (`roster`), which the
//! agent keeps up to date.
//!
//! The address of a part is the one that its host gave the cluster and at which the other hosts reach it: interfaces are
//! never listed or guessed, so that no bridge is ever told. What is no address for others (a wildcard, or loopback while
//! a part lies elsewhere) is replaced by the host's name.

use rota_core::state::attempt::PORTS_OF_A_GANG;
use rota_core::{Attempt, Job, State};
use rota_protocol::around::{Around, HOSTS_NAME, MACHINES_NAME, TaskFile};
use rota_protocol::ask::CARD_MILLI;
use rota_protocol::job::AttemptState;
use rota_protocol::work::GangSpec;
use rota_protocol::{HostId, JobId, Token};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::IpAddr;

/// A host's label: the address at which parts of gangs meet there, if the cards talk over another network than hosts.
pub const ADDR_LABEL: &str = "rota.gang_addr";

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
    /// The job.
    pub job: JobId,
    /// Fewest and most parts, if it may lose and find some.
    pub elastic: Option<(u32, u32)>,
    /// Processes that launchers start for each part: one for each whole card, at least one.
    pub slots: u32,
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
    let elastic = job.spec.gang.filter(GangSpec::is_elastic).map(|gang| (gang.min, gang.max));
    let slots = (own.gpu_milli / CARD_MILLI).max(1);
    Some(Meeting { seats: reachable(seats), rank, port, job: job.id, elastic, slots })
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
    let own = known.and_then(|host| host.facts.labels.get(ADDR_LABEL));
    let addr = match own {
        Some(ip) => ip.clone(),
        None => known.map_or("", |host| bare_host(&host.addr)).to_owned(),
    };
    Seat { index, token, host, name, addr }
}

/// Addresses that serve nobody but the host itself give way to names.
fn reachable(mut seats: Vec<Seat>) -> Vec<Seat> {
    let ip = |seat: &Seat| seat.addr.parse::<IpAddr>().ok();
    let is_local = |seat: &Seat| ip(seat).is_some_and(|ip| ip.is_loopback());
    let local_only = seats.iter().all(is_local) || seats.windows(2).all(|pair| pair[0].host == pair[1].host);
    for seat in &mut seats {
        let wild = ip(seat).is_some_and(|ip| ip.is_unspecified());
        if wild || seat.addr.is_empty() || (!local_only && is_local(seat)) {
            seat.addr.clone_from(&seat.name);
        }
    }
    seats
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
    let (seats, port) = holder_first(state, reachable(seats));
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
            ("ROTA_NODES", "NNODES", nodes.len()),
            ("ROTA_GROUP_RANK", "GROUP_RANK", node),
        ] {
            env.push((ours, value.to_string()));
            env.push((usual, value.to_string()));
        }
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
            env.push(("ROTA_MASTER", endpoint(&first.addr, port)));
            env.push(("ROTA_PORT_FIRST", port.to_string()));
            env.push(("ROTA_PORT_COUNT", PORTS_OF_A_GANG.to_string()));
            env.extend(self.torchrun(&first.addr, port));
        }
        env
    }

    /// What `torchrun` reads instead of flags: each part runs one, with a worker for each of its cards. A gang that may
    /// change its size meets by `c10d`, at the second of its ports: the first is for the program itself.
    fn torchrun(&self, addr: &str, port: u16) -> Vec<(&'static str, String)> {
        let mut env = vec![
            ("PET_NODE_RANK", self.rank.to_string()),
            ("PET_NPROC_PER_NODE", self.slots.to_string()),
            ("PET_MASTER_ADDR", addr.to_owned()),
            ("PET_MASTER_PORT", port.to_string()),
        ];
        match self.elastic {
            None => env.push(("PET_NNODES", self.seats.len().to_string())),
            Some((min, max)) => env.extend([
                ("PET_NNODES", format!("{min}:{max}")),
                ("PET_RDZV_BACKEND", "c10d".to_owned()),
                ("PET_RDZV_ENDPOINT", endpoint(addr, port + 1)),
                ("PET_RDZV_ID", self.job.to_string()),
            ]),
        }
        env
    }

    /// The gang's hosts with the processes that each is to get, as `mpirun --hostfile` of Open MPI reads them.
    #[must_use]
    pub fn hosts_file(&self) -> String {
        self.each_host().into_iter().map(|(seat, slots)| format!("{} slots={slots}\n", seat.addr)).collect()
    }

    /// The same as MPICH's `mpiexec -f` reads them: names where an address has colons, which stand for the number there.
    #[must_use]
    pub fn machines_file(&self) -> String {
        let word = |seat: &Seat| if seat.addr.contains(':') { seat.name.clone() } else { seat.addr.clone() };
        self.each_host().into_iter().map(|(seat, slots)| format!("{}:{slots}\n", word(seat))).collect()
    }

    /// Hosts in the order in which ranks come to them, each as its first part there, with its slots.
    fn each_host(&self) -> Vec<(&Seat, u32)> {
        let mut hosts: Vec<(&Seat, u32)> = Vec::new();
        let nodes = self.nodes();
        for seat in &self.seats {
            match nodes.get(&seat.host).and_then(|at| hosts.get_mut(*at)) {
                Some((_, slots)) => *slots += self.slots,
                None => hosts.push((seat, self.slots)),
            }
        }
        hosts
    }

    /// What a part has around its program: the lists of hosts, and ports of its own.
    #[must_use]
    pub fn around(&self) -> Around {
        let file = |name: &str, text: String| TaskFile {
            name: name.to_owned(),
            bytes: text.into_bytes(),
            private: false,
        };
        let files = vec![file(HOSTS_NAME, self.hosts_file()), file(MACHINES_NAME, self.machines_file())];
        Around { files, ports: self.ports_here(), runtime: None }
    }

    /// The ports that must be free where this part starts: those of the gang, on the host of rank 0.
    #[must_use]
    pub fn ports_here(&self) -> (u16, u16) {
        match self.port {
            Some(port) if self.rank == 0 => (port, PORTS_OF_A_GANG),
            _ => (0, 0),
        }
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

/// Host and port in one word: an IPv6 address gets its brackets.
#[must_use]
pub fn endpoint(addr: &str, port: u16) -> String {
    if addr.contains(':') { format!("[{addr}]:{port}") } else { format!("{addr}:{port}") }
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
