//! What every client command shares: the steady client, the way of printing, and how jobs are named.

use super::failure::Failure;
use super::reach;
use crate::client::steady::Steady;
use crate::client::target::TargetFlags;
use crate::client::unexpected;
use crate::parse::time::duration_or_zero_ms;
use crate::parse::word::{JobRef, job_ref};
use clap::Args;
use rota_protocol::api::{ApiReply, ApiRequest, Freshness};
use rota_protocol::job::Actor;
use rota_protocol::{ErrorCode, JobId, PublicError};
use serde::Serialize;
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

/// How long a command goes on asking while there is no leader or the connection breaks: several failovers.
const DEADLINE: Duration = Duration::from_secs(30);

/// Where the cluster is. Without any of these: ROTA_SOCKET, ROTA_PEER, ROTA_DATA_DIR, then the usual places.
#[derive(Debug, Args, Clone)]
pub struct TargetArgs {
    /// The agent's unix socket
    #[arg(long, global = true, value_name = "FILE", help_heading = "Where the cluster is")]
    pub socket: Option<PathBuf>,
    /// Hosts to ask over the network, with a token from --token-file, ROTA_TOKEN or ~/.config/rota/token
    #[arg(long, global = true, value_name = "HOST:PORT,..", help_heading = "Where the cluster is")]
    pub peer: Option<String>,
    /// A file with a user token
    #[arg(long, global = true, value_name = "FILE", help_heading = "Where the cluster is")]
    pub token_file: Option<PathBuf>,
}

/// A client command at work.
pub struct Context {
    /// The cluster.
    pub client: Steady,
    /// Where it is, for people.
    pub place: String,
}

impl Context {
    /// Finds the cluster; connects only when first asked.
    ///
    /// # Errors
    /// No token for a peer.
    pub fn new(target: &TargetArgs) -> Result<Self, Failure> {
        let flags = TargetFlags {
            socket: target.socket.clone(),
            peer: target.peer.clone(),
            token_file: target.token_file.clone(),
        };
        let target = crate::client::target::find(&flags, |name| std::env::var_os(name))?;
        let dials = reach::dials(&target);
        let place = dials.first().map(|dial| dial.place()).unwrap_or_default();
        Ok(Self { client: Steady::new(dials, DEADLINE), place })
    }

    /// Who the caller is, and its newest job.
    ///
    /// # Errors
    /// The cluster does not say.
    pub async fn me(&self) -> Result<(Actor, Option<JobId>), PublicError> {
        match self.client.call(ApiRequest::Me).await? {
            ApiReply::Me { actor, last } => Ok((actor, last)),
            other => Err(unexpected(&other)),
        }
    }

    /// The job and index that a user's word names.
    ///
    /// # Errors
    /// Not a job's name, or `last` without any job.
    pub async fn job(&self, word: &str) -> Result<(JobId, Option<u32>), Failure> {
        match job_ref("job", word)? {
            JobRef::Number { job, index } => Ok((job, index)),
            JobRef::Last { index } => match self.me().await? {
                (_, Some(job)) => Ok((job, index)),
                (actor, None) => Err(Failure::Refused(PublicError::new(
                    ErrorCode::NotFound,
                    format!("{} has no job yet", actor.user),
                ))),
            },
        }
    }

    /// A job named without an index.
    ///
    /// # Errors
    /// As for [`Self::job`], or an index was given.
    pub async fn whole_job(&self, word: &str) -> Result<JobId, Failure> {
        match self.job(word).await? {
            (job, None) => Ok(job),
            (job, Some(_)) => Err(Failure::Refused(PublicError::invalid(
                "job",
                format!("{word:?} is one task; this command takes whole jobs"),
                &job.to_string(),
            ))),
        }
    }
}

