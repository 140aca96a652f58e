//! Socket options that change how the kernel's TCP behaves, with types and units.
//!
//! Each function is one `setsockopt(2)` or `getsockopt(2)`. Options set on a listening socket are inherited
//! by the sockets that it accepts, except where the text says otherwise.

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use bentpipe_units::ByteCount;
use rustix::net::sockopt as rustix_sockopt;

/// `TCP_RTO_MAX_MS` of linux/tcp.h, since Linux 6.15.
const TCP_RTO_MAX_MS: libc::c_int = 44;
/// `TCP_REPAIR` and its values of linux/tcp.h, since Linux 3.5.
const TCP_REPAIR: libc::c_int = 19;
const TCP_REPAIR_ON: libc::c_int = 1;
const TCP_REPAIR_OFF: libc::c_int = 0;
const TCP_REPAIR_OFF_NO_WP: libc::c_int = -1;
/// `TCP_REPAIR_WINDOW` of linux/tcp.h, since Linux 4.8.
const TCP_REPAIR_WINDOW: libc::c_int = 29;
/// `TCP_FASTOPEN_NO_COOKIE` of linux/tcp.h, since Linux 4.15.
const TCP_FASTOPEN_NO_COOKIE: libc::c_int = 34;
/// `TCP_TIMESTAMP` of linux/tcp.h, since Linux 3.9.
const TCP_TIMESTAMP: libc::c_int = 24;
/// `TCP_RTO_MAX_MS` accepts 1 s to 120 s.
pub const RTO_MAX_RANGE: std::ops::RangeInclusive<Duration> =
    Duration::from_secs(1)..=Duration::from_secs(120);
/// `IPV6_2292PKTOPTIONS` of linux/in6.h.
const IPV6_2292PKTOPTIONS: libc::c_int = 6;
/// `SO_MEMINFO` of asm-generic/socket.h, since Linux 4.12: an array of [`MEMINFO_WORDS`] words.
const SO_MEMINFO: libc::c_int = 55;
const MEMINFO_WORDS: usize = 9;
/// Bytes received and not read, reserved, and written and not acknowledged: `SK_MEMINFO_RMEM_ALLOC`,
/// `SK_MEMINFO_FWD_ALLOC` and `SK_MEMINFO_WMEM_QUEUED`.
const MEMINFO_HELD: [usize; 3] = [0, 4, 5];
/// The lower two bits of the traffic class belong to ECN (RFC 3168 §5).
const ECN_BITS: u8 = 0b11;

/// Lets the socket use addresses that are not this host's (ip(7), `IP_TRANSPARENT`). Needs `CAP_NET_ADMIN`.
pub fn set_transparent(fd: impl AsFd, address: &SocketAddr) -> io::Result<()> {
    match address {
        SocketAddr::V4(_) => set_int(fd, libc::SOL_IP, libc::IP_TRANSPARENT, 1),
        SocketAddr::V6(_) => set_int(fd, libc::SOL_IPV6, libc::IPV6_TRANSPARENT, 1),
    }
}

/// Makes every `close(2)`, the kernel's own at the end of the process included, send a reset (socket(7),
/// `SO_LINGER`).
pub fn set_linger_reset(fd: impl AsFd) -> io::Result<()> {
    Ok(rustix_sockopt::set_socket_linger(fd, Some(Duration::ZERO))?)
}

/// Chooses the congestion control by name (tcp(7), `TCP_CONGESTION`).
pub fn set_congestion(fd: impl AsFd, name: &str) -> io::Result<()> {
    Ok(rustix_sockopt::set_tcp_congestion(fd, name)?)
}

/// Whether a socket of this process can choose this congestion control: this kernel has it, and it is allowed
/// to all (`net.ipv4.tcp_allowed_congestion_control`) or this process has `CAP_NET_ADMIN`.
pub fn may_choose(name: &str) -> bool {
    std::net::TcpListener::bind("127.0.0.1:0").is_ok_and(|probe| set_congestion(probe, name).is_ok())
}

/// The name of the congestion control in use.
pub fn congestion(fd: impl AsFd) -> io::Result<String> {
    Ok(rustix_sockopt::tcp_congestion(fd)?)
}

