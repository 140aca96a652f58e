use super::*;
use crate::tcpcl::PeerOverride;
use crate::tcpcl::message::{CONTACT_LEN, SegmentFlags, SessInit, TransferExtensions};
use proptest::prelude::*;

fn at(seconds: u64) -> Time {
    Time::from_nanos(seconds * 1_000_000_000)
}

fn eid(text: &str) -> Eid {
    text.parse().unwrap()
}

fn settings() -> SessionSettings {
    SessionSettings {
        segment_mru: 1000,
        transfer_mru: 5000,
        segment_size: 400,
        ..SessionSettings::new(eid("dtn://us/"))
    }
}

const CONTACT: [u8; CONTACT_LEN] = *b"dtn!\x04\x00";

fn bytes(messages: &[Message]) -> Vec<u8> {
    let mut out = Vec::new();
    messages.iter().for_each(|message| message.encode(&mut out));
    out
}

fn init(node: &str) -> Message {
    Message::SessInit(SessInit {
        keepalive: 20,
        segment_mru: 300,
        transfer_mru: 3000,
        node: node.into(),
        critical_extension: None,
    })
}

fn segment(id: u64, start: bool, end: bool, len: u64) -> Message {
    let flags = SegmentFlags::of(start, end);
    Message::Segment(SegmentHead { flags, id, extensions: TransferExtensions::default(), len })
}

fn announced(id: u64, length: u64, end: bool, len: u64) -> Message {
    let extensions = TransferExtensions { length: Some(length), ..TransferExtensions::default() };
    Message::Segment(SegmentHead { flags: SegmentFlags::of(true, end), id, extensions, len })
}

fn ack(id: u64, len: u64) -> Message {
    Message::Ack { flags: SegmentFlags(0), id, len }
}

/// What has happened, as text, and what was written.
struct Timeline {
    session: Session,
    now: Time,
    /// Whether outcomes come later, and of which transfers they do.
    waits: bool,
    tickets: Vec<Ticket>,
}

impl Timeline {
    fn new(settings: SessionSettings) -> Self {
        let session = Session::new(Role::Passive, settings, "peer:4556".into(), at(0));
        Self { session, now: at(0), waits: false, tickets: Vec::new() }
    }

    fn established(settings: SessionSettings) -> Self {
        let mut line = Self::new(settings);
        assert_eq!(line.session.receive_contact(CONTACT, at(0)), None);
        assert_eq!(line.gets(&[init("dtn://them/")]), ["Introduced dtn://them/"]);
        line.session.admit(at(0));
        line.written();
        line
    }

    fn gets(&mut self, messages: &[Message]) -> Vec<String> {
        self.gets_bytes(&bytes(messages))
    }

    fn gets_bytes(&mut self, mut input: &[u8]) -> Vec<String> {
        let mut seen = Vec::new();
        loop {
            let (len, event) = self.session.receive(input, self.now);
            input = &input[len..];
            match event {
                Some(Event::Data(data)) => seen.push(format!("Data {}", data.len())),
                Some(Event::Introduced(peer)) => seen.push(format!("Introduced {peer}")),
                Some(Event::Complete(ticket)) => {
                    seen.push("Complete".into());
                    match self.waits {
                        true => self.tickets.push(ticket),
                        false => self.session.finished(ticket, Ok(()), self.now),
                    }
                }
                Some(event) => seen.push(format!("{event:?}")),
                None if len == 0 || input.is_empty() && self.session.end().is_some() => return seen,
                None => {}
            }
        }
    }

    fn data(&mut self, head: Message, len: usize) -> Vec<String> {
        let mut input = bytes(&[head]);
        input.extend(vec![7; len]);
        self.gets_bytes(&input)
    }

    fn written(&mut self) -> Vec<Message> {
        let mut out = Vec::new();
        self.session.take_control(&mut out, self.now);
        let mut left = &out[..];
        let mut messages = Vec::new();
        if left.starts_with(b"dtn!") {
            left = &left[CONTACT_LEN..];
        }
        while let Some((message, len)) = Message::decode(left).unwrap() {
            messages.push(message);
            left = &left[len..];
        }
        messages
    }

