//! Many at once: resets, dead servers, slow readers, half-closed connections. The daemon's costs are measured
//! and bounded.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use crate::common::accounts::bytes_in_pipes;
use crate::common::forger::{Forger, SYN};
use crate::common::{CLIENT, Net, RELAYS, Running, SERVER, abort, network, pattern, read_all};

const MEGABYTE: u64 = 1 << 20;

/// A new connection that carries a message each way.
fn exchange_a_word(net: &Net, listener: &TcpListener) {
    let (mut client, mut server) = net.connection(listener);
    let mut word = [0; 4];
    client.write_all(b"ping").unwrap();
    server.read_exact(&mut word).unwrap();
    server.write_all(b"pong").unwrap();
    client.read_exact(&mut word).unwrap();
    assert_eq!(&word, b"pong");
}

#[test]
fn ten_thousand_resets_leave_nothing_and_the_daemon_serves_on() {
    // Four sockets of each connection are open at once, two of them the daemon's; a process may have 20,000
    // descriptors.
    const AT_ONCE: usize = 2500;
    let Some(net) = network() else { return };
    let mut daemon = net.daemon("");
    let listener = net.listen(SERVER[0]);
    // What the first flows make the daemon allocate is not theirs alone.
    exchange_a_word(&net, &listener);
    let before = daemon.resident();
    for batch in 0..4 {
        let (clients, servers) = net.connections(&listener, AT_ONCE);
        daemon.wait_for("flows_open", AT_ONCE as u64);
        let (culprits, victims) = if batch % 2 == 0 { (clients, servers) } else { (servers, clients) };
        culprits.into_iter().for_each(abort);
        for mut victim in victims {
            assert_eq!(victim.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
        }
        daemon.wait_for("flows_open", 0);
    }
    assert_eq!(daemon.counter("flows_reset"), 10_000);
    let grown = daemon.resident().saturating_sub(before);
    println!("10,000 resets: {} kB more of resident memory", grown / 1024);
    assert!(grown < 8 * MEGABYTE, "{grown} bytes are kept");
    exchange_a_word(&net, &listener);
    daemon.settle();
}

#[test]
fn a_flood_to_dead_addresses_does_not_keep_others_from_being_served() {
    const DEAD: usize = 2000;
    let Some(net) = network() else { return };
    let mut daemon = net.daemon("");
    // The server is no router: it drops what is not for itself and says nothing.
    net.gateway.run("ip route add 10.99.0.0/16 via 10.77.2.2");
    let dead = |number: usize| SocketAddr::from(([10, 99, (number >> 8) as u8, number as u8], 80));
    let connect = || (0..DEAD).map(|number| TcpStream::connect(dead(number)).unwrap()).collect::<Vec<_>>();
    let flood = net.client.enter(connect);
    daemon.wait_for("flows_open", DEAD as u64);
    let listener = net.listen(SERVER[0]);
    (0..50).for_each(|_| exchange_a_word(&net, &listener));
    daemon.wait_for("flows_open", DEAD as u64);
    daemon.expect_idle(Duration::from_secs(2));
    flood.into_iter().for_each(abort);
    daemon.settle();
}

/// A listener whose queue is full would answer with SYN cookies, whose acknowledgements it never sees.
#[test]
fn where_a_flood_has_all_unfinished_handshakes_others_pass_unsplit() {
    const FLOOD: u16 = 8000;
    let Some(net) = network() else { return };
    let mut daemon = net.daemon("workers = 1");
    net.client
        .rules("table inet silent { chain o { type filter hook output priority 0; tcp flags rst drop; }; }");
    let listener = net.listen(SERVER[0]);
    let to = SocketAddrV4::new(SERVER[0].parse().unwrap(), listener.local_addr().unwrap().port());
    for port in 20_000..20_000 + FLOOD {
        let from = SocketAddrV4::new(CLIENT[0].parse().unwrap(), port);
        Forger::new(&net.client, from, to).send(SYN, port.into(), 0, &[]);
    }
    (0..20).for_each(|_| exchange_a_word(&net, &listener));
    assert_eq!(daemon.counter("flows_total"), 0);
    assert!(daemon.counter("syns_passed") > 1000, "{}", daemon.counter("syns_passed"));
    // Not to its state at the start: the unfinished handshakes outlive their listener.
    daemon.stop();
}

#[test]
fn a_thousand_half_closed_flows_cost_nothing_and_still_carry_data() {
    const COUNT: usize = 1000;
    let Some(net) = network() else { return };
    let mut daemon = net.daemon("");
    let listener = net.listen(SERVER[0]);
    let (mut clients, mut servers) = net.connections(&listener, COUNT);
    // Half of the flows are closed by their clients, the others by their servers.
    let port_of_client = |stream: &TcpStream| stream.peer_addr().unwrap().port();
    clients.sort_by_key(|client| client.local_addr().unwrap().port());
    servers.sort_by_key(port_of_client);
    let (mut closers, mut others) = (Vec::new(), Vec::new());
    for (number, (client, server)) in clients.into_iter().zip(servers).enumerate() {
        let (closer, other) = if number % 2 == 0 { (client, server) } else { (server, client) };
        closers.push(closer);
        others.push(other);
    }
    closers.iter().for_each(|closer| closer.shutdown(Shutdown::Write).unwrap());
    for other in &mut others {
        assert_eq!(other.read(&mut [0]).unwrap(), 0);
    }
    daemon.expect_idle(Duration::from_secs(3));
    for (number, other) in others.iter_mut().enumerate() {
        other.write_all(format!("flow {number}").as_bytes()).unwrap();
        other.shutdown(Shutdown::Write).unwrap();
    }
    for (number, closer) in closers.iter_mut().enumerate() {
        assert_eq!(read_all(closer).unwrap(), format!("flow {number}").as_bytes());
    }
    drop((closers, others));
    daemon.wait_for("flows_finished", COUNT as u64);
    daemon.settle();
}

/// What buffers a leg is given here, bytes.
const BUFFER: u64 = 256 * 1024;
/// What a pipe of the daemon holds at most, bytes.
const PIPE: u64 = 512 * 1024;

/// Configuration of bounded buffers on both legs.
fn bounded(relay: &str) -> String {
    let buffers = "send_buffer = \"256KiB\"\nreceive_buffer = \"256KiB\"\n";
    let legs = crate::common::configuration(&format!("relay = \"{relay}\""));
    format!("{legs}{buffers}[terrestrial]\n{buffers}")
}

#[test]
fn slow_readers_hold_no_more_than_the_legs_buffers() {
    for relay in RELAYS {
        let Some(net) = network() else { return };
        for readers in [1, 100] {
            let daemon = net.try_daemon(&bounded(relay)).unwrap();
            let cost = cost_of_slow_readers(&net, daemon, readers, 3_000_000);
            println!("{relay}, {readers} slow readers, buffers of 256 KiB: {cost}");
            let readers = readers as u64;
            // Two socket buffers for each, one of which may exceed its size by a segment of the largest size,
            // and one relay buffer.
            assert!(cost.sockets <= readers * (2 * BUFFER + 64 * 1024), "{cost}");
            assert!(cost.pipes <= readers * PIPE, "{cost}");
            assert!(cost.resident <= readers * 80 * 1024 + 4 * MEGABYTE, "{cost}");
        }
    }
}

/// What the daemon and its gateway hold for flows whose reader does not read, bytes.
#[derive(Debug)]
struct Cost {
    /// The daemon's resident memory.
    resident: u64,
    /// Data in its pipes.
    pipes: u64,
    /// Memory of the gateway's sockets, their bookkeeping included.
    sockets: u64,
}

impl std::fmt::Display for Cost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [resident, pipes, sockets] = [self.resident, self.pipes, self.sockets].map(|bytes| bytes / 1024);
        write!(f, "resident memory {resident} kB more, {pipes} kB in pipes, {sockets} kB in sockets")
    }
}

