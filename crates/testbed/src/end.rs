use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bentpipe_link::IpPacket;
use bentpipe_link::agent::{Frame, LinkEnd, LinkEndConfig, LinkEndReport};
use bentpipe_units::Time;

use crate::clock::Clock;
use crate::waker::Waker;

/// The shortest time between two timer runs of a link end. The forwarders have real-time priority: an end
/// whose timer is due again at once would leave no time to other threads.
const TIMER_INTERVAL: Duration = Duration::from_micros(100);

/// One end of the link with its agents, which two forwarders share.
///
/// The *sender* sends from here to the link: it brings the packets of this end's host, runs the timer, and is
/// the only one to take the frames for the link. The *receiver* delivers here: it brings the frames that have
/// crossed the link, and is the only one to take the packets for the host. If a call of one of them produces
/// something for the other, this waits in order and wakes the other. So everything that goes one way goes
/// through one thread, in order.
#[derive(Debug)]
pub(crate) struct End {
    state: Mutex<State>,
    clock: Clock,
    sender: Arc<Waker>,
    receiver: Arc<Waker>,
}

#[derive(Debug)]
struct State {
    link_end: LinkEnd<IpPacket>,
    /// Frames for the link, until the sender takes them.
    to_link: VecDeque<Frame<IpPacket>>,
    /// Packets for the host, until the receiver takes them.
    to_host: VecDeque<IpPacket>,
    /// When the sender will run the timer without being woken.
    sender_wakes_at: Time,
    /// The timer does not run before.
    next_timer_run: Time,
}

impl End {
    pub(crate) fn new(
        config: &LinkEndConfig,
        clock: Clock,
        sender: &Arc<Waker>,
        receiver: &Arc<Waker>,
    ) -> Self {
        let state = State {
            link_end: LinkEnd::new(config),
            to_link: VecDeque::new(),
            to_host: VecDeque::new(),
            sender_wakes_at: Time::MAX,
            next_timer_run: Time::ZERO,
        };
        let (sender, receiver) = (Arc::clone(sender), Arc::clone(receiver));
        Self { state: Mutex::new(state), clock, sender, receiver }
    }

    /// The sender brings a packet of the host, and takes the frames for the link.
    pub(crate) fn outbound(&self, packet: IpPacket, frames: &mut VecDeque<Frame<IpPacket>>) {
        let mut state = self.lock();
        state.link_end.outbound(self.clock.now(), packet);
        self.finish_as_sender(state, frames);
    }

    /// The sender runs the timer if it is due, and takes the frames for the link. Returns when the sender
    /// must do so again.
    pub(crate) fn run_timer(&self, frames: &mut VecDeque<Frame<IpPacket>>) -> Time {
        let mut state = self.lock();
        state.run_timer(self.clock.now());
        state.sender_wakes_at = state.due_at();
        let due_at = state.sender_wakes_at;
        self.finish_as_sender(state, frames);
        due_at
    }

    /// The sender reports that the queue in front of the link had no room for the frame with this serial.
    pub(crate) fn refuse(&self, serial: u64) {
        self.lock().link_end.on_refused(serial);
    }

    /// The receiver brings a frame that has crossed the link, and takes the packets for the host.
    pub(crate) fn inbound(&self, frame: Frame<IpPacket>, packets: &mut VecDeque<IpPacket>) {
        let mut state = self.lock();
        state.link_end.inbound(self.clock.now(), frame);
        self.finish_as_receiver(state, packets);
    }

    /// The receiver takes the packets for the host.
    pub(crate) fn take_for_host(&self, packets: &mut VecDeque<IpPacket>) {
        packets.append(&mut self.lock().to_host);
    }

    pub(crate) fn report(&self) -> LinkEndReport {
        self.lock().link_end.report()
    }

    pub(crate) fn held_bytes(&self) -> u64 {
        self.lock().link_end.held_bytes()
    }

    fn finish_as_sender(&self, mut state: MutexGuard<'_, State>, frames: &mut VecDeque<Frame<IpPacket>>) {
        let [_, host_has_news] = state.collect();
        frames.append(&mut state.to_link);
        drop(state);
        if host_has_news {
            self.receiver.wake();
        }
    }

