//! Processor time: the machine's, a process group's, our own. All in seconds.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

/// Ticks of the counters in /proc per second (proc(5), `sysconf(_SC_CLK_TCK)`): 100 on every Linux that runs Rust.
const TICKS: f64 = 100.0;

/// The counters at one moment, or what was added between two.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Usage {
    /// What all processors did, idling and waiting for discs excepted.
    pub(crate) machine: f64,
    /// The proxy's processes.
    pub(crate) proxy: f64,
    /// This process, which makes the traffic, and the kernel's threads for packets.
    pub(crate) traffic: f64,
}

impl Usage {
    pub(crate) fn now(group: Option<u32>) -> Self {
        let stats = fs::read_to_string("/proc/stat").unwrap_or_default();
        let us = std::process::id();
        let processes = processes();
        let sum = |wanted: &dyn Fn(&Process) -> bool| {
            processes.iter().filter(|process| wanted(process)).map(|process| process.seconds).sum()
        };
        Self {
            machine: busy(&stats),
            proxy: sum(&|process| Some(process.group) == group),
            traffic: sum(&|process| process.id == us || process.name.starts_with("ksoftirqd/")),
        }
    }

    pub(crate) fn since(self, earlier: Self) -> Self {
        Self {
            machine: self.machine - earlier.machine,
            proxy: self.proxy - earlier.proxy,
            traffic: self.traffic - earlier.traffic,
        }
    }
}

/// How many processors are busy, on average, while we do nothing.
pub(crate) fn idle_baseline(time: Duration) -> f64 {
    let (start, before) = (Instant::now(), Usage::now(None));
    thread::sleep(time);
    Usage::now(None).since(before).machine / start.elapsed().as_secs_f64()
}

struct Process {
    id: u32,
    group: u32,
    name: String,
    seconds: f64,
}

/// user + nice + system + irq + softirq of the line for all processors (proc(5), /proc/stat).
fn busy(stats: &str) -> f64 {
    let numbers: Vec<f64> = stats
        .lines()
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .filter_map(|word| word.parse().ok())
        .collect();
    [0, 1, 2, 5, 6].iter().filter_map(|&index| numbers.get(index)).sum::<f64>() / TICKS
}

fn processes() -> Vec<Process> {
    let folders = fs::read_dir("/proc").into_iter().flatten().flatten();
    folders.filter_map(|folder| process(&fs::read_to_string(folder.path().join("stat")).ok()?)).collect()
}

/// A line of /proc/PID/stat (proc(5)): the name stands in parentheses and may hold anything, parentheses too.
fn process(line: &str) -> Option<Process> {
    let (head, tail) = line.rsplit_once(')')?;
    let (id, name) = head.split_once(" (")?;
    let fields: Vec<&str> = tail.split_whitespace().collect();
    let number = |field: usize| fields.get(field - 3).and_then(|text| text.parse::<f64>().ok());
    // Fields 14 and 15: in user mode and in the kernel.
    let seconds = (number(14)? + number(15)?) / TICKS;
    Some(Process { id: id.parse().ok()?, group: number(5)? as u32, name: name.to_owned(), seconds })
}
