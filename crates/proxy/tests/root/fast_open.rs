//! TCP Fast Open between two boxes: the request goes with the SYN, and whatever is in its way costs no byte.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use crate::common::symmetric::{Symmetric, symmetric};
use crate::common::{Host, RELAYS, Running, SERVER, pattern, read_all};
use bentpipe_kernel::sockopt;

/// More than a SYN takes.
const REQUEST: usize = 100_000;
/// A busy machine may be late with a client's first word: how often the way through the SYN is tried.
const TRIES: usize = 50;

/// `sat0` with Fast Open.
fn fast(relay: &str) -> String {
    format!(
        "[proxy]\nrelay = \"{relay}\"\n[legs.satellite]\ninterface = \"sat0\"\ncongestion = \"reno\"\nfast_open = true\n"
    )
}

/// Both boxes with Fast Open, allowed by both hosts.
fn daemons(scene: &Symmetric, relay: &str) -> (Running, Running) {
    both(scene, &fast(relay))
}

/// Both boxes with this configuration, and hosts that allow Fast Open.
fn both(scene: &Symmetric, config: &str) -> (Running, Running) {
    for host in [&scene.near.gateway, &scene.far.gateway] {
        host.sysctl("net.ipv4.tcp_fastopen", "3");
    }
    let start = |net: &crate::common::Net| net.try_daemon(config).unwrap();
    (start(&scene.near), start(&scene.far))
}

/// One of the counters of TCP in a host's namespace.
fn counter(host: &Host, name: &str) -> u64 {
    let text = host.output("cat /proc/net/netstat");
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("TcpExt: "));
    let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
    let place = names.split(' ').position(|known| known == name).unwrap();
    values.split(' ').nth(place).unwrap().parse().unwrap()
}

/// Connections whose request was taken from the SYN: as the near box, which sent it, and the far box, which
/// took it, count.
fn opened_fast(scene: &Symmetric) -> (u64, u64) {
    let (near, far) = (&scene.near.gateway, &scene.far.gateway);
    (counter(near, "TCPFastOpenActive"), counter(far, "TCPFastOpenPassive"))
}

/// A request that is sent at once, its echo, and the end.
fn exchange(scene: &Symmetric, listener: &TcpListener, seed: u64) {
    let request = pattern(seed, REQUEST);
    let to = listener.local_addr().unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            let (mut theirs, _) = listener.accept().unwrap();
            let received = read_all(&mut theirs).unwrap();
            theirs.write_all(&received).unwrap();
        });
        let mut ours = scene.client().enter(|| {
            let mut ours = TcpStream::connect(to).unwrap();
            ours.write_all(&request).unwrap();
            ours
        });
        ours.shutdown(Shutdown::Write).unwrap();
        assert!(read_all(&mut ours).unwrap() == request, "{to}, seed {seed}");
    });
}

/// Exchanges until `done`; how many it took.
fn exchange_until(scene: &Symmetric, listener: &TcpListener, done: impl Fn() -> bool) -> u64 {
    for seed in 1..=TRIES as u64 {
        exchange(scene, listener, seed);
        if done() {
            return seed;
        }
    }
    panic!("not within {TRIES} connections");
}

#[test]
fn the_request_of_a_later_connection_arrives_with_the_syn() {
    let Some(scene) = symmetric() else { return };
    for relay in RELAYS {
        let (mut near, mut far) = daemons(&scene, relay);
        let mut exchanges = 0;
        for address in SERVER {
            let listener = scene.far.listen(address);
            let before = opened_fast(&scene);
            exchanges += exchange_until(&scene, &listener, || opened_fast(&scene) != before);
            assert_eq!(opened_fast(&scene), (before.0 + 1, before.1 + 1), "{relay} {address}");
        }
        for daemon in [&mut near, &mut far] {
            daemon.wait_for("flows_finished", exchanges);
            assert_eq!(daemon.counter("bytes_up"), exchanges * REQUEST as u64, "{relay}");
            assert_eq!(daemon.counter("bytes_down"), exchanges * REQUEST as u64, "{relay}");
        }
    }
}

#[test]
fn the_first_connection_gets_a_cookie_and_loses_nothing() {
    let Some(scene) = symmetric() else { return };
    let _daemons = daemons(&scene, "splice");
    let listener = scene.far.listen(SERVER[0]);
    exchange_until(&scene, &listener, || counter(&scene.far.gateway, "TCPFastOpenCookieReqd") == 1);
    assert_eq!(opened_fast(&scene), (0, 0));
}

