//! What no gateway can split, across a satellite link between two boxes: with protected legs at both, or with
//! boxes that only forward.
//!
//! ```text
//! client ──lan0── terminal ──sat0── satellite link ──sat0── gateway ──lan0── server
//! ```

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, Instant};

use bentpipe_link::{DirectionConfig, GilbertElliott, LinkConfig};
use bentpipe_proxy::{Config, Daemon};
use bentpipe_units::{Probability, Rate};
use ring::rand::{SecureRandom, SystemRandom};
use tempfile::TempDir;

use crate::Error;
use crate::course::Carries;
use crate::download::Progress;
use crate::statistics::at_95;
use crate::topology::{FarEnd, MTU, PAYLOAD_SHARE, Proxy, SATELLITE, Topology};

/// The interval between samples of the queue.
const SAMPLE: Duration = Duration::from_millis(10);
/// How long after the end the link is looked at: what its queue waits for.
const AFTERWARDS: Duration = Duration::from_secs(60);
/// Until then boxes have found each other, as those in operation have, even if some of their first frames are
/// lost.
pub(crate) const SETTLED: Duration = Duration::from_secs(3);
/// The bytes of a pre-shared key.
const KEY: usize = 32;

/// A link, what its boxes do, and how long something crosses it.
#[derive(Debug, Clone, PartialEq)]
pub struct Crossing {
    /// The link's rate, each way; its queues hold one bandwidth-delay product.
    pub rate: Rate,
    /// The round-trip time of the empty link.
    pub rtt: Duration,
    /// What the link loses, each way.
    pub channel: Channel,
    /// The repair class of protected legs; `None`: nothing is protected, and no daemon runs.
    pub protect: Option<Class>,
    /// How long it lasts, from the client's first packet.
    pub lasts: Duration,
    /// The seed of the losses and of what is sent.
    pub seed: u64,
}

/// What a link loses.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Channel {
    /// Each packet with this probability.
    Errors(Probability),
    /// All packets for a time, again and again.
    Bursts {
        /// The share of the time.
        loss: Probability,
        /// The mean length, in full-size packets: of so many the link loses in a row if it is full. How long
        /// it lasts does not depend on what is sent.
        packets: f64,
    },
}

/// The class of a protected leg, as its configuration has it (`docs/protect.md`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// By the length of packets.
    Auto,
    /// Repaired by the code and by retransmission, delivered in order.
    Bulk,
    /// Repaired by the code alone, delivered at once.
    Latency,
}

/// The daemons at both ends of the link, and the key that they share. They end with this value.
#[derive(Debug)]
pub struct Boxes {
    /// At the gateway and at the terminal.
    proxies: [Proxy; 2],
    _key: Key,
}

/// What has crossed the link.
#[derive(Debug, Clone, PartialEq)]
pub struct Measured {
    /// Payload of the application, bits per second.
    pub goodput_bps: f64,
    /// The most that any transport of packets of 1500 bytes with 52 bytes of headers could have delivered,
    /// bits per second.
    pub limit_bps: f64,
    /// The payload of each second, bits per second.
    pub by_second_bps: Vec<f64>,
    /// Whether all of it is what was sent, by SHA-256.
    pub intact: bool,
    /// How long the last byte in the queue in front of the link had to wait, each 10 ms, seconds, in
    /// ascending order.
    pub queue_s: Vec<f64>,
    /// By how much the round trips that the sender has measured exceed the empty link's, seconds, in ascending
    /// order; empty where it tells none. They include what waits inside the boxes.
    pub excess_s: Vec<f64>,
    /// What was offered to the link, as a share of its rate.
    pub offered: f64,
    /// The round-trip time of the empty link.
    rtt: Duration,
}