/// Lets clients send `bytes` each to servers that do not read until everything stands still; then they read,
/// and all is as it was sent.
fn cost_of_slow_readers(net: &Net, mut daemon: Running, readers: usize, bytes: usize) -> Cost {
    let listener = net.listen(SERVER[0]);
    let before = daemon.resident();
    let (clients, servers) = net.connections(&listener, readers);
    let sent = pattern(7, bytes);
    let cost = thread::scope(|scope| {
        for mut client in clients {
            let sent = &sent;
            scope.spawn(move || {
                client.write_all(sent).unwrap();
                client.shutdown(Shutdown::Write).unwrap();
            });
        }
        wait_until_nothing_moves(&mut daemon);
        assert!(daemon.counter("relay_buffers_in_use") <= readers as u64);
        let resident = daemon.resident().saturating_sub(before);
        let cost = Cost { resident, pipes: bytes_in_pipes(daemon.pid()), sockets: memory_of_sockets(net) };
        for mut server in servers {
            assert!(read_all(&mut server).unwrap() == sent);
        }
        cost
    });
    daemon.settle();
    cost
}

/// Every buffer on the way is full once the count of bytes stands still.
fn wait_until_nothing_moves(daemon: &mut Running) {
    let mut moved = (0, daemon.counter("bytes_up"));
    while moved.1 == 0 || moved.0 != moved.1 {
        thread::sleep(Duration::from_millis(300));
        moved = (moved.1, daemon.counter("bytes_up"));
    }
}

/// Receive and send memory of all TCP sockets of the gateway: `r` and `w` of ss(8),
/// `skmem:(r…,rb…,t…,tb…,f…,w…,…)`.
fn memory_of_sockets(net: &Net) -> u64 {
    let table = net.gateway.output("ss -Htnm");
    let of_socket = |memory: &str| -> u64 {
        let field =
            |name: &str| memory.split(',').find_map(|field| field.strip_prefix(name)?.parse::<u64>().ok());
        field("r").unwrap() + field("w").unwrap()
    };
    table.split("skmem:(").skip(1).map(of_socket).sum()
}
