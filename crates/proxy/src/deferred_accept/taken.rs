//! SYNs that the rules have taken: how they come to the daemon, and how it lets them go.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};

use bentpipe_kernel::inject::{LoopbackInjector, RawSender};
use bentpipe_kernel::nftables::HeldTable;
use bentpipe_kernel::packet_log::{LoggedPacket, PacketLog};
use bentpipe_link::ip::{carried_tcp, complete_checksum, overwrite_tcp};
use serde::{Deserialize, Serialize};

use crate::config::{Mark, MarkField};
use crate::error::Error;
use crate::intercept::{self, LOG_GROUP};
use crate::snapshot::Fd;

/// The bytes of the urgent pointer in the TCP header (RFC 9293 §3.1), in which the rules find the port of the
/// listener. Without the flag URG, which no SYN needs, it means nothing. The rules clear it.
const URGENT_POINTER: usize = 18;

/// What the rules want with a SYN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// It goes to its listener at once.
    Early,
    /// It waits until the server has answered.
    Faithful,
    /// It meets a socket of this host: repeated during the handshake, or new in the place of one in
    /// TIME-WAIT.
    Again,
    /// None: it passes, because this host has translated its destination. Not every such SYN comes here.
    Translated,
}

/// A SYN that the rules have taken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TakenSyn {
    /// The port of its listener, which stands for the path between the legs and the weight.
    pub(crate) port: u16,
    /// The mark that other programs have given it, which decides its route.
    pub(crate) mark: u32,
    /// From its IP header on.
    #[serde(with = "serde_bytes")]
    pub(crate) packet: Box<[u8]>,
}

/// Where a SYN came in, and where it was about to leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Interfaces {
    pub(crate) input: u32,
    /// Unknown for [`Purpose::Again`].
    pub(crate) output: Option<u32>,
}

/// The sockets between the rules and the daemon. With the last of them, and with the process, the rules take
/// no SYN any more.
#[derive(Debug)]
pub(crate) struct SynSockets {
    log: PacketLog,
    injector: LoopbackInjector,
    raw: RawSender,
    held: HeldTable,
    mark: MarkField,
}

/// The same, as another process gets them.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Inherited {
    log: Fd,
    injector: Fd,
    raw: (Fd, Option<Fd>),
    held: Fd,
    mark: u32,
}

impl SynSockets {
    /// In the network namespace of the calling thread. Needs `CAP_NET_ADMIN` and `CAP_NET_RAW`.
    pub(crate) fn open(mark: MarkField) -> Result<Self, Error> {
        let log = PacketLog::open(LOG_GROUP);
        let injector = LoopbackInjector::open(mark.value(Mark::Injected));
        Ok(Self {
            log: log.map_err(Error::system("receive what the rules take (nfnetlink_log, group 25200)"))?,
            injector: injector.map_err(Error::system("send SYNs to the listeners (a packet socket)"))?,
            raw: RawSender::open().map_err(Error::system("let SYNs pass (a raw socket)"))?,
            held: intercept::hold(mark)?,
            mark,
        })
    }

    /// Takes over what another process has opened. It is an error if that has another mark.
    pub(crate) fn resume(inherited: Inherited, mark: MarkField) -> Result<Self, Error> {
        if inherited.mark != mark.mask() {
            return Err(Error::Restart { what: "another proxy.mark" });
        }
        let Inherited { log, injector, raw: (ipv4, ipv6), held, .. } = inherited;
        let owned = || -> io::Result<Self> {
            Ok(Self {
                log: PacketLog::inherited(log.into_owned()?),
                injector: LoopbackInjector::inherited(injector.into_owned()?),
                raw: RawSender::inherited(ipv4.into_owned()?, ipv6.map(Fd::into_owned).transpose()?),
                held: HeldTable::inherited(held.into_owned()?),
                mark,
            })
        };
        owned().map_err(Error::system("take over the sockets of deferred accept"))
    }

    /// Duplicates of the descriptors, to hand them over.
    pub(crate) fn descriptors(&self) -> io::Result<Inherited> {
        let (ipv4, ipv6) = self.raw.sockets();
        let duplicate = |fd: &OwnedFd| fd.try_clone().map(Fd::from);
        Ok(Inherited {
            log: self.log.as_fd().try_clone_to_owned()?.into(),
            injector: self.injector.as_fd().try_clone_to_owned()?.into(),
            raw: (duplicate(ipv4)?, ipv6.map(duplicate).transpose()?),
            held: self.held.as_fd().try_clone_to_owned()?.into(),
            mark: self.mark.mask(),
        })
    }

    /// Readable when SYNs have been taken.
    pub(crate) fn log(&self) -> &PacketLog {
        &self.log
    }

    /// The part of packets' marks that is ours.
    pub(crate) fn mark(&self) -> MarkField {
        self.mark
    }

    /// Receives the next SYNs; false if there are none.
    pub(crate) fn receive(
        &mut self,
        mut each: impl FnMut(Purpose, TakenSyn, Interfaces),
    ) -> io::Result<bool> {
        let mark = self.mark;
        self.log.receive(|logged| {
            if let Some((purpose, syn, interfaces)) = taken(&logged, mark) {
                each(purpose, syn, interfaces);
            }
        })
    }

    /// Sends a SYN to its listener.
    pub(crate) fn give_to_listener(&self, syn: &TakenSyn) -> io::Result<()> {
        let mut packet = syn.packet.clone();
        overwrite_tcp(&mut packet, URGENT_POINTER, syn.port);
        self.injector.inject(&packet)
    }

    /// Lets a SYN go on to its server.
    pub(crate) fn pass(&self, syn: &TakenSyn, client: IpAddr, server: IpAddr) -> io::Result<()> {
        self.raw.send(&syn.packet, client, server, syn.mark)
    }

    /// Lets the rules pass the connection when its client repeats the SYN. So it has the route of what comes
    /// in by its interface, which nothing that this process sends has.
    pub(crate) fn pass_when_repeated(&self, syn: &TakenSyn) -> io::Result<()> {
        let mut packet = syn.packet.clone();
        overwrite_tcp(&mut packet, URGENT_POINTER, intercept::PASS);
        self.injector.inject(&packet)
    }
}

/// The rules say in the prefix what they want, and with which path.
fn taken(logged: &LoggedPacket<'_>, mark: MarkField) -> Option<(Purpose, TakenSyn, Interfaces)> {
    let (purpose, port) = logged.prefix.split_once(' ')?;
    let purpose = match purpose {
        "early" => Purpose::Early,
        "faithful" => Purpose::Faithful,
        "again" => Purpose::Again,
        "translated" => Purpose::Translated,
        _ => return None,
    };
    let mut packet: Box<[u8]> = logged.packet.into();
    complete_checksum(&mut packet);
    carried_tcp(&packet)?;
    let syn = TakenSyn { port: port.parse().ok()?, mark: mark.of_others(logged.mark), packet };
    Some((purpose, syn, Interfaces { input: logged.input?, output: logged.output }))
}
