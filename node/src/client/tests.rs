//! The client against a small agent in the test, over real unix sockets.

use super::steady::Steady;
use super::target::{Target, TargetFlags, find};
use super::*;
use crate::framing::{FrameReader, encode_message, exchange_hello, write_frame};
use rota_protocol::api::{ApiAnswer, ApiCall, ApiReply, ApiRequest, Freshness, LogChunk, OutputStream};
use rota_protocol::frame::{FrameKind, Hello, VERSION_MAX};
use rota_protocol::job::JobSpec;
use rota_protocol::{JobId, Token};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::sync::Arc;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};

/// One accepted connection of the test's agent, hellos done.
struct Peer {
    frames: FrameReader<OwnedReadHalf>,
    writer: OwnedWriteHalf,
}

impl Peer {
    async fn accept(listener: &UnixListener) -> Self {
        let (stream, _) = listener.accept().await.unwrap();
        let (reader, mut writer) = stream.into_split();
        let mut frames = FrameReader::new(reader);
        let hello = crate::framing::client_hello();
        exchange_hello(&mut frames, &mut writer, &hello).await.unwrap();
        Self { frames, writer }
    }

    async fn call(&mut self) -> ApiCall {
        self.frames.next_message(FrameKind::ApiCall).await.unwrap().unwrap()
    }

    async fn answer(&mut self, seq: u32, more: bool, result: Result<ApiReply, PublicError>) {
        let answer = ApiAnswer { seq, more, result };
        let bytes = encode_message(VERSION_MAX, FrameKind::ApiAnswer, &answer).unwrap();
        write_frame(&mut self.writer, &bytes).await.unwrap();
    }
}

struct Place {
    _dir: tempfile::TempDir,
    path: PathBuf,
    listener: UnixListener,
}

fn place() -> Place {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("api.sock");
    let listener = UnixListener::bind(&path).unwrap();
    Place { _dir: dir, path, listener }
}

fn steady(paths: &[&Path]) -> Steady {
    let dials =
        paths.iter().map(|path| Arc::new(UnixDial { path: path.to_path_buf() }) as Arc<dyn Dial>).collect();
    Steady::new(dials, Duration::from_secs(30))
}

fn spec() -> JobSpec {
    let mut draft = crate::parse::JobDraft::default();
    draft.set(crate::parse::Key::Command, &crate::parse::Value::text("true")).unwrap();
    draft.build(&crate::parse::Defaults { workdir: "/".into(), now_ms: 0 }).unwrap()
}

fn submit() -> ApiRequest {
    ApiRequest::Submit { jobs: vec![(fresh_request(), spec())] }
}

fn show(job: u64) -> ApiRequest {
    ApiRequest::Show { job: JobId(job), freshness: Freshness::Stale }
}

fn why(job: u64) -> PublicError {
    PublicError::new(ErrorCode::NotFound, format!("no job {job}"))
}

#[tokio::test]
async fn answers_find_their_calls_in_any_order() {
    let place = place();
    let agent = async {
        let mut peer = Peer::accept(&place.listener).await;
        let mut calls = Vec::new();
        for _ in 0..3 {
            calls.push(peer.call().await);
        }
        // Last asked, first answered; an answer to nobody's call in between.
        for call in calls.iter().rev() {
            let ApiRequest::Show { job, .. } = call.request else { panic!("{call:?}") };
            peer.answer(9_999, false, Ok(ApiReply::Done)).await;
            peer.answer(call.seq, false, Err(why(job.0))).await;
        }
        peer
    };
    let user = async {
        let client = Client::connect_socket(&place.path).await.unwrap();
        let (a, b, c) = tokio::join!(client.call(show(1)), client.call(show(2)), client.call(show(3)));
        assert_eq!((a, b, c), (Err(why(1)), Err(why(2)), Err(why(3))));
    };
    tokio::join!(agent, user);
}

