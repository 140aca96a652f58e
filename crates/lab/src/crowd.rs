//! A crowd behind a gateway: connections that have had data, have been idle since, and wake at once.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bentpipe_proxy::Config;
use bentpipe_units::{ByteCount, Probability, Rate, Span};

use crate::Error;
use crate::topology::{FarEnd, Proxy, SATELLITE, Topology, symmetric};

/// What each connection has had before: more than the first window, so that it is known.
const BEFORE: usize = 30_000;
/// How far apart they begin, so that beginning they are no crowd.
const APART: Duration = Duration::from_millis(60);
/// How long they are idle: far longer than a round trip, and less than after which the capacity is a memory.
const IDLE: Duration = Duration::from_secs(5);
/// A connection that has no byte for so long has stalled for good.
const PATIENCE: Duration = Duration::from_secs(60);
/// The interval between samples of the queue.
const SAMPLE: Duration = Duration::from_millis(2);
/// Clients have small stacks: there may be hundreds.
const STACK: usize = 256 << 10;

/// A link that a gateway shares out, and the crowd.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Crowd {
    /// The link's rate, each way; the gateway is told it.
    pub rate: Rate,
    /// The round-trip time of the empty link.
    pub rtt: Duration,
    /// Packet error rate, each way.
    pub per: Probability,
    /// How many connections.
    pub connections: usize,
    /// What each is sent when they wake.
    pub bytes: ByteCount,
    /// The seed of the link's losses.
    pub seed: u64,
}

/// What happened from the moment on at which they woke.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Woken {
    /// The queue in front of the link: when it was looked at, and how long its last byte had to wait,
    /// seconds.
    pub queue: Vec<(f64, f64)>,
    /// When each connection had all its bytes, seconds, in ascending order.
    pub ends: Vec<f64>,
}

impl Crowd {
    /// Runs it in network namespaces. The clients' receive buffers are their kernel's own.
    ///
    /// # Errors
    /// The link, the daemon or a connection failed, or one has stalled for a minute.
    pub fn run(&self) -> Result<Woken, Error> {
        let fail = |source| Error::Transfer { run: "the crowd".into(), source };
        let link = symmetric(self.rate, self.rtt, self.per);
        let topology = Topology::build_with(&link, &Default::default(), self.seed, FarEnd::StockClient)?;
        let _proxy = Proxy::start(&topology.gateway, &self.proxy())?;
        let pairs = self.connect(&topology).map_err(fail)?;
        std::thread::sleep(IDLE);
        self.wake(&topology, pairs).map_err(fail)
    }

    fn proxy(&self) -> Config {
        let text = format!(
            "[legs.satellite]\ninterface = \"{SATELLITE}\"\nrate = \"{}\"\nrtt = \"{}\"\n",
            self.rate,
            Span(self.rtt)
        );
        Config::parse("the crowd's configuration", &text).expect("it is made of valid values")
    }

    /// The connections, each with both its ends, the client's first.
    fn connect(&self, topology: &Topology) -> io::Result<Vec<[TcpStream; 2]>> {
        let address = topology.server_address(80);
        let listener = topology.server.run(|| TcpListener::bind(address)).map_err(io::Error::other)??;
        let begin = |index: usize| {
            std::thread::sleep(APART * index as u32);
            let mut client = TcpStream::connect(address)?;
            client.set_read_timeout(Some(PATIENCE))?;
            client.read_exact(&mut [0; BEFORE])?;
            Ok(client)
        };
        std::thread::scope(|scope| {
            let thread = |index| {
                let client = move || topology.client.run(|| begin(index)).map_err(io::Error::other)?;
                std::thread::Builder::new().stack_size(STACK).spawn_scoped(scope, client)
            };
            let clients = (0..self.connections).map(thread).collect::<io::Result<Vec<_>>>()?;
            let mut servers = Vec::with_capacity(self.connections);
            for _ in 0..self.connections {
                let mut server = listener.accept()?.0;
                server.write_all(&[0; BEFORE])?;
                servers.push(server);
            }
            let pair = |client: TcpStream| {
                let of_client = |server: &TcpStream| server.peer_addr().ok() == client.local_addr().ok();
                let server = servers.iter().position(of_client).ok_or(io::ErrorKind::NotConnected)?;
                Ok([client, servers.swap_remove(server)])
            };
            let joined = clients.into_iter().map(|client| client.join().expect("a client does not panic"));
            joined.collect::<io::Result<Vec<_>>>()?.into_iter().map(pair).collect()
        })
    }

    /// All servers write, and all clients read.
    fn wake(&self, topology: &Topology, mut pairs: Vec<[TcpStream; 2]>) -> io::Result<Woken> {
        let bytes = self.bytes.get() as usize;
        let (data, reading, started) = (vec![0; bytes], AtomicUsize::new(pairs.len()), Instant::now());
        let reading = &reading;
        std::thread::scope(|scope| {
            let mut clients = Vec::with_capacity(pairs.len());
            for [client, server] in &mut pairs {
                server.write_all(&data)?;
                let client = move || {
                    let outcome = client.read_exact(&mut vec![0; bytes]);
                    reading.fetch_sub(1, Ordering::Relaxed);
                    outcome.map(|()| started.elapsed().as_secs_f64())
                };
                clients.push(std::thread::Builder::new().stack_size(STACK).spawn_scoped(scope, client)?);
            }
            let mut queue = Vec::new();
            while reading.load(Ordering::Relaxed) > 0 {
                std::thread::sleep(SAMPLE);
                let waits = topology.link.backlog().0.get() as f64 * 8.0 / self.rate.bps() as f64;
                queue.push((started.elapsed().as_secs_f64(), waits));
            }
            let ends = clients.into_iter().map(|client| client.join().expect("a client does not panic"));
            let mut ends = ends.collect::<io::Result<Vec<f64>>>()?;
            ends.sort_by(f64::total_cmp);
            Ok(Woken { queue, ends })
        })
    }
}

impl Woken {
    /// The queue's delays in the first second, seconds, in ascending order.
    pub fn first_second(&self) -> Vec<f64> {
        let mut delays: Vec<f64> =
            self.queue.iter().filter(|(at, _)| *at < 1.0).map(|(_, delay)| *delay).collect();
        delays.sort_by(f64::total_cmp);
        delays
    }
}
