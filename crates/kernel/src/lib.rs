//! What the Linux kernel can be made to do for TCP over satellites, without a patch.
//!
//! - [`hybla`]: TCP Hybla, complete with pacing and Hoe's estimate, as an eBPF congestion control.
//! - [`explicit`]: a rate for each connection, set by a controller in user space, as an eBPF congestion
//!   control.
//! - [`paced`]: the same without eBPF, as the ceiling of each connection's pacing; [`rated_leg`] is either.
//! - [`cross_traffic`]: what leaves over a leg beside these connections, counted.
//! - [`divert`]: marked packets are taken into a TUN device instead of leaving by an interface, and packets
//!   written there arrive as if by that interface.
//! - [`feature`]: the Linux version that each feature needs, and the substitute without it.
//! - [`router`]: an XCP router's work on each packet, in eBPF at an interface.
//! - [`xcp`]: XCP and P-XCP, where routers set the senders' rates, as eBPF congestion controls with TCP
//!   options.
//! - [`congestion`]: the congestion control that a leg asks for, or the next best that this kernel has.
//! - [`leg`]: an operator's intentions for one side of the satellite gateway, turned into socket settings.
//! - [`Weight`]: a connection's share of a leg, compared with others.
//! - [`sockopt`], [`tcp_info`]: the socket options behind all this, with types.
//! - [`nftables`]: elements of nftables sets, added and removed without starting `nft`; counters.
//! - [`sock_diag`]: the handshakes of this host that are not complete.
//! - [`multicast`]: which interfaces datagrams to a group are copied to.
//! - [`route`]: the interface by which this host reaches an address.
//! - [`link_events`]: notifications that network interfaces have come or gone.
//! - [`reverse_lookup`]: the name of a host by its address.
//! - [`notify`], [`journal`]: status messages to the service manager, entries for the journal.
//! - [`shared_words`]: memory that two processes share.
//! - [`program`]: running other programs, each with a time limit.
//! - [`tun`]: network interfaces whose far side is this process.
//! - [`privileges`], [`limits`]: dropping privileges after set-up, and the limit of file descriptors.
//! - [`host`]: checks of this host, each finding with the line that fixes it.

pub mod congestion;
pub mod conntrack;
pub mod cross_traffic;
pub mod divert;
mod egress_program;
pub mod explicit;
pub mod feature;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
pub mod host;
pub mod hybla;
pub mod inject;
pub mod journal;
pub mod leftovers;
pub mod leg;
pub mod limits;
mod link_address;
pub mod link_events;
mod mapped;
pub mod multicast;
mod netlink;
pub mod nftables;
pub mod notify;
mod owner;
pub mod paced;
pub mod packet_log;
pub mod privileges;
pub mod program;
pub mod rated_leg;
pub mod reverse_lookup;
pub mod route;
pub mod router;
pub mod shared_words;
mod skel;
pub mod sock_diag;
pub mod sockopt;
mod struct_ops;
mod tc_hook;
pub mod tcp_info;
pub mod timers;
pub mod tun;
mod weight;
pub mod xcp;

pub use struct_ops::StructOpsError;
pub use weight::Weight;
