//! Thousands of connections through the daemon at once, held for minutes while others come and go: what each
//! of them costs, and whether all of them live at the end. As root; `--help` says the options.
//!
//! The client's and the server's ends are both in this process, two descriptors for each connection, and the
//! daemon is a process of its own with as many. Compare figures of one machine only.

#[path = "../../tests/common/mod.rs"]
mod common;
mod kernel;

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bentpipe_kernel::limits::{descriptor_limit, raise_descriptor_limit};
use bentpipe_proxy::budget::default_connections;
use bentpipe_proxy::config::Workers;
use clap::Parser;
use common::crowd::{Crowd, Visits};
use common::footprint::Footprint;
use common::{Net, PATIENCE, Running, SERVER, network};
use kernel::{Growth, Kernel};

/// The most memory of the daemon that an idle connection may take, bytes.
const MEMORY_EACH: f64 = 2048.0;
/// The thread of the controller of explicit rates (15 characters of its name are kept: comm(5)).
const CONTROLLER: &str = "bentpipe-rates";
/// Connections that come and go before anything is measured: memory that is allocated once is not counted.
const WARM_UP: u64 = 200;

/// Visitors that may be there at the same time, with some that are not quite gone.
const VISITORS_AT_ONCE: usize = 50;

/// Thousands of connections through the daemon at once, and what each of them costs. Needs root.
#[derive(Debug, Clone, Parser)]
struct Options {
    /// Connections that are held
    #[arg(long, default_value_t = 9000)]
    connections: usize,
    /// How long they are held
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..))]
    minutes: u64,
    /// One minute
    #[arg(long, conflicts_with = "minutes")]
    quick: bool,
    #[arg(long, value_parser = ["copy", "splice"], default_value = "splice")]
    relay: String,
    /// The congestion control of the satellite leg; with explicit, a controller looks at all connections
    #[arg(long, default_value = "reno")]
    congestion: String,
    /// Others that come and go in a second
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    rate: u32,
}

impl Options {
    fn configuration(&self) -> String {
        let Self { relay, congestion, .. } = self;
        let leg = format!("interface = \"sat0\"\ncongestion = \"{congestion}\"");
        format!("[proxy]\nrelay = \"{relay}\"\n[legs.satellite]\n{leg}\n")
    }

    fn hold(&self) -> Duration {
        Duration::from_secs(60 * if self.quick { 1 } else { self.minutes })
    }
}

/// The result.
struct Report {
    options: Options,
    opened_in: Duration,
    cold: Footprint,
    open: Footprint,
    after_others: Footprint,
    /// Share of one processor that the daemon uses while nothing happens.
    idle: f64,
    /// The same of the controller of explicit rates: while nothing happens, and while others come and go.
    controller: [f64; 2],
    kernel: Growth,
    /// Sockets in use in the gateway's namespace, while all are open.
    sockets: u64,
    others: u64,
    other_port: u64,
    alive: usize,
    first_dead: Option<String>,
}

