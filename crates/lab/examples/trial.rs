//! One trial on this machine's kernel: `trial CONGESTION RATE CONFIGURED|- RTT PER SECONDS [SEED] [FLOW…]`, a
//! flow being `BEGINS[:READS]`, as `0s 30s 0s:0.5Mbit/s`.
//!
//! `WARMUP=5` begins to measure after five seconds, `OUTAGES='10,60 100,5'` has outages (start and length in
//! seconds), `RAILWAY=180` has the train go through the tunnels between Bologna and Florence, at km/h.
//! `STEPS='0,50Mbit/s 30,10Mbit/s'` has the rate change, and prints goodput and queue of each second.
//! `TRACE=1` prints what the controller of explicit rates knows, each half second. `TERMINAL=CONGESTION` puts
//! a second box at the terminal, and `ROUTER=CAPACITY` a router of P-XCP behind the gateway. `SPLIT=no`
//! leaves the daemon away, and `BUNDLES=250kB` has bundles of that size go from a node at the gateway to one
//! at the client, beside the flows or, with `FLOWS=none`, alone. `FILE=50MB` tells how long one file takes
//! instead. `UDP=2Mbit/s` and `QUIC=4` have a constant stream of UDP and downloads by QUIC beside the flows,
//! from `CROSS_BEGINS=10s` on, with a configured share of `SHARE=50%`.

use std::time::Duration;

use bentpipe_lab::trial::{CrossTraffic, Flow, Trial};
use bentpipe_link::agent::xcp::{Variant, XcpConfig};
use bentpipe_link::{LinkTrace, OutageTrace};
use bentpipe_units::{Rate, Span};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [congestion, rate, configured, rtt, per, seconds, rest @ ..] = &arguments[..] else {
        panic!("trial CONGESTION RATE CONFIGURED|- RTT PER SECONDS [SEED] [FLOW…]")
    };
    let rate: Rate = rate.parse().unwrap();
    let rtt = rtt.parse::<Span>().unwrap().get();
    let seed = rest.first().map_or(1, |seed| seed.parse().unwrap());
    let mut trial = Trial::of_a_minute(rate, rtt, per.parse().unwrap(), congestion, seed);
    trial.configured = (configured != "-").then(|| configured.parse().unwrap());
    trial.lasts = Duration::from_secs_f64(seconds.parse().unwrap());
    let flow = |text: &String| {
        let (begins, reads) = text.split_once(':').map_or((text.as_str(), None), |(a, b)| (a, Some(b)));
        Flow { begins: begins.parse::<Span>().unwrap().get(), reads: reads.map(|rate| rate.parse().unwrap()) }
    };
    if rest.len() > 1 {
        trial.flows = rest[1..].iter().map(flow).collect();
    }
    if let Ok(from) = std::env::var("WARMUP") {
        trial.warmup = Duration::from_secs_f64(from.parse().unwrap());
    }
    if let Ok(speed) = std::env::var("RAILWAY") {
        let tunnels = include_str!("../../../data/direttissima.csv");
        trial.outages = OutageTrace::from_railway_csv(tunnels, speed.parse().unwrap()).unwrap();
    }
    if let Ok(rows) = std::env::var("OUTAGES") {
        let rows = rows.replace(' ', "\n");
        trial.outages = OutageTrace::from_csv(&format!("start_s,duration_s\n{rows}\n")).unwrap();
    }
    if let Ok(rows) = std::env::var("STEPS") {
        let rows = rows.replace(' ', "\n");
        trial.trace = LinkTrace::from_csv(&format!("at_s,rate\n{rows}\n")).unwrap();
    }
    trial.terminal = std::env::var("TERMINAL").ok();
    trial.router = std::env::var("ROUTER").ok().map(|capacity| XcpConfig {
        variant: Variant::PXcp,
        ..XcpConfig::with_capacity(capacity.parse().unwrap())
    });
    trial.split = std::env::var("SPLIT").as_deref() != Ok("no");
    trial.bundles = std::env::var("BUNDLES").ok().map(|size| size.parse().unwrap());
    if std::env::var("FLOWS").as_deref() == Ok("none") {
        trial.flows.clear();
    }
    let spoken = |name: &str| std::env::var(name).ok();
    trial.cross_traffic = CrossTraffic {
        quic: spoken("QUIC").map_or(0, |flows| flows.parse().unwrap()),
        udp: spoken("UDP").map(|rate| rate.parse().unwrap()),
        share: spoken("SHARE").map(|share| share.parse().unwrap()),
        begins: spoken("CROSS_BEGINS").map_or(Duration::ZERO, |at| at.parse::<Span>().unwrap().get()),
    };
    trial.traces = std::env::var("TRACE").is_ok();
    if let Ok(size) = std::env::var("FILE") {
        println!("{congestion} {size}: {:.2?}", trial.file(size.parse().unwrap()).unwrap());
        return;
    }
    let measured = trial.run().unwrap();
    if !trial.trace.is_empty() {
        for second in 0..trial.lasts.as_secs() {
            if let Some(window) = measured.course.between(second as f64, second as f64 + 1.0) {
                let (share, queue) = (100.0 * window.of_limit, 1e3 * window.queue_95_s);
                println!("{second:3} s: {share:5.1}% of the limit, queue {queue:.0} ms");
            }
        }
    }
    let mbps: Vec<String> = measured.goodputs_bps.iter().map(|bps| format!("{:.2}", bps / 1e6)).collect();
    println!(
        "{congestion} {rate} {rtt:?} PER {per}: {} Mbit/s, {:.1}% of the limit of {:.2}; queue median {:.0} \
         ms, 95% {:.0} ms, drops {:.2}%; {:.1}% of the rate offered",
        mbps.join(" "),
        100.0 * measured.of_limit(),
        measured.limit_bps / 1e6,
        1e3 * measured.median_queue_s(),
        1e3 * measured.queue_s[measured.queue_s.len() * 95 / 100],
        100.0 * measured.queue_drops,
        100.0 * measured.offered,
    );
    let cross: Vec<String> =
        measured.cross_traffic_bps.iter().map(|bps| format!("{:.2}", bps / 1e6)).collect();
    if !cross.is_empty() {
        println!("beside them: {} Mbit/s", cross.join(" "));
    }
}
