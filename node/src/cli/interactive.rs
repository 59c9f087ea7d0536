//! `rota run --pty`, `rota shell`, `rota attach`, `rota exec`: a person, or a program, at a task.
//!
//! They differ only in which session they sit at and in what an end of it means. A lost connection ends nothing; whoever
//! leaves by `~.`, or closes the window, finds the job still there.

use super::context::{Context, tell};
use super::failure::{Failure, STATUS_INTERRUPTED};
use super::follow::{JobWatch, Output, Piece, Wanted};
use super::job_args::Here;
use super::run::{RunArgs, accept_to_watch, cancel, status};
use super::sit::{Left, Seat, is_passing};
use super::terminal::{is_person, size};
use clap::Args;
use rota_protocol::api::{ApiRequest, OutputStream};
use rota_protocol::job::JobSpec;
use rota_protocol::session::{MAIN_SESSION, SessionAsk, SessionEnd, SessionSpec};
use rota_protocol::{ErrorCode, JobId, PublicError};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;
use tokio::io::AsyncWriteExt;

/// How long a task with `--kill-on-disconnect` is held without its client, in ms: a restart of an agent and a short cut
/// of the network are not a disconnect.
const HOLD_MS: u32 = 30_000;
/// How long the end of a job is waited for when its terminal is over.
const END_LIMIT: Duration = Duration::from_secs(3);
/// First pause before a task is asked again whether it runs.
const START_PAUSE: Duration = Duration::from_millis(5);
/// The longest.
const START_PAUSE_MAX: Duration = Duration::from_millis(200);

/// Run a shell in the cluster.
#[derive(Debug, Args)]
pub struct ShellArgs {
    /// The job; a command is run instead of the shell
    #[command(flatten)]
    pub run: RunArgs,
}

/// Sit down at the terminal of a running job.
#[derive(Debug, Args)]
pub struct AttachArgs {
    /// 123, or last
    #[arg(value_name = "JOB")]
    pub job: String,
    /// Print errors as JSON
    #[arg(long)]
    pub json: bool,
}

