//! The command line: which commands there are, what they take, and how they end.
//!
//! Exit status: 0 done, 1 failed, 2 refused as invalid, 141 our reader went away; `run`, `wait` and `logs -f` end
//! with the job's own status (120 taker or idler, 121 deadline missed, 122 dependency failed, 123 preempted for good, 124 time limit, 125 host
//! lost, 127 could not start, 130 cancelled).
//!
//! What this is not: it decides nothing and keeps nothing. Client commands run on a one-thread runtime that is made
//! only for them, because `rota run -- true` is measured in milliseconds.

pub mod adjust;
pub mod cluster;
pub mod context;
pub mod control;
mod culprit;
pub mod data;
pub mod device;
pub mod echo;
pub mod ends;
pub mod failure;
pub mod figures;
pub mod follow;
pub mod history;
pub mod hosts;
pub mod interactive;
pub mod job_args;
pub mod job_flags;
pub mod jobs;
pub mod lead;
pub mod logs;
pub mod members;
pub mod ops;
pub mod queues;
pub mod reach;
pub mod recovery;
pub mod reservations;
pub mod run;
pub mod sim;
mod sit;
pub mod submit;
mod terminal;
#[cfg(test)]
mod tests;
pub mod times;
mod trust;
pub mod usage;
pub mod watch;
pub mod why;

pub use context::TargetArgs;
pub use failure::Failure;
pub use ops::{Handlers, Outcome};

use clap::{Parser, Subcommand};
use context::Context;
use rota_protocol::command::JobChange;
use std::ffi::OsString;
use std::process::ExitCode;

/// A scheduler for GPU work over hosts that are all equal.
#[derive(Debug, Parser)]
#[command(name = "rota", version, propagate_version = true, disable_help_subcommand = true)]
pub struct Cli {
    /// Where the cluster is.
    #[command(flatten)]
    pub target: TargetArgs,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What can be done.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run a command in the cluster as if it were here
    Run(run::RunArgs),
    /// Run a shell in the cluster, on a terminal
    Shell(interactive::ShellArgs),
    /// Sit down at the terminal of a running job
    Attach(interactive::AttachArgs),
    /// Run a command inside a running task
    Exec(interactive::ExecArgs),
    /// Hand a job over and return at once
    Submit(submit::SubmitArgs),
    /// List jobs
    Queue(jobs::QueueArgs),
    /// All about one job
    Show(jobs::ShowArgs),
    /// Why a job waits
    Why(why::WhyArgs),
    /// Print a task's output
    Logs(logs::LogsArgs),
    /// End jobs or tasks, or send them a signal
    Cancel(control::CancelArgs),
    /// Wait until jobs are over
    Wait(control::WaitArgs),
    /// Keep waiting jobs from starting
    Hold(adjust::AdjustArgs),
    /// Let held jobs start
    Release(adjust::AdjustArgs),
    /// End what runs of jobs and queue it again
    Requeue(adjust::AdjustArgs),
    /// Give jobs another priority
    Priority(adjust::PriorityArgs),
    /// List queues, make them, change their rules
    Queues(queues::QueuesArgs),
    /// Keep hosts for a time
    Reserve(reservations::ReserveArgs),
    /// Give reserved hosts back
    Unreserve(reservations::UnreserveArgs),
    /// List reservations
    Reservations(reservations::ReservationsArgs),
    /// What was held, and what of it was not used
    Usage(usage::UsageArgs),
    /// What jobs go through, as it happens
    Watch(watch::WatchArgs),
    /// Keep data for jobs, list it, give it up
    Data(data::DataArgs),
    /// List hosts
    Hosts(hosts::HostsArgs),
    /// List devices
    Devices(hosts::DevicesArgs),
    /// Keep work off a device, or clear what is held against it
    Device(device::DeviceArgs),
    /// Place nothing new on a host
    Drain(hosts::DrainArgs),
    /// Let a host take work again
    Undrain(hosts::UndrainArgs),
    /// The cluster itself: status, tokens
    Cluster(cluster::ClusterArgs),
    /// Is this host fit, and if not, what is the next step?
    Doctor(cluster::DoctorArgs),
    /// Found a cluster with this host as its first
    Init(ops::InitArgs),
    /// Make this host part of a cluster
    Join(ops::JoinArgs),
    /// Run this host's agent
    Agent(ops::AgentArgs),
    /// Run a cluster in the foreground, for trying things out
    Dev(ops::DevArgs),
    /// Three hosts on this machine, real jobs, the leader killed half-way
    Demo(ops::DemoArgs),
    /// Measure this build on this machine
    Bench(ops::BenchArgs),
    /// What became of all jobs, as a file that `rota sim replay` takes
    History(history::HistoryArgs),
    /// Replay a trace on the scheduler in virtual time, and ask what if
    Sim(sim::SimArgs),
}