    fn reason(&self) -> &str {
        self.session.end().map_or("", |end| &end.reason)
    }

    /// The peer has done something wrong: the session is over, says why, and tells the peer.
    #[track_caller]
    fn is_over(&mut self, why: &str) {
        assert!(self.reason().contains(why), "{:?}, not {why:?}", self.reason());
        assert!(self.reason().contains("peer:4556"), "{:?} does not say where", self.reason());
        assert!(!self.session.end().unwrap().in_order);
        assert_eq!(self.session.deadline(), Time::MAX);
    }

    fn passes(&mut self, now: Time) -> Vec<Message> {
        self.now = now;
        self.session.on_time(now);
        self.written()
    }
}

fn term(reply: bool, reason: TermReason) -> Message {
    Message::SessTerm { reply, reason }
}

/// RFC 9174 §4.1, §4.7: the active side sends first, and the smaller keepalive interval and the MRUs apply.
#[test]
fn the_active_peer_sends_first_and_the_smaller_proposals_apply() {
    let mut active = Session::new(Role::Active, settings(), "peer:4556".into(), at(0));
    let mut out = Vec::new();
    active.take_control(&mut out, at(0));
    assert_eq!(out, CONTACT);
    out.clear();
    assert_eq!(active.receive_contact(CONTACT, at(0)), None);
    active.take_control(&mut out, at(0));
    assert_eq!(out[0], message::kind::SESS_INIT);

    let mut passive = Timeline::new(settings());
    assert!(passive.written().is_empty());
    passive.session.receive_contact(CONTACT, at(0));
    assert!(passive.written().is_empty());
    passive.gets(&[init("dtn://them/")]);
    assert!(passive.written().is_empty(), "nothing is said before the host has admitted the peer");
    assert_eq!(passive.session.peer(), None);
    passive.session.admit(at(0));
    assert!(matches!(passive.written()[..], [Message::SessInit(_)]));
    assert_eq!(passive.session.peer(), Some(&eid("dtn://them/")));
    assert_eq!(passive.session.may_begin(), Some(3000));
    assert_eq!(passive.session.deadline(), at(10), "keepalive: half of the smaller proposal, 20 s");
}

#[test]
fn configured_knowledge_of_a_peer_overrides_its_own_claims() {
    let mut settings = settings();
    let known = PeerOverride { segment_mru: Some(350), transfer_mru: Some(9000), lenient: false };
    settings.peers.insert(eid("dtn://them/"), known);
    let mut line = Timeline::established(settings);
    assert_eq!(line.session.may_begin(), Some(9000));
    line.session.begin(1, 9000);
    let next = line.session.segment(&mut Vec::new(), at(0)).unwrap();
    assert_eq!(next, NextSegment { len: 350, end: false });
}

/// RFC 9174 §4.6: a peer with another node ID than expected is turned away.
#[test]
fn a_peer_that_is_not_the_expected_one_is_turned_away() {
    for (node, why) in [
        ("dtn://other/", "says it is dtn://other/, expected dtn://them/"),
        ("dtn://us/", "is this one"),
        ("dtn://them/files", "no node"),
        ("http://them/", "unknown name"),
        ("", "unknown name"),
    ] {
        let settings = SessionSettings { expected_peer: Some(eid("dtn://them/")), ..settings() };
        let mut line = Timeline::new(settings);
        line.session.receive_contact(CONTACT, at(0));
        assert!(line.gets(&[init(node)]).is_empty());
        line.is_over(why);
        assert_eq!(line.written(), [term(false, TermReason::CONTACT_FAILURE)]);
    }
    let mut line = Timeline::new(settings());
    line.session.receive_contact(CONTACT, at(0));
    line.session.tls_done(vec![eid("dtn://them/")]);
    line.gets(&[init("dtn://other/")]);
    line.is_over("its certificate is that of dtn://them/");
    // One that names several nodes proves that the peer is the one that it says, or nothing.
    for (says, proven) in [("dtn://two/", true), ("dtn://other/", false)] {
        let mut line = Timeline::new(settings());
        line.session.receive_contact(CONTACT, at(0));
        line.session.tls_done(vec![eid("dtn://them/"), eid("dtn://two/")]);
        line.gets(&[init(says)]);
        assert_eq!(line.session.proven().cloned(), proven.then(|| eid(says)));
        if !proven {
            line.is_over("its certificate is that of dtn://them/ or dtn://two/");
        }
    }
}

