//! The cluster's certificate authority: made once by `rota init`, then used by any host to admit the next.
//! Pure but for randomness: bytes in, bytes out; `identity` keeps the files, `tls` uses the results.
//!
//! A certificate names its host in one DNS entry, `host-<id>.<cluster id, 32 hex digits>.rota`, so that both the
//! cluster and the host are checked in the handshake. Addresses are never in it: they may change.
//! The name and the key are who a host is; its certificate is only a proof of the day, which the host renews itself
//! (`renewal`).

use ring::digest;
use ring::rand::{SecureRandom, SystemRandom};
use rota_protocol::{ClusterId, HostId};
use rustls::pki_types::CertificateDer;
use std::fmt;
use std::time::{Duration, SystemTime};

/// How long a host's certificate is valid unless its settings say otherwise.
pub(super) const HOST_LIFE: Duration = Duration::from_secs(24 * 3_600);
/// How long the authority's own certificate is valid.
const CA_VALID: Duration = Duration::from_secs(20 * 366 * 24 * 3_600);
/// Certificates begin this much in the past, for hosts whose clocks lag.
const SKEW: Duration = Duration::from_secs(3_600);
/// DER of an uncompressed P-256 public key up to its 64 bytes of coordinates: the only kind that is certified.
const P256_PREFIX: [u8; 27] = [
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86,
    0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00, 0x04,
];
/// Where the bits of the key begin in that DER.
const P256_POINT_AT: usize = 26;
/// Length of that DER.
const P256_SPKI_BYTES: usize = 91;

/// Why a certificate could not be made.
#[derive(Debug, thiserror::Error)]
pub enum CaError {
    /// The key to certify is not an uncompressed P-256 key.
    #[error("the public key is not an ECDSA P-256 key")]
    KeyKind,
    /// The authority's own key cannot be read.
    #[error("the key of the cluster's certificate authority cannot be read: {0}")]
    CaKey(String),
    /// The library refused.
    #[error("cannot make a certificate: {0}")]
    Make(String),
    /// The system gave no random numbers.
    #[error("the system gives no random numbers")]
    Random,
}

/// SHA-256 of a certificate's DER: how tokens name the authority.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint(pub [u8; 32]);

impl Fingerprint {
    /// Of this certificate.
    #[must_use]
    pub fn of(certificate: &CertificateDer<'_>) -> Self {
        Self(sha256(&[certificate.as_ref()]))
    }

    /// From 64 hex digits.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut bytes = [0; 32];
        if text.len() != 64 || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
            return None;
        }
        for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
        }
        Some(Self(bytes))
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(&self.0))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A new authority: certificate and key, both PEM.
pub(super) struct NewCa {
    pub(super) certificate_pem: String,
    pub(super) key_pem: String,
}

/// Makes the authority of a new cluster.
pub(super) fn make(cluster: ClusterId, now: SystemTime) -> Result<NewCa, CaError> {
    let key = new_key()?;
    let mut params = ca_params(cluster);
    params.not_before = (now - SKEW).into();
    params.not_after = (now + CA_VALID).into();
    params.serial_number = Some(serial()?);
    let certificate = params.self_signed(&key).map_err(make_error)?;
    Ok(NewCa { certificate_pem: certificate.pem(), key_pem: key.serialize_pem() })
}

/// A fresh ECDSA P-256 key.
pub(super) fn new_key() -> Result<rcgen::KeyPair, CaError> {
    rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).map_err(make_error)
}

/// The DER `SubjectPublicKeyInfo` of a key.
pub(super) fn public_key_der(key: &rcgen::KeyPair) -> Vec<u8> {
    rcgen::PublicKeyData::subject_public_key_info(key)
}

/// Certifies a host's key: the certificate as PEM, valid from shortly before `now`.
pub(super) fn certify(
    ca_key_pem: &str,
    cluster: ClusterId,
    host: HostId,
    public_key_der: &[u8],
    now: SystemTime,
    life: Duration,
) -> Result<String, CaError> {
    certify_for(ca_key_pem, cluster, &host_name(cluster, host), public_key_der, (now - SKEW, now + life))
}

/// The same with every choice open; tests make bad certificates with it.
pub(super) fn certify_for(
    ca_key_pem: &str,
    cluster: ClusterId,
    name: &str,
    public_key_der: &[u8],
    valid: (SystemTime, SystemTime),
) -> Result<String, CaError> {
    let point = p256_point(public_key_der).ok_or(CaError::KeyKind)?;
    let ca_key = rcgen::KeyPair::from_pem(ca_key_pem).map_err(|e| CaError::CaKey(e.to_string()))?;
    let issuer = rcgen::Issuer::new(ca_params(cluster), ca_key);
    let mut params = rcgen::CertificateParams::new(vec![name.to_owned()]).map_err(make_error)?;
    params.distinguished_name = common_name(name);
    params.not_before = valid.0.into();
    params.not_after = valid.1.into();
    params.serial_number = Some(serial()?);
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![rcgen::KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages =
        vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth, rcgen::ExtendedKeyUsagePurpose::ClientAuth];
    let certificate = params.signed_by(&P256Point(point), &issuer).map_err(make_error)?;
    Ok(certificate.pem())
}

/// The name that a host's certificate carries.
#[must_use]
pub fn host_name(cluster: ClusterId, host: HostId) -> String {
    format!("host-{host}.{cluster}.rota")
}

/// SHA-256 of the public key that a certificate certifies, DER `SubjectPublicKeyInfo`.
#[must_use]
pub(super) fn certified_key(certificate: &CertificateDer<'_>) -> Option<[u8; 32]> {
    let parsed = webpki::EndEntityCert::try_from(certificate).ok()?;
    Some(sha256(&[parsed.subject_public_key_info().as_ref()]))
}

