//! Where a host says that it is: an address that a person gave, a network or an interface that one named, or a choice
//! among what the host has, told with its reason. Nothing here asks the system; [`crate::io::interfaces`] does.

use rota_protocol::PublicError;
use std::cmp::Reverse;
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// One address of one interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// The interface.
    pub name: String,
    /// The address.
    pub ip: IpAddr,
    /// How many bits of it name the network.
    pub prefix: u8,
    /// The interface is a bridge.
    pub bridge: bool,
}

/// What a host has, and where the kernel would send from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Surroundings {
    /// In the kernel's order.
    pub candidates: Vec<Candidate>,
    /// The peer that is joined, and the address that packets to it leave from.
    pub towards_peer: Option<(String, IpAddr)>,
    /// The address that packets to anywhere leave from.
    pub towards_anywhere: Option<IpAddr>,
    /// The interface that was chosen before.
    pub before: Option<String>,
}

/// What is advertised, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// `HOST:PORT`, as others dial it.
    pub addr: String,
    /// The interface, if it is one of this host's.
    pub interface: Option<String>,
    /// Why this one.
    pub reason: String,
}

/// What others can do with an address; the greater, the more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Standing {
    Loopback,
    LinkLocal,
    Bridge,
    Nat,
    Public,
    Private,
}

impl Standing {
    /// What speaks against it.
    fn flaw(self) -> Option<&'static str> {
        Some(match self {
            Self::Loopback => "loopback: reaches this host alone",
            Self::LinkLocal => "link-local: means nothing beyond one wire",
            Self::Bridge => "a bridge, as container engines make it",
            Self::Nat => "what a virtual machine gets behind its own NAT, the same on each",
            Self::Public => "a public address",
            Self::Private => return None,
        })
    }
}

/// The address of a guest behind the user-mode network of the usual hypervisors.
const GUEST_NAT: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 2, 15));

fn standing(candidate: &Candidate) -> Standing {
    let (link_local, private) = match candidate.ip {
        IpAddr::V4(ip) => (ip.is_link_local(), ip.is_private() || is_carrier_grade(ip)),
        IpAddr::V6(ip) => (ip.is_unicast_link_local(), ip.is_unique_local()),
    };
    match candidate {
        one if one.ip.is_loopback() => Standing::Loopback,
        _ if link_local => Standing::LinkLocal,
        one if one.bridge => Standing::Bridge,
        one if one.ip == GUEST_NAT => Standing::Nat,
        _ if private => Standing::Private,
        _ => Standing::Public,
    }
}

/// `100.64.0.0/10`: private in all but name.
fn is_carrier_grade(ip: Ipv4Addr) -> bool {
    matches!(ip.octets(), [100, second, ..] if second & 0xc0 == 64)
}

impl Surroundings {
    /// Those that a socket at `listen` hears.
    fn heard(&self, listen: SocketAddr) -> impl Iterator<Item = &Candidate> {
        self.candidates.iter().filter(move |one| listen.is_ipv6() || one.ip.is_ipv4())
    }

    /// Whether this host has addresses of IPv6 that others reach, and none of IPv4.
    #[must_use]
    pub fn is_ipv6_only(&self) -> bool {
        let good = |one: &&Candidate| standing(one) > Standing::LinkLocal;
        let mut good = self.candidates.iter().filter(good).peekable();
        good.peek().is_some() && good.all(|one| one.ip.is_ipv6())
    }

