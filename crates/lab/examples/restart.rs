//! How soon data flows again after an outage, through the proxy: `restart [CUTS] [RESTART_WITHIN] [SYSCTL=VALUE…]`.
//!
//! For each of a number of outages of different lengths it prints when the first data segment reaches the client again
//! and when its application reads the next byte.

use std::time::Duration;

use bentpipe_lab::download::{Progress, Request, Server, download};
use bentpipe_lab::outage::cut;
use bentpipe_lab::topology::start_proxy;
use bentpipe_lab::topology::{SATELLITE, Topology};
use bentpipe_link::{DirectionConfig, LinkConfig};
use bentpipe_proxy::Config;
use bentpipe_units::Rate;

const BYTES: u64 = 200_000_000;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let cuts: u64 = arguments.next().map_or(10, |cuts| cuts.parse().expect("a number of cuts"));
    let within = arguments.next().unwrap_or_else(|| "1s".into());
    let direction = DirectionConfig {
        rate: Some(Rate::mbps(10)),
        delay: Duration::from_millis(300),
        ..Default::default()
    };
    let topology =
        Topology::build(&LinkConfig { forward: direction.clone(), reverse: direction }, 1).unwrap();
    for setting in arguments {
        let (key, value) = setting.split_once('=').expect("KEY=VALUE");
        topology.gateway.sysctl(key, value).unwrap();
    }
    let text = format!(
        "[legs.satellite]\ninterface = \"{SATELLITE}\"\nrate = \"10M\"\nrestart_within = \"{within}\"\nsurvive_outage = \"25m\"\n"
    );
    let daemon = start_proxy(&topology, &Config::parse("restart", &text).unwrap()).unwrap();
    let address = topology.server_address(80);
    let mut server = topology.server.run(|| Server::start(address, None).unwrap()).unwrap();
    let progress = Progress::default();
    std::thread::scope(|scope| {
        let client = scope.spawn(|| {
            let request = Request { seed: 1, bytes: BYTES };
            topology.client.run(|| download(address, request, &progress)).unwrap().unwrap()
        });
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
    topology.gateway.run(|| drop(daemon)).unwrap();
    topology.server.run(|| server.stop()).unwrap();
}
