//! SIGKILL at any moment: what was committed is there, nothing else is, and nothing is left lying about.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use bentpipe_dtn::store::{Change, Store};

use crate::store_common::{bytes, files, keep, open, read};

const FOLDER: &str = "BENTPIPE_TEST_STORE";
const FIRST: &str = "BENTPIPE_TEST_FIRST";
const LENGTHS: [usize; 6] = [1, 700, 4096, 4097, 70_000, 600_000];
/// Bundle numbers for each of the rounds.
const NUMBERS: u64 = 1_000_000;

#[test]
fn a_kill_at_any_moment_loses_nothing_that_was_committed() {
    let seed = std::env::var("SEED").ok().and_then(|text| text.parse().ok()).unwrap_or_else(|| {
        SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(1, |since| since.as_nanos() as u64)
    });
    println!("SEED={seed}");
    let random = bytes(seed, 100);
    let folder = tempfile::tempdir().unwrap();
    for round in 0..8 {
        let lines = log(folder.path()).len() + 1 + usize::from(random[round]) % 60;
        run_and_kill(
            folder.path(),
            round as u64,
            lines,
            Duration::from_micros(u64::from(random[50 + round]) * 8 * (round as u64 % 2)),
        );
        let (store, records) = open(folder.path());
        let expected = Expected::read(folder.path());
        let mut there = BTreeSet::new();
        for record in &records {
            let number = record.bundle.id.sequence;
            let len = LENGTHS[number as usize % LENGTHS.len()];
            assert_eq!(read(&store, &record.payload), bytes(number, len), "round {round}, bundle {number}");
            assert!(
                there.insert(number) && !expected.removed.contains(&number),
                "round {round}, bundle {number}"
            );
            assert!(store.knows(&record.bundle.id));
        }
        assert!(
            expected.kept.is_subset(&there),
            "round {round}, lost: {:?}",
            expected.kept.difference(&there)
        );
        assert!(store.recovery().damaged.is_empty() && store.recovery().unreadable == 0);
        assert_eq!(store.usage().files, files(folder.path()).len(), "round {round}");
        drop(store);
        // A second start finds nothing that the first has left.
        assert_eq!(open(folder.path()).0.recovery(), &Default::default());
    }
}

/// What the log says must be, and must not be, in the store.
struct Expected {
    kept: BTreeSet<u64>,
    removed: BTreeSet<u64>,
}

impl Expected {
    fn read(folder: &Path) -> Self {
        let (mut state, mut removed) = (BTreeMap::new(), BTreeSet::new());
        for line in log(folder) {
            // A line may be cut short by the kill; what it says then is not known.
            let Some((verb, number)) = line.split_once(' ') else { continue };
            let number: u64 = number.parse().unwrap();
            match verb {
                "kept" => drop(state.insert(number, true)),
                "removing" => drop(state.insert(number, false)),
                _ => drop(removed.insert(number)),
            }
        }
        let kept = state.into_iter().filter(|(_, kept)| *kept).map(|(number, _)| number).collect();
        Self { kept, removed }
    }
}

/// Whole lines of what the children have written.
fn log(folder: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(folder.join("log")).unwrap_or_default();
    text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')).map(str::to_owned).collect()
}

fn run_and_kill(folder: &Path, round: u64, lines: usize, then: Duration) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "store_kill::child", "--ignored", "--nocapture"])
        .env(FOLDER, folder)
        .env(FIRST, (round * NUMBERS).to_string())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    while log(folder).len() < lines {
        assert!(child.try_wait().unwrap().is_none(), "the child has ended by itself");
        assert!(Instant::now() < until, "the child does nothing");
        std::thread::sleep(Duration::from_micros(200));
    }
    // Half of the times just after a line.
    std::thread::sleep(then);
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Not a test of its own: puts bundles in and takes some out until it is killed.
#[test]
#[ignore = "run by the test above"]
fn child() {
    let Ok(folder) = std::env::var(FOLDER).map(PathBuf::from) else { return };
    let first: u64 = std::env::var(FIRST).unwrap().parse().unwrap();
    let (store, _) = open(&folder);
    let log = OpenOptions::new().append(true).create(true).open(folder.join("log")).unwrap();
    let next = AtomicU64::new(first);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while next.load(Ordering::Relaxed) < first + NUMBERS {
                    in_and_out(&store, next.fetch_add(1, Ordering::Relaxed), &log);
                }
            });
        }
    });
}

fn in_and_out(store: &Store, number: u64, mut log: &File) {
    // One write(2) is one line, also of several threads.
    let mut say = |verb: &str| log.write_all(format!("{verb} {number}\n").as_bytes()).unwrap();
    let key = keep(store, number, LENGTHS[number as usize % LENGTHS.len()]).unwrap();
    say("kept");
    if number.is_multiple_of(3) {
        say("removing");
        store.commit(vec![Change::Remove(key)]).unwrap();
        say("removed");
    }
}
