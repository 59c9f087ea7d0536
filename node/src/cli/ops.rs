//! Arguments of the commands that run or build a cluster, and the table of functions that carry them out. The
//! functions live elsewhere in the crate and are handed over by `main`.

use super::Failure;
use crate::bench::{followers, planner};
use clap::{Args, Subcommand, ValueEnum};
use std::path::PathBuf;

/// What a command gives back: its exit status, or why it failed.
pub type Outcome = Result<u8, Failure>;

/// Who carries out the commands that are not the client's.
#[derive(Clone, Copy)]
pub struct Handlers {
    /// `rota init`
    pub init: fn(InitArgs) -> Outcome,
    /// `rota join`
    pub join: fn(JoinArgs) -> Outcome,
    /// `rota agent`
    pub agent: fn(AgentArgs) -> Outcome,
    /// `rota dev`
    pub dev: fn(DevArgs) -> Outcome,
    /// `rota demo`
    pub demo: fn(DemoArgs) -> Outcome,
    /// `rota bench`
    pub bench: fn(BenchArgs) -> Outcome,
}

/// Found a cluster with this host as its first.
#[derive(Debug, Args)]
pub struct InitArgs {
    /// Where this host keeps its identity, log and attempts
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// This host's name [default: its host name]
    #[arg(long)]
    pub name: Option<String>,
    /// The cluster's name, for people
    #[arg(long, default_value = "rota")]
    pub cluster_name: String,
    /// UDP address for peers, joins and remote clients [default: 0.0.0.0:7420]
    #[arg(long, value_name = "ADDR:PORT")]
    pub listen: Option<String>,
    /// What other hosts dial: an interface, a network or an address [default: chosen, and told]
    #[arg(long, value_name = "WHERE")]
    pub advertise: Option<String>,
}

/// Make this host part of a cluster.
#[derive(Debug, Args)]
pub struct JoinArgs {
    /// Set aside what this machine was to a cluster, and join as a new host
    #[arg(long)]
    pub replace: bool,
    /// A host of the cluster
    #[arg(value_name = "HOST:PORT")]
    pub peer: String,
    /// The token that `rota cluster token --join` printed; - reads it from standard input [env: ROTA_JOIN_TOKEN]
    #[arg(long)]
    pub token: Option<String>,
    /// Where this host keeps its identity, log and attempts
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// This host's name [default: its host name]
    #[arg(long)]
    pub name: Option<String>,
    /// UDP address for peers, joins and remote clients [default: 0.0.0.0:7420]
    #[arg(long, value_name = "ADDR:PORT")]
    pub listen: Option<String>,
    /// What other hosts dial: an interface, a network or an address [default: chosen, and told]
    #[arg(long, value_name = "WHERE")]
    pub advertise: Option<String>,
}

/// Run this host's agent.
#[derive(Debug, Args)]
pub struct AgentArgs {
    /// Settings in TOML; flags win over it
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Identity, log, attempts and socket
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// UDP address for peers, joins and remote clients
    #[arg(long, value_name = "ADDR:PORT")]
    pub listen: Option<String>,
    /// What other hosts dial: an interface, a network or an address [default: chosen, and told]
    #[arg(long, value_name = "WHERE")]
    pub advertise: Option<String>,
    /// TCP address for /metrics and /healthz, or off
    #[arg(long, value_name = "ADDR:PORT")]
    pub http_listen: Option<String>,
    /// Simulated devices instead of the real ones, such as 8xH100:80GiB
    #[arg(long, value_name = "DEVICES")]
    pub sim_gpus: Option<String>,
    /// CPUs to offer, if not all
    #[arg(long)]
    pub cpus: Option<String>,
    /// Memory to offer, if not all but a reserve
    #[arg(long)]
    pub mem: Option<String>,
    /// Time bounds: production or chaos
    #[arg(long)]
    pub profile: Option<String>,
    /// How far tasks are kept apart: full, basic or none
    #[arg(long)]
    pub isolation: Option<String>,
    /// A label that jobs may ask for; may be repeated
    #[arg(long = "label", value_name = "KEY=VALUE")]
    pub labels: Vec<String>,
    /// Where the NVIDIA management library lies
    #[arg(long, value_name = "FILE")]
    pub nvml_library: Option<PathBuf>,
    /// Serve /metrics to loopback callers without a token
    #[arg(long)]
    pub metrics_open_on_loopback: bool,
    /// podman, apptainer, enroot, docker, the path of one of them, or off [default: the first found]
    #[arg(long, value_name = "RUNTIME")]
    pub container_runtime: Option<String>,
}

