use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::message::{ControlSocket, Message};
use super::*;

fn pair() -> (Successor, Predecessor) {
    let ends = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
    let (one, other) = ends.unwrap();
    let inventory = Inventory::new(Vec::new(), Vec::new());
    let predecessor = Predecessor { socket: ControlSocket::new(other), inventory };
    (Successor { socket: ControlSocket::new(one), pid: 1 }, predecessor)
}

fn caller(successor: Successor) -> Caller {
    let Successor { socket, pid } = successor;
    Caller { socket, pid, is_root: true }
}

fn recv_ready(successor: &Successor) {
    assert!(matches!(successor.socket.recv().unwrap().0, Message::Ready));
}

#[test]
fn both_know_when_the_connections_are_the_successors() {
    let (successor, predecessor) = pair();
    let taking = std::thread::spawn(move || predecessor.commit());
    recv_ready(&successor);
    successor.commit().unwrap();
    taking.join().unwrap().unwrap();
}

#[test]
fn a_successor_that_dies_before_it_acknowledges_leaves_everything() {
    let (successor, predecessor) = pair();
    let taking = std::thread::spawn(move || {
        predecessor.socket.send(&Message::Ready).unwrap();
        std::thread::sleep(Duration::from_millis(50));
    });
    recv_ready(&successor);
    successor.commit().unwrap_err();
    taking.join().unwrap();
}

#[test]
fn a_successor_that_is_ready_goes_on_when_the_predecessor_dies_whether_it_was_heard_or_not() {
    for is_heard in [true, false] {
        let (successor, predecessor) = pair();
        let dying = std::thread::spawn(move || {
            if is_heard {
                recv_ready(&successor);
            } else {
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        predecessor.commit().unwrap();
        dying.join().unwrap();
    }
}

#[test]
fn a_successor_that_is_too_late_does_not_begin() {
    // It is refused before it is ready, and after.
    let (successor, predecessor) = pair();
    successor.refuse("too late");
    predecessor.commit().unwrap_err();
    let (successor, predecessor) = pair();
    let refusing = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        successor.refuse("too late");
    });
    let error = predecessor.commit().unwrap_err();
    assert!(matches!(error, UpgradeError::Refused { .. }), "{error}");
    refusing.join().unwrap();
}

#[test]
fn messages_of_other_versions_are_understood_or_refused_by_name() {
    let parsed = |text: &str| serde_json::from_str::<Message>(text);
    parsed(r#"{"Hello":{"form":1,"purpose":"new"}}"#).unwrap();
    parsed(r#"{"Inventory":{"form":1,"weather":"fine"}}"#).unwrap();
    for theirs in [PROTOCOL_VERSION - 1, PROTOCOL_VERSION + 1] {
        let (successor, predecessor) = pair();
        predecessor.socket.send(&Message::Hello { protocol: theirs, version: String::new() }).unwrap();
        let error = caller(successor).converse(&predecessor.inventory).unwrap_err();
        assert!(matches!(error, UpgradeError::Version { .. }), "{error}");
        let Message::Refusal { reason } = predecessor.socket.recv().unwrap().0 else { panic!() };
        assert!(reason.contains(&format!("version {theirs}")) && reason.contains("restart"), "{reason}");
    }
}

/// The process that has the listener's end of a socket in a folder speaks as a daemon of version 1 does.
#[test]
fn a_daemon_of_the_version_before_refuses_and_its_reason_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("handover.sock");
    let listener =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .unwrap();
    rustix::net::bind(&listener, &rustix::net::SocketAddrUnix::new(&path).unwrap()).unwrap();
    rustix::net::listen(&listener, 1).unwrap();
    let daemon = std::thread::spawn(move || {
        let socket = ControlSocket::new(rustix::net::accept(&listener).unwrap());
        let (hello, _) = socket.recv().unwrap();
        let text = serde_json::to_value(&hello).unwrap();
        assert_eq!(text["Hello"]["form"], PROTOCOL_VERSION);
        let reason = "it hands over in form 1, the new program knows form 2; restart it instead";
        socket.send(&Message::Refusal { reason: reason.into() }).unwrap();
    });
    let error = Predecessor::connect(&path).unwrap_err().to_string();
    assert!(error.contains("restart"), "{error}");
    daemon.join().unwrap();
}
