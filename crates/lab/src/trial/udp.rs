//! A constant stream of UDP from the server to the client, as a call or a broadcast is: it sends what it
//! sends, whatever is lost.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bentpipe_units::Rate;

use super::READ_TIMEOUT;

/// The payload of a datagram, and what it is with the headers of IPv4 and UDP, bytes.
const PAYLOAD: usize = 1200;
const ON_THE_LINK: u64 = PAYLOAD as u64 + 28;
/// The pause of the sender after what is due: a few datagrams at 10 Mbit/s.
const PAUSE: Duration = Duration::from_millis(2);

/// Sends at `rate`, headers included, to the client whose datagram comes first, until it is over.
pub(super) fn send(from: SocketAddr, rate: Rate, over: &AtomicBool) -> io::Result<()> {
    let socket = UdpSocket::bind(from)?;
    socket.set_read_timeout(Some(READ_TIMEOUT))?;
    let client = loop {
        match socket.recv_from(&mut [0; 1]) {
            Ok((_, client)) => break client,
            Err(error) if crate::download::is_timeout(&error) && !over.load(Ordering::Relaxed) => {}
            Err(error) if crate::download::is_timeout(&error) => return Ok(()),
            Err(error) => return Err(error),
        }
    };
    let (begun, mut sent) = (Instant::now(), 0);
    while !over.load(Ordering::Relaxed) {
        while sent < rate.bytes_in(begun.elapsed()) {
            // A full queue of this host is a loss.
            let _ = socket.send_to(&[0; PAYLOAD], client);
            sent += ON_THE_LINK;
        }
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

/// Asks for the stream, and counts its payload until it is over.
pub(super) fn receive(server: SocketAddr, read: &AtomicU64, over: &AtomicBool) -> io::Result<()> {
    let any = SocketAddr::from(([0, 0, 0, 0], 0));
    let socket = UdpSocket::bind(any)?;
    socket.set_read_timeout(Some(READ_TIMEOUT))?;
    let mut datagram = [0; PAYLOAD];
    while !over.load(Ordering::Relaxed) {
        if read.load(Ordering::Relaxed) == 0 {
            // The request may be lost.
            socket.send_to(&[0], server)?;
        }
        match socket.recv(&mut datagram) {
            Ok(length) => _ = read.fetch_add(length as u64, Ordering::Relaxed),
            Err(error) if crate::download::is_timeout(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
