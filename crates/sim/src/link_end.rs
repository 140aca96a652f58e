//! What is at the end of a link, in front of one of its directions: agents and an ARQ, or an end of a protected
//! leg.

use bentpipe_link::InFlight;
use bentpipe_link::agent::{LinkEnd, LinkEndConfig, LinkEndReport};
use bentpipe_units::Time;

use crate::events::{Alarm, Event, Events};
use crate::occupancy::Occupancy;
use crate::packet::Packet;
use crate::protect::{Frame, ProtectResult, ProtectedEnd};
use crate::scenario::LinkSpec;

/// The link end in front of a pipe, with the frames that the pipe will deliver.
#[derive(Debug)]
pub(crate) struct NearEnd {
    end: End,
    /// It has neither agents nor an ARQ, but the other end does: packets pass unchanged and unreported.
    pub(crate) passes_through: bool,
    pub(crate) in_flight: InFlight<Frame>,
    alarm: Alarm,
    /// The bytes that it keeps or holds back.
    pub(crate) held: Occupancy,
}

#[derive(Debug)]
enum End {
    Agents(Box<LinkEnd<Packet>>),
    Protected(Box<ProtectedEnd>),
}

impl NearEnd {
    /// The ends of a link, in front of its forward and of its reverse direction; none where nothing is at
    /// either.
    pub(crate) fn of_link(link: &LinkSpec, seed: u64) -> [Option<Box<NearEnd>>; 2] {
        if let Some(spec) = &link.protect {
            let ends = ProtectedEnd::pair(&link.config, spec, seed);
            return ends.map(|end| Some(Box::new(Self::new(End::Protected(Box::new(end)), false))));
        }
        let nothing = link.ends.iter().all(LinkEndConfig::is_nothing);
        let near_end = |config: &LinkEndConfig| {
            Self::new(End::Agents(Box::new(LinkEnd::new(config))), config.is_nothing())
        };
        link.ends.each_ref().map(|config| (!nothing).then(|| Box::new(near_end(config))))
    }

    fn new(end: End, passes_through: bool) -> Self {
        Self {
            end,
            passes_through,
            in_flight: InFlight::default(),
            alarm: Alarm::default(),
            held: Occupancy::since(Time::ZERO),
        }
    }

    /// A packet from its node arrives.
    pub(crate) fn outbound(&mut self, now: Time, packet: Packet) {
        match &mut self.end {
            End::Agents(end) => end.outbound(now, packet),
            End::Protected(end) => end.outbound(now, packet),
        }
    }

    /// A frame arrives over the link.
    pub(crate) fn inbound(&mut self, now: Time, frame: Frame) {
        match (&mut self.end, frame) {
            (End::Agents(end), Frame::Plain(frame)) => end.inbound(now, frame),
            (End::Agents(_), Frame::Coded(_)) => unreachable!("both ends of a link are protected, or none"),
            (End::Protected(end), frame) => end.inbound(now, frame),
        }
    }

    /// The next frame for the link.
    pub(crate) fn poll_to_link(&mut self, now: Time) -> Option<Frame> {
        match &mut self.end {
            End::Agents(end) => end.poll_to_link().map(Frame::Plain),
            End::Protected(end) => end.poll_to_link(now),
        }
    }

    /// The next packet for its node. Of the links that it has crossed, this one does not count yet; from a
    /// protected leg, none does.
    pub(crate) fn poll_to_host(&mut self) -> Option<Packet> {
        match &mut self.end {
            End::Agents(end) => end.poll_to_host(),
            End::Protected(end) => end.poll_to_host(),
        }
    }

    /// Whether it is an end of a protected leg.
    pub(crate) fn is_protected(&self) -> bool {
        matches!(self.end, End::Protected(_))
    }

    /// The queue in front of the link had no room for the frame with this serial.
    pub(crate) fn on_refused(&mut self, serial: u64) {
        if let End::Agents(end) = &mut self.end {
            end.on_refused(serial);
        }
    }

    /// Handles its alarm, which may be premature. Returns whether it has acted.
    pub(crate) fn wake(&mut self, now: Time, events: &mut Events) -> bool {
        let due = match &self.end {
            End::Agents(end) => end.wake_at(),
            End::Protected(end) => end.wake_at(),
        };
        let awake = self.alarm.fires(events, now, due);
        if awake {
            match &mut self.end {
                End::Agents(end) => end.on_timer(now),
                End::Protected(end) => end.on_timer(now),
            }
        }
        awake
    }

    /// What it was woken for has been handled.
    pub(crate) fn awoken(&mut self, events: &mut Events) {
        self.alarm.done(events);
    }

    /// After an event at the link end: records the bytes that it holds, and schedules its next wake-up as
    /// `event`.
    pub(crate) fn settle(&mut self, now: Time, events: &mut Events, event: Event) {
        let (held, due) = match &self.end {
            End::Agents(end) => (end.held_bytes(), end.wake_at()),
            End::Protected(end) => (end.held_bytes(), end.wake_after(now)),
        };
        self.held.observe(now, held);
        // Virtual time does not go back, even if an agent asks for it.
        self.alarm.set(events, due.max(now), event);
    }

    /// The counters of agents and ARQ; of an end of a protected leg, none.
    pub(crate) fn report(&self) -> LinkEndReport {
        match &self.end {
            End::Agents(end) => end.report(),
            End::Protected(_) => LinkEndReport::default(),
        }
    }

    /// The counters of an end of a protected leg.
    pub(crate) fn protect_result(&self) -> Option<ProtectResult> {
        match &self.end {
            End::Agents(_) => None,
            End::Protected(end) => Some(end.result()),
        }
    }
}
