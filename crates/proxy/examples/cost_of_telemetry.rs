//! The cost of telemetry: the time of a survey of thousands of flows, in the daemon and by the command of an
//! operator, and the processor time of accounting for active ones, beside that of carrying their data. As
//! root, in namespaces, with `--release`; `--flows N` and `--active N` change the numbers. The command is
//! that of `bentpipe` in the folder above the example's. `--program FILE` measures only that program: its
//! memory and the survey by its own command.
//!
//! The ends of all connections are in this process, two descriptors for each, and the daemon is a process of
//! its own with as many. Accounting is all that it does for connections on which data wait that nobody takes.

#[path = "../tests/common/mod.rs"]
mod common;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bentpipe_kernel::limits::raise_descriptor_limit;
use bentpipe_kernel::tcp_info::tcp_info;
use bentpipe_testbed::Child;
use common::crowd::Crowd;
use common::footprint::Footprint;
use common::{Net, Running, SERVER, network};
use rustix::process::Signal;
use socket2::SockRef;

/// The longest survey that is accepted, and the largest share of a processor for accounting.
const SURVEY: Duration = Duration::from_millis(200);
const ACCOUNTING: f64 = 0.03;

const SURVEYS: usize = 20;
/// For how long processor time is measured; its resolution is 10 ms.
const TURN: Duration = Duration::from_secs(20);
/// The receive buffer of a server that does not read, and the data sent to it, bytes.
const SMALL: usize = 4096;
const WAITING: usize = 65_536;
/// Bytes that each flow carries in a second.
const CARRIED: usize = 4000;
/// A tenth of the flows gets its data at each beat.
const BEATS: usize = 10;
const BEAT: Duration = Duration::from_millis(100);

