//! Generates bundles, changes some of their bytes, has them read by this crate and by `bp7`, another
//! implementation of RFC 9171, and says where the two disagree.
//!
//! ```text
//! against_bp7 --count 10000000 --seed 1
//! ```
//!
//! A disagreement is that one takes what the other refuses, or that both take it and read something else. Each
//! kind that is known has its explanation here; one that is not known fails the run, with an example.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use bentpipe_dtn::bundle::{Bundle, CrcType, Decoder, Fragment, HopCount, Piece, Priority, ReportRequests};
use bentpipe_dtn::{DtnTime, Eid};
use bp7::bundle::Bundle as TheirBundle;
use bp7::canonical::{CanonicalData, new_canonical_block};
use bp7::crc::{CRC_16, CRC_32, CRC_NO};
use bp7::flags::{BlockControlFlags, BundleControlFlags, BundleValidation};
use bp7::primary::PrimaryBlockBuilder;
use bp7::{CreationTimestamp, EndpointID};
use clap::Parser;

/// Compares the bundle codec with that of `bp7`.
#[derive(Debug, Parser)]
struct Options {
    /// How many inputs.
    #[arg(long, default_value_t = 1_000_000)]
    count: u64,
    /// Which ones.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// On how many threads.
    #[arg(long, default_value_t = 2)]
    threads: u64,
}

