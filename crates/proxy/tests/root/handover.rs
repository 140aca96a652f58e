//! Another process takes over while connections are open, idle, in the middle of a transfer, half closed, or
//! being made; and nobody notices. Where it cannot, the first one goes on.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Signal, kill_process};

use crate::common::exchange::Exchange;
use crate::common::handover::{ITSELF, frozen_beside, recv_message, send_message};
use crate::common::{Net, PATIENCE, RELAYS, Running, SERVER, configuration, network, pattern, read_all};

/// Bytes that do not fit into any socket buffers here, so that they are in flight when it matters.
const LOAD: usize = 30_000_000;

/// A connection on which a transfer each way stands still because nobody reads.
struct Stuffed {
    client: TcpStream,
    server: TcpStream,
    writers: Vec<std::thread::JoinHandle<()>>,
}

impl Stuffed {
    fn new(net: &Net, seed: u64) -> Self {
        let listener = net.listen(SERVER[seed as usize % 2]);
        let (client, server) = net.connection(&listener);
        let writers = [(&client, seed), (&server, seed + 1)].map(|(stream, seed)| {
            let mut stream = stream.try_clone().unwrap();
            stream.set_write_timeout(None).unwrap();
            std::thread::spawn(move || {
                stream.write_all(&pattern(seed, LOAD)).unwrap();
                stream.shutdown(Shutdown::Write).unwrap();
            })
        });
        Self { client, server, writers: writers.into() }
    }

    /// Both ends read everything, and it is what was written.
    fn finish(self, seed: u64) {
        let Self { mut client, mut server, writers } = self;
        let reading = std::thread::spawn(move || read_all(&mut server).unwrap());
        assert!(
            read_all(&mut client).unwrap() == pattern(seed + 1, LOAD),
            "the client has read something else"
        );
        assert!(reading.join().unwrap() == pattern(seed, LOAD), "the server has read something else");
        writers.into_iter().for_each(|writer| writer.join().unwrap());
    }
}

fn expect_echo(one: &mut TcpStream, other: &mut TcpStream) {
    one.write_all(b"still there?").unwrap();
    let mut heard = [0; 12];
    other.read_exact(&mut heard).unwrap();
    assert_eq!(&heard, b"still there?");
}

/// A crowd of connections of all kinds, which must be well after whatever happens between.
fn survive(net: &Net, daemon: &mut Running, happen: impl FnOnce(&mut Running)) {
    survive_with(net, daemon, 0, happen);
}

/// The same where so many other connections are open.
fn survive_with(net: &Net, daemon: &mut Running, others: u64, happen: impl FnOnce(&mut Running)) {
    let stuffed = [11, 22].map(|seed| (Stuffed::new(net, seed), seed));
    let listener = net.listen(SERVER[0]);
    let (mut idle, mut idle_server) = net.connection(&listener);
    let (mut half, mut half_server) = net.connection(&listener);
    half.write_all(b"the whole question").unwrap();
    half.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_all(&mut half_server).unwrap(), b"the whole question");
    // Until all of them are full to the brim.
    let mut before = 0;
    loop {
        let now = daemon.counter("bytes_up") + daemon.counter("bytes_down");
        if now == before && now > 1_000_000 {
            break;
        }
        before = now;
        std::thread::sleep(Duration::from_millis(100));
    }
    happen(daemon);
    assert_eq!(daemon.counter("flows_open"), 4 + others);
    expect_echo(&mut idle, &mut idle_server);
    expect_echo(&mut idle_server, &mut idle);
    half_server.write_all(b"and the answer").unwrap();
    drop(half_server);
    assert_eq!(read_all(&mut half).unwrap(), b"and the answer");
    let (mut new, mut new_server) = net.connection(&listener);
    expect_echo(&mut new, &mut new_server);
    assert_eq!(daemon.counter("flows_total"), 5 + others);
    for (stuffed, seed) in stuffed {
        stuffed.finish(seed);
    }
    assert_eq!(daemon.counter("flows_reset"), 0);
}

#[test]
fn another_process_goes_on_with_every_connection_whatever_it_is_doing() {
    let Some(net) = network() else { return };
    for relay in RELAYS {
        let config = configuration(&format!("relay = \"{relay}\"\nworkers = 2"));
        let mut daemon = net.try_daemon(&config).unwrap();
        survive(&net, &mut daemon, |daemon| {
            for _ in 0..3 {
                daemon.succeed(&net, &config).unwrap();
            }
        });
        daemon.settle();
    }
}

