//! A page of 60 objects and 1.9 MB, by HTTP/2 and by HTTP/3 in headless Chromium, over 10 Mbit/s and 600 ms
//! at PER 1%: `page_load [SEEDS [PATH [FOLDER]]]`, as root, with Chromium (`scripts/setup-peers chromium`).
//!
//! HTTP/2 end to end has a server with BBR; through one box and through two, its kernel's default. HTTP/3 has
//! quinn's CUBIC or BBR, and is protected between two boxes or not. `PATH` is a part of a path's name. In
//! `FOLDER` each path leaves a picture of when its objects came, in the run with the median time. Chromium
//! offers a post-quantum key, with which its first message of TLS, 1.9 kB, is longer than a SYN can carry.

mod browser;
mod http2;
mod http3;
mod page;
mod waterfall;

use std::error::Error;
use std::net::{TcpListener, UdpSocket};
use std::path::PathBuf;
use std::time::Duration;

use bentpipe_kernel::sockopt;
use bentpipe_lab::quic::Congestion;
use bentpipe_lab::topology::{FarEnd, Proxy, SATELLITE, Topology, far_box, symmetric};
use bentpipe_lab::unsplit::{Boxes, Class};
use bentpipe_link::LinkConfig;
use bentpipe_proxy::Config;
use bentpipe_units::{Probability, Rate};

use browser::{Browser, Loaded, Protocol};
use page::{BYTES, Identity, OBJECTS};

const RATE: Rate = Rate::mbps(10);
const RTT: Duration = Duration::from_millis(600);
const PER: f64 = 0.01;
/// Of a full packet.
const PAYLOAD_SHARE: f64 = 1448.0 / 1500.0;
const PORT: u16 = 443;
/// New interfaces look for duplicates of their IPv6 addresses. When they are done, the browser takes that
/// for a change of the network, and gives up what it is loading.
const SETTLED: Duration = Duration::from_secs(3);

/// How the page crosses the satellite.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Path {
    EndToEnd,
    OneBox,
    TwoBoxes,
    Quic(Congestion),
    Protected(Congestion),
}

const PATHS: [Path; 7] = [
    Path::EndToEnd,
    Path::OneBox,
    Path::TwoBoxes,
    Path::Quic(Congestion::Cubic),
    Path::Quic(Congestion::Bbr),
    Path::Protected(Congestion::Cubic),
    Path::Protected(Congestion::Bbr),
];

impl Path {
    fn name(self) -> String {
        match self {
            Path::EndToEnd => "HTTP/2, end to end, BBR".into(),
            Path::OneBox => "HTTP/2, one box".into(),
            Path::TwoBoxes => "HTTP/2, two boxes".into(),
            Path::Quic(congestion) => format!("HTTP/3, end to end, {}", congestion.name()),
            Path::Protected(congestion) => format!("HTTP/3, protected, {}", congestion.name()),
        }
    }

    fn protocol(self) -> Protocol {
        if matches!(self, Path::Quic(_) | Path::Protected(_)) { Protocol::Http3 } else { Protocol::Http2 }
    }

    fn far_end(self) -> FarEnd {
        match self {
            Path::EndToEnd | Path::OneBox => FarEnd::StockClient,
            Path::TwoBoxes | Path::Quic(_) | Path::Protected(_) => FarEnd::Terminal,
        }
    }

    /// The physical minimum: the handshakes of TCP, but where a box beside the client answers it, and of
    /// TLS 1.3, or that of QUIC, which is both; the page, and its objects, a round trip each; and all bytes
    /// at what the link delivers.
    fn minimum(self) -> Duration {
        let round_trips = if matches!(self, Path::EndToEnd | Path::OneBox) { 4 } else { 3 };
        let delivered = RATE.bps() as f64 / 8.0 * PAYLOAD_SHARE * (1.0 - PER);
        round_trips * RTT + Duration::from_secs_f64(BYTES as f64 / delivered)
    }

    fn load(self, seed: u64) -> Result<Loaded, Box<dyn Error>> {
        let link = symmetric(RATE, RTT, Probability::new(PER).expect("a part of one"));
        let topology = Topology::build_with(&link, &Default::default(), seed, self.far_end())?;
        let identity = Identity::new()?;
        match self {
            Path::Quic(congestion) => self.by_http3(&topology, &identity, congestion),
            Path::Protected(congestion) => {
                let _boxes = Boxes::start(&topology, RATE, Class::Auto, "udp")?;
                self.by_http3(&topology, &identity, congestion)
            }
            Path::EndToEnd | Path::OneBox | Path::TwoBoxes => self.by_http2(&topology, &identity, &link),
        }
    }

