use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};
use std::time::Instant;

use bentpipe_link::agent::{LinkEndConfig, LinkEndReport};
use bentpipe_link::{Counters, ImpairmentCounters, Impairments, Link, LinkConfig};
use bentpipe_units::{ByteCount, Time};

use crate::clock::Clock;
use crate::end::End;
use crate::forwarder::{Buffers, Forwarder};
use crate::forwarder_state::ForwarderState;
use crate::outage::CommandedOutages;
use crate::recorder::Recorder;
use crate::tun::Tun;
use crate::waker::{Stop, Waker};
use crate::{Error, LatenessSummary, Namespace, Result};

/// A running satellite link between two namespaces: a TUN device in each, and a thread for each direction
/// that carries packets from one to the other as [`bentpipe_link`] says. There may be
/// [agents](bentpipe_link::agent) at each end.
///
/// Dropping it stops the threads and removes the devices; packets in flight are lost, and those that agents
/// hold.
#[derive(Debug)]
pub struct SatelliteLink {
    gateway: Arc<Tun>,
    terminal: Arc<Tun>,
    forward: Arc<ForwarderState>,
    reverse: Arc<ForwarderState>,
    outages: Arc<CommandedOutages>,
    /// The gateway's and the terminal's.
    ends: [Arc<End>; 2],
    stop: Arc<Stop>,
    threads: Vec<JoinHandle<()>>,
    clock: Clock,
}

/// Measurements of one direction of the link, as opposed to the decisions of the model ([`Counters`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Delivered {
    /// Packets that the far host has received, duplicates included. Where there are agents, these are others
    /// than have crossed the link: agents drop packets, hold them back and add some.
    pub packets: u64,
    /// IP bytes that the far host has received.
    pub bytes: u64,
    /// How much later than in the model packets were written; where there are agents, how much later they had
    /// received a frame and the packets that they delivered at once were written.
    pub lateness: LatenessSummary,
}

