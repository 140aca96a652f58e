//! XCP between two boxes: spoken where both sides do, left where one is silent, falls silent or dies; and no
//! byte is harmed.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

use crate::common::exchange::Exchange;
use crate::common::symmetric::{Symmetric, symmetric};
use crate::common::{Net, Running, SERVER, pattern, socket_address, wait_until};

/// XCP's options cut out of what a box sends towards the satellite, as some middleboxes do with what they do
/// not know.
const STRIPPING: &str = "
    table inet stripping {
        chain path {
            type filter hook postrouting priority 0
            oifname sat0 reset tcp option 254
        }
    }
";

fn leg(congestion: &str) -> String {
    format!(
        "[legs.satellite]\ninterface = \"sat0\"\ncongestion = \"{congestion}\"\nrate = \"200Mbit/s\"\nrtt = \"20ms\"\n"
    )
}

fn started(net: &Net, congestion: &str) -> Running {
    net.try_daemon(&leg(congestion)).unwrap_or_else(|error| panic!("daemon: {error}"))
}

fn listen(scene: &Symmetric, address: &str) -> TcpListener {
    scene.server().enter(|| TcpListener::bind(socket_address(address, 0)).unwrap())
}

/// The congestion controls of a box's connections over the satellite: of those that are open with an address
/// of the other side.
fn spoken(net: &Net) -> String {
    net.gateway.output("ss -Htine state established")
}

fn speaks_xcp(net: &Net) -> bool {
    spoken(net).contains("bp_pxcp")
}

/// A download in pieces: the server sends one when it is asked for it, so that it is in the middle between
/// two.
struct Download {
    client: TcpStream,
    server: TcpStream,
    seed: u64,
}

impl Download {
    fn begin(scene: &Symmetric) -> Self {
        let (client, server) = scene.connection(scene.client(), &listen(scene, SERVER[0]));
        Self { client, server, seed: 0 }
    }

    fn piece(&mut self, length: usize) {
        self.seed += 1;
        let sent = pattern(self.seed, length);
        thread::scope(|scope| {
            scope.spawn(|| self.server.write_all(&sent).unwrap());
            let mut got = vec![0; length];
            self.client.read_exact(&mut got).unwrap();
            assert!(got == sent, "piece {}", self.seed);
        });
    }
}

#[test]
fn two_boxes_speak_it_over_both_families_and_the_router_sees_it() {
    let Some(scene) = symmetric() else { return };
    let (near, mut far) = (started(&scene.near, "p-xcp"), started(&scene.far, "p-xcp"));
    for address in SERVER {
        let (client, server) = scene.connection(scene.client(), &listen(&scene, address));
        wait_until("both boxes speak XCP", || speaks_xcp(&scene.near) && speaks_xcp(&scene.far));
        Exchange::start((client, server), 2_000_000).expect_identical();
    }
    wait_until("the router has counted", || far.counter("xcp_headers") > 1000);
    assert_eq!(far.counter("xcp_malformed"), 0);
    near.settle();
    far.settle();
}

#[test]
fn a_box_falls_back_if_the_other_is_silent() {
    let Some(scene) = symmetric() else { return };
    for (congestion, of_near) in [("p-xcp", "hybla"), ("hybla", "p-xcp")] {
        let (near, far) = (started(&scene.near, of_near), started(&scene.far, congestion));
        let mut download = Download::begin(&scene);
        download.piece(1_000_000);
        for net in [&scene.near, &scene.far] {
            assert!(spoken(net).contains("hybla") && !speaks_xcp(net), "{}", spoken(net));
        }
        drop(download);
        near.settle();
        far.settle();
    }
}

#[test]
fn options_that_are_cut_out_in_the_middle_of_a_transfer_end_xcp_and_not_the_transfer() {
    let Some(scene) = symmetric() else { return };
    let (near, far) = (started(&scene.near, "p-xcp"), started(&scene.far, "p-xcp"));
    let mut download = Download::begin(&scene);
    download.piece(1_000_000);
    assert!(speaks_xcp(&scene.far), "{}", spoken(&scene.far));
    scene.near.gateway.rules(STRIPPING);
    wait_until("the sender has fallen back", || {
        download.piece(500_000);
        !speaks_xcp(&scene.far)
    });
    scene.near.gateway.rules("delete table inet stripping");
    download.piece(1_000_000);
    // Others are not held to it.
    let mut next = Download::begin(&scene);
    next.piece(1_000_000);
    assert!(speaks_xcp(&scene.far), "{}", spoken(&scene.far));
    drop((download, next));
    near.settle();
    far.settle();
}

#[test]
fn a_reload_to_hybla_and_back_harms_no_transfer() {
    let Some(scene) = symmetric() else { return };
    let (mut near, mut far) = (started(&scene.near, "p-xcp"), started(&scene.far, "p-xcp"));
    let mut downloads = vec![Download::begin(&scene)];
    for (congestion, speaks) in [("hybla", false), ("p-xcp", true)] {
        downloads[0].piece(500_000);
        for daemon in [&mut near, &mut far] {
            daemon.reload(&leg(congestion)).unwrap();
        }
        // Those that are open go on as they are.
        downloads[0].piece(500_000);
        let mut new = Download::begin(&scene);
        new.piece(500_000);
        let of_new = scene
            .far
            .gateway
            .output(&format!("ss -Htine state established dst = {}", new.client.local_addr().unwrap()));
        assert_eq!(of_new.contains("bp_pxcp"), speaks, "{of_new}");
        downloads.push(new);
    }
    downloads.iter_mut().for_each(|download| download.piece(200_000));
    drop(downloads);
    for mut daemon in [near, far] {
        daemon.wait_for("flows_open", 0);
        daemon.wait_for("relay_buffers_in_use", 0);
        daemon.stop();
    }
    scene.near.expect_untouched();
    scene.far.expect_untouched();
}

#[test]
fn when_a_box_is_killed_the_other_goes_on_and_new_connections_pass() {
    let Some(scene) = symmetric() else { return };
    let (near, far) = (started(&scene.near, "p-xcp"), started(&scene.far, "p-xcp"));
    let mut download = Download::begin(&scene);
    download.piece(1_000_000);
    near.kill();
    // What was on the dead box ends in a reset, never in an end of file.
    assert!(download.client.read(&mut [0; 1]).is_err());
    let mut next = None;
    wait_until("a new connection passes the dead box", || {
        let mut download = Download::begin(&scene);
        download.piece(200_000);
        next = Some(download);
        true
    });
    assert!(!speaks_xcp(&scene.far), "{}", spoken(&scene.far));
    drop((download, next));
    far.settle();
}
