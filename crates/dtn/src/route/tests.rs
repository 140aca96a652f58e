use proptest::prelude::*;

use super::*;

const NOW: DtnTime = DtnTime::from_millis(1000);

fn eid(text: &str) -> Eid {
    text.parse().unwrap()
}

fn at(millis: u64) -> DtnTime {
    DtnTime::from_millis(millis)
}

/// A contact of 8 kbit/s, a byte each millisecond, without delay.
fn contact(from: &str, to: &str, start: u64, end: u64) -> Contact {
    let rate = Rate::from_bps(8000).unwrap();
    Contact { from: eid(from), to: eid(to), start: at(start), end: at(end), rate, delay: Duration::ZERO }
}

fn routes(neighbours: &[&str], statics: &[(&str, &str)], contacts: Vec<Contact>) -> Routes {
    let mut routes = Routes::new(&eid("dtn://me/"));
    neighbours.iter().for_each(|peer| routes.add_neighbour(&eid(peer)));
    statics.iter().for_each(|(pattern, via)| routes.add_route(pattern.parse().unwrap(), &eid(via)));
    contacts.into_iter().for_each(|contact| routes.add_contact(contact).unwrap());
    routes
}

/// The peer, from and until, of a bundle of 100 bytes to an endpoint.
fn way(routes: &Routes, destination: &str) -> Option<(String, u64, Option<u64>)> {
    match routes.next(&eid(destination), 100, NOW, &[]) {
        Decision::Via { peer, from, until, .. } => {
            Some((peer.to_string(), from.millis(), until.map(DtnTime::millis)))
        }
        Decision::NoRoute => None,
    }
}

fn peer(routes: &Routes, destination: &str) -> Option<String> {
    way(routes, destination).map(|(peer, ..)| peer)
}

#[test]
fn neighbours_then_the_most_precise_route() {
    let routes = routes(
        &["dtn://a/", "dtn://b/", "dtn://c/"],
        &[("*", "dtn://a/"), ("dtn://moon/*", "dtn://b/"), ("dtn://moon/base", "dtn://c/")],
        vec![],
    );
    assert_eq!(way(&routes, "dtn://b/x"), Some(("dtn://b/".into(), 1000, None)));
    assert_eq!(peer(&routes, "dtn://moon/base").as_deref(), Some("dtn://c/"));
    assert_eq!(peer(&routes, "dtn://moon/crater").as_deref(), Some("dtn://b/"));
    assert_eq!(peer(&routes, "ipn:9.1").as_deref(), Some("dtn://a/"));
    let except = |except: &[&str]| {
        let except: Vec<Eid> = except.iter().map(|text| eid(text)).collect();
        routes.next(&eid("dtn://moon/base"), 1, NOW, &except)
    };
    assert!(matches!(except(&["dtn://c/"]), Decision::Via { peer, .. } if peer == eid("dtn://b/")));
    assert_eq!(except(&["dtn://a/", "dtn://b/x", "dtn://c/"]), Decision::NoRoute);
}

#[test]
fn of_equal_routes_the_first() {
    let routes = routes(&[], &[("dtn://m*", "dtn://a/"), ("dtn://m*", "dtn://b/")], vec![]);
    assert_eq!(peer(&routes, "dtn://moon/").as_deref(), Some("dtn://a/"));
}

#[test]
fn no_peer_is_reached_outside_its_contacts() {
    let mut routes = routes(
        &["dtn://a/"],
        &[("dtn://far/*", "dtn://a/")],
        vec![contact("dtn://me/", "dtn://a/", 0, 1050), contact("dtn://me/", "dtn://a/", 5000, 9000)],
    );
    // 50 ms of the first contact are left, and 100 bytes need 100.
    for destination in ["dtn://a/x", "dtn://far/x"] {
        assert_eq!(way(&routes, destination), Some(("dtn://a/".into(), 5000, Some(9000))));
    }
    let small = routes.next(&eid("dtn://a/x"), 50, NOW, &[]);
    let (peer, until) = (eid("dtn://a/"), Some(at(1050)));
    assert_eq!(small, Decision::Via { peer, from: NOW, until, fits: 50 });
    routes.remove_neighbour(&eid("dtn://a/"));
    assert_eq!(routes.next(&eid("dtn://a/x"), 100, at(9000), &[]), Decision::NoRoute);
}

#[test]
fn an_oversized_bundle_is_fragmented() {
    // 100 bytes each millisecond.
    let fast = |from, to, start, end| Contact {
        rate: Rate::from_bps(800_000).unwrap(),
        ..contact(from, to, start, end)
    };
    let routes = routes(
        &[],
        &[],
        vec![
            // First there is room for less than is worth a fragment.
            fast("dtn://me/", "dtn://d/", 1000, 1010),
            fast("dtn://d/", "dtn://b/", 1000, 2000),
            fast("dtn://me/", "dtn://a/", 2000, 3000),
            fast("dtn://a/", "dtn://b/", 2500, 2600),
            fast("dtn://me/", "dtn://c/", 2000, 9000),
            fast("dtn://c/", "dtn://b/", 9500, 9800),
        ],
    );
    let decision = |len| routes.next(&eid("dtn://b/x"), len, NOW, &[]);
    let via = |peer: &str, until, fits| {
        let (peer, from, until) = (eid(peer), at(2000), Some(at(until)));
        Decision::Via { peer, from, until, fits }
    };
    assert_eq!(decision(10_000), via("dtn://a/", 3000, 10_000));
    assert_eq!(decision(30_000), via("dtn://c/", 9000, 30_000), "whole, though later");
    assert_eq!(decision(30_001), via("dtn://a/", 3000, 10_000), "whole nowhere");
}

