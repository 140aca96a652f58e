//! XCP's ends in the running kernel: they agree or fall back, whatever is done to their options on the way.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;

use crate::common::{in_namespace, run, wait_for};
use bentpipe_kernel::congestion;
use bentpipe_kernel::router::programs_at;
use bentpipe_kernel::sockopt::{self, set_congestion};
use bentpipe_kernel::xcp::{Xcp, XcpError, XcpParameters};
use bentpipe_units::Rate;
use socket2::{Domain, Socket, Type};

/// The loopback interface has segments of this size, so that some are a good many bytes.
const SEGMENT: usize = 65_536;
const FALLBACK: &str = "reno";
/// Counts the segments with an option of XCP's by its length, and the SYNs with one.
const COUNTING: &str = "
    table inet counting {
        chain seen {
            type filter hook input priority 0
            tcp option @254,16,16 0x4250 tcp option @254,8,8 4 counter
            tcp option @254,16,16 0x4250 tcp option @254,8,8 8 counter
            tcp option @254,16,16 0x4250 tcp option @254,8,8 16 counter
        }
    }";

fn xcp(capacity: Rate) -> Xcp {
    Xcp::acquire(XcpParameters { p_xcp: true, capacity: Some(capacity), fallback: FALLBACK }).unwrap()
}

fn socket(congestion: &str) -> Socket {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    set_congestion(&socket, congestion).unwrap();
    socket
}

fn listen(congestion: &str) -> TcpListener {
    let socket = socket(congestion);
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    socket.listen(4).unwrap();
    socket.into()
}

/// A client and a server with these congestion controls, connected and with a first segment behind them.
fn connect(client: &str, server: &str) -> [TcpStream; 2] {
    let listener = listen(server);
    let client = socket(client);
    client.connect(&listener.local_addr().unwrap().into()).unwrap();
    let (mut client, mut server) = (TcpStream::from(client), listener.accept().unwrap().0);
    transfer(&mut client, &mut server, 1);
    [client, server]
}

/// Sends so many segments and checks that they arrive as they are.
fn transfer(from: &mut TcpStream, to: &mut TcpStream, segments: usize) {
    let block: Vec<u8> = (0..SEGMENT).map(|place| (place * 7 / 3) as u8).collect();
    thread::scope(|scope| {
        scope.spawn(|| (0..segments).for_each(|_| from.write_all(&block).unwrap()));
        let mut received = vec![0; SEGMENT];
        for _ in 0..segments {
            to.read_exact(&mut received).unwrap();
            assert!(received == block, "what arrives is what was sent");
        }
    });
}

fn control(socket: &TcpStream) -> String {
    sockopt::congestion(socket).unwrap()
}

fn controls(ends: &[TcpStream; 2]) -> [String; 2] {
    ends.each_ref().map(control)
}

fn nft(rules: &str) {
    run("nft", "-f -", rules);
}

/// What `rule` does to each packet at this hook.
fn middlebox(hook: &str, rule: &str) {
    nft(&format!(
        "table inet middlebox {{\nchain path {{\ntype filter hook {hook} priority 0\n{rule}\n}}\n}}\n"
    ));
}

/// Runs the test where it can be run.
fn on_this_kernel(programs: &[&str], test: impl FnOnce() + Send) {
    if std::path::Path::new("/sys/kernel/btf/vmlinux").exists() {
        in_namespace(programs, test);
    } else {
        println!("skipped: needs root: and a kernel with BTF");
    }
}

/// Offers, sums and requests that [`COUNTING`] has counted.
fn counted() -> [u64; 3] {
    let rules = run("nft", "list table inet counting", "");
    let counts = rules.lines().filter_map(|line| line.split("packets ").nth(1));
    let counts: Vec<u64> = counts.map(|count| count.split(' ').next().unwrap().parse().unwrap()).collect();
    counts.try_into().expect("three rules")
}

