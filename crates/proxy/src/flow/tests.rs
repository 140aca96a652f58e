use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::OwnedFd;

use super::*;
use crate::admission::tests::permit;
use crate::config::RelayKind;
use crate::telemetry::LegStatsTable;

/// A flow between two peers on loopback, its pool, and the turns that a worker would give it.
struct Rig {
    client: TcpStream,
    server: TcpStream,
    flow: Flow,
    pool: BufferPool,
}

impl Rig {
    fn new() -> Self {
        let (client, ours) = connection();
        let (server, upstream) = connection();
        let address = client.local_addr().unwrap();
        let ends = Endpoints { client: address, server: address, dscp: 0 };
        let [ours, upstream] = [ours, upstream].map(|end| RelaySocket::new(OwnedFd::from(end)));
        let flow = Flow::new(ends, route(), ours, upstream, 0, permit());
        Self { client, server, flow, pool: BufferPool::new(RelayKind::Copy) }
    }

    /// One turn, with epoll reporting what poll(2) sees.
    fn poll(&mut self) -> Result<Verdict, FlowError> {
        for side in [Side::Client, Side::Server] {
            let flags = poll(&self.flow.endpoint(side).socket);
            self.flow.note(side, flags)?;
        }
        self.flow.poll(&mut self.pool)
    }

    fn poll_until(
        &mut self,
        done: impl Fn(&Result<Verdict, FlowError>, &Flow) -> bool,
    ) -> Result<Verdict, FlowError> {
        loop {
            let result = self.poll();
            if done(&result, &self.flow) {
                return result;
            }
            std::thread::yield_now();
        }
    }
}

/// Over legs that nothing is configured of.
fn route() -> Route {
    use bentpipe_legs::{LegId, TerrestrialLeg};
    let legs = Legs::prepare(&Default::default(), &TerrestrialLeg::default());
    let pair = LegPair {
        client: LegId::Terrestrial,
        server: LegId::Terrestrial,
        weight: Default::default(),
        port: 1,
    };
    Route { pair, legs: Arc::new(legs) }
}

fn connection() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (ours, _) = listener.accept().unwrap();
    ours.set_nonblocking(true).unwrap();
    (peer, ours)
}

fn poll(socket: &crate::snapshot::Fd) -> EventFlags {
    use rustix::event::{PollFd, PollFlags, Timespec};
    let interest = PollFlags::IN | PollFlags::OUT | PollFlags::RDHUP;
    let mut fds = [PollFd::new(socket, interest)];
    rustix::event::poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap();
    // Linux gives these bits the same values in both interfaces.
    EventFlags::from_bits_retain(u32::from(fds[0].revents().bits()))
}

#[test]
fn an_idle_flow_is_small() {
    assert!(size_of::<Flow>() <= 544, "{}", size_of::<Flow>());
}

#[test]
fn a_reply_after_a_half_close_arrives_whole_and_then_the_flow_finishes() {
    let mut rig = Rig::new();
    rig.client.write_all(b"request").unwrap();
    rig.client.shutdown(Shutdown::Write).unwrap();
    rig.poll_until(|_, flow| flow.state.up.is_shut()).unwrap();
    let mut request = String::new();
    rig.server.read_to_string(&mut request).unwrap();
    assert_eq!(request, "request");

    rig.server.write_all(b"the reply").unwrap();
    rig.server.shutdown(Shutdown::Write).unwrap();
    let verdict = rig.poll_until(|result, _| !matches!(result, Ok(Verdict::Waiting | Verdict::Draining)));
    assert_eq!(verdict.unwrap(), Verdict::Finished);
    let mut reply = String::new();
    rig.client.read_to_string(&mut reply).unwrap();
    assert_eq!(reply, "the reply");
}

#[test]
fn a_reset_of_one_end_breaks_the_flow_and_names_the_side() {
    let mut rig = Rig::new();
    assert_eq!(rig.poll().unwrap(), Verdict::Waiting);
    sockopt_linger_reset(&rig.server);
    let (dead, _) = connection();
    drop(std::mem::replace(&mut rig.server, dead));
    let broken = rig.poll_until(|result, _| result.is_err()).unwrap_err();
    assert_eq!(broken.side, Side::Server);
    assert_eq!(broken.error.kind(), io::ErrorKind::ConnectionReset);
    assert!(broken.to_string().contains("(server side)"), "{broken}");
}

