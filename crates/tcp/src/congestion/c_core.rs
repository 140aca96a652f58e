//! The arithmetic in C that the kernel's congestion controls and virtual time share (`crates/tcp/core`).
//!
//! The headers there say what each field is, with units and sources; the names here are theirs. The kernel's
//! eBPF programs include the same headers, and a test of `bentpipe-kernel` compares both builds bit by bit.
#![allow(missing_docs, reason = "the headers have the documentation of the fields")]
#![allow(unsafe_code, reason = "functions in C")]

/// `TCP_INFINITE_SSTHRESH`: the threshold of a connection that has none yet.
pub const INFINITE_SSTHRESH: u32 = 0x7fff_ffff;
/// `EXPLICIT_UNKNOWN`: the delay of the way to the receiver is unknown.
pub const UNKNOWN: u32 = u32::MAX;

/// `TCP_CA_*`: what the loss recovery of a connection is doing.
pub mod state {
    pub const OPEN: u32 = 0;
    pub const CWR: u32 = 2;
    pub const RECOVERY: u32 = 3;
    pub const LOSS: u32 = 4;
}

/// `HYBLA_*` and `XCP_*`, the events of both.
pub mod event {
    pub const INIT: u32 = 0;
    pub const ACK: u32 = 1;
    pub const RTT: u32 = 2;
    pub const SET_STATE: u32 = 3;
    pub const SSTHRESH: u32 = 4;
    pub const UNDO: u32 = 5;
}

/// `EXPLICIT_*`, the events of explicit rates.
pub mod explicit_event {
    pub const INIT: u32 = 0;
    pub const SAMPLE: u32 = 1;
    pub const OBEY: u32 = 2;
}

/// `struct hybla_parameters`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct HyblaParameters {
    pub rtt0_us: u32,
    pub standard_window: u32,
    pub burst: u32,
    pub parts: u32,
}

/// `struct hybla`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct HyblaState {
    pub growth: u64,
    pub credit: u64,
    pub train_first_us: u64,
    pub train_last_us: u64,
    pub train_base: u32,
    pub train_first: u32,
    pub train_last: u32,
    pub rho: u32,
    pub min_rtt_us: u32,
    pub rtt_us: u32,
    pub initial_window: u32,
    pub delivered: u32,
    pub lost: u32,
    pub round_end: u32,
    pub round_rate: u32,
    pub capacity: u32,
    pub prr_delivered: u32,
    pub target: u32,
    pub state: u8,
    pub train: u8,
    pub hoe_applied: u8,
    pub queued: u8,
    pub undone: u8,
    pub reserved: [u8; 11],
}

/// `struct hybla_socket`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct HyblaSocket {
    pub now_us: u64,
    pub max_pacing_rate: u64,
    pub pacing_rate: u64,
    pub event: u32,
    pub argument: u32,
    pub cwnd: u32,
    pub cwnd_clamp: u32,
    pub ssthresh: u32,
    pub prior_cwnd: u32,
    pub prr_out: u32,
    pub in_flight: u32,
    pub data_segs_out: u32,
    pub delivered: u32,
    pub lost: u32,
    pub rate_delivered: u32,
    pub rate_interval_us: u32,
    pub mss: u32,
    pub srtt_us: u32,
    pub min_rtt_us: u32,
    pub app_limited: u32,
    pub cwnd_limited: u32,
}

/// `struct explicit_path`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct ExplicitPath {
    pub epoch_end_us: u64,
    pub recent_end_us: u64,
    pub first_us: u64,
    pub first_age_us: u32,
    pub min_rtt_us: u32,
    pub before_us: u32,
    pub recent_rtt_us: u32,
    pub min_forward_us: u32,
    pub forward_before_us: u32,
    pub recent_forward_us: u32,
    pub rtt_us: u32,
    pub shortest_us: u32,
    pub forward_us: u32,
}

/// `struct explicit_socket`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct ExplicitSocket {
    pub now_us: u64,
    pub rate: u64,
    pub max_pacing_rate: u64,
    pub pacing_rate: u64,
    pub event: u32,
    pub sample_us: u32,
    pub timestamp: u32,
    pub empty_rtt_us: u32,
    pub mss: u32,
    pub header: u32,
    pub cwnd: u32,
    pub cwnd_clamp: u32,
}

/// `struct xcp`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct XcpState {
    pub asked: u64,
    pub allowance: u64,
    pub recent: u64,
    pub round: u64,
    pub credit: i64,
    pub heard: u32,
    pub total: u32,
    pub heard_delivered: u32,
    pub round_end: u32,
    pub window: u32,
    pub rtt_us: u32,
    pub silence: u32,
    pub round_heard: u32,
    pub queued_rounds: u8,
    pub draining: u8,
    pub reserved: [u8; 30],
}

/// `struct xcp_socket`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(C)]
pub struct XcpSocket {
    pub capacity: u64,
    pub max_pacing_rate: u64,
    pub pacing_rate: u64,
    pub asked: u64,
    pub event: u32,
    pub argument: u32,
    pub heard_total: u32,
    pub heard: u32,
    pub cwnd: u32,
    pub cwnd_clamp: u32,
    pub ssthresh: u32,
    pub prior_cwnd: u32,
    pub in_flight: u32,
    pub data_segs_out: u32,
    pub delivered: u32,
    pub mss: u32,
    pub header: u32,
    pub snd_wnd: u32,
    pub srtt_us: u32,
    pub min_rtt_us: u32,
    pub app_limited: u32,
    pub holes: u32,
    pub to_retransmit: u32,
    pub ignores_loss: u32,
    pub request_rtt_us: u32,
    pub spacing_ns: u32,
    pub request: i32,
    pub fall_back: u32,
}

// The headers assert the same sizes.
const _: () = {
    assert!(size_of::<HyblaParameters>() == 16);
    assert!(size_of::<HyblaState>() == 104 && size_of::<HyblaSocket>() == 96);
    assert!(size_of::<ExplicitPath>() == 64 && size_of::<ExplicitSocket>() == 64);
    assert!(size_of::<XcpState>() == 104 && size_of::<XcpSocket>() == 128);
};

impl HyblaState {
    /// The event that `socket` names happens.
    pub fn step(&mut self, socket: &mut HyblaSocket, parameters: &HyblaParameters) {
        // SAFETY: the structs have the layout of C's, and the function keeps no pointer.
        unsafe { c::bentpipe_hybla_step(self, socket, parameters) }
    }
}

impl ExplicitPath {
    /// The event that `socket` names happens.
    pub fn step(&mut self, socket: &mut ExplicitSocket) {
        // SAFETY: the structs have the layout of C's, and the function keeps no pointer.
        unsafe { c::bentpipe_explicit_step(self, socket) }
    }
}

impl XcpState {
    /// The event that `socket` names happens.
    pub fn step(&mut self, socket: &mut XcpSocket) {
        // SAFETY: the structs have the layout of C's, and the function keeps no pointer.
        unsafe { c::bentpipe_xcp_step(self, socket) }
    }
}

/// `core/core.c`.
mod c {
    use super::*;

    unsafe extern "C" {
        pub(super) fn bentpipe_hybla_step(
            state: &mut HyblaState,
            socket: &mut HyblaSocket,
            parameters: &HyblaParameters,
        );
        pub(super) fn bentpipe_explicit_step(state: &mut ExplicitPath, socket: &mut ExplicitSocket);
        pub(super) fn bentpipe_xcp_step(state: &mut XcpState, socket: &mut XcpSocket);
    }
}