#[test]
fn another_configuration_comes_into_force_with_the_next_process() {
    let Some(net) = network() else { return };
    let mut daemon = net.try_daemon(&configuration("workers = 1")).unwrap();
    survive(&net, &mut daemon, |daemon| {
        // Other listeners, more workers, another relay; then other rules.
        let other = format!("{}send_buffer = \"1MiB\"\n", configuration("workers = 3\nrelay = \"copy\""));
        daemon.succeed(&net, &other).unwrap();
        let rules = format!("{other}[[rules]]\naction = \"pass\"\nport = 9\n");
        daemon.succeed(&net, &rules).unwrap();
        assert!(net.gateway.output("nft list table inet bentpipe").contains("dport 9 "));
    });
    daemon.stop();
    net.expect_untouched();
}

#[test]
fn everything_continues_if_the_next_process_cannot_start() {
    let Some(net) = network() else { return };
    let config = configuration("workers = 2");
    let mut daemon = net.try_daemon(&config).unwrap();
    let before = net.traces();
    survive(&net, &mut daemon, |daemon| {
        // It finds out when it has got everything: the ports of its own listeners are taken.
        let taken = net.gateway.enter(|| std::net::TcpListener::bind("127.0.0.1:7800").unwrap());
        let error = daemon.succeed(&net, &configuration("port = 7800")).unwrap_err();
        assert!(error.contains("127.0.0.1:7800"), "{error}");
        drop(taken);
        // It dies in the middle; it speaks of other things; it says that it cannot.
        for behaviour in [
            |_: &_| {},
            |line: &_| send_message(line, "what?"),
            |line: &_| send_message(line, r#"{"Failed":{"reason":"no memory"}}"#),
        ] {
            let error = daemon.disappoint(behaviour);
            assert!(error.starts_with("error: "), "{error}");
        }
        assert_eq!(net.traces(), before);
    });
    daemon.settle();
}

#[test]
fn a_program_of_another_version_is_refused_and_everything_goes_on() {
    let Some(net) = network() else { return };
    let mut daemon = net.daemon("workers = 2");
    let before = net.traces();
    survive(&net, &mut daemon, |daemon| {
        for version in [2, 4] {
            let error = daemon.call(|line| {
                send_message(line, &format!(r#"{{"Hello":{{"form":{version},"version":"0"}}}}"#));
                let answer = recv_message(line);
                assert!(answer.contains("Refusal") && answer.contains("restart the daemon"), "{answer}");
            });
            assert!(error.contains(&format!("version {version}")), "{error}");
        }
        assert_eq!(net.traces(), before);
    });
    daemon.settle();
}

#[test]
fn a_successor_that_falls_silent_costs_a_pause_and_is_told_that_it_is_too_late() {
    let Some(net) = network() else { return };
    let mut daemon = net.daemon("workers = 2");
    survive(&net, &mut daemon, |daemon| {
        let error = daemon.disappoint(|line| {
            let start = Instant::now();
            assert!(recv_message(line).contains("Snapshot"));
            let word = recv_message(line);
            assert!(word.contains("Refusal"), "{word}");
            assert!(start.elapsed() < PATIENCE);
        });
        assert!(error.contains("no progress for 1s"), "{error}");
    });
    daemon.settle();
}

#[test]
fn a_successor_that_is_killed_when_it_is_ready_changes_nothing() {
    let Some(net) = network() else { return };
    for relay in RELAYS {
        let config = configuration(&format!("relay = \"{relay}\"\nworkers = 2"));
        let mut daemon = net.try_daemon(&config).unwrap();
        survive(&net, &mut daemon, |daemon| {
            for _ in 0..10 {
                let error = daemon.outlive(&net, &config);
                assert!(error.contains("lost the other process"), "{error}");
            }
        });
        daemon.settle();
    }
}

#[test]
fn the_next_process_continues_if_the_first_is_killed_when_it_is_ready() {
    let Some(net) = network() else { return };
    for relay in RELAYS {
        let config = configuration(&format!("relay = \"{relay}\"\nworkers = 2"));
        let mut daemon = net.try_daemon(&config).unwrap();
        survive(&net, &mut daemon, |daemon| {
            for _ in 0..3 {
                daemon.succeed_while_dying(&net, &config);
            }
        });
        daemon.settle();
    }
}

/// The longest time between two of the bytes that go from one end to the other all the time, until `done`.
fn longest_pause(one: &mut TcpStream, other: &mut TcpStream, done: &AtomicBool) -> Duration {
    let interval = Duration::from_millis(5);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Acquire) {
                one.write_all(b"x").unwrap();
                std::thread::sleep(interval);
            }
            one.write_all(b"!").unwrap();
        });
        let (mut longest, mut last, mut byte) = (Duration::ZERO, Instant::now(), [0]);
        while byte != *b"!" {
            other.read_exact(&mut byte).unwrap();
            longest = longest.max(last.elapsed());
            last = Instant::now();
        }
        longest
    })
}

