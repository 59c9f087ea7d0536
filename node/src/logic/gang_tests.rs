//! Tests of who meets whom, on a real state: all hosts agree, in every moment at which one of them may look.

use super::*;
use rota_protocol::ask::Ask;
use rota_protocol::command::{Command, Entry, LOG_FORMAT, Outcome, Proposal, TokenUse};
use rota_protocol::device::{HostFacts, HostRegistration};
use rota_protocol::job::{Actor, AttemptEnd, JobSpec};
use rota_protocol::plan::{Move, Part, Plan};
use rota_protocol::report::{AttemptFact, AttemptReport};
use rota_protocol::work::GangSpec;
use rota_protocol::{BootId, ClusterId, LeaseEpoch, RequestId};

struct Lab(State);

impl Lab {
    /// Hosts at these addresses, numbered from 1.
    fn new(addrs: &[&str]) -> Self {
        let mut lab = Self(State::new());
        let text = |text: &str| text.to_owned();
        lab.does(Command::CreateCluster {
            cluster: ClusterId(1),
            name: text("c"),
            host_name: text("h1"),
            addr: text(addrs[0]),
        });
        for (at, addr) in (1..).zip(addrs) {
            if at > 1 {
                let token = [at; 32];
                let usage = TokenUse::Join { host_name: None };
                lab.does(Command::MintToken { token, usage, expires_at_ms: u64::MAX });
                let (host_name, addr) = (format!("h{at}"), text(addr));
                lab.does(Command::AdmitHost { token, host_name, addr });
            }
            let facts = HostFacts {
                cpus_milli: 64_000,
                mem_mib: 1 << 20,
                devices: Vec::new(),
                labels: BTreeMap::new(),
                version: text("1"),
                notes: Default::default(),
            };
            let registration = HostRegistration { boot: BootId(u128::from(at)), addr: text(addr), facts };
            lab.does(Command::RegisterHost { host: HostId(u64::from(at)), registration });
        }
        lab
    }

    fn does(&mut self, command: Command) -> Outcome {
        self.does_all(vec![command]).remove(0)
    }

    /// In one entry.
    fn does_all(&mut self, commands: Vec<Command>) -> Vec<Outcome> {
        let of = |command| Proposal { request: RequestId::NONE, actor: Actor::system(), command };
        let at_ms = 1_790_000_000_000 + self.0.applied_index();
        let entry = Entry { format: LOG_FORMAT, at_ms, proposals: commands.into_iter().map(of).collect() };
        let index = self.0.applied_index() + 1;
        self.0.apply(index, &entry).outcomes
    }

    fn plan(&self, job: JobId, parts: &[(u32, u64)]) -> Command {
        let part = |(index, host): &(u32, u64)| Part {
            index: *index,
            host: HostId(*host),
            epoch: self.0.host(HostId(*host)).map_or(LeaseEpoch(0), |host| host.epoch),
            devices: Vec::new(),
        };
        let one = Move::Start { job, choice: 0, parts: parts.iter().map(part).collect() };
        Command::CommitPlan { plan: Plan { seen_index: self.0.applied_index(), moves: vec![one] } }
    }

    fn submit(&mut self, min: u32, max: u32) -> JobId {
        let spec = JobSpec {
            argv: vec![b"/bin/train".to_vec()],
            ask: Ask { cpus_milli: 1_000, ..Ask::default() },
            gang: Some(GangSpec { min, max }),
            ..JobSpec::default()
        };
        match self.does(Command::Submit { spec }) {
            Outcome::Submitted { job } => job,
            other => panic!("{other:?}"),
        }
    }

    /// Starts parts (index, host) in one entry; gives their tokens in the order of their indices.
    fn start(&mut self, job: JobId, parts: &[(u32, u64)]) -> Vec<Token> {
        let plan = self.plan(job, parts);
        assert_eq!(self.does(plan), Outcome::Planned { refused: vec![] });
        let index = self.0.applied_index();
        self.0.attempts_of(job).map(|a| a.token).filter(|token| token.log_index() == index).collect()
    }

