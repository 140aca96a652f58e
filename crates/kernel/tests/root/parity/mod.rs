//! The kernel's build and this host's build of the arithmetic of the congestion controls and of the AQM do
//! the same, bit by bit.
//!
//! Generated connections, and for the AQM generated packets, run through `crates/tcp/core` as this host
//! compiles it, and the same events through an eBPF program that includes the same headers. `SEED=…` replays
//! a run.

mod generate;

use std::fmt::Debug;
use std::mem::MaybeUninit;

use bentpipe_tcp::congestion::c_core::{
    AqmPacket, AqmState, ExplicitPath, ExplicitSocket, HyblaParameters, HyblaSocket, HyblaState, XcpSocket,
    XcpState,
};
use generate::Connection;
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{MapCore, MapFlags, ProgramInput};

#[allow(clippy::all, clippy::undocumented_unsafe_blocks, unreachable_pub, unused, unsafe_op_in_unsafe_fn)]
mod skel {
    include!(concat!(env!("OUT_DIR"), "/parity.skel.rs"));
}

/// Events of one algorithm: two thirds of them are acknowledgements.
const EVENTS: u64 = 3_000_000;
/// Events of one run of the eBPF program, which has room for so many.
const BATCH: usize = 1024;

const PARAMETERS: HyblaParameters =
    HyblaParameters { rtt0_us: 25_000, standard_window: 10, burst: 10, parts: 31 };

/// An algorithm in both builds.
///
/// # Safety
/// State and socket are `repr(C)`, of integers without padding, at most 104 and 128 bytes long.
unsafe trait Core {
    const NUMBER: u32;
    type State: Copy + Default + PartialEq + Debug;
    type Socket: Copy + Default + PartialEq + Debug;

    /// As the host does it.
    fn step(state: &mut Self::State, socket: &mut Self::Socket);
    /// The next event of a connection.
    fn next(connection: &mut Connection) -> Self::Socket;
    /// What the event has set.
    fn obey(connection: &mut Connection, socket: &Self::Socket);
}

struct Hybla;
struct Explicit;
struct Xcp;
struct Aqm;

// SAFETY: `c_core` asserts that there is no padding.
unsafe impl Core for Hybla {
    const NUMBER: u32 = 0;
    type State = HyblaState;
    type Socket = HyblaSocket;

    fn step(state: &mut HyblaState, socket: &mut HyblaSocket) {
        state.step(socket, &PARAMETERS);
    }

    fn next(connection: &mut Connection) -> HyblaSocket {
        connection.next_hybla()
    }

    fn obey(connection: &mut Connection, socket: &HyblaSocket) {
        connection.set(socket.cwnd, socket.ssthresh, socket.pacing_rate);
    }
}

// SAFETY: `c_core` asserts that there is no padding.
unsafe impl Core for Explicit {
    const NUMBER: u32 = 1;
    type State = ExplicitPath;
    type Socket = ExplicitSocket;

    fn step(state: &mut ExplicitPath, socket: &mut ExplicitSocket) {
        state.step(socket);
    }

    fn next(connection: &mut Connection) -> ExplicitSocket {
        connection.next_explicit()
    }

    fn obey(connection: &mut Connection, socket: &ExplicitSocket) {
        connection.set(socket.cwnd, u32::MAX, socket.pacing_rate);
    }
}

// SAFETY: `c_core` asserts that there is no padding.
unsafe impl Core for Xcp {
    const NUMBER: u32 = 2;
    type State = XcpState;
    type Socket = XcpSocket;

    fn step(state: &mut XcpState, socket: &mut XcpSocket) {
        state.step(socket);
    }

    fn next(connection: &mut Connection) -> XcpSocket {
        connection.next_xcp()
    }

    fn obey(connection: &mut Connection, socket: &XcpSocket) {
        connection.set(socket.cwnd, socket.ssthresh, socket.pacing_rate);
        connection.requested = socket.request;
    }
}

// SAFETY: `c_core` asserts that there is no padding.
unsafe impl Core for Aqm {
    const NUMBER: u32 = 3;
    type State = AqmState;
    type Socket = AqmPacket;

    fn step(state: &mut AqmState, packet: &mut AqmPacket) {
        state.step(packet);
    }

    fn next(connection: &mut Connection) -> AqmPacket {
        connection.next_packet()
    }

    fn obey(connection: &mut Connection, packet: &AqmPacket) {
        connection.verdicts[packet.verdict as usize] += 1;
    }
}

/// `struct event` of the program.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[repr(C)]
struct Event {
    socket: [u64; 16],
    state: [u64; 13],
}

/// `struct batch` of the program.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct Batch {
    algorithm: u32,
    length: u32,
    parameters: HyblaParameters,
    state: [u64; 13],
    events: [Event; BATCH],
}