#[test]
fn a_successor_that_is_frozen_before_its_claim_costs_less_than_two_seconds_and_then_gives_up() {
    let Some(net) = network() else { return };
    for relay in RELAYS {
        let config = configuration(&format!("relay = \"{relay}\"\nworkers = 2"));
        let mut daemon = net.try_daemon(&config).unwrap();
        let (mut one, mut other) = net.connection(&net.listen(SERVER[1]));
        survive_with(&net, &mut daemon, 1, |daemon| {
            let done = AtomicBool::new(false);
            let (_folder, path) = daemon.await_successor();
            let pause = std::thread::scope(|scope| {
                let pausing = scope.spawn(|| longest_pause(&mut one, &mut other, &done));
                let next = scope.spawn(|| net.take_over_after(&config, &path, Signal::STOP, ITSELF).err());
                let frozen = frozen_beside(&net, daemon.pid());
                let error = daemon.outcome_of_handover().expect("nobody has taken over");
                assert!(error.contains("no progress for 1s"), "{error}");
                // It goes on when everything is the first one's again, and must not touch anything.
                kill_process(frozen, Signal::CONT).unwrap();
                let error = next.join().unwrap().expect("it cannot take over any more");
                assert!(error.contains("no progress for 1s"), "{error}");
                done.store(true, Ordering::Release);
                pausing.join().unwrap()
            });
            println!("{relay}: the longest pause of a frozen successor: {pause:?}");
            assert!(pause > Duration::from_millis(900) && pause < Duration::from_secs(2), "{pause:?}");
        });
        drop((one, other));
        daemon.settle();
    }
}

#[test]
fn a_predecessor_that_is_frozen_when_its_successor_claims_never_touches_the_connections_again() {
    let Some(net) = network() else { return };
    for relay in RELAYS {
        let config = configuration(&format!("relay = \"{relay}\"\nworkers = 2"));
        let mut daemon = net.try_daemon(&config).unwrap();
        let (mut one, mut other) = net.connection(&net.listen(SERVER[1]));
        survive_with(&net, &mut daemon, 1, |daemon| {
            for _ in 0..3 {
                daemon.succeed_while_frozen(&net, &config, || expect_echo(&mut one, &mut other));
                expect_echo(&mut other, &mut one);
            }
        });
        drop((one, other));
        daemon.settle();
    }
}

/// Holds one thread of another process still for as long as it lives (ptrace(2)); to be dropped by the thread
/// that made it.
pub(crate) struct Held(libc::pid_t);

impl Held {
    pub(crate) fn thread(pid: u32, name: &str) -> Self {
        let mut tasks =
            std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().map(|task| task.unwrap().path());
        let is_it = |task: &std::path::PathBuf| {
            std::fs::read_to_string(task.join("comm")).is_ok_and(|comm| comm.trim_end() == name)
        };
        let task = tasks.find(is_it).expect("the thread is there");
        let tid: libc::pid_t = task.file_name().unwrap().to_str().unwrap().parse().unwrap();
        let null = std::ptr::null_mut::<libc::c_void>();
        // SAFETY: neither request takes an address, and waitpid is given none.
        let outcomes = unsafe {
            [
                libc::ptrace(libc::PTRACE_SEIZE, tid, null, null),
                libc::ptrace(libc::PTRACE_INTERRUPT, tid, null, null),
                libc::c_long::from(libc::waitpid(tid, std::ptr::null_mut(), libc::__WALL)),
            ]
        };
        assert_eq!(outcomes, [0, 0, tid.into()], "{}", std::io::Error::last_os_error());
        Self(tid)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let null = std::ptr::null_mut::<libc::c_void>();
        // SAFETY: the request takes no address.
        unsafe { libc::ptrace(libc::PTRACE_DETACH, self.0, null, null) };
    }
}

