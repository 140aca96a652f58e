use super::*;
use crate::route::Contact;
use bentpipe_units::Rate;
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
    std::iter::from_fn(|| queue.next_for(&eid(peer))).map(|record| record.key.0).collect()
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
