//! Processor time of the whole machine for our traffic, and the proxy's part of it. All in seconds.
//!
//! Other programs may run at the same time. Their use is counted process by process and subtracted.

use std::fs;

/// Ticks of the counters in /proc per second: `USER_HZ` of proc(5), 100 on all architectures that matter
/// here.
const TICKS: f64 = 100.0;
/// `PF_KTHREAD` of linux/sched.h: a thread of the kernel, which may be handling our packets.
const KERNEL_THREAD: u64 = 0x0020_0000;

/// The counters at one moment, or their increase between two.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Usage {
    /// All processors, other programs excepted; idling and waiting for disks do not count.
    pub(crate) machine: f64,
    /// The proxy's processes.
    pub(crate) proxy: f64,
    /// Other programs.
    pub(crate) others: f64,
}

impl Usage {
    /// `group` is the proxy's process group.
    pub(crate) fn now(group: Option<u32>) -> Self {
        let us = std::process::id();
        let (mut proxy, mut others) = (0.0, 0.0);
        let busy = busy(&fs::read_to_string("/proc/stat").unwrap_or_default());
        for process in processes() {
            if Some(process.group) == group {
                proxy += process.own;
            } else if process.id != us && !process.is_kernels {
                others += process.own + process.of_ended_children;
            }
        }
        Self { machine: busy - others, proxy, others }
    }

    pub(crate) fn since(self, earlier: Self) -> Self {
        Self {
            machine: self.machine - earlier.machine,
            proxy: self.proxy - earlier.proxy,
            others: self.others - earlier.others,
        }
    }
}

struct Process {
    id: u32,
    group: u32,
    is_kernels: bool,
    /// User and system time.
    own: f64,
    /// That of children which have ended: it was counted as theirs before, so that the sum of both goes on.
    of_ended_children: f64,
}

/// user + nice + system + irq + softirq of the line for all processors (proc(5), /proc/stat).
fn busy(stats: &str) -> f64 {
    let line = stats.lines().next().unwrap_or_default();
    let numbers: Vec<f64> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    [0, 1, 2, 5, 6].iter().filter_map(|&index| numbers.get(index)).sum::<f64>() / TICKS
}

fn processes() -> Vec<Process> {
    let folders = fs::read_dir("/proc").into_iter().flatten().flatten();
    folders.filter_map(|folder| process(&fs::read_to_string(folder.path().join("stat")).ok()?)).collect()
}

/// A line of /proc/PID/stat (proc(5)): the name stands in parentheses and may hold anything, parentheses too.
fn process(line: &str) -> Option<Process> {
    let (head, tail) = line.rsplit_once(')')?;
    let (id, _name) = head.split_once(" (")?;
    let fields: Vec<&str> = tail.split_whitespace().collect();
    // Numbered as in proc(5), where the first field behind the name is the third.
    let number = |field: usize| fields.get(field - 3).and_then(|text| text.parse::<f64>().ok());
    Some(Process {
        id: id.parse().ok()?,
        group: number(5)? as u32,
        is_kernels: number(9)? as u64 & KERNEL_THREAD != 0,
        own: (number(14)? + number(15)?) / TICKS,
        of_ended_children: (number(16)? + number(17)?) / TICKS,
    })
}
