//! Network namespaces for the hosts of a lab: each with interfaces of its own, joined by a switch in one more namespace.
//! Needs root and iproute2; who cannot have them is told why.

use rota_node::lab::NetSpace;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where `ip` keeps the names.
const NETNS: &str = "/run/netns";
/// What every host has first: a bridge as container engines make it, with one address on all hosts.
const BRIDGE_ADDR: &str = "172.31.0.1/16";
/// The network at which the hosts reach each other.
const PREFIX: &str = "10.77.0";

/// The namespaces; they go when this is dropped, with all interfaces in them.
#[derive(Debug)]
pub(super) struct Spaces {
    names: Vec<String>,
    hosts: usize,
}

impl Spaces {
    /// One namespace for each of `hosts`, and the switch.
    ///
    /// # Errors
    /// What the machine lacks, in words.
    pub(super) fn new(hosts: usize) -> Result<Self, String> {
        Self::furnished(hosts, |spaces, name, number, switch| {
            // The bridge comes first, so that whoever takes the first address that is not loopback takes the wrong one.
            spaces.bridge(name, BRIDGE_ADDR)?;
            spaces.wire(name, number, switch, ("eth0", &format!("{PREFIX}.{number}/24")))
        })
    }

    /// The same with interfaces of the caller's own: it is given the namespace, the host's number and the switch.
    ///
    /// # Errors
    /// What the machine lacks, in words.
    pub(super) fn furnished(
        hosts: usize,
        furnish: impl Fn(&Self, &str, usize, &str) -> Result<(), String>,
    ) -> Result<Self, String> {
        let mark = std::process::id();
        // Interfaces of the whole machine have 15 bytes for a name; here each lives in a namespace of its own.
        let mut spaces = Self { names: Vec::new(), hosts };
        let switch = format!("rota-{mark}-sw");
        spaces.add(&switch)?;
        ip(&["-n", &switch, "link", "add", "sw", "type", "bridge"])?;
        ip(&["-n", &switch, "link", "set", "sw", "up"])?;
        for number in 1..=hosts {
            let name = format!("rota-{mark}-{number}");
            spaces.add(&name)?;
            furnish(&spaces, &name, number, &switch)?;
        }
        Ok(spaces)
    }

    fn add(&mut self, name: &str) -> Result<(), String> {
        ip(&["netns", "add", name])?;
        self.names.push(name.to_owned());
        ip(&["-n", name, "link", "set", "lo", "up"])
    }

    /// A bridge of the host's own.
    pub(super) fn bridge(&self, name: &str, addr: &str) -> Result<(), String> {
        ip(&["-n", name, "link", "add", "br0", "type", "bridge"])?;
        self.opened(name, "br0", addr)
    }

    /// An interface that leads nowhere: its far end is in the same place.
    pub(super) fn nowhere(&self, name: &str, interface: &str, addr: &str) -> Result<(), String> {
        ip(&["-n", name, "link", "add", interface, "type", "veth", "peer", "name", "far"])?;
        ip(&["-n", name, "link", "set", "far", "up"])?;
        self.opened(name, interface, addr)
    }

    fn opened(&self, name: &str, interface: &str, addr: &str) -> Result<(), String> {
        // Nobody else has the address: it need not be asked for.
        let nodad: &[&str] = if addr.contains(':') { &["nodad"] } else { &[] };
        ip(&[&["-n", name, "addr", "add", addr, "dev", interface], nodad].concat())?;
        ip(&["-n", name, "link", "set", interface, "up"])
    }

    /// Where packets to anywhere leave.
    pub(super) fn default_route(&self, name: &str, interface: &str) -> Result<(), String> {
        ip(&["-n", name, "route", "add", "default", "dev", interface])
    }

    /// An interface at the switch.
    pub(super) fn wire(
        &self,
        name: &str,
        number: usize,
        switch: &str,
        (interface, addr): (&str, &str),
    ) -> Result<(), String> {
        let port = format!("p{number}");
        ip(&["-n", name, "link", "add", interface, "type", "veth", "peer", "name", &port, "netns", switch])?;
        self.opened(name, interface, addr)?;
        ip(&["-n", switch, "link", "set", &port, "master", "sw", "up"])
    }

    /// The files of the hosts' namespaces, in order.
    pub(super) fn files(&self) -> Vec<PathBuf> {
        self.names.iter().skip(1).map(|name| Path::new(NETNS).join(name)).collect()
    }

    /// The hosts' namespaces, in order.
    #[must_use]
    pub(super) fn all(&self) -> Vec<NetSpace> {
        let space = |number| NetSpace {
            file: Path::new(NETNS).join(&self.names[number]),
            addr: format!("{PREFIX}.{number}"),
        };
        // The first name is the switch.
        (1..=self.hosts).map(space).collect()
    }
}

impl Drop for Spaces {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = ip(&["netns", "del", name]);
        }
    }
}

fn ip(args: &[&str]) -> Result<(), String> {
    let said = Command::new("ip").args(args).output().map_err(|e| format!("cannot run ip: {e}"))?;
    if said.status.success() {
        return Ok(());
    }
    Err(format!("`ip {}`: {}", args.join(" "), String::from_utf8_lossy(&said.stderr).trim()))
}
