//! What a decision of explicit rates costs: `cargo bench -p bentpipe-link --bench explicit`. Time is virtual;
//! the figure is the processor's time for one tick, of which there are fifty a second.

use std::hint::black_box;
use std::time::Duration;

use bentpipe_link::explicit::{RateAllocator, RateAllocatorConfig, Report};
use bentpipe_units::{Rate, Time};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

const TICK: Duration = Duration::from_millis(20);
const RTT: Duration = Duration::from_millis(600);
const RATE: Rate = Rate::mbps(50);

/// Connections, and of so many one is busy.
const MIXES: [(&str, u64, u64); 4] = [
    ("1000 flows, all busy", 1000, 1),
    ("1000 flows, 50 busy", 1000, 20),
    ("8000 flows, all busy", 8000, 1),
    ("8000 flows, 400 busy", 8000, 20),
];

fn tick(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("explicit rates, one tick");
    for (name, flows, one_of) in MIXES {
        let mut link = Link::new(flows, one_of);
        // The first round trips allocate tables.
        (0..200).for_each(|_| link.tick());
        group.throughput(Throughput::Elements(flows));
        group.bench_function(name, |bencher| bencher.iter(|| link.tick()));
        let given: f64 = link.rates.iter().sum();
        let whole = RATE.bps() as f64 / 8.0;
        assert!((0.9..1.1).contains(&(given / whole)), "{name}: {given} of {whole} bytes per second");
    }
    group.finish();
}

/// Connections that send what they are given and lose nothing.
struct Link {
    allocator: RateAllocator,
    now: Time,
    reports: Vec<Report>,
    rates: Vec<f64>,
}

impl Link {
    fn new(flows: u64, one_of: u64) -> Self {
        let allocator = RateAllocator::new(RateAllocatorConfig::new(Some(RATE), RTT));
        let report = |id| {
            let busy = id % one_of == 0;
            let (sent, delivered, lost, forward) = (0, 0, 0, Some(Duration::ZERO));
            let (rtt, min_rtt, window_limited) = (Some(RTT), Some(RTT), false);
            let (in_flight, backlogged, at, weight) = (busy, busy, Time::ZERO, 1);
            Report {
                id,
                weight,
                at,
                sent,
                delivered,
                lost,
                in_flight,
                rtt,
                min_rtt,
                forward,
                window_limited,
                backlogged,
            }
        };
        Self {
            allocator,
            now: Time::ZERO,
            reports: (0..flows).map(report).collect(),
            rates: vec![0.0; flows as usize],
        }
    }

    fn tick(&mut self) {
        self.now += TICK;
        for (report, rate) in self.reports.iter_mut().zip(&self.rates).filter(|(report, _)| report.in_flight)
        {
            report.at = self.now;
            report.sent += (rate * TICK.as_secs_f64()) as u64;
            let on_the_way = (rate * RTT.as_secs_f64()) as u64;
            report.delivered = report.delivered.max(report.sent.saturating_sub(on_the_way));
        }
        let rates = &mut self.rates;
        self.allocator.tick(self.now, black_box(&self.reports), |id, rate| rates[id as usize] = rate);
    }
}

criterion_group!(benches, tick);
criterion_main!(benches);
