use super::*;
use crate::route::Contact;
use bentpipe_units::Rate;
use proptest::prelude::*;
use std::sync::Arc;

fn eid(text: &str) -> Eid {
    text.parse().unwrap()
}

fn at(seconds: u64) -> DtnTime {
    DtnTime::from_millis(1_000_000 + seconds * 1000)
}

/// A node with a neighbour to the east and one to the west, who leads everywhere.
fn routes() -> Routes {
    let mut routes = Routes::new(&eid("dtn://here/"));
    routes.add_neighbour(&eid("dtn://east/"));
    routes.add_neighbour(&eid("dtn://west/"));
    routes.add_route("*".parse().unwrap(), &eid("dtn://west/"));
    routes
}

fn record(key: u64, destination: &str, purpose: Purpose) -> Record {
    let lifetime = Duration::from_secs(100);
    let mut bundle = Bundle::new(eid("dtn://there/x"), at(0), key, eid(destination), lifetime);
    bundle.payload_len = 10;
    let expires = bundle.expires(at(0));
    Record {
        key: Key(key),
        bundle: Arc::new(bundle),
        payload: crate::store::Payload::default(),
        received: at(0),
        expires,
        from: None,
        purpose,
    }
}

fn urgent(record: Record) -> Record {
    let mut bundle = (*record.bundle).clone();
    bundle.priority = Priority::Expedited;
    Record { bundle: Arc::new(bundle), ..record }
}

fn keys(queue: &mut ForwardingQueue, peer: &str) -> Vec<u64> {
    std::iter::from_fn(|| queue.next_for(&eid(peer), at(0))).map(|record| record.key.0).collect()
}

#[test]
fn urgent_bundles_go_first_then_the_oldest() {
    let mut queue = ForwardingQueue::new(routes());
    for key in [1, 2] {
        let peer = queue.insert(record(key, "dtn://east/x", Purpose::Forward), at(0));
        assert_eq!(peer, Some(eid("dtn://east/")));
    }
    queue.insert(urgent(record(3, "dtn://east/x", Purpose::Forward)), at(0));
    queue.insert(record(4, "dtn://far/x", Purpose::Forward), at(0));
    assert_eq!(keys(&mut queue, "dtn://east/"), [3, 1, 2]);
    assert_eq!(keys(&mut queue, "dtn://west/"), [4]);
    assert_eq!(queue.waiting(), WaitingStatus { in_hand: 4, ..WaitingStatus::default() });
}

#[test]
fn returned_transfers_are_repeated_and_finished_ones_are_not() {
    let mut queue = ForwardingQueue::new(routes());
    queue.insert(record(1, "dtn://east/x", Purpose::Forward), at(0));
    queue.insert(record(2, "dtn://east/x", Purpose::Forward), at(0));
    assert_eq!(keys(&mut queue, "dtn://east/"), [1, 2]);
    assert!(queue.remove(Key(1)).is_some());
    assert_eq!(queue.requeue(Key(1), at(1)), None);
    assert_eq!(queue.requeue(Key(2), at(1)), Some(eid("dtn://east/")));
    // A bundle that is in nobody's hand cannot come back.
    assert_eq!(queue.requeue(Key(2), at(1)), None);
    assert_eq!(keys(&mut queue, "dtn://east/"), [2]);
}

#[test]
fn bundles_avoid_refusing_peers_and_do_not_return_to_their_sender() {
    let mut queue = ForwardingQueue::new(routes());
    queue.insert(record(1, "dtn://east/x", Purpose::Forward), at(0));
    assert_eq!(keys(&mut queue, "dtn://east/"), [1]);
    assert_eq!(queue.reroute_around(Key(1), &eid("dtn://east/"), at(0)), Some(eid("dtn://west/")));
    let from_west = Record { from: Some(eid("dtn://west/")), ..record(2, "dtn://far/x", Purpose::Forward) };
    assert_eq!(queue.insert(from_west, at(0)), None);
    assert_eq!(queue.waiting().parked, 1);
    assert_eq!(keys(&mut queue, "dtn://west/"), [1]);
}

