//! A client that goes on: it connects when needed, and where the outcome of a request is unknown or nobody can
//! answer yet, it asks again, the same bytes with the same request ids, here or at the next peer, until its deadline.

use super::{Client, Dial, Replies};
use rota_protocol::api::{ApiReply, ApiRequest};
use rota_protocol::data::DataAsk;
use rota_protocol::{ErrorCode, PublicError};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::Instant;

/// First pause before asking again; it doubles up to [`PAUSE_MAX`].
const PAUSE_MIN: Duration = Duration::from_millis(20);
/// Longest pause before asking again: a failover takes about this long.
const PAUSE_MAX: Duration = Duration::from_millis(500);
/// Longest time that one peer may take for one answer before the next is asked.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// A client of one or more peers.
pub struct Steady {
    dials: Vec<Arc<dyn Dial>>,
    deadline: Duration,
    link: Mutex<Link>,
    /// Some peer answered once: one that is away now is waited for.
    reached: AtomicBool,
    /// How old the last answer was that may be old, in ms.
    age_ms: AtomicU64,
}

/// No answer had an age.
const AGELESS: u64 = u64::MAX;

#[derive(Default)]
struct Link {
    client: Option<Arc<Client>>,
    /// Which peer is asked now.
    at: usize,
}

impl fmt::Debug for Steady {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let places: Vec<String> = self.dials.iter().map(|dial| dial.place()).collect();
        f.debug_struct("Steady").field("places", &places).finish_non_exhaustive()
    }
}

impl Steady {
    /// A client that asks these peers, the first one first, and gives up after `deadline` for each request.
    #[must_use]
    pub fn new(dials: Vec<Arc<dyn Dial>>, deadline: Duration) -> Self {
        Self {
            dials,
            deadline,
            link: Mutex::new(Link::default()),
            reached: AtomicBool::new(false),
            age_ms: AtomicU64::new(AGELESS),
        }
    }

    /// A client of the same peers with a connection of its own, made when first used: for calls that must not wait
    /// behind a stream whose reader is slow.
    #[must_use]
    pub fn beside(&self) -> Self {
        let reached = AtomicBool::new(self.reached.load(Ordering::Relaxed));
        Self {
            dials: self.dials.clone(),
            deadline: self.deadline,
            link: Mutex::new(Link::default()),
            reached,
            age_ms: AtomicU64::new(AGELESS),
        }
    }

    /// How old the last answer was, at most, where an age was allowed.
    #[must_use]
    pub fn age(&self) -> Option<Duration> {
        let ms = self.age_ms.load(Ordering::Relaxed);
        (ms != AGELESS).then(|| Duration::from_millis(ms))
    }

    /// Asks for one answer.
    ///
    /// # Errors
    /// A refusal that will not change; `NoLeader` when surely nothing was carried out; `Unknown` when it may have
    /// been.
    pub async fn call(&self, request: ApiRequest) -> Result<ApiReply, PublicError> {
        let mut retry = Retry::new(self.deadline, self.reached.load(Ordering::Relaxed));
        loop {
            let error = match self.ask_once(&request, retry.left()).await {
                Ok(ApiReply::Aged { age_ms, reply }) => {
                    self.age_ms.store(age_ms, Ordering::Relaxed);
                    return Ok(*reply);
                }
                Ok(reply) => return Ok(reply),
                Err(error) => error,
            };
            retry.pause(&request, error, self.dials.len()).await?;
        }
    }

    /// Opens streams with one write. Only opening them is tried again: once answers flow, the caller knows best
    /// where to go on.
    ///
    /// # Errors
    /// As for [`Self::call`].
    pub async fn streams(&self, requests: &[ApiRequest]) -> Result<Vec<Replies>, PublicError> {
        let mut retry = Retry::new(self.deadline, self.reached.load(Ordering::Relaxed));
        loop {
            let opened = match self.client().await {
                Ok(client) => client.streams(requests.iter().cloned()).await,
                Err(error) => Err(error),
            };
            let error = match opened {
                Ok(streams) => return Ok(streams),
                Err(error) => error,
            };
            self.forget().await;
            match requests.first() {
                Some(request) => retry.pause(request, error, self.dials.len()).await?,
                None => return Err(error),
            }
        }
    }

