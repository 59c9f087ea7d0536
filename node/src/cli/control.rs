//! `rota cancel` and `rota wait`.

use super::context::{Context, document, say};
use super::failure::{Failure, STATUS_FAILED, error_json};
use super::follow::JobWatch;
use super::run::status;
use crate::client::{fresh_request, unexpected};
use crate::parse::word;
use clap::Args;
use futures_util::future::join_all;
use rota_protocol::api::{ApiReply, ApiRequest, Freshness};
use rota_protocol::view::JobRow;
use rota_protocol::{JobId, PublicError};
use serde_json::{Value, json};

/// End jobs or tasks, or send them a signal. Ending what is over already is no error.
#[derive(Debug, Args)]
pub struct CancelArgs {
    /// 123, 123_4, or last
    #[arg(required = true, value_name = "JOB")]
    pub jobs: Vec<String>,
    /// Send this signal instead, such as USR1, and let them go on
    #[arg(long, short, value_name = "SIGNAL")]
    pub signal: Option<String>,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

/// Runs `rota cancel`.
///
/// # Errors
/// A malformed name; the first refusal, after all others were tried.
pub async fn cancel(context: &Context, args: &CancelArgs) -> Result<u8, Failure> {
    let signal = match &args.signal {
        Some(text) => Some(word::signal("signal", text)?),
        None => None,
    };
    let mut named = Vec::new();
    for text in &args.jobs {
        named.push(context.job(text).await?);
    }
    let results = join_all(named.iter().map(|&(job, index)| async move {
        let request = match signal {
            Some(signal) => ApiRequest::Signal { job, index, signal },
            None => ApiRequest::Cancel { request: fresh_request(), job, index },
        };
        context.client.call(request).await
    }))
    .await;
    let mut documents: Vec<Value> = Vec::new();
    let mut first_error: Option<PublicError> = None;
    for ((text, &(job, index)), result) in args.jobs.iter().zip(&named).zip(results) {
        let name = index.map_or(job.to_string(), |index| format!("{job}_{index}"));
        let (line, document) = match result {
            Ok(ApiReply::Cancelling { live: 0 }) => {
                (format!("job {name}: over"), json!({ "job": name, "live": 0 }))
            }
            Ok(ApiReply::Cancelling { live }) => {
                let hosts = hosts_of(context, job).await;
                let on = hosts.as_deref().map_or(String::new(), |hosts| format!(" on {hosts}"));
                let line = format!("job {name}: {live} running{on}, being ended");
                (line, json!({ "job": name, "live": live, "hosts": hosts }))
            }
            Ok(ApiReply::Done) => (format!("job {name}: signalled"), json!({ "job": name })),
            Ok(other) => return Err(unexpected(&other).into()),
            Err(error) => {
                let pair =
                    (format!("job {text}: {error}"), json!({ "job": name, "error": error_json(&error) }));
                first_error.get_or_insert(error);
                pair
            }
        };
        if args.json {
            documents.push(document);
        } else {
            say(&format!("{}\n", crate::table::clean(&line)))?;
        }
    }
    if args.json {
        document(&documents)?;
    }
    // Each was told where it stands in the list already.
    Ok(if first_error.is_some() { STATUS_FAILED } else { 0 })
}

/// Which hosts still have processes of a job; none if that is not to be had at once.
async fn hosts_of(context: &Context, job: JobId) -> Option<String> {
    match context.client.call(ApiRequest::Show { job, freshness: Freshness::Stale }).await {
        Ok(ApiReply::Job(view)) => {
            Some(view.row.place).filter(|place| !place.is_empty() && !place.starts_with('('))
        }
        _ => None,
    }
}

/// Wait until jobs are over. The status is that of the first job, in the order given, that did not end well.
#[derive(Debug, Args)]
pub struct WaitArgs {
    /// 123, or last
    #[arg(required = true, value_name = "JOB")]
    pub jobs: Vec<String>,
    /// Print nothing
    #[arg(long, short)]
    pub quiet: bool,
    /// Print one JSON document when all are over
    #[arg(long)]
    pub json: bool,
}

/// Runs `rota wait`.
///
/// # Errors
/// No such job, or no cluster.
pub async fn wait(context: &Context, args: &WaitArgs) -> Result<u8, Failure> {
    let mut jobs: Vec<JobId> = Vec::new();
    for text in &args.jobs {
        jobs.push(context.whole_job(text).await?);
    }
    let ends: Vec<Result<(JobRow, u8), Failure>> = join_all(jobs.iter().map(|&job| async move {
        let row = JobWatch::new(&context.client, job, None).last().await?;
        let status = status(context, &row).await?;
        if !args.quiet && !args.json {
            say(&format!("job {job} {} (exit {status})\n", row.state))?;
        }
        Ok((row, status))
    }))
    .await;
    let mut worst = 0;
    let mut documents = Vec::new();
    for end in ends {
        let (row, status) = end?;
        if worst == 0 {
            worst = status;
        }
        documents.push(json!({ "exit_status": status, "row": row }));
    }
    if args.json {
        document(&documents)?;
    }
    Ok(worst)
}