impl Channel {
    fn apply(self, direction: &mut DirectionConfig) {
        match self {
            Self::Errors(per) => direction.per = per,
            Self::Bursts { loss, packets } => {
                let leave = 1.0 / packets.max(1.0);
                let lossy = loss.get().min(1.0 - f64::EPSILON);
                let enter = (leave * lossy / (1.0 - lossy)).min(1.0);
                let probability = |value| Probability::new(value).expect("a part of one");
                direction.gilbert_elliott = Some(GilbertElliott {
                    good_to_bad: probability(enter),
                    bad_to_good: probability(leave),
                    loss_in_good: Probability::ZERO,
                    loss_in_bad: probability(1.0),
                    slot: direction.rate.map(|rate| rate.time_for(MTU.into())),
                });
            }
        }
    }
}

impl Class {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Auto, Self::Bulk, Self::Latency];

    /// Its name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Bulk => "bulk",
            Self::Latency => "latency",
        }
    }
}

impl FromStr for Class {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|class| class.name() == name);
        found.ok_or_else(|| format!("there is no class \"{name}\": choose auto, bulk or latency"))
    }
}

impl Crossing {
    /// A minute over a link.
    pub fn of_a_minute(rate: Rate, rtt: Duration, channel: Channel, seed: u64) -> Self {
        Self { rate, rtt, channel, protect: None, lasts: Duration::from_secs(60), seed }
    }

    /// The link.
    pub fn link(&self) -> LinkConfig {
        let mut direction =
            DirectionConfig { rate: Some(self.rate), delay: self.rtt / 2, ..DirectionConfig::default() };
        self.channel.apply(&mut direction);
        LinkConfig::symmetric(direction)
    }

    /// Builds the hosts and the link, and starts the boxes if packets of this protocol are protected.
    ///
    /// # Errors
    /// Those of the topology and of [`Boxes::start`].
    pub fn set_up(&self, protocol: &str) -> Result<(Topology, Option<Boxes>), Error> {
        let topology = Topology::build_with(&self.link(), &Default::default(), self.seed, FarEnd::Terminal)?;
        let boxes = self.protect.map(|class| Boxes::start(&topology, self.rate, class, protocol));
        let boxes = boxes.transpose()?;
        if boxes.is_some() {
            std::thread::sleep(SETTLED);
        }
        Ok((topology, boxes))
    }

    /// Runs a client on a thread and looks at the link until the time is over; then cancels its progress. The
    /// client says whether what it has received is what was sent.
    ///
    /// # Errors
    /// Those of the client, which ends the crossing if it fails early.
    ///
    /// # Panics
    /// If the client panics.
    pub fn watch(
        &self,
        topology: &Topology,
        client: impl FnOnce(&Progress) -> io::Result<bool> + Send,
    ) -> io::Result<Measured> {
        let (progress, link) = (Progress::default(), &topology.link);
        std::thread::scope(|scope| {
            let (from, before, started) = (link.now(), link.counters().0, Instant::now());
            let client = scope.spawn(|| client(&progress));
            let carries = Carries::new(&self.link().forward, from + self.lasts + AFTERWARDS);
            let (mut queue_s, mut by_second) = (Vec::new(), vec![0]);
            loop {
                std::thread::sleep(SAMPLE);
                let queued = link.backlog().0.get();
                queue_s.push(carries.time_for(queued, link.now()).as_secs_f64());
                if started.elapsed().as_secs() >= by_second.len() as u64 {
                    by_second.push(progress.received());
                }
                if started.elapsed() >= self.lasts || client.is_finished() {
                    break;
                }
            }
            let (until, counters, received) = (link.now(), link.counters().0, progress.received());
            progress.cancel();
            let intact = client.join().expect("the client does not panic")?;
            let seconds = (until - from).as_secs_f64();
            let ([_, arrives], [_, arrived]) = (carries.left(until), carries.left(from));
            let offered = (counters.offered_bytes - before.offered_bytes) as f64 * 8.0 / seconds;
            queue_s.sort_by(f64::total_cmp);
            Ok(Measured {
                goodput_bps: received as f64 * 8.0 / seconds,
                limit_bps: (arrives - arrived) * PAYLOAD_SHARE * 8.0 / seconds,
                by_second_bps: by_second.windows(2).map(|pair| (pair[1] - pair[0]) as f64 * 8.0).collect(),
                intact,
                queue_s,
                excess_s: Vec::new(),
                offered: offered / self.rate.bps() as f64,
                rtt: self.rtt,
            })
        })
    }
}

