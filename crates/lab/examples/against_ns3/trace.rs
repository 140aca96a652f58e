//! The windows of both senders over time, for looking at one difference.

use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

use bentpipe_sim::{Observer, run};
use bentpipe_tcp::{Statistics, Variables};
use bentpipe_units::Time;

use crate::ns3::{Error, Ns3};
use crate::pairs::Pair;
use crate::single_flow::{Losses, PERS, scenario, their_run_with_our_losses};

const SEED: u64 = 1;
const INTERVAL: Duration = Duration::from_millis(5);

/// Writes `PAIR-PER-ours.csv` and `PAIR-PER-ns3.csv` for each pair, counted from 0, and packet error rate;
/// both sides lose the same packets.
pub(crate) fn write(ns3: &Ns3, pairs: &[Pair], folder: &Path) -> Result<(), Error> {
    let refused =
        |error| format!("cannot write the traces into {}: {error}; name another folder", folder.display());
    std::fs::create_dir_all(folder).map_err(refused)?;
    for (number, pair) in pairs.iter().enumerate() {
        for per in PERS {
            let path = |side| folder.join(format!("{number}-{per:e}-{side}.csv"));
            std::fs::write(path("ours"), ours(pair, per)).map_err(refused)?;
            let trace = format!("--trace={}", path("ns3").display());
            their_run_with_our_losses(ns3, pair, per, SEED, Some(trace))?;
        }
    }
    Ok(())
}

fn ours(pair: &Pair, per: f64) -> String {
    let mut scenario = scenario(pair.ours(), per, Losses::Data);
    scenario.sample_interval = INTERVAL;
    let mut trace = Trace::default();
    run(&scenario, SEED, &mut trace);
    format!("time_s,cwnd_bytes,ssthresh_bytes,in_flight,rtt_s,rto_s,recovering,timeouts\n{}", trace.lines)
}

/// A line for each sample that differs from the one before.
#[derive(Debug, Default)]
struct Trace {
    lines: String,
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
        let (at, srtt, rto) = (now.as_secs_f64(), srtt.as_secs_f64(), rto.as_secs_f64());
        let (recovering, timeouts) = (u8::from(*recovering), done.timeouts);
        let line = format!("{at},{cwnd},{ssthresh},{in_flight},{srtt},{rto},{recovering},{timeouts}");
        writeln!(self.lines, "{line}").expect("memory takes text");
    }
}
