//! The agents at the ends of the link.

use anyhow::Context;
use bentpipe_link::agent::ack_filter::AckFilterConfig;
use bentpipe_link::agent::arq::{ArqConfig, Delivery};
use bentpipe_link::agent::delayed_dup_ack::DelayedDupAckConfig;
use bentpipe_link::agent::snoop::{Pace, SnoopConfig};
use bentpipe_link::agent::{AgentConfig, LinkEndConfig};
use bentpipe_link::{FULL_SIZE_PACKET, LinkConfig, MIN_DEFAULT_QUEUE_PACKETS};
use bentpipe_units::{ByteCount, Rate, Span};
use clap::Args;

/// The most retransmissions of a packet.
const MAX_RETRANSMISSIONS: u32 = 1000;

/// Agents that help TCP across the link without splitting connections.
#[derive(Debug, Args)]
pub(super) struct Agents {
    /// At the far end Snoop keeps TCP's segments to the command and sends lost ones again. The size of its
    /// cache: bytes, or bandwidth-delay products of the link as in 2.5BDP; 3BDP by default.
    #[arg(long, value_name = "CACHE", num_args = 0..=1, require_equals = true, default_missing_value = "3BDP",
          value_parser = read_cache)]
    snoop: Option<Cache>,
    /// At which rate Snoop lets packets go to the link, a bit rate of IP packets, or off; by default 98.5% of
    /// the link's forward rate. Those before their time wait in a queue of two bandwidth-delay products.
    #[arg(long, value_name = "RATE|off", requires = "snoop", value_parser = read_pace)]
    snoop_pace: Option<PaceSetting>,
    /// At the command's end, hold back the third and later duplicate ACKs for this long, and drop them if the
    /// hole is filled by then.
    #[arg(long, value_name = "DELAY")]
    delayed_dup_acks: Option<Span>,
    /// At the command's end, thin acknowledgements if the way back is busy: each connection has one waiting,
    /// which newer ones replace. RATE is a bit rate of IP packets, by default 98.5% of the link's way back.
    #[arg(long, value_name = "RATE", num_args = 0..=1, require_equals = true, default_missing_value = "link",
          value_parser = read_filter_rate)]
    ack_filter: Option<FilterRate>,
    /// The link layer sends lost packets again, at most so often; 3 times by default. Packets behind a lost
    /// one wait for it, except with --delayed-dup-acks, which is there for what does not wait.
    #[arg(long, value_name = "RETRANSMISSIONS", num_args = 0..=1, require_equals = true,
          default_missing_value = "3", value_parser = read_retransmissions)]
    arq: Option<u32>,
}

/// The size of a Snoop's cache.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Cache {
    Bytes(ByteCount),
    Bdps(f64),
}

/// At which rate a Snoop lets packets go.
#[derive(Debug, Clone, Copy, PartialEq)]
enum PaceSetting {
    Off,
    At(Rate),
}

/// At which rate an ACK filter lets acknowledgements go.
#[derive(Debug, Clone, Copy, PartialEq)]
enum FilterRate {
    OfLink,
    At(Rate),
}

impl Agents {
    /// What is at the far end of the link, and at the command's.
    pub(super) fn link_ends(&self, link: &LinkConfig) -> anyhow::Result<[LinkEndConfig; 2]> {
        let cache = self.snoop.map(|cache| cache.size(link)).transpose()?;
        let pace = self.pace(link);
        let snoop =
            cache.map(|cache| AgentConfig::Snoop(SnoopConfig { pace, ..SnoopConfig::with_cache(cache) }));
        let delayed = self
            .delayed_dup_acks
            .map(|delay| AgentConfig::DelayedDupAck(DelayedDupAckConfig::with_delay(delay.get())));
        let filter = self.ack_filter(link)?.map(AgentConfig::AckFilter);
        let arq = self.arq.map(|retransmissions| ArqConfig {
            retransmissions,
            delivery: if self.delayed_dup_acks.is_some() { Delivery::Immediate } else { Delivery::InOrder },
            ..ArqConfig::for_link(link)
        });
        let ends = [vec![snoop], vec![delayed, filter]];
        Ok(ends.map(|agents| LinkEndConfig { agents: agents.into_iter().flatten().collect(), arq }))
    }

    fn ack_filter(&self, link: &LinkConfig) -> anyhow::Result<Option<AckFilterConfig>> {
        let of_link = || {
            link.reverse.rate_of_packets().map(AckFilterConfig::for_link).context(
                "--ack-filter sends acknowledgements at the rate of the way back, and this link has none: \
                 give the link a --rate or a --profile, or the filter its rate as in --ack-filter=200kbit/s",
            )
        };
        match self.ack_filter {
            None => Ok(None),
            Some(FilterRate::At(rate)) => Ok(Some(AckFilterConfig::with_rate(rate))),
            Some(FilterRate::OfLink) => of_link().map(Some),
        }
    }

