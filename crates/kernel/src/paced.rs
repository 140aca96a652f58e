//! Explicit rates without eBPF: the rate of a connection is the ceiling of its pacing (socket(7),
//! `SO_MAX_PACING_RATE`), and one of the kernel's congestion controls has the window below it.
//!
//! ```text
//! PacedLeg::add ──► flows: TCP_INFO of each socket ──► the controller ──► set_rate: the socket's ceiling
//!  accepted, connected                                                      wake: the initial rate
//! ```
//!
//! BBR is the best one below: it takes no loss for congestion. In its start-up phase it would send almost
//! three times as fast as data arrive, so that the ceiling alone decides, and its window has room for almost
//! three round trips. It leaves that phase once its rate has not grown for three round trips, to look for a
//! bandwidth that the controller knows, at rates that are lower on average. Then it is chosen anew.
//!
//! Who reads and sets is the controller's thread. It holds sockets weakly: their owners close them when they
//! like.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use bentpipe_tcp::congestion::c_core::{EXPLICIT_OBEY, EXPLICIT_SAMPLE, ExplicitPath, ExplicitSocket};
use rustix::net::AddressFamily;
use rustix::net::sockopt::socket_domain;
use rustix::time::{ClockId, clock_gettime};

use crate::Weight;
use crate::explicit::{Flow, network};
use crate::sockopt;
use crate::struct_ops::lock;
use crate::tcp_info::{Recovery, State, TcpInfo, bbr_pacing_gain, tcp_info};

/// The congestion control that is chosen anew.
pub(crate) const BBR: &str = "bbr";
/// One that every kernel has, and that does nothing when it is chosen.
const OTHER: &str = "reno";
/// The gain of BBR's pacing rate in its start-up phase is 2.89, later 1.25 at most. Before the first
/// acknowledgement it is 0.
const START_UP_GAIN: f64 = 2.0;
/// A connection that sleeps is looked at in one round out of so many. Its owner wakes it, or the receiver,
/// whose window has room again.
const SLEEPERS_ROUND: usize = 16;
/// Looks at a connection that has just fallen asleep: its owner may have written at the same moment.
const DOZE: u32 = 2;

/// IP and TCP headers without options, and the timestamps' option with its padding.
const HEADERS_V4: u32 = 40;
const HEADERS_V6: u32 = 60;
const TIMESTAMPS: u32 = 12;

/// A leg whose connections have ceilings. Clones, and others of the same name in the same network namespace,
/// share it.
#[derive(Debug, Clone)]
pub struct PacedLeg {
    state: Arc<LegState>,
    below: String,
}

/// A connection of a [`PacedLeg`], for the owner of its socket.
#[derive(Debug, Clone)]
pub struct PacedSocket {
    member: Arc<Member>,
}

#[derive(Debug)]
struct LegState {
    network: u64,
    name: String,
    initial: Mutex<InitialRate>,
    /// Whether BBR can be chosen anew: a process without privileges may not be allowed to, and would be left
    /// with the other one.
    may_choose_bbr: OnceLock<bool>,
    /// Since the last round.
    added: Mutex<Vec<Arc<Member>>>,
    members: Mutex<Members>,
}

/// What the controller has announced for connections that begin before its next decision.
#[derive(Debug, Clone, Copy, Default)]
struct InitialRate {
    rate: u64,
    weight: u32,
    /// The weight of those that have begun since.
    joined: u32,
    /// Of the empty link.
    rtt: Duration,
}

#[derive(Debug, Default)]
struct Members {
    tracked: Vec<Tracked>,
    rounds: usize,
}

/// What owner and controller share.
#[derive(Debug)]
struct Member {
    leg: Arc<LegState>,
    socket: Weak<OwnedFd>,
    id: u64,
    weight: u32,
    /// The leg's `pacing_cap`, bytes of payload per second.
    cap: u64,
    /// Chosen anew now and then.
    is_bbr: bool,
    /// Nothing is sent, and the controller has taken the rate back.
    asleep: AtomicBool,
    mss: AtomicU32,
    /// Without options, and with those of a full segment.
    headers: u32,
    header: AtomicU32,
    /// The one that is set. Owner and controller set it, one after the other.
    ceiling: Mutex<u64>,
}

/// What the controller knows of a connection.
#[derive(Debug)]
struct Tracked {
    member: Arc<Member>,
    path: ExplicitPath,
    flow: Flow,
    /// Looks since it fell asleep.
    dozes: u32,
}