#[test]
fn hybla_is_the_same_in_the_kernel_and_in_virtual_time() {
    compare::<Hybla>();
}

#[test]
fn explicit_rates_are_the_same_in_the_kernel_and_in_virtual_time() {
    compare::<Explicit>();
}

#[test]
fn the_aqm_is_the_same_in_the_kernel_and_in_virtual_time() {
    let Some(connection) = compare::<Aqm>() else { return };
    assert!(connection.verdicts.iter().all(|&count| count > 1000), "{:?}", connection.verdicts);
}

#[test]
fn xcp_is_the_same_in_the_kernel_and_on_the_host() {
    compare::<Xcp>();
}

/// The connection with all its events; `None` where the kernel's build cannot run.
fn compare<C: Core>() -> Option<Connection> {
    // SAFETY: geteuid only returns a number.
    if unsafe { libc::geteuid() } != 0 {
        println!("skipped: needs root: to load an eBPF program");
        return None;
    }
    let seed = std::env::var("SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    println!("seed {seed}");
    let mut storage = MaybeUninit::uninit();
    let loaded = skel::ParitySkelBuilder::default().open(&mut storage).unwrap().load().unwrap();
    let in_kernel = |batch: &Batch| -> Box<Batch> {
        let key = 0u32.to_ne_bytes();
        loaded.maps.batches.update(&key, bytes_of(batch), MapFlags::ANY).unwrap();
        let output = loaded.progs.parity.test_run(ProgramInput::default()).unwrap();
        assert_eq!(output.return_value, batch.length, "not all events were run");
        Box::new(from_bytes(&loaded.maps.batches.lookup(&key, MapFlags::ANY).unwrap().unwrap()))
    };

    let mut connection = Connection::new(seed);
    let mut state = C::State::default();
    let mut compared = 0;
    while compared < EVENTS {
        let mut before = batch::<C>(&state);
        let mut after = before;
        for n in 0..BATCH {
            let mut socket = C::next(&mut connection);
            before.events[n].socket = words(&socket);
            C::step(&mut state, &mut socket);
            C::obey(&mut connection, &socket);
            after.events[n] = Event { socket: words(&socket), state: words(&state) };
        }
        let kernel = in_kernel(&before);
        let difference = (0..BATCH).find(|&n| kernel.events[n] != after.events[n]);
        if let Some(n) = difference {
            let state_before = if n == 0 { before.state } else { after.events[n - 1].state };
            panic!(
                "{}",
                report::<C>(
                    seed,
                    compared + n as u64,
                    &before.events[n],
                    &state_before,
                    [&after.events[n], &kernel.events[n],]
                )
            );
        }
        compared += BATCH as u64;
    }
    println!("{compared} events, {} acknowledgements", connection.acknowledgements);
    assert!(connection.acknowledgements > 1_500_000, "{}", connection.acknowledgements);
    Some(connection)
}

fn batch<C: Core>(state: &C::State) -> Batch {
    Batch {
        algorithm: C::NUMBER,
        length: BATCH as u32,
        parameters: PARAMETERS,
        state: words(state),
        events: [Event::default(); BATCH],
    }
}

/// The counterexample: the event, the state before it, and what both builds have made of it.
fn report<C: Core>(seed: u64, index: u64, event: &Event, before: &[u64; 13], after: [&Event; 2]) -> String {
    let socket = |event: &Event| from_bytes::<C::Socket>(bytes_of(&event.socket));
    let state = |words: &[u64; 13]| from_bytes::<C::State>(bytes_of(words));
    let [host, kernel] = after;
    format!(
        "the builds differ at event {index} of seed {seed}\n   event: {:?}\n   state: {:?}\n    host: {:?}\n          {:?}\n  \
         kernel: {:?}\n          {:?}",
        socket(event),
        state(before),
        socket(host),
        state(&host.state),
        socket(kernel),
        state(&kernel.state),
    )
}

fn words<T: Copy, const N: usize>(value: &T) -> [u64; N] {
    let mut words = [0u64; N];
    for (word, bytes) in words.iter_mut().zip(bytes_of(value).chunks(8)) {
        *word = u64::from_ne_bytes(bytes.try_into().expect("whole words"));
    }
    words
}

fn bytes_of<T: Copy>(value: &T) -> &[u8] {
    // SAFETY: only the types of this file and of `Core` come here: integers without padding.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast(), size_of::<T>()) }
}

fn from_bytes<T: Copy>(bytes: &[u8]) -> T {
    assert!(bytes.len() >= size_of::<T>());
    // SAFETY: there are as many bytes, and any bytes are integers.
    unsafe { bytes.as_ptr().cast::<T>().read_unaligned() }
}