    /// Snoop's.
    fn pace(&self, link: &LinkConfig) -> Option<Pace> {
        let round_trip = link.forward.delay + link.reverse.delay;
        match self.snoop_pace {
            Some(PaceSetting::Off) => None,
            Some(PaceSetting::At(rate)) => Some(Pace { rate, ..Pace::for_link(rate, round_trip) }),
            None => link.forward.rate_of_packets().map(|rate| Pace::for_link(rate, round_trip)),
        }
    }
}

impl Cache {
    fn size(self, link: &LinkConfig) -> anyhow::Result<ByteCount> {
        let bdps = match self {
            Self::Bytes(bytes) => return Ok(bytes),
            Self::Bdps(bdps) => bdps,
        };
        let rate = link.forward.rate.context(
            "--snoop sizes its cache in bandwidth-delay products, which a link without a rate does not \
             have: give the link \
             a --rate or a --profile, or the cache in bytes as in --snoop=2MB",
        )?;
        let bdp = rate.bytes_in(link.forward.delay + link.reverse.delay);
        // On a short link a product is less than a packet: as for its queue.
        let least = MIN_DEFAULT_QUEUE_PACKETS * FULL_SIZE_PACKET.get();
        Ok(ByteCount::new(((bdps * bdp as f64) as u64).max(least)))
    }
}

/// Reads `2MB` or `2.5BDP`.
fn read_cache(text: &str) -> Result<Cache, String> {
    let is_unit = |at: &usize| matches!(text[*at..].trim().to_ascii_lowercase().as_str(), "bdp" | "bdps");
    let unit = text.char_indices().map(|(at, _)| at).find(is_unit);
    let Some(unit) = unit else {
        let bytes: ByteCount =
            text.parse().map_err(|error| format!("{error}, or in bandwidth-delay products 3BDP"))?;
        return if bytes < FULL_SIZE_PACKET {
            Err(format!("a cache must have room for one segment at least, {FULL_SIZE_PACKET}"))
        } else {
            Ok(Cache::Bytes(bytes))
        };
    };
    match text[..unit].trim().parse::<f64>() {
        Ok(bdps) if bdps > 0.0 && bdps <= 1e6 => Ok(Cache::Bdps(bdps)),
        _ => Err(format!(
            "\"{}\" is no number of bandwidth-delay products; write for example 3BDP, or 2MB",
            text[..unit].trim()
        )),
    }
}

/// Reads `9.8Mbit/s` or `off`.
fn read_pace(text: &str) -> Result<PaceSetting, String> {
    if text == "off" {
        return Ok(PaceSetting::Off);
    }
    text.parse().map(PaceSetting::At).map_err(|error| format!("{error}, or off"))
}

/// Reads `200kbit/s`, or `link` for the link's own.
fn read_filter_rate(text: &str) -> Result<FilterRate, String> {
    if text == "link" {
        return Ok(FilterRate::OfLink);
    }
    text.parse().map(FilterRate::At).map_err(|error| format!("{error}, or link"))
}