impl SatelliteLink {
    /// Starts a link. The devices are up, without addresses: see [`Subnet::assign`](crate::Subnet::assign).
    ///
    /// `config.forward` leads from `gateway` to `terminal`. The model's time starts at zero now, so a trace
    /// of outages begins now. `mtu` is in bytes, for both devices.
    ///
    /// # Errors
    /// [`Error::Tun`] without `/dev/net/tun` or CAP_NET_ADMIN, or if a name is taken; [`Error::Driver`] if no
    /// thread can be had.
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
        Self::start_with_agents(gateway, terminal, config, &Default::default(), seed, mtu)
    }

    /// The same with agents at the link's ends, the gateway's and the terminal's.
    ///
    /// The frames of the agents cross the link then, and the model counts them: also retransmissions, and
    /// reports between the two ends. [Impairments](Self::impair) flip bits of the IP packets in them only.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_with_agents(
        gateway: (&Namespace, &str),
        terminal: (&Namespace, &str),
        config: &LinkConfig,
        ends: &[LinkEndConfig; 2],
        seed: u64,
        mtu: u32,
    ) -> Result<Self> {
        let clock = Clock::start();
        Self::start_recorded(gateway, terminal, config, ends, (seed, clock), mtu, [None, None])
    }

    /// The same, with the model's time at zero until `zero`: so several links have one time, and a topology
    /// can be set up before anything happens on its links.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_at(
        zero: Instant,
        gateway: (&Namespace, &str),
        terminal: (&Namespace, &str),
        config: &LinkConfig,
        ends: &[LinkEndConfig; 2],
        seed: u64,
        mtu: u32,
    ) -> Result<Self> {
        let clock = Clock::starting_at(zero);
        Self::start_recorded(gateway, terminal, config, ends, (seed, clock), mtu, [None, None])
    }

    /// The same; the recorders learn of the packets to the terminal, and from it.
    pub(crate) fn start_recorded(
        (gateway, gateway_if): (&Namespace, &str),
        (terminal, terminal_if): (&Namespace, &str),
        config: &LinkConfig,
        ends: &[LinkEndConfig; 2],
        (seed, clock): (u64, Clock),
        mtu: u32,
        [down_recorder, up_recorder]: [Option<Recorder>; 2],
    ) -> Result<Self> {
        let gateway = Arc::new(Tun::create(gateway, gateway_if, mtu)?);
        let terminal = Arc::new(Tun::create(terminal, terminal_if, mtu)?);
        let failed = |source| driver_error(&gateway, &terminal, source);
        let stop = Arc::new(Stop::new().map_err(failed)?);
        let outages = Arc::new(CommandedOutages::default());
        let wakers = [Arc::new(Waker::new().map_err(failed)?), Arc::new(Waker::new().map_err(failed)?)];
        let [down, up] = &wakers;
        let ends =
            [Arc::new(End::new(&ends[0], clock, down, up)), Arc::new(End::new(&ends[1], clock, up, down))];
        let forwarder =
            |[from, to]: [&Arc<Tun>; 2], [near, far]: [&Arc<End>; 2], waker, direction, recorder| Forwarder {
                from: Arc::clone(from),
                to: Arc::clone(to),
                near: Arc::clone(near),
                far: Arc::clone(far),
                waker: Arc::clone(waker),
                clock,
                state: Arc::new(ForwarderState::new(direction, Arc::clone(&outages))),
                stop: Arc::clone(&stop),
                buffers: Buffers::new(mtu as usize),
                recorder,
                offered: 0,
            };
        let Link { forward, reverse } = Link::new(config, seed);
        let forward = forwarder([&gateway, &terminal], [&ends[0], &ends[1]], down, forward, down_recorder);
        let reverse = forwarder([&terminal, &gateway], [&ends[1], &ends[0]], up, reverse, up_recorder);
        let states = [&forward, &reverse].map(|forwarder| Arc::clone(&forwarder.state));
        let [forward_state, reverse_state] = states;
        let mut link = Self {
            gateway,
            terminal,
            forward: forward_state,
            reverse: reverse_state,
            outages,
            ends,
            stop,
            threads: Vec::new(),
            clock,
        };
        link.start_thread("link forward", forward)?;
        link.start_thread("link reverse", reverse)?;
        Ok(link)
    }

    fn start_thread(&mut self, name: &str, forwarder: Forwarder) -> Result<()> {
        let thread = thread::Builder::new().name(name.to_owned()).spawn(|| forwarder.run());
        self.threads.push(thread.map_err(|source| driver_error(&self.gateway, &self.terminal, source))?);
        Ok(())
    }

    /// The counters of the agents at the gateway's end and at the terminal's. Empty where there are none.
    pub fn link_end_reports(&self) -> [LinkEndReport; 2] {
        self.ends.each_ref().map(|end| end.report())
    }

    /// IP bytes of packets that the agents keep or hold back now, at the gateway's end and at the terminal's.
    /// Cheap: sample it to draw a curve.
    pub fn held_bytes(&self) -> [u64; 2] {
        self.ends.each_ref().map(|end| end.held_bytes())
    }

    /// Packets by fate, forward and reverse, up to this moment. A packet counts when it is offered to the
    /// link; one that a [commanded outage](Self::set_outage) loses counts as delivered until the moment when
    /// it would have arrived.
    pub fn counters(&self) -> (Counters, Counters) {
        (self.forward.counters(), self.reverse.counters())
    }

    /// Frames of the agents, packets where there are none, that have crossed the link up to this moment, and
    /// their bytes; forward and reverse. Duplicates do not count. Those that [`counters`](Self::counters)
    /// counts as delivered beyond these are on their way.
    pub fn arrived(&self) -> ((u64, u64), (u64, u64)) {
        (self.forward.arrived(), self.reverse.arrived())
    }

    /// IP bytes that the far hosts have received, forward and reverse, up to this moment. Cheap: sample it to
    /// draw a curve.
    pub fn delivered_bytes(&self) -> (u64, u64) {
        (self.forward.written().1, self.reverse.written().1)
    }

    /// Bytes that wait in front of the transmitters, or are being sent, forward and reverse. Cheap: sample it
    /// to draw a curve.
    pub fn backlog(&self) -> (ByteCount, ByteCount) {
        let now = self.clock.now();
        (self.forward.direction().backlog(now), self.reverse.direction().backlog(now))
    }

    /// Packets that have arrived, forward and reverse, and how late they were.
    pub fn delivered(&self) -> (Delivered, Delivered) {
        (delivered(&self.forward), delivered(&self.reverse))
    }

    /// Packets, of both directions, that the model did not lose, but the kernel did: it dropped them at a
    /// device because the forwarder did not keep up, or refused to take them. Anything but zero spoils a
    /// measurement.
    ///
    /// # Errors
    /// [`Error::EnterNamespace`] if a device's namespace cannot be entered.
    pub fn unintended_drops(&self) -> Result<u64> {
        let kernel = self.gateway.kernel_drops()? + self.terminal.kernel_drops()?;
        let refused = |state: &ForwarderState| state.refused.load(Ordering::Relaxed);
        Ok(kernel + refused(&self.forward) + refused(&self.reverse))
    }

    /// Cuts both directions of the link now, or restores them. Packets that leave a transmitter meanwhile are
    /// lost, as in an outage of the trace; packets that have left it arrive. Outages of the trace go on
    /// regardless.
    pub fn set_outage(&self, on: bool) {
        self.outages.set(on, self.clock.now());
    }

    /// Begins to reorder, duplicate and corrupt packets, both ways, in place of any impairments before.
    /// Packets that have been offered already are not affected. Each direction has random numbers of its own,
    /// derived from `seed`.
    pub fn impair(&self, impairments: &Impairments, seed: u64) {
        self.forward.direction().impair(impairments, seed);
        self.reverse.direction().impair(impairments, !seed);
    }

    /// Packets impaired, forward and reverse, since the start or the last call of [`impair`](Self::impair).
    pub fn impairment_counters(&self) -> (ImpairmentCounters, ImpairmentCounters) {
        (*self.forward.direction().impairment_counters(), *self.reverse.direction().impairment_counters())
    }

    /// The moment that is zero in the link's time, on the clock of [`Instant`], which is CLOCK_MONOTONIC.
    pub fn started_at(&self) -> Instant {
        self.clock.started()
    }

    /// The link's time.
    pub fn now(&self) -> Time {
        self.clock.now()
    }

    /// Whether both directions are being forwarded.
    ///
    /// # Errors
    /// [`Error::Driver`] if a device failed, for example because it was deleted.
    pub fn check(&self) -> Result<()> {
        let (gateway, terminal) = (&self.gateway, &self.terminal);
        for (state, from, to) in [(&self.forward, gateway, terminal), (&self.reverse, terminal, gateway)] {
            if let Some(&errno) = state.failure.get() {
                return Err(driver_error(from, to, errno.into()));
            }
        }
        Ok(())
    }
}

impl Drop for SatelliteLink {
    fn drop(&mut self) {
        self.stop.ask();
        for thread in self.threads.drain(..) {
            // A forwarder that panicked has reported it on standard error.
            let _ = thread.join();
        }
    }
}

fn delivered(state: &ForwarderState) -> Delivered {
    let (packets, bytes) = state.written();
    Delivered { packets, bytes, lateness: state.lateness.summary() }
}

fn driver_error(from: &Tun, to: &Tun, source: io::Error) -> Error {
    Error::Driver { from: from.interface().to_owned(), to: to.interface().to_owned(), source }
}
