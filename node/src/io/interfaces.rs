//! The addresses of this host, as the kernel tells them over a netlink socket. Not by `/sys`: that of another network
//! namespace may be mounted there.

use crate::advertise::{Candidate, Surroundings};
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send, socket_with,
};
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs, UdpSocket};

/// Bytes of a netlink header, and of what each kind has before its attributes.
const HEADER: usize = 16;
const LINK_HEADER: usize = 16;
const ADDR_HEADER: usize = 8;
/// Kinds of messages.
const DONE: u16 = 3;
const ERROR: u16 = 2;
const NEW_LINK: u16 = 16;
const GET_LINK: u16 = 18;
const NEW_ADDR: u16 = 20;
const GET_ADDR: u16 = 22;
/// A request for all there is.
const REQUEST_ALL: u16 = 0x301;
/// Attributes of links and of addresses.
const LINK_NAME: u16 = 3;
const LINK_INFO: u16 = 18;
const INFO_KIND: u16 = 1;
const ADDR_ADDRESS: u16 = 1;
const ADDR_LOCAL: u16 = 2;
const UP: u32 = 1;
/// More than the kernel puts into one answer.
const ANSWER_BYTES: usize = 64 << 10;
/// Nothing is sent there: connecting a UDP socket asks for the route alone. Addresses of documentation.
const ANYWHERE: [&str; 2] = ["192.0.2.1:9", "[2001:db8::1]:9"];

/// What this host has. One that may not ask is as one without a network, but for what its routes tell.
#[must_use]
pub fn look(peer: Option<&str>, before: Option<String>) -> Surroundings {
    let candidates = candidates().unwrap_or_default();
    let towards_peer = peer.and_then(|peer| {
        let mut addrs = peer.to_socket_addrs().ok()?;
        addrs.find_map(source).map(|ip| (peer.to_owned(), ip))
    });
    let anywhere = ANYWHERE.iter().filter_map(|addr| addr.parse().ok());
    let mut around = Surroundings {
        candidates,
        towards_peer,
        towards_anywhere: anywhere.filter_map(source).next(),
        before,
    };
    if around.candidates.is_empty() {
        let told = around.towards_peer.iter().map(|(_, ip)| *ip).chain(around.towards_anywhere);
        let prefix = |ip: &IpAddr| if ip.is_ipv4() { 32 } else { 128 };
        let unnamed = |ip| Candidate { name: "?".to_owned(), ip, prefix: prefix(&ip), bridge: false };
        around.candidates = told.map(unnamed).collect();
    }
    around
}

/// Where packets to this address leave from.
fn source(to: SocketAddr) -> Option<IpAddr> {
    let any = SocketAddr::new(if to.is_ipv4() { IpAddr::from([0; 4]) } else { IpAddr::from([0; 16]) }, 0);
    let socket = UdpSocket::bind(any).ok()?;
    socket.connect(to).ok()?;
    socket.local_addr().ok().map(|addr| addr.ip())
}

/// Name, whether it is a bridge.
type Links = BTreeMap<u32, (String, bool)>;

fn candidates() -> io::Result<Vec<Candidate>> {
    let mut links = Links::new();
    dump(GET_LINK, LINK_HEADER, |kind, body| {
        if kind == NEW_LINK
            && let Some((index, link)) = link(body)
        {
            links.insert(index, link);
        }
    })?;
    let mut found = Vec::new();
    dump(GET_ADDR, ADDR_HEADER, |kind, body| {
        if kind == NEW_ADDR {
            found.extend(address(body, &links));
        }
    })?;
    Ok(found)
}

