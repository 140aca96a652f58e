//! Statistics and reports of a flow.

use std::time::{Duration, Instant};

use bentpipe_kernel::tcp_info::{TcpInfo, tcp_info};

use super::{Flow, Route, Side};
use crate::telemetry::{EndReport, FlowPhase, FlowReport, LegStatsTable};

impl Flow {
    /// From now on the flow's legs know of it.
    pub(crate) fn join(&mut self, leg_stats: &LegStatsTable) {
        self.account = Some(leg_stats.open(self.route.pair, &self.route.legs, self.state.since));
    }

    /// The same where the flow comes from another process, which has accounted for what it has done there.
    pub(crate) fn rejoin(&mut self, leg_stats: &LegStatsTable) {
        let (infos, bytes) = (self.infos(), self.bytes());
        self.account = Some(
            leg_stats.open(self.route.pair, &self.route.legs, self.state.since).continue_from(infos, bytes),
        );
    }

    /// Brings the legs' numbers up to date, about once a second. The sockets of a flow that rests are not
    /// looked at. Returns the ends that are to be probed from now on: their timers have expired, and their
    /// leg is out.
    pub(crate) fn look(&mut self, now: Instant) -> [Option<Side>; 2] {
        let bytes = self.bytes();
        // What waits in the kernel to be acknowledged takes memory there.
        let is_busy = self.state.inspected.memory > 0 || self.state.phase != FlowPhase::Relaying;
        let Some(account) = self.account.as_mut().filter(|account| account.is_due(now)) else {
            return [None; 2];
        };
        let is_worth_it = account.note_bytes(now, bytes) || is_busy;
        let infos = if is_worth_it { self.infos() } else { [None; 2] };
        match &mut self.account {
            Some(account) if is_worth_it => account.look(now, infos),
            Some(account) => account.skip(now),
            None => {}
        }
        let waits = |side: &Side| infos[*side as usize].is_some_and(|info| info.backoff > 0);
        [Side::Client, Side::Server]
            .map(|side| Some(side).filter(waits).filter(|&side| self.begin_probing(side, now)))
    }

    /// Whether an end, whose timer has expired, is to be probed and is not yet.
    fn begin_probing(&mut self, side: Side, now: Instant) -> bool {
        let Self { account, route: Route { pair, legs }, probed, .. } = self;
        let leg = [pair.client, pair.server][side as usize];
        let begins = !probed[side as usize]
            && legs.get(leg).restarts_soon()
            && account.as_ref().is_some_and(|account| account.is_out(side, now));
        probed[side as usize] |= begins;
        begins
    }

    /// Whether the worker probes this end.
    pub(crate) fn set_probed(&mut self, side: Side, probed: bool) {
        self.probed[side as usize] = probed;
    }

    /// The last sample, before the sockets are closed; the legs no longer count the flow.
    pub(crate) fn leave(&mut self, now: Instant) {
        if let Some(mut account) = self.account.take() {
            account.close(now, self.infos());
        }
    }

    /// By which flows are told in order: the rate, bit/s, and bytes. Nothing of a flow that is known to no
    /// leg.
    pub(crate) fn rank(&self) -> Option<(f64, u64)> {
        let (up, down) = self.account.as_ref()?.rates();
        Some((up + down, self.state.up.bytes() + self.state.down.bytes()))
    }

    /// Everything that is known of it; nothing if its sockets cannot be read.
    pub(crate) fn report(&self, now: Instant) -> Option<FlowReport> {
        let account = self.account.as_ref()?;
        let (up_bps, down_bps) = account.rates();
        let [client, server] = self.infos();
        let (up_bytes, down_bytes) = self.bytes();
        Some(FlowReport {
            id: account.number,
            client: self.state.ends.client.to_string(),
            server: self.state.ends.server.to_string(),
            weight: u8::try_from(self.route.pair.weight.get()).unwrap_or(u8::MAX),
            phase: self.state.phase,
            age_s: now.saturating_duration_since(self.state.since).as_secs_f64(),
            idle_s: now.saturating_duration_since(account.moved).as_secs_f64(),
            up_bytes,
            down_bytes,
            up_bps,
            down_bps,
            buffered_bytes: self.state.inspected.memory as u64,
            client_end: end(account.leg(Side::Client), &client?),
            server_end: end(account.leg(Side::Server), &server?),
        })
    }

    /// Of the client's socket and of the server's.
    pub(super) fn infos(&self) -> [Option<TcpInfo>; 2] {
        [&self.state.client, &self.state.server].map(|end| tcp_info(&end.socket).ok())
    }
}

fn end(leg: &str, info: &TcpInfo) -> EndReport {
    let bits = |bytes: u64| bytes.saturating_mul(8);
    let min_rtt = if info.min_rtt < TcpInfo::NO_MIN_RTT { info.min_rtt } else { Duration::ZERO };
    EndReport {
        leg: leg.to_owned(),
        srtt_s: info.srtt.as_secs_f64(),
        min_rtt_s: min_rtt.as_secs_f64(),
        rto_s: info.rto.as_secs_f64(),
        backoff: info.backoff,
        cwnd: info.cwnd,
        ssthresh: (info.ssthresh < TcpInfo::NO_SSTHRESH).then_some(info.ssthresh),
        mss: info.mss,
        unacked: info.unacked,
        unsent_bytes: info.unsent,
        retransmissions: info.retransmissions,
        segments: info.data_segments_out,
        timeouts: info.timeouts,
        pacing_bps: (info.pacing_rate < u64::MAX).then(|| bits(info.pacing_rate)),
        delivery_bps: bits(info.delivery_rate),
    }
}
