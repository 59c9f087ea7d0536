//! How a host's certificate is renewed, and how it takes another authority. Bytes and files; when to do it is
//! `logic::renewal`, who does it the `certifier` actor.
//!
//! Every host holds the authority's key, so each renews for itself: no other host, no leader and no quorum is needed, and
//! a host that was off for longer than the life of its certificate proves itself by its key when it comes back. What
//! keeps that safe is the cluster's record: peers refuse a certificate whose key is not the one recorded for that host
//! (`trusted`), so that the authority's key alone makes nobody a host, and revocation is by host, for ever.

use super::ca::{self, Fingerprint};
use super::identity::{Authority, Draft, Identity, IdentityError, Pems};
use super::pem;
use super::validity::validity_s;
use rota_protocol::ClusterId;
use rota_protocol::trust::Print;
use rustls::pki_types::CertificateDer;
use std::path::Path;
use std::time::{Duration, SystemTime};

impl Identity {
    /// Reads `<data>/identity/` for an agent that starts: where the certificate has run out, a new one takes its place.
    /// True if so.
    ///
    /// # Errors
    /// As [`Identity::load`], also for a certificate that is not valid yet: the clock is behind.
    pub fn load_or_renew(data: &Path, life: Duration) -> Result<(Self, bool), IdentityError> {
        Self::load_or_renew_at(data, life, SystemTime::now())
    }

    pub(super) fn load_or_renew_at(
        data: &Path,
        life: Duration,
        now: SystemTime,
    ) -> Result<(Self, bool), IdentityError> {
        match Self::load_at(data, now) {
            Err(IdentityError::Validity { what: "expired", .. }) => {}
            other => return other.map(|identity| (identity, false)),
        }
        let draft = Self::read(data)?;
        let dir = Self::dir(data);
        // As of when it was still valid: all but its age must be in order.
        let certificate = pem::one_certificate(&dir.join(super::identity::HOST), &draft.pems.host)?;
        let ended = validity_s(&certificate).map_or(SystemTime::UNIX_EPOCH, |(_, to_s)| time_of(to_s));
        let old = Self::check(draft, &dir, ended)?;
        let renewed = old.renewed(life, now)?;
        renewed.replace(data)?;
        Ok((renewed, true))
    }

    /// The same host with a new certificate for the same key, valid from shortly before `now`.
    ///
    /// # Errors
    /// The authority's key cannot sign.
    pub fn renewed(&self, life: Duration, now: SystemTime) -> Result<Self, IdentityError> {
        self.under(self.authorities().to_vec(), life, now)
    }

    /// The same host under these authorities, with a certificate of the first.
    pub(super) fn under(
        &self,
        authorities: Vec<Authority>,
        life: Duration,
        now: SystemTime,
    ) -> Result<Self, IdentityError> {
        let Some(signs) = authorities.first() else {
            return Ok(self.clone());
        };
        let key = rcgen::KeyPair::from_pem(&self.pems().host_key)
            .map_err(|e| IdentityError::Ca(ca::CaError::CaKey(e.to_string())))?;
        let public = ca::public_key_der(&key);
        let host = ca::certify(&signs.key_pem, self.cluster, self.host, &public, now, life)?;
        let all = |part: fn(&Authority) -> &String| authorities.iter().map(part).cloned().collect::<String>();
        let pems = Pems {
            ca: all(|authority| &authority.pem),
            ca_key: all(|authority| &authority.key_pem),
            host,
            host_key: self.pems().host_key.clone(),
        };
        let draft = Draft {
            host: self.host,
            cluster: self.cluster,
            cluster_name: self.cluster_name.clone(),
            host_name: self.host_name.clone(),
            seeds: self.seeds.clone(),
            pems,
        };
        // The folder is for messages only.
        Self::check(draft, Path::new("identity"), now)
    }

    /// Writes it over the one in `<data>/identity/`, whole or not at all.
    ///
    /// # Errors
    /// The disk refuses; the old one stays.
    pub fn store_again(&self, data: &Path) -> Result<(), IdentityError> {
        self.replace(data)
    }

