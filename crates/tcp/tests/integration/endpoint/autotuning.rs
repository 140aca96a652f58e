//! Buffers that grow with what they carry.

use std::time::Duration;

use bentpipe_tcp::{Config, Endpoint, Recovery, Segment};
use bentpipe_units::Time;

use super::timeline::{MSS, Timeline, config};

const HALF: Duration = Duration::from_millis(50);

/// A sender and a receiver with a clean path of a round trip of 100 ms, whose packets all arrive together.
struct Download {
    sender: Endpoint,
    receiver: Endpoint,
    now: Time,
    /// The receive windows of the acknowledgements, bytes, in the order of their departure.
    windows: Vec<u64>,
    acknowledgements: u64,
}

impl Download {
    fn begin(config: Config) -> Self {
        let (sender, receiver) = (
            Endpoint::connect(Config { receive_autotuning: None, ..config }, 1, Time::ZERO),
            Endpoint::listen(config, 2),
        );
        let windows = Vec::new();
        Self { sender, receiver, now: Time::ZERO, windows, acknowledgements: 0 }
    }

    /// A round trip; returns how many bytes have arrived in it.
    fn round(&mut self, reads: bool) -> u64 {
        self.sender.write(u64::MAX);
        let there: Vec<Segment> = std::iter::from_fn(|| self.sender.poll_transmit(self.now)).collect();
        self.now += HALF;
        let mut back = Vec::new();
        for segment in &there {
            self.receiver.on_segment(self.now, segment);
            if reads {
                self.receiver.read(self.now, u64::MAX);
            }
            back.extend(std::iter::from_fn(|| self.receiver.poll_transmit(self.now)));
        }
        self.now += HALF;
        for segment in &back {
            self.sender.on_segment(self.now, segment);
            let shift = if segment.is_syn() { 0 } else { 9 };
            self.windows.push(u64::from(segment.window) << shift);
        }
        self.acknowledgements += back.len() as u64;
        there.iter().map(|segment| u64::from(segment.len)).sum()
    }
}

/// A shift of 9 is that of 16 MiB, the largest size.
fn growing() -> Config {
    Config { delayed_ack: None, receive_autotuning: Some(64 << 10), ..Config::linux() }
}

#[test]
fn the_first_window_has_44_segments_and_the_shift_is_of_the_largest_size() {
    let mut caller = Endpoint::connect(growing(), 1, Time::ZERO);
    let syn = caller.poll_transmit(Time::ZERO).unwrap();
    assert_eq!(syn.window, 44 * 1460);
    assert_eq!(syn.syn.unwrap().window_scale, Some(9));
    let fixed = Config { receive_autotuning: None, ..growing() };
    let syn = Endpoint::connect(fixed, 1, Time::ZERO).poll_transmit(Time::ZERO).unwrap();
    assert_eq!(syn.window, u16::MAX);
}

#[test]
fn a_window_that_grows_does_not_hold_back_slow_start() {
    let rounds = |config: Config| {
        let mut download = Download::begin(config);
        (0..10).map(|_| download.round(true)).collect::<Vec<_>>()
    };
    let fixed = Config { receive_autotuning: None, ..growing() };
    assert_eq!(rounds(growing()), rounds(fixed));
    let without = Config { timestamps: false, ..growing() };
    assert_eq!(rounds(without), rounds(Config { timestamps: false, ..fixed }), "by windows");
}

#[test]
fn a_window_does_not_grow_beyond_the_first_size_for_an_application_that_does_not_read() {
    let mut download = Download::begin(growing());
    let arrived: u64 = (0..12).map(|_| download.round(false)).sum();
    assert!((60_000..=64 << 10).contains(&arrived), "{arrived}");
    let most = download.windows.iter().max().unwrap();
    assert!(*most <= 64 << 10, "{most}");
}

/// What the application reads slowly makes no large buffer: twice what it reads in a round trip.
#[test]
fn the_buffer_follows_what_is_read_and_not_what_could_be_sent() {
    let mut download = Download::begin(growing());
    for _ in 0..30 {
        download.round(false);
        // 30,000 bytes in a round trip.
        download.receiver.read(download.now, 30_000);
        while let Some(update) = download.receiver.poll_transmit(download.now) {
            download.sender.on_segment(download.now, &update);
        }
    }
    let held = download.receiver.receive_buffered();
    assert!(held <= 330_000, "{held} bytes wait to be read");
}

/// A window that grows with each segment is told of with the acknowledgements that are due anyway.
#[test]
fn growth_makes_no_acknowledgements() {
    let count = |receive_autotuning| {
        let delayed_ack = Some(Duration::from_millis(40));
        let mut download = Download::begin(Config { receive_autotuning, delayed_ack, ..growing() });
        for _ in 0..8 {
            download.round(true);
        }
        download.acknowledgements
    };
    let (growing, fixed) = (count(Some(64 << 10)), count(None));
    assert!(growing <= fixed + 8, "{growing} and {fixed}");
}

#[test]
fn the_send_buffer_grows_with_the_window_to_its_largest_size() {
    let mut timeline = Timeline::established(
        Config { send_autotuning: Some(2_000), send_buffer: 100_000, ..config(Recovery::Sack) },
        Duration::from_millis(100),
    );
    assert_eq!(timeline.endpoint.writable(), 60_000, "six initial windows of ten segments");
    timeline.write(60).sends(1..=10);
    assert_eq!(timeline.endpoint.writable(), 0);
    // The window of eleven is the limit, not the buffer.
    timeline.after(100).ack(10).sends(11..=21);
    assert_eq!(timeline.endpoint.writable(), 10 * u64::from(MSS));
    timeline.after(100).ack(21).sends(22..=33);
    timeline.after(100).ack(33).sends(34..=46);
    // Of 60 segments 14 are left, and the window has room for as many.
    timeline.after(100).ack(46);
    assert_eq!((timeline.endpoint.variables().cwnd, timeline.endpoint.writable()), (14_000, 70_000));
    timeline.write(70).sends(47..=60);
    while timeline.endpoint.send_buffered() > 0 {
        let sent = timeline.endpoint.statistics().segments as u32;
        timeline.after(100).ack(sent);
    }
    assert!(timeline.endpoint.variables().cwnd > 100_000 / 6);
    timeline.write(200);
    assert_eq!(timeline.endpoint.send_buffered(), 100_000, "the largest size");
}
