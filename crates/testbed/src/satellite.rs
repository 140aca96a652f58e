use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use bentpipe_link::agent::{LinkEndConfig, LinkEndReport};
use bentpipe_link::{Counters, Direction, Link, LinkConfig, MangledCounters, Mangling};
use bentpipe_units::{ByteCount, Time};

use crate::clock::Clock;
use crate::end::End;
use crate::forwarder::Forwarder;
use crate::forwarder_state::ForwarderState;
use crate::line::Line;
use crate::link_end_forwarder::LinkEndForwarder;
use crate::outage::CommandedOutages;
use crate::tun::Tun;
use crate::waker::{Stop, Waker};
use crate::{Error, LatenessSummary, Namespace, Result};

/// A running satellite link between two namespaces: a TUN device in each, and a thread for each direction that carries
/// packets from one to the other as [`bentpipe_link`] says. There may be a [station](bentpipe_link::agent) at each end.
///
/// Dropping it stops the threads and removes the devices; packets in flight are lost, and those that stations hold.
#[derive(Debug)]
pub struct SatelliteLink {
    gateway: Arc<Tun>,
    terminal: Arc<Tun>,
    forward: Arc<ForwarderState>,
    reverse: Arc<ForwarderState>,
    outages: Arc<CommandedOutages>,
    /// None where the ends are bare.
    ends: Option<Ends>,
    stop: Arc<Stop>,
    threads: Vec<JoinHandle<()>>,
    clock: Clock,
}

/// What one direction of the link has really done, as opposed to what the model decided ([`Counters`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Delivered {
    /// Packets that the far host has got, duplicates included. Where stations are, these are others than have crossed the
    /// link: stations drop, hold back and add.
    pub packets: u64,
    /// IP bytes that the far host has got.
    pub bytes: u64,
    /// How much later than the model said packets were written; where stations are, how much later the far station had taken
    /// frames, and what it gave at once was written.
    pub lateness: LatenessSummary,
}

impl SatelliteLink {
    /// Starts a link. The devices are up, without addresses: see [`Subnet::assign`](crate::Subnet::assign).
    ///
    /// `config.forward` leads from `gateway` to `terminal`. The model's time starts at zero now, so a trace of outages
    /// begins now. `mtu` is in bytes, for both devices.
    ///
    /// # Errors
    /// [`Error::Tun`] without `/dev/net/tun` or CAP_NET_ADMIN, or if a name is taken; [`Error::Driver`] if no thread can
    /// be had.
    pub fn start(
        gateway: &Namespace,
        gateway_if: &str,
        terminal: &Namespace,
        terminal_if: &str,
        config: &LinkConfig,
        seed: u64,
        mtu: u32,
    ) -> Result<Self> {
        let (gateway, terminal) = ((gateway, gateway_if), (terminal, terminal_if));
        Self::start_with_stations(gateway, terminal, config, &Default::default(), seed, mtu)
    }

