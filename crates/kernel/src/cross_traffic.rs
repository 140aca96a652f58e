//! Counts what leaves over a leg beside the connections that have explicit rates, for the allocator of these
//! rates ([`EgressCount`]).
//!
//! With eBPF a program at the egress of the leg's interface knows the socket of each packet, and counts the
//! bytes of those without a rate (`bpf/cross_traffic.bpf.c`). Without eBPF the interface's own counters are
//! taken (rtnetlink(7), `IFLA_STATS64`), from which the allocator subtracts what the connections have sent.
//! These count each packet with its Ethernet header, and several segments that leave as one with one header:
//! up to 3% of what the connections send are missing.
//!
//! With eBPF the program can also signal that too much leaves, by [`limit`](CrossTrafficCounter::limit): it
//! marks packets, or drops them. A limit that is not renewed for a second holds no more, and none outlives
//! the process. Nothing else here can do that.

use std::io;

use bentpipe_link::explicit::{CrossTrafficLimit, EgressCount, Signalled};
use bentpipe_units::Time;

use crate::egress_program::{Counted, Place, Program};
use crate::explicit::SharedLeg;
use crate::netlink::{Message, Socket, Writer, attributes};
use crate::rated_leg::RatedLeg;
use crate::tc_hook;

/// Size of `struct ifinfomsg`, and where its type and index are.
const LINK_HEADER: usize = 16;
const LINK_TYPE: usize = 2;
const LINK_INDEX: usize = 4;
/// In `struct rtnl_link_stats64`: the packets and the bytes sent.
const SENT_PACKETS: usize = 8;
const SENT_BYTES: usize = 24;
/// An Ethernet header, which Ethernet interfaces count; the loopback interface does not.
const ETHERNET_HEADER: u64 = 14;

/// The counter of one leg.
#[derive(Debug)]
pub struct CrossTrafficCounter {
    interface: String,
    source: Source,
}

#[derive(Debug)]
enum Source {
    Ebpf { leg: SharedLeg, counted: Option<Counted> },
    Interface { index: Option<u32>, socket: Option<Socket> },
}

/// Why the traffic at an interface cannot be counted.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot count the traffic beside the connections of leg {leg} at interface {interface}: {source}; it \
     shows as a queue only, until there is room for one more eBPF program there"
)]
pub struct CrossTrafficError {
    leg: String,
    interface: String,
    source: io::Error,
}

impl CrossTrafficCounter {
    /// A counter for a leg, which is at no interface until it [follows](Self::follow) one.
    pub fn new(leg: &RatedLeg, interface: &str) -> Self {
        let source = match leg {
            RatedLeg::Ebpf(leg) => Source::Ebpf { leg: leg.clone(), counted: None },
            RatedLeg::Paced(_) => Source::Interface { index: None, socket: None },
        };
        Self { interface: interface.to_owned(), source }
    }

    /// The name of its interface.
    pub fn interface(&self) -> &str {
        &self.interface
    }

    /// Counts at the interface that has its name now, in the network namespace of the calling thread: one
    /// that did not exist before, or another in the place of a former one. Without one it counts nothing. It
    /// needs `CAP_NET_ADMIN` alone.
    ///
    /// # Errors
    /// The kernel does not take the program there.
    pub fn follow(&mut self) -> Result<(), CrossTrafficError> {
        let (leg, counted) = match &mut self.source {
            Source::Interface { index, .. } => {
                *index = tc_hook::index_of(&self.interface).ok();
                return Ok(());
            }
            Source::Ebpf { leg, counted } => (leg, counted),
        };
        let Some(program) = leg.cross_traffic() else { return Ok(()) };
        let present = Place::of(&self.interface).ok();
        if present == counted.as_ref().map(Counted::place) {
            return Ok(());
        }
        *counted = None;
        let Some(place) = present else { return Ok(()) };
        let error = |source| CrossTrafficError {
            leg: leg.name().to_owned(),
            interface: self.interface.clone(),
            source,
        };
        *counted = Some(program.count(leg.number(), place).map_err(error)?);
        Ok(())
    }

    /// What has left over the leg; `None` where nothing counts it.
    pub fn read(&mut self) -> Option<EgressCount> {
        match &mut self.source {
            Source::Ebpf { leg, counted } => {
                let program = leg.cross_traffic().filter(|_| counted.is_some())?;
                Some(EgressCount::CrossTraffic(program.bytes(leg.number())))
            }
            Source::Interface { index, socket } => {
                if socket.is_none() {
                    *socket = Socket::open(None).ok();
                }
                // A moment later there may be one, or the answer that has not come.
                sent_by(socket.as_mut()?, (*index)?).ok().map(EgressCount::All)
            }
        }
    }

