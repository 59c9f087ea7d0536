//! Trust that changes while connections live: another certificate, hosts revoked, connections that outlast their proof.
//!
//! A new certificate is used by new connections only, so each outgoing one is made anew beside the old one and takes its
//! place; calls under way end on the old one. Nothing is cut. How long an incoming connection's certificate has left is
//! read off the wall clock once, when it comes, and counted by the monotonic one: a wall clock that jumps cuts nothing.

use super::link::Link;
use super::trusted::Trusted;
use super::{CloseCode, Identity, Inner, Net, TlsError, dial, server, validity};
use quinn::Connection;
use rota_protocol::HostId;
use rustls::pki_types::CertificateDer;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::time::sleep;

/// Between two connections that are made anew: a renewal must not look like a flood.
const REFRESH_PAUSE: Duration = Duration::from_millis(20);
/// Before a peer that did not answer is tried again.
const REFRESH_AGAIN: Duration = Duration::from_millis(500);
/// How often it is looked whether the last call of an old connection is over.
const DRAIN_LOOK: Duration = Duration::from_millis(50);
/// How long the last call may take.
const DRAIN_TIME: Duration = Duration::from_secs(60);

/// What may change while the network runs.
pub(super) struct Credentials {
    identity: RwLock<Arc<Identity>>,
    dialler: RwLock<Arc<dial::Dialler>>,
    trusted: RwLock<Arc<Trusted>>,
    /// Counts changes of certificate or authorities.
    generation: AtomicU64,
    /// Incoming connections of peers.
    incoming: Mutex<BTreeMap<u64, (HostId, Connection)>>,
    next_incoming: AtomicU64,
    /// Joins and user tokens refused since somebody asked.
    pub(super) refused: AtomicU32,
}

impl Credentials {
    pub(super) fn new(identity: Arc<Identity>, dialler: dial::Dialler) -> Self {
        Self {
            identity: RwLock::new(identity),
            dialler: RwLock::new(Arc::new(dialler)),
            trusted: RwLock::default(),
            generation: AtomicU64::new(0),
            incoming: Mutex::default(),
            next_incoming: AtomicU64::new(0),
            refused: AtomicU32::new(0),
        }
    }

    pub(super) fn identity(&self) -> Arc<Identity> {
        self.identity.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn dialler(&self) -> Arc<dial::Dialler> {
        self.dialler.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn trusted(&self) -> Arc<Trusted> {
        self.trusted.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    fn incoming(&self) -> std::sync::MutexGuard<'_, BTreeMap<u64, (HostId, Connection)>> {
        self.incoming.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Lists an incoming connection for as long as it is served.
pub(super) struct Listed<'a> {
    credentials: &'a Credentials,
    number: u64,
}

impl<'a> Listed<'a> {
    /// Lists it, and then looks whether it is trusted: who is revoked in between is seen by one of the two.
    pub(super) fn new(
        credentials: &'a Credentials,
        host: HostId,
        connection: &Connection,
    ) -> Result<Self, (CloseCode, String)> {
        let number = credentials.next_incoming.fetch_add(1, Ordering::Relaxed);
        credentials.incoming().insert(number, (host, connection.clone()));
        let listed = Self { credentials, number };
        match credentials.trusted().refuse(host, certificate_of(connection).as_ref()) {
            Some(refused) => Err(refused),
            None => Ok(listed),
        }
    }
}

impl Drop for Listed<'_> {
    fn drop(&mut self) {
        self.credentials.incoming().remove(&self.number);
    }
}

/// The certificate that the other side of a connection showed.
pub(super) fn certificate_of(connection: &Connection) -> Option<CertificateDer<'static>> {
    let chain = connection.peer_identity()?.downcast::<Vec<CertificateDer<'static>>>().ok()?;
    chain.into_iter().next()
}

/// How long a certificate is still good for, by the clock of now.
pub(super) fn left_of(certificate: &CertificateDer<'_>) -> Duration {
    let now_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let to_s = validity::validity_s(certificate).map_or(0, |(_, to_s)| u64::try_from(to_s).unwrap_or(0));
    Duration::from_secs(to_s.saturating_sub(now_s))
}

impl Net {
    /// Uses another certificate, or other authorities, from now on, and makes every connection to a peer anew with it,
    /// without ending a call.
    ///
    /// # Errors
    /// Keys and certificates are not usable; everything stays as it was.
    pub fn renew(&self, identity: Arc<Identity>) -> Result<(), TlsError> {
        let inner = &self.inner;
        let server_config = server::config(&identity, &inner.timings)?;
        let dialler = dial::Dialler::new(&identity, &inner.timings)?;
        let credentials = &inner.credentials;
        inner.endpoint.set_server_config(Some(server_config));
        *credentials.dialler.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(dialler);
        *credentials.identity.write().unwrap_or_else(PoisonError::into_inner) = identity;
        credentials.generation.fetch_add(1, Ordering::AcqRel);
        tokio::spawn(refresh(Arc::downgrade(inner), credentials.generation()));
        Ok(())
    }

