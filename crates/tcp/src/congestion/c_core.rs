//! The arithmetic in C that the kernel's congestion controls and virtual time share (`crates/tcp/core`).
//!
//! The headers there say what each field is, with units and sources; the build script declares their structs
//! and enumerations here. The kernel's eBPF programs include the same headers, and a test of
//! `bentpipe-kernel` compares both builds bit by bit.
#![allow(missing_docs, reason = "the headers have the documentation of the fields")]
#![allow(unsafe_code, reason = "functions in C")]

include!(concat!(env!("OUT_DIR"), "/c_core.rs"));

/// `TCP_INFINITE_SSTHRESH`: the threshold of a connection that has none yet.
pub const INFINITE_SSTHRESH: u32 = 0x7fff_ffff;
/// `EXPLICIT_UNKNOWN`: the delay of the way to the receiver is unknown.
pub const UNKNOWN: u32 = u32::MAX;

impl HyblaState {
    /// The event that `socket` names happens.
    pub fn step(&mut self, socket: &mut HyblaSocket, parameters: &HyblaParameters) {
        // SAFETY: the structs have the layout of C's, and the function keeps no pointer.
        unsafe { bentpipe_hybla_step(self, socket, parameters) }
    }
}

impl ExplicitPath {
    /// The event that `socket` names happens.
    pub fn step(&mut self, socket: &mut ExplicitSocket) {
        // SAFETY: the structs have the layout of C's, and the function keeps no pointer.
        unsafe { bentpipe_explicit_step(self, socket) }
    }
}

impl XcpState {
    /// The event that `socket` names happens.
    pub fn step(&mut self, socket: &mut XcpSocket) {
        // SAFETY: the structs have the layout of C's, and the function keeps no pointer.
        unsafe { bentpipe_xcp_step(self, socket) }
    }
}

// `core/core.c`.
unsafe extern "C" {
    fn bentpipe_hybla_step(state: &mut HyblaState, socket: &mut HyblaSocket, parameters: &HyblaParameters);
    fn bentpipe_explicit_step(state: &mut ExplicitPath, socket: &mut ExplicitSocket);
    fn bentpipe_xcp_step(state: &mut XcpState, socket: &mut XcpSocket);
}