/// The ceiling of the retransmission timeout's exponential backoff, [`RTO_MAX_RANGE`]. Needs Linux 6.15.
pub fn set_rto_max(fd: impl AsFd, ceiling: Duration) -> io::Result<()> {
    set_int(fd, libc::IPPROTO_TCP, TCP_RTO_MAX_MS, millis(ceiling))
}

/// Sends a probe: a segment without data and with a sequence number that the receiver has seen, which it
/// answers by what it has and what it lacks (RFC 9293 §3.10.7.4), as it does a keepalive. Only an established
/// connection sends one. Needs `CAP_NET_ADMIN`.
///
/// The option ends the repair mode that the socket is not in, and the probe is how Linux ends it; it also
/// takes back `SO_REUSEADDR`, which is therefore set again.
pub fn probe(fd: impl AsFd) -> io::Result<()> {
    let reuses_address = rustix_sockopt::socket_reuseaddr(&fd)?;
    set_int(&fd, libc::IPPROTO_TCP, TCP_REPAIR, TCP_REPAIR_OFF)?;
    Ok(rustix_sockopt::set_socket_reuseaddr(&fd, reuses_address)?)
}

/// The same with the clock of the connection's timestamps (RFC 7323 §4) turned back by `by`, whole
/// milliseconds: what the far end echoes of segments sent before then seems to have been sent later by that.
///
/// The far end drops what seems older than the last segment that it took in order (PAWS, RFC 7323 §5), so
/// nothing that it may have taken must have been sent in the last `by`. A segment that the kernel sends
/// during the call is lost: it takes the connection for one that is being restored.
pub fn probe_with_clock_turned_back(fd: impl AsFd, by: Duration) -> io::Result<()> {
    let reuses_address = rustix_sockopt::socket_reuseaddr(&fd)?;
    set_int(&fd, libc::IPPROTO_TCP, TCP_REPAIR, TCP_REPAIR_ON)?;
    let turned = turn_back(&fd, by);
    set_int(&fd, libc::IPPROTO_TCP, TCP_REPAIR, TCP_REPAIR_OFF)?;
    rustix_sockopt::set_socket_reuseaddr(&fd, reuses_address)?;
    turned
}

/// `struct tcp_repair_window` of linux/tcp.h.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
struct RepairWindow {
    snd_wl1: u32,
    snd_wnd: u32,
    max_window: u32,
    rcv_wnd: u32,
    rcv_wup: u32,
}

/// Takes the receiver's window to be at least so many bytes, until a segment of the receiver's tells it. A
/// SYN cannot tell of more than 64 kB (RFC 7323 §2.2), so that without this an answer to data in a SYN (RFC
/// 7413) stops there for a round trip. What the receiver has no room for is lost. Needs `CAP_NET_ADMIN`.
pub fn assume_send_window(fd: impl AsFd, bytes: u32) -> io::Result<()> {
    let reuses_address = rustix_sockopt::socket_reuseaddr(&fd)?;
    set_int(&fd, libc::IPPROTO_TCP, TCP_REPAIR, TCP_REPAIR_ON)?;
    let widened = widen_send_window(&fd, bytes);
    set_int(&fd, libc::IPPROTO_TCP, TCP_REPAIR, TCP_REPAIR_OFF_NO_WP)?;
    rustix_sockopt::set_socket_reuseaddr(&fd, reuses_address)?;
    widened
}

fn widen_send_window(fd: &impl AsFd, bytes: u32) -> io::Result<()> {
    let mut window = RepairWindow::default();
    get(fd, libc::IPPROTO_TCP, TCP_REPAIR_WINDOW, &mut window)?;
    window.snd_wnd = window.snd_wnd.max(bytes);
    window.max_window = window.max_window.max(window.snd_wnd);
    set(fd, libc::IPPROTO_TCP, TCP_REPAIR_WINDOW, &window)
}

fn turn_back(fd: &impl AsFd, by: Duration) -> io::Result<()> {
    let mut clock: libc::c_uint = 0;
    get(fd, libc::IPPROTO_TCP, TCP_TIMESTAMP, &mut clock)?;
    // Since Linux 6.7 the lowest bit says whether the clock counts microseconds, as it does on few routes.
    let tick = if clock & 1 == 1 { by.as_micros() } else { by.as_millis() };
    let earlier = clock.wrapping_sub(tick as libc::c_uint & !1);
    set(fd, libc::IPPROTO_TCP, TCP_TIMESTAMP, &earlier)
}