#[test]
fn a_worker_that_is_late_keeps_its_connections_and_so_do_the_others() {
    let Some(net) = network() else { return };
    let mut daemon = net.daemon("workers = 3");
    survive(&net, &mut daemon, |daemon| {
        for name in ["bentpipe-0", "bentpipe-1", "bentpipe-2"] {
            let held = Held::thread(daemon.pid(), name);
            let error = daemon.disappoint(|line| assert!(recv_message(line).contains("Refusal")));
            assert!(error.contains("does not answer"), "{error}");
            drop(held);
        }
    });
    daemon.settle();
}

#[test]
fn patience_with_idle_connections_does_not_begin_anew() {
    let Some(net) = network() else { return };
    let config = format!("{}[limits]\nidle = \"6s\"\n", configuration("workers = 1"));
    let mut daemon = net.try_daemon(&config).unwrap();
    let listener = net.listen(SERVER[0]);
    let (mut idle, _idle_server) = net.connection(&listener);
    let (mut busy, mut busy_server) = net.connection(&listener);
    let start = Instant::now();
    let mut least = Duration::MAX;
    while daemon.counter("flows_expired") == 0 {
        assert!(start.elapsed() < PATIENCE, "idle connections are not ended");
        let before = Instant::now();
        daemon.succeed(&net, &config).unwrap();
        expect_echo(&mut busy, &mut busy_server);
        std::thread::sleep(Duration::from_secs(1));
        least = least.min(before.elapsed());
    }
    assert!(least < Duration::from_secs(6), "the machine is too slow to tell");
    assert!(start.elapsed() > Duration::from_secs(4));
    assert!(idle.read(&mut [0]).is_err());
    expect_echo(&mut busy_server, &mut busy);
    assert_eq!(daemon.counter("flows_open"), 1);
}

#[test]
fn connections_continue_if_their_legs_are_renamed_or_removed() {
    let Some(net) = network() else { return };
    let config = configuration("");
    let mut daemon = net.try_daemon(&config).unwrap();
    survive(&net, &mut daemon, |daemon| {
        daemon.succeed(&net, &config.replace("satellite", "other")).unwrap();
        daemon.succeed(&net, &config.replace("sat0", "ground0")).unwrap();
        let flows = daemon.wait_to_see("every flow", |seen| seen.flows.len() == 4).flows;
        assert!(flows.iter().all(|flow| flow.server_end.leg == "terrestrial"), "{flows:#?}");
    });
    daemon.stop();
    net.expect_untouched();
}

/// Connections through the daemon, both ends of each.
fn pairs(net: &Net, count: usize) -> Vec<(TcpStream, TcpStream)> {
    let (mut clients, mut servers) = net.connections(&net.listen(SERVER[0]), count);
    clients.sort_by_key(|client| client.local_addr().unwrap().port());
    servers.sort_by_key(|server| server.peer_addr().unwrap().port());
    clients.into_iter().zip(servers).collect()
}

#[test]
fn two_thousand_connections_go_over() {
    let Some(net) = network() else { return };
    let limit = bentpipe_kernel::limits::raise_descriptor_limit().unwrap().soft;
    let count = 2000.min(limit as usize / 2 - 200);
    let config = configuration("workers = 2");
    let mut daemon = net.try_daemon(&config).unwrap();
    let mut pairs = pairs(&net, count);
    for _ in 0..2 {
        daemon.wait_for("connecting", 0);
        for (number, (client, _)) in pairs.iter_mut().enumerate() {
            client.write_all(&number.to_le_bytes()).unwrap();
        }
        let start = Instant::now();
        daemon.succeed(&net, &config).unwrap();
        println!("{count} connections: {:?} from the start of the process", start.elapsed());
        for (number, (_, server)) in pairs.iter_mut().enumerate() {
            let mut heard = [0; 8];
            server.read_exact(&mut heard).unwrap();
            assert_eq!(usize::from_le_bytes(heard), number);
        }
        let counted = ["flows_open", "flows_total", "flows_reset"].map(|name| daemon.counter(name));
        assert_eq!(counted, [count as u64, count as u64, 0]);
    }
    drop(pairs);
    daemon.settle();
}

