//! Entries of the kernel's connection tracking (linux/netfilter/nfnetlink_conntrack.h).

use std::io;
use std::net::{IpAddr, SocketAddr};

use rustix::net::netlink;

use crate::netlink::{Socket, Writer};

/// `IPCTNL_MSG_CT_DELETE` of the subsystem `NFNL_SUBSYS_CTNETLINK`.
const DELETE: u16 = (libc::NFNL_SUBSYS_CTNETLINK as u16) << 8 | 2;
/// `enum ctattr_type`, `ctattr_tuple`, `ctattr_ip`, `ctattr_l4proto`.
const TUPLE: u16 = 1;
const ADDRESSES: u16 = 1;
const PROTOCOL: u16 = 2;
const SOURCE_IPV4: u16 = 1;
const DESTINATION_IPV4: u16 = 2;
const SOURCE_IPV6: u16 = 3;
const DESTINATION_IPV6: u16 = 4;
const NUMBER: u16 = 1;
const SOURCE_PORT: u16 = 2;
const DESTINATION_PORT: u16 = 3;

/// A connection to connection tracking in the network namespace of the thread that opened it. Each change
/// needs `CAP_NET_ADMIN`.
#[derive(Debug)]
pub struct Conntrack {
    socket: Socket,
}

impl Conntrack {
    /// Opens the connection, which survives a later change of the thread's namespace.
    ///
    /// # Errors
    /// Those of socket(2): `EPROTONOSUPPORT` where this kernel lacks nfnetlink, `EMFILE` without a descriptor
    /// left.
    pub fn open() -> io::Result<Self> {
        Ok(Self { socket: Socket::open(Some(netlink::NETFILTER))? })
    }

    /// Deletes the entry of the TCP connection of which packets from `from` to `to` are a direction that lies
    /// in no zone; the addresses are of one family. What comes then is tracked anew. False if there is none.
    ///
    /// # Errors
    /// `EPERM` without the capability, `EINVAL` or `EOPNOTSUPP` where the kernel has no `nf_conntrack_netlink`,
    /// `TimedOut` if it does not answer for a second.
    pub fn forget(&mut self, from: SocketAddr, to: SocketAddr) -> io::Result<bool> {
        let sequence = self.socket.take_sequence(1);
        self.socket.send(request(sequence, from, to).as_bytes())?;
        let code = self.socket.receive_until(|message| {
            if message.sequence == sequence { message.error_number() } else { None }
        })?;
        match code {
            0 => Ok(true),
            libc::ENOENT => Ok(false),
            code => Err(io::Error::from_raw_os_error(code)),
        }
    }
}

fn request(sequence: u32, from: SocketAddr, to: SocketAddr) -> Writer {
    let family = if from.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    // `struct nfgenmsg`: the family, version 0, and no resource.
    let header = [family as u8, 0, 0, 0];
    let mut writer = Writer::default();
    writer.message(DELETE, libc::NLM_F_REQUEST | libc::NLM_F_ACK, sequence, &header, |writer| {
        writer.nested(TUPLE, |writer| {
            writer.nested(ADDRESSES, |writer| {
                address(writer, from.ip(), [SOURCE_IPV4, SOURCE_IPV6]);
                address(writer, to.ip(), [DESTINATION_IPV4, DESTINATION_IPV6]);
            });
            writer.nested(PROTOCOL, |writer| {
                writer.attribute(NUMBER, &[libc::IPPROTO_TCP as u8]);
                writer.attribute(SOURCE_PORT, &from.port().to_be_bytes());
                writer.attribute(DESTINATION_PORT, &to.port().to_be_bytes());
            });
        });
    });
    writer
}

fn address(writer: &mut Writer, address: IpAddr, [ipv4, ipv6]: [u16; 2]) {
    match address {
        IpAddr::V4(address) => writer.attribute(ipv4, &address.octets()),
        IpAddr::V6(address) => writer.attribute(ipv6, &address.octets()),
    }
}
