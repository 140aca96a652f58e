//! The inputs: bundles made by two codecs, three quarters of them changed afterwards.

use std::time::Duration;

use bentpipe_dtn::bundle::{Bundle, CrcType, Fragment, HopCount, Priority, ReportRequests};
use bentpipe_dtn::{DtnTime, Eid};
use bp7::canonical::{CanonicalData, new_canonical_block};
use bp7::crc::{CRC_16, CRC_32, CRC_NO};
use bp7::flags::{BlockControlFlags, BundleControlFlags};
use bp7::primary::PrimaryBlockBuilder;
use bp7::{CreationTimestamp, EndpointID};

const ENDPOINTS: [&str; 6] =
    ["dtn:none", "dtn://a/", "dtn://node/in/box", "ipn:5.0", "ipn:23.42", "ipn:18446744073709551615.7"];

/// The next input.
pub(crate) fn input(random: &mut Random) -> Vec<u8> {
    let mut bytes = if random.below(2) == 0 { our_bundle(random) } else { bundle_of_bp7(random) };
    if random.below(4) > 0 {
        mutate(&mut bytes, random);
    }
    bytes
}

fn our_bundle(random: &mut Random) -> Vec<u8> {
    let mut eid = || random.of(&ENDPOINTS).parse::<Eid>().unwrap_or(Eid::None);
    let (source, destination, report_to, previous) = (eid(), eid(), eid(), eid());
    let (created, sequence) = (random.number(), random.number());
    let lifetime = Duration::from_millis(random.number());
    let mut bundle = Bundle::new(source, DtnTime::from_millis(created), sequence, destination, lifetime);
    bundle.report_to = report_to;
    bundle.is_admin = random.below(6) == 0;
    bundle.must_not_fragment |= random.below(3) == 0;
    bundle.report_times = random.below(2) == 0;
    let mut ask = || random.below(4) == 0;
    bundle.reports = ReportRequests { reception: ask(), forwarding: ask(), delivery: ask(), deletion: ask() };
    bundle.hops =
        (random.below(2) == 0).then(|| HopCount { limit: 1 + random.byte() % 255, count: random.byte() });
    if random.below(3) == 0 {
        bundle.age = Some(Duration::from_millis(random.number()));
    }
    bundle.previous_node = (random.below(3) == 0).then_some(previous);
    bundle.priority = *random.of(&[Priority::Bulk, Priority::Normal, Priority::Expedited]);
    bundle.payload_crc = *random.of(&[CrcType::None, CrcType::Crc16, CrcType::Crc32]);
    let payload: Vec<u8> = (0..random.below(40)).map(|_| random.byte()).collect();
    bundle.payload_len = payload.len() as u64;
    if random.below(4) == 0 && bundle.id.is_unique() {
        let (offset, more) = (random.below(1000), random.below(1000));
        let len = bundle.payload_len;
        bundle.id.fragment = Some(Fragment { offset, len, total: offset + len + more });
        bundle.must_not_fragment = false;
    }
    let mut tail = bundle.tail();
    tail.update(&payload);
    [bundle.head(), payload, tail.finish()].concat()
}

fn bundle_of_bp7(random: &mut Random) -> Vec<u8> {
    let mut eid = || EndpointID::try_from(*random.of(&ENDPOINTS[..5])).unwrap_or_else(|_| EndpointID::none());
    let (source, destination, report_to, previous) = (eid(), eid(), eid(), eid());
    let is_anonymous = source == EndpointID::none();
    let mut flags = BundleControlFlags::empty();
    for flag in [
        BundleControlFlags::BUNDLE_REQUEST_STATUS_TIME,
        BundleControlFlags::BUNDLE_STATUS_REQUEST_RECEPTION,
        BundleControlFlags::BUNDLE_STATUS_REQUEST_DELETION,
        BundleControlFlags::BUNDLE_REQUEST_USER_APPLICATION_ACK,
    ] {
        flags.set(flag, !is_anonymous && random.below(4) == 0);
    }
    flags.set(BundleControlFlags::BUNDLE_MUST_NOT_FRAGMENTED, is_anonymous || random.below(3) == 0);
    let primary = PrimaryBlockBuilder::new()
        .source(source)
        .destination(destination)
        .report_to(report_to)
        .bundle_control_flags(flags.bits())
        .creation_timestamp(CreationTimestamp::with_time_and_seq(random.number(), random.number()))
        .lifetime(Duration::from_millis(random.number()))
        .build();
    let Ok(primary) = primary else { return Vec::new() };
    let mut blocks = Vec::new();
    let mut number = 2;
    let mut add = |kind, data, random: &mut Random| {
        let flags = *random.of(&[0, 1, 2, 4, 0x10, 0x11]);
        blocks.push(new_canonical_block(kind, number, flags, data));
        number += 1 + random.below(300);
    };
    if random.below(2) == 0 {
        add(10, CanonicalData::HopCount(1 + random.byte() % 255, random.byte()), random);
    }
    if random.below(2) == 0 {
        add(7, CanonicalData::BundleAge(random.number()), random);
    }
    if random.below(3) == 0 {
        add(6, CanonicalData::PreviousNode(previous), random);
    }
    if random.below(2) == 0 {
        let unknown = (0..random.below(12)).map(|_| random.byte()).collect();
        let kind = *random.of(&[9, 77, 200, 1000]);
        add(kind, CanonicalData::Unknown(unknown), random);
    }
    let payload = (0..random.below(40)).map(|_| random.byte()).collect();
    blocks.push(new_canonical_block(1, 1, BlockControlFlags::empty().bits(), CanonicalData::Data(payload)));
    let mut bundle = bp7::bundle::Bundle::new(primary, blocks);
    bundle.set_crc(*random.of(&[CRC_NO, CRC_NO, CRC_16, CRC_32]));
    bundle.to_cbor()
}

/// Changes a few bytes, as the network, an error or an enemy does.
fn mutate(bytes: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..=random.below(3) {
        if bytes.is_empty() {
            return;
        }
        let at = random.below(bytes.len() as u64) as usize;
        match random.below(8) {
            0..3 => bytes[at] = random.byte(),
            3 => bytes[at] ^= 1 << random.below(8),
            4 => bytes[at] = bytes[at].wrapping_add(1),
            5 => bytes.insert(at, random.byte()),
            6 => drop(bytes.remove(at)),
            _ => {
                let end = (at + random.below(20) as usize).min(bytes.len());
                let part = bytes[at..end].to_vec();
                let to = random.below(bytes.len() as u64) as usize;
                bytes.splice(to..to, part);
            }
        }
    }
}

/// xorshift64*: the inputs are those of the seed.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, end: u64) -> u64 {
        (self.next() >> 33) % end
    }

    fn byte(&mut self) -> u8 {
        (self.next() >> 56) as u8
    }

    /// Of any size, zero often.
    fn number(&mut self) -> u64 {
        let shift = self.below(70);
        if shift < 64 { self.next() >> shift } else { 0 }
    }

    fn of<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.below(choices.len() as u64) as usize]
    }
}
