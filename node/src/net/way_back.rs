//! Whether a host that joins can be reached where it says it is. The peer that it joins sends a datagram there, and only
//! the joiner, which listens there for that long, can answer it: nothing is admitted that nobody could dial.

use super::{ca, dial};
use rota_protocol::PublicError;
use rota_protocol::peer::{JoinListening, JoinRequest};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;
use tokio::net::UdpSocket;
use tokio::time::timeout;

/// What a question begins with; 16 random bytes follow. The answer is as long: nobody is made to send more than it got.
const MARK: &[u8; 16] = b"rota way back 1\0";
const ASK_BYTES: usize = 32;
/// How often it is asked, and how long each answer is waited for.
const TRIES: u32 = 4;
const TRY_TIME: Duration = Duration::from_millis(400);
/// How long the name service may take.
const NAME_TIME: Duration = Duration::from_secs(2);

fn answer(key: &[u8; 32], asked: &[u8]) -> [u8; 32] {
    ca::sha256(&[b"rota way back\0", key, asked])
}

/// The joiner's side: answers at the address that it will listen at, until dropped.
pub(super) struct Listening {
    task: tokio::task::JoinHandle<()>,
    key: [u8; 32],
}

impl Listening {
    pub(super) async fn at(listen: SocketAddr) -> std::io::Result<Self> {
        let socket = UdpSocket::bind(listen).await?;
        let key: [u8; 32] = rand::random();
        let task = tokio::spawn(async move {
            let mut asked = [0; ASK_BYTES + 1];
            loop {
                // An error is that of an earlier answer which nobody took.
                if let Ok((ASK_BYTES, from)) = socket.recv_from(&mut asked).await
                    && asked.starts_with(MARK)
                {
                    let _ = socket.send_to(&answer(&key, &asked[..ASK_BYTES]), from).await;
                }
            }
        });
        Ok(Self { task, key })
    }

    /// The port is free when this returns; one that is dropped frees it some time later.
    pub(super) async fn stop(mut self) {
        self.task.abort();
        // It was ended here: there is nothing to be told.
        let _ = (&mut self.task).await;
    }

    pub(super) fn asks(&self, request: JoinRequest) -> JoinListening {
        JoinListening { request, key: self.key }
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The peer's side: calls at `addr`, where only who knows `key` can answer. `from` is where the joiner asked from.
pub(super) async fn check(addr: &str, key: &[u8; 32], from: SocketAddr) -> Result<(), PublicError> {
    let refused = |why: String| {
        let what = format!(
            "{addr} does not lead back to this host: the host that it joins called there and {why} (it calls from {}); \
             nothing was changed",
            from.ip()
        );
        Err(PublicError::invalid("advertise", what, "eth0, 10.0.0.0/24 or 10.0.0.2:7420"))
    };
    let addrs = match timeout(NAME_TIME, dial::resolve(addr)).await {
        Ok(Ok(addrs)) => addrs,
        Ok(Err(why)) => return refused(why),
        Err(_) => return refused("got no answer of the name service".to_owned()),
    };
    let mut last = "got no answer".to_owned();
    for to in addrs {
        match call(to, key).await {
            Ok(true) => return Ok(()),
            Ok(false) => last = "got no answer".to_owned(),
            Err(error) => last = format!("could not: {error}"),
        }
    }
    refused(last)
}

async fn call(to: SocketAddr, key: &[u8; 32]) -> std::io::Result<bool> {
    let any: IpAddr = if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(to).await?;
    let mut ask = [0; ASK_BYTES];
    ask[..MARK.len()].copy_from_slice(MARK);
    ask[MARK.len()..].copy_from_slice(&rand::random::<[u8; 16]>());
    let right = answer(key, &ask);
    let mut came = [0; 64];
    for _ in 0..TRIES {
        // Whoever refuses it may be about to listen.
        let _ = socket.send(&ask).await;
        let deadline = tokio::time::Instant::now() + TRY_TIME;
        while let Ok(got) = tokio::time::timeout_at(deadline, socket.recv(&mut came)).await {
            match got {
                Ok(len) if came[..len] == right => return Ok(true),
                Ok(_) => {}
                // The far side said that nobody listens: not more often than it is asked.
                Err(_) => {
                    tokio::time::sleep_until(deadline).await;
                    break;
                }
            }
        }
    }
    Ok(false)
}
