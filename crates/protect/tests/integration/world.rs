//! Two legs at the ends of a link in virtual time.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use bentpipe_link::{Direction, DirectionConfig, InFlight};
use bentpipe_protect::frame::{MAX_OVERHEAD, SOURCE_OVERHEAD};
use bentpipe_protect::leg::ResumeError;
use bentpipe_protect::{Cipher, Class, Config, FrameError, Leg, Secret, Sent};
use bentpipe_tcp::congestion::Algorithm;
use bentpipe_tcp::{Endpoint, Recovery, Segment};
use bentpipe_units::{Probability, Rate, Time};

/// Bytes of IPv4 and UDP that carry a frame.
const OUTER_HEADERS: usize = 28;
/// Bytes that compression takes off the headers of a test packet.
const COMPRESSED: usize = 25;
/// Bytes of a test packet.
pub(crate) const PACKET: usize = 1400;

/// A GEO link: 10 Mbit/s each way, 600 ms of round trip.
pub(crate) fn geo(per: f64) -> DirectionConfig {
    DirectionConfig {
        rate: Some(Rate::mbps(10)),
        delay: Duration::from_millis(300),
        per: Probability::new(per).unwrap(),
        ..DirectionConfig::default()
    }
}

/// A connection across the leg: TCP with CUBIC, and RACK, whose rules are those of QUIC (RFC 9002 §6).
pub(crate) struct Connection {
    /// The server at the gateway, the client at the terminal.
    pub(crate) ends: [Endpoint; 2],
    on_their_way: HashMap<u64, Segment>,
    /// Bytes that the client has read.
    pub(crate) read: u64,
    /// Packets that the queue in front of the leg drops.
    pub(crate) queue_drops: u64,
}

/// Packets in front of the leg at most: one bandwidth-delay product.
const QUEUE: usize = 536;

/// Packets that are not longer carry no data.
const SMALL: usize = 100;

/// Where packets come from, at the gateway.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Traffic {
    /// As fast as the link carries them.
    Saturating(Class),
    /// So many at once, and again after so long.
    Bursts(Class, u32, Duration),
    /// Nothing.
    None,
}

/// A packet that was delivered.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Delivery {
    pub(crate) number: u64,
    /// Beyond the time that it takes if nothing is lost.
    pub(crate) added: Duration,
}

/// What arrives in place of a frame.
type Copies = Box<dyn FnMut(&[u8]) -> Vec<Vec<u8>>>;

pub(crate) struct Side {
    pub(crate) leg: Leg,
    pub(crate) direction: Direction,
    in_flight: InFlight<Vec<u8>>,
    free_at: Time,
    waiting: VecDeque<(Class, Vec<u8>)>,
    /// Frames and their bytes with outer headers, by [`Sent`].
    pub(crate) sent: [(u64, u64); 6],
    pub(crate) errors: Vec<FrameError>,
    /// Frames for which this is true do not leave.
    pub(crate) mute: fn(Sent) -> bool,
}

pub(crate) struct World {
    pub(crate) now: Time,
    /// The gateway and the terminal.
    pub(crate) sides: [Side; 2],
    pub(crate) traffic: Traffic,
    next_burst: Time,
    pub(crate) packets: u64,
    pub(crate) delivered: Vec<Delivery>,
    pub(crate) connection: Option<Connection>,
    /// What is done with frames on arrival: the copies that reach the leg.
    pub(crate) copies: Copies,
}

pub(crate) fn secret() -> Secret {
    Secret::new(Cipher::Aes128Gcm, *b"0123456789abcdef0123456789abcdef")
}

impl World {
    pub(crate) fn new(directions: [DirectionConfig; 2], config: &Config, seed: u64) -> Self {
        let mut seeds = [seed, seed ^ 0x5555_5555];
        let sides = [0, 1].map(|index| Side {
            leg: Leg::new(config.clone(), secret(), [index as u8 + 1; 32]),
            direction: Direction::new(&directions[index], std::mem::take(&mut seeds[index])),
            in_flight: InFlight::default(),
            free_at: Time::ZERO,
            waiting: VecDeque::new(),
            sent: [(0, 0); 6],
            errors: Vec::new(),
            mute: |_| false,
        });
        Self {
            now: Time::ZERO,
            sides,
            traffic: Traffic::None,
            next_burst: Time::ZERO,
            packets: 0,
            delivered: Vec::new(),
            connection: None,
            copies: Box::new(|frame| vec![frame.to_vec()]),
        }
    }

    /// Both legs until a session runs, and a round trip more for the first measurement.
    pub(crate) fn established(directions: [DirectionConfig; 2], config: &Config, seed: u64) -> Self {
        let mut world = Self::new(directions, config, seed);
        world.run(Duration::from_secs(4));
        assert!(world.sides.iter().all(|side| side.leg.is_alive(world.now)), "no session");
        world
    }

    /// One box starts anew: what it knew is gone.
    pub(crate) fn restart(&mut self, index: usize, config: &Config, entropy: u8) {
        self.sides[index].leg = Leg::new(config.clone(), secret(), [entropy; 32]);
    }

