//! Protected legs between two boxes: packets that cannot be split survive losses, nothing is lost to a peer
//! that is silent, and senders learn what fits.

use std::io::ErrorKind;
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Signal, kill_process};

use crate::common::exchange::Exchange;
use crate::common::handover::{ITSELF, frozen_beside};
use crate::common::symmetric::{Symmetric, symmetric};
use crate::common::{CLIENT, Running, SERVER, socket_address, wait_until};

/// One of the boxes, whose peer is the other.
fn config(own: u8, more: &str) -> String {
    let peer = 3 - own;
    format!(
        "[legs.satellite]\ninterface = \"sat0\"\nrate = \"50Mbit/s\"\nrtt = \"20ms\"\n\
         [legs.satellite.protect]\npeer = \"10.77.3.{peer}\"\n{more}\n\
         [[rules]]\naction = \"protect\"\n"
    )
}

const INSECURE: &str = "insecure = true";

/// Files with two different keys.
fn two_keys() -> [tempfile::NamedTempFile; 2] {
    ["11", "22"].map(|byte| {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), byte.repeat(32)).unwrap();
        file
    })
}

/// Loses one in so many of the frames that come to a box.
fn lose(scene: &Symmetric, of: u32) {
    for net in [&scene.near, &scene.far] {
        net.gateway.rules(&format!(
            "table inet loss {{\n chain arrive {{\n type filter hook prerouting priority -400;\n \
             iifname sat0 udp dport 25200 numgen random mod {of} 0 drop\n }}\n}}\n"
        ));
    }
}

fn started(scene: &Symmetric, more: [&str; 2]) -> [Running; 2] {
    let [near, far] = [(&scene.near, 1, more[0]), (&scene.far, 2, more[1])];
    [near, far].map(|(net, own, more)| {
        net.try_daemon(&config(own, more)).unwrap_or_else(|error| panic!("daemon: {error}"))
    })
}

fn protected(boxes: &mut [Running; 2]) {
    for daemon in boxes {
        daemon.wait_for("alive", 1);
    }
}

/// A client's socket that is connected to a server's, and the server's.
fn sockets(scene: &Symmetric, family: usize) -> (UdpSocket, UdpSocket) {
    let bound = |address: &str| UdpSocket::bind(socket_address(address, 0)).unwrap();
    let server = scene.server().enter(|| bound(SERVER[family]));
    let client = scene.client().enter(|| bound(CLIENT[family]));
    client.connect(server.local_addr().unwrap()).unwrap();
    for socket in [&client, &server] {
        socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    }
    (client, server)
}

/// The numbers that come at the server of those that the client sends, in their order. It ends when all have come,
/// or when nothing comes any more though all were sent: a busy machine may take its time in between.
fn stream(client: &UdpSocket, server: &UdpSocket, count: u32, length: usize) -> Vec<u32> {
    let is_sent = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let got = scope.spawn(|| {
            let (mut got, mut buffer, mut silent) = (Vec::new(), [0; 2048], 0);
            while got.len() < count as usize && silent < 3 {
                match server.recv(&mut buffer) {
                    Ok(bytes) => {
                        assert_eq!(bytes, length);
                        got.push(u32::from_be_bytes(buffer[..4].try_into().unwrap()));
                        silent = 0;
                    }
                    Err(_) => silent += u32::from(is_sent.load(Ordering::Relaxed)),
                }
            }
            got
        });
        for number in 0..count {
            let mut packet = vec![0; length];
            packet[..4].copy_from_slice(&number.to_be_bytes());
            client.send(&packet).unwrap();
            std::thread::sleep(Duration::from_micros(600));
        }
        is_sent.store(true, Ordering::Relaxed);
        got.join().unwrap()
    })
}

