//! Traces of both senders' windows, for looking at one difference.

use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

use bentpipe_sim::{Observer, run};
use bentpipe_tcp::{Statistics, Variables};
use bentpipe_units::Time;

use crate::scene::as_ns3;
use crate::single_flow::{Losses, Pair, scenario};

/// Writes down the sender's variables at each sample where one of them changed.
#[derive(Debug)]
struct Trace {
    csv: String,
    last: Option<Variables>,
}

impl Observer for Trace {
    fn wants_samples(&self) -> bool {
        true
    }

    fn variables(&mut self, now: Time, _flow: usize, _leg: usize, variables: &Variables, done: &Statistics) {
        if self.last.replace(*variables) == Some(*variables) {
            return;
        }
        let Variables { cwnd, ssthresh, srtt, rto, in_flight, recovering, .. } = variables;
        writeln!(
            self.csv,
            "{:.4},{cwnd},{ssthresh},{in_flight},{:.4},{:.4},{},{},{},{}",
            now.as_secs_f64(),
            srtt.as_secs_f64(),
            rto.as_secs_f64(),
            u8::from(*recovering),
            done.retransmissions,
            done.timeouts,
            done.bytes_acknowledged,
        )
        .expect("memory takes text");
    }
}

pub(crate) fn ours(pair: &Pair, per: f64, seed: u64, path: &Path) -> std::io::Result<()> {
    let mut scenario = scenario((pair.ours)(as_ns3()), per, 10_000_000, Losses::Data);
    scenario.sample_interval = Duration::from_millis(5);
    let mut trace = Trace {
        csv: "time_s,cwnd_bytes,ssthresh_bytes,in_flight,srtt_s,rto_s,recovering,retransmissions,timeouts,acked\n".into(),
        last: None,
    };
    run(&scenario, seed, &mut trace);
    std::fs::write(path, trace.csv)
}
