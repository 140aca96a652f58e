//! Agents at the ends of a link, which help TCP across it without splitting connections.
//!
//! A [`LinkEnd`] is one end of the link: the gateway's or the terminal's. Packets pass through it both ways,
//! from its host to the link and from the link to its host, and meet its agents in order:
//!
//! ```text
//!            host ──► agent ──► agent ──► ARQ ──► link
//!            host ◄── agent ◄── agent ◄── ARQ ◄── link
//! ```
//!
//! An [`Agent`] sees packets through [`Packet`], a small view that both the simulator's segments and real
//! packets ([`IpPacket`](crate::IpPacket)) offer, so that virtual time and real time run the same code. It
//! may hold a packet back, drop it, or send more, in either direction. Packets that it does not understand it
//! passes on unchanged.
//!
//! | agent | at | what it does |
//! |---|---|---|
//! | [`Snoop`](snoop::Snoop) | the gateway | retransmits lost segments before the sender learns of the loss |
//! | [`DelayedDupAck`](delayed_dup_ack::DelayedDupAck) | the terminal | delays duplicate ACKs for a while |
//! | [`AckFilter`](ack_filter::AckFilter) | the terminal | thins acknowledgements where the way back is thin |
//! | [`Xcp`](xcp::Xcp) | in front of the bottleneck | tells XCP's senders by how much to change their rates |
//! | [`Arq`](arq::Arq) | both ends | the link layer's own retransmission, independent of TCP |

pub mod ack_filter;
pub mod arq;
pub mod delayed_dup_ack;
mod flow;
mod link_end;
mod packet;
mod rtt;
pub mod snoop;
pub mod xcp;

use std::collections::VecDeque;
use std::fmt;

use bentpipe_units::{Rate, Time};
use serde::Serialize;

pub use flow::Flow;
pub use link_end::{Frame, LinkEnd, LinkEndConfig, LinkEndReport};
pub use packet::{CongestionHeader, Packet, TcpFlags, TcpHeader};

/// An agent at one end of a link, through which all packets pass.
///
/// It has no clock: `now` never goes back. It puts the packets that it sends into the [`Outbox`], also the
/// one that it was given, unless it holds that back or drops it.
pub trait Agent<P: Packet>: fmt::Debug {
    /// A packet from the host's side, on its way to the link.
    fn outbound(&mut self, now: Time, packet: P, out: &mut Outbox<P>);

    /// A packet from the link, on its way to the host's side.
    fn inbound(&mut self, now: Time, packet: P, out: &mut Outbox<P>);

    /// When [`on_timer`](Self::on_timer) must be called; [`Time::MAX`] for never. The call may find nothing
    /// to do.
    fn wake_at(&self) -> Time;

    /// The time of [`wake_at`](Self::wake_at) has come.
    fn on_timer(&mut self, now: Time, out: &mut Outbox<P>);

    /// The last call: sends at once every packet that it holds back, because there is no other copy of it.
    /// Copies cached for retransmission are not sent.
    ///
    /// The default is right for an agent that holds nothing back, or that is never removed from running
    /// traffic.
    fn flush(&mut self, out: &mut Outbox<P>) {
        let _ = out;
    }

    /// IP bytes of packets that it caches or holds back now.
    fn held_bytes(&self) -> u64;

    /// Its counters.
    fn report(&self) -> AgentReport;
}

/// The packets that an agent sends, each way in this order.
#[derive(Debug)]
pub struct Outbox<P> {
    /// Towards the link.
    pub to_link: VecDeque<P>,
    /// Towards the host's side.
    pub to_host: VecDeque<P>,
}

impl<P> Default for Outbox<P> {
    fn default() -> Self {
        Self { to_link: VecDeque::new(), to_host: VecDeque::new() }
    }
}

/// The rate of an agent that keeps the queue behind it empty: 1.5% below what the link carries, so that what
/// stands there drains.
fn draining(link: Rate) -> Rate {
    let bits = (u128::from(link.bps()) * 985 / 1000) as u64;
    Rate::from_bps(bits).unwrap_or(link)
}

/// Declares the agents: their parameters, their counters, and how each is built.
macro_rules! agents {
    ($($agent:ident: $module:ident::{$config:ident, $counters:ident},)*) => {
        /// An agent and its parameters.
        #[derive(Debug, Clone, PartialEq)]
        pub enum AgentConfig {
            $(
                #[doc = concat!("See [`", stringify!($module), "::", stringify!($agent), "`].")]
                $agent($module::$config),
            )*
        }

        /// The counters of an agent.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
        #[serde(tag = "agent", rename_all = "snake_case")]
        pub enum AgentReport {
            $(
                #[doc = concat!("See [`", stringify!($module), "::", stringify!($counters), "`].")]
                $agent($module::$counters),
            )*
        }

        impl AgentConfig {
            /// The agent at rest.
            fn build<P: Packet>(&self) -> Box<dyn Agent<P> + Send> {
                match self {
                    $(Self::$agent(config) => Box::new($module::$agent::new(config)),)*
                }
            }
        }
    };
}

agents! {
    Snoop: snoop::{SnoopConfig, SnoopCounters},
    DelayedDupAck: delayed_dup_ack::{DelayedDupAckConfig, DelayedDupAckCounters},
    AckFilter: ack_filter::{AckFilterConfig, AckFilterCounters},
    Xcp: xcp::{XcpConfig, XcpCounters},
}
