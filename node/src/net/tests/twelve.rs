//! The twelve bad certificates (fault S2), each shown to a real server and by a real server: none gets a call through.

use super::renewing::until;
use super::*;
use crate::net::tests::trust::connect_showing;
use rota_protocol::ClusterId;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

type Shown = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

const DAY: Duration = Duration::from_secs(86_400);

/// Makes what a bad host would show.
struct Forge {
    cluster: ClusterId,
    ca_key: String,
}

impl Forge {
    fn of(identity: &Identity) -> Self {
        Self { cluster: identity.cluster, ca_key: identity.pems().ca_key.clone() }
    }

    /// Parameters of a good certificate of a host.
    fn params(&self, host: u64) -> rcgen::CertificateParams {
        let name = host_name(self.cluster, HostId(host));
        let mut params = rcgen::CertificateParams::new(vec![name]).unwrap();
        let now = SystemTime::now();
        params.not_before = (now - DAY).into();
        params.not_after = (now + DAY).into();
        params.key_usages = vec![rcgen::KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages =
            vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth, rcgen::ExtendedKeyUsagePurpose::ClientAuth];
        params
    }

    fn signed(&self, params: &rcgen::CertificateParams) -> Shown {
        self.signed_with(params, &ca::new_key().unwrap())
    }

    fn signed_with(&self, params: &rcgen::CertificateParams, key: &rcgen::KeyPair) -> Shown {
        let ca_key = rcgen::KeyPair::from_pem(&self.ca_key).unwrap();
        let issuer = rcgen::Issuer::new(ca::ca_params(self.cluster), &ca_key);
        let certificate = params.signed_by(key, &issuer).unwrap();
        (vec![certificate.der().clone()], PrivateKeyDer::try_from(key.serialize_der()).unwrap())
    }

    fn with(&self, change: impl FnOnce(&mut rcgen::CertificateParams)) -> Shown {
        let mut params = self.params(1);
        change(&mut params);
        self.signed(&params)
    }

    fn named(&self, name: &str) -> Shown {
        let name = name.try_into().unwrap();
        self.with(|params| params.subject_alt_names = vec![rcgen::SanType::DnsName(name)])
    }

    /// Below a host's certificate, which is no authority.
    fn long_chain(&self) -> Shown {
        let between_key = ca::new_key().unwrap();
        let mut between = self.params(1);
        between.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let (between_shown, _) = self.signed_with(&between, &between_key);
        let issuer = rcgen::Issuer::new(between, &between_key);
        let key = ca::new_key().unwrap();
        // A chain of one authority in between is cut off by the limit of our authority; a longer one is longer still.
        let leaf = self.params(1).signed_by(&key, &issuer).unwrap();
        let chain = vec![leaf.der().clone(), between_shown[0].clone()];
        (chain, PrivateKeyDer::try_from(key.serialize_der()).unwrap())
    }

    fn self_signed(&self) -> Shown {
        let key = ca::new_key().unwrap();
        let certificate = self.params(1).self_signed(&key).unwrap();
        (vec![certificate.der().clone()], PrivateKeyDer::try_from(key.serialize_der()).unwrap())
    }

