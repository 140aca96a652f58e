//! Peers that do what they should not.

use std::time::Duration;

use bentpipe_ltp::segment::{Checkpoint, Content, Data, Ends, Part, Reason, Report, Segment, Side};
use bentpipe_ltp::{BUNDLE_PROTOCOL, Color, Config, Engine, Event, Failure, SessionId, Unreadable};
use bentpipe_units::{Rate, Time};

use crate::world::{at, block, config};

const OWN: SessionId = SessionId { originator: 1, number: 1 };
const PEERS: SessionId = SessionId { originator: 2, number: 77 };

fn engine() -> Engine {
    Engine::new(config(1, Duration::from_millis(300), Rate::mbps(10)), 0, Time::ZERO)
}

fn say(engine: &mut Engine, session: SessionId, content: Content<'_>) -> Result<(), Unreadable> {
    let mut out = Vec::new();
    Segment { session, content }.write(&mut out);
    engine.receive(at(1.0), &out)
}

fn red(offset: u64, bytes: &[u8]) -> Content<'_> {
    Content::Data(Data { client: BUNDLE_PROTOCOL, offset, bytes, part: Part::Red })
}

fn end(offset: u64, bytes: &[u8]) -> Content<'_> {
    let part = Part::Checkpoint(Checkpoint { serial: 9, report: 0, ends: Ends::Block });
    Content::Data(Data { client: BUNDLE_PROTOCOL, offset, bytes, part })
}

fn green(offset: u64, bytes: &[u8], ends_block: bool) -> Content<'_> {
    Content::Data(Data { client: BUNDLE_PROTOCOL, offset, bytes, part: Part::Green { ends_block } })
}

/// What the engine says next.
fn answers(engine: &mut Engine) -> Vec<(u8, Vec<u8>)> {
    let (mut out, mut all) = (Vec::new(), Vec::new());
    for step in 0..20 {
        while engine.transmit(at(2.0 + f64::from(step) / 100.0), &mut out) {
            all.push((out[0], out.clone()));
        }
    }
    all
}

fn cancelled(engine: &mut Engine) -> Option<Reason> {
    answers(engine).into_iter().find_map(|(_, bytes)| match Segment::parse(&bytes).unwrap().content {
        Content::Cancel(Side::Receiver, reason) => Some(reason),
        _ => None,
    })
}

#[test]
fn parts_that_are_mixed_cancel_the_session() {
    for contents in [
        [green(10, b"green", false), red(12, b"red")],
        [end(10, b"red"), red(20, b"red")],
        [end(10, b"red"), end(11, b"red")],
        [red(20, b"red"), end(10, b"red")],
        [red(20, b"red"), green(10, b"green", true)],
        [green(20, b"green", true), green(30, b"green", false)],
    ] {
        let mut engine = engine();
        for content in contents.clone() {
            say(&mut engine, PEERS, content).unwrap();
        }
        assert_eq!(cancelled(&mut engine), Some(Reason::Miscoloured), "{contents:?}");
        assert_eq!(engine.event(), None);
    }
}

#[test]
fn another_client_and_a_block_that_is_too_long_are_refused() {
    let mut one = engine();
    say(&mut one, PEERS, Content::Data(Data { client: 2, offset: 0, bytes: b"x", part: Part::Red })).unwrap();
    assert_eq!(cancelled(&mut one), Some(Reason::Unreachable));
    let mut other = engine();
    say(&mut other, PEERS, red(8 << 20, b"x")).unwrap();
    assert_eq!(cancelled(&mut other), Some(Reason::System));
}

#[test]
fn a_peer_gets_no_more_memory_than_there_is() {
    let own = Config { memory: 10_000, ..config(1, Duration::from_millis(300), Rate::mbps(10)) };
    let mut engine = Engine::new(own, 0, Time::ZERO);
    for number in 0..100 {
        say(&mut engine, SessionId { number, ..PEERS }, red(900, &[1; 100])).unwrap();
    }
    assert_eq!(engine.statistics().without_memory, 90);
    // What is complete takes none.
    let session = SessionId { number: 1, ..PEERS };
    say(&mut engine, session, end(0, &[1; 100])).unwrap();
}

#[test]
fn reports_of_what_was_never_sent_end_the_session() {
    for report in [
        Report { serial: 1, checkpoint: 1, lower: 0, upper: 9000, claims: vec![(0, 9000)] },
        Report { serial: 1, checkpoint: 1, lower: 0, upper: u64::MAX, claims: vec![] },
    ] {
        let mut engine = engine();
        engine.send(5, Color::Red, block(5, 3000));
        answers(&mut engine);
        say(&mut engine, OWN, Content::Report(report)).unwrap();
        assert_eq!(engine.event(), Some(Event::Failed(5, Failure::Forgotten)));
    }
}

#[test]
fn a_report_without_a_checkpoint_only_claims() {
    let mut engine = engine();
    engine.send(5, Color::Red, block(5, 3000));
    let sent = answers(&mut engine).len();
    assert_eq!(sent, 3);
    let claims = |claims: &[(u64, u64)], serial| {
        Content::Report(Report { serial, checkpoint: 0, lower: 0, upper: 3000, claims: claims.to_vec() })
    };
    say(&mut engine, OWN, claims(&[(0, 1000)], 1)).unwrap();
    // The acknowledgement of the report.
    assert_eq!(answers(&mut engine).len(), 1);
    say(&mut engine, OWN, claims(&[(1000, 3000)], 2)).unwrap();
    assert_eq!(engine.event(), Some(Event::Sent(5)));
}

#[test]
fn sessions_of_others_are_none_of_ours() {
    let mut engine = engine();
    let other = SessionId { originator: 9, number: 1 };
    assert_eq!(say(&mut engine, other, red(0, b"x")), Err(Unreadable::Foreign(9)));
    // Nor is data of a session that would be our own, nor a report on one of the peer's.
    assert!(say(&mut engine, OWN, red(0, b"x")).is_err());
    let report = Report { serial: 1, checkpoint: 0, lower: 0, upper: 1, claims: vec![(0, 1)] };
    assert!(say(&mut engine, PEERS, Content::Report(report)).is_err());
    assert!(answers(&mut engine).is_empty());
}

#[test]
fn what_is_unknown_is_acknowledged_all_the_same() {
    let mut engine = engine();
    let report = Report { serial: 4, checkpoint: 1, lower: 0, upper: 1, claims: vec![(0, 1)] };
    say(&mut engine, OWN, Content::Report(report)).unwrap();
    say(&mut engine, PEERS, Content::Cancel(Side::Sender, Reason::Client)).unwrap();
    say(&mut engine, OWN, Content::Cancel(Side::Receiver, Reason::Client)).unwrap();
    let kinds: Vec<u8> = answers(&mut engine).into_iter().map(|(kind, _)| kind).collect();
    assert_eq!(kinds, [9, 13, 15]);
}
