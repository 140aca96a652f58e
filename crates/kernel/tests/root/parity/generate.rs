//! Generated connections: the events of a sender, with what its socket shows at each.
//!
//! The counters are consistent with each other as those of a connection are, and what the congestion control
//! sets comes back in the next event. Lengths of paths, rates and the frequency of losses change from one
//! connection to the next, and within it; now and then a value is one that no path has.

use bentpipe_tcp::congestion::c_core::*;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

/// Events of one connection, on the average.
const LENGTH: u64 = 3000;

pub(super) struct Connection {
    random: Xoshiro256PlusPlus,
    pub(super) acknowledgements: u64,
    /// What the last event has requested for each segment, bytes per second.
    pub(super) requested: i32,
    /// How often each verdict of the AQM has come.
    pub(super) verdicts: [u64; 3],
    now_us: u64,
    /// All times are multiples of this, or of a sixteenth of it: comparisons of times then meet equal ones,
    /// too.
    grain_us: u64,
    /// The receiver returns no feedback.
    is_silent: bool,
    /// The round trip without and with queue.
    base_rtt_us: u64,
    queue_us: u64,
    min_rtt_us: u32,
    srtt_us: u32,
    /// The receiver's clock, less ours, and how long acknowledgements wait on their way back.
    clock_ms: u32,
    back_us: u64,
    mss: u32,
    header: u32,
    cwnd: u32,
    ssthresh: u32,
    prior_cwnd: u32,
    prr_out: u32,
    in_flight: u32,
    data_segs_out: u32,
    delivered: u32,
    lost: u32,
    pacing_rate: u64,
    max_pacing_rate: u64,
    rate: u64,
    capacity: u64,
    asked: u64,
    heard_total: u32,
    heard: u32,
    ignores_loss: u32,
    app_limited: bool,
    recovery: u32,
    /// One loss in so many acknowledgements.
    loss_every: u64,
    /// Events that follow from the last one: number and argument.
    due: Vec<(u32, u32)>,
    sample_us: u32,
}

impl Connection {
    pub(super) fn new(seed: u64) -> Self {
        let mut connection = Self {
            random: Xoshiro256PlusPlus::seed_from_u64(seed),
            acknowledgements: 0,
            requested: 0,
            verdicts: [0; 3],
            now_us: 0,
            grain_us: 1,
            is_silent: false,
            base_rtt_us: 0,
            queue_us: 0,
            min_rtt_us: 0,
            srtt_us: 0,
            clock_ms: 0,
            back_us: 0,
            mss: 0,
            header: 0,
            cwnd: 0,
            ssthresh: 0,
            prior_cwnd: 0,
            prr_out: 0,
            in_flight: 0,
            data_segs_out: 0,
            delivered: 0,
            lost: 0,
            pacing_rate: 0,
            max_pacing_rate: 0,
            rate: 0,
            capacity: 0,
            asked: 0,
            heard_total: 0,
            heard: 0,
            ignores_loss: 0,
            app_limited: false,
            recovery: 0,
            loss_every: 0,
            due: Vec::new(),
            sample_us: 0,
        };
        connection.begin();
        connection
    }

    /// What the congestion control has set.
    pub(super) fn set(&mut self, cwnd: u32, ssthresh: u32, pacing_rate: u64) {
        (self.cwnd, self.pacing_rate) = (cwnd, pacing_rate);
        if ssthresh != u32::MAX {
            self.ssthresh = ssthresh;
        }
    }

    pub(super) fn next_hybla(&mut self) -> HyblaSocket {
        let (event, argument) = self.next();
        let interval = (self.srtt_us / 2).saturating_add(self.below(1 + u64::from(self.srtt_us)) as u32);
        HyblaSocket {
            now_us: self.now_us,
            max_pacing_rate: self.max_pacing_rate,
            pacing_rate: self.pacing_rate,
            event,
            argument,
            cwnd: self.cwnd,
            cwnd_clamp: self.clamp(),
            ssthresh: self.ssthresh,
            prior_cwnd: self.prior_cwnd,
            prr_out: self.prr_out,
            in_flight: self.in_flight,
            data_segs_out: self.data_segs_out,
            delivered: self.delivered,
            lost: self.lost,
            rate_delivered: self.below(2 + u64::from(self.in_flight)) as u32,
            rate_interval_us: if self.one_in(20) { 0 } else { interval },
            mss: self.mss,
            srtt_us: self.srtt_us,
            min_rtt_us: self.min_rtt_us,
            app_limited: self.app_limited.into(),
            cwnd_limited: self.one_in(2).into(),
        }
    }

    /// A packet that leaves: each event of the connection is one.
    pub(super) fn next_packet(&mut self) -> AqmPacket {
        self.next();
        if self.one_in(1000) {
            // Usually about as much as comes.
            self.rate = if self.one_in(3) { self.any_rate() } else { 2_000_000 + self.below(3_000_000) };
        }
        let interval_us = (self.base_rtt_us as u32).max(1);
        AqmPacket {
            now_us: self.now_us,
            rate: self.rate,
            bytes: 40 + self.below(1500) as u32 * if self.one_in(10) { 40 } else { 1 },
            target_us: interval_us / 20,
            interval_us,
            judged: self.one_in(2).into(),
            ecn: self.one_in(2).into(),
            may_drop: self.one_in(2).into(),
            ..AqmPacket::default()
        }
    }

