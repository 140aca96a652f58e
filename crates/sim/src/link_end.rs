//! The agents and the ARQ at the end of a link, in front of one of its directions.

use bentpipe_link::InFlight;
use bentpipe_link::agent::{Frame, LinkEnd, LinkEndConfig};
use bentpipe_units::Time;

use crate::events::{Alarm, Event, Events};
use crate::occupancy::Occupancy;
use crate::packet::Packet;
use crate::scenario::LinkSpec;

/// The link end in front of a pipe, with the frames that the pipe will deliver.
#[derive(Debug)]
pub(crate) struct NearEnd {
    pub(crate) end: LinkEnd<Packet>,
    /// It has neither agents nor an ARQ, but the other end does: packets pass unchanged and unreported.
    pub(crate) passes_through: bool,
    pub(crate) in_flight: InFlight<Frame<Packet>>,
    alarm: Alarm,
    /// The bytes that it keeps or holds back.
    pub(crate) held: Occupancy,
}

impl NearEnd {
    /// The ends of a link, in front of its forward and of its reverse direction; none where nothing is at
    /// either.
    pub(crate) fn of_link(link: &LinkSpec) -> [Option<Box<NearEnd>>; 2] {
        let nothing = link.ends.iter().all(LinkEndConfig::is_nothing);
        let near_end = |config: &LinkEndConfig| NearEnd {
            end: LinkEnd::new(config),
            passes_through: config.is_nothing(),
            in_flight: InFlight::default(),
            alarm: Alarm::default(),
            held: Occupancy::since(Time::ZERO),
        };
        link.ends.each_ref().map(|config| (!nothing).then(|| Box::new(near_end(config))))
    }

    /// Handles its alarm, which may be premature. Returns whether it has acted.
    pub(crate) fn wake(&mut self, now: Time, events: &mut Events) -> bool {
        let awake = self.alarm.fires(events, now, self.end.wake_at());
        if awake {
            self.end.on_timer(now);
        }
        awake
    }

    /// After an event at the link end: records the bytes that it holds, and schedules its next wake-up as
    /// `event`.
    pub(crate) fn settle(&mut self, now: Time, events: &mut Events, event: Event) {
        self.held.observe(now, self.end.held_bytes());
        // Virtual time does not go back, even if an agent asks for it.
        self.alarm.set(events, self.end.wake_at().max(now), event);
    }
}