#[test]
fn the_host_may_turn_a_peer_away() {
    let mut line = Timeline::new(settings());
    line.session.receive_contact(CONTACT, at(0));
    line.gets(&[init("dtn://them/")]);
    line.session.reject_peer("it is not configured");
    line.is_over("it is not configured");
    assert_eq!(line.written(), [term(false, TermReason::CONTACT_FAILURE)]);
}

/// RFC 9174 §4.2, §4.3: another protocol, and another version of this one, are told apart.
#[test]
fn another_protocol_and_another_version_are_told_apart() {
    let mut line = Timeline::new(settings());
    assert_eq!(line.session.receive_contact(*b"GET / ", at(0)), None);
    line.is_over("no TCPCL speaks there");
    assert!(line.written().is_empty());
    let mut line = Timeline::new(settings());
    line.session.receive_contact(*b"dtn!\x03\x00", at(0));
    line.is_over("version 3");
    assert_eq!(line.written(), [term(false, TermReason::VERSION_MISMATCH)]);
}

/// RFC 9174 §4.8: a critical session extension item that is not known ends the session.
#[test]
fn a_critical_session_extension_ends_the_session_but_for_the_lenient() {
    let mut insistent = init("dtn://them/");
    if let Message::SessInit(init) = &mut insistent {
        init.critical_extension = Some(0x8001);
    }
    let mut line = Timeline::new(settings());
    line.session.receive_contact(CONTACT, at(0));
    line.gets(&[insistent.clone()]);
    line.is_over("insists on session extension 0x8001");
    let mut line = Timeline::new(SessionSettings { lenient: true, ..settings() });
    line.session.receive_contact(CONTACT, at(0));
    assert_eq!(line.gets(&[insistent]), ["Introduced dtn://them/"]);
}

#[test]
fn a_handshake_has_thirty_seconds_in_all() {
    let mut line = Timeline::new(settings());
    assert_eq!(line.session.deadline(), at(30));
    line.passes(at(29));
    assert_eq!(line.reason(), "");
    line.session.receive_contact(CONTACT, at(29));
    assert_eq!(line.session.deadline(), at(30), "a byte now and then buys no time");
    line.passes(at(30));
    line.is_over("no SESS_INIT within 30 s");
}

/// RFC 9174 §5.1.1: keepalives are sent, and a peer that is silent for two intervals is given up.
#[test]
fn silence_for_two_intervals_ends_the_session_and_half_of_one_makes_a_keepalive() {
    let mut line = Timeline::established(settings());
    assert_eq!(line.passes(at(9)), []);
    assert_eq!(line.passes(at(10)), [Message::Keepalive]);
    assert_eq!(line.passes(at(20)), [Message::Keepalive]);
    line.gets(&[Message::Keepalive]);
    assert_eq!(line.passes(at(59)), [Message::Keepalive]);
    assert_eq!(line.passes(at(60)), [term(false, TermReason::IDLE_TIMEOUT)]);
    line.is_over("nothing came");
}

#[test]
fn a_disk_that_takes_its_time_is_no_silence_of_the_peer() {
    let mut line = Timeline::established(settings());
    line.session.set_busy(true, at(1));
    assert_eq!(line.passes(at(100)), [Message::Keepalive]);
    line.session.set_busy(false, at(100));
    assert_eq!(line.session.deadline(), at(110));
    assert_eq!(line.reason(), "");
}

