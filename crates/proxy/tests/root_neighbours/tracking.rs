//! Connection tracking that begins when bentpipe is there already.

use crate::attempt::{Attempt, transfer};
use crate::nat::MASQUERADE;
use crate::neighbour::outward;
use crate::observer::{expect_none_invalid, observe};
use crate::row::{Handling, Row};
use crate::shell::kernel;
use crate::trial::{HANDSHAKES, SETTLING, Trial};

/// Nothing has been tracked yet when the daemon starts and this connection begins.
fn first_connection(handshake: &str, family: usize, masquerade: bool, row: &mut Row) {
    let Some(trial) = Trial::new() else { return };
    observe(&trial.net.gateway, "drop");
    if masquerade {
        trial.net.gateway.rules(MASQUERADE);
    }
    let mut daemon = trial.daemon(handshake);
    let attempt = Attempt::outward(&trial.net, family, 8000);
    let what = format!("{attempt}, {handshake}, masquerade {masquerade}");
    let ends = attempt.connect(&attempt.listen()).map_err(|error| error.to_string());
    ends.and_then(transfer).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_eq!(daemon.counter("flows_total"), 1, "{what}");
    row.add(family == 1, Handling::Split);
    expect_none_invalid(&trial.net.gateway, &what);
    daemon.stop();
}

#[test]
fn the_first_connection_that_is_tracked_is_like_the_others() {
    let mut row = Row::default();
    for handshake in HANDSHAKES {
        for (family, masquerade) in [(0, false), (0, true), (1, false), (1, true)] {
            first_connection(handshake, family, masquerade, &mut row);
        }
    }
    let notes = "`ct state invalid drop` in all hooks, with and without masquerading, no entry before";
    row.write("tracking that begins with the first connection", &kernel(), notes);
}

#[test]
fn connections_go_on_when_rules_begin_to_track_them() {
    let mut row = Row::default();
    for handshake in HANDSHAKES {
        let Some(trial) = Trial::new() else { return };
        let attempts = outward(&trial.net);
        let mut daemon = trial.daemon(handshake);
        let connect = |attempt: &Attempt| attempt.connect(&attempt.listen()).unwrap();
        let before: Vec<_> = attempts.iter().map(connect).collect();
        observe(&trial.net.gateway, "drop");
        std::thread::sleep(SETTLING);
        for ends in before.into_iter().chain(attempts.iter().map(connect)) {
            transfer(ends).unwrap_or_else(|error| panic!("{handshake}: {error}"));
        }
        assert_eq!(daemon.counter("flows_total"), 4);
        attempts.iter().for_each(|attempt| row.add(attempt.to.is_ipv6(), Handling::Split));
        expect_none_invalid(&trial.net.gateway, handshake);
        daemon.stop();
    }
    let notes = "connections from before and new ones";
    row.write("rules that begin to track connections", &kernel(), notes);
}