impl Boxes {
    /// Starts a daemon at the gateway and one at the terminal, each with a protected leg to the other, and
    /// rules by which this protocol is protected and no other.
    ///
    /// # Errors
    /// [`Error::Proxy`] if the daemon does not take the configuration or does not start.
    pub fn start(topology: &Topology, rate: Rate, class: Class, protocol: &str) -> Result<Self, Error> {
        let gateway = (&topology.gateway, topology.far_address());
        let terminal = topology.terminal.as_ref().unwrap_or(&topology.client);
        let terminal = (terminal, topology.gateway_address());
        let key = Key::new()?;
        let start = |(host, peer)| {
            let text = configuration(rate, class, protocol, peer, &key);
            let config = Config::parse("the configuration of a protected leg", &text);
            Proxy::start(host, &config.map_err(|error| Error::Proxy(error.to_string()))?)
        };
        let proxies = [start(gateway)?, start(terminal)?];
        Ok(Self { proxies, _key: key })
    }

    /// The daemon at the gateway.
    pub fn gateway(&self) -> &Daemon {
        &self.proxies[0]
    }
}

const KEY_FILE: &str = "key";

/// A new key in a folder of its own, which only its owner can read. It goes with this value.
#[derive(Debug)]
pub(crate) struct Key(TempDir);

impl Key {
    /// Draws it.
    ///
    /// # Errors
    /// [`Error::Proxy`]: there are no random numbers, or no place for it.
    pub(crate) fn new() -> Result<Self, Error> {
        Self::draw().map_err(|error| Error::Proxy(format!("no key for protected legs: {error}")))
    }

    fn draw() -> io::Result<Self> {
        let (folder, mut key) = (tempfile::tempdir()?, [0; KEY]);
        SystemRandom::new()
            .fill(&mut key)
            .map_err(|_| io::Error::other("the system has no random numbers"))?;
        let digits: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create_new(true).mode(0o600).open(folder.path().join(KEY_FILE))?;
        writeln!(file, "{digits}")?;
        Ok(Self(folder))
    }

    /// Where it is.
    pub(crate) fn file(&self) -> PathBuf {
        self.0.path().join(KEY_FILE)
    }
}

/// The table of a leg by which it is protected, to this peer.
pub(crate) fn protect_table(leg: &str, class: &str, peer: IpAddr, key_file: &Path) -> String {
    format!(
        "[legs.{leg}.protect]\npeer = \"{peer}\"\nkey_file = \"{}\"\nclass = \"{class}\"\n",
        key_file.display()
    )
}

/// The rule by which packets of a protocol are protected.
pub(crate) fn protect_rule(protocol: &str) -> String {
    format!("[[rules]]\naction = \"protect\"\nprotocol = \"{protocol}\"\n")
}

fn configuration(rate: Rate, class: Class, protocol: &str, peer: IpAddr, key: &Key) -> String {
    let leg = format!("[legs.satellite]\ninterface = \"{SATELLITE}\"\nrate = \"{rate}\"\n");
    leg + &protect_table("satellite", class.name(), peer, &key.file()) + &protect_rule(protocol)
}

impl Measured {
    /// The goodput as a share of the limit.
    pub fn of_limit(&self) -> f64 {
        self.goodput_bps / self.limit_bps
    }

    /// The 95th percentile of the delay of the queue in front of the link, seconds.
    pub fn queue_95_s(&self) -> f64 {
        at_95(&self.queue_s)
    }

    /// The 95th percentile of the excess of the round trips, seconds; `None` where the sender tells none.
    pub fn excess_95_s(&self) -> Option<f64> {
        (!self.excess_s.is_empty()).then(|| at_95(&self.excess_s))
    }

    /// A run with this share of a limit and nothing else.
    #[cfg(test)]
    pub(crate) fn of_share(share: f64, limit_bps: f64, intact: bool) -> Self {
        Self {
            goodput_bps: share * limit_bps,
            limit_bps,
            by_second_bps: Vec::new(),
            intact,
            queue_s: vec![0.0],
            excess_s: Vec::new(),
            offered: 0.0,
            rtt: Duration::from_millis(600),
        }
    }