#[tokio::test]
async fn a_stream_gives_its_answers_in_order_beside_others_and_ends() {
    let place = place();
    let chunk = |offset: u64, more: bool| {
        let bytes = vec![b'x'; 1_000];
        ApiReply::Log(LogChunk { attempt: Token(7), offset, bytes, last: !more })
    };
    let agent = async {
        let mut peer = Peer::accept(&place.listener).await;
        let (logs, other) = (peer.call().await, peer.call().await);
        for at in 0..100 {
            peer.answer(logs.seq, true, Ok(chunk(at * 1_000, true))).await;
        }
        peer.answer(logs.seq, false, Ok(chunk(100_000, false))).await;
        peer.answer(other.seq, false, Ok(ApiReply::Done)).await;
        peer
    };
    let user = async {
        let client = Client::connect_socket(&place.path).await.unwrap();
        let logs = ApiRequest::Logs {
            job: JobId(1),
            index: 0,
            attempt: None,
            stream: OutputStream::Stdout,
            offset: 0,
            follow: true,
        };
        let mut streams = client.streams([logs, show(1)]).await.unwrap();
        let mut other = streams.pop().unwrap();
        let mut logs = streams.pop().unwrap();
        for at in 0..=100_u64 {
            let reply = logs.next().await.unwrap().unwrap();
            assert_eq!(reply, chunk(at * 1_000, at < 100));
        }
        assert!(logs.next().await.is_none());
        assert_eq!(other.next().await, Some(Ok(ApiReply::Done)));
        assert!(other.next().await.is_none());
    };
    tokio::join!(agent, user);
}

#[tokio::test]
async fn a_broken_connection_is_told_to_every_open_call() {
    let place = place();
    let agent = async {
        let mut peer = Peer::accept(&place.listener).await;
        let first = peer.call().await;
        peer.call().await;
        peer.answer(first.seq, true, Ok(ApiReply::Done)).await;
    };
    let user = async {
        let client = Client::connect_socket(&place.path).await.unwrap();
        let mut streams = client.streams([show(1), show(2)]).await.unwrap();
        assert_eq!(streams[0].next().await, Some(Ok(ApiReply::Done)));
        for stream in &mut streams {
            let lost = stream.next().await.unwrap().unwrap_err();
            assert_eq!(lost.code, ErrorCode::Unknown);
            assert!(stream.next().await.is_none());
        }
        assert!(!client.is_open());
        assert_eq!(client.call(show(3)).await.unwrap_err().code, ErrorCode::Unknown);
    };
    tokio::join!(agent, user);
}

#[tokio::test]
async fn a_lost_answer_is_asked_for_again_with_the_same_request_id() {
    // Fault P9 seen from a client: the agent takes the submit and dies before it answers.
    let place = place();
    let agent = async {
        let mut asked = Vec::new();
        for _ in 0..2 {
            let mut peer = Peer::accept(&place.listener).await;
            asked.push(peer.call().await.request);
        }
        let mut peer = Peer::accept(&place.listener).await;
        let call = peer.call().await;
        let busy = PublicError::new(ErrorCode::NoLeader, "no leader").retry_after(1);
        peer.answer(call.seq, false, Err(busy)).await;
        let call = peer.call().await;
        peer.answer(call.seq, false, Ok(ApiReply::Submitted(vec![Ok(JobId(5))]))).await;
        asked.push(call.request);
        (asked, peer)
    };
    let user = async {
        let client = steady(&[&place.path]);
        let request = submit();
        let reply = client.call(request.clone()).await;
        assert_eq!(reply, Ok(ApiReply::Submitted(vec![Ok(JobId(5))])));
        request
    };
    let ((asked, _peer), request) = tokio::join!(agent, user);
    assert!(asked.iter().all(|other| *other == request));
}