/// How long data may stay unacknowledged before the connection is given up (tcp(7), `TCP_USER_TIMEOUT`; RFC
/// 5482). It replaces `tcp_retries2`, and bounds connecting and zero-window probing as well.
pub fn set_user_timeout(fd: impl AsFd, limit: Duration) -> io::Result<()> {
    set_int(fd, libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, millis(limit))
}

/// Asks the far end of a connection that has been `idle` for so long whether it is there, at each `interval`,
/// until so many `probes` were not answered (tcp(7), `SO_KEEPALIVE`, `TCP_KEEPIDLE`, `TCP_KEEPINTVL`,
/// `TCP_KEEPCNT`). Where there is a user timeout, it decides in the place of the number of probes.
pub fn set_keepalive(fd: impl AsFd, idle: Duration, interval: Duration, probes: u32) -> io::Result<()> {
    rustix_sockopt::set_tcp_keepidle(&fd, idle)?;
    rustix_sockopt::set_tcp_keepintvl(&fd, interval)?;
    rustix_sockopt::set_tcp_keepcnt(&fd, probes)?;
    Ok(rustix_sockopt::set_socket_keepalive(&fd, true)?)
}

/// How often an unanswered SYN is repeated, 1–127 (tcp(7), `TCP_SYNCNT`).
pub fn set_syn_retries(fd: impl AsFd, retries: u32) -> io::Result<()> {
    let retries = libc::c_int::try_from(retries).unwrap_or(libc::c_int::MAX);
    set_int(fd, libc::IPPROTO_TCP, libc::TCP_SYNCNT, retries)
}

/// Sends small messages at once instead of waiting for more to join them (tcp(7), `TCP_NODELAY`).
pub fn set_nodelay(fd: impl AsFd) -> io::Result<()> {
    Ok(rustix_sockopt::set_tcp_nodelay(fd, true)?)
}

/// Leaves the choice of the local port to `connect(2)`, which may then reuse one that is busy towards another
/// destination (ip(7), `IP_BIND_ADDRESS_NO_PORT`).
pub fn set_bind_address_no_port(fd: impl AsFd) -> io::Result<()> {
    set_int(fd, libc::SOL_IP, libc::IP_BIND_ADDRESS_NO_PORT, 1)
}

/// Fixes the send buffer at `size`, beyond `net.core.wmem_max` where privileges allow. It ends the kernel's
/// autotuning.
pub fn set_send_buffer(fd: impl AsFd, size: ByteCount) -> io::Result<()> {
    set_buffer(fd, libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, size)
}

/// Fixes the receive buffer at `size`, beyond `net.core.rmem_max` where privileges allow. It ends the
/// kernel's autotuning, and must come before the connection: the window scale is settled in the handshake
/// (RFC 7323 §2).
pub fn set_receive_buffer(fd: impl AsFd, size: ByteCount) -> io::Result<()> {
    set_buffer(fd, libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, size)
}

/// Bounds the window that the socket announces at `bytes` (tcp(7), `TCP_WINDOW_CLAMP`); before the
/// connection, so that its first window is bounded, too.
pub fn set_window_clamp(fd: impl AsFd, bytes: u32) -> io::Result<()> {
    let bytes = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
    set_int(fd, libc::IPPROTO_TCP, libc::TCP_WINDOW_CLAMP, bytes)
}

/// Limits the socket's pacing to so many bytes per second, above which its congestion control cannot go
/// (socket(7), `SO_MAX_PACING_RATE`); `u64::MAX` is no limit. It turns pacing on where the congestion control
/// has none. The kernel counts TCP's payload: headers come on top.
pub fn set_max_pacing_rate(fd: impl AsFd, bytes_per_second: u64) -> io::Result<()> {
    // The long form of the option: the short one ends at 34 Gbit/s.
    set(fd, libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE, &bytes_per_second)
}

/// The ceiling of the socket's pacing, bytes of payload per second; `None` is no ceiling.
pub fn max_pacing_rate(fd: impl AsFd) -> io::Result<Option<u64>> {
    let mut bytes_per_second: u64 = 0;
    get(fd, libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE, &mut bytes_per_second)?;
    Ok((bytes_per_second != u64::MAX).then_some(bytes_per_second))
}

