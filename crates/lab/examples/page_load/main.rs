//! A page of 60 objects and 1.9 MB, by HTTP/2 and TLS 1.3 in headless Chromium, over 10 Mbit/s and 600 ms
//! at PER 1%: `page_load [SEEDS [PATH]]`, as root, with Chromium (`scripts/setup-peers chromium`).
//!
//! End to end the server has BBR; through one box and through two, its kernel's default. `PATH` is a part
//! of a path's name. Chromium offers a post-quantum key, with which its first message of TLS, 1.9 kB, is
//! longer than a SYN can carry.

mod browser;
mod page;

use std::error::Error;
use std::net::TcpListener;
use std::time::Duration;

use bentpipe_kernel::sockopt;
use bentpipe_lab::topology::{FarEnd, Proxy, SATELLITE, Topology, far_box, symmetric};
use bentpipe_link::LinkConfig;
use bentpipe_proxy::Config;
use bentpipe_units::{Probability, Rate};

use browser::{Browser, Loaded};
use page::{BYTES, Page};

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
}

impl Path {
    fn name(self) -> &'static str {
        match self {
            Path::EndToEnd => "end to end, BBR",
            Path::OneBox => "one box",
            Path::TwoBoxes => "two boxes",
        }
    }

    /// The physical minimum: the handshakes of TCP, but where a box beside the client answers it, and of
    /// TLS 1.3, the page, and its objects, a round trip each, and all bytes at what the link delivers.
    fn minimum(self) -> Duration {
        let round_trips = if self == Path::TwoBoxes { 3 } else { 4 };
        let delivered = RATE.bps() as f64 / 8.0 * PAYLOAD_SHARE * (1.0 - PER);
        round_trips * RTT + Duration::from_secs_f64(BYTES as f64 / delivered)
    }

    fn load(self, seed: u64) -> Result<Loaded, Box<dyn Error>> {
        let link = symmetric(RATE, RTT, Probability::new(PER).expect("a part of one"));
        let far_end = if self == Path::TwoBoxes { FarEnd::Terminal } else { FarEnd::StockClient };
        let topology = Topology::build_with(&link, &Default::default(), seed, far_end)?;
        let _proxies = self.proxies(&topology, &link)?;
        let address = topology.server_address(PORT);
        let listener = topology.server.run(|| TcpListener::bind(address))??;
        if self == Path::EndToEnd {
            sockopt::set_congestion(&listener, "bbr")?;
        }
        let _page = Page::serve(listener)?;
        std::thread::sleep(SETTLED);
        Browser::in_host(&topology.client)?.load(address)
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

fn main() -> Result<(), Box<dyn Error>> {
    let seeds: u64 = std::env::args().nth(1).map_or(Ok(5), |argument| argument.parse())?;
    let wanted = std::env::args().nth(2);
    let paths = [Path::EndToEnd, Path::OneBox, Path::TwoBoxes].into_iter();
    for path in
        paths.filter(|path| wanted.as_ref().is_none_or(|wanted| path.name().contains(wanted.as_str())))
    {
        let mut loaded = (1..=seeds).map(|seed| path.load(seed)).collect::<Result<Vec<_>, _>>()?;
        loaded.sort_by(|one, other| one.complete.total_cmp(&other.complete));
        let [least, median, most] = [0, loaded.len() / 2, loaded.len() - 1].map(|rank| loaded[rank].complete);
        let mut first: Vec<f64> = loaded.iter().map(|loaded| loaded.first_byte).collect();
        first.sort_by(f64::total_cmp);
        let minimum = path.minimum().as_secs_f64();
        println!(
            "{}: loaded after {median:.2} s (median of {seeds}, {least:.2} to {most:.2}), {:.2} of the \
             minimum of {minimum:.2} s; first byte after {:.2} s",
            path.name(),
            median / minimum,
            first[first.len() / 2],
        );
    }
    Ok(())
}
