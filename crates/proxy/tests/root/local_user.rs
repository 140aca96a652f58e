//! What an ordinary user of the gateway host cannot do to other people's connections.

use std::io::ErrorKind;
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use crate::common::{Host, PATIENCE, SERVER, network, socket, socket_address};
use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_res_gid, set_thread_res_uid};

/// The listeners' ports of a daemon with one leg.
const PORTS: std::ops::RangeInclusive<u16> = 7600..=7602;

/// Does `work` as an ordinary user of the host: on a thread of its own, whose credentials are its own too.
fn as_ordinary_user<T: Send>(host: &Host, work: impl FnOnce() -> T + Send) -> T {
    host.enter(|| {
        let (uid, gid) = (Uid::from_raw(54321), Gid::from_raw(54321));
        set_thread_res_gid(gid, gid, gid).unwrap();
        set_thread_res_uid(uid, uid, uid).unwrap();
        work()
    })
}

#[test]
fn a_users_listener_on_a_dead_daemons_port_gets_none_of_its_connections() {
    let Some(net) = network() else { return };
    net.daemon("").kill();
    assert!(net.gateway.output("nft list ruleset").contains("tproxy"), "the rules are still there");
    let squatters: Vec<TcpListener> = as_ordinary_user(&net.gateway, || {
        PORTS.map(|port| TcpListener::bind(("127.0.0.1", port)).unwrap()).collect()
    });
    let listener = net.listen(SERVER[0]);
    let to = listener.local_addr().unwrap();
    let client = net.client.enter(|| TcpStream::connect(to).unwrap());
    for listener in squatters.iter().chain([&listener]) {
        listener.set_nonblocking(true).unwrap();
    }
    let start = Instant::now();
    let peer = loop {
        if let Ok((_, peer)) = listener.accept() {
            break peer;
        }
        assert!(squatters.iter().all(|squatter| squatter.accept().is_err()), "the user has the connection");
        assert!(start.elapsed() < PATIENCE, "the connection arrived nowhere");
        std::thread::sleep(Duration::from_millis(5));
    };
    assert_eq!(peer, client.local_addr().unwrap());
}

#[test]
fn a_user_cannot_share_a_running_daemons_port() {
    let Some(net) = network() else { return };
    let _daemon = net.daemon("");
    as_ordinary_user(&net.gateway, || {
        for port in PORTS {
            let address = socket_address("127.0.0.1", port);
            let socket = socket(&address);
            socket.set_reuse_address(true).unwrap();
            socket.set_reuse_port(true).unwrap();
            assert_eq!(socket.bind(&address.into()).unwrap_err().kind(), ErrorKind::AddrInUse, "{port}");
        }
    });
}