    pub(super) fn next_explicit(&mut self) -> ExplicitSocket {
        let (event, _) = self.next();
        if self.one_in(100) {
            self.rate = self.any_rate();
        }
        let timestamp =
            (((self.now_us - self.back_us.min(self.now_us)) / 1000) as u32).wrapping_add(self.clock_ms);
        ExplicitSocket {
            now_us: self.now_us,
            rate: self.rate,
            max_pacing_rate: self.max_pacing_rate,
            pacing_rate: self.pacing_rate,
            event: match event {
                CORE_INIT => EXPLICIT_INIT,
                CORE_RTT => EXPLICIT_SAMPLE,
                _ => EXPLICIT_OBEY,
            },
            sample_us: self.sample_us,
            timestamp: if self.one_in(30) { 0 } else { timestamp },
            empty_rtt_us: if self.one_in(3) { 0 } else { self.base_rtt_us as u32 },
            mss: self.mss,
            header: self.header,
            cwnd: self.cwnd,
            cwnd_clamp: self.clamp(),
        }
    }

    pub(super) fn next_xcp(&mut self) -> XcpSocket {
        let (event, argument) = self.next();
        if self.one_in(400) {
            self.is_silent = !self.is_silent;
        }
        if event == CORE_ACK && !self.is_silent && !self.one_in(10) {
            let requested = self.requested.max(0) as u32;
            self.asked = self.asked.wrapping_add(requested.into());
            self.heard += 1;
            let feedback = match self.below(3) {
                0 => requested,
                1 => self.below(1 + u64::from(requested)) as u32,
                _ => (self.below(20_000) as u32).wrapping_neg(),
            };
            self.heard_total = self.heard_total.wrapping_add(feedback);
        }
        XcpSocket {
            capacity: self.capacity,
            max_pacing_rate: self.max_pacing_rate,
            pacing_rate: self.pacing_rate,
            asked: self.asked,
            event,
            argument,
            heard_total: self.heard_total,
            heard: self.heard,
            cwnd: self.cwnd,
            cwnd_clamp: self.clamp(),
            ssthresh: self.ssthresh,
            prior_cwnd: self.prior_cwnd,
            in_flight: self.in_flight,
            data_segs_out: self.data_segs_out,
            delivered: self.delivered,
            mss: self.mss,
            header: self.header,
            snd_wnd: if self.one_in(10) { self.below(100_000) as u32 } else { u32::MAX },
            srtt_us: self.srtt_us,
            min_rtt_us: self.min_rtt_us,
            app_limited: self.app_limited.into(),
            holes: (self.recovery != TCP_CA_OPEN).into(),
            to_retransmit: self.one_in(3).into(),
            ignores_loss: self.ignores_loss,
            request_rtt_us: 0,
            spacing_ns: 0,
            request: self.requested,
            fall_back: 0,
        }
    }

    fn next(&mut self) -> (u32, u32) {
        if let Some(due) = self.due.pop() {
            return self.happens(due);
        }
        match self.below(LENGTH) {
            0 => self.begin(),
            1..20 => self.time_out(),
            20..40 => self.pause(),
            40..80 => self.change_path(),
            80..100 => self.due.push((CORE_UNDO, 0)),
            100..150 => self.app_limited = !self.app_limited,
            _ if self.one_in(self.loss_every) => self.lose(),
            _ if self.recovery != TCP_CA_OPEN && self.one_in(30) => {
                self.due.push((CORE_SET_STATE, TCP_CA_OPEN));
            }
            _ => {}
        }
        if self.due.is_empty() {
            self.acknowledge();
        }
        self.now_us -= self.now_us % self.grain_us;
        let due = self.due.pop().expect("something happens");
        self.happens(due)
    }

    /// What the kernel changes before it tells the congestion control.
    fn happens(&mut self, (event, argument): (u32, u32)) -> (u32, u32) {
        match event {
            CORE_ACK => self.acknowledgements += 1,
            CORE_SET_STATE => {
                self.recovery = argument;
                if argument == TCP_CA_LOSS {
                    self.cwnd = 1;
                }
            }
            CORE_SSTHRESH => (self.prior_cwnd, self.prr_out) = (self.cwnd, 0),
            _ => {}
        }
        (event, argument)
    }

