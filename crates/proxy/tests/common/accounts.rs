//! What a daemon holds and what it leaves behind: taken when it is ready, settled when the faults are over.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags, fstat, open};

use super::{Host, PATIENCE};

/// Pipes that a worker keeps empty for the next flow (`pool::KEPT`), two descriptors each.
const KEPT_PIPES: usize = 64;

/// The threads of a daemon at rest, and its descriptors by kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Accounts {
    threads: usize,
    /// Everything but pipes, of which a worker may keep some.
    descriptors: BTreeMap<String, usize>,
    pipes: Vec<PathBuf>,
}

impl Accounts {
    /// Of a daemon that is ready, without what a thread holds for a moment.
    pub fn at_rest(pid: u32) -> Self {
        let mut before = Self::take(pid);
        loop {
            std::thread::sleep(Duration::from_millis(20));
            let now = Self::take(pid);
            if now == before {
                return now;
            }
            before = now;
        }
    }

    pub fn take(pid: u32) -> Self {
        let threads = entries(&format!("/proc/{pid}/task")).len();
        let (mut descriptors, mut pipes) = (BTreeMap::new(), Vec::new());
        for descriptor in entries(&format!("/proc/{pid}/fd")) {
            // One that was closed in between has no link any more.
            let Ok(target) = fs::read_link(&descriptor) else { continue };
            let target = target.to_string_lossy().into_owned();
            match target.split_once(":[") {
                Some(("pipe", _)) => pipes.push(descriptor),
                // socket:[inode], net:[inode]; but anon_inode:[eventfd] by its whole name.
                Some((kind, _)) if kind != "anon_inode" => {
                    *descriptors.entry(kind.to_owned()).or_default() += 1
                }
                _ => *descriptors.entry(target).or_default() += 1,
            }
        }
        Self { threads, descriptors, pipes }
    }

    /// Waits until the daemon holds again what it held then. Pipes may be kept, in pairs, not too many, and
    /// empty.
    pub fn settle(&self, pid: u32) {
        let start = Instant::now();
        let mut now = Self::take(pid);
        while (now.threads, &now.descriptors) != (self.threads, &self.descriptors) {
            assert!(start.elapsed() < PATIENCE, "not settled: {now:#?}, at the start {self:#?}");
            std::thread::sleep(Duration::from_millis(10));
            now = Self::take(pid);
        }
        // By their numbers: another process may have taken its place, which inherited the same from who
        // started it.
        let had = |pipe: &PathBuf| self.pipes.iter().any(|had| had.file_name() == pipe.file_name());
        let kept: Vec<&PathBuf> = now.pipes.iter().filter(|pipe| !had(pipe)).collect();
        assert!(kept.len().is_multiple_of(2), "half a pipe is left: {kept:?}");
        assert!(kept.len() <= 2 * KEPT_PIPES * self.threads, "{} descriptors of pipes are left", kept.len());
        assert_eq!(bytes_in(kept), 0, "a pipe that is kept holds data of a flow that has ended");
    }
}

/// Bytes that lie in a process's pipes. Each pipe counts twice: both of its ends know.
pub fn bytes_in_pipes(pid: u32) -> u64 {
    bytes_in(&Accounts::take(pid).pipes) / 2
}

fn bytes_in<'a>(pipes: impl IntoIterator<Item = &'a PathBuf>) -> u64 {
    let bytes = |pipe: &PathBuf| {
        let opened = open(pipe, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty());
        opened.map_or(0, |pipe| rustix::io::ioctl_fionread(&pipe).unwrap())
    };
    pipes.into_iter().map(bytes).sum()
}

/// The processes, other than this one, that are in the network namespace of a host and so keep it alive.
pub fn processes_in(host: &Host) -> Vec<PathBuf> {
    let inode = fstat(host.namespace.as_fd()).unwrap().st_ino;
    let namespace = PathBuf::from(format!("net:[{inode}]"));
    let holds = |process: &PathBuf| fs::read_link(process.join("ns/net")).is_ok_and(|link| link == namespace);
    let ours = PathBuf::from(format!("/proc/{}", std::process::id()));
    entries("/proc").into_iter().filter(|process| *process != ours && holds(process)).collect()
}

fn entries(folder: &str) -> Vec<PathBuf> {
    fs::read_dir(folder).unwrap().filter_map(|entry| Some(entry.ok()?.path())).collect()
}
