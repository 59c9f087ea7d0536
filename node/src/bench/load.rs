//! Clients that submit one job, or one batch, after the other: many on one connection, as a service would, served by
//! one task, so that the load costs little beside what it measures.

use crate::framing::{FrameReader, FramingError, client_hello, encode_message, exchange_hello, write_frame};
use crate::lab::{LabError, new_request};
use rota_protocol::api::{ApiAnswer, ApiCall, ApiReply, ApiRequest};
use rota_protocol::error::{ErrorCode, PublicError};
use rota_protocol::frame::FrameKind;
use rota_protocol::job::JobSpec;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::task::JoinSet;

/// Pause of a client that was told to come back without being told when.
const BUSY_PAUSE_MS: u32 = 5;

/// What clients do.
#[derive(Debug, Clone)]
pub(super) struct Load {
    /// Clients, each with one call under way at any time.
    pub(super) clients: usize,
    /// Clients that share one connection.
    pub(super) per_connection: usize,
    /// Jobs in each call.
    pub(super) batch: usize,
    /// How long calls begin.
    pub(super) time: Duration,
    pub(super) job: JobSpec,
    /// As whom, if not as the user of this process.
    pub(super) token: Option<String>,
}

/// What came of it.
#[derive(Debug, Default)]
pub(super) struct Done {
    /// The time of each call that was answered.
    pub(super) times: Vec<Duration>,
    /// Jobs that were accepted.
    pub(super) accepted: u64,
    /// Calls that were told to come back.
    pub(super) busy: u64,
}

/// Spreads clients over connections, and connections over the sockets in turn.
pub(super) async fn run(sockets: &[PathBuf], load: &Load) -> Result<Done, LabError> {
    let deadline = Instant::now() + load.time;
    let connections = load.clients.div_ceil(load.per_connection.max(1)).max(sockets.len().min(load.clients));
    let mut running = JoinSet::new();
    for number in 0..connections {
        let clients = load.clients / connections + usize::from(number < load.clients % connections);
        let (socket, load) = (sockets[number % sockets.len()].clone(), load.clone());
        running.spawn(async move { connection(&socket, clients, &load, deadline).await });
    }
    let mut all = Done::default();
    while let Some(joined) = running.join_next().await {
        let done = joined.map_err(|e| PublicError::new(ErrorCode::Internal, e.to_string()))??;
        all.times.extend(done.times);
        all.accepted += done.accepted;
        all.busy += done.busy;
    }
    Ok(all)
}

async fn connection(
    socket: &Path,
    clients: usize,
    load: &Load,
    deadline: Instant,
) -> Result<Done, PublicError> {
    let (mut frames, mut writer, version) = greet(socket, load.token.clone()).await?;
    let mut done = Done::default();
    let (mut seq, mut idle) = (0, clients);
    let mut begun: BTreeMap<u32, Instant> = BTreeMap::new();
    let mut parked: Vec<Instant> = Vec::new();
    loop {
        let now = Instant::now();
        let before = parked.len();
        parked.retain(|until| *until > now);
        idle += before - parked.len();
        if now >= deadline {
            (idle, parked) = (0, Vec::new());
        }
        let mut bytes = Vec::new();
        for _ in 0..std::mem::take(&mut idle) {
            seq += 1;
            let jobs = (0..load.batch).map(|_| (new_request(), load.job.clone())).collect();
            let call = ApiCall { seq, request: ApiRequest::Submit { jobs } };
            bytes.extend(encode_message(version, FrameKind::ApiCall, &call).map_err(|e| broken(&e))?);
            begun.insert(seq, Instant::now());
        }
        if !bytes.is_empty() {
            write_frame(&mut writer, &bytes).await.map_err(|e| broken(&e))?;
        }
        let frame = match (begun.is_empty(), parked.iter().min()) {
            (true, None) => return Ok(done),
            (true, Some(until)) => {
                tokio::time::sleep_until((*until).into()).await;
                continue;
            }
            (false, None) => frames.next().await,
            (false, Some(until)) => match tokio::time::timeout_at((*until).into(), frames.next()).await {
                Ok(frame) => frame,
                Err(_) => continue,
            },
        };
        let mut frame = frame;
        loop {
            let answer: ApiAnswer = match frame {
                Ok(Some(frame)) => frame.message(FrameKind::ApiAnswer).map_err(|e| broken(&e))?,
                Ok(None) => return Err(broken(&FramingError::Closed(FrameKind::ApiAnswer))),
                Err(error) => return Err(broken(&error)),
            };
            let asked = begun.remove(&answer.seq);
            match done.count(answer.result, asked)? {
                Some(pause) => parked.push(Instant::now() + pause),
                None => idle += 1,
            }
            // All answers that are here already, so that their clients go on with one write.
            match frames.ready() {
                Ok(Some(next)) => frame = Ok(Some(next)),
                Ok(None) => break,
                Err(error) => frame = Err(error),
            }
        }
    }
}

/// Connects, agrees on a version, and shows the token if there is one.
async fn greet(
    socket: &Path,
    token: Option<String>,
) -> Result<(FrameReader<OwnedReadHalf>, OwnedWriteHalf, u16), PublicError> {
    let stream = UnixStream::connect(socket).await.map_err(|e| broken(&e))?;
    let (reader, mut writer) = stream.into_split();
    let mut frames = FrameReader::new(reader);
    let (_, version) =
        exchange_hello(&mut frames, &mut writer, &client_hello()).await.map_err(|e| broken(&e))?;
    if let Some(token) = token {
        let call = ApiCall { seq: 0, request: ApiRequest::Authenticate { token: token.into() } };
        let bytes = encode_message(version, FrameKind::ApiCall, &call).map_err(|e| broken(&e))?;
        write_frame(&mut writer, &bytes).await.map_err(|e| broken(&e))?;
        let answer: Option<ApiAnswer> =
            frames.next_message(FrameKind::ApiAnswer).await.map_err(|e| broken(&e))?;
        answer.ok_or_else(|| broken(&FramingError::Closed(FrameKind::ApiAnswer)))?.result?;
    }
    Ok((frames, writer, version))
}

impl Done {
    /// Counts one answer; a pause when the client was told to come back.
    fn count(
        &mut self,
        result: Result<ApiReply, PublicError>,
        asked: Option<Instant>,
    ) -> Result<Option<Duration>, PublicError> {
        match result {
            Ok(ApiReply::Submitted(results)) => {
                for result in results {
                    result?;
                    self.accepted += 1;
                }
                self.times.extend(asked.map(|asked| asked.elapsed()));
                Ok(None)
            }
            // Shed load is no failure of the bench, but it is not counted as accepted either.
            Err(error) if error.code == ErrorCode::Busy => {
                self.busy += 1;
                Ok(Some(Duration::from_millis(error.retry_after_ms.unwrap_or(BUSY_PAUSE_MS).into())))
            }
            Err(error) => Err(error),
            Ok(other) => Err(PublicError::new(ErrorCode::Internal, format!("unexpected {other:?}"))),
        }
    }
}

fn broken(error: &dyn std::error::Error) -> PublicError {
    PublicError::new(ErrorCode::Unknown, format!("the connection to the agent broke: {error}"))
}
