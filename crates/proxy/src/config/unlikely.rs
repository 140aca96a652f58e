//! What is accepted, but hardly meant: most often a slip in a unit.

use std::time::Duration;

use bentpipe_config::{Checks, Problem};
use bentpipe_units::{Rate, Span};

use super::{Config, SatelliteLeg};

/// No link to a geostationary satellite that carries TCP is slower.
const SLOW: Rate = match Rate::from_bps(10_000) {
    Some(rate) => rate,
    None => unreachable!(),
};
/// No satellite link is faster.
const FAST: Rate = Rate::mbps(100_000);
/// A round trip over a geostationary satellite takes at least 480 ms (ITU-T G.114 Annex A gives 260 ms one
/// way).
const GEOSTATIONARY: Duration = Duration::from_millis(400);
/// TCP from the earth to the moon takes 2.6 s; beyond minutes its handshake reaches nothing.
const LONG: Duration = Duration::from_secs(120);
/// A loopback interface is faster than that.
const SHORT: Duration = Duration::from_micros(100);
/// An outage that no timer of TCP lives through.
const DAYS: Duration = Duration::from_secs(7 * 24 * 3600);

/// Warns of values of the legs that are hardly meant.
pub(super) fn look(config: &Config, checks: &mut Checks<'_>) {
    for (name, leg) in &config.legs {
        let found = [rate(leg), round_trip(leg), cap(leg), outage(leg)];
        for problem in found.into_iter().flatten() {
            checks.warn(&["legs.*"], || Some(problem.inside(name.as_str()).inside("legs")));
        }
    }
}

fn rate(leg: &SatelliteLeg) -> Option<Problem> {
    let (rate, rtt) = (leg.rate?, leg.rtt.get());
    let message = match rate {
        _ if rate < SLOW && rtt >= GEOSTATIONARY => format!(
            "\"{rate}\" is very slow for a link of {} round trip: a packet of 1500 bytes takes {}; write for example rate = \
             \"10Mbit/s\", if that was a slip",
            leg.rtt,
            Span(round(rate.time_for(1500)))
        ),
        _ if rate > FAST => {
            format!(
                "\"{rate}\" is more than any satellite link carries; write for example rate = \"10Mbit/s\", if that was a slip"
            )
        }
        _ => return None,
    };
    Some(Problem::of("rate", message))
}

fn round_trip(leg: &SatelliteLeg) -> Option<Problem> {
    let rtt = leg.rtt;
    let what = match rtt.get() {
        time if time > LONG => "farther than TCP's handshake of most hosts reaches",
        time if time < SHORT => "shorter than any link's",
        _ => return None,
    };
    let message = format!(
        "\"{rtt}\" is {what}; write for example rtt = \"600ms\" for a geostationary satellite, if that was a slip"
    );
    Some(Problem::of("rtt", message))
}

/// A connection at such a rate would carry nothing.
fn cap(leg: &SatelliteLeg) -> Option<Problem> {
    let cap = leg.pacing_cap.filter(|&cap| cap < SLOW)?;
    let message = format!(
        "\"{cap}\" for each connection is very slow; write for example pacing_cap = \"8Mbit/s\", if that was a slip"
    );
    Some(Problem::of("pacing_cap", message))
}

fn outage(leg: &SatelliteLeg) -> Option<Problem> {
    let outage = leg.survive_outage.filter(|outage| outage.get() > DAYS)?;
    let message = format!(
        "\"{outage}\" keeps connections of clients that are long gone; write the longest outage that you expect, for example \
         survive_outage = \"25m\""
    );
    Some(Problem::of("survive_outage", message))
}

/// To the millisecond.
fn round(time: Duration) -> Duration {
    Duration::from_millis(u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bentpipe_config::Document;

    fn warnings(leg: &str) -> Vec<String> {
        let text = format!("[legs.geo]\ninterface = \"sat0\"\n{leg}");
        let read = Config::of(&Document::parse("x", &text).unwrap()).unwrap();
        read.warnings.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_slip_in_a_unit_is_warned_of_with_its_line() {
        for (leg, says) in [
            (
                "rate = \"9kbit/s\"",
                "x:3: legs.geo.rate: \"9kbit/s\" is very slow for a link of 600ms round trip",
            ),
            ("rate = \"10bit/s\"", "a packet of 1500 bytes takes 1200s; write for example"),
            ("rate = \"200Gbit/s\"", "more than any satellite link carries"),
            ("rtt = \"10m\"", "x:3: legs.geo.rtt: \"600s\" is farther than"),
            ("rtt = \"60us\"", "shorter than any link's"),
            ("pacing_cap = \"8kbit/s\"", "x:3: legs.geo.pacing_cap: "),
            ("survive_outage = \"250h\"", "long gone"),
        ] {
            let found = warnings(leg);
            assert!(found.len() == 1 && found[0].contains(says), "{leg}: {found:?}");
        }
    }

    #[test]
    fn what_links_have_is_not_warned_of() {
        for leg in [
            "",
            "rate = \"10Mbit/s\"",
            "rate = \"2400bit/s\"\nrtt = \"40ms\"",
            "rate = \"10kbit/s\"",
            "rtt = \"2600ms\"",
        ] {
            assert_eq!(warnings(leg), [""; 0], "{leg}");
        }
    }
}
