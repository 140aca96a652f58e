//! Routes in the running kernel, as a gateway with two sides sees them.

use std::fs;
use std::net::IpAddr;

use crate::common::{in_namespace, run};
use bentpipe_kernel::route::RouteSocket;

/// The answers of a namespace that has a default route by `sat0`, and another for what comes from `left`'s
/// neighbours, and the indices of its two interfaces.
struct Gateway {
    socket: RouteSocket,
    left: Option<u32>,
    sat: Option<u32>,
}

impl Gateway {
    fn towards(&mut self, to: &str) -> Option<u32> {
        self.socket.interface_towards(None, to.parse().unwrap()).unwrap()
    }

    fn between(&mut self, from: &str, to: &str) -> Option<u32> {
        let parse = |text: &str| text.parse::<IpAddr>().unwrap();
        self.socket.interface_towards(Some(parse(from)), parse(to)).unwrap()
    }
}

fn with_gateway(test: impl FnOnce(Gateway) + Send) {
    in_namespace(&[], || {
        for (device, peer) in [("left0", "left1"), ("sat0", "sat1")] {
            run("ip", &format!("link add {device} type veth peer name {peer}"), "");
            run("ip", &format!("link set {device} up"), "");
            run("ip", &format!("link set {peer} up"), "");
        }
        run("ip", "addr add 10.0.1.1/24 dev left0", "");
        run("ip", "addr add 10.0.2.1/24 dev sat0", "");
        run("ip", "-6 addr add fd01::1/64 dev left0 nodad", "");
        run("ip", "-6 addr add fd02::1/64 dev sat0 nodad", "");
        run("ip", "route add default via 10.0.2.2", "");
        run("ip", "-6 route add default via fd02::2", "");
        let index = |device: &str| {
            let line = run("ip", &format!("-o link show dev {device}"), "");
            Some(line.split(':').next().unwrap().parse().unwrap())
        };
        let (left, sat) = (index("left0"), index("sat0"));
        test(Gateway { socket: RouteSocket::open().unwrap(), left, sat });
    });
}

/// Turns IPv4 forwarding on, with the strict reverse path filter that hardened hosts have.
fn forward() {
    // /proc/sys/net is that of the thread that opens it.
    fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap();
    fs::write("/proc/sys/net/ipv4/conf/all/rp_filter", "1").unwrap();
}

#[test]
fn an_address_is_reached_by_the_interface_of_its_route() {
    with_gateway(|mut gateway| {
        for (left, beyond, own) in
            [("10.0.1.7", "192.0.2.1", "10.0.2.1"), ("fd01::7", "2001:db8::1", "fd02::1")]
        {
            assert_eq!(gateway.towards(left), gateway.left, "{left}");
            assert_eq!(gateway.towards(beyond), gateway.sat, "{beyond}");
            assert_eq!(gateway.towards(own), Some(1), "{own} is this host's own");
        }
    });
}

#[test]
fn a_route_that_leads_nowhere_has_no_interface() {
    with_gateway(|mut gateway| {
        for (number, kind) in ["blackhole", "unreachable", "prohibit", "throw"].iter().enumerate() {
            run("ip", &format!("route add {kind} 10.9.{number}.0/24"), "");
            run("ip", &format!("-6 route add {kind} fd09:{number}::/64"), "");
            assert_eq!(gateway.towards(&format!("10.9.{number}.1")), None, "{kind}");
            assert_eq!(gateway.towards(&format!("fd09:{number}::1")), None, "{kind}");
        }
        run("ip", "route del default", "");
        run("ip", "-6 route del default", "");
        assert_eq!(gateway.towards("192.0.2.1"), None);
        assert_eq!(gateway.towards("2001:db8::1"), None);
        assert_eq!(gateway.towards("10.0.1.7"), gateway.left, "and the rest is as it was");
    });
}

#[test]
fn the_source_decides_where_policy_routing_says_so() {
    with_gateway(|mut gateway| {
        run("ip", "route add default via 10.0.1.2 table 100", "");
        run("ip", "rule add from 10.0.1.0/24 lookup 100", "");
        run("ip", "-6 route add default via fd01::2 table 100", "");
        run("ip", "-6 rule add from fd01::/64 lookup 100", "");
        assert_eq!(gateway.between("10.0.1.1", "192.0.2.1"), gateway.left);
        assert_eq!(gateway.between("10.0.2.1", "192.0.2.1"), gateway.sat);
        assert_eq!(gateway.between("fd01::1", "2001:db8::1"), gateway.left);
        assert_eq!(gateway.between("fd02::1", "2001:db8::1"), gateway.sat);
    });
}

#[test]
fn a_source_elsewhere_is_routed_as_its_packets_are_forwarded() {
    with_gateway(|mut gateway| {
        run("ip", "route add default via 10.0.1.2 table 100", "");
        run("ip", "rule add from 10.0.2.64/26 lookup 100", "");
        assert_eq!(gateway.between("10.0.1.7", "192.0.2.1"), None, "this host forwards nothing");
        forward();
        assert_eq!(gateway.between("10.0.1.7", "192.0.2.1"), gateway.sat);
        assert_eq!(gateway.between("10.0.2.70", "192.0.2.1"), gateway.left);
        assert_eq!(gateway.between("fd01::7", "2001:db8::1"), gateway.sat);
        run("ip", "route add unreachable 10.9.0.0/16", "");
        assert_eq!(gateway.between("10.0.1.7", "10.9.0.1"), None);
    });
}

#[test]
fn a_mark_decides_where_policy_routing_says_so_until_the_interface_is_set_down() {
    with_gateway(|mut gateway| {
        assert_eq!(gateway.socket.index_of("left0").unwrap(), gateway.left);
        assert_eq!(gateway.socket.index_of("none0").unwrap(), None);
        for (family, to) in [("-4", "192.0.2.1"), ("-6", "2001:db8::1")] {
            run("ip", &format!("{family} route add default dev left0 table 100"), "");
            run("ip", &format!("{family} rule add fwmark 7 lookup 100"), "");
            let mut marked = |mark| gateway.socket.interface_of_marked(to.parse().unwrap(), mark).unwrap();
            assert_eq!((marked(7), marked(8)), (gateway.left, gateway.sat), "{family}");
        }
        run("ip", "link set left0 down", "");
        for to in ["192.0.2.1", "2001:db8::1"] {
            let found = gateway.socket.interface_of_marked(to.parse().unwrap(), 7).unwrap();
            assert_eq!(found, gateway.sat, "{to}");
        }
    });
}
