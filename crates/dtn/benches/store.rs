//! What the store costs: `cargo bench -p bentpipe-dtn --bench store`. The figures are the disk's as much as
//! the store's, so the row "write and fsync" is the same bytes into a plain file.

#[path = "../tests/store_common/mod.rs"]
mod common;

use std::fs::File;
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bentpipe_dtn::store::{Change, Store};
use criterion::{BenchmarkId, Criterion, SamplingMode, Throughput, criterion_group, criterion_main};

use common::{config, keep, payload, record};

/// Bundles in and out again, by so many callers at the same time.
fn commits(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("bundle in, bundle out");
    group.throughput(Throughput::Elements(1)).sample_size(10).sampling_mode(SamplingMode::Flat);
    group.measurement_time(Duration::from_secs(3));
    for (form, max_row) in [("row", 64 << 10), ("file", 0)] {
        for len in [100, 4096, 16384] {
            for callers in [1, 16, 64] {
                let name = format!("{form} of {len} bytes");
                group.bench_function(BenchmarkId::new(name, callers), |bencher| {
                    let folder = tempfile::tempdir().unwrap();
                    let (store, _) = Store::open_with_rows(config(folder.path()), max_row).unwrap();
                    bencher.iter_custom(|rounds| in_and_out(&store, callers, len, rounds));
                });
            }
        }
    }
    group.finish();
}

/// The time for `rounds` bundles, not less than each caller's share.
fn in_and_out(store: &Store, callers: u64, len: usize, rounds: u64) -> Duration {
    let (next, each) = (AtomicU64::new(0), rounds.div_ceil(callers));
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..callers {
            scope.spawn(|| {
                for _ in 0..each {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let key = keep(store, number, len).unwrap();
                    store.commit(vec![Change::Remove(key)]).unwrap();
                }
            });
        }
    });
    begun.elapsed().mul_f64(rounds as f64 / (each * callers) as f64)
}

fn bulk(criterion: &mut Criterion) {
    const LEN: u64 = 100_000_000;
    let mut group = criterion.benchmark_group("100 MB");
    group.throughput(Throughput::Bytes(LEN)).sample_size(10).sampling_mode(SamplingMode::Flat);
    let chunk = common::bytes(1, 1 << 16);
    let chunks = LEN.div_ceil(chunk.len() as u64);
    let folder = tempfile::tempdir().unwrap();
    group.bench_function("write and fsync", |bencher| {
        let path = folder.path().join("plain");
        bencher.iter_custom(|rounds| {
            let timed = (0..rounds).map(|_| {
                let begun = Instant::now();
                let mut file = File::create(&path).unwrap();
                (0..chunks).for_each(|_| file.write_all(&chunk).unwrap());
                file.sync_all().unwrap();
                let took = begun.elapsed();
                std::fs::remove_file(&path).unwrap();
                took
            });
            timed.sum()
        });
    });
    let (store, _) = Store::open(config(folder.path())).unwrap();
    group.bench_function("store", |bencher| {
        bencher.iter_custom(|rounds| {
            let timed = (0..rounds).map(|number| {
                let begun = Instant::now();
                let mut writer = store.begin(Some(LEN)).unwrap();
                (0..chunks).for_each(|_| writer.write(&chunk).unwrap());
                let record = record(&store, number, writer.finish().unwrap());
                let key = record.key;
                store.commit(vec![Change::Put(record)]).unwrap();
                let took = begun.elapsed();
                store.commit(vec![Change::Remove(key)]).unwrap();
                took
            });
            timed.sum()
        });
    });
    group.finish();
}

/// A start with this many bundles.
fn start(criterion: &mut Criterion) {
    const BUNDLES: u64 = 10_000;
    let folder = tempfile::tempdir().unwrap();
    let (store, _) = common::open(folder.path());
    for batch in 0..BUNDLES / 100 {
        let puts = (0..100).map(|n| {
            let number = batch * 100 + n;
            Change::Put(record(&store, number, payload(&store, number, 100).unwrap()))
        });
        store.commit(puts.collect()).unwrap();
    }
    drop(store);
    let mut group = criterion.benchmark_group("start");
    group.sample_size(10);
    group.bench_function("10,000 bundles", |bencher| bencher.iter(|| common::open(folder.path()).1.len()));
    group.finish();
}

criterion_group!(benches, commits, bulk, start);
criterion_main!(benches);
