//! Hosts that join and clients that connect with a token (fault S3).

use super::*;
use crate::framing::{self, FrameReader};
use rota_protocol::api::{ApiAnswer, ApiCall, ApiReply, ApiRequest};
use tokio::io::{AsyncWriteExt as _, split};

const MINE: &str = "10.1.2.3:7600";

#[tokio::test]
async fn a_host_joins_once_with_its_token_and_is_then_a_peer() {
    let cluster = Cluster::new();
    let a = Peer::start(cluster.host(1)).await;
    let (token, _) = mint_secret(TokenKind::Join, &cluster.founder.ca_fingerprint()).unwrap();
    a.takes_token(&token);
    let data = TempDir::new().unwrap();
    let joined = join(data.path(), &token, &a.addr(), "gpu-7", MINE).await.unwrap();
    assert_eq!((joined.host, joined.cluster), (HostId(7), cluster.founder.cluster));
    assert_eq!(joined.host_name, "gpu-7");
    assert_eq!(joined.seeds, vec![(HostId(1), MINE.to_owned())]);
    let loaded = Identity::load(data.path()).unwrap();
    assert_eq!((loaded.host, &loaded.seeds), (HostId(7), &joined.seeds));
    // The new host and the old one talk, under the id that the grant gave.
    let b = Peer::start(Arc::new(loaded)).await;
    b.knows(1, &a);
    assert_eq!(b.raft(1, b"hello").await, echoed(7, b"hello"));
    // It holds the authority, so it can admit the next.
    let (token, _) = mint_secret(TokenKind::Join, &joined.ca_fingerprint()).unwrap();
    b.takes_token(&token);
    let next = TempDir::new().unwrap();
    join(next.path(), &token, &b.addr(), "gpu-8", MINE).await.unwrap();
}

#[tokio::test]
async fn fault_s3_a_used_token_a_foreign_cluster_and_a_bad_text_store_nothing() {
    let (cluster, other) = (Cluster::new(), Cluster::new());
    let a = Peer::start(cluster.host(1)).await;
    let (token, _) = mint_secret(TokenKind::Join, &cluster.founder.ca_fingerprint()).unwrap();
    a.takes_token(&token);
    let first = TempDir::new().unwrap();
    join(first.path(), &token, &a.addr(), "gpu-7", MINE).await.unwrap();

    let data = TempDir::new().unwrap();
    let try_with = async |token: &str, addr: &str, name: &str, mine: &str| {
        join(data.path(), token, addr, name, mine).await.unwrap_err()
    };
    let addr = a.addr();
    let used = try_with(&token, &addr, "gpu-8", MINE).await;
    assert!(used.to_string().contains("used up"), "{used}");
    let (foreign, _) = mint_secret(TokenKind::Join, &other.founder.ca_fingerprint()).unwrap();
    a.takes_token(&foreign);
    let error = try_with(&foreign, &addr, "gpu-8", MINE).await;
    assert!(matches!(error, JoinError::OtherCluster(_)), "{error}");
    let cut = try_with(&token[..token.len() - 1], &addr, "gpu-8", MINE).await;
    assert!(matches!(cut, JoinError::Token(TokenError::Damaged)), "{cut}");
    let (user, _) = mint_secret(TokenKind::User, &cluster.founder.ca_fingerprint()).unwrap();
    let error = try_with(&user, &addr, "gpu-8", MINE).await;
    assert!(matches!(error, JoinError::Token(TokenError::WrongKind { .. })), "{error}");
    let error = try_with(&token, &addr, "gpu 8", MINE).await;
    assert!(matches!(error, JoinError::Identity(IdentityError::Name { .. })), "{error}");
    for bad in ["10.1.2.3", "10.1.2.3:0", ":7600", "a\"b:1"] {
        let error = try_with(&token, &addr, "gpu-8", bad).await;
        assert!(matches!(error, JoinError::Addr(_)), "{bad}: {error}");
    }
    assert_eq!(std::fs::read_dir(data.path()).unwrap().count(), 0);
    // A host that has an identity does not join again.
    let again = join(first.path(), &token, &addr, "gpu-7", MINE).await.unwrap_err();
    assert!(matches!(again, JoinError::Identity(IdentityError::Exists(_))), "{again}");
}

