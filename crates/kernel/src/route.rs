//! Questions to the kernel's routing (rtnetlink(7)).

use std::io;
use std::net::IpAddr;

use rustix::io::Errno;
use rustix::net::netdevice;

use crate::netlink::{Message, Socket, Writer, attributes};

/// Size of `struct rtmsg` of linux/rtnetlink.h, and of `struct fib_rule_hdr`.
const ROUTE_HEADER: usize = 12;
/// `FRA_IIFNAME`, `FRA_GOTO`, `FRA_PRIORITY`, `FRA_FWMARK`, `FRA_TABLE`, `FRA_FWMASK`, `FRA_OIFNAME`,
/// `FRA_L3MDEV`, `FRA_UID_RANGE` of linux/fib_rules.h.
const RULE_INPUT: u16 = 3;
const RULE_GOTO: u16 = 4;
const RULE_PREFERENCE: u16 = 6;
const RULE_MARK: u16 = 10;
const RULE_TABLE: u16 = 15;
const RULE_MASK: u16 = 16;
const RULE_OUTPUT: u16 = 17;
const RULE_DOMAIN: u16 = 19;
const RULE_USERS: u16 = 20;
/// Offset of `rtm_type` in `struct rtmsg`.
const ROUTE_TYPE: usize = 7;

/// A connection to the routing of the network namespace of the thread that opened it. It needs no privileges.
#[derive(Debug)]
pub struct RouteSocket {
    socket: Socket,
}

/// A packet that comes in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Incoming {
    /// The index of the interface.
    pub interface: u32,
    /// Its source, of the family of `to`.
    pub from: IpAddr,
    /// Its destination.
    pub to: IpAddr,
    /// Its mark when it is routed.
    pub mark: u32,
}

/// A policy rule (`ip rule`), as far as it is asked about here; 0 stands for what a rule does not say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PolicyRule {
    /// Its place: rules with a lower one come first.
    pub preference: u32,
    /// The mark that it is for, under `mask`.
    pub mark: u32,
    /// The bits of the mark that count.
    pub mask: u32,
    /// The routing table that it leads to.
    pub table: u32,
    /// The preference of the rule that it jumps to.
    pub jump: u32,
    /// Whether it asks where a packet comes from other than by its addresses: for an interface, a user, or a
    /// routing domain (`iif`, `oif`, `uidrange`, `l3mdev`).
    pub by_origin: bool,
}

/// What becomes of a packet that comes in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It is delivered on this host.
    Delivered,
    /// It is forwarded.
    Forwarded,
    /// It is dropped: there is no route, or its source is not believed to come in by the interface (`EXDEV`
    /// and `EINVAL`: the reverse path filter).
    Dropped(Errno),
}

impl RouteSocket {
    /// Opens the connection, which survives a later change of the thread's namespace.
    ///
    /// # Errors
    /// Those of socket(2): `EMFILE` without a descriptor left.
    pub fn open() -> io::Result<Self> {
        Ok(Self { socket: Socket::open(None)? })
    }