/// RFC 9174 §5.2.3: each segment is acknowledged when it is stored, the last one when the bundle is.
#[test]
fn each_segment_is_acknowledged_when_it_is_stored_and_the_last_when_all_is_finished() {
    let mut line = Timeline::established(settings());
    let begin = format!("{:?}", Event::Begin { announced: Some(5) });
    assert_eq!(line.data(announced(9, 5, false, 3), 2), [begin, "Data 2".into()]);
    assert_eq!(line.written(), []);
    assert_eq!(line.gets_bytes(&[7]), ["Data 1"]);
    assert_eq!(line.written(), [Message::Ack { flags: SegmentFlags::START, id: 9, len: 3 }]);
    assert_eq!(line.data(segment(9, false, true, 2), 2), ["Data 2", "Complete"]);
    assert_eq!(line.written(), [Message::Ack { flags: SegmentFlags::END, id: 9, len: 5 }]);
}

#[test]
fn two_segments_in_one_read_are_both_answered() {
    let mut line = Timeline::established(settings());
    let mut input = bytes(&[segment(0, true, false, 1)]);
    input.push(1);
    input.extend(bytes(&[segment(0, false, true, 0), segment(1, true, true, 0), Message::Keepalive]));
    let begin = format!("{:?}", Event::Begin { announced: None });
    assert_eq!(line.gets_bytes(&input), [&begin, "Data 1", "Complete", &begin, "Complete"]);
    assert_eq!(line.written().len(), 3);
}

/// RFC 9174 §5.1.2, §5.2.2: segments that do not belong to a transfer are rejected as unexpected.
#[test]
fn segments_that_do_not_belong_end_the_session() {
    let one = segment(1, true, false, 0);
    for (second, why) in [
        (segment(2, true, false, 0), "began transfer 2 before the end of transfer 1"),
        (segment(1, true, false, 0), "began transfer 1 before the end of transfer 1"),
        (segment(2, false, false, 0), "continued transfer 2, which has not begun"),
        (segment(1, false, false, 1001), "a segment of 1001 bytes, and at most 1000"),
    ] {
        let mut line = Timeline::established(settings());
        line.gets(&[one.clone(), second]);
        line.is_over(why);
        let unexpected =
            Message::Reject { reason: RejectReason::UNEXPECTED, header: message::kind::XFER_SEGMENT };
        assert_eq!(line.written()[1..], [unexpected, term(false, TermReason::UNKNOWN)]);
    }
    let mut line = Timeline::established(settings());
    line.gets(&[segment(3, true, true, 0), segment(3, true, true, 0)]);
    line.is_over("used transfer ID 3 twice");
}

fn refusals(line: &mut Timeline) -> Vec<(u64, Refusal)> {
    let refusal = |message| match message {
        Message::Refuse { reason, id } => Some((id, reason)),
        _ => None,
    };
    line.written().into_iter().filter_map(refusal).collect()
}

/// RFC 9174 §5.2.4: segments of a refused transfer that were on their way are refused, and the next transfer
/// counts.
#[test]
fn each_further_segment_of_a_refused_transfer_is_refused_and_the_next_transfer_counts() {
    let mut line = Timeline::established(settings());
    line.data(segment(1, true, false, 4), 4);
    line.session.refuse(Refusal::NoResources);
    assert_eq!(refusals(&mut line), [(1, Refusal::NoResources)]);
    // RFC 9174 §5.2.4: they may have been on their way.
    assert!(line.data(segment(1, false, false, 4), 4).is_empty());
    assert!(line.data(segment(1, false, true, 4), 4).is_empty());
    assert_eq!(refusals(&mut line), [(1, Refusal::NoResources); 2]);
    assert_eq!(line.data(segment(2, true, true, 4), 4).last().unwrap(), "Complete");
    assert_eq!(line.written(), [Message::Ack { flags: SegmentFlags::WHOLE, id: 2, len: 4 }]);
    // RFC 9174 §5.2.4: the sender may also stop in the middle and begin the next.
    line.data(segment(3, true, false, 4), 4);
    line.session.refuse(Refusal::Completed);
    assert_eq!(line.data(segment(4, true, true, 1), 1).last().unwrap(), "Complete");
}