    /// One box is upgraded: another process goes on with what it has written.
    pub(crate) fn upgrade(&mut self, index: usize, secret: Secret, entropy: u8) -> Result<(), ResumeError> {
        let written = rmp_serde::to_vec_named(&self.sides[index].leg.handover().unwrap()).unwrap();
        let mut leg = Leg::new(Config::default(), secret, [entropy; 32]);
        let resumes = leg.resume(rmp_serde::from_slice(&written).unwrap());
        self.sides[index].leg = leg;
        resumes
    }

    pub(crate) fn run(&mut self, span: Duration) {
        let until = self.now + span;
        self.next_burst = self.next_burst.max(self.now);
        loop {
            let next = self.next_event();
            if next > until {
                self.now = until;
                return;
            }
            self.now = self.now.max(next);
            self.arrivals();
            self.bursts();
            self.segments();
            (0..2).for_each(|side| self.transmit(side));
            self.segments();
        }
    }

    fn next_event(&self) -> Time {
        let arrivals = self.sides.iter().filter_map(|side| side.in_flight.next_at());
        let polls = self.sides.iter().enumerate().map(|(index, side)| {
            let has_new = index == 0 && matches!(self.traffic, Traffic::Saturating(_));
            let takes = side.leg.has_session() && (has_new || !side.waiting.is_empty());
            let wants = if takes { Time::ZERO } else { side.leg.wake_at() };
            wants.max(side.free_at)
        });
        let burst = matches!(self.traffic, Traffic::Bursts(..)).then_some(self.next_burst);
        let timers =
            self.connection.iter().flat_map(|connection| connection.ends.iter().map(Endpoint::wake_at));
        arrivals.chain(polls).chain(burst).chain(timers).min().unwrap_or(Time::MAX)
    }

    fn arrivals(&mut self) {
        for from in 0..2 {
            while let Some((_, frame)) = self.sides[from].in_flight.pop_due(self.now) {
                for mut copy in (self.copies)(&frame) {
                    let to = &mut self.sides[1 - from];
                    if let Err(error) = to.leg.on_frame(&mut copy, self.now) {
                        to.errors.push(error);
                    }
                    self.deliver(1 - from);
                    self.segments();
                }
            }
        }
    }

    fn bursts(&mut self) {
        if let Traffic::Bursts(class, count, pause) = self.traffic
            && self.next_burst <= self.now
        {
            self.next_burst = self.now + pause;
            for _ in 0..count {
                let packet = packet(self.packets, self.now);
                self.packets += 1;
                self.sides[0].waiting.push_back((class, packet));
            }
        }
    }

    /// Opens a connection whose server sends without end.
    pub(crate) fn connect(&mut self) {
        let config = bentpipe_tcp::Config {
            mss: PACKET as u16 - 40,
            congestion: Algorithm::Cubic,
            recovery: Recovery::Rack,
            tail_loss_probe: true,
            forward_rto: true,
            undo: true,
            duplicate_sack: true,
            fq_pacing: true,
            // The default of quinn for a stream; less than the link and the queue hold.
            receive_buffer: 1_250_000,
            ssthresh: Some(1_250_000),
            ..bentpipe_tcp::Config::default()
        };
        let client = Endpoint::connect(config, 1, self.now);
        let ends = [Endpoint::listen(config, 2), client];
        self.connection = Some(Connection { ends, on_their_way: HashMap::new(), read: 0, queue_drops: 0 });
    }

    /// Timers of the connection, and the segments that its ends send, into the queues in front of the legs.
    fn segments(&mut self) {
        let Some(connection) = &mut self.connection else { return };
        connection.ends[0].write(u64::from(u32::MAX));
        for (end, side) in connection.ends.iter_mut().zip(&mut self.sides) {
            if end.wake_at() <= self.now {
                end.on_timer(self.now);
            }
            while let Some(segment) = end.poll_transmit(self.now) {
                if side.waiting.len() >= QUEUE {
                    connection.queue_drops += 1;
                    continue;
                }
                assert!(segment.ip_length() <= PACKET, "{segment:?}");
                let bytes = packet_of(self.packets, self.now, segment.ip_length());
                connection.on_their_way.insert(self.packets, segment);
                self.packets += 1;
                // Acknowledgements need no order.
                let class = if bytes.len() <= SMALL { Class::Latency } else { Class::Bulk };
                side.waiting.push_back((class, bytes));
            }
        }
    }