#[tokio::test]
async fn malformed_requests_to_join_never_reach_the_handler_and_guesses_are_slowed() {
    let cluster = Cluster::new();
    let (token, _) = mint_secret(TokenKind::Join, &cluster.founder.ca_fingerprint()).unwrap();
    let key = ca::public_key_der(&ca::new_key().unwrap());
    let good =
        JoinRequest { token: token.into(), host_name: "h".into(), addr: MINE.into(), public_key_der: key };
    let check = |change: fn(&mut JoinRequest)| {
        let mut request = good.clone();
        change(&mut request);
        crate::net::join::check_request(&request)
    };
    assert_eq!(check(|_| {}), Ok(()));
    assert!(check(|r| r.token.0.push('x')).is_err());
    assert!(check(|r| r.token.0 = "x".repeat(10_000)).is_err());
    assert!(check(|r| r.host_name = "../x".into()).is_err());
    assert!(check(|r| r.addr = "nowhere".into()).is_err());
    assert!(check(|r| r.public_key_der.truncate(5)).is_err());
    let limit = crate::net::join::PerSecond::new();
    let taken = (0..1_000).filter(|_| limit.take(20)).count();
    assert!((20..200).contains(&taken), "{taken} guesses of 1,000 were looked at");
    // The same request again has the same id, another key another one.
    let id = join_request_id(&good);
    assert_eq!(id, join_request_id(&good.clone()));
    let mut other = good.clone();
    other.public_key_der = ca::public_key_der(&ca::new_key().unwrap());
    assert_ne!(id, join_request_id(&other));
}

/// Fault S3: whoever guesses at full speed is answered twenty times a second at most, each answer is counted for the audit
/// log, and the token that was guessed at still works.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fault_s3_guesses_are_slowed_and_counted() {
    const GUESSES: usize = 120;
    let cluster = Cluster::new();
    let a = Peer::start(cluster.host(1)).await;
    let print = cluster.founder.ca_fingerprint();
    let (real, _) = mint_secret(TokenKind::Join, &print).unwrap();
    a.takes_token(&real);
    let addr = a.addr();
    let started = Instant::now();
    let mut guesses = tokio::task::JoinSet::new();
    for _ in 0..GUESSES {
        let addr = addr.clone();
        guesses.spawn(async move {
            let (text, _) = mint_secret(TokenKind::Join, &print).unwrap();
            let request = JoinRequest {
                token: text.clone().into(),
                host_name: "gpu-9".into(),
                addr: MINE.into(),
                public_key_der: ca::public_key_der(&ca::new_key().unwrap()),
            };
            let token = TokenText::parse(&text, TokenKind::Join).unwrap();
            crate::net::join::ask_once(&token, &addr, &request, None).await
        });
        if guesses.len() > 8 {
            let _ = guesses.join_next().await;
        }
    }
    while guesses.join_next().await.is_some() {}
    let looked_at = a.handler.joins.load(Ordering::SeqCst) as u64;
    let allowed = 20 * (started.elapsed().as_secs() + 2);
    assert!(looked_at <= allowed, "{looked_at} guesses were looked at, {allowed} are allowed");
    let counted = a.net.take_refused();
    assert!(counted > 0 && u64::from(counted) >= looked_at, "{counted} counted of {looked_at} looked at");
    assert_eq!(a.net.take_refused(), 0, "each is told once");
    let data = TempDir::new().unwrap();
    join(data.path(), &real, &addr, "gpu-7", MINE).await.unwrap();
}

#[tokio::test]
async fn a_client_reaches_the_api_of_the_cluster_that_its_token_names() {
    let (cluster, other) = (Cluster::new(), Cluster::new());
    let mut a = Peer::start(cluster.host(1)).await;
    let (token, _) = mint_secret(TokenKind::User, &cluster.founder.ca_fingerprint()).unwrap();
    let addr = a.addr();
    let client = async {
        let mut stream = connect_api(&addr, &token).await.unwrap();
        let call = ApiCall { seq: 1, request: ApiRequest::Authenticate { token: token.clone().into() } };
        framing::write_message(&mut stream, VERSION_MAX, FrameKind::ApiCall, &call).await.unwrap();
        let answer: ApiAnswer =
            FrameReader::new(&mut stream).next_message(FrameKind::ApiAnswer).await.unwrap().unwrap();
        assert_eq!(answer.result, Ok(ApiReply::Done));
        stream.close().await;
    };
    let server = async {
        let stream = a.api.recv().await.unwrap();
        let (read, mut write) = split(stream);
        let call: ApiCall = FrameReader::new(read).next_message(FrameKind::ApiCall).await.unwrap().unwrap();
        assert_eq!(call.request, ApiRequest::Authenticate { token: token.clone().into() });
        let answer = ApiAnswer { seq: call.seq, more: false, result: Ok(ApiReply::Done) };
        framing::write_message(&mut write, VERSION_MAX, FrameKind::ApiAnswer, &answer).await.unwrap();
        write.shutdown().await.unwrap();
    };
    tokio::join!(client, server);
    let (foreign, _) = mint_secret(TokenKind::User, &other.founder.ca_fingerprint()).unwrap();
    let error = connect_api(&addr, &foreign).await.unwrap_err();
    assert!(matches!(error, ConnectError::OtherCluster), "{error}");
}

