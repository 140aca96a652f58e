//! Checks of `[legs.NAME.protect]` and of the rules that need it.

use bentpipe_config::{Checks, InTable, Problem};

use super::{Action, Config, SatelliteLeg};
use bentpipe_kernel::congestion::EXPLICIT;

/// Checks the settings, and that rules and legs fit each other.
pub(super) fn check(config: &Config, checks: &mut Checks<'_>) {
    for (name, leg) in &config.legs {
        let key = format!("legs.{name}.protect");
        checks.check(&[&key, &format!("legs.{name}.congestion"), &format!("legs.{name}.rate")], || {
            check_leg(leg).inside("protect").inside(name.as_str()).inside("legs")
        });
    }
    checks.check(&["legs", "rules"], || check_rules(config).inside("rules"));
}

fn check_leg(leg: &SatelliteLeg) -> Result<(), Problem> {
    let Some(settings) = &leg.protect else { return Ok(()) };
    settings.check().map_err(|(key, message)| Problem::of(key, message))?;
    if leg.congestion() != EXPLICIT && leg.rate.is_none() {
        let message = format!(
            "frames need a rate to be sent at: the leg has none, and congestion = \"{}\" finds none; write rate = \"10Mbit/s\" in the leg, or congestion = \"explicit\"",
            leg.congestion()
        );
        return Err(Problem::new(message));
    }
    Ok(())
}

/// A rule that protects needs a leg with a peer.
fn check_rules(config: &Config) -> Result<(), Problem> {
    let first = config.rules.iter().position(|rule| rule.action == Action::Protect);
    let Some(index) = first.filter(|_| config.legs.values().all(|leg| leg.protect.is_none())) else {
        return Ok(());
    };
    let leg = config.legs.keys().next().map_or("satellite", String::as_str);
    let message = format!(
        "protect needs a box at the other end of a leg, and no leg has one; write [legs.{leg}.protect] with peer = \"192.0.2.2\" and key_file, or action = \"pass\""
    );
    Err(Problem::new(message).inside(index))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: &str = "[legs.a.protect]\npeer = \"192.0.2.2\"\nkey_file = \"/k\"\n";
    const RULE: &str = "[[rules]]\naction = \"protect\"\n";

    fn parse(leg: &str, rest: &str) -> Result<Config, String> {
        Config::parse("x", &format!("[legs.a]\ninterface = \"sat0\"\n{leg}{rest}"))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn a_rule_that_protects_needs_a_leg_with_a_peer() {
        let config = parse("", &format!("{PEER}{RULE}")).unwrap();
        assert!(config.wants_protect());
        assert!(!parse("", PEER).unwrap().wants_protect(), "no rule says so");
        let error = parse("", RULE).unwrap_err();
        assert!(error.contains("x:3: rules[1]: protect needs a box at the other end"), "{error}");
    }

    #[test]
    fn frames_need_a_rate() {
        let error = parse("congestion = \"hybla\"\n", PEER).unwrap_err();
        assert!(error.contains("frames need a rate") && error.contains("legs.a.protect"), "{error}");
        parse("congestion = \"hybla\"\nrate = \"10Mbit/s\"\n", PEER).unwrap();
    }

    #[test]
    fn a_leg_without_a_key_is_refused() {
        let error = parse("", "[legs.a.protect]\npeer = \"192.0.2.2\"\n").unwrap_err();
        assert!(error.contains("legs.a.protect.key_file: is missing"), "{error}");
    }

    #[test]
    fn a_protocol_goes_with_protect_and_ports_with_protocols_that_have_them() {
        let rule = |text: &str| parse("", &format!("{PEER}[[rules]]\n{text}"));
        rule("action = \"protect\"\nprotocol = [\"udp\", \"esp\", 47]\n").unwrap();
        rule("action = \"protect\"\nprotocol = \"udp\"\nport = 443\n").unwrap();
        let error = rule("action = \"pass\"\nprotocol = \"udp\"\n").unwrap_err();
        assert!(error.contains("protocol goes with action = \"protect\" only"), "{error}");
        let error = rule("action = \"protect\"\nprotocol = \"esp\"\nport = 443\n").unwrap_err();
        assert!(error.contains("esp has no ports"), "{error}");
    }
}
