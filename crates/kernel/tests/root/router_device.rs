//! The XCP router at an interface: packets of this host and forwarded ones, whole and still to be cut.

use std::time::Duration;

use crate::common::frame::{
    HeaderFields, Segment, checksum_is_right, feedback_of, payload, with_link_header,
};
use crate::common::injector::Injector;
use crate::common::{in_namespace, run, wait_for};
use bentpipe_kernel::router::{self, Router, RouterConfig, Shares, Variant};
use bentpipe_kernel::tun::Tun;
use bentpipe_units::Rate;

const ETHERNET: usize = 14;
const MSS: usize = 1200;
const ASKED: i32 = 5000;
/// What X = 1.2 ms gets.
const GIVEN: i32 = 120;

fn config() -> RouterConfig {
    RouterConfig { capacity: Rate::mbps(10), variant: Variant::PXcp, longest_rtt: Duration::from_secs(4) }
}

/// One for each packet on the wire.
fn shares() -> Shares {
    Shares { positive: 1e6, per_second: 1e5 + 1.0, ..Shares::default() }
}

fn segment(v6: bool, payload: usize, nops: usize) -> Segment {
    let fields = HeaderFields { rtt: 600_000, spacing: 1_200_000, feedback: ASKED };
    Segment { fields: Some(fields), v6, payload, nops }
}

/// A device that takes whole packets with complete checksums only, and two ends of a cable to it, `in0` and
/// `in1`.
fn device() -> Tun {
    let tun = Tun::create("sat0").unwrap();
    for (key, value) in
        [("ipv4/ip_forward", "1"), ("ipv4/conf/all/rp_filter", "0"), ("ipv6/conf/all/forwarding", "1")]
    {
        std::fs::write(format!("/proc/sys/net/{key}"), value).unwrap();
    }
    run("ip", "link add in0 type veth peer name in1 address 02:02:02:02:02:02", "");
    std::fs::write("/proc/sys/net/ipv4/conf/in1/rp_filter", "0").unwrap();
    for interface in ["sat0", "in0", "in1"] {
        run("ip", &format!("link set {interface} up"), "");
    }
    run("ip", "addr add 10.9.9.9/32 dev in1", "");
    run("ip", "route add 10.0.0.2/32 dev sat0", "");
    run("ip", "-6 route add fd01::/16 dev sat0", "");
    tun
}

/// The TCP packets that come out of the device until they carry so many bytes.
fn receive(tun: &Tun, bytes: usize) -> Vec<Vec<u8>> {
    let (mut frames, mut buffer, mut carried) = (Vec::new(), [0; 2000], 0);
    wait_for("packets from the device", || {
        while let Ok(length) = tun.read(&mut buffer) {
            let is_tcp = buffer[if buffer[0] >> 4 == 6 { 6 } else { 9 }] == 6;
            if is_tcp {
                let frame = with_link_header(&buffer[..length]);
                carried += payload(&frame).len();
                frames.push(frame);
            }
        }
        (carried >= bytes).then_some(())
    });
    frames
}

/// Each is cut where it should be, has its data, its checksum and the feedback of one packet.
fn expect(frames: &[Vec<u8>], sent: &[u8], feedback: i32) {
    assert_eq!(frames.len(), payload(sent).len().div_ceil(MSS));
    assert_eq!(frames.iter().flat_map(|frame| payload(frame)).copied().collect::<Vec<_>>(), payload(sent));
    for frame in frames {
        assert!(checksum_is_right(frame));
        assert_eq!(feedback_of(frame), feedback);
    }
}

#[test]
fn packets_of_this_host_and_forwarded_ones_are_served_whole_or_still_to_be_cut() {
    in_namespace(&["ip"], || {
        let tun = device();
        let mut router = Router::attach("sat0", &config()).unwrap();
        let (local, cable) = (Injector::open("sat0"), Injector::open("in0"));
        for v6 in [false, true] {
            // An option at an odd place, too; and one packet, and four.
            for (length, nops) in [(100, 0), (1001, 3), (3 * MSS + 7, 2), (4 * MSS, 1)] {
                for forwarded in [false, true] {
                    router.set_shares(&shares(), Duration::ZERO);
                    router.take_sums();
                    let frame = segment(v6, length, nops).unfinished_frame();
                    match forwarded {
                        true => cable.send(&frame, ETHERNET, MSS),
                        false => local.send(&frame[ETHERNET..], 0, MSS),
                    }
                    let frames = receive(&tun, length);
                    println!("v6 {v6} {length} bytes {nops} forwarded {forwarded}: {} packets", frames.len());
                    expect(&frames, &frame, GIVEN);
                    let on_the_wire: usize = frames.iter().map(|frame| frame.len() - ETHERNET).sum();
                    // The kernel may have said something of its own meanwhile.
                    let counted = router.take_sums();
                    assert!((0.0..500.0).contains(&(counted.bytes - on_the_wire as f64)), "{counted:?}");
                    let spacing = frames.len() as f64 * 1.2e-3;
                    assert!((counted.asking_spacing - spacing).abs() < 1e-9, "{counted:?} {spacing}");
                }
            }
        }
        assert_eq!(router.counters().with_header, router.counters().lowered);
    });
}

#[test]
fn a_router_leaves_with_its_value_and_packets_go_on_as_they_are() {
    in_namespace(&["ip"], || {
        let tun = device();
        let router = Router::attach("sat0", &config()).unwrap();
        // Others may have programs there.
        let second = Router::attach("sat0", &config()).unwrap();
        assert_eq!(router::programs_at("sat0").unwrap(), 2);
        drop((router, second));
        assert_eq!(router::programs_at("sat0").unwrap(), 0);
        let frame = segment(false, 3 * MSS, 0).unfinished_frame();
        Injector::open("in0").send(&frame, ETHERNET, MSS);
        expect(&receive(&tun, 3 * MSS), &frame, ASKED);
    });
}

#[test]
fn a_missing_interface_is_named() {
    in_namespace(&["ip"], || {
        let error = Router::attach("sat7", &config()).unwrap_err().to_string();
        assert!(error.contains("\"sat7\""), "{error}");
    });
}
