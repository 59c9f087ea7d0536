//! `rota run`: a job as if it were a local command. Its output comes as it is written, signals go to it, and its
//! status becomes this process's.
//!
//! A first interrupt goes to the job, or ends it if it still waits; a second one cancels it; a third one leaves.
//! When the reader of our output goes away, the job gets PIPE, as a local command would.

use super::context::{Context, tell};
use super::echo::echo;
use super::ends::end_text;
use super::failure::{
    Failure, STATUS_DEADLINE, STATUS_DEPENDENCY, STATUS_FAILED, STATUS_INTERRUPTED, STATUS_LOST,
    STATUS_PREEMPTED, STATUS_TIME_LIMIT,
};
use super::follow::{JobWatch, Output, Piece, Wanted};
use super::interactive;
use super::job_args::{Here, JobArgs};
use super::submit::{Handed, accept, tell_notes};
use crate::client::steady::Steady;
use crate::client::{fresh_request, unexpected};
use crate::parse::time::duration_text;
use clap::Args;
use futures_util::stream::{FuturesUnordered, StreamExt};
use rota_protocol::api::{ApiReply, ApiRequest, Freshness, OutputStream};
use rota_protocol::job::{AttemptEnd, JobSpec, JobState};
use rota_protocol::view::{JobRow, JobView};
use rota_protocol::{ErrorCode, JobId, PublicError};
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io::{self, IsTerminal};
use std::pin::{Pin, pin};
use std::time::Duration;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// After the job's end, how long its output may stand still before the rest is given up.
const OUTPUT_PATIENCE: Duration = Duration::from_secs(5);
/// A person is told why a job waits when it has waited this long.
const WAIT_UNTOLD: Duration = Duration::from_secs(1);
/// Signals that go to the job.
const FORWARDED: [SignalKind; 6] = [
    SignalKind::interrupt(),
    SignalKind::terminate(),
    SignalKind::hangup(),
    SignalKind::quit(),
    SignalKind::user_defined1(),
    SignalKind::user_defined2(),
];
/// PIPE, on every machine that Rota runs on.
const SIGPIPE: u8 = 13;

/// Run a command in the cluster as if it were here.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// The job.
    #[command(flatten)]
    pub job: JobArgs,
    /// Also show what was understood, and the job's number
    #[arg(long, short)]
    pub verbose: bool,
    /// Print errors as JSON
    #[arg(long)]
    pub json: bool,
    /// On a terminal, with what is typed here; ~. at the beginning of a line leaves
    #[arg(long)]
    pub pty: bool,
    /// With --pty: end the job when this command is gone for 30 s
    #[arg(long)]
    pub kill_on_disconnect: bool,
}

/// Runs the command.
///
/// # Errors
/// The job is refused, or contact to the cluster is lost for good.
pub async fn run(context: &Context, args: &RunArgs) -> Result<u8, Failure> {
    let here = Here::now()?;
    let spec = args.job.job_spec(None, &here)?;
    if spec.array.is_some() {
        return Err(Failure::Refused(PublicError::invalid(
            "array",
            "run takes a job of one task",
            "rota submit --array 0-9",
        )));
    }
    if args.verbose {
        tell_lines(&echo(&spec));
    }
    if args.pty {
        return interactive::run_on_terminal(context, spec, args.kill_on_disconnect, &here).await;
    }
    let mut signals = Signals::new()?;
    let job = accept_to_watch(context, spec).await?;
    if args.verbose {
        tell(&format!("job {job}"));
    }
    let row =
        match (Attached { context, control: context.client.beside(), job }).to_the_end(&mut signals).await {
            Err(Failure::Refused(error)) if error.code != ErrorCode::NotFound => {
                tell(&format!("lost contact: {error}; job {job} goes on, see `rota wait {job}`"));
                return Err(Failure::Quiet(STATUS_LOST));
            }
            other => other?,
        };
    status(context, &row).await
}

fn tell_lines(text: &str) {
    text.lines().for_each(tell);
}

/// One job, followed to its end.
struct Attached<'a> {
    context: &'a Context,
    /// For signals, which must not wait behind output that nobody reads.
    control: Steady,
    job: JobId,
}

type Sending<'a> = Pin<Box<dyn Future<Output = Result<(), PublicError>> + 'a>>;

