//! The radii and the answers for a path, against closed forms and against the paper.

use std::time::Duration;

use bentpipe_radius::{Answer, Catalogue, Path, Role, Verdict};
use proptest::prelude::*;

fn limit(name: &str) -> Option<f64> {
    let catalogue = Catalogue::embedded();
    let protocol = catalogue.protocol(name).unwrap_or_else(|| panic!("no {name}"));
    catalogue.reach(protocol).limit.map(|limit| limit.as_secs_f64())
}

fn inner(name: &str) -> Option<f64> {
    let catalogue = Catalogue::embedded();
    let protocol = catalogue.protocol(name).unwrap_or_else(|| panic!("no {name}"));
    catalogue.reach(protocol).inner.map(|inner| inner.as_secs_f64())
}

fn over(name: &str, delay: Duration, outage: Duration) -> Answer {
    let catalogue = Catalogue::embedded();
    catalogue.verdict(catalogue.protocol(name).unwrap(), Path { delay, outage })
}

fn minutes(number: u64) -> Duration {
    Duration::from_secs(60 * number)
}

#[test]
fn the_paper_s_radii_come_out() {
    assert_eq!(limit("TCP, OPNET 11.5"), Some(22.5));
    assert_eq!(limit("TCP, Windows Server 2003"), Some(4.5));
    assert_eq!(limit("TCP, ns-2"), None);
    for name in ["TCP, OPNET 11.5", "TCP, Windows Server 2003", "TCP, ns-2", "TCP, RFC 793 and 1122"] {
        assert_eq!(inner(name), Some(1.5), "{name}");
    }
}

#[test]
fn the_paper_s_kilometres_come_out() {
    let km = |seconds: f64| bentpipe_radius::kilometres(Duration::from_secs_f64(seconds));
    assert_eq!((km(22.5) / 1e5).round(), 67.0, "6.7 million km");
    assert_eq!((km(4.5) / 1e5).round(), 13.0, "1.3 million km");
}

#[test]
fn a_third_radius_is_where_the_round_trip_passes_the_longest_timeout() {
    let ceiling = |name: &str| {
        let catalogue = Catalogue::embedded();
        catalogue.reach(catalogue.protocol(name).unwrap()).ceiling.map(|ceiling| ceiling.as_secs_f64())
    };
    assert_eq!(ceiling("TCP, RFC 9293 and 6298"), Some(30.0), "RFC 6298 §2.5 allows a ceiling of 60 s");
    assert_eq!(ceiling("TCP, Linux"), Some(60.0), "beyond the reach of its SYN-ACK");
    assert_eq!(ceiling("TCP, ns-2"), None, "only its SYNs are in the catalogue");
    assert_eq!(ceiling("Bundle Protocol 7, RFC 9171"), None);
}

#[test]
fn a_registration_of_mobile_ip_is_as_old_as_its_way_is_long() {
    assert_eq!(limit("Mobile IPv4, RFC 5944"), Some(7.0));
    assert_eq!(limit("CFDP, class 1"), None);
}

#[test]
fn linux_is_bound_by_the_server_s_memory_and_not_by_its_syns() {
    let catalogue = Catalogue::embedded();
    let linux = catalogue.protocol("TCP, Linux").unwrap();
    let reach = catalogue.reach(linux);
    let limit = |role| {
        let index = linux.timers.iter().position(|timer| timer.role == role).unwrap();
        reach.timers[index].limit.unwrap().as_secs_f64()
    };
    assert_eq!(limit(Role::SetUp), 65.5);
    assert_eq!(limit(Role::HalfOpen), 33.5);
    assert_eq!(limit(Role::Exchange), 462.3);
    assert_eq!(reach.limit, Some(Duration::from_millis(33_500)));
    assert_eq!(reach.perhaps, Some(Duration::from_millis(49_500)));
    assert_eq!(reach.limited_by.as_deref(), Some("SYN-ACK"));
}

