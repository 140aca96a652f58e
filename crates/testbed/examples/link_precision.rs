//! How precisely the link keeps its times, and how fast it can go.
//!
//!     cargo run --release -p bentpipe-testbed --example link_precision [agents]
//!
//! With `agents`, there is one at each end that passes all packets.
//!
//! Timestamped UDP packets cross a link of 300 ms between two namespaces. Each error is measured twice: in
//! the driver (just after the packet was written, against the model's time) and end to end (when the receiver
//! has it, against what the same model says for the moment just before it was sent). End to end includes what
//! the sender and the receiver lose to other work of the machine, so the first line is a control: the same
//! sender and receiver on a virtual cable, without the link.

use std::net::UdpSocket;
use std::thread;
use std::time::{Duration, Instant};

use bentpipe_link::agent::snoop::SnoopConfig;
use bentpipe_link::agent::{AgentConfig, LinkEndConfig};
use bentpipe_link::{Direction, DirectionConfig, Fate, LinkConfig};
use bentpipe_testbed::{Namespace, Result, SatelliteLink, Subnet, veth};
use bentpipe_units::{ByteCount, Rate, Time};

/// IP length; the UDP payload is 28 bytes shorter.
const PACKET: usize = 1500;
const PAYLOAD: usize = PACKET - 28;
const LONG: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_secs(4);

fn main() -> Result<()> {
    let ends_config = match std::env::args().nth(1).as_deref() {
        None => Default::default(),
        Some("agents") => [pass_through(), pass_through()],
        Some(other) => panic!("\"{other}\" is not \"agents\""),
    };
    println!(
        "{:>9} {:>9} | driver µs: p50 p99 max | end to end µs: p50 p99 max | unintended drops",
        "Mbit/s", "sent"
    );
    control(Rate::mbps(100), LONG)?.print();
    let mut sustained = None;
    let mut mbps = 100;
    loop {
        let length = if mbps == 100 { LONG } else { SHORT };
        let outcome = measure(Rate::mbps(mbps), length, &ends_config)?;
        outcome.print();
        if outcome.unintended > 0 || outcome.offered_mbps < 0.95 * mbps as f64 {
            break;
        }
        sustained = Some(outcome.offered_mbps);
        mbps = mbps * 3 / 2;
    }
    if let Some(rate) = sustained {
        println!("highest rate sustained without an unintended drop: {rate:.0} Mbit/s");
    }
    Ok(())
}

/// A link end through which everything passes: an agent without room for any connection.
fn pass_through() -> LinkEndConfig {
    let config = SnoopConfig { flows: 0, ..SnoopConfig::with_cache(ByteCount::new(0)) };
    LinkEndConfig { agents: vec![AgentConfig::Snoop(config)], arq: None }
}

struct Outcome {
    offered_mbps: f64,
    sent: usize,
    driver: [Duration; 3],
    end_to_end: [Duration; 3],
    unintended: u64,
}

impl Outcome {
    fn print(&self) {
        let micros =
            |times: [Duration; 3]| times.map(|time| format!("{:>7.1}", time.as_secs_f64() * 1e6)).join(" ");
        let (driver, end_to_end) = (micros(self.driver), micros(self.end_to_end));
        println!(
            "{:>9.0} {:>9} | {driver} | {end_to_end} | {}",
            self.offered_mbps, self.sent, self.unintended
        );
    }
}

/// Sends full-size packets at `rate` over a link that is ten times as fast. On one that is hardly faster, a
/// packet that this machine sends a millisecond late delays those behind it for as long as the backlog lasts,
/// and one hiccup of the sender counts many times.
fn measure(rate: Rate, length: Duration, ends_config: &[LinkEndConfig; 2]) -> Result<Outcome> {
    let direction = DirectionConfig {
        rate: Rate::from_bps(rate.bps() * 10),
        delay: Duration::from_millis(300),
        ..DirectionConfig::default()
    };
    let config = LinkConfig::symmetric(direction.clone());
    let (gateway, terminal, subnet) =
        (Namespace::new("gateway")?, Namespace::new("terminal")?, Subnet::new(0));
    let ends = ((&gateway, "sat0"), (&terminal, "sat0"));
    let link = SatelliteLink::start_with_agents(ends.0, ends.1, &config, ends_config, 1, PACKET as u32)?;
    subnet.assign(&gateway, "sat0", &terminal, "sat0")?;
    let Exchange { sent, elapsed, received } =
        exchange(&gateway, &terminal, subnet, link.started_at(), rate, length)?;
    let driver = link.delivered().0.lateness;
    Ok(Outcome {
        offered_mbps: (sent.len() * PACKET * 8) as f64 / elapsed.as_secs_f64() / 1e6,
        sent: sent.len(),
        driver: [driver.p50, driver.p99, driver.max],
        end_to_end: quantiles(errors(&direction, &sent, &received)),
        unintended: link.unintended_drops()?,
    })
}

