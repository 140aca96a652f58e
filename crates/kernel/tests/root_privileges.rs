//! Giving up privileges, for good: what is left, what is gone, and that each thing left is needed.
//!
//! It cannot be undone and needs a process with one thread, so each test runs in a process of its own, which
//! is this program once more; and this program has no harness that would start threads.

use std::error::Error;
use std::fs;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use bentpipe_kernel::hybla::Hybla;
use bentpipe_kernel::privileges::{Account, Capability, DAEMON, PrivilegeError, drop_to};
use bentpipe_kernel::sockopt;
use rustix::io::Errno;
use rustix::process::{Gid, Uid, geteuid};
use rustix::thread::{
    CapabilitiesSecureBits, CapabilitySet, CapabilitySets, UnshareFlags, capabilities,
    capabilities_secure_bits, configure_capability_in_ambient_set, set_capabilities,
    set_capabilities_secure_bits, set_keep_capabilities, set_thread_groups, set_thread_res_gid,
    set_thread_res_uid, unshare_unsafe,
};
use socket2::{Domain, Protocol, Socket, Type};

type Outcome = Result<(), Box<dyn Error>>;
type Test = (&'static str, fn() -> Outcome);

/// Numbers that no machine has an account for.
const ACCOUNT: &str = "54321:54322";
/// `CAP_NET_ADMIN`, 12, and `CAP_NET_BIND_SERVICE`, 10 (linux/capability.h).
const KEPT: &str = "0000000000001400";
/// Which test this process is.
const VARIABLE: &str = "BENTPIPE_TEST_PRIVILEGES";

const TESTS: [Test; 11] = [
    ("root_becomes_the_account_with_two_capabilities_and_no_more", becomes_the_account),
    ("threads_started_later_and_programs_have_the_same", threads_and_programs_have_the_same),
    ("there_is_no_way_back_to_root", no_way_back),
    ("files_raw_sockets_and_ebpf_are_out_of_reach", abandoned_transfers_are_gone),
    ("all_that_the_daemon_does_still_works", kept_values_work),
    ("without_cap_net_admin_it_would_not", net_admin_is_needed),
    ("without_cap_net_bind_service_a_low_port_would_not", net_bind_service_is_needed),
    ("root_without_an_account_stays_user_0_and_loses_its_powers", root_without_an_account),
    ("a_user_started_with_capabilities_stays_that_user", user_with_capabilities),
    ("an_ordinary_user_has_nothing_to_give_up", ordinary_user),
    ("beside_another_thread_nothing_is_given_up", beside_another_thread),
];

fn main() -> ExitCode {
    if let Ok(name) = std::env::var(VARIABLE) {
        return run_here(&name);
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let wanted = |name: &str| {
        let mut filters = arguments.iter().filter(|argument| !argument.starts_with('-')).peekable();
        filters.peek().is_none() || filters.any(|filter| name.contains(filter.as_str()))
    };
    let names = TESTS.map(|(name, _)| name).into_iter().filter(|name| wanted(name));
    if arguments.iter().any(|argument| argument == "--list") {
        names.for_each(|name| println!("{name}: test"));
        return ExitCode::SUCCESS;
    }
    if !geteuid().is_root() {
        println!("skipped: needs root: there are no privileges to give up");
        return ExitCode::SUCCESS;
    }
    if names.filter(|name| !succeeds(name)).count() == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn succeeds(name: &str) -> bool {
    let program = std::env::current_exe().expect("the system names this program");
    let output = Command::new(program).env(VARIABLE, name).output().expect("this program runs once more");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    println!("{out}test {name} ... {}", if output.status.success() { "ok" } else { "FAILED" });
    if !output.status.success() {
        println!("{err}");
    }
    output.status.success()
}

fn run_here(name: &str) -> ExitCode {
    let (_, test) = TESTS.iter().find(|(known, _)| *known == name).expect("a test of this program");
    match test() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn becomes_the_account() -> Outcome {
    set_thread_groups(&[Gid::from_raw(4), Gid::from_raw(6)])?;
    drop_like_the_daemon()?;
    assert_dropped(&Status::of("/proc/self/status")?);
    let bits = capabilities_secure_bits()?;
    assert!(
        bits.contains(CapabilitiesSecureBits::NO_ROOT | CapabilitiesSecureBits::NO_ROOT_LOCKED),
        "{bits:?}"
    );
    assert!(!bits.contains(CapabilitiesSecureBits::KEEP_CAPS), "{bits:?}");

    // Not dumpable: its files in /proc are root's, and it can read those that it needs all the same.
    assert_eq!(fs::metadata("/proc/self/environ")?.uid(), 0);
    assert!(fs::read_to_string("/proc/thread-self/net/dev")?.contains("lo:"));
    assert!(fs::read_dir("/proc/self/fd")?.count() >= 3);
    assert!(fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control")?.contains("reno"));
    fs::File::open("/proc/thread-self/ns/net")?;
    std::env::current_exe()?;
    Ok(())
}

fn threads_and_programs_have_the_same() -> Outcome {
    drop_like_the_daemon()?;
    let in_a_thread = std::thread::spawn(|| Status::of("/proc/thread-self/status")).join();
    assert_dropped(&in_a_thread.expect("the thread only reads")?);
    let from_a_thread = std::thread::spawn(Status::of_a_program).join();
    assert_dropped(&from_a_thread.expect("the thread only runs cat")?);
    assert_dropped(&Status::of_a_program()?);
    Ok(())
}

fn no_way_back() -> Outcome {
    let program = set_user_id_root("/usr/bin/id")?;
    let program = format!("/proc/self/fd/{}", program.as_raw_fd());
    // The check of the check: where file systems are mounted without set-user-ID bits this test says nothing.
    assert_eq!(effective_user(Command::new(&program).uid(54321))?, "0", "set-user-ID bits count here");

    drop_like_the_daemon()?;
    assert_eq!(effective_user(&mut Command::new(&program))?, "54321");
    assert_eq!(set_thread_res_uid(Uid::ROOT, Uid::ROOT, Uid::ROOT), Err(Errno::PERM));
    assert_eq!(set_thread_groups(&[Gid::ROOT]), Err(Errno::PERM));
    assert_eq!(set_capabilities_secure_bits(CapabilitiesSecureBits::empty()), Err(Errno::PERM));
    let mut sets = capabilities(None)?;
    sets.permitted |= CapabilitySet::SETUID;
    assert_eq!(set_capabilities(None, sets), Err(Errno::PERM));
    assert_eq!(configure_capability_in_ambient_set(CapabilitySet::SETUID, true), Err(Errno::PERM));
    Ok(())
}

fn abandoned_transfers_are_gone() -> Outcome {
    drop_like_the_daemon()?;
    assert_eq!(fs::File::open("/etc/shadow").unwrap_err().kind(), ErrorKind::PermissionDenied);
    assert!(fs::write("/proc/sys/kernel/core_pattern", "core").is_err());
    for (domain, protocol) in [(Domain::IPV4, Protocol::TCP), (Domain::IPV6, Protocol::ICMPV6)] {
        assert_not_permitted(Socket::new(domain, Type::RAW, Some(protocol)).map(drop));
    }
    assert_not_permitted(Socket::new(Domain::PACKET, Type::RAW, None).map(drop));
    assert_not_permitted(first_ebpf_program());
    assert!(Hybla::acquire().is_err(), "loads an eBPF program");
    // SAFETY: where it succeeds, which is the failure of this test, nothing else happens in this process.
    let unshared = unsafe { unshare_unsafe(UnshareFlags::NEWNET) };
    assert_eq!(unshared, Err(Errno::PERM));
    Ok(())
}

fn kept_values_work() -> Outcome {
    new_network()?;
    let hybla = hybla();
    drop_like_the_daemon()?;
    let foreign: SocketAddr = "192.0.2.1:80".parse()?;
    transparent_socket()?.bind(&foreign.into())?;
    assert_eq!(receive_buffer_beyond_the_maximum()?, 64 << 20);
    for line in ADMINISTRATION {
        run(line)?;
    }
    if let Some(hybla) = hybla {
        sockopt::set_congestion(TcpListener::bind("127.0.0.1:0")?, hybla.name())?;
        let name = hybla.name().to_owned();
        assert!(bentpipe_kernel::congestion::available().contains(&name), "it is held");
        drop(hybla);
        assert!(
            !bentpipe_kernel::congestion::available().contains(&name),
            "unregistering needs no privileges"
        );
    }
    Ok(())
}

fn net_admin_is_needed() -> Outcome {
    new_network()?;
    let hybla = hybla();
    drop_to(Some(&Account::find(ACCOUNT)?), &[Capability::NetBindService])?;
    assert_not_permitted(transparent_socket().map(drop));
    assert!(receive_buffer_beyond_the_maximum()? < 64 << 20);
    for line in ADMINISTRATION {
        assert!(run(line).is_err(), "{line}");
    }
    if let Some(hybla) = hybla {
        assert_not_permitted(sockopt::set_congestion(TcpListener::bind("127.0.0.1:0")?, hybla.name()));
    }
    Ok(())
}

fn net_bind_service_is_needed() -> Outcome {
    new_network()?;
    drop_to(Some(&Account::find(ACCOUNT)?), &[Capability::NetAdmin])?;
    let [low, high]: [SocketAddr; 2] = ["192.0.2.1:80".parse()?, "192.0.2.1:8080".parse()?];
    transparent_socket()?.bind(&high.into())?;
    let error = transparent_socket()?.bind(&low.into()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    Ok(())
}

fn root_without_an_account() -> Outcome {
    drop_to(None, &DAEMON)?;
    for status in [Status::of("/proc/self/status")?, Status::of_a_program()?] {
        assert_eq!(status.get("Uid"), "0 0 0 0");
        assert_capabilities(&status, KEPT);
    }
    assert_not_permitted(Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::TCP)).map(drop));
    assert_not_permitted(first_ebpf_program());
    Ok(())
}

/// As systemd starts a service with `User=` and `AmbientCapabilities=`.
fn user_with_capabilities() -> Outcome {
    let started_with = CapabilitySet::NET_ADMIN | CapabilitySet::NET_BIND_SERVICE | CapabilitySet::NET_RAW;
    become_user(4711, started_with)?;
    let before = Status::of_a_program()?;
    assert_eq!(before.get("CapEff"), "0000000000003400", "the test's own set-up");

    drop_like_the_daemon()?;
    for status in [Status::of("/proc/self/status")?, Status::of_a_program()?] {
        assert_eq!(status.get("Uid"), "4711 4711 4711 4711");
        assert_eq!(status.get("NoNewPrivs"), "1");
        for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
            assert_eq!(status.get(set), KEPT, "{set}");
        }
        assert_eq!(status.get("CapBnd"), before.get("CapBnd"), "only CAP_SETPCAP could empty it");
    }
    Ok(())
}

fn ordinary_user() -> Outcome {
    become_user(4711, CapabilitySet::empty())?;
    let before = Status::of("/proc/self/status")?;
    drop_like_the_daemon()?;
    let after = Status::of("/proc/self/status")?;
    for key in ["Uid", "Gid", "CapPrm", "CapBnd", "NoNewPrivs"] {
        assert_eq!(after.get(key), before.get(key), "{key}");
    }
    Ok(())
}

fn beside_another_thread() -> Outcome {
    let (end, wait) = std::sync::mpsc::channel::<()>();
    let other = std::thread::spawn(move || wait.recv());
    let before = fs::read_to_string("/proc/thread-self/status")?;
    let refused = drop_like_the_daemon();
    assert!(matches!(refused, Err(PrivilegeError::Threads { threads: 2 })), "{refused:?}");
    let (before, after) = (Status::parse(&before), Status::of("/proc/thread-self/status")?);
    for key in ["Uid", "Gid", "CapPrm", "CapBnd", "NoNewPrivs"] {
        assert_eq!(after.get(key), before.get(key), "{key}");
    }
    drop(end);
    let _ = other.join();
    Ok(())
}

fn drop_like_the_daemon() -> Result<(), PrivilegeError> {
    drop_to(Some(&Account::find(ACCOUNT)?), &DAEMON)
}

/// The lines of a `status` file in /proc.
struct Status(Vec<(String, String)>);

impl Status {
    fn of(path: &str) -> io::Result<Self> {
        fs::read_to_string(path).map(|text| Self::parse(&text))
    }

    /// Of a program that this process starts.
    fn of_a_program() -> io::Result<Self> {
        let output = Command::new("cat").arg("/proc/self/status").output()?;
        Ok(Self::parse(&String::from_utf8_lossy(&output.stdout)))
    }

    fn parse(text: &str) -> Self {
        let lines = text.lines().filter_map(|line| line.split_once(':'));
        let words = |value: &str| value.split_whitespace().collect::<Vec<_>>().join(" ");
        Self(lines.map(|(key, value)| (key.to_owned(), words(value))).collect())
    }

    fn get(&self, key: &str) -> &str {
        let line = self.0.iter().find(|(known, _)| known == key);
        line.map(|(_, value)| value.as_str()).unwrap_or_else(|| panic!("no {key} in the status"))
    }
}

fn assert_dropped(status: &Status) {
    assert_eq!(status.get("Uid"), "54321 54321 54321 54321");
    assert_eq!(status.get("Gid"), "54322 54322 54322 54322");
    assert_eq!(status.get("Groups"), "");
    assert_capabilities(status, KEPT);
}

fn assert_capabilities(status: &Status, expected: &str) {
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert_eq!(status.get(set), expected, "{set}");
    }
    assert_eq!(status.get("NoNewPrivs"), "1");
}

fn assert_not_permitted(result: io::Result<()>) {
    let error = result.expect_err("this is not permitted");
    assert_eq!(error.raw_os_error(), Some(libc::EPERM), "{error}");
}

/// What the daemon does through `nft` and `ip` while it runs and at its end.
const ADMINISTRATION: [&str; 6] = [
    "nft list ruleset",
    "nft add table inet bentpipe_test",
    "nft delete table inet bentpipe_test",
    "ip -4 rule add pref 67 fwmark 0x10000000/0x70000000 lookup 25200",
    "ip -4 route add local default dev lo table 25200",
    "ip -4 route del local default dev lo table 25200",
];

fn run(line: &str) -> Outcome {
    let mut words = line.split(' ');
    let mut command = Command::new(words.next().unwrap_or_default());
    let output = command.args(words).stdin(Stdio::null()).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(()) } else { Err(format!("{line}: {said}").into()) }
}

/// A copy of a program that runs as root whoever starts it; it has no name and goes with this process.
fn set_user_id_root(original: &str) -> io::Result<fs::File> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("copy");
    fs::copy(original, &path)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o4755))?;
    fs::File::open(path)
}