static LEGS: Mutex<Vec<Weak<LegState>>> = Mutex::new(Vec::new());
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

impl PacedLeg {
    /// The leg of this name in the calling thread's network namespace, with `below` as the congestion control
    /// of its sockets.
    pub fn new(name: &str, below: &str) -> Self {
        let network = network();
        let mut legs = lock(&LEGS);
        legs.retain(|leg| leg.strong_count() > 0);
        let same = legs.iter().filter_map(Weak::upgrade);
        let same = same.into_iter().find(|leg| leg.network == network && leg.name == name);
        let state = same.unwrap_or_else(|| {
            let state = Arc::new(LegState {
                network,
                name: name.to_owned(),
                initial: Mutex::default(),
                may_choose_bbr: OnceLock::new(),
                added: Mutex::default(),
                members: Mutex::default(),
            });
            legs.push(Arc::downgrade(&state));
            state
        });
        Self { state, below: below.to_owned() }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.state.name
    }

    /// Whether both are the same leg.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.state, &other.state)
    }

    /// Adds a connection, which has its initial rate from now on: before anything is written to its socket.
    /// `cap` is the ceiling, bytes of payload per second, that no rate exceeds. The controller holds the socket
    /// only while it looks at it.
    pub fn add(&self, socket: &Arc<OwnedFd>, weight: Weight, cap: u64) -> PacedSocket {
        let is_v6 = socket_domain(socket).is_ok_and(|family| family == AddressFamily::INET6);
        let headers = if is_v6 { HEADERS_V6 } else { HEADERS_V4 };
        let member = Arc::new(Member {
            leg: self.state.clone(),
            socket: Arc::downgrade(socket),
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            weight: weight.get().into(),
            cap,
            is_bbr: self.below == BBR && *self.state.may_choose_bbr.get_or_init(|| sockopt::may_choose(BBR)),
            asleep: AtomicBool::new(true),
            mss: AtomicU32::new(tcp_info(socket).map_or(0, |info| info.mss)),
            headers,
            header: AtomicU32::new(headers + TIMESTAMPS),
            ceiling: Mutex::new(u64::MAX),
        });
        let socket = PacedSocket { member: member.clone() };
        socket.wake();
        lock(&self.state.added).push(member);
        socket
    }

    /// All connections, in the order of their slots until the next call.
    pub fn flows(&self) -> Vec<Flow> {
        let mut members = lock(&self.state.members);
        let Members { tracked, rounds } = &mut *members;
        tracked.retain(|tracked| tracked.member.socket.strong_count() > 0);
        tracked.extend(std::mem::take(&mut *lock(&self.state.added)).into_iter().map(Tracked::new));
        *rounds += 1;
        let now = monotonic();
        for (slot, tracked) in tracked.iter_mut().enumerate() {
            tracked.flow.slot = slot;
            if (slot + *rounds).is_multiple_of(SLEEPERS_ROUND) || !tracked.sleeps() {
                tracked.look(now);
            }
        }
        tracked.iter().map(|tracked| tracked.flow).collect()
    }

    /// Sets the rate of the connection in this slot, bytes on the wire per second; with zero it has the initial
    /// rate, and sleeps.
    pub fn set_rate(&self, slot: usize, rate: u64) {
        if let Some(tracked) = lock(&self.state.members).tracked.get_mut(slot) {
            tracked.set_rate(rate);
        }
    }

    /// Sets the initial rate of connections that begin before the next call: one of weight w has
    /// `rate`·w/(`weight` + w) bytes on the wire per second, and w is then added to `weight`; and the round
    /// trip of the empty link.
    pub fn set_initial_rate(&self, rate: u64, weight: u32, rtt: Duration) {
        *lock(&self.state.initial) = InitialRate { rate, weight, joined: 0, rtt };
    }
}

impl PacedSocket {
    /// Something is about to be written. A connection that has been silent has the initial rate from now on.
    pub fn wake(&self) {
        if self.member.asleep.swap(false, Ordering::AcqRel) {
            let rate = lock(&self.member.leg.initial).join(self.member.weight);
            self.member.set_ceiling(rate);
        }
    }
}

impl InitialRate {
    /// The share of one more.
    fn share(&self, weight: u32) -> u64 {
        self.rate * u64::from(weight) / u64::from(self.weight + self.joined + weight).max(1)
    }

    /// The same, which leaves less for the next one.
    fn join(&mut self, weight: u32) -> u64 {
        let share = self.share(weight);
        self.joined += weight;
        share
    }
}

