//! Header compression: contexts, which both ends share, make the headers of a flow's packets short.
//!
//! A context is a template and its number, the CID, of which there are 256. The sender tells it in a frame of its
//! own and uses it when the peer has confirmed it in a report; until then the flow's packets are whole. So no
//! packet depends on a frame that may be lost, and the template needs no room in a packet.
//!
//! ```text
//!  sender                                                   receiver
//!  packet 1 of a flow: whole
//!  packet 2 of it: whole;  contexts(CID 5, generation 1) ──► has it
//!  … whole                                               ◄── report(confirms CID 5, generation 1)
//!  compressed with CID 5  ─────────────────────────────────► expands it
//! ```
//!
//! **What packets share behind their headers.** When a flow has had some packets with its context, those of their
//! first bytes that were the same in all of them go into a second context, with a longer template. A packet that
//! differs in one of these bytes uses the first one. When many in a row do, another second context is sought,
//! over twice as many packets as before.
//!
//! A box that knows no longer templates refuses the frames that tell them. Each has a frame of its own, so
//! that nothing else is refused with it, and is told a few times only.
//!
//! **A CID that is used again.** What was compressed with the old template may still be on its way, be sent
//! again, or be a part of repair symbols. So the sender takes a CID for another flow only when the peer has
//! said that it needs none of the packets any more that were compressed with it. The receiver notes, when it
//! learns a template, which packets of each class it still needs. All packets that were compressed with an
//! earlier template have lower numbers, and those with the new one have higher numbers, as they were sent
//! after the confirmation. One with a lower number is refused: it can only be one that was given up and
//! comes late. Generations tell frames and confirmations of the earlier template from those of the new one.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use bentpipe_units::Time;
use serde::{Deserialize, Serialize};

use crate::header::{Form, Shared, Template, whole};
use crate::window::Esi;

/// Contexts of a direction at most, as many as a byte tells apart.
pub const MAX_CONTEXTS: usize = 256;
/// Contexts that one frame tells at most.
pub(crate) const MAX_OPENINGS: usize = 16;
/// Confirmations in a report at most.
pub(crate) const MAX_CONFIRMATIONS: usize = 64;
/// A context whose flow has been silent for so long may make room for another one.
const IDLE: Duration = Duration::from_secs(1);
/// Flows of one packet get no context: so many templates are remembered that were seen once.
const SEEN: usize = 256;
/// Packets over which what they share is sought, at first; at most so many times doubled.
const LEARNED_FROM: u32 = 16;
const MOST_DOUBLINGS: u32 = 16;
/// A longer template is made for so many shared bytes or more: it takes a context and a frame.
const WORTHWHILE: usize = 4;
/// Packets in a row that do not share what the longer template leaves out before another one is sought.
const MISSES: u32 = 16;
/// A longer template is told so many times at most: the peer may not know such.
const TELLINGS: u8 = 4;
/// A confirmation may take longer than a round trip by so much: reports leave this often.
const MARGIN: Duration = Duration::from_millis(120);

/// A context that is told or confirmed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContextId {
    /// Its number.
    pub cid: u8,
    /// How many templates have had this number before, modulo 2¹⁶.
    pub generation: u16,
}

/// The contexts of what a box sends.
#[derive(Debug, Serialize, Deserialize)]
pub struct Compressor {
    most: usize,
    contexts: Vec<Context>,
    by_template: BTreeMap<Template, u8>,
    /// Contexts to be told: those that are `wanted`.
    wanted: Vec<u8>,
    seen: Vec<u64>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Context {
    template: Template,
    generation: u16,
    confirmed: bool,
    /// When it was told last.
    told: Option<Time>,
    /// Whether its flow has had a packet since then, and it is not confirmed.
    wanted: bool,
    used_at: Time,
    /// The number behind the last packet that was compressed with it, for each class.
    end: [Esi; 2],
    #[serde(default)]
    tellings: u8,
    #[serde(default)]
    second: Second,
}

/// What a flow's first context knows of its second one, whose template is longer.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Second {
    id: Option<ContextId>,
    /// Packets in a row that it does not fit.
    misses: u32,
    /// While there is none: what the packets have shared, how many these were, and how many times one was
    /// sought.
    shared: Option<Shared>,
    packets: u32,
    sought: u32,
}