    /// Takes the round-trip times of the sender, seconds.
    pub(crate) fn set_round_trips(&mut self, seconds: impl Iterator<Item = f64>) {
        self.excess_s = seconds.map(|seconds| (seconds - self.rtt.as_secs_f64()).max(0.0)).collect();
        self.excess_s.sort_by(f64::total_cmp);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use bentpipe_units::Time;

    use super::*;

    fn probability(value: f64) -> Probability {
        Probability::new(value).unwrap()
    }

    fn crossing(channel: Channel) -> Crossing {
        Crossing::of_a_minute(Rate::mbps(10), Duration::from_millis(600), channel, 1)
    }

    #[test]
    fn bursts_have_their_share_and_their_length_in_time() {
        let link = crossing(Channel::Bursts { loss: probability(0.01), packets: 20.0 }).link();
        for direction in [link.forward, link.reverse] {
            let model = direction.gilbert_elliott.unwrap();
            assert!((model.stationary_loss().get() - 0.01).abs() < 1e-12, "{model:?}");
            assert!((model.mean_burst() - 20.0).abs() < 1e-9, "{}", model.mean_burst());
            assert_eq!(model.slot, Some(Duration::from_micros(1200)), "a packet at 10 Mbit/s");
        }
    }

    #[test]
    fn the_limit_counts_what_either_channel_loses() {
        let arrives = |channel| {
            let until = Time::ZERO + Duration::from_secs(10);
            Carries::new(&crossing(channel).link().forward, until).left(until)[1]
        };
        let errors = arrives(Channel::Errors(probability(0.01)));
        assert!((errors - 0.99 * 12.5e6).abs() < 1.0, "{errors}");
        let bursts = arrives(Channel::Bursts { loss: probability(0.01), packets: 20.0 });
        assert!((bursts - errors).abs() < 1.0, "{bursts}");
    }

    #[test]
    fn a_key_is_its_owners_and_no_two_are_the_same() {
        let keys = [Key::new().unwrap(), Key::new().unwrap()];
        let texts = keys.each_ref().map(|key| {
            let path = key.file();
            assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
            std::fs::read_to_string(path).unwrap()
        });
        assert!(texts.iter().all(|text| text.trim().len() == 2 * KEY), "{texts:?}");
        assert_ne!(texts[0], texts[1]);
    }

    #[test]
    fn each_box_has_the_other_for_its_peer() {
        let peer = "10.98.1.2".parse().unwrap();
        let key = Key::new().unwrap();
        let text = configuration(Rate::mbps(10), Class::Bulk, "udp", peer, &key);
        let file = format!("key_file = \"{}\"", key.file().display());
        for line in ["peer = \"10.98.1.2\"", &file, "class = \"bulk\"", "protocol = \"udp\""] {
            assert!(text.lines().any(|found| found == line), "{line} is not in {text}");
        }
        assert!(text.find("[legs.satellite.protect]") < text.find("[[rules]]"), "{text}");
    }

    #[test]
    fn round_trips_are_told_beyond_those_of_the_empty_link() {
        let mut measured = Measured::of_share(0.5, 2.0, true);
        assert_eq!((measured.excess_95_s(), measured.of_limit()), (None, 0.5));
        measured.set_round_trips([0.9, 0.599, 0.7].into_iter());
        let expected = [0.0, 0.1, 0.3];
        let found = measured.excess_s.iter().zip(expected);
        assert!(found.clone().all(|(found, expected)| (found - expected).abs() < 1e-9), "{measured:?}");
        assert_eq!(measured.excess_95_s(), measured.excess_s.last().copied());
    }

    #[test]
    fn a_class_is_found_by_its_name() {
        assert_eq!("latency".parse(), Ok(Class::Latency));
        assert!("fast".parse::<Class>().unwrap_err().contains("auto, bulk or latency"));
    }
}
