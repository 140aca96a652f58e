//! One trial on this machine's kernel: `trial CONGESTION RATE CONFIGURED|- RTT PER SECONDS [SEED] [FLOW…]`, a
//! flow being `BEGINS[:READS]`, as `0s 30s 0s:0.5Mbit/s`.
//!
//! `WARMUP=5` begins to measure after five seconds, `OUTAGES='10,60 100,5'` has outages (start and length in
//! seconds), `RAILWAY=180` has the train go through the tunnels between Bologna and Florence, at km/h.
//! `STEPS='0,50Mbit/s 30,10Mbit/s'` has the rate change, and prints goodput and queue of each second. So does
//! `PROFILE='leo-handovers 3'`: the link is a profile of this seed, and rate, round trip and errors are not
//! used. `TRACE=1` prints what the controller of explicit rates knows, each half second.
//! `TERMINAL=CONGESTION` puts a second box at the terminal, with `RECEIVE_BUFFER=6MB` in its leg, and
//! `ROUTER=CAPACITY` a router of P-XCP behind the gateway. `SPLIT=no` leaves the daemon away, and
//! `BUNDLES=250kB` has bundles of that size go from a node at the gateway to one at the client, beside the
//! flows or, with `FLOWS=none`, alone. `FILE=50MB` tells how long one file takes instead.
//!
//! `BACK='200kbit/s 750kB'` is the rate and queue of the way back, with `UPLOADS=2` beside the downloads, and
//! `FILTER=1` puts an ACK filter before it. `SYSCTL='net.ipv4.tcp_timestamps=0'` are settings of the host
//! that receives over the satellite, and `REORDER='1% 10ms'` holds packets on the way to it back.
//!
//! `UDP=2Mbit/s` and `QUIC=4` have a constant stream of UDP and downloads by QUIC beside the flows, from
//! `CROSS_BEGINS=10s` on, with a configured share of `SHARE=50%` and the AQM `AQM=mark`, `drop` or `off`;
//! with `PROTECTED=1` they cross protected legs, with this weight. `SNOOPED=2` has so many downloads more, which are snooped.

use std::time::Duration;

use bentpipe_lab::trial::{CrossTraffic, Flow, Trial, WayBack};
use bentpipe_link::agent::xcp::{Variant, XcpConfig};
use bentpipe_link::{Impairments, LinkTrace, OutageTrace, Profile};
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
        let begins = begins.parse::<Span>().unwrap().get();
        Flow { begins, reads: reads.map(|rate| rate.parse().unwrap()), snooped: false }
    };
    if rest.len() > 1 {
        trial.flows = rest[1..].iter().map(flow).collect();
    }
    let snooped = std::env::var("SNOOPED").map_or(0, |flows| flows.parse().unwrap());
    trial.flows.extend(vec![Flow { snooped: true, ..Flow::default() }; snooped]);
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
    if let Ok(profile) = std::env::var("PROFILE") {
        let (name, seed) = profile.split_once(' ').unwrap_or((&profile, "1"));
        let profile: Profile = name.parse().unwrap();
        trial.link = Some(profile.generate(seed.parse().unwrap(), trial.lasts));
    }
    returns(&mut trial);
    trial.terminal = std::env::var("TERMINAL").ok();
    trial.router = std::env::var("ROUTER").ok().map(|capacity| XcpConfig {
        variant: Variant::PXcp,
        ..XcpConfig::with_capacity(capacity.parse().unwrap())
    });
    trial.terminal_receive_buffer = std::env::var("RECEIVE_BUFFER").ok().map(|size| size.parse().unwrap());
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
        protected: spoken("PROTECTED").map(|weight| weight.parse().unwrap()),
        aqm: spoken("AQM"),
        begins: spoken("CROSS_BEGINS").map_or(Duration::ZERO, |at| at.parse::<Span>().unwrap().get()),
    };
    trial.traces = std::env::var("TRACE").is_ok();
    if let Ok(size) = std::env::var("FILE") {
        println!("{congestion} {size}: {:.2?}", trial.file(size.parse().unwrap()).unwrap());
        return;
    }
    let measured = trial.run().unwrap();
    if !trial.trace.is_empty() || trial.link.is_some() {
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
         ms, 95% {:.0} ms, drops {:.2}%; {:.1}% of the rate offered; way back's queue median {:.2} s, 95% {:.2} s, {:.0} packets/s, {:.0}% of its rate",
        mbps.join(" "),
        100.0 * measured.of_limit(),
        measured.limit_bps / 1e6,
        1e3 * measured.median_queue_s(),
        1e3 * measured.queue_s[measured.queue_s.len() * 95 / 100],
        100.0 * measured.queue_drops,
        100.0 * measured.offered,
        measured.back_queue_s[measured.back_queue_s.len() / 2],
        measured.back_queue_95_s(),
        measured.back_offered.0,
        100.0 * measured.back_offered.1,
    );
    let cross: Vec<String> =
        measured.cross_traffic_bps.iter().map(|bps| format!("{:.2}", bps / 1e6)).collect();
    if !cross.is_empty() {
        println!("beside them: {} Mbit/s", cross.join(" "));
    }
}

/// The way back, its receiver, and what happens on the way to it.
fn returns(trial: &mut Trial) {
    if let Ok(back) = std::env::var("BACK") {
        let (rate, queue) = back.split_once(' ').expect("a rate and a queue");
        let uploads = std::env::var("UPLOADS").map_or(0, |count| count.parse().unwrap());
        let filter = std::env::var("FILTER").is_ok();
        let back = WayBack::new(rate.parse().unwrap(), queue.parse().unwrap());
        trial.way_back = Some(WayBack { filter, uploads, ..back });
    }
    if let Ok(settings) = std::env::var("SYSCTL") {
        let settings = settings.split(' ').map(|setting| setting.split_once('=').expect("KEY=VALUE"));
        trial.receiver = settings.map(|(key, value)| (key.into(), value.into())).collect();
    }
    if let Ok(reorder) = std::env::var("REORDER") {
        let (part, by) = reorder.split_once(' ').expect("a probability and a time");
        let reorder_by = by.parse::<Span>().unwrap().get();
        trial.impairments =
            Impairments { reorder: part.parse().unwrap(), reorder_by, ..Impairments::default() };
    }
}