    /// The index of the interface through which this host sends packets to `to`; that of `lo` for its own
    /// addresses. `None` without a route, or if the route is unreachable, prohibit or blackhole.
    ///
    /// With `from` the answer is for packets with this source address, which policy routing may distinguish.
    /// If it is not an address of this host, the answer is for forwarded packets, and `None` for IPv4 if this
    /// host does not forward.
    ///
    /// # Errors
    /// `InvalidInput` if the addresses are of two families, `TimedOut` if the kernel does not answer for a
    /// second, and its other errors.
    pub fn interface_towards(&mut self, from: Option<IpAddr>, to: IpAddr) -> io::Result<Option<u32>> {
        let (from, to) = (from.map(|from| from.to_canonical()), to.to_canonical());
        if from.is_some_and(|from| from.is_ipv4() != to.is_ipv4()) {
            let text = "the source and the destination of a packet are of one address family";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        match (self.ask(from, to, &[])?, from) {
            // IPv4 sends nothing from a foreign address, but may forward it.
            (None, Some(foreign @ IpAddr::V4(_))) => match self.ask(None, foreign, &[])? {
                Some(arrival) => self.ask(from, to, &[(libc::RTA_IIF, arrival)]),
                None => Ok(None),
            },
            (found, _) => Ok(found),
        }
    }

    /// What becomes of a packet that comes in by an interface, before it is sent.
    ///
    /// # Errors
    /// `TimedOut` if the kernel does not answer for a second, and its other errors.
    pub fn fate_of(&mut self, packet: &Incoming) -> io::Result<Fate> {
        let sequence = self.socket.take_sequence(1);
        let details = [(libc::RTA_IIF, packet.interface), (libc::RTA_MARK, packet.mark)];
        let question = question(sequence, Some(packet.from), packet.to, &details);
        self.socket.send(question.as_bytes())?;
        self.socket.receive_until(|message| (message.sequence == sequence).then(|| fate(message)))?
    }

    /// The policy rules of a family (`ip rule`), IPv6 or IPv4, in their order.
    ///
    /// # Errors
    /// `TimedOut` if the kernel does not answer for a second, `ResourceBusy` if they change all the time, and
    /// its other errors.
    pub fn policy_rules(&mut self, ipv6: bool) -> io::Result<Vec<PolicyRule>> {
        let mut header = [0; ROUTE_HEADER];
        header[0] = if ipv6 { libc::AF_INET6 } else { libc::AF_INET } as u8;
        let request = |sequence| {
            let mut writer = Writer::default();
            let flags = libc::NLM_F_REQUEST | libc::NLM_F_DUMP;
            writer.message(libc::RTM_GETRULE, flags, sequence, &header, |_| {});
            writer
        };
        self.socket.list(request, |rules: &mut Vec<_>, message| rules.push(policy_rule(&message)))
    }

    /// Whether packets to `to` with this mark are delivered on this host (`ip route`, type `local`).
    ///
    /// # Errors
    /// `TimedOut` if the kernel does not answer for a second, and its other errors.
    pub fn is_delivered_here(&mut self, to: IpAddr, mark: u32) -> io::Result<bool> {
        let sequence = self.socket.take_sequence(1);
        let question = question(sequence, None, to, &[(libc::RTA_MARK, mark)]);
        self.socket.send(question.as_bytes())?;
        self.socket.receive_until(|message| (message.sequence == sequence).then(|| is_local(message)))?
    }

    /// The index of the interface through which packets to `to` with this mark leave this host; `None` if
    /// they do not leave.
    ///
    /// # Errors
    /// `TimedOut` if the kernel does not answer for a second, and its other errors.
    pub fn interface_of_marked(&mut self, to: IpAddr, mark: u32) -> io::Result<Option<u32>> {
        self.ask(None, to, &[(libc::RTA_MARK, mark)])
    }

    /// The index of the interface of this name, `None` if there is none (netdevice(7), `SIOCGIFINDEX`).
    ///
    /// # Errors
    /// The kernel's errors.
    pub fn index_of(&self, interface: &str) -> io::Result<Option<u32>> {
        match netdevice::name_to_index(&self.socket, interface) {
            Ok(index) => Ok(Some(index)),
            Err(Errno::NODEV) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// One `RTM_GETROUTE`: for a packet of this host, or with `RTA_IIF` for one that arrives at that
    /// interface.
    fn ask(&mut self, from: Option<IpAddr>, to: IpAddr, details: &[(u16, u32)]) -> io::Result<Option<u32>> {
        let sequence = self.socket.take_sequence(1);
        self.socket.send(question(sequence, from, to, details).as_bytes())?;
        self.socket.receive_until(|message| (message.sequence == sequence).then(|| answer(message)))?
    }
}

/// `details` are further attributes of the packet, with their values.
fn question(sequence: u32, from: Option<IpAddr>, to: IpAddr, details: &[(u16, u32)]) -> Writer {
    let family = if to.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let mut header = [0; ROUTE_HEADER];
    header[0] = family as u8;
    header[1] = address_bits(to);
    header[2] = from.map_or(0, address_bits);
    let mut writer = Writer::default();
    writer.message(libc::RTM_GETROUTE, libc::NLM_F_REQUEST, sequence, &header, |route| {
        write_address(route, libc::RTA_DST, to);
        if let Some(from) = from {
            write_address(route, libc::RTA_SRC, from);
        }
        for &(kind, number) in details {
            route.attribute(kind, &number.to_ne_bytes());
        }
    });
    writer
}

/// The prefix length of a single address.
fn address_bits(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

fn write_address(writer: &mut Writer, kind: u16, address: IpAddr) {
    match address {
        IpAddr::V4(address) => writer.attribute(kind, &address.octets()),
        IpAddr::V6(address) => writer.attribute(kind, &address.octets()),
    }
}

fn policy_rule(message: &Message<'_>) -> PolicyRule {
    let mut rule = PolicyRule::default();
    for (kind, payload) in attributes(message.payload.get(ROUTE_HEADER..).unwrap_or_default()) {
        let number = payload.first_chunk().map_or(0, |bytes| u32::from_ne_bytes(*bytes));
        match kind {
            RULE_INPUT | RULE_OUTPUT | RULE_DOMAIN | RULE_USERS => rule.by_origin = true,
            RULE_GOTO => rule.jump = number,
            RULE_PREFERENCE => rule.preference = number,
            RULE_MARK => rule.mark = number,
            RULE_TABLE => rule.table = number,
            RULE_MASK => rule.mask = number,
            _ => {}
        }
    }
    rule
}

fn fate(message: Message<'_>) -> io::Result<Fate> {
    match message.error_number() {
        Some(code) if is_no_way(code) => Ok(Fate::Dropped(Errno::from_raw_os_error(code))),
        Some(code) => Err(io::Error::from_raw_os_error(code)),
        None => match message.payload.get(ROUTE_TYPE) {
            Some(&libc::RTN_LOCAL) => Ok(Fate::Delivered),
            Some(&libc::RTN_UNICAST) => Ok(Fate::Forwarded),
            _ => Ok(Fate::Dropped(Errno::NETUNREACH)),
        },
    }
}

pub(crate) fn is_local(message: Message<'_>) -> io::Result<bool> {
    match message.error_number() {
        Some(code) if is_no_way(code) => Ok(false),
        Some(code) => Err(io::Error::from_raw_os_error(code)),
        None => Ok(message.payload.get(ROUTE_TYPE) == Some(&libc::RTN_LOCAL)),
    }
}

pub(crate) fn answer(message: Message<'_>) -> io::Result<Option<u32>> {
    match message.error_number() {
        Some(code) if is_no_way(code) => return Ok(None),
        Some(code) => return Err(io::Error::from_raw_os_error(code)),
        None => {}
    }
    let route = message.payload.get(ROUTE_HEADER..).unwrap_or_default();
    let interface = attributes(route).find(|(kind, _)| *kind == libc::RTA_OIF);
    interface
        .and_then(|(_, index)| Some(u32::from_ne_bytes(*index.first_chunk()?)))
        .map(Some)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "a route without an interface"))
}

/// The errors by which a route, or the lack of one, says that packets go nowhere (ip-route(8)): none or
/// `throw`, `unreachable`, `prohibit`, `blackhole`, and `EXDEV` for a source that the reverse path filter
/// does not believe.
fn is_no_way(code: i32) -> bool {
    matches!(code, libc::ENETUNREACH | libc::EHOSTUNREACH | libc::EACCES | libc::EINVAL | libc::EXDEV)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::messages;

    #[test]
    #[cfg(target_endian = "little")]
    fn a_question_is_these_bytes() {
        #[rustfmt::skip]
        let expected: &[u8] = &[
            // Length, RTM_GETROUTE, NLM_F_REQUEST, sequence, port.
            52, 0, 0, 0, 26, 0, 1, 0, 9, 0, 0, 0, 0, 0, 0, 0,
            // AF_INET, destination's and source's bits.
            2, 32, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0,
            8, 0, 1, 0, 192, 0, 2, 1,
            8, 0, 2, 0, 10, 0, 0, 1,
            8, 0, 3, 0, 4, 0, 0, 0,
        ];
        let question = question(9, Some([10, 0, 0, 1].into()), [192, 0, 2, 1].into(), &[(libc::RTA_IIF, 4)]);
        assert_eq!(question.as_bytes(), expected);
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn an_answer_is_an_interface_or_none_or_an_error() {
        let reply = |kind: u16, fixed: &[u8], interface: Option<&[u8]>| {
            let mut writer = Writer::default();
            writer.message(kind, 0, 1, fixed, |route| {
                route.attribute(libc::RTA_TABLE, &[0; 4]);
                interface.map(|index| route.attribute(libc::RTA_OIF, index)).unwrap_or_default();
            });
            answer(messages(writer.as_bytes()).next().unwrap())
        };
        let error = |code: i32| reply(libc::NLMSG_ERROR as u16, &(-code).to_ne_bytes(), None);
        let route =
            |interface: Option<&'static [u8]>| reply(libc::RTM_NEWROUTE, &[0; ROUTE_HEADER], interface);
        assert_eq!(route(Some(&[7, 0, 0, 0])).unwrap(), Some(7));
        assert_eq!(route(Some(&[7])).unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert_eq!(route(None).unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert_eq!(error(libc::ENETUNREACH).unwrap(), None);
        assert_eq!(error(libc::ENOMEM).unwrap_err().raw_os_error(), Some(libc::ENOMEM));
    }

    #[test]
    fn this_hosts_own_address_is_reached_by_its_loopback() {
        let mut socket = RouteSocket::open().unwrap();
        let local = [127, 0, 0, 1].into();
        assert_eq!(socket.interface_towards(None, local).unwrap(), Some(1));
        let mapped = std::net::Ipv4Addr::LOCALHOST.to_ipv6_mapped().into();
        assert_eq!(socket.interface_towards(Some(mapped), local).unwrap(), Some(1));
    }

    #[test]
    fn a_packet_has_one_address_family() {
        let mut socket = RouteSocket::open().unwrap();
        let mixed =
            socket.interface_towards(Some([127, 0, 0, 1].into()), std::net::Ipv6Addr::LOCALHOST.into());
        assert_eq!(mixed.unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn only_this_hosts_own_addresses_are_delivered_here_unless_a_rule_says_so() {
        let mut routes = RouteSocket::open().unwrap();
        assert!(routes.is_delivered_here([127, 0, 0, 1].into(), 0).unwrap());
        assert!(!routes.is_delivered_here([192, 0, 2, 1].into(), 0).unwrap());
    }
}
