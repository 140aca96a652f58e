use super::*;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;

use crate::admission::{AdmissionControl, AdmissionLimits};
use crate::config::AtLimit;
use crate::snapshot::Section;

/// A pending, a admission, and a server on loopback that answers at once.
struct Scene {
    pending: PendingTable,
    admission: Arc<AdmissionControl>,
    server: TcpListener,
    start: Instant,
}

fn taken(packet: &[u8]) -> TakenSyn {
    TakenSyn { port: 7602, mark: 0, packet: packet.into() }
}

impl Scene {
    fn new() -> Self {
        let admission_limits = AdmissionLimits {
            connections: 100,
            per_client: None,
            connecting: 100,
            buffered: u64::MAX,
            descriptors: 100,
            at_limit: AtLimit::Refuse,
        };
        Self {
            pending: PendingTable::new().unwrap(),
            admission: Arc::new(AdmissionControl::new(admission_limits).unwrap()),
            server: TcpListener::bind("127.0.0.1:0").unwrap(),
            start: Instant::now(),
        }
    }

    fn at(&self, seconds: u64) -> Instant {
        self.start + Duration::from_secs(seconds)
    }

    fn enter(&self, syn: &Syn) {
        let socket = TcpStream::connect(self.server.local_addr().unwrap()).unwrap().into();
        let permit = self.admission.admit(syn.client.ip()).unwrap();
        self.pending
            .enter(syn, &taken(b"syn"), Upstream { socket, other_port: false, sent: 0 }, permit, self.start)
            .unwrap();
    }

    /// The events that epoll has, given to the pending.
    fn note_events(&self, now: Instant) -> Vec<Outcome> {
        let mut events = Vec::with_capacity(8);
        let patience = rustix::event::Timespec { tv_sec: 5, tv_nsec: 0 };
        epoll::wait(self.pending.epoll(), rustix::buffer::spare_capacity(&mut events), Some(&patience))
            .unwrap();
        let note = |event: &epoll::Event| match Token::decode(event.data.u64()) {
            Token::Pending(key) => self.pending.note(key, event.flags, now),
            other => panic!("{other:?}"),
        };
        events.iter().filter_map(note).collect()
    }

    fn entered(&self) -> usize {
        self.pending.entries().by_pair.len()
    }
}

fn syn(isn: u32) -> Syn {
    let (client, server) = (([10, 0, 0, 1], 1000).into(), ([10, 0, 0, 2], 80).into());
    Syn { client, server, dscp: 0, isn }
}

#[test]
fn an_answered_connection_is_claimed_once() {
    let scene = Scene::new();
    let wanted = syn(7);
    scene.enter(&wanted);
    let claim = || scene.pending.claim(wanted.client, wanted.server);
    assert_eq!(scene.admission.connecting(), 1);
    let outcomes = scene.note_events(scene.start);
    assert!(matches!(&outcomes[..], [Outcome { isn: 7, result: Ok(()), .. }]), "{outcomes:?}");
    assert_eq!(scene.admission.connecting(), 0);
    assert!(matches!(claim(), Claim::Connected(_)));
    assert!(matches!(claim(), Claim::Nothing));
    assert_eq!(scene.pending.claimable.load(Ordering::Relaxed), 0);
}

#[test]
fn a_connection_is_claimed_before_its_server_has_answered_where_syns_are_no_longer_held() {
    let scene = Scene::new();
    scene.enter(&syn(7));
    let Claim::Asked(connected) = scene.pending.claim(syn(7).client, syn(7).server) else { panic!() };
    assert_eq!((scene.admission.connecting(), scene.pending.claimable.load(Ordering::Relaxed)), (1, 0));
    assert!(scene.note_events(scene.start).is_empty());
    drop(connected);
    assert_eq!((scene.entered(), scene.admission.connecting()), (0, 0));
}

#[test]
fn a_claimed_connection_is_heard_of_no_more() {
    let scene = Scene::new();
    scene.enter(&syn(7));
    scene.note_events(scene.start);
    let Claim::Connected(connected) = scene.pending.claim(syn(7).client, syn(7).server) else { panic!() };
    let again = epoll::delete(scene.pending.epoll(), &connected.socket);
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
    assert!(matches!(scene.pending.claim(syn(7).client, syn(7).server), Claim::Reset));
    assert!(matches!(scene.pending.claim(syn(7).client, syn(7).server), Claim::Nothing));
}

#[test]
fn a_connection_reset_before_it_was_accepted_had_been_answered() {
    let scene = Scene::new();
    scene.enter(&syn(7));
    let (server, _) = scene.server.accept().unwrap();
    bentpipe_kernel::sockopt::set_linger_reset(&server).unwrap();
    drop(server);
    let outcomes = scene.note_events(scene.start);
    assert!(matches!(&outcomes[..], [Outcome { result: Ok(()), .. }]), "{outcomes:?}");
    assert!(matches!(scene.pending.claim(syn(7).client, syn(7).server), Claim::Reset));
}

