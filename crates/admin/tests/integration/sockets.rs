//! The sockets' files: whose they are, what becomes of those of the dead and of the living, and how they are
//! handed on.

use std::fs;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use bentpipe_admin::{AdminError, Sockets};
use bentpipe_proxy::config::{AdminSettings, Listen};
use tempfile::TempDir;

fn settings(folder: &TempDir) -> AdminSettings {
    let listen = Listen::At(SocketAddr::from(([127, 0, 0, 1], 0)));
    AdminSettings { folder: folder.path().join("run"), listen, ..AdminSettings::default() }
}

fn open(settings: &AdminSettings) -> Sockets {
    Sockets::open(settings, None, &[]).unwrap()
}

fn names(sockets: &Sockets) -> Vec<String> {
    sockets.named().into_iter().map(|(name, _)| name).collect()
}

#[test]
fn two_files_and_an_address_come_and_go_with_the_daemon() {
    let folder = tempfile::tempdir().unwrap();
    let settings = settings(&folder);
    let sockets = open(&settings);
    let run = settings.folder.display();
    let expected = [
        format!("unix:{run}/admin.sock"),
        format!("handover:{run}/handover.sock"),
        "tcp:127.0.0.1:0".to_owned(),
    ];
    assert_eq!(names(&sockets), expected);
    assert_eq!(fs::metadata(&settings.folder).unwrap().mode() & 0o7777, 0o755);
    for file in [settings.socket(), settings.handover_socket()] {
        let data = fs::symlink_metadata(&file).unwrap();
        assert!(data.file_type().is_socket() && data.mode() & 0o7777 == 0o660, "{:o}", data.mode());
    }
    TcpStream::connect(sockets.tcp_address().unwrap()).unwrap();
    sockets.close();
    assert_eq!(fs::read_dir(&settings.folder).unwrap().count(), 0);
}

#[test]
fn the_dead_make_room_and_the_living_do_not() {
    let folder = tempfile::tempdir().unwrap();
    let settings = settings(&folder);
    // Dropped without an orderly end, as by a crash, it leaves its files.
    drop(open(&settings));
    assert!(settings.socket().exists() && settings.handover_socket().exists());
    let living = open(&settings);
    UnixStream::connect(settings.socket()).unwrap();
    let error = Sockets::open(&settings, None, &[]).unwrap_err();
    assert!(matches!(&error, AdminError::Occupied { .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains(&settings.folder.display().to_string()) && text.contains("admin.folder"), "{text}");
    // It is still there after that, and so it is when its queue is full.
    UnixStream::connect(settings.socket()).unwrap();
    drop(living);
    fs::remove_file(settings.socket()).unwrap();
    fs::remove_file(settings.handover_socket()).unwrap();
    let full = UnixListener::bind(settings.socket()).unwrap();
    rustix::net::listen(&full, 0).unwrap();
    let _queued = UnixStream::connect(settings.socket()).unwrap();
    assert!(matches!(Sockets::open(&settings, None, &[]), Err(AdminError::Occupied { .. })));
}

#[test]
fn a_file_that_is_no_socket_is_not_removed() {
    let folder = tempfile::tempdir().unwrap();
    let settings = settings(&folder);
    fs::create_dir(&settings.folder).unwrap();
    fs::write(settings.socket(), "a file").unwrap();
    assert!(matches!(Sockets::open(&settings, None, &[]), Err(AdminError::NotASocket { .. })));
    assert_eq!(fs::read_to_string(settings.socket()).unwrap(), "a file");
}

#[test]
fn a_daemon_that_cannot_be_looked_at_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = Listen::At(taken.local_addr().unwrap());
    let sockets = open(&AdminSettings { listen, ..settings(&folder) });
    assert_eq!((sockets.tcp_address(), names(&sockets).len()), (None, 2));
    // Below a file there can be no folder, not even for root.
    fs::write(folder.path().join("file"), "").unwrap();
    let nowhere = AdminSettings { folder: folder.path().join("file/run"), ..settings(&folder) };
    assert_eq!(names(&open(&nowhere)), ["tcp:127.0.0.1:0"]);
}

#[test]
fn a_successor_takes_them_over_while_callers_wait() {
    let folder = tempfile::tempdir().unwrap();
    let settings = settings(&folder);
    let old = open(&settings);
    let address = old.tcp_address().unwrap();
    let waiting = UnixStream::connect(settings.socket()).unwrap();
    let mut new = Sockets::open(&settings, None, &names(&old)).unwrap();
    assert_eq!(names(&new), Vec::<String>::new(), "what comes is not opened");
    for (name, socket) in old.named() {
        new.add(&name, socket.try_clone_to_owned().unwrap());
    }
    assert_eq!((names(&new), new.tcp_address()), (names(&old), Some(address)));
    drop(old);
    // Those who called the old one are in the new one's queue, and the files are where they were.
    waiting.set_nonblocking(true).unwrap();
    let accepted = rustix::net::accept(new.named()[0].1).unwrap();
    rustix::io::write(&accepted, b"new").unwrap();
    let mut heard = [0; 3];
    rustix::io::read(&waiting, &mut heard).unwrap();
    assert_eq!(&heard, b"new");
    TcpStream::connect(address).unwrap();
    new.close();
    assert_eq!(fs::read_dir(&settings.folder).unwrap().count(), 0);
}

#[test]
fn unneeded_listeners_are_closed_and_removed() {
    let folder = tempfile::tempdir().unwrap();
    let before = settings(&folder);
    let after = AdminSettings {
        folder: folder.path().join("elsewhere"),
        listen: Listen::Off,
        ..AdminSettings::default()
    };
    let old = open(&before);
    let address = old.tcp_address().unwrap();
    let mut new = Sockets::open(&after, None, &names(&old)).unwrap();
    for (name, socket) in old.named() {
        new.add(&name, socket.try_clone_to_owned().unwrap());
    }
    drop(old);
    assert!(names(&new).iter().all(|name| name.contains("/elsewhere/")) && new.tcp_address().is_none());
    assert_eq!(fs::read_dir(&before.folder).unwrap().count(), 0);
    assert_eq!(TcpStream::connect(address).unwrap_err().kind(), ErrorKind::ConnectionRefused);
}

#[test]
fn the_files_of_another_daemon_stay() {
    let folder = tempfile::tempdir().unwrap();
    let settings = settings(&folder);
    let first = open(&settings);
    fs::remove_file(settings.socket()).unwrap();
    let _other = UnixListener::bind(settings.socket()).unwrap();
    first.close();
    assert!(settings.socket().exists() && !settings.handover_socket().exists());
}

#[test]
fn a_successor_calls_in_packets() {
    let folder = tempfile::tempdir().unwrap();
    let settings = settings(&folder);
    let mut sockets = open(&settings);
    let handover = sockets.take_handover().unwrap();
    let kind = |socket: &dyn AsFd| rustix::net::sockopt::socket_type(socket.as_fd()).unwrap();
    assert_eq!(kind(&handover), rustix::net::SocketType::SEQPACKET);
    assert_eq!(names(&sockets).len(), 3, "there is another descriptor to hand on");
}

#[test]
fn a_token_that_cannot_be_had_keeps_the_daemon_from_starting() {
    let folder = tempfile::tempdir().unwrap();
    let token_file = Some(Path::new("/nonexistent/token").to_owned());
    let error = Sockets::open(&AdminSettings { token_file, ..settings(&folder) }, None, &[]).unwrap_err();
    assert!(error.to_string().contains("admin.token_file"), "{error}");
    assert!(!folder.path().join("run").exists(), "and before anything is opened");
}
