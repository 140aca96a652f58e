//! Records Hybla's inner variables over a satellite link, end to end:
//! `hybla_trace [RATE] [RTT] [PER] [BYTES] [CONGESTION]`, as tab-separated values.

use std::time::Duration;

use bentpipe_kernel::hybla::Hybla;
use bentpipe_lab::download::{Progress, Request};
use bentpipe_lab::topology::{Topology, symmetric};
use bentpipe_units::{ByteCount, Probability, Rate, Span};

fn argument<T: std::str::FromStr>(position: usize, default: &str) -> T
where
    T::Err: std::fmt::Debug,
{
    std::env::args()
        .nth(position)
        .unwrap_or_else(|| default.into())
        .parse()
        .expect("RATE RTT PER BYTES CONGESTION")
}

fn main() {
    let rate: Rate = argument(1, "10M");
    let rtt: Span = argument(2, "600ms");
    let per: Probability = argument(3, "0");
    let bytes: ByteCount = argument(4, "10MB");
    let hybla = Hybla::acquire().expect("root, and a kernel with BTF");
    let congestion: String = argument(5, hybla.name());
    let topology = Topology::build(&symmetric(rate, rtt.get(), per), 1).unwrap();
    let server = topology.serve(Some(&congestion), Duration::from_micros(500)).unwrap();
    let request = Request { seed: 1, bytes: bytes.get() };
    let got = topology.download(request, &Progress::default()).unwrap();
    std::thread::sleep(rtt.get() * 2);
    println!(
        "at_s\tcwnd\tssthresh\tdelivered\tunacked\tsrtt_ms\tmin_rtt_ms\tpacing_mbps\t\
         delivery_mbps\tlost\tretrans\trto_ms\trwnd_ms\tsndbuf_ms\tunsent"
    );
    let mut last = Duration::ZERO;
    for sample in &server.traces()[0] {
        if sample.at < last + rtt.get() / 10 && sample.at > rtt.get() * 2 {
            continue;
        }
        last = sample.at;
        let i = sample.info;
        println!(
            "{:.4}\t{}\t{}\t{}\t{}\t{:.1}\t{:.1}\t{:.2}\t{:.2}\t{:?}\t{}\t{}\t{}\t{}\t{}",
            sample.at.as_secs_f64(),
            i.cwnd,
            i.ssthresh,
            i.delivered,
            i.unacked,
            i.srtt.as_secs_f64() * 1e3,
            i.min_rtt.as_secs_f64() * 1e3,
            i.pacing_rate as f64 * 8.0 / 1e6,
            i.delivery_rate as f64 * 8.0 / 1e6,
            i.recovery,
            i.retransmissions,
            i.rto.as_millis(),
            i.receive_window_limited.as_millis(),
            i.send_buffer_limited.as_millis(),
            i.unsent
        );
    }
    let end = server.traces()[0].last().unwrap().info;
    eprintln!(
        "{:.2} s, {:.2} Mbit/s, identical {}, {} of {} segments retransmitted, {} timeouts; {:?}",
        got.duration.as_secs_f64(),
        got.bytes as f64 * 8e-6 / got.duration.as_secs_f64(),
        got.identical,
        end.retransmissions,
        end.data_segments_out,
        end.timeouts,
        topology.link.counters().0
    );
}
