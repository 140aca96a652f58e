//! Bursts of several flows at once below P-XCP. The authors name them as their open worry: routers that see a
//! pause raise the windows, so that the "next burstiness will potentially fully saturate the network", and
//! they "never could completely synchronize concurrent flows" (section VI).

use bentpipe_link::{Cause, Counters};
use bentpipe_sim::Observer;
use bentpipe_units::{ByteCount, Time};

use super::{Lab, Output, P_XCP, Runs, SATELLITE, SCENARIO, STEADY, VARIANTS};
use crate::Error;
use crate::claim::{Claim, Range};
use crate::experiment::over_seeds;
use crate::results::Part;
use crate::statistics::Sample;
use crate::table::{Cell, Column, Table};

/// The satellite's rate, bits per second; the queue takes a round trip of it.
const RATE: f64 = 10e6;
/// Flows that lose packets in the same moment, and repair them at once.
const REPAIRING: usize = 8;
/// Flows that begin at once beside one that has the link.
const BEGINNING: usize = 20;
const BYTES_OF_EACH: f64 = 500e3;
/// Within so much of the time that fair shares would take.
const SLACK: f64 = 1.5;

/// The satellite's queue from the burst on.
#[derive(Debug)]
struct Burst {
    from: Time,
    before: u64,
    most: u64,
    dropped: u64,
}

impl Burst {
    fn since(seconds: u64) -> Self {
        Self { from: Time::from_nanos(seconds * 1_000_000_000), before: 0, most: 0, dropped: 0 }
    }

    /// Packets that the full queue has dropped.
    fn drops(&self) -> f64 {
        (self.dropped - self.before) as f64
    }

    /// The longest delay of the queue, seconds.
    fn delay_s(&self) -> f64 {
        8.0 * self.most as f64 / RATE
    }
}

impl Observer for Burst {
    fn wants_samples(&self) -> bool {
        true
    }

    fn queue(&mut self, now: Time, link: usize, forward: bool, backlog: ByteCount, counters: &Counters) {
        if link != SATELLITE || !forward {
            return;
        }
        self.dropped = counters.dropped(Cause::QueueFull);
        if now < self.from {
            self.before = self.dropped;
        } else {
            self.most = self.most.max(backlog.get());
        }
    }
}

/// When the burst comes, seconds.
const AT: u64 = 40;

fn settings(own: &[String]) -> Vec<String> {
    let common = ["sample_interval=10ms".to_owned(), format!("link.satellite.rate={RATE}bit/s")];
    VARIANTS[P_XCP].with(common.into_iter().chain(own.iter().cloned()))
}

/// How long after the first losses more follow, milliseconds. With 580 they hit the first retransmissions, which
/// leave a round trip of 500 ms after the losses, and the timers expire; later ones hit new data behind the
/// start of the repair, which make a sender pause when that ends.
const AGAIN_MS: [u32; 4] = [580, 620, 700, 900];
/// Those of them that hit new data alone.
const PAUSES: std::ops::Range<usize> = 1..AGAIN_MS.len();

/// All lose packets in the same 50 ms, five of each if they send alike, and perhaps again so much later.
fn repairing(again_ms: Option<u32>) -> Vec<String> {
    let first = format!("{{ start = \"{AT}s\", duration = \"50ms\" }}");
    let second = again_ms.map(|ms| format!(", {{ start = \"{AT}.{ms}s\", duration = \"50ms\" }}"));
    let outages = first + &second.unwrap_or_default();
    settings(&[
        "duration=70s".to_owned(),
        "flow.limited.count=0".to_owned(),
        format!("flow.free.count={REPAIRING}"),
        "flow.free.start_within=2s".to_owned(),
        format!("link.satellite.outages=[{outages}]"),
    ])
}

fn beginning() -> Vec<String> {
    settings(&[
        "duration=100s".to_owned(),
        "link.slow.rate=1Gbit/s".to_owned(),
        format!("flow.limited.count={BEGINNING}"),
        format!("flow.limited.bytes={BYTES_OF_EACH}"),
        format!("flow.limited.start={AT}s"),
        "flow.limited.start_within=100ms".to_owned(),
    ])
}

