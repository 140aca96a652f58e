//! One download by QUIC over an emulated satellite link, for quick trials, as root:
//!
//!     quic --per 1% --seconds 20 --congestion bbr
//!     quic --per 1% --burst 20 --protect bulk
//!
//! It prints the goodput of each second, the share of the limit, the queue, and whether what has arrived is
//! what was sent. With `--inside wireguard`, `esp` or `no-tunnel` it is TCP with CUBIC instead.

use std::process::ExitCode;
use std::time::Duration;

use bentpipe_lab::Error;
use bentpipe_lab::quic::{self, Congestion};
use bentpipe_lab::tunnel::Tunnel;
use bentpipe_lab::unsplit::{Channel, Class, Crossing, Measured};
use bentpipe_units::{Probability, Rate, Span};
use clap::Parser;

/// One download by QUIC over an emulated satellite link.
#[derive(Debug, Parser)]
struct Arguments {
    /// The link's rate, each way.
    #[arg(long, default_value = "10Mbit/s")]
    rate: Rate,
    /// The round-trip time of the empty link.
    #[arg(long, default_value = "600ms")]
    rtt: Span,
    /// The share of packets that the link loses, each way.
    #[arg(long, default_value = "0")]
    per: Probability,
    /// Loses them in bursts of so many packets in the mean.
    #[arg(long, value_name = "PACKETS")]
    burst: Option<f64>,
    /// How long it lasts, seconds.
    #[arg(long, default_value_t = 20.0)]
    seconds: f64,
    /// cubic or bbr.
    #[arg(long, default_value = "cubic")]
    congestion: Congestion,
    /// Protects the leg: bulk, latency or auto.
    #[arg(long, value_name = "CLASS")]
    protect: Option<Class>,
    /// TCP with CUBIC instead, in a tunnel: wireguard, esp or no-tunnel.
    #[arg(long, value_name = "TUNNEL")]
    inside: Option<Tunnel>,
    /// The seed of the losses and of what is sent.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

impl Arguments {
    fn crossing(&self) -> Crossing {
        let channel = match self.burst {
            Some(packets) => Channel::Bursts { loss: self.per, packets },
            None => Channel::Errors(self.per),
        };
        Crossing {
            protect: self.protect,
            lasts: Duration::from_secs_f64(self.seconds),
            ..Crossing::of_a_minute(self.rate, self.rtt.get(), channel, self.seed)
        }
    }

    fn run(&self) -> Result<Measured, Error> {
        match self.inside {
            Some(tunnel) => tunnel.cross(&self.crossing()),
            None => quic::cross(&self.crossing(), self.congestion),
        }
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let measured = match arguments.run() {
        Ok(measured) => measured,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    for (second, bps) in measured.by_second_bps.iter().enumerate() {
        println!("{second:4} s {:7.3} Mbit/s", bps / 1e6);
    }
    println!(
        "{:.3} Mbit/s of {:.3}, {:.1}% of the limit; offered to the link {:.1}%; {:.2} MB {}",
        measured.goodput_bps / 1e6,
        measured.limit_bps / 1e6,
        100.0 * measured.of_limit(),
        100.0 * measured.offered,
        measured.goodput_bps * arguments.seconds / 8e6,
        if measured.intact { "arrived as they were sent" } else { "are NOT what was sent" },
    );
    println!(
        "queue, 95%: {:.0} ms; round trip beyond the link's, 95%: {}",
        1e3 * measured.queue_95_s(),
        measured.excess_95_s().map_or("not told".into(), |seconds| format!("{:.0} ms", 1e3 * seconds)),
    );
    if measured.intact { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
