//! Services that listen on the gateway itself.

use std::io::{Read, Write};
use std::net::{TcpStream, UdpSocket};

use crate::attempt::{Attempt, LONGEST_WAIT};
use crate::common::{Net, SERVER, socket_address};
use crate::neighbour::{Neighbour, outward};
use crate::trial::Trial;

/// The gateway's addresses on the side of the LAN.
const INSIDE: [&str; 2] = ["10.77.1.1", "fd77:1::1"];
/// A question for the address (type 1) of `gateway.test`: identity, flags, counts (RFC 1035 §4.1).
const QUESTION: &[u8] =
    b"\x62\x70\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x07gateway\x04test\x00\x00\x01\x00\x01";
/// The answer ends with the address.
const ANSWER: [u8; 4] = [10, 77, 1, 1];

fn ask_by_udp(net: &Net, server: &str) {
    let socket = net.client.enter(|| UdpSocket::bind(("::", 0)).unwrap());
    socket.set_read_timeout(Some(LONGEST_WAIT)).unwrap();
    let to = match server.parse().unwrap() {
        std::net::IpAddr::V4(address) => address.to_ipv6_mapped().into(),
        address => address,
    };
    socket.send_to(QUESTION, std::net::SocketAddr::new(to, 53)).unwrap();
    let mut answer = [0; 512];
    let length = socket.recv(&mut answer).unwrap();
    assert_eq!(answer[..length][length - 4..], ANSWER);
}

fn ask_by_tcp(net: &Net, server: &str) {
    let to = socket_address(server, 53);
    let mut stream = net.client.enter(|| TcpStream::connect_timeout(&to, LONGEST_WAIT)).unwrap();
    stream.set_read_timeout(Some(LONGEST_WAIT)).unwrap();
    // A length of two bytes comes before each message (RFC 1035 §4.2.2).
    stream.write_all(&[&[0, QUESTION.len() as u8], QUESTION].concat()).unwrap();
    let mut length = [0; 2];
    stream.read_exact(&mut length).unwrap();
    let mut answer = vec![0; usize::from(u16::from_be_bytes(length))];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(answer[answer.len() - 4..], ANSWER);
}

#[test]
#[ignore = "takes real programs and minutes: make neighbours"]
fn beside_dnsmasq_for_the_lan() {
    let set_up = |trial: &mut Trial| {
        let shell = trial.shell();
        let options = "--no-daemon --conf-file=/dev/null --no-resolv --no-hosts --user=root --pid-file=$T/pid \
                       --interface=ground0 --bind-dynamic --address=/gateway.test/10.77.1.1 \
                       --dhcp-range=10.77.1.100,10.77.1.200 --dhcp-leasefile=$T/leases";
        shell.start("dnsmasq", &format!("dnsmasq {options}"));
        shell.wait_for("ss -Hltn | grep -q ':53 '");
    };
    let attempts = |trial: &Trial| {
        // It serves by now, with and without the daemon.
        for server in INSIDE {
            ask_by_udp(&trial.net, server);
            ask_by_tcp(&trial.net, server);
        }
        outward(&trial.net)
    };
    Neighbour {
        name: "dnsmasq",
        package: "dnsmasq-base",
        programs: &["dnsmasq"],
        set_up: &set_up,
        attempts: &attempts,
        notes: "DHCP and DNS for the LAN, asked over UDP and TCP",
        ..Default::default()
    }
    .run();
}

/// The kernel's documentation of transparent proxies has these rules (Documentation/networking/tproxy.rst).
const TPROXY: &str = "table inet divert {\nchain c {\n type filter hook prerouting priority mangle;\n \
                      meta l4proto tcp socket transparent 1 meta mark set 1 accept\n \
                      iifname ground0 tcp dport 80 meta nfproto ipv4 meta mark set 1 tproxy ip to :8080 accept\n \
                      iifname ground0 tcp dport 80 meta nfproto ipv6 meta mark set 1 tproxy ip6 to :8080 accept\n}\n}\n";
const HAPROXY: &str = "defaults\n mode tcp\n timeout connect 3s\n timeout client 30s\n timeout server 30s\n\
                       frontend v4\n bind 0.0.0.0:8080 transparent\n default_backend v4\n\
                       frontend v6\n bind [::]:8080 v6only transparent\n default_backend v6\n\
                       backend v4\n source 0.0.0.0 usesrc clientip\n server original 0.0.0.0\n\
                       backend v6\n source [::] usesrc clientip\n server original [::]:0\n";

#[test]
#[ignore = "takes real programs and minutes: make neighbours"]
fn beside_a_transparent_haproxy() {
    let set_up = |trial: &mut Trial| {
        for family in ["-4", "-6"] {
            trial.net.gateway.run(&format!("ip {family} rule add pref 1000 fwmark 1 lookup 100"));
            trial.net.gateway.run(&format!("ip {family} route add local default dev lo table 100"));
        }
        let shell = trial.shell();
        shell.write("conf", HAPROXY);
        shell.start("haproxy", "haproxy -db -f $T/conf");
        shell.wait_for("test $(ss -Hltn | grep -c ':8080 ') = 2");
        trial.net.gateway.rules(TPROXY);
    };
    let attempts = |trial: &Trial| {
        let hosts = (&trial.net.client, &trial.net.server);
        let port_80 = SERVER.map(|address| Attempt::new(hosts, socket_address(address, 80)).elsewhere());
        [outward(&trial.net), port_80.to_vec()].concat()
    };
    Neighbour {
        name: "HAProxy as a transparent proxy",
        package: "haproxy",
        programs: &["haproxy"],
        set_up: &set_up,
        attempts: &attempts,
        notes: "with the kernel's rules for TPROXY; port 80 is HAProxy's, the rest is split",
        ..Default::default()
    }
    .run();
}