    /// Takes the state's word on who is trusted. Connections of hosts that are not any more end at once, both ways.
    pub fn set_trusted(&self, trusted: Trusted) {
        let inner = &self.inner;
        let trusted = Arc::new(trusted);
        *inner.credentials.trusted.write().unwrap_or_else(PoisonError::into_inner) = trusted.clone();
        let listed: Vec<_> = inner.credentials.incoming().values().cloned().collect();
        for (host, connection) in listed {
            if let Some((code, why)) = trusted.refuse(host, certificate_of(&connection).as_ref()) {
                tracing::warn!(%host, why, "a connection is ended");
                code.close(&connection, &why);
            }
        }
        for link in inner.all_links() {
            let Some(up) = link.up() else { continue };
            if let Some((code, why)) = trusted.refuse(link.to(), certificate_of(&up.connection).as_ref()) {
                link.forget(&up);
                code.close(&up.connection, &why);
            }
        }
    }

    /// Somebody showed a token that is worth nothing.
    pub fn count_refused(&self) {
        self.inner.credentials.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// How often joins and tokens were refused since the last call.
    pub fn take_refused(&self) -> u32 {
        self.inner.credentials.refused.swap(0, Ordering::Relaxed)
    }

    /// Whether every connection to a peer was made with the newest certificate.
    #[must_use]
    pub fn is_renewed(&self) -> bool {
        let generation = self.inner.credentials.generation();
        self.inner.all_links().iter().all(|link| link.generation().is_none_or(|made| made >= generation))
    }

    /// Connections of peers that are served now.
    #[must_use]
    pub fn incoming(&self) -> usize {
        self.inner.credentials.incoming().len()
    }

    /// Who this host is.
    #[must_use]
    pub fn identity(&self) -> Arc<Identity> {
        self.inner.credentials.identity()
    }
}

/// Makes connections of older generations anew, one after the other, until none is left or a newer change came.
async fn refresh(inner: std::sync::Weak<Inner>, generation: u64) {
    loop {
        let Some(inner) = inner.upgrade() else { return };
        if inner.credentials.generation() != generation {
            return;
        }
        let old = |link: &Arc<Link>| link.generation().is_some_and(|made| made < generation);
        let links: Vec<Arc<Link>> = inner.all_links().into_iter().filter(old).collect();
        if links.is_empty() {
            return;
        }
        let mut failed = false;
        for link in links {
            match inner.dial(link.to(), link.class()).await {
                Ok(fresh) => {
                    if let Some(old) = link.exchange(fresh) {
                        tokio::spawn(drain(old));
                    }
                }
                Err(error) => {
                    tracing::debug!(host = %link.to(), %error, "a connection could not be made anew yet");
                    failed = true;
                }
            }
            sleep(REFRESH_PAUSE).await;
        }
        drop(inner);
        if failed {
            sleep(REFRESH_AGAIN).await;
        }
    }
}

/// Closes a connection once its last call is over.
async fn drain(old: Arc<super::link::Up>) {
    let looks = DRAIN_TIME.as_millis() / DRAIN_LOOK.as_millis();
    for _ in 0..looks {
        if Arc::strong_count(&old) == 1 {
            break;
        }
        sleep(DRAIN_LOOK).await;
    }
    // Whoever took it from the link an instant ago has written by now, or sees that it was closed and dials.
    sleep(DRAIN_LOOK).await;
    CloseCode::Done.close(&old.connection, "a newer connection took its place");
}