/// Lets a listening socket take data with a SYN (tcp(7), `TCP_FASTOPEN`; RFC 7413): at most `pending` such
/// connections whose handshake is not complete, further ones by the usual handshake. It works where bit 2 of
/// `net.ipv4.tcp_fastopen` is set.
pub fn set_fast_open_queue(fd: impl AsFd, pending: u16) -> io::Result<()> {
    set_int(fd, libc::IPPROTO_TCP, libc::TCP_FASTOPEN, pending.into())
}

/// Lets data go or come with a SYN without a cookie (`TCP_FASTOPEN_NO_COOKIE`): set it before `connect(2)` or
/// `listen(2)`. A cookie proves that the sender of a SYN receives at its address (RFC 7413 §4.1); this is for
/// paths on which nobody else's SYNs come.
pub fn set_fast_open_without_cookie(fd: impl AsFd) -> io::Result<()> {
    set_int(fd, libc::IPPROTO_TCP, TCP_FASTOPEN_NO_COOKIE, 1)
}

/// Marks the packets of this socket with a differentiated services code point, 0–63 (RFC 2474).
pub fn set_dscp(fd: impl AsFd, family: &SocketAddr, dscp: u8) -> io::Result<()> {
    let traffic_class = dscp << 2;
    match family {
        SocketAddr::V4(_) => rustix_sockopt::set_ip_tos(fd, traffic_class)?,
        SocketAddr::V6(_) => rustix_sockopt::set_ipv6_tclass(fd, traffic_class.into())?,
    }
    Ok(())
}

/// Asks the kernel to remember the code point of a connection's SYN; set it on the listener for
/// [`dscp_of_syn`].
pub fn remember_dscp(fd: impl AsFd, family: &SocketAddr) -> io::Result<()> {
    match family {
        SocketAddr::V4(_) => rustix_sockopt::set_ip_recvtos(fd, true)?,
        SocketAddr::V6(_) => rustix_sockopt::set_ipv6_recvtclass(fd, true)?,
    }
    Ok(())
}

/// The differentiated services code point of the SYN that began this accepted connection, 0–63.
pub fn dscp_of_syn(fd: impl AsFd, family: &SocketAddr) -> io::Result<u8> {
    let (level, option, cmsg_type) = match family {
        SocketAddr::V4(_) => (libc::SOL_IP, libc::IP_PKTOPTIONS, libc::IP_TOS),
        SocketAddr::V6(_) => (libc::SOL_IPV6, IPV6_2292PKTOPTIONS, libc::IPV6_TCLASS),
    };
    let mut control = [0u8; 256];
    let len = get_bytes(fd, level, option, &mut control)?;
    Ok(find_control_int(&control[..len], level, cmsg_type).map_or(0, |class| (class as u8 & !ECN_BITS) >> 2))
}

/// Bytes that were written and that the peer has not acknowledged yet (tcp(7), `SIOCOUTQ`); the end of the
/// stream counts as one until it is.
pub fn unacknowledged(fd: impl AsFd) -> io::Result<usize> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: SIOCOUTQ, which is TIOCOUTQ, writes one int to the address.
    let result =
        unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), libc::TIOCOUTQ, std::ptr::from_mut(&mut bytes)) };
    if result == 0 { Ok(usize::try_from(bytes).unwrap_or(0)) } else { Err(io::Error::last_os_error()) }
}

/// Kernel memory of the socket's send and receive buffers with their bookkeeping, bytes (linux/sock_diag.h,
/// `SO_MEMINFO`).
pub fn buffered(fd: impl AsFd) -> io::Result<usize> {
    let mut words = [0u8; 4 * MEMINFO_WORDS];
    get_bytes(fd, libc::SOL_SOCKET, SO_MEMINFO, &mut words)?;
    let word = |index: usize| {
        let bytes = words[4 * index..].first_chunk().copied().unwrap_or_default();
        u32::from_ne_bytes(bytes) as usize
    };
    Ok(MEMINFO_HELD.into_iter().map(word).sum())
}

/// Returns and clears the socket's pending error (socket(7), `SO_ERROR`).
pub fn take_error(fd: impl AsFd) -> io::Result<Option<io::Error>> {
    Ok(rustix_sockopt::socket_error(fd)?.err().map(io::Error::from))
}

