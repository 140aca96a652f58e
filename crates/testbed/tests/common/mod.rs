//! What the tests on real namespaces share. Each test file uses some of it.
#![allow(dead_code)]

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::thread;
use std::time::Duration;

use bentpipe_link::agent::LinkEndConfig;
use bentpipe_link::{DirectionConfig, LinkConfig};
use bentpipe_testbed::{LINK_NEEDS, Namespace, Need, SatelliteLink, Subnet, require};

/// False, with the reason on standard output, where this machine or user cannot run the test.
pub(crate) fn can_run() -> bool {
    let needs: Vec<Need> = [&[Need::Privileges], LINK_NEEDS].concat();
    match require(&needs) {
        Ok(()) => true,
        Err(missing) => {
            println!("skipped: needs root: {missing}");
            false
        }
    }
}

/// A gateway and a terminal with a satellite link between them; the gateway has the left addresses.
pub(crate) struct Topology {
    pub(crate) gateway: Namespace,
    pub(crate) terminal: Namespace,
    pub(crate) link: SatelliteLink,
    pub(crate) subnet: Subnet,
}

impl Topology {
    pub(crate) fn new(config: &LinkConfig) -> Self {
        Self::with_agents(config, &Default::default())
    }

    /// The agents at the gateway's end and at the terminal's.
    pub(crate) fn with_agents(config: &LinkConfig, ends_config: &[LinkEndConfig; 2]) -> Self {
        let gateway = Namespace::new("gateway").unwrap();
        let terminal = Namespace::new("terminal").unwrap();
        let ends = ((&gateway, "sat0"), (&terminal, "sat0"));
        let link = SatelliteLink::start_with_agents(ends.0, ends.1, config, ends_config, 42, 1500).unwrap();
        let subnet = Subnet::new(0);
        subnet.assign(&gateway, "sat0", &terminal, "sat0").unwrap();
        Self { gateway, terminal, link, subnet }
    }

    /// Sends back whatever arrives at port 7 of the gateway (RFC 862), of either family, for as long as the
    /// test runs.
    pub(crate) fn start_echo(&self) {
        let any = if self.gateway.has_ipv6() { "[::]:7" } else { "0.0.0.0:7" };
        let socket = self.gateway.run(|| UdpSocket::bind(any)).unwrap().unwrap();
        thread::spawn(move || {
            let mut packet = [0; 2000];
            while let Ok((len, from)) = socket.recv_from(&mut packet) {
                let _ = socket.send_to(&packet[..len], from);
            }
        });
    }

    /// A UDP socket of the terminal that talks to `to` and waits for at most ten seconds.
    pub(crate) fn terminal_socket(&self, to: impl Into<SocketAddr>) -> UdpSocket {
        let to = to.into();
        let any = if to.is_ipv6() { "[::]:0" } else { "0.0.0.0:0" };
        let socket = self.terminal.run(|| UdpSocket::bind(any)).unwrap().unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        socket.connect(to).unwrap();
        socket
    }

    /// The gateway's echo port, IPv4.
    pub(crate) fn echo(&self) -> (Ipv4Addr, u16) {
        (self.subnet.left4(), 7)
    }
}

/// The same in both directions.
pub(crate) fn symmetric(direction: DirectionConfig) -> LinkConfig {
    LinkConfig::symmetric(direction)
}

/// A link with a delay and nothing else.
pub(crate) fn delay(millis: u64) -> LinkConfig {
    symmetric(DirectionConfig { delay: Duration::from_millis(millis), ..DirectionConfig::default() })
}

/// Waits until `condition` holds; the limit only keeps a broken test from hanging.
pub(crate) fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    for _ in 0..2000 {
        if condition() {
            return;
        }
        thread::sleep(Duration::from_millis(10));
    }
    panic!("waited for 20 s in vain: {what}");
}
