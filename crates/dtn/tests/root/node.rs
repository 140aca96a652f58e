//! Faults of hosts and disks that need namespaces or mounts of the test's own.

use std::time::{Duration, Instant};

use crate::node_common::fake::Fake;
use crate::node_common::*;
use bentpipe_testbed::{Namespace, veth};

/// A runtime whose threads are in the namespace.
fn in_namespace<T: Send>(host: &Namespace, test: impl Future<Output = T> + Send) -> T {
    let runtime =
        || tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    host.run(|| runtime().block_on(test)).unwrap()
}

#[test]
fn a_returning_peer_gets_the_bundles_of_its_old_session() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: needs root: makes network namespaces");
        return;
    }
    let (here, there) = (Namespace::new("here").unwrap(), Namespace::new("there").unwrap());
    veth(&here, "v", &there, "v").unwrap();
    here.ip("addr add 10.9.0.1/24 dev v").unwrap();
    // The first address of a subnet takes the others with it when it goes: the one that goes is the second.
    there.ip("addr add 10.9.0.3/24 dev v").unwrap();
    there.ip("addr add 10.9.0.2/24 dev v").unwrap();
    in_namespace(&here, async {
        let address = "10.9.0.1:4556".parse().unwrap();
        let a = TestNode::start("dtn://a/", &(listen(address) + &peer("dtn://b/", None, ""))).await;
        let from = |local: &str| {
            let local = format!("{local}:0");
            there
                .run(move || {
                    let socket =
                        socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
                    socket.bind(&local.parse::<std::net::SocketAddr>().unwrap().into()).unwrap();
                    socket.connect(&address.into()).unwrap();
                    socket.set_nonblocking(true).unwrap();
                    std::net::TcpStream::from(socket)
                })
                .unwrap()
        };
        let old =
            Fake::over(tokio::net::TcpStream::from_std(from("10.9.0.2")).unwrap(), "dtn://b/", u64::MAX)
                .await;
        a.until(connected).await;
        // Without a word: its packets, and those to it, come to nothing.
        there.ip("addr del 10.9.0.2/24 dev v").unwrap();
        here.ip("route add blackhole 10.9.0.2/32").unwrap();
        a.send("dtn://b/in", bytes(1, 2_000_000), &[]).await;
        a.until(|status| status.waiting.in_hand == 1).await;
        let begun = Instant::now();
        let mut new =
            Fake::over(tokio::net::TcpStream::from_std(from("10.9.0.3")).unwrap(), "dtn://b/", u64::MAX)
                .await;
        // What comes meanwhile has the new session at once, although the old one was there first.
        a.send("dtn://b/in", bytes(2, 10), &[]).await;
        let (_, first) = new.receive().await;
        assert!(first.len() < 1000 && begun.elapsed() < Duration::from_secs(4));
        let (_, second) = new.receive().await;
        assert!(second.len() > 2_000_000);
        a.until_empty().await;
        assert_eq!(a.status().peers[0].sessions, 1);
        drop(old);
    });
}
