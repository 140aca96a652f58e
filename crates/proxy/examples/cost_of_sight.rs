//! What it costs to see: the time of a survey of thousands of flows, and the processor time of accounting for active ones. As root,
//! in namespaces, with `--release`; `--flows N` and `--active N` change the numbers.
//!
//! The ends of all connections are in this process, two descriptors for each, and the daemon is a process of its own with as many.
//! Accounting is all that it does for connections on which data wait that nobody takes.

#[path = "../tests/common/mod.rs"]
mod common;

use std::io::Write;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use bentpipe_kernel::limits::raise_descriptor_limit;
use common::crowd::Crowd;
use common::{Net, Running, SERVER, network};
use socket2::SockRef;

/// The most that a survey may take, and accounting of one processor.
const SURVEY: Duration = Duration::from_millis(200);
const ACCOUNTING: f64 = 0.03;

const SURVEYS: usize = 20;
/// For how long processor time is measured; the kernel tells it to 10 ms.
const TURN: Duration = Duration::from_secs(20);
/// The receive buffer of a server that does not read, and what it is sent, bytes.
const SMALL: usize = 4096;
const WAITING: usize = 65_536;

fn main() -> ExitCode {
    if common::be_daemon_if_asked() {
        return ExitCode::SUCCESS;
    }
    let [flows, active] = [("--flows", 9000), ("--active", 1000)].map(|(name, usual)| number(name, usual));
    let Some(net) = network() else { return ExitCode::SUCCESS };
    if let Err(error) = raise_descriptor_limit() {
        eprintln!("cannot raise the number of descriptors: {error}");
    }
    let survey = survey(&net, flows);
    let accounting = accounting(&net, active);
    let is_good = survey < SURVEY && accounting < ACCOUNTING;
    println!("{}", if is_good { "good" } else { "NOT GOOD" });
    if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn number(name: &str, usual: usize) -> usize {
    let mut arguments = std::env::args().skip_while(|argument| argument != name).skip(1);
    arguments.next().and_then(|value| value.parse().ok()).unwrap_or(usual)
}

/// The median time of a survey of all flows, and of the hundred fastest.
fn survey(net: &Net, flows: usize) -> Duration {
    let mut daemon = net.daemon("");
    let mut crowd = Crowd::new(net);
    crowd.grow(net, flows, |_| {});
    daemon.wait_for("flows_open", flows as u64);
    let idle = share(&daemon, TURN);
    let [all, hundred] = [usize::MAX, 100].map(|most| median(&mut daemon, most, most.min(flows)));
    println!(
        "{flows} flows: a survey of all takes {all:.1?}, of the 100 fastest {hundred:.1?} (medians of {SURVEYS}); idle, they \
         take {:.2}% of a processor",
        100.0 * idle
    );
    crowd.scatter();
    daemon.wait_for("flows_open", 0);
    daemon.stop();
    all
}

fn median(daemon: &mut Running, most: usize, expected: usize) -> Duration {
    let mut times: Vec<Duration> = (0..SURVEYS)
        .map(|_| {
            let (time, found) = daemon.survey(most);
            assert_eq!(found, expected, "some flows were left out");
            time
        })
        .collect();
    times.sort_unstable();
    times[SURVEYS / 2]
}

/// The share of a processor that goes into looking at connections on each of which something waits: all that the daemon does
/// then, less what it does while the same connections are idle.
fn accounting(net: &Net, active: usize) -> f64 {
    let mut daemon = net.daemon("");
    let listener = net.listen(SERVER[0]);
    // Nobody reads, and little fits: the rest waits in the gateway, where it is looked at each second.
    SockRef::from(&listener).set_recv_buffer_size(SMALL).unwrap();
    let (mut clients, servers) = net.connections(&listener, active);
    daemon.wait_for("flows_open", active as u64);
    let idle = share(&daemon, TURN);
    for client in &mut clients {
        client.write_all(&[7; WAITING]).unwrap();
    }
    daemon.wait_to_see("everything on its way", |seen| {
        seen.flows.iter().all(|flow| flow.buffered_bytes > 0 && flow.server_end.unsent_bytes > 0)
    });
    std::thread::sleep(Duration::from_secs(2));
    let busy = share(&daemon, TURN);
    println!(
        "{active} flows on which something waits: the daemon takes {:.2}% of a processor, {:.2}% while they are idle",
        100.0 * busy,
        100.0 * idle
    );
    for client in clients {
        common::abort(client);
    }
    drop(servers);
    daemon.wait_for("flows_open", 0);
    daemon.stop();
    busy - idle
}

/// The share of a processor that the daemon takes.
fn share(daemon: &Running, length: Duration) -> f64 {
    let (start, before) = (Instant::now(), daemon.processor_time());
    std::thread::sleep(length);
    (daemon.processor_time() - before).as_secs_f64() / start.elapsed().as_secs_f64()
}
