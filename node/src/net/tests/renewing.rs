//! Certificates that are renewed while calls run, hosts that are revoked, authorities that change (faults O3, C1, S4; report
//! R078).

use super::*;
use crate::net::ca::HOST_LIFE;
use crate::net::{new_authority, pem, validity_s};
use rota_protocol::trust::Print;
use std::path::Path;
use std::sync::atomic::AtomicBool;

const YEAR: Duration = Duration::from_secs(366 * 86_400);

fn revoked(host: u64, why: &str) -> Trusted {
    Trusted { revoked: [(HostId(host), why.to_owned())].into(), ..Trusted::default() }
}

/// Waits for something of the outside world.
pub(super) async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let waits = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(TTL, waits).await.unwrap_or_else(|_| panic!("{what} did not happen"));
}

/// Fault O3: both sides renew again and again under calls of both classes, one that must not be repeated among them; none
/// fails, and every connection is soon one of the new certificate.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o3_renewals_drop_no_call() {
    let cluster = Cluster::new();
    let (a, b) = (Peer::start(cluster.host(1)).await, Peer::start(cluster.host(2)).await);
    a.knows(2, &b);
    b.knows(1, &a);
    let (over, made) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
    let mut calls = Vec::new();
    for (caller, (net, to, me)) in
        [(a.net.clone(), 2, 1), (b.net.clone(), 1, 2)].into_iter().cycle().take(4).enumerate()
    {
        let (over, made, body) = (over.clone(), made.clone(), [caller as u8]);
        calls.push(tokio::spawn(async move {
            while !over.load(Ordering::Relaxed) {
                assert_eq!(net.call(HostId(to), raft(&body), TTL).await, echoed(me, &body));
                let signal = PeerRequest::Signal { attempt: rota_protocol::Token(1), signal: 1 };
                assert!(net.call(HostId(to), signal, TTL).await.is_ok());
                made.fetch_add(2, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(3)).await;
            }
        }));
    }
    for _ in 0..5 {
        let before = made.load(Ordering::Relaxed);
        until("calls before a renewal", || made.load(Ordering::Relaxed) > before + 8).await;
        for peer in [&a, &b] {
            let valid = peer.net.identity().valid_ms();
            let renewed = peer.net.identity().renewed(YEAR, SystemTime::now()).unwrap();
            assert!(
                renewed.valid_ms().1 >= valid.1 && renewed.key_print() == peer.net.identity().key_print()
            );
            peer.net.renew(Arc::new(renewed)).unwrap();
        }
        until("a renewal of all connections", || a.net.is_renewed() && b.net.is_renewed()).await;
    }
    over.store(true, Ordering::Relaxed);
    for call in calls {
        call.await.unwrap();
    }
    // What was replaced is gone: one connection of each class and side is left.
    until("the end of replaced connections", || a.net.incoming() <= 2 && b.net.incoming() <= 2).await;
}

