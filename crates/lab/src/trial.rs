//! Downloads over an emulated link for a fixed time, through one daemon, through two, or end to end, and
//! bundles between two nodes: their goodput, and the queue in front of the link.

mod nodes;
mod udp;
mod way_back;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

use bentpipe_link::agent::xcp::XcpConfig;
use bentpipe_link::agent::{AgentConfig, LinkEndConfig};
use bentpipe_link::{Counters, Impairments, LinkConfig, LinkTrace, OutageTrace};
use bentpipe_proxy::Config;
use bentpipe_testbed::Namespace;
use bentpipe_units::{ByteCount, Probability, Rate, Span, Time};

use crate::Error;
use crate::course::{Carries, Course};
use crate::download::{self, Request, SAMPLE_INTERVAL, Server};
use crate::quic;
use crate::topology::{FarEnd, PAYLOAD_SHARE, Proxy, SATELLITE, Topology, far_box, symmetric};
use crate::unsplit::{Class, Key, SETTLED, protect_rule, protect_table};
use nodes::Nodes;
pub use way_back::WayBack;
use way_back::{Sink, upload};

/// The server's port of snooped downloads.
const SNOOPED_PORT: u16 = 81;
/// The port of the server's stream that no daemon splits.
const UDP_PORT: u16 = 5004;
/// The interval between samples of the queue.
const SAMPLE: Duration = Duration::from_millis(10);
/// How long after the end the link is looked at: what its queue waits for.
const AFTERWARDS: Duration = Duration::from_secs(60);
/// How long a client waits for bytes before it checks whether the trial is over.
const READ_TIMEOUT: Duration = Duration::from_millis(100);

/// A link, the daemon's settings for it, and the downloads.
#[derive(Debug, Clone)]
pub struct Trial {
    /// The link's rate, each way.
    pub rate: Rate,
    /// The rate in the daemon's configuration; `None`: it is told neither that nor the round-trip time.
    pub configured: Option<Rate>,
    /// The round-trip time of the empty link.
    pub rtt: Duration,
    /// Packet error rate, each way.
    pub per: Probability,
    /// When the link is down, each way.
    pub outages: OutageTrace,
    /// How its rate and delay change, each way.
    pub trace: LinkTrace,
    /// The link itself, in place of its rate, round-trip time, errors, outages and trace above; `rtt` remains
    /// what the daemon is told.
    pub link: Option<LinkConfig>,
    /// The way from the client, if it is not like the way to it.
    pub way_back: Option<WayBack>,
    /// What else happens to packets on the way to the client.
    pub impairments: Impairments,
    /// Kernel settings of the host that receives over the satellite, the terminal or the client: keys and
    /// values of sysctl(8).
    pub receiver: Vec<(String, String)>,
    /// The congestion control of the gateway's satellite leg, and of both nodes'.
    pub congestion: String,
    /// Whether a daemon at the gateway splits the downloads; without it `congestion` is the server's.
    pub split: bool,
    /// That of the box at the terminal; `None`: there is none, and the client's own TCP faces the satellite.
    pub terminal: Option<String>,
    /// `receive_buffer` of its satellite leg; `None`: the kernel's autotuning.
    pub terminal_receive_buffer: Option<ByteCount>,
    /// The client's kernel has its own receive buffer, and not one that the link needs. With a box at the
    /// terminal it always has.
    pub stock_client: bool,
    /// Both boxes know of each other: requests and answers travel with the SYNs.
    pub far_box: bool,
    /// A router of XCP behind the gateway, at its end of the link.
    pub router: Option<XcpConfig>,
    /// The downloads.
    pub flows: Vec<Flow>,
    /// The size of the bundles that a node at the gateway sends to one at the client, without pause. Not with
    /// a proxy at the terminal.
    pub bundles: Option<ByteCount>,
    /// Cross traffic from the server to the client: what no daemon splits.
    pub cross_traffic: CrossTraffic,
    /// How long it lasts, from the first connection.
    pub lasts: Duration,
    /// The start-up time that is not measured.
    pub warmup: Duration,
    /// The seed of the link's losses.
    pub seed: u64,
    /// Whether the daemon's estimates of the link are printed now and then.
    pub traces: bool,
}

