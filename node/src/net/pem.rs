//! Checks of PEM texts and of certificates and keys that must belong together. Pure: the paths are for messages.

use super::identity::{CA, HOST, IdentityError};
use super::tls;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use std::path::Path;
use std::time::SystemTime;

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
    ca: &CertificateDer<'_>,
    certificate: &CertificateDer<'_>,
    now: SystemTime,
) -> Result<(), IdentityError> {
    let path = dir.join(HOST);
    let anchor = webpki::anchor_from_trusted_cert(ca)
        .map_err(|e| malformed(&dir.join(CA), &format!("not an authority's certificate: {e}")))?;
    let parsed = webpki::EndEntityCert::try_from(certificate)
        .map_err(|e| malformed(&path, &format!("not a certificate: {e}")))?;
    let since_epoch = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    parsed
        .verify_for_usage(
            tls::provider().signature_verification_algorithms.all,
            &[anchor],
            &[],
            UnixTime::since_unix_epoch(since_epoch),
            webpki::KeyUsage::client_auth(),
            None,
            None,
        )
        .map(|_| ())
        .map_err(|error| match error {
            webpki::Error::CertExpired { .. } => IdentityError::Validity { path, what: "expired" },
            webpki::Error::CertNotValidYet { .. } => IdentityError::Validity { path, what: "not valid yet" },
            other => malformed(&path, &format!("not signed by {}: {other}", dir.join(CA).display())),
        })
}
