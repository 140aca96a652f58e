//! Logs in mahimahi's format, read as `mm-throughput-graph` and `mm-delay-graph` read them.

use bentpipe_sim::{LinkResult, TraceContent};

use super::capture::traced;

/// The sums of a log: bytes that could be carried, that came, that arrived and that were lost.
fn sums(log: &str) -> [u64; 4] {
    let mut sums = [0; 4];
    let mut last = 0;
    for line in log.lines().filter(|line| !line.starts_with('#')) {
        let fields: Vec<&str> = line.split(' ').collect();
        let number = |field: usize| fields[field].parse::<u64>().unwrap_or_else(|_| panic!("{line}"));
        assert!(number(0) >= last, "{line}");
        last = number(0);
        match (fields[1], fields.len()) {
            ("#", 3) => sums[0] += number(2),
            ("+", 3) => sums[1] += number(2),
            ("-", 4) => sums[2] += number(2),
            ("d", 4) => sums[3] += number(3),
            _ => panic!("{line}"),
        }
    }
    sums
}

#[test]
fn each_direction_has_a_log_with_all_its_packets_and_what_it_could_have_carried() {
    let folder = tempfile::tempdir().unwrap();
    let content = TraceContent { mahimahi: true, ..TraceContent::default() };
    let settings = ["flow.split.bytes=2MB", "link.satellite.per=3%"];
    let (scenario, result) = traced(folder.path(), "geo-download.toml", &settings, content);
    for (spec, link) in scenario.links.iter().zip(&result.links) {
        let LinkResult { forward, reverse, .. } = link;
        for (direction, counters, config) in
            [("forward", forward, &spec.config.forward), ("reverse", reverse, &spec.config.reverse)]
        {
            let path = folder.path().join(format!("{}-{direction}.log", spec.name));
            let log = std::fs::read_to_string(path).unwrap();
            assert!(log.lines().any(|line| line == "# base timestamp: 0"), "{log}");
            let [could, came, arrived, lost] = sums(&log);
            assert_eq!(came, counters.offered_bytes);
            assert_eq!(lost, counters.offered_bytes - counters.delivered_bytes);
            // What ends the connections may still be on its way.
            assert!((counters.delivered_bytes - 200..=counters.delivered_bytes).contains(&arrived));
            let last = log.lines().last().unwrap().split(' ').next().unwrap().parse::<u64>().unwrap();
            let rate = config.rate.unwrap();
            let expected = rate.bytes_in(std::time::Duration::from_millis(last + 1));
            assert_eq!(could, expected, "{} {direction}", spec.name);
        }
    }
    let lost: u64 = result.links.iter().map(|link| link.forward.offered - link.forward.delivered).sum();
    assert!(lost > 10);
}
