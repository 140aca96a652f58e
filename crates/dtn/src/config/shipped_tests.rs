//! Tests of the configuration file that is shipped: it is documentation, and must not say what is not so.

use bentpipe_config::shipped::{missing_keys, with_every_key};

use super::NodeConfig;

const FILE: &str = "dist/node.toml";
const TEXT: &str = include_str!("../../../../dist/node.toml");

fn parse(text: &str) -> NodeConfig {
    NodeConfig::parse(FILE, text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

#[test]
fn the_shipped_file_is_a_configuration_as_it_is_and_with_every_key() {
    let config = parse(TEXT);
    assert_eq!((config.legs.len(), config.peers.len(), config.contacts.len()), (1, 1, 0));
    let full = parse(&with_every_key(TEXT));
    assert_eq!((full.routes.len(), full.contacts.len(), full.peers.len()), (1, 1, 4));
    assert!(full.ltp.is_some() && full.udp.is_some() && full.peers[1].ltp.is_some());
    assert_eq!((full.inlets.len(), full.outlets.len()), (2, 3));
    assert_eq!((config.security.len(), full.security.len()), (0, 1));
}

#[test]
fn every_key_that_there_is_stands_in_the_shipped_file() {
    let missing = |header: &str| missing_keys(TEXT, header, |text| NodeConfig::parse(FILE, text));
    let headers = [
        "[node]",
        "[[listen]]",
        "[[peers]]",
        "[peers.ltp]",
        "[ltp]",
        "[peers.udp]",
        "[udp]",
        "[[routes]]",
        "[[contacts]]",
        "[[security]]",
    ];
    for header in headers {
        assert!(missing(header).is_empty(), "{header} lacks {:?}", missing(header));
    }
    // What both kinds take is shown of one.
    for (table, of_both) in [("[[inlets]]", &["lifetime", "reports"][..]), ("[[outlets]]", &["undelivered"])]
    {
        let http = missing(&format!("{table}\nkind = \"http\""));
        let folder = missing(&format!("{table}\nkind = \"folder\""));
        let is_of_both = |key: &String| of_both.contains(&key.as_str());
        assert!(http.is_empty() && folder.iter().all(is_of_both), "{table}: {http:?}, {folder:?}");
    }
}

#[test]
fn commented_out_values_are_the_defaults() {
    let (plain, full) = (parse(TEXT), parse(&with_every_key(TEXT)));
    assert_eq!((plain.node.store, plain.node.socket), (full.node.store, full.node.socket));
    assert_eq!((plain.node.quota, plain.node.max_bundles), (full.node.quota, full.node.max_bundles));
    assert_eq!((plain.node.keep_free, plain.node.lifetime), (full.node.keep_free, full.node.lifetime));
    assert_eq!(plain.node.status_reports, full.node.status_reports);
    let [plain, full] = [&plain.peers[0], &full.peers[0]];
    assert_eq!((plain.lenient, plain.retry_within), (full.lenient, full.retry_within));
}