impl Command {
    /// Whether results and errors are JSON.
    fn json(&self) -> bool {
        match self {
            Self::Run(args) => args.json,
            Self::Shell(args) => args.run.json,
            Self::Attach(args) => args.json,
            Self::Exec(args) => args.json,
            Self::Submit(args) => args.json,
            Self::Queue(args) => args.read.json,
            Self::Show(args) => args.read.json,
            Self::Why(args) => args.json,
            Self::Logs(args) => args.json,
            Self::Cancel(args) => args.json,
            Self::Wait(args) => args.json,
            Self::Hold(args) | Self::Release(args) | Self::Requeue(args) => args.json,
            Self::Priority(args) => args.json,
            Self::Queues(args) => queues::wants_json(args),
            Self::Reserve(args) => args.json,
            Self::Unreserve(args) => args.json,
            Self::Reservations(args) => args.read.json,
            Self::Usage(args) => args.read.json,
            Self::Watch(args) => args.json,
            Self::Data(args) => data::wants_json(args),
            Self::Hosts(args) => args.read.json,
            Self::Devices(args) => args.read.json,
            Self::Device(args) => device::wants_json(args),
            Self::Drain(args) => args.json,
            Self::Undrain(args) => args.json,
            Self::Cluster(args) => cluster::wants_json(args),
            Self::Doctor(args) => args.json,
            Self::Demo(args) => args.json,
            Self::History(args) => args.read.json,
            Self::Sim(args) => args.json(),
            Self::Init(_) | Self::Join(_) | Self::Agent(_) | Self::Dev(_) | Self::Bench(_) => false,
        }
    }
}

/// Reads the arguments, runs the command, prints what went wrong, and gives the process's exit status.
pub fn main(args: impl IntoIterator<Item = OsString>, handlers: &Handlers) -> ExitCode {
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) => {
            // Help goes to standard output with status 0, a mistake to standard error with 2.
            let _ = error.print();
            if let Some(hint) = foreign(&error) {
                context::tell(hint);
            }
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(failure::STATUS_INVALID));
        }
    };
    let json = cli.command.json();
    match dispatch(cli, handlers) {
        Ok(status) => ExitCode::from(status),
        Err(failure) => {
            if let Some(report) = failure.report(json) {
                use std::io::Write;
                let _ = writeln!(std::io::stderr().lock(), "{report}");
            }
            ExitCode::from(failure.status())
        }
    }
}

/// What another scheduler's flag is called here, where the likeliest spelling would lead astray.
fn foreign(error: &clap::Error) -> Option<&'static str> {
    use clap::error::{ContextKind, ContextValue};
    let Some(ContextValue::String(flag)) = error.get(ContextKind::InvalidArg) else { return None };
    match flag.split('=').next().unwrap_or_default() {
        "--gres" | "--gpus-per-node" | "--gpus-per-task" => {
            Some("GPUs are asked by --gpus, such as --gpus 2 --gpu-model H100")
        }
        "--cpus-per-task" | "--ntasks" => {
            Some("CPUs of each task are asked by --cpus, parts that run together by --gang")
        }
        _ => None,
    }
}

fn dispatch(cli: Cli, handlers: &Handlers) -> Outcome {
    match cli.command {
        Command::Init(args) => (handlers.init)(args),
        Command::Join(args) => (handlers.join)(args),
        Command::Agent(args) => (handlers.agent)(args),
        Command::Dev(args) => (handlers.dev)(args),
        Command::Demo(args) => (handlers.demo)(args),
        Command::Bench(args) => (handlers.bench)(args),
        Command::Sim(args) => sim::sim(&args),
        command => {
            let context = Context::new(&cli.target)?;
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::other)?;
            let outcome = runtime.block_on(ask(&context, &command));
            if let Some(age) = context.client.age() {
                context::tell(&format!("as of {} ms ago", age.as_millis()));
            }
            // A write that hangs on a stopped reader must not keep the process.
            runtime.shutdown_background();
            outcome
        }
    }
}

async fn ask(context: &Context, command: &Command) -> Outcome {
    match command {
        Command::Run(args) => run::run(context, args).await,
        Command::Shell(args) => interactive::shell(context, args).await,
        Command::Attach(args) => interactive::attach(context, args).await,
        Command::Exec(args) => interactive::exec(context, args).await,
        Command::Submit(args) => submit::submit(context, args).await,
        Command::Queue(args) => jobs::queue(context, args).await,
        Command::Show(args) => jobs::show(context, args).await,
        Command::Why(args) => why::why(context, args).await,
        Command::Logs(args) => logs::logs(context, args).await,
        Command::Cancel(args) => control::cancel(context, args).await,
        Command::Wait(args) => control::wait(context, args).await,
        Command::Hold(args) => adjust::adjust(context, args, JobChange::Hold).await,
        Command::Release(args) => adjust::adjust(context, args, JobChange::Release).await,
        Command::Requeue(args) => adjust::adjust(context, args, JobChange::Requeue).await,
        Command::Priority(args) => adjust::priority(context, args).await,
        Command::Queues(args) => queues::queues(context, args).await,
        Command::Reserve(args) => reservations::reserve(context, args).await,
        Command::Unreserve(args) => reservations::unreserve(context, args).await,
        Command::Reservations(args) => reservations::reservations(context, args).await,
        Command::Usage(args) => usage::usage(context, args).await,
        Command::Watch(args) => watch::watch(context, args).await,
        Command::Data(args) => data::data(context, args).await,
        Command::Hosts(args) => hosts::hosts(context, args).await,
        Command::Devices(args) => hosts::devices(context, args).await,
        Command::Device(args) => device::device(context, args).await,
        Command::Drain(args) => hosts::drain(context, args).await,
        Command::Undrain(args) => hosts::undrain(context, args).await,
        Command::Cluster(args) => cluster::cluster(context, args).await,
        Command::Doctor(args) => cluster::doctor(context, args).await,
        Command::History(args) => history::history(context, args).await,
        Command::Init(_)
        | Command::Join(_)
        | Command::Agent(_)
        | Command::Dev(_)
        | Command::Demo(_)
        | Command::Bench(_)
        | Command::Sim(_) => Err(Failure::other("not a client's command")),
    }
}