#[test]
fn both_ends_take_xcp_and_tell_each_other_while_data_go_both_ways() {
    on_this_kernel(&["nft"], || {
        nft(COUNTING);
        let xcp = xcp(Rate::mbps(1000));
        let [mut client, mut server] = connect(xcp.name(), xcp.name());
        assert_eq!(counted()[0], 2, "a SYN and a SYN-ACK");
        let mut back = [server.try_clone().unwrap(), client.try_clone().unwrap()];
        thread::scope(|scope| {
            scope.spawn(|| transfer(&mut client, &mut server, 500));
            let [server, client] = &mut back;
            transfer(server, client, 500);
        });
        assert_eq!(controls(&[client, server]), [xcp.name(), xcp.name()], "nobody has been taken for silent");
        let [_, sums, requests] = counted();
        assert!(sums > 0 && requests > 0, "{sums} sums, {requests} requests");
    });
}

#[test]
fn an_end_falls_back_if_its_peer_does_not_support_xcp() {
    on_this_kernel(&[], || {
        let xcp = xcp(Rate::mbps(1000));
        for ends in [[xcp.name(), "cubic"], ["cubic", xcp.name()]] {
            let mut pair = connect(ends[0], ends[1]);
            let expected = ends.map(|name| if name == "cubic" { name } else { FALLBACK });
            assert_eq!(controls(&pair), expected);
            let [client, server] = &mut pair;
            transfer(server, client, 100);
        }
    });
}

#[test]
fn a_middlebox_that_strips_the_option_does_no_harm() {
    on_this_kernel(&["nft"], || {
        let xcp = xcp(Rate::mbps(1000));
        middlebox("output", "reset tcp option 254");
        let mut pair = connect(xcp.name(), xcp.name());
        assert_eq!(controls(&pair), [FALLBACK, FALLBACK]);
        let [client, server] = &mut pair;
        transfer(server, client, 100);
    });
}

#[test]
fn a_middlebox_that_begins_to_strip_the_option_does_no_harm() {
    on_this_kernel(&["nft"], || {
        let xcp = xcp(Rate::mbps(1000));
        let mut pair = connect(xcp.name(), xcp.name());
        assert_eq!(controls(&pair), [xcp.name(), xcp.name()]);
        middlebox("output", "reset tcp option 254");
        let [client, server] = &mut pair;
        wait_for("the sender notices the silence", || {
            transfer(server, client, 100);
            (control(server) == FALLBACK).then_some(())
        });
    });
}

#[test]
fn a_middlebox_that_drops_syns_with_unknown_options_costs_two_syns() {
    on_this_kernel(&["nft"], || {
        let xcp = xcp(Rate::mbps(1000));
        middlebox("input", "tcp option 254 exists drop");
        assert_eq!(controls(&connect(xcp.name(), xcp.name())), [FALLBACK, FALLBACK]);
    });
}

#[test]
fn a_lost_syn_and_a_lost_syn_ack_do_not_cost_xcp() {
    on_this_kernel(&["nft"], || {
        let xcp = xcp(Rate::mbps(1000));
        // The first of each.
        middlebox(
            "input",
            "tcp flags syn / syn,ack limit rate over 1/day burst 1 packets accept\n\
            tcp flags syn / syn,ack drop\n\
            tcp flags syn,ack / syn,ack limit rate over 1/day burst 1 packets accept\n\
            tcp flags syn,ack / syn,ack drop",
        );
        assert_eq!(controls(&connect(xcp.name(), xcp.name())), [xcp.name(), xcp.name()]);
    });
}

#[test]
fn options_of_another_experiment_are_none_of_ours() {
    on_this_kernel(&["nft"], || {
        let xcp = xcp(Rate::mbps(1000));
        middlebox("output", "tcp option @254,16,16 0x4250 tcp option @254,16,16 set 0x1234");
        assert_eq!(controls(&connect(xcp.name(), xcp.name())), [FALLBACK, FALLBACK]);
    });
}

