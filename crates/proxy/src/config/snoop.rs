//! `[snoop]`: how much the gateway keeps of the flows that it does not split, and how it sends it again.

use bentpipe_link::agent::snoop::SnoopConfig;
use bentpipe_units::{ByteCount, Span};
use serde::Deserialize;

use super::values::{Count, Share};
use super::{Action, Config, Interface, SatelliteLeg};

/// A segment is kept for a round trip, and for one more each time it is lost: bandwidth-delay products of a leg.
const PRODUCTS: u64 = 3;
/// One packet of the largest size must fit.
const LEAST_CACHE: ByteCount = ByteCount::new(64 << 10);
/// Each takes memory in the kernel's set and in the agent; beyond this the number is more likely a slip.
const MOST_FLOWS: usize = 1_000_000;
/// More would be a sender of its own.
const MOST_RETRANSMISSIONS: usize = 100;
/// A shorter timer would repeat what is only late.
const LEAST_TIMER: std::time::Duration = std::time::Duration::from_millis(1);

/// `[snoop]`: all keys have defaults; they count where a rule says `snoop`.
#[derive(Debug, Clone, Copy, PartialEq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SnoopSettings {
    /// IP bytes of segments that are kept at the most, of all flows together; by default three bandwidth-delay products of
    /// each satellite leg that a rule with `snoop` concerns.
    pub cache: Option<ByteCount>,
    /// Flows that are looked after at a time; 100,000 by default.
    pub flows: Option<Count>,
    /// How often a segment is sent again at the most; 5 by default.
    pub retransmissions: Option<Count>,
    /// The local retransmission timer is never shorter; 200 ms by default.
    pub timer_floor: Option<Span>,
    /// Whether SACK blocks are taken out of what passes to the sender during a local repair; true by default.
    pub hide_sack: Option<bool>,
    /// A loss while the flow's round trip is above this share of the way from its shortest to its longest is taken for an overflow
    /// of the queue before the satellite, and left to the sender; 0.75 by default. `off`: no loss is.
    pub congested_above: Option<Share>,
}

impl Config {
    /// What the agent is to do, if any rule says `snoop`.
    pub fn snoop_config(&self) -> Option<SnoopConfig> {
        let SnoopSettings { cache, flows, retransmissions, timer_floor, hide_sack, congested_above } =
            self.snoop;
        let usual = SnoopConfig::with_cache(cache.unwrap_or_else(|| self.usual_snoop_cache()));
        self.wants_snoop().then(|| SnoopConfig {
            flows: flows.map_or(usual.flows, Count::get),
            retransmissions: retransmissions
                .and_then(|count| u32::try_from(count.get()).ok())
                .unwrap_or(usual.retransmissions),
            timer_floor: timer_floor.map_or(usual.timer_floor, Span::get),
            hide_sack: hide_sack.unwrap_or(usual.hide_sack),
            congested_above: congested_above.map_or(usual.congested_above, Share::get),
            ..usual
        })
    }

    /// What the cache should be, as far as the rates of the legs are known.
    pub fn usual_snoop_cache(&self) -> ByteCount {
        let product = |leg: &SatelliteLeg| leg.rate.map_or(0, |rate| rate.bytes_in(leg.rtt.get()));
        let sum = self.snooped_legs().fold(0u64, |sum, (_, leg)| sum.saturating_add(product(leg)));
        ByteCount::new(sum.saturating_mul(PRODUCTS)).max(LEAST_CACHE)
    }

    /// The legs whose flows some rule has snooped, with their names.
    fn snooped_legs(&self) -> impl Iterator<Item = (&String, &SatelliteLeg)> {
        let is_ground = |name: &Interface| self.legs.values().all(|leg| leg.interface != *name);
        let concerns = move |leg: &SatelliteLeg| {
            let is_leg = |name: &Interface| *name == leg.interface;
            let rules = self.rules.iter().filter(|rule| rule.action == Action::Snoop);
            rules
                .into_iter()
                .any(|rule| rule.may_concern(is_ground, is_leg) || rule.may_concern(is_leg, is_ground))
        };
        self.legs.iter().filter(move |(_, leg)| concerns(leg))
    }
}