#[test]
fn a_flow_drains_until_the_peer_has_acknowledged_the_end() {
    let mut rig = Rig::new();
    rig.poll().unwrap();
    rig.client.shutdown(Shutdown::Write).unwrap();
    rig.poll_until(|_, flow| flow.state.up.is_shut()).unwrap();
    assert_eq!(rig.poll().unwrap(), Verdict::Waiting, "a half-closed flow lives on");
    rig.server.shutdown(Shutdown::Write).unwrap();
    let verdict = rig.poll_until(|result, _| matches!(result, Ok(Verdict::Finished)));
    assert_eq!(verdict.unwrap(), Verdict::Finished);
}

fn sockopt_linger_reset(stream: &TcpStream) {
    bentpipe_kernel::sockopt::set_linger_reset(stream).unwrap();
}

#[test]
fn a_flow_that_goes_on_here_is_told_of_with_all_it_has_done_and_accounted_for_from_now_on() {
    use crate::telemetry::FlowPhase;
    let mut rig = Rig::new();
    rig.client.write_all(b"before").unwrap();
    rig.poll_until(|_, flow| flow.bytes() == (6, 0)).unwrap();
    rig.server.read_exact(&mut [0; 6]).unwrap();
    while unacknowledged(&rig.flow.state.server.socket).unwrap() > 0 {
        std::thread::yield_now();
    }
    assert!(rig.flow.report(Instant::now()).is_none(), "no leg knows it yet");
    let leg_stats = LegStatsTable::default();
    rig.flow.rejoin(&leg_stats);
    rig.flow.look(rig.flow.state.since + Duration::from_secs(1));
    let leg = || leg_stats.leg(false, "terrestrial").figures(Instant::now());
    assert_eq!((leg().flows, leg().totals.moved), (2, Default::default()), "it has two ends on this leg");

    let report = rig.flow.report(Instant::now()).unwrap();
    assert_eq!((report.up_bytes, report.down_bytes, report.phase), (6, 0, FlowPhase::Relaying));
    assert_eq!(report.client, rig.client.local_addr().unwrap().to_string());
    assert_eq!((report.server_end.leg.as_str(), report.server_end.unacked), ("terrestrial", 0));
    assert!(report.server_end.segments >= 1 && report.server_end.ssthresh.is_none(), "{report:?}");

    rig.client.write_all(b"after").unwrap();
    rig.poll_until(|_, flow| flow.bytes() == (11, 0)).unwrap();
    rig.server.read_exact(&mut [0; 5]).unwrap();
    while unacknowledged(&rig.flow.state.server.socket).unwrap() > 0 {
        std::thread::yield_now();
    }
    rig.flow.leave(Instant::now());
    let moved = leg().totals.moved;
    assert_eq!((leg().flows, moved.sent, moved.received), (0, 5, 5));
}

#[test]
fn a_flow_goes_on_in_another_process_where_it_was() {
    use crate::admission::tests::unlimited;
    use crate::snapshot::Section;
    let mut rig = Rig::new();
    rig.client.write_all(b"half of ").unwrap();
    rig.client.shutdown(Shutdown::Write).unwrap();
    rig.poll_until(|_, flow| flow.state.up.is_shut()).unwrap();
    rig.flow.inspect(Seconds(100), Patience::default());
    rig.flow.stop_clock(Seconds(130));
    let admission = unlimited();
    let section = Section::of(&rig.flow.snapshot()).unwrap();
    let (names, state): (RouteNames, FlowState) = section.read().unwrap();
    rig.flow = Flow::resume(&names, state, &rig.flow.route.legs, &admission);
    rig.flow.resume_clock(Seconds(1000));
    assert_eq!((rig.flow.bytes(), rig.flow.state.phase, admission.open()), ((8, 0), FlowPhase::Relaying, 1));
    assert_eq!(rig.flow.state.inspected.idle_since, Seconds(970));
    rig.server.write_all(b"an exchange").unwrap();
    rig.server.shutdown(Shutdown::Write).unwrap();
    let verdict = rig.poll_until(|result, _| !matches!(result, Ok(Verdict::Waiting | Verdict::Draining)));
    assert_eq!(verdict.unwrap(), Verdict::Finished);
    let mut reply = String::new();
    rig.client.read_to_string(&mut reply).unwrap();
    assert_eq!(reply, "an exchange");
    drop(rig);
    assert_eq!(admission.open(), 0);
}

#[test]
fn a_route_between_legs_that_are_gone_is_terrestrial() {
    let names = RouteNames { client: Some("gone".into()), server: None, weight: 4, port: 7600 };
    let route = names.resolve(&route().legs);
    assert_eq!((route.pair.client, route.pair.server), (LegId::Terrestrial, LegId::Terrestrial));
    assert_eq!((route.pair.weight.get(), route.pair.port), (4, 7600));
}
