use bentpipe_units::{Rate, Span};
use proptest::prelude::*;

use super::*;
use crate::bundle::Priority::{Bulk, Expedited, Normal};

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
    let (from, to, start, end) = (eid(from), eid(to), at(start), at(end));
    Contact { from, to, start, end, rate, delay: Duration::ZERO, every: None, until: None }
}

/// The same again and again.
fn series(contact: Contact, every: u64, until: Option<u64>) -> Contact {
    Contact { every: Some(Span(Duration::from_millis(every))), until: until.map(at), ..contact }
}

fn load(len: u64) -> Load {
    Load { len, priority: Normal, expires: at(1_000_000), is_divisible: true }
}

fn routes(neighbours: &[&str], statics: &[(&str, &str)], contacts: Vec<Contact>) -> Routes {
    let mut routes = Routes::new(&eid("dtn://me/"));
    neighbours.iter().for_each(|peer| routes.add_neighbour(&eid(peer)));
    statics.iter().for_each(|(pattern, via)| routes.add_route(pattern.parse().unwrap(), &eid(via)));
    contacts.into_iter().for_each(|contact| routes.add_contact(contact).unwrap());
    routes
}

/// Peer, from, until and the bytes that fit.
fn without_hops(decision: Decision) -> (Eid, DtnTime, Option<DtnTime>, u64) {
    match decision {
        Decision::Via { peer, from, until, fits, .. } => (peer, from, until, fits),
        Decision::NoRoute => panic!("no route"),
    }
}