#[test]
fn sockets_with_another_congestion_control_are_left_alone() {
    on_this_kernel(&["nft"], || {
        nft(COUNTING);
        let xcp = xcp(Rate::mbps(1000));
        let [mut client, mut server] = connect("cubic", "cubic");
        transfer(&mut client, &mut server, 10);
        assert_eq!(counted(), [0, 0, 0]);
        connect(xcp.name(), "cubic");
        assert_eq!(counted(), [1, 0, 0], "an offer that nobody takes");
    });
}

#[test]
fn connections_outlive_the_ebpf_objects_they_were_made_with() {
    on_this_kernel(&[], || {
        // The other tests have P-XCP, and would take the name when it is free.
        let parameters = XcpParameters { p_xcp: false, capacity: None, fallback: FALLBACK };
        let xcp = Xcp::acquire(parameters).unwrap();
        let name = xcp.name().to_owned();
        let [mut client, mut server] = connect(&name, &name);
        drop(xcp);
        assert!(!congestion::available().contains(&name), "nobody can choose it any more");
        wait_for("the sender notices the silence", || {
            transfer(&mut server, &mut client, 100);
            (control(&server) == FALLBACK).then_some(())
        });
        server.shutdown(Shutdown::Write).unwrap();
        assert_eq!(client.read(&mut [0]).unwrap(), 0);
    });
}

#[test]
fn one_process_has_one_copy_for_each_set_of_parameters() {
    on_this_kernel(&[], || {
        let parameters = XcpParameters { p_xcp: true, capacity: None, fallback: FALLBACK };
        let [first, second] = [(); 2].map(|()| Xcp::acquire(parameters).unwrap());
        assert_eq!(first.name(), second.name());
        let other = Xcp::acquire(XcpParameters { fallback: "cubic", ..parameters }).unwrap();
        assert_ne!(first.name(), other.name());
    });
}

#[test]
fn header_room_in_acks_lasts_as_long_as_its_last_user() {
    on_this_kernel(&[], || {
        // A capacity of its own, so that no other test has this copy.
        let xcp = xcp(Rate::mbps(1234));
        let [first, second] = [(); 2].map(|()| xcp.make_room_on("lo").unwrap());
        assert_eq!(programs_at("lo").unwrap(), 1);
        drop(first);
        assert_eq!(programs_at("lo").unwrap(), 1);
        drop(second);
        assert_eq!(programs_at("lo").unwrap(), 0);
        let again = xcp.make_room_on("lo").unwrap();
        assert_eq!(programs_at("lo").unwrap(), 1);
        drop(again);
    });
}

#[test]
fn missing_parts_are_reported() {
    on_this_kernel(&[], || {
        let parameters = XcpParameters { p_xcp: true, capacity: None, fallback: "no_such_thing" };
        let error = Xcp::acquire(parameters).unwrap_err();
        assert!(matches!(&error, XcpError::Fallback { name, .. } if name == "no_such_thing"), "{error}");
        let error = xcp(Rate::mbps(1000)).make_room_on("no_such_thing").unwrap_err();
        assert!(error.to_string().contains("no_such_thing: No such device"), "{error}");
    });
}

#[test]
fn a_leg_is_provided_with_p_xcp() {
    on_this_kernel(&[], || {
        let resolved = congestion::resolve(congestion::P_XCP, "geo", Some(Rate::mbps(10)));
        assert!(resolved.name().starts_with("bp_pxcp") && resolved.keeps_queue_short());
        assert!(resolved.xcp().is_some());
        assert!(congestion::available().contains(&resolved.name().to_owned()));
    });
}

#[test]
fn header_room_at_an_interface_is_shared_and_removed_with_its_last_user() {
    on_this_kernel(&[], || {
        let xcp = xcp(Rate::mbps(1000));
        let [first, second] = [(); 2].map(|()| xcp.make_room_on("lo").unwrap());
        drop(first);
        assert_eq!(programs_at("lo").unwrap(), 1);
        drop(second);
        wait_for("the program to go", || (programs_at("lo").unwrap() == 0).then_some(()));
        let _again = xcp.make_room_on("lo").unwrap();
        assert_eq!(programs_at("lo").unwrap(), 1);
    });
}
