use rustix::io::Errno;

use crate::in_flight::{Flying, InFlight};
use crate::line::{Line, Sent};

/// Carries packets in one direction of a link whose ends are bare, on a thread of its own.
///
/// The walk of a packet: read from the TUN device at the near end, judged by the [`Direction`](bentpipe_link::Direction),
/// kept until its time, written to the TUN device at the far end. Where stations are at the ends, it is a
/// [`LinkEndForwarder`](crate::link_end_forwarder::LinkEndForwarder) that does so.
#[derive(Debug)]
pub(crate) struct Forwarder {
    line: Line,
    in_flight: InFlight<Buffer>,
    /// Buffers that are free; after the first round trip no packet allocates.
    pool: Vec<Buffer>,
}

/// As long as the longest packet, whatever the length of the one in it.
type Buffer = Box<[u8]>;

impl Forwarder {
    pub(crate) fn new(line: Line) -> Self {
        Self { line, in_flight: InFlight::new(), pool: Vec::new() }
    }

    /// Carries packets until it is asked to stop, or a device fails.
    pub(crate) fn run(mut self) {
        self.line.clone().carry(|| self.turn());
    }

    fn turn(&mut self) -> rustix::io::Result<()> {
        self.deliver_due();
        match self.receive() {
            Err(Errno::AGAIN) => self.line.sleep(self.in_flight.next_at(), None),
            outcome => outcome,
        }
    }

    /// Reads one packet at the near end and lets the model decide its fate; `EAGAIN` if none is there.
    fn receive(&mut self) -> rustix::io::Result<()> {
        let mut packet = self.buffer();
        let outcome = self.line.from.read(&mut packet);
        match outcome.map(|len| (self.line.offer(len, len), len)) {
            Ok((Ok(sent), len)) => self.send_off(&sent, packet, len),
            _ => self.pool.push(packet),
        }
        outcome.map(drop)
    }

    /// Puts a packet, and its duplicate, among those in flight.
    fn send_off(&mut self, sent: &Sent, mut packet: Buffer, len: usize) {
        if let Some(arrival) = sent.mangled.duplicate {
            let mut copy = self.buffer();
            copy[..len].copy_from_slice(&packet[..len]);
            arrival.apply_to(&mut copy[..len]);
            self.in_flight.launch(sent.duplicate(arrival.at, copy));
        }
        sent.mangled.packet.apply_to(&mut packet[..len]);
        self.in_flight.launch(sent.packet(packet));
    }

    fn buffer(&mut self) -> Buffer {
        self.pool.pop().unwrap_or_else(|| vec![0; self.line.mtu].into_boxed_slice())
    }

    /// Writes every packet whose time has come. The clock is asked again for each: writing one takes as long as its way
    /// through the far kernel.
    fn deliver_due(&mut self) {
        while let Some(next) = self.in_flight.next_due(self.line.clock.now()) {
            self.deliver(&next);
            self.pool.push(next.load);
        }
    }

    fn deliver(&self, next: &Flying<Buffer>) {
        let Line { state, clock, .. } = &self.line;
        if !state.is_cut(next) && self.line.write(&next.load[..next.length]) {
            state.record_lateness(next.at, clock.now());
        }
    }
}
