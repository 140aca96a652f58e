//! `fairness [PER] [CONGESTION]`: how flows that start one after the other share the satellite.
//!
//! Four downloads begin five seconds apart. Every six seconds it prints the goodput of each in Mbit/s, Jain's
//! index of them (Jain, Chiu and Hawe 1984) and the packets that the queue has dropped.

use std::time::Duration;

use bentpipe_lab::download::{Progress, Request, SAMPLE_INTERVAL};
use bentpipe_lab::statistics::jain_index;
use bentpipe_lab::topology::{Proxy, SATELLITE, Topology, symmetric};
use bentpipe_proxy::Config;
use bentpipe_units::{Probability, Rate};

const FLOWS: u64 = 4;
const APART: Duration = Duration::from_secs(5);
const INTERVAL: Duration = Duration::from_secs(6);
const INTERVALS: u64 = 10;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let per: Probability =
        arguments.next().map_or(Probability::ZERO, |per| per.parse().expect("a probability"));
    let congestion = arguments.next().unwrap_or_else(|| "hybla".into());
    let topology = Topology::build(&symmetric(Rate::mbps(10), Duration::from_millis(600), per), 1).unwrap();
    let text = format!(
        "[legs.satellite]\ninterface = \"{SATELLITE}\"\ncongestion = \"{congestion}\"\nrate = \"10M\"\n"
    );
    let _proxy = Proxy::start(&topology.gateway, &Config::parse("fairness", &text).unwrap()).unwrap();
    let _server = topology.serve(None, SAMPLE_INTERVAL).unwrap();
    let flows: Vec<Progress> = (0..FLOWS).map(|_| Progress::default()).collect();
    std::thread::scope(|scope| {
        for (flow, wait) in flows.iter().zip(0..) {
            let topology = &topology;
            scope.spawn(move || {
                std::thread::sleep(APART * wait);
                let request = Request { seed: 1, bytes: u64::MAX / 2 };
                topology.download(request, flow).unwrap()
            });
        }
        watch(&topology, &flows);
        flows.iter().for_each(Progress::cancel);
    });
}

fn watch(topology: &Topology, flows: &[Progress]) {
    println!("at_s\tgoodput_mbps\tjain\tqueue_drops");
    let mut before = vec![0; flows.len()];
    for interval in 1..=INTERVALS {
        std::thread::sleep(INTERVAL);
        let now: Vec<u64> = flows.iter().map(Progress::received).collect();
        let mbps = |(now, before): (&u64, &u64)| (now - before) as f64 * 8e-6 / INTERVAL.as_secs_f64();
        let rates: Vec<f64> = now.iter().zip(&before).map(mbps).collect();
        let shown: Vec<String> = rates.iter().map(|rate| format!("{rate:.2}")).collect();
        let drops = topology.link.counters().0.dropped.queue_full;
        let jain = jain_index(&rates).unwrap_or(1.0);
        println!("{}\t{}\t{jain:.2}\t{drops}", interval * INTERVAL.as_secs(), shown.join(" "));
        before = now;
    }
}
