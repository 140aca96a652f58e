//! Hybla's slow start on the running kernel, next to the formula.

use std::time::Duration;

use bentpipe_kernel::hybla::{Hybla, RTT0, STANDARD_WINDOW};
use bentpipe_kernel::tcp_info::TcpInfo;
use bentpipe_link::LinkConfig;

use crate::Error;
use crate::download::{Progress, Request, Server, download};
use crate::figure::{Legend, LineChart};
use crate::topology::Topology;
use crate::trace::Sample;

const PORT: u16 = 80;

/// An end-to-end download with Hybla at the server, and the recording of the server's socket.
#[derive(Debug)]
pub struct Recording {
    /// The inner variables of the sender's socket over time.
    pub samples: Vec<Sample>,
    /// The hosts and the link, with its counters.
    pub topology: Topology,
}

/// Downloads `bytes` over a link, sampling the sender's socket every `interval`.
///
/// # Errors
/// [`Error::Hybla`] if the kernel does not accept it, [`Error::Transfer`] if the received file differs from
/// the sent one.
pub fn record(link: &LinkConfig, bytes: u64, interval: Duration) -> Result<Recording, Error> {
    let fail = |source| Error::Transfer { run: "hybla".into(), source };
    let hybla = Hybla::acquire()?;
    let topology = Topology::build(link, 1)?;
    let address = topology.server_address(PORT);
    let start = || Server::start_recording(address, Some(hybla.name()), interval);
    let mut server = topology.server.run(start)?.map_err(fail)?;
    let request = Request { seed: 1, bytes };
    let got = topology.client.run(|| download(address, request, &Progress::default()))?.map_err(fail)?;
    if !got.identical {
        return Err(fail(std::io::ErrorKind::InvalidData.into()));
    }
    // The client's last acknowledgement is still on its way.
    while server.traces().is_empty() {
        std::thread::sleep(Duration::from_millis(20));
    }
    topology.server.run(|| server.stop())?;
    Ok(Recording { samples: server.traces().remove(0), topology })
}

/// The samples before the window reached the slow-start threshold, and the first one after.
pub fn split_at_threshold(samples: &[Sample]) -> (&[Sample], Option<&Sample>) {
    let end = samples.iter().position(|sample| sample.info.cwnd >= sample.info.ssthresh);
    (&samples[..end.unwrap_or(samples.len())], end.map(|end| &samples[end]))
}

/// Segments that the receiver has acknowledged; the kernel counts the SYN among them.
pub fn acknowledged(info: &TcpInfo) -> u32 {
    info.delivered.saturating_sub(1)
}

/// The window after n acknowledged segments of slow start, W = ρ·W0 + (2^ρ − 1)·n, up to the threshold once there is one.
pub fn formula(info: &TcpInfo) -> f64 {
    let rho = (info.min_rtt.as_secs_f64() / RTT0.as_secs_f64()).max(1.0);
    let initial = (rho * f64::from(STANDARD_WINDOW)).floor();
    let window = initial + (rho.exp2() - 1.0) * f64::from(acknowledged(info));
    if info.ssthresh == TcpInfo::NO_SSTHRESH { window } else { window.min(f64::from(info.ssthresh)) }
}

/// The windows of several recordings over acknowledged segments, on a logarithmic scale: formula as lines, kernel as dots.
pub fn figure(recordings: &[(String, Vec<Sample>)]) -> LineChart {
    let points = |samples: &[Sample], window: &dyn Fn(&TcpInfo) -> f64| {
        let (before, threshold) = split_at_threshold(samples);
        let mut points: Vec<(f64, f64)> = before
            .iter()
            .chain(threshold)
            .map(|sample| (f64::from(acknowledged(&sample.info)), window(&sample.info).log10()))
            .collect();
        points.dedup();
        points
    };
    let measured = |info: &TcpInfo| f64::from(info.cwnd);
    LineChart {
        title: "Hybla in slow start, until Hoe's threshold".into(),
        x_label: "acknowledged segments".into(),
        y_label: "congestion window (log10 of segments)".into(),
        lines: recordings
            .iter()
            .map(|(name, samples)| (format!("{name}, formula"), points(samples, &formula)))
            .collect(),
        dots: recordings
            .iter()
            .map(|(name, samples)| (format!("{name}, kernel"), points(samples, &measured)))
            .collect(),
        legend: Legend::UpperRight,
    }
}
