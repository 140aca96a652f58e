//! No descriptor is left: in a process of its own, since the limit is the process's.

use std::fs::File;
use std::io::Read;
use std::process::Command;

use bentpipe_dtn::store::Change;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::store_common::{bytes, files, keep, open, payload, read, record};

#[test]
fn without_descriptors_the_store_says_so_and_goes_on_afterwards() {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "store_descriptors::child", "--ignored"])
        .output()
        .unwrap();
    let output = [child.stdout, child.stderr].concat();
    let output = String::from_utf8_lossy(&output);
    assert!(child.status.success() && output.contains("1 passed"), "{output}");
}

#[test]
#[ignore = "takes the descriptors of its process: the test above starts it"]
fn child() {
    let folder = tempfile::tempdir().unwrap();
    let (store, _) = open(folder.path());
    let old = record(&store, 0, payload(&store, 0, 100_000).unwrap());
    store.commit(vec![Change::Put(old.clone())]).unwrap();
    let old_limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(100), ..old_limit }).unwrap();
    let mut taken = Vec::new();
    while let Ok(file) = File::open("/dev/null") {
        taken.push(file);
    }
    assert!(!taken.is_empty());

    let error = keep(&store, 1, 100_000).unwrap_err().to_string();
    assert!(error.contains("cannot create") && error.contains("LimitNOFILE"), "{error}");
    let error = store.read(&old.payload).read(&mut [0; 10]).unwrap_err().to_string();
    assert!(error.contains("cannot open") && error.contains("LimitNOFILE"), "{error}");
    // Small bundles need none, and what goes needs none.
    let small = keep(&store, 2, 1000).unwrap();
    store.commit(vec![Change::Remove(small)]).unwrap();
    assert_eq!(store.usage().bytes.get(), 100_000);

    drop(taken);
    assert_eq!(files(folder.path()).len(), 1);
    keep(&store, 3, 100_000).unwrap();
    assert_eq!(read(&store, &old.payload), bytes(0, 100_000));
    setrlimit(Resource::Nofile, old_limit).unwrap();
}
