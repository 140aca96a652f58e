//! Test runs of the router's program, on frames that are not sent.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use libbpf_rs::libbpf_sys::{bpf_prog_test_run_opts, bpf_test_run_opts};

/// The longest frame that is returned, bytes.
const LONGEST: usize = 65_536;
/// `struct __sk_buff` of linux/bpf.h as 32-bit words up to its `sk`, and where the members are that a run may
/// set.
const CONTEXT_WORDS: usize = 42;
const WIRE_LEN: usize = 40;
const GSO_SEGS: usize = 41;

/// The input of a test run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Frame<'a> {
    /// An Ethernet frame.
    pub(crate) bytes: &'a [u8],
    /// How many packets it will be cut into; 0 for one that is not to be cut.
    pub(crate) segments: u32,
    /// The bytes that it has on the wire, all its packets with their headers; 0 for the length of the frame.
    pub(crate) wire_length: u32,
    /// How often the program is to see it, one time after the other.
    pub(crate) repeat: u32,
}

/// The output of a test run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Trial {
    /// The frame as the program left it.
    pub(crate) bytes: Vec<u8>,
    /// The program's verdict (`enum tcx_action_base`): −1 for the next program.
    pub(crate) verdict: i32,
    /// The mean time of a run.
    pub(crate) took: Duration,
}

impl<'a> Frame<'a> {
    /// A frame that is one packet, once.
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, segments: 0, wire_length: 0, repeat: 1 }
    }
}

/// Runs the program on a frame, which then goes nowhere (`BPF_PROG_TEST_RUN`).
pub(crate) fn run(program: BorrowedFd<'_>, frame: &Frame<'_>) -> io::Result<Trial> {
    let mut bytes = vec![0u8; LONGEST];
    let mut context = [0u32; CONTEXT_WORDS];
    (context[WIRE_LEN], context[GSO_SEGS]) = (frame.wire_length, frame.segments);
    let mut options = bpf_test_run_opts {
        sz: size_of::<bpf_test_run_opts>() as _,
        data_in: frame.bytes.as_ptr().cast(),
        data_size_in: u32::try_from(frame.bytes.len()).map_err(io::Error::other)?,
        data_out: bytes.as_mut_ptr().cast(),
        data_size_out: LONGEST as u32,
        ctx_in: (&raw const context).cast(),
        ctx_size_in: size_of_val(&context) as u32,
        repeat: i32::try_from(frame.repeat).unwrap_or(i32::MAX),
        ..Default::default()
    };
    // SAFETY: the pointers are to `frame`, `bytes` and `context`, which live through the call, with their
    // lengths.
    let outcome = unsafe { bpf_prog_test_run_opts(program.as_raw_fd(), &mut options) };
    if outcome < 0 {
        return Err(io::Error::from_raw_os_error(-outcome));
    }
    bytes.truncate(options.data_size_out as usize);
    let took = Duration::from_nanos(options.duration.into());
    Ok(Trial { bytes, verdict: options.retval.cast_signed(), took })
}
