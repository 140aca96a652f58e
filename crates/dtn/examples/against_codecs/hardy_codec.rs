//! `hardy-bpv7`, the codec of Hardy.

use hardy_bpv7::Error;
use hardy_bpv7::bpsec::no_keys;
use hardy_bpv7::bundle::ParsedBundle;
use hardy_bpv7::eid::{Eid, IpnNodeId};

use crate::content::{Content, without_numbers};
use crate::{Codec, Explained, Who};

/// `hardy-bpv7`. It is only asked to parse: what it would rewrite, verify or decrypt is left as it is.
pub(crate) struct Hardy;

impl Codec for Hardy {
    fn name(&self) -> &'static str {
        "hardy-bpv7"
    }

    fn read(&self, bytes: &[u8]) -> Result<Content, String> {
        read(bytes).map_err(|error| kind(&error))
    }

    fn explained(&self) -> &'static [Explained] {
        EXPLAINED
    }
}

const EXPLAINED: &[Explained] = &[
    (
        Who::Ours,
        "unsupported block type",
        "a block that nobody knows asks for the bundle's deletion, which is the node's (RFC 9171 §5.6)",
    ),
    (
        Who::Ours,
        "Invalid bundle or block flag",
        "whatever their flags say, nothing is reported of such bundles, nor are they cut",
    ),
    (
        Who::Ours,
        "cannot be block number",
        "type 0 is reserved, so that a block with it is one that nobody knows (RFC 9171 §9.1)",
    ),
    (
        Who::Ours,
        "Failed to parse Bundle Age Block",
        "a block that makes no sense is treated by its flags (RFC 9171 §5.6)",
    ),
    (Who::Ours, "Failed to parse Hop Count Block", "the same"),
    (Who::Ours, "Failed to parse Previous Node Block", "the same"),
    (
        Who::Ours,
        "Failed to parse BPSec",
        "security blocks are read where they are used, at the bundle's destination (RFC 9172 §5.1)",
    ),
    (Who::Ours, "BPSec", "the same"),
    (
        Who::Ours,
        "BCBs must not have",
        "security blocks stay whatever their flags say, so that the wrong one does no harm (RFC 9172 §3.8)",
    ),
    (
        Who::Ours,
        "Invalid fragment information",
        "a fragment of no bytes at the end of its whole does no harm",
    ),
    (
        Who::Ours,
        "Failed to parse 'dtn' scheme-specific part",
        "a name with percent-encoded bytes that are no UTF-8 stays as it is; Hardy decodes names",
    ),
    (
        Who::Ours,
        "Invalid ipn service number",
        "RFC 9171 §4.2.5.1.2 has no limit; Hardy's services are numbers below 2^32",
    ),
    (Who::Theirs, "a negative number", "it is in an endpoint of a scheme that Hardy does not know and keeps"),
    (
        Who::Theirs,
        "a map, tag or simple value",
        "Hardy 0.5 skips tags, of which bundles have none (RFC 9171 §4.1); 0.6 refuses them",
    ),
    (
        Who::Theirs,
        "what is no endpoint",
        "Hardy keeps endpoints of schemes that it does not know, and node 0 with a service is nobody to it",
    ),
    (
        Who::Theirs,
        "without a creation time a bundle needs an age",
        "Hardy's decoder leaves that to a filter of its node (RFC 9171 §4.4.2)",
    ),
    (
        Who::Both,
        "different: age",
        "Hardy 0.5 takes what a block begins with, and leaves the rest; here such a block makes no sense",
    ),
    (
        Who::Both,
        "different: hop count",
        "the same, and it takes limits of 0 and beyond 255 (RFC 9171 §4.4.3)",
    ),
    (Who::Both, "different: previous node", "the same, or an endpoint that is none here"),
];

/// The error with those that caused it, without the values that would make a kind of each input.
fn kind(error: &Error) -> String {
    let (mut text, mut next) = (error.to_string(), std::error::Error::source(error));
    while let Some(error) = next {
        let cause = error.to_string();
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
        next = error.source();
    }
    // Of an extension block it does not matter what there is instead of its content.
    let of_extension = ["Bundle Age", "Hop Count", "Previous Node", "BPSec"];
    let line = text.lines().next().unwrap_or_default();
    match line.split_once(": ") {
        Some((field, _)) if of_extension.iter().any(|name| field.contains(name)) => field.to_owned(),
        _ => without_numbers(line),
    }
}

/// One text for all forms of an endpoint.
fn text(eid: &Eid) -> String {
    match eid {
        Eid::Null => "dtn:none".into(),
        Eid::LocalNode(service) => format!("ipn:{}.{service}", u32::MAX),
        Eid::LegacyIpn { fqnn, service_number } | Eid::Ipn { fqnn, service_number } => {
            let IpnNodeId { allocator_id, node_number } = fqnn;
            format!("ipn:{}.{service_number}", u64::from(*allocator_id) << 32 | u64::from(*node_number))
        }
        Eid::Dtn { node_name, service_name } => format!("dtn://{}/{service_name}", node_name.node_name),
        Eid::Unknown { scheme, .. } => format!("unknown scheme {scheme}:"),
    }
}

fn read(bytes: &[u8]) -> Result<Content, Error> {
    let bundle = ParsedBundle::parse(bytes, no_keys)?.bundle;
    let flags = &bundle.flags;
    let millis = |span: std::time::Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
    let payload = bundle.block_data(1, bytes, &hardy_bpv7::bpsec::key::KeySet::EMPTY)?;
    Ok(Content {
        endpoints: [&bundle.destination, &bundle.id.source, &bundle.report_to].map(text),
        created: (
            bundle.id.timestamp.creation_time().map_or(0, |time| time.millisecs()),
            bundle.id.timestamp.sequence_number(),
        ),
        lifetime_ms: millis(bundle.lifetime),
        flags: [
            flags.is_admin_record,
            flags.do_not_fragment,
            flags.report_status_time,
            flags.receipt_report_requested,
            flags.forward_report_requested,
            flags.delivery_report_requested,
            flags.delete_report_requested,
        ],
        fragment: bundle.id.fragment_info.as_ref().map(|part| (part.offset, part.total_adu_length)),
        hops: bundle.hop_count.as_ref().map(|hops| (hops.limit, hops.count.min(255))),
        age_ms: bundle.age.map(millis),
        previous_node: bundle.previous_node.as_ref().map(text),
        payload: payload.as_ref().to_vec(),
    })
}
