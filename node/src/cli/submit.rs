//! `rota submit`, and the submitting that `rota run` shares: an interrupt on the way always ends with a word on
//! whether the job was accepted.

use super::context::{Context, document, say, tell};
use super::echo::echo;
use super::failure::{Failure, STATUS_INTERRUPTED};
use super::job_args::{Here, JobArgs};
use crate::client::{fresh_request, unexpected};
use clap::Args;
use rota_protocol::api::{ApiReply, ApiRequest};
use rota_protocol::job::JobSpec;
use rota_protocol::view::Accepted;
use rota_protocol::{ErrorCode, JobId, PublicError};
use std::future::Future;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

/// After an interrupt, how long to wait for the word on a submit that is on its way.
const LAST_WORD: Duration = Duration::from_secs(3);

/// Hand a job over and return at once.
#[derive(Debug, Args)]
pub struct SubmitArgs {
    /// The job.
    #[command(flatten)]
    pub job: JobArgs,
    /// One task for each index: 0-99, 0-99:10, 1-1000%50 for at most 50 at once
    #[arg(long, value_name = "RANGE")]
    pub array: Option<String>,
    /// Also show what was understood
    #[arg(long, short)]
    pub verbose: bool,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
    /// Only show what would be submitted
    #[arg(long)]
    pub dry_run: bool,
}

/// Runs the command.
///
/// # Errors
/// The job is refused, or it is not known whether it was accepted.
pub async fn submit(context: &Context, args: &SubmitArgs) -> Result<u8, Failure> {
    let mut spec = args.job.job_spec(args.array.as_deref(), &Here::now()?)?;
    if args.dry_run {
        if args.json {
            document(&serde_json::json!({ "spec": spec }))?;
        } else {
            say(&format!("{}\n", echo(&spec)))?;
        }
        return Ok(0);
    }
    let answer = match accept(context, spec.clone()).await? {
        Handed::Over(answer) => answer,
        Handed::ThenInterrupted(job) => {
            tell(&format!("interrupted, but job {job} was accepted; `rota cancel {job}` ends it"));
            return Err(Failure::Quiet(STATUS_INTERRUPTED));
        }
    };
    spec.time_limit_ms = answer.time_limit_ms;
    if args.json {
        let Accepted { job, queue, notes, .. } = answer;
        document(&serde_json::json!({ "job": job, "queue": queue, "notes": notes, "spec": spec }))?;
        return Ok(0);
    }
    say(&format!("job {}\n", answer.job))?;
    tell_notes(&answer);
    if args.verbose {
        say(&format!("{}\n", echo(&spec)))?;
    }
    Ok(0)
}

/// Says what the cluster made of a job beside what was asked.
pub fn tell_notes(answer: &Accepted) {
    for note in &answer.notes {
        tell(&format!("note: {note}"));
    }
}

/// A job that the cluster keeps.
pub enum Handed {
    /// As asked.
    Over(Accepted),
    /// The user has interrupted meanwhile.
    ThenInterrupted(JobId),
}

/// Submits one job.
///
/// # Errors
/// Refused; or interrupted and not accepted, or not known to be, which was told then.
pub async fn accept(context: &Context, spec: JobSpec) -> Result<Handed, Failure> {
    let request = fresh_request();
    let jobs = vec![(request, spec)];
    let answer = context.client.call(ApiRequest::SubmitNoted { jobs });
    let mut interrupt = signal(SignalKind::interrupt()).map_err(Failure::other)?;
    told(answer, interrupt.recv()).await
}

/// The outcome of a submit, with a word on it if an interrupt comes first.
async fn told(
    answer: impl Future<Output = Result<ApiReply, PublicError>>,
    interrupt: impl Future<Output = Option<()>>,
) -> Result<Handed, Failure> {
    tokio::pin!(answer);
    tokio::select! {
        biased;
        answer = &mut answer => return Ok(Handed::Over(answer_of(answer)?)),
        _ = interrupt => {}
    }
    tell("interrupted; asking whether the job was accepted");
    match tokio::time::timeout(LAST_WORD, answer).await.map(answer_of) {
        Ok(Ok(accepted)) => Ok(Handed::ThenInterrupted(accepted.job)),
        Ok(Err(error)) if error.code != ErrorCode::Unknown => {
            tell(&format!("the job was not accepted: {error}"));
            Err(Failure::Quiet(STATUS_INTERRUPTED))
        }
        Ok(Err(_)) | Err(_) => {
            tell("it is not known whether the job was accepted; `rota queue --me` shows it if it was");
            Err(Failure::Quiet(STATUS_INTERRUPTED))
        }
    }
}

fn answer_of(answer: Result<ApiReply, PublicError>) -> Result<Accepted, PublicError> {
    match answer? {
        ApiReply::Accepted(mut jobs) if jobs.len() == 1 => jobs.remove(0),
        other => Err(unexpected(&other)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::{pending, ready};

    fn accepted() -> Result<ApiReply, PublicError> {
        let job = Accepted { job: JobId(7), queue: "q".into(), time_limit_ms: None, notes: Vec::new() };
        Ok(ApiReply::Accepted(vec![Ok(job)]))
    }

    #[tokio::test(start_paused = true)]
    async fn an_interrupt_on_the_way_ends_with_the_truth() {
        // The answer wins when both are there.
        let result = told(ready(accepted()), ready(Some(()))).await;
        assert!(matches!(result, Ok(Handed::Over(Accepted { job: JobId(7), .. }))));
        let late = async {
            tokio::time::sleep(LAST_WORD / 2).await;
            accepted()
        };
        let result = told(late, ready(Some(()))).await;
        assert!(matches!(result, Ok(Handed::ThenInterrupted(JobId(7)))));
        for answer in [Some(ErrorCode::Busy), Some(ErrorCode::Unknown), None] {
            let answer = async {
                match answer {
                    Some(code) => {
                        tokio::task::yield_now().await;
                        Err(PublicError::new(code, "no"))
                    }
                    None => pending().await,
                }
            };
            let result = told(answer, ready(Some(()))).await;
            assert!(matches!(result, Err(Failure::Quiet(STATUS_INTERRUPTED))));
        }
    }

    #[tokio::test]
    async fn a_refusal_is_told_as_it_is() {
        let refusal = PublicError::invalid("gpus", "too many", "2");
        let inner = ApiReply::Accepted(vec![Err(refusal.clone())]);
        for answer in [Err(refusal.clone()), Ok(inner)] {
            match told(ready(answer), pending()).await {
                Err(Failure::Refused(error)) => assert_eq!(error, refusal),
                _ => panic!("a refused job was taken for accepted"),
            }
        }
    }
}