#[test]
fn bundles_waiting_for_a_contact_leave_when_it_opens() {
    let mut routes = routes();
    let contact = Contact {
        from: eid("dtn://here/"),
        to: eid("dtn://east/"),
        start: at(10),
        end: at(20),
        rate: Rate::from_bps(8_000_000).unwrap(),
        delay: Duration::ZERO,
        every: None,
        until: None,
    };
    routes.add_contact(contact).unwrap();
    let mut queue = ForwardingQueue::new(routes);
    assert_eq!(queue.insert(record(1, "dtn://east/x", Purpose::Forward), at(0)), None);
    assert!(!queue.is_open(&eid("dtn://east/"), at(9)) && queue.is_open(&eid("dtn://east/"), at(10)));
    assert_eq!(queue.next_change(at(0)), Some(at(10)));
    assert_eq!(queue.due(at(9), false), []);
    let due = queue.due(at(10), false);
    assert_eq!(queue.reroute(&due, at(10)), HashSet::from([eid("dtn://east/")]));
    // Nobody has come for it, and the contact is over: it goes another way.
    let due = queue.due(at(20), true);
    assert_eq!(queue.reroute(&due, at(20)), HashSet::from([eid("dtn://west/")]));
    assert_eq!(keys(&mut queue, "dtn://east/"), [0; 0]);
}

/// A node that reaches only the east, for a second every ten, with 1500 bytes each time.
fn seldom() -> ForwardingQueue {
    let mut routes = Routes::new(&eid("dtn://here/"));
    routes.add_neighbour(&eid("dtn://east/"));
    let contact = Contact {
        from: eid("dtn://here/"),
        to: eid("dtn://east/"),
        start: at(10),
        end: at(11),
        rate: Rate::from_bps(12_000).unwrap(),
        delay: Duration::ZERO,
        every: Some(bentpipe_units::Span(Duration::from_secs(10))),
        until: None,
    };
    routes.add_contact(contact).unwrap();
    ForwardingQueue::new(routes)
}

/// Takes some 600 bytes on the link.
fn large(key: u64) -> Record {
    of_len(key, 430)
}

/// A bundle to the east with a payload of this length.
fn of_len(key: u64, payload_len: u64) -> Record {
    let record = record(key, "dtn://east/x", Purpose::Forward);
    let mut bundle = (*record.bundle).clone();
    bundle.payload_len = payload_len;
    Record { bundle: Arc::new(bundle), ..record }
}

/// When each of these waits for its contact, in seconds.
fn starts(queue: &ForwardingQueue, keys: impl IntoIterator<Item = u64>) -> Vec<u64> {
    let parked = |key| match queue.entries[&Key(key)].status {
        Status::Parked(until) => until.since(at(0)).as_secs(),
        ref other => panic!("{key}: {other:?}"),
    };
    keys.into_iter().map(parked).collect()
}

#[test]
fn a_backlog_is_spread_over_contacts() {
    let mut queue = seldom();
    for key in 1..=5 {
        assert_eq!(queue.insert(large(key), at(0)), None);
    }
    assert_eq!(starts(&queue, 1..=5), [10, 10, 20, 20, 30]);
    // A more urgent bundle takes the place of the last of the first contact, which then takes the next free one.
    queue.insert(urgent(large(6)), at(0));
    assert_eq!(starts(&queue, [1, 2, 6]), [10, 0, 10]);
    let due = queue.due(at(0), false);
    assert_eq!(due, [Key(2)]);
    queue.reroute(&due, at(0));
    assert_eq!(starts(&queue, 1..=6), [10, 30, 20, 20, 30, 10]);
    // When all choose again, they do so in order.
    let due = queue.due(at(0), true);
    assert_eq!(due, [6, 1, 2, 3, 4, 5].map(Key));
    queue.reroute(&due, at(0));
    assert_eq!(starts(&queue, 1..=6), [10, 20, 20, 30, 30, 10]);
}

