//! Checks of PEM texts and of certificates and keys that must belong together. Pure: the paths are for messages.

use super::identity::{Authority, CA, CA_KEY, HOST, IdentityError};
use super::tls;
use super::validity::{stamp, validity_s};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use std::path::Path;
use std::time::SystemTime;

/// One authority, or two while the one is replaced by the other.
const AUTHORITIES_MAX: usize = 2;

pub(super) fn malformed(path: &Path, what: &str) -> IdentityError {
    IdentityError::Malformed { path: path.to_owned(), what: what.to_owned() }
}

pub(super) fn one_certificate(path: &Path, pem: &str) -> Result<CertificateDer<'static>, IdentityError> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
    let all = all.map_err(|e| malformed(path, &format!("not a PEM certificate: {e}")))?;
    match <[_; 1]>::try_from(all) {
        Ok([one]) => Ok(one),
        Err(all) => Err(malformed(path, &format!("holds {} certificates, not one", all.len()))),
    }
}

pub(super) fn one_key(path: &Path, pem: &str) -> Result<PrivateKeyDer<'static>, IdentityError> {
    let all: Result<Vec<_>, _> = PrivateKeyDer::pem_slice_iter(pem.as_bytes()).collect();
    let all = all.map_err(|e| malformed(path, &format!("not a PEM key: {e}")))?;
    match <[_; 1]>::try_from(all) {
        Ok([one]) => Ok(one),
        Err(all) => Err(malformed(path, &format!("holds {} keys, not one", all.len()))),
    }
}

/// Cuts a text into its PEM blocks; what is behind the last one is a piece too.
pub(super) fn pieces(text: &str) -> Vec<String> {
    let mut pieces = vec![String::new()];
    for line in text.lines() {
        let piece = pieces.last_mut().map_or(0, |last| {
            last.push_str(line);
            last.push('\n');
            usize::from(line.starts_with("-----END "))
        });
        if piece == 1 {
            pieces.push(String::new());
        }
    }
    let whole = pieces.len() == 1;
    pieces.retain(|piece| whole || !piece.trim().is_empty());
    pieces
}

/// The authorities of two texts: certificates, and their keys in the same order; the first one signs.
pub(super) fn authorities(
    dir: &Path,
    certificates: &str,
    keys: &str,
) -> Result<Vec<Authority>, IdentityError> {
    let (path, key_path) = (dir.join(CA), dir.join(CA_KEY));
    let (certificates, keys) = (pieces(certificates), pieces(keys));
    if certificates.len() != keys.len() || certificates.len() > AUTHORITIES_MAX {
        let what = format!(
            "it holds {} certificates where {} holds {} keys",
            certificates.len(),
            key_path.display(),
            keys.len()
        );
        return Err(malformed(&path, &what));
    }
    let pair = |(pem, key_pem): (String, String)| {
        let certificate = one_certificate(&path, &pem)?;
        let key = one_key(&key_path, &key_pem)?;
        check_pair(dir, (CA, &certificate), (CA_KEY, &key))?;
        Ok(Authority { certificate, pem, key_pem })
    };
    certificates.into_iter().zip(keys).map(pair).collect()
}

pub(super) fn check_pair(
    dir: &Path,
    (certificate_name, certificate): (&str, &CertificateDer<'static>),
    (key_name, key): (&str, &PrivateKeyDer<'static>),
) -> Result<(), IdentityError> {
    let signing = tls::provider()
        .key_provider
        .load_private_key(key.clone_key())
        .map_err(|e| malformed(&dir.join(key_name), &format!("not a usable key: {e}")))?;
    rustls::sign::CertifiedKey::new(vec![certificate.clone()], signing).keys_match().map_err(|_| {
        IdentityError::KeyMismatch { key: dir.join(key_name), certificate: dir.join(certificate_name) }
    })
}

pub(super) fn check_chain(
    dir: &Path,
    authorities: &[Authority],
    certificate: &CertificateDer<'_>,
    now: SystemTime,
) -> Result<(), IdentityError> {
    let path = dir.join(HOST);
    let anchors = authorities
        .iter()
        .map(|ca| webpki::anchor_from_trusted_cert(&ca.certificate))
        .collect::<Result<Vec<_>, _>>()
        .map_err(|e| malformed(&dir.join(CA), &format!("not an authority's certificate: {e}")))?;
    let parsed = webpki::EndEntityCert::try_from(certificate)
        .map_err(|e| malformed(&path, &format!("not a certificate: {e}")))?;
    let since_epoch = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    parsed
        .verify_for_usage(
            tls::provider().signature_verification_algorithms.all,
            &anchors,
            &[],
            UnixTime::since_unix_epoch(since_epoch),
            webpki::KeyUsage::client_auth(),
            None,
            None,
        )
        .map(|_| ())
        .map_err(|error| match error {
            webpki::Error::CertExpired { .. } | webpki::Error::CertNotValidYet { .. } => {
                let (from_s, to_s) = validity_s(certificate).unwrap_or_default();
                let now_s = i64::try_from(since_epoch.as_secs()).unwrap_or(i64::MAX);
                let what = if now_s > to_s { "expired" } else { "not valid yet" };
                let [now, from, to] = [now_s, from_s, to_s].map(stamp);
                IdentityError::Validity { path, what, now, from, to }
            }
            other => malformed(&path, &format!("not signed by {}: {other}", dir.join(CA).display())),
        })
}
