//! What two boxes add to the delay of packets that cross a protected leg between them, where nothing is lost:
//!
//!     cargo run --release -p bentpipe-lab --example protected_delay [PACKETS]
//!
//! As root. Four namespaces on a line of veth pairs, a daemon on each of the two in the middle; a datagram
//! goes to the server and back, in turn by a port that the rules protect and by one that they let pass. What
//! is added is half of the difference of both round trips. A core that sleeps takes some time to wake up, more so
//! in a virtual machine; with a process on each core that does nothing at the lowest priority, none sleeps:
//!
//!     chrt -i 0 sh -c 'while :; do :; done'
//!
//! ```text
//! client ──lan0── near ──sat0── far ──lan0── server
//! ```

use std::error::Error;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bentpipe_lab::topology::Proxy;
use bentpipe_proxy::Config;
use bentpipe_testbed::{Namespace, Subnet, default_route, forwarding, veth};

type Outcome<T> = Result<T, Box<dyn Error>>;

/// The ports: one is protected.
const PORTS: [u16; 2] = [7001, 7002];
/// UDP payloads: a packet of the class `latency`, and one of `bulk`.
const PAYLOADS: [usize; 2] = [64, 1200];
/// Between two packets, so that nothing waits for another one.
const PAUSE: Duration = Duration::from_millis(2);
const PATIENCE: Duration = Duration::from_secs(1);
/// Until then both boxes have found each other.
const SETTLED: Duration = Duration::from_secs(2);
const SUBNETS: [Subnet; 3] = [Subnet::new(1), Subnet::new(2), Subnet::new(3)];

fn main() -> Outcome<()> {
    let count = std::env::args().nth(1).map_or(Ok(2000), |count| count.parse())?;
    let [client, near, far, server] = ["client", "near", "far", "server"].map(Namespace::new);
    let (client, near, far, server) = (client?, near?, far?, server?);
    let pairs = [(&near, &client, "lan0"), (&near, &far, "sat0"), (&far, &server, "lan0")];
    for ((left, right, name), subnet) in pairs.into_iter().zip(SUBNETS) {
        veth(left, name, right, name)?;
        subnet.assign(left, name, right, name)?;
    }
    default_route(&client, SUBNETS[0].left4())?;
    default_route(&near, SUBNETS[1].right4())?;
    default_route(&far, SUBNETS[1].left4())?;
    default_route(&server, SUBNETS[2].left4())?;
    [&near, &far].into_iter().try_for_each(forwarding)?;

    let mut key = tempfile::NamedTempFile::new()?;
    writeln!(key, "{}", "0123456789abcdef".repeat(4))?;
    let near = Proxy::start(&near, &config(SUBNETS[1].right4(), key.path())?)?;
    let far = Proxy::start(&far, &config(SUBNETS[1].left4(), key.path())?)?;
    std::thread::sleep(SETTLED);

    // They are there before the first datagram is.
    let sockets = server.run(|| PORTS.map(|port| UdpSocket::bind((SUBNETS[2].right4(), port))))?;
    let over = AtomicBool::new(false);
    let measured = std::thread::scope(|scope| {
        let over = &over;
        let echoes = sockets.map(|socket| scope.spawn(move || echo(&socket?, over)));
        let measured = client.run(|| PAYLOADS.map(|payload| round_trips(payload, count)));
        over.store(true, Ordering::Relaxed);
        echoes.into_iter().try_for_each(|echo| echo.join().expect("an echo does not panic"))?;
        Ok::<_, Box<dyn Error>>(measured?)
    })?;
    for (payload, measured) in PAYLOADS.into_iter().zip(measured) {
        let [protected, passed] = measured?;
        let micros = |sorted: &[f64], part: f64| 1e6 * sorted[((sorted.len() - 1) as f64 * part) as usize];
        let added = |part| (micros(&protected, part) - micros(&passed, part)) / 2.0;
        println!(
            "{:4} bytes of IP, {count} packets: round trip {:.0} µs protected, {:.0} µs not (medians); added each way \
             {:.0} µs at the median, {:.0} µs at the 95th percentile",
            payload + 28,
            micros(&protected, 0.5),
            micros(&passed, 0.5),
            added(0.5),
            added(0.95),
        );
    }
    drop((near, far));
    Ok(())
}

fn config(peer: Ipv4Addr, key: &Path) -> Outcome<Config> {
    let (peer, key, port) = (IpAddr::from(peer), key.display(), PORTS[0]);
    let text = format!(
        "[legs.satellite]\ninterface = \"sat0\"\nrate = \"1Gbit/s\"\nrtt = \"1ms\"\n\
         [legs.satellite.protect]\npeer = \"{peer}\"\nkey_file = \"{key}\"\n\
         [[rules]]\naction = \"protect\"\nprotocol = \"udp\"\nport = {port}\n"
    );
    Config::parse("the configuration of a box", &text).map_err(|error| error.to_string().into())
}

/// Sends back what comes, until it is over.
fn echo(socket: &UdpSocket, over: &AtomicBool) -> std::io::Result<()> {
    socket.set_read_timeout(Some(Duration::from_millis(100)))?;
    let mut buffer = [0; 2048];
    while !over.load(Ordering::Relaxed) {
        if let Ok((length, from)) = socket.recv_from(&mut buffer) {
            socket.send_to(&buffer[..length], from)?;
        }
    }
    Ok(())
}

/// The round trips to both ports in turn, seconds, in ascending order.
fn round_trips(payload: usize, count: usize) -> std::io::Result<[Vec<f64>; 2]> {
    let sockets = PORTS.map(|port| {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        socket.connect((SUBNETS[2].right4(), port))?;
        socket.set_read_timeout(Some(PATIENCE))?;
        Ok::<_, std::io::Error>(socket)
    });
    let mut seconds = [Vec::with_capacity(count), Vec::with_capacity(count)];
    let mut buffer = vec![0; 2048];
    for _ in 0..count {
        for (socket, seconds) in sockets.iter().zip(&mut seconds) {
            let socket = socket.as_ref().map_err(|error| std::io::Error::other(error.to_string()))?;
            let sent = Instant::now();
            socket.send(&vec![7; payload])?;
            socket.recv(&mut buffer)?;
            seconds.push(sent.elapsed().as_secs_f64());
            std::thread::sleep(PAUSE);
        }
    }
    seconds.iter_mut().for_each(|seconds| seconds.sort_by(f64::total_cmp));
    Ok(seconds)
}
