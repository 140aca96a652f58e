//! What a sender does, as qlog 0.3 (draft-ietf-quic-qlog-main-schema-03 and quic-events-02) in its form
//! JSON-SEQ (RFC 7464), which qvis reads: windows, round trips and losses in the terms of QUIC.
//!
//! | event | when |
//! |---|---|
//! | `recovery:metrics_updated` | a variable has changed, with those that have |
//! | `recovery:congestion_state_updated` | the sender is in another state, see [`CongestionState`] |
//! | `recovery:packet_lost` | a segment is sent again, with the number under which it was sent before |
//! | `transport:packet_sent` | a segment with data, SYN or FIN is sent; segments are numbered as they are sent |
//! | `transport:packet_received` | a segment comes, with the numbers that it acknowledges |

mod numbers;

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;

use bentpipe_tcp::congestion::NO_SSTHRESH;
use bentpipe_tcp::{Flags, Segment, Statistics, Variables};
use bentpipe_units::Time;
use serde::Serialize;
use serde_json::json;

use super::TraceError;
use crate::observer::SenderEvent;
use numbers::Numbers;

/// RFC 7464.
const RECORD_SEPARATOR: u8 = 0x1e;
/// All segments are of one kind; in QUIC's terms this one carries data.
const PACKET_TYPE: &str = "1RTT";

/// The log of the sending end of a leg.
#[derive(Debug)]
pub(super) struct Qlog {
    path: PathBuf,
    file: BufWriter<File>,
    numbers: Numbers,
    received: u64,
    timeouts: u64,
    metrics: Metrics,
    state: Option<CongestionState>,
}

/// In milliseconds, bytes and expiries. An event has those that have changed.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
struct Metrics {
    #[serde(skip_serializing_if = "Option::is_none")]
    min_rtt: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    smoothed_rtt: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rtt_variance: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pto_count: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    congestion_window: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes_in_flight: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ssthresh: Option<u64>,
}

/// How a sender reacts to acknowledgements, as its variables show.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum CongestionState {
    /// The window is below the slow-start threshold, or there is none.
    SlowStart,
    /// It is not.
    CongestionAvoidance,
    /// Losses are being repaired.
    Recovery,
    /// The retransmission timer has expired, and no round trip was measured since.
    TimeoutRecovery,
}

#[derive(Debug, Serialize)]
struct Event<D> {
    time: f64,
    name: &'static str,
    data: D,
}

impl Qlog {
    /// Starts the log of a leg of a flow, counted from 1.
    pub(super) fn create(path: PathBuf, flow: &str, leg: usize) -> Result<Self, TraceError> {
        let file = match File::create(&path) {
            Ok(file) => BufWriter::new(file),
            Err(source) => return Err(TraceError { path, source }),
        };
        let mut log = Self {
            path,
            file,
            numbers: Numbers::default(),
            received: 0,
            timeouts: 0,
            metrics: Metrics::default(),
            state: None,
        };
        let written = log.record(&json!({
            "qlog_version": "0.3",
            "qlog_format": "JSON-SEQ",
            "title": format!("{flow}, leg {leg}"),
            "trace": {
                "title": format!("{flow}, leg {leg}"),
                "common_fields": {
                    "time_format": "relative",
                    "reference_time": 0,
                    "protocol_type": ["TCP"],
                },
                // QUIC's server is where downloads come from.
                "vantage_point": { "name": "the sender", "type": "server" },
            },
        }));
        log.result(written)?;
        Ok(log)
    }

    pub(super) fn event(&mut self, now: Time, event: &SenderEvent<'_>) -> Result<(), TraceError> {
        let written = match event {
            SenderEvent::Sent(segment) => self.sent(now, segment),
            SenderEvent::Received(segment) => self.received(now, segment),
            SenderEvent::State(variables, statistics) => self.state(now, variables, statistics),
        };
        self.result(written)
    }

    pub(super) fn flush(&mut self) -> Result<(), TraceError> {
        let flushed = self.file.flush();
        self.result(flushed)
    }

