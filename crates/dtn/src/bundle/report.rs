//! Bundle status reports (RFC 9171 §6.1).

use std::fmt;

use super::cbor::{Item, Reader, put, put_endpoint};
use super::{Bundle, BundleId, Fragment, Malformed, Problem};
use crate::{DtnTime, Eid};

/// The longest administrative record that is read, bytes. A status report with the longest endpoint is
/// shorter.
pub const RECORD_LIMIT: usize = 4096;

/// The type of administrative records that are status reports.
const STATUS_REPORT: u64 = 1;

/// What happened to a bundle at a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Status {
    /// The node has received it.
    Received,
    /// The node has forwarded it.
    Forwarded,
    /// An application of the node has it.
    Delivered,
    /// The node has deleted it.
    Deleted,
}

/// Why, by its code (RFC 9171 §9.5; the last five of [`REASONS`] are of RFC 9172).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ReasonCode(pub u32);

/// The reasons that have a name, by their codes.
const REASONS: [&str; 17] = [
    "no additional information",
    "lifetime expired",
    "forwarded over a unidirectional link",
    "transmission cancelled",
    "depleted storage",
    "destination endpoint unavailable",
    "no known route to the destination from here",
    "no timely contact with the next node on the route",
    "block unintelligible",
    "hop limit exceeded",
    "traffic pared",
    "block unsupported",
    "missing security operation",
    "unknown security operation",
    "unexpected security operation",
    "failed security operation",
    "conflicting security operation",
];

/// The reasons that this node gives.
#[expect(missing_docs, reason = "REASONS says what each is")]
impl ReasonCode {
    pub const NO_INFORMATION: Self = Self(0);
    pub const LIFETIME_EXPIRED: Self = Self(1);
    pub const TRANSMISSION_CANCELLED: Self = Self(3);
    pub const DESTINATION_UNAVAILABLE: Self = Self(5);
    pub const BLOCK_UNINTELLIGIBLE: Self = Self(8);
    pub const HOP_LIMIT_EXCEEDED: Self = Self(9);
    pub const BLOCK_UNSUPPORTED: Self = Self(11);
    pub const MISSING_SECURITY_OPERATION: Self = Self(12);
    pub const UNKNOWN_SECURITY_OPERATION: Self = Self(13);
    pub const UNEXPECTED_SECURITY_OPERATION: Self = Self(14);
    pub const FAILED_SECURITY_OPERATION: Self = Self(15);
    pub const CONFLICTING_SECURITY_OPERATION: Self = Self(16);
}

/// One event of one bundle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The event.
    pub status: Status,
    /// The reason.
    pub reason: ReasonCode,
    /// Of which bundle. What is read has a fragment's `total` 0, because reports do not say it.
    pub subject: BundleId,
    /// When it happened, if the bundle requested times.
    pub time: Option<DtnTime>,
}

/// What an administrative bundle carries (RFC 9171 §6.1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AdminRecord {
    /// A status report's statements.
    Reports(Vec<Report>),
    /// A record of another type, which this node does not know.
    Other(u64),
}

/// Whether anything may be reported of this bundle: it is no administrative record itself, it has a source,
/// and somebody wants to know (RFC 9171 §4.2.3, §5.1).
pub fn allowed(bundle: &Bundle) -> bool {
    !bundle.is_admin && bundle.report_to != Eid::None && bundle.id.source != Eid::None
}

/// Whether the bundle asks to report this of it, and it is [`allowed`].
pub fn wanted(bundle: &Bundle, status: Status) -> bool {
    let asked = match status {
        Status::Received => bundle.reports.reception,
        Status::Forwarded => bundle.reports.forwarding,
        Status::Delivered => bundle.reports.delivery,
        Status::Deleted => bundle.reports.deletion,
    };
    asked && allowed(bundle)
}

impl Report {
    /// A report of a bundle, with the time if the bundle asks for it; `None` where it is not [`allowed`].
    /// Whether it is [`wanted`] is another question: blocks may ask for it too.
    pub fn of(bundle: &Bundle, status: Status, reason: ReasonCode, now: DtnTime) -> Option<Self> {
        allowed(bundle).then(|| Self {
            status,
            reason,
            subject: bundle.id.clone(),
            time: bundle.report_times.then_some(now),
        })
    }

