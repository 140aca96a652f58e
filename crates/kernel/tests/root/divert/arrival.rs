//! What arrives.

use super::*;

/// A socket of this host, and another one that takes only what arrives by an interface.
fn receiver(family: usize, interface: &str) -> UdpSocket {
    let here: IpAddr = HERE[family].parse().unwrap();
    let socket = socket2::Socket::new(
        socket2::Domain::for_address(SocketAddr::new(here, 0)),
        socket2::Type::DGRAM,
        None,
    )
    .unwrap();
    socket.bind_device(Some(interface.as_bytes())).unwrap();
    socket.bind(&SocketAddr::new(here, PORT).into()).unwrap();
    socket.into()
}

fn strict_reverse_paths() {
    for interface in ["all", "default", "sat0", "bp0"] {
        std::fs::write(format!("/proc/sys/net/ipv4/conf/{interface}/rp_filter"), "1").unwrap();
    }
}

#[test]
fn packets_from_the_device_arrive_by_the_interface() {
    with_each_kind(|world| {
        strict_reverse_paths();
        let divert = diverting();
        for family in [0, 1] {
            let [by_leg, by_device] = ["sat0", "bp0"].map(|interface| receiver(family, interface));
            let to = by_leg.local_addr().unwrap();
            world.device.write(&datagram(family, to, b"restored")).unwrap();
            assert_eq!(receive(&by_leg).as_deref(), Some(&b"restored"[..]));
            assert!(is_silent(&by_device));
        }
        let counters = divert.counters();
        assert_eq!((counters.arrived, counters.arrived_bytes, counters.homeless), (2, 36 + 56, 0));
        assert_eq!((counters.diverted, world.count()), (0, (0, 0)));
    });
}

/// Rules of NAT and of a firewall that name the interface, and connection tracking.
#[test]
fn rules_for_the_interface_see_what_arrives() {
    with_each_kind(|world| {
        strict_reverse_paths();
        let rules = "table inet rules {
            chain nat { type nat hook prerouting priority dstnat
                iifname \"sat0\" udp dport 53 redirect to :7009
            }
            chain filter { type filter hook input priority 0; policy drop
                iifname \"sat0\" udp dport 7009 ct state new ct original proto-dst 53 counter accept
            }
        }";
        run("nft", "-f -", rules);
        let _divert = diverting();
        for family in [0, 1] {
            let receiver = receiver(family, "sat0");
            let mut to = receiver.local_addr().unwrap();
            to.set_port(53);
            world.device.write(&datagram(family, to, b"restored")).unwrap();
            assert_eq!(receive(&receiver).as_deref(), Some(&b"restored"[..]));
        }
        let seen = run("nft", "list table inet rules", "");
        assert!(seen.contains("counter packets 2 "), "{seen}");
    });
}

/// A rule marks everything that leaves by the interface, and there is a way from it back to itself.
#[test]
fn what_arrives_and_is_forwarded_to_where_it_came_from_ends_with_its_hops() {
    with_each_kind(|world| {
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap();
        for interface in ["all", "default", "sat0", "bp0"] {
            std::fs::write(format!("/proc/sys/net/ipv4/conf/{interface}/rp_filter"), "0").unwrap();
        }
        let rules = "table inet marks { chain marks { type filter hook forward priority 0;
            oifname \"sat0\" meta mark set 0x20
            }
        }";
        run("nft", "-f -", rules);
        run("ip", "route add 198.51.100.1/32 via 192.0.2.2", "");
        let divert = diverting();
        let to = SocketAddr::new("198.51.100.1".parse().unwrap(), PORT);
        let mut packet = datagram(0, to, b"round");
        world.device.write(&packet).unwrap();
        let mut rounds = 0;
        // The daemons of both ends.
        while let Some(again) = world.diverted().pop() {
            assert_eq!(again[8], packet[8] - 1, "each round takes a hop");
            (packet, rounds) = (again, rounds + 1);
            world.device.write(&packet).unwrap();
        }
        assert_eq!((rounds, divert.counters().arrived), (63, 64));
    });
}

#[test]
fn without_the_interface_nothing_arrives_by_the_device_instead() {
    in_namespace(&["ip"], || {
        let device = Tun::create("bp0").unwrap();
        run("ip", "link set bp0 up", "");
        run("ip", "addr add 192.0.2.1/24 dev bp0", "");
        let socket = receiver(0, "bp0");
        let to = socket.local_addr().unwrap();
        let mut divert = load(WhenSilent::Pass);
        assert!(!divert.follow("sat0").unwrap());
        // Another process may have its program there.
        device.write(&datagram(0, to, b"stands by")).unwrap();
        assert_eq!(receive(&socket).as_deref(), Some(&b"stands by"[..]));
        divert.divert_until(in_future(60));
        device.write(&datagram(0, to, b"lost")).unwrap();
        assert!(is_silent(&socket));
        let counters = divert.counters();
        assert_eq!((counters.homeless, counters.arrived), (1, 0));
        drop(divert);
        wait_for("the program to go", || {
            device.write(&datagram(0, to, b"as ever")).unwrap();
            receive_within(Duration::from_millis(200), &socket).filter(|payload| payload == b"as ever")
        });
    });
}

#[test]
fn an_interface_may_get_another_address() {
    in_namespace(&["ip"], || {
        let world = World::new(Kind::Ethernet);
        let mut divert = diverting();
        let socket = receiver(0, "sat0");
        let to = socket.local_addr().unwrap();
        run("ip", "link set sat0 address 02:00:00:00:00:77", "");
        world.device.write(&datagram(0, to, b"for another host")).unwrap();
        assert!(is_silent(&socket));
        divert.follow("sat0").unwrap();
        world.device.write(&datagram(0, to, b"restored")).unwrap();
        assert_eq!(receive(&socket).as_deref(), Some(&b"restored"[..]));
        assert_eq!((divert.counters().arrived, divert.counters().homeless), (2, 0));
    });
}
