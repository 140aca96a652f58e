//! `restart [CUTS] [RESTART_WITHIN] [SYSCTL=VALUE…]`: how soon data flow again after an outage.
//!
//! For each of a number of outages of different lengths it prints when the first data segment reaches the
//! client again and when its application reads the next byte.

use std::time::Duration;

use bentpipe_lab::download::{Progress, Request, SAMPLE_INTERVAL};
use bentpipe_lab::outage::cut;
use bentpipe_lab::topology::{Proxy, SATELLITE, Topology, symmetric};
use bentpipe_proxy::Config;
use bentpipe_units::{Probability, Rate};

const BYTES: u64 = 200_000_000;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let cuts: u64 = arguments.next().map_or(10, |cuts| cuts.parse().expect("a number of cuts"));
    let within = arguments.next().unwrap_or_else(|| "1s".into());
    let link = symmetric(Rate::mbps(10), Duration::from_millis(600), Probability::ZERO);
    let topology = Topology::build(&link, 1).unwrap();
    for setting in arguments {
        let (key, value) = setting.split_once('=').expect("KEY=VALUE");
        topology.gateway.sysctl(key, value).unwrap();
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
        for number in 0..cuts {
            std::thread::sleep(Duration::from_secs(6));
            let length = Duration::from_millis(7000 + 370 * number);
            let restart = cut(&topology, &progress, length);
            println!(
                "{:.2}\t{:.2}\t{:.2}",
                length.as_secs_f64(),
                restart.segment.as_secs_f64(),
                restart.byte.as_secs_f64()
            );
        }
        progress.cancel();
        client.join().unwrap();
    });
}
