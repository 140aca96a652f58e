//! Others on the gateway: what they remove, what they listen on, and what their firewall drops.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use crate::common::{Net, PATIENCE, Running, SERVER, network, socket_address, wait_until};
use bentpipe_kernel::sockopt;
use socket2::{Domain, Socket, Type};

/// Longer than a SYN takes to be repeated once.
const ATTEMPT: Duration = Duration::from_secs(4);
/// A fraction of the time after which a SYN is repeated, so that some are answered at each moment.
const BETWEEN_ATTEMPTS: Duration = Duration::from_millis(450);

/// One connection of the client's that comes through to the server, and says something.
fn expect_through(net: &Net, listener: &TcpListener) {
    let to = listener.local_addr().unwrap();
    let mut client = net.client.enter(|| TcpStream::connect_timeout(&to, ATTEMPT)).unwrap();
    client.write_all(b"through").unwrap();
    // A server that was asked for a client that passes in the end has been reset.
    let comes_through = |mut server: TcpStream| {
        server.set_read_timeout(Some(PATIENCE)).unwrap();
        match server.read_exact(&mut [0; 7]) {
            Err(error) if error.kind() == ErrorKind::ConnectionReset => false,
            outcome => outcome.is_ok(),
        }
    };
    while !comes_through(listener.accept().unwrap().0) {}
}

