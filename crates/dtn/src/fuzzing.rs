//! The bodies of the fuzz targets `bundle`, `cbor`, `contact_plan` and `tcpcl`; see `fuzz/README.md`.

use std::time::Duration;

use bentpipe_units::Time;

pub use crate::bundle::fuzz_cbor as cbor;
use crate::bundle::{Bundle, Decoder, Malformed, Piece};
use crate::route::{Contact, ion};
use crate::tcpcl::message::{CONTACT_LEN, Message};
use crate::tcpcl::session::{Event, MAX_CONTROL, Session};
use crate::tcpcl::{Role, SessionSettings};
use crate::{DtnTime, Eid};

/// A bundle's bytes, in pieces of the size that the first byte says.
///
/// # Panics
/// It depends on the size of the pieces whether they are a bundle; or one that was read and written again is
/// another.
pub fn bundle(data: &[u8]) {
    let Some((&size, data)) = data.split_first() else { return };
    let whole = decode(data, data.len().max(1));
    assert_eq!(decode(data, usize::from(size).max(1)), whole);
    let Ok((bundle, payload)) = whole else { return };
    let mut again = bundle.head();
    let mut tail = bundle.tail();
    again.extend_from_slice(&payload);
    tail.update(&payload);
    again.extend(tail.finish());
    assert_eq!(again.len() as u64, bundle.encoded_len());
    assert_eq!(decode(&again, again.len()), Ok((bundle, payload)));
}

fn decode(data: &[u8], size: usize) -> Result<(Bundle, Vec<u8>), Malformed> {
    let mut decoder = Decoder::new();
    let (mut head, mut payload) = (None, Vec::new());
    for mut rest in data.chunks(size) {
        loop {
            let (taken, piece) = decoder.feed(rest)?;
            rest = &rest[taken..];
            match piece {
                Piece::More => break,
                Piece::Head(bundle) => head = Some(*bundle),
                Piece::Payload(part) => payload.extend_from_slice(part),
                Piece::End => {}
            }
        }
        assert!(rest.is_empty(), "More says that all has been taken");
    }
    decoder.finish()?;
    Ok((head.expect("before the end comes a head"), payload))
}

/// A contact plan in ION's format.
///
/// # Panics
/// A fault is no line, or not of this text; a contact cannot be; or contacts that were read and written again are
/// others.
pub fn contact_plan(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let now = DtnTime::from_millis(1000);
    let lines = text.lines().count();
    let is_sound = |fault: &ion::LineFault| {
        (1..=lines).contains(&fault.line) && !fault.what.is_empty() && !fault.what.contains(char::is_control)
    };
    let plan = match ion::parse(&text, now) {
        Ok(plan) => plan,
        Err(faults) => return assert!(!faults.is_empty() && faults.iter().all(is_sound), "{faults:?}"),
    };
    assert!(plan.warnings.iter().all(is_sound), "{:?}", plan.warnings);
    let mut again = String::from("@ 2000/01/01-00:00:00\n");
    let mut expected = Vec::new();
    for contact in plan.contacts {
        assert_eq!(contact.check(), Ok(()));
        let (Eid::Ipn { node: from, .. }, Eid::Ipn { node: to, .. }) = (&contact.from, &contact.to) else {
            unreachable!("its nodes are numbers")
        };
        let (start, end, rate) = (contact.start.millis(), contact.end.millis(), contact.rate.bps() / 8);
        // The end of time is no whole second.
        if end < u64::MAX {
            again += &format!("a contact +{} +{} {from} {to} {rate}\n", start / 1000, end / 1000);
            expected.push(Contact { delay: Duration::ZERO, ..contact });
        }
    }
    assert_eq!(ion::parse(&again, now).map(|plan| plan.contacts), Ok(expected));
}

/// What a peer sends in a session: a byte for settings, a byte for the size of the pieces in which it comes,
/// the contact header, and messages.
///
/// # Panics
/// A message that was read and written again is another; the session takes nothing and wants nothing; or it
/// keeps more than it may.
pub fn tcpcl(data: &[u8]) {
    let Some((&[settings, size], data)) = data.split_first_chunk::<2>() else { return };
    if let Ok(Some((message, length))) = Message::decode(data) {
        assert!(length <= data.len());
        let mut again = Vec::new();
        message.encode(&mut again);
        if !has_ignored_items(&message) {
            assert_eq!(Message::decode(&again), Ok(Some((message, again.len()))));
        }
    }
    let Some((contact, mut rest)) = data.split_first_chunk::<CONTACT_LEN>() else { return };
    let (mut now, role) = (Time::ZERO, if settings & 1 == 0 { Role::Passive } else { Role::Active });
    let mut session = Session::new(role, session_settings(settings), "peer".into(), now);
    session.receive_contact(*contact, now);
    let (mut out, mut available) = (Vec::new(), 0);
    // Each turn takes a byte, or handles an event, or makes more bytes available.
    for _ in 0..4 * data.len() + 64 {
        let (taken, event) = session.receive(&rest[..available], now);
        rest = &rest[taken..];
        available -= taken;
        let is_idle = taken == 0 && event.is_none();
        handle(&mut session, event, settings, now);
        session.take_control(&mut out, now);
        assert!(out.len() <= MAX_CONTROL, "{} bytes of messages", out.len());
        out.clear();
        if is_idle && available == rest.len() {
            break;
        }
        if is_idle {
            available = rest.len().min(available + usize::from(size).max(1));
            now += Duration::from_millis(u64::from(size) * 100);
            session.on_time(now);
        }
    }
    session.receive_eof();
    session.abandon();
    assert!(session.end().is_some(), "after the end of all bytes the session is over");
}

fn handle(session: &mut Session, event: Option<Event<'_>>, settings: u8, now: Time) {
    use crate::convergence::Refusal;
    match event {
        Some(Event::StartTls) => session.tls_done(vec![Eid::None]),
        Some(Event::Introduced(_)) if settings & 2 == 0 => {
            session.admit(now);
            if session.may_begin().is_some() {
                session.begin(7, 1000);
            }
        }
        Some(Event::Introduced(_)) => session.reject_peer("not today"),
        Some(Event::Begin { .. }) if settings & 4 != 0 => session.refuse(Refusal::NoResources),
        Some(Event::Complete(ticket)) => session.finished(ticket, Ok(()), now),
        _ => {}
    }
    let mut segment = Vec::new();
    session.segment(&mut segment, now);
}

fn session_settings(settings: u8) -> SessionSettings {
    SessionSettings {
        segment_mru: 1000,
        transfer_mru: 5000,
        segment_size: 400,
        lenient: settings & 8 != 0,
        ..SessionSettings::new(Eid::None)
    }
}

/// Extension items that are unknown are read, and not kept.
fn has_ignored_items(message: &Message) -> bool {
    match message {
        Message::Segment(head) => head.extensions.critical_unknown || head.extensions.malformed,
        Message::SessInit(init) => init.critical_extension.is_some(),
        _ => false,
    }
}

#[cfg(test)]
#[path = "../../../fuzz/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn their_corpora_break_nothing() {
        replay::replay("bundle", super::bundle);
        replay::replay("cbor", cbor);
        replay::replay("contact_plan", contact_plan);
        replay::replay("tcpcl", tcpcl);
    }
}
