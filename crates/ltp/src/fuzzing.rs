//! The bodies of the fuzz targets.

use std::time::Duration;

use bentpipe_units::Time;

use crate::segment::Segment;
use crate::{BUNDLE_PROTOCOL, Color, Config, Engine, Event};

const CONFIG: Config = Config {
    own: 1,
    peer: 2,
    client: BUNDLE_PROTOCOL,
    one_way: Duration::from_millis(300),
    margin: Duration::from_secs(1),
    rate: 1e6,
    datagram: 200,
    around: 28,
    window: 10_000,
    memory: 20_000,
    longest: 10_000,
    retries: 3,
};

/// A segment that can be read has one meaning: what is written of it reads the same.
///
/// # Panics
/// If that does not hold.
pub fn segment(input: &[u8]) {
    if let Ok(segment) = Segment::parse(input) {
        let mut written = Vec::new();
        segment.write(&mut written);
        assert_eq!(Segment::parse(&written).as_ref(), Ok(&segment));
    }
}

/// An engine in the middle of its work gets datagrams, each with a byte for its length in front. Whatever they
/// say, it stays within its limits and comes to rest.
///
/// # Panics
/// If that does not hold.
pub fn engine(input: &[u8]) {
    let mut now = Time::ZERO;
    let (mut engine, mut out) = (Engine::new(CONFIG, 0, now), Vec::new());
    engine.send(1, Color::Red, vec![7; 1000].into());
    engine.send(2, Color::Green, vec![7; 300].into());
    let (mut rest, mut sent) = (input, 0);
    while let Some((&len, behind)) = rest.split_first() {
        let (datagram, behind) = behind.split_at(behind.len().min(len.into()));
        rest = behind;
        let _ = engine.receive(now, datagram);
        while let Some(event) = engine.event() {
            if let Event::Received(session, block) = event {
                assert!(block.len() as u64 <= CONFIG.longest);
                let outcome = if block.len() % 2 == 0 { Ok(()) } else { Err(crate::Reason::System) };
                engine.accepted(session, outcome);
            }
        }
        if len % 4 == 0 {
            now += Duration::from_millis(len.into());
        }
        engine.advance(now);
        if engine.transmit(now, &mut out) {
            assert!(out.len() <= CONFIG.datagram + 20, "{}", out.len());
        }
    }
    // Nobody answers any more: all timers end.
    while let Some(due) = engine.due() {
        now = now.max(due);
        engine.advance(now);
        sent += u32::from(engine.transmit(now, &mut out));
        assert!(sent < 100_000);
    }
    assert!(!engine.in_flight());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SessionId;
    use crate::segment::{Checkpoint, Content, Data, Ends, Part, Reason, Report, Side};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes_do_no_harm(input in prop::collection::vec(any::<u8>(), 0..400)) {
            super::segment(&input);
            super::engine(&input);
        }

        /// Datagrams that an engine could send, changed in places.
        #[test]
        fn nearly_right_segments_do_no_harm(
            steps in prop::collection::vec((0..8u8, 0..3000u64, 0..200usize, 0..4u64, any::<bool>()), 1..60),
        ) {
            let mut input = Vec::new();
            for (kind, offset, len, serial, own) in steps {
                let bytes = vec![7; len];
                let session = if own { SessionId { originator: 1, number: 1 } } else { SessionId { originator: 2, number: serial } };
                let data = |part| Content::Data(Data { client: BUNDLE_PROTOCOL, offset, bytes: &bytes, part });
                let claims = if len > 0 { vec![(offset, offset + len as u64)] } else { vec![] };
                let content = match kind {
                    0 => data(Part::Red),
                    1 => data(Part::Checkpoint(Checkpoint { serial: 9, report: 0, ends: Ends::Block })),
                    2 => data(Part::Green { ends_block: serial == 0 }),
                    3 => Content::ReportAck(serial),
                    4 => Content::Cancel(Side::Sender, Reason::Client),
                    5 => Content::CancelAck(Side::Receiver),
                    _ => Content::Report(Report {
                        serial: serial + 1, checkpoint: serial, lower: offset, upper: offset + len as u64, claims,
                    }),
                };
                let mut out = Vec::new();
                crate::segment::Segment { session, content }.write(&mut out);
                if let Ok(len) = u8::try_from(out.len()) {
                    input.push(len);
                    input.extend(out);
                }
            }
            super::engine(&input);
        }
    }
}
