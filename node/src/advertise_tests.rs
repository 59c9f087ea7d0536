//! What is chosen of what a host has (R083), and how a setting is taken.

use super::*;

fn one(name: &str, text: &str) -> Candidate {
    // As it is written in these tests.
    let (ip, prefix) = text.split_once('/').expect("as written");
    let (ip, prefix) = (ip.parse().expect("as written"), prefix.parse().expect("as written"));
    Candidate { name: name.into(), ip, prefix, bridge: name.starts_with("br") }
}

fn host(list: &[(&str, &str)]) -> Surroundings {
    let candidates = list.iter().map(|(name, text)| one(name, text)).collect();
    Surroundings { candidates, ..Surroundings::default() }
}

/// A bridge first, a guest's NAT network that packets to anywhere leave by, and the network of the hosts.
fn guest() -> Surroundings {
    let list = [
        ("lo", "127.0.0.1/8"),
        ("br0", "172.17.0.1/16"),
        ("eth0", "10.0.2.15/24"),
        ("eth1", "192.168.33.11/24"),
        ("lo", "::1/128"),
        ("eth1", "fe80::11/64"),
    ];
    Surroundings { towards_anywhere: Some(GUEST_NAT), ..host(&list) }
}

fn any4() -> SocketAddr {
    // As it is written in these tests.
    "0.0.0.0:7420".parse().expect("as written")
}

fn any6() -> SocketAddr {
    // As it is written in these tests.
    "[::]:7420".parse().expect("as written")
}

fn chosen(around: &Surroundings) -> String {
    // As it is written in these tests.
    around.choose("advertise", None, any6()).expect("as written").addr
}

#[test]
fn what_others_cannot_reach_is_never_chosen_when_there_is_another() {
    let around = guest();
    let choice = around.choose("advertise", None, any4()).unwrap();
    assert_eq!((choice.addr.as_str(), choice.interface.as_deref()), ("192.168.33.11:7420", Some("eth1")));
    assert_eq!(choice.reason, "it is the only one of its kind");
    // Whatever else speaks for them.
    for bad in ["127.0.0.1", "172.17.0.1", "fe80::11"] {
        let bad: IpAddr = bad.parse().unwrap();
        let mut around = guest();
        around.towards_peer = Some(("n1:7420".into(), bad));
        around.towards_anywhere = Some(bad);
        around.before = Some("br0".into());
        assert_eq!(chosen(&around), "192.168.33.11:7420", "{bad}");
    }
    assert_eq!(chosen(&host(&[("br0", "172.17.0.1/16"), ("eth0", "8.8.4.4/24")])), "8.8.4.4:7420");
    assert_eq!(chosen(&host(&[("eth0", "8.8.4.4/24"), ("eth1", "100.64.0.9/10")])), "100.64.0.9:7420");
}

#[test]
fn the_way_to_the_peer_decides_among_those_that_will_do() {
    let mut around = guest();
    around.candidates.push(one("eth2", "10.9.0.4/16"));
    around.towards_peer = Some(("10.9.0.1:7420".into(), "10.9.0.4".parse().unwrap()));
    let choice = around.choose("advertise", None, any4()).unwrap();
    assert_eq!(choice.addr, "10.9.0.4:7420");
    assert_eq!(choice.reason, "packets to 10.9.0.1:7420 leave from it");
    // A start without the peer keeps to the interface.
    around.towards_peer = None;
    assert_eq!(chosen(&around), "192.168.33.11:7420", "the first of equals");
    around.before = Some("eth2".into());
    assert_eq!(chosen(&around), "10.9.0.4:7420");
    // And goes on where it is gone.
    around.before = Some("eth7".into());
    assert_eq!(chosen(&around), "192.168.33.11:7420");
}