    /// Lets no more leave than this from now on, or everything. `now` is of `CLOCK_MONOTONIC`. Without eBPF,
    /// or an interface, it does nothing.
    pub fn limit(&self, now: Time, limit: Option<&CrossTrafficLimit>) {
        if let Some((leg, program)) = self.program() {
            program.limit(leg, now, limit);
        }
    }

    /// The bytes of each flow that have left while there was a limit, in `bytes`; false where nothing counts
    /// them.
    pub fn read_flows(&self, bytes: &mut Vec<u64>) -> bool {
        bytes.clear();
        let Some((leg, program)) = self.program() else { return false };
        bytes.extend(program.flows(leg));
        true
    }

    /// The packets that were marked or dropped.
    pub fn signalled(&self) -> Signalled {
        self.program().map_or_else(Signalled::default, |(leg, program)| program.signalled(leg))
    }

    /// The program where it is at an interface, and the leg's number in it.
    fn program(&self) -> Option<(usize, &Program)> {
        match &self.source {
            Source::Ebpf { leg, counted: Some(_) } => Some((leg.number(), leg.cross_traffic()?)),
            _ => None,
        }
    }
}

/// The bytes of IP packets that an interface has sent.
fn sent_by(socket: &mut Socket, index: u32) -> io::Result<u64> {
    let sequence = socket.take_sequence(1);
    socket.send(question(sequence, index).as_bytes())?;
    socket.receive_until(|message| (message.sequence == sequence).then(|| answer(&message)))?
}

fn question(sequence: u32, index: u32) -> Writer {
    let mut header = [0; LINK_HEADER];
    header[LINK_INDEX..LINK_INDEX + 4].copy_from_slice(&index.to_ne_bytes());
    let mut writer = Writer::default();
    writer.message(libc::RTM_GETLINK, libc::NLM_F_REQUEST, sequence, &header, |_| {});
    writer
}

fn answer(message: &Message<'_>) -> io::Result<u64> {
    if let Some(code) = message.error_number() {
        return Err(io::Error::from_raw_os_error(code));
    }
    let invalid = || io::Error::new(io::ErrorKind::InvalidData, "an interface without counters");
    let (header, rest) = message.payload.split_first_chunk::<LINK_HEADER>().ok_or_else(invalid)?;
    let stats = attributes(rest).find(|(kind, _)| *kind == libc::IFLA_STATS64).ok_or_else(invalid)?.1;
    let number = |at: usize| Some(u64::from_ne_bytes(*stats.get(at..)?.first_chunk()?));
    let (packets, bytes) = number(SENT_PACKETS).zip(number(SENT_BYTES)).ok_or_else(invalid)?;
    let kind = u16::from_ne_bytes([header[LINK_TYPE], header[LINK_TYPE + 1]]);
    let each = if kind == libc::ARPHRD_ETHER { ETHERNET_HEADER } else { 0 };
    Ok(bytes.saturating_sub(packets.saturating_mul(each)))
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    #[test]
    fn an_interface_counts_the_ip_bytes_that_it_sends() {
        // Others may send by the loopback interface, too: a network of its own, where root can make one.
        if !rustix::process::geteuid().is_root() {
            println!("skipped: needs root");
            return;
        }
        let tried = std::thread::spawn(|| {
            // SAFETY: the new namespace is this thread's alone, and no file descriptors are concerned.
            unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET) }.unwrap();
            assert!(
                std::process::Command::new("ip")
                    .args(["link", "set", "lo", "up"])
                    .status()
                    .unwrap()
                    .success()
            );
            let (mut socket, index) = (Socket::open(None).unwrap(), tc_hook::index_of("lo").unwrap());
            let before = sent_by(&mut socket, index).unwrap();
            let (to, from) =
                (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
            for _ in 0..3 {
                from.send_to(&[0; 100], to.local_addr().unwrap()).unwrap();
            }
            assert_eq!(sent_by(&mut socket, index).unwrap() - before, 3 * 128);
            assert!(sent_by(&mut socket, 12345).is_err());
        });
        tried.join().unwrap();
    }
}
