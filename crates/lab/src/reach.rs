//! How far this machine's own TCP reaches: connections over links of many seconds, tried in parallel.
//!
//! Each delay has a pair of hosts and a link of its own, so that nothing but the kernel's timers decides. The
//! client connects, sends one byte and waits for its echo: connect(2) alone proves nothing, because a server
//! that has forgotten the half-open connection answers the handshake's last segment with a reset, a round
//! trip after the client took itself for connected.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use bentpipe_link::{DirectionConfig, LinkConfig};
use bentpipe_testbed::{Namespace, SatelliteLink, Subnet};
use serde::Serialize;

use crate::Error;

/// The echo service (RFC 862).
const PORT: u16 = 7;
const MTU: u32 = 1500;
const SUBNET: Subnet = Subnet::new(0);
/// Beyond the round trips that an exchange needs: for a machine that is busy with other things.
const TIMEOUT_MARGIN: Duration = Duration::from_secs(60);

/// The result at one delay.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Probe {
    /// The one-way delay of the link, both ways.
    pub delay_s: f64,
    /// When connect(2) succeeded; `None` if it never did.
    pub connected_s: Option<f64>,
    /// After how long the echo was there; `None` if it never came.
    pub answered_s: Option<f64>,
    /// The kernel's error.
    pub error: Option<String>,
    /// When the probe ended.
    pub ended_s: f64,
}

impl Probe {
    /// Whether a byte went there and back.
    pub fn works(&self) -> bool {
        self.answered_s.is_some()
    }
}

/// The results at all delays.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Measurement {
    /// The kernel.
    pub kernel: String,
    /// The probes, the nearest first.
    pub probes: Vec<Probe>,
}

impl Measurement {
    /// The largest delay, one way, that worked; `None` if none did.
    pub fn largest_working_s(&self) -> Option<f64> {
        self.probes.iter().filter(|probe| probe.works()).map(|probe| probe.delay_s).reduce(f64::max)
    }

    /// The smallest delay, one way, that failed; `None` if none did.
    pub fn smallest_failing_s(&self) -> Option<f64> {
        self.probes.iter().filter(|probe| !probe.works()).map(|probe| probe.delay_s).reduce(f64::min)
    }

    /// The delays that contradict a prediction: failures up to `sure`, successes beyond `perhaps` and its
    /// `margin`, a share of it by which timers may be late.
    pub fn contradictions(&self, sure: f64, perhaps: f64, margin: f64) -> Vec<f64> {
        let contradicts = |probe: &&Probe| match probe.works() {
            true => probe.delay_s > perhaps * (1.0 + margin),
            false => probe.delay_s <= sure,
        };
        self.probes.iter().filter(contradicts).map(|probe| probe.delay_s).collect()
    }
}

/// Probes all `delays` at once and reports each probe to `ended` when it ends. This takes four times the
/// longest delay, or as long as the kernel tries to connect.
///
/// # Errors
/// If the hosts or a link cannot be set up; the process needs the privileges to make network namespaces.
pub fn measure(delays: &[Duration], mut ended: impl FnMut(&Probe)) -> Result<Measurement, Error> {
    let topologies = delays.iter().map(|&delay| Topology::build(delay)).collect::<Result<Vec<_>, _>>()?;
    let (sender, receiver) = mpsc::channel();
    let mut probes = thread::scope(|scope| {
        for topology in &topologies {
            let sender = sender.clone();
            // The receiver is there until the last probe has ended.
            scope.spawn(move || drop(sender.send(topology.probe())));
        }
        drop(sender);
        receiver.iter().map(|probe| probe.inspect(&mut ended)).collect::<Result<Vec<_>, _>>()
    })?;
    probes.sort_by(|one, other| one.delay_s.total_cmp(&other.delay_s));
    Ok(Measurement { kernel: crate::kernel_release(), probes })
}

/// A client, a server and a link between them that has a delay and nothing else.
struct Topology {
    server: Namespace,
    client: Namespace,
    delay: Duration,
    /// Carries packets for as long as it lives.
    _link: SatelliteLink,
}

