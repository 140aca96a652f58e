//! What TCP Fast Open saves between two boxes: `fast_open [CONNECTIONS]`, as root.
//!
//! Client – near box = GEO satellite = far box – server. Each connection asks for 1 kB with 100 B, as a small
//! web page does; the time is from `connect(2)` to the last byte of the answer.

use std::error::Error;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use bentpipe_lab::topology::{FarEnd, Proxy, SATELLITE, Topology};
use bentpipe_link::Profile;
use bentpipe_proxy::Config;

const REQUEST: usize = 100;
const ANSWER: usize = 1000;

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
    let topology = Topology::build_with(&Profile::Geo.config(), &Default::default(), 1, FarEnd::Terminal)?;
    let Topology { client, terminal, gateway, server, .. } = &topology;
    let text = format!(
        "[legs.satellite]\ninterface = \"{SATELLITE}\"\nrate = \"10Mbit/s\"\nfast_open = {fast_open}\n"
    );
    let config = Config::parse("example", &text)?;
    let mut proxies = Vec::new();
    for host in terminal.iter().chain([gateway]) {
        host.sysctl("net.ipv4.tcp_fastopen", "3")?;
        proxies.push(Proxy::start(host, &config)?);
    }
    let to = topology.server_address(80);
    let listener = server.run(|| TcpListener::bind(to))??;
    std::thread::spawn(move || listener.incoming().try_for_each(|stream| answer(stream?)));
    (0..connections).map(|_| client.run(|| exchange(to))?.map_err(Into::into)).collect()
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
