//! One way through a gateway: its network and, but for plain forwarding, its proxy.

use crate::common::{Host, Net, network};
use crate::peer::{Peer, Running};

/// The congestion control of all sockets but those that a proxy sets otherwise: the one that every namespace
/// may choose.
const CONGESTION: &str = "reno";

pub(crate) struct Way {
    pub(crate) net: Net,
    proxy: Option<Running>,
}

impl Way {
    pub(crate) fn set_up(peer: Option<&Peer>) -> Result<Self, String> {
        let net = network().ok_or("this needs root")?;
        for host in [&net.client, &net.gateway, &net.server] {
            prepare(host);
        }
        let proxy = peer.map(|peer| peer.start(&net.gateway)).transpose()?;
        Ok(Self { net, proxy })
    }

    pub(crate) fn proxy_group(&self) -> Option<u32> {
        self.proxy.as_ref().map(Running::group)
    }

    pub(crate) fn take_down(self) -> Result<(), String> {
        self.proxy.map_or(Ok(()), |proxy| proxy.stop(&self.net.gateway))
    }
}

/// Settings that many short connections and full speed need, on all hosts alike.
fn prepare(host: &Host) {
    host.sysctl("net.ipv4.tcp_congestion_control", CONGESTION);
    host.sysctl("net.ipv4.ip_local_port_range", "1024 65535");
    host.sysctl("net.core.somaxconn", "4096");
    host.sysctl("net.ipv4.tcp_max_syn_backlog", "4096");
}
