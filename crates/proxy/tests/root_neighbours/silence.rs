//! What is silent for reasons of its own does not end the splitting of others.

use std::net::TcpStream;
use std::time::Duration;

use crate::attempt::{Attempt, Outcome};
use crate::common::{SERVER, socket_address};
use crate::trial::{HANDSHAKES, Trial};

/// A SYN is repeated after 1 and 3 s.
const ATTEMPT: Duration = Duration::from_secs(4);
/// A port at which the server drops everything.
const SILENT: u16 = 8020;

#[test]
fn a_server_that_does_not_answer_does_not_end_splitting() {
    for handshake in HANDSHAKES {
        let Some(trial) = Trial::new() else { return };
        trial.net.server.rules(&format!(
            "table inet silence {{\nchain c {{\n type filter hook input priority filter; tcp dport {SILENT} drop\n}}\n}}\n"
        ));
        let mut daemon = trial.daemon(handshake);
        for address in SERVER {
            let to = socket_address(address, SILENT);
            // With the early handshake bentpipe answers.
            let outcome = trial.net.client.enter(|| TcpStream::connect_timeout(&to, ATTEMPT));
            assert_eq!(outcome.is_ok(), handshake == "early", "{handshake}: {outcome:?}");
        }
        if handshake == "early" {
            daemon.wait_for("flows_total", SERVER.len() as u64);
        }
        let attempt = Attempt::outward(&trial.net, 0, 8000);
        let before = daemon.counter("flows_total");
        assert!(matches!(attempt.try_once(&attempt.listen()), Outcome::Through { .. }));
        assert_eq!(daemon.counter("flows_total"), before + 1, "{handshake}: split\n{}", trial.log());
        daemon.stop();
    }
}