impl Member {
    /// The payload's part of `rate`, bytes on the wire per second; with zero, ten segments in a round trip
    /// (RFC 6928), as without a controller.
    fn set_ceiling(&self, rate: u64) {
        let empty_rtt = lock(&self.leg.initial).rtt;
        let mut wanted = ExplicitSocket {
            event: EXPLICIT_OBEY,
            rate,
            max_pacing_rate: self.cap,
            empty_rtt_us: u32::try_from(empty_rtt.as_micros()).unwrap_or(u32::MAX),
            mss: self.mss.load(Ordering::Relaxed),
            header: self.header.load(Ordering::Relaxed),
            ..ExplicitSocket::default()
        };
        ExplicitPath::default().step(&mut wanted);
        let mut ceiling = lock(&self.ceiling);
        if *ceiling != wanted.pacing_rate
            && let Some(socket) = self.socket.upgrade()
        {
            *ceiling = wanted.pacing_rate;
            // It fails for a socket that is no more, and has nothing to send.
            let _ = sockopt::set_max_pacing_rate(&socket, *ceiling);
        }
    }
}

impl Tracked {
    fn new(member: Arc<Member>) -> Self {
        let flow = Flow { owner: member.id, weight: member.weight, ..Flow::default() };
        Self { member, path: ExplicitPath::default(), flow, dozes: 0 }
    }

    /// Whether nothing can have happened to it that would have to be seen at once.
    fn sleeps(&self) -> bool {
        self.dozes >= DOZE && self.member.asleep.load(Ordering::Acquire)
    }

    fn look(&mut self, now: Duration) {
        let Some(socket) = self.member.socket.upgrade() else { return };
        let Ok(info) = tcp_info(&socket) else { return };
        if info.state == State::SynSent {
            return;
        }
        self.report(now, &info);
        if self.member.is_bbr && keeps_its_window(&info) {
            // It fails for a socket that is no more, and has nothing to send.
            let _ = return_to_start_up(&socket);
        }
    }

    /// Puts together what the congestion control in eBPF reports.
    fn report(&mut self, now: Duration, info: &TcpInfo) {
        let at = now.saturating_sub(info.since_ack_received);
        if at > self.flow.at && !info.srtt.is_zero() {
            self.sample(now, info.srtt);
        }
        let room = u64::from(info.send_window).saturating_sub(info.outstanding());
        let lost = (info.retransmissions + info.lost).saturating_sub(info.retransmitted);
        let span = |us: u32| (us > 0).then(|| Duration::from_micros(us.into()));
        self.flow = Flow {
            at,
            bytes_sent: info.bytes_sent,
            segments_sent: info.data_segments_out,
            delivered: info.delivered,
            // What is found to have arrived after all was lost for a while.
            lost: lost.max(self.flow.lost),
            mss: info.mss,
            header: self.member.headers + if info.timestamps { TIMESTAMPS } else { 0 },
            in_flight: info.unacked,
            rtt: span(self.path.rtt_us),
            min_rtt: span(self.path.shortest_us),
            forward: None,
            window_limited: info.in_flight() >= info.cwnd,
            backlogged: (info.unsent > 0 && room >= u64::from(info.mss)) || info.lost > info.retransmitted,
            ..self.flow
        };
        self.member.mss.store(info.mss, Ordering::Relaxed);
        self.member.header.store(self.flow.header, Ordering::Relaxed);
    }

    /// The smoothed round trip follows the last few acknowledgements.
    fn sample(&mut self, now: Duration, rtt: Duration) {
        let mut socket = ExplicitSocket {
            event: EXPLICIT_SAMPLE,
            now_us: now.as_micros() as u64,
            sample_us: u32::try_from(rtt.as_micros()).unwrap_or(u32::MAX),
            ..ExplicitSocket::default()
        };
        self.path.step(&mut socket);
    }

    fn set_rate(&mut self, rate: u64) {
        let Self { member, dozes, .. } = self;
        if rate > 0 {
            *dozes = 0;
            member.asleep.store(false, Ordering::Release);
            return member.set_ceiling(rate);
        }
        *dozes = dozes.saturating_add(1);
        let share = lock(&member.leg.initial).share(member.weight);
        member.set_ceiling(share);
        // Afterwards: whoever wakes it meanwhile sets a ceiling that stays.
        member.asleep.store(true, Ordering::Release);
    }
}

