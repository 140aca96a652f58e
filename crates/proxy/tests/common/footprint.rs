//! What a process takes of the machine: memory and descriptors.

use std::fs;
use std::path::Path;

/// A process as it is at one moment.
#[derive(Debug, Clone, Copy, Default)]
pub struct Footprint {
    /// Resident memory, bytes (proc(5), `smaps_rollup`).
    pub resident: u64,
    /// The same where a page that several processes have counts in parts.
    pub proportional: u64,
    /// What the process shares with nobody.
    pub private: u64,
    pub descriptors: usize,
    /// Of the descriptors.
    pub sockets: usize,
    /// Of the descriptors; an idle pipe of the pool has two.
    pub pipes: usize,
}

impl Footprint {
    pub fn of(process: u32) -> Self {
        let rollup = fs::read_to_string(format!("/proc/{process}/smaps_rollup")).unwrap();
        let links: Vec<String> = fs::read_dir(format!("/proc/{process}/fd"))
            .unwrap()
            .filter_map(|entry| fs::read_link(entry.ok()?.path()).ok())
            .map(|link| kind_of(&link))
            .collect();
        let count = |kind: &str| links.iter().filter(|link| *link == kind).count();
        Self {
            resident: kibibytes(&rollup, "Rss:"),
            proportional: kibibytes(&rollup, "Pss:"),
            private: kibibytes(&rollup, "Private_Clean:") + kibibytes(&rollup, "Private_Dirty:"),
            descriptors: links.len(),
            sockets: count("socket"),
            pipes: count("pipe"),
        }
    }
}

/// A value of a table such as `/proc/PID/smaps_rollup` or `/proc/meminfo`, bytes.
pub fn kibibytes(table: &str, key: &str) -> u64 {
    let line =
        table.lines().find(|line| line.starts_with(key)).unwrap_or_else(|| panic!("no {key} in {table}"));
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

/// `socket` of `socket:[4711]`.
fn kind_of(link: &Path) -> String {
    link.to_string_lossy().split(':').next().unwrap_or_default().to_owned()
}