    fn transmit(&mut self, index: usize) {
        let saturating = match self.traffic {
            Traffic::Saturating(class) if index == 0 => Some(class),
            _ => None,
        };
        let (now, packets) = (self.now, &mut self.packets);
        let side = &mut self.sides[index];
        while side.free_at <= now {
            let mut frame = Vec::new();
            let waiting = &mut side.waiting;
            let next = || {
                waiting.pop_front().or_else(|| {
                    let new = packet(*packets, now);
                    *packets += u64::from(saturating.is_some());
                    saturating.map(|class| (class, new))
                })
            };
            let Some(sent) = side.leg.poll(now, &mut frame, next) else { break };
            assert!(frame.len() <= PACKET + MAX_OVERHEAD, "{sent:?} of {} bytes", frame.len());
            let bytes = frame.len() + OUTER_HEADERS;
            let (count, sum) = &mut side.sent[sent as usize];
            (*count, *sum) = (*count + 1, *sum + bytes as u64);
            side.free_at = now + Rate::mbps(10).time_for(bytes as u64);
            if (side.mute)(sent) {
                continue;
            }
            if let Ok(arrivals) = side.direction.transmit(now, bytes, bytes) {
                if let Some(duplicate) = arrivals.duplicate {
                    side.in_flight.launch(duplicate.at, frame.clone());
                }
                side.in_flight.launch(arrivals.packet.at, frame);
            }
        }
        self.deliver(index);
    }

    /// Takes what is delivered, and checks that it is what was sent.
    fn deliver(&mut self, index: usize) {
        while let Some((_, received)) = self.sides[index].leg.next_packet() {
            let number = u64::from(u32::from_be_bytes(received[28..32].try_into().unwrap()));
            let sent_at = Time::from_nanos(u64::from_be_bytes(received[32..40].try_into().unwrap()));
            let expected = packet_of(number, sent_at, received.len());
            assert_eq!(received, expected, "packet {number} is not what was sent");
            if let Some(connection) = &mut self.connection {
                let segment = connection.on_their_way.remove(&number).expect("each is delivered once");
                let end = &mut connection.ends[index];
                end.on_segment(self.now, &segment);
                let bytes = end.read(self.now, u64::MAX);
                connection.read += if index == 1 { bytes } else { 0 };
            }
            let frame = PACKET + SOURCE_OVERHEAD - COMPRESSED + OUTER_HEADERS;
            let least = Duration::from_millis(300) + Rate::mbps(10).time_for(frame as u64);
            self.delivered.push(Delivery { number, added: (self.now - sent_at).saturating_sub(least) });
        }
    }

    pub(crate) fn summary(&self) -> Summary {
        let mut numbers: Vec<u64> = self.delivered.iter().map(|delivery| delivery.number).collect();
        let out_of_order = numbers.windows(2).filter(|pair| pair[1] < pair[0]).count();
        numbers.sort_unstable();
        let count = numbers.len();
        numbers.dedup();
        assert_eq!(count, numbers.len(), "a packet was delivered twice");
        let mut added: Vec<Duration> = self.delivered.iter().map(|delivery| delivery.added).collect();
        added.sort_unstable();
        let quantile = |share: f64| added[((added.len() - 1) as f64 * share) as usize];
        let bytes = |kind: Sent| self.sides[0].sent[kind as usize].1 as f64;
        let source = bytes(Sent::Source);
        Summary {
            packets: self.packets,
            lost: self.packets - count as u64,
            out_of_order: out_of_order as u64,
            repair: bytes(Sent::Repair) / source,
            retransmission: bytes(Sent::Retransmission) / source,
            reports: bytes(Sent::Report) / source,
            added: [0.5, 0.99, 0.999, 1.0].map(quantile),
        }
    }
}

/// What a run has shown.
#[derive(Debug)]
#[allow(dead_code, reason = "all of it is printed")]
pub(crate) struct Summary {
    pub(crate) packets: u64,
    pub(crate) lost: u64,
    pub(crate) out_of_order: u64,
    /// Bytes of repair frames for each byte of source frames.
    pub(crate) repair: f64,
    pub(crate) retransmission: f64,
    pub(crate) reports: f64,
    /// Delay beyond the least: median, 99%, 99.9%, longest.
    pub(crate) added: [Duration; 4],
}

fn packet(number: u64, now: Time) -> Vec<u8> {
    packet_of(number, now, PACKET)
}

/// IPv4 and UDP, of 40 bytes or more: its number, the time and bytes that depend on both number and place.
fn packet_of(number: u64, now: Time, length: usize) -> Vec<u8> {
    let mut packet = Vec::with_capacity(length);
    let [ip_length, udp_length] = [length, length - 20].map(|length| (length as u16).to_be_bytes());
    packet.extend_from_slice(&[0x45, 0, ip_length[0], ip_length[1], 0, 0, 0x40, 0, 64, 17, 0, 0]);
    packet.extend_from_slice(&[192, 0, 2, 1, 198, 51, 100, 1]);
    let words = packet.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1]));
    let sum: u32 = words.sum();
    packet[10..12].copy_from_slice(&(!(sum % 0xffff) as u16).to_be_bytes());
    packet.extend_from_slice(&[0x12, 0x34, 0x01, 0xbb, udp_length[0], udp_length[1]]);
    packet.extend_from_slice(&(number as u16).to_be_bytes());
    packet.extend_from_slice(&(number as u32).to_be_bytes());
    packet.extend_from_slice(&now.as_nanos().to_be_bytes());
    packet.extend((40..length as u64).map(|i| (i.wrapping_mul(number | 1) >> 3) as u8));
    packet
}
