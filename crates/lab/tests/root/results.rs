//! Results on a disk that is full. The disk is a tiny one of this test's own, in a mount namespace of its
//! own.

use std::path::{Path, PathBuf};
use std::process::Command;

use bentpipe_lab::results::{Plan, Results, Seeds, World};
use bentpipe_testbed::{Need, require};

/// The variable that tells a second run of this very test, within the namespace, which folder is the full
/// disk.
const FULL_DISK: &str = "BENTPIPE_TEST_FULL_DISK";

#[test]
fn a_full_disk_is_named_with_a_remedy_and_keeps_the_old_file() {
    if let Some(folder) = std::env::var_os(FULL_DISK) {
        return write_twice(&PathBuf::from(folder));
    }
    if let Err(missing) = require(&[Need::Privileges, Need::Namespaces, Need::Program("unshare")]) {
        println!("skipped: needs root: {missing}");
        return;
    }
    let folder = std::env::temp_dir().join(format!("bentpipe-full-disk-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    // The mount is private to the process below and goes away with it.
    let outcome = Command::new("unshare")
        .args([
            "--mount",
            "sh",
            "-c",
            "mount -t tmpfs -o size=64k tmpfs \"$FOLDER\" && exec \"$TEST\" --exact \"$NAME\"",
        ])
        .env("FOLDER", &folder)
        .env("TEST", std::env::current_exe().unwrap())
        .env("NAME", "results::a_full_disk_is_named_with_a_remedy_and_keeps_the_old_file")
        .env(FULL_DISK, &folder)
        .output();
    std::fs::remove_dir(&folder).unwrap();
    let outcome = outcome.unwrap();
    let said = [outcome.stdout, outcome.stderr].concat();
    assert!(outcome.status.success(), "{}", String::from_utf8_lossy(&said));
}

fn write_twice(folder: &Path) {
    results("short").write(folder).unwrap();
    let page = folder.join("full.md");
    let before = std::fs::read_to_string(&page).unwrap();
    let message = results(&"long ".repeat(50_000)).write(folder).unwrap_err().to_string();
    assert!(message.contains("full.md") && message.contains("free some space there"), "{message}");
    assert_eq!(std::fs::read_to_string(&page).unwrap(), before);
    assert_eq!(std::fs::read_dir(folder).unwrap().count(), 1, "a temporary file is left");
}

fn results(title: &str) -> Results {
    Results {
        name: "full".into(),
        title: title.into(),
        source: "none".into(),
        world: World::Sim,
        seeds: Seeds { first: 1, count: 1 },
        plan: Plan::fixed(1),
        quick: false,
        busy: None,
        verdicts: Vec::new(),
        tables: Vec::new(),
        figures: Vec::new(),
    }
}
