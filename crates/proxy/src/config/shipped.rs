//! Tests of the configuration file that is shipped: it is documentation, and must not say what is not so.

use std::time::Duration;

use super::Config;

const FILE: &str = "dist/bentpipe.toml";
const TEXT: &str = include_str!("../../../../dist/bentpipe.toml");

/// The file as an operator has it who has taken the hash from every key.
fn with_every_key() -> String {
    TEXT.lines()
        .map(|line| key_in_comment(line).unwrap_or(line))
        .fold(String::new(), |text, line| text + line + "\n")
}

/// `key = value` or `[table]` of a line that has only that behind its hash.
fn key_in_comment(line: &str) -> Option<&str> {
    let text = line.strip_prefix("# ")?;
    let (key, _) = text.split_once(" = ").unwrap_or(("", ""));
    let is_key = !key.is_empty() && key.chars().all(|c| c.is_ascii_lowercase() || c == '_');
    (is_key || text.starts_with('[')).then_some(text)
}

fn parse(text: &str) -> Config {
    Config::parse(FILE, text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// The keys that a table takes, by what the parser says of one that it does not.
fn keys_of(header: &str) -> Vec<String> {
    let text = format!("{header}\nno_such_key = 1\n");
    let error = toml::from_str::<Config>(&text).unwrap_err().to_string();
    let (_, expected) = error.split_once("expected ").unwrap_or_else(|| panic!("{header}: {error}"));
    expected.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

#[test]
fn the_shipped_file_is_a_configuration_as_it_is_and_with_every_key() {
    let config = parse(TEXT);
    assert_eq!((config.legs.len(), config.rules.len()), (1, 0));
    let full = parse(&with_every_key());
    assert_eq!(full.rules.len(), TEXT.matches("# [[rules]]").count());
    assert!(full.rules.len() >= 3 && full.limits.connections.is_some());
}

#[test]
fn every_key_that_there_is_stands_in_the_shipped_file() {
    let text = with_every_key();
    for header in
        ["[proxy]", "[legs.satellite]", "[terrestrial]", "[limits]", "[snoop]", "[bundle]", "[admin]"]
    {
        let (_, after) = text.split_once(&format!("\n{header}\n")).unwrap_or_else(|| panic!("no {header}"));
        let section: Vec<&str> = after.lines().take_while(|line| !line.starts_with('[')).collect();
        let keys = keys_of(header);
        assert!(!keys.is_empty(), "{header}");
        for key in keys {
            let written = section.iter().any(|line| line.starts_with(&format!("{key} = ")));
            assert!(written, "{header} lacks {key}");
        }
    }
    for key in keys_of("[[rules]]") {
        assert!(text.contains(&format!("\n{key} = ")), "[[rules]] lacks {key}");
    }
}

/// Keys whose default depends on the machine, or that are off by default, say so in words.
#[test]
fn what_is_commented_out_is_the_default() {
    let (plain, full) = (parse(TEXT), parse(&with_every_key()));
    assert_eq!(full.proxy.port, plain.proxy.port);
    assert_eq!(full.proxy.relay, plain.proxy.relay);
    assert_eq!(full.proxy.handshake, plain.proxy.handshake);
    let [plain_leg, full_leg] = [&plain, &full].map(|config| &config.legs["satellite"]);
    assert_eq!(full_leg.congestion(), plain_leg.congestion());
    assert_eq!((full_leg.rtt, full_leg.fast_open), (plain_leg.rtt, plain_leg.fast_open));
    let outage = plain.longest_outage();
    assert!(outage > Duration::ZERO);
    assert_eq!(full.limits.connecting(), plain.limits.connecting());
    assert_eq!(full.limits.idle(outage), plain.limits.idle(outage));
    assert_eq!(full.limits.half_closed(outage), plain.limits.half_closed(outage));
    assert_eq!(full.limits.at_limit, plain.limits.at_limit);
    assert_eq!(full.bundle, plain.bundle);
    assert_eq!((&full.admin.folder, full.admin.listen), (&plain.admin.folder, plain.admin.listen));
    let by_default = Config { snoop: plain.snoop, ..full.clone() };
    assert_eq!(full.snoop_config().unwrap(), by_default.snoop_config().unwrap());
}