#[test]
fn the_plan_leads_over_neighbours_that_are_always_there() {
    let plan = vec![contact("dtn://a/", "dtn://b/", 2000, 3000)];
    assert_eq!(peer(&routes(&["dtn://a/"], &[], plan.clone()), "dtn://b/x").as_deref(), Some("dtn://a/"));
    assert_eq!(peer(&routes(&[], &[], plan), "dtn://b/x"), None);
}

#[test]
fn delay_and_rate_count() {
    let fast = Contact { delay: Duration::from_millis(500), ..contact("dtn://me/", "dtn://a/", 0, 9000) };
    let slow = Contact { rate: Rate::from_bps(800).unwrap(), ..contact("dtn://me/", "dtn://b/", 0, 9000) };
    let ends = |contact: &Contact, len| contact.arrival(len, NOW).map(DtnTime::millis);
    assert_eq!((ends(&fast, 100), ends(&slow, 100)), (Some(1600), Some(2000)));
    assert_eq!((ends(&fast, 8000), ends(&fast, 8001)), (Some(9500), None));
    assert_eq!(fast.arrival(0, at(9000)), None);
    let onward = [contact("dtn://a/", "dtn://z/", 0, 9000), contact("dtn://b/", "dtn://z/", 0, 9000)];
    let routes = routes(&[], &[], [vec![fast, slow], onward.to_vec()].concat());
    assert_eq!(peer(&routes, "dtn://z/").as_deref(), Some("dtn://a/"));
    let tiny = routes.next(&eid("dtn://z/"), 1, NOW, &[]);
    assert!(matches!(tiny, Decision::Via { peer, .. } if peer == eid("dtn://b/")));
}

#[test]
fn changes_are_those_of_this_node() {
    let routes = routes(
        &[],
        &[],
        vec![
            contact("dtn://me/", "dtn://a/", 2000, 3000),
            contact("dtn://a/", "dtn://me/", 1500, 1600),
            contact("dtn://me/", "dtn://b/", 500, 2500),
        ],
    );
    let changes: Vec<_> = std::iter::successors(Some(NOW), |&now| routes.next_change(now)).skip(1).collect();
    assert_eq!(changes, [at(2000), at(2500), at(3000)]);
}

#[test]
fn contacts_that_cannot_be() {
    let mut routes = Routes::new(&eid("dtn://me/"));
    let error = routes.add_contact(contact("dtn://me/", "dtn://a/", 5, 5)).unwrap_err().to_string();
    assert!(error.contains("dtn://a/") && error.contains("later"), "{error}");
    assert!(routes.add_contact(contact("dtn://me/", "dtn://me/x", 1, 5)).is_err());
    assert!(routes.add_contact(contact("dtn:none", "dtn://me/", 1, 5)).is_err());
}

fn node(number: u64) -> Eid {
    Eid::Ipn { node: number + 1, service: 0, form: crate::IpnForm::Two }
}

prop_compose! {
    fn any_contact()(
        ends in (0..5_u64, 1..5_u64), times in (0..3000_u64, 1..1500_u64), rate in 1..9_u64, delay in 0..300_u64,
    ) -> Contact {
        Contact {
            from: node(ends.0),
            to: node((ends.0 + ends.1) % 5),
            start: at(times.0),
            end: at(times.0 + times.1),
            rate: Rate::from_bps(rate * 2000).unwrap(),
            delay: Duration::from_millis(delay),
        }
    }
}

/// The earliest arrival over all ways without a node twice, each tried.
fn exhaustive(
    plan: &[Contact],
    here: &Eid,
    target: &Eid,
    len: u64,
    now: DtnTime,
    seen: &[Eid],
) -> Option<DtnTime> {
    if here == target {
        return Some(now);
    }
    let seen = [seen, std::slice::from_ref(here)].concat();
    plan.iter()
        .filter(|contact| contact.from == *here && !seen.contains(&contact.to))
        .filter_map(|contact| {
            let start = contact.start.max(now).millis();
            let busy = (len * 8000).div_ceil(contact.rate.bps());
            let end = start + busy;
            let fits = start < contact.end.millis() && end <= contact.end.millis();
            let arrival = at(end + u64::try_from(contact.delay.as_millis()).unwrap());
            fits.then(|| exhaustive(plan, &contact.to, target, len, arrival, &seen)).flatten()
        })
        .min()
}

proptest! {
    #[test]
    fn the_first_way_is_the_first_of_all(
        contacts in prop::collection::vec(any_contact(), 1..12), len in 0..600_u64, now in 0..2000_u64,
        always in any::<bool>(),
    ) {
        let (me, target, now) = (node(0), node(4), at(now));
        let mut plan = Plan::default();
        contacts.iter().for_each(|contact| plan.add(contact.clone()));
        // A neighbour outside of the plan is like a contact that is always there and takes no time.
        let neighbour = node(1);
        let always = always && !plan.has(&me, &neighbour);
        let over = always.then_some(&neighbour);
        let found = plan.earliest(&me, over.as_slice(), &target, len, now, &|_| true);
        let direct = exhaustive(&contacts, &me, &target, len, now, &[]);
        let over_neighbour =
            over.and_then(|node| exhaustive(&contacts, node, &target, len, now, std::slice::from_ref(&me)));
        let best = [direct, over_neighbour].into_iter().flatten().min();
        prop_assert_eq!(found.as_ref().map(|(arrival, _)| *arrival), best);
        if let Some((_, first)) = found {
            prop_assert!(first.fits >= len);
            if let Some(contact) = first.contact {
                prop_assert!(contact.from == me && contact.to == *first.peer);
            }
        }
    }
}
