//! Links with a protected leg.

use bentpipe_sim::file::{Setting, Source};
use bentpipe_sim::scenario::{Hop, PROTECTED_MTU, Scenario};
use bentpipe_sim::{LinkResult, Observer, OfferedPacket, ProtectResult, RunResult, run};
use bentpipe_tcp::Config;

use crate::world::scene::flow;
use crate::world::{MB, go};

const PROTECTED: &str = include_str!("../../../../../scenarios/protected-leg.toml");
/// The satellite among its links.
const SATELLITE: usize = 1;

fn scenario(settings: &[&str]) -> Scenario {
    let settings: Vec<Setting> = settings.iter().map(|setting| setting.parse().unwrap()).collect();
    Source::parse("scenarios/protected-leg.toml", PROTECTED).unwrap().with(&settings).unwrap()
}

fn mbps(result: &RunResult) -> f64 {
    result.flows[0].goodput_bps / 1e6
}

fn ends(link: &LinkResult) -> [ProtectResult; 2] {
    let ends: Vec<ProtectResult> = link.ends.iter().map(|end| end.protect.unwrap()).collect();
    ends.try_into().unwrap()
}

/// The longest packet that is offered to a link.
#[derive(Default)]
struct Longest(Vec<usize>);

impl Observer for Longest {
    fn watches_packets(&self) -> bool {
        true
    }

    fn packet(&mut self, offered: &OfferedPacket<'_>) {
        self.0.resize(self.0.len().max(offered.link + 1), 0);
        self.0[offered.link] = self.0[offered.link].max(offered.segment.ip_length());
    }
}

#[test]
fn cubic_gets_most_of_a_lossy_link_and_little_without_the_leg() {
    let goodput = |settings: &[&str]| mbps(&go(&scenario(settings), 1));
    let [protected, end_to_end] = [goodput(&[]), goodput(&["link.satellite.protect=off"])];
    println!("PER 1%: {protected:.2} Mbit/s protected, {end_to_end:.2} without");
    assert!(protected > 6.5 && end_to_end < 1.0, "{protected} {end_to_end}");
    let clean = ["link.satellite.per=0"];
    let [protected, end_to_end] =
        [goodput(&clean), goodput(&["link.satellite.per=0", "link.satellite.protect=off"])];
    println!("PER 0: {protected:.2} Mbit/s protected, {end_to_end:.2} without");
    assert!(protected > 0.9 * end_to_end, "{protected} {end_to_end}");
}

#[test]
fn a_run_is_the_same_to_the_byte_for_the_same_seed_and_another_for_another() {
    let scenario = scenario(&["duration=20s"]);
    let json = |seed| serde_json::to_string(&go(&scenario, seed)).unwrap();
    assert_eq!(json(1), json(1));
    assert_ne!(json(1), json(2));
}

#[test]
fn a_leg_that_is_off_is_none() {
    let without = PROTECTED.replace("protect = { class = \"auto\" }\n", "");
    let without = Source::parse("s", &without).unwrap().with(&[]).unwrap();
    let off = scenario(&["link.satellite.protect=off"]);
    assert_eq!(go(&off, 3), go(&without, 3));
}

#[test]
fn nearly_all_of_what_the_link_loses_is_repaired_and_comes_in_order() {
    let settings = ["link.satellite.per=5%", "link.satellite.protect.class=bulk", "flow.download.bytes=20MB"];
    let result = go(&scenario(&settings), 2);
    let (flow, call) = (&result.flows[0], &result.udp[0].receivers[0]);
    assert!(flow.finished, "{flow:?}");
    // What is skipped is all that TCP has to send again; what overtakes nothing is not sent twice.
    assert!(flow.retransmissions * 200 < flow.legs[0].segments, "{flow:?}");
    assert!(call.lost * 200 < call.received && call.duplicates == 0, "{call:?}");
    let [gateway, terminal] = ends(&result.links[SATELLITE]);
    assert!(terminal.repaired * 50 > terminal.delivered, "{terminal:?}");
    assert!(terminal.delivered * 1000 > gateway.packets * 995, "{gateway:?} {terminal:?}");
    assert_eq!((gateway.sessions, gateway.unprotected, terminal.refused), (1, 0, 0));
}

#[test]
fn segments_are_as_long_as_fits_into_frames_and_frames_fit_into_the_link() {
    let mut longest = Longest::default();
    let result = run(&scenario(&["duration=10s"]), 1, &mut longest);
    assert_eq!(longest.0[0], usize::from(PROTECTED_MTU), "on the internet");
    let carried = result.links[SATELLITE].forward;
    assert!(carried.offered_bytes <= 1500 * carried.offered, "{carried:?}");
}

#[test]
fn a_leg_that_is_silent_lets_packets_pass_and_goes_on_after_the_outage() {
    let outage = "link.satellite.outages=[{ start = \"10s\", duration = \"20s\" }]";
    let result = go(&scenario(&[outage, "link.satellite.per=0"]), 1);
    let [gateway, terminal] = ends(&result.links[SATELLITE]);
    assert!(gateway.unprotected > 0 && gateway.dropped > 0, "{gateway:?}");
    assert_eq!((gateway.sessions, terminal.sessions), (1, 1));
    // 30 of 60 seconds, one or two of them until TCP's timer finds the link again.
    let call = &result.udp[0].receivers[0];
    assert!(mbps(&result) > 2.5 && call.received > 1700, "{} {call:?}", mbps(&result));
}

#[test]
fn frames_that_are_duplicated_reordered_or_damaged_deliver_nothing_twice_or_wrong() {
    let impaired = [
        "link.satellite.duplicate=5%",
        "link.satellite.reorder=5%",
        "link.satellite.corrupt=1%",
        "flow.download.bytes=5MB",
    ];
    let result = go(&scenario(&impaired), 4);
    assert!(result.flows[0].finished && result.udp[0].receivers[0].duplicates == 0, "{result:?}");
    let [_, terminal] = ends(&result.links[SATELLITE]);
    assert!(terminal.refused > 0, "{terminal:?}");
}

#[test]
fn packets_find_their_way_over_several_legs_in_both_directions() {
    let mut scenario = scenario(&["link.internet.protect={}", "link.house.protect={ class = \"latency\" }"]);
    scenario.flows[0].bytes = Some(MB);
    let mut upload = flow(&scenario, Some(MB), Config::default());
    upload.legs[0].path = (0..3).rev().map(|link| Hop { link, forward: false }).collect();
    scenario.flows.push(upload);
    let result = go(&scenario, 1);
    assert!(result.flows.iter().all(|flow| flow.finished), "{result:?}");
    assert!(result.links.iter().all(|link| ends(link).iter().all(|end| end.delivered > 0)), "{result:?}");
}
