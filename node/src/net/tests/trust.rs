//! Who is let in: bad certificates, wrong hosts, other clusters, identity files (faults N14, S2, S22).

use super::*;
use crate::net::{client, dial, files, tls, transport};
use quinn::{ClientConfig, Connection, ConnectionError};
use rota_protocol::ClusterId;
use rota_protocol::frame::{Hello, VERSION_MAX, VERSION_MIN};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

#[tokio::test]
async fn fault_n14_another_host_at_the_address_is_refused() {
    let cluster = Cluster::new();
    let (a, b) = (Peer::start(cluster.host(1)).await, Peer::start(cluster.host(2)).await);
    // Host 3 is said to be where host 2 is.
    a.knows(3, &b);
    match a.raft(3, b"for host 3 only").await {
        Err(LinkError::Unreachable(text)) => assert!(text.contains("not host 3"), "{text}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(b.handler.calls.load(Ordering::SeqCst), 0);
    // A right address beside the wrong one is enough.
    let c = Peer::start(cluster.host(3)).await;
    a.net.hint_peer(HostId(3), c.addr());
    assert_eq!(a.raft(3, b"x").await, echoed(1, b"x"));
}

#[tokio::test]
async fn a_peer_of_another_cluster_is_refused_by_both_sides() {
    let (ours, theirs) = (Cluster::new(), Cluster::new());
    let (a, b) = (Peer::start(ours.host(1)).await, Peer::start(theirs.host(2)).await);
    a.knows(2, &b);
    match a.raft(2, b"x").await {
        Err(LinkError::Unreachable(text)) => assert!(text.contains("not host 2"), "{text}"),
        other => panic!("{other:?}"),
    }
    // The server's side alone: a dialler that trusts anybody shows it a foreign certificate.
    let error = first_error(&b, Some(&ours.founder), hello(&ours.founder)).await;
    assert!(matches!(error, ConnectionError::ConnectionClosed(_)), "{error}");
    assert_eq!(b.handler.calls.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_peer_must_show_a_certificate_and_greet_as_the_host_it_names() {
    let cluster = Cluster::new();
    let b = Peer::start(cluster.host(2)).await;
    let a = cluster.host(1);
    let closed_with = |error: ConnectionError| match error {
        ConnectionError::ApplicationClosed(close) => CloseCode::from_wire(close.error_code),
        other => panic!("{other}"),
    };
    let without = first_error(&b, None, hello(&a)).await;
    assert_eq!(closed_with(without), Some(CloseCode::Unauthenticated));
    let other_host = Hello { host: Some(HostId(9)), ..hello(&a) };
    let error = first_error(&b, Some(&a), other_host).await;
    assert_eq!(closed_with(error), Some(CloseCode::Unauthenticated));
    let other_cluster = Hello { cluster: Some(ClusterId(1)), ..hello(&a) };
    let error = first_error(&b, Some(&a), other_cluster).await;
    assert_eq!(closed_with(error), Some(CloseCode::WrongCluster));
    let other_version = Hello { version_min: VERSION_MAX + 1, version_max: VERSION_MAX + 3, ..hello(&a) };
    let error = first_error(&b, Some(&a), other_version).await;
    assert_eq!(closed_with(error), Some(CloseCode::Version));
    assert_eq!(b.handler.calls.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn certificates_outside_their_validity_or_without_one_hosts_name_are_refused() {
    let cluster = Cluster::new();
    let b = Peer::start(cluster.host(2)).await;
    let now = SystemTime::now();
    let day = Duration::from_secs(86_400);
    let id = cluster.founder.cluster;
    let valid = (now - day, now + day);
    let own = host_name(id, HostId(1));
    let bad = [
        ("expired", own.clone(), (now - 3 * day, now - day), now - 2 * day),
        ("not yet valid", own.clone(), (now + day, now + 3 * day), now + 2 * day),
    ];
    for (what, name, valid, checked_at) in bad {
        let identity = cluster.identity(1, &name, valid, checked_at).unwrap();
        let error = first_error(&b, Some(&identity), hello(&identity)).await;
        assert!(matches!(error, ConnectionError::ConnectionClosed(_)), "{what}: {error}");
        // The same files are refused at the start of the agent.
        let refused = cluster.identity(1, &name, valid, now);
        assert!(matches!(refused, Err(IdentityError::Validity { .. })), "{what}");
        // And the dialler refuses a server that shows such a certificate.
        let server = Peer::start(Arc::new(identity)).await;
        let a = Peer::start(cluster.host(3)).await;
        a.knows(1, &server);
        assert!(matches!(a.raft(1, b"x").await, Err(LinkError::Unreachable(_))), "{what}");
    }
    for name in ["localhost", "*.rota", &host_name(ClusterId(5), HostId(1))] {
        let refused = cluster.identity(1, name, valid, now);
        assert!(matches!(refused, Err(IdentityError::Foreign { .. })), "{name}");
    }
    assert_eq!(b.handler.calls.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn an_unknown_protocol_is_refused_in_the_handshake() {
    let cluster = Cluster::new();
    let b = Peer::start(cluster.host(2)).await;
    let ca = cluster.founder.ca_fingerprint();
    let error = client::connect(&b.addr(), ca, b"rota-peer/2").await.unwrap_err();
    assert!(matches!(error, ConnectError::Unreachable(_)), "{error}");
}

type Shown = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

fn shown(identity: &Identity) -> Shown {
    (vec![identity.certificate().clone()], identity.key())
}

/// Connects with the peers' protocol, greets, and gives the error that ends the connection.
async fn first_error(server: &Peer, show: Option<&Identity>, hello: Hello) -> ConnectionError {
    error_showing(server, show.map(shown), hello).await
}

async fn error_showing(server: &Peer, show: Option<Shown>, hello: Hello) -> ConnectionError {
    let connection = match connect_as(server, show).await {
        Ok(connection) => connection,
        Err(error) => return error,
    };
    assert!(dial::greet(&connection, &hello).await.is_err());
    connection.closed().await
}

/// Connects with the peers' protocol as this host, showing that, greets, and calls.
pub(super) async fn connect_showing(server: &Peer, show: Shown, me: &Identity) -> Result<(), String> {
    let connection = connect_as(server, Some(show)).await.map_err(|e| e.to_string())?;
    dial::greet(&connection, &hello(me)).await.map(|_| ()).map_err(|e| e.to_string())
}

async fn connect_as(server: &Peer, show: Option<Shown>) -> Result<Connection, ConnectionError> {
    let ca = server.handler.identity.ca_fingerprint();
    let crypto = match show {
        None => tls::pinned_client_config(ca, ALPN_PEER).unwrap().0,
        Some((chain, key)) => tls::pinned_client_config_showing(ca, ALPN_PEER, chain, key).unwrap(),
    };
    let mut config = ClientConfig::new(crypto);
    config.transport_config(transport::client(None, Duration::from_secs(5)));
    let endpoint = quinn::Endpoint::client("127.0.0.1:0".parse().unwrap()).unwrap();
    endpoint.connect_with(config, server.net.local_addr().unwrap(), "any.rota").unwrap().await
}

/// Certificates that the cluster's own key signed, but that are no host's.
#[tokio::test]
async fn fault_s2_misshapen_certificates_are_refused() {
    type Change = fn(&mut rcgen::CertificateParams);
    let cluster = Cluster::new();
    let b = Peer::start(cluster.host(2)).await;
    let own = host_name(cluster.founder.cluster, HostId(1));
    let ca_key = rcgen::KeyPair::from_pem(&cluster.founder.pems().ca_key).unwrap();
    let issuer = rcgen::Issuer::new(ca::ca_params(cluster.founder.cluster), &ca_key);
    let cases: &[(&str, Change)] = &[
        ("no name", |p| p.subject_alt_names.clear()),
        ("two hosts", |p| {
            let second = p.subject_alt_names[0].clone();
            p.subject_alt_names.push(second);
        }),
        ("wildcard", |p| {
            let name = "*.rota".try_into().unwrap();
            p.subject_alt_names = vec![rcgen::SanType::DnsName(name)];
        }),
        ("another cluster", |p| {
            let name = host_name(ClusterId(5), HostId(1)).try_into().unwrap();
            p.subject_alt_names = vec![rcgen::SanType::DnsName(name)];
        }),
        ("for servers only", |p| {
            p.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth];
        }),
        ("an authority", |p| {
            p.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        }),
    ];
    for (what, change) in cases {
        let key = ca::new_key().unwrap();
        let mut params = rcgen::CertificateParams::new(vec![own.clone()]).unwrap();
        change(&mut params);
        let certificate = params.signed_by(&key, &issuer).unwrap();
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let show = (vec![certificate.der().clone()], key);
        let error = error_showing(&b, Some(show), hello(&cluster.founder)).await;
        let refused = match &error {
            ConnectionError::ConnectionClosed(_) => true,
            ConnectionError::ApplicationClosed(close) => {
                CloseCode::from_wire(close.error_code) == Some(CloseCode::Unauthenticated)
            }
            _ => false,
        };
        assert!(refused, "{what}: {error}");
    }
    // Signed by itself; and signed by a host, which is no authority.
    let key = ca::new_key().unwrap();
    let params = rcgen::CertificateParams::new(vec![own.clone()]).unwrap();
    let own_signed = params.self_signed(&key).unwrap();
    let host_key = rcgen::KeyPair::from_pem(&cluster.founder.pems().host_key).unwrap();
    let host = rcgen::Issuer::new(rcgen::CertificateParams::default(), &host_key);
    let host_signed = params.signed_by(&key, &host).unwrap();
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let chains = [
        vec![own_signed.der().clone()],
        vec![host_signed.der().clone(), cluster.founder.certificate().clone()],
    ];
    for chain in chains {
        let error = error_showing(&b, Some((chain, key.clone_key())), hello(&cluster.founder)).await;
        assert!(matches!(error, ConnectionError::ConnectionClosed(_)), "{error}");
    }
    assert_eq!(b.handler.calls.load(Ordering::SeqCst), 0);
}

#[test]
fn fault_s22_a_holder_of_keys_leaves_no_core_dump() {
    use rustix::process::{DumpableBehavior, dumpable_behavior};
    keep_keys_out_of_dumps().unwrap();
    assert_eq!(dumpable_behavior().unwrap(), DumpableBehavior::NotDumpable);
}

fn hello(identity: &Identity) -> Hello {
    Hello {
        version_min: VERSION_MIN,
        version_max: VERSION_MAX,
        cluster: Some(identity.cluster),
        host: Some(identity.host),
        build: "test".into(),
    }
}

#[test]
fn an_identity_is_stored_private_and_read_back_whole() {
    let data = TempDir::new().unwrap();
    let made = found_cluster(data.path(), "prod", "gpu-01").unwrap();
    let read = Identity::load(data.path()).unwrap();
    assert_eq!(
        (read.host, read.cluster, &*read.cluster_name, &*read.host_name),
        (HostId(1), made.cluster, "prod", "gpu-01")
    );
    assert_eq!(read.ca_fingerprint(), made.ca_fingerprint());
    for entry in std::fs::read_dir(data.path().join("identity")).unwrap() {
        let entry = entry.unwrap();
        let mode = entry.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{:?}", entry.path());
    }
    let again = found_cluster(data.path(), "prod", "gpu-01");
    assert!(matches!(again, Err(IdentityError::Exists(_))));
    assert!(!format!("{read:?}").contains("PRIVATE"));
}

#[test]
fn a_bad_name_or_a_disk_that_refuses_leaves_nothing_behind() {
    let data = TempDir::new().unwrap();
    for bad in ["", "-x", "a b", "a\n", "a\"", "é", &"x".repeat(129)] {
        let refused = found_cluster(data.path(), "prod", bad);
        assert!(matches!(refused, Err(IdentityError::Name { .. })), "{bad}");
    }
    std::fs::write(data.path().join("file"), "").unwrap();
    let refused = found_cluster(&data.path().join("file"), "prod", "h");
    assert!(matches!(refused, Err(IdentityError::File(FileError::Io { .. }))));
    assert_eq!(std::fs::read_dir(data.path()).unwrap().count(), 1);
    // What a crash between the steps leaves does not stop the next try.
    std::fs::create_dir(data.path().join("identity.new")).unwrap();
    std::fs::write(data.path().join("identity.new/ca.pem"), "half").unwrap();
    found_cluster(data.path(), "prod", "h").unwrap();
    Identity::load(data.path()).unwrap();
}

#[test]
fn fault_s22_each_unusable_identity_file_is_named_with_the_next_step() {
    type Harm = fn(&Path);
    let cases: &[(&str, Harm, &str)] = &[
        ("host-key.pem", |p| mode(p, 0o644), "chmod 600"),
        ("ca-key.pem", |p| mode(p, 0o640), "chmod 600"),
        ("ca.pem", |p| mode(p, 0o666), "chmod 600"),
        ("host-key.pem", |p| std::fs::remove_file(p).unwrap(), "is missing"),
        ("cluster.toml", |p| std::fs::remove_file(p).unwrap(), "is missing"),
        ("host.pem", |p| std::fs::write(p, "").unwrap(), "is empty"),
        ("host.pem", |p| std::fs::write(p, " \r\n").unwrap(), "is empty"),
        ("ca-key.pem", |p| std::fs::write(p, "hello").unwrap(), "holds 0 keys"),
        ("host.pem", |p| std::fs::write(p, [0xff, 0xfe]).unwrap(), "is not text"),
        ("host.pem", |p| std::fs::write(p, "x".repeat(1 << 20)).unwrap(), "not the right file"),
        ("cluster.toml", |p| std::fs::write(p, "format = 1").unwrap(), "missing field"),
        ("cluster.toml", |p| edit(p, "format = 1", "format = 2"), "format 2 is not 1"),
        ("host.pem", |p| edit(&p.with_file_name("cluster.toml"), "host = 1", "host = 2"), "two identities"),
        ("cluster.toml", |p| edit(p, "host = 1", "host = 1\nvoter = true"), "unknown field"),
        ("host-key.pem", |p| twice(p), "holds 2 keys"),
        ("ca.pem", |p| twice(p), "holds 2 certificates"),
        ("host-key.pem", |p| copy(p, "ca-key.pem"), "is not the key of"),
        ("host.pem", |p| copy(p, "ca.pem"), "is not the key of"),
        ("host-key.pem", |p| to_dir(p), "not a regular file"),
        ("host-key.pem", |p| to_link(p), "not a regular file"),
    ];
    for (file, harm, wanted) in cases {
        let data = TempDir::new().unwrap();
        found_cluster(data.path(), "prod", "h").unwrap();
        harm(&data.path().join("identity").join(file));
        let error = Identity::load(data.path()).unwrap_err().to_string();
        assert!(error.contains(wanted), "{file}: {error}");
        assert!(error.contains(file), "{file}: {error}");
    }
    let none = TempDir::new().unwrap();
    let error = Identity::load(none.path()).unwrap_err().to_string();
    assert!(error.contains("rota init") && error.contains("rota join"), "{error}");
}

#[test]
fn the_authority_of_another_cluster_is_refused_and_windows_line_ends_are_not() {
    let (ours, theirs) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    found_cluster(ours.path(), "prod", "h").unwrap();
    found_cluster(theirs.path(), "prod", "h").unwrap();
    let pem = ours.path().join("identity/host.pem");
    let text = std::fs::read_to_string(&pem).unwrap();
    std::fs::write(&pem, text.replace('\n', "\r\n")).unwrap();
    Identity::load(ours.path()).unwrap();
    for file in ["ca.pem", "ca-key.pem"] {
        let from = theirs.path().join("identity").join(file);
        std::fs::copy(from, ours.path().join("identity").join(file)).unwrap();
    }
    let error = Identity::load(ours.path()).unwrap_err().to_string();
    assert!(error.contains("host.pem: not signed by"), "{error}");
}

#[test]
fn an_expired_identity_says_so() {
    let data = TempDir::new().unwrap();
    found_cluster(data.path(), "prod", "h").unwrap();
    let later = SystemTime::now() + Duration::from_secs(400 * 86_400);
    let error = Identity::load_at(data.path(), later).unwrap_err();
    assert!(error.to_string().contains("host.pem is expired by this host's clock"), "{error}");
    let error = Identity::load_at(data.path(), SystemTime::UNIX_EPOCH).unwrap_err();
    assert!(error.to_string().contains("not valid yet"), "{error}");
}

fn mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
}

fn edit(path: &Path, from: &str, to: &str) {
    let text = std::fs::read_to_string(path).unwrap();
    assert!(text.contains(from));
    std::fs::write(path, text.replacen(from, to, 1)).unwrap();
}

fn twice(path: &Path) {
    let text = std::fs::read_to_string(path).unwrap();
    std::fs::write(path, text.repeat(2)).unwrap();
}

fn copy(path: &Path, from: &str) {
    std::fs::copy(path.with_file_name(from), path).unwrap();
}

fn to_dir(path: &Path) {
    std::fs::remove_file(path).unwrap();
    std::fs::create_dir(path).unwrap();
}

fn to_link(path: &Path) {
    let kept = path.with_extension("kept");
    std::fs::rename(path, &kept).unwrap();
    std::os::unix::fs::symlink(kept, path).unwrap();
}

#[test]
fn reading_checks_the_very_file_it_reads() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("pipe");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &path,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    // Does not hang on the pipe.
    assert!(matches!(files::read_private(&path), Err(FileError::NotAFile(_))));
}