fn main() -> ExitCode {
    if common::be_daemon_if_asked() {
        return ExitCode::SUCCESS;
    }
    let mut options = Options::parse();
    let Some(net) = network() else { return ExitCode::SUCCESS };
    let room = room();
    if room < options.connections {
        println!("{room} connections, not {}: the descriptors allow no more", options.connections);
        options.connections = room;
    }
    let report = measure(&net, options);
    print!("{}", report.text());
    if report.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The most connections that a daemon lets in by default, but for a few visitors; this process needs no more
/// descriptors.
fn room() -> usize {
    let limit = raise_descriptor_limit().unwrap_or_else(|error| {
        eprintln!("cannot raise the number of descriptors: {error}");
        descriptor_limit()
    });
    let descriptors = usize::try_from(limit.soft).unwrap_or(usize::MAX);
    default_connections(descriptors, Workers::default().get()).saturating_sub(VISITORS_AT_ONCE)
}

fn measure(net: &Net, options: Options) -> Report {
    let plain = plain_growth(net, options.connections);
    let mut daemon = net.try_daemon(&options.configuration()).unwrap_or_else(|error| panic!("{error}"));
    warm_up(net);
    settle(&mut daemon, 0);
    let (cold, kernel_before, start) = (Footprint::of(daemon.pid()), Kernel::now(), Instant::now());

    let mut crowd = Crowd::new(net);
    grow(&mut crowd, net, options.connections, "through the daemon");
    let opened_in = start.elapsed();
    settle(&mut daemon, options.connections as u64);
    let kernel = Growth::between(&kernel_before, &Kernel::now(), options.connections).beyond(&plain);
    let open = Footprint::of(daemon.pid());
    let sockets = net.gateway.enter(kernel::sockets_in_use);
    let controller = daemon.processor_time_of(CONTROLLER);
    let idle = daemon.processor_share(options.hold() / 10);
    let idle_controller = daemon.processor_time_of(CONTROLLER) - controller;

    let (start, controller) = (Instant::now(), daemon.processor_time_of(CONTROLLER));
    let others = hold(net, &mut daemon, &options);
    let busy_controller = daemon.processor_time_of(CONTROLLER) - controller;
    let controller = [
        idle_controller.div_duration_f64(options.hold() / 10),
        busy_controller.div_duration_f64(start.elapsed()),
    ];
    settle(&mut daemon, options.connections as u64);
    let after_others = Footprint::of(daemon.pid());
    let (alive, first_dead) = crowd.prove_alive();
    let other_port = daemon.counter("other_port");
    let report = Report {
        options,
        opened_in,
        cold,
        open,
        after_others,
        idle,
        controller,
        kernel,
        sockets,
        others,
        other_port,
        alive,
        first_dead,
    };
    crowd.scatter();
    settle(&mut daemon, 0);
    daemon.stop();
    report
}

/// The kernel's cost of as many connections that are not split: their own ends, on this machine, too.
fn plain_growth(net: &Net, connections: usize) -> Growth {
    let before = Kernel::now();
    let mut crowd = Crowd::new(net);
    grow(&mut crowd, net, connections, "without a daemon");
    let growth = Growth::between(&before, &Kernel::now(), connections);
    crowd.scatter();
    // Sockets are freed a grace period after they are closed.
    std::thread::sleep(Duration::from_secs(2));
    growth
}

fn grow(crowd: &mut Crowd, net: &Net, connections: usize, how: &str) {
    let step = connections.div_ceil(5);
    crowd.grow(net, connections, |open| {
        if open % step == 0 || open == connections {
            println!("{open} connections open, {how}");
        }
    });
}

fn warm_up(net: &Net) {
    let listener = net.listen(SERVER[0]);
    Visits::default().receive(net, &listener, Duration::ZERO, WARM_UP, &AtomicBool::new(false));
}

/// Waits until so many flows are open and none of them holds anything.
fn settle(daemon: &mut Running, flows: u64) {
    daemon.wait_for("flows_open", flows);
    let start = Instant::now();
    while ["connecting", "relay_buffers_in_use", "buffered"].iter().any(|name| daemon.counter(name) > 0) {
        assert!(start.elapsed() < PATIENCE, "something is still on its way");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Holds the connections while others come and go, and returns the number of those.
fn hold(net: &Net, daemon: &mut Running, options: &Options) -> u64 {
    let (visits, stop, start) = (Visits::default(), AtomicBool::new(false), Instant::now());
    let interval = Duration::from_secs(1) / options.rate;
    let listeners = SERVER.map(|address| net.listen(address));
    std::thread::scope(|scope| {
        for listener in &listeners {
            let (visits, stop) = (&visits, &stop);
            scope.spawn(move || visits.receive(net, listener, interval * 2, u64::MAX, stop));
        }
        while start.elapsed() < options.hold() {
            std::thread::sleep(Duration::from_secs(15).min(options.hold().saturating_sub(start.elapsed())));
            let (seconds, flows) = (start.elapsed().as_secs(), daemon.counter("flows_open"));
            println!(
                "held for {seconds} s: {flows} flows open, {} others have come and gone",
                visits.total()
            );
        }
        stop.store(true, Ordering::Relaxed);
    });
    visits.total()
}

impl Report {
    fn text(&self) -> String {
        let Options { connections, relay, .. } = &self.options;
        let open = Cost::between(self.cold, self.open, *connections);
        let after = Cost::between(self.cold, self.after_others, *connections);
        format!(
            "\n{connections} connections, relay \"{relay}\", opened in {:.1} s; the gateway has {} TCP \
             sockets\n\
             the daemon, for each      sockets   other descriptors but pipes   resident       PSS   private\n\
             all open, idle     {open}\n\
             after {:6} others {after}\n\
             the daemon's processor time while all are idle: {:.2}% of one processor\n\
             of which the controller of explicit rates, and while others come and go: {:.2}%, {:.2}%\n\
             upstream connections whose port is not the client's: {}\n\n{}\n\
             alive after {} s: {} of {connections}{}\n{}\n",
            self.opened_in.as_secs_f64(),
            self.sockets,
            self.others,
            100.0 * self.idle,
            100.0 * self.controller[0],
            100.0 * self.controller[1],
            self.other_port,
            self.kernel,
            self.options.hold().as_secs(),
            self.alive,
            self.first_dead.as_ref().map(|reason| format!("; {reason}")).unwrap_or_default(),
            if self.is_good() { "good: two descriptors, at most 2 KiB, and all alive" } else { "NOT GOOD" },
        )
    }

    fn is_good(&self) -> bool {
        let connections = self.options.connections;
        let cheap = [self.open, self.after_others].into_iter().all(|now| {
            let cost = Cost::between(self.cold, now, connections);
            cost.sockets == 2.0 && cost.others == 0.0 && cost.resident <= MEMORY_EACH
        });
        cheap && self.alive == connections && self.others > 0
    }
}

/// The resources that the daemon takes for each connection.
struct Cost {
    sockets: f64,
    /// Descriptors that are neither sockets nor of the pool's idle pipes.
    others: f64,
    resident: f64,
    proportional: f64,
    private: f64,
}

impl Cost {
    fn between(before: Footprint, now: Footprint, connections: usize) -> Self {
        let each = |before: f64, now: f64| (now - before) / connections as f64;
        let others = |f: Footprint| (f.descriptors - f.sockets - f.pipes) as f64;
        Self {
            sockets: each(before.sockets as f64, now.sockets as f64),
            others: each(others(before), others(now)),
            resident: each(before.resident as f64, now.resident as f64),
            proportional: each(before.proportional as f64, now.proportional as f64),
            private: each(before.private as f64, now.private as f64),
        }
    }
}

impl std::fmt::Display for Cost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { sockets, others, resident, proportional, private } = self;
        write!(f, "{sockets:14.2} {others:29.2} {resident:9.0} B {proportional:7.0} B {private:7.0} B")
    }
}