/// Traffic that no daemon splits.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct CrossTraffic {
    /// Downloads by QUIC.
    pub quic: usize,
    /// A constant stream of UDP of this rate, headers included.
    pub udp: Option<Rate>,
    /// Its share of the link under load, as it is configured; `None`: the default.
    pub share: Option<Probability>,
    /// It crosses protected legs, to a box at the terminal that splits nothing, with this weight; not with
    /// `terminal`.
    pub protected: Option<u32>,
    /// What becomes of it when it sends more, `cross_traffic_aqm` of the leg; `None`: the default.
    pub aqm: Option<String>,
    /// When it begins.
    pub begins: Duration,
}

/// One download.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Flow {
    /// When it begins.
    pub begins: Duration,
    /// The most that its client reads; `None`: everything.
    pub reads: Option<Rate>,
    /// The gateway does not split it, but snoops, at the pace of the share of cross traffic.
    pub snooped: bool,
}

/// The measurements after the warm-up.
#[derive(Debug, Clone, PartialEq)]
pub struct Measured {
    /// The goodput of each client, bits per second; with bundles, theirs comes last.
    pub goodputs_bps: Vec<f64>,
    /// The goodput of each QUIC download, and last that of the stream of UDP, bits per second.
    pub cross_traffic_bps: Vec<f64>,
    /// The most that any transport could have delivered, bits per second, while the link was up.
    pub limit_bps: f64,
    /// The part of the time in which the link was up.
    pub clear_sky: f64,
    /// How long the last byte in the queue had to wait, at each sample, seconds, in ascending order.
    pub queue_s: Vec<f64>,
    /// What was read and the queue, each 10 ms.
    pub course: Course,
    /// How long the last byte in the queue of the way back had to wait, in ascending order.
    pub back_queue_s: Vec<f64>,
    /// Packets offered to the way back, per second, and their bits as a share of its rate.
    pub back_offered: (f64, f64),
    /// The part of the packets offered to the link that its queue had no room for.
    pub queue_drops: f64,
    /// The load offered to the link while it was up, as a share of its rate; retransmissions included.
    pub offered: f64,
}

impl Trial {
    /// One download of a minute over a link that has its configured rate.
    pub fn of_a_minute(rate: Rate, rtt: Duration, per: f64, congestion: &str, seed: u64) -> Self {
        Self {
            rate,
            configured: Some(rate),
            rtt,
            per: Probability::new(per).expect("a part of one"),
            outages: OutageTrace::none(),
            trace: LinkTrace::default(),
            link: None,
            way_back: None,
            impairments: Impairments::default(),
            receiver: Vec::new(),
            congestion: congestion.to_owned(),
            split: true,
            terminal: None,
            terminal_receive_buffer: None,
            stock_client: false,
            far_box: false,
            router: None,
            flows: vec![Flow::default()],
            bundles: None,
            cross_traffic: CrossTraffic::default(),
            lasts: Duration::from_secs(60),
            warmup: Duration::ZERO,
            seed,
            traces: false,
        }
    }

    /// Runs it in network namespaces.
    ///
    /// # Errors
    /// The link, the daemon or a connection failed.
    pub fn run(&self) -> Result<Measured, Error> {
        let fail = |source| Error::Transfer { run: self.congestion.clone(), source };
        let (topology, proxies) = self.set_up()?;
        let nodes = self.bundles.map(|_| Nodes::start(&topology, &self.leg(&self.congestion))).transpose()?;
        let server = self.server(&topology).map_err(fail)?;
        self.watch(&topology, &proxies, &server, nodes.as_ref()).map_err(fail)
    }