    fn ends(&mut self, token: Token, end: AttemptEnd) {
        let Some(host) = self.0.attempt(token).map(|attempt| attempt.host) else { panic!("{token} is over") };
        let reports = vec![AttemptReport { token, fact: AttemptFact::Ended { end, ran_ms: 5 } }];
        self.does(Command::Report { host, reports });
    }

    /// The first port that state gave this part.
    fn port_of(&self, token: Token) -> String {
        self.0
            .attempt(token)
            .and_then(|attempt| attempt.port)
            .map(|port| port.to_string())
            .unwrap_or_default()
    }

    fn env(&self, token: Token) -> BTreeMap<&'static str, String> {
        meeting(&self.0, token).iter().flat_map(Meeting::env).collect()
    }
}

fn hosts(count: u64) -> Lab {
    let addrs: Vec<String> = (1..=count).map(|n| format!("10.0.0.{n}:4600")).collect();
    Lab::new(&addrs.iter().map(String::as_str).collect::<Vec<_>>())
}

#[test]
fn all_parts_are_told_the_same_and_each_its_own_rank() {
    let mut lab = hosts(3);
    let job = lab.submit(4, 4);
    let tokens = lab.start(job, &[(0, 2), (1, 2), (2, 1), (3, 3)]);
    let told: Vec<_> = tokens.iter().map(|token| lab.env(*token)).collect();
    let column = |name: &str| told.iter().map(|env| env[name].clone()).collect::<Vec<_>>();
    assert_eq!(column("RANK"), ["0", "1", "2", "3"]);
    assert_eq!(column("LOCAL_RANK"), ["0", "1", "0", "0"]);
    assert_eq!(column("LOCAL_WORLD_SIZE"), ["2", "2", "1", "1"]);
    assert_eq!(column("NODE_RANK"), ["0", "0", "1", "2"]);
    for (name, value) in [
        ("WORLD_SIZE", "4"),
        ("ROTA_NODES", "3"),
        ("ROTA_GANG_HOSTS", "10.0.0.2,10.0.0.2,10.0.0.1,10.0.0.3"),
        ("SLURM_NODELIST", "h2,h1,h3"),
        ("MASTER_ADDR", "10.0.0.2"),
        ("ROTA_PORT_COUNT", "16"),
    ] {
        assert_eq!(column(name), [value; 4], "{name}");
    }
    let port: u16 = column("MASTER_PORT")[0].parse().unwrap();
    assert_eq!(lab.0.attempt(tokens[0]).unwrap().port, Some(port));
    assert!(column("MASTER_PORT").iter().all(|other| *other == port.to_string()));
    assert!(told.iter().all(|env| env["ROTA_RANK"] == env["RANK"] && env["SLURM_PROCID"] == env["RANK"]));
}

#[test]
fn two_gangs_on_the_same_hosts_meet_at_different_ports() {
    let mut lab = hosts(2);
    let (a, b) = (lab.submit(2, 2), lab.submit(2, 2));
    let (first, second) = (lab.start(a, &[(0, 1), (1, 2)])[0], lab.start(b, &[(0, 1), (1, 2)])[0]);
    let port = |token| lab.env(token)["MASTER_PORT"].parse::<u16>().unwrap();
    assert!(port(first).abs_diff(port(second)) >= PORTS_OF_A_GANG);
}

#[test]
fn the_order_is_the_same_after_a_restart_on_other_hosts() {
    let mut lab = hosts(3);
    let job = lab.submit(2, 2);
    let first = lab.start(job, &[(0, 1), (1, 2)]);
    lab.ends(first[0], AttemptEnd::Vanished { reason: "x".into() });
    lab.ends(first[1], AttemptEnd::GangBroken);
    let again = lab.start(job, &[(0, 3), (1, 1)]);
    let seats = meeting(&lab.0, again[1]).unwrap().seats;
    assert_eq!(seats.iter().map(|seat| (seat.index, seat.host.0)).collect::<Vec<_>>(), [(0, 3), (1, 1)]);
    assert_eq!(lab.env(again[1])["MASTER_ADDR"], "10.0.0.3");
}