/// The errors of sender, receiver and machine by themselves, over a cable without any delay.
fn control(rate: Rate, length: Duration) -> Result<Outcome> {
    let (gateway, terminal, subnet) =
        (Namespace::new("gateway")?, Namespace::new("terminal")?, Subnet::new(0));
    veth(&gateway, "eth0", &terminal, "eth0")?;
    subnet.assign(&gateway, "eth0", &terminal, "eth0")?;
    let Exchange { sent, elapsed, received } =
        exchange(&gateway, &terminal, subnet, Instant::now(), rate, length)?;
    Ok(Outcome {
        offered_mbps: (sent.len() * PACKET * 8) as f64 / elapsed.as_secs_f64() / 1e6,
        sent: sent.len(),
        driver: [Duration::ZERO; 3],
        end_to_end: quantiles(errors(&DirectionConfig::default(), &sent, &received)),
        unintended: (sent.len() - received.len()) as u64,
    })
}

struct Exchange {
    /// Just before each packet was sent.
    sent: Vec<Time>,
    elapsed: Duration,
    /// Numbers and times of arrival.
    received: Vec<(u32, Time)>,
}

/// Sends from the gateway to the terminal.
fn exchange(
    gateway: &Namespace,
    terminal: &Namespace,
    subnet: Subnet,
    epoch: Instant,
    rate: Rate,
    length: Duration,
) -> Result<Exchange> {
    let receiver = terminal.run(|| UdpSocket::bind("0.0.0.0:9"))?.expect("a free port");
    receiver.set_read_timeout(Some(Duration::from_secs(3))).expect("a valid time");
    let sender = gateway.run(|| UdpSocket::bind("0.0.0.0:0"))?.expect("a free port");
    sender.connect((subnet.right4(), 9)).expect("an address of the link");
    let receiving = thread::spawn(move || receive(&receiver, epoch));
    let (sent, elapsed) = send(&sender, epoch, rate, length);
    let received = receiving.join().expect("the receiver does not panic");
    Ok(Exchange { sent, elapsed, received })
}

/// Sends on a fixed schedule; the time just before each packet was sent.
fn send(socket: &UdpSocket, epoch: Instant, rate: Rate, length: Duration) -> (Vec<Time>, Duration) {
    let start = Instant::now();
    let interval = rate.time_for(PACKET as u64);
    let count = (length.as_nanos() / interval.as_nanos()) as u32;
    let mut packet = [0; PAYLOAD];
    let mut times = Vec::with_capacity(count as usize);
    for number in 0..count {
        thread::sleep((start + interval * number).saturating_duration_since(Instant::now()));
        packet[..4].copy_from_slice(&number.to_le_bytes());
        times.push(since(epoch));
        socket.send(&packet).expect("the link takes packets");
    }
    (times, start.elapsed())
}

/// Numbers and times of arrival, until nothing has come for three seconds.
fn receive(socket: &UdpSocket, epoch: Instant) -> Vec<(u32, Time)> {
    let mut packet = [0; PAYLOAD];
    let mut arrivals = Vec::new();
    while socket.recv(&mut packet).is_ok() {
        let number = u32::from_le_bytes([packet[0], packet[1], packet[2], packet[3]]);
        arrivals.push((number, since(epoch)));
    }
    arrivals
}

fn since(epoch: Instant) -> Time {
    Time::ZERO + epoch.elapsed()
}

/// The difference between each arrival and the model's, for the moment of sending.
fn errors(config: &DirectionConfig, sent: &[Time], received: &[(u32, Time)]) -> Vec<Duration> {
    let mut model = Direction::new(config, 1);
    let expected: Vec<Fate> = sent.iter().map(|&time| model.offer(time, PACKET)).collect();
    let error = |&(number, arrival): &(u32, Time)| match expected[number as usize] {
        Fate::Deliver { at } => Some((arrival - at).max(at - arrival)),
        Fate::Drop(_) => None,
    };
    received.iter().filter_map(error).collect()
}

fn quantiles(mut errors: Vec<Duration>) -> [Duration; 3] {
    errors.sort_unstable();
    let at = |percent: usize| errors.get((errors.len() * percent).div_ceil(100).max(1) - 1).copied();
    [50, 99, 100].map(|percent| at(percent).unwrap_or_default())
}
