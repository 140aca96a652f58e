//! What TCP Fast Open saves between two boxes: `fast_open [CONNECTIONS]`, as root.
//!
//! Client – near box = GEO satellite = far box – server. Each connection asks for 1 kB with 100 B, as a small web page does;
//! the time is from `connect(2)` to the last byte of the answer.

use std::error::Error;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use bentpipe_link::Profile;
use bentpipe_proxy::{Config, Daemon};
use bentpipe_testbed::{Namespace, SatelliteLink, Subnet, default_route, forwarding, veth};

const REQUEST: usize = 100;
const ANSWER: usize = 1000;
const MTU: u32 = 1500;
const SATELLITE: Subnet = Subnet::new(0);
const NEAR_LAN: Subnet = Subnet::new(1);
const FAR_LAN: Subnet = Subnet::new(2);

fn main() -> Result<(), Box<dyn Error>> {
    let connections = std::env::args().nth(1).map_or(Ok(9), |argument| argument.parse())?;
    for fast_open in [false, true] {
        let mut times = exchange_times(fast_open, connections)?;
        let first = times.first().copied().unwrap_or_default();
        times.sort();
        println!(
            "fast_open = {fast_open}: median {:.3} s of {connections} connections, the first {:.3} s",
            times[times.len() / 2].as_secs_f64(),
            first.as_secs_f64()
        );
    }
    Ok(())
}

fn exchange_times(fast_open: bool, connections: usize) -> Result<Vec<Duration>, Box<dyn Error>> {
    let hosts = ["client", "near", "far", "server"].map(Namespace::new);
    let [client, near, far, server] = hosts;
    let (client, near, far, server) = (client?, near?, far?, server?);
    let _link = join(&client, &near, &far, &server)?;
    let text =
        format!("[legs.satellite]\ninterface = \"sat0\"\nrate = \"10Mbit/s\"\nfast_open = {fast_open}\n");
    let config = Config::parse("example", &text)?;
    let _near = near.run(|| Daemon::start(&config))??;
    let _far = far.run(|| Daemon::start(&config))??;
    let listener = server.run(|| TcpListener::bind((FAR_LAN.right4(), 0)))??;
    let to = listener.local_addr()?;
    std::thread::spawn(move || listener.incoming().try_for_each(|stream| answer(stream?)));
    (0..connections).map(|_| client.run(|| exchange(to))?.map_err(Into::into)).collect()
}

/// Wires the hosts, client to server, and lets the boxes open fast.
fn join(
    client: &Namespace,
    near: &Namespace,
    far: &Namespace,
    server: &Namespace,
) -> Result<SatelliteLink, Box<dyn Error>> {
    let link = SatelliteLink::start(near, "sat0", far, "sat0", &Profile::Geo.config(), 1, MTU)?;
    SATELLITE.assign(near, "sat0", far, "sat0")?;
    for (lan, gateway, host) in [(NEAR_LAN, near, client), (FAR_LAN, far, server)] {
        veth(gateway, "lan0", host, "lan0")?;
        lan.assign(gateway, "lan0", host, "lan0")?;
        default_route(host, IpAddr::from(lan.left4()))?;
        forwarding(gateway)?;
        gateway.sysctl("net.ipv4.tcp_fastopen", "3")?;
    }
    default_route(near, IpAddr::from(SATELLITE.right4()))?;
    default_route(far, IpAddr::from(SATELLITE.left4()))?;
    Ok(link)
}

fn exchange(to: SocketAddr) -> std::io::Result<Duration> {
    let start = Instant::now();
    let mut stream = TcpStream::connect(to)?;
    stream.write_all(&[1; REQUEST])?;
    stream.read_exact(&mut [0; ANSWER])?;
    Ok(start.elapsed())
}

fn answer(mut stream: TcpStream) -> std::io::Result<()> {
    stream.read_exact(&mut [0; REQUEST])?;
    stream.write_all(&[2; ANSWER])
}
