//! What a connection costs while it is idle, and that none is lost among many.

use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use crate::common::crowd::{Crowd, Visits};
use crate::common::footprint::Footprint;
use crate::common::{Net, PATIENCE, Running, SERVER, network};
use bentpipe_kernel::limits::raise_descriptor_limit;

const HELD: usize = 2000;
const VISITORS: u64 = 300;
/// Of the daemon's memory for each idle connection, bytes.
const MEMORY_EACH: u64 = 2048;

#[test]
fn an_idle_connection_takes_two_descriptors_and_little_memory_and_outlives_its_neighbours() {
    let Some(net) = network() else { return };
    // Ours and, inherited, the daemon's; each needs more than the usual 1024.
    raise_descriptor_limit().unwrap();
    for relay in crate::common::RELAYS {
        let mut daemon = net.daemon(&format!("relay = \"{relay}\""));
        // What is taken once, whatever the number of connections.
        come_and_go(&net);
        settle(&mut daemon, 0);
        let before = Footprint::of(daemon.pid());

        let mut crowd = Crowd::new(&net);
        crowd.grow(&net, HELD, |_| {});
        settle(&mut daemon, HELD as u64);
        assert_cost(relay, "opened", before, Footprint::of(daemon.pid()));

        come_and_go(&net);
        settle(&mut daemon, HELD as u64);
        assert_cost(relay, "after others", before, Footprint::of(daemon.pid()));
        assert_eq!(crowd.prove_alive(), (HELD, None), "{relay}");

        drop(crowd);
        settle(&mut daemon, 0);
        let after = Footprint::of(daemon.pid());
        assert_eq!(after.sockets, before.sockets, "{relay}");
        daemon.stop();
    }
}

fn come_and_go(net: &Net) {
    let visits = Visits::default();
    let (listener, never) = (net.listen(SERVER[0]), AtomicBool::new(false));
    visits.receive(net, &listener, Duration::ZERO, VISITORS, &never);
    assert_eq!(visits.total(), VISITORS);
}

/// Waits until so many flows are open and none of them holds anything.
fn settle(daemon: &mut Running, flows: u64) {
    daemon.wait_for("flows_open", flows);
    let start = Instant::now();
    while ["connecting", "relay_buffers_in_use", "buffered"].iter().any(|name| daemon.counter(name) > 0) {
        assert!(start.elapsed() < PATIENCE, "something is still on its way");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn assert_cost(relay: &str, when: &str, before: Footprint, now: Footprint) {
    assert_eq!(now.sockets - before.sockets, 2 * HELD, "{relay}, {when}: {now:?}");
    // Beside them only the pool's idle pipes have come.
    let others = |footprint: Footprint| footprint.descriptors - footprint.sockets - footprint.pipes;
    assert_eq!(others(now), others(before), "{relay}, {when}: {before:?} {now:?}");
    let memory = now.resident.saturating_sub(before.resident) / HELD as u64;
    println!("{relay}, {when}: {memory} bytes of resident memory for each connection");
    assert!(memory <= MEMORY_EACH, "{relay}, {when}: {memory} bytes for each connection");
}
