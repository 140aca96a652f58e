//! What the XCP router's eBPF program takes for a packet: `router_cost [PACKETS]`, as root, in a release
//! build.
//!
//! First the program alone runs on a frame that goes nowhere (`BPF_PROG_TEST_RUN`), a million times if not
//! told otherwise. Then packets of which each is changed go out by one end of a cable in a network namespace
//! of its own, with and without the program there. The best of 21 rounds is printed, and the median.

#[path = "../tests/common/frame.rs"]
#[allow(dead_code)]
mod frame;
#[path = "../tests/common/injector.rs"]
mod injector;
#[path = "../tests/common/trial.rs"]
#[allow(dead_code)]
mod trial;

use std::process::Command;
use std::time::{Duration, Instant};

use bentpipe_kernel::router::{Router, RouterConfig, RouterError, Shares, Variant};
use bentpipe_units::Rate;
use frame::{HeaderFields, Segment};
use injector::Injector;
use rustix::thread::{UnshareFlags, unshare_unsafe};
use trial::Frame;

const ROUNDS: usize = 21;
const PAYLOAD: usize = 1400;

fn main() -> Result<(), RouterError> {
    let packets = std::env::args().nth(1).and_then(|packets| packets.parse().ok()).unwrap_or(1_000_000);
    let config = RouterConfig {
        capacity: Rate::mbps(1_000_000),
        variant: Variant::PXcp,
        longest_rtt: Duration::from_secs(4),
    };
    alone(&config, packets)?;
    at_a_cable(&config, packets / 10)
}

fn segment(with_header: bool) -> Segment {
    let fields = HeaderFields { rtt: 600_000, spacing: 1_200_000, feedback: 1000 };
    Segment { fields: with_header.then_some(fields), v6: false, payload: PAYLOAD, nops: 0 }
}

fn alone(config: &RouterConfig, packets: u32) -> Result<(), RouterError> {
    let router = Router::detached(config)?;
    // More than is asked for, so that the feedback stays as it is, however often.
    router.set_shares(&Shares { positive: 1e15, per_second: 1e15, ..Shares::default() }, Duration::ZERO);
    for (what, with_header) in [("no congestion header", false), ("congestion header, kept", true)] {
        let frame = segment(with_header).frame();
        let frame = Frame { repeat: packets, ..Frame::new(&frame) };
        let run =
            |_| trial::run(router.program(), &frame).expect("root runs programs").took.as_nanos() as f64;
        print(&format!("program alone, {what}"), (0..ROUNDS).map(run).collect());
    }
    Ok(())
}

fn at_a_cable(config: &RouterConfig, packets: u32) -> Result<(), RouterError> {
    // SAFETY: NEWNET changes this thread's network only, and it is the only thread.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.expect("root makes network namespaces");
    for line in ["link add near type veth peer name far", "link set near up", "link set far up"] {
        assert!(Command::new("ip").args(line.split(' ')).status().is_ok_and(|status| status.success()));
    }
    let injector = Injector::open("near");
    let frame = segment(true).unfinished_frame();
    let send = || {
        let start = Instant::now();
        (0..packets).for_each(|_| injector.send(&frame, 14, PAYLOAD));
        start.elapsed().as_nanos() as f64 / f64::from(packets)
    };
    let (mut with, mut without) = (Vec::new(), Vec::new());
    // One after the other, so that what else this machine does falls on both.
    for _ in 0..ROUNDS {
        without.push(send());
        let router = Router::attach("near", config)?;
        with.push(send());
        assert_eq!(router.counters().lowered, u64::from(packets));
    }
    print("sent over a cable, no program", without);
    print("sent over a cable, feedback lowered in each", with);
    Ok(())
}

fn print(what: &str, mut took: Vec<f64>) {
    took.sort_by(f64::total_cmp);
    println!("{what:45} {:6.0} ns (median {:.0} ns)", took[0], took[took.len() / 2]);
}
