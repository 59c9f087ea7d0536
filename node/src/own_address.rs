//! What `init`, `join`, `restore` and `agent` do about where this host listens and what it tells others to dial: the
//! wish of a person or the choice of [`crate::advertise`], told at the first start and kept for those that follow.

use crate::advertise::{Choice, gang_ip};
use crate::cli::Failure;
use crate::config::{AgentConfig, LISTEN_DEFAULT};
use crate::io::interfaces;
use rota_protocol::PublicError;
use std::net::{Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

/// Where a host listens and what it tells others.
#[derive(Debug)]
pub struct Place {
    /// The address that it binds.
    pub listen: SocketAddr,
    /// What others dial.
    pub advertised: Choice,
    /// The choice, its reason and the candidates, for people.
    pub told: Vec<String>,
    wish: Option<String>,
}

/// Settles both for a host that starts for the first time. `peer` is
/// who it joins.
///
/// # Errors
/// A setting is malformed, or nothing here matches it.
pub fn first(listen: Option<&str>, wish: Option<&str>, peer: Option<&str>) -> Result<Place, Failure> {
    let around = interfaces::look(peer, None);
    let mut at = address("listen", listen.unwrap_or(LISTEN_DEFAULT))?;
    if listen.is_none() && around.is_ipv6_only() {
        at = SocketAddr::from((Ipv6Addr::UNSPECIFIED, at.port()));
    }
    let advertised = around.choose("advertise", wish, at)?;
    let on = advertised.interface.as_ref().map(|name| format!(" ({name})")).unwrap_or_default();
    let mut told =
        vec![format!("other hosts dial this one at {}{on}: {}", advertised.addr, advertised.reason)];
    if wish.is_none() && at.ip().is_unspecified() {
        told.push("it has".to_owned());
        told.extend(around.lines().lines().map(str::to_owned));
        told.push("--advertise INTERFACE, NETWORK or ADDRESS takes another".to_owned());
    }
    Ok(Place { listen: at, advertised, told, wish: wish.map(str::to_owned) })
}

/// The file in which the first start leaves the addresses, so that `agent` needs no flags: where it listens, what a
/// person wished, the interface that was chosen without a wish.
fn file(data: &Path) -> PathBuf {
    data.join("addresses")
}

impl Place {
    /// Keeps it for the starts that follow.
    ///
    /// # Errors
    /// The disk refuses.
    pub fn remember(&self, data: &Path) -> Result<(), Failure> {
        let wish = self.wish.as_deref().unwrap_or_default();
        let chosen = self.advertised.interface.as_deref().filter(|_| wish.is_empty()).unwrap_or_default();
        let text = format!("{}\n{wish}\n{chosen}\n", self.listen);
        crate::io::durable::write_atomic(&file(data), text.as_bytes(), 0o644).map_err(Failure::other)
    }
}

/// What was left: where to listen, the wish, the interface that was chosen.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Left {
    pub(crate) listen: SocketAddr,
    pub(crate) wish: Option<String>,
    pub(crate) chosen: Option<String>,
}

pub(crate) fn recall(data: &Path) -> Option<Left> {
    let text = std::fs::read_to_string(file(data)).ok()?;
    let mut lines = text.lines();
    let listen = lines.next()?.parse().ok()?;
    let mut word = || lines.next().filter(|line| !line.is_empty()).map(str::to_owned);
    Some(Left { listen, wish: word(), chosen: word() })
}

/// Turns the wishes of an agent's settings into addresses. Done at every start: the addresses of an interface may have
/// changed since the last one.
///
/// # Errors
/// See [`first`].
pub fn settle(config: &mut AgentConfig) -> Result<(), Failure> {
    let before = recall(&config.data_dir).and_then(|left| left.chosen);
    // A name service that is away is asked only where its answer would decide.
    let free = config.advertise.is_none() && before.is_none() && config.listen.ip().is_unspecified();
    let peer = config.peers.first().filter(|_| free);
    let around = interfaces::look(peer.map(String::as_str), before);
    let choice = around.choose("advertise", config.advertise.as_deref(), config.listen)?;
    tracing::info!(addr = choice.addr, interface = choice.interface, why = choice.reason, "is advertised");
    config.advertise = Some(choice.addr);
    if let Some(wish) = &config.gang_network {
        let ip = gang_ip(&around, wish)?;
        tracing::info!(%ip, gang_network = wish, "gangs meet here");
        config.gang_network = Some(ip);
    }
    Ok(())
}

/// An address and a port.
///
/// # Errors
/// It is none.
pub fn address(field: &str, text: &str) -> Result<SocketAddr, Failure> {
    text.parse().map_err(|_| {
        PublicError::invalid(field, format!("{text} is no address and port"), "10.0.0.1:7420").into()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_person_wished_is_kept_and_not_what_came_of_it() {
        let data = tempfile::tempdir().unwrap();
        assert_eq!(recall(data.path()), None);
        let listen: SocketAddr = "0.0.0.0:7420".parse().unwrap();
        let advertised = |interface: Option<&str>| Choice {
            addr: "10.0.0.2:7420".into(),
            interface: interface.map(str::to_owned),
            reason: String::new(),
        };
        let place = |interface, wish: Option<&str>| Place {
            listen,
            advertised: advertised(interface),
            told: Vec::new(),
            wish: wish.map(str::to_owned),
        };
        let kept = |place: Place| {
            place.remember(data.path()).unwrap_or_else(|_| panic!("the disk"));
            recall(data.path()).map(|left| (left.wish, left.chosen))
        };
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(kept(place(Some("eth1"), None)), Some((None, some("eth1"))));
        assert_eq!(kept(place(Some("eth1"), Some("10.0.0.0/8"))), Some((some("10.0.0.0/8"), None)));
        assert_eq!(kept(place(None, None)), Some((None, None)));
        // What older builds left has two lines.
        std::fs::write(file(data.path()), "10.0.0.1:7\nn1:7\n").unwrap();
        let left = Left { listen: "10.0.0.1:7".parse().unwrap(), wish: some("n1:7"), chosen: None };
        assert_eq!(recall(data.path()), Some(left));
    }
}