impl Topology {
    fn build(delay: Duration) -> Result<Self, Error> {
        let (server, client) = (Namespace::new("server")?, Namespace::new("client")?);
        let config = LinkConfig::symmetric(DirectionConfig { delay, ..Default::default() });
        let link = SatelliteLink::start(&server, "sat0", &client, "sat0", &config, 1, MTU)?;
        SUBNET.assign(&server, "sat0", &client, "sat0")?;
        Ok(Self { server, client, delay, _link: link })
    }

    fn probe(&self) -> Result<Probe, Error> {
        let timeout = self.delay * 4 + TIMEOUT_MARGIN;
        let listener = self
            .server
            .run(|| TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT)))?
            .map_err(|source| Error::Transfer { run: "the echo server".into(), source })?;
        let address = SocketAddr::from((SUBNET.left4(), PORT));
        thread::scope(|scope| {
            let server = scope.spawn(move || echo_one_byte(&listener, timeout));
            let probe = self.client.run(|| exchange(address, timeout));
            // Wakes the server if no connection has reached it. If it no longer listens, it has ended by
            // itself.
            let _ = self.server.run(|| TcpStream::connect(address));
            // An error of the server is also one of the client.
            let _ = server.join();
            Ok(Probe { delay_s: self.delay.as_secs_f64(), ..probe? })
        })
    }
}

fn echo_one_byte(listener: &TcpListener, timeout: Duration) -> io::Result<()> {
    let (mut connection, _) = listener.accept()?;
    connection.set_read_timeout(Some(timeout))?;
    let mut byte = [0];
    connection.read_exact(&mut byte)?;
    connection.write_all(&byte)
}

/// Connects and has one byte echoed.
fn exchange(address: SocketAddr, timeout: Duration) -> Probe {
    let started = Instant::now();
    let mut connected_s = None;
    let outcome = TcpStream::connect(address).and_then(|mut connection| {
        connected_s = Some(started.elapsed().as_secs_f64());
        connection.set_read_timeout(Some(timeout))?;
        connection.write_all(b"?")?;
        connection.read_exact(&mut [0])
    });
    let ended_s = started.elapsed().as_secs_f64();
    Probe {
        delay_s: 0.0,
        connected_s,
        answered_s: outcome.is_ok().then_some(ended_s),
        error: outcome.err().map(|error| error.to_string()),
        ended_s,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn probe(delay_s: f64, works: bool) -> Probe {
        let answered_s = works.then_some(4.0 * delay_s);
        Probe { delay_s, connected_s: None, answered_s, error: None, ended_s: 4.0 * delay_s }
    }

    fn measurement(outcomes: &[(f64, bool)]) -> Measurement {
        let probes = outcomes.iter().map(|&(delay_s, works)| probe(delay_s, works)).collect();
        Measurement { kernel: "6.18".into(), probes }
    }

    #[test]
    fn the_bounds_of_success_are_found_even_if_they_overlap() {
        let found = measurement(&[(1.0, true), (40.0, false), (45.0, true), (60.0, false)]);
        assert_eq!((found.largest_working_s(), found.smallest_failing_s()), (Some(45.0), Some(40.0)));
        assert_eq!(measurement(&[]).largest_working_s(), None);
    }

    #[test]
    fn only_a_value_outside_the_prediction_contradicts_it() {
        let found = measurement(&[(33.0, false), (40.0, false), (45.0, true), (51.0, true), (60.0, true)]);
        assert_eq!(found.contradictions(33.5, 49.5, 0.125), [33.0, 60.0]);
    }

    #[test]
    fn a_refused_connection_is_an_error_and_no_answer() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let probe = exchange(address, TIMEOUT_MARGIN);
        assert!(!probe.works() && probe.connected_s.is_none() && probe.error.is_some(), "{probe:?}");
    }

    #[test]
    fn a_byte_that_is_echoed_is_an_answer() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let server = thread::spawn(move || echo_one_byte(&listener, TIMEOUT_MARGIN));
        let probe = exchange(address, TIMEOUT_MARGIN);
        server.join().unwrap().unwrap();
        assert!(probe.works() && probe.connected_s.is_some(), "{probe:?}");
    }
}