    /// The time until the last byte of one file of this size is at the client, instead of a timed run: a
    /// download from its SYN on; or, with bundles, a single bundle from the moment at which its application
    /// starts to hand it over. The nodes' session is established by then, as it is between two nodes in
    /// operation.
    ///
    /// # Errors
    /// The link, the daemon, a node or a connection failed.
    pub fn file(&self, bytes: ByteCount) -> Result<Duration, Error> {
        let fail = |source| Error::Transfer { run: self.congestion.clone(), source };
        let (topology, _proxies) = self.set_up()?;
        if self.bundles.is_some() {
            return Nodes::start(&topology, &self.leg(&self.congestion))?.file(bytes).map_err(fail);
        }
        let _server = self.server(&topology).map_err(fail)?;
        let request = Request { seed: self.seed, bytes: bytes.get() };
        Ok(topology.download(request, &download::Progress::default()).map_err(fail)?.duration)
    }

    /// Builds the hosts and starts their daemons: the gateway's comes first, if there is one.
    fn set_up(&self) -> Result<(Topology, Vec<Proxy>), Error> {
        let router =
            LinkEndConfig { agents: self.router.map(AgentConfig::Xcp).into_iter().collect(), arq: None };
        let ends = [router, self.way_back.as_ref().map(WayBack::end).unwrap_or_default()];
        let topology = Topology::build_with(&self.link(), &ends, self.seed, self.far_end())?;
        let receiver = topology.terminal.as_ref().unwrap_or(&topology.client);
        self.receiver.iter().try_for_each(|(key, value)| receiver.sysctl(key, value))?;
        let key = self.cross_traffic.protected.map(|_| Key::new()).transpose()?;
        let weight = self.cross_traffic.protected.map(|weight| format!("weight = {weight}\n"));
        let weight = weight.unwrap_or_default();
        let protect = |peer| {
            let table = |key: &Key| protect_table("satellite", Class::Auto.name(), peer, &key.file());
            key.as_ref().map(|key| table(key) + &weight).unwrap_or_default()
        };
        let gateway = (self.split || self.terminal.is_some()).then(|| {
            let leg = self.leg(&self.congestion) + &protect(topology.far_address());
            (&topology.gateway, leg + &self.rules())
        });
        let terminal = topology.terminal.as_ref().zip(match &key {
            Some(_) => Some(self.far_end_of_protected(&protect(topology.gateway_address()))),
            None => self.terminal_leg(),
        });
        let hosts: Vec<_> = gateway.into_iter().chain(terminal).collect();
        if self.far_box {
            hosts.iter().try_for_each(|(host, _)| host.sysctl("net.ipv4.tcp_fastopen", "3"))?;
        }
        let proxies = hosts.into_iter().map(|(host, leg)| Proxy::start(host, &proxy(&leg)));
        let proxies = proxies.collect::<Result<_, _>>()?;
        if key.is_some() {
            std::thread::sleep(SETTLED);
        }
        Ok((topology, proxies))
    }

    fn far_end(&self) -> FarEnd {
        match (&self.terminal, self.stock_client) {
            _ if self.cross_traffic.protected.is_some() => FarEnd::Terminal,
            (Some(_), _) => FarEnd::Terminal,
            (None, true) => FarEnd::StockClient,
            (None, false) => FarEnd::Client,
        }
    }

    fn server(&self, topology: &Topology) -> std::io::Result<Server> {
        // Without downloads it is the nodes' alone, and only a leg can provide it.
        let is_servers = !self.split && !self.flows.is_empty();
        topology.serve(is_servers.then_some(self.congestion.as_str()), SAMPLE_INTERVAL)
    }

    fn link(&self) -> LinkConfig {
        if let Some(link) = &self.link {
            return link.clone();
        }
        let mut link = symmetric(self.rate, self.rtt, self.per);
        for direction in [&mut link.forward, &mut link.reverse] {
            (direction.outages, direction.trace) = (self.outages.clone(), self.trace.clone());
        }
        if let Some(way_back) = &self.way_back {
            way_back.apply(&mut link);
        }
        link.forward.impairments = self.impairments;
        link
    }

