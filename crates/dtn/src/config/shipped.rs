//! Tests of the configuration file that is shipped: it is documentation, and must not say what is not so.

use super::NodeConfig;

const FILE: &str = "dist/node.toml";
const TEXT: &str = include_str!("../../../../dist/node.toml");

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

fn parse(text: &str) -> NodeConfig {
    NodeConfig::parse(FILE, text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// The keys that a table takes, by what the parser says of one that it does not.
fn keys_of(header: &str) -> Vec<String> {
    let text = format!("[node]\nid = \"dtn://a/\"\n{header}\nno_such_key = 1\n")
        .replace("[node]\nid = \"dtn://a/\"\n[node]", "[node]");
    let error = toml::from_str::<NodeConfig>(&text).unwrap_err().to_string();
    let (_, expected) = error.split_once("expected ").unwrap_or_else(|| panic!("{header}: {error}"));
    expected.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

#[test]
fn the_shipped_file_is_a_configuration_as_it_is_and_with_every_key() {
    let config = parse(TEXT);
    assert_eq!((config.legs.len(), config.peers.len(), config.contacts.len()), (1, 1, 0));
    let full = parse(&with_every_key());
    assert_eq!((full.routes.len(), full.contacts.len()), (1, 1));
    assert_eq!((full.inlets.len(), full.outlets.len()), (2, 3));
}

#[test]
fn every_key_that_there_is_stands_in_the_shipped_file() {
    let text = with_every_key();
    for header in ["[node]", "[[listen]]", "[[peers]]", "[[routes]]", "[[contacts]]"] {
        let (_, after) = text.split_once(&format!("\n{header}\n")).unwrap_or_else(|| panic!("no {header}"));
        let section: Vec<&str> = after.lines().take_while(|line| !line.starts_with('[')).collect();
        for key in keys_of(header) {
            let written = section.iter().any(|line| line.starts_with(&format!("{key} = ")));
            assert!(written, "{header} lacks {key}");
        }
    }
}

/// The tables that come in kinds do not say all of their keys when one is wrong: here they are compared with the parsed values.
#[test]
fn every_key_of_inlets_and_outlets_stands_in_the_shipped_file() {
    let full = parse(&with_every_key());
    let (inlets, outlets) = (format!("{:?}", full.inlets), format!("{:?}", full.outlets));
    // What is not said is there as None, in every place where it could be.
    for (text, key, places) in
        [(&inlets, "lifetime", 2), (&outlets, "server", 2), (&outlets, "undelivered", 3)]
    {
        assert!(text.matches(&format!("{key}: None")).count() < places, "{key} stands nowhere");
    }
}

#[test]
fn what_is_commented_out_is_the_default() {
    let (plain, full) = (parse(TEXT), parse(&with_every_key()));
    assert_eq!((plain.node.store, plain.node.socket), (full.node.store, full.node.socket));
    assert_eq!((plain.node.quota, plain.node.max_bundles), (full.node.quota, full.node.max_bundles));
    assert_eq!((plain.node.keep_free, plain.node.lifetime), (full.node.keep_free, full.node.lifetime));
    assert_eq!(plain.node.status_reports, full.node.status_reports);
    let [plain, full] = [&plain.peers[0], &full.peers[0]];
    assert_eq!((plain.lenient, plain.retry_within), (full.lenient, full.retry_within));
}