/// What is wrong with these settings, or lacking for them.
pub(super) fn contradiction(config: &Config) -> Option<String> {
    let SnoopSettings { cache, flows, retransmissions, timer_floor, hide_sack: _, congested_above: _ } =
        config.snoop;
    if let Some(cache) = cache.filter(|&cache| cache < LEAST_CACHE) {
        return Some(format!(
            "snoop.cache = \"{cache}\" does not hold a single packet of any size; write at least \"{LEAST_CACHE}\""
        ));
    }
    let bounds = [("flows", flows, MOST_FLOWS), ("retransmissions", retransmissions, MOST_RETRANSMISSIONS)];
    for (key, count, most) in bounds {
        if let Some(count) = count.map(Count::get).filter(|&count| count > most) {
            return Some(format!("snoop.{key} = {count} is too much; write at most {most}"));
        }
    }
    if let Some(floor) = timer_floor.filter(|floor| floor.get() < LEAST_TIMER) {
        return Some(format!("snoop.timer_floor = \"{floor}\" is too short; write at least \"1ms\""));
    }
    let (name, _) = config.snooped_legs().find(|(_, leg)| leg.rate.is_none()).filter(|_| cache.is_none())?;
    Some(format!(
        "a rule says snoop, and the size of its cache follows from the rates of the legs, but leg {name} has none; \
         write legs.{name}.rate = \"10Mbit/s\", or snoop.cache = \"2MB\""
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULE: &str = "[[rules]]\naction = \"snoop\"\n";

    fn parse(legs: &str, rest: &str) -> Result<Config, String> {
        Config::parse("x", &format!("{legs}{rest}")).map_err(|error| error.to_string())
    }

    /// Two legs, one of 10 Mbit/s and 600 ms (750 kB), one of 1 Mbit/s and 40 ms (5 kB).
    const LEGS: &str = "[legs.a]\ninterface = \"sat0\"\nrate = \"10Mbit/s\"\n\
                        [legs.b]\ninterface = \"sat1\"\nrate = \"1Mbit/s\"\nrtt = \"40ms\"\n";

    #[test]
    fn the_cache_is_three_products_of_the_legs_that_are_concerned() {
        for (condition, bytes) in [
            ("", 3 * 755_000),
            ("server_interface = \"sat0\"\n", 3 * 750_000),
            ("client_interface = \"sat0\"\n", 3 * 750_000),
            ("server_interface = [\"sat0\", \"sat1\"]\n", 3 * 755_000),
            // From ground to ground nothing is taken.
            ("server_interface = \"wan0\"\nclient_interface = \"lan0\"\n", 64 << 10),
            ("server_interface = \"wan0\"\n", 3 * 755_000),
        ] {
            let config = parse(LEGS, &format!("{RULE}{condition}")).unwrap();
            assert_eq!(config.snoop_config().unwrap().cache, ByteCount::new(bytes), "{condition}");
        }
    }

    #[test]
    fn without_a_rule_there_is_no_agent_and_its_section_does_no_harm() {
        let config = parse("[legs.a]\ninterface = \"sat0\"\n", "[snoop]\nflows = 5\n").unwrap();
        assert_eq!(config.snoop_config(), None);
    }

    #[test]
    fn a_leg_without_a_rate_needs_a_cache_if_it_is_concerned() {
        let legs = format!("{LEGS}[legs.c]\ninterface = \"sat2\"\n");
        let error = parse(&legs, RULE).unwrap_err();
        assert!(
            error.contains("leg c has none; write legs.c.rate") && error.contains("snoop.cache"),
            "{error}"
        );
        assert!(parse(&legs, &format!("{RULE}[snoop]\ncache = \"1MB\"\n")).is_ok());
        assert!(parse(&legs, &format!("{RULE}server_interface = \"sat0\"\n")).is_ok());
        assert!(parse(&legs, "").is_ok());
    }

    #[test]
    fn a_loss_is_taken_for_congestion_above_a_share_or_never() {
        for (line, above) in [
            ("", 0.75),
            ("congested_above = 0.75\n", 0.75),
            ("congested_above = 0.9\n", 0.9),
            ("congested_above = \"off\"\n", f64::INFINITY),
        ] {
            let config = parse(LEGS, &format!("[snoop]\n{line}{RULE}")).unwrap();
            assert_eq!(config.snoop_config().unwrap().congested_above, above, "{line}");
        }
    }

    #[test]
    fn what_could_not_work_is_refused_with_what_could() {
        for (line, says) in [
            ("cache = \"10kB\"", "write at least \"65.536kB\""),
            ("flows = 2000000", "write at most 1000000"),
            ("flows = 0", "0 is not a limit"),
            ("retransmissions = 101", "write at most 100"),
            ("timer_floor = \"10us\"", "write at least \"1ms\""),
            ("congested_above = 1", "1 is not a share of a range; write a number above 0 and below 1"),
            ("congested_above = nan", "or \"off\""),
            ("congested_above = inf", "or \"off\""),
            ("congested_above = 0", "0 is not a share"),
            ("congested_above = \"of\"", "\"of\" is not"),
            ("congested_above = true", "a number above 0 and below 1, or \"off\""),
            ("window = 7", "unknown field `window`"),
        ] {
            let error = parse(LEGS, &format!("[snoop]\n{line}\n{RULE}")).unwrap_err();
            assert!(error.contains(says) && !error.contains('\n'), "{line}: {error}");
        }
    }
}
