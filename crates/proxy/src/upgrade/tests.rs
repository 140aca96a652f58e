use std::cell::OnceCell;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::message::{ControlSocket, MAX_DESCRIPTORS, Message};
use super::ownership::{Claimant, Ownership};
use super::*;
use crate::snapshot::{Fd, Snapshot};

/// Steps that a slow successor takes, and how long each of them takes: less than it is waited for, and more
/// together.
const SLOW_STEPS: u32 = 4;
const SLOW_STEP: Duration = Duration::from_millis(400);

fn pair() -> (Successor, Predecessor) {
    let ends = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
    let (one, other) = ends.unwrap();
    let inventory = Inventory::new(Vec::new(), Vec::new());
    let predecessor =
        Predecessor { socket: ControlSocket::new(other), inventory, ownership: OnceCell::new() };
    (Successor { socket: ControlSocket::new(one), pid: 1 }, predecessor)
}

fn caller(successor: Successor) -> Caller {
    let Successor { socket, pid } = successor;
    Caller { socket, pid, is_root: true }
}

/// A snapshot whose descriptors need more than one message.
fn snapshot() -> Snapshot {
    let null = || Fd::from(OwnedFd::from(std::fs::File::open("/dev/null").unwrap()));
    let mut snapshot = Snapshot::default();
    snapshot.write("descriptors", &(0..MAX_DESCRIPTORS).map(|_| null()).collect::<Vec<_>>()).unwrap();
    snapshot
}

/// Hands over to a successor that does as `behave` says; the outcome of either, and how long it took.
fn hand_over<T: Send + 'static>(
    behave: impl FnOnce(Predecessor) -> T + Send + 'static,
) -> (Result<(), UpgradeError>, T, Duration) {
    let (successor, predecessor) = pair();
    let taking = std::thread::spawn(move || behave(predecessor));
    let start = Instant::now();
    // What the daemon asks of its predecessor first.
    let outcome = match successor.socket.recv().unwrap().0 {
        Message::Freeze => successor.hand_over(&snapshot()),
        other => panic!("{other:?}"),
    };
    let took = start.elapsed();
    match &outcome {
        Ok(()) => successor.dismiss(),
        Err(error) => successor.refuse(&error.to_string()),
    }
    drop(successor);
    (outcome, taking.join().unwrap(), took)
}

#[test]
fn both_know_when_the_connections_are_the_successors() {
    let (left, took, _) = hand_over(|predecessor| {
        let mut snapshot = predecessor.take().unwrap();
        assert_eq!(snapshot.read::<Vec<Fd>>("descriptors").unwrap().len(), MAX_DESCRIPTORS);
        let claimed = predecessor.claim();
        predecessor.wait_for_farewell();
        claimed
    });
    left.unwrap();
    took.unwrap();
}

#[test]
fn a_successor_that_dies_before_its_claim_leaves_everything() {
    for takes_snapshot in [true, false] {
        let (left, (), took) = hand_over(move |predecessor| match takes_snapshot {
            true => drop(predecessor.take().unwrap()),
            false => predecessor.socket.send(&Message::Freeze).unwrap(),
        });
        assert!(matches!(left, Err(UpgradeError::Disconnected { .. })), "{left:?}");
        assert!(took < Duration::from_secs(1), "{took:?}");
    }
}

#[test]
fn a_successor_that_has_claimed_owns_everything_though_nobody_heard_it() {
    for says_otherwise in [true, false] {
        let (left, (), _) = hand_over(move |predecessor| {
            drop(predecessor.take().unwrap());
            assert!(predecessor.ownership.get().unwrap().claim(Claimant::Successor));
            if says_otherwise {
                predecessor.abort("no");
            }
        });
        left.unwrap();
    }
}

#[test]
fn a_successor_that_only_says_that_it_has_claimed_owns_nothing() {
    let (left, claimed, _) = hand_over(|predecessor| {
        drop(predecessor.take().unwrap());
        predecessor.socket.send(&Message::Claimed).unwrap();
        std::thread::sleep(Duration::from_millis(100));
        predecessor.claim()
    });
    assert!(left.unwrap_err().to_string().contains("has not claimed"));
    claimed.unwrap_err();
}

#[test]
fn a_successor_that_is_silent_is_waited_for_a_second_and_does_not_begin() {
    for reads in [true, false] {
        let (left, claimed, took) = hand_over(move |predecessor| {
            if !reads {
                predecessor.socket.send(&Message::Freeze).unwrap();
                std::thread::sleep(Duration::from_millis(1500));
                return predecessor.receive().and_then(|_| predecessor.claim());
            }
            drop(predecessor.take().unwrap());
            std::thread::sleep(Duration::from_millis(1500));
            predecessor.claim()
        });
        assert!(matches!(left, Err(UpgradeError::Stalled { .. })), "{left:?}");
        assert!((1.0..1.9).contains(&took.as_secs_f64()), "{took:?}");
        let error = claimed.unwrap_err().to_string();
        assert!(error.contains("no progress for 1s"), "{error}");
    }
}

#[test]
fn a_slow_successor_that_takes_one_step_after_another_is_waited_for() {
    let (left, claimed, took) = hand_over(|predecessor| {
        drop(predecessor.take().unwrap());
        for _ in 0..SLOW_STEPS {
            std::thread::sleep(SLOW_STEP);
            predecessor.note_progress();
        }
        predecessor.claim()
    });
    left.unwrap();
    claimed.unwrap();
    assert!(took >= SLOW_STEP * SLOW_STEPS, "{took:?}");
}

#[test]
fn a_successor_goes_on_when_the_predecessor_dies_before_the_claim() {
    let (successor, predecessor) = pair();
    let dying = std::thread::spawn(move || {
        let (ownership, word) = Ownership::offer().unwrap();
        let (file, _) = memfd::write(&Snapshot::default()).unwrap();
        let all = [word.as_fd(), file.as_fd()];
        successor.socket.send_with(&Message::Snapshot { descriptors: all.len() }, &all).unwrap();
        drop((ownership, successor));
    });
    let (_file, others) = predecessor.receive().unwrap();
    assert!(others.is_empty());
    dying.join().unwrap();
    predecessor.claim().unwrap();
    predecessor.wait_for_farewell();
}

#[test]
fn a_snapshot_without_the_word_that_says_who_owns_it_is_refused() {
    let (successor, predecessor) = pair();
    let (file, _) = memfd::write(&Snapshot::default()).unwrap();
    let all = [file.as_fd(), file.as_fd()];
    successor.socket.send_with(&Message::Snapshot { descriptors: all.len() }, &all).unwrap();
    let error = predecessor.receive().unwrap_err().to_string();
    assert!(error.contains("no shared memory"), "{error}");
    predecessor.claim().unwrap_err();
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
