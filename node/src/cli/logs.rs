//! `rota logs`: a task's output. Following ends with the job, and then with the job's own status. What is no output, such
//! as a gap or the next attempt, is told on standard error.

use super::context::{Context, tell};
use super::failure::{Failure, STATUS_CLOSED_OUTPUT};
use super::follow::{JobWatch, Output, Piece, Wanted};
use super::run::status;
use crate::client::unexpected;
use crate::parse::amount;
use clap::Args;
use futures_util::stream::{FuturesUnordered, StreamExt};
use rota_protocol::api::{ApiReply, ApiRequest, Freshness, OutputStream};
use rota_protocol::job::JobSpec;
use rota_protocol::output::{AttemptName, LogStart};
use rota_protocol::{ErrorCode, JobId, PublicError, Token};
use std::io;
use tokio::io::{AsyncWriteExt, Stdout};
use tokio::sync::Mutex;

/// Above this a number names an attempt by its token: no task has as many attempts.
const ATTEMPT_NUMBER_MAX: u64 = 100_000;
/// A line of one rank is held back until its end, but no longer than this, in bytes.
const LINE_BYTES_MAX: usize = 64 << 10;

/// Print a task's output.
#[derive(Debug, Args)]
pub struct LogsArgs {
    /// 123, 123_4, or last
    pub job: String,
    /// Go on as it is written, over retries, until the job is over; then end with its status
    #[arg(long, short)]
    pub follow: bool,
    /// Standard error instead of standard output
    #[arg(long, conflicts_with = "stdout")]
    pub stderr: bool,
    /// Standard output, which is the default
    #[arg(long)]
    pub stdout: bool,
    /// The task's index [default: 0, or the array's first]
    #[arg(long, visible_alias = "array")]
    pub index: Option<u32>,
    /// One part of a gang [default: all, each line with its rank before it]
    #[arg(long, conflicts_with = "index")]
    pub rank: Option<u32>,
    /// One attempt by its number, from 1, or by its token in `rota show`; the newest without
    #[arg(long)]
    pub attempt: Option<u64>,
    /// Only the last lines of what there is, and what follows
    #[arg(long, short = 'n', value_name = "LINES", conflicts_with = "offset")]
    pub tail: Option<u32>,
    /// Only from this byte of the stream on, such as 4096 or 10MiB
    #[arg(long, visible_alias = "since", value_name = "BYTES")]
    pub offset: Option<String>,
    /// Print errors as JSON
    #[arg(long)]
    pub json: bool,
}

impl LogsArgs {
    fn start(&self) -> Result<LogStart, PublicError> {
        match (&self.offset, self.tail) {
            (Some(text), _) => Ok(LogStart::Offset(position(text)?)),
            (None, Some(lines)) => Ok(LogStart::Lines(lines)),
            (None, None) => Ok(LogStart::Offset(0)),
        }
    }

    fn attempt(&self) -> Result<Option<AttemptName>, PublicError> {
        match self.attempt {
            None => Ok(None),
            Some(0) => Err(PublicError::invalid("attempt", "the first attempt is 1", "1")),
            Some(token) if token > ATTEMPT_NUMBER_MAX => Ok(Some(AttemptName::Token(Token(token)))),
            Some(number) => Ok(Some(AttemptName::Number(u32::try_from(number).unwrap_or(u32::MAX)))),
        }
    }
}

/// A position in a stream: a plain number of bytes, or an amount with its unit.
fn position(text: &str) -> Result<u64, PublicError> {
    match text.trim().parse() {
        Ok(bytes) => Ok(bytes),
        Err(_) => amount::bytes("offset", text)
            .map_err(|error| PublicError { example: Some("4096".into()), ..error }),
    }
}

/// What was submitted. The asked peer's copy is enough if it has the job: this never changes.
async fn spec_of(context: &Context, job: JobId) -> Result<JobSpec, Failure> {
    let show = |freshness| context.client.call(ApiRequest::Show { job, freshness });
    let reply = match show(Freshness::Stale).await {
        Err(error) if error.code == ErrorCode::NotFound => show(Freshness::Linearizable).await,
        other => other,
    };
    match reply? {
        ApiReply::Job(view) => Ok(view.spec),
        other => Err(unexpected(&other).into()),
    }
}

/// Which tasks are meant: one, or all parts of a gang.
async fn indices(
    context: &Context,
    args: &LogsArgs,
    job: JobId,
    named: Option<u32>,
) -> Result<Vec<u32>, Failure> {
    let asked = args.index.or(args.rank);
    if let (Some(a), Some(b)) = (named, asked)
        && a != b
    {
        let field = if args.rank.is_some() { "rank" } else { "index" };
        let message = format!("{:?} names task {a}, --{field} {b} another", args.job);
        return Err(PublicError::invalid(field, message, &a.to_string()).into());
    }
    match named.or(asked) {
        Some(index) => Ok(vec![index]),
        // A token finds its task by itself.
        None if args.attempt.is_some_and(|attempt| attempt > ATTEMPT_NUMBER_MAX) => Ok(vec![0]),
        None => {
            let spec = spec_of(context, job).await?;
            Ok(match (spec.gang, spec.array) {
                (Some(gang), _) => (0..gang.max).collect(),
                (None, array) => vec![array.map_or(0, |array| array.start)],
            })
        }
    }
}

