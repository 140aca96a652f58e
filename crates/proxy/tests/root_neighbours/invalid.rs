//! Bulk both ways where every hook drops what connection tracking does not know.

use crate::attempt::{Attempt, transfer_of};
use crate::common::company;
use crate::nat::MASQUERADE;
use crate::neighbour::outward;
use crate::observer::{expect_none_invalid, observe};
use crate::row::{Handling, Row};
use crate::shell::kernel;
use crate::trial::{HANDSHAKES, Trial};

const TRANSFERS: usize = 5;
const BYTES: usize = 50 << 20;

#[test]
#[ignore = "takes real programs and minutes: make neighbours"]
fn no_packet_of_bulk_transfers_is_invalid_with_and_without_masquerading() {
    // It saturates the machine, and would measure the patience of the others.
    let _alone = company::alone();
    let mut row = Row::default();
    for masquerade in [false, true] {
        let Some(trial) = Trial::new() else { return };
        observe(&trial.net.gateway, "drop");
        if masquerade {
            trial.net.gateway.rules(MASQUERADE);
        }
        for handshake in HANDSHAKES {
            let mut daemon = trial.daemon(handshake);
            for attempt in outward(&trial.net) {
                bulk(&attempt);
                row.add(attempt.to.is_ipv6(), Handling::Split);
            }
            assert_eq!(daemon.counter("flows_total"), 2 * TRANSFERS as u64, "all of them are split");
            daemon.stop();
        }
        expect_none_invalid(&trial.net.gateway, &format!("masquerade {masquerade}"));
    }
    let notes = "5 × 50 MiB each way, with and without masquerading: 0 INVALID packets";
    row.write("`ct state invalid drop` in all hooks, bulk", &kernel(), notes);
}

fn bulk(attempt: &Attempt) {
    let listener = attempt.listen();
    for number in 0..TRANSFERS {
        let ends = attempt.connect(&listener).unwrap();
        transfer_of(ends, BYTES).unwrap_or_else(|error| panic!("{attempt}, number {number}: {error}"));
    }
}