    fn sent(&mut self, now: Time, segment: &Segment) -> io::Result<()> {
        if segment.len == 0 && !segment.flags.has(Flags::SYN) && !segment.flags.has(Flags::FIN) {
            return Ok(());
        }
        let sent = self.numbers.sent(segment);
        if let Some(lost) = sent.again {
            self.write(now, "recovery:packet_lost", &json!({ "header": header(lost) }))?;
        }
        let data = json!({ "header": header(sent.number), "raw": { "length": segment.ip_length() } });
        self.write(now, "transport:packet_sent", &data)
    }

    fn received(&mut self, now: Time, segment: &Segment) -> io::Result<()> {
        let number = self.received;
        self.received += 1;
        let acked = self.numbers.acknowledged(segment);
        let mut data = json!({ "header": header(number), "raw": { "length": segment.ip_length() } });
        if !acked.is_empty() {
            data["frames"] = json!([{ "frame_type": "ack", "acked_ranges": acked }]);
        }
        self.write(now, "transport:packet_received", &data)
    }

    fn state(&mut self, now: Time, variables: &Variables, statistics: &Statistics) -> io::Result<()> {
        let metrics = Metrics::of(variables);
        let changed = metrics.since(&self.metrics);
        if changed != Metrics::default() {
            self.metrics = metrics;
            self.write(now, "recovery:metrics_updated", &changed)?;
        }
        let expired = std::mem::replace(&mut self.timeouts, statistics.timeouts) < statistics.timeouts;
        let state = CongestionState::of(variables);
        if self.state == Some(state) {
            return Ok(());
        }
        let mut data = json!({ "new": state });
        if let Some(old) = self.state.replace(state) {
            data["old"] = json!(old);
        }
        if expired {
            data["trigger"] = json!("retransmission_timeout");
        }
        self.write(now, "recovery:congestion_state_updated", &data)
    }

    fn write(&mut self, now: Time, name: &'static str, data: &impl Serialize) -> io::Result<()> {
        self.record(&Event { time: now.as_nanos() as f64 / 1e6, name, data })
    }

    fn record(&mut self, record: &impl Serialize) -> io::Result<()> {
        self.file.write_all(&[RECORD_SEPARATOR])?;
        serde_json::to_writer(&mut self.file, record)?;
        self.file.write_all(b"\n")
    }

    fn result(&self, written: io::Result<()>) -> Result<(), TraceError> {
        written.map_err(|source| TraceError { path: self.path.clone(), source })
    }
}

fn header(number: u64) -> serde_json::Value {
    json!({ "packet_type": PACKET_TYPE, "packet_number": number })
}

impl Metrics {
    fn of(tcp: &Variables) -> Self {
        let ms = |time: std::time::Duration| (!time.is_zero()).then(|| time.as_nanos() as f64 / 1e6);
        Self {
            min_rtt: ms(tcp.min_rtt),
            smoothed_rtt: ms(tcp.srtt),
            rtt_variance: ms(tcp.rttvar),
            pto_count: Some(u16::try_from(tcp.backoff).unwrap_or(u16::MAX)),
            congestion_window: Some(tcp.cwnd),
            bytes_in_flight: Some(tcp.in_flight),
            ssthresh: Some(tcp.ssthresh).filter(|ssthresh| *ssthresh != NO_SSTHRESH),
        }
    }

    /// Those that are not as they were.
    fn since(&self, before: &Self) -> Self {
        fn changed<T: PartialEq>(now: Option<T>, before: Option<T>) -> Option<T> {
            if now == before { None } else { now }
        }
        Self {
            min_rtt: changed(self.min_rtt, before.min_rtt),
            smoothed_rtt: changed(self.smoothed_rtt, before.smoothed_rtt),
            rtt_variance: changed(self.rtt_variance, before.rtt_variance),
            pto_count: changed(self.pto_count, before.pto_count),
            congestion_window: changed(self.congestion_window, before.congestion_window),
            bytes_in_flight: changed(self.bytes_in_flight, before.bytes_in_flight),
            ssthresh: changed(self.ssthresh, before.ssthresh),
        }
    }
}

impl CongestionState {
    fn of(tcp: &Variables) -> Self {
        if tcp.backoff > 0 {
            Self::TimeoutRecovery
        } else if tcp.recovering {
            Self::Recovery
        } else if tcp.cwnd < tcp.ssthresh {
            Self::SlowStart
        } else {
            Self::CongestionAvoidance
        }
    }
}