/// The number of the socket's network namespace, which is unique since boot (`SO_NETNS_COOKIE`, Linux 5.14).
pub fn network_namespace(socket: impl AsFd) -> io::Result<u64> {
    let mut cookie = 0u64;
    get(socket, libc::SOL_SOCKET, libc::SO_NETNS_COOKIE, &mut cookie)?;
    Ok(cookie)
}

fn millis(span: Duration) -> libc::c_int {
    libc::c_int::try_from(span.as_millis()).unwrap_or(libc::c_int::MAX)
}

fn set_buffer(fd: impl AsFd, forced: libc::c_int, plain: libc::c_int, size: ByteCount) -> io::Result<()> {
    // The kernel doubles the requested size, to leave room for its own bookkeeping (socket(7)).
    let half = libc::c_int::try_from(size.get() / 2).unwrap_or(libc::c_int::MAX / 2);
    set_int(&fd, libc::SOL_SOCKET, forced, half).or_else(|_| set_int(&fd, libc::SOL_SOCKET, plain, half))
}

/// The MTU of the path to the peer of a connected datagram socket (`IP_MTU`, `IPV6_MTU`), bytes.
///
/// # Errors
/// `ENOTCONN` if it is not connected.
pub fn path_mtu(fd: impl AsFd, is_ipv6: bool) -> io::Result<usize> {
    let (level, option) =
        if is_ipv6 { (libc::IPPROTO_IPV6, libc::IPV6_MTU) } else { (libc::IPPROTO_IP, libc::IP_MTU) };
    let mut bytes = [0; size_of::<libc::c_int>()];
    get_bytes(fd, level, option, &mut bytes)?;
    Ok(usize::try_from(libc::c_int::from_ne_bytes(bytes)).unwrap_or(0))
}

/// Lets this host cut datagrams that are longer than the path's MTU, instead of refusing them
/// (`IP_PMTUDISC_DONT`).
///
/// # Errors
/// Those of setsockopt(2).
pub fn set_fragmentation(fd: impl AsFd, is_ipv6: bool) -> io::Result<()> {
    match is_ipv6 {
        true => set_int(fd, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_DONT),
        false => set_int(fd, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DONT),
    }
}

pub(crate) fn set_int(
    fd: impl AsFd,
    level: libc::c_int,
    option: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    set(fd, level, option, &value)
}

