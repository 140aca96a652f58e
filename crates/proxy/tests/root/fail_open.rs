//! Whatever happens to the daemon, new connections pass within two seconds, and those that it has end by a
//! reset or go on.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use crate::common::{Net, PATIENCE, Running, SERVER, network, pattern, read_all, wait_until};
use rustix::process::Signal;

/// Two seconds, and what a busy machine may add to them.
const TWO_SECONDS: Duration = Duration::from_millis(2000 + 1500);
/// The tests' own threads may be late by much more where the machine is another's for a while. Without the
/// time-out in the rules a connection would never come through.
const SOON: Duration = Duration::from_secs(12);

/// The time until a connection that is begun now, and again and again, comes through to the server.
fn time_until_connections_work(net: &Net, listener: &TcpListener) -> Duration {
    let start = Instant::now();
    let to = listener.local_addr().unwrap();
    listener.set_nonblocking(true).unwrap();
    let mut clients = Vec::new();
    loop {
        clients.push(net.client.enter(|| TcpStream::connect_timeout(&to, PATIENCE).unwrap()));
        std::thread::sleep(Duration::from_millis(20));
        if let Ok((mut server, address)) = listener.accept() {
            // Both ends of one connection, and what one says the other hears.
            let client = clients.iter().find(|client| client.local_addr().unwrap() == address).unwrap();
            server.set_nonblocking(false).unwrap();
            { client }.write_all(b"through").unwrap();
            server.read_exact(&mut [0; 7]).unwrap();
            listener.set_nonblocking(false).unwrap();
            return start.elapsed();
        }
        assert!(start.elapsed() < PATIENCE, "no connection came through");
    }
}

/// Stops the process. When it returns no thread of it runs any more.
fn stop(daemon: &Running) {
    daemon.signal(Signal::STOP);
    let start = Instant::now();
    let tasks = || std::fs::read_dir(format!("/proc/{}/task", daemon.pid())).unwrap().map(Result::unwrap);
    let is_stopped = |task: std::fs::DirEntry| {
        let stat = std::fs::read_to_string(task.path().join("stat")).unwrap();
        stat.rsplit_once(") ").unwrap().1.starts_with('T')
    };
    while !tasks().all(is_stopped) {
        assert!(start.elapsed() < PATIENCE, "it does not stop");
    }
}