    fn finish_as_receiver(&self, mut state: MutexGuard<'_, State>, packets: &mut VecDeque<IpPacket>) {
        let [link_has_news, _] = state.collect();
        packets.append(&mut state.to_host);
        let due_at = state.due_at();
        let is_too_late = due_at < state.sender_wakes_at;
        if is_too_late {
            state.sender_wakes_at = due_at;
        }
        drop(state);
        if link_has_news || is_too_late {
            self.sender.wake();
        }
    }

    /// The state, also after one forwarder has panicked while it held the lock: the other direction goes on.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn due_at(&self) -> Time {
        self.link_end.wake_at().max(self.next_timer_run)
    }

    fn run_timer(&mut self, now: Time) {
        if self.due_at() <= now {
            self.link_end.on_timer(now);
            let is_due_again = self.link_end.wake_at() <= now;
            self.next_timer_run = if is_due_again { now + TIMER_INTERVAL } else { now };
        }
    }

    /// Collects the packets and frames that the agents send. Returns whether the sender, and the receiver,
    /// must be told of it.
    fn collect(&mut self) -> [bool; 2] {
        let known = [!self.to_link.is_empty(), !self.to_host.is_empty()];
        self.to_link.extend(std::iter::from_fn(|| self.link_end.poll_to_link()));
        self.to_host.extend(std::iter::from_fn(|| self.link_end.poll_to_host()));
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

    /// An end with Snoop, and the wakers of its sender and its receiver.
    fn end() -> (End, Arc<Waker>, Arc<Waker>) {
        let wakers = (Arc::new(Waker::new().unwrap()), Arc::new(Waker::new().unwrap()));
        let once = SnoopConfig { copies: 1, ..SnoopConfig::with_cache("1MB".parse().unwrap()) };
        let snoop = AgentConfig::Snoop(once);
        let config = LinkEndConfig { agents: vec![snoop], arq: None };
        (End::new(&config, Clock::start(), &wakers.0, &wakers.1), wakers.0, wakers.1)
    }

    /// Whether it has been woken since the last call.
    fn is_woken(waker: &Waker) -> bool {
        let mut events = [PollFd::new(waker, PollFlags::IN)];
        let is_woken = poll(&mut events, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1;
        waker.clear();
        is_woken
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
        end.run_timer(&mut frames);
        end.inbound(acknowledgement(1), &mut packets);
        assert_eq!(packets.len(), 1);
    }

    #[test]
    fn frames_that_the_receivers_call_produces_wait_for_the_sender_and_wake_it_once() {
        let (end, sender, receiver) = end();
        send_ten(&end);
        is_woken(&sender);
        let (mut frames, mut packets) = (VecDeque::new(), VecDeque::new());
        while !is_woken(&sender) {
            assert!(packets.len() < 8, "nothing was sent again");
            end.inbound(acknowledgement(1), &mut packets);
        }
        end.inbound(acknowledgement(1), &mut packets);
        assert!(!is_woken(&sender), "the sender knows already");
        end.run_timer(&mut frames);
        assert_eq!(frames, [Frame::Bare(data(1))]);
        assert!(!is_woken(&receiver));
    }

    #[test]
    fn a_timer_that_is_due_before_the_sender_wakes_up_wakes_it_once() {
        let (end, sender, _) = end();
        let (mut frames, mut packets) = (VecDeque::new(), VecDeque::new());
        assert_eq!(end.run_timer(&mut frames), Time::MAX, "it sleeps without an end");
        end.outbound(data(0), &mut frames);
        assert!(!is_woken(&sender), "the sender itself called");
        // Nothing for the link comes of this, but the timer runs now.
        end.inbound(Frame::Bare(segment(CLIENT, SERVER, [1, 1], 100)), &mut packets);
        assert!(is_woken(&sender));
        end.inbound(Frame::Bare(segment(CLIENT, SERVER, [101, 1], 100)), &mut packets);
        assert!(!is_woken(&sender), "the sender knows already");
        assert!(end.run_timer(&mut frames) < Time::MAX);
    }

    #[test]
    fn an_end_goes_on_after_a_panic_of_one_forwarder() {
        let (end, ..) = end();
        let held = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _state = end.lock();
            panic!("a forwarder panics while it holds the lock");
        }));
        assert!(held.is_err() && end.state.is_poisoned());
        send_ten(&end);
    }
}
