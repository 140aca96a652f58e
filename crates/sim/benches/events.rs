//! The cost of an event: full SACK TCP over one link, with flights from 1 MB to 60 MB, clean and lossy, and
//! the dumbbell of six flows.

#[path = "../tests/integration/world/scene.rs"]
#[allow(dead_code, reason = "the tests use more of it")]
mod scene;

use std::hint::black_box;
use std::time::Duration;

use bentpipe_sim::{Scenario, Unobserved, run};
use bentpipe_tcp::Config;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use scene::{chain, direction, flow, ms, symmetric};

/// A flow whose window is the receive buffer of `flight` bytes: the link has room for it, and the round trip
/// is that of a GEO satellite.
fn one_flow(flight: u64, per: f64) -> Scenario {
    let mbit = flight * 8 / 600_000;
    let mut scenario = chain(vec![symmetric(direction(mbit.max(1) * 11 / 10, ms(300), per))]);
    let config = Config { receive_buffer: flight, send_buffer: 2 * flight, ..Config::default() };
    scenario.flows.push(flow(&scenario, Some(30 * flight), config));
    scenario
}

fn flights(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("event");
    group.sample_size(10);
    for (per, name) in [(0.0, "clean"), (1e-4, "PER 1e-4")] {
        for megabytes in [1, 10, 60] {
            let scenario = one_flow(megabytes * 1_000_000, per);
            let events = run(&scenario, 1, &mut Unobserved).events;
            group.throughput(Throughput::Elements(events));
            let id = BenchmarkId::new(name, format!("{megabytes} MB in flight"));
            group
                .bench_function(id, |bencher| bencher.iter(|| run(black_box(&scenario), 1, &mut Unobserved)));
        }
    }
    group.finish();
}

/// Three flows of RTT 600 ms and three of 25 ms over 10 Mbit/s for 100 s.
fn dumbbell(criterion: &mut Criterion) {
    let mut scenario = chain(vec![
        symmetric(direction(1000, ms(12), 0.0)),
        symmetric(direction(10, Duration::from_micros(500), 0.0)),
    ]);
    scenario.links[1].config.forward.queue = Some(bentpipe_units::ByteCount::new(750_000));
    scenario.duration = Duration::from_secs(100);
    let mut long = scenario.links[0].clone();
    long.config = symmetric(direction(1000, Duration::from_micros(299_500), 0.0));
    scenario.links.push(long);
    for index in 0..6 {
        let mut flow = flow(&scenario, None, Config::default());
        flow.name = format!("flow{index}");
        flow.legs[0].path = vec![scene::hop(if index < 3 { 2 } else { 0 }), scene::hop(1)];
        scenario.flows.push(flow);
    }
    let mut group = criterion.benchmark_group("dumbbell of six flows, 100 s");
    let events = run(&scenario, 1, &mut Unobserved).events;
    group.throughput(Throughput::Elements(events));
    group.bench_function("run", |bencher| bencher.iter(|| run(black_box(&scenario), 1, &mut Unobserved)));
    group.finish();
}

criterion_group!(benches, flights, dumbbell);
criterion_main!(benches);
