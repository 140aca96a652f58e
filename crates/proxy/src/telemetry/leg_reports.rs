//! Reports of the legs, from their statistics and the configuration.

use std::time::{Duration, Instant};

use bentpipe_link::explicit::LinkEstimate;

use super::Shared;
use super::leg_stats::{Figures, LegStatsTable};
use super::report::{ExplicitReport, Gain, LegReport};

/// The configured legs, and those on which connections of an earlier configuration live.
pub(super) fn reports(shared: &Shared, configured: &[LegReport], now: Instant) -> Vec<LegReport> {
    let (leg_stats, link_estimates) = (&shared.leg_stats, shared.link_estimates.get());
    let estimate =
        |name: &str| link_estimates.iter().find(|(leg, _)| leg == name).map(|(_, estimate)| estimate);
    let report = |leg: &LegReport| {
        let is_satellite = leg.interface.is_some();
        let figures = leg_stats.leg(is_satellite, &leg.name).figures(now);
        let explicit = estimate(&leg.name).filter(|_| is_satellite).map(explicit);
        LegReport { explicit, ..with_figures(leg.clone(), &figures) }
    };
    let mut reports: Vec<LegReport> = configured.iter().map(report).collect();
    let terrestrial = reports.pop();
    let is_configured = |name: &str| configured.iter().any(|leg| leg.interface.is_some() && leg.name == name);
    for leg in leg_stats.legs().into_iter().filter(|leg| leg.is_satellite() && !is_configured(leg.name())) {
        let figures = leg.figures(now);
        if figures.flows > 0 {
            let report = LegReport { name: leg.name().to_owned(), ..LegReport::default() };
            reports.push(with_figures(report, &figures));
        }
    }
    reports.sort_by(|a, b| a.name.cmp(&b.name));
    reports.extend(terrestrial);
    reports
}

/// The gain of splitting on all satellite legs.
pub(super) fn gain(leg_stats: &LegStatsTable, now: Instant) -> Gain {
    let (mut actual, mut end_to_end) = (0, 0);
    for leg in leg_stats.legs() {
        let shares = leg.figures(now).shares;
        actual += shares.actual_bps;
        end_to_end += shares.end_to_end_bps;
    }
    let (actual_bps, end_to_end_bps) = (actual as f64, end_to_end as f64);
    Gain { ratio: (end_to_end > 0).then(|| actual_bps / end_to_end_bps), actual_bps, end_to_end_bps }
}

fn with_figures(leg: LegReport, figures: &Figures) -> LegReport {
    let Figures { totals, shares, .. } = *figures;
    LegReport {
        flows: figures.flows,
        active: shares.active,
        sent_bps: figures.sent_bps,
        received_bps: figures.received_bps,
        sent_bytes: totals.moved.sent,
        received_bytes: totals.moved.received,
        segments: totals.segments,
        retransmissions: totals.retransmissions,
        timeouts: totals.timeouts,
        loss: figures.loss,
        srtt_s: figures.srtt.map(|rtt| rtt.as_secs_f64()),
        min_rtt_s: figures.min_rtt.map(|rtt| rtt.as_secs_f64()),
        outage_s: figures.outage.map(|length: Duration| length.as_secs_f64()),
        ..leg
    }
}

fn explicit(estimate: &LinkEstimate) -> ExplicitReport {
    ExplicitReport {
        capacity_bps: estimate.capacity * 8.0,
        queue_s: estimate.queue.as_secs_f64(),
        active: estimate.active as u64,
    }
}
