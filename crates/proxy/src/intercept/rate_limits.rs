//! Limits on new connections per second, of all clients and of each, as nftables statements.
//!
//! They count SYNs of connections that would be split, in the chain that the other limits are in. Each is a
//! token bucket in the kernel: it holds `burst` connections and gains the rate every second.

use std::time::Duration;

use super::counters::Verdict;
use crate::config::ConnectionRates;

/// The sets of clients with their rates of new connections; those of IPv6 are networks of 64 bits.
const RATED_CLIENTS: [&str; 2] = ["rated_clients4", "rated_clients6"];
/// The most clients whose rate is known at a time, of each family; each takes about 200 bytes of the kernel's
/// memory. Those beyond are not limited.
const MOST_CLIENTS: u32 = 50_000;
/// How long a client is known that opens no connection. A bucket is full again before that.
const FORGOTTEN_AFTER: Duration = ConnectionRates::REFILL;

/// The sets of clients, each with its bucket. They are there without a limit, too, so that a reload can set
/// one.
pub(super) fn sets() -> String {
    let timeout = FORGOTTEN_AFTER.as_secs();
    let set = |name, kind| {
        format!(
            "\tset {name} {{ type {kind}; flags dynamic, timeout; timeout {timeout}s; size {MOST_CLIENTS}; }}\n"
        )
    };
    let [clients4, clients6] = RATED_CLIENTS;
    set(clients4, "ipv4_addr") + &set(clients6, "ipv6_addr")
}

/// The rules for a SYN; `at` says what becomes of one beyond a limit.
///
/// A client's own limit is first: what it has too much takes nothing from the others.
pub(super) fn statements(rates: &ConnectionRates, at: impl Fn(Verdict) -> String) -> String {
    let mut rules = String::new();
    if let Some(rate) = rates.per_client {
        let over = over(rate.get(), rates.burst_of(rate));
        let ([clients4, clients6], verdict) = (RATED_CLIENTS, at(Verdict::ClientRate));
        rules += &format!(
            "\t\tupdate @{clients4} {{ ip saddr {over} }} {verdict}\n\
             \t\tupdate @{clients6} {{ ip6 saddr and ffff:ffff:ffff:ffff:: {over} }} {verdict}\n"
        );
    }
    if let Some(rate) = rates.all {
        rules += &format!("\t\t{} {}\n", over(rate.get(), rates.burst_of(rate)), at(Verdict::Rate));
    }
    rules
}

fn over(rate: u32, burst: u32) -> String {
    format!("limit rate over {rate}/second burst {burst} packets")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn rates(text: &str) -> ConnectionRates {
        let text = format!("[limits]\n{text}\n[legs.a]\ninterface = \"sat0\"\n");
        Config::parse("x", &text).unwrap().limits.rates()
    }

    #[test]
    fn without_a_limit_nothing_is_counted() {
        assert_eq!(statements(&rates(""), |_| "accept".into()), "");
    }

    #[test]
    fn a_burst_is_what_comes_in_a_second_unless_it_is_configured() {
        let text = statements(&rates("connection_rate = 300"), |_| "accept".into());
        assert_eq!(text, "\t\tlimit rate over 300/second burst 300 packets accept\n");
        let text =
            statements(&rates("connection_rate = 300\nburst = 40"), |_| "reject with tcp reset".into());
        assert_eq!(text, "\t\tlimit rate over 300/second burst 40 packets reject with tcp reset\n");
    }

    #[test]
    fn a_clients_own_limit_comes_first_and_ipv6_clients_are_networks() {
        let text =
            statements(&rates("connection_rate = 300\nconnection_rate_per_client = 20"), |_| "accept".into());
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        assert_eq!(
            lines,
            [
                "update @rated_clients4 { ip saddr limit rate over 20/second burst 20 packets } accept",
                "update @rated_clients6 { ip6 saddr and ffff:ffff:ffff:ffff:: limit rate over 20/second burst 20 packets } accept",
                "limit rate over 300/second burst 300 packets accept",
            ]
        );
    }
}
