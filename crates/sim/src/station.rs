//! A station at the end of a link: its agents and its ARQ.

use bentpipe_link::InFlight;
use bentpipe_link::agent::{Frame, LinkEnd, LinkEndConfig, LinkEndReport};
use bentpipe_units::Time;

use crate::events::{Alarm, Event, Events};
use crate::occupancy::Occupancy;
use crate::packet::Packet;
use crate::scenario::LinkSpec;

/// The station in front of a pipe, with the frames that the pipe will deliver.
#[derive(Debug)]
pub(crate) struct StationNode {
    station: LinkEnd<Packet>,
    /// This end has neither agents nor an ARQ, but the other end does: packets pass unchanged and unreported.
    pub(crate) passes_through: bool,
    pub(crate) in_flight: InFlight<Frame<Packet>>,
    alarm: Alarm,
    /// The bytes that it keeps or holds back.
    pub(crate) held: Occupancy,
}

impl StationNode {
    /// The stations of a link, in front of its forward and of its reverse direction; none where nothing is at either end.
    pub(crate) fn of_link(link: &LinkSpec) -> [Option<Box<StationNode>>; 2] {
        let nothing = link.stations.iter().all(LinkEndConfig::is_nothing);
        let post = |config: &LinkEndConfig| StationNode {
            station: LinkEnd::new(config),
            passes_through: config.is_nothing(),
            in_flight: InFlight::default(),
            alarm: Alarm::default(),
            held: Occupancy::since(Time::ZERO),
        };
        let [first, second] = &link.stations;
        [first, second].map(|config| (!nothing).then(|| Box::new(post(config))))
    }

    /// A packet from the host's side arrives.
    pub(crate) fn outbound(&mut self, now: Time, packet: Packet) {
        self.station.outbound(now, packet);
    }

    /// A frame arrives over the link.
    pub(crate) fn inbound(&mut self, now: Time, frame: Frame<Packet>) {
        self.station.inbound(now, frame);
    }

    /// The queue of the pipe had no room for the frame with this serial.
    pub(crate) fn on_refused(&mut self, serial: u64) {
        self.station.on_refused(serial);
    }

    /// Handles its alarm, which may be premature. Returns whether it has acted.
    pub(crate) fn wake(&mut self, now: Time, events: &mut Events) -> bool {
        let awake = self.alarm.fires(events, now, self.station.wake_at());
        if awake {
            self.station.on_timer(now);
        }
        awake
    }

    /// The next frame for the pipe.
    pub(crate) fn next_frame(&mut self) -> Option<Frame<Packet>> {
        self.station.poll_to_link()
    }

    /// The next packet for the node's side.
    pub(crate) fn next_packet(&mut self) -> Option<Packet> {
        self.station.poll_to_host()
    }

    /// After an event at the station: records the bytes that it holds, and schedules its next wake-up as
    /// `event`.
    pub(crate) fn settle(&mut self, now: Time, events: &mut Events, event: Event) {
        self.held.observe(now, self.station.held_bytes());
        // Virtual time does not go back, even if an agent asks for it.
        self.alarm.set(events, self.station.wake_at().max(now), event);
    }

    pub(crate) fn report(&self) -> LinkEndReport {
        self.station.report()
    }
}