#[test]
fn a_client_that_repeats_its_syn_is_waited_for_and_one_that_does_not_is_not() {
    let scene = Scene::new();
    scene.enter(&syn(7));
    // As Linux repeats it: five times a second apart, and then at twice the gap.
    for second in [1, 2, 3, 4, 5, 7, 11, 19, 35, 67] {
        assert_eq!(scene.pending.sweep(scene.at(second)), Swept::default(), "second {second}");
        assert_eq!(scene.pending.look_up(&syn(7), &taken(b"syn"), scene.at(second)), SynStatus::Waiting);
    }
    // The next is due after 64 s.
    assert_eq!(scene.pending.sweep(scene.at(67 + 64)), Swept::default());
    assert_eq!(scene.pending.sweep(scene.at(67 + 97)), Swept { abandoned: 1, unclaimed: 0 });
    assert_eq!((scene.entered(), scene.admission.connecting()), (0, 0));
    let hasty = Scene::new();
    hasty.enter(&syn(7));
    assert_eq!(hasty.pending.sweep(hasty.at(10)), Swept::default());
    assert_eq!(hasty.pending.sweep(hasty.at(11)), Swept { abandoned: 1, unclaimed: 0 });
}

#[test]
fn an_answered_connection_is_kept_for_as_long_as_the_kernel_answers_its_client() {
    let scene = Scene::new();
    scene.enter(&syn(7));
    scene.note_events(scene.at(20));
    assert_eq!(scene.pending.sweep(scene.at(20 + 63)), Swept::default());
    assert_eq!(scene.pending.sweep(scene.at(20 + 65)), Swept { abandoned: 0, unclaimed: 1 });
    assert!(matches!(scene.pending.claim(syn(7).client, syn(7).server), Claim::Nothing));
    assert_eq!(scene.pending.claimable.load(Ordering::Relaxed), 0);
}

#[test]
fn a_new_attempt_from_the_same_port_takes_the_place_of_the_old() {
    let scene = Scene::new();
    scene.enter(&syn(7));
    assert_eq!(scene.pending.look_up(&syn(8), &taken(b"new"), scene.start), SynStatus::Waiting);
    let outcomes = scene.note_events(scene.start);
    let [Outcome { isn: 8, taken: held, result: Ok(()), .. }] = &outcomes[..] else { panic!("{outcomes:?}") };
    assert_eq!(*held, taken(b"new"));
    assert_eq!(scene.pending.look_up(&syn(9), &taken(b"newer"), scene.start), SynStatus::Superseding);
    assert_eq!((scene.entered(), scene.pending.claimable.load(Ordering::Relaxed)), (0, 0));
}

#[test]
fn a_refusal_is_told_with_the_syn_that_was_held() {
    let scene = Scene::new();
    let nobody = { TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap() };
    let socket =
        socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM.nonblocking(), None).unwrap();
    let _ = socket.connect(&nobody.into());
    let permit = scene.admission.admit(syn(7).client.ip()).unwrap();
    let upstream = Upstream { socket: socket.into(), other_port: false, sent: 0 };
    scene.pending.enter(&syn(7), &taken(b"syn"), upstream, permit, scene.start).unwrap();
    let outcomes = scene.note_events(scene.start);
    let [Outcome { taken: held, result: Err(error), .. }] = &outcomes[..] else { panic!("{outcomes:?}") };
    assert_eq!((error.kind(), held), (io::ErrorKind::ConnectionRefused, &taken(b"syn")));
    assert_eq!((scene.entered(), scene.admission.connecting()), (0, 0));
}

#[test]
fn another_process_goes_on_with_handshakes_whether_their_servers_have_answered_or_not() {
    for has_answered in [false, true] {
        let (scene, next) = (Scene::new(), Scene::new());
        scene.enter(&syn(7));
        if has_answered {
            scene.note_events(scene.start);
        }
        let entries: Vec<Entry<()>> = Section::of(&scene.pending).unwrap().read().unwrap();
        next.pending.resume(entries, &next.admission).unwrap();
        assert_eq!((next.entered(), next.admission.open()), (1, 1));
        assert_eq!(next.admission.connecting(), usize::from(!has_answered));
        if !has_answered {
            let outcomes = next.note_events(next.start);
            let [Outcome { isn: 7, taken: held, result: Ok(()), .. }] = &outcomes[..] else {
                panic!("{outcomes:?}")
            };
            assert_eq!(*held, taken(b"syn"));
        }
        assert!(matches!(next.pending.claim(syn(7).client, syn(7).server), Claim::Connected(_)));
        assert_eq!((next.admission.open(), next.admission.connecting()), (0, 0));
    }
}
