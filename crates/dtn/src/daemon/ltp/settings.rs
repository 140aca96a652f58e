//! What is known of the link to a peer: from its table, its leg, and the contact plan.

use std::net::SocketAddr;
use std::time::Duration;

use bentpipe_legs::Legs;
use bentpipe_ltp::{BUNDLE_PROTOCOL, Color, Config};
use bentpipe_units::{ByteCount, Rate};

use crate::config::{LtpColor, NodeConfig, PeerLtpSettings, PeerSettings};
use crate::node::{Node, NodeError};

use super::super::datagrams::headers;

/// An outage of this length is survived where the leg says nothing of outages.
const SURVIVED: Duration = Duration::from_secs(15 * 60);
/// A segment is sent again at least so often, and at most.
const RETRIES: (u128, u128) = (10, 10_000);
/// The window if the rate is not known, and the least, bytes.
const WINDOW: u64 = 64 << 20;
/// The window in round trips: a block whose retransmissions are lost, too, takes some.
const ROUND_TRIPS: u64 = 4;

/// The link to a peer.
#[derive(Debug, Clone)]
pub(super) struct PeerLink {
    /// Where the peer's engine listens.
    pub(super) address: SocketAddr,
    pub(super) config: Config,
    pub(super) color: Color,
    /// The longest block.
    pub(super) block: u64,
    pub(super) leg: Option<String>,
    /// The rate that was configured, for it or its leg.
    pub(super) rate: Option<Rate>,
    /// Whether the propagation delay is that of the contact that is open.
    pub(super) follows_plan: bool,
    /// Whether the leg's controller allots rates.
    pub(super) is_rated: bool,
}

impl PeerLink {
    pub(super) fn of(
        node: &Node,
        config: &NodeConfig,
        legs: &Legs,
        peer: &PeerSettings,
        settings: &PeerLtpSettings,
    ) -> Result<Self, NodeError> {
        let id = &peer.id;
        let missing = |what: &str| NodeError::Service(format!("LTP with {id}: {what}"));
        let (own, engine) = config.engine().zip(settings.engine(id)).ok_or_else(|| missing("no engine"))?;
        let leg = peer.leg.as_deref();
        let configured = leg.and_then(|leg| config.legs.get(leg));
        let rate = settings.rate.or_else(|| configured.and_then(|leg| leg.rate));
        let is_rated = leg.and_then(|leg| legs.leg(leg)).is_some_and(|leg| leg.rated().is_some());
        let contact =
            config.contacts.iter().find(|contact| contact.to.node() == *id && contact.from == *node.id());
        if rate.is_none() && !is_rated && contact.is_none() {
            return Err(missing(
                "nothing says how fast the link is; write rate in [peers.ltp] or for its leg, or [[contacts]] with \
                 the peer",
            ));
        }
        let one_way = settings.delay.map(|delay| delay.get());
        let one_way = one_way.or_else(|| configured.map(|leg| leg.rtt.get() / 2));
        let follows_plan = one_way.is_none();
        let one_way = one_way.or_else(|| contact.map(|contact| contact.delay)).unwrap_or_default();
        let survives = leg.and_then(|leg| legs.leg(leg)).and_then(|leg| leg.timers().user_timeout);
        let fastest = rate.or_else(|| contact.map(|contact| contact.rate));
        let config = settings.engine_config((own, engine), one_way, fastest, survives.unwrap_or(SURVIVED));
        let color = match settings.color {
            LtpColor::Red => Color::Red,
            LtpColor::Green => Color::Green,
        };
        let leg = leg.map(str::to_owned);
        let (address, block) = (settings.address, settings.block.get());
        Ok(Self { address, config, color, block, leg, rate, follows_plan, is_rated })
    }
}

impl PeerLtpSettings {
    fn engine_config(
        &self,
        (own, peer): (u64, u64),
        one_way: Duration,
        rate: Option<Rate>,
        survives: Duration,
    ) -> Config {
        let margin = self.margin.get();
        let interval = 2 * one_way + margin;
        let retries = survives.as_millis() / interval.as_millis().max(1) + 1;
        let block = self.block.get();
        let derived =
            rate.map_or(WINDOW, |rate| ROUND_TRIPS * rate.bytes_in(interval)).max(WINDOW).max(4 * block);
        let window = self.window.map_or(derived, ByteCount::get);
        Config {
            own,
            peer,
            client: BUNDLE_PROTOCOL,
            one_way,
            margin,
            rate: 0.0,
            datagram: self.datagram.get() as usize,
            around: headers(self.address),
            window,
            memory: window,
            // A peer may be configured with longer blocks.
            longest: window,
            retries: retries.clamp(RETRIES.0, RETRIES.1) as u32,
        }
    }
}