impl Second {
    /// Takes a packet into account. What all have shared, when there were enough.
    fn learn(&mut self, body: &[u8]) -> Option<Shared> {
        match &mut self.shared {
            None => self.shared = Some(Shared::of(body)),
            Some(shared) => shared.narrow(body),
        }
        self.packets += 1;
        if self.packets < LEARNED_FROM << self.sought {
            return None;
        }
        self.sought = (self.sought + 1).min(MOST_DOUBLINGS);
        self.packets = 0;
        self.shared.take()
    }
}

impl Compressor {
    /// Without contexts yet; it will have so many at most, and never more than [`MAX_CONTEXTS`].
    pub fn new(most: usize) -> Self {
        Self {
            most: most.min(MAX_CONTEXTS),
            contexts: Vec::new(),
            by_template: BTreeMap::new(),
            wanted: Vec::new(),
            seen: vec![0; SEEN],
        }
    }

    /// The form of a packet that becomes number `esi` of the class with this index. `needs_from`: which
    /// packets the peer still needs, from this one on in each class.
    pub fn compress(
        &mut self,
        packet: Vec<u8>,
        class: usize,
        esi: Esi,
        needs_from: [Esi; 2],
        now: Time,
    ) -> Vec<u8> {
        let Some(template) = Template::of(&packet).filter(|_| self.most > 0) else { return whole(packet) };
        let Some(cid) = self.by_template.get(&template).copied() else {
            self.on_new(template, needs_from, now);
            return whole(packet);
        };
        let context = &mut self.contexts[usize::from(cid)];
        context.used_at = now;
        if !context.confirmed {
            if !std::mem::replace(&mut context.wanted, true) {
                self.wanted.push(cid);
            }
            return whole(packet);
        }
        let cid = self.longest(cid, &packet[template.header()..], needs_from, now);
        let context = &mut self.contexts[usize::from(cid)];
        context.end[class] = esi + 1;
        context.template.compress(cid, packet)
    }

    /// The context that leaves out most of a packet whose flow has this one, which is confirmed.
    fn longest(&mut self, first: u8, body: &[u8], needs_from: [Esi; 2], now: Time) -> u8 {
        let mut second = std::mem::take(&mut self.contexts[usize::from(first)].second);
        let mut chosen = first;
        if let Some(id) = second.id {
            let context = &mut self.contexts[usize::from(id.cid)];
            // Where the flow was silent, another one may have its CID now.
            let is_its = context.generation == id.generation;
            if is_its && context.template.fits(body) {
                second.misses = 0;
                context.used_at = now;
                if context.confirmed {
                    chosen = id.cid;
                } else if context.tellings < TELLINGS && !std::mem::replace(&mut context.wanted, true) {
                    self.wanted.push(id.cid);
                }
            } else {
                second.misses += 1;
                if !is_its || second.misses == MISSES {
                    (second.id, second.misses) = (None, 0);
                }
            }
        } else if let Some(shared) = second.learn(body).filter(|shared| shared.count() >= WORTHWHILE) {
            let template = self.contexts[usize::from(first)].template.longer(&shared);
            second.id = match self.by_template.get(&template) {
                Some(&cid) => Some(ContextId { cid, generation: self.contexts[usize::from(cid)].generation }),
                None => self.open(template, needs_from, now),
            };
        }
        self.contexts[usize::from(first)].second = second;
        chosen
    }