/// R083: a host that nobody could dial is not admitted, and nothing is left of it: neither here, nor there, nor its token.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_joiner_is_called_back_before_it_is_admitted() {
    let cluster = Cluster::new();
    let a = Peer::start(cluster.host(1)).await;
    let (token, _) = mint_secret(TokenKind::Join, &cluster.founder.ca_fingerprint()).unwrap();
    a.takes_token(&token);
    let data = TempDir::new().unwrap();
    let free = || std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let listen = free().local_addr().unwrap();
    // Somebody else is there, and says something.
    let other = free();
    let elsewhere = other.local_addr().unwrap().to_string();
    let talks = std::thread::spawn(move || {
        other.set_read_timeout(Some(std::time::Duration::from_secs(10))).unwrap();
        let mut asked = [0; 64];
        let (len, from) = other.recv_from(&mut asked).unwrap();
        other.send_to(&asked[..len], from).unwrap();
    });
    let nobody = free().local_addr().unwrap().to_string();
    for wrong in [elsewhere, nobody] {
        let joined = join_listening(data.path(), &token, &a.addr(), ("gpu-7", &wrong), listen).await;
        let text = joined.unwrap_err().to_string();
        let wanted = format!("{wrong} does not lead back to this host");
        assert!(text.contains("advertise") && text.contains(&wanted) && text.contains("127.0.0.1"), "{text}");
        assert_eq!(std::fs::read_dir(data.path()).unwrap().count(), 0);
        assert_eq!(a.handler.joins.load(Ordering::SeqCst), 0);
    }
    talks.join().unwrap();
    // A port that another one has is told before anything is asked.
    let taken = free();
    let at = taken.local_addr().unwrap();
    let error = join_listening(data.path(), &token, &a.addr(), ("gpu-7", MINE), at).await.unwrap_err();
    assert!(matches!(error, JoinError::Listen { .. }), "{error}");
    let mine = listen.to_string();
    let joined = join_listening(data.path(), &token, &a.addr(), ("gpu-7", &mine), listen).await.unwrap();
    assert_eq!(joined.host, HostId(7));
}

/// Whoever has no token makes nobody send anything to an address of his choice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stranger_is_refused_before_anybody_is_called() {
    let cluster = Cluster::new();
    let a = Peer::start(cluster.host(1)).await;
    let mint = || mint_secret(TokenKind::Join, &cluster.founder.ca_fingerprint()).unwrap().0;
    let (good, guessed) = (mint(), mint());
    a.takes_token(&good);
    let data = TempDir::new().unwrap();
    let free = || std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let victim = free();
    victim.set_nonblocking(true).unwrap();
    let (there, listen) = (victim.local_addr().unwrap().to_string(), free().local_addr().unwrap());
    let joined = join_listening(data.path(), &guessed, &a.addr(), ("gpu-7", &there), listen).await;
    assert!(joined.unwrap_err().to_string().contains("token"));
    assert_eq!(victim.recv(&mut [0; 64]).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
}

/// A cluster of an older build calls nobody back, and admits.
#[tokio::test]
async fn an_older_peer_admits_without_a_call() {
    let cluster = Cluster::new();
    let a = Peer::start_as(cluster.host(1), 2).await;
    let (token, _) = mint_secret(TokenKind::Join, &cluster.founder.ca_fingerprint()).unwrap();
    a.takes_token(&token);
    let data = TempDir::new().unwrap();
    let listen = "127.0.0.1:0".parse().unwrap();
    join_listening(data.path(), &token, &a.addr(), ("gpu-7", MINE), listen).await.unwrap();
}
