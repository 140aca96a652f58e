use super::*;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;

use crate::config::AtLimit;
use crate::gate::{Ceilings, Gate};

/// A book, a gate, and a server on loopback that answers at once.
struct Scene {
    book: Book,
    gate: Arc<Gate>,
    server: TcpListener,
    start: Instant,
}

impl Scene {
    fn new() -> Self {
        let ceilings = Ceilings {
            connections: 100,
            per_client: None,
            connecting: 100,
            buffered: u64::MAX,
            descriptors: 100,
            at_limit: AtLimit::Refuse,
        };
        Self {
            book: Book::new().unwrap(),
            gate: Arc::new(Gate::new(ceilings).unwrap()),
            server: TcpListener::bind("127.0.0.1:0").unwrap(),
            start: Instant::now(),
        }
    }

    fn at(&self, seconds: u64) -> Instant {
        self.start + Duration::from_secs(seconds)
    }

    fn enter(&self, syn: &Syn) {
        let socket = TcpStream::connect(self.server.local_addr().unwrap()).unwrap().into();
        let ticket = self.gate.admit(syn.client.ip()).unwrap();
        self.book
            .enter(syn, b"syn", Upstream { socket, other_port: false, sent: 0 }, ticket, self.start)
            .unwrap();
    }

    /// The events that epoll has, given to the book.
    fn note_events(&self, now: Instant) -> Vec<Outcome> {
        let mut events = Vec::with_capacity(8);
        let patience = rustix::event::Timespec { tv_sec: 5, tv_nsec: 0 };
        epoll::wait(self.book.epoll(), rustix::buffer::spare_capacity(&mut events), Some(&patience)).unwrap();
        let note = |event: &epoll::Event| match Token::decode(event.data.u64()) {
            Token::Opening(key) => self.book.note(key, event.flags, now),
            other => panic!("{other:?}"),
        };
        events.iter().filter_map(note).collect()
    }

    fn entered(&self) -> usize {
        self.book.entries().by_pair.len()
    }
}

fn syn(isn: u32) -> Syn {
    let (client, server) = (([10, 0, 0, 1], 1000).into(), ([10, 0, 0, 2], 80).into());
    Syn { client, server, dscp: 0, isn, weight: Default::default() }
}

#[test]
fn an_answered_connection_is_claimed_once() {
    let scene = Scene::new();
    let wanted = syn(7);
    scene.enter(&wanted);
    let claim = || scene.book.claim(wanted.client, wanted.server);
    assert_eq!(scene.gate.connecting(), 1);
    let outcomes = scene.note_events(scene.start);
    assert!(matches!(&outcomes[..], [Outcome { isn: 7, result: Ok(()), .. }]), "{outcomes:?}");
    assert_eq!(scene.gate.connecting(), 0);
    assert!(matches!(claim(), Claim::Connected(_)));
    assert!(matches!(claim(), Claim::Nothing));
    assert_eq!(scene.book.claimable.load(Ordering::Relaxed), 0);
}

#[test]
fn a_connection_is_claimed_before_its_server_has_answered_where_syns_are_no_longer_held() {
    let scene = Scene::new();
    scene.enter(&syn(7));
    let Claim::Asked(connected) = scene.book.claim(syn(7).client, syn(7).server) else { panic!() };
    assert_eq!((scene.gate.connecting(), scene.book.claimable.load(Ordering::Relaxed)), (1, 0));
    assert!(scene.note_events(scene.start).is_empty());
    drop(connected);
    assert_eq!((scene.entered(), scene.gate.connecting()), (0, 0));
}

#[test]
fn a_claimed_connection_is_heard_of_no_more() {
    let scene = Scene::new();
    scene.enter(&syn(7));
    scene.note_events(scene.start);
    let Claim::Connected(connected) = scene.book.claim(syn(7).client, syn(7).server) else { panic!() };
    let again = epoll::delete(scene.book.epoll(), &connected.socket);
    assert_eq!(again, Err(Errno::NOENT));
}

#[test]
fn a_connection_that_its_server_has_reset_is_a_reset_to_its_client() {
    let scene = Scene::new();
    scene.enter(&syn(7));
    scene.note_events(scene.start);
    let (server, _) = scene.server.accept().unwrap();
    bentpipe_kernel::sockopt::set_linger_reset(&server).unwrap();
    drop(server);
    assert!(scene.note_events(scene.start).is_empty());
    assert!(matches!(scene.book.claim(syn(7).client, syn(7).server), Claim::Reset));
    assert!(matches!(scene.book.claim(syn(7).client, syn(7).server), Claim::Nothing));
}