#[test]
fn packets_of_both_families_cross_a_leg_that_loses_frames() {
    let Some(scene) = symmetric() else { return };
    let mut boxes = started(&scene, [INSECURE; 2]);
    protected(&mut boxes);
    lose(&scene, 20);
    for (family, length) in [(0, 1200), (1, 1200), (0, 60)] {
        let (client, server) = sockets(&scene, family);
        // The peer's reports first have to tell of losses.
        stream(&client, &server, 1000, length);
        let got = stream(&client, &server, 2000, length);
        assert!(got.len() >= 1990, "{} of 2000, {length} bytes, family {family}", got.len());
        let in_order = got.windows(2).filter(|pair| pair[0] < pair[1]).count() + 1;
        assert!(length < 100 || in_order == got.len(), "{in_order} of {} in order", got.len());
    }
    let [near, far] = &mut boxes;
    assert!(near.counter("frames_repair") > 50 && far.counter("repaired") > 50);
    assert_eq!(near.counter("silent_passed"), 0);
    for net in [&scene.near, &scene.far] {
        net.gateway.rules("delete table inet loss");
    }
    let [near, far] = boxes;
    near.settle();
    far.settle();
}

#[test]
fn a_connection_that_is_not_split_crosses_it_and_its_segments_fit() {
    let Some(scene) = symmetric() else { return };
    let mut boxes = started(&scene, [INSECURE; 2]);
    protected(&mut boxes);
    let listener =
        scene.server().enter(|| std::net::TcpListener::bind(socket_address(SERVER[0], 0)).unwrap());
    let (client, server) = scene.connection(scene.client(), &listener);
    let mss = scene.client().output("ss -Htine state established dst 10.77.2.2");
    let mss = mss.split_whitespace().find_map(|word| word.strip_prefix("mss:")).unwrap().to_owned();
    assert!((1300..1400).contains(&mss.parse::<u32>().unwrap()), "{mss}");
    Exchange::start((client, server), 2_000_000).expect_identical();
    let [near, far] = boxes.each_mut();
    assert!(near.counter("packets_sent") > 1000 && far.counter("packets_received") > 1000);
    assert_eq!(near.counter("flows_total"), 0);
    let [near, far] = boxes;
    near.settle();
    far.settle();
}

#[test]
fn the_sender_of_a_packet_that_is_too_long_is_told() {
    let Some(scene) = symmetric() else { return };
    let mut boxes = started(&scene, [INSECURE; 2]);
    protected(&mut boxes);
    for family in 0..2 {
        let (client, server) = sockets(&scene, family);
        // It cuts nothing, and obeys what routers say.
        let is_ipv6 = family == 1;
        let (level, option) = if is_ipv6 {
            (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER)
        } else {
            (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER)
        };
        let value: libc::c_int = 2;
        // SAFETY: the option's value is an integer that is valid for the length of the call.
        let set = unsafe {
            libc::setsockopt(
                std::os::fd::AsRawFd::as_raw_fd(&client),
                level,
                option,
                (&raw const value).cast(),
                size_of_val(&value) as libc::socklen_t,
            )
        };
        assert_eq!(set, 0);
        let packet = [7; 1440];
        wait_until("the client is told", || match client.send(&packet) {
            Err(error) => error.raw_os_error() == Some(libc::EMSGSIZE),
            Ok(_) => {
                std::thread::sleep(Duration::from_millis(50));
                false
            }
        });
        while server.recv(&mut [0; 2048]).is_ok() {}
        let longest = 1430 - if is_ipv6 { 48 } else { 28 } - 60;
        // Errors about earlier packets may still wait in the socket.
        wait_until("a shorter packet is sent", || client.send(&packet[..longest]).is_ok());
        assert_eq!(server.recv(&mut [0; 2048]).unwrap(), longest);
    }
    let [near, far] = boxes;
    near.settle();
    far.settle();
}

/// Until a packet of the client comes at the server: the time.
fn until_one_comes(client: &UdpSocket, server: &UdpSocket) -> Duration {
    server.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    let began = Instant::now();
    loop {
        client.send(b"a packet").unwrap();
        match server.recv(&mut [0; 100]) {
            Ok(_) => return began.elapsed(),
            Err(error) => assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)),
        }
        assert!(began.elapsed() < Duration::from_secs(20), "nothing comes");
    }
}