    /// The satellite leg, the same for the daemon and for a node.
    fn leg(&self, congestion: &str) -> String {
        let told = |rate| format!("rate = \"{rate}\"\nrtt = \"{}\"\n", Span(self.rtt));
        let told = self.configured.map(told).unwrap_or_default();
        let share = self.cross_traffic.share.map(|share| format!("cross_traffic = \"{share}\"\n"));
        let aqm = self.cross_traffic.aqm.as_ref();
        let aqm = aqm.map(|verdict| format!("cross_traffic_aqm = \"{verdict}\"\n"));
        let far_box = self.far_box.then(|| far_box(&self.link()));
        format!(
            "[legs.satellite]\ninterface = \"{SATELLITE}\"\ncongestion = \"{congestion}\"\n{told}\
             restart_within = \"1s\"\nsurvive_outage = \"25m\"\n{}{}{}",
            share.unwrap_or_default(),
            aqm.unwrap_or_default(),
            far_box.unwrap_or_default(),
        )
    }

    /// What the gateway does with packets; without rules it splits every connection.
    fn rules(&self) -> String {
        // Snoop's pace does not follow the leg's rates: it is the share.
        let share = self.cross_traffic.share.unwrap_or(Probability::new(0.5).expect("a part of one"));
        let pace = Rate::from_bps((share.get() * self.rate.bps() as f64) as u64).unwrap_or(self.rate);
        let snoop =
            format!("[snoop]\npace = \"{pace}\"\n[[rules]]\naction = \"snoop\"\nport = {SNOOPED_PORT}\n");
        let snoop = self.flows.iter().any(|flow| flow.snooped).then_some(snoop);
        let protect = self.cross_traffic.protected.map(|_| protect_rule("udp"));
        snoop.into_iter().chain(protect).collect()
    }

    /// The box at the terminal that does nothing but protect.
    fn far_end_of_protected(&self, protect: &str) -> String {
        let rules = protect_rule("udp") + "[[rules]]\naction = \"pass\"\n";
        self.leg(&self.congestion) + protect + &rules
    }

    fn terminal_leg(&self) -> Option<String> {
        let buffer = self.terminal_receive_buffer.map(|bytes| format!("receive_buffer = \"{bytes}\"\n"));
        Some(self.leg(self.terminal.as_ref()?) + &buffer.unwrap_or_default())
    }

    fn watch(
        &self,
        topology: &Topology,
        proxies: &[Proxy],
        server: &Server,
        nodes: Option<&Nodes>,
    ) -> std::io::Result<Measured> {
        let over = AtomicBool::new(false);
        let uploads = self.way_back.as_ref().map_or(0, |way_back| way_back.uploads);
        let sink = (uploads > 0).then(|| Sink::open(topology)).transpose()?;
        let snooped = self.flows.iter().any(|flow| flow.snooped);
        let snooped = snooped.then(|| topology.serve_at(SNOOPED_PORT, None, SAMPLE_INTERVAL)).transpose()?;
        let zeros = |count: usize| (0..count).map(|_| AtomicU64::new(0)).collect::<Vec<_>>();
        let read = zeros(self.flows.len() + self.bundles.iter().len());
        let cross_read = zeros(self.cross_traffic.streams());
        let quic = quic::Server::new(quic::Congestion::Cubic)?;
        std::thread::scope(|scope| {
            let started = Instant::now();
            let mut clients: Vec<_> = self
                .flows
                .iter()
                .zip(&read)
                .map(|(flow, read)| {
                    let over = &over;
                    let server = snooped.as_ref().filter(|_| flow.snooped).unwrap_or(server);
                    let client = move || flow.download(server.address(), self.seed, started, over, read);
                    scope.spawn(move || topology.client.run(client).map_err(std::io::Error::other)?)
                })
                .collect();
            if let (Some(nodes), Some(size), Some(read)) = (nodes, self.bundles, read.last()) {
                let over = &over;
                clients.push(scope.spawn(move || nodes.send(size, over)));
                clients.push(scope.spawn(move || nodes.receive(read, over)));
            }
            if let Some(sink) = &sink {
                let (over, address) = (&over, sink.address()?);
                clients.push(scope.spawn(move || sink.read(over)));
                for _ in 0..uploads {
                    let client = move || upload(address, over);
                    clients.push(
                        scope.spawn(move || topology.client.run(client).map_err(std::io::Error::other)?),
                    );
                }
            }
            let cross_traffic = &self.cross_traffic;
            clients.extend(cross_traffic.start(scope, topology, &quic, started, &cross_read, &over));
            let measured = self.sample(topology, proxies, started, &read, &cross_read);
            over.store(true, Ordering::Relaxed);
            clients.into_iter().try_for_each(|client| client.join().expect("a client does not panic"))?;
            Ok(measured)
        })
    }