    /// Makes a context of a template that is seen for the second time.
    fn on_new(&mut self, template: Template, needs_from: [Esi; 2], now: Time) {
        let mut hasher = DefaultHasher::new();
        template.hash(&mut hasher);
        let hash = hasher.finish();
        let seen = &mut self.seen[(hash % SEEN as u64) as usize];
        if *seen != hash {
            *seen = hash;
            return;
        }
        self.open(template, needs_from, now);
    }

    /// Makes a context, if there is one to be had.
    fn open(&mut self, template: Template, needs_from: [Esi; 2], now: Time) -> Option<ContextId> {
        let index = if self.contexts.len() < self.most {
            self.contexts.len()
        } else {
            let usable = |context: &Context| {
                let needed = context.end.iter().zip(needs_from).any(|(end, from)| *end > from);
                !needed && now - context.used_at >= IDLE
            };
            let usable = self.contexts.iter().enumerate().filter(|(_, context)| usable(context));
            usable.min_by_key(|(_, context)| context.used_at)?.0
        };
        let generation = self.contexts.get(index).map_or(0, |old| old.generation.wrapping_add(1));
        let context = Context {
            template,
            generation,
            confirmed: false,
            told: None,
            wanted: true,
            used_at: now,
            end: [0; 2],
            tellings: 0,
            second: Second::default(),
        };
        let id = ContextId { cid: index as u8, generation };
        self.by_template.insert(template, id.cid);
        let mut listed = false;
        match self.contexts.get_mut(index) {
            None => self.contexts.push(context),
            Some(old) => {
                listed = old.wanted;
                self.by_template.remove(&old.template);
                *old = context;
            }
        }
        if !listed {
            self.wanted.push(id.cid);
        }
        Some(id)
    }

    /// The contexts to be told now in a frame, if there are any: one with a longer template is alone.
    pub fn openings(&mut self, now: Time, rtt: Duration) -> Vec<(ContextId, Template)> {
        let contexts = &mut self.contexts;
        let mut told = Vec::new();
        self.wanted.retain(|cid| {
            let context = &mut contexts[usize::from(*cid)];
            let is_full = told.len() == MAX_OPENINGS
                || !told.is_empty() && context.template.is_longer()
                || told.iter().any(|(_, template): &(_, Template)| template.is_longer());
            if !context.confirmed && (is_full || context.due(rtt) > now) {
                return true;
            }
            context.wanted = false;
            if !context.confirmed {
                context.told = Some(now);
                context.tellings = context.tellings.saturating_add(1);
                told.push((ContextId { cid: *cid, generation: context.generation }, context.template));
            }
            false
        });
        told
    }

    /// When there will be contexts to be told although nothing happens.
    pub fn wake_at(&self, rtt: Duration) -> Option<Time> {
        let wanted = self.wanted.iter().map(|cid| &self.contexts[usize::from(*cid)]);
        wanted.filter(|context| !context.confirmed).map(|context| context.due(rtt)).min()
    }

    /// The peer has these.
    pub fn on_confirmed(&mut self, confirmed: &[ContextId]) {
        for id in confirmed {
            if let Some(context) = self.contexts.get_mut(usize::from(id.cid)) {
                context.confirmed |= context.generation == id.generation && context.told.is_some();
            }
        }
    }

    /// Contexts that are confirmed.
    pub fn confirmed(&self) -> usize {
        self.contexts.iter().filter(|context| context.confirmed).count()
    }
}

impl Context {
    /// When it is to be told.
    fn due(&self, rtt: Duration) -> Time {
        self.told.map_or(Time::ZERO, |at| at + rtt + MARGIN)
    }
}