/// Run a command inside a running task.
#[derive(Debug, Args)]
pub struct ExecArgs {
    /// 123, 123_4, or last
    #[arg(value_name = "JOB")]
    pub job: String,
    /// Which task of an array or part of a gang
    #[arg(long, value_name = "INDEX")]
    pub task: Option<u32>,
    /// On a terminal, even if this is none
    #[arg(long, conflicts_with = "no_pty")]
    pub pty: bool,
    /// Without a terminal, even if this is one
    #[arg(long)]
    pub no_pty: bool,
    /// Print errors as JSON
    #[arg(long)]
    pub json: bool,
    /// The program and its arguments
    #[arg(trailing_var_arg = true, required = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// Runs `rota shell`.
///
/// # Errors
/// As for [`run_on_terminal`].
pub async fn shell(context: &Context, args: &ShellArgs) -> Result<u8, Failure> {
    let here = Here::now()?;
    let mut job = args.run.job.clone();
    if job.command.is_empty() {
        let shell = here.var(b"SHELL").filter(|shell| !shell.is_empty());
        job.command = vec![shell.unwrap_or(OsStr::new("/bin/sh")).to_owned()];
    }
    let spec = job.job_spec(None, &here)?;
    run_on_terminal(context, spec, args.run.kill_on_disconnect, &here).await
}

/// Runs a job with a terminal, and sits at it. The status is the job's.
///
/// # Errors
/// The job is refused, or contact to the cluster is lost for good.
pub async fn run_on_terminal(
    context: &Context,
    mut spec: JobSpec,
    kill_on_disconnect: bool,
    here: &Here,
) -> Result<u8, Failure> {
    let hold_ms = kill_on_disconnect.then_some(HOLD_MS);
    spec.session = Some(Box::new(SessionSpec { size: size(), hold_ms }));
    if let Some(term) = here.var(b"TERM").filter(|_| !spec.env.iter().any(|(name, _)| name == b"TERM")) {
        spec.env.push((b"TERM".to_vec(), term.as_bytes().to_vec()));
    }
    let job = accept_to_watch(context, spec).await?;
    let mut seat = seat(context, job, 0, MAIN_SESSION, hold_ms);
    let mut watch = JobWatch::new(&context.client, job, None);
    let mut output = Output::new(&context.client, Wanted::all(job, OutputStream::Stdout), None);
    let shown = async {
        let mut out = tokio::io::stdout();
        while let Some(piece) = output.next().await? {
            let bytes = match piece {
                Piece::Bytes(bytes) => bytes,
                Piece::Told(line) => format!("\r\n[rota: {line}]\r\n").into_bytes(),
            };
            let written = async {
                out.write_all(&bytes).await?;
                out.flush().await
            };
            written.await.map_err(|e| PublicError::new(ErrorCode::Internal, format!("cannot write: {e}")))?;
        }
        Ok(None)
    };
    tokio::pin!(shown);
    // Until it runs this side's terminal is left as it is: an interrupt means this command.
    let runs = tokio::select! {
        runs = until_it_runs(&seat, &mut watch) => runs?,
        _ = tokio::signal::ctrl_c() => {
            cancel(&context.client, job).await?;
            tell(&format!("job {job} is cancelled"));
            return Err(Failure::Quiet(STATUS_INTERRUPTED));
        }
    };
    seat.attempt = None;
    if !runs {
        shown.await?;
    } else if seat.sit(true, shown).await? == Left::ByWish {
        return Ok(left(job, hold_ms));
    }
    status(context, &watch.last().await?).await
}

/// False when the job was over before anybody could sit down.
async fn until_it_runs(seat: &Seat<'_>, watch: &mut JobWatch<'_>) -> Result<bool, PublicError> {
    let asks = async {
        let mut pause = START_PAUSE;
        loop {
            match seat.hello(Some(size())).await {
                Ok(_) => return Ok(true),
                // Not yet, or out of reach for the moment.
                Err(error) if matches!(error.code, ErrorCode::Conflict | ErrorCode::NotFound) => {}
                Err(error) if is_passing(&error) => {}
                Err(error) => return Err(error),
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(START_PAUSE_MAX);
        }
    };
    tokio::pin!(asks);
    loop {
        tokio::select! {
            runs = &mut asks => return runs,
            row = watch.next() => if row?.state.is_terminal() {
                return Ok(false);
            },
        }
    }
}

fn left(job: JobId, hold_ms: Option<u32>) -> u8 {
    match hold_ms {
        None => tell(&format!("left; job {job} goes on: `rota attach {job}`, `rota cancel {job}`")),
        Some(ms) => tell(&format!("left; job {job} is ended in {} s", ms / 1_000)),
    }
    0
}

fn seat(context: &Context, job: JobId, index: u32, session: u64, hold_ms: Option<u32>) -> Seat<'_> {
    let (client, control) = (&context.client, context.client.beside());
    Seat { client, control, job, index, attempt: None, session, hold_ms, me: rand::random() }
}

/// Runs `rota attach`.
///
/// # Errors
/// The job does not run, has no terminal, or is somebody else's.
pub async fn attach(context: &Context, args: &AttachArgs) -> Result<u8, Failure> {
    let job = context.whole_job(&args.job).await?;
    let mut seat = seat(context, job, 0, MAIN_SESSION, None);
    let hello = seat.hello(Some(size())).await?;
    seat.attempt = Some(hello.attempt);
    let shown = seat.show(OutputStream::Stdout, Seat::shown_from(hello.stdout), tokio::io::stdout());
    match seat.sit(true, shown).await? {
        Left::ByWish => Ok(left(job, None)),
        Left::Over(_) => {
            // The log hears of it a moment later.
            let mut watch = JobWatch::new(&context.client, job, None);
            match tokio::time::timeout(END_LIMIT, watch.last()).await {
                Ok(row) => status(context, &row?).await,
                Err(_) => {
                    tell(&format!("this run of job {job} is over, the job is not; see `rota show {job}`"));
                    Ok(0)
                }
            }
        }
    }
}

/// Runs `rota exec`. The status is the command's.
///
/// # Errors
/// The task does not run, or is somebody else's; the command cannot be started.
pub async fn exec(context: &Context, args: &ExecArgs) -> Result<u8, Failure> {
    let (job, index) = context.job(&args.job).await?;
    if let (Some(index), Some(task)) = (index, args.task)
        && index != task
    {
        let message = format!("{} names task {index}, --task {task}", args.job);
        return Err(Failure::Refused(PublicError::invalid("task", message, &format!("{job} --task {task}"))));
    }
    let index = match index.or(args.task) {
        Some(index) => index,
        None => first_index(context, job).await?,
    };
    let terminal = args.pty || (!args.no_pty && is_person());
    let mut seat = seat(context, job, index, rand::random::<u64>().max(1), None);
    let ask = SessionAsk::Start {
        argv: args.command.iter().map(|word| word.as_bytes().to_vec()).collect(),
        terminal: terminal.then(size),
        term: std::env::var_os("TERM").unwrap_or_else(|| "dumb".into()).as_bytes().to_vec(),
    };
    let started = seat.ask(&seat.control, ask).await?;
    seat.attempt = Some(started.attempt);
    let outputs = async {
        let (out, err) = tokio::try_join!(
            seat.show(OutputStream::Stdout, 0, tokio::io::stdout()),
            seat.show(OutputStream::Stderr, 0, tokio::io::stderr()),
        )?;
        Ok(out.or(err))
    };
    let left = seat.sit(terminal, outputs).await;
    // Whoever leaves a command ends it: nobody could find it again.
    let _ = tokio::time::timeout(Duration::from_secs(2), seat.ask(&seat.control, SessionAsk::Close)).await;
    Ok(match left? {
        Left::ByWish => STATUS_INTERRUPTED,
        Left::Over(end) => {
            if let Some(end @ (SessionEnd::WithTask | SessionEnd::NotStarted { .. })) = &end {
                tell(&format!("job {job}: {end}"));
            }
            end.map_or(0, |end| end.shell_status())
        }
    })
}

/// The task of a plain job, or the only one of an array that is named by its job alone.
async fn first_index(context: &Context, job: JobId) -> Result<u32, Failure> {
    let show = ApiRequest::Show { job, freshness: rota_protocol::api::Freshness::Linearizable };
    match context.client.call(show).await? {
        rota_protocol::api::ApiReply::Job(view) => Ok(view.spec.array.map_or(0, |array| array.index(0))),
        other => Err(crate::client::unexpected(&other).into()),
    }
}