/// RFC 9174 §5.2.5.1: a transfer that does not have the length that it announced is refused.
#[test]
fn lies_about_lengths_are_refused() {
    let mut line = Timeline::established(settings());
    assert!(line.data(announced(1, 5001, false, 3), 3).is_empty(), "the host is not even asked");
    assert_eq!(refusals(&mut line), [(1, Refusal::NoResources)]);
    // More than was announced.
    line.data(announced(2, 3, false, 3), 3);
    line.data(segment(2, false, true, 1), 1);
    assert_eq!(refusals(&mut line), [(2, Refusal::NotAcceptable)]);
    // Less.
    let seen = line.data(announced(3, 4, true, 3), 3);
    assert_eq!(seen.last().unwrap(), "Abandoned");
    assert_eq!(refusals(&mut line), [(3, Refusal::NotAcceptable)]);
    // More than the transfer MRU, without a word.
    for part in 0..5 {
        line.data(segment(4, part == 0, false, 1000), 1000);
    }
    assert_eq!(refusals(&mut line), []);
    assert!(line.data(segment(4, false, true, 1), 1).is_empty());
    assert_eq!(refusals(&mut line), [(4, Refusal::NoResources)]);
    assert_eq!(line.reason(), "");
}

/// RFC 9174 §5.2.5: critical transfer extension items that are not known are refused.
#[test]
fn extensions_that_are_not_understood_are_refused_but_for_the_lenient() {
    let strange = TransferExtensions { length: Some(2), critical_unknown: true, malformed: true };
    for lenient in [false, true] {
        let mut line = Timeline::established(SessionSettings { lenient, ..settings() });
        let head = SegmentHead { flags: SegmentFlags::WHOLE, id: 0, extensions: strange, len: 3 };
        let (len, event) = line.session.on_segment(head, at(0)).map_or((0, None), |event| (1, Some(event)));
        assert_eq!((len == 1, event), (lenient, lenient.then_some(Event::Begin { announced: None })));
        assert_eq!(refusals(&mut line), if lenient { vec![] } else { vec![(0, Refusal::ExtensionFailure)] });
    }
}

/// Begins transfers of these lengths and sends all of their segments.
fn send(line: &mut Timeline, lengths: &[u64]) {
    for (handle, len) in lengths.iter().enumerate() {
        line.session.may_begin().unwrap();
        line.session.begin(handle as u64, *len);
        while line.session.segment(&mut Vec::new(), at(0)).is_some() {}
    }
}

/// RFC 9174 §5.2.2, §5.2.5.1: a transfer is cut to the peer's segment MRU, and says its length if it has
/// several segments.
#[test]
fn a_transfer_is_cut_to_the_peers_segments_and_says_its_length_if_it_has_several() {
    let mut line = Timeline::established(settings());
    let mut heads = Vec::new();
    for len in [700, 300, 0] {
        line.session.begin(len, len);
        assert_eq!(line.session.sending(), Some(len));
        let mut out = Vec::new();
        while line.session.segment(&mut out, at(0)).is_some() {
            let Some((Message::Segment(head), _)) = Message::decode(&out).unwrap() else { panic!() };
            let SegmentFlags(flags) = head.flags;
            heads.push((head.id, flags, head.len, head.extensions.length));
            out.clear();
        }
        assert_eq!(line.session.sending(), None);
    }
    assert_eq!(
        heads,
        [(0, 2, 300, Some(700)), (0, 0, 300, None), (0, 1, 100, None), (1, 3, 300, None), (2, 3, 0, None)]
    );
}