#[test]
fn a_host_without_a_network_and_one_of_ipv6_alone() {
    assert_eq!(chosen(&Surroundings::default()), "[::1]:7420");
    let alone = host(&[("lo", "127.0.0.1/8"), ("lo", "::1/128")]);
    assert_eq!(alone.choose("advertise", None, any4()).unwrap().addr, "127.0.0.1:7420");
    assert!(!alone.is_ipv6_only() && !guest().is_ipv6_only());
    let six = host(&[("lo", "127.0.0.1/8"), ("eth0", "fe80::2/64"), ("eth0", "fd00::2/64")]);
    assert!(six.is_ipv6_only());
    assert_eq!(chosen(&six), "[fd00::2]:7420");
    // One that listens at one address is there.
    let at: SocketAddr = "10.0.2.15:7".parse().unwrap();
    assert_eq!(guest().choose("advertise", None, at).unwrap().addr, "10.0.2.15:7");
}

#[test]
fn a_setting_is_an_interface_a_network_or_an_address() {
    let mut around = guest();
    around.candidates.push(one("eth2", "fd00:0:0:7::4/64"));
    let wishes = [
        ("eth0", "10.0.2.15:7420"),
        ("br0", "172.17.0.1:7420"),
        ("eth1", "192.168.33.11:7420"),
        ("192.168.33.0/24", "192.168.33.11:7420"),
        ("192.168.33.77/20", "192.168.33.11:7420"),
        ("0.0.0.0/0", "192.168.33.11:7420"),
        ("10.0.2.15/32", "10.0.2.15:7420"),
        ("fd00:0:0:7::/64", "[fd00:0:0:7::4]:7420"),
        ("::/0", "[fd00:0:0:7::4]:7420"),
        ("203.0.113.9", "203.0.113.9:7420"),
        ("203.0.113.9:99", "203.0.113.9:99"),
        ("fd00::9", "[fd00::9]:7420"),
        ("gpu-01.lab:7420", "gpu-01.lab:7420"),
    ];
    for (wish, addr) in wishes {
        assert_eq!(around.choose("advertise", Some(wish), any6()).unwrap().addr, addr, "{wish}");
    }
}

#[test]
fn a_setting_that_will_not_do_is_refused_with_field_value_and_example() {
    let around = guest();
    for wish in
        ["10.0.0.0/33", "fd00::/129", "10.0.0/8", "a/b", "eth0:0", "eth0:x", ":7420", "0.0.0.0", "[::]:7420"]
    {
        let text = around.choose("advertise", Some(wish), any6()).unwrap_err().to_string();
        assert!(
            text.contains("advertise") && text.contains(wish) && text.contains("10.0.0.2"),
            "{wish}: {text}"
        );
    }
    for wish in ["eth9", "10.99.0.0/16"] {
        let text = around.choose("advertise", Some(wish), any4()).unwrap_err().to_string();
        assert!(text.contains(wish) && text.contains("eth0, 10.0.0.0/24"), "{text}");
        assert!(text.contains("eth1 192.168.33.11/24\n"), "the candidates: {text}");
        assert!(text.contains("br0 172.17.0.1/16  (a bridge, "), "what speaks against them: {text}");
    }
    let text = around.choose("advertise", Some("fe80::/10"), any4()).unwrap_err().to_string();
    assert!(text.contains("has no address that is heard at 0.0.0.0:7420"), "{text}");
}

#[test]
fn gangs_may_meet_in_a_network_of_their_own() {
    let around = guest();
    assert_eq!(gang_ip(&around, "br0").unwrap(), "172.17.0.1");
    assert_eq!(gang_ip(&around, "192.168.0.0/16").unwrap(), "192.168.33.11");
    assert_eq!(gang_ip(&around, "fd00::1").unwrap(), "fd00::1");
    for bad in ["10.0.0.1:99", "gpu-01:7420", "ib0", "10.99.0.0/16"] {
        let text = gang_ip(&around, bad).unwrap_err().to_string();
        assert!(text.contains("gang_network") && text.contains(bad), "{text}");
    }
}
