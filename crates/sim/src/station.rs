//! A station at the end of a link, at work.

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
    /// Nothing is there, but the other end has something: packets pass here as they are, and nobody is told of it.
    pub(crate) passes_through: bool,
    pub(crate) in_flight: InFlight<Frame<Packet>>,
    alarm: Alarm,
    /// What it keeps and holds back.
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

    /// The earliest event is its wake-up, which may have come too early. Says whether it has acted.
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

    /// After something happened to it: what it holds is noted, and when it wants to be woken by `event`.
    pub(crate) fn settle(&mut self, now: Time, events: &mut Events, event: Event) {
        self.held.observe(now, self.station.held_bytes());
        // Virtual time does not go back, whatever an agent wishes.
        self.alarm.set(events, self.station.wake_at().max(now), event);
    }

    pub(crate) fn report(&self) -> LinkEndReport {
        self.station.report()
    }
}