    /// All that the certificate itself gives away. Host 9 is another host, host 1 the one that is claimed.
    fn bad(&self, other: &Self) -> Vec<(&'static str, Shown)> {
        let now = SystemTime::now();
        let weak = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
        vec![
            ("of another authority", other.with(|_| {})),
            ("of another host", self.signed(&self.params(9))),
            ("expired", self.with(|p| p.not_after = (now - Duration::from_secs(60)).into())),
            ("not yet valid", self.with(|p| p.not_before = (now + Duration::from_secs(3_600)).into())),
            (
                "for one side only",
                self.with(|p| p.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::CodeSigning]),
            ),
            ("without a name", self.with(|p| p.subject_alt_names.clear())),
            ("with a wildcard", self.named(&format!("*.{}.rota", self.cluster))),
            ("with a key of another kind", self.signed_with(&self.params(1), &weak)),
            ("at the end of a long chain", self.long_chain()),
            ("signed by itself", self.self_signed()),
        ]
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s2_twelve_bad_certificates_get_nowhere() {
    let (ours, theirs) = (Cluster::new(), Cluster::new());
    let (forge, other) = (Forge::of(&ours.founder), Forge::of(&theirs.founder));
    let server = Peer::start(ours.host(2)).await;
    let genuine = ours.host(1);
    let trusted = Trusted { keys: [(HostId(1), genuine.key_print().unwrap())].into(), ..Trusted::default() };
    server.net.set_trusted(trusted.clone());
    let mut tried = Vec::new();
    for (what, shown) in forge.bad(&other) {
        // The key of another kind is a good one to TLS; that it is not the recorded one is what shuts it out.
        assert!(connect_showing(&server, shown, &genuine).await.is_err(), "{what}");
        tried.push(what);
    }
    // The same number twice: all of it is right but the key, which is not the one that the cluster knows host 1 by.
    assert!(connect_showing(&server, forge.with(|_| {}), &genuine).await.is_err(), "the same host twice");
    tried.push("the same host twice");
    // All of it is right; until it is revoked.
    let good = || (vec![genuine.certificate().clone()], genuine.key());
    assert!(connect_showing(&server, good(), &genuine).await.is_ok(), "the genuine one is let in");
    server.net.set_trusted(Trusted { revoked: [(HostId(1), "stolen".into())].into(), ..trusted });
    assert!(connect_showing(&server, good(), &genuine).await.is_err(), "revoked");
    tried.push("revoked");
    assert_eq!(tried.len(), 12, "{tried:?}");
    assert_eq!(server.handler.calls.load(Ordering::SeqCst), 0);
    until("the end of all connections", || server.net.incoming() == 0).await;
}

/// The same from the other side: a peer that dials host 1 and meets a server with such a certificate sends it nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s2_a_server_with_a_bad_certificate_hears_no_request() {
    let (ours, theirs) = (Cluster::new(), Cluster::new());
    let (forge, other) = (Forge::of(&ours.founder), Forge::of(&theirs.founder));
    let caller = Peer::start(ours.host(2)).await;
    let key = ours.host(1).key_print().unwrap();
    caller.net.set_trusted(Trusted { keys: [(HostId(1), key)].into(), ..Trusted::default() });
    let twice = ("the same host twice", forge.with(|_| {}));
    for (what, (chain, key)) in forge.bad(&other).into_iter().chain([twice]) {
        let mut config = rustls::ServerConfig::builder_with_provider(crate::net::tls::provider().clone())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .unwrap();
        config.alpn_protocols = vec![ALPN_PEER.to_vec()];
        let crypto = quinn::crypto::rustls::QuicServerConfig::try_from(config).unwrap();
        let config = quinn::ServerConfig::with_crypto(Arc::new(crypto));
        let endpoint = Endpoint::server(config, "127.0.0.1:0".parse().unwrap()).unwrap();
        let streams = Arc::new(AtomicU32::new(0));
        let counted = streams.clone();
        let accepting = endpoint.clone();
        let serving = tokio::spawn(async move {
            while let Some(incoming) = accepting.accept().await {
                let Ok(connection) = incoming.await else { continue };
                while connection.accept_bi().await.is_ok() {
                    counted.fetch_add(1, Ordering::SeqCst);
                }
            }
        });
        caller.net.set_peer(HostId(1), endpoint.local_addr().unwrap().to_string());
        let ttl = Duration::from_millis(1_500);
        let reply = caller.net.call(HostId(1), raft(b"secret"), ttl).await;
        assert!(matches!(reply, Err(LinkError::Unreachable(_))), "{what}: {reply:?}");
        assert_eq!(streams.load(Ordering::SeqCst), 0, "{what}: something was sent");
        endpoint.close(0_u32.into(), b"");
        serving.abort();
    }
}
