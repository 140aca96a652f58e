//! Tests of the configuration file that is shipped: it is documentation, and must not say what is not so.

use std::time::Duration;

use bentpipe_config::shipped::{missing_keys, with_every_key};

use super::Config;

const FILE: &str = "dist/bentpipe.toml";
const TEXT: &str = include_str!("../../../../dist/bentpipe.toml");

fn parse(text: &str) -> Config {
    Config::parse(FILE, text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

#[test]
fn the_shipped_file_is_a_configuration_as_it_is_and_with_every_key() {
    let config = parse(TEXT);
    assert_eq!((config.legs.len(), config.rules.len()), (1, 0));
    let full = parse(&with_every_key(TEXT));
    assert_eq!(full.rules.len(), TEXT.matches("# [[rules]]").count());
    assert!(full.rules.len() >= 3 && full.limits.connections.is_some());
}

#[test]
fn every_key_that_there_is_stands_in_the_shipped_file() {
    for header in [
        "[proxy]",
        "[legs.satellite]",
        "[legs.satellite.protect]",
        "[terrestrial]",
        "[limits]",
        "[snoop]",
        "[bundle]",
        "[admin]",
        "[access_log]",
        "[[rules]]",
    ] {
        let missing = missing_keys(TEXT, header, |text| Config::parse(FILE, text));
        assert!(missing.is_empty(), "{header} lacks {missing:?}");
    }
}

/// Keys whose default depends on the machine, or that are off by default, say so in words.
#[test]
fn commented_out_values_are_the_defaults() {
    let (plain, full) = (parse(TEXT), parse(&with_every_key(TEXT)));
    assert_eq!(full.proxy.port, plain.proxy.port);
    assert_eq!(full.proxy.relay, plain.proxy.relay);
    assert_eq!(full.proxy.handshake, plain.proxy.handshake);
    let [plain_leg, full_leg] = [&plain, &full].map(|config| &config.legs["satellite"]);
    assert_eq!(full_leg.congestion(), plain_leg.congestion());
    assert_eq!((full_leg.rtt, full_leg.fast_open), (plain_leg.rtt, plain_leg.fast_open));
    assert_eq!(full_leg.far_box, plain_leg.far_box);
    let outage = plain.longest_outage();
    assert!(outage > Duration::ZERO);
    assert_eq!(full.limits.connecting(), plain.limits.connecting());
    assert_eq!(full.limits.idle(outage), plain.limits.idle(outage));
    assert_eq!(full.limits.half_closed(outage), plain.limits.half_closed(outage));
    assert_eq!(full.limits.at_limit, plain.limits.at_limit);
    assert_eq!(full.bundle, plain.bundle);
    assert_eq!((&full.admin.folder, full.admin.listen), (&plain.admin.folder, plain.admin.listen));
    let logs = [&plain, &full].map(|config| {
        let log = &config.access_log;
        (log.journal, log.format, log.max_size(), log.keep())
    });
    assert_eq!(logs[0], logs[1]);
    assert!(!plain.access_log.is_on());
    let by_default = Config { snoop: plain.snoop, ..full.clone() };
    assert_eq!(full.snoop_config().unwrap(), by_default.snoop_config().unwrap());
}
