//! Debian's Squid on the gateway with the files of `docs/guides/squid.md`: what it sends over the satellite
//! has bentpipe's Hybla.

use std::collections::BTreeSet;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use bentpipe_kernel::hybla::{Hybla, is_hybla};
use bentpipe_lab::download::{Progress, Request, SAMPLE_INTERVAL, Server, download};
use bentpipe_lab::squid::{self, Page, Squid, WebServer, block};
use bentpipe_lab::topology::{Proxy, Topology};
use bentpipe_proxy::Config;
use bentpipe_testbed::{Need, require};
use bentpipe_units::Rate;

use crate::common::{missing, symmetric};

const MINUTE: Duration = Duration::from_secs(60);

/// Whether the machine lacks Squid, besides what all tests here need.
fn squid_is_missing() -> bool {
    if missing() {
        return true;
    }
    let squid = require(&[Need::Program("squid")]);
    if let Err(missing) = &squid {
        println!("skipped: scripts/setup-peers squid installs it: {missing}");
    }
    squid.is_err()
}

/// The congestion controls of the gateway's open connections to an address, as ss(8) says. A server may have
/// sent all and closed before Squid has read it.
fn congestion_towards(topology: &Topology, address: &str) -> BTreeSet<String> {
    let states = ["state", "established", "state", "close-wait"];
    let output = topology.gateway.command("ss").arg("-Htin").args(states).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    // A line of state, queues and addresses, and one of what the connection does, which begins with the name.
    let name = |pair: &[&str]| {
        let is_it = pair[0].split_whitespace().nth(4).is_some_and(|peer| peer.contains(address));
        is_it.then(|| pair[1].split_whitespace().next().unwrap().to_owned())
    };
    lines.chunks_exact(2).filter_map(name).collect()
}

#[test]
fn what_squid_sends_over_the_satellite_has_hybla_and_arrives_whole() {
    if squid_is_missing() {
        return;
    }
    let topology = Topology::build(&symmetric(Rate::mbps(10), 300, 0.0), 7).unwrap();
    let daemon =
        Proxy::start(&topology.gateway, &Config::parse("the guide", block("toml")).unwrap()).unwrap();
    // Other daemons of this machine may have the first name.
    let hybla = Hybla::acquire().unwrap();
    squid::route_to_client(&topology, Some(hybla.name())).unwrap();
    let _squid = Squid::start(&topology).unwrap();
    // One connection that was not redirected would end Squid's service.
    let direct = SocketAddr::new(topology.gateway_address(), squid::PORT);
    let refused = topology.client.run(|| TcpStream::connect(direct)).unwrap().unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    let request = Request { seed: 7, bytes: 4_000_000 };
    let _server = WebServer::start(&topology, request, None).unwrap();

    let page = std::thread::scope(|scope| {
        let page = scope.spawn(|| squid::load(&topology, request, MINUTE).unwrap());
        let (mut satellite, mut ground) = (BTreeSet::new(), BTreeSet::new());
        while !page.is_finished() {
            satellite.extend(congestion_towards(&topology, "10.20.0.2:"));
            ground.extend(congestion_towards(&topology, &topology.server_address(80).to_string()));
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(satellite, BTreeSet::from([hybla.name().to_owned()]), "on the satellite");
        assert!(!ground.is_empty() && !ground.iter().any(|name| is_hybla(name)), "on the ground: {ground:?}");
        page.join().unwrap()
    });
    let Page { head, bytes, identical, .. } = &page;
    assert!(head.starts_with("HTTP/1.1 200") && head.contains("Via: 1.1 gateway.example (squid/"), "{head}");
    assert_eq!((*bytes, *identical), (request.bytes, true), "{page:?}");
    assert_eq!(daemon.stats().flows_total, 0, "Squid's connections are its own");

    // What is not Squid's is split.
    let https = topology.server_address(443);
    let server = topology.server.run(|| Server::start(https, None, SAMPLE_INTERVAL)).unwrap().unwrap();
    let request = Request { seed: 8, bytes: 100_000 };
    let progress = Progress::default();
    let got = topology.client.run(|| download(server.address(), request, &progress)).unwrap().unwrap();
    assert!(got.identical, "{got:?}");
    assert_eq!(daemon.stats().flows_total, 1);
}
