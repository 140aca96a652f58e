//! The daemon alone: `daemon CONFIG`, until SIGTERM, SIGINT or the end of standard input.

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bentpipe_proxy::{Config, Daemon};
use signal_hook::consts::{SIGINT, SIGTERM};

fn main() {
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_writer(std::io::stderr)
        .init();
    if let Err(error) = run() {
        eprintln!("error: {error}");
        std::process::exit(1);
    }
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("usage: daemon CONFIG")?;
    let config = Config::load(path)?;
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, stop.clone())?;
    }
    let daemon = Daemon::start(&config)?;
    println!("ready");
    let at_end = stop.clone();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        at_end.store(true, Ordering::Relaxed);
    });
    while !stop.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(10));
    }
    println!("{:?}", daemon.stop());
    Ok(())
}
