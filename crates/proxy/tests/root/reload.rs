//! The configuration is read again while connections come, go and carry data, and none of them is the worse
//! for it.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::common::{Net, PATIENCE, SERVER, configuration, network, pattern, read_all};

/// Answers each connection with what it says, until the listener is shut down.
fn echo(listener: &TcpListener, stop: &AtomicBool) {
    listener.set_nonblocking(true).unwrap();
    std::thread::scope(|scope| {
        while !stop.load(Ordering::Relaxed) {
            match listener.accept() {
                Err(_) => std::thread::sleep(Duration::from_millis(1)),
                Ok((mut stream, _)) => {
                    stream.set_nonblocking(false).unwrap();
                    scope.spawn(move || {
                        let mut block = [0; 4096];
                        while let Ok(count @ 1..) = stream.read(&mut block) {
                            stream.write_all(&block[..count]).unwrap();
                        }
                    });
                }
            }
        }
    });
}

/// One connection that says something and hears it again.
fn converse(net: &Net, to: std::net::SocketAddr) {
    let mut client = net.client.enter(|| TcpStream::connect(to)).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client.write_all(b"what do you say").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_all(&mut client).unwrap(), b"what do you say");
}

#[test]
fn reloading_under_load_harms_no_connection_old_or_new() {
    let Some(net) = network() else { return };
    let mut daemon = net.daemon("");
    let listener = net.listen(SERVER[0]);
    let (client, mut server) = net.connection(&listener);
    let to = listener.local_addr().unwrap();
    let sent = pattern(11, 40_000_000);
    let (stop, over, done) = (AtomicBool::new(false), AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let (net, listener, stop, over, done) = (&net, &listener, &stop, &over, &done);
        scope.spawn(move || echo(listener, over));
        let conversing = [(); 4].map(|()| {
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    converse(net, to);
                    done.fetch_add(1, Ordering::Relaxed);
                }
            })
        });
        let receiver = scope.spawn(|| {
            // Slowly at first, so that it lasts through all the reloads.
            let mut received = vec![0; 100_000];
            server.read_exact(&mut received).unwrap();
            while !stop.load(Ordering::Relaxed) {
                let mut block = [0; 1000];
                server.read_exact(&mut block).unwrap();
                received.extend_from_slice(&block);
                std::thread::sleep(Duration::from_millis(5));
            }
            received.extend(read_all(&mut server).unwrap());
            received
        });
        let mut writer = client.try_clone().unwrap();
        writer.set_write_timeout(None).unwrap();
        let outgoing = &sent;
        let sender = scope.spawn(move || {
            writer.write_all(outgoing).unwrap();
            writer.shutdown(Shutdown::Write).unwrap();
        });
        // Other limits, a leg with other settings, other limits, and the first settings again.
        let leg = "send_buffer = \"1MiB\"\n";
        for text in [
            format!("{}[limits]\nconnections = 500\n", configuration("")),
            format!("{}{leg}", configuration("")),
            format!("{}{leg}[limits]\nidle = \"1h\"\n", configuration("")),
            configuration(""),
        ] {
            let reached = done.load(Ordering::Relaxed) + 200;
            daemon.reload(&text).unwrap();
            let start = Instant::now();
            while done.load(Ordering::Relaxed) < reached {
                assert!(start.elapsed() < PATIENCE);
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        stop.store(true, Ordering::Relaxed);
        conversing.into_iter().for_each(|thread| thread.join().unwrap());
        over.store(true, Ordering::Relaxed);
        sender.join().unwrap();
        assert!(receiver.join().unwrap() == sent);
    });
    drop((client, server));
    daemon.wait_for("flows_open", 0);
    let conversations = done.load(Ordering::Relaxed);
    assert_eq!(daemon.counter("flows_reset"), 0);
    assert_eq!(daemon.counter("flows_finished"), conversations + 1, "every one was split");
}

#[test]
fn new_connections_have_the_new_settings_and_old_ones_keep_theirs() {
    let Some(net) = network() else { return };
    let leg = |congestion| format!("[legs.satellite]\ninterface = \"sat0\"\ncongestion = \"{congestion}\"\n");
    let mut daemon = net.try_daemon(&leg("reno")).unwrap();
    let listener = net.listen(SERVER[0]);
    let _old = net.connection(&listener);
    daemon.reload(&leg("cubic")).unwrap();
    let _new = net.connection(&listener);
    let upstream = net.gateway.output("ss -Htni src 10.77.1.2");
    assert_eq!(
        (upstream.matches(" reno ").count(), upstream.matches(" cubic ").count()),
        (1, 1),
        "{upstream}"
    );
    assert_eq!(daemon.counter("flows_total"), 2);
}