#[test]
fn boxes_that_know_of_each_other_need_no_cookie() {
    let Some(scene) = symmetric() else { return };
    for relay in RELAYS {
        let config = format!("{}far_box = true\nreceive_buffer = \"1MB\"\n", fast(relay));
        let (mut near, mut far) = both(&scene, &config);
        let mut exchanges = 0;
        for address in SERVER {
            let listener = scene.far.listen(address);
            let before = opened_fast(&scene);
            exchanges += exchange_until(&scene, &listener, || opened_fast(&scene) != before);
        }
        for daemon in [&mut near, &mut far] {
            daemon.wait_for("flows_finished", exchanges);
            assert_eq!(daemon.counter("bytes_down"), exchanges * REQUEST as u64, "{relay}");
        }
        assert_eq!(counter(&scene.far.gateway, "TCPFastOpenCookieReqd"), 0);
    }
}

#[test]
fn a_server_that_speaks_first_is_heard() {
    let Some(scene) = symmetric() else { return };
    let (mut near, mut far) = daemons(&scene, "splice");
    for address in SERVER {
        let listener = scene.far.listen(address);
        for _ in 0..3 {
            let (mut ours, mut theirs) = scene.connection(scene.client(), &listener);
            theirs.write_all(b"220 ready").unwrap();
            ours.read_exact(&mut [0; 9]).unwrap();
            ours.write_all(b"HELO").unwrap();
            theirs.read_exact(&mut [0; 4]).unwrap();
        }
    }
    for daemon in [&mut near, &mut far] {
        daemon.wait_for("flows_finished", 6);
    }
    assert_eq!(opened_fast(&scene), (0, 0));
}

#[test]
fn a_client_that_is_silent_for_long_keeps_its_connection() {
    let Some(scene) = symmetric() else { return };
    let _daemons = daemons(&scene, "splice");
    let listener = scene.far.listen(SERVER[0]);
    let (mut ours, mut theirs) = scene.connection(scene.client(), &listener);
    thread::sleep(Duration::from_secs(1));
    ours.write_all(b"at last").unwrap();
    ours.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_all(&mut theirs).unwrap(), b"at last");
}

#[test]
fn a_client_that_ends_without_a_word_is_relayed_as_that() {
    let Some(scene) = symmetric() else { return };
    let (mut near, mut far) = daemons(&scene, "splice");
    let listener = scene.far.listen(SERVER[0]);
    let to = listener.local_addr().unwrap();
    let mut ours = scene.client().enter(|| TcpStream::connect(to).unwrap());
    ours.shutdown(Shutdown::Write).unwrap();
    let (mut theirs, _) = listener.accept().unwrap();
    assert_eq!(read_all(&mut theirs).unwrap(), b"");
    theirs.write_all(b"the reply").unwrap();
    drop(theirs);
    assert_eq!(read_all(&mut ours).unwrap(), b"the reply");
    for daemon in [&mut near, &mut far] {
        daemon.wait_for("flows_finished", 1);
    }
}

#[test]
fn a_client_that_is_gone_before_its_first_word_leaves_nothing() {
    let Some(scene) = symmetric() else { return };
    let (mut near, mut far) = daemons(&scene, "splice");
    let listener = scene.far.listen(SERVER[0]);
    let to = listener.local_addr().unwrap();
    for count in 1..=20 {
        let ours = scene.client().enter(|| TcpStream::connect(to).unwrap());
        // Until it has been accepted: before that, the reset would leave nothing to accept.
        near.wait_for("flows_total", count);
        sockopt::set_linger_reset(&ours).unwrap();
    }
    near.wait_for("flows_reset", 20);
    for daemon in [&mut near, &mut far] {
        daemon.wait_for("flows_open", 0);
        daemon.wait_for("relay_buffers_in_use", 0);
        assert_eq!(daemon.counter("flows_finished"), 0, "a reset is not an end in order");
    }
}

#[test]
fn a_cookie_that_is_refused_costs_no_byte() {
    let Some(scene) = symmetric() else { return };
    let _daemons = daemons(&scene, "copy");
    let listener = scene.far.listen(SERVER[0]);
    exchange_until(&scene, &listener, || opened_fast(&scene) == (1, 1));
    let far = &scene.far.gateway;
    far.sysctl("net.ipv4.tcp_fastopen_key", "00000001-00000002-00000003-00000004");
    exchange_until(&scene, &listener, || counter(far, "TCPFastOpenPassiveFail") > 0);
    // The refusal brings a new cookie.
    exchange_until(&scene, &listener, || opened_fast(&scene).0 > 1);
}

