//! What goes in at one end comes out at the other, on real namespaces.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::thread;

use crate::common::{RELAYS, SERVER, network, pattern, read_all};

/// Sends `sent` on one stream while the other reads to the end of file.
fn carry(mut from: TcpStream, to: &mut TcpStream, sent: Vec<u8>) -> Vec<u8> {
    thread::scope(|scope| {
        scope.spawn(move || {
            from.write_all(&sent).unwrap();
            from.shutdown(Shutdown::Write).unwrap();
        });
        read_all(to).unwrap()
    })
}

#[test]
fn bytes_are_identical_both_ways_in_both_families() {
    let Some(net) = network() else { return };
    for relay in RELAYS {
        let mut daemon = net.daemon(&format!("relay = \"{relay}\""));
        for address in SERVER {
            let listener = net.listen(address);
            let (mut client, mut server) = net.connection(&listener);
            let (up, down) = (pattern(1, 20_000_000), pattern(2, 20_000_001));
            let received_up = carry(client.try_clone().unwrap(), &mut server, up.clone());
            let received_down = carry(server.try_clone().unwrap(), &mut client, down.clone());
            assert!(received_up == up && received_down == down, "{relay} {address}");
        }
        daemon.wait_for("flows_finished", 2);
        assert_eq!(daemon.counter("bytes_up"), 40_000_000);
        assert_eq!(daemon.counter("bytes_down"), 40_000_002);
        daemon.settle();
    }
}

#[test]
fn both_directions_run_at_once() {
    let Some(net) = network() else { return };
    let daemon = net.daemon("");
    let listener = net.listen(SERVER[0]);
    let (mut client, mut server) = net.connection(&listener);
    let (client_out, server_out) = (client.try_clone().unwrap(), server.try_clone().unwrap());
    thread::scope(|scope| {
        let up = scope.spawn(|| carry(client_out, &mut server, pattern(3, 30_000_000)));
        let down = carry(server_out, &mut client, pattern(4, 30_000_000));
        assert!(up.join().unwrap() == pattern(3, 30_000_000) && down == pattern(4, 30_000_000));
    });
    drop((client, server));
    daemon.settle();
}

#[test]
fn a_one_byte_message_is_not_held_back_for_the_next() {
    let Some(net) = network() else { return };
    for relay in RELAYS {
        let daemon = net.daemon(&format!("relay = \"{relay}\""));
        let listener = net.listen(SERVER[0]);
        let (mut client, mut server) = net.connection(&listener);
        for value in 0..=255u8 {
            let mut byte = [0];
            client.write_all(&[value]).unwrap();
            server.read_exact(&mut byte).unwrap();
            assert_eq!(byte[0], value);
            server.write_all(&[!value]).unwrap();
            client.read_exact(&mut byte).unwrap();
            assert_eq!(byte[0], !value);
        }
        drop((client, server));
        daemon.settle();
    }
}

#[test]
fn data_sent_before_the_server_has_answered_arrives() {
    let Some(net) = network() else { return };
    let mut daemon = net.daemon("");
    let listener = net.listen(SERVER[0]);
    // The server's answer is kept back until the client has spoken and ended.
    net.gateway.rules(
        "table inet hold { chain in { type filter hook prerouting priority raw; iifname sat0 drop; }; }",
    );
    let to = listener.local_addr().unwrap();
    let mut client = net.client.enter(|| TcpStream::connect(to).unwrap());
    client.write_all(b"early").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    daemon.wait_for("flows_open", 1);
    net.gateway.run("nft delete table inet hold");
    let (mut server, _) = listener.accept().unwrap();
    assert_eq!(read_all(&mut server).unwrap(), b"early");
    drop((client, server));
    daemon.settle();
}

