//! Stands in for the codec until it is there.

use std::time::Duration;

use crate::bundle::{Bundle, BundleId, CrcType, Fragment, HopCount, Priority, ReportRequests};
use crate::{DtnTime, Eid};

impl Bundle {
    /// A bundle with nothing special about it.
    pub fn new(source: Eid, created: DtnTime, sequence: u64, destination: Eid, lifetime: Duration) -> Self {
        Self {
            id: BundleId { source, created, sequence, fragment: None },
            destination,
            report_to: Eid::None,
            lifetime,
            is_admin: false,
            must_not_fragment: false,
            reports: ReportRequests::default(),
            report_times: false,
            priority: Priority::Normal,
            hops: None::<HopCount>,
            age: None,
            previous_node: None,
            payload_len: 0,
            payload_crc: CrcType::None,
        }
    }

    pub(crate) fn head(&self) -> Vec<u8> {
        let part = self.id.fragment.map_or(String::new(), |f| format!("{} {} {}", f.offset, f.len, f.total));
        let (id, life) = (&self.id, self.lifetime.as_millis());
        let numbers = format!("{} {} {life} {}", id.created, id.sequence, self.payload_len);
        format!("{}\n{}\n{numbers}\n{part}", id.source, self.destination).into_bytes()
    }

    pub(crate) fn decode_head(head: &[u8]) -> Result<Self, String> {
        let text = std::str::from_utf8(head).map_err(|error| error.to_string())?;
        let lines: Vec<&str> = text.split('\n').collect();
        let [source, destination, numbers, part] = lines[..] else { return Err("four lines".into()) };
        let eid = |text: &str| text.parse::<Eid>().map_err(|error| error.to_string());
        let split = |text: &str| -> Result<Vec<u64>, String> {
            text.split_whitespace().map(|word| word.parse().map_err(|_| "a number".to_owned())).collect()
        };
        let [created, sequence, life, len] = split(numbers)?[..] else { return Err("four numbers".into()) };
        let (created, life) = (DtnTime::from_millis(created), Duration::from_millis(life));
        let mut bundle = Self::new(eid(source)?, created, sequence, eid(destination)?, life);
        bundle.payload_len = len;
        if let [offset, len, total] = split(part)?[..] {
            bundle.id.fragment = Some(Fragment { offset, len, total });
        }
        Ok(bundle)
    }
}
