//! TUN devices on the real kernel: what goes in comes out, and nothing is left.

use std::fs;
use std::io::ErrorKind;
use std::net::UdpSocket;
use std::time::{Duration, Instant};

use crate::common::{in_namespace, run};
use bentpipe_kernel::tun::Tun;

#[test]
fn packets_cross_the_device_both_ways() {
    in_namespace(&["ip"], || {
        let tun = Tun::create("tun-here").unwrap();
        run("ip", "addr add 10.9.0.1/24 dev tun-here", "");
        run("ip", "link set tun-here multicast off up", "");
        let socket = UdpSocket::bind("10.9.0.1:1000").unwrap();
        socket.send_to(b"there and back", "10.9.0.2:1000").unwrap();
        let mut packet = [0; 2000];
        let length = loop {
            let length = tun.read(&mut packet).unwrap();
            // The kernel may have said something in IPv6 on its own.
            if packet[0] >> 4 == 4 {
                break length;
            }
        };
        assert_eq!((length, &packet[28..length]), (20 + 8 + 14, &b"there and back"[..]));
        // With the addresses exchanged it is the answer; neither checksum changes.
        let (source, destination): ([u8; 4], [u8; 4]) =
            (packet[12..16].try_into().unwrap(), packet[16..20].try_into().unwrap());
        packet[12..16].copy_from_slice(&destination);
        packet[16..20].copy_from_slice(&source);
        tun.write(&packet[..length]).unwrap();
        let mut answer = [0; 100];
        let (length, from) = socket.recv_from(&mut answer).unwrap();
        assert_eq!((&answer[..length], from.to_string().as_str()), (&b"there and back"[..], "10.9.0.2:1000"));
        assert_eq!(tun.write(b"\xff").unwrap_err().kind(), ErrorKind::InvalidInput);
    });
}

#[test]
fn a_device_vanishes_with_its_value_and_its_name_is_taken_until_then() {
    in_namespace(&["ip"], || {
        let is_there = || fs::read_to_string("/proc/thread-self/net/dev").unwrap().contains("tun-here");
        let tun = Tun::create("tun-here").unwrap();
        let error = Tun::create("tun-here").unwrap_err().to_string();
        assert!(error.contains("\"tun-here\"") && error.contains("a free name"), "{error}");
        assert!(is_there());
        drop(tun);
        // A child that the other test has forked may hold a copy until it executes its program.
        let start = Instant::now();
        while is_there() {
            assert!(start.elapsed() < Duration::from_secs(30), "it is still there");
            std::thread::sleep(Duration::from_millis(1));
        }
    });
}