/// The process that this command starts may have no more descriptors than so many.
fn limit_descriptors(command: &mut std::process::Command, most: u64) {
    use rustix::process::{Resource, Rlimit, setrlimit};
    let limit = move || {
        let limit = Rlimit { current: Some(most), maximum: Some(most) };
        Ok(setrlimit(Resource::Nofile, limit)?)
    };
    // SAFETY: between fork and exec it makes one system call, and allocates nothing.
    unsafe { std::os::unix::process::CommandExt::pre_exec(command, limit) };
}

#[test]
fn a_successor_that_may_have_too_few_descriptors_fails_before_it_is_too_late() {
    let Some(net) = network() else { return };
    let config = configuration("workers = 1\nhandshake = \"faithful\"");
    let mut daemon = net.try_daemon(&config).unwrap();
    let mut pairs = pairs(&net, 100);
    let needed = daemon.descriptors() as u64;
    let mut refused = 0;
    for most in [needed - 100, needed - 50].into_iter().chain((needed - 30..).step_by(4)) {
        match daemon.succeed_changed(&net, &config, |command| limit_descriptors(command, most)) {
            Ok(()) => {
                println!("{most} descriptors are enough where {needed} were used");
                break;
            }
            Err(error) => {
                assert!(error.contains("ulimit -n") || error.contains("os error 24"), "{error}");
                refused += 1;
            }
        }
        let (client, server) = &mut pairs[refused];
        expect_echo(client, server);
        assert!(most < needed + 100, "it needs far more than the first one");
    }
    assert!(refused >= 2);
    // It has everything by which it serves new connections, too.
    daemon.wait_to_see("readiness", |seen| seen.ready);
    for (client, server) in &mut pairs {
        expect_echo(client, server);
    }
    assert_eq!((daemon.counter("flows_open"), daemon.counter("flows_reset")), (100, 0));
}

/// Kills one of the two after so long, as soon as there are two; whether it was the first.
fn kill_one(net: &Net, first: u32, is_first: bool, delay: Duration) {
    use rustix::process::Pid;
    let (start, mut next) = (Instant::now(), None);
    while next.is_none() && start.elapsed() < PATIENCE {
        let processes = crate::common::accounts::processes_in(&net.gateway);
        let pids = processes.iter().filter_map(|process| process.file_name()?.to_str()?.parse::<u32>().ok());
        // Numbers of processes begin again at the smallest: the next one's may be the lower.
        next = pids.filter(|pid| *pid != first).max();
    }
    std::thread::sleep(delay);
    let victim = if is_first { Some(first) } else { next };
    let victim = victim.and_then(|pid| Pid::from_raw(pid as i32));
    // It may have ended.
    let _ = kill_process(victim.expect("there are two"), Signal::KILL);
}

#[test]
fn whichever_process_is_killed_no_transfer_is_silently_truncated() {
    let Some(net) = network() else { return };
    let mut outcomes = std::collections::BTreeMap::<_, usize>::new();
    for seed in 0..20u64 {
        let random = pattern(seed, 3);
        let (is_first, delay) = (seed % 2 == 0, Duration::from_millis(u64::from(random[1]) * 2 / 3));
        let config = configuration(&format!("relay = \"{}\"\nworkers = 2", RELAYS[seed as usize / 2 % 2]));
        let mut daemon = net.try_daemon(&config).unwrap();
        let listener = net.listen(SERVER[0]);
        let exchanges = [(); 3].map(|()| Exchange::start_and_hold(net.connection(&listener), 20_000_000));
        exchanges.iter().for_each(|exchange| exchange.wait_for(500_000));
        let pid = daemon.pid();
        let next = std::thread::scope(|scope| {
            scope.spawn(|| kill_one(&net, pid, is_first, delay));
            daemon.attempt(&net, &config)
        });
        exchanges.iter().for_each(Exchange::let_go);
        let whole: usize = exchanges.into_iter().map(Exchange::expect_whole_or_reset).sum();
        println!("seed {seed}: first {is_first}, {delay:?}, succeeded {}, {whole} of 6 ends", next.is_some());
        assert!(is_first || next.is_some() || whole == 6 || whole == 0);
        *outcomes.entry((is_first, next.is_some(), whole)).or_default() += 1;
        if is_first && next.is_none() {
            let _ = daemon.child.wait();
        }
    }
    println!("{outcomes:?}");
    drop(net.daemon(""));
    net.expect_untouched();
}