#[test]
fn rank_0_is_where_the_ports_are_whatever_the_order_of_the_grants() {
    let mut lab = hosts(2);
    let job = lab.submit(2, 2);
    let tokens = lab.start(job, &[(1, 2), (0, 1)]);
    let of = |index| *tokens.iter().find(|t| lab.0.attempt(**t).unwrap().task.index == index).unwrap();
    assert_eq!(lab.env(of(1))["RANK"], "1");
    assert_eq!(lab.env(of(0))["RANK"], "0");
    for index in 0..2 {
        assert_eq!(lab.env(of(index))["MASTER_ADDR"], "10.0.0.1");
        assert_eq!(lab.env(of(index))["MASTER_PORT"], lab.port_of(of(0)));
    }
}

#[test]
fn who_takes_over_the_ports_is_the_first_for_all_that_join_after() {
    let mut lab = hosts(3);
    let job = lab.submit(1, 3);
    let tokens = lab.start(job, &[(0, 1), (1, 2)]);
    lab.ends(tokens[0], AttemptEnd::Vanished { reason: "x".into() });
    let late = meeting(&lab.0, tokens[1]).unwrap();
    assert_eq!((late.seats.len(), late.rank, late.port), (2, 1, None), "its rank 0 is gone");

    let heir = lab.start(job, &[(2, 3)])[0];
    let joined = lab.start(job, &[(0, 1)])[0];
    assert_eq!((lab.env(heir)["RANK"].as_str(), lab.env(joined)["RANK"].as_str()), ("0", "1"));
    assert_eq!(lab.env(joined)["MASTER_ADDR"], "10.0.0.3");
    let roster = roster(&lab.0, job).unwrap();
    assert!(roster.contains("\nindices=2,0,1\n") && roster.contains("\nmaster_addr=10.0.0.3\n"), "{roster}");
}

#[test]
fn a_host_that_launches_late_tells_the_size_that_the_others_told() {
    let mut lab = hosts(3);
    let job = lab.submit(2, 3);
    let tokens = lab.start(job, &[(0, 1), (1, 2), (2, 3)]);
    let before = lab.env(tokens[2]);
    lab.ends(tokens[1], AttemptEnd::Vanished { reason: "x".into() });
    assert_eq!(lab.env(tokens[2]), before);
    let roster = roster(&lab.0, job).unwrap();
    assert!(roster.starts_with("size=2\nmin=2\nmax=3\nindices=0,2\nhosts=10.0.0.1,10.0.0.3\n"), "{roster}");
    let port = lab.port_of(tokens[0]);
    assert!(roster.contains(&format!("\nmaster_addr=10.0.0.1\nmaster_port={port}\n")), "{roster}");

    // One that joins is told of those that are there.
    let joined = lab.start(job, &[(1, 1)]);
    let env = lab.env(joined[0]);
    assert_eq!((env["WORLD_SIZE"].as_str(), env["RANK"].as_str()), ("3", "1"));
    assert_eq!(env["ROTA_GANG_HOSTS"], "10.0.0.1,10.0.0.1,10.0.0.3");
    assert_eq!(env["MASTER_PORT"], port);
    assert_eq!(lab.env(tokens[0])["WORLD_SIZE"], "3", "and nothing changes for those");
}