pub(super) fn run(lab: &Lab<'_>) -> Result<Output, Error> {
    let again = AGAIN_MS.into_iter().map(|ms| repairing(Some(ms)));
    let cases = [repairing(None), beginning()].into_iter().chain(again);
    // In virtual time that is so already.
    let without_sack = super::kernel::setting(STEADY);
    let scenario = |mut settings: Vec<String>| {
        settings.push(without_sack.clone());
        lab.scenario(&SCENARIO, &settings)
    };
    let scenarios = cases.map(scenario).collect::<Result<Vec<_>, _>>()?;
    let runs = lab.observe(&scenarios, || Burst::since(AT))?;
    let (once, beginning, again) = (&runs[0], &runs[1], &runs[2..]);
    let pauses = PAUSES.map(|index| (AGAIN_MS[index], &again[index]));
    let fair =
        1.5 + 8.0 * BYTES_OF_EACH * BEGINNING as f64 / RATE * (BEGINNING + 1) as f64 / BEGINNING as f64;
    Ok(Output {
        claims: vec![
            Claim::expected(
                format!(
                    "{REPAIRING} flows that lose packets at once, and new ones while they repair these, overflow \
                     the queue of a round trip afterwards: a packet or more is dropped"
                ),
                "section VI, the authors' worry",
            )
            .shown_in("packets", 1.0, 0)
            .with_all(pauses.map(|(ms, runs)| {
                Range::at_least(1.0).of_mean(&drops(runs)).at(format!("{ms} ms later"))
            })),
            Claim::ours(format!(
                "{BEGINNING} flows that begin within 100 ms beside one that has the link: less than a packet \
                 is dropped"
            ))
            .shown_in("packets", 1.0, 1)
            .with(Range::below(1.0).of_mean(&drops(beginning)))
            .noting(format!("the queue is {:.0} ms at most in the mean", 1e3 * delay(beginning).mean())),
            Claim::ours(format!(
                "The last of them has its 500 kB within {SLACK} times what fair shares and three round trips \
                 take"
            ))
            .shown_in("s", 1.0, 1)
            .with(Range::at_most(SLACK * fair).of_mean(&last(beginning))),
        ],
        tables: vec![Part::new("bursts", table(once, again, beginning))],
        figures: Vec::new(),
    })
}

fn drops(runs: &Runs<Burst>) -> Sample {
    runs.observed(Burst::drops)
}

fn delay(runs: &Runs<Burst>) -> Sample {
    runs.observed(Burst::delay_s)
}

/// The time of the slowest of the flows that end, seconds; of one that does not, the rest of the run.
fn last(runs: &Runs<Burst>) -> Sample {
    over_seeds(runs.results().map(|run| {
        let beginning = run.flows.iter().filter(|flow| flow.name.starts_with("limited"));
        beginning.map(|flow| flow.seconds).fold(0.0, f64::max)
    }))
}

fn timeouts(runs: &Runs<Burst>) -> Sample {
    runs.sample(|run| run.flows.iter().map(|flow| flow.legs[1].timeouts as f64).sum())
}

fn table(once: &Runs<Burst>, again: &[Runs<Burst>], beginning: &Runs<Burst>) -> Table {
    let mut table = Table::new(
        "Bursts of several flows at once: P-XCP over Slow-but-Steady, 10 Mbit/s, 250 ms one way, no errors",
        vec![
            Column::new("", "burst"),
            Column::new("longest queue", "queue_s").shown_in("ms", 1e-3),
            Column::new("packets dropped by the queue", "dropped"),
            Column::new("timeouts of all", "timeouts"),
        ],
    );
    let again = AGAIN_MS.into_iter().zip(again);
    let again = again.map(|(ms, runs)| (format!("{REPAIRING} flows, and again {ms} ms later"), runs));
    let cases = [(format!("{REPAIRING} flows, 50 ms lost at once"), once)].into_iter().chain(again);
    let crowd = (format!("{BEGINNING} flows that begin at once beside one"), beginning);
    for (name, runs) in cases.chain([crowd]) {
        table.push(vec![
            Cell::text(name),
            Cell::interval(Some(delay(runs)), 0),
            Cell::interval(Some(drops(runs)), 1),
            Cell::interval(Some(timeouts(runs)), 1),
        ]);
    }
    table
}