    /// The payload of a bundle that carries it, which has to be marked [`is_admin`](Bundle::is_admin).
    pub fn payload(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let part = self.subject.fragment;
        let elements = if part.is_some() { 6 } else { 4 };
        put(&mut out, [Item::Array(Some(2)), Item::Uint(STATUS_REPORT), Item::Array(Some(elements))]);
        put(&mut out, [Item::Array(Some(4))]);
        for status in Status::ALL {
            let is_asserted = status == self.status;
            let time = self.time.filter(|_| is_asserted);
            put(&mut out, [Item::Array(Some(1 + u64::from(time.is_some()))), Item::Bool(is_asserted)]);
            put(&mut out, time.map(|time| Item::Uint(time.millis())));
        }
        put(&mut out, [Item::Uint(self.reason.0.into())]);
        put_endpoint(&mut out, &self.subject.source);
        put(&mut out, [Item::Array(Some(2))]);
        put(&mut out, [self.subject.created.millis(), self.subject.sequence].map(Item::Uint));
        put(&mut out, part.into_iter().flat_map(|part| [part.offset, part.len].map(Item::Uint)));
        out
    }

    /// What the payload of an administrative bundle reports: a statement for each status that it asserts, so
    /// four at the most; of a record of another type that type.
    ///
    /// # Errors
    /// It is no administrative record, or longer than [`RECORD_LIMIT`].
    pub fn parse(payload: &[u8]) -> Result<AdminRecord, Malformed> {
        if payload.len() > RECORD_LIMIT {
            return Err(Malformed { at: RECORD_LIMIT as u64, problem: Problem::HeadTooLong(RECORD_LIMIT) });
        }
        let mut reader = Reader::new(payload);
        record(&mut reader).map_err(|what| Malformed { at: reader.at() as u64, problem: Problem::Cbor(what) })
    }
}

