//! Checks whether the bundle node runs to which rules hand connections.

use std::fs;
use std::net::{Ipv6Addr, UdpSocket};

use bentpipe_kernel::host::Check;
use bentpipe_proxy::Config;

/// `TCP_LISTEN` (include/net/tcp_states.h), as /proc/net/tcp writes it.
const LISTEN: &str = "0A";

/// Checks the node's listeners, if a rule says `bundle`. Whether they are transparent, as they must be,
/// cannot be seen from outside.
pub(super) fn node(config: &Config) -> Option<Check> {
    let port = config.bundle_port()?;
    // Unlike /proc/net, this shows the network namespace of this thread.
    let table = |name: &str| fs::read_to_string(format!("/proc/thread-self/net/{name}")).unwrap_or_default();
    let has_ipv6 = UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)).is_ok();
    Some(check_listeners(port, &table("tcp"), has_ipv6.then(|| table("tcp6")).as_deref()))
}

/// By the tables of sockets; that of IPv6 where the host has it.
fn check_listeners(port: u16, ipv4: &str, ipv6: Option<&str>) -> Check {
    let name = "bundle node";
    let ipv4 = (format!("127.0.0.1:{port}"), listens(ipv4, &loopback4(), port));
    let ipv6 = ipv6.map(|table| (format!("[::1]:{port}"), listens(table, &loopback6(), port)));
    let (there, lacking): (Vec<_>, Vec<_>) =
        [Some(ipv4), ipv6].into_iter().flatten().partition(|(_, is)| *is);
    let names = |list: Vec<(String, bool)>| {
        list.into_iter().map(|(address, _)| address).collect::<Vec<_>>().join(" and ")
    };
    if lacking.is_empty() {
        return Check::pass(name, format!("listens on {}", names(there)));
    }
    Check::fail(
        name,
        format!(
            "a rule says bundle, but nothing listens on {}: matching connections pass unsplit",
            names(lacking)
        ),
        match cfg!(feature = "dtn") {
            true => "start the node, bentpipe dtn run; or set [bundle] port to where it listens",
            false => "take the rule out: this program is without the bundle node, which the package has",
        },
    )
}

/// Whether a line of the table is a listener on this port of the loopback address, or of all addresses.
fn listens(table: &str, loopback: &str, port: u16) -> bool {
    let unspecified = "0".repeat(loopback.len());
    let ours = [loopback, &unspecified].map(|address| format!("{address}:{port:04X}"));
    table.lines().any(|line| {
        let mut columns = line.split_whitespace().skip(1);
        let (local, state) = (columns.next(), columns.nth(1));
        state == Some(LISTEN) && local.is_some_and(|local| ours.iter().any(|address| address == local))
    })
}

/// 127.0.0.1 as /proc/net/tcp writes it: a word in this machine's order.
fn loopback4() -> String {
    format!("{:08X}", u32::from_ne_bytes([127, 0, 0, 1]))
}

/// ::1 as /proc/net/tcp6 writes it: four such words.
fn loopback6() -> String {
    format!("{:024X}{:08X}", 0, u32::from_ne_bytes([0, 0, 0, 1]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, TcpListener, TcpStream};

    fn config(port: u16, action: &str) -> Config {
        let text = format!(
            "[bundle]\nport = {port}\n[legs.a]\ninterface = \"sat0\"\n[[rules]]\naction = \
             \"{action}\"\nport = 80\n"
        );
        Config::parse("x", &text).unwrap()
    }

    #[test]
    fn without_a_rule_no_node_is_needed() {
        assert!(node(&config(7690, "pass")).is_none());
    }

    #[test]
    fn listeners_are_found_in_the_kernels_tables() {
        let [v4, other] = [(); 2].map(|()| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
        let port = v4.local_addr().unwrap().port();
        // One that is connected is no listener.
        let stream = TcpStream::connect(other.local_addr().unwrap()).unwrap();
        for (port, listens) in [(port, true), (stream.local_addr().unwrap().port(), false)] {
            let check = node(&config(port, "bundle")).unwrap();
            assert_eq!(!check.found.contains(&format!("nothing listens on 127.0.0.1:{port}")), listens);
        }
        let Ok(_v6) = TcpListener::bind((Ipv6Addr::LOCALHOST, port)) else { return };
        let check = node(&config(port, "bundle")).unwrap();
        assert!(
            check.ok && check.found == format!("listens on 127.0.0.1:{port} and [::1]:{port}"),
            "{check:?}"
        );
    }

    #[test]
    fn each_family_that_lacks_its_listener_is_named() {
        let line = |address: &str, state: &str| {
            format!("  sl  local_address rem_address   st\n   0: {address}:1E0A 00000000:0000 {state} 0:0\n")
        };
        let v4 = line(&loopback4(), LISTEN);
        let check = check_listeners(7690, &v4, Some(""));
        assert!(!check.ok && check.found.contains("nothing listens on [::1]:7690: matching"), "{check:?}");
        let check = check_listeners(7690, "", Some(""));
        assert!(check.found.contains("on 127.0.0.1:7690 and [::1]:7690: matching"), "{check:?}");
        assert!(
            check_listeners(7690, &v4, None).ok && check_listeners(7690, &line("00000000", LISTEN), None).ok
        );
        assert!(
            !check_listeners(7690, &line(&loopback4(), "01"), None).ok
                && !check_listeners(7691, &v4, None).ok
        );
        assert!(!check_listeners(7690, &line("0100000A", LISTEN), None).ok);
    }
}