/// Whether BBR can be chosen anew. After a timeout it would forget the window to which it returns with the first
/// acknowledgement.
fn keeps_its_window(info: &TcpInfo) -> bool {
    info.recovery != Recovery::Loss && info.backoff == 0
}

/// Chooses BBR anew if it has left its start-up phase.
fn return_to_start_up(socket: &OwnedFd) -> io::Result<()> {
    if bbr_pacing_gain(socket)?.is_some_and(|gain| gain > 0.0 && gain < START_UP_GAIN) {
        sockopt::set_congestion(socket, OTHER)?;
        sockopt::set_congestion(socket, BBR)?;
    }
    Ok(())
}

/// The clock of the controller.
fn monotonic() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::time::Instant;

    use super::*;
    use crate::congestion;

    const PATIENCE: Duration = Duration::from_secs(30);
    const NO_CAP: u64 = u64::MAX;
    const RTT: Duration = Duration::from_millis(500);

    /// A connection on the loopback interface, with segments as short as those of a network: the client, and
    /// the server's socket.
    fn connection(congestion: &str) -> (TcpStream, Arc<OwnedFd>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        sockopt::set_congestion(&listener, congestion).unwrap();
        socket2::SockRef::from(&listener).set_tcp_mss(1000).unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (client, Arc::new(listener.accept().unwrap().0.into()))
    }

    /// The ceiling as a rate on the wire, which it is of this socket's full segments.
    fn rate_of(socket: &Arc<OwnedFd>) -> u64 {
        let payload = sockopt::max_pacing_rate(socket).unwrap().unwrap();
        let mss = u64::from(tcp_info(socket).unwrap().mss);
        payload * (mss + u64::from(HEADERS_V4 + TIMESTAMPS)) / mss
    }

    fn assert_rate(socket: &Arc<OwnedFd>, expected: u64) {
        let rate = rate_of(socket);
        assert!(rate.abs_diff(expected) <= 2, "{rate}, not {expected}");
    }

    fn weight(number: i64) -> Weight {
        number.try_into().unwrap()
    }

    #[test]
    fn connections_that_begin_between_two_decisions_share_the_initial_rate_by_weight() {
        let leg = PacedLeg::new("begins", "reno");
        leg.set_initial_rate(1_200_000, 2, RTT);
        let [(_a, a), (_b, b), (_c, c)] = [(); 3].map(|()| connection("reno"));
        let _added = [leg.add(&a, weight(1), NO_CAP), leg.add(&b, weight(3), NO_CAP)];
        assert_rate(&a, 1_200_000 / 3);
        assert_rate(&b, 1_200_000 * 3 / (2 + 1 + 3));
        leg.set_initial_rate(700_000, 0, RTT);
        leg.add(&c, weight(1), NO_CAP);
        assert_rate(&c, 700_000);
    }

    #[test]
    fn without_a_controller_a_connection_sends_ten_segments_in_a_round_trip() {
        let leg = PacedLeg::new("none", "reno");
        leg.set_initial_rate(0, 0, RTT);
        let (_client, server) = connection("reno");
        leg.add(&server, weight(1), NO_CAP);
        let mss = u64::from(tcp_info(&server).unwrap().mss);
        assert_eq!(sockopt::max_pacing_rate(&server).unwrap(), Some(20 * mss));
    }

    #[test]
    fn a_rate_is_a_ceiling_below_the_cap_until_it_is_taken_back() {
        let leg = PacedLeg::new("ceiling", "reno");
        leg.set_initial_rate(900_000, 2, RTT);
        let (_client, server) = connection("reno");
        let socket = leg.add(&server, weight(1), 800_000);
        let slot = leg.flows()[0].slot;
        leg.set_rate(slot, 123_456);
        assert_rate(&server, 123_456);
        leg.set_rate(slot, 5_000_000);
        assert_eq!(sockopt::max_pacing_rate(&server).unwrap(), Some(800_000));
        // Silent: what one more connection would have. Awake it is that one.
        leg.set_initial_rate(600_000, 1, RTT);
        leg.set_rate(slot, 0);
        assert_rate(&server, 300_000);
        lock(&leg.state.initial).join(1);
        socket.wake();
        assert_rate(&server, 200_000);
        lock(&leg.state.initial).join(1);
        socket.wake();
        assert_rate(&server, 200_000);
    }

    #[test]
    fn a_report_says_what_was_sent_and_has_arrived() {
        let leg = PacedLeg::new("report", "reno");
        leg.set_initial_rate(1_000_000_000, 0, RTT);
        let (mut client, server) = connection("reno");
        let _added = leg.add(&server, weight(7), NO_CAP);
        rustix::net::send(&server, &[7; 10_000], rustix::net::SendFlags::empty()).unwrap();
        client.read_exact(&mut [0; 10_000]).unwrap();
        let start = Instant::now();
        let flow = loop {
            let flow = leg.flows()[0];
            if flow.in_flight == 0 {
                break flow;
            }
            assert!(start.elapsed() < PATIENCE, "{flow:?}");
        };
        assert_eq!((flow.weight, flow.bytes_sent, flow.lost, flow.header), (7, 10_000, 0, 52));
        // The handshake's acknowledgement counts among the delivered.
        assert!((1..=2).contains(&(flow.delivered.abs_diff(flow.segments_sent) + 1)), "{flow:?}");
        assert!(!flow.backlogged && flow.forward.is_none() && flow.rtt.is_some(), "{flow:?}");
    }

    #[test]
    fn a_sender_that_its_rate_holds_back_is_backlogged_and_one_whose_receiver_is_full_is_not() {
        let leg = PacedLeg::new("backlog", "reno");
        leg.set_initial_rate(20_000, 0, RTT);
        let (_client, server) = connection("reno");
        let _added = leg.add(&server, weight(1), NO_CAP);
        let mut stream = TcpStream::from(server.try_clone().unwrap());
        stream.set_nonblocking(true).unwrap();
        let fill = |stream: &mut TcpStream| while stream.write(&[7; 1 << 16]).is_ok() {};
        fill(&mut stream);
        assert!(leg.flows()[0].backlogged);
        leg.set_rate(0, 1 << 33);
        let start = Instant::now();
        while leg.flows()[0].backlogged {
            fill(&mut stream);
            assert!(start.elapsed() < PATIENCE, "{:?}", tcp_info(&server));
        }
        assert!(tcp_info(&server).unwrap().unsent > 0);
    }

    #[test]
    fn the_owner_closes_its_socket_when_it_likes() {
        let leg = PacedLeg::new("owner", "reno");
        let (mut client, server) = connection("reno");
        let socket = leg.add(&server, weight(1), NO_CAP);
        assert_eq!(leg.flows().len(), 1);
        drop(server);
        assert_eq!(client.read(&mut [0]).unwrap(), 0);
        socket.wake();
        leg.set_rate(0, 1_000_000);
        assert_eq!(leg.flows().len(), 0);
    }

    #[test]
    fn a_leg_of_the_same_name_is_the_same_and_sleepers_stay_in_its_list() {
        let leg = PacedLeg::new("same", "reno");
        let (_client, server) = connection("reno");
        let _added = leg.add(&server, weight(1), NO_CAP);
        let again = PacedLeg::new("same", "reno");
        assert!(leg.is_same(&again) && !leg.is_same(&PacedLeg::new("other", "reno")));
        drop(leg);
        let owner = again.flows()[0].owner;
        for _ in 0..2 * SLEEPERS_ROUND {
            again.set_rate(0, 0);
            assert_eq!(again.flows()[0].owner, owner);
        }
    }

    /// On its own BBR does not come back to its start-up phase.
    #[test]
    fn bbr_that_has_left_its_start_up_phase_returns_to_it() {
        if !congestion::available().iter().any(|name| name == BBR) {
            println!("skipped: needs the congestion control {BBR}");
            return;
        }
        let leg = PacedLeg::new("start-up", BBR);
        leg.set_initial_rate(2_000_000, 0, RTT);
        let (client, server) = connection(BBR);
        let _added = leg.add(&server, weight(1), NO_CAP);
        std::thread::scope(|scope| {
            // A failure lets the thread come to its end, too.
            let mut client = client;
            let mut stream = TcpStream::from(server.try_clone().unwrap());
            scope.spawn(move || while stream.write(&[7; 1 << 16]).is_ok() {});
            let mut read_until = |is_so: &dyn Fn() -> bool| {
                let start = Instant::now();
                while !is_so() {
                    client.read_exact(&mut [0; 10_000]).unwrap();
                    assert!(start.elapsed() < PATIENCE, "{:?}", bbr_pacing_gain(&server));
                }
            };
            let has_left = || {
                let gain = bbr_pacing_gain(&server).unwrap().unwrap();
                gain > 0.0 && gain < START_UP_GAIN
            };
            read_until(&has_left);
            read_until(&|| !leg.flows().is_empty() && !has_left());
        });
    }
}