impl Attached<'_> {
    async fn to_the_end(&self, signals: &mut Signals) -> Result<JobRow, Failure> {
        let (out, err) =
            (Wanted::all(self.job, OutputStream::Stdout), Wanted::all(self.job, OutputStream::Stderr));
        let requests = [ApiRequest::Watch { job: self.job }, out.request(), err.request()];
        let client = &self.context.client;
        let mut streams = client.streams(&requests).await?.into_iter();
        let mut watch = JobWatch::new(client, self.job, streams.next());
        let mut out = Output::new(client, out, streams.next());
        let mut err = Output::new(client, err, streams.next());

        let (seen, moved) = (RefCell::new(None), Cell::new(0));
        let states = async {
            loop {
                let row = watch.next().await?;
                let over = row.state.is_terminal();
                *seen.borrow_mut() = Some(row.clone());
                if over {
                    return Ok::<_, PublicError>(row);
                }
            }
        };
        let outputs = async {
            tokio::try_join!(
                self.pump(&mut out, tokio::io::stdout(), &moved, true),
                self.pump(&mut err, tokio::io::stderr(), &moved, false),
            )
            .map(drop)
        };
        self.attend(signals, &seen, &moved, pin!(states), pin!(outputs)).await
    }

    /// Passes signals on, and says what a person should know, until the job is over and its output printed.
    async fn attend(
        &self,
        signals: &mut Signals,
        seen: &RefCell<Option<JobRow>>,
        moved: &Cell<u64>,
        mut states: Pin<&mut impl Future<Output = Result<JobRow, PublicError>>>,
        mut outputs: Pin<&mut impl Future<Output = Result<(), PublicError>>>,
    ) -> Result<JobRow, Failure> {
        let mut told = pin!(tokio::time::sleep(WAIT_UNTOLD));
        let mut to_tell = io::stderr().is_terminal();
        let mut last: Option<JobRow> = None;
        let mut printed = false;
        let mut interrupts = 0;
        let mut sending: FuturesUnordered<Sending<'_>> = FuturesUnordered::new();
        loop {
            let before = moved.get();
            tokio::select! {
                row = &mut states, if last.is_none() => last = Some(row?),
                result = &mut outputs, if !printed => {
                    printed = true;
                    self.tell_if_failed(result, "the output is not to be had: ");
                }
                number = signals.next() => {
                    let waits = seen.borrow().as_ref().is_none_or(|row| row.state == JobState::Pending);
                    interrupts += u32::from(number == SignalKind::interrupt().as_raw_value());
                    sending.push(self.on_signal(number, waits, interrupts)?);
                }
                Some(result) = sending.next() => self.tell_if_failed(result, ""),
                () = &mut told, if to_tell => {
                    to_tell = false;
                    self.tell_why(seen.borrow().as_ref());
                }
                () = tokio::time::sleep(OUTPUT_PATIENCE), if last.is_some() => {
                    if moved.get() == before {
                        tell(&format!("the rest of the output of job {} is not to be had", self.job));
                        printed = true;
                    }
                }
            }
            if printed && let Some(row) = last.take() {
                return Ok(row);
            }
        }
    }

    fn tell_if_failed(&self, result: Result<(), PublicError>, what: &str) {
        if let Err(error) = result {
            tell(&format!("job {}: {what}{error}", self.job));
        }
    }

    fn tell_why(&self, row: Option<&JobRow>) {
        if let Some(row) = row.filter(|row| row.state == JobState::Pending) {
            tell(&format!("job {} waits {}; `rota why {}` says more", self.job, row.place, self.job));
        }
    }

    /// What a signal to us becomes.
    fn on_signal(&self, number: i32, waits: bool, interrupts: u32) -> Result<Sending<'_>, Failure> {
        if interrupts > 2 {
            tell(&format!("left; job {} is being cancelled", self.job));
            return Err(Failure::Quiet(STATUS_INTERRUPTED));
        }
        let ends = FORWARDED[..4].iter().any(|kind| kind.as_raw_value() == number);
        if interrupts == 2 || (waits && ends) {
            tell(&format!("cancelling job {}", self.job));
            return Ok(Box::pin(cancel(&self.control, self.job)));
        }
        // Numbers of signals fit: they come from a list of known ones.
        Ok(Box::pin(self.send(u8::try_from(number).unwrap_or(SIGPIPE))))
    }

    async fn send(&self, signal: u8) -> Result<(), PublicError> {
        let request = ApiRequest::Signal { job: self.job, index: None, signal };
        self.control.call(request).await.map(drop)
    }

    /// Copies an output to one of ours as it comes.
    async fn pump(
        &self,
        output: &mut Output<'_>,
        mut sink: impl AsyncWrite + Unpin,
        moved: &Cell<u64>,
        tells: bool,
    ) -> Result<(), PublicError> {
        while let Some(piece) = output.next().await? {
            let bytes = match piece {
                Piece::Bytes(bytes) => bytes,
                // Both streams say the same of attempts; gaps are each one's own.
                Piece::Told(line) => {
                    if tells || line.starts_with("gap ") {
                        tell(&line);
                    }
                    continue;
                }
            };
            let written = async {
                sink.write_all(&bytes).await?;
                sink.flush().await
            };
            if let Err(error) = written.await {
                if error.kind() != io::ErrorKind::BrokenPipe {
                    tell(&format!("cannot write: {error}"));
                }
                output.close();
                // Nobody reads on. What the job makes of PIPE is its own business.
                return self.send(SIGPIPE).await;
            }
            moved.set(moved.get() + bytes.len() as u64);
        }
        Ok(())
    }
}