fn main() -> ExitCode {
    if common::be_daemon_if_asked() {
        return ExitCode::SUCCESS;
    }
    let [flows, active] = [("--flows", 9000), ("--active", 1000)].map(|(name, usual)| number(name, usual));
    let Some(net) = network() else { return ExitCode::SUCCESS };
    if let Err(error) = raise_descriptor_limit() {
        eprintln!("cannot raise the number of descriptors: {error}");
    }
    if let Some(program) = option("--program") {
        by_command(&net, flows, Path::new(&program));
        return ExitCode::SUCCESS;
    }
    let survey = survey(&net, flows);
    let here = std::env::current_exe().unwrap();
    by_command(&net, flows, &here.ancestors().nth(2).unwrap().join("bentpipe"));
    let accounting = accounting(&net, active);
    carrying(&net, active, accounting);
    let is_good = survey < SURVEY && accounting < ACCOUNTING;
    println!("{}", if is_good { "good" } else { "NOT GOOD" });
    if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn option(name: &str) -> Option<String> {
    std::env::args().skip_while(|argument| argument != name).nth(1)
}

fn number(name: &str, usual: usize) -> usize {
    option(name).and_then(|value| value.parse().ok()).unwrap_or(usual)
}

/// The median time of a survey of all flows, and of the hundred fastest.
fn survey(net: &Net, flows: usize) -> Duration {
    let mut daemon = net.daemon("");
    let mut crowd = Crowd::new(net);
    crowd.grow(net, flows, |_| {});
    daemon.wait_for("flows_open", flows as u64);
    let idle = daemon.processor_share(TURN);
    let [all, hundred] = [usize::MAX, 100].map(|most| median(&mut daemon, most, most.min(flows)));
    println!(
        "{flows} flows: a survey of all takes {all:.1?}, of the 100 fastest {hundred:.1?} (medians of \
         {SURVEYS}); idle, they \
         take {:.2}% of a processor",
        100.0 * idle
    );
    crowd.scatter();
    daemon.wait_for("flows_open", 0);
    daemon.stop();
    all
}

fn median(daemon: &mut Running, most: usize, expected: usize) -> Duration {
    median_of(|| {
        let (time, found) = daemon.survey(most);
        assert_eq!(found, expected, "some flows were left out");
        time
    })
}

fn median_of(measure: impl FnMut() -> Duration) -> Duration {
    let mut times: Vec<Duration> = std::iter::repeat_with(measure).take(SURVEYS).collect();
    times.sort_unstable();
    times[SURVEYS / 2]
}

/// What the program itself takes of the memory as the daemon, and the median time of `bentpipe status --json`
/// of all flows, from the start of the command to its end.
fn by_command(net: &Net, flows: usize, program: &Path) {
    if !program.exists() {
        println!("the command is not measured: there is no {}", program.display());
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let (mut daemon, sockets) = start(net, program, folder.path());
    let before = Footprint::of(daemon.id());
    let mut crowd = Crowd::new(net);
    crowd.grow(net, flows, |_| {});
    println!(
        "{}: without flows {}, with {flows} {}",
        program.display(),
        memory(before),
        memory(Footprint::of(daemon.id()))
    );
    let mut size = 0;
    let time = median_of(|| {
        let mut command = net.gateway.command(program.to_str().unwrap());
        command.args(["status", "--json", "--flows", "all", "--folder"]).arg(&sockets);
        let start = Instant::now();
        let output = command.stdin(Stdio::null()).output().unwrap();
        let time = start.elapsed();
        let status: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(status["flows"].as_array().unwrap().len(), flows, "some flows were left out");
        size = output.stdout.len();
        time
    });
    println!(
        "{flows} flows: `bentpipe status --json --flows all` takes {time:.1?} (median of {SURVEYS}), {size} \
         bytes"
    );
    crowd.scatter();
    daemon.signal(Signal::TERM).unwrap();
    daemon.wait().unwrap();
}

fn memory(footprint: Footprint) -> String {
    let Footprint { resident, proportional, .. } = footprint;
    format!("{:.1} MB resident ({:.1} MB PSS)", resident as f64 / 1e6, proportional as f64 / 1e6)
}

/// The program itself as the daemon, when it is ready, and the folder of its sockets.
fn start(net: &Net, program: &Path, folder: &Path) -> (Child, PathBuf) {
    let (config, sockets) = (folder.join("bentpipe.toml"), folder.join("run"));
    let admin = format!("[admin]\nfolder = \"{}\"\nlisten = \"off\"\n", sockets.display());
    std::fs::write(&config, common::configuration("") + &admin).unwrap();
    let mut command = net.gateway.command(program.to_str().unwrap());
    command.args(["run", "-c"]).arg(&config).stdin(Stdio::null()).stderr(Stdio::piped());
    let mut daemon = Child::spawn(command).unwrap();
    let mut log = BufReader::new(daemon.stderr().unwrap()).lines().map_while(Result::ok);
    assert!(log.any(|line| line.ends_with(" ready")), "the daemon has ended");
    std::thread::spawn(move || log.for_each(drop));
    (daemon, sockets)
}

/// The share of a processor that goes into looking at connections on each of which something waits: all that
/// the daemon does then, less what it does while the same connections are idle.
fn accounting(net: &Net, active: usize) -> f64 {
    let mut daemon = net.daemon("");
    let listener = net.listen(SERVER[0]);
    // Nobody reads, and little fits: the rest waits in the gateway, where it is looked at each second.
    SockRef::from(&listener).set_recv_buffer_size(SMALL).unwrap();
    let (mut clients, servers) = net.connections(&listener, active);
    daemon.wait_for("flows_open", active as u64);
    let idle = daemon.processor_share(TURN);
    for client in &mut clients {
        client.write_all(&[7; WAITING]).unwrap();
    }
    daemon.wait_to_see("everything on its way", |seen| {
        seen.flows.iter().all(|flow| flow.buffered_bytes > 0 && flow.server_end.unsent_bytes > 0)
    });
    std::thread::sleep(Duration::from_secs(2));
    let busy = daemon.processor_share(TURN);
    println!(
        "{active} flows on which something waits: the daemon takes {:.2}% of a processor, {:.2}% while they \
         are idle",
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

/// What the daemon takes of a processor while each flow carries something every second, and what is
/// accounting of that.
fn carrying(net: &Net, active: usize, accounting: f64) {
    let mut daemon = net.daemon("");
    let listener = net.listen(SERVER[0]);
    let (clients, servers) = net.connections(&listener, active);
    daemon.wait_for("flows_open", active as u64);
    let stop = AtomicBool::new(false);
    let busy = std::thread::scope(|scope| {
        scope.spawn(|| pump(&clients, &servers, &stop));
        std::thread::sleep(Duration::from_secs(2));
        let busy = daemon.processor_share(TURN);
        stop.store(true, Ordering::Relaxed);
        busy
    });
    println!(
        "{active} flows that carry {CARRIED} bytes/s each: the daemon takes {:.2}% of a processor, of which \
         accounting, as measured \
         above, is {:.0}%",
        100.0 * busy,
        100.0 * accounting / busy
    );
    let question = question(&clients);
    println!(
        "the kernel answers for a connection (TCP_INFO) in {:.2} µs: for both ends of {active} flows once a \
         second {:.2}% of a \
         processor",
        question * 1e6,
        200.0 * question * active as f64
    );
    clients.into_iter().for_each(common::abort);
    drop(servers);
    daemon.wait_for("flows_open", 0);
    daemon.stop();
}

/// Lets each client send once a second and reads the data from the servers.
fn pump(clients: &[TcpStream], servers: &[TcpStream], stop: &AtomicBool) {
    servers.iter().for_each(|server| server.set_nonblocking(true).unwrap());
    let (data, mut space) = ([7; CARRIED], [0; 4 * CARRIED]);
    let mut next = Instant::now();
    for beat in (0..BEATS).cycle() {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        for mut client in clients.iter().skip(beat).step_by(BEATS) {
            client.write_all(&data).unwrap();
        }
        for mut server in servers {
            // Servers without data are read next time.
            let _ = server.read(&mut space);
        }
        next += BEAT;
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
    }
}

/// How long the kernel takes to answer for a connection, s.
fn question(connections: &[TcpStream]) -> f64 {
    let rounds = 20;
    let start = Instant::now();
    for connection in std::iter::repeat_n(connections, rounds).flatten() {
        std::hint::black_box(tcp_info(connection).unwrap());
    }
    start.elapsed().as_secs_f64() / (rounds * connections.len()) as f64
}
