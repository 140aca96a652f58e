//! What root opens belongs to the account that the daemon goes on as.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use bentpipe_admin::Sockets;
use bentpipe_kernel::privileges::Account;
use bentpipe_proxy::config::{AdminSettings, Listen};

#[test]
fn folder_and_sockets_are_the_accounts_and_nothing_else_is() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: needs root: only root gives files away");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let account = Account::find("5000:6000").unwrap();
    let settings =
        AdminSettings { folder: folder.path().join("run"), listen: Listen::Off, ..AdminSettings::default() };
    let owner = |path: &Path| {
        fs::symlink_metadata(path).map(|data| (data.uid(), data.gid(), data.mode() & 0o777)).unwrap()
    };
    // Whatever the umask is.
    let sockets = Sockets::open(&settings, Some(&account), &[]).unwrap();
    assert_eq!(owner(&settings.folder), (5000, 6000, 0o755));
    for path in [settings.socket(), settings.handover_socket()] {
        assert_eq!(owner(&path), (5000, 6000, 0o660));
    }
    sockets.close();
    // A folder that was there stays whose it is: it may be /tmp.
    let shared = AdminSettings { folder: folder.path().join("shared"), ..settings };
    fs::create_dir(&shared.folder).unwrap();
    let _sockets = Sockets::open(&shared, Some(&account), &[]).unwrap();
    assert_eq!(owner(&shared.folder).0, 0);
    assert_eq!(owner(&shared.socket()), (5000, 6000, 0o660));
}
