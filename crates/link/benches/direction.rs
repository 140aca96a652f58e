//! What a packet costs: `cargo bench -p bentpipe-link`. Time is virtual; the figure is the processor's time
//! for one call.

use std::hint::black_box;
use std::time::Duration;

use bentpipe_link::{Direction, DirectionConfig, GilbertElliott, Profile};
use bentpipe_units::{Probability, Rate, Time};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

fn offer(criterion: &mut Criterion) {
    let geo = Profile::Geo.config().forward;
    let fast = DirectionConfig { rate: Some(Rate::mbps(1000)), ..geo.clone() };
    let train = Profile::Train.config().forward;
    let cases = [
        ("ideal", DirectionConfig::default(), 1),
        ("geo", geo.clone(), 1),
        ("geo, offered twice its rate", geo, 2),
        ("geo at 1 Gbit/s", fast, 1),
        ("train", train.clone(), 1),
        ("train with bursts", with_bursts(train), 1),
    ];
    let mut group = criterion.benchmark_group("offer");
    group.throughput(Throughput::Elements(1));
    for (name, config, load) in cases {
        let gap = config.rate.map_or(Duration::from_micros(1), |rate| rate.time_for(1500)) / load;
        let mut direction = Direction::new(&config, 1);
        let mut now = Time::ZERO;
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                now += gap;
                direction.offer(black_box(now), black_box(1500))
            });
        });
    }
    group.finish();
}

fn with_bursts(config: DirectionConfig) -> DirectionConfig {
    let [good_to_bad, bad_to_good, loss_in_good, loss_in_bad] =
        [0.001, 0.1, 0.0, 0.5].map(|p| Probability::new(p).unwrap());
    let bursts = GilbertElliott { good_to_bad, bad_to_good, loss_in_good, loss_in_bad, slot: None };
    DirectionConfig { gilbert_elliott: Some(bursts), ..config }
}

criterion_group!(benches, offer);
criterion_main!(benches);