fn read_retransmissions(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(retransmissions @ 1..=MAX_RETRANSMISSIONS) => Ok(retransmissions),
        _ => Err(format!(
            "write the most retransmissions of a packet: 1 to {MAX_RETRANSMISSIONS}, for example 3"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bentpipe_link::Profile;

    fn agents() -> Agents {
        Agents { snoop: None, snoop_pace: None, delayed_dup_acks: None, ack_filter: None, arq: None }
    }

    #[test]
    fn a_cache_is_a_number_of_bytes_or_of_bandwidth_delay_products() {
        assert_eq!(read_cache("2MB"), Ok(Cache::Bytes(ByteCount::new(2_000_000))));
        for text in ["2.5BDP", "2.5 bdp", "2.5BDPs"] {
            assert_eq!(read_cache(text), Ok(Cache::Bdps(2.5)), "{text}");
        }
        for (text, reason) in [
            ("BDP", "3BDP"),
            ("-1BDP", "3BDP"),
            ("nanBDP", "3BDP"),
            ("0BDP", "3BDP"),
            ("3µDP", "3BDP"),
            ("3BDPx", "3BDP"),
            ("", "3BDP"),
            ("100", "one segment"),
        ] {
            let error = read_cache(text).unwrap_err();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }

    #[test]
    fn a_bandwidth_delay_product_is_the_links_and_not_less_than_some_packets() {
        let geo = Profile::Geo.config();
        let bdp = geo.forward.bdp().unwrap().get();
        assert_eq!(Cache::Bdps(2.5).size(&geo).unwrap().get(), bdp * 5 / 2);
        assert_eq!(Cache::Bdps(1e-6).size(&geo).unwrap().get(), 24_000);
        assert_eq!(Cache::Bytes(ByteCount::new(7)).size(&LinkConfig::default()).unwrap().get(), 7);
        let error = Cache::Bdps(1.0).size(&LinkConfig::default()).unwrap_err().to_string();
        assert!(error.contains("--rate") && error.contains("--snoop=2MB"), "{error}");
    }

    #[test]
    fn each_agent_is_where_it_belongs() {
        let geo = Profile::Geo.config();
        let nothing = agents().link_ends(&geo).unwrap();
        assert!(nothing.iter().all(LinkEndConfig::is_nothing));
        let all = Agents {
            snoop: Some(Cache::Bdps(3.0)),
            snoop_pace: None,
            delayed_dup_acks: Some("600ms".parse().unwrap()),
            ack_filter: Some(FilterRate::OfLink),
            arq: Some(5),
        };
        let [far, near] = all.link_ends(&geo).unwrap();
        assert!(matches!(far.agents[..], [AgentConfig::Snoop(_)]), "{far:?}");
        assert!(
            matches!(near.agents[..], [AgentConfig::DelayedDupAck(_), AgentConfig::AckFilter(_)]),
            "{near:?}"
        );
        assert!(far.arq.is_some_and(|arq| arq.retransmissions == 5) && far.arq == near.arq);
    }

    #[test]
    fn snoop_keeps_the_pace_of_the_link_unless_it_is_told_another_or_none() {
        let pace = |snoop_pace, link: &LinkConfig| {
            let snoop = Some(Cache::Bytes(ByteCount::new(1_000_000)));
            let [far, _] = Agents { snoop, snoop_pace, ..agents() }.link_ends(link).unwrap();
            let [AgentConfig::Snoop(snoop)] = far.agents[..] else { panic!("{far:?}") };
            snoop.pace.map(|pace| (pace.rate.bps(), pace.queue.get()))
        };
        let geo = Profile::Geo.config();
        let (rate, round_trip) = (geo.forward.rate.unwrap(), geo.forward.delay + geo.reverse.delay);
        let expected = (rate.bps() * 985 / 1000, 2 * rate.bytes_in(round_trip));
        assert_eq!(pace(None, &geo), Some(expected));
        assert_eq!(pace(Some(PaceSetting::Off), &geo), None);
        let (rate, _) = pace(read_pace("1Mbit/s").ok(), &geo).unwrap();
        assert_eq!(rate, 1_000_000);
        assert_eq!(pace(None, &LinkConfig::default()), None, "without a rate");
        assert!(read_pace("of").unwrap_err().ends_with(", or off"));
    }

    #[test]
    fn an_ack_filter_has_the_rate_of_the_way_back_unless_it_is_told_another() {
        let rate = |text: &str, link: &LinkConfig| {
            let ack_filter = Some(read_filter_rate(text).unwrap());
            let [_, near] = Agents { ack_filter, ..agents() }.link_ends(link)?;
            let [AgentConfig::AckFilter(filter)] = near.agents[..] else { panic!("{near:?}") };
            anyhow::Ok(filter.rate.bps())
        };
        let mut geo = Profile::Geo.config();
        geo.reverse.rate = Some(Rate::mbps(1));
        assert_eq!(rate("link", &geo).unwrap(), 985_000);
        assert_eq!(rate("200kbit/s", &geo).unwrap(), 200_000);
        let error = rate("link", &LinkConfig::default()).unwrap_err().to_string();
        assert!(error.contains("--ack-filter=200kbit/s"), "{error}");
        assert!(read_filter_rate("of").unwrap_err().ends_with(", or link"));
    }

    #[test]
    fn packets_behind_a_lost_one_wait_unless_their_acks_are_delayed() {
        let geo = Profile::Geo.config();
        let delivery = |agents: Agents| agents.link_ends(&geo).unwrap()[0].arq.unwrap().delivery;
        assert_eq!(delivery(Agents { arq: Some(3), ..agents() }), Delivery::InOrder);
        let delayed_dup_acks = Some("1s".parse().unwrap());
        assert_eq!(delivery(Agents { arq: Some(3), delayed_dup_acks, ..agents() }), Delivery::Immediate);
    }
}