#[test]
fn other_closed_forms_hold() {
    let expected = [
        ("TCP, RFC 9293 and 6298", 50.0),
        ("QUIC, quic-go", 2.5),
        ("SCTP, RFC 9260", 30.0),
        ("DNS, glibc resolver", 5.0),
        ("DHCP, RFC 2131", 30.0),
        ("NTP, RFC 5905", 1.0),
        ("SIP, RFC 3261", 16.0),
        ("SSH, OpenSSH", 12.0),
        ("HTTPS, Go net/http", 5.0),
        ("BGP-4, RFC 4271", 33.5),
    ];
    for (name, seconds) in expected {
        assert_eq!(limit(name), Some(seconds), "{name}");
    }
    assert_eq!(inner("SIP, RFC 3261"), Some(0.25));
}

#[test]
fn a_limit_of_the_protocol_below_is_named_with_its_owner() {
    let catalogue = Catalogue::embedded();
    let bgp = catalogue.reach(catalogue.protocol("BGP-4, RFC 4271").unwrap());
    assert_eq!(bgp.limited_by.as_deref(), Some("SYN-ACK of TCP, Linux"));
}

#[test]
fn every_entry_has_a_source_and_the_inner_radius_lies_within_the_limit() {
    let catalogue = Catalogue::embedded();
    assert!(catalogue.protocols().len() >= 25);
    for protocol in catalogue.protocols() {
        assert!(protocol.timers.iter().all(|timer| !timer.source.is_empty()), "{}", protocol.name);
        let reach = catalogue.reach(protocol);
        if let (Some(inner), Some(limit)) = (reach.inner, reach.limit) {
            assert!(inner <= limit, "{}: {inner:?} {limit:?}", protocol.name);
        }
    }
    assert!(catalogue.places().iter().all(|place| !place.source.is_empty()));
}

#[test]
fn every_protocol_works_over_a_geostationary_satellite() {
    let catalogue = Catalogue::embedded();
    let geo = Path { delay: catalogue.places()[0].delay, outage: Duration::ZERO };
    for protocol in catalogue.protocols() {
        let answer = catalogue.verdict(protocol, geo);
        assert_ne!(answer.verdict, Verdict::Fails, "{}: {}", protocol.name, answer.why);
        assert!(answer.needs.is_empty());
    }
}

#[test]
fn sip_says_everything_twice_over_a_geostationary_satellite() {
    let answer = over("SIP, RFC 3261", Duration::from_millis(278), Duration::ZERO);
    assert_eq!(answer.verdict, Verdict::Reduced);
    assert!(answer.why.contains("at least 2 times"), "{}", answer.why);
}

#[test]
fn on_mars_only_protocols_that_never_time_out_work() {
    let catalogue = Catalogue::embedded();
    let mars = catalogue.places().iter().find(|place| place.name == "Mars, nearest").unwrap().delay;
    let path = Path { delay: mars, outage: Duration::ZERO };
    for protocol in catalogue.protocols() {
        let fails = catalogue.verdict(protocol, path).verdict == Verdict::Fails;
        assert_eq!(fails, catalogue.reach(protocol).limit.is_some(), "{}", protocol.name);
    }
}

#[test]
fn linux_tcp_is_told_the_settings_for_eight_minutes() {
    let answer = over("TCP, Linux", minutes(8), Duration::ZERO);
    let settings: Vec<&str> = answer.needs.iter().map(|need| need.setting.as_str()).collect();
    assert_eq!(
        settings,
        [
            "net.ipv4.tcp_syn_retries: at least 13",
            "net.ipv4.tcp_synack_retries: at least 13",
            "TCP_USER_TIMEOUT: at least 960 s"
        ]
    );
    assert!(!answer.only_store_and_forward);
}

#[test]
fn an_outage_adds_to_the_wait_of_a_connection_and_not_to_that_of_a_handshake() {
    let answer = over("TCP, Linux", Duration::from_millis(300), minutes(20));
    assert_eq!(answer.verdict, Verdict::Fails);
    assert_eq!(answer.needs.len(), 1, "{answer:?}");
    assert_eq!(answer.needs[0].setting, "TCP_USER_TIMEOUT: at least 1321 s");
}

