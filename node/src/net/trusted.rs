//! What the cluster's state says of its hosts, as the network needs it: keys, revocations, version. Pure.
//!
//! A certificate of our authority names a host; it is that host's only if its key is the one that the state records. The
//! authority's key is on every host, so a certificate alone proves too little.

use super::CloseCode;
use super::ca;
use rota_protocol::HostId;
use rota_protocol::trust::Print;
use rota_protocol::version::OLDER_BUILD;
use rustls::pki_types::CertificateDer;
use std::collections::BTreeMap;

/// The word of the state; empty before one is known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Trusted {
    /// SHA-256 of the hosts' public keys, DER `SubjectPublicKeyInfo`. A host without one is taken by its certificate.
    pub keys: BTreeMap<HostId, Print>,
    /// Hosts that are trusted no more, and why.
    pub revoked: BTreeMap<HostId, String>,
    /// The oldest version that a host must read.
    pub version: u16,
}

impl Trusted {
    /// Why this certificate does not speak for this host.
    pub(super) fn refuse(
        &self,
        host: HostId,
        certificate: Option<&CertificateDer<'_>>,
    ) -> Option<(CloseCode, String)> {
        if let Some(why) = self.revoked.get(&host) {
            return Some((CloseCode::Revoked, format!("host {host} was revoked: {why}")));
        }
        let recorded = self.keys.get(&host)?;
        if certificate.and_then(ca::certified_key).as_ref() == Some(recorded) {
            return None;
        }
        let text =
            format!("the certificate for host {host} has another key than the one that the cluster recorded");
        Some((CloseCode::Unauthenticated, text))
    }

    /// What to tell a host whose program is too old.
    pub(super) fn too_old(&self, theirs: u16) -> Option<String> {
        let wanted = self.version;
        (theirs < wanted).then(|| {
            format!("the cluster is of version {wanted}, this host reads up to {theirs}; {OLDER_BUILD}")
        })
    }
}
