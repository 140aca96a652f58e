//! `restart [CUTS] [--within TIME | --no-ceiling] [--no-probes] [--outage SECONDS] [SYSCTL=VALUE…]`: how soon
//! data flow again after an outage.
//!
//! For each of a number of outages it prints when the first data segment reaches the client again and when its
//! application reads the next byte; then the median and the worst. `--no-ceiling` is what kernels before 6.15
//! have, `--no-probes` what the ceiling of the retransmission timeout does alone.

use std::time::Duration;

use bentpipe_lab::download::{Progress, Request, SAMPLE_INTERVAL};
use bentpipe_lab::outage::cut;
use bentpipe_lab::topology::{Proxy, SATELLITE, Topology, symmetric};
use bentpipe_proxy::Config;
use bentpipe_units::{Probability, Rate};

const BYTES: u64 = 2_000_000_000;
/// Drops the proxy's segments without data towards the satellite, which in a download are probes. All other segments have data
/// and are longer.
const NO_PROBES: &str = "table inet no_probes {
 chain out {
  type filter hook postrouting priority 0;
  oifname \"sat0\" meta l4proto tcp tcp flags & (syn | fin | rst) == 0 meta length < 120 drop
 }
}";

struct Arguments {
    cuts: u32,
    within: String,
    has_probes: bool,
    outage: Option<f64>,
    settings: Vec<String>,
}

fn arguments() -> Arguments {
    let mut wanted =
        Arguments { cuts: 10, within: "1s".into(), has_probes: true, outage: None, settings: Vec::new() };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--within" => wanted.within = arguments.next().expect("a time"),
            // As high as it goes: the kernel's own.
            "--no-ceiling" => wanted.within = "120s".into(),
            "--no-probes" => wanted.has_probes = false,
            "--outage" => wanted.outage = arguments.next().map(|text| text.parse().expect("seconds")),
            _ if argument.contains('=') => wanted.settings.push(argument),
            _ => wanted.cuts = argument.parse().expect("a number of cuts"),
        }
    }
    wanted
}

fn main() {
    let Arguments { cuts, within, has_probes, outage, settings } = arguments();
    let link = symmetric(Rate::mbps(10), Duration::from_millis(600), Probability::ZERO);
    let topology = Topology::build(&link, 1).unwrap();
    for setting in settings {
        let (key, value) = setting.split_once('=').expect("KEY=VALUE");
        topology.gateway.sysctl(key, value).unwrap();
    }
    if !has_probes {
        topology.gateway.nft(NO_PROBES).unwrap();
    }
    let text = format!(
        "[legs.satellite]\ninterface = \"{SATELLITE}\"\nrate = \"10M\"\nrestart_within = \"{within}\"\n\
         survive_outage = \"25m\"\n"
    );
    let _proxy = Proxy::start(&topology.gateway, &Config::parse("restart", &text).unwrap()).unwrap();
    let _server = topology.serve(None, SAMPLE_INTERVAL).unwrap();
    let progress = Progress::default();
    let request = Request { seed: 1, bytes: BYTES };
    std::thread::scope(|scope| {
        let client = scope.spawn(|| topology.download(request, &progress).unwrap());
        println!("outage_s\tsegment_s\tapplication_s");
        let (mut segments, mut bytes) = (Vec::new(), Vec::new());
        for number in 0..cuts {
            std::thread::sleep(Duration::from_secs(6));
            let varied = Duration::from_millis(7000) + Duration::from_millis(370) * number;
            let length = outage.map_or(varied, Duration::from_secs_f64);
            let restart = cut(&topology, &progress, length);
            let [outage, segment, byte] =
                [length, restart.segment, restart.byte].map(|time| time.as_secs_f64());
            println!("{outage:.2}\t{segment:.2}\t{byte:.2}");
            segments.push(segment);
            bytes.push(byte);
        }
        println!("median and worst: segment {}, application {}", summary(&mut segments), summary(&mut bytes));
        progress.cancel();
        client.join().unwrap();
    });
}

fn summary(times: &mut [f64]) -> String {
    times.sort_by(f64::total_cmp);
    let middle = times.get(times.len() / 2).copied().unwrap_or(f64::NAN);
    format!("{middle:.2} (worst {:.2})", times.last().copied().unwrap_or(f64::NAN))
}
