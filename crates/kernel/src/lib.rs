//! What the Linux kernel can be made to do for TCP over satellites, without a patch.
//!
//! - [`hybla`]: TCP Hybla, complete with pacing and Hoe's estimate, as an eBPF congestion control.
//! - [`explicit`]: a rate for each connection, given by a controller in user space, as an eBPF congestion control.
//! - [`feature`]: since which Linux there is what, and what goes without it.
//! - [`router`]: what an XCP router does for each packet, in eBPF at an interface.
//! - [`xcp`]: XCP and P-XCP, whose senders are told their rates by routers, as eBPF congestion controls with TCP options.
//! - [`congestion`]: the congestion control that a leg asks for, or the next best that this kernel has.
//! - [`leg`]: an operator's intentions for one side of the satellite gateway, turned into socket settings.
//! - [`Weight`]: a connection's share of a leg, compared with others.
//! - [`sockopt`], [`tcp_info`]: the socket options behind all this, with types.
//! - [`nftables`]: elements of nftables sets, put and taken without starting `nft`.
//! - [`route`]: the interface by which this host reaches an address.
//! - [`notify`]: what the service manager is told of this service.
//! - [`tun`]: network interfaces whose far side is this process.
//! - [`privileges`], [`limits`]: what the process gives up after set-up, and how many descriptors it may have.
//! - [`host`]: what this host has and lacks, each finding with the line that mends it.

pub mod congestion;
pub mod explicit;
pub mod feature;
pub mod host;
pub mod hybla;
pub mod leg;
pub mod limits;
mod mapped;
mod netlink;
pub mod nftables;
pub mod notify;
pub mod privileges;
pub mod route;
pub mod router;
pub mod sockopt;
mod struct_ops;
pub mod tcp_info;
mod tcx;
pub mod timers;
pub mod tun;
mod weight;
pub mod xcp;

pub use struct_ops::StructOpsError;
pub use weight::Weight;