    fn by_http2(
        self,
        topology: &Topology,
        identity: &Identity,
        link: &LinkConfig,
    ) -> Result<Loaded, Box<dyn Error>> {
        let _proxies = self.proxies(topology, link)?;
        let address = topology.server_address(PORT);
        let listener = topology.server.run(|| TcpListener::bind(address))??;
        if self == Path::EndToEnd {
            sockopt::set_congestion(&listener, "bbr")?;
        }
        let _server = http2::Server::start(listener, identity)?;
        self.in_browser(topology, identity)
    }

    fn by_http3(
        self,
        topology: &Topology,
        identity: &Identity,
        congestion: Congestion,
    ) -> Result<Loaded, Box<dyn Error>> {
        let address = topology.server_address(PORT);
        let socket = topology.server.run(|| UdpSocket::bind(address))??;
        let _server = http3::Server::start(socket, identity, congestion)?;
        self.in_browser(topology, identity)
    }

    fn in_browser(self, topology: &Topology, identity: &Identity) -> Result<Loaded, Box<dyn Error>> {
        std::thread::sleep(SETTLED);
        let browser = Browser::in_host(&topology.client)?;
        browser.load(topology.server_address(PORT), identity, self.protocol())
    }

    fn proxies(self, topology: &Topology, link: &LinkConfig) -> Result<Vec<Proxy>, Box<dyn Error>> {
        if self == Path::EndToEnd {
            return Ok(Vec::new());
        }
        let both = if self == Path::TwoBoxes { far_box(link) } else { String::new() };
        let text = format!("[legs.satellite]\ninterface = \"{SATELLITE}\"\nrate = \"{RATE}\"\n{both}");
        let config = Config::parse("the example's configuration", &text)?;
        let mut proxies = Vec::new();
        for host in topology.terminal.iter().chain([&topology.gateway]) {
            host.sysctl("net.ipv4.tcp_fastopen", "3")?;
            proxies.push(Proxy::start(host, &config)?);
        }
        Ok(proxies)
    }
}

/// The value in the middle; of an even number of them the upper one.
fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() -> Result<(), Box<dyn Error>> {
    let seeds: u64 = std::env::args().nth(1).map_or(Ok(5), |argument| argument.parse())?;
    let wanted = std::env::args().nth(2).unwrap_or_default();
    let folder = std::env::args().nth(3).map(PathBuf::from);
    let mut shown = Vec::new();
    for path in PATHS.into_iter().filter(|path| path.name().contains(&wanted)) {
        let mut loaded = (1..=seeds).map(|seed| path.load(seed)).collect::<Result<Vec<_>, _>>()?;
        loaded.sort_by(|one, other| one.complete.total_cmp(&other.complete));
        let [least, most] = [0, loaded.len() - 1].map(|rank| loaded[rank].complete);
        let middle = &loaded[loaded.len() / 2];
        let first = median(loaded.iter().map(|loaded| loaded.first_byte));
        let objects = median(middle.objects.iter().map(|[_, _, last]| *last));
        let minimum = path.minimum().as_secs_f64();
        println!(
            "{}: loaded after {:.2} s (median of {seeds}, {least:.2} to {most:.2}), {:.2} of the \
             minimum of {minimum:.2} s; first byte after {first:.2} s, half of the {OBJECTS} objects after \
             {objects:.2} s",
            path.name(),
            middle.complete,
            middle.complete / minimum,
        );
        shown.push((path, loaded.swap_remove(loaded.len() / 2)));
    }
    if let Some(folder) = folder {
        // One scale, so that pictures can be laid beside each other.
        let longest = shown.iter().map(|(_, loaded)| loaded.complete).fold(1.0, f64::max).ceil();
        for (path, loaded) in &shown {
            let file = path.name().to_lowercase().replace(", ", "-").replace(['/', ' '], "-") + ".svg";
            std::fs::write(folder.join(file), waterfall::svg(&path.name(), loaded, longest))?;
        }
    }
    Ok(())
}