#[test]
fn an_outage_ends_the_session_with_a_silent_peer() {
    let answer = over("OSPFv2, RFC 2328", Duration::from_millis(300), Duration::from_secs(31));
    assert_eq!(answer.verdict, Verdict::Fails);
    assert_eq!(answer.needs[0].setting, "RouterDeadInterval of both routers: at least 41 s");
    assert_eq!(over("OSPFv2, RFC 2328", minutes(8), Duration::ZERO).verdict, Verdict::Reduced);
}

#[test]
fn a_hold_time_of_sixteen_bits_ends_at_eighteen_hours() {
    let hours = |number: u64| over("BGP-4, RFC 4271", minutes(8), minutes(60 * number));
    assert!(!hours(18).only_store_and_forward);
    assert!(hours(19).only_store_and_forward);
    assert!(hours(19).needs.iter().any(|need| need.setting.ends_with("ends at 65535 s")));
}

#[test]
fn wireguard_s_key_of_five_seconds_leaves_store_and_forward_only() {
    assert!(over("WireGuard", minutes(8), Duration::ZERO).only_store_and_forward);
}

#[test]
fn the_bundle_protocol_works_wherever_and_however_long_the_outage() {
    let answer = over("Bundle Protocol 7, RFC 9171", minutes(600), minutes(100_000));
    assert_eq!(answer.verdict, Verdict::Works, "{}", answer.why);
}

#[test]
fn first_answers_count_the_round_trips() {
    assert_eq!(over("SSH, OpenSSH", minutes(8), Duration::ZERO).first_answer, minutes(96));
}

fn rank(verdict: Verdict) -> u8 {
    match verdict {
        Verdict::Works => 0,
        Verdict::Reduced => 1,
        Verdict::Fails => 2,
    }
}

proptest! {
    #[test]
    fn farther_is_never_better(near in 0.0f64..2000.0, more in 0.0f64..2000.0, outage in 0u64..10_000, index in 0usize..100) {
        let catalogue = Catalogue::embedded();
        let protocol = &catalogue.protocols()[index % catalogue.protocols().len()];
        let at = |delay| {
            let path = Path { delay: Duration::from_secs_f64(delay), outage: Duration::from_secs(outage) };
            rank(catalogue.verdict(protocol, path).verdict)
        };
        prop_assert!(at(near) <= at(near + more), "{}", protocol.name);
    }

    #[test]
    fn without_an_outage_the_verdict_agrees_with_the_radii(delay in 0.0f64..600.0, index in 0usize..100) {
        let catalogue = Catalogue::embedded();
        let protocol = &catalogue.protocols()[index % catalogue.protocols().len()];
        let reach = catalogue.reach(protocol);
        let delay = Duration::from_secs_f64(delay);
        let verdict = catalogue.verdict(protocol, Path { delay, outage: Duration::ZERO }).verdict;
        let expected = match (reach.limit, reach.inner) {
            (Some(limit), _) if delay > limit => Verdict::Fails,
            (_, Some(inner)) if delay > inner => Verdict::Reduced,
            _ => Verdict::Works,
        };
        prop_assert_eq!(verdict, expected, "{}", &protocol.name);
    }

    #[test]
    fn a_longer_wait_never_needs_a_smaller_setting(needed in 1u64..20_000, index in 0usize..200) {
        let catalogue = Catalogue::embedded();
        let settings: Vec<_> = catalogue.protocols().iter()
            .flat_map(|protocol| &protocol.timers).filter_map(|timer| timer.setting.as_ref()).collect();
        let setting = settings[index % settings.len()];
        let value = |seconds| setting.value_for(Duration::from_secs(seconds)).unwrap_or(u64::MAX);
        prop_assert!(value(needed) <= value(needed + 1), "{}", setting.name());
    }
}
