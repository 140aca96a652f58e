//! `bp7`, the codec of dtn7-rs.

use bp7::bundle::Bundle;
use bp7::canonical::{BUNDLE_AGE_BLOCK, CanonicalData, HOP_COUNT_BLOCK, PREVIOUS_NODE_BLOCK};
use bp7::flags::{BundleControlFlags, BundleValidation};

use crate::content::{Content, without_numbers};
use crate::{Codec, Explained, Who};

/// `bp7`.
pub(crate) struct Bp7;

impl Codec for Bp7 {
    fn name(&self) -> &'static str {
        "bp7"
    }

    fn read(&self, bytes: &[u8]) -> Result<Content, String> {
        read(bytes)
    }

    fn explained(&self) -> &'static [Explained] {
        EXPLAINED
    }
}

const EXPLAINED: &[Explained] = &[
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
        "the CRC is that of the block as bp7 would write it: numbers longer than they need to be pass",
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
        "bp7 takes names of any characters, and without the slash after them (RFC 9171 §4.2.5.1.1)",
    ),
    (Who::Both, "hop count", "bp7 skips a tag in the block, which makes no sense here"),
    (Who::Both, "previous node", "it has no slash after its name, or a tag: the block makes no sense here"),
    (
        Who::Ours,
        "expected u#",
        "flags of a block beyond the eighth, which a later standard may assign (RFC 9171 §4.2.4)",
    ),
    (Who::Ours, "TrailingData", "an ipn endpoint with an allocator (RFC 9758), which bp7 does not know"),
    (
        Who::Theirs,
        "a block's content is a byte string",
        "bp7 takes an array of numbers as well (RFC 9171 §4.3.2)",
    ),
    (Who::Both, "endpoint dtn:none is ipn", "ipn:0.0 is the null endpoint, dtn:none (RFC 9758 §3.4.1)"),
];

fn read(bytes: &[u8]) -> Result<Content, String> {
    let kind = |error: &bp7::error::Error| without_numbers(&format!("{error:?}"));
    let mut bundle = Bundle::try_from(bytes).map_err(|error| kind(&error))?;
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
        hops: match block(HOP_COUNT_BLOCK) {
            Some(CanonicalData::HopCount(limit, count)) => Some((limit.into(), count.into())),
            _ => None,
        },
        age_ms: match block(BUNDLE_AGE_BLOCK) {
            Some(CanonicalData::BundleAge(age)) => Some(age),
            _ => None,
        },
        previous_node: match block(PREVIOUS_NODE_BLOCK) {
            Some(CanonicalData::PreviousNode(node)) => Some(node.to_string()),
            _ => None,
        },
        payload: bundle.payload().cloned().unwrap_or_default(),
    })
}
