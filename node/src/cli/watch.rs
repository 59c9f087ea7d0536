//! `rota watch`: what jobs go through, one line for each change, in the order of the log and without a gap, over any
//! failover; `--after` goes on where an earlier watch, through whichever host, has left off.

use super::context::{Context, say};
use super::failure::Failure;
use crate::client::unexpected;
use clap::Args;
use rota_protocol::ErrorCode;
use rota_protocol::api::{ApiReply, ApiRequest};
use rota_protocol::change::StateChange;
use serde_json::json;

/// What is to be told.
#[derive(Debug, Args)]
pub struct WatchArgs {
    /// Go on after this log index, the first figure of the last line seen [default: from now on]
    #[arg(long, value_name = "INDEX")]
    pub after: Option<u64>,
    /// One JSON document a line
    #[arg(long)]
    pub json: bool,
}

/// Runs `rota watch`, until it is ended or no host is reached any more.
///
/// # Errors
/// The index is not known (any more), or no cluster.
pub async fn watch(context: &Context, args: &WatchArgs) -> Result<u8, Failure> {
    let mut after = args.after;
    loop {
        let mut streams = context.client.streams(&[ApiRequest::Changes { after }]).await?;
        let Some(mut replies) = streams.pop() else { continue };
        while let Some(reply) = replies.next().await {
            let piece = match reply {
                Ok(ApiReply::Changes(piece)) => piece,
                Ok(other) => return Err(unexpected(&other).into()),
                // The host stopped, or no leader is known just now: another stream goes on from here.
                Err(error) if matches!(error.code, ErrorCode::Unknown | ErrorCode::NoLeader) => break,
                Err(error) => return Err(error.into()),
            };
            for change in &piece.changes {
                say(&line(change, args.json))?;
            }
            after = Some(piece.upto);
        }
    }
}

fn line(change: &StateChange, as_json: bool) -> String {
    let StateChange { index, job, state } = change;
    match as_json {
        true => format!("{}\n", json!({ "index": index, "job": job, "state": state })),
        false => format!("{index} {job} {state}\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rota_protocol::JobId;
    use rota_protocol::job::JobState;

    #[test]
    fn a_line_begins_with_where_to_go_on() {
        let change = StateChange { index: 812, job: JobId(7), state: JobState::Running };
        assert_eq!(line(&change, false), "812 7 running\n");
        let json: serde_json::Value = serde_json::from_str(&line(&change, true)).unwrap();
        assert_eq!((&json["index"], &json["job"]), (&json!(812), &json!(7)));
    }
}