/// Runs the command.
///
/// # Errors
/// No such job, task or attempt; its output was removed; or no cluster.
pub async fn logs(context: &Context, args: &LogsArgs) -> Result<u8, Failure> {
    let (job, named) = context.job(&args.job).await?;
    let (start, attempt) = (args.start()?, args.attempt()?);
    let stream = if args.stderr { OutputStream::Stderr } else { OutputStream::Stdout };
    let wanted = |index| Wanted { job, index, attempt, stream, start, follow: args.follow };
    let sink = Mutex::new(tokio::io::stdout());
    match &indices(context, args, job, named).await?[..] {
        [index] => copy(Output::new(&context.client, wanted(*index), None), &sink, None).await?,
        ranks if args.follow => {
            let mut copies: FuturesUnordered<_> = ranks
                .iter()
                .map(|rank| copy(Output::new(&context.client, wanted(*rank), None), &sink, Some(*rank)))
                .collect();
            while let Some(copied) = copies.next().await {
                copied?;
            }
        }
        ranks => {
            for rank in ranks {
                copy(Output::new(&context.client, wanted(*rank), None), &sink, Some(*rank)).await?;
            }
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

/// Copies one output to the end; of one of several ranks by whole lines, each with its rank.
async fn copy(mut output: Output<'_>, sink: &Mutex<Stdout>, rank: Option<u32>) -> Result<(), Failure> {
    let mut lines = rank.map(Lines::new);
    while let Some(piece) = output.next().await? {
        match (piece, &mut lines) {
            (Piece::Told(line), Some(_)) => tell(&format!("[{}] {line}", rank.unwrap_or(0))),
            (Piece::Told(line), None) => tell(&line),
            (Piece::Bytes(bytes), None) => write(sink, &bytes).await?,
            (Piece::Bytes(bytes), Some(lines)) => write(sink, &lines.whole(&bytes)).await?,
        }
    }
    if let Some(lines) = &mut lines {
        write(sink, &lines.rest()).await?;
    }
    Ok(())
}

async fn write(sink: &Mutex<Stdout>, bytes: &[u8]) -> Result<(), Failure> {
    let mut sink = sink.lock().await;
    let written = async {
        sink.write_all(bytes).await?;
        sink.flush().await
    };
    match written.await {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(Failure::Quiet(STATUS_CLOSED_OUTPUT)),
        other => Ok(other?),
    }
}

/// Whole lines of one rank.
struct Lines {
    prefix: Vec<u8>,
    held: Vec<u8>,
}

impl Lines {
    fn new(rank: u32) -> Self {
        Self { prefix: format!("[{rank}] ").into_bytes(), held: Vec::new() }
    }

    /// The lines that are whole now.
    fn whole(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            for part in part.chunks(LINE_BYTES_MAX) {
                self.held.extend_from_slice(part);
                if self.held.ends_with(b"\n") || self.held.len() >= LINE_BYTES_MAX {
                    out.extend(self.rest());
                }
            }
        }
        out
    }

    /// What is held back.
    fn rest(&mut self) -> Vec<u8> {
        if self.held.is_empty() {
            return Vec::new();
        }
        let mut out = self.prefix.clone();
        out.append(&mut self.held);
        if !out.ends_with(b"\n") {
            out.push(b'\n');
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_rank_come_whole() {
        let mut lines = Lines::new(3);
        assert_eq!(lines.whole(b"a\nb"), b"[3] a\n");
        assert_eq!(lines.whole(b"c\n\n"), b"[3] bc\n[3] \n");
        assert_eq!(lines.whole(b"end"), b"");
        assert_eq!(lines.rest(), b"[3] end\n");
        assert_eq!(lines.rest(), b"");
        let long = lines.whole(&vec![b'x'; 3 * LINE_BYTES_MAX + 1]);
        assert_eq!(
            long.iter().filter(|byte| **byte == b'\n').count(),
            3,
            "a line without end is not held for ever"
        );
        assert!(lines.held.len() == 1);
    }

    #[test]
    fn positions_are_bytes() {
        assert_eq!(position("4096").unwrap(), 4_096);
        assert_eq!(position("0").unwrap(), 0);
        assert_eq!(position("1KiB").unwrap(), 1_024);
        assert!(position("-3").unwrap_err().to_string().starts_with("offset: "));
    }
}