#[test]
fn completion_is_judged_by_the_acknowledged_length_whatever_the_flags_and_the_order() {
    let mut line = Timeline::established(settings());
    send(&mut line, &[300, 700, 0]);
    assert_eq!(line.gets(&[ack(1, 300), ack(1, 600)]), [""; 0]);
    assert_eq!(line.gets(&[ack(2, 0)]), ["Sent(2)"]);
    assert_eq!(line.gets(&[ack(1, 700), ack(0, 300)]), ["Sent(1)", "Sent(0)"]);
    assert_eq!(line.reason(), "");
}

#[test]
fn acknowledgements_of_unsent_data_end_the_session() {
    for (acks, why) in [
        (vec![ack(5, 0)], "acknowledged transfer 5, which was not sent"),
        (vec![ack(0, 301)], "acknowledged 301 bytes of transfer 0, of which 300 were sent"),
        (vec![ack(0, 200), ack(0, 100)], "acknowledged 100 bytes of transfer 0 after 200"),
        (vec![ack(0, 1), ack(0, 2)], "more often than it got segments"),
        (vec![Message::Refuse { reason: Refusal::Completed, id: 1 }], "refused transfer 1"),
    ] {
        let mut line = Timeline::established(settings());
        line.session.begin(0, 700);
        line.session.segment(&mut Vec::new(), at(0)).unwrap();
        if why.contains("after") {
            line.session.segment(&mut Vec::new(), at(0)).unwrap();
        }
        line.gets(&acks);
        line.is_over(why);
        assert_eq!(line.session.abandon(), [0], "its fate is not known");
    }
}

/// RFC 9174 §5.2.4: a transfer that the peer refuses is not continued.
#[test]
fn a_refused_transfer_is_not_continued() {
    let mut line = Timeline::established(settings());
    line.session.begin(7, 700);
    line.session.segment(&mut Vec::new(), at(0)).unwrap();
    let refuse = Message::Refuse { reason: Refusal::Completed, id: 0 };
    assert_eq!(line.gets(std::slice::from_ref(&refuse)), ["Refused(7, Completed)"]);
    assert_eq!(line.session.sending(), None);
    assert_eq!(line.session.segment(&mut Vec::new(), at(0)), None);
    // dtn7-rs acknowledges before it refuses, so what is late is overlooked.
    assert_eq!(line.gets(&[ack(0, 300), refuse]), [""; 0]);
    assert_eq!(line.reason(), "");
}

#[test]
fn refusals_of_all_segments_of_a_refused_transfer_are_no_flood() {
    let mut line = Timeline::established(settings());
    line.session.begin(7, 1_000_000);
    let mut sent = 0;
    while sent < 2 * IDLE_BURST {
        line.session.segment(&mut Vec::new(), at(0)).unwrap();
        sent += 1;
    }
    let refuse = Message::Refuse { reason: Refusal::NoResources, id: 0 };
    for _ in 0..sent {
        line.gets(std::slice::from_ref(&refuse));
    }
    assert_eq!(line.reason(), "");
    for _ in 0..=IDLE_BURST {
        line.gets(std::slice::from_ref(&refuse));
    }
    line.is_over("floods");
}

/// RFC 9174 §5.2.3: also those of its flags that nobody knows.
#[test]
fn an_acknowledgement_repeats_the_flags_of_its_segment() {
    let mut line = Timeline::established(settings());
    let (flags, extensions) = (SegmentFlags(0x87), TransferExtensions::default());
    line.data(Message::Segment(SegmentHead { flags, id: 1, extensions, len: 4 }), 4);
    assert_eq!(line.written(), [Message::Ack { flags, id: 1, len: 4 }]);
}

