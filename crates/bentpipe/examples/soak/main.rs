//! Hours of a gateway's life in a test network: connections come and go, and an operator, faults and outages
//! disturb them, at random by a seed. In the end the accounts must balance.
//!
//! ```sh
//! make soak HOURS=1                                       # as root: network namespaces
//! target/release/examples/soak --minutes 5 --seed 7       # the same disturbances again
//! ```
//!
//! The data flow: [`churn`] makes connections and counts how each ends; [`disturbance`] gives orders and
//! makes faults, and notes the times in which connections may break; [`account`] compares what the daemon
//! holds and counts with what it held at the start and with the clients' counts. The seed decides sizes,
//! ends, orders and their times; what the kernel's scheduler makes of them, it does not.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use bentpipe_link::{DirectionConfig, LinkConfig};
use bentpipe_units::{Probability, Rate};
use clap::Parser;

mod account;
mod churn;
mod disturbance;
#[path = "../../tests/operated/mod.rs"]
mod operated;
mod random;

use account::Accounts;
use churn::Churn;
use disturbance::Operator;
use operated::Topology;
use random::Random;

/// Hours of churn, orders, faults and outages on a gateway in a test network
#[derive(Parser)]
struct Options {
    /// How long
    #[arg(long, default_value_t = 60)]
    minutes: u64,
    /// What sizes, orders and faults follow from; the default is another one each time
    #[arg(long)]
    seed: Option<u64>,
    /// Connections at a time
    #[arg(long, default_value_t = 40)]
    clients: u64,
}

/// How often a line tells of progress.
const PROGRESS: Duration = Duration::from_secs(30);
/// Before memory is compared with what it is in the end, caches have filled.
const WARM_UP: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    let options = Options::parse();
    let seed = options.seed.unwrap_or_else(random::any_seed);
    println!("seed {seed}, {} minutes, {} connections at a time", options.minutes, options.clients);
    let Some(mut topology) = Topology::new(&program(), Some(&link())) else { return ExitCode::from(2) };
    let mut random = Random::new(seed);
    let mut operator = Operator::start(&mut topology, &mut random);
    operator.upgrade(&topology);
    let at_start = Accounts::at_rest(operator.pid());
    let churn = Churn::start(&topology, options.clients, &mut random);
    let (start, length) = (Instant::now(), Duration::from_secs(60 * options.minutes));
    let (mut next_line, mut warm) = (PROGRESS, None);
    while start.elapsed() < length {
        operator.disturb(&mut topology, &mut random);
        if warm.is_none() && start.elapsed() > WARM_UP {
            warm = Some(account::private_memory(operator.pid()));
        }
        if start.elapsed() > next_line {
            next_line += PROGRESS;
            let tally = churn.tally(&operator);
            println!("{:>6} s  {tally}  {}", start.elapsed().as_secs(), operator.summary());
        }
    }
    operator.come_to_rest(&mut topology);
    operator.upgrade(&topology);
    let tally = churn.finish(&operator);
    println!("\n{tally}\n{}", operator.table());
    let mut faults = tally.faults(&operator);
    faults.extend(at_start.compare(&topology, &operator, warm));
    faults.extend(operator.end(&mut topology));
    if faults.is_empty() {
        println!("the accounts balance");
        return ExitCode::SUCCESS;
    }
    println!("{} faults (seed {seed}):", faults.len());
    faults.iter().for_each(|fault| println!("  {fault}"));
    ExitCode::FAILURE
}

/// A short path, so that there are many connections, with the losses of a satellite link.
fn link() -> LinkConfig {
    let direction = |rate| DirectionConfig {
        rate: Some(rate),
        delay: Duration::from_millis(40),
        per: Probability::new(0.002).expect("a probability"),
        ..DirectionConfig::default()
    };
    LinkConfig { forward: direction(Rate::mbps(50)), reverse: direction(Rate::mbps(20)) }
}

/// The program of the same build.
fn program() -> PathBuf {
    let here = std::env::current_exe().expect("this program has a file");
    let target = here.ancestors().nth(2).expect("examples are built into a folder of the program's");
    target.join("bentpipe")
}