    fn sample(
        &self,
        topology: &Topology,
        proxies: &[Proxy],
        started: Instant,
        read: &[AtomicU64],
        cross_read: &[AtomicU64],
    ) -> Measured {
        let loaded = |read: &[AtomicU64]| -> Vec<u64> {
            read.iter().map(|bytes| bytes.load(Ordering::Relaxed)).collect()
        };
        let (now, cross_now) = (|| loaded(read), || loaded(cross_read));
        std::thread::sleep(self.warmup.saturating_sub(started.elapsed()));
        let (from, before, counted) = (topology.link.now(), now(), topology.link.counters());
        let cross_before = cross_now();
        let (carries, mut samples, mut back_queue_s) = (self.carries(), Vec::new(), Vec::new());
        let back = self.way_back.as_ref().map_or(self.rate, |way_back| way_back.rate);
        while started.elapsed() < self.lasts {
            std::thread::sleep(SAMPLE);
            let (at, queued) = (topology.link.now(), topology.link.backlog());
            back_queue_s.push(back.time_for(queued.1.get()).as_secs_f64());
            let queued = queued.0.get();
            let delivered = topology.link.counters().0.delivered_bytes;
            let sample = carries.sample(at, now().iter().chain(&cross_now()).sum(), queued, delivered);
            samples.push(sample);
            if self.traces && samples.len() % 50 == 0 {
                let queue_s = sample.queue_s;
                let read = now().iter().sum::<u64>() as f64 / 1e6;
                let at = started.elapsed().as_secs_f64();
                let estimates = proxies.first().map(|gateway| gateway.link_estimates()).unwrap_or_default();
                let back = back_queue_s.last().copied().unwrap_or_default();
                println!(
                    "{at:5.1} s read {read:.2} MB queue {queue_s:.3} s way back {back:.3} s {estimates:?}"
                );
                if self.terminal.is_some() || self.bundles.is_some() {
                    println!("{}", connections(&topology.gateway));
                }
            }
        }
        let (until, (counters, back_counters)) = (topology.link.now(), topology.link.counters());
        let (counted, back_counted) = counted;
        let up = (until - from - carries.down(from, until)).as_secs_f64();
        let mut queue_s: Vec<f64> = samples.iter().map(|sample| sample.queue_s).collect();
        queue_s.sort_by(f64::total_cmp);
        back_queue_s.sort_by(f64::total_cmp);
        let ([sent, arrives], [sent_before, arrives_before]) = (carries.left(until), carries.left(from));
        let rate = (sent - sent_before) * 8.0 / (until - from).as_secs_f64();
        let bits = |(after, before): (u64, &u64)| (after - before) as f64 * 8.0 / up;
        Measured {
            goodputs_bps: now().into_iter().zip(&before).map(bits).collect(),
            cross_traffic_bps: cross_now().into_iter().zip(&cross_before).map(bits).collect(),
            limit_bps: (arrives - arrives_before) * PAYLOAD_SHARE * 8.0 / up,
            clear_sky: up / (until - from).as_secs_f64(),
            queue_s,
            back_queue_s,
            back_offered: (
                (back_counters.offered - back_counted.offered) as f64 / up,
                (back_counters.offered_bytes - back_counted.offered_bytes) as f64 * 8.0
                    / up
                    / back.bps() as f64,
            ),
            course: Course::new(samples),
            queue_drops: queue_drops(&counted, &counters),
            offered: (counters.offered_bytes - counted.offered_bytes) as f64 * 8.0 / up / rate,
        }
    }

    fn carries(&self) -> Carries {
        Carries::new(&self.link().forward, Time::ZERO + self.lasts + AFTERWARDS)
    }
}

fn proxy(leg: &str) -> Config {
    Config::parse("the trial's configuration", leg).expect("it is made of valid values")
}