    /// The same host under the authorities that the cluster names, in its order. `None` if it is already. Keys that it
    /// does not hold come from `fetched`.
    ///
    /// # Errors
    /// `Err(Ok(ca))`: the key of this one is missing. `Err(Err(..))`: it cannot be used.
    #[allow(clippy::type_complexity, reason = "two ways to fail, each with one caller")]
    pub fn as_named(
        &self,
        named: &[(Print, String)],
        fetched: &[(Print, String)],
        life: Duration,
        now: SystemTime,
    ) -> Result<Option<Self>, Result<Print, IdentityError>> {
        let held: Vec<Print> = self.authority_prints();
        if named.is_empty() || named.iter().map(|(ca, _)| ca).eq(held.iter()) {
            return Ok(None);
        }
        let mut all = Vec::new();
        for (ca, certificate_pem) in named {
            if let Some(at) = held.iter().position(|held| held == ca) {
                all.push(self.authorities()[at].clone());
                continue;
            }
            let key = fetched.iter().find(|(of, _)| of == ca).map(|(_, key)| key).ok_or(Ok(*ca))?;
            let path = Path::new("the cluster's state");
            let fetched = pem::authorities(path, certificate_pem, key).map_err(Err)?;
            if fetched.iter().map(|one| Fingerprint::of(&one.certificate).0).ne([*ca]) {
                return Err(Err(pem::malformed(
                    path,
                    "an authority's certificate is not the one that it names",
                )));
            }
            all.extend(fetched);
        }
        self.under(all, life, now).map(Some).map_err(Err)
    }

    /// SHA-256 of its authorities' certificates, the one that signs first.
    #[must_use]
    pub fn authority_prints(&self) -> Vec<Print> {
        self.authorities().iter().map(|held| Fingerprint::of(&held.certificate).0).collect()
    }

    /// Certificate and end of the authority at this place, ms since the epoch.
    #[must_use]
    pub fn authority(&self, at: usize) -> Option<(String, u64)> {
        let held = self.authorities().get(at)?;
        let (_, to_s) = validity_s(&held.certificate)?;
        Some((held.pem.clone(), u64::try_from(to_s).unwrap_or(0).saturating_mul(1_000)))
    }

    /// The key of an authority that it holds, PEM.
    #[must_use]
    pub fn authority_key(&self, ca: &Print) -> Option<String> {
        let held = self.authorities().iter().find(|held| Fingerprint::of(&held.certificate).0 == *ca)?;
        Some(held.key_pem.clone())
    }

    pub(super) fn signing_key(&self) -> &str {
        self.authorities().first().map_or("", |held| held.key_pem.as_str())
    }

    /// What a server shows: its certificate, and the authorities for those who know only a fingerprint.
    pub(super) fn shown_chain(&self) -> Vec<CertificateDer<'static>> {
        let authorities = self.authorities().iter().map(|held| held.certificate.clone());
        std::iter::once(self.certificate().clone()).chain(authorities).collect()
    }

    /// SHA-256 of its public key: how the cluster records it.
    #[must_use]
    pub fn key_print(&self) -> Option<Print> {
        ca::certified_key(self.certificate())
    }

    /// From when until when its certificate is valid, ms since the epoch.
    #[must_use]
    pub fn valid_ms(&self) -> (u64, u64) {
        let ms = |s: i64| u64::try_from(s).unwrap_or(0).saturating_mul(1_000);
        validity_s(self.certificate()).map_or((0, 0), |(from_s, to_s)| (ms(from_s), ms(to_s)))
    }
}

/// An authority that no host holds yet.
pub struct NewAuthority {
    /// SHA-256 of its certificate.
    pub ca: Print,
    /// Its certificate, PEM.
    pub certificate_pem: String,
    /// Its key, PEM.
    pub key_pem: String,
    /// When it ends, ms since the epoch.
    pub ends_ms: u64,
}

/// Makes an authority for a cluster; nothing is stored.
///
/// # Errors
/// No random numbers, or no certificate can be made.
pub fn new_authority(cluster: ClusterId, now: SystemTime) -> Result<NewAuthority, IdentityError> {
    let made = ca::make(cluster, now)?;
    let path = Path::new("a new authority");
    let certificate = pem::one_certificate(path, &made.certificate_pem)?;
    let ends_s = validity_s(&certificate).map_or(0, |(_, to_s)| u64::try_from(to_s).unwrap_or(0));
    Ok(NewAuthority {
        ca: Fingerprint::of(&certificate).0,
        certificate_pem: made.certificate_pem,
        key_pem: made.key_pem,
        ends_ms: ends_s.saturating_mul(1_000),
    })
}

/// SHA-256 of a joining host's public key: how the cluster records it.
#[must_use]
pub fn print_of_key(public_key_der: &[u8]) -> Print {
    ca::sha256(&[public_key_der])
}

fn time_of(seconds: i64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
}