#[test]
fn one_that_was_reset_before_anybody_looked_had_been_answered() {
    let scene = Scene::new();
    scene.enter(&syn(7));
    let (server, _) = scene.server.accept().unwrap();
    bentpipe_kernel::sockopt::set_linger_reset(&server).unwrap();
    drop(server);
    let outcomes = scene.note_events(scene.start);
    assert!(matches!(&outcomes[..], [Outcome { result: Ok(()), .. }]), "{outcomes:?}");
    assert!(matches!(scene.book.claim(syn(7).client, syn(7).server), Claim::Reset));
}

#[test]
fn a_client_that_repeats_its_syn_is_waited_for_and_one_that_does_not_is_not() {
    let scene = Scene::new();
    scene.enter(&syn(7));
    // As Linux repeats it: five times a second apart, and then at twice the gap.
    for second in [1, 2, 3, 4, 5, 7, 11, 19, 35, 67] {
        assert_eq!(scene.book.sweep(scene.at(second)), Swept::default(), "second {second}");
        assert_eq!(scene.book.look_up(&syn(7), b"syn", scene.at(second)), LinkEstimate::Waiting);
    }
    // The next is due after 64 s.
    assert_eq!(scene.book.sweep(scene.at(67 + 64)), Swept::default());
    assert_eq!(scene.book.sweep(scene.at(67 + 97)), Swept { abandoned: 1, unclaimed: 0 });
    assert_eq!((scene.entered(), scene.gate.connecting()), (0, 0));
    let hasty = Scene::new();
    hasty.enter(&syn(7));
    assert_eq!(hasty.book.sweep(hasty.at(10)), Swept::default());
    assert_eq!(hasty.book.sweep(hasty.at(11)), Swept { abandoned: 1, unclaimed: 0 });
}

#[test]
fn an_answered_connection_is_kept_for_as_long_as_the_kernel_answers_its_client() {
    let scene = Scene::new();
    scene.enter(&syn(7));
    scene.note_events(scene.at(20));
    assert_eq!(scene.book.sweep(scene.at(20 + 63)), Swept::default());
    assert_eq!(scene.book.sweep(scene.at(20 + 65)), Swept { abandoned: 0, unclaimed: 1 });
    assert!(matches!(scene.book.claim(syn(7).client, syn(7).server), Claim::Nothing));
    assert_eq!(scene.book.claimable.load(Ordering::Relaxed), 0);
}

#[test]
fn a_new_attempt_from_the_same_port_takes_the_place_of_the_old() {
    let scene = Scene::new();
    scene.enter(&syn(7));
    assert_eq!(scene.book.look_up(&syn(8), b"new", scene.start), LinkEstimate::Waiting);
    let outcomes = scene.note_events(scene.start);
    let [Outcome { isn: 8, packet, result: Ok(()), .. }] = &outcomes[..] else { panic!("{outcomes:?}") };
    assert_eq!(&**packet, b"new");
    assert_eq!(scene.book.look_up(&syn(9), b"newer", scene.start), LinkEstimate::Superseding);
    assert_eq!((scene.entered(), scene.book.claimable.load(Ordering::Relaxed)), (0, 0));
}

#[test]
fn a_refusal_is_told_with_the_syn_that_was_held() {
    let scene = Scene::new();
    let nobody = { TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap() };
    let socket =
        socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM.nonblocking(), None).unwrap();
    let _ = socket.connect(&nobody.into());
    let ticket = scene.gate.admit(syn(7).client.ip()).unwrap();
    let upstream = Upstream { socket: socket.into(), other_port: false, sent: 0 };
    scene.book.enter(&syn(7), b"syn", upstream, ticket, scene.start).unwrap();
    let outcomes = scene.note_events(scene.start);
    let [Outcome { packet, result: Err(error), .. }] = &outcomes[..] else { panic!("{outcomes:?}") };
    assert_eq!((error.kind(), &**packet), (io::ErrorKind::ConnectionRefused, &b"syn"[..]));
    assert_eq!((scene.entered(), scene.gate.connecting()), (0, 0));
}