/// The peer, from and until, of a bundle of 100 bytes to an endpoint.
fn way(routes: &Routes, destination: &str) -> Option<(String, u64, Option<u64>)> {
    match routes.next(&eid(destination), &load(100), NOW, &[]) {
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
        routes.next(&eid("dtn://moon/base"), &load(1), NOW, &except)
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
    let small = routes.next(&eid("dtn://a/x"), &load(50), NOW, &[]);
    assert_eq!(without_hops(small), (eid("dtn://a/"), NOW, Some(at(1050)), 50));
    routes.remove_neighbour(&eid("dtn://a/"));
    assert_eq!(routes.next(&eid("dtn://a/x"), &load(100), at(9000), &[]), Decision::NoRoute);
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
    let decision = |len| without_hops(routes.next(&eid("dtn://b/x"), &load(len), NOW, &[]));
    let via = |peer: &str, until, fits| (eid(peer), at(2000), Some(at(until)), fits);
    assert_eq!(decision(10_000), via("dtn://a/", 3000, 10_000));
    assert_eq!(decision(30_000), via("dtn://c/", 9000, 30_000), "whole, though later");
    assert_eq!(decision(30_001), via("dtn://a/", 3000, 10_000), "whole nowhere");
    let whole = Load { is_divisible: false, ..load(30_001) };
    assert_eq!(routes.next(&eid("dtn://b/x"), &whole, NOW, &[]), Decision::NoRoute);
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
    let arrival = |contact: &Contact, len, now| {
        let mut plan = Plan::new(eid("dtn://me/"));
        plan.add(contact.clone());
        Some(plan.transmit(0, now, &wanted(len, &load(0), now))?.arrival.millis())
    };
    let ends = |contact: &Contact, len| arrival(contact, len, NOW);
    assert_eq!((ends(&fast, 100), ends(&slow, 100)), (Some(1600), Some(2000)));
    assert_eq!((ends(&fast, 8000), ends(&fast, 8001)), (Some(9500), None));
    assert_eq!(arrival(&fast, 0, at(9000)), None);
    let onward = [contact("dtn://a/", "dtn://z/", 0, 9000), contact("dtn://b/", "dtn://z/", 0, 9000)];
    let routes = routes(&[], &[], [vec![fast, slow], onward.to_vec()].concat());
    assert_eq!(peer(&routes, "dtn://z/").as_deref(), Some("dtn://a/"));
    let tiny = routes.next(&eid("dtn://z/"), &load(1), NOW, &[]);
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
    assert!(error.contains("dtn://a/") && error.contains("after start"), "{error}");
    assert!(routes.add_contact(contact("dtn://me/", "dtn://me/x", 1, 5)).is_err());
    assert!(routes.add_contact(contact("dtn:none", "dtn://me/", 1, 5)).is_err());
    let often = series(contact("dtn://me/", "dtn://a/", 1, 5), 3, None);
    let error = routes.add_contact(often).unwrap_err().to_string();
    assert!(error.contains("before this one ends"), "{error}");
    assert!(routes.add_contact(series(contact("dtn://me/", "dtn://a/", 1, 5), 4, Some(1))).is_err());
    assert!(routes.add_contact(series(contact("dtn://me/", "dtn://a/", 1, 5), 4, Some(2))).is_ok());
}

#[test]
fn a_series_goes_on_until_it_ends() {
    // 100 ms each second, from 500 on.
    let plan = |until| vec![series(contact("dtn://me/", "dtn://a/", 500, 600), 1000, until)];
    let next = |routes: &Routes, len, now| match routes.next(&eid("dtn://a/x"), &load(len), at(now), &[]) {
        Decision::Via { from, until, .. } => Some((from.millis(), until.map(DtnTime::millis).unwrap())),
        Decision::NoRoute => None,
    };
    let endless = routes(&["dtn://a/"], &[], plan(None));
    assert_eq!(next(&endless, 100, 0), Some((500, 600)));
    assert_eq!(next(&endless, 50, 550), Some((550, 600)));
    assert_eq!(next(&endless, 51, 550), Some((1500, 1600)));
    assert_eq!(next(&endless, 1, 600), Some((1500, 1600)));
    assert_eq!(next(&endless, 100, 987_654), Some((988_500, 988_600)));
    let open = |now| endless.open_for(&eid("dtn://a/"), at(now));
    assert_eq!([open(1499), open(1500), open(1590), open(1600)], [None, Some(100), Some(10), None]);
    assert_eq!([599, 600, 1550].map(|now| endless.next_change(at(now)).unwrap().millis()), [600, 1500, 1600]);
    let ending = routes(&["dtn://a/"], &[], plan(Some(2500)));
    assert_eq!(next(&ending, 1, 600), Some((1500, 1600)));
    assert_eq!((next(&ending, 1, 1600), ending.next_change(at(1600))), (None, None));
}

#[test]
fn contacts_beyond_the_horizon_and_after_the_lifetime_are_not_used() {
    let plan = vec![series(contact("dtn://me/", "dtn://a/", 5000, 6000), 10_000, None)];
    let routes = routes(&["dtn://a/"], &[], plan);
    let load = |expires| Load { expires: at(expires), ..load(10) };
    let next = |expires, now| routes.next(&eid("dtn://a/"), &load(expires), at(now), &[]);
    assert_eq!(next(5000, 0), Decision::NoRoute);
    assert_ne!(next(5001, 0), Decision::NoRoute);
    let year = u64::try_from(HORIZON.as_millis()).unwrap();
    let later = vec![contact("dtn://me/", "dtn://a/", 1000 + year, 2000 + year)];
    let routes = super::tests::routes(&["dtn://a/"], &[], later);
    let next = |now| routes.next(&eid("dtn://a/"), &load(u64::MAX), at(now), &[]);
    assert_eq!(next(1000), Decision::NoRoute);
    assert_ne!(next(1001), Decision::NoRoute);
}

#[test]
fn a_search_in_a_series_ends_whatever_is_booked() {
    let plan = vec![series(contact("dtn://me/", "dtn://a/", 0, 10), 10, None)];
    let mut routes = routes(&["dtn://a/"], &[], plan);
    let mut booked = 0;
    while let Decision::Via { hops, .. } = routes.next(&eid("dtn://a/"), &load(10), at(0), &[]) {
        routes.book(&hops, 10, Normal);
        booked += 1;
    }
    assert_eq!(booked, plan::MAX_OCCURRENCES);
    assert_ne!(routes.next(&eid("dtn://a/"), &load(10), at(10), &[]), Decision::NoRoute);
}

/// Routes a bundle of so many bytes, books its way, and returns the beginning of its first contact.
fn booked(routes: &mut Routes, to: &str, len: u64, priority: Priority) -> (u64, Vec<Hop>) {
    let load = Load { priority, ..load(len) };
    match routes.next(&eid(to), &load, NOW, &[]) {
        Decision::Via { from, hops, .. } => {
            routes.book(&hops, len, priority);
            (from.millis(), hops)
        }
        Decision::NoRoute => panic!("no route"),
    }
}

#[test]
fn a_backlog_does_not_overbook_the_first_contact() {
    let plan = vec![series(contact("dtn://me/", "dtn://a/", 2000, 3000), 10_000, None)];
    let mut routes = routes(&["dtn://a/"], &[], plan);
    let starts: Vec<u64> = (0..5).map(|_| booked(&mut routes, "dtn://a/x", 400, Normal).0).collect();
    assert_eq!(starts, [2000, 2000, 12_000, 12_000, 22_000]);
    // What is left of the first.
    assert_eq!(booked(&mut routes, "dtn://a/x", 200, Bulk).0, 2000);
    assert_eq!(booked(&mut routes, "dtn://a/x", 1, Bulk).0, 12_000);
    // Backlog of equal or higher priority counts, and the other does not.
    assert_eq!(booked(&mut routes, "dtn://a/x", 1000, Expedited).0, 2000);
    assert_eq!(booked(&mut routes, "dtn://a/x", 1, Normal).0, 12_000);
    assert_eq!(booked(&mut routes, "dtn://a/x", 1, Expedited).0, 12_000);
}

#[test]
fn what_is_returned_can_be_booked_again() {
    let plan = vec![
        contact("dtn://me/", "dtn://a/", 2000, 3000),
        contact("dtn://a/", "dtn://b/", 2000, 4000),
        contact("dtn://me/", "dtn://c/", 5000, 9000),
        contact("dtn://c/", "dtn://b/", 5000, 9000),
    ];
    let mut routes = routes(&[], &[], plan);
    let (start, hops) = booked(&mut routes, "dtn://b/x", 1000, Normal);
    assert_eq!((start, hops.len()), (2000, 2));
    let (later, other) = booked(&mut routes, "dtn://b/x", 1000, Normal);
    assert_eq!(later, 5000);
    routes.cancel(&other, 1000, Normal);
    routes.cancel(&hops, 1000, Normal);
    assert_eq!(booked(&mut routes, "dtn://b/x", 1000, Normal), (2000, hops.clone()));
    // It has left this node: the first contact is free, and the second is not.
    routes.cancel(&hops[..1], 1000, Normal);
    assert_eq!(booked(&mut routes, "dtn://b/x", 1000, Normal).0, 5000);
}

/// Two contacts in a row of the same rate carry as much as one: bundles follow each other.
#[test]
fn contacts_in_a_row_are_filled() {
    let mut routes = routes(
        &[],
        &[],
        vec![
            contact("dtn://me/", "dtn://a/", 0, 101_000),
            contact("dtn://a/", "dtn://b/", 0, 103_000),
            contact("dtn://me/", "dtn://b/", 900_000, 999_000),
        ],
    );
    let through = (0..1000).map(|_| booked(&mut routes, "dtn://b/x", 1000, Normal));
    assert_eq!(through.take_while(|(start, _)| *start == NOW.millis()).count(), 100);
}

#[test]
fn bookings_outlive_a_plan_that_has_the_same_contact() {
    let both = [contact("dtn://me/", "dtn://a/", 2000, 3000), contact("dtn://me/", "dtn://a/", 5000, 6000)];
    let mut older = routes(&["dtn://a/"], &[], both.to_vec());
    assert_eq!(
        [booked(&mut older, "dtn://a/", 900, Normal).0, booked(&mut older, "dtn://a/", 900, Normal).0],
        [2000, 5000]
    );
    let mut newer =
        routes(&["dtn://a/"], &[], vec![both[1].clone(), contact("dtn://me/", "dtn://a/", 2000, 3001)]);
    newer.keep_bookings_of(&mut older);
    assert_eq!(booked(&mut newer, "dtn://a/", 900, Normal).0, 2000);
    assert_eq!(newer.next(&eid("dtn://a/"), &load(900), NOW, &[]), Decision::NoRoute);
    newer.forget_before(at(5000));
    assert_eq!(newer.next(&eid("dtn://a/"), &load(900), at(5000), &[]), Decision::NoRoute);
}

#[test]
fn what_a_link_adds_is_3_percent_or_100_bytes() {
    assert_eq!([0, 1000, 10_000, 1_000_000].map(on_link), [100, 1100, 10_300, 1_030_000]);
    for len in [0, 1, 999, 3333, 3334, 1_000_000, u64::MAX / 2] {
        assert!(on_link(fits_on_link(len)) <= len.max(100), "{len}");
        assert!(fits_on_link(on_link(len)) >= len, "{len}");
    }
    assert_eq!(fits_on_link(u64::MAX), u64::MAX);
}

fn node(number: u64) -> Eid {
    Eid::Ipn { node: number + 1, service: 0, form: crate::IpnForm::Two }
}

prop_compose! {
    /// A byte takes 1, 2 or 4 ms, so that nothing is rounded.
    fn any_contact()(
        ends in (0..5_u64, 1..5_u64), times in (0..20_000_u64, 1..9000_u64), rate in 0..3_u32,
        delay in 0..3000_u64, repeated in prop::option::of((0..9000_u64, 1..30_000_u64)),
    ) -> Contact {
        Contact {
            from: node(ends.0),
            to: node((ends.0 + ends.1) % 5),
            start: at(times.0),
            end: at(times.0 + times.1),
            rate: Rate::from_bps(2000 << rate).unwrap(),
            delay: Duration::from_millis(delay),
            every: repeated.map(|(pause, _)| Span(Duration::from_millis(times.1 + pause))),
            until: repeated.map(|(_, length)| at(times.0 + length)),
        }
    }
}

/// A booking: the contact's index, its number in the series, the interval, bytes, priority.
type Booked = (u32, u64, u64, u64, Priority);

/// The arrival over one contact, worked out from the list of all bookings, millisecond by millisecond.
fn arrival(
    (index, contact): (u32, &Contact),
    bookings: &[Booked],
    (len, priority): (u64, Priority),
    ready: u64,
) -> Option<u64> {
    let (byte, length) = (8000 / contact.rate.bps(), contact.end.millis() - contact.start.millis());
    let width = (length / 64).clamp(1000, 60_000);
    let period = contact.every.map_or(u64::MAX, |every| u64::try_from(every.get().as_millis()).unwrap());
    for occurrence in 0.. {
        let start = contact.start.millis().checked_add(period.checked_mul(occurrence)?)?;
        if occurrence > 0 && contact.until.is_none_or(|until| start >= until.millis()) {
            return None;
        }
        let after = ready.saturating_sub(start);
        let is_first_hop = contact.from == node(0);
        let (mine, mut free) = if is_first_hop { (0, after) } else { (after / width, 0) };
        let here = |booked: &&Booked| (booked.0, booked.1) == (index, occurrence) && booked.4 >= priority;
        let mut before: Vec<&Booked> =
            bookings.iter().filter(here).filter(|booked| booked.2 <= mine).collect();
        before.sort_by_key(|booked| booked.2);
        for booked in before {
            free = free.max(if is_first_hop { 0 } else { booked.2 * width }) + booked.3 * byte;
        }
        let begin = free.max(after);
        let later: u64 =
            bookings.iter().filter(here).filter(|booked| booked.2 > mine).map(|booked| booked.3).sum();
        if after < length && begin.max(after) + (len + later) * byte <= length {
            return Some(start + begin + len * byte + u64::try_from(contact.delay.as_millis()).unwrap());
        }
    }
    None
}

/// The earliest arrival over all ways without a node twice, each tried with each contact.
fn exhaustive(
    plan: &[Contact],
    bookings: &[Booked],
    (here, target): (&Eid, &Eid),
    bundle: (u64, Priority),
    now: u64,
    seen: &[Eid],
) -> Option<u64> {
    if here == target {
        return Some(now);
    }
    let seen = [seen, std::slice::from_ref(here)].concat();
    (0..)
        .zip(plan)
        .filter(|(_, contact)| contact.from == *here && !seen.contains(&contact.to))
        .filter_map(|(index, contact)| {
            let arrival = arrival((index, contact), bookings, bundle, now)?;
            exhaustive(plan, bookings, (&contact.to, target), bundle, arrival, &seen)
        })
        .min()
}

proptest! {
    /// With bookings, too: each bundle finds those of the bundles before it.
    #[test]
    fn the_first_way_is_the_first_of_all(
        contacts in prop::collection::vec(any_contact(), 1..12),
        bundles in prop::collection::vec((0..2500_u64, 0..3_usize, 1..5_u64), 1..12),
        now in 0..20_000_u64, always in any::<bool>(),
    ) {
        let me = node(0);
        let mut plan = Plan::new(me.clone());
        contacts.iter().for_each(|contact| plan.add(contact.clone()));
        let mut bookings: Vec<Booked> = Vec::new();
        let mut ways = Vec::new();
        // A neighbour outside of the plan is like a contact that is always there and takes no time.
        let neighbour = node(1);
        let over = (always && !plan.has(&neighbour)).then_some(&neighbour);
        for (len, priority, target) in bundles {
            let (priority, target) = ([Bulk, Normal, Expedited][priority], node(target));
            let wanted = Wanted { len, priority, now: at(now), horizon: at(u64::MAX) };
            let found = plan.earliest(over.as_slice(), &target, &wanted, &|_| true);
            let bundle = (len, priority);
            let direct = exhaustive(&contacts, &bookings, (&me, &target), bundle, now, &[]);
            let over_neighbour = over.and_then(|node| {
                exhaustive(&contacts, &bookings, (node, &target), bundle, now, std::slice::from_ref(&me))
            });
            let best = [direct, over_neighbour].into_iter().flatten().min();
            prop_assert_eq!(found.as_ref().map(|way| way.arrival.millis()), best);
            let Some(way) = found else { continue };
            prop_assert!(way.fits >= len);
            let own = way.hops.first().and_then(|hop| plan.own_contact(hop.contact));
            prop_assert_eq!(own.map(|(to, window)| (to, Some(window))), way.first.map(|first| (&way.peer, Some(first))));
            plan.book(&way.hops, len, priority);
            bookings.extend(way.hops.iter().map(|hop| (hop.contact.index, hop.contact.occurrence, hop.interval, len, priority)));
            ways.push((way.hops, len, priority));
        }
        // No contact is promised twice to bundles of the highest priority, which nothing displaces.
        for (index, contact) in (0..).zip(&contacts) {
            for occurrence in 0..100 {
                let here = |booked: &&Booked| (booked.0, booked.1, booked.4) == (index, occurrence, Expedited);
                let sum: u64 = bookings.iter().filter(here).map(|booked| booked.3).sum();
                prop_assert!(sum <= contact.rate.bytes_in(contact.end.since(contact.start)));
            }
        }
        ways.iter().for_each(|(hops, len, priority)| plan.cancel(hops, *len, *priority));
        prop_assert!(plan.is_unbooked());
    }
}

#[test]
fn a_link_is_there_in_its_contacts_and_heard_as_much_later_as_it_is_long() {
    let there = Contact { delay: Duration::from_secs(1), ..contact("dtn://me/", "dtn://a/", 10_000, 20_000) };
    let back = Contact { delay: Duration::from_secs(5), ..contact("dtn://a/", "dtn://me/", 12_000, 18_000) };
    let one_way = routes(&["dtn://a/", "dtn://b/"], &[], vec![there.clone()]);
    let two_way = routes(&["dtn://a/"], &[], vec![there, back]);
    let state = |routes: &Routes, peer: &str, millis: u64| {
        let state = routes.link_to(&eid(peer), at(millis));
        (state.sends, state.hears, state.delay)
    };
    let delay = Some(Duration::from_secs(1));
    assert_eq!(state(&one_way, "dtn://b/", 0), (true, true, None));
    assert_eq!(state(&one_way, "dtn://a/", 9_999), (false, false, None));
    assert_eq!(state(&one_way, "dtn://a/", 10_000), (true, true, delay));
    assert_eq!(state(&two_way, "dtn://a/", 16_999), (true, false, delay));
    assert_eq!(state(&two_way, "dtn://a/", 17_000), (true, true, delay));
    assert_eq!(state(&two_way, "dtn://a/", 22_999), (false, true, None));
    assert_eq!(state(&two_way, "dtn://a/", 23_000), (false, false, None));
}