/// RFC 9174 §5.2.3: answers wait until the bundle is stored, and keep the order of the transfers.
#[test]
fn answers_wait_for_outcomes_and_keep_their_order() {
    let mut line = Timeline::established(settings());
    line.waits = true;
    for id in 1..4 {
        line.data(segment(id, true, true, 4), 4);
    }
    line.data(segment(4, true, false, 4), 4);
    let tickets = std::mem::take(&mut line.tickets);
    assert_eq!((tickets.len(), line.written()), (3, vec![]));
    line.session.finished(tickets[1], Err(Refusal::NoResources), at(1));
    line.session.finished(tickets[1], Ok(()), at(1));
    assert_eq!(line.written(), []);
    let whole = |id| Message::Ack { flags: SegmentFlags::WHOLE, id, len: 4 };
    line.session.finished(tickets[0], Ok(()), at(1));
    assert_eq!(line.written(), [whole(1), Message::Refuse { reason: Refusal::NoResources, id: 2 }]);
    line.session.finished(tickets[2], Ok(()), at(1));
    assert_eq!(line.written(), [whole(3), Message::Ack { flags: SegmentFlags::START, id: 4, len: 4 }]);
}

#[test]
fn a_session_ends_when_the_last_outcome_is_known() {
    let mut line = Timeline::established(settings());
    line.waits = true;
    line.data(segment(1, true, true, 4), 4);
    line.gets(&[term(false, TermReason::UNKNOWN)]);
    assert_eq!((line.written(), line.reason()), (vec![term(true, TermReason::UNKNOWN)], ""));
    line.session.finished(line.tickets[0], Ok(()), at(9));
    assert_eq!(line.written(), [Message::Ack { flags: SegmentFlags::WHOLE, id: 1, len: 4 }]);
    assert!(line.session.end().unwrap().in_order);
}

#[test]
fn transfers_without_outcome_are_bounded() {
    let mut line = Timeline::established(settings());
    line.waits = true;
    let mut id = 0;
    while !line.session.is_congested() {
        line.data(segment(id, true, true, 0), 0);
        id += 1;
    }
    assert_eq!(id, 1024);
    line.session.finished(line.tickets[0], Ok(()), at(1));
    assert!(!line.session.is_congested());
}

#[test]
fn unacknowledged_data_are_bounded() {
    let mut line = Timeline::established(settings());
    send(&mut line, &vec![1; MAX_UNACKNOWLEDGED]);
    assert_eq!(line.session.may_begin(), None);
    line.gets(&[ack(5, 1)]);
    assert_eq!(line.session.may_begin(), Some(3000));
}

#[test]
fn floods_end_the_session() {
    for (message, why) in [
        (Message::Keepalive, "floods this node with keepalives"),
        (segment(0, false, false, 0), "empty segments"),
    ] {
        let mut line = Timeline::established(settings());
        line.gets(&[segment(0, true, false, 0)]);
        for second in 0..60 {
            line.now = at(second);
            line.gets(&vec![message.clone(); 5]);
            line.written();
        }
        assert_eq!(line.reason(), "", "five in a second are no flood");
        line.gets(&vec![message; 2 * IDLE_BURST as usize]);
        line.is_over(why);
    }
    let mut line = Timeline::established(settings());
    line.gets(&[Message::Reject { reason: RejectReason::UNSUPPORTED, header: 1 }]);
    line.is_over("rejected this node's message of type 0x01");
}

#[test]
fn unread_answers_are_bounded() {
    let mut line = Timeline::established(settings());
    for id in 0.. {
        line.gets(&[segment(id, true, true, 0)]);
        if line.session.end().is_some() {
            break;
        }
        assert!(id < MAX_CONTROL as u64 / 18 + 2, "it is never full");
    }
    line.is_over("sends but does not read");
}

/// RFC 9174 §6.1: an ending session finishes the transfers that have begun, and begins none.
#[test]
fn an_ending_session_finishes_started_transfers_only() {
    let mut line = Timeline::established(settings());
    line.session.begin(4, 600);
    line.session.segment(&mut Vec::new(), at(0)).unwrap();
    line.data(segment(1, true, false, 2), 2);
    line.written();
    line.session.terminate(at(1));
    assert_eq!(line.written(), [term(false, TermReason::UNKNOWN)]);
    assert_eq!(line.session.may_begin(), None);
    line.gets(&[term(true, TermReason::UNKNOWN)]);
    assert_eq!(line.reason(), "");
    assert_eq!(line.data(segment(1, false, true, 2), 2), ["Data 2", "Complete"]);
    assert!(line.data(segment(2, true, true, 2), 2).is_empty());
    assert!(line.written().contains(&Message::Refuse { reason: Refusal::SessionTerminating, id: 2 }));
    assert!(line.session.segment(&mut Vec::new(), at(1)).unwrap().end);
    assert_eq!(line.gets(&[ack(0, 300), ack(0, 600)]), ["Sent(4)"]);
    assert!(line.session.end().unwrap().in_order, "{}", line.reason());
}

