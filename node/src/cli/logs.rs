//! `rota logs`: a task's output. Following ends with the job, and then with the job's own status.

use super::context::{Context, tell};
use super::failure::{Failure, STATUS_CLOSED_OUTPUT};
use super::follow::{JobWatch, Output, Wanted};
use super::run::status;
use crate::client::unexpected;
use clap::Args;
use rota_protocol::api::{ApiReply, ApiRequest, Freshness, OutputStream};
use rota_protocol::{ErrorCode, JobId, PublicError, Token};
use std::io;
use tokio::io::AsyncWriteExt;

/// Print a task's output.
#[derive(Debug, Args)]
pub struct LogsArgs {
    /// 123, 123_4, or last
    pub job: String,
    /// Go on as it is written, over retries, until the job is over; then end with its status
    #[arg(long, short)]
    pub follow: bool,
    /// Standard error instead of standard output
    #[arg(long)]
    pub stderr: bool,
    /// The task's index [default: 0, or the array's first]
    #[arg(long)]
    pub index: Option<u32>,
    /// One attempt, by its number in `rota show`; the newest without
    #[arg(long)]
    pub attempt: Option<u64>,
    /// Print errors as JSON
    #[arg(long)]
    pub json: bool,
}

/// The index of a job's first task. The asked peer's copy is enough if it has the job: what was submitted never changes.
async fn first_index(context: &Context, job: JobId) -> Result<u32, Failure> {
    let show = |freshness| context.client.call(ApiRequest::Show { job, freshness });
    let reply = match show(Freshness::Stale).await {
        Err(error) if error.code == ErrorCode::NotFound => show(Freshness::Linearizable).await,
        other => other,
    };
    match reply? {
        ApiReply::Job(view) => Ok(view.spec.array.map_or(0, |array| array.start)),
        other => Err(unexpected(&other).into()),
    }
}

/// Runs the command.
///
/// # Errors
/// No such job, task or attempt; or no cluster.
pub async fn logs(context: &Context, args: &LogsArgs) -> Result<u8, Failure> {
    let (job, named) = context.job(&args.job).await?;
    if let (Some(a), Some(b)) = (named, args.index)
        && a != b
    {
        return Err(Failure::Refused(PublicError::invalid(
            "index",
            format!("{:?} names task {a}, --index {b} another", args.job),
            &a.to_string(),
        )));
    }
    let wanted = Wanted {
        job,
        index: match named.or(args.index) {
            Some(index) => index,
            None if args.attempt.is_some() => 0,
            None => first_index(context, job).await?,
        },
        attempt: args.attempt.map(Token),
        stream: if args.stderr { OutputStream::Stderr } else { OutputStream::Stdout },
        follow: args.follow,
    };
    let mut output = Output::new(&context.client, wanted, None);
    let mut stdout = tokio::io::stdout();
    while let Some(bytes) = output.next().await? {
        let written = async {
            stdout.write_all(&bytes).await?;
            stdout.flush().await
        };
        match written.await {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                return Err(Failure::Quiet(STATUS_CLOSED_OUTPUT));
            }
            other => other?,
        }
    }
    if !args.follow || args.attempt.is_some() {
        return Ok(0);
    }
    let row = JobWatch::new(&context.client, job, None).last().await?;
    let status = status(context, &row).await?;
    if status != 0 {
        tell(&format!("job {job} {} with status {status}", row.state));
    }
    Ok(status)
}