/// Waits until a connection is split.
fn expect_split(net: &Net, listener: &TcpListener, daemon: &mut Running) {
    let (start, before) = (Instant::now(), daemon.counter("flows_total"));
    while daemon.counter("flows_total") == before {
        assert!(start.elapsed() < PATIENCE, "connections are split again");
        // One that begins before the routes are there again may be lost.
        let _ = net.client.enter(|| TcpStream::connect_timeout(&listener.local_addr().unwrap(), ATTEMPT));
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn routes_that_somebody_has_removed_are_set_up_again() {
    let Some(net) = network() else { return };
    for (address, family) in SERVER.into_iter().zip(["-4", "-6"]) {
        for handshake in ["early", "faithful"] {
            let mut daemon = net.daemon(&format!("handshake = \"{handshake}\""));
            let listener = net.listen(address);
            let (mut client, mut server) = net.connection(&listener);
            // Those of the daemon's SYNs, of what this host sends, and of later packets.
            for preference in [64, 66, 67] {
                net.gateway.run(&format!("ip {family} rule del pref {preference}"));
                wait_until("the rule is there again", || {
                    net.gateway.output(&format!("ip {family} rule")).contains(&format!("{preference}:"))
                });
                expect_split(&net, &listener, &mut daemon);
            }
            net.gateway.run(&format!("ip {family} route flush table 25200"));
            expect_split(&net, &listener, &mut daemon);
            client.write_all(b"still there").unwrap();
            server.read_exact(&mut [0; 11]).unwrap();
            daemon.stop();
        }
    }
    net.expect_untouched();
}

#[test]
fn connections_pass_if_other_rules_route_intercepted_packets_away() {
    let Some(net) = network() else { return };
    let mut daemon = net.daemon("");
    net.gateway.run("ip route add default via 10.77.2.2 table 100");
    net.gateway.run("ip route add 10.77.1.0/24 dev ground0 table 100");
    net.gateway.run("ip rule add pref 10 lookup 100");
    let start = Instant::now();
    let listener = net.listen(SERVER[0]);
    while start.elapsed() < PATIENCE {
        let to = listener.local_addr().unwrap();
        if net.client.enter(|| TcpStream::connect_timeout(&to, ATTEMPT)).is_ok() {
            break;
        }
    }
    let before = daemon.counter("flows_total");
    expect_through(&net, &net.listen(SERVER[0]));
    assert_eq!(daemon.counter("flows_total"), before, "it passes");
    net.gateway.run("ip rule del pref 10");
    expect_split(&net, &listener, &mut daemon);
    daemon.stop();
}

#[test]
fn another_transparent_listener_takes_nothing_of_a_connection_that_passes() {
    let Some(net) = network() else { return };
    let daemon = net
        .try_daemon(&format!("{}[[rules]]\naction = \"pass\"\n", crate::common::configuration("")))
        .unwrap();
    let listener = net.listen(SERVER[0]);
    let port = listener.local_addr().unwrap().port();
    let _other = net.gateway.enter(|| {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        let address = std::net::SocketAddr::from(([0, 0, 0, 0], port));
        sockopt::set_transparent(&socket, &address).unwrap();
        socket.bind(&address.into()).unwrap();
        socket.listen(16).unwrap();
        socket
    });
    expect_through(&net, &listener);
    daemon.stop();
}

#[test]
fn a_listener_that_somebody_destroys_costs_no_processor_time_and_no_connection() {
    let Some(net) = network() else { return };
    let daemon = net.daemon("workers = 1");
    let listener = net.listen(SERVER[0]);
    expect_through(&net, &listener);
    net.gateway.run("ss -K state listening src 127.0.0.1");
    if net.gateway.output("ss -Htln src 127.0.0.1").lines().count() > 0 {
        return println!("skipped: needs a kernel with CONFIG_INET_DIAG_DESTROY");
    }
    expect_through(&net, &listener);
    daemon.expect_idle(Duration::from_secs(2));
    daemon.stop();
}

#[test]
fn nft_errors_about_long_rules_are_reported() {
    let Some(net) = network() else { return };
    let folder = tempfile::tempdir().unwrap();
    for program in ["nft", "ip"] {
        let path = folder.path().join(program);
        // It does not read what does not fit the pipe.
        std::fs::write(&path, "#!/bin/sh\n[ \"$1\" = -f ] && { echo no memory >&2; exit 1; }\n[ \"$2\" != rule ] || [ \"$3\" != del ]\n")
            .unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    }
    let rule = "[[rules]]\naction = \"pass\"\nserver = \"192.0.2.0/24\"\n";
    let text = crate::common::configuration("") + &rule.repeat(3000);
    let error = net.try_daemon_with_path(&text, Some(folder.path())).err().unwrap();
    assert!(error.contains("no memory"), "{error}");
}

/// A firewall as a gateway has it: everything that is not mentioned is dropped.
fn firewall(input: &str, forward: &str) -> String {
    let chain = |name: &str, rules: &str| {
        format!(
            "chain {name} {{\n type filter hook {name} priority filter; policy drop; \
             ct state established,related accept; {rules}\n}}\n"
        )
    };
    format!("table inet firewall {{\n{}{}}}\n", chain("input", input), chain("forward", forward))
}

#[test]
fn a_firewall_that_drops_what_it_does_not_know_decides_over_split_connections_as_over_others() {
    let Some(net) = network() else { return };
    for address in SERVER {
        net.gateway.rules(&firewall(
            "iif lo accept; icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept",
            "iifname ground0 oifname sat0 tcp dport != 9 accept",
        ));
        let mut daemon = net.daemon("");
        let listener = net.listen(address);
        expect_through(&net, &listener);
        assert_eq!(daemon.counter("flows_total"), 1);
        let forbidden = socket_address(address, 9);
        let attempt = net.client.enter(|| TcpStream::connect_timeout(&forbidden, Duration::from_secs(2)));
        assert_eq!(attempt.unwrap_err().kind(), ErrorKind::TimedOut);
        assert_eq!(daemon.counter("flows_total"), 1);
        daemon.stop();
        net.gateway.run("nft delete table inet firewall");
    }
}

/// Works beside listeners that answer in vain, for each handshake and family. Nothing is split there.
fn beside_answers_in_vain(work: impl Fn(&Net, &str) + Sync) {
    let of = |handshake: &str, address: &str| {
        let Some(net) = network() else { return };
        let mut daemon = net.daemon(&format!("handshake = \"{handshake}\""));
        net.gateway.rules(
            "table inet firewall { chain out { type filter hook output priority 0; \
             tcp flags & (syn | ack) == syn | ack drop; }; }",
        );
        work(&net, address);
        assert_eq!(daemon.counter("flows_total"), 0);
        daemon.stop();
    };
    std::thread::scope(|scope| {
        for handshake in ["early", "faithful"] {
            for address in SERVER {
                let of = &of;
                scope.spawn(move || of(handshake, address));
            }
        }
    });
}

#[test]
fn connections_pass_whose_listener_answers_in_vain() {
    beside_answers_in_vain(|net, address| {
        expect_through(net, &net.listen(address));
        // This one begins when it is known, before the rules know it.
        expect_through(net, &net.listen(address));
    });
}

/// Those whose handshake is under way when it is known that nothing comes of any are no worse off.
#[test]
fn connections_pass_that_were_begun_while_a_listener_answered_in_vain() {
    beside_answers_in_vain(|net, address| {
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(move || expect_through(net, &net.listen(address)));
                std::thread::sleep(BETWEEN_ATTEMPTS);
            }
        });
    });
}

#[test]
fn no_descriptor_is_left_to_programs_that_are_started() {
    let Some(net) = network() else { return };
    let daemon = net.daemon("handshake = \"faithful\"\nrelay = \"splice\"");
    let listener = net.listen(SERVER[0]);
    let _pair = net.connection(&listener);
    for entry in std::fs::read_dir(format!("/proc/{}/fdinfo", daemon.pid())).unwrap() {
        let entry = entry.unwrap();
        let number: u32 = entry.file_name().to_str().unwrap().parse().unwrap();
        let text = std::fs::read_to_string(entry.path()).unwrap();
        let flags = text.lines().find_map(|line| line.strip_prefix("flags:")).unwrap().trim().to_owned();
        let target = std::fs::read_link(format!("/proc/{}/fd/{number}", daemon.pid())).unwrap();
        let closed = u32::from_str_radix(&flags, 8).unwrap() & 0o2_000_000 != 0;
        // The daemon may have inherited some itself, as this process has.
        let inherited = std::fs::read_link(format!("/proc/self/fd/{number}")).is_ok_and(|own| own == target);
        assert!(closed || number <= 2 || inherited, "{number} {target:?} {flags}");
    }
}