/// What is known: who takes it, a part of the reason of the other, and why that is right.
const EXPLAINED: &[(Who, &str, &str)] = &[
    (Who::Ours, "reserved bits", "a later standard may give them a meaning; they are passed on as they came"),
    (
        Who::Ours,
        "no status report request flags",
        "nothing is reported of an administrative record, whatever its flags say",
    ),
    (
        Who::Ours,
        "payload is an administrative record or the source node is omitted",
        "nor of its blocks, nor of bundles without a source",
    ),
    (Who::Ours, "can not be decoded", "a block that makes no sense is treated by its flags (RFC 9171 §5.6)"),
    (
        Who::Theirs,
        "the CRC of block",
        "bp7 takes the CRC of the block as it would write it, not of the bytes that came: numbers longer than they need to be pass",
    ),
    (Who::Theirs, "a map, tag or simple value", "bp7 skips tags, of which bundles have none (RFC 9171 §4.1)"),
    (
        Who::Theirs,
        "a payload is a byte string",
        "bp7 takes text as well (RFC 9171 §4.3.2 says a byte string)",
    ),
    (Who::Theirs, "a CRC is a byte string", "bp7 takes text as well, and other lengths (RFC 9171 §4.2.1)"),
    (Who::Theirs, "after the payload its CRC has to come", "the same"),
    (
        Who::Theirs,
        "what is no endpoint",
        "bp7 takes a node's name without the slash after it (RFC 9171 §4.2.5.1.1)",
    ),
    (Who::Both, "hop count", "bp7 skips a tag in the block, which makes no sense here"),
    (Who::Both, "previous node", "it has no slash after its name, or a tag: the block makes no sense here"),
    (Who::Ours, "TrailingData", "an ipn endpoint with an allocator (RFC 9758), which bp7 does not know"),
    (
        Who::Theirs,
        "a block's content is a byte string",
        "bp7 takes an array of numbers as well (RFC 9171 §4.3.2)",
    ),
    (Who::Both, "different: endpoints", "ipn:0.0 is the null endpoint, dtn:none (RFC 9758 §3.4.1)"),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Who {
    /// Only bentpipe takes it; the reason is bp7's.
    Ours,
    /// Only bp7 takes it; the reason is bentpipe's.
    Theirs,
    /// Both take it, and read something else.
    Both,
}

/// Kinds of disagreement: how many there were, and an example.
type Disagreements = BTreeMap<(Who, String), (u64, Vec<u8>)>;

/// What one run has seen.
#[derive(Debug, Default)]
struct Seen {
    both: u64,
    neither: u64,
    disagreements: Disagreements,
}

fn main() -> ExitCode {
    let Options { count, seed, threads } = Options::parse();
    let begun = Instant::now();
    // What bp7 does where it panics is a finding, too; the text would be printed a million times.
    std::panic::set_hook(Box::new(|_| ()));
    let seen = std::thread::scope(|scope| {
        let parts: Vec<_> = (0..threads)
            .map(|thread| {
                let part = count / threads + u64::from(thread < count % threads);
                scope.spawn(move || run(part, seed.wrapping_mul(0x1_0001).wrapping_add(thread)))
            })
            .collect();
        let mut all = Seen::default();
        for part in parts {
            let part = part.join().unwrap_or_default();
            (all.both, all.neither) = (all.both + part.both, all.neither + part.neither);
            for (kind, (count, example)) in part.disagreements {
                all.disagreements.entry(kind).or_insert((0, example)).0 += count;
            }
        }
        all
    });
    println!(
        "seed {seed}: {count} inputs in {:.0} s; {} taken by both alike, {} refused by both",
        begun.elapsed().as_secs_f64(),
        seen.both,
        seen.neither
    );
    println!("\n| taken by | inputs | the other's reason | explanation |\n|---|---|---|---|");
    let mut unexplained = Vec::new();
    for ((who, reason), (count, example)) in &seen.disagreements {
        let known = EXPLAINED.iter().find(|(other, part, _)| other == who && reason.contains(part));
        let name = match who {
            Who::Ours => "bentpipe",
            Who::Theirs => "bp7",
            Who::Both => "both, with other content",
        };
        let explanation = known.map_or("**none**", |(_, _, explanation)| explanation);
        println!("| {name} | {count} | {} | {explanation} |", reason.replace('|', "\\|"));
        if known.is_none() {
            unexplained.push((reason, example));
        }
    }
    for (reason, example) in &unexplained {
        println!("\n{reason}:\n{}", hex(example));
    }
    if unexplained.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Numbers make a kind of each input.
fn without_numbers(text: &str) -> String {
    let mut out = String::new();
    for character in text.chars() {
        match character.is_ascii_digit() {
            true if out.ends_with('#') => {}
            true => out.push('#'),
            false => out.push(character),
        }
    }
    out
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn run(count: u64, seed: u64) -> Seen {
    let (mut random, mut seen) = (Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1), Seen::default());
    for _ in 0..count {
        let mut bytes =
            if random.below(2) == 0 { our_bundle(&mut random) } else { their_bundle(&mut random) };
        if random.below(4) > 0 {
            mutate(&mut bytes, &mut random);
        }
        let theirs = std::panic::catch_unwind(|| read_theirs(&bytes));
        let theirs = theirs.unwrap_or_else(|_| Err("bp7 panics".into()));
        let (who, reason) = match (read_ours(&bytes), theirs) {
            (Err(_), Err(_)) => {
                seen.neither += 1;
                continue;
            }
            (Ok(_), Err(reason)) => (Who::Ours, reason),
            (Err(reason), Ok(_)) => (Who::Theirs, reason),
            (Ok(ours), Ok(theirs)) if ours == theirs => {
                seen.both += 1;
                continue;
            }
            (Ok(ours), Ok(theirs)) => (Who::Both, difference(&ours, &theirs)),
        };
        let entry = seen.disagreements.entry((who, reason)).or_insert_with(|| (0, bytes.clone()));
        entry.0 += 1;
        if bytes.len() < entry.1.len() {
            entry.1 = bytes;
        }
    }
    seen
}

/// What both say of a bundle.
#[derive(Debug, PartialEq, Eq)]
struct Content {
    endpoints: [String; 3],
    created: (u64, u64),
    lifetime_ms: u64,
    flags: [bool; 7],
    fragment: Option<(u64, u64)>,
    hops: Option<(u8, u8)>,
    age_ms: Option<u64>,
    previous_node: Option<String>,
    payload: Vec<u8>,
}

fn difference(ours: &Content, theirs: &Content) -> String {
    let parts = [
        ("endpoints", ours.endpoints != theirs.endpoints),
        ("creation", ours.created != theirs.created),
        ("lifetime", ours.lifetime_ms != theirs.lifetime_ms),
        ("flags", ours.flags != theirs.flags),
        ("fragment", ours.fragment != theirs.fragment),
        ("hop count", ours.hops != theirs.hops),
        ("age", ours.age_ms != theirs.age_ms),
        ("previous node", ours.previous_node != theirs.previous_node),
        ("payload", ours.payload != theirs.payload),
    ];
    let different: Vec<&str> = parts.iter().filter(|(_, is)| *is).map(|(name, _)| *name).collect();
    format!("different: {}", different.join(", "))
}

fn read_ours(bytes: &[u8]) -> Result<Content, String> {
    let (mut decoder, mut head, mut payload, mut rest) = (Decoder::new(), None, Vec::new(), bytes);
    loop {
        // Without where: there would be as many kinds as places.
        let (taken, piece) =
            decoder.feed(rest).map_err(|error| without_numbers(&error.problem.to_string()))?;
        rest = &rest[taken..];
        match piece {
            Piece::Head(bundle) => head = Some(*bundle),
            Piece::Payload(part) => payload.extend_from_slice(part),
            Piece::End => {}
            Piece::More => break,
        }
    }
    decoder.finish().map_err(|error| error.problem.to_string())?;
    let bundle = head.ok_or("it has no head")?;
    let ReportRequests { reception, forwarding, delivery, deletion } = bundle.reports;
    let (admin, whole, times) = (bundle.is_admin, bundle.must_not_fragment, bundle.report_times);
    Ok(Content {
        endpoints: [&bundle.destination, &bundle.id.source, &bundle.report_to].map(ToString::to_string),
        created: (bundle.id.created.millis(), bundle.id.sequence),
        lifetime_ms: u64::try_from(bundle.lifetime.as_millis()).unwrap_or(u64::MAX),
        flags: [admin, whole, times, reception, forwarding, delivery, deletion],
        fragment: bundle.id.fragment.map(|part| (part.offset, part.total)),
        hops: bundle.hops.map(|hops| (hops.limit, hops.count)),
        age_ms: bundle.age.map(|age| u64::try_from(age.as_millis()).unwrap_or(u64::MAX)),
        previous_node: bundle.previous_node.as_ref().map(Eid::to_string),
        payload,
    })
}

fn read_theirs(bytes: &[u8]) -> Result<Content, String> {
    let kind = |error: &bp7::error::Error| without_numbers(&format!("{error:?}"));
    let mut bundle = TheirBundle::try_from(bytes).map_err(|error| kind(&error))?;
    bundle.validate().map_err(|errors| errors.first().map_or_else(String::new, kind))?;
    if !bundle.crc_valid() {
        return Err("a CRC is wrong".into());
    }
    let primary = &bundle.primary;
    let flags = primary.bundle_control_flags.flags();
    let has = |flag| flags.contains(flag);
    let block = |kind| bundle.extension_block_by_type(kind).map(|block| block.data().clone());
    Ok(Content {
        endpoints: [&primary.destination, &primary.source, &primary.report_to].map(ToString::to_string),
        created: (primary.creation_timestamp.dtntime(), primary.creation_timestamp.seqno()),
        lifetime_ms: u64::try_from(primary.lifetime.as_millis()).unwrap_or(u64::MAX),
        flags: [
            has(BundleControlFlags::BUNDLE_ADMINISTRATIVE_RECORD_PAYLOAD),
            has(BundleControlFlags::BUNDLE_MUST_NOT_FRAGMENTED),
            has(BundleControlFlags::BUNDLE_REQUEST_STATUS_TIME),
            has(BundleControlFlags::BUNDLE_STATUS_REQUEST_RECEPTION),
            has(BundleControlFlags::BUNDLE_STATUS_REQUEST_FORWARD),
            has(BundleControlFlags::BUNDLE_STATUS_REQUEST_DELIVERY),
            has(BundleControlFlags::BUNDLE_STATUS_REQUEST_DELETION),
        ],
        fragment: has(BundleControlFlags::BUNDLE_IS_FRAGMENT)
            .then_some((primary.fragmentation_offset, primary.total_data_length)),
        hops: match block(bp7::canonical::HOP_COUNT_BLOCK) {
            Some(CanonicalData::HopCount(limit, count)) => Some((limit, count)),
            _ => None,
        },
        age_ms: match block(bp7::canonical::BUNDLE_AGE_BLOCK) {
            Some(CanonicalData::BundleAge(age)) => Some(age),
            _ => None,
        },
        previous_node: match block(bp7::canonical::PREVIOUS_NODE_BLOCK) {
            Some(CanonicalData::PreviousNode(node)) => Some(node.to_string()),
            _ => None,
        },
        payload: bundle.payload().cloned().unwrap_or_default(),
    })
}

const ENDPOINTS: [&str; 6] =
    ["dtn:none", "dtn://a/", "dtn://node/in/box", "ipn:5.0", "ipn:23.42", "ipn:18446744073709551615.7"];

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

fn their_bundle(random: &mut Random) -> Vec<u8> {
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
    let mut bundle = TheirBundle::new(primary, blocks);
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
struct Random(u64);

impl Random {
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