#[test]
fn urgent_data_keeps_its_place_in_the_stream() {
    let Some(net) = network() else { return };
    for relay in RELAYS {
        let daemon = net.daemon(&format!("relay = \"{relay}\""));
        let listener = net.listen(SERVER[0]);
        let (mut client, mut server) = net.connection(&listener);
        for _ in 0..100 {
            client.write_all(b"before").unwrap();
            socket2::SockRef::from(&client).send_out_of_band(b"!").unwrap();
            client.write_all(b"after").unwrap();
        }
        client.shutdown(Shutdown::Write).unwrap();
        let received = read_all(&mut server).unwrap();
        assert_eq!(String::from_utf8_lossy(&received), "before!after".repeat(100), "{relay}");
        drop((client, server));
        daemon.settle();
    }
}

#[test]
fn a_slow_reader_loses_nothing_and_costs_the_daemon_little() {
    let Some(net) = network() else { return };
    for relay in RELAYS {
        let mut daemon = net.daemon(&format!("relay = \"{relay}\""));
        let listener = net.listen(SERVER[0]);
        let (client, mut server) = net.connection(&listener);
        let before = daemon.resident();
        let sent = pattern(5, 60_000_000);
        let mut sender = client.try_clone().unwrap();
        sender.set_write_timeout(None).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                sender.write_all(&sent).unwrap();
                sender.shutdown(Shutdown::Write).unwrap();
            });
            // Every buffer on the way is full once the count of bytes stands still.
            let mut moved = (0, daemon.counter("bytes_up"));
            while moved.1 == 0 || moved.0 != moved.1 {
                thread::sleep(std::time::Duration::from_millis(200));
                moved = (moved.1, daemon.counter("bytes_up"));
            }
            assert!(daemon.counter("relay_buffers_in_use") <= 1);
            assert!(daemon.resident() < before + (4 << 20), "{relay}: {} → {}", before, daemon.resident());
            assert!(read_all(&mut server).unwrap() == sent, "{relay}");
        });
        drop((client, server));
        daemon.settle();
    }
}

#[test]
fn two_hundred_flows_at_once_are_all_identical() {
    let Some(net) = network() else { return };
    for relay in RELAYS {
        let mut daemon = net.daemon(&format!("relay = \"{relay}\""));
        let listener = net.listen(SERVER[0]);
        let to = listener.local_addr().unwrap();
        let size = |index: u64| (index * 7919 % 400_000) as usize;
        let clients: Vec<TcpStream> =
            net.client.enter(|| (0..200).map(|_| TcpStream::connect(to).unwrap()).collect());
        thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..200 {
                    let (mut server, _) = listener.accept().unwrap();
                    // The server sends back what it received.
                    scope.spawn(move || {
                        let bytes = read_all(&mut server).unwrap();
                        server.write_all(&bytes).unwrap();
                    });
                }
            });
            for (index, mut client) in (0..).zip(clients) {
                scope.spawn(move || {
                    let sent = pattern(index, size(index));
                    let received = carry(client.try_clone().unwrap(), &mut client, sent.clone());
                    assert!(received == sent, "flow {index}");
                });
            }
        });
        daemon.wait_for("flows_finished", 200);
        assert_eq!(daemon.counter("flows_reset"), 0);
        daemon.settle();
    }
}

#[test]
fn an_idle_flow_holds_two_descriptors_and_no_buffer() {
    let Some(net) = network() else { return };
    for relay in RELAYS {
        let mut daemon = net.daemon(&format!("relay = \"{relay}\""));
        let listener = net.listen(SERVER[0]);
        let (mut client, mut server) = net.connection(&listener);
        client.write_all(b"hello").unwrap();
        server.read_exact(&mut [0; 5]).unwrap();
        // The pools of both workers now hold what they keep; more flows add their sockets only.
        let kept = daemon.descriptors();
        let flows: Vec<_> = (0..50).map(|_| net.connection(&listener)).collect();
        daemon.wait_for("flows_open", 51);
        assert_eq!(daemon.descriptors(), kept + 100, "{relay}");
        daemon.wait_for("relay_buffers_in_use", 0);
        drop((flows, client, server));
        daemon.settle();
    }
}
