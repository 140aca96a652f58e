//! `[snoop]`: how much the gateway keeps of the flows that it does not split, and how it sends it again.

use bentpipe_config::{Checks, InTable, Off, Or, Problem, Whole};
use bentpipe_link::agent::snoop::{Pace, SnoopConfig};
use bentpipe_units::{ByteCount, Rate, Span};
use serde::Deserialize;

use super::change::key_effects;
use super::{Action, Config, Interface, SatelliteLeg};

/// A segment is kept for a round trip, and for one more each time it is lost: bandwidth-delay products of a
/// leg.
const PRODUCTS: u64 = 3;
/// One packet of the largest size must fit.
const LEAST_BYTES: ByteCount = ByteCount::new(64 << 10);
/// A shorter timer would repeat what is only late.
const LEAST_TIMER: std::time::Duration = std::time::Duration::from_millis(1);

/// `[snoop]`: all keys have defaults; they count where a rule says `snoop`.
#[derive(Debug, Clone, Copy, PartialEq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SnoopSettings {
    /// IP bytes of segments that are kept at the most, of all flows together; by default three
    /// bandwidth-delay products of each satellite leg that a rule with `snoop` concerns.
    pub cache: Option<ByteCount>,
    /// Flows that are looked after at a time; 100,000 by default. Each takes memory in the kernel's set and
    /// in the agent; beyond a million the number is more likely a slip.
    pub flows: Option<Whole<usize, 1, 1_000_000>>,
    /// How often a segment is sent again at the most; 5 by default.
    /// More than a hundred would be a sender of its own.
    pub retransmissions: Option<Whole<u32, 1, 100>>,
    /// The local retransmission timer is never shorter; 200 ms by default.
    pub timer_floor: Option<Span>,
    /// Whether SACK blocks are taken out of what passes to the sender during a local repair; true by default.
    pub hide_sack: Option<bool>,
    /// Whether losses that are likely to be the queue's before the satellite are repaired too, unseen by the
    /// sender; false by default: it is to slow down.
    pub hide_congestion: Option<bool>,
    /// How many copies of a segment go out when it is sent again; 2 by default.
    /// Ten are all lost less often than anything else goes wrong.
    pub copies: Option<Whole<u32, 1, 10>>,
    /// At which rate packets go to the satellite; by default a little less than the leg's, and none where
    /// several legs are concerned, because the agent serves all of them and does not know over which a packet
    /// goes.
    pub pace: Option<Or<Off, Rate>>,
    /// IP bytes of packets that wait for their turn at the most; by default two bandwidth-delay products.
    /// Only with a pace.
    pub queue: Option<ByteCount>,
}

key_effects!(SnoopSettings {
    cache: Now,
    flows: Now,
    retransmissions: Now,
    timer_floor: Now,
    hide_sack: Now,
    hide_congestion: Now,
    copies: Now,
    pace: Now,
    queue: Now,
});

impl Config {
    /// What the agent is to do, if any rule says `snoop`.
    pub fn snoop_config(&self) -> Option<SnoopConfig> {
        let settings = self.snoop;
        let usual = SnoopConfig::with_cache(settings.cache.unwrap_or_else(|| self.usual_snoop_cache()));
        self.wants_snoop().then(|| SnoopConfig {
            cache: usual.cache,
            flows: settings.flows.map_or(usual.flows, Whole::get),
            retransmissions: settings.retransmissions.map_or(usual.retransmissions, Whole::get),
            timer_floor: settings.timer_floor.map_or(usual.timer_floor, Span::get),
            hide_sack: settings.hide_sack.unwrap_or(usual.hide_sack),
            hide_congestion: settings.hide_congestion.unwrap_or(usual.hide_congestion),
            detection: usual.detection,
            copies: settings.copies.map_or(usual.copies, Whole::get),
            pace: self.snoop_pace(),
        })
    }

    /// That of the only leg that is concerned, unless there is another or none.
    fn snoop_pace(&self) -> Option<Pace> {
        let mut legs = self.snooped_legs();
        let (Some((_, leg)), None) = (legs.next(), legs.next()) else { return None };
        let round_trip = leg.rtt.get();
        let pace = match self.snoop.pace.map(|pace| pace.value) {
            Some(None) => return None,
            Some(Some(rate)) => Pace { rate, ..Pace::for_link(rate, round_trip) },
            None => Pace::for_link(leg.rate?, round_trip),
        };
        Some(Pace { queue: self.snoop.queue.unwrap_or(pace.queue), ..pace })
    }