fn effective_user(program: &mut Command) -> io::Result<String> {
    let output = program.arg("-u").output()?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Moves this process into a network namespace of its own, which ends with it.
fn new_network() -> Outcome {
    // SAFETY: NEWNET changes the network only; descriptors stay as they are, and there is one thread.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET) }?;
    run("ip link set lo up")
}

/// Hybla, loaded while there is the right to, or nothing where this kernel has no BTF.
fn hybla() -> Option<Hybla> {
    Path::new("/sys/kernel/btf/vmlinux").exists().then(|| Hybla::acquire().expect("root loads eBPF"))
}

fn transparent_socket() -> io::Result<Socket> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    sockopt::set_transparent(&socket, &SocketAddr::from(([0, 0, 0, 0], 0)))?;
    Ok(socket)
}

/// The size that a socket gets that asks for 64 MiB, far above the usual `net.core.rmem_max`.
fn receive_buffer_beyond_the_maximum() -> io::Result<usize> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    sockopt::set_receive_buffer(&socket, bentpipe_units::ByteCount::new(64 << 20))?;
    socket.recv_buffer_size()
}

/// Asks for the first eBPF program's number: `BPF_PROG_GET_NEXT_ID`, 11, needs the same right whatever the
/// settings.
fn first_ebpf_program() -> io::Result<()> {
    let attributes = [0u64; 16];
    // SAFETY: bpf(2) reads and writes `attributes`, which lives through the call, within the size that it is
    // told.
    let result =
        unsafe { libc::syscall(libc::SYS_bpf, 11, attributes.as_ptr(), std::mem::size_of_val(&attributes)) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn become_user(user: u32, keep: CapabilitySet) -> Outcome {
    let (uid, gid) = (Uid::from_raw(user), Gid::from_raw(user));
    set_thread_groups(&[])?;
    set_thread_res_gid(gid, gid, gid)?;
    set_keep_capabilities(true)?;
    set_thread_res_uid(uid, uid, uid)?;
    set_capabilities(None, CapabilitySets { effective: keep, permitted: keep, inheritable: keep })?;
    for capability in keep.iter() {
        configure_capability_in_ambient_set(capability, true)?;
    }
    Ok(())
}
