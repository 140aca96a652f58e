//! Reports of the legs, from their statistics and the configuration.

use std::time::{Duration, Instant};

use bentpipe_link::explicit::LinkEstimate;

use super::Shared;
use super::gain::EndToEnd;
use super::leg_stats::{Figures, LegStatsTable};
use super::report::{ExplicitReport, ForwardedReport, Gain, GainState, LegReport};

/// As long and as much as that must be sent to tell the gain.
const LEAST_SECONDS: f64 = 3.0;
const LEAST_BYTES: f64 = 20_000.0;

/// The configured legs, and those on which connections of an earlier configuration live.
pub(super) fn reports(shared: &Shared, configured: &[LegReport], now: Instant) -> Vec<LegReport> {
    let (leg_stats, link_estimates) = (&shared.leg_stats, shared.link_estimates.get());
    let estimate =
        |name: &str| link_estimates.iter().find(|(leg, _)| leg == name).map(|(_, estimate)| estimate);
    let (totals, rates) = (shared.policy_counters.totals(), shared.policy_counters.rates());
    let forwarded = |interface: &String| {
        let total = totals.forwarded.get(interface).copied().unwrap_or_default();
        let [sent_bps, received_bps] = rates.forwarded_bps.get(interface).copied().unwrap_or_default();
        ForwardedReport { sent_bps, received_bps, sent_bytes: total.into, received_bytes: total.from }
    };
    let report = |leg: &LegReport| {
        let is_satellite = leg.interface.is_some();
        let figures = leg_stats.leg(is_satellite, &leg.name).figures(now);
        let explicit = estimate(&leg.name).filter(|_| is_satellite).map(explicit);
        let waiting = leg.interface.as_deref().and_then(|interface| shared.interfaces.wait_of(interface));
        let return_queue_s = explicit.and_then(|explicit| return_queue(&figures, explicit.queue_s));
        let forwarded = leg.interface.as_ref().map(forwarded);
        LegReport { explicit, waiting, return_queue_s, forwarded, ..with_figures(leg.clone(), &figures) }
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
    let (mut bytes, mut seconds) = (0.0, 0.0_f64);
    let (mut actual_bps, mut end_to_end_bps, mut end_to_end) = (0.0, 0.0, EndToEnd::default());
    let mut is_unsettled = false;
    for leg in leg_stats.legs() {
        let gain = leg.gain(now);
        is_unsettled |= gain.is_unsettled;
        if gain.seconds > 0.0 {
            bytes += gain.sums.bytes;
            seconds = seconds.max(gain.seconds);
            actual_bps += gain.sums.bytes * 8.0 / gain.seconds;
            end_to_end_bps += gain.sums.bytes_end_to_end * 8.0 / gain.seconds;
            end_to_end.total += gain.sums.end_to_end.total;
            end_to_end.start_up += gain.sums.end_to_end.start_up;
        }
    }
    let state = match (bytes >= LEAST_BYTES && seconds >= LEAST_SECONDS, is_unsettled) {
        (true, _) => GainState::Measured,
        (false, true) => GainState::Outage,
        (false, false) if bytes > 0.0 => GainState::TooLittle,
        (false, false) => GainState::NothingSent,
    };
    let is_measured = state == GainState::Measured;
    Gain {
        ratio: is_measured.then(|| actual_bps / end_to_end_bps),
        state,
        actual_bps,
        end_to_end_bps,
        start_up: is_measured.then(|| end_to_end.start_up / end_to_end.total),
    }
}

/// What neither the path nor the queue of this direction explains of the round trip.
fn return_queue(figures: &Figures, queue_s: f64) -> Option<f64> {
    let beyond = figures.srtt?.saturating_sub(figures.min_rtt?).as_secs_f64();
    Some((beyond - queue_s).max(0.0))
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
        cross_traffic_bps: estimate.cross_traffic * 8.0,
        cross_traffic_marked: estimate.signalled.marked,
        cross_traffic_dropped: estimate.signalled.dropped,
        active: estimate.active as u64,
    }
}