    /// The best of these. Bridges, loopback and link-local come last, whatever else speaks for them.
    fn best<'a>(&self, of: impl Iterator<Item = &'a Candidate>) -> Option<(&'a Candidate, String)> {
        let usable = |one: &Candidate| standing(one) > Standing::Bridge;
        let peer = self.towards_peer.as_ref();
        let score = |one: &Candidate| {
            let rank = standing(one);
            let to_peer = peer.is_some_and(|(_, from)| *from == one.ip);
            let before = self.before.as_ref() == Some(&one.name);
            let class = if usable(one) { Standing::Private } else { rank };
            (class, to_peer, before, rank, self.towards_anywhere == Some(one.ip), one.ip.is_ipv4())
        };
        let all: Vec<&Candidate> = of.collect();
        // The first of equals, in the kernel's order.
        let (_, best) = all.iter().enumerate().max_by_key(|(at, one)| (score(one), Reverse(*at)))?;
        let reason = match (peer, score(best)) {
            _ if all.len() == 1 => "it is the only one".to_owned(),
            (_, (Standing::Loopback | Standing::LinkLocal | Standing::Bridge, ..)) => {
                "there is nothing better; other hosts may not reach it".to_owned()
            }
            (Some((peer, _)), (_, true, ..)) => format!("packets to {peer} leave from it"),
            (_, (_, _, true, ..)) => "it was chosen before".to_owned(),
            _ if all.iter().filter(|one| standing(one) == standing(best)).count() == 1 => {
                "it is the only one of its kind".to_owned()
            }
            (_, (.., true, _)) => "packets to anywhere leave from it; others are as good".to_owned(),
            _ => "it is the first; others are as good".to_owned(),
        };
        Some((best, reason))
    }

    /// The candidates, one a line, with what speaks against each.
    #[must_use]
    pub fn lines(&self) -> String {
        let mut text = String::new();
        for one in &self.candidates {
            let flaw = standing(one).flaw().map(|flaw| format!("  ({flaw})")).unwrap_or_default();
            // Writing to a string cannot fail.
            let _ = writeln!(text, "  {} {}/{}{flaw}", one.name, one.ip, one.prefix);
        }
        text
    }

    /// What is advertised by a host that listens at `listen`: by what `wish` says, or by choice. `field` is named in errors.
    ///
    /// # Errors
    /// The wish is malformed, nobody can dial it, or nothing here matches it: the candidates are listed.
    pub fn choose(&self, field: &str, wish: Option<&str>, listen: SocketAddr) -> Result<Choice, PublicError> {
        if let Some(wish) = wish {
            return self.wished(field, wish, listen);
        }
        if !listen.ip().is_unspecified() {
            let reason = "it is the address that this host listens at".to_owned();
            return Ok(Choice { addr: listen.to_string(), interface: None, reason });
        }
        let Some((best, reason)) = self.best(self.heard(listen)) else {
            let ip: IpAddr =
                if listen.is_ipv6() { Ipv6Addr::LOCALHOST.into() } else { Ipv4Addr::LOCALHOST.into() };
            let reason = "this host has no other".to_owned();
            let addr = SocketAddr::new(ip, listen.port()).to_string();
            return Ok(Choice { addr, interface: None, reason });
        };
        Ok(Choice {
            addr: SocketAddr::new(best.ip, listen.port()).to_string(),
            interface: Some(best.name.clone()),
            reason,
        })
    }

    fn wished(&self, field: &str, wish: &str, listen: SocketAddr) -> Result<Choice, PublicError> {
        let given = |ip: Option<IpAddr>, addr: String| match ip {
            Some(ip) if ip.is_unspecified() => Err(PublicError::invalid(
                field,
                format!("{wish} is no address that other hosts can dial"),
                "10.0.0.2:7420",
            )),
            _ => Ok(Choice { addr, interface: None, reason: format!("{field} says so") }),
        };
        if let Ok(addr) = wish.parse::<SocketAddr>() {
            return given(Some(addr.ip()), wish.to_owned());
        }
        if let Ok(ip) = wish.parse::<IpAddr>() {
            return given(Some(ip), SocketAddr::new(ip, listen.port()).to_string());
        }
        if let Some((_, port)) = wish.rsplit_once(':').filter(|_| !wish.contains('/')) {
            let is_port = port.parse::<u16>().is_ok_and(|port| port > 0);
            return match is_port && crate::net::is_addr(wish) {
                true => given(None, wish.to_owned()),
                false => Err(malformed(field, wish)),
            };
        }
        let network = if wish.contains('/') {
            Some(Network::parse(wish).ok_or_else(|| malformed(field, wish))?)
        } else {
            None
        };
        let matches = |one: &&Candidate| match &network {
            Some(network) => network.holds(one.ip),
            None => one.name == wish,
        };
        let Some((best, _)) = self.best(self.heard(listen).filter(matches)) else {
            let deaf = self.candidates.iter().any(|one| matches(&one));
            let what = match (&network, deaf) {
                (_, true) => format!("{wish} has no address that is heard at {listen}"),
                (Some(_), _) => format!("no address of this host is in {wish}"),
                (None, _) => format!("this host has no interface {wish} with an address"),
            };
            let what = format!("{what}; it has\n{}", self.lines());
            return Err(PublicError::invalid(field, what, "eth0, 10.0.0.0/24 or 10.0.0.2"));
        };
        Ok(Choice {
            addr: SocketAddr::new(best.ip, listen.port()).to_string(),
            interface: Some(best.name.clone()),
            reason: format!("{field} = {wish} says so"),
        })
    }
}

fn malformed(field: &str, wish: &str) -> PublicError {
    let what = format!("{wish} is no interface, network or address");
    PublicError::invalid(field, what, "eth0, 10.0.0.0/24, 10.0.0.2 or gpu-01.example.org:7420")
}

/// A range of addresses.
struct Network {
    ip: IpAddr,
    prefix: u8,
}

impl Network {
    fn parse(text: &str) -> Option<Self> {
        let (ip, prefix) = text.split_once('/')?;
        let (ip, prefix) = (ip.parse::<IpAddr>().ok()?, prefix.parse::<u8>().ok()?);
        (prefix <= if ip.is_ipv4() { 32 } else { 128 }).then_some(Self { ip, prefix })
    }

    fn holds(&self, ip: IpAddr) -> bool {
        // A shift by all bits is none that the language knows.
        let differ = match (self.ip, ip) {
            (IpAddr::V4(a), IpAddr::V4(b)) => {
                (a.to_bits() ^ b.to_bits()).checked_shr(32 - u32::from(self.prefix)).map(u128::from)
            }
            (IpAddr::V6(a), IpAddr::V6(b)) => {
                (a.to_bits() ^ b.to_bits()).checked_shr(128 - u32::from(self.prefix))
            }
            _ => return false,
        };
        differ.unwrap_or(0) == 0
    }
}

/// The address that parts of gangs meet at, of a wish for another network than the control traffic's.
///
/// # Errors
/// See [`Surroundings::choose`]; a name is no address here.
pub fn gang_ip(around: &Surroundings, wish: &str) -> Result<String, PublicError> {
    // Gangs listen wherever they like: both families are heard.
    let any = SocketAddr::from(([0_u16; 8], 1));
    let chosen = around.choose("gang_network", Some(wish), any)?;
    match chosen.addr.parse::<SocketAddr>() {
        Ok(addr) if addr.port() == 1 => Ok(addr.ip().to_string()),
        _ => Err(PublicError::invalid(
            "gang_network",
            format!("{wish} is no interface, network or address without a port"),
            "ib0, 10.1.0.0/16 or 10.1.0.2",
        )),
    }
}

#[cfg(test)]
#[path = "advertise_tests.rs"]
mod tests;
