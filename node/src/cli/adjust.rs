//! `rota hold`, `rota release`, `rota requeue`, `rota priority`.

use super::context::{Context, document, say};
use super::failure::{Failure, STATUS_FAILED, error_json};
use crate::client::{fresh_request, unexpected};
use crate::parse::amount;
use clap::Args;
use futures_util::future::join_all;
use rota_protocol::JobId;
use rota_protocol::api::{ApiReply, ApiRequest};
use rota_protocol::command::JobChange;
use rota_protocol::limits::PRIORITY_MAX;
use serde_json::{Value, json};

/// Jobs by name.
#[derive(Debug, Args)]
pub struct AdjustArgs {
    /// 123, or last
    #[arg(required = true, value_name = "JOB")]
    pub jobs: Vec<String>,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

/// Another priority for jobs that are not over.
#[derive(Debug, Args)]
pub struct PriorityArgs {
    /// 123, or last; then 0 (last) to 100 (first)
    #[arg(required = true, num_args = 2.., value_name = "JOB.. PRIORITY")]
    pub words: Vec<String>,
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

/// Runs `rota hold`, `rota release` and `rota requeue`.
///
/// # Errors
/// A malformed name, or no cluster.
pub async fn adjust(context: &Context, args: &AdjustArgs, change: JobChange) -> Result<u8, Failure> {
    carry_out(context, &args.jobs, change, args.json).await
}

/// Runs `rota priority`.
///
/// # Errors
/// A malformed name or number, or no cluster.
pub async fn priority(context: &Context, args: &PriorityArgs) -> Result<u8, Failure> {
    let (priority, jobs) = args.words.split_last().ok_or_else(|| Failure::other("names no job"))?;
    let priority = amount::count("priority", priority, 0, u32::from(PRIORITY_MAX))?;
    let change = JobChange::Priority(u16::try_from(priority).unwrap_or(PRIORITY_MAX));
    carry_out(context, jobs, change, args.json).await
}

async fn carry_out(
    context: &Context,
    names: &[String],
    change: JobChange,
    as_json: bool,
) -> Result<u8, Failure> {
    let mut jobs: Vec<JobId> = Vec::new();
    for name in names {
        jobs.push(context.whole_job(name).await?);
    }
    let results = join_all(jobs.iter().map(|&job| {
        let request = ApiRequest::Adjust { request: fresh_request(), job, change };
        context.client.call(request)
    }))
    .await;
    let mut status = 0;
    let mut documents: Vec<Value> = Vec::new();
    for (job, result) in jobs.iter().zip(results) {
        let (line, document) = match result {
            Ok(ApiReply::Done) => {
                let now = change_text(change);
                (format!("job {job}: {now}"), json!({ "job": job, "now": now }))
            }
            Ok(other) => return Err(unexpected(&other).into()),
            Err(error) => {
                // Each is told where it stands in the list.
                status = STATUS_FAILED;
                (format!("job {job}: {error}"), json!({ "job": job, "error": error_json(&error) }))
            }
        };
        if as_json {
            documents.push(document);
        } else {
            say(&format!("{}\n", crate::table::clean(&line)))?;
        }
    }
    if as_json {
        document(&documents)?;
    }
    Ok(status)
}

fn change_text(change: JobChange) -> String {
    match change {
        JobChange::Hold => "held; what runs of it runs on".to_owned(),
        JobChange::Release => "released".to_owned(),
        JobChange::Priority(priority) => format!("priority {priority}"),
        JobChange::Requeue => "what runs of it is ended and waits again".to_owned(),
    }
}