/// The host of the first start registers anew, and another plan starts the gang elsewhere: all in one entry.
#[test]
fn of_two_starts_in_one_entry_the_second_counts() {
    let mut lab = hosts(2);
    let job = lab.submit(2, 2);
    let host = lab.0.host(HostId(2)).unwrap();
    let registration =
        HostRegistration { boot: BootId(99), addr: host.addr.clone(), facts: HostFacts::clone(&host.facts) };
    let plans = [lab.plan(job, &[(0, 2), (1, 2)]), lab.plan(job, &[(0, 1), (1, 1)])];
    let [first, second] = plans;
    let anew = Command::RegisterHost { host: HostId(2), registration };
    let outcomes = lab.does_all(vec![first, anew, second]);
    assert_eq!((&outcomes[0], &outcomes[2]), (&Outcome::Planned { refused: vec![] }, &outcomes[0]));
    let tokens: Vec<Token> = lab.0.attempts_of(job).map(|a| a.token).collect();
    let told = meeting(&lab.0, tokens[1]).unwrap();
    let seats: Vec<_> = told.seats.iter().map(|seat| (seat.index, seat.host.0)).collect();
    let port = lab.0.attempt(tokens[0]).unwrap().port;
    assert!(port.is_some());
    assert_eq!((seats, told.rank, told.port), (vec![(0, 1), (1, 1)], 1, port));
}

/// R083: cards may talk over another network than hosts, and each host says where.
#[test]
fn parts_meet_where_their_hosts_say_that_gangs_meet() {
    let mut lab = Lab::new(&["10.0.0.1:4600", "10.0.0.2:4600"]);
    let job = lab.submit(2, 2);
    for (host, gang) in [(1, "10.9.0.1"), (2, "fd00:9::2")] {
        let mut known = lab.0.host(HostId(host)).unwrap().clone();
        let mut facts = (*known.facts).clone();
        facts.labels.insert(ADDR_LABEL.to_owned(), gang.to_owned());
        let registration =
            HostRegistration { boot: BootId(u128::from(host)), addr: std::mem::take(&mut known.addr), facts };
        lab.does(Command::RegisterHost { host: HostId(host), registration });
    }
    let tokens = lab.start(job, &[(0, 1), (1, 2)]);
    assert_eq!(lab.env(tokens[1])["MASTER_ADDR"], "10.9.0.1");
    assert_eq!(lab.env(tokens[1])["ROTA_GANG_HOSTS"], "10.9.0.1,fd00:9::2");
    // Peers are dialled where they were.
    assert_eq!(lab.0.host(HostId(1)).unwrap().addr, "10.0.0.1:4600");
}

#[test]
fn addresses_are_as_a_program_takes_them() {
    assert_eq!(bare_host("10.0.0.1:4600"), "10.0.0.1");
    assert_eq!(bare_host("[fd00::1]:4600"), "fd00::1");
    assert_eq!(bare_host("[fe80::1%eth0]:4600"), "fe80::1%eth0");
    assert_eq!(bare_host("gpu-01.lab:4600"), "gpu-01.lab");
    assert_eq!(bare_host("fd00::1"), "fd00::1");
    assert_eq!(bare_host("gpu-01"), "gpu-01");
    let mut lab = Lab::new(&["[fd00::1]:4600", "[fd00::2]:4600"]);
    let job = lab.submit(2, 2);
    let tokens = lab.start(job, &[(0, 1), (1, 2)]);
    assert_eq!(lab.env(tokens[1])["MASTER_ADDR"], "fd00::1");
    assert_eq!(lab.env(tokens[1])["ROTA_GANG_HOSTS"], "fd00::1,fd00::2");
    let port = lab.port_of(tokens[0]);
    assert_eq!(lab.env(tokens[1])["ROTA_MASTER"], format!("[fd00::1]:{port}"));
    let told = meeting(&lab.0, tokens[1]).unwrap();
    assert_eq!(told.hosts_file(), "fd00::1 slots=1\nfd00::2 slots=1\n");
    assert_eq!(told.machines_file(), "h1:1\nh2:1\n", "a colon means a number there");
}

#[test]
fn a_job_that_is_no_gang_meets_nobody() {
    let mut lab = hosts(1);
    let spec = JobSpec { argv: vec![b"x".to_vec()], ..JobSpec::default() };
    let Outcome::Submitted { job } = lab.does(Command::Submit { spec }) else { panic!() };
    let token = lab.start(job, &[(0, 1)])[0];
    assert_eq!(meeting(&lab.0, token), None);
    assert_eq!(roster(&lab.0, job), None);
    assert_eq!(meeting(&lab.0, Token(9)), None);
}