#[tokio::test]
async fn a_signal_is_not_sent_twice_and_a_refusal_not_repeated() {
    let place = place();
    let agent = async {
        let mut peer = Peer::accept(&place.listener).await;
        peer.call().await;
        drop(peer);
        let mut peer = Peer::accept(&place.listener).await;
        let call = peer.call().await;
        peer.answer(call.seq, false, Err(why(1))).await;
        peer
    };
    let user = async {
        let client = steady(&[&place.path]);
        let signal = ApiRequest::Signal { job: JobId(1), index: None, signal: 10 };
        assert_eq!(client.call(signal).await.unwrap_err().code, ErrorCode::Unknown);
        assert_eq!(client.call(show(1)).await, Err(why(1)));
    };
    tokio::join!(agent, user);
}

#[tokio::test]
async fn the_next_peer_is_asked_when_one_is_gone() {
    let living = place();
    let gone = living.path.with_file_name("gone.sock");
    let agent = async {
        let mut peer = Peer::accept(&living.listener).await;
        let call = peer.call().await;
        peer.answer(call.seq, false, Ok(ApiReply::Done)).await;
        peer
    };
    let user = async { steady(&[&gone, &living.path]).call(show(1)).await };
    let (_peer, reply) = tokio::join!(agent, user);
    assert_eq!(reply, Ok(ApiReply::Done));
    let error = steady(&[&gone]).call(show(1)).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::NoLeader);
    assert!(error.message.contains("gone.sock"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn an_outcome_that_stays_unknown_is_said_to_be_so() {
    let place = place();
    let agent = async {
        loop {
            let mut peer = Peer::accept(&place.listener).await;
            peer.call().await;
        }
    };
    let user = async { steady(&[&place.path]).call(submit()).await };
    let error = tokio::select! {
        () = agent => unreachable!(),
        result = user => result.unwrap_err(),
    };
    assert_eq!(error.code, ErrorCode::Unknown);
    assert!(error.message.contains("may have been carried out"), "{error}");
}

#[tokio::test]
async fn a_peer_of_another_version_or_another_protocol_is_named() {
    let place = place();
    let agent = async {
        let (stream, _) = place.listener.accept().await.unwrap();
        let (reader, mut writer) = stream.into_split();
        let newer = Hello { version_min: 7, version_max: 9, ..crate::framing::client_hello() };
        let _ = exchange_hello(&mut FrameReader::new(reader), &mut writer, &newer).await;
        let (mut stream, _): (UnixStream, _) = place.listener.accept().await.unwrap();
        tokio::io::AsyncWriteExt::write_all(&mut stream, b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
        (writer, stream)
    };
    let user = async {
        let error = Client::connect_socket(&place.path).await.unwrap_err();
        assert_eq!(error.code, ErrorCode::Version);
        let error = Client::connect_socket(&place.path).await.unwrap_err();
        assert!(error.message.contains("not a frame of Rota"), "{error}");
    };
    tokio::join!(agent, user);
}

#[tokio::test]
async fn a_token_is_shown_first_and_a_refused_one_told() {
    for refused in [false, true] {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let agent = async {
            let (reader, mut writer) = theirs.into_split();
            let mut frames = FrameReader::new(reader);
            exchange_hello(&mut frames, &mut writer, &crate::framing::client_hello()).await.unwrap();
            let mut peer = Peer { frames, writer };
            let call = peer.call().await;
            assert_eq!(call.request, ApiRequest::Authenticate { token: "rota-user-x".to_owned().into() });
            let no = PublicError::new(ErrorCode::Unauthenticated, "unknown token");
            peer.answer(call.seq, false, if refused { Err(no) } else { Ok(ApiReply::Done) }).await;
            peer
        };
        let (reader, writer) = ours.into_split();
        let user = Client::over(Box::new(reader), Box::new(writer), Some("rota-user-x"));
        let (_peer, client) = tokio::join!(agent, user);
        assert_eq!(client.is_err(), refused);
    }
}

#[test]
fn the_cluster_is_found_in_the_documented_order() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().to_str().unwrap().to_owned();
    let token_path = dir.path().join(".config/rota/token");
    let all = [
        ("ROTA_SOCKET", "/env.sock"),
        ("ROTA_PEER", "n3:1"),
        ("ROTA_DATA_DIR", "/data"),
        ("HOME", home.as_str()),
    ];
    let found = |flags: &TargetFlags, skip: usize, extra: &[(&str, &str)]| {
        let vars: BTreeMap<&str, &str> = all[skip..].iter().chain(extra).copied().collect();
        find(flags, |name| vars.get(name).map(OsString::from))
    };
    let socket = |path: &str| Ok(Target::Socket(path.into()));
    let peers = |addrs: &[&str], token: &str| {
        let addrs = addrs.iter().map(ToString::to_string).collect();
        Ok(Target::Peers { addrs, token: token.to_owned() })
    };
    let none = TargetFlags::default();
    let flags = TargetFlags { socket: Some("/flag.sock".into()), peer: Some("n1:1".into()), ..none.clone() };
    assert_eq!(found(&flags, 0, &[]), socket("/flag.sock"));
    let flags = TargetFlags { peer: Some("n1:1, n2:2".into()), ..none.clone() };
    assert_eq!(found(&flags, 0, &[]).unwrap_err().code, ErrorCode::Unauthenticated);
    assert_eq!(found(&flags, 0, &[("ROTA_TOKEN", "t1")]), peers(&["n1:1", "n2:2"], "t1"));
    std::fs::create_dir_all(token_path.parent().unwrap()).unwrap();
    std::fs::write(&token_path, "t2\n").unwrap();
    assert_eq!(found(&flags, 0, &[]), peers(&["n1:1", "n2:2"], "t2"));
    assert_eq!(found(&none, 0, &[]), socket("/env.sock"));
    assert_eq!(found(&none, 1, &[]), peers(&["n3:1"], "t2"));
    assert_eq!(found(&none, 2, &[]), socket("/data/api.sock"));
    let own = dir.path().join(".local/share/rota/api.sock");
    std::fs::create_dir_all(own.parent().unwrap()).unwrap();
    std::fs::write(&own, "").unwrap();
    if !Path::new(target::SYSTEM_SOCKET).exists() {
        assert_eq!(found(&none, 3, &[]), Ok(Target::Socket(own)));
    }
}

#[tokio::test]
async fn a_stream_whose_client_is_dropped_ends() {
    let place = place();
    let agent = async {
        let mut peer = Peer::accept(&place.listener).await;
        peer.call().await;
        peer
    };
    let user = async {
        let client = Client::connect_socket(&place.path).await.unwrap();
        let mut stream = client.stream(show(1)).await.unwrap();
        drop(client);
        let lost = stream.next().await.unwrap().unwrap_err();
        assert_eq!(lost.code, ErrorCode::Unknown);
    };
    tokio::join!(agent, user);
}

#[tokio::test]
async fn a_lone_agent_that_restarts_is_waited_for() {
    let place = place();
    let client = steady(&[&place.path]);
    let first = async {
        let mut peer = Peer::accept(&place.listener).await;
        let call = peer.call().await;
        peer.answer(call.seq, false, Ok(ApiReply::Done)).await;
    };
    let (reply, ()) = tokio::join!(client.call(show(1)), first);
    assert_eq!(reply, Ok(ApiReply::Done));
    // The agent is down: its socket is there, but nobody listens.
    let Place { _dir, path, listener } = place;
    drop(listener);
    let user = async { assert_eq!(client.call(show(2)).await, Ok(ApiReply::Done)) };
    let agent = async {
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        std::fs::remove_file(&path).unwrap();
        let listener = UnixListener::bind(&path).unwrap();
        let mut peer = Peer::accept(&listener).await;
        let call = peer.call().await;
        peer.answer(call.seq, false, Ok(ApiReply::Done)).await;
    };
    tokio::join!(user, agent);
}