/// The contexts of what the peer sends.
#[derive(Debug, Serialize, Deserialize)]
pub struct Expander {
    contexts: Vec<Option<Known>>,
    to_confirm: Vec<ContextId>,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Known {
    template: Template,
    generation: u16,
    /// No packet before this one was compressed with it, for each class.
    from: [Esi; 2],
}

/// A packet that cannot be expanded: what is left out is not known any more, or the peer is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unknown;

impl Default for Expander {
    fn default() -> Self {
        Self { contexts: vec![None; MAX_CONTEXTS], to_confirm: Vec::new() }
    }
}

impl Expander {
    /// The peer tells a context. `needs_from`: the packets that are still needed, of each class.
    pub fn on_opening(&mut self, id: ContextId, template: Template, needs_from: [Esi; 2]) {
        let known = &mut self.contexts[usize::from(id.cid)];
        // One that comes late is not newer. A frame is at most 4032 frames late, and each generation takes one.
        let ahead = known.map_or(1, |known| id.generation.wrapping_sub(known.generation) as i16);
        if ahead > 0 {
            *known = Some(Known { template, generation: id.generation, from: needs_from });
        }
        if ahead >= 0 && !self.to_confirm.contains(&id) {
            self.to_confirm.retain(|other| other.cid != id.cid);
            self.to_confirm.push(id);
        }
    }

    /// What a report confirms. If it is lost, the peer tells the contexts again.
    pub fn confirmations(&mut self) -> Vec<ContextId> {
        let count = self.to_confirm.len().min(MAX_CONFIRMATIONS);
        self.to_confirm.drain(..count).collect()
    }