#[test]
fn launchers_find_what_they_read() {
    let mut lab = hosts(3);
    let job = lab.submit(4, 4);
    let tokens = lab.start(job, &[(0, 2), (1, 2), (2, 1), (3, 3)]);
    let port = lab.port_of(tokens[0]);
    for (rank, token) in tokens.iter().enumerate() {
        let env = lab.env(*token);
        for (name, value) in [
            ("NNODES", "3"),
            ("PET_NNODES", "4"),
            ("PET_NODE_RANK", &rank.to_string()),
            ("PET_NPROC_PER_NODE", "1"),
            ("PET_MASTER_ADDR", "10.0.0.2"),
            ("PET_MASTER_PORT", &port),
            ("ROTA_MASTER", &format!("10.0.0.2:{port}")),
            ("GROUP_RANK", &env["NODE_RANK"].clone()),
        ] {
            assert_eq!(env[name], value, "{name} of {rank}");
        }
        assert!(!env.keys().any(|name| name.starts_with("PET_RDZV")), "a rigid gang meets at rank 0");
        let told = meeting(&lab.0, *token).unwrap();
        assert_eq!(told.hosts_file(), "10.0.0.2 slots=2\n10.0.0.1 slots=1\n10.0.0.3 slots=1\n");
        assert_eq!(told.machines_file(), "10.0.0.2:2\n10.0.0.1:1\n10.0.0.3:1\n");
        let ports = told.around().ports;
        let expected = if rank == 0 { (port.parse().unwrap(), PORTS_OF_A_GANG) } else { (0, 0) };
        assert_eq!(ports, expected, "only where they lie they must be free");
    }
}

#[test]
fn an_elastic_gang_meets_by_c10d_beside_the_programs_own_port() {
    let mut lab = hosts(2);
    let job = lab.submit(1, 3);
    let tokens = lab.start(job, &[(0, 1), (1, 2)]);
    let (env, port) = (lab.env(tokens[1]), lab.port_of(tokens[0]).parse::<u16>().unwrap());
    for (name, value) in [
        ("PET_NNODES", "1:3"),
        ("PET_RDZV_BACKEND", "c10d"),
        ("PET_RDZV_ENDPOINT", &format!("10.0.0.1:{}", port + 1)),
        ("PET_RDZV_ID", &job.to_string()),
    ] {
        assert_eq!(env[name], value, "{name}");
    }
}

/// R039: loopback and wildcards are told to nobody who could not use them.
#[test]
fn an_address_that_others_cannot_reach_gives_way_to_the_name() {
    let mut local = Lab::new(&["127.0.0.1:1", "127.0.0.1:2"]);
    let job = local.submit(2, 2);
    let tokens = local.start(job, &[(0, 1), (1, 2)]);
    assert_eq!(local.env(tokens[1])["MASTER_ADDR"], "127.0.0.1", "all parts are there");

    let mut mixed = Lab::new(&["127.0.0.1:1", "10.0.0.2:1", "0.0.0.0:1", "[::]:1", "[::1]:1"]);
    for (first, second, told) in [
        (1, 2, "h1,10.0.0.2"),
        (2, 1, "10.0.0.2,h1"),
        (3, 2, "h3,10.0.0.2"),
        (4, 2, "h4,10.0.0.2"),
        (5, 2, "h5,10.0.0.2"),
        (1, 1, "127.0.0.1,127.0.0.1"),
        (1, 5, "127.0.0.1,::1"),
    ] {
        let job = mixed.submit(2, 2);
        let tokens = mixed.start(job, &[(0, first), (1, second)]);
        for token in &tokens {
            assert_eq!(mixed.env(*token)["ROTA_GANG_HOSTS"], told);
            assert_eq!(mixed.env(*token)["MASTER_ADDR"], told.split(',').next().unwrap());
        }
        assert!(roster(&mixed.0, job).unwrap().contains(&format!("\nhosts={told}\n")));
    }
}