    /// The same with stations at the ends, the gateway's and the terminal's. If nothing sits at either, there are none, and
    /// packets are carried as by [`start`](Self::start).
    ///
    /// What crosses the link then are the stations' frames, and the model counts them: also those that stations send
    /// again, and what they tell each other. [Mangling](Self::mangle) flips bits of the IP packets in them only.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_with_stations(
        (gateway, gateway_if): (&Namespace, &str),
        (terminal, terminal_if): (&Namespace, &str),
        config: &LinkConfig,
        stations: &[LinkEndConfig; 2],
        seed: u64,
        mtu: u32,
    ) -> Result<Self> {
        let gateway = Arc::new(Tun::create(gateway, gateway_if, mtu)?);
        let terminal = Arc::new(Tun::create(terminal, terminal_if, mtu)?);
        let failed = |source| driver_error(&gateway, &terminal, source);
        let stop = Arc::new(Stop::new().map_err(failed)?);
        let outages = Arc::new(CommandedOutages::default());
        let clock = Clock::start();
        let Link { forward, reverse } = Link::new(config, seed);
        let line = |from: &Arc<Tun>, to: &Arc<Tun>, direction: Direction, delay: Duration| Line {
            from: Arc::clone(from),
            to: Arc::clone(to),
            clock,
            delay,
            mtu: mtu as usize,
            state: Arc::new(ForwarderState::new(direction, Arc::clone(&outages))),
            stop: Arc::clone(&stop),
        };
        let down = line(&gateway, &terminal, forward, config.forward.delay);
        let up = line(&terminal, &gateway, reverse, config.reverse.delay);
        let (forward, reverse) = (Arc::clone(&down.state), Arc::clone(&up.state));
        let (ends, work) = carriers(down, up, stations).map_err(failed)?;
        let mut link =
            Self { gateway, terminal, forward, reverse, outages, ends, stop, threads: Vec::new(), clock };
        link.start_threads(work)?;
        Ok(link)
    }

    fn start_threads(&mut self, work: [Work; 2]) -> Result<()> {
        for (name, carry) in ["link forward", "link reverse"].into_iter().zip(work) {
            let thread = thread::Builder::new().name(name.to_owned()).spawn(carry);
            self.threads.push(thread.map_err(|source| driver_error(&self.gateway, &self.terminal, source))?);
        }
        Ok(())
    }

    /// What the stations have done so far, and what they hold: the gateway's and the terminal's. Empty where there are none.
    pub fn station_reports(&self) -> [LinkEndReport; 2] {
        self.ends.as_ref().map(|ends| ends.each_ref().map(|end| end.report())).unwrap_or_default()
    }

    /// IP bytes of packets that the stations keep or hold back now: the gateway's and the terminal's. Cheap: sample it to
    /// draw a curve.
    pub fn held_bytes(&self) -> [u64; 2] {
        self.ends.as_ref().map(|ends| ends.each_ref().map(|end| end.held_bytes())).unwrap_or_default()
    }

    /// Packets by fate, forward and reverse, up to this moment. A packet counts when it is offered to the link; one that
    /// a [commanded outage](Self::set_outage) loses counts as delivered until the moment when it would have arrived.
    pub fn counters(&self) -> (Counters, Counters) {
        (self.forward.counters(), self.reverse.counters())
    }

    /// IP bytes that the far hosts have got, forward and reverse, up to this moment. Cheap: sample it to draw a curve.
    pub fn delivered_bytes(&self) -> (u64, u64) {
        (self.forward.written().1, self.reverse.written().1)
    }

    /// Bytes that wait in front of the transmitters, or are being sent, forward and reverse. Cheap: sample it to draw a curve.
    pub fn backlog(&self) -> (ByteCount, ByteCount) {
        let now = self.clock.now();
        (self.forward.backlog(now), self.reverse.backlog(now))
    }

    /// What has arrived, forward and reverse, and how punctually.
    pub fn delivered(&self) -> (Delivered, Delivered) {
        (delivered(&self.forward), delivered(&self.reverse))
    }

    /// Packets, of both directions, that were lost although the model did not say so: the kernel dropped them at a
    /// device because the driver did not keep up, or refused to take them. Anything but zero spoils a measurement.
    ///
    /// # Errors
    /// [`Error::EnterNamespace`] if a device's namespace cannot be entered.
    pub fn unintended_drops(&self) -> Result<u64> {
        let kernel = self.gateway.kernel_drops()? + self.terminal.kernel_drops()?;
        Ok(kernel + self.forward.refused() + self.reverse.refused())
    }

    /// Cuts both directions of the link now, or restores them. What leaves a transmitter meanwhile is lost, as in an
    /// outage of the trace; what is beyond it arrives. Outages of the trace go on regardless.
    pub fn set_outage(&self, on: bool) {
        self.outages.set(on, self.clock.now());
    }

    /// Begins to reorder, duplicate and corrupt what the link delivers, both ways, in place of any mangling before. The
    /// directions draw their luck apart, each from `seed`.
    pub fn mangle(&self, mangling: &Mangling, seed: u64) {
        self.forward.mangle(mangling, seed);
        self.reverse.mangle(mangling, !seed);
    }

    /// What has been mangled, forward and reverse, since [`mangle`](Self::mangle).
    pub fn mangled(&self) -> (MangledCounters, MangledCounters) {
        (self.forward.mangled(), self.reverse.mangled())
    }

    /// The moment that is zero in the link's time, on the clock of [`Instant`], which is CLOCK_MONOTONIC.
    pub fn started_at(&self) -> Instant {
        self.clock.started()
    }

    /// The link's time.
    pub fn now(&self) -> Time {
        self.clock.now()
    }

    /// Whether both directions are being carried.
    ///
    /// # Errors
    /// [`Error::Driver`] if a device failed, for example because somebody deleted it.
    pub fn check(&self) -> Result<()> {
        let (gateway, terminal) = (&self.gateway, &self.terminal);
        for (state, from, to) in [(&self.forward, gateway, terminal), (&self.reverse, terminal, gateway)] {
            if let Some(source) = state.failure() {
                return Err(driver_error(from, to, source));
            }
        }
        Ok(())
    }
}

impl Drop for SatelliteLink {
    fn drop(&mut self) {
        self.stop.ask();
        for thread in self.threads.drain(..) {
            // A carrier that panicked has told so on standard error already.
            let _ = thread.join();
        }
    }
}

/// The gateway's and the terminal's.
type Ends = [Arc<End>; 2];
/// What a carrier's thread does.
type Work = Box<dyn FnOnce() + Send>;

/// The ends, if anything sits there, and what the carriers of both directions do.
fn carriers(
    down: Line,
    up: Line,
    [gateway, terminal]: &[LinkEndConfig; 2],
) -> io::Result<(Option<Ends>, [Work; 2])> {
    if gateway.is_nothing() && terminal.is_nothing() {
        let work = |line: Line| -> Work { Box::new(|| Forwarder::new(line).run()) };
        return Ok((None, [work(down), work(up)]));
    }
    let bells = [Arc::new(Waker::new()?), Arc::new(Waker::new()?)];
    let [forward, reverse] = &bells;
    let gateway = Arc::new(End::new(gateway, down.clock, forward, reverse));
    let terminal = Arc::new(End::new(terminal, up.clock, reverse, forward));
    let forward = LinkEndForwarder::new(down, &gateway, &terminal, Arc::clone(forward));
    let reverse = LinkEndForwarder::new(up, &terminal, &gateway, Arc::clone(reverse));
    Ok((Some([gateway, terminal]), [Box::new(|| forward.run()), Box::new(|| reverse.run())]))
}

fn delivered(state: &ForwarderState) -> Delivered {
    let (packets, bytes) = state.written();
    Delivered { packets, bytes, lateness: state.lateness().summary() }
}

fn driver_error(from: &Tun, to: &Tun, source: io::Error) -> Error {
    Error::Driver { from: from.interface().to_owned(), to: to.interface().to_owned(), source }
}
