//! Whether routes lead over the legs, and to everywhere else.

use std::net::IpAddr;

use bentpipe_kernel::host::Check;
use serde::Deserialize;

use super::families;
use super::interfaces::ip_json;
use crate::config::Config;

#[derive(Debug, Clone, Deserialize)]
struct Route {
    #[serde(rename = "type", default = "unicast")]
    kind: String,
    dst: String,
    #[serde(default)]
    scope: String,
    #[serde(default)]
    protocol: String,
}

fn unicast() -> String {
    "unicast".to_owned()
}

/// One for each leg whose interface is there, and one for each family that has no default route.
pub(super) fn checks(config: &Config) -> Vec<Check> {
    let legs = config.legs.iter().filter_map(|(name, leg)| {
        let interface = leg.interface.as_str();
        // An interface that is missing is another finding.
        let routes = ["-4", "-6"].map(|family| of(family, &["dev", interface]).ok());
        let routes = routes.into_iter().collect::<Option<Vec<_>>>()?.concat();
        Some(over(name, interface, &routes))
    });
    let (ipv4, ipv6) = families::found();
    let used = [("IPv4", "-4", "0.0.0.0/0", ipv4), ("IPv6", "-6", "::/0", ipv6)];
    let defaults = used.into_iter().filter(|(.., is_used)| *is_used).filter_map(|(name, family, all, _)| {
        let routes = of(family, &["default"]).ok()?;
        Some(default(name, routes.iter().any(|route| [all, "default"].contains(&route.dst.as_str()))))
    });
    legs.chain(defaults).collect()
}

/// The routes of all tables that lead to other hosts.
fn of(family: &str, selector: &[&str]) -> Result<Vec<Route>, String> {
    let mut routes: Vec<Route> = ip_json(&[&[family, "route", "show", "table", "all"], selector].concat())?;
    routes.retain(|route| route.kind == "unicast" && !is_of_the_link(&route.dst));
    Ok(routes)
}

/// Addresses that no router forwards to: fe80::/10 (RFC 4291 §2.5.6) and multicast.
fn is_of_the_link(network: &str) -> bool {
    let address = network.split('/').next().unwrap_or_default().parse::<IpAddr>();
    address.is_ok_and(|address| match address {
        IpAddr::V4(address) => address.is_link_local() || address.is_multicast(),
        IpAddr::V6(address) => address.is_unicast_link_local() || address.is_multicast(),
    })
}

fn over(leg: &str, interface: &str, routes: &[Route]) -> Check {
    let name = format!("routes, leg {leg}");
    let fix = format!(
        "ip route add NETWORK via ADDRESS dev {interface}, or ip route add default via ADDRESS dev {interface}"
    );
    let is_own =
        |route: &&Route| route.protocol == "kernel" || route.scope == "link" && route.dst != "default";
    let others: Vec<&str> =
        routes.iter().filter(|route| !is_own(route)).map(|route| route.dst.as_str()).collect();
    match (routes, &others[..]) {
        ([], _) => Check::fail(
            name,
            format!("no route leads over {interface}: nothing is sent to the satellite"),
            fix,
        ),
        ([own, ..], []) => Check::warn(
            name,
            format!("only {} is reached over {interface}, the network of its own address", own.dst),
            fix,
        ),
        (_, [first, ..]) => {
            let more =
                if others.len() > 1 { format!(" and {} more", others.len() - 1) } else { String::new() };
            Check::pass(name, format!("{first}{more} over {interface}"))
        }
    }
}

fn default(family: &str, is_there: bool) -> Check {
    let name = format!("{family} default route");
    if is_there {
        return Check::pass(name, "there is one");
    }
    Check::warn(
        name,
        "none: connections to networks without a route of their own fail",
        "ip route add default via ADDRESS, unless every network has its own route",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn routes(text: &str) -> Vec<Route> {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn a_leg_needs_a_route_beyond_its_own_network() {
        let own = r#"{"dst":"10.1.0.0/24","protocol":"kernel","scope":"link"}"#;
        let check = over("geo", "sat0", &[]);
        assert!(!check.ok && check.fix.unwrap().contains("dev sat0"));
        let check = over("geo", "sat0", &routes(&format!("[{own}]")));
        assert!(check.warning && check.found.contains("only 10.1.0.0/24"), "{check}");
        let check = over("geo", "sat0", &routes(&format!(r#"[{own},{{"dst":"default","scope":"link"}}]"#)));
        assert!(check.ok && !check.warning && check.found == "default over sat0", "{check}");
    }

    #[test]
    fn networks_of_the_link_alone_lead_nowhere() {
        for (network, is) in
            [("fe80::/64", true), ("ff00::/8", true), ("default", false), ("10.0.0.0/8", false)]
        {
            assert_eq!(is_of_the_link(network), is, "{network}");
        }
    }

    #[test]
    fn a_default_route_that_is_missing_is_warned_of() {
        assert!(default("IPv4", true).fix.is_none());
        assert!(default("IPv4", false).warning);
    }
}