/// Reads such a name back; only the exact spelling counts.
#[must_use]
pub fn parse_host_name(name: &str) -> Option<(ClusterId, HostId)> {
    let (host, rest) = name.strip_prefix("host-")?.split_once('.')?;
    let cluster: ClusterId = rest.strip_suffix(".rota")?.parse().ok()?;
    let host = HostId(host.parse().ok()?);
    (host_name(cluster, host) == name).then_some((cluster, host))
}

/// Whom a certificate names. It must carry exactly one name, and that a host's.
#[must_use]
pub(super) fn named_host(certificate: &CertificateDer<'_>) -> Option<(ClusterId, HostId)> {
    let parsed = webpki::EndEntityCert::try_from(certificate).ok()?;
    let mut names = parsed.valid_dns_names();
    let name = names.next()?;
    if names.next().is_some() {
        return None;
    }
    parse_host_name(name)
}

/// SHA-256 over the parts in turn.
pub(super) fn sha256(parts: &[&[u8]]) -> [u8; 32] {
    let mut context = digest::Context::new(&digest::SHA256);
    for part in parts {
        context.update(part);
    }
    let mut out = [0; 32];
    out.copy_from_slice(context.finish().as_ref());
    out
}

/// Random bytes for secrets and ids.
pub(super) fn random<const N: usize>() -> Result<[u8; N], CaError> {
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes).map_err(|_| CaError::Random)?;
    Ok(bytes)
}

/// Lower-case hex digits.
pub(super) fn hex(bytes: &[u8]) -> String {
    use fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The authority's parameters: whoever holds its key rebuilds the same issuer from the cluster's id alone.
pub(super) fn ca_params(cluster: ClusterId) -> rcgen::CertificateParams {
    let mut params = rcgen::CertificateParams::default();
    params.distinguished_name = common_name(&format!("rota cluster {cluster}"));
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Constrained(0));
    params.key_usages = vec![rcgen::KeyUsagePurpose::KeyCertSign, rcgen::KeyUsagePurpose::CrlSign];
    params
}

fn common_name(name: &str) -> rcgen::DistinguishedName {
    let mut dn = rcgen::DistinguishedName::new();
    dn.push(rcgen::DnType::CommonName, name);
    dn
}

fn serial() -> Result<rcgen::SerialNumber, CaError> {
    let mut bytes = random::<16>()?;
    bytes[0] &= 0x7f; // positive, as the standard asks
    Ok(rcgen::SerialNumber::from_slice(&bytes))
}

fn make_error(error: rcgen::Error) -> CaError {
    CaError::Make(error.to_string())
}

fn p256_point(public_key_der: &[u8]) -> Option<&[u8]> {
    (public_key_der.len() == P256_SPKI_BYTES && public_key_der.starts_with(&P256_PREFIX))
        .then(|| &public_key_der[P256_POINT_AT..])
}

/// Whether a DER `SubjectPublicKeyInfo` is of the one kind that is certified.
pub(super) fn is_p256(public_key_der: &[u8]) -> bool {
    p256_point(public_key_der).is_some()
}

struct P256Point<'a>(&'a [u8]);

impl rcgen::PublicKeyData for P256Point<'_> {
    fn der_bytes(&self) -> &[u8] {
        self.0
    }

    fn algorithm(&self) -> &'static rcgen::SignatureAlgorithm {
        &rcgen::PKCS_ECDSA_P256_SHA256
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLUSTER: ClusterId = ClusterId(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef);

    #[test]
    fn a_name_is_read_back_only_in_its_exact_spelling() {
        let name = host_name(CLUSTER, HostId(42));
        assert_eq!(name, "host-42.0123456789abcdef0123456789abcdef.rota");
        assert_eq!(parse_host_name(&name), Some((CLUSTER, HostId(42))));
        for bad in [
            "host-042.0123456789abcdef0123456789abcdef.rota",
            "host-+42.0123456789abcdef0123456789abcdef.rota",
            "host-42.0123456789ABCDEF0123456789abcdef.rota",
            "host-42.123456789abcdef0123456789abcdef.rota",
            "host-42.0123456789abcdef0123456789abcdef.rota.",
            "host-42.01234567-89abcdef0123456789abcdef.rota",
            "*.0123456789abcdef0123456789abcdef.rota",
            "host-.0123456789abcdef0123456789abcdef.rota",
            "host-42.rota",
            "",
        ] {
            assert_eq!(parse_host_name(bad), None, "{bad}");
        }
    }

    #[test]
    fn only_p256_keys_are_certified() {
        let ca = make(CLUSTER, SystemTime::now()).unwrap();
        let key = new_key().unwrap();
        let good = public_key_der(&key);
        let certify =
            |der: &[u8]| certify(&ca.key_pem, CLUSTER, HostId(1), der, SystemTime::now(), HOST_LIFE);
        assert!(certify(&good).is_ok());
        let ed25519 = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
        assert!(matches!(certify(&public_key_der(&ed25519)), Err(CaError::KeyKind)));
        assert!(matches!(certify(&good[..90]), Err(CaError::KeyKind)));
        assert!(matches!(certify(&[]), Err(CaError::KeyKind)));
    }

    #[test]
    fn a_fingerprint_survives_its_text() {
        let print = Fingerprint([0xa5; 32]);
        assert_eq!(Fingerprint::parse(&print.to_string()), Some(print));
        assert_eq!(Fingerprint::parse(&print.to_string()[1..]), None);
        assert_eq!(Fingerprint::parse(&"zz".repeat(32)), None);
    }
}