/// How fresh a read is asked for.
#[derive(Debug, Args, Clone, Copy)]
pub struct ReadArgs {
    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
    /// Take what the asked host knows, even without a quorum
    #[arg(long)]
    pub stale: bool,
    /// Take what the asked host knows if that was true at most so long ago; how old it is, is told
    #[arg(long, value_name = "TIME", conflicts_with = "stale", value_parser = age_ms)]
    pub max_age: Option<u32>,
}

/// A bound on an age, in ms.
fn age_ms(text: &str) -> Result<u32, String> {
    let ms = duration_or_zero_ms("max-age", text).map_err(|error| error.to_string())?;
    u32::try_from(ms).map_err(|_| format!("{text} is no bound at all (for example: 2s)"))
}

impl ReadArgs {
    /// As the protocol says it.
    #[must_use]
    pub fn freshness(self) -> Freshness {
        match self.max_age {
            Some(ms) => Freshness::Within(ms),
            None if self.stale => Freshness::Stale,
            None => Freshness::Linearizable,
        }
    }
}

/// Prints one JSON document.
///
/// # Errors
/// Standard output is closed.
pub fn document(value: &impl Serialize) -> Result<(), Failure> {
    let mut value = serde_json::to_value(value).map_err(Failure::other)?;
    bytes_to_text(&mut value);
    let text = serde_json::to_string_pretty(&value).map_err(Failure::other)?;
    say(&format!("{text}\n"))
}

/// Prints to standard output.
///
/// # Errors
/// It is closed: the command ends without a word, like any other whose reader went away.
pub fn say(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(())
}

/// Tells the person something that is no result. A closed standard error is no reason to fail.
pub fn tell(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{}", crate::table::clean(text));
}

/// A spec's arguments, variables and paths are bytes; in a document they are read as text. Bytes that are not UTF-8
/// are shown by the replacement character.
fn bytes_to_text(value: &mut serde_json::Value) {
    use serde_json::Value;
    let Value::Object(object) = value else {
        if let Value::Array(list) = value {
            list.iter_mut().for_each(bytes_to_text);
        }
        return;
    };
    for (key, value) in object.iter_mut() {
        match (key.as_str(), &mut *value) {
            ("argv", Value::Array(words)) => words.iter_mut().for_each(text_of_bytes),
            ("env", Value::Array(pairs)) => {
                for pair in pairs {
                    if let Value::Array(pair) = pair {
                        pair.iter_mut().for_each(text_of_bytes);
                    }
                }
            }
            ("workdir" | "stdout" | "stderr" | "stdin", bytes) => text_of_bytes(bytes),
            // JSON readers keep 53 bits of a number; a hash needs all 64.
            ("state_hash", hash) => {
                if let Some(number) = hash.as_u64() {
                    *hash = format!("{number:016x}").into();
                }
            }
            (_, other) => bytes_to_text(other),
        }
    }
}

fn text_of_bytes(value: &mut serde_json::Value) {
    let Some(bytes) = value.as_array().and_then(|list| {
        list.iter()
            .map(|byte| byte.as_u64().and_then(|byte| u8::try_from(byte).ok()))
            .collect::<Option<Vec<u8>>>()
    }) else {
        return;
    };
    *value = String::from_utf8_lossy(&bytes).into_owned().into();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse::draft_from_toml;

    #[test]
    fn a_document_shows_words_not_bytes() {
        let draft = draft_from_toml(b"command = [\"a\", \"b c\"]\nenv = {X = \"1\"}\n").unwrap();
        let spec = draft.build(&crate::parse::Defaults { workdir: "/w".into(), now_ms: 0 }).unwrap();
        let mut value = serde_json::json!({ "rows": [{ "spec": spec }] });
        bytes_to_text(&mut value);
        let spec = &value["rows"][0]["spec"];
        assert_eq!(spec["argv"], serde_json::json!(["a", "b c"]));
        assert_eq!(spec["env"], serde_json::json!([["X", "1"]]));
        assert_eq!(spec["workdir"], "/w");
    }
}
