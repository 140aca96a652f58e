//! Explicit rates in the running kernel: what is written for a connection is the rate at which it sends.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use bentpipe_kernel::explicit::{Explicit, Flow, MAX_LEGS, SharedLeg};
use bentpipe_kernel::{congestion, sockopt};

const PATIENCE: Duration = Duration::from_secs(30);

/// Why this machine cannot run these tests, if it cannot.
fn missing() -> Option<&'static str> {
    if !rustix::process::geteuid().is_root() {
        return Some("root, to load an eBPF congestion control");
    }
    (!std::path::Path::new("/sys/kernel/btf/vmlinux").exists()).then_some("a kernel with BTF")
}

/// One test at a time: they share the legs.
static TURN: Mutex<()> = Mutex::new(());

fn explicit() -> Option<(Explicit, MutexGuard<'static, ()>)> {
    if let Some(need) = missing() {
        println!("skipped: needs {need}");
        return None;
    }
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    Some((Explicit::acquire().unwrap(), turn))
}

/// A connection whose accepting end belongs to `leg` with this weight.
fn connection(leg: &SharedLeg, weight: u32) -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    leg.join(listener.as_fd(), weight).unwrap();
    sockopt::set_congestion(&listener, leg.explicit().name()).unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (client, listener.accept().unwrap().0)
}

fn flows(leg: &SharedLeg) -> Vec<Flow> {
    leg.explicit().flows().filter(|flow| flow.leg == leg.number()).collect()
}

/// Waits until the leg has so many connections.
fn wait_for(leg: &SharedLeg, count: usize) -> Vec<Flow> {
    let start = Instant::now();
    loop {
        let flows = flows(leg);
        if flows.len() == count {
            return flows;
        }
        assert!(start.elapsed() < PATIENCE, "{flows:?}");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn it_is_registered_while_it_is_held() {
    let Some((explicit, _turn)) = explicit() else { return };
    let name = explicit.name().to_owned();
    assert!(congestion::available().contains(&name));
    assert!(bentpipe_kernel::explicit::is_explicit(&name));
    assert_eq!(Explicit::acquire().unwrap().name(), name, "one process has one copy");
}

#[test]
fn an_accepted_connection_has_leg_weight_and_slot_until_it_ends() {
    let Some((explicit, _turn)) = explicit() else { return };
    let leg = explicit.leg("with a weight").unwrap();
    let (client, server) = connection(&leg, 7);
    let flow = wait_for(&leg, 1)[0];
    assert_eq!((flow.weight, flow.leg), (7, leg.number()));
    assert!(flow.mss > 0 && flow.header == 52, "{flow:?}");
    drop((server, client));
    wait_for(&leg, 0);
}

#[test]
fn a_connection_sends_at_the_rate_that_it_is_given() {
    let Some((explicit, _turn)) = explicit() else { return };
    let leg = explicit.leg("with a rate").unwrap();
    leg.set_initial_rate(1_000_000, 0, Duration::from_millis(10));
    let (mut client, mut server) = connection(&leg, 1);
    thread::scope(|scope| {
        scope.spawn(move || while server.write(&[7; 65536]).is_ok() {});
        let mut buffer = vec![0; 1 << 16];
        let mut read_for = |span: Duration| {
            let (start, mut bytes) = (Instant::now(), 0);
            while start.elapsed() < span {
                bytes += client.read(&mut buffer).unwrap();
            }
            bytes as f64 / start.elapsed().as_secs_f64()
        };
        read_for(Duration::from_millis(300));
        let new_flow = read_for(Duration::from_millis(700));
        let flow = wait_for(&leg, 1)[0];
        explicit.set_rate(flow.slot, 4_000_000);
        read_for(Duration::from_millis(300));
        let given = read_for(Duration::from_millis(700));
        let flow = wait_for(&leg, 1)[0];
        drop(client);
        // The other side of it is Linux, whose timestamps count milliseconds; on the loopback nobody waits
        // for long.
        assert!(flow.forward.is_some_and(|forward| forward < PATIENCE / 30), "{flow:?}");
        assert!(given > 2.0 * new_flow, "{new_flow} and {given} bytes/s");
        // What waited while another process had the processor is read at once. Without a rate it would be a
        // thousand times as much.
        assert!(given < 8_000_000.0, "{given} bytes/s");
    });
}

#[test]
fn a_socket_that_belongs_nowhere_works_too() {
    let Some((explicit, _turn)) = explicit() else { return };
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    sockopt::set_congestion(&listener, explicit.name()).unwrap();
    let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    let sent = vec![5; 300_000];
    thread::scope(|scope| {
        scope.spawn(move || server.write_all(&sent).unwrap());
        let mut received = Vec::new();
        client.read_to_end(&mut received).unwrap();
        assert_eq!(received.len(), 300_000);
    });
}

#[test]
fn a_leg_keeps_its_number_while_it_lives_and_there_is_an_end_of_them() {
    let Some((explicit, _turn)) = explicit() else { return };
    let first = explicit.leg("the first").unwrap();
    assert_eq!(explicit.leg("the first").unwrap().number(), first.number());
    let others: Vec<_> = (0..MAX_LEGS).map_while(|n| explicit.leg(&format!("one more, {n}"))).collect();
    assert!(others.len() < MAX_LEGS && others.iter().all(|leg| leg.number() != first.number()));
    drop(others);
    assert!(explicit.leg("a late one").is_some());
}

#[test]
fn legs_of_one_name_in_two_network_namespaces_are_two() {
    let Some((explicit, _turn)) = explicit() else { return };
    let here = explicit.leg("satellite").unwrap();
    let elsewhere = thread::scope(|scope| {
        let leg = || {
            // SAFETY: the descriptors stay what they are; only this thread, which ends here, has another
            // network.
            unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET) }.unwrap();
            let leg = explicit.leg("satellite").unwrap();
            assert_eq!(explicit.leg("satellite").unwrap().number(), leg.number(), "a reload keeps it");
            leg
        };
        scope.spawn(leg).join().unwrap()
    });
    assert_ne!(here.number(), elsewhere.number());
    assert_eq!((here.name(), elsewhere.name()), ("satellite", "satellite"));
}