fn record(reader: &mut Reader<'_>) -> Result<AdminRecord, &'static str> {
    if reader.array()? != 2 {
        return Err("an administrative record has a type and a content");
    }
    let kind = reader.uint()?;
    if kind != STATUS_REPORT {
        return Ok(AdminRecord::Other(kind));
    }
    let len = reader.array()?;
    if !matches!(len, 4 | 6) {
        return Err("a status report has four elements, or of a fragment six");
    }
    let asserted = statuses(reader)?;
    let reason = ReasonCode(u32::try_from(reader.uint()?).map_err(|_| "there is no such reason")?);
    let source = reader.endpoint()?;
    let (created, sequence) = reader.pair(|reader| Ok((reader.uint()?, reader.uint()?)))?;
    let created = DtnTime::from_millis(created);
    let fragment = match len {
        6 => Some(Fragment { offset: reader.uint()?, len: reader.uint()?, total: 0 }),
        _ => None,
    };
    if !reader.is_empty() {
        return Err("after the report come more bytes");
    }
    let subject = BundleId { source, created, sequence, fragment };
    let report = |(status, time)| Report { status, reason, subject: subject.clone(), time };
    Ok(AdminRecord::Reports(asserted.into_iter().map(report).collect()))
}

/// What is asserted, and when it was.
fn statuses(reader: &mut Reader<'_>) -> Result<Vec<(Status, Option<DtnTime>)>, &'static str> {
    // Later protocols may have more (RFC 9171 §6.1.1), but no record has room for many.
    let count = reader.array()?;
    if count < 4 {
        return Err("a report has four statuses at least");
    }
    let mut asserted = Vec::new();
    for index in 0..count {
        let len = reader.array()?;
        let Item::Bool(is_asserted) = reader.item()? else { return Err("a status is true or false") };
        let time = match len {
            1 => None,
            2 => Some(DtnTime::from_millis(reader.uint()?)),
            _ => return Err("a status has one element, or with its time two"),
        };
        let status = usize::try_from(index).ok().and_then(|index| Status::ALL.get(index));
        asserted.extend(status.filter(|_| is_asserted).map(|&status| (status, time)));
    }
    Ok(asserted)
}

impl Status {
    /// In the order of the report.
    const ALL: [Self; 4] = [Self::Received, Self::Forwarded, Self::Delivered, Self::Deleted];
}

impl fmt::Display for ReasonCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match usize::try_from(self.0).ok().and_then(|code| REASONS.get(code)) {
            Some(name) => f.write_str(name),
            None => write!(f, "reason {}", self.0),
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Received => "received",
            Self::Forwarded => "forwarded",
            Self::Delivered => "delivered",
            Self::Deleted => "deleted",
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    fn bundle() -> Bundle {
        let eid = |text: &str| text.parse().unwrap();
        let lifetime = Duration::from_secs(60);
        let mut bundle =
            Bundle::new(eid("dtn://a/x"), DtnTime::from_millis(7), 8, eid("dtn://b/y"), lifetime);
        bundle.report_to = eid("dtn://a/reports");
        bundle.report_times = true;
        bundle.reports.deletion = true;
        bundle
    }

    /// RFC 9171 §6.1.1: a status report has the layout of the standard.
    #[test]
    fn a_report_has_the_layout_of_the_standard() {
        let now = DtnTime::from_millis(9);
        let report = Report::of(&bundle(), Status::Deleted, ReasonCode::LIFETIME_EXPIRED, now).unwrap();
        let expected = [
            &[0x82, 1, 0x84][..],                                       // a status report
            &[0x84, 0x81, 0xf4, 0x81, 0xf4, 0x81, 0xf4, 0x82, 0xf5, 9], // deleted, at 9
            &[1],                                                       // lifetime expired
            b"\x82\x01\x65//a/x",
            &[0x82, 7, 8],
        ];
        assert_eq!(report.payload(), expected.concat());
        assert_eq!(Report::parse(&report.payload()), Ok(AdminRecord::Reports(vec![report])));
    }

    /// RFC 9171 §4.2.3, §5.1: nothing is reported of reports, nor of bundles without a report-to endpoint.
    #[test]
    fn reports_and_anonymous_bundles_cause_no_reports() {
        let now = DtnTime::from_millis(9);
        let of = |bundle: &Bundle| Report::of(bundle, Status::Deleted, ReasonCode(6), now);
        let (asked, mut admin, mut silent) = (bundle(), bundle(), bundle());
        admin.is_admin = true;
        silent.report_to = Eid::None;
        assert!(of(&asked).is_some() && wanted(&asked, Status::Deleted));
        assert!(!wanted(&asked, Status::Received));
        for bundle in [admin, silent] {
            assert!(of(&bundle).is_none() && !wanted(&bundle, Status::Deleted));
        }
    }

    /// RFC 9171 §6.1.1: a record with several statuses, and of an unknown reason, is read.
    #[test]
    fn several_statements_in_one_record() {
        let record = [
            &[0x82, 1, 0x84, 0x84, 0x81, 0xf5, 0x82, 0xf5, 9, 0x81, 0xf4, 0x81, 0xf4, 0x18, 99][..],
            &[0x82, 2, 0x82, 5, 6, 0x82, 7, 8],
        ]
        .concat();
        let AdminRecord::Reports(reports) = Report::parse(&record).unwrap() else { panic!("reports") };
        let said: Vec<_> = reports.iter().map(|report| (report.status, report.time)).collect();
        assert_eq!(said, [(Status::Received, None), (Status::Forwarded, Some(DtnTime::from_millis(9)))]);
        assert_eq!(reports[0].reason, ReasonCode(99));
        assert_eq!(reports[0].subject.to_string(), "ipn:5.6-7-8");
        assert_eq!(Report::parse(&[0x82, 7, 0x40]), Ok(AdminRecord::Other(7)));
    }

    #[test]
    fn overlong_input_is_not_read() {
        assert!(Report::parse(&[0; RECORD_LIMIT + 1]).is_err());
        // A status list that says it is endless stops where the bytes do.
        let endless = [&[0x82, 1, 0x84, 0x9b, 0xff][..], &[0xff; 7], &[0x81, 0xf4]].concat();
        assert_eq!(Report::parse(&endless).unwrap_err().at, endless.len() as u64);
    }

    proptest! {
        #[test]
        fn reports_read_back(
            status in prop::sample::select(Status::ALL.to_vec()),
            code in 0..40_u32,
            time: Option<u64>,
            (created, sequence) in any::<(u64, u64)>(),
            fragment: Option<(u64, u64)>,
            source in prop::sample::select(vec!["dtn:none", "dtn://a/x", "ipn:5.7"]),
        ) {
            // A fragment of no bytes is not told from a whole bundle.
            let fragment = fragment.map(|(offset, len)| Fragment { offset, len: len.max(1), total: 0 });
            let created = DtnTime::from_millis(created);
            let subject = BundleId { source: source.parse().unwrap(), created, sequence, fragment };
            let time = time.map(DtnTime::from_millis);
            let report = Report { status, reason: ReasonCode(code), subject, time };
            let read = Report::parse(&report.payload()).unwrap();
            prop_assert_eq!(read, AdminRecord::Reports(vec![report]));
        }

        #[test]
        fn garbage_and_mutations_do_not_panic(
            garbage: Vec<u8>, at in 0..40_usize, byte: u8, len in 0..40_usize,
        ) {
            let _ = Report::parse(&garbage);
            let now = DtnTime::from_millis(9);
            let report = Report::of(&bundle(), Status::Deleted, ReasonCode(6), now).unwrap();
            let mut bytes = report.payload();
            let at = at % bytes.len();
            bytes[at] = byte;
            let _ = Report::parse(&bytes);
            bytes.truncate(len);
            let _ = Report::parse(&bytes);
        }
    }
}