#[test]
fn a_far_side_without_fast_open_is_connected_to_as_usual() {
    let Some(scene) = symmetric() else { return };
    scene.near.gateway.sysctl("net.ipv4.tcp_fastopen", "3");
    let (mut near, _far) = (scene.near.try_daemon(&fast("splice")).unwrap(), scene.far.daemon(""));
    let listener = scene.far.listen(SERVER[0]);
    (0..5).for_each(|seed| exchange(&scene, &listener, seed));
    near.wait_for("flows_finished", 5);
    assert_eq!(opened_fast(&scene), (0, 0));
}

#[test]
fn a_host_that_forbids_fast_open_connects_as_usual() {
    let Some(scene) = symmetric() else { return };
    let (mut near, _far) = daemons(&scene, "splice");
    scene.near.gateway.sysctl("net.ipv4.tcp_fastopen", "0");
    let listener = scene.far.listen(SERVER[0]);
    (0..5).for_each(|seed| exchange(&scene, &listener, seed));
    near.wait_for("flows_finished", 5);
    assert_eq!(opened_fast(&scene), (0, 0));
}

#[test]
fn a_connection_whose_syns_with_data_are_dropped_is_late_and_complete() {
    let Some(scene) = symmetric() else { return };
    let _daemons = daemons(&scene, "splice");
    let listener = scene.far.listen(SERVER[0]);
    exchange_until(&scene, &listener, || opened_fast(&scene) == (1, 1));
    let far = &scene.far.gateway;
    far.rules(
        "table inet middlebox { counter dropped { }; chain in { type filter hook prerouting priority raw; \
         iifname sat0 tcp flags syn meta length > 200 counter name dropped drop; }; }",
    );
    exchange_until(&scene, &listener, || {
        !far.output("nft list counters table inet middlebox").contains("packets 0 ")
    });
    assert_eq!(opened_fast(&scene), (1, 1));
}

#[test]
fn a_server_that_refuses_is_a_reset_although_data_went_with_the_syn() {
    let Some(scene) = symmetric() else { return };
    let (_near, mut far) = daemons(&scene, "splice");
    let listener = scene.far.listen(SERVER[0]);
    let to = listener.local_addr().unwrap();
    exchange_until(&scene, &listener, || opened_fast(&scene) == (1, 1));
    crate::common::stop_listening(listener);
    let mut ours = scene.client().enter(|| TcpStream::connect(to).unwrap());
    let _ = ours.write_all(b"request");
    assert_eq!(read_all(&mut ours).unwrap_err().kind(), ErrorKind::ConnectionReset);
    far.wait_for("connects_failed", 1);
}

#[test]
fn two_hundred_connections_at_once_keep_their_bytes_apart() {
    let Some(scene) = symmetric() else { return };
    for relay in RELAYS {
        let (mut near, mut far) = daemons(&scene, relay);
        let listener = scene.far.listen(SERVER[0]);
        exchange_until(&scene, &listener, || opened_fast(&scene).0 > 0);
        let before = near.counter("flows_total");
        thread::scope(|scope| {
            for seed in 0..200 {
                let (scene, listener) = (&scene, &listener);
                scope.spawn(move || talk(scene, listener, seed));
                scope.spawn(|| echo(listener));
            }
        });
        for daemon in [&mut near, &mut far] {
            daemon.wait_for("flows_finished", before + 200);
            assert_eq!(daemon.counter("flows_reset"), 0);
            daemon.wait_for("relay_buffers_in_use", 0);
        }
    }
}

fn talk(scene: &Symmetric, listener: &TcpListener, seed: u64) {
    let to = listener.local_addr().unwrap();
    let sent = pattern(seed, (seed as usize * 331) % 20_000);
    let mut ours = scene.client().enter(|| {
        let mut ours = TcpStream::connect(to).unwrap();
        ours.write_all(&sent).unwrap();
        ours
    });
    ours.shutdown(Shutdown::Write).unwrap();
    assert!(read_all(&mut ours).unwrap() == sent, "seed {seed}");
}

fn echo(listener: &TcpListener) {
    let (mut theirs, _) = listener.accept().unwrap();
    let received = read_all(&mut theirs).unwrap();
    theirs.write_all(&received).unwrap();
}