/// Submits a job whose output is to be watched here: an interrupt that comes before its acceptance ends it.
///
/// # Errors
/// Refused, or interrupted.
pub(super) async fn accept_to_watch(context: &Context, spec: JobSpec) -> Result<JobId, Failure> {
    match accept(context, spec).await? {
        Handed::Over(answer) => {
            tell_notes(&answer);
            Ok(answer.job)
        }
        Handed::ThenInterrupted(job) => {
            cancel(&context.client, job).await?;
            tell(&format!("interrupted; job {job} was accepted and is cancelled"));
            Err(Failure::Quiet(STATUS_INTERRUPTED))
        }
    }
}

/// Ends a job.
pub(super) async fn cancel(client: &Steady, job: JobId) -> Result<(), PublicError> {
    let request = ApiRequest::Cancel { request: fresh_request(), job, index: None };
    client.call(request).await.map(drop)
}

/// The shell status of a job that has ended; says how it ended if that was not by itself.
///
/// # Errors
/// The cluster does not say.
pub async fn status(context: &Context, row: &JobRow) -> Result<u8, Failure> {
    let view = ended_view(context, row.job).await?;
    if let Some(why) = own_end(&view) {
        tell(&format!("job {}: {why}", row.job));
    }
    Ok(view.exit_status.unwrap_or(match row.state {
        JobState::Succeeded => 0,
        JobState::Cancelled => STATUS_INTERRUPTED,
        JobState::Preempted => STATUS_PREEMPTED,
        JobState::TimedOut => STATUS_TIME_LIMIT,
        JobState::DependencyFailed => STATUS_DEPENDENCY,
        JobState::DeadlineMissed => STATUS_DEADLINE,
        JobState::HostLost => STATUS_LOST,
        JobState::Failed | JobState::Pending | JobState::Running | JobState::Ending => STATUS_FAILED,
    }))
}

/// How a job ended that was not ended by its own process; none if its status says it all.
fn own_end(view: &JobView) -> Option<String> {
    let newest = view.attempts.first().and_then(|attempt| attempt.end.as_ref());
    match view.row.state {
        JobState::Failed if view.spec.gang.is_some() => super::culprit::of_gang(view),
        JobState::Failed => newest
            .filter(|end| !matches!(end, AttemptEnd::Exited { .. }))
            .map(|end| end_text(end, &view.spec)),
        JobState::TimedOut => Some(match view.spec.time_limit_ms {
            Some(limit_ms) => format!("ended by its time limit of {}", duration_text(limit_ms)),
            None => "ended by its time limit".to_owned(),
        }),
        JobState::Preempted => Some("ended to make room, and not to be queued again".to_owned()),
        JobState::DependencyFailed => {
            Some(format!("never started: {}", view.row.place.trim_matches(['(', ')'])))
        }
        JobState::DeadlineMissed => Some("never started: its deadline passed".to_owned()),
        JobState::HostLost => {
            Some(newest.map_or_else(|| "its host was lost".to_owned(), ToString::to_string))
        }
        JobState::Cancelled => Some("cancelled".to_owned()),
        JobState::Pending | JobState::Running | JobState::Ending | JobState::Succeeded => None,
    }
}

/// All about a job that is known to have ended. The peer that told us has that in its copy already, so that no
/// quorum is asked; another one may not have it yet.
async fn ended_view(context: &Context, job: JobId) -> Result<JobView, PublicError> {
    for freshness in [Freshness::Stale, Freshness::Linearizable] {
        match context.client.call(ApiRequest::Show { job, freshness }).await {
            Ok(ApiReply::Job(view)) if view.row.state.is_terminal() => return Ok(*view),
            Ok(ApiReply::Job(_)) => {}
            Ok(other) => return Err(unexpected(&other)),
            Err(error) if freshness == Freshness::Linearizable => return Err(error),
            Err(_) => {}
        }
    }
    Err(PublicError::new(ErrorCode::Internal, format!("job {job} had ended and goes on")))
}

/// The signals that this process takes for the job.
struct Signals([(SignalKind, Signal); FORWARDED.len()]);

impl Signals {
    fn new() -> Result<Self, Failure> {
        let mut taken = Vec::new();
        for kind in FORWARDED {
            taken.push((kind, signal(kind).map_err(Failure::other)?));
        }
        let taken = taken.try_into().map_err(|_| Failure::other("signals"))?;
        Ok(Self(taken))
    }

    /// The number of the next one. Cancel-safe.
    async fn next(&mut self) -> i32 {
        std::future::poll_fn(|cx| {
            for (kind, signal) in &mut self.0 {
                if let std::task::Poll::Ready(Some(())) = signal.poll_recv(cx) {
                    return std::task::Poll::Ready(kind.as_raw_value());
                }
            }
            std::task::Poll::Pending
        })
        .await
    }
}