pub(crate) fn set<T: Copy>(
    fd: impl AsFd,
    level: libc::c_int,
    option: libc::c_int,
    value: &T,
) -> io::Result<()> {
    // SAFETY: `value` is a live, initialised plain value for the length of the call, and `size_of::<T>()` is
    // its size.
    let result = unsafe {
        libc::setsockopt(
            fd.as_fd().as_raw_fd(),
            level,
            option,
            std::ptr::from_ref(value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn get<T: Copy>(fd: impl AsFd, level: libc::c_int, option: libc::c_int, value: &mut T) -> io::Result<()> {
    let mut len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes into `value`; T is a plain integer here, valid for every
    // bit pattern.
    let result = unsafe {
        libc::getsockopt(fd.as_fd().as_raw_fd(), level, option, std::ptr::from_mut(value).cast(), &mut len)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Fills `buffer` with the option's value and returns how much of it the kernel wrote.
pub(crate) fn get_bytes(
    fd: impl AsFd,
    level: libc::c_int,
    option: libc::c_int,
    buffer: &mut [u8],
) -> io::Result<usize> {
    let mut len = libc::socklen_t::try_from(buffer.len()).unwrap_or(libc::socklen_t::MAX);
    // SAFETY: the pointer and the length describe the live slice `buffer`, which the kernel may fill with any
    // bytes.
    let result = unsafe {
        libc::getsockopt(fd.as_fd().as_raw_fd(), level, option, buffer.as_mut_ptr().cast(), &mut len)
    };
    if result == 0 { Ok((len as usize).min(buffer.len())) } else { Err(io::Error::last_os_error()) }
}

/// Finds an integer among control messages (cmsg(3)), which are aligned to the size of a `size_t`.
fn find_control_int(mut control: &[u8], level: libc::c_int, kind: libc::c_int) -> Option<libc::c_int> {
    let header_size = size_of::<libc::cmsghdr>();
    while control.len() >= header_size {
        let mut header = MaybeUninit::<libc::cmsghdr>::uninit();
        // SAFETY: `control` holds at least a header's worth of bytes, and a header is plain integers.
        let header = unsafe {
            std::ptr::copy_nonoverlapping(control.as_ptr(), header.as_mut_ptr().cast(), header_size);
            header.assume_init()
        };
        let len = header.cmsg_len;
        if len < header_size || len > control.len() {
            return None;
        }
        let data = &control[header_size..len];
        if header.cmsg_level == level && header.cmsg_type == kind {
            return match data {
                [a, b, c, d, ..] => Some(libc::c_int::from_ne_bytes([*a, *b, *c, *d])),
                [a, ..] => Some(libc::c_int::from(*a)),
                [] => None,
            };
        }
        control = control.get(len.next_multiple_of(size_of::<usize>())..)?;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        remember_dscp(&listener, &address).unwrap();
        let client = TcpStream::connect(address).unwrap();
        (client, listener.accept().unwrap().0)
    }

    #[test]
    fn congestion_control_reads_back() {
        let (client, _server) = pair();
        set_congestion(&client, "reno").unwrap();
        assert_eq!(congestion(&client).unwrap(), "reno");
        assert!(set_congestion(&client, "no_such_thing").is_err());
    }

    #[test]
    fn unread_bytes_count_at_the_reader_and_unacknowledged_ones_at_the_writer() {
        use std::io::{Read, Write};
        let (mut client, mut server) = pair();
        let empty = buffered(&server).unwrap();
        client.write_all(&[7; 10_000]).unwrap();
        server.peek(&mut [0]).unwrap();
        while unacknowledged(&client).unwrap() > 0 {
            std::thread::yield_now();
        }
        assert!(buffered(&server).unwrap() >= empty + 10_000);
        server.read_exact(&mut [0; 10_000]).unwrap();
        assert!(buffered(&server).unwrap() < empty + 10_000);

        client.set_nonblocking(true).unwrap();
        while client.write(&[7; 65536]).is_ok() {}
        assert!(unacknowledged(&client).unwrap() > 0 && buffered(&client).unwrap() > 65536);
    }

    #[test]
    fn the_syn_of_an_unmarked_connection_has_code_point_zero() {
        let (_client, server) = pair();
        assert_eq!(dscp_of_syn(&server, &server.local_addr().unwrap()).unwrap(), 0);
    }

    #[test]
    fn the_code_point_of_a_marked_syn_is_remembered() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(address) else { continue };
            let address = listener.local_addr().unwrap();
            remember_dscp(&listener, &address).unwrap();
            let client =
                socket2::Socket::new(socket2::Domain::for_address(address), socket2::Type::STREAM, None)
                    .unwrap();
            set_dscp(&client, &address, 46).unwrap();
            client.connect(&address.into()).unwrap();
            let (server, _) = listener.accept().unwrap();
            assert_eq!(dscp_of_syn(&server, &address).unwrap(), 46, "{address}");
        }
    }

    #[test]
    fn a_send_buffer_has_the_requested_size() {
        let (client, _server) = pair();
        set_send_buffer(&client, ByteCount::new(256 * 1024)).unwrap();
        let mut size: libc::c_int = 0;
        get(&client, libc::SOL_SOCKET, libc::SO_SNDBUF, &mut size).unwrap();
        assert_eq!(size, 256 * 1024);
    }

    #[test]
    fn a_pacing_cap_is_inherited_by_accepted_sockets_and_has_64_bits() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        assert_eq!(max_pacing_rate(&listener).unwrap(), None);
        set_max_pacing_rate(&listener, 10_000_000_000).unwrap();
        let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        assert_eq!(max_pacing_rate(&accepted).unwrap(), Some(10_000_000_000));
    }

    #[test]
    fn a_listener_takes_a_queue_for_fast_open() {
        set_fast_open_queue(TcpListener::bind("127.0.0.1:0").unwrap(), 16).unwrap();
    }

    #[test]
    fn a_healthy_socket_has_no_error_to_take() {
        let (client, _server) = pair();
        assert!(take_error(&client).unwrap().is_none());
    }
}