#[test]
fn without_a_peer_packets_pass_and_with_it_they_are_protected_again() {
    let Some(scene) = symmetric() else { return };
    let mut boxes = started(&scene, [INSECURE; 2]);
    protected(&mut boxes);
    let [mut near, far] = boxes;
    let (client, server) = sockets(&scene, 0);
    until_one_comes(&client, &server);
    far.kill();
    let silent = until_one_comes(&client, &server);
    assert!(silent < Duration::from_secs(5), "{silent:?}");
    near.wait_for("alive", 0);
    until_one_comes(&client, &server);
    wait_until("they are counted", || near.counter("silent_passed") > 0);
    let mut far = scene.far.try_daemon(&config(2, INSECURE)).unwrap();
    near.wait_for("alive", 1);
    far.wait_for("alive", 1);
    let (before, passed) = (far.counter("packets_received"), near.counter("silent_passed"));
    until_one_comes(&client, &server);
    wait_until("the packet was protected", || far.counter("packets_received") > before);
    assert_eq!(near.counter("silent_passed"), passed);
    near.settle();
    far.settle();
}

#[test]
fn with_another_key_nothing_is_taken_and_packets_pass_or_not_as_configured() {
    let Some(scene) = symmetric() else { return };
    let keys = two_keys();
    let of_near = format!("key_file = \"{}\"", keys[0].path().display());
    let of_far = format!("key_file = \"{}\"\nwhen_silent = \"drop\"", keys[1].path().display());
    let [mut near, mut far] = started(&scene, [&of_near, &of_far]);
    wait_until("the hellos are refused", || near.counter("refused") > 3 && far.counter("refused") > 3);
    let (client, server) = sockets(&scene, 0);
    until_one_comes(&client, &server);
    wait_until("they are counted", || near.counter("silent_passed") > 0);
    // The answer is dropped.
    server.send_to(b"an answer", client.local_addr().unwrap()).unwrap();
    assert!(client.recv(&mut [0; 100]).is_err());
    wait_until("the drop is counted", || far.counter("silent_dropped") > 0);
    assert_eq!((near.counter("alive"), far.counter("alive")), (0, 0));
    near.settle();
    far.settle();
}

#[test]
fn frames_of_others_change_nothing() {
    let Some(scene) = symmetric() else { return };
    let mut boxes = started(&scene, [INSECURE; 2]);
    protected(&mut boxes);
    let (client, server) = sockets(&scene, 0);
    // From the peer's address, but not by the daemon: any bytes as hellos, sources, repairs, reports.
    let forger = scene.near.gateway.enter(|| {
        let forger = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::DGRAM, None).unwrap();
        forger.set_reuse_address(true).unwrap();
        forger.bind(&socket_address("10.77.3.1", 0).into()).unwrap();
        forger
    });
    let to = socket_address("10.77.3.2", 25200).into();
    for round in 0..2000_u32 {
        let mut frame: Vec<u8> = (0..round % 300).map(|place| (place * round) as u8).collect();
        if let Some(first) = frame.first_mut() {
            *first = 0x10 + (round % 6) as u8;
        }
        forger.send_to(&frame, &to).unwrap();
    }
    assert!(stream(&client, &server, 500, 1000).len() >= 498);
    let [near, far] = &mut boxes;
    assert_eq!((near.counter("sessions"), far.counter("sessions")), (1, 1));
    let [near, far] = boxes;
    near.settle();
    far.settle();
}

#[test]
fn an_upgrade_in_the_middle_goes_on_in_the_session_and_loses_no_packet() {
    let Some(scene) = symmetric() else { return };
    let mut boxes = started(&scene, [INSECURE; 2]);
    protected(&mut boxes);
    let (client, server) = sockets(&scene, 0);
    let [near, far] = &mut boxes;
    std::thread::scope(|scope| {
        let streamed = scope.spawn(|| stream(&client, &server, 6000, 1000));
        std::thread::sleep(Duration::from_millis(500));
        near.succeed(&scene.near, &config(1, INSECURE)).unwrap();
        let got = streamed.join().unwrap();
        assert_eq!(got.len(), 6000);
        let late = got.windows(2).filter(|pair| pair[0] > pair[1]).count();
        assert_eq!(late, 0, "overtaken");
    });
    assert_eq!((near.counter("alive"), far.counter("alive"), far.counter("sessions")), (1, 1, 1));
    let before = far.counter("packets_received");
    assert!(stream(&client, &server, 100, 1000).len() == 100);
    wait_until("packets are still protected", || far.counter("packets_received") >= before + 100);
    let [near, far] = boxes;
    near.settle();
    far.settle();
}

