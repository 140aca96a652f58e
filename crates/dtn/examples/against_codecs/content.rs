//! What a codec says of a bundle, in one form for all of them.

use bentpipe_dtn::Eid;
use bentpipe_dtn::bundle::{Decoder, Piece, ReportRequests};

/// What a codec says of a bundle.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Content {
    /// Destination, source, and where reports go.
    pub(crate) endpoints: [String; 3],
    /// Milliseconds since 2000, and the sequence number.
    pub(crate) created: (u64, u64),
    pub(crate) lifetime_ms: u64,
    /// Administrative record, must not be fragmented, times in reports; reports of reception, forwarding,
    /// delivery and deletion.
    pub(crate) flags: [bool; 7],
    /// Offset, and the length of the whole.
    pub(crate) fragment: Option<(u64, u64)>,
    /// Limit and count; a count beyond 255 is 255.
    pub(crate) hops: Option<(u64, u64)>,
    pub(crate) age_ms: Option<u64>,
    pub(crate) previous_node: Option<String>,
    pub(crate) payload: Vec<u8>,
}

impl Content {
    /// Where two contents differ, without values: there would be as many kinds as values.
    pub(crate) fn difference(&self, other: &Self) -> String {
        let mut parts: Vec<String> = self
            .endpoints
            .iter()
            .zip(&other.endpoints)
            .filter(|(ours, theirs)| ours != theirs)
            .map(|(ours, theirs)| format!("endpoint {} is {}", kind(ours), kind(theirs)))
            .collect();
        parts.dedup();
        let others = [
            ("creation", self.created != other.created),
            ("lifetime", self.lifetime_ms != other.lifetime_ms),
            ("flags", self.flags != other.flags),
            ("fragment", self.fragment != other.fragment),
            ("hop count", self.hops != other.hops),
            ("age", self.age_ms != other.age_ms),
            ("previous node", self.previous_node != other.previous_node),
            ("payload", self.payload != other.payload),
        ];
        parts.extend(others.into_iter().filter(|(_, is)| *is).map(|(name, _)| name.to_owned()));
        format!("different: {}", parts.join(", "))
    }
}

/// An endpoint's scheme, or that it is the null endpoint.
fn kind(eid: &str) -> &str {
    if eid == "dtn:none" { eid } else { eid.split_once(':').map_or(eid, |(scheme, _)| scheme) }
}

/// One text for all forms of an endpoint.
fn text(eid: &Eid) -> String {
    match eid {
        Eid::Ipn { node, service, .. } => format!("ipn:{node}.{service}"),
        other => other.to_string(),
    }
}

/// What this crate says of a bundle.
pub(crate) fn read(bytes: &[u8]) -> Result<Content, String> {
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
        endpoints: [&bundle.destination, &bundle.id.source, &bundle.report_to].map(text),
        created: (bundle.id.created.millis(), bundle.id.sequence),
        lifetime_ms: u64::try_from(bundle.lifetime.as_millis()).unwrap_or(u64::MAX),
        flags: [admin, whole, times, reception, forwarding, delivery, deletion],
        fragment: bundle.id.fragment.map(|part| (part.offset, part.total)),
        hops: bundle.hops.map(|hops| (hops.limit.into(), hops.count.into())),
        age_ms: bundle.age.map(|age| u64::try_from(age.as_millis()).unwrap_or(u64::MAX)),
        previous_node: bundle.previous_node.as_ref().map(text),
        payload,
    })
}

/// The text with `#` for each number: numbers would make a kind of each input.
pub(crate) fn without_numbers(text: &str) -> String {
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