    /// Appends the packet whose form this is, number `esi` of the class with this index.
    ///
    /// # Errors
    /// It is no form, or of a context that is not known.
    pub fn expand(&self, form: &[u8], class: usize, esi: Esi, out: &mut Vec<u8>) -> Result<(), Unknown> {
        match Form::read(form).ok_or(Unknown)? {
            Form::Whole(packet) => out.extend_from_slice(packet),
            Form::Compressed(form) => {
                let known = self.contexts[usize::from(form.cid)].filter(|known| known.from[class] <= esi);
                known.and_then(|known| known.template.expand(&form, out)).ok_or(Unknown)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ip::tests::ipv4_udp;

    const RTT: Duration = Duration::from_millis(600);

    /// Both ends of one class, whose packets are delivered in order and at once.
    struct Pair {
        compressor: Compressor,
        expander: Expander,
        esi: Esi,
        now: Time,
    }

    impl Pair {
        fn new() -> Self {
            let now = Time::ZERO + Duration::from_secs(1);
            Self { compressor: Compressor::new(MAX_CONTEXTS), expander: Expander::default(), esi: 0, now }
        }

        fn compress(&mut self, port: u16) -> (Esi, Vec<u8>, Vec<u8>) {
            self.compress_packet(ipv4_udp(port, 2, &self.esi.to_be_bytes()))
        }

        fn compress_packet(&mut self, packet: Vec<u8>) -> (Esi, Vec<u8>, Vec<u8>) {
            let form = self.compressor.compress(packet.clone(), 1, self.esi, [self.esi; 2], self.now);
            self.esi += 1;
            (self.esi - 1, packet, form)
        }

        fn expand(&self, esi: Esi, form: &[u8]) -> Option<Vec<u8>> {
            let mut out = Vec::new();
            self.expander.expand(form, 1, esi, &mut out).ok().map(|()| out)
        }

        /// Whether a packet of this flow was shorter; it is what was sent.
        fn send(&mut self, port: u16) -> bool {
            let (esi, packet, form) = self.compress(port);
            assert_eq!(self.expand(esi, &form).as_ref(), Some(&packet));
            form.len() < packet.len()
        }

        /// How many bytes are left out of a packet with this behind its header.
        fn saves(&mut self, payload: &[u8]) -> usize {
            let (esi, packet, form) = self.compress_packet(ipv4_udp(7, 2, payload));
            assert_eq!(self.expand(esi, &form).as_ref(), Some(&packet));
            packet.len() - form.len()
        }

        /// Sends so many packets, and tells and confirms contexts meanwhile; what the last packet saves.
        fn run(&mut self, packets: u64, mut payload: impl FnMut(u64) -> Vec<u8>) -> usize {
            let saved = (0..packets).map(|number| {
                self.tell();
                self.confirm();
                self.now += RTT;
                self.saves(&payload(number))
            });
            saved.last().unwrap()
        }

        fn tell(&mut self) -> usize {
            let openings = self.compressor.openings(self.now, RTT);
            openings.iter().for_each(|(id, template)| {
                self.expander.on_opening(*id, *template, [self.esi; 2]);
            });
            openings.len()
        }

        fn confirm(&mut self) {
            let confirmed = self.expander.confirmations();
            self.compressor.on_confirmed(&confirmed);
        }
    }

    #[test]
    fn a_flow_is_compressed_when_its_context_is_confirmed() {
        let mut pair = Pair::new();
        assert!(!pair.send(7) && pair.tell() == 0, "one packet makes no flow");
        assert!(!pair.send(7) && pair.tell() == 1 && !pair.send(7));
        pair.confirm();
        assert!(pair.send(7) && !pair.send(8));
        assert_eq!((pair.tell(), pair.compressor.confirmed()), (0, 1));
    }

    #[test]
    fn a_context_whose_frame_or_confirmation_is_lost_is_told_again_while_its_flow_goes_on() {
        let mut pair = Pair::new();
        pair.send(7);
        pair.send(7);
        assert_eq!(pair.compressor.wake_at(RTT), Some(Time::ZERO));
        assert_eq!(pair.compressor.openings(pair.now, RTT).len(), 1);
        assert_eq!(pair.compressor.wake_at(RTT), None);
        pair.now += Duration::from_secs(5);
        assert_eq!(pair.tell(), 0, "the flow is silent");
        pair.send(7);
        assert_eq!(pair.tell(), 1);
        drop(pair.expander.confirmations());
        pair.send(7);
        assert_eq!((pair.tell(), pair.compressor.wake_at(RTT)), (0, Some(pair.now + RTT + MARGIN)));
        pair.now += RTT + MARGIN;
        assert_eq!(pair.tell(), 1, "what is confirmed before is confirmed again");
        pair.confirm();
        assert!(pair.send(7));
    }

    #[test]
    fn a_number_is_used_again_when_its_flow_is_silent_and_nothing_of_it_is_needed() {
        let mut pair = Pair::new();
        for port in 0..256 {
            pair.send(port);
            pair.send(port);
        }
        while pair.tell() > 0 {}
        (0..4).for_each(|_| pair.confirm());
        let (late, _, form) = pair.compress(0);
        let (esi, packet) = (pair.esi, ipv4_udp(999, 0, b"x"));
        pair.now += IDLE;
        (1..256).for_each(|port| assert!(pair.send(port)));
        for needs_from in [late, late + 1] {
            for _ in 0..2 {
                pair.compressor.compress(packet.clone(), 1, esi, [needs_from; 2], pair.now);
            }
            assert_eq!(pair.tell(), usize::from(needs_from > late), "what came last may still be needed");
        }
        // One that was given up comes when the number has another meaning.
        assert_eq!(pair.expand(late, &form), None);
        pair.confirm();
        assert!(pair.send(999) && !pair.send(0));
    }

    #[test]
    fn frames_and_confirmations_of_an_earlier_generation_change_nothing() {
        let mut pair = Pair::new();
        let [old, new] = [7, 8].map(|port| Template::of(&ipv4_udp(port, 0, b"x")).unwrap());
        let id = |generation| ContextId { cid: 0, generation };
        for (before, after) in [(1, 2), (u16::MAX, 0)] {
            pair.expander = Expander::default();
            pair.expander.on_opening(id(before), old, [0; 2]);
            pair.expander.on_opening(id(after), new, [0; 2]);
            pair.expander.on_opening(id(before), old, [0; 2]);
            assert_eq!(pair.expander.confirmations(), [id(after)]);
            let form = new.compress(0, ipv4_udp(8, 0, b"x"));
            assert_eq!(pair.expand(0, &form), Some(ipv4_udp(8, 0, b"x")));
        }
        pair.send(7);
        pair.send(7);
        pair.compressor.on_confirmed(&[id(0)]);
        assert!(!pair.send(7), "it was not told yet");
        pair.compressor.openings(pair.now, RTT);
        pair.compressor.on_confirmed(&[id(1), ContextId { cid: 9, generation: 0 }]);
        assert!(!pair.send(7));
        pair.compressor.on_confirmed(&[id(0)]);
        let (esi, _, form) = pair.compress(7);
        assert_eq!(form.len(), 11, "the header has become 3 bytes");
        pair.expander = Expander::default();
        assert_eq!(pair.expand(esi, &form), None, "another session knows nothing of it");
    }

    /// A QUIC packet with a short header: flags, connection ID, and what is encrypted.
    fn quic(id: u64, number: u64) -> Vec<u8> {
        let encrypted = (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let flags = 0x40 | encrypted as u8 & 0x1f;
        [&[flags][..], &id.to_be_bytes(), &encrypted.to_be_bytes(), &encrypted.rotate_left(32).to_be_bytes()]
            .concat()
    }

    #[test]
    fn what_packets_share_behind_their_headers_is_left_out_too() {
        let mut pair = Pair::new();
        assert_eq!(pair.run(40, |number| quic(1234, number)), 25 + 8);
        assert_eq!(pair.compressor.confirmed(), 2);
        assert_eq!(pair.saves(&quic(99, 1)), 25, "one with another connection ID");
        assert_eq!(pair.saves(&[0xc0; 4]), 25, "one that is too short");
        assert_eq!(pair.saves(&quic(1234, 40)), 25 + 8);
        assert_eq!(pair.run(60, |number| quic(99, number)), 25 + 8, "it has another connection ID now");
        assert_eq!(
            pair.run(200, |number| (number + 1).wrapping_mul(u64::MAX / 7).to_le_bytes().to_vec()),
            25
        );
    }

    /// The upper bytes of a counter seem to be shared until they change.
    #[test]
    fn of_the_counter_of_a_tunnel_what_changes_is_carried() {
        let mut pair = Pair::new();
        let wireguard = |number: u64| {
            let encrypted = (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
            [&[4, 0, 0, 0, 1, 2, 3, 4][..], &number.to_le_bytes(), &encrypted, &encrypted].concat()
        };
        let saved = pair.run(200_000, wireguard);
        assert!(
            (25 + 8 + 5..=25 + 8 + 6).contains(&saved),
            "{saved}: its third byte changes every 65,536 packets"
        );
    }

    #[test]
    fn a_peer_that_knows_no_longer_templates_is_told_them_a_few_times_and_apart_from_others() {
        let mut pair = Pair::new();
        let mut refused = 0;
        for number in 0..1000 {
            let saved = pair.saves(&quic(1234, number));
            assert!(saved <= 25);
            if number % 30 < 2 {
                pair.send(1000 + number as u16 / 30);
            }
            loop {
                let openings = pair.compressor.openings(pair.now, RTT);
                let longer = openings.iter().filter(|(_, template)| template.is_longer()).count();
                assert!(longer == 0 || openings.len() == 1, "{openings:?}");
                refused += longer;
                match openings.as_slice() {
                    [] => break,
                    known if longer == 0 => {
                        known.iter().for_each(|(id, template)| {
                            pair.expander.on_opening(*id, *template, [pair.esi; 2]);
                        });
                    }
                    _ => {}
                }
            }
            pair.confirm();
            pair.now += RTT;
        }
        assert_eq!(refused, usize::from(TELLINGS));
        assert_eq!(pair.compressor.confirmed(), 1 + 34, "those of the other flows");
    }
}
