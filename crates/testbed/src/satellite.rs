use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Instant;

use bentpipe_link::{Counters, Direction, Link, LinkConfig, MangledCounters, Mangling};
use bentpipe_units::Time;

use crate::carrier::{Carrier, CarrierState, Stop};
use crate::clock::Clock;
use crate::outage::CommandedOutages;
use crate::tun::Tun;
use crate::{Error, LatenessSummary, Namespace, Result};

/// A running satellite link between two namespaces: a TUN device in each, and a thread for each direction that carries
/// packets from one to the other as [`bentpipe_link`] says.
///
/// Dropping it stops the threads and removes the devices; packets in flight are lost.
#[derive(Debug)]
pub struct SatelliteLink {
    gateway: Arc<Tun>,
    terminal: Arc<Tun>,
    forward: Arc<CarrierState>,
    reverse: Arc<CarrierState>,
    outages: Arc<CommandedOutages>,
    stop: Arc<Stop>,
    threads: Vec<JoinHandle<()>>,
    clock: Clock,
}

/// What one direction of the link has really done, as opposed to what the model decided ([`Counters`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Delivered {
    /// Packets that have arrived at the far end, duplicates included.
    pub packets: u64,
    /// IP bytes that have arrived at the far end.
    pub bytes: u64,
    /// How much later than the model said they were written.
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
        let gateway = Arc::new(Tun::create(gateway, gateway_if, mtu)?);
        let terminal = Arc::new(Tun::create(terminal, terminal_if, mtu)?);
        let stop = Arc::new(Stop::new().map_err(|source| driver_error(&gateway, &terminal, source))?);
        let outages = Arc::new(CommandedOutages::default());
        let state = |direction: Direction| Arc::new(CarrierState::new(direction, Arc::clone(&outages)));
        let Link { forward, reverse } = Link::new(config, seed);
        let (forward, reverse) = (state(forward), state(reverse));
        let clock = Clock::start();
        let mut link =
            Self { gateway, terminal, forward, reverse, outages, stop, threads: Vec::new(), clock };
        let (down, up) = ((&link.gateway, &link.terminal), (&link.terminal, &link.gateway));
        let (f, r) = (&link.forward, &link.reverse);
        let carriers = [
            Carrier::new(down, mtu, clock, config.forward.delay, Arc::clone(f), Arc::clone(&link.stop)),
            Carrier::new(up, mtu, clock, config.reverse.delay, Arc::clone(r), Arc::clone(&link.stop)),
        ];
        for (name, carrier) in ["link forward", "link reverse"].into_iter().zip(carriers) {
            let thread = thread::Builder::new().name(name.to_owned()).spawn(|| carrier.run());
            link.threads.push(thread.map_err(|source| driver_error(&link.gateway, &link.terminal, source))?);
        }
        Ok(link)
    }

    /// Packets by fate, forward and reverse, up to this moment. A packet counts when it is offered to the link; one that
    /// a [commanded outage](Self::set_outage) loses counts as delivered until the moment when it would have arrived.
    pub fn counters(&self) -> (Counters, Counters) {
        (self.forward.counters(), self.reverse.counters())
    }

    /// Bytes that have arrived, forward and reverse, up to this moment. Cheap: sample it to draw a curve.
    pub fn delivered_bytes(&self) -> (u64, u64) {
        (self.forward.written().1, self.reverse.written().1)
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

fn delivered(state: &CarrierState) -> Delivered {
    let (packets, bytes) = state.written();
    Delivered { packets, bytes, lateness: state.lateness().summary() }
}

fn driver_error(from: &Tun, to: &Tun, source: std::io::Error) -> Error {
    Error::Driver { from: from.interface().to_owned(), to: to.interface().to_owned(), source }
}
