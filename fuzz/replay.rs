/// Runs a fuzz target on each input of its corpus, so that what once crashed it, or led it somewhere new,
/// does so in every test run.
pub(crate) fn replay(target: &str, run: impl Fn(&[u8])) {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut count = 0;
    for entry in entries {
        let path = entry.unwrap().path();
        println!("{}", path.display());
        run(&std::fs::read(path).unwrap());
        count += 1;
    }
    assert!(count > 0, "{} is empty", folder.display());
}
