//! Explicit rates as users meet them: crowds.

mod common;

use std::io::Write;
use std::net::Shutdown;
use std::thread;
use std::time::Duration;

use bentpipe_link::{DirectionConfig, LinkConfig};
use bentpipe_units::{ByteCount, Probability, Rate};
use common::{SERVER, network_over, pattern, read_all};

const RATE: Rate = Rate::mbps(10);
const CROWD: usize = 50;

fn link(rtt_ms: u64, per: f64) -> LinkConfig {
    let direction = DirectionConfig {
        rate: Some(RATE),
        delay: Duration::from_millis(rtt_ms / 2),
        queue: Some(ByteCount::new(4 * RATE.bytes_in(Duration::from_secs(1)))),
        per: Probability::new(per).unwrap(),
        ..Default::default()
    };
    LinkConfig { forward: direction.clone(), reverse: direction }
}

/// Idle connections that all have something to send at the same time, and end with it.
fn a_crowd_wakes(rtt_ms: u64, per: f64, bytes: usize) {
    let Some(net) = network_over(&link(rtt_ms, per)) else { return };
    let leg = format!("[legs.satellite]\ninterface = \"sat0\"\nrate = \"{RATE}\"\nrtt = \"{rtt_ms}ms\"\n");
    let mut daemon = net.try_daemon(&leg).unwrap();
    let listener = net.listen(SERVER[0]);
    let (clients, servers) = net.connections(&listener, CROWD);
    let sent = &pattern(1, bytes);
    thread::scope(|scope| {
        // They are accepted in another order than they were opened.
        for (mut client, mut server) in clients.into_iter().zip(servers) {
            scope.spawn(move || {
                client.write_all(sent).unwrap();
                client.shutdown(Shutdown::Write).unwrap();
                assert!(read_all(&mut client).unwrap().is_empty());
            });
            scope.spawn(move || assert!(read_all(&mut server).unwrap() == *sent));
        }
    });
    daemon.wait_for("flows_finished", CROWD as u64);
    assert_eq!(daemon.counter("flows_reset"), 0);
}

#[test]
fn a_crowd_over_a_short_path_has_all_its_bytes() {
    a_crowd_wakes(40, 0.0, 100_000);
}

#[test]
fn a_crowd_over_a_long_path_that_loses_packets_has_all_its_bytes() {
    a_crowd_wakes(600, 0.01, 30_000);
}
