use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bentpipe_link::IpPacket;
use bentpipe_link::agent::{Frame, LinkEnd, LinkEndConfig, LinkEndReport};
use bentpipe_units::Time;

use crate::clock::Clock;
use crate::waker::Waker;

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
    sender: Arc<Waker>,
    receiver: Arc<Waker>,
}

#[derive(Debug)]
struct Served {
    station: LinkEnd<IpPacket>,
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
        config: &LinkEndConfig,
        clock: Clock,
        sender: &Arc<Waker>,
        receiver: &Arc<Waker>,
    ) -> Self {
        let served = Served {
            station: LinkEnd::new(config),
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

    /// The sender tells that the queue in front of the link had no room for the frame with this serial.
    pub(crate) fn refuse(&self, serial: u64) {
        self.served().station.on_refused(serial);
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

    pub(crate) fn report(&self) -> LinkEndReport {
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

#[cfg(test)]
mod tests {
    use super::*;
    use bentpipe_link::agent::AgentConfig;
    use bentpipe_link::agent::snoop::SnoopConfig;
    use bentpipe_link::ip::internet_checksum;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    const SERVER: ([u8; 4], u16) = ([192, 0, 2, 1], 80);
    const CLIENT: ([u8; 4], u16) = ([198, 51, 100, 1], 4000);
    const MSS: u32 = 1000;

    /// An end with Snoop, and the bells of its sender and its receiver.
    fn end() -> (End, Arc<Waker>, Arc<Waker>) {
        let bells = (Arc::new(Waker::new().unwrap()), Arc::new(Waker::new().unwrap()));
        let once = SnoopConfig { copies: 1, ..SnoopConfig::with_cache("1MB".parse().unwrap()) };
        let snoop = AgentConfig::Snoop(once);
        let config = LinkEndConfig { agents: vec![snoop], arq: None };
        (End::new(&config, Clock::start(), &bells.0, &bells.1), bells.0, bells.1)
    }

    /// Whether it has rung since the last time.
    fn rang(bell: &Waker) -> bool {
        let mut events = [PollFd::new(bell, PollFlags::IN)];
        let rang = poll(&mut events, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1;
        bell.silence();
        rang
    }

    /// A segment with an ACK: RFC 791 §3.1, RFC 9293 §3.1.
    fn segment(from: ([u8; 4], u16), to: ([u8; 4], u16), [seq, ack]: [u32; 2], payload: u32) -> IpPacket {
        let length = 20 + payload as usize;
        let mut tcp = [from.1.to_be_bytes(), to.1.to_be_bytes()].concat();
        tcp.extend([seq.to_be_bytes(), ack.to_be_bytes()].concat());
        tcp.extend([5 << 4, 0x10, 0xff, 0xff, 0, 0, 0, 0]);
        tcp.resize(length, 7);
        let pseudo = [&from.0[..], &to.0, &[0, 6], &(length as u16).to_be_bytes(), &tcp].concat();
        tcp[16..18].copy_from_slice(&internet_checksum(&pseudo).to_be_bytes());
        let mut ip = vec![0x45, 0];
        ip.extend((20 + length as u16).to_be_bytes());
        ip.extend([0, 0, 0, 0, 64, 6, 0, 0]);
        ip.extend([from.0, to.0].concat());
        let checksum = internet_checksum(&ip);
        ip[10..12].copy_from_slice(&checksum.to_be_bytes());
        IpPacket::new([ip, tcp].concat())
    }

    fn data(number: u32) -> IpPacket {
        segment(SERVER, CLIENT, [1 + number * MSS, 1], MSS)
    }

    fn acknowledgement(number: u32) -> Frame<IpPacket> {
        Frame::Bare(segment(CLIENT, SERVER, [1, 1 + number * MSS], 0))
    }

    /// Brings segments 0 to 9, of which the client has the first; they are on the link then.
    fn send_ten(end: &End) {
        let (mut frames, mut packets) = (VecDeque::new(), VecDeque::new());
        (0..10).for_each(|number| end.outbound(data(number), &mut frames));
        assert!(frames.drain(..).eq((0..10).map(|number| Frame::Bare(data(number)))));
        end.attend(&mut frames);
        end.inbound(acknowledgement(1), &mut packets);
        assert_eq!(packets.len(), 1);
    }

    #[test]
    fn what_the_receivers_call_makes_the_station_send_waits_for_the_sender_and_rings_once() {
        let (end, sender, receiver) = end();
        send_ten(&end);
        rang(&sender);
        let (mut frames, mut packets) = (VecDeque::new(), VecDeque::new());
        while !rang(&sender) {
            assert!(packets.len() < 8, "nothing was sent again");
            end.inbound(acknowledgement(1), &mut packets);
        }
        end.inbound(acknowledgement(1), &mut packets);
        assert!(!rang(&sender), "the sender knows already");
        end.attend(&mut frames);
        assert_eq!(frames, [Frame::Bare(data(1))]);
        assert!(!rang(&receiver));
    }

    #[test]
    fn a_timer_that_is_due_before_the_sender_looks_rings_once() {
        let (end, sender, _) = end();
        let (mut frames, mut packets) = (VecDeque::new(), VecDeque::new());
        assert_eq!(end.attend(&mut frames), Time::MAX, "it sleeps without an end");
        end.outbound(data(0), &mut frames);
        assert!(!rang(&sender), "it is the sender who called");
        // Nothing for the link comes of this, but the timer runs now.
        end.inbound(Frame::Bare(segment(CLIENT, SERVER, [1, 1], 100)), &mut packets);
        assert!(rang(&sender));
        end.inbound(Frame::Bare(segment(CLIENT, SERVER, [101, 1], 100)), &mut packets);
        assert!(!rang(&sender), "the sender knows already");
        assert!(end.attend(&mut frames) < Time::MAX);
    }

    #[test]
    fn an_end_goes_on_after_a_panic_of_one_carrier() {
        let (end, ..) = end();
        let held = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _served = end.served();
            panic!("a carrier panics with the station");
        }));
        assert!(held.is_err() && end.served.is_poisoned());
        send_ten(&end);
    }
}
