//! What the XCP router's eBPF program takes for a packet: `router_cost [RUNS]`, as root, in a release build.
//!
//! The program runs on frames that go nowhere (`BPF_PROG_TEST_RUN`), each a million times if not told otherwise, on one
//! processor whose caches know it. The best of seven rounds is printed, and the median.

use std::time::Duration;

use bentpipe_kernel::router::{Frame, Router, RouterConfig, RouterError, RouterShares, Variant};
use bentpipe_units::Rate;

const ROUNDS: usize = 7;
/// Behind the headers of Ethernet, IP and TCP.
const PAYLOAD: usize = 1400;

fn main() -> Result<(), RouterError> {
    let runs = std::env::args().nth(1).and_then(|runs| runs.parse().ok()).unwrap_or(1_000_000);
    let config = RouterConfig {
        capacity: Rate::mbps(1_000_000),
        variant: Variant::PXcp,
        longest_rtt: Duration::from_secs(4),
    };
    let router = Router::detached(&config)?;
    // More than is asked for: the feedback stays as it is. Nothing at all: it is lowered, in every run to the same.
    let plenty = RouterShares { positive: 1e15, per_second: 1e15, ..RouterShares::default() };
    for (what, frame, shares) in [
        ("no TCP", frame(17, &[]), plenty),
        ("TCP without options", frame(6, &[]), plenty),
        ("timestamps, no congestion header", frame(6, &timestamps()), plenty),
        ("congestion header, nothing to change", frame(6, &congestion_header()), plenty),
        ("feedback lowered, checksum corrected", frame(6, &congestion_header()), RouterShares::default()),
    ] {
        router.set_shares(&shares);
        let mut took = Vec::new();
        for _ in 0..ROUNDS {
            took.push(router.try_frame(&Frame { repeat: runs, ..Frame::new(&frame) })?.took.as_nanos());
        }
        took.sort_unstable();
        println!("{what:40} {:4} ns (median {} ns)", took[0], took[ROUNDS / 2]);
    }
    Ok(())
}

fn timestamps() -> Vec<u8> {
    [&[1, 1, 8, 10][..], &[0; 8]].concat()
}

/// Behind timestamps, 600 ms, 1.2 ms, 1 kB/s.
fn congestion_header() -> Vec<u8> {
    let numbers = [600_000u32, 1_200_000, 1000].map(u32::to_be_bytes).concat();
    [&timestamps()[..], &[254, 16, 0x42, 0x50], &numbers].concat()
}

fn frame(protocol: u8, options: &[u8]) -> Vec<u8> {
    let mut frame = vec![2; 12];
    let length = (40 + options.len() + PAYLOAD) as u16;
    let [high, low] = length.to_be_bytes();
    frame.extend([8, 0, 0x45, 0, high, low, 0, 0, 0, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    let mut tcp = [0; 20];
    tcp[12] = ((20 + options.len()) / 4 * 16) as u8;
    frame.extend(tcp);
    frame.extend(options);
    frame.resize(frame.len() + PAYLOAD, 7);
    frame
}
