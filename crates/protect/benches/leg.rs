//! What a packet costs a protected leg: `cargo bench -p bentpipe-protect`.
//!
//! Packets of 1400 bytes, sealed by AES-128-GCM, in virtual time at 200,000 a second, without a socket.
//! "send" is one core of the box that sends, "receive" one of the box that receives; Criterion counts
//! packets, so that its rate is that of one core. What they are made of is measured beneath: the AEAD, and y
//! ⊕= c·x of one packet.

use std::hint::black_box;
use std::time::Duration;

use bentpipe_protect::{Cipher, Class, Config, Leg, Secret, Sent, gf256};
use bentpipe_units::Time;
use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};

const PACKET: usize = 1400;
/// Packets of one measurement.
const BATCH: usize = 4000;
/// So many times the other end answers in one: few packets stay in the processor's cache, as on a gateway.
const TURNS: u64 = 100;
const SPACING: Duration = Duration::from_micros(5);

/// IPv4 and UDP, so that its headers are compressed.
fn packet() -> Vec<u8> {
    let mut packet = vec![7; PACKET];
    packet[..20].copy_from_slice(&[
        0x45, 0, 0x05, 0x78, 0, 0, 0x40, 0, 64, 17, 0xb1, 0x71, 192, 0, 2, 1, 192, 0, 2, 2,
    ]);
    packet[24..26].copy_from_slice(&[0x05, 0x64]);
    packet
}

/// Two legs that have carried packets for a while, of which one in `lose_every` was lost.
struct Pair {
    legs: [Leg; 2],
    now: Time,
    frames: u64,
    lose_every: u64,
}

impl Pair {
    fn new(lose_every: u64, cipher: Cipher) -> Self {
        let leg = |entropy| Leg::new(Config::default(), Secret::new(cipher, [1; 32]), [entropy; 32]);
        let mut pair = Self { legs: [leg(1), leg(2)], now: Time::ZERO, frames: 0, lose_every };
        let mut frames = Vec::new();
        while frames.len() < 40_000 {
            let frame = pair.send(true);
            frames.extend(frame.map(|frame| pair.receive(frame)));
            pair.answer();
        }
        pair
    }

    /// One frame of the sender.
    fn send(&mut self, new: bool) -> Option<(Sent, Vec<u8>)> {
        self.now += SPACING;
        let mut frame = Vec::with_capacity(PACKET + 100);
        let sent = self.legs[0].poll(self.now, &mut frame, || new.then(|| (Class::Bulk, packet())))?;
        Some((sent, frame))
    }

    /// The frames of so many new packets, repair frames among them.
    fn send_packets(&mut self, packets: usize) -> Vec<(Sent, Vec<u8>)> {
        let mut frames = Vec::with_capacity(packets + packets / 4);
        let mut sources = 0;
        while sources < packets {
            if let Some((kind, frame)) = self.send(true) {
                sources += usize::from(kind == Sent::Source);
                frames.push((kind, frame));
            }
        }
        frames
    }

    /// The receiver takes it, if it is not lost, and delivers.
    fn receive(&mut self, (_, mut frame): (Sent, Vec<u8>)) {
        self.frames += 1;
        if self.frames.is_multiple_of(self.lose_every) {
            return;
        }
        self.legs[1].on_frame(&mut frame, self.now).expect("an honest frame");
        while let Some((_, packet)) = self.legs[1].next_packet() {
            black_box(packet);
        }
    }

    /// What the receiver reports.
    fn answer(&mut self) {
        let mut report = Vec::new();
        while self.legs[1].poll(self.now, &mut report, || None).is_some() {
            self.legs[0].on_frame(&mut report, self.now).expect("an honest report");
        }
    }
}

fn legs(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("leg");
    group.sample_size(20).throughput(Throughput::Elements(BATCH as u64));
    for (name, lose_every, cipher) in [
        ("PER 0", u64::MAX, Cipher::Aes128Gcm),
        ("5% redundancy", 45, Cipher::Aes128Gcm),
        ("PER 0, ChaCha20", u64::MAX, Cipher::ChaCha20Poly1305),
        ("PER 0, insecure", u64::MAX, Cipher::Insecure),
    ] {
        let mut pair = Pair::new(lose_every, cipher);
        let before = pair.legs[0].stats().sender;
        group.bench_function(format!("send, {name}"), |bencher| {
            // The other end takes and reports them outside of the measurement: without reports this did not end.
            bencher.iter_custom(|batches| {
                let mut total = Duration::ZERO;
                for _ in 0..batches * TURNS {
                    let start = std::time::Instant::now();
                    let frames = pair.send_packets(BATCH / TURNS as usize);
                    total += start.elapsed();
                    frames.into_iter().for_each(|frame| pair.receive(frame));
                    pair.answer();
                }
                total
            });
        });
        let after = pair.legs[0].stats().sender;
        let ratio = (after.repairs - before.repairs) as f64 / (after.packets - before.packets) as f64;
        println!("{name}: {:.1}% repair symbols", 100.0 * ratio);
        let mut pair = Pair::new(lose_every, cipher);
        group.bench_function(format!("receive, {name}"), |bencher| {
            // Frames are made outside of the measurement.
            bencher.iter_custom(|batches| {
                let mut total = Duration::ZERO;
                for _ in 0..batches * TURNS {
                    let frames = pair.send_packets(BATCH / TURNS as usize);
                    let start = std::time::Instant::now();
                    frames.into_iter().for_each(|frame| pair.receive(frame));
                    total += start.elapsed();
                    pair.answer();
                }
                total
            });
        });
    }
    group.finish();
}

fn parts(criterion: &mut Criterion) {
    println!("y + c·x with {}", gf256::instruction_set());
    let mut group = criterion.benchmark_group("parts");
    group.throughput(Throughput::Bytes(PACKET as u64));
    group.bench_function("multiply and add", |bencher| {
        let x: Vec<u8> = (0..PACKET).map(|i| i as u8).collect();
        bencher.iter_batched_ref(
            || vec![1u8; PACKET],
            |y| gf256::mul_add(black_box(y), black_box(77), black_box(&x)),
            BatchSize::SmallInput,
        );
    });
    for (name, algorithm) in
        [("AES-128-GCM", &ring::aead::AES_128_GCM), ("ChaCha20-Poly1305", &ring::aead::CHACHA20_POLY1305)]
    {
        use ring::aead::{Aad, LessSafeKey, Nonce, UnboundKey};
        let key = UnboundKey::new(algorithm, &vec![1; algorithm.key_len()]).expect("the right length");
        let key = LessSafeKey::new(key);
        let mut buffer = vec![1u8; PACKET];
        group.bench_function(format!("seal with {name}"), |bencher| {
            bencher.iter(|| {
                let nonce = Nonce::assume_unique_for_key([0; 12]);
                let tag = key.seal_in_place_separate_tag(nonce, Aad::from(&[0; 7]), black_box(&mut buffer));
                tag.expect("a short buffer").as_ref()[0]
            });
        });
    }
    group.finish();
}

criterion_group!(benches, legs, parts);
criterion_main!(benches);