/// Run a cluster of one host in the foreground, for trying things out.
#[derive(Debug, Args)]
pub struct DevArgs {
    /// Where it keeps its data [default: the user's data folder]
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Simulated devices instead of the real ones, such as 2xH100:80GiB
    #[arg(long, value_name = "DEVICES")]
    pub sim_gpus: Option<String>,
    /// CPUs to offer, if not all
    #[arg(long)]
    pub cpus: Option<String>,
}

/// Three hosts on this machine, real jobs, the leader killed half-way.
#[derive(Debug, Args)]
pub struct DemoArgs {
    /// One JSON document at the end
    #[arg(long)]
    pub json: bool,
    /// Keep the cluster's folder
    #[arg(long)]
    pub keep: bool,
}

/// Measure this build on this machine.
#[derive(Debug, Args)]
#[command(after_help = super::figures::FIGURES)]
pub struct BenchArgs {
    /// Which.
    #[command(subcommand)]
    pub kind: BenchKind,
}

/// What is measured.
#[derive(Debug, Subcommand)]
pub enum BenchKind {
    /// Jobs accepted a second
    Submit(BenchSubmitArgs),
    /// From `rota run` to its end, one at a time
    Launch(BenchLaunchArgs),
    /// Tasks run a second
    Burst(BenchBurstArgs),
    /// Short attempts a second on one host, and what they leave behind
    Attempts(BenchAttemptsArgs),
    /// How long no submit is answered when the leader is killed, or hands over by plan
    Failover(BenchFailoverArgs),
    /// What clients feel of a restart of every agent in turn
    Rolling(BenchRollingArgs),
    /// What a cluster without work costs
    Idle(BenchIdleArgs),
    /// What many jobs cost that are kept: memory, snapshot, restart; in this process, on the real disk
    Keep(BenchKeepArgs),
    /// A steady mixture of submits, repetitions, cancels and preemptions, and what grows under it
    Soak(BenchSoakArgs),
    /// One tenant floods: what another feels, and whether anybody loses its leader
    Flood(BenchFloodArgs),
    /// What hosts that are no members cost the leader, and when they see what was committed
    Followers(followers::FollowersArgs),
    /// How long the planner takes for a round, in memory
    Plan(planner::PlanArgs),
    /// How long the planner takes to find what a queue is owed, in memory
    Reclaim(planner::ReclaimArgs),
    /// How long it takes until many jobs of many queues have started, in memory
    Admit(planner::AdmitArgs),
    /// Whether all replicas plan alike and hold the same state, bit for bit, in memory
    Replicas(planner::ReplicasArgs),
}

/// `rota bench submit`
#[derive(Debug, Args)]
pub struct BenchSubmitArgs {
    /// Hosts
    #[arg(long, default_value_t = 3)]
    pub peers: usize,
    /// Clients that submit at once; several numbers are measured one after the other
    #[arg(long, value_delimiter = ',', default_values_t = [16])]
    pub clients: Vec<usize>,
    /// Clients that share a connection
    #[arg(long, default_value_t = 32)]
    pub per_connection: usize,
    /// Jobs in each call
    #[arg(long, default_value_t = 1)]
    pub batch: usize,
    /// How long for each number of clients, in seconds
    #[arg(long, default_value_t = 5)]
    pub seconds: u64,
    /// Last, submit one array of so many elements
    #[arg(long, default_value_t = 0)]
    pub array: u32,
    /// First, measure puts of values as large as a job into three members of etcd on the same disk
    #[arg(long, value_name = "PROGRAM", num_args = 0..=1, default_missing_value = "etcd")]
    pub beside_etcd: Option<String>,
    /// Figures as one JSON document
    #[arg(long)]
    pub json: bool,
}

/// `rota bench keep`
#[derive(Debug, Args)]
pub struct BenchKeepArgs {
    /// Jobs that are over
    #[arg(long, default_value_t = 1_000_000)]
    pub finished: usize,
    /// Jobs that wait
    #[arg(long, default_value_t = 100_000)]
    pub pending: usize,
    /// Elements of one array that waits as well
    #[arg(long, default_value_t = 1_000_000)]
    pub array: u32,
    /// Figures as one JSON document
    #[arg(long)]
    pub json: bool,
}