/// RFC 9174 §6.1: a peer that ends the session is answered and waited for.
#[test]
fn a_peer_that_ends_the_session_is_answered_and_waited_for() {
    let mut line = Timeline::established(settings());
    send(&mut line, &[1]);
    line.gets(&[term(false, TermReason::BUSY)]);
    assert_eq!(line.written(), [term(true, TermReason::BUSY)]);
    assert_eq!(line.session.end(), None);
    assert_eq!(line.gets(&[ack(0, 1)]), ["Sent(0)"]);
    let end = line.session.end().unwrap();
    assert!(end.in_order && end.by == EndedBy::Peer && end.reason.contains("busy"), "{end:?}");
}

#[test]
fn an_ending_without_progress_is_cut_short_whatever_else_is_said() {
    let mut line = Timeline::established(settings());
    send(&mut line, &[1]);
    line.session.terminate(at(0));
    for second in 1..30 {
        line.now = at(second);
        line.session.set_busy(true, at(second));
        line.gets(&[Message::Keepalive]);
        line.session.set_busy(false, at(second));
        line.passes(at(second));
        assert_eq!(line.reason(), "");
    }
    line.passes(at(30));
    line.is_over("did not end the session within 30 s");
    assert_eq!(line.session.abandon(), [0]);
}

#[test]
fn a_closed_connection_reports_its_losses() {
    let mut line = Timeline::established(settings());
    line.data(segment(1, true, true, 9), 3);
    line.session.receive_eof();
    line.is_over("in the middle of a session, with a transfer half done");
    assert_eq!(line.session.end().unwrap().by, EndedBy::Peer);
    let mut line = Timeline::new(settings());
    line.session.receive_eof();
    line.is_over("without a word");
}

/// RFC 9174 §5.1.2, §6.1: messages before SESS_INIT, and a second one, are rejected; a SESS_TERM is answered
/// also then.
#[test]
fn early_or_repeated_messages_end_the_session() {
    for (message, why) in [
        (segment(0, true, true, 0), "data before SESS_INIT"),
        (ack(0, 0), "XFER_ACK before"),
        (term(false, TermReason::BUSY), "does not want this session: busy"),
    ] {
        let mut line = Timeline::new(settings());
        line.session.receive_contact(CONTACT, at(0));
        line.gets(&[message]);
        line.is_over(why);
    }
    // RFC 9174 §6.1: an end is answered, even then.
    let mut line = Timeline::new(settings());
    line.session.receive_contact(CONTACT, at(0));
    line.written();
    line.gets(&[term(false, TermReason::BUSY)]);
    assert_eq!(line.written(), [term(true, TermReason::BUSY)]);
    assert_eq!(line.session.end().unwrap().by, EndedBy::Peer);
    for (message, why) in [
        (init("dtn://them/"), "second SESS_INIT"),
        (term(true, TermReason::BUSY), "answered a SESS_TERM that nobody sent"),
    ] {
        let mut line = Timeline::established(settings());
        line.gets(&[message]);
        line.is_over(why);
    }
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic_or_spin(
        input in prop::collection::vec(prop_oneof![0_u8..8, Just(0_u8), any::<u8>()], 0..400), cut in 1_usize..40,
    ) {
        let mut line = Timeline::established(settings());
        for part in input.chunks(cut) {
            line.gets_bytes(part);
        }
        prop_assert!(line.session.control.len() <= MAX_CONTROL + 64);
    }
}