#[test]
fn a_configuration_that_cannot_be_used_changes_nothing() {
    let Some(net) = network() else { return };
    let mut daemon = net.daemon("");
    let listener = net.listen(SERVER[0]);
    let (mut client, mut server) = net.connection(&listener);
    let before = net.traces();
    for (text, reason) in [
        ("[legs.a]\ninterface = \"sat0\"\n[proxy]\nmark = \"0x700\"\n", "proxy.mark: it takes effect only"),
        ("[legs.a]\ninterface = \n", ":2: "),
        ("", "no satellite leg"),
    ] {
        let error = daemon.reload(text).unwrap_err();
        assert!(error.contains(reason), "{error}");
        assert_eq!(net.traces(), before);
    }
    client.write_all(b"x").unwrap();
    server.read_exact(&mut [0]).unwrap();
    let _another = net.connection(&listener);
    assert_eq!(daemon.counter("flows_total"), 2);
}

#[test]
fn a_handshake_that_is_under_way_at_a_reload_comes_to_its_end() {
    let Some(net) = network() else { return };
    let mut daemon = net.daemon("workers = 1");
    let listener = net.listen(SERVER[0]);
    let to = listener.local_addr().unwrap();
    // The client's acknowledgement does not arrive before the listener has been replaced.
    net.gateway.rules(
        "table inet hold { chain in { type filter hook prerouting priority raw; iifname ground0 tcp flags & (syn | ack) == ack drop; }; }",
    );
    let mut client = net.client.enter(|| TcpStream::connect(to).unwrap());
    daemon.reload(&format!("{}rtt = \"500ms\"\n", configuration("workers = 1"))).unwrap();
    net.gateway.run("nft delete table inet hold");
    client.write_all(b"here I am").unwrap();
    let (mut server, _) = listener.accept().unwrap();
    server.read_exact(&mut [0; 9]).unwrap();
    assert_eq!(daemon.counter("flows_total"), 1);
}

/// Its SYN was taken for a listener that the reload replaces, and comes to it when the rules are others.
#[test]
fn a_syn_that_is_taken_before_a_reload_comes_to_its_listener_after_it() {
    let Some(net) = network() else { return };
    for address in SERVER {
        let mut daemon = net.daemon("handshake = \"faithful\"");
        let listener = net.listen(address);
        // The neighbours know each other.
        net.connection(&listener);
        let chain = |hook: &str, rule: &str| {
            format!("table inet lost {{ chain c {{ type filter hook {hook} priority -350; {rule}; }}; }}")
        };
        net.server.rules(&chain("output", "tcp flags & (syn | ack) == syn | ack drop"));
        std::thread::scope(|scope| {
            let (net, to) = (&net, listener.local_addr().unwrap());
            let client = scope.spawn(move || net.client.enter(|| TcpStream::connect_timeout(&to, PATIENCE)));
            daemon.wait_for("held_total", 2);
            // It is the only one: none is repeated.
            net.client.rules(&chain("output", "tcp flags & (syn | ack) == syn drop"));
            daemon
                .reload(&format!("{}rtt = \"500ms\"\n", configuration("handshake = \"faithful\"")))
                .unwrap();
            net.server.run("nft delete table inet lost");
            let mut client = client.join().unwrap().unwrap();
            let (mut server, _) = listener.accept().unwrap();
            client.write_all(b"question").unwrap();
            server.read_exact(&mut [0; 8]).unwrap();
        });
        net.client.run("nft delete table inet lost");
        assert_eq!(daemon.counter("flows_total"), 2);
        daemon.stop();
    }
    net.expect_untouched();
}

#[test]
fn after_many_reloads_of_the_legs_the_daemon_asks_for_patience_and_goes_on() {
    let Some(net) = network() else { return };
    let mut daemon = net.daemon("");
    let text = |index: u64| format!("{}rtt = \"{}ms\"\n", configuration(""), 500 + index);
    let errors: Vec<String> = (0..5).filter_map(|index| daemon.reload(&text(index)).err()).collect();
    assert!(errors.len() == 2 && errors[0].contains("try again in"), "{errors:?}");
    // What does not touch the legs is possible all the time.
    daemon.reload(&format!("{}[limits]\nconnections = 100\n", text(2))).unwrap();
    let listener = net.listen(SERVER[0]);
    let _pair = net.connection(&listener);
    assert_eq!(daemon.counter("flows_total"), 1);
}

#[test]
fn a_limit_in_effect_stays_in_effect_after_a_reload() {
    let Some(net) = network() else { return };
    let text = format!("{}[limits]\nconnections = 1\n", configuration(""));
    let mut daemon = net.try_daemon(&text).unwrap();
    let listener = net.listen(SERVER[0]);
    let _first = net.connection(&listener);
    let mut let_in = 0;
    for _ in 0..20 {
        daemon.reload(&text).unwrap();
        // The watch is told at once; otherwise it would say who is kept out at its next beat, within 400 ms.
        std::thread::sleep(Duration::from_millis(60));
        let before = daemon.counter("flows_total");
        let _pair = net.connection(&listener);
        let_in += daemon.counter("flows_total") - before;
    }
    assert!(let_in <= 2, "{let_in} of 20 were let in");
}