    /// What the cache should be, as far as the rates of the legs are known.
    pub fn usual_snoop_cache(&self) -> ByteCount {
        let product = |leg: &SatelliteLeg| leg.rate.map_or(0, |rate| rate.bytes_in(leg.rtt.get()));
        let sum = self.snooped_legs().fold(0u64, |sum, (_, leg)| sum.saturating_add(product(leg)));
        ByteCount::new(sum.saturating_mul(PRODUCTS)).max(LEAST_BYTES)
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

/// Checks the settings, and that they have what they need of the legs.
pub(super) fn check(config: &Config, checks: &mut Checks<'_>) {
    let settings = &config.snoop;
    for (key, bytes) in [("cache", settings.cache), ("queue", settings.queue)] {
        checks.check(&[&format!("snoop.{key}")], || check_size(key, bytes).inside("snoop"));
    }
    checks.check(&["snoop.timer_floor"], || check_timer(settings.timer_floor).inside("snoop"));
    let of_legs = ["legs.*.rate", "legs.*.interface", "rules"];
    checks.check(&[&of_legs[..], &["snoop.cache"]].concat(), || check_cache(config).inside("snoop"));
    checks.check(&[&of_legs[..], &["snoop.pace", "snoop.queue"]].concat(), || {
        check_pace(config).inside("snoop")
    });
}

fn check_size(key: &str, bytes: Option<ByteCount>) -> Result<(), Problem> {
    let Some(bytes) = bytes.filter(|&bytes| bytes < LEAST_BYTES) else { return Ok(()) };
    let message =
        format!("\"{bytes}\" does not hold a single packet of any size; write at least \"{LEAST_BYTES}\"");
    Err(Problem::of(key, message))
}

fn check_timer(floor: Option<Span>) -> Result<(), Problem> {
    match floor.filter(|floor| floor.get() < LEAST_TIMER) {
        Some(floor) => {
            Err(Problem::of("timer_floor", format!("\"{floor}\" is too short; write at least \"1ms\"")))
        }
        None => Ok(()),
    }
}

fn check_cache(config: &Config) -> Result<(), Problem> {
    let mut legs = config.snooped_legs().filter(|_| config.snoop.cache.is_none());
    let Some((name, _)) = legs.find(|(_, leg)| leg.rate.is_none()) else { return Ok(()) };
    let message = format!(
        "a rule says snoop, and the size of its cache follows from the rates of the legs, but leg {name} has none; write \
         legs.{name}.rate = \"10Mbit/s\", or snoop.cache = \"2MB\""
    );
    Err(Problem::of("cache", message))
}

/// A pace that cannot be kept, or a queue in which nothing waits, is refused.
fn check_pace(config: &Config) -> Result<(), Problem> {
    let legs: Vec<&str> = config.snooped_legs().map(|(name, _)| name.as_str()).collect();
    let SnoopSettings { pace, queue, .. } = config.snoop;
    match (&legs[..], pace.and_then(|pace| pace.value)) {
        ([_, _, ..], Some(rate)) => {
            let message = format!(
                "\"{rate}\" would be that of the legs {} together: one agent serves all of them, and does not know over which \
                 a packet goes; leave snoop.pace out, or let the rules that say snoop concern one leg",
                legs.join(" and ")
            );
            Err(Problem::of("pace", message))
        }
        ([first, ..], _) if queue.is_some() && config.snoop_pace().is_none() => {
            let message = format!(
                "it holds packets that wait for their turn, but there is no pace: it is \"off\", or leg {first} has no rate, \
                 or there are several; leave snoop.queue out, or see that there is a pace"
            );
            Err(Problem::of("queue", message))
        }
        _ => Ok(()),
    }
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

    /// The pace of the agent, bits per second, and its queue, bytes.
    fn pace(legs: &str, rest: &str) -> Option<(u64, u64)> {
        let config = parse(legs, rest).unwrap();
        config.snoop_config().unwrap().pace.map(|pace| (pace.rate.bps(), pace.queue.get()))
    }

    #[test]
    fn the_pace_is_that_of_the_only_leg_that_is_concerned() {
        for (condition, expected) in [
            ("", None),
            ("server_interface = \"sat0\"\n", Some((9_850_000, 1_500_000))),
            ("client_interface = \"sat1\"\n", Some((985_000, 24_000))),
            ("server_interface = [\"sat0\", \"sat1\"]\n", None),
        ] {
            assert_eq!(pace(LEGS, &format!("{RULE}{condition}")), expected, "{condition}");
        }
        let unknown = "[legs.a]\ninterface = \"sat0\"\n";
        assert_eq!(pace(unknown, &format!("{RULE}[snoop]\ncache = \"1MB\"\n")), None, "it has no rate");
    }

    #[test]
    fn the_pace_may_be_another_or_none_and_its_queue_another() {
        let one = format!("{RULE}server_interface = \"sat0\"\n");
        for (lines, expected) in [
            ("pace = \"8Mbit/s\"", Some((8_000_000, 1_200_000))),
            ("pace = \"8Mbit/s\"\nqueue = \"500kB\"", Some((8_000_000, 500_000))),
            ("queue = \"500kB\"", Some((9_850_000, 500_000))),
            ("pace = \"off\"", None),
        ] {
            assert_eq!(pace(LEGS, &format!("[snoop]\n{lines}\n{one}")), expected, "{lines}");
        }
        assert_eq!(pace(LEGS, &format!("[snoop]\npace = \"off\"\n{RULE}")), None, "as of several legs");
        let unknown = "[legs.a]\ninterface = \"sat0\"\n";
        let written = format!("[snoop]\ncache = \"1MB\"\npace = \"1Mbit/s\"\n{RULE}");
        assert_eq!(pace(unknown, &written), Some((1_000_000, 150_000)));
    }

    #[test]
    fn a_pace_that_cannot_be_kept_and_a_queue_without_one_are_refused() {
        let one = format!("{RULE}server_interface = \"sat0\"\n");
        let unknown = "[legs.c]\ninterface = \"sat2\"\n";
        for (legs, lines, rule, says) in [
            (LEGS, "pace = \"8Mbit/s\"", RULE, "of the legs a and b together: one agent serves all of them"),
            (LEGS, "queue = \"500kB\"", RULE, "but there is no pace"),
            (LEGS, "pace = \"off\"\nqueue = \"500kB\"", one.as_str(), "but there is no pace: it is \"off\""),
            (unknown, "cache = \"1MB\"\nqueue = \"500kB\"", RULE, "leg c has no rate"),
        ] {
            let error = parse(legs, &format!("[snoop]\n{lines}\n{rule}")).unwrap_err();
            assert!(error.contains(says) && !error.contains('\n'), "{lines}: {error}");
            assert!(parse(legs, &format!("[snoop]\n{lines}\n")).is_ok(), "without a rule it does no harm");
        }
    }

    #[test]
    fn copies_and_hidden_congestion_are_the_agents() {
        let config =
            |lines: &str| parse(LEGS, &format!("[snoop]\n{lines}\n{RULE}")).unwrap().snoop_config().unwrap();
        let SnoopConfig { copies, hide_congestion, .. } = config("");
        assert_eq!((copies, hide_congestion), (2, false));
        let SnoopConfig { copies, hide_congestion, .. } = config("copies = 3\nhide_congestion = true");
        assert_eq!((copies, hide_congestion), (3, true));
    }

    #[test]
    fn unworkable_settings_are_refused_with_workable_ones() {
        for (line, says) in [
            ("cache = \"10kB\"", "write at least \"65.536kB\""),
            ("flows = 2000000", "between 1 and 1000000"),
            ("flows = 0", "0 is not a whole number between 1 and"),
            ("retransmissions = 101", "between 1 and 100"),
            ("timer_floor = \"10us\"", "write at least \"1ms\""),
            ("copies = 11", "between 1 and 10"),
            ("copies = 0", "0 is not a whole number between 1 and"),
            ("queue = \"10kB\"", "write at least \"65.536kB\""),
            ("hide_congestion = 1", "neither true nor false"),
            ("pace = \"of\"", "; or write \"off\""),
            ("pace = \"0\"", "; or write \"off\""),
            ("pace = 9", "9\" is not a bit rate: it has no unit; write pace = \"9Mbit/s\"; or write \"off\""),
            ("congested_above = 0.75", "snoop.congested_above: there is no such key"),
            ("window = 7", "snoop.window: there is no such key"),
        ] {
            let error = parse(LEGS, &format!("[snoop]\n{line}\n{RULE}")).unwrap_err();
            assert!(error.contains(says), "{line}: {error}");
            assert!(error.lines().all(|line| line.starts_with("x:")), "{line}: {error}");
        }
    }
}
