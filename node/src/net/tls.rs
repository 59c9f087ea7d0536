//! TLS for the one QUIC port: TLS 1.3 with ring, three protocols told apart by ALPN. No sockets here.
//!
//! | ALPN | client shows | client checks of the server |
//! |---|---|---|
//! | `rota-peer/1` | its host certificate | signed by our authority, and names the very host that was wanted |
//! | `rota-join/1` | nothing | its chain ends in the authority that the join token names |
//! | `rota-api/1` | nothing | its chain ends in the authority that the user token names |
//!
//! The server asks for a client certificate and checks any that is shown; that a peer must show one is enforced
//! after the handshake, when the ALPN is known (`server`). 0-RTT and session resumption are off: 0-RTT data can be
//! replayed, and a resumed session would outlive the certificate that opened it.

use super::ca::Fingerprint;
use super::identity::Identity;
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WebPkiServerVerifier, verify_server_cert_signed_by_trust_anchor};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::{NoServerSessionStorage, ParsedCertificate, WebPkiClientVerifier};
use rustls::{DigitallySignedStruct, RootCertStore, SignatureScheme};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

/// Between peers.
pub const ALPN_PEER: &[u8] = b"rota-peer/1";
/// From a host that joins.
pub const ALPN_JOIN: &[u8] = b"rota-join/1";
/// From clients.
pub const ALPN_API: &[u8] = b"rota-api/1";
/// What joiners and clients call the server: they know its authority, not its number.
pub(super) const ANY_HOST: &str = "any-host.rota";

/// Why TLS could not be set up.
#[derive(Debug, thiserror::Error)]
#[error("cannot set up tls: {0}")]
pub struct TlsError(String);

static PROVIDER: LazyLock<Arc<CryptoProvider>> =
    LazyLock::new(|| Arc::new(rustls::crypto::ring::default_provider()));

/// The one crypto provider of the process; nothing rests on a process-wide default.
pub(super) fn provider() -> &'static Arc<CryptoProvider> {
    &PROVIDER
}

/// The server side of all three protocols.
pub(super) fn server_config(identity: &Identity) -> Result<Arc<QuicServerConfig>, TlsError> {
    let verifier = WebPkiClientVerifier::builder_with_provider(roots(identity)?, provider().clone())
        .allow_unauthenticated()
        .build()
        .map_err(tls_error)?;
    let mut config = rustls::ServerConfig::builder_with_provider(provider().clone())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(tls_error)?
        .with_client_cert_verifier(verifier)
        .with_single_cert(
            // The authority goes along for those who know only its fingerprint.
            identity.shown_chain(),
            identity.key(),
        )
        .map_err(tls_error)?;
    config.alpn_protocols = vec![ALPN_PEER.to_vec(), ALPN_JOIN.to_vec(), ALPN_API.to_vec()];
    config.max_early_data_size = 0;
    config.send_tls13_tickets = 0;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    QuicServerConfig::try_from(config).map(Arc::new).map_err(tls_error)
}

/// A peer's client side: shows this host's certificate, checks the server against the authority. The server's name
/// given at connect time must be [`super::ca::host_name`] of the wanted host.
pub(super) fn peer_client_config(identity: &Identity) -> Result<Arc<QuicClientConfig>, TlsError> {
    let verifier = WebPkiServerVerifier::builder_with_provider(roots(identity)?, provider().clone())
        .build()
        .map_err(tls_error)?;
    let config = client_builder(verifier)?
        .with_client_auth_cert(vec![identity.certificate().clone()], identity.key())
        .map_err(tls_error)?;
    finish_client(config, ALPN_PEER)
}

/// The client side of joiners and API clients. The flag is set when a server showed another authority.
pub(super) fn pinned_client_config(
    ca: Fingerprint,
    alpn: &[u8],
) -> Result<(Arc<QuicClientConfig>, Arc<AtomicBool>), TlsError> {
    let foreign = Arc::new(AtomicBool::new(false));
    let verifier = Arc::new(PinnedCa { ca, foreign: foreign.clone() });
    let config = client_builder(verifier)?.with_no_client_auth();
    Ok((finish_client(config, alpn)?, foreign))
}

/// A client that shows any certificates and trusts every host of the authority: for tests of the server's checks.
#[cfg(test)]
pub(super) fn pinned_client_config_showing(
    ca: Fingerprint,
    alpn: &[u8],
    chain: Vec<CertificateDer<'static>>,
    key: rustls::pki_types::PrivateKeyDer<'static>,
) -> Result<Arc<QuicClientConfig>, TlsError> {
    let foreign = Arc::new(AtomicBool::new(false));
    let config = client_builder(Arc::new(PinnedCa { ca, foreign }))?
        .with_client_auth_cert(chain, key)
        .map_err(tls_error)?;
    finish_client(config, alpn)
}

/// A client that would send early data if it were ever given a ticket: for tests.
#[cfg(test)]
pub(super) fn willing_client_config(ca: Fingerprint, alpn: &[u8]) -> Result<Arc<QuicClientConfig>, TlsError> {
    let foreign = Arc::new(AtomicBool::new(false));
    let mut config = client_builder(Arc::new(PinnedCa { ca, foreign }))?.with_no_client_auth();
    config.alpn_protocols = vec![alpn.to_vec()];
    config.enable_early_data = true;
    QuicClientConfig::try_from(config).map(Arc::new).map_err(tls_error)
}

fn client_builder(
    verifier: Arc<dyn ServerCertVerifier>,
) -> Result<rustls::ConfigBuilder<rustls::ClientConfig, rustls::client::WantsClientCert>, TlsError> {
    Ok(rustls::ClientConfig::builder_with_provider(provider().clone())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(tls_error)?
        .dangerous()
        .with_custom_certificate_verifier(verifier))
}

fn finish_client(mut config: rustls::ClientConfig, alpn: &[u8]) -> Result<Arc<QuicClientConfig>, TlsError> {
    config.alpn_protocols = vec![alpn.to_vec()];
    config.enable_early_data = false;
    config.resumption = Resumption::disabled();
    QuicClientConfig::try_from(config).map(Arc::new).map_err(tls_error)
}

fn roots(identity: &Identity) -> Result<Arc<RootCertStore>, TlsError> {
    let mut roots = RootCertStore::empty();
    for authority in identity.authorities() {
        roots.add(authority.certificate.clone()).map_err(tls_error)?;
    }
    Ok(Arc::new(roots))
}

fn tls_error(error: impl std::fmt::Display) -> TlsError {
    TlsError(error.to_string())
}

/// Trusts the servers of one authority, known by its fingerprint.
#[derive(Debug)]
struct PinnedCa {
    ca: Fingerprint,
    foreign: Arc<AtomicBool>,
}

impl ServerCertVerifier for PinnedCa {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let pinned = intermediates.iter().find(|shown| Fingerprint::of(shown) == self.ca);
        let Some(ca) = pinned else {
            self.foreign.store(true, Ordering::Relaxed);
            return Err(rustls::CertificateError::UnknownIssuer.into());
        };
        let mut roots = RootCertStore::empty();
        roots.add(ca.clone().into_owned())?;
        verify_server_cert_signed_by_trust_anchor(
            &ParsedCertificate::try_from(end_entity)?,
            &roots,
            &[],
            now,
            provider().signature_verification_algorithms.all,
        )?;
        if super::ca::named_host(end_entity).is_none() {
            return Err(rustls::CertificateError::NotValidForName.into());
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::PeerIncompatible::Tls12NotOffered.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(
            message,
            cert,
            dss,
            &provider().signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        provider().signature_verification_algorithms.supported_schemes()
    }
}