#[test]
fn a_stopped_process_lets_new_connections_pass_within_two_seconds_and_loses_nothing() {
    let Some(net) = network() else { return };
    for address in SERVER {
        let mut daemon = net.daemon("");
        let listener = net.listen(address);
        let (mut client, mut server) = net.connection(&listener);
        let sent = pattern(3, 10_000_000);
        std::thread::scope(|scope| {
            let mut writer = server.try_clone().unwrap();
            let sent = &sent;
            let sender = scope.spawn(move || {
                writer.write_all(sent).unwrap();
                writer.shutdown(Shutdown::Write).unwrap();
            });
            client.read_exact(&mut [0; 100_000]).unwrap();
            stop(&daemon);
            let elapsed = time_until_connections_work(&net, &listener);
            println!("stopped: connections to {address} pass after {elapsed:?}");
            assert!(elapsed < SOON, "{address}: {elapsed:?}");
            daemon.signal(Signal::CONT);
            assert!(read_all(&mut client).unwrap() == sent[100_000..]);
            sender.join().unwrap();
        });
        client.shutdown(Shutdown::Write).unwrap();
        assert_eq!(read_all(&mut server).unwrap(), b"");
        let start = Instant::now();
        let before = daemon.counter("flows_total");
        while daemon.counter("flows_total") == before {
            assert!(start.elapsed() < PATIENCE, "connections are split again");
            let _client = net.client.enter(|| TcpStream::connect(listener.local_addr().unwrap()).unwrap());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn a_connection_whose_first_syn_has_passed_passes_when_it_is_repeated() {
    let Some(net) = network() else { return };
    for (handshake, address) in [("early", SERVER[0]), ("early", SERVER[1]), ("faithful", SERVER[0])] {
        let daemon = net.daemon(&format!("handshake = \"{handshake}\""));
        let listener = net.listen(address);
        let is_split = |client: &TcpStream| {
            let port = client.local_addr().unwrap().port();
            net.gateway.output("ss -Htan").contains(&format!(":{port} "))
        };
        assert!(is_split(&net.connection(&listener).0));
        stop(&daemon);
        time_until_connections_work(&net, &listener);
        // The server answers the first SYN in vain.
        net.gateway.rules(
            "table inet deaf { chain f { type filter hook forward priority 0; \
             tcp flags & (syn | ack) == syn | ack counter drop; }; }",
        );
        let to = listener.local_addr().unwrap();
        let mut client = std::thread::scope(|scope| {
            let client = scope.spawn(|| net.client.enter(|| TcpStream::connect(to).unwrap()));
            let dropped = || !net.gateway.output("nft list table inet deaf").contains("packets 0");
            wait_until("the server has answered", dropped);
            net.gateway.run("nft delete table inet deaf");
            daemon.signal(Signal::CONT);
            client.join().unwrap()
        });
        assert!(!is_split(&client));
        client.write_all(b"through").unwrap();
        let start = Instant::now();
        while !is_split(&net.client.enter(|| TcpStream::connect(to).unwrap())) {
            assert!(start.elapsed() < PATIENCE, "connections are split again");
        }
        daemon.stop();
    }
}

#[test]
fn one_hung_worker_of_several_is_enough_to_let_new_connections_pass() {
    let Some(net) = network() else { return };
    let daemon = net.daemon("workers = 2");
    let listener = net.listen(SERVER[0]);
    let hung = HungThread::of(&daemon, "bentpipe-1");
    // Only the rules can know: the other worker goes on to accept what the kernel gives it.
    std::thread::sleep(TWO_SECONDS);
    let elapsed = time_until_connections_work(&net, &listener);
    let mut daemon = daemon;
    let before = daemon.counter("flows_total");
    for _ in 0..8 {
        let _pair = net.connection(&listener);
    }
    assert_eq!(daemon.counter("flows_total"), before, "nothing is taken ({elapsed:?})");
    drop(hung);
    let start = Instant::now();
    while daemon.counter("flows_total") == before {
        assert!(start.elapsed() < PATIENCE, "it is split again when the worker goes on");
        let _pair = net.connection(&listener);
    }
}

#[test]
fn a_hung_watch_lets_new_connections_pass() {
    let Some(net) = network() else { return };
    let mut daemon = net.daemon("");
    let listener = net.listen(SERVER[0]);
    let _hung = HungThread::of(&daemon, "bentpipe-watch");
    std::thread::sleep(TWO_SECONDS);
    let before = daemon.counter("flows_total");
    let _pair = net.connection(&listener);
    assert_eq!(daemon.counter("flows_total"), before);
}

#[test]
fn snooped_flows_survive_a_hanging_snoop_thread_and_new_connections_pass() {
    let Some(net) = network() else { return };
    let rules = "[snoop]\ncache = \"1MB\"\n[[rules]]\naction = \"snoop\"\nserver = \"10.77.2.2\"\n";
    let text = format!("{}{rules}", crate::common::configuration(""));
    let mut daemon = net.try_daemon(&text).unwrap_or_else(|error| panic!("daemon: {error}"));
    let (mut client, mut server) = net.connection(&net.listen(SERVER[0]));
    client.write_all(b"looked after").unwrap();
    server.read_exact(&mut [0; 12]).unwrap();
    assert!(daemon.counter("packets") > 0);
    let hung = HungThread::of(&daemon, "bentpipe-snoop");
    client.write_all(b"on its own").unwrap();
    server.read_exact(&mut [0; 10]).unwrap();
    // Connections that would be split pass as well, as with any worker that hangs.
    time_until_connections_work(&net, &net.listen(SERVER[1]));
    assert_eq!(daemon.counter("flows_total"), 0);
    drop(hung);
    let start = Instant::now();
    while daemon.counter("flows_total") == 0 {
        assert!(start.elapsed() < PATIENCE, "it is split again when the snooper goes on");
        let _pair = net.connection(&net.listen(SERVER[1]));
    }
}

#[test]
fn out_of_memory_the_daemon_dies_and_new_connections_pass_within_two_seconds() {
    let Some(net) = network() else { return };
    let mut daemon = net.daemon("relay = \"copy\"");
    let listener = net.listen(SERVER[0]);
    let flows: Vec<_> = (0..20).map(|_| net.connection(&listener)).collect();
    // From now on it gets no more memory than it has.
    net.gateway.run(&format!("prlimit --pid {} --data=1", daemon.pid()));
    for (client, server) in &flows {
        for mut stream in [client, server] {
            stream.set_nonblocking(true).unwrap();
            while stream.write(&[7; 65536]).is_ok() {}
        }
    }
    let start = Instant::now();
    while daemon.child.try_wait().unwrap().is_none() {
        assert!(start.elapsed() < PATIENCE, "it still lives: {} bytes", daemon.resident());
        let _ = net.client.enter(|| TcpStream::connect(listener.local_addr().unwrap()));
    }
    drop(listener);
    let listener = net.listen(SERVER[0]);
    let elapsed = time_until_connections_work(&net, &listener);
    assert!(elapsed < SOON, "{elapsed:?}");
}

#[test]
fn rules_that_somebody_removed_are_installed_again() {
    let Some(net) = network() else { return };
    let mut daemon = net.daemon("");
    let listener = net.listen(SERVER[0]);
    let before = net.traces();
    net.gateway.run("nft flush ruleset");
    let start = Instant::now();
    while daemon.counter("flows_total") == 0 {
        assert!(start.elapsed() < PATIENCE, "connections are split again");
        let _pair = net.connection(&listener);
    }
    assert_eq!(net.traces(), before);
}

/// A single thread of the daemon that does not run any more, as one in an endless loop or a dead-lock would
/// not.
struct HungThread {
    thread: i32,
}

impl HungThread {
    fn of(daemon: &Running, name: &str) -> Self {
        let named = |task: &std::fs::DirEntry| {
            std::fs::read_to_string(task.path().join("comm")).is_ok_and(|comm| comm.trim() == name)
        };
        let find = || {
            let mut tasks =
                std::fs::read_dir(format!("/proc/{}/task", daemon.pid())).unwrap().map(Result::unwrap);
            tasks.find(named)
        };
        let start = Instant::now();
        // A thread takes its name when it begins to run.
        let task = loop {
            if let Some(task) = find() {
                break task;
            }
            assert!(start.elapsed() < PATIENCE, "no thread is called {name}");
        };
        let thread = task.file_name().to_str().unwrap().parse().unwrap();
        ptrace(libc::PTRACE_SEIZE, thread);
        ptrace(libc::PTRACE_INTERRUPT, thread);
        Self { thread }
    }
}

impl Drop for HungThread {
    fn drop(&mut self) {
        // A thread that is being traced is let go when it stops to be; without a wait it would not have
        // stopped yet. SAFETY: waitpid(2) with no place for the status.
        unsafe { libc::waitpid(self.thread, std::ptr::null_mut(), libc::__WALL) };
        ptrace(libc::PTRACE_DETACH, self.thread);
    }
}

fn ptrace(request: libc::c_uint, thread: i32) {
    let nothing = std::ptr::null_mut::<libc::c_void>();
    // SAFETY: these requests read no memory of ours.
    let result = unsafe { libc::ptrace(request, thread, nothing, nothing) };
    assert_eq!(result, 0, "ptrace({request}): {}", std::io::Error::last_os_error());
}