    fn begin(&mut self) {
        self.grain_us = if self.one_in(2) { 16_000 } else { 1 };
        self.is_silent = false;
        self.now_us += self.grain_us + self.below(10_000_000);
        self.base_rtt_us = self.any_rtt();
        self.queue_us = 0;
        self.back_us = 0;
        let measured = !self.one_in(5);
        self.min_rtt_us = if measured { self.base_rtt_us as u32 } else { 0 };
        self.srtt_us = self.min_rtt_us;
        self.sample_us = self.min_rtt_us;
        self.clock_ms = self.random.next_u32();
        self.mss = [1448, 1432, 536, 1, 8960][self.below(5) as usize];
        self.header = [52, 40, 72, 60][self.below(4) as usize];
        self.cwnd = if self.one_in(5) { 1 } else { 10 };
        self.ssthresh = INFINITE_SSTHRESH;
        (self.in_flight, self.data_segs_out) = (0, 0);
        self.delivered = if self.one_in(3) { self.random.next_u32() } else { 0 };
        self.lost = 0;
        self.max_pacing_rate = if self.one_in(4) { self.any_rate() } else { u64::MAX };
        self.rate = self.any_rate();
        self.capacity = if self.one_in(3) { 0 } else { self.any_rate() };
        self.ignores_loss = self.below(2) as u32;
        self.app_limited = false;
        self.recovery = TCP_CA_OPEN;
        self.loss_every = [20, 100, 1000, 100_000][self.below(4) as usize];
        self.due.push((CORE_INIT, 0));
    }

    fn acknowledge(&mut self) {
        self.send();
        let acked = match self.below(20) {
            0 => 0,
            1..10 => 1,
            10..18 => 2,
            _ => self.below(200) as u32,
        };
        let acked = acked.min(self.in_flight);
        self.delivered = self.delivered.wrapping_add(acked);
        self.in_flight -= acked;
        self.now_us += self.below(4000).max(self.below(2) * self.grain_us);
        match self.below(50) {
            0 => self.queue_us = 0,
            1..10 => self.queue_us = (self.queue_us + self.below(20_000)).min(2_000_000),
            _ => {}
        }
        if self.one_in(200) {
            self.back_us = {
                let back_us = self.below(1 + self.base_rtt_us);
                self.in_grains(back_us)
            };
        }
        self.due.push((CORE_ACK, 0));
        if acked > 0 && !self.one_in(8) {
            let sample = self.base_rtt_us + self.queue_us + self.back_us + self.below(3000);
            self.sample_us = self.in_grains(sample).clamp(1, u32::MAX.into()) as u32;
            self.min_rtt_us = match self.min_rtt_us {
                0 => self.sample_us,
                known => known.min(self.sample_us),
            };
            self.srtt_us = self.srtt_us - self.srtt_us / 8 + self.sample_us / 8;
            self.due.push((CORE_RTT, self.sample_us));
        }
    }

    fn send(&mut self) {
        let room = self.cwnd.min(1 << 20).saturating_sub(self.in_flight);
        let sent = if self.app_limited { room.min(1) } else { room.min(self.below(6) as u32 + 1) };
        let sent = if self.data_segs_out == 0 { self.cwnd.min(10) } else { sent };
        self.in_flight += sent;
        self.data_segs_out += sent;
        self.prr_out += sent;
    }

    fn lose(&mut self) {
        let lost = (1 + self.below(3) as u32).min(self.in_flight);
        self.lost += lost;
        self.in_flight -= lost;
        if self.recovery == TCP_CA_OPEN {
            let how = if self.one_in(5) { TCP_CA_CWR } else { TCP_CA_RECOVERY };
            self.due.extend([(CORE_SET_STATE, how), (CORE_SSTHRESH, 0)]);
        }
    }

    fn time_out(&mut self) {
        self.now_us += 3 * self.base_rtt_us + self.silence();
        self.lost += self.in_flight;
        self.in_flight = 0;
        self.due.extend([(CORE_SET_STATE, TCP_CA_LOSS), (CORE_SSTHRESH, 0)]);
    }

    fn pause(&mut self) {
        self.now_us += self.silence();
        self.delivered = self.delivered.wrapping_add(self.in_flight);
        self.in_flight = 0;
    }

    fn change_path(&mut self) {
        self.base_rtt_us =
            if self.one_in(3) { self.any_rtt() } else { self.base_rtt_us + self.below(50_000) };
        if self.one_in(4) {
            let step = if self.one_in(4) { self.random.next_u32() } else { self.below(2000) as u32 };
            self.clock_ms = self.clock_ms.wrapping_add(step);
        }
    }

    /// Where times have a grain, mostly a short one: a bound that grows with the time that passes then meets
    /// what it bounds in small steps, and does not jump over it.
    fn silence(&mut self) -> u64 {
        let is_short = self.grain_us > 1 && !self.one_in(10);
        if is_short { self.below(8) * self.grain_us } else { self.below(60_000_000) }
    }

    fn clamp(&mut self) -> u32 {
        if self.one_in(1000) { self.below(100) as u32 } else { u32::MAX }
    }

    fn any_rtt(&mut self) -> u64 {
        match self.below(20) {
            0 => 1 + self.below(100),
            1 => self.below(1 << 32),
            2 => 1 + self.below(10_000_000),
            _ => 1000 + self.below(1_200_000),
        }
    }

    /// Bytes per second.
    fn any_rate(&mut self) -> u64 {
        match self.below(20) {
            0 => 0,
            1 => self.random.next_u64(),
            2 => self.below(10_000_000_000),
            _ => self.below(12_500_000),
        }
    }

    fn in_grains(&self, time_us: u64) -> u64 {
        time_us - time_us % self.grain_us.div_ceil(16)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.random.next_u64() % bound
    }

    fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }
}