/// Asks for all of a kind.
fn dump(kind: u16, header: usize, mut take: impl FnMut(u16, &[u8])) -> io::Result<()> {
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    bind(&socket, &SocketAddrNetlink::new(0, 0))?;
    let len = HEADER + header;
    let mut request = vec![0; len];
    // It fits: 32 bytes.
    request[..4].copy_from_slice(&u32::try_from(len).unwrap_or(0).to_ne_bytes());
    request[4..6].copy_from_slice(&kind.to_ne_bytes());
    request[6..8].copy_from_slice(&REQUEST_ALL.to_ne_bytes());
    send(&socket, &request, SendFlags::empty())?;
    let mut answer = vec![0; ANSWER_BYTES];
    loop {
        let (got, _) = recv(&socket, answer.as_mut_slice(), RecvFlags::empty())?;
        let mut rest = &answer[..got];
        if rest.is_empty() {
            return Ok(());
        }
        while let Some((kind, body, behind)) = message(rest) {
            match kind {
                DONE => return Ok(()),
                ERROR => return Err(io::ErrorKind::PermissionDenied.into()),
                kind => take(kind, body),
            }
            rest = behind;
        }
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// Kind, body, and what comes behind it.
fn message(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let len = usize::try_from(u32_at(bytes, 0)?).ok()?;
    let body = bytes.get(HEADER..len)?;
    Some((u16_at(bytes, 4)?, body, bytes.get(len.next_multiple_of(4)..).unwrap_or_default()))
}

/// An attribute of this kind.
fn attribute(mut bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    loop {
        let len = usize::from(u16_at(bytes, 0)?);
        let value = bytes.get(4..len)?;
        // The two upper bits say how the value is written.
        if u16_at(bytes, 2)? & 0x3fff == wanted {
            return Some(value);
        }
        bytes = bytes.get(len.next_multiple_of(4)..)?;
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes.split(|byte| *byte == 0).next().unwrap_or_default()).into_owned()
}

fn link(body: &[u8]) -> Option<(u32, (String, bool))> {
    let (index, flags) = (u32_at(body, 4)?, u32_at(body, 8)?);
    let attributes = body.get(LINK_HEADER..)?;
    let kind = attribute(attributes, LINK_INFO).and_then(|info| attribute(info, INFO_KIND)).map(text);
    let bridge = matches!(kind.as_deref(), Some("bridge" | "openvswitch"));
    (flags & UP != 0).then_some((index, (text(attribute(attributes, LINK_NAME)?), bridge)))
}

fn address(body: &[u8], links: &Links) -> Option<Candidate> {
    let (name, bridge) = links.get(&u32_at(body, 4)?)?;
    let attributes = body.get(ADDR_HEADER..)?;
    // On a line between two hosts the other kind is the far end.
    let ip = attribute(attributes, ADDR_LOCAL).or_else(|| attribute(attributes, ADDR_ADDRESS))?;
    let ip = match ip.len() {
        4 => IpAddr::from(<[u8; 4]>::try_from(ip).ok()?),
        16 => IpAddr::from(<[u8; 16]>::try_from(ip).ok()?),
        _ => return None,
    };
    Some(Candidate { name: name.clone(), ip, prefix: *body.get(1)?, bridge: *bridge })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_host_has_loopback() {
        match candidates() {
            Ok(found) => {
                assert!(found.iter().any(|one| one.ip.is_loopback() && one.name == "lo"), "{found:?}")
            }
            Err(error) => println!("NOT EXERCISED: the kernel tells no addresses: {error}"),
        }
        assert_eq!(source("127.0.0.1:9".parse().unwrap()), Some(IpAddr::from([127, 0, 0, 1])));
    }

    #[test]
    fn answers_that_are_cut_short_are_no_addresses() {
        let links = Links::from([(3, ("eth0".to_owned(), true))]);
        let mut body = vec![2, 24, 0, 0];
        body.extend(3_u32.to_ne_bytes());
        for (kind, ip) in [(ADDR_ADDRESS, [10, 0, 0, 9]), (ADDR_LOCAL, [10, 0, 0, 2])] {
            body.extend(8_u16.to_ne_bytes());
            body.extend(kind.to_ne_bytes());
            body.extend(ip);
        }
        let found = address(&body, &links).unwrap();
        assert_eq!((found.ip, found.prefix, found.bridge), (IpAddr::from([10, 0, 0, 2]), 24, true));
        for len in 0..16 {
            assert_eq!(address(&body[..len], &links), None, "{len}");
        }
        body[8] = 0;
        assert_eq!(attribute(&body[8..], 9), None, "a length of nothing goes nowhere");
    }
}