/// The established connections of a host as ss(8) shows them.
fn connections(host: &Namespace) -> String {
    let listed = host.command("ss").args(["-Htin", "state", "established"]).output();
    listed.map_or_else(|error| error.to_string(), |out| String::from_utf8_lossy(&out.stdout).into_owned())
}

fn queue_drops(before: &Counters, after: &Counters) -> f64 {
    let offered = after.offered - before.offered;
    (after.dropped.queue_full - before.dropped.queue_full) as f64 / (offered.max(1)) as f64
}

impl CrossTraffic {
    fn streams(&self) -> usize {
        self.quic + usize::from(self.udp.is_some())
    }

    /// Starts senders and receivers, the streams in the order of [`Measured::cross_traffic_bps`].
    fn start<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        topology: &'scope Topology,
        quic: &'scope quic::Server,
        started: Instant,
        read: &'scope [AtomicU64],
        over: &'scope AtomicBool,
    ) -> Vec<ScopedJoinHandle<'scope, std::io::Result<()>>> {
        let at = |host: &'scope Namespace, work: Box<dyn FnOnce() -> std::io::Result<()> + Send + 'scope>| {
            scope.spawn(move || {
                std::thread::sleep(self.begins.saturating_sub(started.elapsed()));
                host.run(work).map_err(std::io::Error::other)?
            })
        };
        let (to_udp, to_quic) = (topology.server_address(UDP_PORT), topology.server_address(quic::PORT));
        let (stream, is_over) = (Request { seed: 0, bytes: u64::MAX }, || over.load(Ordering::Relaxed));
        let mut threads = Vec::new();
        if self.quic > 0 {
            threads.push(at(&topology.server, Box::new(move || quic.run(to_quic, is_over))));
        }
        for read in &read[..self.quic] {
            let count = |bytes| _ = read.fetch_add(bytes, Ordering::Relaxed);
            let client = move || quic.download(to_quic, stream, count, is_over).map(drop);
            threads.push(at(&topology.client, Box::new(client)));
        }
        if let (Some(rate), Some(read)) = (self.udp, read.last()) {
            threads.push(at(&topology.server, Box::new(move || udp::send(to_udp, rate, over))));
            threads.push(at(&topology.client, Box::new(move || udp::receive(to_udp, read, over))));
        }
        threads
    }
}

impl Flow {
    /// Reads until it is over.
    fn download(
        &self,
        server: SocketAddr,
        seed: u64,
        started: Instant,
        over: &AtomicBool,
        read: &AtomicU64,
    ) -> std::io::Result<()> {
        std::thread::sleep(self.begins.saturating_sub(started.elapsed()));
        let mut connection = TcpStream::connect(server)?;
        connection.set_read_timeout(Some(READ_TIMEOUT))?;
        connection.write_all(&Request { seed, bytes: u64::MAX }.encode())?;
        let mut buffer = vec![0; 1 << 16];
        let begun = Instant::now();
        while !over.load(Ordering::Relaxed) {
            let most = self.reads.map_or(buffer.len(), |rate| {
                let due = rate.bytes_in(begun.elapsed()).saturating_sub(read.load(Ordering::Relaxed));
                buffer.len().min(due as usize)
            });
            if most == 0 {
                std::thread::sleep(SAMPLE);
                continue;
            }
            match connection.read(&mut buffer[..most]) {
                Ok(0) => return Err(std::io::ErrorKind::UnexpectedEof.into()),
                Ok(length) => _ = read.fetch_add(length as u64, Ordering::Relaxed),
                Err(error) if crate::download::is_timeout(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl Measured {
    /// The goodput of all clients, as a share of the limit.
    pub fn of_limit(&self) -> f64 {
        self.goodputs_bps.iter().sum::<f64>() / self.limit_bps
    }

    /// The median of the queue's delay, seconds.
    pub fn median_queue_s(&self) -> f64 {
        self.queue_s.get(self.queue_s.len() / 2).copied().unwrap_or_default()
    }

    /// The 95th percentile of the delay of the way back's queue, seconds.
    pub fn back_queue_95_s(&self) -> f64 {
        self.back_queue_s.get(self.back_queue_s.len() * 95 / 100).copied().unwrap_or_default()
    }
}
