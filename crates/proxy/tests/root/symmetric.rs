//! A box at each side of the satellite: each splits for itself and needs to know nothing of the other.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;

use crate::common::symmetric::{Symmetric, symmetric};
use crate::common::{CLIENT, Host, RELAYS, SERVER, pattern, read_all, socket_address};
use bentpipe_kernel::sockopt;

/// Both ways in which a connection can be opened: who opens it, to whom, at which addresses.
fn both_ways(scene: &Symmetric) -> [(&Host, &Host, [&'static str; 2], [&'static str; 2]); 2] {
    [(scene.client(), scene.server(), CLIENT, SERVER), (scene.server(), scene.client(), SERVER, CLIENT)]
}

fn listen(host: &Host, address: &str) -> TcpListener {
    host.enter(|| TcpListener::bind(socket_address(address, 0)).unwrap())
}

/// Sends `sent` and ends, while the other reads to the end of file.
fn carry(mut from: TcpStream, to: &mut TcpStream, sent: &[u8]) -> Vec<u8> {
    thread::scope(|scope| {
        scope.spawn(move || {
            from.write_all(sent).unwrap();
            from.shutdown(Shutdown::Write).unwrap();
        });
        read_all(to).unwrap()
    })
}

#[test]
fn both_ends_see_each_others_real_addresses_and_ports() {
    let Some(scene) = symmetric() else { return };
    let (mut near, mut far) = (scene.near.daemon(""), scene.far.daemon(""));
    for (opener, listener_host, from, to) in both_ways(&scene) {
        for (source, destination) in from.iter().zip(to) {
            let listener = listen(listener_host, destination);
            let address = listener.local_addr().unwrap();
            let source = socket_address(source, 45_000);
            let ours = opener.enter(|| {
                let socket = crate::common::socket(&source);
                socket.bind(&source.into()).unwrap();
                socket.connect(&address.into()).unwrap();
                TcpStream::from(socket)
            });
            let (_theirs, seen) = listener.accept().unwrap();
            assert_eq!((seen, ours.peer_addr().unwrap()), (source, address));
        }
    }
    for daemon in [&mut near, &mut far] {
        assert_eq!((daemon.counter("flows_total"), daemon.counter("other_port")), (4, 0));
    }
}

#[test]
fn bytes_are_identical_both_ways_whoever_opens() {
    let Some(scene) = symmetric() else { return };
    for relay in RELAYS {
        let relay = format!("relay = \"{relay}\"");
        let (mut near, mut far) = (scene.near.daemon(&relay), scene.far.daemon(&relay));
        let (up, down) = (pattern(1, 5_000_000), pattern(2, 5_000_001));
        for (opener, listener_host, _, to) in both_ways(&scene) {
            for address in to {
                let (mut ours, mut theirs) = scene.connection(opener, &listen(listener_host, address));
                // A reply after a half-close: the first direction has ended when the second begins.
                assert!(carry(ours.try_clone().unwrap(), &mut theirs, &up) == up, "{relay} {address}");
                assert!(carry(theirs.try_clone().unwrap(), &mut ours, &down) == down, "{relay} {address}");
            }
        }
        for daemon in [&mut near, &mut far] {
            daemon.wait_for("flows_finished", 4);
            assert_eq!((daemon.counter("bytes_up"), daemon.counter("bytes_down")), (20_000_000, 20_000_004));
            assert_eq!(daemon.counter("flows_reset"), 0);
        }
    }
}

#[test]
fn a_reset_in_the_middle_crosses_both_boxes_each_way() {
    let Some(scene) = symmetric() else { return };
    let (mut near, mut far) = (scene.near.daemon(""), scene.far.daemon(""));
    for opener_resets in [true, false] {
        let listener = listen(scene.server(), SERVER[0]);
        let (ours, theirs) = scene.connection(scene.client(), &listener);
        let (mut culprit, mut victim) = if opener_resets { (ours, theirs) } else { (theirs, ours) };
        let (arrived, go_on) = mpsc::channel();
        let sender = thread::spawn(move || {
            culprit.write_all(&pattern(3, 2_000_000)).unwrap();
            // A reset overtakes what is on its way: not before some of it has arrived.
            go_on.recv().unwrap();
            sockopt::set_linger_reset(&culprit).unwrap();
        });
        victim.read_exact(&mut [0; 100_000]).unwrap();
        arrived.send(()).unwrap();
        assert_eq!(read_all(&mut victim).unwrap_err().kind(), ErrorKind::ConnectionReset);
        sender.join().unwrap();
    }
    for daemon in [&mut near, &mut far] {
        daemon.wait_for("flows_reset", 2);
        daemon.wait_for("flows_open", 0);
        daemon.wait_for("relay_buffers_in_use", 0);
    }
}

#[test]
fn a_refusal_is_a_reset_at_the_client() {
    let Some(scene) = symmetric() else { return };
    let (_near, mut far) = (scene.near.daemon(""), scene.far.daemon(""));
    for address in SERVER {
        let to = socket_address(address, 9);
        // On a busy machine the reset may be there before `connect` has returned.
        let ours = scene.client().enter(|| TcpStream::connect(to));
        let refused = ours.and_then(|mut ours| read_all(&mut ours)).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionReset, "{address}");
    }
    far.wait_for("connects_failed", 2);
}

#[test]
fn a_box_splits_alone_if_the_other_is_dead() {
    let Some(scene) = symmetric() else { return };
    for near_lives in [true, false] {
        let (near, far) = (scene.near.daemon(""), scene.far.daemon(""));
        let (dying, mut living) = if near_lives { (far, near) } else { (near, far) };
        dying.kill();
        for address in SERVER {
            let listener = listen(scene.server(), address);
            let (ours, mut theirs) = scene.connection(scene.client(), &listener);
            assert!(carry(ours, &mut theirs, &pattern(4, 100_000)) == pattern(4, 100_000), "{address}");
        }
        assert_eq!(living.counter("flows_total"), 2);
    }
}