#[test]
fn what_leaves_the_queue_returns_what_it_has_booked() {
    let mut queue = seldom();
    let start_of = |queue: &mut ForwardingQueue, key| {
        queue.insert(large(key), at(0));
        starts(queue, [key])[0]
    };
    assert_eq!([1, 2, 3].map(|key| start_of(&mut queue, key)), [10, 10, 20]);
    queue.remove(Key(1));
    assert_eq!([4, 5].map(|key| start_of(&mut queue, key)), [10, 20]);
    queue.postpone(Key(2), at(5));
    assert_eq!(start_of(&mut queue, 6), 10);
    assert_eq!(queue.expired(at(100)).len(), 5);
    for key in 1..=6 {
        queue.remove(Key(key));
    }
    assert!(queue.booked.is_empty());
    assert_eq!([7, 8, 9].map(|key| start_of(&mut queue, key)), [10, 10, 20]);
}

#[test]
fn a_contact_that_is_faster_than_planned_is_used() {
    let mut queue = seldom();
    (1..=3).for_each(|key| drop(queue.insert(large(key), at(0))));
    let due = queue.due(at(10), true);
    queue.reroute(&due, at(10));
    let next =
        |queue: &mut ForwardingQueue| queue.next_for(&eid("dtn://east/"), at(10)).map(|record| record.key.0);
    assert_eq!([next(&mut queue), next(&mut queue)], [Some(1), Some(2)]);
    // While they are on their way there is no room for another, and when they have arrived there is.
    assert_eq!(next(&mut queue), None);
    queue.forwarded(Key(1));
    assert_eq!(next(&mut queue), Some(3));
    queue.requeue(Key(2), at(10));
    assert_eq!(next(&mut queue), Some(2));
}

#[test]
fn a_bundle_that_no_longer_fits_goes_another_way() {
    let mut queue = seldom();
    queue.routes.add_neighbour(&eid("dtn://west/"));
    queue.insert(of_len(1, 1250), at(10));
    queue.routes.add_route("*".parse().unwrap(), &eid("dtn://west/"));
    // There is room for 1350 bytes, and it takes more.
    let late = at(10).after(Duration::from_millis(100));
    assert!(queue.next_for(&eid("dtn://east/"), late).is_none());
    // The sooner of two contacts with its destination is still better than a detour.
    assert_eq!(starts(&queue, [1]), [20]);
    queue.routes.remove_neighbour(&eid("dtn://east/"));
    queue.set(Key(1), Status::Queued(eid("dtn://east/")));
    assert!(queue.next_for(&eid("dtn://east/"), late).is_none());
    // The session with the other peer has to be woken for it.
    let due = queue.due(late, false);
    assert_eq!(queue.reroute(&due, late), HashSet::from([eid("dtn://west/")]));
}

/// What is booked is what the entries say, each contact is booked for bundles that nothing displaces no further
/// than it carries, and every waiting bundle is where its status says.
fn assert_consistent(queue: &ForwardingQueue) {
    let mut expected: BTreeMap<ContactId, BTreeSet<Position>> = BTreeMap::new();
    let mut expedited: BTreeMap<ContactId, u64> = BTreeMap::new();
    for (key, entry) in &queue.entries {
        let priority = entry.record.bundle.priority;
        if let Some(booking) = &entry.booking {
            let contact = queue.routes.own_contact(&booking.hops).expect("all contacts are of this node");
            expected.entry(contact).or_default().insert((Reverse(priority), *key));
            if priority == Priority::Expedited && queue.waits(*key) {
                *expedited.entry(contact).or_default() += booking.bytes;
            }
        }
        if let Status::Queued(_) = entry.status {
            assert!(entry.booking.is_some(), "{key:?} waits for a contact that it has not booked");
        }
    }
    assert_eq!(queue.booked, expected);
    assert!(expedited.values().all(|bytes| *bytes <= 1500), "{expedited:?}");
    let waiting = queue.entries.keys().filter(|key| queue.waits(**key)).count();
    assert_eq!(queue.parked.len() + queue.queues.values().map(BTreeSet::len).sum::<usize>(), waiting);
}