/// `rota bench soak`
#[derive(Debug, Args)]
pub struct BenchSoakArgs {
    /// Hosts
    #[arg(long, default_value_t = 3)]
    pub peers: usize,
    /// How long, in minutes
    #[arg(long, default_value_t = 10)]
    pub minutes: u64,
    /// Submits a second
    #[arg(long, default_value_t = 50)]
    pub rate: u64,
    /// Figures as one JSON document
    #[arg(long)]
    pub json: bool,
}

/// `rota bench flood`
#[derive(Debug, Args)]
pub struct BenchFloodArgs {
    /// Hosts
    #[arg(long, default_value_t = 3)]
    pub peers: usize,
    /// Clients of the tenant that floods
    #[arg(long, default_value_t = 256)]
    pub clients: usize,
    /// Clients that ask for the cluster's status without pause
    #[arg(long, default_value_t = 16)]
    pub pollers: usize,
    /// How long, in seconds
    #[arg(long, default_value_t = 10)]
    pub seconds: u64,
    /// Figures as one JSON document
    #[arg(long)]
    pub json: bool,
}

/// `rota bench launch`
#[derive(Debug, Args)]
pub struct BenchLaunchArgs {
    /// Hosts
    #[arg(long, default_value_t = 3)]
    pub peers: usize,
    /// Runs that count
    #[arg(long, default_value_t = 100)]
    pub runs: usize,
    /// Figures as one JSON document
    #[arg(long)]
    pub json: bool,
}

/// `rota bench burst`
#[derive(Debug, Args)]
pub struct BenchBurstArgs {
    /// Hosts
    #[arg(long, default_value_t = 3)]
    pub peers: usize,
    /// Tasks
    #[arg(long, default_value_t = 1_000)]
    pub tasks: u32,
    /// CPUs that each host offers, so that many tasks run at once
    #[arg(long, default_value_t = 4)]
    pub slots: u32,
    /// Figures as one JSON document
    #[arg(long)]
    pub json: bool,
}

/// `rota bench attempts`
#[derive(Debug, Args)]
pub struct BenchAttemptsArgs {
    /// Attempts
    #[arg(long, default_value_t = 10_000)]
    pub tasks: u32,
    /// CPUs that the host offers, so that many attempts run at once
    #[arg(long, default_value_t = 64)]
    pub slots: u32,
    /// How far they are kept apart: full, basic or none [default: full]
    #[arg(long)]
    pub isolation: Option<String>,
    /// Figures as one JSON document
    #[arg(long)]
    pub json: bool,
}

/// `rota bench failover`
#[derive(Debug, Args)]
pub struct BenchFailoverArgs {
    /// Hosts
    #[arg(long, default_value_t = 3)]
    pub peers: usize,
    /// What happens to the leader
    #[arg(long, value_enum, default_value_t)]
    pub kind: FailoverKind,
    /// How often it does
    #[arg(long, default_value_t = 10, visible_alias = "moves")]
    pub kills: usize,
    /// Time bounds: production or chaos
    #[arg(long, default_value = "production")]
    pub profile: String,
    /// Figures as one JSON document
    #[arg(long)]
    pub json: bool,
}

/// What happens to the leader.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum FailoverKind {
    /// Its agent is killed
    #[default]
    Kill,
    /// It hands over by plan
    Planned,
}

/// `rota bench rolling`
#[derive(Debug, Args)]
pub struct BenchRollingArgs {
    /// Hosts
    #[arg(long, default_value_t = 5)]
    pub peers: usize,
    /// Stop the next agent without waiting until the one before is back
    #[arg(long)]
    pub hasty: bool,
    /// Time bounds: production or chaos
    #[arg(long, default_value = "production")]
    pub profile: String,
    /// Figures as one JSON document
    #[arg(long)]
    pub json: bool,
}

/// `rota bench idle`
#[derive(Debug, Args)]
pub struct BenchIdleArgs {
    /// Hosts
    #[arg(long, default_value_t = 3)]
    pub peers: usize,
    /// Jobs, each with an ask of its own, that wait behind taken cards
    #[arg(long, default_value_t = 0)]
    pub waiting: u32,
    /// How long, in seconds
    #[arg(long, default_value_t = 10)]
    pub seconds: u64,
    /// Figures as one JSON document
    #[arg(long)]
    pub json: bool,
}