    async fn ask_once(&self, request: &ApiRequest, left: Duration) -> Result<ApiReply, PublicError> {
        let client = self.client().await?;
        let limit = left.min(ANSWER_LIMIT);
        let result = match tokio::time::timeout(limit, client.call(request.clone())).await {
            Ok(result) => result,
            Err(_) => {
                // What the last try was left is no measure of how long was waited.
                let waited = if limit < left { limit } else { self.deadline };
                let message = format!("no answer within {} ms", waited.as_millis());
                Err(PublicError::new(ErrorCode::Unknown, message))
            }
        };
        if result.as_ref().is_err_and(|e| e.code == ErrorCode::Unknown) {
            self.forget().await;
        }
        result
    }

    /// The open connection, or a new one to the first peer in turn that takes it.
    async fn client(&self) -> Result<Arc<Client>, PublicError> {
        let mut link = self.link.lock().await;
        if let Some(client) = link.client.as_ref().filter(|client| client.is_open()) {
            return Ok(Arc::clone(client));
        }
        let mut error = PublicError::new(ErrorCode::NoLeader, "no peer is known");
        for _ in 0..self.dials.len() {
            let dial = &self.dials[link.at % self.dials.len()];
            match Client::connect(&**dial).await {
                Ok(client) => {
                    self.reached.store(true, Ordering::Relaxed);
                    let client = Arc::new(client);
                    link.client = Some(Arc::clone(&client));
                    return Ok(client);
                }
                Err(refused) => error = refused,
            }
            link.at = link.at.wrapping_add(1);
        }
        Err(error)
    }

    /// Drops the connection; the next request goes to the next peer.
    async fn forget(&self) {
        let mut link = self.link.lock().await;
        if link.client.take().is_some() {
            link.at = link.at.wrapping_add(1);
        }
    }
}

/// What is left of a request's time, and whether its outcome is still certain.
struct Retry {
    until: Instant,
    pause: Duration,
    /// An earlier try may have been carried out.
    unknown: bool,
    /// Some peer was reached before.
    reached: bool,
}

impl Retry {
    fn new(deadline: Duration, reached: bool) -> Self {
        Self { until: Instant::now() + deadline, pause: PAUSE_MIN, unknown: false, reached }
    }

    fn left(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }

    /// Waits before the next try, or gives the error back for good.
    async fn pause(
        &mut self,
        request: &ApiRequest,
        error: PublicError,
        peers: usize,
    ) -> Result<(), PublicError> {
        let lost = error.code == ErrorCode::Unknown;
        self.unknown |= lost && !request.is_read();
        let answered = error.retry_after_ms.is_some();
        self.reached |= lost || answered;
        // A lone agent that was never there is not waited for: the user would rather know at once.
        let absent = error.code == ErrorCode::NoLeader && !self.reached && peers < 2;
        // A full disk is the leader's, which hands over; or room comes.
        let passing = matches!(
            error.code,
            ErrorCode::Unknown | ErrorCode::NoLeader | ErrorCode::Busy | ErrorCode::StorageFull
        );
        if !passing || absent || (lost && !is_repeatable(request)) {
            return Err(error);
        }
        let asked = error.retry_after_ms.map(u64::from).map(Duration::from_millis);
        let pause = asked.unwrap_or(self.pause).min(PAUSE_MAX);
        if self.left() <= pause {
            return Err(match self.unknown {
                true => PublicError {
                    code: ErrorCode::Unknown,
                    message: format!("{}; the request may have been carried out", error.message),
                    ..error
                },
                false => error,
            });
        }
        tokio::time::sleep(pause).await;
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        Ok(())
    }
}

/// A request that may be sent again after its answer was lost: everything that reads or has a request id. A token's
/// secret is drawn anew by each call, and only the first one would be stored; a lead that moved would move on; an upload
/// is one host's.
fn is_repeatable(request: &ApiRequest) -> bool {
    !matches!(
        request,
        ApiRequest::Signal { .. }
            | ApiRequest::MintToken { .. }
            | ApiRequest::MoveLead { to: None }
            | ApiRequest::Data(DataAsk::Begin { .. } | DataAsk::Piece { .. } | DataAsk::Commit { .. })
    )
}
