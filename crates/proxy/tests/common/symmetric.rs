//! Four hosts on a line, client – near box – far box – server, and a daemon on each of the two boxes.
//!
//! Between the boxes is the satellite: `sat0` at both. It is two networks of three hosts that share the
//! middle, so that each box is the gateway of one of them.

use std::net::{TcpListener, TcpStream};

use bentpipe_testbed::{Namespace, veth};

use super::{Host, Net, PATIENCE, traces};

/// The hosts with what joins them.
pub struct Symmetric {
    /// Client, near box, far box.
    pub near: Net,
    /// Near box, far box, server.
    pub far: Net,
}

/// The network, or nothing and the reason on standard output.
pub fn symmetric() -> Option<Symmetric> {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: needs root: network namespaces and transparent sockets");
        return None;
    }
    Some(Symmetric::new())
}

impl Symmetric {
    fn new() -> Self {
        let [client, near, far, server] = ["client", "near", "far", "server"].map(Host::new);
        let (same_near, same_far) = (again(&near), again(&far));
        let mut scene = Self { near: Net::of(client, near, same_far), far: Net::of(same_near, far, server) };
        scene.near.wire(&scene.near.client, "up0", "ground0", 1);
        scene.far.wire(&scene.far.server, "up0", "ground0", 2);
        scene.join_boxes();
        for net in [&mut scene.near, &mut scene.far] {
            net.traces = traces(&net.gateway);
        }
        scene
    }

    fn join_boxes(&self) {
        let (near, far) = (&self.near.gateway, &self.far.gateway);
        veth(&near.namespace, "sat0", &far.namespace, "sat0").unwrap();
        for (host, own, other, beyond) in [(near, 1, 2, 2), (far, 2, 1, 1)] {
            host.run(&format!("ip addr add 10.77.3.{own}/24 dev sat0"));
            host.run(&format!("ip addr add fd77:3::{own}/64 dev sat0 nodad"));
            host.run(&format!("ip route add 10.77.{beyond}.0/24 via 10.77.3.{other}"));
            host.run(&format!("ip route add fd77:{beyond}::/64 via fd77:3::{other}"));
            for key in ["net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"] {
                host.sysctl(key, "1");
            }
        }
    }

    pub fn client(&self) -> &Host {
        &self.near.client
    }

    pub fn server(&self) -> &Host {
        &self.far.server
    }

    /// A connection from one end host to a listener on the other, both ends of it.
    pub fn connection(&self, from: &Host, listener: &TcpListener) -> (TcpStream, TcpStream) {
        let to = listener.local_addr().unwrap();
        let ours = from.enter(|| TcpStream::connect(to).unwrap());
        let (theirs, _) = listener.accept().unwrap();
        for stream in [&ours, &theirs] {
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            stream.set_write_timeout(Some(PATIENCE)).unwrap();
        }
        (ours, theirs)
    }
}

/// Another handle to the same host.
fn again(host: &Host) -> Host {
    Host { namespace: Namespace::clone(&host.namespace) }
}