/// Fault O3: a revoked host is cut at once, both ways, and refused from then on with the reason.
#[tokio::test]
async fn o3_a_revoked_host_is_cut_and_stays_out() {
    let cluster = Cluster::new();
    let (a, b) = (Peer::start(cluster.host(1)).await, Peer::start(cluster.host(2)).await);
    a.knows(2, &b);
    b.knows(1, &a);
    assert_eq!(a.raft(2, b"x").await, echoed(1, b"x"));
    assert_eq!(b.raft(1, b"x").await, echoed(2, b"x"));
    let (out, back) =
        (a.net.inner.link(HostId(2), Class::Raft).up(), b.net.inner.link(HostId(1), Class::Raft).up());
    let started = Instant::now();
    a.net.set_trusted(revoked(2, "stolen"));
    for up in [out.unwrap(), back.unwrap()] {
        let reason = tokio::time::timeout(Duration::from_secs(1), up.connection.closed()).await.unwrap();
        assert!(!matches!(reason, quinn::ConnectionError::TimedOut), "{reason}");
    }
    assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());
    let calls = a.handler.calls.load(Ordering::SeqCst);
    // To the others it is as good as gone: what they wanted of it, such as of a leader, they want of the next.
    match a.raft(2, b"y").await {
        Err(LinkError::Unreachable(text)) => assert!(text.contains("revoked: stolen"), "{text}"),
        other => panic!("{other:?}"),
    }
    match b.raft(1, b"y").await {
        Err(LinkError::Refused(error)) => assert!(error.message.contains("revoked: stolen"), "{error}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(a.handler.calls.load(Ordering::SeqCst), calls);
    until("the end of both", || (a.net.incoming(), b.net.incoming()) == (0, 0)).await;
}

/// The authority's key is on every host: what it signs for another host's name, with a key of one's own, is nobody's.
#[tokio::test]
async fn a_certificate_with_another_key_than_the_recorded_one_is_refused_by_both_sides() {
    let cluster = Cluster::new();
    let (a, real) = (Peer::start(cluster.host(1)).await, cluster.host(2));
    let key: Print = real.key_print().unwrap();
    assert_eq!(
        key,
        print_of_key(&ca::public_key_der(&rcgen::KeyPair::from_pem(&real.pems().host_key).unwrap()))
    );
    let forged = Peer::start(cluster.host(2)).await;
    a.knows(2, &forged);
    forged.knows(1, &a);
    assert_eq!(forged.raft(1, b"x").await, echoed(2, b"x"), "before its key is recorded");
    a.net.set_trusted(Trusted { keys: [(HostId(2), key)].into(), ..Trusted::default() });
    until("the end of the live connection", || a.net.incoming() == 0).await;
    match forged.raft(1, b"y").await {
        Err(LinkError::Refused(error)) => assert!(error.message.contains("another key"), "{error}"),
        other => panic!("{other:?}"),
    }
    match a.raft(2, b"y").await {
        Err(LinkError::Unreachable(text)) => assert!(text.contains("another key"), "{text}"),
        other => panic!("{other:?}"),
    }
    let genuine = Peer::start(real).await;
    genuine.knows(1, &a);
    a.knows(2, &genuine);
    assert_eq!(genuine.raft(1, b"z").await, echoed(2, b"z"));
    assert_eq!(a.raft(2, b"z").await, echoed(1, b"z"));
}

/// Fault O2, report R068: a cluster of a newer version refuses hosts that do not read it, when they greet.
#[tokio::test]
async fn a_host_that_reads_too_little_is_refused_with_what_to_do() {
    let cluster = Cluster::new();
    let a = Peer::start(cluster.host(1)).await;
    let old = Peer::start_as(cluster.host(2), VERSION_MAX - 1).await;
    old.knows(1, &a);
    a.knows(2, &old);
    assert_eq!(old.raft(1, b"x").await, echoed(2, b"x"), "two versions talk");
    assert_eq!(a.raft(2, b"x").await, echoed(1, b"x"));
    a.net.set_trusted(Trusted { version: VERSION_MAX, ..Trusted::default() });
    for (net, to) in [(&a.net, 2), (&old.net, 1)] {
        if let Some(up) = net.inner.link(HostId(to), Class::Raft).up() {
            up.connection.close(0_u32.into(), b"");
        }
    }
    for refused in [old.raft(1, b"y").await, a.raft(2, b"y").await] {
        match refused {
            Err(LinkError::Refused(error)) => {
                assert_eq!(error.code, ErrorCode::Version);
                assert!(error.message.contains("install the version"), "{error}");
            }
            other => panic!("{other:?}"),
        }
    }
}

/// Fault C1: a connection ends with the certificate that opened it, by the clock that does not jump, and the next is
/// refused with a word about clocks.
#[tokio::test]
async fn a_connection_ends_with_its_certificate_and_clocks_are_named() {
    let cluster = Cluster::new();
    let a = Peer::start(cluster.host(1)).await;
    let now = SystemTime::now();
    let valid = (now - Duration::from_secs(60), now + Duration::from_secs(3));
    let name = host_name(cluster.founder.cluster, HostId(2));
    let brief = Peer::start(Arc::new(cluster.identity(2, &name, valid, now).unwrap())).await;
    brief.knows(1, &a);
    a.knows(2, &brief);
    assert_eq!(brief.raft(1, b"x").await, echoed(2, b"x"));
    until("the end of the connection", || a.net.incoming() == 0).await;
    // Its last second is a whole one.
    until("the end of that second", || SystemTime::now() > valid.1 + Duration::from_secs(1)).await;
    for refused in [brief.raft(1, b"y").await, a.raft(2, b"y").await] {
        match refused {
            Err(LinkError::Unreachable(text)) => {
                assert!(text.contains("check both clocks") && text.contains("UTC"), "{text}");
            }
            other => panic!("{other:?}"),
        }
    }
    // The same host, the same key, a new certificate: it is back.
    brief.net.renew(Arc::new(brief.net.identity().renewed(YEAR, SystemTime::now()).unwrap())).unwrap();
    assert_eq!(brief.raft(1, b"z").await, echoed(2, b"z"));
}

/// Report R078: a host that was off for a year comes back by itself, as the same host with the same key. One whose clock
/// is behind is told so, with both dates.
#[test]
fn r078_an_expired_certificate_is_renewed_at_the_start() {
    let data = TempDir::new().unwrap();
    let made = found_cluster(data.path(), "prod", "h1").unwrap();
    let load =
        |after: Duration| Identity::load_or_renew_at(data.path(), HOST_LIFE, SystemTime::now() + after);
    assert!(!load(Duration::ZERO).unwrap().1, "a young one is taken as it is");
    let (back, renewed) = load(YEAR).unwrap();
    assert!(renewed);
    assert_eq!((back.host, back.key_print()), (made.host, made.key_print()));
    assert_eq!(back.ca_fingerprint(), made.ca_fingerprint());
    assert!(!load(YEAR).unwrap().1, "what it made is in its files");
    let behind = load(Duration::ZERO).unwrap_err().to_string();
    assert!(behind.contains("host.pem is not valid yet by this host's clock, which says"), "{behind}");
    assert!(behind.contains("check the clock") && behind.matches("UTC").count() == 3, "{behind}");
    // What else is wrong is still wrong, whatever its age.
    std::fs::copy(data.path().join("identity/ca-key.pem"), data.path().join("identity/host-key.pem"))
        .unwrap();
    let mixed = load(YEAR + YEAR).unwrap_err().to_string();
    assert!(mixed.contains("is not the key of"), "{mixed}");
}

/// Fault O3: one authority is replaced by another in steps, each of which every other host may be behind or ahead by one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn o3_hosts_of_neighbouring_stages_talk() {
    let cluster = Cluster::new();
    let next = new_authority(cluster.founder.cluster, SystemTime::now()).unwrap();
    let old = (cluster.founder.authority_prints()[0], cluster.founder.authority(0).unwrap().0);
    let new = (next.ca, next.certificate_pem.clone());
    let stages = [
        vec![old.clone()],
        vec![old.clone(), new.clone()],
        vec![new.clone(), old.clone()],
        vec![new.clone()],
    ];
    let key = [(next.ca, next.key_pem.clone())];
    let (a, b) = (Peer::start(cluster.host(1)).await, Peer::start(cluster.host(2)).await);
    a.knows(2, &b);
    b.knows(1, &a);
    for stage in &stages {
        // One goes first, the other follows; both directions are dialled anew in between.
        for peer in [&a, &b] {
            let own = peer.net.identity();
            match own.as_named(stage, &key, YEAR, SystemTime::now()) {
                Ok(None) => {}
                Ok(Some(identity)) => peer.net.renew(Arc::new(identity)).unwrap(),
                Err(error) => panic!("{:?}", error.err()),
            }
            until("fresh connections", || a.net.is_renewed() && b.net.is_renewed()).await;
            for (net, to) in [(&a.net, 2), (&b.net, 1)] {
                if let Some(up) = net.inner.link(HostId(to), Class::Raft).up() {
                    up.connection.close(0_u32.into(), b"");
                }
            }
            // A busy machine may need a second dial.
            let reached = async {
                while a.raft(2, b"x").await != echoed(1, b"x") {}
                while b.raft(1, b"x").await != echoed(2, b"x") {}
            };
            tokio::time::timeout(TTL, reached).await.expect("neighbouring stages talk");
        }
    }
    assert_eq!(a.net.identity().authority_prints(), [next.ca]);
    // Whoever stayed behind by more is refused, and a key that is not the authority's is no key of it.
    let late = Peer::start(cluster.host(3)).await;
    late.knows(1, &a);
    assert!(matches!(late.raft(1, b"x").await, Err(LinkError::Unreachable(_))));
    let wrong = [(next.ca, cluster.founder.pems().ca_key.clone())];
    assert!(matches!(cluster.founder.as_named(&stages[1], &wrong, YEAR, SystemTime::now()), Err(Err(_))));
    let missing = cluster.founder.as_named(&stages[1], &[], YEAR, SystemTime::now());
    assert!(matches!(missing, Err(Ok(ca)) if ca == next.ca));
    // Its files hold both, and are read back.
    let both = cluster.founder.as_named(&stages[2], &key, YEAR, SystemTime::now()).ok().flatten().unwrap();
    both.store_again(cluster.data.path()).unwrap();
    let read = Identity::load(cluster.data.path()).unwrap();
    assert_eq!(read.authority_prints(), [next.ca, old.0]);
    assert!(!Path::new(&cluster.data.path().join("identity.new")).exists());
}

#[test]
fn pem_texts_are_cut_into_their_blocks() {
    let data = TempDir::new().unwrap();
    let made = found_cluster(data.path(), "prod", "h1").unwrap();
    let one = &made.pems().ca;
    assert_eq!(pem::pieces(one).len(), 1);
    assert_eq!(pem::pieces(&one.repeat(3)).len(), 3);
    assert_eq!(pem::pieces(&format!("{one}rubbish\n")).len(), 2);
    assert_eq!(pem::pieces("").len(), 1);
    let certificate = &made.authorities()[0].certificate;
    let (from_s, to_s) = validity_s(certificate).unwrap();
    assert!(to_s - from_s > 20 * 365 * 86_400);
}