/// A successor that freezes when it has built everything diverts packets itself by then, for the time that a
/// hand-over takes.
#[test]
fn a_successor_that_is_frozen_takes_no_packets_from_its_predecessor_nor_ends_the_session() {
    let Some(scene) = symmetric() else { return };
    let drops = format!("{INSECURE}\nwhen_silent = \"drop\"");
    let mut boxes = started(&scene, [&drops, INSECURE]);
    protected(&mut boxes);
    let (client, server) = sockets(&scene, 0);
    let [near, far] = &mut boxes;
    let (_folder, path) = near.await_successor();
    let first = near.pid();
    std::thread::scope(|scope| {
        let next =
            scope.spawn(|| scene.near.take_over_after(&config(1, &drops), &path, Signal::STOP, ITSELF).err());
        let frozen = frozen_beside(&scene.near, first);
        let error = near.outcome_of_handover().expect("nobody has taken over");
        assert!(error.contains("no progress"), "{error}");
        let before = far.counter("packets_received");
        // Longer than packets may wait for who goes on.
        let got = stream(&client, &server, 7000, 1000);
        kill_process(frozen, Signal::CONT).unwrap();
        assert!(next.join().unwrap().is_some(), "it cannot take over any more");
        assert_eq!(got.len(), 7000);
        wait_until("all were protected", || far.counter("packets_received") >= before + 7000);
    });
    assert_eq!((near.counter("alive"), near.counter("sessions"), far.counter("sessions")), (1, 1, 1));
    let [near, far] = boxes;
    near.settle();
    far.settle();
}

/// `bentpipe doctor` asks before the daemon runs, and leaves the peer as it is.
#[test]
fn the_peer_is_asked_without_a_session() {
    let Some(scene) = symmetric() else { return };
    let keys = two_keys();
    let key_file = |key: usize| format!("key_file = \"{}\"", keys[key].path().display());
    let ask = |key: usize| {
        let config = bentpipe_proxy::Config::parse("box.toml", &config(1, &key_file(key))).unwrap();
        let mut checks = scene.near.gateway.enter(|| bentpipe_proxy::check_protected_legs(&config));
        assert_eq!(checks.len(), 1, "only the owner may read the key: {checks:?}");
        checks.remove(0)
    };
    // A process that another test has just forked has the socket, too, until it executes its program.
    let closed = || {
        let sockets = "ss -Huan sport = :25200";
        wait_until("nobody has the port", || scene.near.gateway.output(sockets).trim().is_empty());
    };
    let nobody = ask(0);
    assert!(nobody.warning && nobody.found.contains("has not answered within 3s"), "{nobody:?}");
    let mut far = scene.far.try_daemon(&config(2, &key_file(0))).unwrap();
    closed();
    let answer = ask(0);
    assert!(answer.ok && !answer.warning && answer.found.contains("10.77.3.2 answers after"), "{answer:?}");
    assert!(answer.found.contains("packets of up to 1436 bytes fit"), "{answer:?}");
    // A busy machine may not answer within the time that it has.
    let attempt = || {
        closed();
        ask(1)
    };
    let mut asked = std::iter::repeat_with(attempt).take(3);
    let other = asked.find(|check| !check.warning).expect("the peer answers");
    assert!(!other.ok && other.found.contains("the peer has another key"), "{other:?}");
    assert_eq!(far.counter("sessions"), 0);
    closed();
    let mut near = scene.near.try_daemon(&config(1, &key_file(0))).unwrap();
    near.wait_for("alive", 1);
    far.wait_for("alive", 1);
    let taken = ask(0);
    assert!(taken.ok && !taken.warning && taken.found.contains("UDP port 25200 is taken"), "{taken:?}");
    near.settle();
    far.settle();
}