proptest! {
    #[test]
    fn bookings_follow_the_bundles(operations in prop::collection::vec((0..9_u8, 0..40_u64, 0..1400_u64), 1..60)) {
        let mut queue = seldom();
        let (mut now, mut next) = (at(0), 1);
        for (operation, which, size) in operations {
            let key = Key(which);
            match operation {
                0..=2 => {
                    let record = record(next, "dtn://east/x", Purpose::Forward);
                    let mut bundle = (*record.bundle).clone();
                    bundle.payload_len = size;
                    bundle.priority = [Priority::Bulk, Priority::Normal, Priority::Expedited][usize::from(operation)];
                    queue.insert(Record { bundle: Arc::new(bundle), ..record }, now);
                    next += 1;
                }
                3 => drop(queue.remove(key)),
                4 => drop(queue.next_for(&eid("dtn://east/"), now)),
                5 if queue.is_in_flight(key) => drop(queue.forwarded(key)),
                6 => drop(queue.requeue(key, now)),
                7 if queue.is_in_flight(key) => queue.postpone(key, now.after(Duration::from_secs(which))),
                _ => {
                    let before = now;
                    now = now.after(Duration::from_millis(which * size / 4));
                    let changed = queue.next_change(before).is_some_and(|change| change <= now);
                    let due = queue.due(now, changed);
                    queue.reroute(&due, now);
                }
            }
            assert_consistent(&queue);
        }
        (0..next).for_each(|key| drop(queue.remove(Key(key))));
        prop_assert!(queue.routes.is_unbooked());
    }
}

#[test]
fn other_routes_are_those_of_all_waiting_bundles() {
    let mut queue = seldom();
    for key in 1..=4 {
        queue.insert(large(key), at(0));
    }
    let due = queue.set_routes(routes(), at(0));
    assert_eq!(due, [1, 2, 3, 4].map(Key));
    assert_eq!(queue.reroute(&due, at(0)), HashSet::from([eid("dtn://east/")]));
    assert_eq!(keys(&mut queue, "dtn://east/"), [1, 2, 3, 4]);
    // One that is being sent is not.
    let due = queue.set_routes(seldom().routes, at(0));
    assert_eq!(due, []);
    assert_eq!(queue.requeue(Key(1), at(0)), None);
    assert_eq!(starts(&queue, [1]), [10]);
}

#[test]
fn only_unclaimed_bundles_expire() {
    let mut queue = ForwardingQueue::new(routes());
    for key in 1..=3 {
        queue.insert(record(key, "dtn://here/x", Purpose::Deliver), at(0));
    }
    let endpoint = eid("dtn://here/x");
    assert_eq!(queue.next_delivery(&endpoint).unwrap().key, Key(1));
    assert_eq!(queue.expired(at(99)), []);
    assert_eq!(queue.expired(at(100)), [Key(2), Key(3)]);
    queue.release(Key(1));
    assert_eq!(queue.expired(at(100)), [Key(1), Key(2), Key(3)]);
    assert_eq!(queue.next_delivery(&endpoint).unwrap().key, Key(1));
}

#[test]
fn fragments_are_found_by_their_bundle() {
    let mut queue = ForwardingQueue::new(routes());
    for (key, offset) in [(1, 0), (2, 5)] {
        let record = record(7, "dtn://here/x", Purpose::Reassemble);
        let mut bundle = (*record.bundle).clone();
        bundle.id.fragment = Some(Fragment { offset, len: 5, total: 10 });
        queue.insert(Record { key: Key(key), bundle: Arc::new(bundle), ..record }, at(0));
    }
    let id = record(7, "dtn://here/x", Purpose::Reassemble).bundle.id.clone();
    assert_eq!(queue.parts_of(&id).len(), 2);
    queue.remove(Key(1));
    assert_eq!(queue.parts_of(&id), [(Key(2), Fragment { offset: 5, len: 5, total: 10 })]);
}
