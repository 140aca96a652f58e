//! Hybla's slow start on the running kernel, next to the formula.

use std::time::Duration;

use bentpipe_kernel::hybla::{Hybla, RTT0, STANDARD_WINDOW};
use bentpipe_kernel::tcp_info::TcpInfo;
use bentpipe_link::LinkConfig;

use crate::Error;
use crate::download::{Progress, Request};
use crate::figure::{Axis, Figure, Legend, Plot, Series, Style};
use crate::topology::Topology;
use crate::trace::Sample;

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
    let server = topology.serve(Some(hybla.name()), interval).map_err(fail)?;
    let request = Request { seed: 1, bytes };
    let got = topology.download(request, &Progress::default()).map_err(fail)?;
    if !got.identical {
        return Err(fail(std::io::ErrorKind::InvalidData.into()));
    }
    // The client's last acknowledgement is still on its way.
    while server.traces().is_empty() {
        std::thread::sleep(Duration::from_millis(20));
    }
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

/// The window after n acknowledged segments of slow start, W = ρ·W0 + (2^ρ − 1)·n, up to the threshold once
/// there is one.
pub fn formula(info: &TcpInfo) -> f64 {
    let rho = (info.min_rtt.as_secs_f64() / RTT0.as_secs_f64()).max(1.0);
    let initial = (rho * f64::from(STANDARD_WINDOW)).floor();
    let window = initial + (rho.exp2() - 1.0) * f64::from(acknowledged(info));
    if info.ssthresh == TcpInfo::NO_SSTHRESH { window } else { window.min(f64::from(info.ssthresh)) }
}

/// The windows of several recordings over acknowledged segments, on a logarithmic scale: formula as lines,
/// kernel as dots.
pub fn figure(recordings: &[(String, Vec<Sample>)]) -> Figure {
    let points = |samples: &[Sample], window: fn(&TcpInfo) -> f64| {
        let (before, threshold) = split_at_threshold(samples);
        let point = |sample: &Sample| (f64::from(acknowledged(&sample.info)), window(&sample.info).log10());
        let mut points: Vec<(f64, f64)> = before.iter().chain(threshold).map(point).collect();
        points.dedup();
        points
    };
    let formulas = recordings.iter().map(|(name, samples)| {
        Series::new(format!("{name}, formula"), Style::Curve, points(samples, formula))
    });
    let measured = recordings.iter().enumerate().map(|(place, (name, samples))| {
        let points = points(samples, |info| f64::from(info.cwnd));
        Series::new(format!("{name}, kernel"), Style::Dots, points).with_appearance(place)
    });
    let (x, y) =
        (Axis::dimensionless("acknowledged segments"), Axis::new("congestion window", "log10 of segments"));
    let plot = Plot::new("Hybla in slow start, until Hoe's threshold", x, y);
    let plot = formulas.chain(measured).fold(plot, Plot::with);
    Plot { legend: Legend::UpperRight, ..plot }.into()
}
