use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bentpipe_link::IpPacket;
use bentpipe_link::agent::{Frame, Station, StationConfig, StationReport};
use bentpipe_units::Time;

use crate::bell::Bell;
use crate::clock::Clock;

/// A station whose timer is due again as soon as it has been served is left alone for so long: the carriers have real-time
/// priority and would leave the processor to nobody.
const REST: Duration = Duration::from_micros(100);

/// One end of the link: a station, on which two carriers call.
///
/// The *sender* sends from here to the link: it brings the packets of this end's host, minds the station's timer, and it alone
/// takes what the station gives for the link. The *receiver* delivers here: it brings what has come over the link, and it
/// alone takes what the station gives for the host. Whatever one's call makes the station give to the other waits in order,
/// and rings the other's bell. So all that goes one way goes through one thread, in the station's order.
#[derive(Debug)]
pub(crate) struct End {
    served: Mutex<Served>,
    clock: Clock,
    sender: Arc<Bell>,
    receiver: Arc<Bell>,
}

#[derive(Debug)]
struct Served {
    station: Station<IpPacket>,
    /// What the station has given for the link, until the sender takes it.
    to_link: VecDeque<Frame<IpPacket>>,
    /// What the station has given for the host, until the receiver takes it.
    to_host: VecDeque<IpPacket>,
    /// When the sender will look at the timer by itself.
    attended_at: Time,
    /// The timer is not served before.
    rests_until: Time,
}

impl End {
    pub(crate) fn new(
        config: &StationConfig,
        clock: Clock,
        sender: &Arc<Bell>,
        receiver: &Arc<Bell>,
    ) -> Self {
        let served = Served {
            station: Station::new(config),
            to_link: VecDeque::new(),
            to_host: VecDeque::new(),
            attended_at: Time::MAX,
            rests_until: Time::ZERO,
        };
        let (sender, receiver) = (Arc::clone(sender), Arc::clone(receiver));
        Self { served: Mutex::new(served), clock, sender, receiver }
    }

    /// The sender brings a packet of the host, and takes what there is for the link.
    pub(crate) fn outbound(&self, packet: IpPacket, frames: &mut VecDeque<Frame<IpPacket>>) {
        let mut served = self.served();
        served.station.outbound(self.clock.now(), packet);
        self.leave_as_sender(served, frames);
    }

    /// The sender looks at the timer, and takes what there is for the link. When it is to do so again.
    pub(crate) fn attend(&self, frames: &mut VecDeque<Frame<IpPacket>>) -> Time {
        let mut served = self.served();
        served.serve_timer(self.clock.now());
        served.attended_at = served.due_at();
        let due_at = served.attended_at;
        self.leave_as_sender(served, frames);
        due_at
    }

    /// The receiver brings what has come over the link, and takes what there is for the host.
    pub(crate) fn inbound(&self, frame: Frame<IpPacket>, packets: &mut VecDeque<IpPacket>) {
        let mut served = self.served();
        served.station.inbound(self.clock.now(), frame);
        self.leave_as_receiver(served, packets);
    }

    /// The receiver takes what there is for the host.
    pub(crate) fn collect(&self, packets: &mut VecDeque<IpPacket>) {
        packets.append(&mut self.served().to_host);
    }

    pub(crate) fn report(&self) -> StationReport {
        self.served().station.report()
    }

    pub(crate) fn held_bytes(&self) -> u64 {
        self.served().station.held_bytes()
    }

    fn leave_as_sender(&self, mut served: MutexGuard<'_, Served>, frames: &mut VecDeque<Frame<IpPacket>>) {
        let [_, news_for_host] = served.gather();
        frames.append(&mut served.to_link);
        drop(served);
        if news_for_host {
            self.receiver.ring();
        }
    }

    fn leave_as_receiver(&self, mut served: MutexGuard<'_, Served>, packets: &mut VecDeque<IpPacket>) {
        let [news_for_link, _] = served.gather();
        packets.append(&mut served.to_host);
        let due_at = served.due_at();
        let too_late = due_at < served.attended_at;
        if too_late {
            served.attended_at = due_at;
        }
        drop(served);
        if news_for_link || too_late {
            self.sender.ring();
        }
    }

    /// The state, also after a carrier has panicked with it: the other direction goes on.
    fn served(&self) -> MutexGuard<'_, Served> {
        self.served.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Served {
    fn due_at(&self) -> Time {
        self.station.wake_at().max(self.rests_until)
    }

    fn serve_timer(&mut self, now: Time) {
        if self.due_at() <= now {
            self.station.on_timer(now);
            let is_due_again = self.station.wake_at() <= now;
            self.rests_until = if is_due_again { now + REST } else { now };
        }
    }

    /// Puts what the station gives where those who take it look for it. Whether there is something for the link, and for the
    /// host, of which they do not know yet.
    fn gather(&mut self) -> [bool; 2] {
        let known = [!self.to_link.is_empty(), !self.to_host.is_empty()];
        self.to_link.extend(std::iter::from_fn(|| self.station.poll_to_link()));
        self.to_host.extend(std::iter::from_fn(|| self.station.poll_to_host()));
        [!known[0] && !self.to_link.is_empty(), !known[1] && !self.to_host.is_empty()]
    }
}
